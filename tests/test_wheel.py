"""The wheel as an engineer has it: no extras, no workbook around, no network, another folder.

The environment is a new one whose packages are links to those of this environment that the base
requirements reach, and the wheel, installed by pip. Whatever else is installed here is not there.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import venv
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import Parser
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from labkit import ENGINES
from labkit.cli import panel
from labkit.datasets.registry import load_registry
from labkit.workbook.run import imports

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("labkit", "data", "pyproject.toml", "setup.py", "README.md", "LICENSE")
DATA_NAME = re.compile(r"data/[\w./-]+")

EXAMPLES = [
    example
    for engine in ENGINES
    for example in import_module(f"labkit.{engine.name}.commands").commands.first_examples()
]
NEEDS_MORE = {
    "labkit memory check": "memory.check needs torch, which is not installed here: "
    "pip install 'mlsys-labkit[torch]'",
    "labkit memory forward": "tracing a config.json needs torch and transformers, which are not"
    " installed here: pip install 'mlsys-labkit[torch]'",
    "labkit swap compare": "running a chain of blocks needs torch, which is not installed here: "
    "pip install 'mlsys-labkit[torch]'",
    "labkit swap plan": "running a chain of blocks needs torch, which is not installed here: "
    "pip install 'mlsys-labkit[torch]'",
    "labkit tuning record": "tuning.record needs torch and sklearn, which are not installed here: "
    "pip install 'mlsys-labkit[torch]'",
    "labkit tuning live": "zeus-ml is not installed: pip install zeus-ml",
}
"""Examples that measure on this machine, and what they say without what that takes."""
MORE = [
    "labkit swap compare --layers 0",
    "labkit swap plan --layers 0 --method searched",
    "labkit memory plan llama-2-7b --html page.html --csv rows.csv",
    "labkit tuning outcomes cifar100 --eta 0.3",  # on the stand-in of a published trace
    "labkit data",
    "labkit data show zeus-nsdi23",
    "labkit data verify",
    "labkit --version",
]
WORKBOOK = [
    "init",
    "queue",
    "queue next",
    "new KEY",
    "check",
    "run",
    "refresh",
    "results",
    "diff a b",
    "clean",
    "slides zeus",
    "site",
    "compare zeus pollux",
    "ask zeus",
    "lab",
    "present zeus",
]

DRIVER = """
import contextlib, io, json, os, shlex, sys
from pathlib import Path
from labkit.cli import main

answers = {}
for text in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(text)[1:])
    answers[text] = [code, out.getvalue(), err.getvalue()]
Path(sys.argv[1]).write_text(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources, through a source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "sources"
    for name in SOURCES:
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=ignored)
        else:
            shutil.copy2(source, copy / name)
    build(copy, "build_sdist", folder)
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder)
    build(folder / archive.name.removesuffix(".tar.gz"), "build_wheel", folder)
    (built,) = folder.glob("*.whl")
    return built


def build(sources: Path, hook: str, folder: Path) -> None:
    code = f"from setuptools import build_meta; build_meta.{hook}({str(folder)!r})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=sources, env=plain(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def plain(**more: str) -> dict[str, str]:
    """The environment's variables without those that say where things are."""
    ours = ("LABKIT_", "PYTHON", "PIP_CONSTRAINT")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    return kept | more


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds the wheel and its base requirements alone."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    (packages,) = home.glob("lib/python*/site-packages")
    for path in files_of(closure(wheel)):
        (packages / path.name).symlink_to(path)
    options = ["--no-deps", "--no-index", "--no-compile", "--quiet"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        *options,
        str(wheel),
    ]
    done = subprocess.run(command, env=plain(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lend_compiled(packages / "labkit")
    return python


def closure(wheel: Path) -> set[str]:
    """The names of the distributions that the wheel asks for without extras, and what they do."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        headers = Parser().parsestr(archive.read(name).decode())
    waiting = headers.get_all("Requires-Dist") or []
    reached: set[str] = set()
    while waiting:
        asked = Requirement(waiting.pop())
        name = asked.name.lower()
        if name in reached or (asked.marker and not asked.marker.evaluate({"extra": ""})):
            continue
        assert not asked.extras, f"{asked}: follow its extras here too"
        reached.add(name)
        waiting += metadata.requires(name) or []
    return reached


def files_of(names: Iterable[str]) -> set[Path]:
    """What stands in this environment's site-packages of the distributions ``names``."""
    found: set[Path] = set()
    for name in names:
        distribution = metadata.distribution(name)
        home = Path(str(distribution.locate_file("")))
        tops = {path.parts[0] for path in distribution.files or ()}
        found |= {home / top for top in tops - {"..", "__pycache__"}}
    return found


def lend_compiled(package: Path) -> None:
    """Let numba take what it compiled beside the checkout's files for the copies, which are equal:
    compiling the engines anew takes half a minute."""
    for path in (ROOT / "labkit").rglob("*.nb[ic]"):
        module = path.parents[1] / f"{path.name.split('.')[0]}.py"
        copy = package / module.relative_to(ROOT / "labkit")
        if not module.is_file() or module.read_bytes() != copy.read_bytes():
            continue
        times = module.stat()
        os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
        (copy.parent / "__pycache__").mkdir(exist_ok=True)
        shutil.copy2(path, copy.parent / "__pycache__" / path.name)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("elsewhere")
    yield folder
    assert not list(folder.rglob("reading_queue.yaml"))


def run(python: Path, folder: Path, code: str, *arguments: str, **more: Any) -> str:
    """What a script prints in the bare environment, which must end well."""
    offline = plain(LABKIT_OFFLINE="1", LABKIT_CACHE=str(folder / "cache"), COLUMNS="200")
    done = subprocess.run(
        [str(python), "-c", code, *arguments],
        cwd=folder,
        env=offline,
        capture_output=True,
        text=True,
        timeout=500,
        **more,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


Answers = dict[str, tuple[int, str, str]]


@pytest.fixture(scope="module")
def answers(bare: Path, elsewhere: Path) -> Answers:
    """Exit code, standard output and standard error of every command, from one process."""
    asked = [as_json(example) for example in EXAMPLES] + MORE
    asked += [f"labkit {words}" for words in ("--help", "run --help", *WORKBOOK)]
    asked += ["labkit mcp", *(f"labkit panel {name}" for name in panel.PANELS)]
    printed = run(bare, elsewhere, DRIVER, "answers.json", input=json.dumps(asked))
    assert printed == "", "a library wrote past the command, into what it prints as JSON"
    found = json.loads((elsewhere / "answers.json").read_text())
    return {text: tuple(answer) for text, answer in found.items()}


def as_json(example: str) -> str:
    return example if " -- " in example else f"{example} --json -"


def test_the_environment_holds_nothing_more(bare: Path, elsewhere: Path) -> None:
    """Neither torch nor a notebook tool; labkit is the installed copy."""
    code = (
        "import importlib.util, labkit; print(labkit.__file__);"
        "names = 'torch sklearn papermill nbformat IPython bs4 voila ipywidgets pytest'.split();"
        "print([name for name in names if importlib.util.find_spec(name)])"
    )
    where, others = run(bare, elsewhere, code).splitlines()
    assert Path(where).is_relative_to(bare.parents[1])
    assert others == "[]"


def test_the_data_that_engines_name_travel_unchanged(wheel: Path) -> None:
    """Every file of ``data/`` that a module of an engine names, or the registry for a stand-in."""
    with zipfile.ZipFile(wheel) as archive:
        inside = {
            name.removeprefix("labkit/"): archive.read(name)
            for name in archive.namelist()
            if name.startswith("labkit/data/")
        }
    assert all((ROOT / name).read_bytes() == content for name, content in inside.items())
    named = {file.standin for data in load_registry().datasets.values() for file in data.files}
    for path in (ROOT / "labkit").rglob("*.py"):
        if path.relative_to(ROOT).parts[1] not in ("cli", "workbook"):
            named |= imports.strings(ast.parse(path.read_text(encoding="utf-8")))
    files = {
        name for name in named if name and DATA_NAME.fullmatch(name) and (ROOT / name).exists()
    }
    assert {"data/models.yaml", "data/measured", "data/profiles/standin_train.csv"} <= files
    for name in files:
        assert any(other == name or other.startswith(f"{name}/") for other in inside), name


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_each_command_answers(example: str, answers: Answers) -> None:
    code, out, err = answers[as_json(example)]
    words = " ".join(example.split()[:3])
    if words in NEEDS_MORE:
        assert code > 0
        assert NEEDS_MORE[words] in " ".join(err.split())
    else:
        assert code == 0, err
        assert json.loads(out)["command"] == example.split()[2]


@pytest.mark.parametrize("command", MORE)
def test_more_commands_answer(command: str, answers: Answers, elsewhere: Path) -> None:
    code, out, err = answers[command]
    assert code == 0, err
    assert out
    if "page.html" in command:
        assert "Plotly" in (elsewhere / "page.html").read_text(encoding="utf-8")
        assert (elsewhere / "rows.csv").read_text(encoding="utf-8").count("\n") > 3


def test_the_help_lists_engines_and_workbook(answers: Answers) -> None:
    code, out, _ = answers["labkit --help"]
    assert code == 0
    assert "pip install 'mlsys-labkit[workbook]'" in " ".join(out.split())
    assert all(f"│ {engine.name} " in out for engine in ENGINES)
    assert all(f"│ {words.split()[0]} " in out for words in WORKBOOK)
    assert answers["labkit run --help"][0] == 0


@pytest.mark.parametrize("words", WORKBOOK)
def test_the_workbook_s_commands_say_what_to_install(words: str, answers: Answers) -> None:
    code, out, err = answers[f"labkit {words}"]
    name = words.split()[0]
    lab = name in ("lab", "present")
    lacks, extra = ("voila", "lab") if lab else ("papermill", "workbook")
    sentence = f"`labkit {name}` needs {lacks}, which is not installed here: "
    assert (code, out) == (2, "")
    assert f"{sentence}pip install 'mlsys-labkit[{extra}]'" in " ".join(err.split())


def test_the_server_for_assistants_says_what_to_install(answers: Answers) -> None:
    code, out, err = answers["labkit mcp"]
    assert (code, out) == (2, "")
    sentence = "`labkit mcp` needs mcp, which is not installed here: "
    assert f"{sentence}pip install 'mlsys-labkit[mcp]'" in " ".join(err.split())


@pytest.mark.parametrize("name", panel.PANELS)
def test_a_panel_says_what_to_install(name: str, answers: Answers) -> None:
    code, out, err = answers[f"labkit panel {name}"]
    assert (code, out) == (2, "")
    assert "needs voila and anywidget" in err
    assert "pip install 'mlsys-labkit[lab]'" in " ".join(err.split())


SNIPPETS = {
    "pipeline": """
        from labkit import pipeline
        schedule = pipeline.build("1f1b", num_stages=8, num_microbatches=12)
        line = pipeline.simulate(schedule, pipeline.Costs(forward_s=1.0, backward_s=1.0))
        assert line.makespan_s == 38.0  # (stages - 1 + microbatches) forwards and backwards
        """,
    "memory": """
        from labkit import memory
        plan = memory.Plan(
            model=memory.Model.preset("llama-2-7b"), parallel=memory.Parallel(dp=64, zero=3),
            recipe=memory.Recipe.bf16_mixed(), batch=memory.Batch(seq=4096, micro_batch=1))
        assert plan.model.num_params == 6_738_415_616  # Llama 2, from the published checkpoint
        memory.fit(plan, vary="micro_batch", device="H100-80GB", headroom=0.8)
        assert len(memory.sweep(plan, dp=[8, 64], zero=[0, 1])) == 4
        """,
    "tuning": """
        from labkit import tuning
        trace = tuning.load("digits")
        assert len(tuning.outcomes(trace.job("digits-mlp"), eta=0.5)) > 6
        """,
    "cluster": """
        from labkit import cluster
        trace = cluster.generate(50, num_gpus=32, load=0.9, rng=0)
        run = cluster.simulate(trace, cluster.Cluster.nodes(4, gpus=8), cluster.named("fifo"))
        assert len(run.frame()) == 50
        """,
    "serving": """
        from labkit import serving
        requests = serving.generate(4, 50, prompt_tokens=(32, 512), output_tokens=(1, 128))
        profile = serving.TokenProfile.roofline("gpt3-175b", "A100-40GB", tensor=8, stages=2)
        run = serving.simulate(requests, profile, serving.Batcher(max_batch=32))
        assert len(run.frame()) == 50
        """,
    "panels": """
        from labkit.cli import panel
        for name in panel.PANELS:
            made = panel.built(name)
            first = {axis: values[0] for axis, values in made.axes.items()}
            assert made.call(**first).startswith(f"labkit {name} ")
        """,
    "data": """
        from labkit import datasets
        source = datasets.source("zeus-nsdi23", ["summary_train.csv"])
        assert source.is_standin and len(source.frame("summary_train.csv"))
        """,
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_the_library_answers(name: str, bare: Path, elsewhere: Path) -> None:
    run(bare, elsewhere, textwrap.dedent(SNIPPETS[name]))


def test_outside_a_workbook_its_commands_say_so(bare: Path, elsewhere: Path) -> None:
    """With every package of this environment at hand, and no workbook around."""
    here = str(metadata.distribution("papermill").locate_file(""))
    code = f"import sys; sys.path.append({here!r}); from labkit.cli import main; main(['run'])"
    code += "; assert main(['results']) == 2"
    env = plain(LABKIT_OFFLINE="1")
    done = subprocess.run(
        [str(bare), "-c", code], cwd=elsewhere, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no workbook found: neither") == 2
    assert done.stderr.count("labkit init FOLDER") == 2


BIBTEX = """\
@inproceedings{kwon2023,
  title = {Efficient Memory Management for Large Language Model Serving with {PagedAttention}},
  author = {Kwon, Woosuk and Li, Zhuohan},
  booktitle = {Proceedings of the 29th Symposium on Operating Systems Principles},
  year = {2023},
}
"""
PATH = [
    "queue",
    "queue add paper.bib --key paged --why 'Does paging pay?' --tag serving",
    "queue start paged --presenter Ann --date 2026-03-14",
    "new paged",
    "run",
    "refresh",
    "results --claims",
    "slides paged",
    "site",
    "queue done paged",
    "memory plan llama-2-7b",
    "data show zeus-nsdi23",
    "doctor",
]
"""What a group types, from an empty queue to the site."""


def test_a_group_s_own_workbook_is_served_by_the_wheel(bare: Path, tmp_path: Path) -> None:
    """With every package of this environment at hand, but labkit from the wheel."""
    here = str(metadata.distribution("papermill").locate_file(""))
    env = plain(LABKIT_OFFLINE="1", LABKIT_CACHE=str(tmp_path / "cache"), PYTHONPATH=here)

    def said(folder: Path, *lines: str) -> dict[str, str]:
        asked = json.dumps([f"labkit {line}" for line in lines])
        command = [str(bare), "-c", DRIVER, str(tmp_path / "answers.json")]
        done = subprocess.run(
            command, cwd=folder, env=env, input=asked, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        answers = json.loads((tmp_path / "answers.json").read_text())
        assert all(code == 0 for code, _, _ in answers.values()), answers
        return {words.removeprefix("labkit "): out for words, (_, out, _) in answers.items()}

    home = tmp_path / "ours"
    assert "cd ours" in said(tmp_path, "init ours")["init ours"]
    (home / "paper.bib").write_text(BIBTEX, encoding="utf-8")
    told = said(home, *PATH)
    assert "llama-2-7b: 162 GB at the peak" in told["memory plan llama-2-7b"]
    assert "0 failed" in told["doctor"]
    index = (home / "results/site/index.html").read_text(encoding="utf-8")
    assert "PagedAttention" in index
    assert (home / "results/site/slides/paged.html").is_file()
    stored = json.loads((home / "notebooks/serving/paged.ipynb").read_text(encoding="utf-8"))
    assert any(cell.get("outputs") for cell in stored["cells"])
