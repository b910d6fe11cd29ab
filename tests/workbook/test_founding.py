"""``labkit init``: a whole workbook or nothing, and never over a file of somebody's."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import files
from labkit.cli import main
from labkit.errors import UsageError
from labkit.models import model
from labkit.workbook import founding, notebooks
from labkit.workbook.queue import bibliography, reading_queue
from labkit.workbook.review import check
from labkit.workbook.run import fingerprint
from tests.workbook import factory


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LABKIT_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)


def tree(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_a_new_workbook_is_empty_and_whole(tmp_path: Path) -> None:
    made = founding.found(tmp_path / "ours")
    assert sorted(tree(made.folder)) == sorted(made.names)
    assert files.workbook_around(made.folder) == made.folder
    assert len(reading_queue.load(made.folder)) == 0
    assert len(bibliography.load(made.folder)) == 0
    assert check.check(made.folder).is_clean
    readme = (made.folder / "README.md").read_text(encoding="utf-8")
    assert readme.startswith("# ours\n")
    assert "{{" not in "".join(text.decode() for text in tree(made.folder).values())


def test_the_command_names_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "our papers"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.partition("next:\n")[2].splitlines()] == [
        *("cd", "labkit", "labkit", "make")
    ]
    assert "cd 'our papers'" in out
    monkeypatch.chdir(tmp_path / "our papers")
    assert main(["init"]) == 2
    assert "is a workbook already" in capsys.readouterr().err


def test_a_folder_with_files_of_its_own_is_refused_and_stays(tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    (folder / "data" / "runs").mkdir(parents=True)
    (folder / "data" / "runs" / "a.csv").write_text("1\n")
    (folder / "README.md").write_text("# Thesis\n")
    (folder / "notebooks").symlink_to(tmp_path)
    before = tree(folder)
    with pytest.raises(UsageError, match=r"files of its own: README\.md, data/runs, notebooks;"):
        founding.found(folder)
    assert tree(folder) == before
    with pytest.raises(UsageError, match="is a file"):
        founding.found(folder / "README.md")


def test_a_repository_without_files_will_do(tmp_path: Path) -> None:
    (tmp_path / "ours" / ".git").mkdir(parents=True)
    (tmp_path / "ours" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert founding.found(tmp_path / "ours").folder == (tmp_path / "ours").resolve()


@pytest.mark.parametrize("written", range(1, 8))
def test_what_fails_half_way_leaves_nothing_and_no_workbook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    folder = tmp_path / "ours"
    write = files.write_atomically
    calls: list[Path] = []

    def full(path: Path, content: str | bytes) -> None:
        calls.append(path)
        if len(calls) > written:
            assert not (folder / files.MARKER).exists()
            raise OSError(28, "No space left on device", str(path))
        write(path, content)

    monkeypatch.setattr(files, "write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        founding.found(folder)
    assert tree(folder) == {}


def test_a_call_that_was_cut_short_is_repeated(tmp_path: Path) -> None:
    folder = founding.found(tmp_path / "ours").folder
    whole = tree(folder)
    (folder / files.MARKER).unlink()  # it is written last
    (folder / "Makefile").unlink()
    founding.found(folder)
    assert tree(folder) == whole


def test_a_table_of_the_workbook_s_own_takes_the_place_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a result rests on the one that was read."""
    folder = founding.found(tmp_path / "ours").folder
    monkeypatch.chdir(folder)
    assert "llama-2-7b" in model.presets()
    path = factory.write(folder, "zero", "open('data/models.yaml')")

    def rests_on() -> dict[str, str]:
        taken = fingerprint.of_notebook(folder, path, notebooks.glimpse(path), {})
        return {name: part for name, part in taken.parts.items() if name.startswith("file ")}

    ours = rests_on()
    assert "file data/models.yaml" in ours
    shape = "{num_layers: 2, hidden: 8, heads: 2, vocab: 16, positions: 8, source: ours}"
    (folder / "data" / "models.yaml").write_text(f"tiny: {shape}\n", encoding="utf-8")
    assert [*model.presets()] == ["tiny"]
    assert rests_on().keys() == ours.keys()
    assert rests_on() != ours
