"""papers.bib: what is read, what is refused and where, and that nothing typed is lost."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pybtex.database import parse_string

from labkit.errors import BadFile
from labkit.workbook.queue import bibliography

ROOT = Path(__file__).resolve().parents[2]
BIB = Path("data/papers.bib")
GOOD = """@article{a,
  title = {T},
  author = {Ann Bell},
  year = {2001},
}
"""


def only(text: str) -> bibliography.Entry:
    (entry,) = bibliography.parse(text, BIB).values()
    return entry


@pytest.mark.parametrize(
    ("latex", "plain"),
    [
        (r"Dragojevi{\'c}", "Dragojević"),
        (r"{\"O}zdal", "Özdal"),
        (r"Ens{\=o}: A {NIC}", "Ensō: A NIC"),
        (r"{$\mu$s}-scale {RPCs}", "µs-scale RPCs"),
        (r"Llu{\'\i}s~Vilanova", "Lluís Vilanova"),
        (r"pp. 1--16", "pp. 1–16"),
        (r"50\% \& more", "50% & more"),
        ("  spread \n over lines ", "spread over lines"),
        ("{GPU/CPU} Clusters", "GPU/CPU Clusters"),
    ],
)
def test_latex_becomes_text(latex: str, plain: str) -> None:
    assert bibliography.decode(latex) == plain


@pytest.mark.parametrize(
    ("fields", "cited"),
    [
        ("organization={PyTorch Team}, year=2024", "PyTorch Team, 2024"),
        ("url={https://www.vllm.ai/blog/x}, year=2023", "vllm.ai, 2023"),
        (
            r"howpublished={\url{https://jax-ml.github.io/book}}, year=2025",
            "jax-ml.github.io, 2025",
        ),
        ("institution={NVIDIA and Friends}, date={2020-05-14}", "NVIDIA and Friends, 2020"),
    ],
)
def test_a_page_without_an_author_is_cited_by_who_stands_behind_it(fields: str, cited: str) -> None:
    for kind in ("misc", "online", "techreport"):
        entry = only(f"@{kind}{{page, title={{A Page}}, {fields}}}")
        assert entry.cite().startswith(cited)
        assert entry.citation().startswith(f"{cited.partition(',')[0]}. A Page.")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("@misc{k, title={T}, year=2000}", "or {{An Organisation}} in two braces"),
        ("@misc{k, title={T}, url={https://doi.org/10.1/x}, year=2000}", "in two braces"),
        ("@article{k, title={T}, url={https://a.org/x}, year=2000}", "in two braces"),
        ("@misc{k, title={T}, author={A B}, year={forthcoming}}", "the year that is expected"),
        ("@misc{k, title={T}, author={A B}, year={in press}}", "the year that is expected"),
    ],
)
def test_what_is_not_known_has_one_remedy(text: str, remedy: str) -> None:
    with pytest.raises(BadFile, match=re.escape(remedy)):
        bibliography.parse(text, BIB)


@pytest.mark.parametrize(
    ("authors", "cited"),
    [
        ("Alex Krizhevsky", "Krizhevsky, OSDI 2020"),
        ("Tal Ben-Nun and Torsten Hoefler", "Ben-Nun and Hoefler, OSDI 2020"),
        ("Malkhi, Dahlia and Terry, Doug", "Malkhi and Terry, OSDI 2020"),
        ("Ludwig van der Berg and C D", "van der Berg and D, OSDI 2020"),
        ("A B and C D and E F", "B et al., OSDI 2020"),
        ("A B and others", "B et al., OSDI 2020"),
        ("Parker, Jr., D. Stott and A B and C D", "Parker et al., OSDI 2020"),
    ],
)
def test_short_citation(authors: str, cited: str) -> None:
    text = f"@inproceedings{{k, title={{T}}, author={{{authors}}}, series={{OSDI}}, year=2020}}"
    assert only(text).cite() == cited


@pytest.mark.parametrize(
    ("fields", "venue"),
    [
        ("series = {SOSP '19}, booktitle = {27th Symposium}", "SOSP"),
        ("booktitle = {20th USENIX Symposium on Networked Systems (NSDI 23)}", "NSDI"),
        ("booktitle = {2023 USENIX Annual Technical Conference (USENIX ATC 23)}", "USENIX ATC"),
        ("journal = {IEEE Micro}", "IEEE Micro"),
        ("journal = {ACM Computing Surveys}, shortjournal = {CSUR}", "CSUR"),
        ("eprint = {1404.5997}, archiveprefix = {arXiv}", "arXiv"),
        ("note = {unpublished}", ""),
    ],
)
def test_venue_people_say(fields: str, venue: str) -> None:
    assert only(f"@misc{{k, title={{T}}, author={{A B}}, year=2019, {fields}}}").venue == venue


def test_full_citation_says_year_once_and_links() -> None:
    entry = only(
        "@inproceedings{k, title={Why?}, author={A B and others}, year=2023, doi={10.1/x_y},"
        "booktitle={2023 USENIX Annual Technical Conference}}"
    )
    expected = "A B, et al. Why? 2023 USENIX Annual Technical Conference. https://doi.org/10.1/x_y"
    assert entry.citation() == expected


@pytest.mark.parametrize(
    ("text", "line", "field", "says"),
    [
        (GOOD + "@article{b,\n  title = {T,\n" + GOOD, 6, "", "premature end"),
        (GOOD + '@article{b,\n  title = "T" year = 1\n}\n', 7, "", "expected"),
        (GOOD + "@article{b, title = nowhere}\n", 6, "", "nowhere, in entry 'b'"),
        (GOOD + GOOD.replace("{a,", "{A,"), 6, "key", "first on line 1"),
        (GOOD.replace("{T},", "{T},\n  title = {U},"), 1, "title", "twice"),
        (GOOD + GOOD.replace("{a,", "{b,").replace("title", "tittle"), 6, "title", "no title"),
        (GOOD.replace("author", "auther"), 1, "author", "no author"),
        (GOOD.replace("Ann Bell", "others"), 1, "author", "no author"),
        (GOOD.replace("2001", "in press"), 1, "year", "in press"),
        (GOOD.replace("  year = {2001},\n", ""), 1, "year", "year"),
        (GOOD.replace("Ann Bell", "a, b, c, d"), 1, "author", "a, b, c, d"),
    ],
)
def test_malformed_is_refused_with_its_place(text: str, line: int, field: str, says: str) -> None:
    with pytest.raises(BadFile) as caught:
        bibliography.parse(text, BIB)
    assert caught.value.path == BIB
    assert caught.value.line == line
    assert caught.value.field == field
    assert says in str(caught.value)
    assert caught.value.valid


def test_missing_and_undecodable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="missing"):
        bibliography.load(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / BIB).write_bytes(b"@misc{k, title={\xff}}")
    with pytest.raises(BadFile, match="UTF-8"):
        bibliography.load(tmp_path)


def test_entry_text_is_verbatim_and_lines_are_true() -> None:
    text = "% a comment line\n\n" + GOOD + "\nprose between\n" + GOOD.replace("{a,", "{b,")
    entries = bibliography.parse(text, BIB)
    for entry in entries.values():
        assert entry.text in text
        assert text.splitlines()[entry.line - 1].startswith(f"@article{{{entry.key}")


def test_an_entry_with_strings_stands_alone_when_exported() -> None:
    text = '@string{nsdi = "Networked Systems"}\n@misc{k, title={T}, author={A B}, year=2020,'
    entry = only(text + " howpublished = nsdi # { 2020}}")
    alone = parse_string(entry.text, "bibtex").entries["k"]
    assert alone.fields["howpublished"] == "Networked Systems 2020"
    month = only("@misc{k, title={T}, author={A B}, year=2020, month = apr}")
    assert month.text.endswith("month = apr}")  # every BibTeX knows the months: left as typed


def test_rekeyed_changes_the_key_alone() -> None:
    for text in (GOOD, "@misc( old_Key:1 , title = {old_Key:1}, author={A B}, year=2000)"):
        new = bibliography.rekeyed(text, "fresh")
        assert only(new).key == "fresh"
        assert parse_string(new, "bibtex").entries["fresh"].fields == (
            next(iter(parse_string(text, "bibtex").entries.values())).fields
        )


WORDS = st.text(
    alphabet=st.characters(codec="utf-8", categories=("L", "N"), include_characters=" -:,.()+'"),
    min_size=1,
    max_size=40,
).filter(lambda text: text.strip())


@settings(max_examples=50, deadline=None)
@given(title=WORDS, name=st.text("abcdefgéöxyz", min_size=1), year=st.integers(1900, 2099))
def test_rendered_entries_read_back(title: str, name: str, year: int) -> None:
    fields = {"title": title, "author": f"Ann {name}", "year": str(year), "note": ""}
    text = bibliography.render("misc", "some-key", fields)
    assert parse_string(text, "bibtex").entries["some-key"].fields["title"] == " ".join(
        title.split()
    )
    entry = only(text)
    assert (entry.key, entry.year) == ("some-key", year)
    assert entry.authors == (f"Ann {name}",)


# --- the committed file ---------------------------------------------------------------------------


def test_committed_bibliography_agrees_with_pybtex() -> None:
    text = (ROOT / BIB).read_text(encoding="utf-8")
    ours = bibliography.parse(text, BIB)
    theirs = parse_string(text, "bibtex").entries
    assert list(ours) == list(theirs)
    for key, entry in ours.items():
        people = [p for p in theirs[key].persons["author"] if str(p) != "others"]
        assert len(entry.authors) == len(people)
        assert entry.kind == theirs[key].type


def test_committed_entries_are_whole() -> None:
    for entry in bibliography.load(ROOT).values():
        shown = " ".join((entry.title, entry.shorttitle, entry.venue, *entry.authors))
        assert not re.search(r"[{}\\$~]", shown), entry.key
        assert not entry.et_al, f"{entry.key}: full author lists, please"
        assert entry.venue, entry.key
        assert entry.link.startswith("https://"), entry.key
        assert entry.kind in {"inproceedings", "article", "misc"}
        assert entry.kind != "misc" or entry.eprint, f"{entry.key}: @misc is for arXiv"
        assert entry.kind != "article" or "journal" in entry.text
        assert not entry.doi or re.fullmatch(r"10\.\d{4,9}/\S+", entry.doi)


@pytest.mark.parametrize(
    ("key", "cited"),
    [
        ("zeus", "You et al., NSDI 2023"),
        ("envpipe", "Choi et al., USENIX ATC 2023"),
        ("zero", "Rajbhandari et al., SC 2020"),
        ("perseus", "Chung et al., SOSP 2024"),
        ("owt", "Krizhevsky, arXiv 2014"),
        ("horovod", "Sergeev and Del Balso, arXiv 2018"),
        ("ddl-survey", "Ben-Nun and Hoefler, CSUR 2019"),
        ("farm", "Dragojević et al., NSDI 2014"),
    ],
)
def test_committed_papers_are_cited_as_the_field_does(key: str, cited: str) -> None:
    assert bibliography.load(ROOT)[key].cite() == cited


def test_crossref_takes_the_year_and_the_place_of_the_proceedings() -> None:
    text = """@inproceedings{a, author="A B", title="T", crossref={P}}
@proceedings{p, title="The Book", year=2020, editor="C D"}"""
    (entry,) = bibliography.parse(text, Path("x.bib")).values()
    assert (entry.key, entry.year, entry.container, entry.authors) == (
        "a",
        2020,
        "The Book",
        ("A B",),
    )
    assert "crossref" not in entry.text
    assert bibliography.parse(entry.text, Path("x.bib"))["a"] == entry
    with pytest.raises(BadFile, match="entry 'a' refers to no entry; field 'crossref'; found 'q'"):
        bibliography.parse(text.replace("{P}", "{q}"), Path("x.bib"))


@pytest.mark.parametrize(
    ("latex", "plain"),
    [
        (r"\texttt{serve}: a {\emph{fast}} server", "serve: a fast server"),
        (r"{\textquotedblleft}Quoted{\textquotedblright}", "“Quoted”"),
        (r"Don\textquoteright{}t \textbf{\emph{stop}}", "Don’t stop"),
    ],
)
def test_titles_show_no_commands(latex: str, plain: str) -> None:
    assert bibliography.decode(latex) == plain


def test_the_time_grows_with_the_file_and_not_with_its_square() -> None:
    def seconds(count: int) -> float:
        entries = (
            f"@misc{{k{i},\n title={{T}},\n author={{Bell, Ann}},\n year=2007}}\n"
            for i in range(count)
        )
        text = "".join(entries)
        begun = time.perf_counter()
        lines = [raw.line for raw in bibliography.scan(text, Path("papers.bib"))]
        assert lines == list(range(1, 4 * count + 1, 4))
        return time.perf_counter() - begun

    small = min(seconds(1000) for _ in range(3))
    assert seconds(20_000) < 60 * small  # 20 times as many; the square would be 400 times


def test_strings_that_multiply_are_refused() -> None:
    lines = [f'@string{{s0 = "{"x" * 100}"}}']
    lines += [f"@string{{s{i} = {' # '.join([f's{i - 1}'] * 10)}}}" for i in range(1, 11)]
    text = "\n".join([*lines, "@misc{k, title = s10, author={Bell, Ann}, year=2007}"])
    with pytest.raises(BadFile, match=r"papers\.bib:\d+: .*its @strings come to more than 5,000,"):
        bibliography.parse(text, Path("papers.bib"))


def test_a_file_too_large_to_read_is_refused() -> None:
    with pytest.raises(BadFile, match=r"holds 5,000,001 characters; valid: at most 5,000,000"):
        bibliography.parse(" " * 5_000_001, Path("papers.bib"))
