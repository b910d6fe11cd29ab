"""``make quick``: the tests of what changed, nearest first, within a budget of seconds.

What changed is what git says: edits and new files, and the commits that the branch has over its
upstream. A test file is affected when it, or a module that it reaches by imports, changed; those
that name a changed module themselves come first. A notebook whose stored fingerprint still holds
is not run. Tests that the budget leaves no time for are counted, never hidden.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from labkit.workbook import notebooks
from labkit.workbook.run import fingerprint, imports

ROOT = Path(__file__).resolve().parents[1]
BUDGET_S = 30
"""For the tests, collecting them included; style and types take the rest of a minute."""
PROCESSES = 2
NO_TESTS = 5
"""pytest's exit status when it collected nothing: every notebook current, say."""


def changed_files() -> set[Path]:
    """Edited, new and unpushed files, as git tells them."""
    listings = [
        ("ls-files", "--modified", "--others", "--exclude-standard"),
        ("diff", "--name-only", "--cached"),
    ]
    if git("rev-parse", "--verify", "--quiet", "@{upstream}"):
        listings.append(("diff", "--name-only", "@{upstream}..."))
    elif not any(git(*listing) for listing in listings):
        listings.append(("diff", "--name-only", "HEAD~1"))
    return {ROOT / name for listing in listings for name in git(*listing)}


def git(*words: str) -> list[str]:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else []


def affected(changed: set[Path]) -> list[Path]:
    """Test files that reach a changed file, those that are named like it or its room first."""
    ranked = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path.parent.name in ("benchmarks", "browser"):
            continue
        reached = imports.reached([ast.parse(path.read_text(encoding="utf-8"))], [ROOT])
        touched = {name for name, module in reached.items() if module.path in changed}
        if path in changed or touched:
            ranked.append((-max((nearness(name, path) for name in touched), default=2), path))
    return [path for _, path in sorted(ranked)]


def nearness(name: str, path: Path) -> int:
    """2 for ``tuning.choice.choose`` and ``test_choose.py``, 1 for any of ``tests/tuning``."""
    parts = name.split(".")
    return 2 * (path.stem.removeprefix("test_") in parts) or int(path.parent.name in parts)


def is_current(path: Path) -> bool:
    """Whether nothing that the notebook rests on changed since its outputs were stored."""
    notebook = notebooks.read(path)
    stored = notebook.metadata.get("labkit", {}).get(fingerprint.OUTPUTS)
    return stored is not None and stored == fingerprint.of_notebook(ROOT, path, notebook, {}).digest


def main() -> int:
    changed = changed_files()
    doctests = [path for path in changed if path.suffix == ".py" and "labkit" in path.parts]
    stale = [path for path in sorted((ROOT / "notebooks").rglob("*.ipynb")) if not is_current(path)]
    files = [*affected(changed), *(path for path in doctests if path.is_file()), *stale]
    words = [str(path) for path in dict.fromkeys(files)]
    print(f"{len(changed)} files changed; {len(words)} files with tests of them", flush=True)
    # Two processes share the files: workers of xdist would each collect all of them.
    shares = [words[share::PROCESSES] for share in range(PROCESSES)]
    return max(map(finish, [start(share) for share in shares if share]), default=0)


def start(words: list[str]) -> subprocess.Popen[str]:
    options = ["-q", "--no-header", "--nbval", f"--budget={BUDGET_S}"]
    command = [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def finish(tests: subprocess.Popen[str]) -> int:
    output, _ = tests.communicate()
    print(output, flush=True)
    return 0 if tests.returncode == NO_TESTS else tests.returncode


if __name__ == "__main__":
    sys.exit(main())
