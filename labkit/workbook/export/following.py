"""The site beside a run: each paper's pages are replaced as its run ends.

A person who reads the site meanwhile may reload at any time: a file is replaced in one step, and
what a page leads to is there. The index and the scoreboard follow every now and then, since they
rest on all papers; what is left is written after the run, by :func:`.site.write_site`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from labkit.workbook.export import origin, site
from labkit.workbook.run import results
from labkit.workbook.run.jobs import Event, Job, Watcher

LISTS_EVERY_S = 20.0


class Following:
    """A run's watcher that has the site follow, and passes on what it hears.

    A page that cannot be made stops no run: it is told once, and the site waits for the run's end.
    """

    def __init__(self, watcher: Watcher, root: Path, lists_every_s: float = LISTS_EVERY_S) -> None:
        self._watcher = watcher
        self._root = root
        self._sources = origin.Found(root)
        self._lists_every_s = lists_every_s
        self._lists_at_s = time.monotonic()
        self._follows = True

    def note(self, text: str) -> None:
        self._watcher.note(text)

    def begin(self, jobs: Sequence[Job], num_workers: int) -> None:
        self._watcher.begin(jobs, num_workers)

    def event(self, event: Event) -> None:
        self._watcher.event(event)
        is_good = event.kind == "end" and event.outcome is not None and event.outcome.status == "ok"
        if not (self._follows and is_good and event.job.slug == results.DEFAULT):
            return
        try:
            self._replace(event.job.key)
        except Exception as error:  # whatever is wrong with a page, notebooks still run
            self._follows = False
            self.note(f"the site waits for the end of the run: {event.job.key}: {error}")

    def _replace(self, key: str) -> None:
        self._sources.pop(key, None)
        site.replace_paper(self._root, key, self._sources)
        if time.monotonic() - self._lists_at_s >= self._lists_every_s:
            site.replace_lists(self._root, self._sources)
            self._lists_at_s = time.monotonic()
