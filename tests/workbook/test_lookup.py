"""Papers by arXiv id and DOI: what is recognised, how answers are read, and life without network.

The answers are written by hand after the formats of DataCite (arXiv's DOIs) and of Crossref: no
test asks the real hosts.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
import requests
from pybtex.database import parse_string

from labkit.datasets import download
from labkit.errors import LabkitError, UsageError
from labkit.workbook.queue import intake
from labkit.workbook.queue.intake import Identifier

ARXIV = Identifier(kind="arXiv", value="2312.06902")
DOI = Identifier(kind="DOI", value="10.1145/3341301.3359646")

DATACITE = """@misc{https://doi.org/10.48550/arxiv.2312.06902,
  doi = {10.48550/ARXIV.2312.06902},
  url = {https://arxiv.org/abs/2312.06902},
  author = {Chung, Jae-Won and van der Berg, Zo\u00eb},
  keywords = {Machine Learning (cs.LG), FOS: Computer and information sciences},
  title = {PerSys: Reducing Energy & Waste in
  GPU Training of 100% Models},
  publisher = {arXiv},
  year = {2023},
  copyright = {arXiv.org perpetual, non-exclusive license}
}
"""
CROSSREF = (
    " @inproceedings{Narayanan_2019, series={SOSP \u201919}, title={PipeDream: pipeline"
    " parallelism &amp; DNN training}, url={http://dx.doi.org/10.1145/3341301.3359646},"
    " DOI={10.1145/3341301.3359646}, booktitle={Proceedings of the 27th ACM Symposium},"
    " publisher={ACM}, author={Narayanan, Deepak and Dragojevi\u0107, A.}, year={2019}, month=oct,"
    " pages={1\u201315}, collection={SOSP \u201919} }\n"
)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1910.02054", "arXiv", "1910.02054"),
        ("arXiv:2312.06902v3", "arXiv", "2312.06902"),
        ("https://arxiv.org/abs/1404.5997", "arXiv", "1404.5997"),
        ("http://arxiv.org/pdf/1910.02054v2.pdf", "arXiv", "1910.02054"),
        ("cs/0601001", "arXiv", "cs/0601001"),
        ("math.GT/0309136", "arXiv", "math.GT/0309136"),
        ("10.1145/3341301.3359646", "DOI", "10.1145/3341301.3359646"),
        ("doi:10.1109/TSE.1983.236733", "DOI", "10.1109/TSE.1983.236733"),
        ("https://doi.org/10.1007/11561927_25", "DOI", "10.1007/11561927_25"),
        ("https://dl.acm.org/doi/abs/10.1145/3302424.3303953", "DOI", "10.1145/3302424.3303953"),
        (" 10.1145/3341301.3359646. ", "DOI", "10.1145/3341301.3359646"),
    ],
)
def test_identifiers_are_recognised(text: str, kind: str, value: str) -> None:
    assert intake.recognise(text) == Identifier(kind=kind, value=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["zeus", "paper.bib", "2312", "10.1145", "https://usenix.org/x"])
def test_other_words_are_not(text: str) -> None:
    assert intake.recognise(text) is None


def test_an_arxiv_answer_becomes_a_whole_entry() -> None:
    text = intake.in_house_style(DATACITE, ARXIV)
    entry = parse_string(text, "bibtex").entries["unnamed"]
    assert entry.type == "misc"
    assert dict(entry.fields) == {
        "title": r"{PerSys}: Reducing Energy \& Waste in {GPU} Training of 100\% Models",
        "year": "2023",
        "eprint": "2312.06902",
        "archiveprefix": "arXiv",
        "url": "https://arxiv.org/abs/2312.06902",
    }
    assert [str(person) for person in entry.persons["author"]] == [
        "Chung, Jae-Won",
        "van der Berg, Zoë",
    ]


def test_a_crossref_answer_becomes_the_house_style() -> None:
    text = intake.in_house_style(CROSSREF, DOI)
    entry = parse_string(text, "bibtex").entries["unnamed"]
    assert entry.fields["title"] == r"{PipeDream}: pipeline parallelism \& {DNN} training"
    assert entry.fields["doi"] == DOI.value
    assert entry.fields["url"] == "https://doi.org/10.1145/3341301.3359646"
    assert text.count("\n") == len(entry.fields) + len(entry.persons) + 1


@pytest.fixture(autouse=True)
def no_host_failed_before() -> Iterator[None]:
    download._unreachable.clear()
    yield
    download._unreachable.clear()


def answer(
    monkeypatch: pytest.MonkeyPatch, body: str, status: int = 200
) -> list[dict[str, object]]:
    asked: list[dict[str, object]] = []

    def get(url: str, **options: object) -> requests.Response:
        asked.append({"url": url, **options})
        response = requests.Response()
        response.status_code = status
        response._content = body.encode()
        response._content_consumed = True  # type: ignore[attr-defined]
        return response

    monkeypatch.setattr(requests, "get", get)
    monkeypatch.delenv("LABKIT_OFFLINE", raising=False)
    return asked


@pytest.mark.parametrize(
    ("source", "body", "key", "cited", "doi"),
    [
        (
            "2312.06902",
            DATACITE,
            "persys",
            "Chung and van der Berg, arXiv 2023",
            "10.48550/arXiv.2312.06902",
        ),
        (DOI.value, CROSSREF, "pipedream", "Narayanan and Dragojević, SOSP 2019", DOI.value),
    ],
)
def test_a_paper_from_the_network_is_named_after_its_system(
    monkeypatch: pytest.MonkeyPatch, source: str, body: str, key: str, cited: str, doi: str
) -> None:
    asked = answer(monkeypatch, body)
    (entry,) = intake.read(source, {})
    assert (entry.key, entry.cite()) == (key, cited)
    assert len(asked) == 1
    assert asked[0]["url"] == f"https://doi.org/{doi}"
    assert asked[0]["headers"]["Accept"].startswith("application/x-bibtex")  # type: ignore[index]
    assert intake.read(source, {}, key="mine")[0].key == "mine"


@pytest.mark.parametrize(
    ("source", "body", "status", "error", "says"),
    [
        ("2312.06902", "", 404, UsageError, "arXiv '2312.06902' does not exist"),
        ("2312.06902", "<html>busy", 200, LabkitError, "0 BibTeX entries"),
        ("2312.06902", "", 503, LabkitError, "503"),
        (DOI.value, "", 404, UsageError, "does not exist"),
        (DOI.value, "<html><body>hello</body></html>", 200, LabkitError, "0 BibTeX entries"),
        (DOI.value, "@misc{k, title={T}", 200, LabkitError, "cannot be read"),
        (DOI.value, "@misc{k, title={T}, year=2000}", 200, LabkitError, "names no author"),
    ],
)
def test_bad_answers_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    body: str,
    status: int,
    error: type[LabkitError],
    says: str,
) -> None:
    answer(monkeypatch, body, status)
    with pytest.raises(error, match=says) as caught:
        intake.read(source, {})
    assert type(caught.value) is error


def assert_says_what_to_do(error: LabkitError) -> None:
    assert "labkit queue add paper.bib" in str(error)
    assert "Nothing was changed" in str(error)
    assert error.exit_code == 1


@pytest.mark.parametrize(
    "failure",
    [
        requests.exceptions.ConnectionError("name resolution failed"),
        requests.exceptions.ConnectTimeout("slow"),
        requests.exceptions.ProxyError("no"),
        requests.exceptions.SSLError("certificate"),
    ],
    ids=lambda failure: type(failure).__name__,
)
@pytest.mark.parametrize("source", ["1910.02054", DOI.value])
def test_without_network_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, source: str
) -> None:
    def get(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(requests, "get", get)
    monkeypatch.delenv("LABKIT_OFFLINE", raising=False)
    with pytest.raises(LabkitError) as caught:
        intake.read(source, {})
    assert_says_what_to_do(caught.value)


def test_offline_by_request_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer(monkeypatch, DATACITE)
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    with pytest.raises(LabkitError, match="LABKIT_OFFLINE") as caught:
        intake.read("1910.02054", {})
    assert_says_what_to_do(caught.value)
    assert asked == []


def test_a_name_lookup_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(30))
    monkeypatch.setattr(intake, "ANSWER_S", 0.3)
    monkeypatch.delenv("LABKIT_OFFLINE", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    started = time.monotonic()
    with pytest.raises(LabkitError, match="did not answer") as caught:
        intake.read("1910.02054", {})
    assert time.monotonic() - started < 5
    assert_says_what_to_do(caught.value)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "192.0.2.1"])  # closed port; RFC 5737: nowhere
def test_a_host_out_of_reach_is_given_up(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(intake, "RESOLVER", f"http://{address}")
    monkeypatch.setattr(download, "CONNECT_S", 0.5)
    monkeypatch.delenv("LABKIT_OFFLINE", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    started = time.monotonic()
    with pytest.raises(LabkitError) as caught:
        intake.read("1910.02054", {})
    assert time.monotonic() - started < 5
    assert_says_what_to_do(caught.value)
