"""The site while notebooks run: there first, of stored outputs; then a run's pages replace them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from labkit.workbook.export import site
from labkit.workbook.export.following import Following
from labkit.workbook.run.jobs import Event, Job, Outcome
from tests.export import offline, synthetic

NOTEBOOK = Path("notebooks/energy/alpha.ipynb")


class Heard:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.events: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, jobs: Sequence[Job], num_workers: int) -> None:
        self.events.append("begin")

    def event(self, event: Event) -> None:
        self.events.append(event.kind)


def ended(status: str = "ok", slug: str = "default") -> Event:
    outcome = Outcome(status=status)  # type: ignore[arg-type]
    return Event(kind="end", job=Job(key="alpha", slug=slug, path=NOTEBOOK), outcome=outcome)


def facts(root: Path) -> str:
    page = (root / "results/site/papers/alpha.html").read_text(encoding="utf-8")
    return offline.parse(page).select_one(".facts").get_text(" ", strip=True)


def index(root: Path) -> str:
    return (root / "results/site/index.html").read_text(encoding="utf-8")


def test_a_page_is_replaced_as_its_run_ends_and_the_lists_follow(root: Path) -> None:
    site.write_site(root)
    heard = Heard()
    following = Following(heard, root, lists_every_s=3600)
    assert "stored outputs: not run here yet" in facts(root)
    synthetic.run(root)
    following.begin([], 1)
    following.event(Event(kind="start", job=ended().job))
    assert "not run here yet" in facts(root), "nothing ended so far"
    following.event(ended())
    assert "not run here yet" not in facts(root)
    talk = root / "results/site/slides/alpha.html"
    assert "assets/reveal.js" in talk.read_text(encoding="utf-8")
    assert "not run here yet" in index(root), "the lists wait for more"
    Following(heard, root, lists_every_s=0).event(ended())
    assert "not run here yet" not in index(root)
    assert (heard.events, heard.notes) == (["begin", "start", "end", "end"], [])


def test_what_was_replaced_is_not_made_again_after_the_run(root: Path) -> None:
    site.write_site(root)
    synthetic.run(root)
    Following(Heard(), root, lists_every_s=0).event(ended())
    assert site.write_site(root).written == []
    assert site.write_site(root).unchanged > 0


@pytest.mark.parametrize("event", [ended("failed"), ended(slug="eta=0.25")])
def test_other_ends_replace_nothing(root: Path, event: Event) -> None:
    site.write_site(root)
    synthetic.run(root)
    Following(Heard(), root, lists_every_s=0).event(event)
    assert "not run here yet" in facts(root)


def test_every_file_is_replaced_in_one_step(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only renamed into place, and at each such moment every link of the index leads somewhere."""
    site.write_site(root)
    synthetic.run(root)
    folder = root / "results" / "site"
    before = {path: path.stat().st_ino for path in folder.rglob("*.html")}
    rename = os.replace
    moments = 0

    def watched(source: str, target: str) -> None:
        nonlocal moments
        rename(source, target)
        moments += 1
        for link in offline.parse(index(root)).select("a[href]"):
            address = str(link["href"]).partition("#")[0]
            if address and not address.startswith("https://"):
                assert (folder / address).is_file(), address

    monkeypatch.setattr(os, "replace", watched)
    Following(Heard(), root, lists_every_s=0).event(ended())
    assert moments >= 4
    replaced = {path.name for path, inode in before.items() if path.stat().st_ino != inode}
    assert {"alpha.html", "index.html"} <= replaced, "a new file each, none written into"


def test_a_page_that_cannot_be_made_is_told_once_and_stops_no_run(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such colour")

    site.write_site(root)
    monkeypatch.setattr("labkit.workbook.export.pages.page", fail)
    synthetic.run(root)
    heard = Heard()
    following = Following(heard, root)
    following.event(ended())
    following.event(ended())
    assert heard.events == ["end", "end"]
    assert heard.notes == ["the site waits for the end of the run: alpha: no such colour"]
