"""A small workbook to export, made afresh for each test that changes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.export import synthetic


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.make(tmp_path_factory.mktemp("pristine"))


@pytest.fixture(scope="module")
def made(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy for the tests of one module that only read what it exports."""
    return Path(shutil.copytree(pristine, tmp_path_factory.mktemp("made") / "workbook"))


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "workbook"))
