"""The site: every paper listed, nothing fetched, nothing rewritten without a reason."""

from __future__ import annotations

import json
import time
from pathlib import Path

import nbformat
import pytest

from labkit.errors import BadFile
from labkit.workbook.export.pages import write_slides
from labkit.workbook.export.site import write_scoreboard, write_site
from labkit.workbook.review.claims import CLAIMS_MIME
from labkit.workbook.run import fingerprint
from tests.export import offline, synthetic

PAGES = {
    "index.html",
    "scoreboard.html",
    "graph.html",
    "papers/alpha.html",
    "slides/alpha.html",
}
FILES = PAGES | {
    "papers/alpha.ipynb",
    "assets/plotly.min.js",
    "assets/reveal.js",
    "assets/search.js",
}
SHARED = {
    "papers/alpha.html": ["../assets/plotly.min.js"],
    "slides/alpha.html": ["../assets/reveal.js", "../assets/plotly.min.js"],
}
OF_NOTEBOOK = {"papers/alpha.html", "papers/alpha.ipynb", "slides/alpha.html", "assets/search.js"}


def html(root: Path, name: str) -> str:
    return (root / "results" / "site" / name).read_text(encoding="utf-8")


def stamps(root: Path) -> dict[str, int]:
    folder = root / "results"
    return {
        p.relative_to(folder).as_posix(): p.stat().st_mtime_ns
        for p in folder.rglob("*")
        if p.is_file()
    }


def edit(root: Path, find: str, replacement: str) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace(find, replacement)
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def built(made: Path) -> Path:
    write_site(made)
    return made


def test_the_first_build_writes_everything(root: Path) -> None:
    report = write_site(root)
    assert set(report.written) == FILES
    assert report.index == root / "results" / "site" / "index.html"


@pytest.mark.parametrize("name", sorted(PAGES))
def test_pages_fetch_nothing_from_elsewhere(built: Path, name: str) -> None:
    page = html(built, name)
    assert offline.resources(page) == SHARED.get(name, [])
    assert offline.policy(page).startswith("default-src 'none'")
    assert "http" not in offline.policy(page)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_links_within_the_site_lead_somewhere(built: Path, name: str) -> None:
    here = built / "results" / "site" / name
    for link in offline.parse(here.read_text()).find_all("a", href=True):
        target, _, fragment = str(link["href"]).partition("#")
        if target.startswith("https://"):
            continue
        path = (here.parent / target).resolve() if target else here
        assert path.is_file(), link
        if "=" in fragment:  # a search or a filter of the index
            assert path.name == "index.html", link
        elif fragment:
            assert offline.parse(path.read_text()).find(id=fragment) is not None, link


def test_timings_have_a_page_and_a_link_once_they_were_taken(root: Path) -> None:
    write_site(root)
    assert "Benchmarks" not in html(root, "index.html")
    synthetic.timings(root, ours_cpu_s=2, peer_cpu_s=10)
    report = write_site(root)
    assert "benchmarks.html" in report.written
    assert 'href="benchmarks.html"' in html(root, "index.html")
    assert "fast: a run, 4" in html(root, "benchmarks.html")
    (root / "results" / "benchmarks.json").unlink()
    assert write_site(root).removed == ["benchmarks.html"]
    assert "Benchmarks" not in html(root, "scoreboard.html")


def test_the_index_lists_every_paper_by_family_then_by_status(built: Path) -> None:
    soup = offline.parse(html(built, "index.html"))
    groups = {
        section["data-group"]: [li["data-key"] for li in section.select("li[data-key]")]
        for section in soup.select("section.group")
    }
    assert groups == {
        "energy": ["alpha"],
        "Being read": ["beta"],
        "To read": ["gamma"],
        "Dropped": ["delta"],
    }


def test_the_index_says_what_a_paper_is_about_and_what_we_found(built: Path) -> None:
    alpha = offline.parse(html(built, "index.html")).select_one('li[data-key="alpha"]')
    text = alpha.get_text(" ", strip=True)
    assert "Idle time is bought already" in text
    assert "25.2 % less energy" in text
    assert "Lovelace, ES 2020" in text
    assert "Ada, 2026-03-14" in text
    chips = [chip.get_text(" ", strip=True) for chip in alpha.select(".verdict")]
    assert chips == ["✘ 1 differs", "○ 1 not attempted", "✔ 1 reproduced"]
    shares = [share.get_text() for share in alpha.select(".share")]
    assert shares == ["1 of 3 reproduced, each with its flip", "consistency and group:"]
    links = {a.get_text(): a["href"] for a in alpha.select(".links a")}
    assert links == {
        "Notebook": "papers/alpha.html",
        "Slides": "slides/alpha.html",
        "Claims": "scoreboard.html#alpha",
        "Paper": "https://example.org/alpha",
    }


def test_what_people_typed_is_escaped(built: Path) -> None:
    gamma = offline.parse(html(built, "index.html")).select_one('li[data-key="gamma"]')
    assert '<b>bold</b> claims & a "quoted" reason' in gamma.get_text()
    assert gamma.find("b") is None


def test_a_committed_notebook_is_said_not_to_have_run_here(root: Path) -> None:
    write_site(root)
    assert "not run here yet" in html(root, "index.html")
    synthetic.run(root)
    write_site(root)
    assert "not run here yet" not in html(root, "index.html")


def test_the_scoreboard_has_every_claim_with_both_values(built: Path) -> None:
    rows = offline.parse(html(built, "scoreboard.html")).select("tbody#alpha tr.claim")
    cells = [[td.get_text(" ", strip=True) for td in row.find_all("td")] for row in rows]
    flip = "headline · §6.2, Fig. 10 · flip: the highest clock everywhere"
    assert cells == [
        [
            f"Energy saving with four stages {flip}",
            "25.2\xa0%",
            "24.9\xa0%",
            "0\xa0% ✘",
            "0.9881",
            "✔ reproduced within 5\xa0%",
        ],
        [
            "Iteration time grows by less than this mechanism · §6.2 · "
            "flip: the lowest clock everywhere",
            "1\xa0% (unverified)",
            "1.3\xa0%",
            "40\xa0% ✘",
            "1.3",
            "✘ differs at most the paper's",
        ],
        [
            "Peak memory of the largest stage headline · Table 1 · flip: no sharding",
            "31.4\xa0GB",
            "–",
            "–",
            "–",
            "○ not attempted within ±0.5\xa0GB",
        ],
        [
            "Which plan needs the least energy, least first consistency · Table 2",
            "ours, uniform, max",
            "ours, uniform, max",
            "–",
            "–",
            "✔ reproduced same order",
        ],
    ]


def test_what_the_nearest_rival_reaches_too_is_counted_apart(root: Path) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    text = path.read_text(encoding="utf-8")
    judged = '"verdict": "reproduced"'
    assert judged in text
    path.write_text(text.replace(judged, '"verdict": "not earned"', 1), encoding="utf-8")
    write_site(root)
    soup = offline.parse(html(root, "scoreboard.html"))
    names = [th.get_text(strip=True) for th in soup.select(".summary thead th")]
    total = [td.get_text(" ", strip=True) for td in soup.select(".summary .total td")]
    counted = dict(zip(names, total, strict=True))
    assert counted["reproduced"] == "0 of 3"
    assert counted["not earned"] == "1"
    assert "⊘ 1 not earned" in counted["headline and mechanism"]
    assert "1 not earned" in html(root, "index.html")


def test_a_page_prints_the_verdict_first_and_has_ways_through(root: Path) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    (headline,) = [c for c in notebook.cells if c.source.startswith("figure_saving")]
    headline.metadata["tags"] = ["verdict", "path-5", "path-30"]
    said = {"text/markdown": "**Saved: 25.2 % there, 24 % here.**"}
    headline.outputs.insert(0, nbformat.v4.new_output("display_data", said))
    nbformat.write(notebook, path)
    write_site(root)
    soup = offline.parse(html(root, "papers/alpha.html"))
    assert soup.select_one("header .says").get_text(strip=True).startswith("Saved: 25.2 %")
    ways = [(b["data-way"], b.get_text()) for b in soup.select(".ways button")]
    assert ways == [("path-5", "5 minutes"), ("path-30", "half an hour"), ("", "everything")]
    tagged = [b["id"] for b in soup.select("article .block") if b["data-ways"]]
    assert tagged == [headline.id]
    assert "Saved: 25.2 %" in soup.select_one(f"#{headline.id}").get_text()


def test_the_scoreboard_counts_reproductions_apart(root: Path) -> None:
    path = root / "data" / "papers" / "alpha" / "claims.yaml"
    more = """\
not_claims:
  - {number: 75.8 %, reason: measured on a GPU without public data}
skipped_rows:
  - {dataset: profiles, file: a.csv, rows: the four A40 rows, reason: another profile}
"""
    path.write_text(path.read_text(encoding="utf-8") + more, encoding="utf-8")
    write_site(root)
    soup = offline.parse(html(root, "scoreboard.html"))
    lead = " ".join(soup.select_one("p.lead strong").get_text().split())
    assert lead == "1 of 3 claims of 1 papers are reproduced."
    said = [" ".join(item.get_text().split()) for item in soup.select(".meanings li")]
    assert [text.split()[:2] for text in said] == [["✔", "1"], ["✘", "1"], ["○", "1"]]
    first = [tag.name for tag in soup.select("form.filters, table.summary, table.board")]
    assert first == ["form", "table", "table"]
    total = [td.get_text(" ", strip=True) for td in soup.select(".summary .total td")]
    assert total[:4] == ["all", "1 of 3", "–", "–"]
    assert total[4].split("  ")[0].startswith("✔ 1 reproduced ✘ 1 differs ○ 1 not attempted")
    assert total[5] == "✔ 1 reproduced"
    asides = [row.get_text(" ", strip=True) for row in soup.select("tbody#alpha tr.aside")]
    assert asides == [
        "No claim: 75.8 % (measured on a GPU without public data)",
        "Left out of profiles, a.csv: the four A40 rows (another profile)",
    ]


def test_claims_on_a_fitted_model_say_so_and_raise_a_banner(root: Path) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    content = json.loads(path.read_text())
    for output in (out for cell in content["cells"] for out in cell.get("outputs", [])):
        for record in output.get("data", {}).get(CLAIMS_MIME, []):
            was_run = record["verdict"] != "not attempted"
            record |= {"fitted": 3.8, "fitted_median": 0.071} if was_run else {"fitted": None}
    path.write_text(json.dumps(content))
    write_site(root)
    soup = offline.parse(html(root, "scoreboard.html"))
    saving = soup.select_one("tbody#alpha tr.claim .verdict").get_text(" ", strip=True)
    assert saving.replace("\xa0", " ") == "✔ reproduced on a fitted model (median error 7.1 %)"
    page = offline.parse(html(root, "papers/alpha.html"))
    assert "median error 7.1" in page.select_one(".banner summary").get_text()
    total = [td.get_text(" ", strip=True) for td in soup.select(".summary .total td")]
    assert total[1:3] == ["0 of 1", "1 of 2"]  # the claim not attempted rests on nothing


def test_the_standalone_scoreboard_says_the_same_and_leads_into_the_site(root: Path) -> None:
    write_site(root)
    path = write_scoreboard(root)
    assert path == root / "results" / "scoreboard.html"
    soup = offline.parse(path.read_text())
    inner = offline.parse(html(root, "scoreboard.html"))
    assert soup.select_one("table.board").get_text() == inner.select_one("table.board").get_text()
    for link in soup.select("header a[href], tr.paper a[href]"):
        if not str(link["href"]).startswith("#"):
            assert (path.parent / str(link["href"])).is_file()


def test_claims_nobody_ran_count_as_not_attempted(root: Path) -> None:
    (root / "data" / "papers" / "beta").mkdir(parents=True)
    (root / "data" / "papers" / "beta" / "claims.yaml").write_text(synthetic.CLAIMS)
    write_site(root)
    soup = offline.parse(html(root, "scoreboard.html"))
    rows = soup.select("tbody#beta tr.claim")
    assert [row["data-verdict"] for row in rows] == ["not attempted"] * 4
    assert "4 claims, not run yet" in html(root, "index.html")


def test_standin_data_raise_a_banner_everywhere(root: Path) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    text = path.read_text().replace('"verdict": "reproduced"', '"verdict": "not judged"')
    path.write_text(text)
    write_site(root)
    for name in ("index.html", "scoreboard.html", "papers/alpha.html"):
        banner = offline.parse(html(root, name)).select_one(".banner")
        assert banner is not None, name
        assert "stand-in" in banner.get_text().lower()


def test_without_standin_data_there_is_no_banner(built: Path) -> None:
    for name in ("index.html", "scoreboard.html", "papers/alpha.html"):
        assert offline.parse(html(built, name)).select_one(".banner") is None


def test_the_page_holds_the_whole_notebook(built: Path) -> None:
    soup = offline.parse(html(built, "papers/alpha.html"))
    contents = [a.get_text() for a in soup.select("nav ol a")]
    assert contents == [h.get_text() for h in soup.select("article h2")]
    assert len(soup.select("article .plot")) == 4
    assert "open_paper" in soup.select_one("article").get_text()
    folded = [d for d in soup.select("details.code") if not d.has_attr("open")]
    opened = [d for d in soup.select("details.code") if d.has_attr("open")]
    starts = [d.select_one(".highlight").get_text().split()[0] for d in opened]
    assert starts == ["slack"], "the mechanism"
    assert len(folded) >= 5


def test_the_page_unfolds_how_claims_are_judged(built: Path) -> None:
    rules = offline.parse(html(built, "papers/alpha.html")).select_one("article details.rules")
    assert "within 5\xa0%" in rules.get_text()
    deck = offline.parse(html(built, "slides/alpha.html"))
    assert deck.select_one("details.rules") is None


def test_hostile_output_is_told_by_file_and_cell(root: Path) -> None:
    report = write_site(root)
    assert report.problems
    assert all(
        problem.startswith("papers/alpha.html: cell 'hostile") for problem in report.problems
    )
    again = write_site(root)
    assert again.problems == report.problems


def test_talks_of_a_site_share_their_scripts(root: Path) -> None:
    second = root / "notebooks" / "energy" / "beta.ipynb"
    second.write_text((root / "notebooks" / "energy" / "alpha.ipynb").read_text(encoding="utf-8"))
    write_site(root)
    folder = root / "results" / "site" / "slides"
    shared = SHARED["slides/alpha.html"]
    for key in ("alpha", "beta"):
        talk = html(root, f"slides/{key}.html")
        assert offline.resources(talk) == shared
        assert len(talk) < 300_000, "plotly.js alone is sixteen times as long"
        said = offline.parse(talk).select_one('[role="alert"]').get_text()
        assert f"labkit slides {key}" in said
    texts = [(folder / name).resolve().read_text(encoding="utf-8") for name in shared]
    assert "reveal.js" in texts[0][:100]
    assert "plotly.js" in texts[1][:100]
    assert write_slides(root, "alpha").num_bytes > sum(map(len, texts)), "one file holds them"


# ---------------------------------------------------------------- incremental


def test_a_second_build_writes_nothing_and_takes_under_a_second(root: Path) -> None:
    write_site(root)
    before = stamps(root)
    began = time.perf_counter()
    report = write_site(root)
    assert time.perf_counter() - began < 1
    assert (report.written, report.removed, report.unchanged) == ([], [], len(FILES))
    assert stamps(root) == before


def test_a_change_in_the_notebook_rewrites_its_pages_only(root: Path) -> None:
    write_site(root)
    edit(root, "A stage waits.", "A stage sits idle.")
    assert set(write_site(root).written) == OF_NOTEBOOK
    assert "A stage sits idle." in html(root, "papers/alpha.html")


def test_a_change_in_the_queue_rewrites_the_lists_of_papers_only(root: Path) -> None:
    write_site(root)
    path = root / "reading_queue.yaml"
    path.write_text(path.read_text().replace("the optimum to hold", "the least to hold"))
    assert set(write_site(root).written) == {"index.html", "graph.html", "assets/search.js"}


def test_a_new_run_rewrites_what_shows_it(root: Path) -> None:
    write_site(root)
    synthetic.run(root)
    assert {"papers/alpha.html", "slides/alpha.html"} <= set(write_site(root).written)


@pytest.mark.parametrize("name", ["papers/alpha.html", "slides/alpha.html"])
def test_an_older_result_does_not_hide_newer_stored_outputs(root: Path, name: str) -> None:
    """The notebook's cells changed after the run: their stored outputs are newer than its."""
    synthetic.run(root)
    write_site(root)
    assert "A stage waits." in html(root, name)
    edit(root, "A stage waits.", "A stage sits idle.")
    write_site(root)
    assert "A stage sits idle." in html(root, name)
    assert "A stage waits." not in html(root, name)
    facts = offline.parse(html(root, "papers/alpha.html")).select_one(".facts")
    words = "stored outputs: the last run here is older (changed: source)"
    assert words in facts.get_text()
    assert words in html(root, "index.html")


def test_of_two_that_differ_in_other_things_the_one_made_of_what_is_here_is_shown(
    root: Path,
) -> None:
    """A claim changed after the run: the result stays, until stored outputs are made of the new."""
    synthetic.run(root)
    claims = root / "data" / "papers" / "alpha" / "claims.yaml"
    claims.write_text(claims.read_text().replace("Peak memory", "Most memory"))
    write_site(root)
    page = offline.parse(html(root, "papers/alpha.html"))
    changed = "changed: file data/papers/alpha/claims.yaml"
    assert f"since then {changed}" in page.select_one(".facts").get_text()
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    made_of = fingerprint.of_notebook(root, path, notebook, {})
    notebook.metadata["labkit"][fingerprint.OUTPUTS] = made_of.digest
    nbformat.write(notebook, path)
    write_site(root)
    page = offline.parse(html(root, "papers/alpha.html"))
    assert f"stored outputs: the last run here is older ({changed})" in page.get_text()


def test_an_older_result_is_shown_where_nothing_is_stored(root: Path) -> None:
    synthetic.run(root)
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbformat.write(notebook, path)
    edit(root, "A stage waits.", "A stage sits idle.")
    write_site(root)
    page = offline.parse(html(root, "papers/alpha.html"))
    assert "A stage waits." in page.get_text()
    assert "since then changed: source" in page.select_one(".facts").get_text()


def test_another_exporter_rewrites_every_page(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_site(root)
    monkeypatch.setattr("labkit.kit.page.fingerprint", lambda *_, **__: "another")
    assert {"papers/alpha.html", "slides/alpha.html"} <= set(write_site(root).written)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_page_that_was_lost_or_cut_short_comes_back(root: Path, name: str) -> None:
    write_site(root)
    path = root / "results" / "site" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    assert write_site(root).written == [name]
    path.unlink()
    assert write_site(root).written == [name]
    assert path.read_bytes() == whole


def test_pages_of_a_notebook_that_is_gone_go_too(root: Path) -> None:
    write_site(root)
    (root / "notebooks" / "energy" / "alpha.ipynb").unlink()
    report = write_site(root)
    assert set(report.removed) == OF_NOTEBOOK - {"assets/search.js"}
    assert not (root / "results/site/papers/alpha.html").exists()
    assert "4 claims, not run yet" in html(root, "index.html")


def test_a_state_file_cut_short_is_no_trouble(root: Path) -> None:
    write_site(root)
    state = root / "results" / "site" / ".made-from.json"
    state.write_text(state.read_text()[:50])
    assert set(write_site(root).written) == FILES


# ---------------------------------------------------------------- trouble


def test_one_broken_notebook_does_not_stop_the_others(root: Path) -> None:
    broken = root / "notebooks" / "energy" / "beta.ipynb"
    broken.write_text("{")
    report = write_site(root)
    assert set(report.written) == FILES
    assert any("beta.ipynb" in problem for problem in report.problems)
    broken.unlink()
    assert not any("beta" in problem for problem in write_site(root).problems)


def test_a_notebook_outside_the_queue_is_told(root: Path) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    path.rename(path.with_name("omega.ipynb"))
    assert any("omega" in problem for problem in write_site(root).problems)


def test_a_malformed_queue_is_refused_and_nothing_is_touched(root: Path) -> None:
    write_site(root)
    before = stamps(root)
    (root / "reading_queue.yaml").write_text("papers: [")
    with pytest.raises(BadFile, match=r"reading_queue\.yaml"):
        write_site(root)
    unchanged = {name: at for name, at in stamps(root).items() if name in before}
    assert unchanged == before


def test_an_empty_workbook_still_gets_its_site(root: Path) -> None:
    (root / "notebooks" / "energy" / "alpha.ipynb").unlink()
    (root / "data" / "papers" / "alpha" / "claims.yaml").unlink()
    report = write_site(root)
    assert report.problems == []
    assert "No claims yet" in html(root, "scoreboard.html")
    soup = offline.parse(html(root, "index.html"))
    assert len(soup.select("li[data-key]")) == 4
    assert "no notebook yet" in soup.get_text()


def test_the_state_names_no_place_on_this_machine(root: Path) -> None:
    write_site(root)
    state = (root / "results" / "site" / ".made-from.json").read_text()
    assert str(root) not in state
    assert json.loads(state)["files"].keys() == FILES
