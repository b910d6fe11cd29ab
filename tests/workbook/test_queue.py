"""The reading queue: what is refused and where, what an edit changes, that nothing is lost."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit import files
from labkit.errors import BadFile, LabkitError, UsageError
from labkit.workbook.queue import bibliography, edits, intake, reading_queue

ROOT = Path(__file__).resolve().parents[2]
BIB = """\
% The bibliography of a test.

@inproceedings{zeus,
  title = {{Zeus}: On {GPU} Energy},
  author = {You, Jie and Chung, Jae-Won and Chowdhury, Mosharaf},
  series = {NSDI},
  year = {2023},
  doi = {10.1000/zeus},
}
@misc{perseus, title = {Energy Bloat}, author = {Jae-Won Chung and others}, year = 2024,
  eprint = {2312.06902}, archiveprefix = {arXiv}}

@article{alpa,
  title = {Alpa}, author = {Lianmin Zheng and Dragojevi{\\'c}, A.}, journal = {J}, year = 2022 }
"""
QUEUE = """\
# What we read.

papers:
  - key: zeus   # ours
    status: reviewed
    priority: 1
    why:   "Energy, at last"
    tags: [energy,  bandit]
    companions: [perseus]

  # the planner
  - key: alpa
    status: queued
    priority: 2
    why: >-
      Searches plans
      in two levels.
    tags:
      - planner   # and compiler
    companions: []

  - key: perseus
    status: reading
    priority: 1
    presenter: Ann
    why: the frontier
    tags: [energy]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / bibliography.FILE).write_text(BIB)
    (tmp_path / reading_queue.FILE).write_text(QUEUE)
    return tmp_path


def contents(root: Path) -> tuple[bytes, bytes]:
    return (root / reading_queue.FILE).read_bytes(), (root / bibliography.FILE).read_bytes()


def bibtex(key: str, title: str = "") -> str:
    return f"@misc{{{key}, title = {{{title or key}}}, author = {{Ann Bell}}, year = 2020}}"


def add(root: Path, *texts: str, **options: object) -> None:
    """Add BibTeX texts as the command does."""
    library = bibliography.load(root)
    entries = [entry for text in texts for entry in intake.read(text, library)]
    papers = intake.papers(entries, **options)  # type: ignore[arg-type]
    edits.add(root, [entry.text for entry in entries], papers)


# --- reading --------------------------------------------------------------------------------------


def test_load_gives_every_field(root: Path) -> None:
    loaded = reading_queue.load(root)
    assert [paper.key for paper in loaded] == ["zeus", "alpa", "perseus"]
    alpa = loaded["alpa"]
    assert alpa.why == "Searches plans in two levels."
    assert (alpa.tags, alpa.companions, alpa.priority) == (("planner",), (), 2)
    assert (loaded["perseus"].presenter, loaded["perseus"].date) == ("Ann", None)
    assert loaded.entry("zeus").cite() == "You et al., NSDI 2023"
    assert "zeus" in loaded
    assert "hera" not in loaded


def test_reading_order_is_status_then_priority_then_place(root: Path) -> None:
    add(root, bibtex("late"), priority=3)
    add(root, bibtex("soon"), priority=2)
    add(root, bibtex("first"), priority=1)
    order = [paper.key for paper in reading_queue.load(root).reading_order()]
    assert order == ["perseus", "first", "alpa", "soon", "late", "zeus"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ZEUS", ["zeus"]),
        ("dragojevic", ["alpa"]),
        ("chung energy", ["perseus", "zeus"]),
        ("energy 2023", ["zeus"]),
        ("planner", ["alpa"]),
        ("frontier", ["perseus"]),
        ("nothing-like-it", []),
    ],
)
def test_search_needs_every_word_anywhere(root: Path, text: str, found: list[str]) -> None:
    assert [paper.key for paper in reading_queue.load(root).search(text)] == found


def test_select_filters_and_refuses_what_no_paper_has(root: Path) -> None:
    loaded = reading_queue.load(root)
    assert [p.key for p in loaded.select(status=["queued", "reading"])] == ["perseus", "alpa"]
    assert [p.key for p in loaded.select(tags=["energy", "bandit"])] == ["zeus"]
    with pytest.raises(UsageError, match=r"no status 'read'.*queued, reading, reviewed"):
        loaded.select(status=["read"])
    with pytest.raises(UsageError, match=r"no tag 'energie'.*energy"):
        loaded.select(tags=["energie"])


@pytest.mark.parametrize(("typed", "meant"), [("zues", "zeus"), ("perseuss", "perseus")])
def test_an_unknown_key_names_the_near_ones(root: Path, typed: str, meant: str) -> None:
    for attempt in (
        lambda: reading_queue.load(root)[typed],
        lambda: edits.start(root, typed),
        lambda: edits.move(root, typed, before="zeus"),
        lambda: edits.move(root, "zeus", after=typed),
        lambda: add(root, bibtex("x"), companions=[typed]),
    ):
        before = contents(root)
        with pytest.raises(UsageError, match=f"no paper '{typed}'.*{meant}"):
            attempt()
        assert contents(root) == before


# --- what is refused ------------------------------------------------------------------------------

HERE = -1  # the line that was changed
MALFORMED = {
    "unknown status": ("status: queued", "status: later", HERE, "papers.1.status", "'queued'"),
    "unknown field": ("status: queued", "stauts: queued", 12, "papers.1.status", "required"),
    "extra field": ("presenter: Ann", "speaker: Ann", HERE, "papers.2.speaker", "presenter"),
    "duplicate key": ("key: perseus", "key: zeus", HERE, "papers.2.key", "first on line 4"),
    "duplicate field": ("presenter: Ann", "status: queued", HERE, "", "duplicate key"),
    "no BibTeX entry": ("key: alpa", "key: allpa", HERE, "papers.1.key", "did you mean 'alpa'"),
    "companion not listed": (
        "[perseus]",
        "[persues]",
        HERE,
        "papers.0.companions",
        "did you mean 'perseus'",
    ),
    "own companion": ("[perseus]", "[zeus]", HERE, "papers.0.companions", "own companion"),
    "dropped, no reason": ("status: queued", "status: dropped", 12, "papers.1.reason", "reason"),
    "reason, not dropped": ("presenter: Ann", "reason: dull", HERE, "papers.2.reason", "dull"),
    "no such day": ("presenter: Ann", "date: 2026-02-30", HERE, "papers.2.date", "2026-03-14"),
    "a number as date": ("presenter: Ann", "date: 2026", HERE, "papers.2.date", "2026-03-14"),
    "priority out of range": ("priority: 2", "priority: 9", HERE, "papers.1.priority", "1, 2 or 3"),
    "priority in words": ("priority: 2", "priority: high", HERE, "papers.1.priority", "1, 2 or 3"),
    "capital key": ("key: perseus", "key: Perseus", HERE, "papers.2.key", "small letters"),
    "tags not a list": ("[energy,  bandit]", "energy", HERE, "papers.0.tags", "a list"),
    "tag with a space": ("[energy,  bandit]", "[two words]", HERE, "papers.0.tags.0", "a list"),
    "tag twice": ("[energy,  bandit]", "[energy, energy]", HERE, "papers.0.tags", "each once"),
    "why is a number": ("why: the frontier", "why: 3", HERE, "papers.2.why", "in words"),
    "no papers": ("papers:", "paper:", None, "papers", "required"),
    "an unclosed quote": ('"Energy, at last"', '"Energy, at last', None, "", "not valid YAML"),
    "a tab": ("    status: queued", "\tstatus: queued", HERE, "", "not valid YAML"),
    "an unclosed list": ("[perseus]", "[perseus", None, "", "not valid YAML"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_queue_is_refused_with_its_place(root: Path, case: str) -> None:
    old, new, line, field, says = MALFORMED[case]
    assert QUEUE.count(old) >= 1
    text = QUEUE.replace(old, new, 1)
    (root / reading_queue.FILE).write_text(text)
    before = contents(root)
    for attempt in (
        lambda: reading_queue.load(root),
        lambda: edits.start(root, "alpa"),
        lambda: add(root, bibtex("x")),
    ):
        with pytest.raises(BadFile) as caught:
            attempt()
        error = caught.value
        assert error.path == root / reading_queue.FILE
        assert error.field == field
        if line is not None:
            changed = QUEUE[: QUEUE.index(old)].count("\n") + 1
            assert error.line == (changed if line == HERE else line)
        assert says in str(error)
        assert contents(root) == before


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words\n", "papers: none\n"])
def test_a_queue_of_another_shape_is_refused(root: Path, text: str) -> None:
    (root / reading_queue.FILE).write_text(text)
    with pytest.raises(BadFile):
        reading_queue.load(root)


def test_an_empty_queue_is_fine_and_grows(root: Path) -> None:
    (root / reading_queue.FILE).write_text("papers: []\n")
    assert len(reading_queue.load(root)) == 0
    add(root, bibtex("x"), why="because")
    assert [paper.why for paper in reading_queue.load(root)] == ["because"]


# --- edits ----------------------------------------------------------------------------------------


def test_an_edit_that_changes_nothing_leaves_the_bytes(root: Path) -> None:
    before = contents(root)
    edits.move(root, "zeus", priority=1)
    edits.move(root, "perseus", after="alpa")
    edits.move(root, "perseus", priority=1)
    assert contents(root) == before


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_way_of_a_paper(root: Path, newline: str) -> None:
    (root / reading_queue.FILE).write_bytes(QUEUE.replace("\n", newline).encode())
    day = dt.date(2026, 3, 14)
    edits.start(root, "alpa", presenter="Ann  Bell", date=day)
    assert edits.done(root, "alpa").status == "reviewed"
    paper = edits.done(root, "alpa", presented=True)
    assert (paper.status, paper.presenter, paper.date) == ("presented", "Ann Bell", day)
    after = (root / reading_queue.FILE).read_bytes().decode()
    expected = QUEUE.replace(
        "    status: queued\n    priority: 2\n",
        "    status: presented\n    priority: 2\n    presenter: Ann Bell\n    date: 2026-03-14\n",
    )
    assert after == expected.replace("\n", newline)


@pytest.mark.parametrize("key", ["zeus", "perseus", "alpa"])
def test_a_paper_of_any_status_gets_a_presenter_and_a_date(root: Path, key: str) -> None:
    """Reviewed papers above all: they are what can be presented."""
    status = reading_queue.load(root)[key].status
    day = dt.date(2026, 3, 14)
    paper = edits.plan(root, key, presenter="Ann Bell", date=day)
    assert (paper.status, paper.presenter, paper.date) == (status, "Ann Bell", day)
    assert edits.plan(root, key, presenter="Bo").date == day
    with pytest.raises(UsageError, match="say --presenter NAME, --date"):
        edits.plan(root, key)


def test_presented_without_a_session_is_dated_today(root: Path) -> None:
    edits.done(root, "zeus", presented=True)
    assert reading_queue.load(root)["zeus"].date == dt.date.today()


def test_dropping_and_taking_up_again_gives_the_file_back_but_for_the_status(root: Path) -> None:
    edits.drop(root, "alpa", "not now:  too\n long " + "and long " * 12)
    reason = reading_queue.load(root)["alpa"].reason
    assert reason == "not now: too long " + ("and long " * 12).strip()
    edits.start(root, "alpa")
    assert contents(root)[0].decode() == QUEUE.replace("status: queued", "status: reading")


@pytest.mark.parametrize(
    ("key", "edit", "advice"),
    [
        ("zeus", edits.start, "--presented"),
        ("perseus", edits.start, "labkit queue done perseus"),
        ("alpa", edits.done, "labkit queue start alpa"),
        ("alpa", lambda r, k: edits.done(r, k, presented=True), "labkit queue start alpa"),
        ("zeus", edits.done, "--presented"),
        ("zeus", lambda r, k: edits.drop(r, k, "why not"), "--presented"),
        ("alpa", lambda r, k: edits.drop(r, k, "  "), "--reason"),
        ("alpa", lambda r, k: edits.move(r, k, priority=4), "1 (next)"),
        ("alpa", lambda r, k: edits.move(r, k, before="alpa"), "other paper"),
        ("alpa", lambda r, k: edits.move(r, k), "other paper"),
    ],
)
def test_a_step_that_does_not_follow_says_which_does(
    root: Path, key: str, edit: Callable[[Path, str], object], advice: str
) -> None:
    before = contents(root)
    with pytest.raises(UsageError, match=re.escape(advice)):
        edit(root, key)
    assert contents(root) == before


def test_moving_takes_the_comment_along_and_the_priority_over(root: Path) -> None:
    edits.move(root, "alpa", before="zeus")
    loaded = reading_queue.load(root)
    assert [paper.key for paper in loaded] == ["alpa", "zeus", "perseus"]
    assert loaded["alpa"].priority == loaded["zeus"].priority == 1
    text = contents(root)[0].decode()
    assert text.startswith("# What we read.\n\npapers:\n  # the planner\n  - key: alpa\n")
    edits.move(root, "alpa", after="zeus")
    edits.move(root, "alpa", priority=2)
    assert contents(root)[0].decode() == QUEUE


def test_a_layout_that_cannot_be_edited_safely_is_left_alone(root: Path) -> None:
    shared = QUEUE.replace("priority: 1\n    why:", "priority: &one 1\n    why:").replace(
        "priority: 1\n    presenter", "priority: *one\n    presenter"
    )
    (root / reading_queue.FILE).write_text(shared)
    assert reading_queue.load(root)["perseus"].priority == 1
    before = contents(root)
    with pytest.raises(LabkitError, match="by hand"):
        edits.move(root, "zeus", priority=3)
    assert contents(root) == before


# --- adding ---------------------------------------------------------------------------------------


def test_adding_appends_to_both_files_and_disturbs_neither(root: Path) -> None:
    queue_before, bib_before = contents(root)
    add(root, bibtex("x", "Ens{\\=o}") + "\n" + bibtex("y"), why="to see", tags=["nic"])
    queue_after, bib_after = contents(root)
    assert queue_after.startswith(queue_before)
    assert bib_after.startswith(bib_before)
    loaded = reading_queue.load(root)
    assert [p.key for p in loaded][-2:] == ["x", "y"]
    assert loaded.library["x"].title == "Ensō"
    assert loaded["y"].why == "to see"


def test_paths_of_one_persons_machine_are_left_out(root: Path) -> None:
    typed = bibtex("z9").replace("year", "file = {PDF:/home/ann/z9.pdf:application/pdf}, year")
    add(root, typed)
    assert "/home/ann" not in contents(root)[1].decode()
    assert reading_queue.load(root).library["z9"].title


@pytest.mark.parametrize("start", ["@misc{,", "@misc{", "@misc{ ,"])
def test_an_entry_without_a_key_takes_the_one_that_is_said(start: str) -> None:
    text = f"{start} title = {{T}}, author = {{A B}}, year = 2020}}"
    (entry,) = intake.read(text, {}, key="foo")
    assert (entry.key, entry.title) == ("foo", "T")
    assert bibliography.parse(entry.text, Path("x.bib"))["foo"] == entry


def test_added_text_stays_as_typed(root: Path) -> None:
    typed = '@InProceedings( Odd_Key07 ,\n  TITLE={A  B},author = "X Y" , Year=2007 )'
    add(root, typed)
    assert typed.replace("Odd_Key07", "odd-key07") in contents(root)[1].decode()
    assert reading_queue.load(root)["odd-key07"].status == "queued"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (bibtex("zeus"), "in the queue already"),
        (bibtex("z2", "Zeus: on gpu ENERGY"), "already as 'zeus'"),
        (bibtex("z2").replace("year", "doi = {10.1000/ZEUS}, year"), "already as 'zeus'"),
        (bibtex("p2").replace("year", "eprint = {2312.06902}, year"), "already as 'perseus'"),
        ("@misc{k, title = {T}", "not valid BibTeX"),
        ("@misc{k, title = {T}, author = {A B}}", "year"),
        (bibtex("k") + bibtex("K"), "stands twice"),
        (bibtex("!!!"), "cannot be a key"),
    ],
)
def test_what_cannot_be_added_leaves_both_files(root: Path, text: str, says: str) -> None:
    before = contents(root)
    with pytest.raises(UsageError, match=re.escape(says)):
        add(root, text)
    assert contents(root) == before


def test_an_entry_the_bibliography_has_is_listed_without_a_second_copy(root: Path) -> None:
    (root / reading_queue.FILE).write_text(
        QUEUE.split("  - key: perseus")[0].replace("[perseus]", "[]")
    )
    bib = contents(root)[1]
    for source in ("perseus", "2312.06902", "https://arxiv.org/abs/2312.06902v2"):
        assert [e.key for e in intake.read(source, bibliography.load(root))] == ["perseus"]
    add(root, "perseus")
    assert contents(root)[1] == bib
    assert reading_queue.load(root)["perseus"].status == "queued"


def test_another_entry_under_a_known_key_is_refused(root: Path) -> None:
    (root / reading_queue.FILE).write_text(
        QUEUE.split("  - key: perseus")[0].replace("[perseus]", "[]")
    )
    with pytest.raises(UsageError, match="has another entry 'perseus'"):
        add(root, bibtex("perseus"))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    titles=st.lists(
        st.text("abc éß&%$#_'\"-:,.", min_size=3, max_size=30).filter(str.strip),
        min_size=1,
        max_size=3,
        unique_by=lambda text: "".join(filter(str.isalnum, reading_queue.folded(text))),
    )
)
def test_what_is_added_is_exported_unchanged(root: Path, titles: list[str]) -> None:
    (root / bibliography.FILE).write_text(BIB)
    (root / reading_queue.FILE).write_text(QUEUE)
    texts = [
        bibliography.render("misc", f"k{place}", {"title": title, "author": "A B", "year": "2000"})
        for place, title in enumerate(titles)
        if "".join(filter(str.isalnum, title))
    ]
    if not texts:
        return
    add(root, "\n".join(texts))
    exported = [
        reading_queue.load(root).entry(p.key).text for p in reading_queue.load(root).entries[3:]
    ]
    assert exported == texts


# --- two at once, and crashes ---------------------------------------------------------------------


def _alter(root: Path, number: int, gate: object) -> None:
    gate.wait()  # type: ignore[attr-defined]
    add(root, bibtex(f"new-{number}"), why=f"reason {number}")
    edits.start(root, f"old-{number}", presenter=f"person {number}")


def test_edits_at_once_lose_nothing(root: Path) -> None:
    count = 5
    add(root, "\n".join(bibtex(f"old-{number}") for number in range(count)))
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(count)
    workers = [context.Process(target=_alter, args=(root, n, gate)) for n in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    loaded = reading_queue.load(root)
    for number in range(count):
        assert loaded[f"new-{number}"].why == f"reason {number}"
        assert loaded[f"old-{number}"].presenter == f"person {number}"
        assert loaded[f"old-{number}"].status == "reading"
    assert len(loaded) == 3 + 2 * count == len(loaded.library)
    leftovers = {path.name for path in root.iterdir()} - {"data", str(reading_queue.FILE)}
    assert leftovers <= {str(edits.LOCK)}


def test_a_held_lock_is_waited_for_and_then_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edits, "LOCK_TIMEOUT_S", 0.2)
    before = contents(root)
    with FileLock(root / edits.LOCK), pytest.raises(LabkitError, match="another labkit"):
        edits.start(root, "alpa")
    assert contents(root) == before
    edits.start(root, "alpa")


def test_a_failed_second_write_takes_the_first_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(root)
    real = files.write_atomically

    def full_disk(path: Path, content: str | bytes) -> None:
        if path.name == str(reading_queue.FILE):
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(files, "write_atomically", full_disk)
    with pytest.raises(OSError, match="No space"):
        add(root, bibtex("x"))
    assert contents(root) == before


def _crash_before_the_queue(root: Path) -> None:
    real = files.write_atomically

    def die(path: Path, content: str | bytes) -> None:
        if path.name == str(reading_queue.FILE):
            os._exit(9)  # as a kill or a power cut would: no clean-up runs
        real(path, content)

    files.write_atomically = die
    add(root, bibtex("x"), why="because")


def test_a_crash_between_the_two_writes_leaves_a_valid_state_to_complete(root: Path) -> None:
    queue_before, bib_before = contents(root)
    worker = multiprocessing.get_context("spawn").Process(
        target=_crash_before_the_queue, args=(root,)
    )
    worker.start()
    worker.join(60)
    assert worker.exitcode == 9
    assert contents(root)[0] == queue_before
    assert contents(root)[1] != bib_before
    assert "x" not in reading_queue.load(root)  # still valid
    add(root, bibtex("x"), why="because")  # the same command completes it
    assert reading_queue.load(root)["x"].why == "because"
    assert contents(root)[1].count(b"@misc{x,") == 1


# --- the committed queue --------------------------------------------------------------------------


FAMILIES = {
    "communication": 10,
    "compilers": 8,
    "disaggregation": 6,
    "energy": 3,
    "memory": 15,
    "networking": 11,
    "parallelism": 16,
    "replication": 4,
    "scheduling": 13,
    "serving": 6,
}


def test_committed_queue_holds_the_catalogue() -> None:
    committed = reading_queue.load(ROOT)  # refuses a paper without its BibTeX entry
    assert len(committed) >= sum(FAMILIES.values()) + 1  # and Perseus, whose data we use
    for family, count in FAMILIES.items():
        assert sum(paper.tags[0] == family for paper in committed) >= count, family
    assert "perseus" in committed


def test_committed_entries_say_why_in_a_sentence_of_their_own() -> None:
    committed = reading_queue.load(ROOT)
    whys = [paper.why for paper in committed]
    assert len(set(whys)) == len(whys)
    for paper in committed:
        assert 60 <= len(paper.why) <= 260, paper.key
        assert paper.why.endswith((".", "?")), paper.key
        assert paper.tags, paper.key
        assert paper.companions, paper.key


def test_committed_companions_are_mutual() -> None:
    committed = reading_queue.load(ROOT)
    for paper in committed:
        for companion in paper.companions:
            assert paper.key in committed[companion].companions, (paper.key, companion)


def test_committed_queue_loads_fast() -> None:
    started = time.process_time()
    reading_queue.load(ROOT)
    assert time.process_time() - started < 1.5  # 0.2 s; the rest is for slow machines
