"""What the site says besides its pages: search texts, drawings, timings, the reference."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest

import labkit
from labkit.errors import BadFile
from labkit.files import project_root
from labkit.kit.page import figure_text
from labkit.workbook import notebooks
from labkit.workbook.export import (
    benchmarks,
    catalogue,
    drawings,
    origin,
    pages,
    reference,
)
from labkit.workbook.export.markup import anchor
from labkit.workbook.export.site import write_site
from labkit.workbook.run import results
from tests.export import offline, synthetic

ROOT = Path(__file__).resolve().parents[2]


# ---------------------------------------------------------------- search


@pytest.mark.parametrize("key", ["zeus", "zeropp", "orca"])
def test_a_section_found_is_where_the_page_has_it(key: str) -> None:
    path = notebooks.paths(ROOT)[key]
    source = origin.Origin(root=ROOT, key=key, path=path, committed=path, entry=None, record=None)
    html, _ = pages.page(source, {path.parent.name: [key]})
    ids = {tag["id"] for tag in offline.parse(html).find_all("h2")}
    prose = [c.source for c in notebooks.glimpse(path).cells if c.cell_type == "markdown"]
    headings = [heading for heading, _ in catalogue.sections("\n\n".join(prose)) if heading]
    assert len(headings) >= 8
    assert {anchor(heading) for heading in headings} <= ids


def test_every_claim_and_section_can_be_found(made: Path) -> None:
    script = catalogue.search_script(catalogue.load(made).items)
    records = json.loads(script.removeprefix("const SEARCH = ").removesuffix(";\n"))
    urls = {record["url"] for record in records if record["key"] == "alpha"}
    assert {"scoreboard.html#alpha:saving", "scoreboard.html#alpha:memory"} <= urls
    assert {"papers/alpha.html#At-a-glance", "papers/alpha.html#Discussion"} <= urls
    (card,) = (r for r in records if r["key"] == "gamma")
    assert "Emmy Noether" in card["text"]


# ---------------------------------------------------------------- drawings


def numbers(drawing: str, pattern: str) -> list[float]:
    return [float(text) for text in re.findall(pattern, drawing)]


def test_bars_of_a_thumbnail_are_as_tall_as_their_values() -> None:
    bar = {"type": "bar", "x": ["a", "b", "c"], "y": [1, 2, 4]}
    drawing = drawings.thumbnail({"data": [bar], "layout": {}})
    ground = numbers(drawing, r"M[\d.]+ ([\d.]+)V")
    tops = numbers(drawing, r"V([\d.]+)")
    heights = [low - top for low, top in zip(ground, tops, strict=True)]
    assert heights[1] / heights[0] == pytest.approx(2, rel=0.02)
    assert heights[2] / heights[0] == pytest.approx(4, rel=0.02)


def test_a_power_law_is_straight_on_a_thumbnail_with_logarithmic_axes() -> None:
    line = {"x": [1, 10, 100], "y": [2, 20, 200], "mode": "lines"}
    layout = {"xaxis": {"type": "log"}, "yaxis": {"type": "log"}}
    drawing = drawings.thumbnail({"data": [line], "layout": layout})
    x, y = (numbers(drawing, rf"{part}[ \"]") for part in (r"[ \"]([\d.]+),[\d.]+", r",([\d.]+)"))
    assert len(y) == 3
    assert y[0] - y[1] == pytest.approx(y[1] - y[2], abs=0.2)
    assert x == sorted(x)


def test_figures_without_lines_or_bars_have_no_thumbnail() -> None:
    assert drawings.thumbnail({"data": [{"type": "heatmap", "z": [[1]]}]}) == ""
    assert drawings.thumbnail({"data": [{"mode": "text", "x": [1, 2], "y": [1, 2]}]}) == ""


def test_the_graph_holds_every_paper_and_every_pair_once(made: Path) -> None:
    items = catalogue.load(made).items
    svg = offline.parse(drawings.companions(items))
    links = {a.find("text").get_text(): a["href"] for a in svg.find_all("a")}
    assert links == {
        "alpha": "papers/alpha.html",
        **{key: f"index.html#text={key}" for key in ("beta", "gamma", "delta")},
    }
    pairs = {frozenset((i.paper.key, to)) for i in items for to in i.paper.companions}
    assert svg.find("path")["d"].count("M") == len(pairs) == 1


def test_no_name_in_our_graph_covers_another_name_or_a_circle() -> None:
    items = catalogue.load(project_root()).items
    svg = offline.parse(drawings.companions(items))
    circles = {
        link.find("text").get_text(): tuple(float(link.circle[name]) for name in ("cx", "cy", "r"))
        for link in svg.find_all("a")
    }
    boxes = drawings.label_boxes(circles)
    assert len(boxes) == len(items) > 50
    dots = {key: (x - r, y - r, x + r, y + r) for key, (x, y, r) in circles.items()}
    drawn = [*boxes.items(), *dots.items()]
    pairs = ((a, b) for a, b in combinations(drawn, 2) if a[0] != b[0])
    assert [(a[0], b[0]) for a, b in pairs if drawings.overlap(a[1], b[1]) > 0] == []


def test_pointing_at_a_paper_says_more_than_its_title(made: Path) -> None:
    item = next(item for item in catalogue.load(made).items if item.paper.key == "alpha")
    svg = offline.parse(drawings.companions([item]))
    title, cite, insight, found = svg.a.title.get_text().split("\n")
    assert (title, cite) == (item.entry.title, "Lovelace, ES 2020")
    assert insight.startswith("Idle time is bought already")
    assert found.startswith("1 of 3 reproduced")


def test_a_figure_in_words_gives_horizontal_bars_by_their_length() -> None:
    bar = {"type": "bar", "orientation": "h", "x": (3, 9), "y": ("a", "b"), "name": "ours"}
    hidden = {"name": "never", "y": [1], "visible": False}
    text = figure_text({"data": [bar, hidden], "layout": {"xaxis": {"title": {"text": "J"}}}})
    assert text == "Figure: without a title. Horizontal axis: J. ours: 2 points, 3 to 9."


# ---------------------------------------------------------------- timings


def test_seconds_and_rates_both_give_how_many_times_as_fast(tmp_path: Path) -> None:
    synthetic.timings(
        tmp_path,
        ours_cpu_s=2,
        peer_cpu_s=10,
        ours_per_s=30,
        simpy_per_s=10,
        ours_error=0.1,
        peer_error=0.2,
    )
    report = benchmarks.report(tmp_path)
    table = report.tables[0].table
    assert dict(zip(table["peer"], table["ratio"], strict=True)) == {"peer": 5, "simpy": 3}
    assert set(table["benchmark"]) == {"fast: a run, 4"}
    assert "2026-01-02 on A CPU" in report.lead


def test_timings_that_are_none_are_named(tmp_path: Path) -> None:
    synthetic.timings(tmp_path).write_text("[]", encoding="utf-8")
    with pytest.raises(BadFile, match=r"benchmarks\.json"):
        benchmarks.report(tmp_path)


# ---------------------------------------------------------------- where a page comes from


def test_a_page_says_when_where_and_how_it_was_run(root: Path) -> None:
    folder = synthetic.run(root)
    meta = json.loads((folder / "run.json").read_text(encoding="utf-8")) | {
        "ended": "2026-01-02T03:04:05+00:00",
        "duration_s": 11.386,
        "git_commit": "0123456789abcdef0123-dirty",
        "machine": {"cpu": "A CPU", "cores": 2, "memory_bytes": 25_276_510_208},
        "overrides": {"eta": 0.5},
    }
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in meta["files"]}
    results.store(root, "alpha", folder.name, texts, meta)
    write_site(root)
    page = offline.parse((root / "results/site/papers/alpha.html").read_text(encoding="utf-8"))
    text = page.select_one(".origin").get_text(" ", strip=True)
    assert (
        "run on 2026-01-02, in 11 s, commit 0123456789ab with changes, A CPU, 2 cores, 25.3 GB"
        in text
    )
    assert page.select_one(".origin code").get_text() == "labkit run alpha -p eta=0.5"
    assert "labkit slides alpha writes its talk as one file" in text
    assert "@inproceedings{alpha," in page.select_one(".origin pre").get_text()
    copy = root / "results/site/papers" / page.select_one("a[download]")["href"]
    assert copy.read_bytes() == (folder / "alpha.ipynb").read_bytes()


# ---------------------------------------------------------------- the reference


@pytest.mark.slow
def test_the_reference_has_every_public_name_and_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [module.__name__ for module in reference._loaded(labkit.planner)]
    monkeypatch.setattr(reference, "_names", lambda: loaded)
    assert reference.write(tmp_path)
    page = (tmp_path / "api/labkit/planner.html").read_text(encoding="utf-8")
    soup = offline.parse(page)
    assert {tag["id"] for tag in soup.find_all(id=True)} >= set(labkit.planner.__all__)
    assert "planner.Chain.even(8" in soup.get_text()
    assert offline.policy(page).startswith("default-src 'none'")
    assert offline.resources(page) == []
    assert not reference.write(tmp_path)
