"""Lab's start page, ``results/lab/start.md``: what is next, what is open, what was done last."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

from labkit import files
from labkit.workbook import notebooks
from labkit.workbook.queue import questions, reading_queue
from labkit.workbook.queue.reading_queue import Paper, Queue
from labkit.workbook.review.scaffold import filled

FILE = Path("results/lab/start.md")


def write(root: Path, today: dt.date | None = None) -> None:
    """Write the start page; raises BadFile where the queue or a file of questions is malformed."""
    queue, day = reading_queue.load(root), today or dt.date.today()
    asked = {paper: questions.load(root, paper.key) for paper in queue.reading_order()}
    folder = (root / FILE).parent
    known = {key: os.path.relpath(path, folder) for key, path in notebooks.paths(root).items()}
    text = filled(
        "start.md.j2",
        "labkit.workbook.session",
        coming=coming(queue, day),
        heard=heard(queue, day),
        asked=asked,
        open={p: [(n, q) for n, q in enumerate(qs, 1) if q.is_open] for p, qs in asked.items()},
        notebooks=known,
        reviewed=sorted((p for p in queue if p.key in known), key=lambda p: p.key),
        library=queue.library,
    )
    files.write_atomically(root / FILE, text)


def coming(queue: Queue, today: dt.date) -> list[Paper]:
    """What to read for next time: the next date's papers, else those being read, else the first.

    Papers that were presented or dropped are past, whatever their date.
    """
    ahead = [paper for paper in queue if paper.status not in ("presented", "dropped")]
    dates = [paper.date for paper in ahead if paper.date and paper.date >= today]
    if dates:
        return [paper for paper in ahead if paper.date == min(dates)]
    return queue.select(status=["reading"]) or queue.select(status=["queued"])[:1]


def heard(queue: Queue, today: dt.date) -> list[Paper]:
    """What was presented on the latest day, ``today`` included, on which the group heard any."""
    past = [p for p in queue.select(status=["presented"]) if p.date and p.date <= today]
    return [paper for paper in past if paper.date == max(p.date for p in past if p.date)]
