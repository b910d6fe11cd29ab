"""What a document or a help text tells a reader to type, as a test may run it.

Nothing is left out in silence: what serves, what takes minutes and what asks the network has a
smaller variant here, by rule.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Container
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SERVERS = ("lab", "mcp", "present", "panel")
"""Commands that serve until they are stopped; tests/browser starts them, here they are parsed."""
RUNS = ("run", "refresh")
"""Commands that execute notebooks; here they say what they would run."""


def runnable(line: str) -> str:
    """The line as a test may run it: nothing that takes minutes, nothing that serves."""
    words = shlex.split(line)
    if words[0] == "make":
        return f"make -n {shlex.join(words[1:])}"
    if words[0] == "labkit" and words[1] in RUNS:
        return f"{line} --dry-run"
    if words[0] == "labkit" and words[1] in SERVERS:
        return f"{line} --help"
    if words == ["labkit", "init"]:  # which takes an empty folder; the test stands in a workbook
        return f"{line} empty-folder"
    if words[:2] == ["labkit", "site"]:  # the library's reference alone takes half a minute
        return f"{line} --no-reference"
    return line


def a_trace() -> str:
    rows = [f"{job},{60 * job},{600 + 40 * (job % 7)},{1 + job % 4}" for job in range(120)]
    return "\n".join(["job_id,arrival_s,duration_s,gpus", *rows]) + "\n"


def some_calls() -> str:
    rows = [f"{0.5 * call},{32 + call % 200},{1 + call % 60}" for call in range(200)]
    return "\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n"


def a_profile() -> str:
    standin = ROOT / "data" / "profiles" / "standin_a100_gpt3-175b.csv"
    return standin.read_text(encoding="utf-8")


def an_entry() -> str:
    return "@inproceedings{new20, title={A Paper}, author={Bell, Ann}, year=2020}\n"


def a_sweep() -> str:
    return "grid: {eta_knob: [0.0, 1.0]}\n"


def a_cluster() -> str:
    return "kind: slurm\nworkers: 2\noptions: {queue: short, cores: 4, memory: 16GB}\n"


OF_A_READER: dict[str, Callable[[], str]] = {
    "jobs.csv": a_trace,
    "calls.csv": some_calls,
    "stages.csv": a_profile,
    "paper.bib": an_entry,
    "eta.yaml": a_sweep,
    "slurm.yaml": a_cluster,
}
"""Files of a reader's own, which texts take for granted."""


def workbook(folder: Path, papers: Container[str] | None = None) -> Path:
    """Copy the workbook to ``folder``, with a reader's files in it; the library is this checkout's.

    Args:
        papers: the papers whose notebooks it holds; default: all.
    """
    folder.mkdir(exist_ok=True)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, folder)
    shutil.copytree(ROOT / "data", folder / "data")
    for path in sorted((ROOT / "notebooks").rglob("*.ipynb")):
        if papers is None or path.stem in papers:
            copied = folder / path.relative_to(ROOT)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copied)
    for name, content in OF_A_READER.items():
        (folder / name).write_text(content(), encoding="utf-8")
    return folder
