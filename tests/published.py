"""Published data in tests: a test has them, or is skipped with the reason of `labkit.datasets`.

A test or a fixture asks through the fixture ``published_data``, a plain function through `need`,
which is the same. pytest remembers the tests that were skipped so, and the notebooks that ran on a
stand-in; ``pytest --nbval --wanting`` runs those again, once the data are there.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from labkit import datasets
from labkit.datasets import DatasetUnavailable
from tests.smoke import SMOKE

Need = Callable[..., datasets.Source]

WANTED = "data wanted: "
"""How the reason begins where a test is skipped for want of data, and for no other cause."""
STORED = "labkit/wanting"
"""Where pytest's cache keeps what wanted data: tests by node id, notebooks by path."""
WANTING = pytest.StashKey[set[str] | None]()


def need(name: str, files: Sequence[str] | None = None) -> datasets.Source:
    """The files of dataset ``name`` as published, downloaded where they can be.

    ``name`` may also be one file, ``dataset/path``. Where one cannot be had the running test is
    skipped; a file that is here and is not the published one is an error.
    """
    for problem in datasets.fetch(name, files):
        if not isinstance(problem, DatasetUnavailable):
            raise problem
        skip(str(problem))
    return datasets.source(name, files)


def need_peers() -> list[dict[str, str]]:
    """What other estimators of memory say, a row a number, or the running test is skipped."""
    path = Path(os.environ.get("LABKIT_MEMORY_PEERS", "memory_peers.csv"))
    if not path.is_file():
        skip(f"there is no file {path}: set LABKIT_MEMORY_PEERS to the table of other estimators")
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def need_mirror() -> Path:
    """The folder of published files that ``LABKIT_DATA_MIRROR`` names, or the test is skipped."""
    folder = datasets.mirror_folder()
    if folder is None:
        skip("LABKIT_DATA_MIRROR is not set")
    return folder


def skip(reason: str) -> NoReturn:
    pytest.skip(WANTED + reason)


# --------------------------------------------------------- what wanted data, and running it again


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("labkit").addoption(
        "--wanting",
        action="store_true",
        help="run what earlier runs skipped, or ran on a stand-in, for want of published data",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[WANTING] = None
    if config.getoption("wanting"):
        if not hasattr(config, "cache"):
            raise pytest.UsageError("--wanting reads pytest's cache: leave out -p no:cacheprovider")
        config.stash[WANTING] = set(config.cache.get(STORED, []))


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--wanting``, files that wanted nothing are not even imported."""
    wanting = config.stash[WANTING]
    if wanting is None or collection_path.is_dir():
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    return None if path in {file_of(name) for name in wanting} else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanting = config.stash[WANTING]
    if wanting is None:
        return
    others = [item for item in items if known_as(item.nodeid) not in wanting]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if known_as(item.nodeid) in wanting]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Keep what wanted data; what had them now is no longer kept."""
    if not hasattr(config, "cache"):
        return
    stats = terminalreporter.stats.values()
    reports = [one for kind in stats for one in kind if isinstance(one, pytest.TestReport)]
    ran = {known_as(report.nodeid) for report in reports}
    kept = set(config.cache.get(STORED, [])) - ran
    config.cache.set(STORED, sorted(kept | wanted_data(reports)))


def wanted_data(reports: Iterable[pytest.TestReport]) -> set[str]:
    """The tests that were skipped for want of data, and the notebooks that ran on a stand-in."""
    found = set()
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if f"Skipped: {WANTED}" in reason or report.nodeid.endswith(f"::{SMOKE}"):
            found.add(known_as(report.nodeid))
    return found


def known_as(nodeid: str) -> str:
    """A test by its node id, a notebook by its path: which cells it has depends on the data."""
    path = file_of(nodeid)
    return path if path.endswith(".ipynb") else nodeid


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
