"""Every room stays within the lines that CONTRIBUTING.md gives it; names say what a value is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_architecture import GROUND, MODULES, PACKAGE, name_of, outline

ROOT = PACKAGE.parent
EMPTY_NAMES = {"found", "one", "told", "here", "made"}


def budgets() -> dict[str, int]:
    """Room -> lines, from the table in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `?([\w/]+)`? \| ([\d,]+) \|", text, flags=re.MULTILINE)
    return {room: int(lines.replace(",", "")) for room, lines in rows}


def lines_of(room: str) -> int:
    if room == "ground":
        parts = [PACKAGE / name for name in GROUND] + [PACKAGE / f"{name}.py" for name in GROUND]
        parts += [PACKAGE / "__init__.py", PACKAGE / "__main__.py"]
    else:
        parts = [PACKAGE / room]
    files = {file for part in parts for file in ([part] if part.is_file() else part.rglob("*.py"))}
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


ROOMS = {name for name in budgets() if name != "labkit"}


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_stays_within_its_budget(room: str) -> None:
    assert lines_of(room) <= budgets()[room]


def test_every_room_has_a_budget_and_all_fit_the_house() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES}
    assert rooms - GROUND - {"__init__", "__main__"} == ROOMS - {"ground"}
    assert sum(map(lines_of, ROOMS)) <= budgets()["labkit"]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_names_say_what_a_value_is(path: Path) -> None:
    assert not EMPTY_NAMES & outline(path).assigned
