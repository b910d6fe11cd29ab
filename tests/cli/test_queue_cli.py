"""``labkit queue`` from the shell: what it shows, what it changes, and how it refuses."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pybtex.database import parse_string

from labkit.cli import main
from labkit.workbook.queue import bibliography, reading_queue

BIB = """\
@inproceedings{zeus,
  title = {{Zeus}: Understanding and Optimizing {GPU} Energy Consumption of {DNN} Training},
  author = {Jie You and Jae-Won Chung and Mosharaf Chowdhury}, series = {NSDI}, year = {2023},
  url = {https://www.usenix.org/conference/nsdi23/presentation/you},
}

@misc{perseus, title = {Energy Bloat}, author = {Jae-Won Chung and others}, year = {2024},
  eprint = {2312.06902}, archiveprefix = {arXiv}}

@article{crowd, title = {A Crowd}, year = 2022, journal = {J},
  author = {A B and B C and C D and D E and E F and F G and G H and H I and I J and J K}}
"""
QUEUE = """\
papers:
  - key: zeus
    status: reviewed
    priority: 1
    why: Energy is a knob that nobody turns.
    tags: [energy, bandit]
    companions: [perseus]

  - key: perseus
    status: queued
    priority: 1
    why: Is the frontier worth its minimum cuts?
    tags: [energy]
    companions: [zeus]

  - key: crowd   # many hands
    status: queued
    priority: 3
    why: To see a long list of authors.
    tags: [people]
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / bibliography.FILE).write_text(BIB)
    (tmp_path / reading_queue.FILE).write_text(QUEUE)
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(root: Path) -> tuple[bytes, bytes]:
    return (root / reading_queue.FILE).read_bytes(), (root / bibliography.FILE).read_bytes()


Captured = pytest.CaptureFixture[str]


def run(capsys: Captured, *words: str) -> str:
    code = main(["queue", *words])
    out, err = capsys.readouterr()
    assert (code, err) == (0, ""), err
    return out


def refused(capsys: Captured, root: Path, *words: str, code: int = 2) -> str:
    before = contents(root)
    assert main(["queue", *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert contents(root) == before
    assert "Traceback" not in err
    return " ".join(err.split())


def rows(out: str) -> list[list[str]]:
    """Cells of the table's body, by the header's columns."""
    header, _, *body = [line for line in out.splitlines() if line.strip()]
    starts = [match.start() for match in re.finditer(r"\S+", header)]
    lines = [line for line in body if re.match(r"\d  ", line)]
    ends = [*starts[1:], None]
    return [[line[a:b].strip() for a, b in zip(starts, ends, strict=True)] for line in lines]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_table_fits_and_says_it_all(
    root: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = run(capsys)
    assert max(map(len, out.splitlines())) <= width
    table = rows(out)
    assert [row[:3] for row in table] == [
        ["1", "perseus", "queued"],
        ["3", "crowd", "queued"],
        ["1", "zeus", "reviewed"],
    ]
    assert table[2][3].startswith("Understanding and Optimizing GPU")  # no "Zeus:", no braces
    assert [row[4] for row in table] == ["arXiv 2024", "J 2022", "NSDI 2023"]
    assert ("energy, bandit" in out) == (width >= 120)
    assert "3 papers: 2 queued, 1 reviewed" in out
    assert "Next: perseus" in out


def test_sessions_get_a_column_when_there_are_any(root: Path, capsys: Captured) -> None:
    assert "Session" not in run(capsys)
    run(capsys, "start", "perseus", "--presenter", "Ann", "--date", "2026-03-14")
    out = run(capsys)
    assert rows(out)[0][-1] == "2026-03-14 Ann"


def test_filters(root: Path, capsys: Captured) -> None:
    assert [row[1] for row in rows(run(capsys, "--status", "queued"))] == ["perseus", "crowd"]
    assert [row[1] for row in rows(run(capsys, "-t", "energy", "-t", "bandit"))] == ["zeus"]
    out = run(capsys, "--tag", "energy")
    assert "2 papers of 3" in out
    assert "No paper" in run(capsys, "--tag", "people", "--status", "reviewed")
    assert "are: queued, reading" in refused(capsys, root, "--status", "que")
    assert "bandit, energy, people" in refused(capsys, root, "--tag", "enrgy")


def test_next_and_show(root: Path, capsys: Captured) -> None:
    out = run(capsys, "next")
    assert "perseus" in out
    assert "Is the frontier worth its minimum cuts?" in out
    assert "labkit queue start perseus" in out
    assert "zeus (reviewed)" in out
    assert "crowd" not in out
    assert "crowd" in run(capsys, "next", "-n", "2")
    shown = run(capsys, "show", "zeus")
    assert "https://www.usenix.org/conference/nsdi23/presentation/you" in shown
    assert "Jie You, Jae-Won Chung, Mosharaf Chowdhury" in shown
    assert "F G, G H, H I and 2 more" in run(capsys, "show", "crowd")
    assert run(capsys, "show", "crowd", "--bibtex").strip() == BIB.split("\n\n")[2].strip()
    assert "did you mean 'zeus" in refused(capsys, root, "show", "zeuss")


def test_show_names_the_notebook(root: Path, capsys: Captured) -> None:
    assert "labkit new zeus" in run(capsys, "show", "zeus")
    (root / "notebooks/energy").mkdir(parents=True)
    (root / "notebooks/energy/zeus.ipynb").write_text("{}")
    assert "notebooks/energy/zeus.ipynb" in run(capsys, "show", "zeus")


def test_search(root: Path, capsys: Captured) -> None:
    assert [row[1] for row in rows(run(capsys, "search", "chung", "ENERGY"))] == ["perseus", "zeus"]
    assert main(["queue", "search", "nowhere"]) == 1
    assert "No paper holds 'nowhere'" in capsys.readouterr().out


def test_a_paper_all_the_way(root: Path, capsys: Captured) -> None:
    assert "reading" in run(capsys, "start", "perseus", "--presenter", "Ann Bell")
    assert "reviewed" in run(capsys, "done", "perseus")
    out = run(capsys, "done", "perseus", "--presented", "--date", "2026-03-14")
    assert "presented (Ann Bell, 2026-03-14)" in out
    text = (root / reading_queue.FILE).read_text()
    assert text == QUEUE.replace(
        "  - key: perseus\n    status: queued\n    priority: 1\n",
        "  - key: perseus\n    status: presented\n    priority: 1\n"
        "    presenter: Ann Bell\n    date: 2026-03-14\n",
    )
    assert "labkit queue start crowd" in refused(capsys, root, "done", "crowd")
    assert "does not match the format" in refused(capsys, root, "start", "crowd", "--date", "soon")


def test_drop_needs_a_reason(root: Path, capsys: Captured) -> None:
    assert "--reason" in refused(capsys, root, "drop", "crowd")
    assert "say why" in refused(capsys, root, "drop", "crowd", "--reason", " ")
    assert "dropped (too many)" in run(capsys, "drop", "crowd", "-r", "too many")
    assert "too many" in run(capsys, "show", "crowd")


def test_move(root: Path, capsys: Captured) -> None:
    out = run(capsys, "move", "crowd", "--before", "perseus")
    assert "priority 1, number 1 of 2 waiting" in out
    assert "# many hands" in (root / reading_queue.FILE).read_text()
    assert "number 2 of 2" in run(capsys, "move", "crowd", "--priority", "3")
    assert "1 (next)" in refused(capsys, root, "move", "crowd", "--priority", "5")
    for words in ([], ["--before", "zeus", "--priority", "1"], ["--before", "a", "--after", "b"]):
        assert "say one of" in refused(capsys, root, "move", "crowd", *words)


ENTRY = "@inproceedings{Orca22,\n  title = {{Orca}: Serving}, author = {G. Yu}, year = 2022\n}"


@pytest.mark.parametrize("way", ["file", "text", "stdin"])
def test_add_from_bibtex(
    root: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    source = {"file": "paper.bib", "text": ENTRY, "stdin": "-"}[way]
    Path("paper.bib").write_text("A comment.\n\n" + ENTRY + "\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO(ENTRY if way == "stdin" else ""))
    words = ["--why", "Batching: per step", "--tag", "serving", "-c", "zeus", "-p", "1"]
    assert "added orca22: Yu, 2022. Orca: Serving" in run(capsys, "add", source, *words)
    after, bib = contents(root)
    expected = (
        QUEUE + "\n  - key: orca22\n    status: queued\n    priority: 1\n"
        "    why: 'Batching: per step'\n    tags: [serving]\n    companions: [zeus]\n"
    )
    assert after.decode() == expected
    assert bib.decode() == BIB + "\n" + ENTRY.replace("Orca22", "orca22") + "\n"


def test_add_several_and_under_a_chosen_key(root: Path, capsys: Captured) -> None:
    Path("two.bib").write_text(ENTRY + ENTRY.replace("Orca", "Lynx"))
    assert "--key names one paper" in refused(capsys, root, "add", "two.bib", "--key", "one")
    out = run(capsys, "add", "two.bib")
    assert "added orca22" in out
    assert "added lynx22" in out
    assert "Say why" in out
    run(capsys, "add", ENTRY.replace("Orca", "Puma"), "--key", "puma")
    assert "puma" in reading_queue.load(root)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["1910.02054"], 1, "labkit queue add paper.bib"),
        (["https://doi.org/10.1145/3341301.3359646"], 1, "labkit queue add paper.bib"),
        (["2312.06902"], 2, "'perseus' is in the queue already"),
        (["nowhere.bib"], 2, "there is no file nowhere.bib"),
        (["something"], 2, "valid: a .bib file"),
        (["empty.bib"], 2, "holds no BibTeX entry"),
        (["@misc{k, title={T}, author={A B}, year=2000"], 2, "the text given:1: not valid BibTeX"),
        ([ENTRY, "--priority", "0"], 2, "1 (next), 2 (soon) or 3 (some day)"),
        ([ENTRY, "--tag", "Two Words"], 2, "small letters"),
        ([ENTRY, "--companion", "perseu"], 2, "did you mean 'perseus"),
        ([ENTRY, "--key", "Über"], 2, "cannot be a key"),
    ],
)
def test_what_add_refuses(
    root: Path, capsys: Captured, words: list[str], code: int, says: str
) -> None:
    Path("empty.bib").write_text("nothing here\n")
    assert says in refused(capsys, root, "add", *words, code=code)


def test_export(root: Path, capsys: Captured) -> None:
    for words in ([], ["zeus", "crowd"], ["--tag", "energy"], ["--status", "reviewed"]):
        exported = parse_string(run(capsys, "export", *words), "bibtex").entries
        whole = parse_string(BIB, "bibtex").entries
        assert all(exported[key] == whole[key] for key in exported)
    assert list(parse_string(run(capsys, "export", "crowd", "zeus"), "bibtex").entries) == [
        "crowd",
        "zeus",
    ]
    assert "1 entry in out.bib" in run(capsys, "export", "zeus", "-o", "out.bib")
    assert Path("out.bib").read_text().strip() == BIB.split("\n\n")[0]
    shown = run(capsys, "export", "zeus")
    assert run(capsys, "export", "zeus", "-o", "-") == shown
    assert "no paper 'hera'" in refused(capsys, root, "export", "hera")
    assert "bibliography itself" in refused(capsys, root, "export", "-o", "data/papers.bib")


def test_an_export_can_be_added_elsewhere(root: Path, capsys: Captured, tmp_path: Path) -> None:
    run(capsys, "export", "-o", "all.bib")
    (root / bibliography.FILE).write_text("")
    (root / reading_queue.FILE).write_text("papers: []\n")
    run(capsys, "add", "all.bib")
    before = bibliography.parse(BIB, Path("b"))
    after = bibliography.load(root)
    assert {key: entry.citation() for key, entry in before.items()} == {
        key: entry.citation() for key, entry in after.items()
    }


def test_a_malformed_queue_is_one_paragraph_and_exit_2(root: Path, capsys: Captured) -> None:
    (root / reading_queue.FILE).write_text(QUEUE.replace("status: reviewed", "status: read"))
    error = refused(capsys, root)
    assert f"{root / reading_queue.FILE}:3" in error
    assert "papers.0.status" in error
    assert "'read'" in error
    assert "'presented' or 'dropped'" in error


@pytest.mark.parametrize(
    "command",
    ["", "next", "show", "search", "add", "start", "done", "drop", "move", "export"],
)
def test_help_has_an_example(root: Path, capsys: Captured, command: str) -> None:
    out = run(capsys, *command.split(), "--help")
    assert re.search(rf"labkit queue {command}".strip(), out)
    assert "Example" in out


def test_as_a_command_in_a_pipe(root: Path) -> None:
    environment = {**os.environ, "LABKIT_ROOT": str(root)}
    done = subprocess.run(
        [sys.executable, "-m", "labkit", "queue", "add", "-", "--why", "to see"],
        input=ENTRY,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert reading_queue.load(root)["orca22"].why == "to see"
