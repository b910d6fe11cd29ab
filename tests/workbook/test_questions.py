"""Questions of the reading group: what is asked stays, hand edits stay, results do not depend."""

from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path

import pytest

from labkit.cli import main
from labkit.errors import BadFile, LabkitError, UsageError
from labkit.workbook import notebooks
from labkit.workbook.export import origin
from labkit.workbook.export.site import write_site
from labkit.workbook.queue import edits, questions
from labkit.workbook.review import check, paper
from labkit.workbook.run import fingerprint
from tests.export import synthetic


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = synthetic.make(tmp_path / "workbook")
    monkeypatch.setenv("LABKIT_ROOT", str(root))
    return root


def put(root: Path, text: str) -> Path:
    path = questions.path_of(root, "alpha")
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_asked_is_read_back_with_today_and_its_author(root: Path) -> None:
    edits.ask(root, "alpha", "Why  is the\nlast stage slow: #1?", by="Ann")
    edits.ask(root, "alpha", "Fig. 3 starts at 1.0", remark=True)
    edits.answer(root, "alpha", 1, "It holds the loss head.")
    first, second = questions.load(root, "alpha")
    assert first.text == "Why is the last stage slow: #1?"
    assert (first.by, first.date, first.state) == ("Ann", dt.date.today(), "answered")
    assert first.answer == "It holds the loss head."
    assert (second.kind, second.is_open, first.is_open) == ("remark", False, False)


def test_edits_by_hand_and_comments_stay(root: Path) -> None:
    mine = "# ours\nquestions:\n- {date: 2026-03-14, text: 'Why?'}  # flow\n\n- date: 2026-03-15\n"
    mine += "  text: >-\n    a long one,\n    folded   # not a comment\n  # last\n"
    path = put(root, mine)
    edits.ask(root, "alpha", "And then?")
    edits.answer(root, "alpha", 3)
    lines = iter(path.read_text().splitlines())
    assert all(line in lines for line in mine.splitlines())  # each as it was, in this order
    assert [q.state for q in questions.load(root, "alpha")] == ["open", "open", "answered"]


def test_nobodys_question_is_lost_where_several_ask_at_once(root: Path) -> None:
    names = [f"asker {n}" for n in range(8)]
    threads = [
        threading.Thread(target=edits.ask, args=(root, "alpha", name + "?")) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(q.text for q in questions.load(root, "alpha")) == [f"{name}?" for name in names]


@pytest.mark.parametrize(
    ("text", "line", "field", "says"),
    [
        ("questions:\n- text: Why?\n", 2, "questions.0.date", "2026-03-14"),
        ("questions:\n- date: 2026-13-01\n  text: Why?\n", 2, "questions.0.date", "2026-13-01"),
        ("questions:\n- date: 20260101\n  text: Why?\n", 2, "questions.0.date", "no date"),
        ("questions:\n- date: 2026-01-01\n  text: ''\n", 3, "questions.0.text", "in words"),
        ("questions:\n- {date: 2026-01-01, text: a, kind: joke}\n", 2, "questions.0.kind", "joke"),
        ("questions:\n- {date: 2026-01-01, text: a, who: Ann}\n", 2, "questions.0.who", "by"),
        ("questions:\n- {date: 2026-01-01, text: a, state: x}\n", 2, "questions.0.state", "open"),
        ("questions:\n- {date: 2026-01-01, text: a, answer: b}\n", 2, "questions.0", "answered"),
        ("questions: {}\n", 1, "questions", "list"),
        ("questions: [\n", None, "", "not valid YAML"),
        ("[]\n", None, "", "questions"),
    ],
)
def test_a_malformed_file_is_refused_by_all_with_its_place(
    root: Path, text: str, line: int | None, field: str, says: str
) -> None:
    path = put(root, text)
    with pytest.raises(BadFile) as caught:
        questions.load(root, "alpha")
    message = str(caught.value)
    assert str(path) in message
    assert field in message
    assert says in message
    assert line is None or f":{line}" in message
    with pytest.raises(LabkitError):
        edits.ask(root, "alpha", "Why?")
    assert path.read_text() == text
    assert [f.file for f in check.check_facts(root)] == ["data/papers/alpha/questions.yaml"]
    assert any("questions.yaml" in problem for problem in write_site(root).problems)


def test_what_cannot_be_asked_or_answered_changes_nothing(root: Path) -> None:
    with pytest.raises(UsageError, match="alpha"):
        edits.ask(root, "alpah", "Why?")
    with pytest.raises(UsageError, match="empty"):
        edits.ask(root, "alpha", " \n ")
    with pytest.raises(UsageError, match="none yet"):
        edits.answer(root, "alpha", 1, "Because.")
    assert not questions.path_of(root, "alpha").exists()
    edits.ask(root, "alpha", "Why?")
    for number in (0, 2, -1):
        with pytest.raises(UsageError, match="1 to 1"):
            edits.answer(root, "alpha", number, "Because.")
    alias = "questions:\n- &a {date: 2026-01-01, text: a}\n- *a\n"
    path = put(root, alias)
    with pytest.raises(LabkitError, match="by hand"):
        edits.answer(root, "alpha", 1, "Because.")
    assert path.read_text() == alias


def test_pages_and_decks_show_them_anew_and_results_stay(root: Path) -> None:
    path = notebooks.path_of(root, "alpha")
    before = fingerprint.of_notebook(root, path, notebooks.glimpse(path), {})
    site = root / "results" / "site"
    write_site(root)
    assert "remarked by the group" not in (site / "papers" / "alpha.html").read_text()
    edits.ask(root, "alpha", "Is <b>it</b> so? **yes**", by="Ann & Bob")
    report = write_site(root)
    assert {"papers/alpha.html", "slides/alpha.html"} <= set(report.written)
    for name in ("papers/alpha.html", "slides/alpha.html"):
        html = (site / name).read_text()
        assert "Is &lt;b&gt;it&lt;/b&gt; so?" in html
        assert "Ann &amp; Bob" in html
    edits.answer(root, "alpha", 1, "It is.")
    write_site(root)
    assert "It is." in (site / "papers" / "alpha.html").read_text()
    assert write_site(root).written == []
    assert fingerprint.of_notebook(root, path, notebooks.glimpse(path), {}) == before
    cells = origin.find(root, "alpha").subject().cells
    place = next(n for n, cell in enumerate(cells) if cell.id == "asked")
    assert cells[place - 1].source.startswith("## Discussion")  # at its end, before what follows
    assert cells[place + 1].source.startswith("## Detailed comments")


def test_a_cell_shows_them_in_a_live_session_and_stores_none(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = paper.open_paper("alpha")
    stored = alpha.questions().data
    edits.ask(root, "alpha", "Why is it so?")
    assert alpha.questions().data == stored
    monkeypatch.setenv("LABKIT_LIVE", "1")
    assert "Why is it so?" in alpha.questions().data


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["alpha", "--answer", "1"], "--answer N"),
        (["alpha", "text", "--done", "1"], "--done N without"),
        (["alpha", "text", "--done", "1", "--answer", "1"], "--done N without"),
        (["alpha", "--by", "Ann"], "give its TEXT"),
        (["alpha", "text", "--answer", "1", "--by", "Ann"], "give its TEXT"),
        (["alpah"], "did you mean 'alpha'"),
    ],
)
def test_wrong_use_of_the_command(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["ask", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_the_command_asks_answers_and_lists(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        assert main(["ask", *arguments]) == 0
        return capsys.readouterr().out

    today = dt.date.today()
    assert "Nobody asked" in said()
    assert f"alpha 1 (open; Ann, {today}): Why?" in said("alpha", "Why?", "--by", "Ann")
    assert f"alpha 2 (remark; {today}): [1] is wrong" in said("alpha", "[1] is wrong", "--remark")
    assert f"alpha 1 (answered; Ann, {today}): Why?" in said("alpha", "--done", "1")
    assert "\n    Because.\n" in said("alpha", "Because.", "--answer", "1")
    assert said("beta", "And here?").splitlines() == [f"beta 1 (open; {today}): And here?"]
    assert [line.split()[0] for line in said().splitlines() if line[0] != " "] == [
        "alpha",
        "alpha",
        "beta",
    ]
