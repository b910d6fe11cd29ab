"""What holds for all tests, and how the notebooks are tested.

``pytest --nbval`` compares a notebook's stored outputs with a fresh run. Those outputs come from
the published data; where that data is not here, comparing would only say so, so such a notebook is
executed on its stand-in instead (a smoke run), and the summary says which ones were.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.smoke import SMOKE, execute, without_cells

hypothesis.settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("unhurried")

pytest_plugins = ["tests.published", "tests.shares"]


def lacks_data(path: Path) -> bool:
    """Whether the notebook at ``path`` declares published data that is not to be had here."""
    from labkit import datasets
    from labkit.workbook import notebooks

    entries = notebooks.dataset_names(without_cells(path))
    return any(datasets.fingerprint(entry).startswith("stand-in:") for entry in entries)


class StandinSmoke(pytest.File):
    """A notebook whose published data is absent: executed, its outputs not compared."""

    def collect(self) -> Iterator[pytest.Item]:
        yield StandinSmokeItem.from_parent(self, name=SMOKE)


class StandinSmokeItem(pytest.Item):
    def runtest(self) -> None:
        execute(self.path)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.stem}: {SMOKE}"


def other_language(path: Path) -> str:
    """The language of the notebook's kernel where that is not Python; "" where it is."""
    from labkit.workbook import notebooks

    name, language = notebooks.kernel(without_cells(path))
    is_python = language == "python" or (not language and name.startswith("python"))
    return "" if is_python else language or name or "no kernel"


class OtherKernel(pytest.File):
    """A notebook of another language: nbval would run it in this Python, and might call it good."""

    def __init__(self, *, language: str, **given: Any) -> None:
        super().__init__(**given)
        self.language = language

    def collect(self) -> Iterator[pytest.Item]:
        item = OtherKernelItem.from_parent(self, name="its kernel is Python's")
        item.language = self.language
        yield item


class OtherKernelItem(pytest.Item):
    language = ""

    def runtest(self) -> None:
        pytest.fail(
            f"{self.path} is for {self.language}, and tests run Python alone; "
            "valid: kernelspec.name: python3",
            pytrace=False,
        )

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.stem}: its kernel"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("labkit")
    group.addoption(
        "--budget",
        type=float,
        default=None,
        metavar="SECONDS",
        help="collect files for a third of so many seconds, start no test after them; "
        "files and tests left out are counted",
    )


BEGAN = pytest.StashKey[float]()
LEFT_OUT = pytest.StashKey[list[Path]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[BEGAN] = time.monotonic()
    config.stash[LEFT_OUT] = []


def is_spent(config: pytest.Config, share: float = 1.0) -> bool:
    """Whether this share of the budget has passed since pytest began."""
    budget_s = config.getoption("budget")
    return budget_s is not None and time.monotonic() - config.stash[BEGAN] > share * budget_s


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if is_spent(item.config):
        pytest.skip("no time left in --budget")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Generator[None, Any, Any]:
    collectors = yield
    if collectors and is_spent(parent.config, share=1 / 3):
        parent.config.stash[LEFT_OUT].append(file_path)
        return []
    wants_nbval = parent.config.getoption("nbval", default=False)
    if file_path.suffix != ".ipynb" or not wants_nbval:
        return collectors
    if language := other_language(file_path):
        return [OtherKernel.from_parent(parent, path=file_path, language=language)]
    if not lacks_data(file_path):
        return collectors
    return [StandinSmoke.from_parent(parent, path=file_path)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if left_out := terminalreporter.config.stash[LEFT_OUT]:
        terminalreporter.write_line(f"no time in --budget to collect {len(left_out)} files")
    smoked = sorted(
        Path(report.nodeid.split("::")[0]).stem
        for report in terminalreporter.stats.get("passed", [])
        if report.nodeid.endswith(SMOKE)
    )
    if smoked:
        terminalreporter.write_line(
            f"published data not here: {', '.join(smoked)} ran on the stand-in, "
            "stored outputs were not compared (labkit data fetch brings the data)",
            yellow=True,
        )
