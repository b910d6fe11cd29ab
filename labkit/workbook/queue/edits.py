"""Changes to the reading queue and to a paper's questions: each takes the lock, changes only the
lines it must, reads the result back as strictly as a file typed by hand, and writes it whole.

Where a paper may go::

    queued --start--> reading --done--> reviewed --done(presented)--> presented
    queued or reading --drop(reason)--> dropped --start--> reading
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit import files
from labkit.errors import BadFile, LabkitError, UsageError
from labkit.workbook.queue import bibliography, questions, reading_queue, yaml_edit
from labkit.workbook.queue.questions import Question
from labkit.workbook.queue.reading_queue import FILE, Paper, Queue, Status, checked, folded, load

LOCK = Path(".reading_queue.yaml.lock")
LOCK_TIMEOUT_S = 20.0

_ADVICE: dict[Status, str] = {
    "queued": "`labkit queue start {}` first",
    "reading": "`labkit queue done {}` when the review is written",
    "reviewed": "`labkit queue done {} --presented` once it was presented",
    "presented": "it has come all the way",
    "dropped": "`labkit queue start {}` takes it up again",
}


def start(
    root: Path, key: str, *, presenter: str | None = None, date: dt.date | None = None
) -> Paper:
    """queued (or dropped: taken up again) -> reading; raises UsageError from any other status."""
    fields = {"status": "reading", "reason": "", "presenter": presenter, "date": date}
    return _update(root, key, fields, "start", ("queued", "dropped"))


def plan(
    root: Path, key: str, *, presenter: str | None = None, date: dt.date | None = None
) -> Paper:
    """Say who presents a paper, and when; its status stays. A dropped paper raises UsageError."""
    if presenter is None and date is None:
        raise UsageError(f"to plan {key!r}, say --presenter NAME, --date YYYY-MM-DD, or both")
    fields = {"presenter": presenter, "date": date}
    return _update(root, key, fields, "plan", ("queued", "reading", "reviewed", "presented"))


def done(
    root: Path,
    key: str,
    *,
    presented: bool = False,
    presenter: str | None = None,
    date: dt.date | None = None,
) -> Paper:
    """reading -> reviewed; ``presented``: reading or reviewed -> presented; as :func:`start`."""
    fields = {"presenter": presenter, "date": date}
    if presented:
        fields["status"] = "presented"
        return _update(root, key, fields, "present", ("reading", "reviewed"))
    return _update(root, key, fields | {"status": "reviewed"}, "finish", ("reading",))


def drop(root: Path, key: str, reason: str) -> Paper:
    """queued or reading -> dropped, with the reason; raises UsageError otherwise."""
    if not reason.strip():
        raise UsageError(f"to drop {key!r}, say why: --reason 'superseded by ...'")
    fields = {"status": "dropped", "reason": reason}
    return _update(root, key, fields, "drop", ("queued", "reading"))


def move(
    root: Path,
    key: str,
    *,
    priority: int | None = None,
    before: str | None = None,
    after: str | None = None,
) -> Paper:
    """Set the priority (1 next, 2 soon, 3 some day), or take the place next to another paper.

    With a new priority the place in the file stays; beside another paper it also gets that
    paper's priority. Raises UsageError where not just one of the three is given, or one that
    cannot be.
    """
    other = before or after
    if sum(option is not None for option in (priority, before, after)) != 1 or other == key:
        raise UsageError("say one of --priority N, --before KEY and --after KEY of another paper")
    if other is None:
        if priority not in reading_queue.PRIORITIES:
            valid = Paper.model_fields["priority"].description
            raise UsageError(f"priority {priority}; valid: {valid}")
        return _update(root, key, {"priority": priority})

    def change(queue: Queue) -> list[Paper]:
        moved = queue[key].model_copy(update={"priority": queue[other].priority})
        rest = [paper for paper in queue.entries if paper.key != key]
        rest.insert(rest.index(queue[other]) + (after is not None), moved)
        return rest

    return _edit(root, key, change)


def add(root: Path, entries: Sequence[str], papers: Sequence[Paper]) -> list[Paper]:
    """Add papers and their BibTeX ``entries`` (texts, keys as in ``papers``) to both files.

    The bibliography is written first: a crash between the two leaves an entry that no queue line
    uses yet, which is a valid state, and the same command then completes it. If the queue cannot
    be written, the bibliography is put back. Raises UsageError where a key or the paper itself
    (same DOI, arXiv id or title) is there already.
    """
    with locked(root):
        queue = load(root)
        bib = root / bibliography.FILE
        queue_text = files.read_text(root / FILE)
        bib_text = files.read_text(bib)
        new = bibliography.parse("\n\n".join(entries), Path("the new BibTeX"))
        for paper in papers:
            _refuse_known(queue, new[paper.key])
            for companion in set(paper.companions) - set(new):
                queue[companion]  # raises where there is none
        missing = [e.text for e in new.values() if e.key not in queue.library]
        parts = [bib_text.rstrip("\n"), *(e.replace("\r\n", "\n").strip() for e in missing)]
        bib_after = "\n\n".join(filter(None, parts)) + "\n" if missing else bib_text
        library = bibliography.parse(bib_after, bib)
        queue_after = _rewritten(queue, queue_text, [*queue.entries, *papers], library)
        write(bib, bib_text, bib_after)
        try:
            write(root / FILE, queue_text, queue_after)
        except BaseException:
            write(bib, bib_after, bib_text)
            raise
    return list(papers)


def _refuse_known(queue: Queue, entry: bibliography.Entry) -> None:
    if entry.key in queue:
        raise UsageError(
            f"{entry.key!r} is in the queue already ({queue[entry.key].status}); "
            "choose another key with --key if this is another paper"
        )
    if entry.key in queue.library and queue.library[entry.key] != entry:
        raise UsageError(
            f"{bibliography.FILE} has another entry {entry.key!r}: "
            f"{queue.library[entry.key].cite()}; choose another key with --key"
        )
    for known in queue.library.values():
        if known.key != entry.key and _marks(known) & _marks(entry):
            place = queue[known.key].status if known.key in queue else "not in the queue"
            raise UsageError(
                f"this paper is there already as {known.key!r} ({place}): {known.cite()}. "
                f"{known.title}"
            )


def _marks(entry: bibliography.Entry) -> set[str]:
    """What no other paper has: its DOI, its arXiv id, its title."""
    title = "".join(filter(str.isalnum, folded(entry.title)))
    return {entry.doi.casefold(), entry.eprint.casefold(), title} - {""}


def _update(
    root: Path,
    key: str,
    fields: Mapping[str, Any],
    verb: str = "",
    statuses: Sequence[Status] = reading_queue.STATUSES,
) -> Paper:
    """Change one paper's ``fields`` (None: as it was), if it then has one of the ``statuses``."""
    given = {name: value for name, value in fields.items() if value is not None}

    def updated(paper: Paper) -> Paper:
        if paper.status not in statuses:
            raise UsageError(
                f"cannot {verb} {paper.key!r}: it is {paper.status}, not {' or '.join(statuses)}; "
                + _ADVICE[paper.status].format(paper.key)
            )
        today = {} if paper.date else {"date": dt.date.today()}
        dated = today if given.get("status") == "presented" else {}
        return Paper.model_validate(paper.model_dump() | dated | given)

    return _edit(root, key, lambda queue: [updated(p) if p.key == key else p for p in queue])


def _edit(root: Path, key: str, change: Callable[[Queue], Sequence[Paper]]) -> Paper:
    """Change the queue, which must have paper ``key``; returns that paper as it then is."""
    with locked(root):
        queue = load(root)
        queue[key]  # raises where there is none
        before = files.read_text(root / FILE)
        papers = change(queue)
        write(root / FILE, before, _rewritten(queue, before, papers, queue.library))
    return next(paper for paper in papers if paper.key == key)


def _rewritten(
    queue: Queue, text: str, papers: Sequence[Paper], library: Mapping[str, bibliography.Entry]
) -> str:
    """The queue's ``text`` with ``papers``; lines of those that stay as they are stay."""
    old, new = ({paper.key: paper for paper in some} for some in (queue, papers))
    after = yaml_edit.rewritten(text, reading_queue.LISTING, old, new)
    root = queue.root
    path = queue.root / FILE
    _read_back(path, lambda: checked(root, files.parse_yaml(path, after), library), papers)
    return after


def _read_back(path: Path, read: Callable[[], Iterable[Any]], expected: Sequence[Any]) -> None:
    """Refuse a new text of ``path`` in which ``read`` does not find just what is meant."""
    refusal = "please make this change by hand. Nothing was changed"
    try:
        as_meant = list(read()) == list(expected)
    except BadFile as error:
        raise LabkitError(f"{path} would become invalid ({error.problem}); {refusal}") from None
    if not as_meant:
        raise LabkitError(f"{path}: its layout (aliases?) cannot be edited safely; {refusal}")


# ---------------------------------------------------------------- a paper's questions

_HEAD = """\
# Questions and remarks of the reading group: `labkit ask` adds to them, and you may edit them by
# hand. Fields: date, by, kind (question, remark), text, state (open, answered), answer.

questions: []
"""


def ask(root: Path, key: str, text: str, *, by: str = "", remark: bool = False) -> None:
    """Add a question (or a remark) of today; raises UsageError where the queue has no such paper,
    or the text is empty."""
    load(root)[key]  # raises where there is none
    if not text.strip():
        raise UsageError(f"the question is empty; say it in quotes: labkit ask {key} 'Why …?'")
    new = Question(date=dt.date.today(), by=by, kind="remark" if remark else "question", text=text)
    _edit_questions(root, key, lambda known: [*known, new])


def answer(root: Path, key: str, number: int, text: str = "") -> None:
    """Mark question ``number`` (from 1, as listed) as answered, with the answer where given.

    Raises UsageError where there is no such question.
    """
    changes = {"state": "answered"} | ({"answer": text} if text else {})

    def change(known: list[Question]) -> list[Question]:
        if not 1 <= number <= len(known):
            valid = f"1 to {len(known)}" if known else f'none yet; labkit ask {key} "…" adds one'
            raise UsageError(f"no question {number} on {key!r}; there are: {valid}")
        answered = Question.model_validate(known[number - 1].model_dump() | changes)
        return [*known[: number - 1], answered, *known[number:]]

    _edit_questions(root, key, change)


def _edit_questions(
    root: Path, key: str, change: Callable[[list[Question]], list[Question]]
) -> None:
    path = questions.path_of(root, key)
    with locked(root):
        before = files.read_text(path) if path.exists() else _HEAD
        known = questions.checked(path, before)
        wanted = change(known)
        old = dict(enumerate(known))
        new = dict(enumerate(wanted))
        after = yaml_edit.rewritten(before, questions.LISTING, old, new)
        _read_back(path, lambda: questions.checked(path, after), wanted)
        write(path, before, after)


# ---------------------------------------------------------------- both files


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """One edit at a time, of the queue and of questions; raises LabkitError when it waits long."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(root / LOCK, timeout=LOCK_TIMEOUT_S):
            yield
    except Timeout:
        raise LabkitError(
            f"another labkit has held {root / LOCK} for {LOCK_TIMEOUT_S:g} s; "
            "try again when it is done. Nothing was changed"
        ) from None


def write(path: Path, before: str, after: str) -> None:
    """Write ``after``, where it differs, with the line endings that the file has."""
    if after != before:
        newline = "\r\n" if path.exists() and b"\r\n" in path.read_bytes() else "\n"
        files.write_atomically(path, after.replace("\n", newline))
