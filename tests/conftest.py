"""What all tests share: published data, and examples that are the same in every run."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import settings

from labkit import datasets
from tests import published

# A search that draws anew each time finds more over the months, but it fails the wrong change.
# `pytest --hypothesis-profile=explore` draws anew.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("same")


@pytest.fixture(scope="session")
def published_data() -> Callable[..., datasets.Source]:
    """``published_data(name, files)``: the published files, or the test is skipped."""
    return published.need


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """``-s``, without workers: what became of the calls of each room with odd values."""
    kinds = sys.modules.get("tests.kinds")  # only where a test made such calls
    if kinds and kinds.TRIED and terminalreporter.config.getoption("capture") == "no":
        terminalreporter.write_line(kinds.became().to_string())
