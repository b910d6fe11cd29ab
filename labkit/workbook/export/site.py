"""The site under ``results/site``: the index, a page and a deck for each notebook, and the lists.

Nothing is rewritten that would come out the same: each page remembers a fingerprint of what it was
made from (the notebook that was run, the bibliography, the exporter itself), and one fingerprint
over all of them answers the usual question, whether anything changed, without reading a notebook.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from labkit import files
from labkit.errors import LabkitError
from labkit.kit import page
from labkit.workbook import notebooks
from labkit.workbook.export import (
    benchmarks,
    catalogue,
    comparison,
    drawings,
    origin,
    pages,
    reference,
)
from labkit.workbook.export.markup import LIBRARIES, PACKAGE, render
from labkit.workbook.queue import bibliography, questions, reading_queue

STATE = ".made-from.json"
_LINKS = {
    "Papers": "index.html",
    "Scoreboard": "scoreboard.html",
    "Companions": "graph.html",
}
_TIMINGS = {"Benchmarks": "benchmarks.html"}
_REFERENCE = {"Library": "api/labkit.html"}


@dataclass
class Report:
    """What ``write_site`` did; ``problems`` names, by file, what could not be shown as it is."""

    index: Path
    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unchanged: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        """Where the site is, and how much of it was written."""
        if not (self.written or self.removed):
            return f"{self.index} is up to date"
        parts = [f"{len(self.written)} written", f"{self.unchanged} unchanged"]
        parts += [f"{len(self.removed)} removed"] if self.removed else []
        return f"{self.index} ({', '.join(parts)})"


def write_site(root: Path) -> Report:
    """Write ``results/site`` (and ``results/scoreboard.html``) as far as anything changed.

    One paper's unreadable notebook does not stop the others: it stands in the report. What a page
    loads or leads to is written before it, and what nothing leads to any more is removed last.

    Raises:
        BadFile: the queue or the bibliography is malformed.
    """
    site = _Site(root / "results" / "site")
    sources = origin.Found(root)
    if site.is_whole(inputs := _fingerprint_of_all(root, sources, site.links())):
        return site.report
    _write_scripts(site)
    families = comparison.families(root)
    for key in (key for keys in families.values() for key in keys):
        try:
            _write_paper(site, sources[key], families)
        except LabkitError as error:
            site.report.problems.append(str(error))
    compared = _write_families(root, site, families, sources)
    everything = catalogue.load(root, sources)
    site.report.problems += everything.problems
    _write_lists(root, site, everything, compared)
    site.finish(inputs)
    write_scoreboard(root, everything)
    return site.report


def replace_paper(root: Path, key: str, sources: Mapping[str, origin.Origin]) -> Report:
    """Write what the site has of paper ``key`` alone, as far as it changed; lists stay as they are.

    Raises:
        LabkitError: the paper's notebook cannot be read.
    """
    site = _Site(root / "results" / "site")
    _write_paper(site, sources[key], comparison.families(root))
    site.keep()
    return site.report


def replace_lists(root: Path, sources: Mapping[str, origin.Origin]) -> Report:
    """Write the index, what its search looks through, and the scoreboard, as far as they changed.

    Raises:
        BadFile: the queue or the bibliography is malformed.
    """
    site = _Site(root / "results" / "site")
    families = comparison.families(root)
    compared = [name for name in families if (site.folder / f"families/{name}.html").is_file()]
    _write_lists(root, site, catalogue.load(root, sources), compared)
    site.keep()
    return site.report


def _write_paper(site: _Site, source: origin.Origin, families: dict[str, list[str]]) -> None:
    """The page, the talk and the notebook of a paper."""
    key = source.key
    made_from = _fingerprint_of_paper(source, families)
    site.make(f"papers/{key}.html", made_from, partial(pages.page, source, families))
    site.make(f"slides/{key}.html", made_from, partial(pages.deck, source, "../assets/"))
    site.put(f"papers/{key}.ipynb", source.path.read_text(encoding="utf-8"))


def _write_scripts(site: _Site) -> None:
    """The scripts that pages and talks share: one copy each, and there before who loads them."""
    site.put("assets/plotly.min.js", page.package_file("plotly", "package_data/plotly.min.js"))
    site.put("assets/reveal.js", "\n".join(pages.reveal_scripts()))


def _write_lists(
    root: Path, site: _Site, everything: catalogue.Catalogue, compared: list[str]
) -> None:
    """What the search looks through; the index, the scoreboard, the companions, the timings."""
    searching = page.package_file("pdoc", "templates/resources/elasticlunr.min.js")
    site.put("assets/search.js", searching + "\n" + catalogue.search_script(everything.items))
    index = render(
        "index.html.j2",
        title="Systems-for-ML papers, reviewed and rerun",
        policy=page.policy(own_files=True),
        catalogue=everything,
        links=site.links(),
        compared=compared,
        status_words=catalogue.STATUS_WORDS,
        thumbnail=drawings.headline,
    )
    site.put("index.html", index)
    site.put("scoreboard.html", _scoreboard(everything, site.links(), "papers/"))
    graph = render(
        "graph.html.j2",
        title="Papers and their companions",
        policy=page.policy(),
        links=site.links(),
        graph=drawings.companions(everything.items),
    )
    site.put("graph.html", graph)
    if (root / benchmarks.FILE).is_file():
        try:
            timings = benchmarks.report(root)
            html = timings.page(plotly="assets/plotly.min.js", links=site.links())
            site.put("benchmarks.html", html)
        except LabkitError as error:
            site.report.problems.append(str(error))


def write_scoreboard(root: Path, everything: catalogue.Catalogue | None = None) -> Path:
    """Write ``results/scoreboard.html``: every claim of every paper, the paper's value and ours."""
    path = root / "results" / "scoreboard.html"
    links = _Site(root / "results" / "site").links("site/")
    html = _scoreboard(everything or catalogue.load(root), links, "site/papers/")
    files.write_atomically(path, html)
    return path


def _write_families(
    root: Path,
    site: _Site,
    families: dict[str, list[str]],
    sources: Mapping[str, origin.Origin],
) -> list[str]:
    """A page for each family of two papers or more: its papers side by side."""
    written = []
    for family, keys in families.items():
        if len(keys) < 2:
            continue
        try:
            title = f"{family.capitalize()}: papers side by side"
            report = comparison.compare(root, keys, title, family, sources)
        except LabkitError as error:
            site.report.problems.append(f"families/{family}.html: {error}")
            continue
        html = report.page(plotly="../assets/plotly.min.js", links=site.links("../"))
        site.put(f"families/{family}.html", html)
        written.append(family)
    return written


def _scoreboard(everything: catalogue.Catalogue, links: dict[str, str], papers: str) -> str:
    return render(
        "scoreboard.html.j2",
        title="Scoreboard: the papers' claims beside ours",
        policy=page.policy(),
        catalogue=everything,
        links=links,
        papers=papers,
    )


# ---------------------------------------------------------------- what changed


class _Site:
    """The folder of the site, and what each of its files was made from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report = Report(index=folder / "index.html")
        self._old: dict[str, Any] = {"files": {}}
        with suppress(OSError, ValueError, TypeError):  # lost or cut short: all is written anew
            self._old |= json.loads((folder / STATE).read_text(encoding="utf-8"))
        self._new: dict[str, dict[str, Any]] = {}

    def links(self, way: str = "") -> dict[str, str]:
        """The bar of a page from where ``way`` leads to this folder; to pages with content only."""
        known = dict(_LINKS)
        if (self.folder.parent.parent / benchmarks.FILE).is_file():
            known |= _TIMINGS
        if (self.folder / reference.FOLDER).is_dir():
            known |= _REFERENCE
        return {words: way + name for words, name in known.items()}

    def is_whole(self, inputs: str) -> bool:
        """Whether the site was made from ``inputs`` and every file is still there as written."""
        if self._old.get("inputs") != inputs or not all(map(self._stands, self._old["files"])):
            return False
        self.report.unchanged = len(self._old["files"])
        self.report.problems += self._old.get("problems", [])
        return True

    def _stands(self, name: str) -> bool:
        path = self.folder / name
        entry = self._old["files"].get(name)
        return entry is not None and path.is_file() and path.stat().st_size == entry["bytes"]

    def make(self, name: str, made_from: str, render: Callable[[], tuple[Any, ...]]) -> None:
        """Write ``name`` unless it stands there, made from the same."""
        old = self._old["files"].get(name, {})
        if old.get("from") == made_from and self._stands(name):
            self._new[name] = old
            self.report.unchanged += 1
        else:
            text, problems, *_ = render()
            files.write_atomically(self.folder / name, text)
            size = len(files.encoded(text))
            self._new[name] = {"from": made_from, "problems": problems, "bytes": size}
            self.report.written.append(name)
        self.report.problems += [f"{name}: {p}" for p in self._new[name]["problems"]]

    def put(self, name: str, text: str) -> None:
        """Write ``name`` unless it holds ``text`` already."""
        self.make(name, _digest([text]), lambda: (text, []))

    def finish(self, inputs: str) -> None:
        """Remove pages of papers that are gone, and remember what everything was made from."""
        for path in sorted(self.folder.rglob("*.*")):
            name = path.relative_to(self.folder).as_posix()
            own = path.is_file() and name != STATE and not name.startswith(f"{reference.FOLDER}/")
            if own and name not in self._new:
                path.unlink()
                self.report.removed.append(name)
        self._remember(inputs, self._new, self.report.problems)

    def keep(self) -> None:
        """Remember what was written, of a site that is otherwise as it was, and so not whole."""
        self._remember("", self._old["files"] | self._new, [])

    def _remember(self, inputs: str, made: dict[str, Any], problems: list[str]) -> None:
        state = {"inputs": inputs, "files": made, "problems": problems}
        files.write_atomically(self.folder / STATE, json.dumps(state, indent=1) + "\n")


def _fingerprint_of_all(
    root: Path, sources: Mapping[str, origin.Origin], links: Mapping[str, str]
) -> str:
    """Of every file that a page of the site could depend on, of what its bar leads to, and of
    whether what was run is up to date."""
    patterns = (
        str(reading_queue.FILE),
        str(bibliography.FILE),
        "data/papers/*/*.yaml",
        "notebooks/**/*",
        "results/*/default/*.ipynb",
        "results/*/default/*.json",
        str(benchmarks.FILE),
    )
    matches = (path for pattern in patterns for path in root.glob(pattern) if path.is_file())
    inputs = sorted(path for path in matches if ".ipynb_checkpoints" not in path.parts)
    names = [path.relative_to(root).as_posix() for path in inputs]
    shown = [f"{sources[key].words} {sources[key].provenance}" for key in notebooks.paths(root)]
    maker = page.fingerprint(PACKAGE, libraries=LIBRARIES)
    return _digest([maker, *links, *names, *shown], inputs)


def _fingerprint_of_paper(source: origin.Origin, families: dict[str, list[str]]) -> str:
    """What a paper's page and deck are made from: notebook, run, images, entry, who has a page."""
    beside = source.committed.parent
    images = sorted(p for p in beside.rglob("*") if p.is_file() and p.suffix != ".ipynb")
    about = (source.words, source.provenance, repr(source.entry), repr(families))
    texts = [page.fingerprint(PACKAGE, libraries=LIBRARIES), *about]
    asked = questions.path_of(source.root, source.key)
    return _digest(texts, [source.path, *images, *[asked][: asked.is_file()]])


def _digest(texts: Iterable[str], paths: Iterable[Path] = ()) -> str:
    digest = hashlib.sha256()
    for part in (*map(files.encoded, texts), *(path.read_bytes() for path in paths)):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
