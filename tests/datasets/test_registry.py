"""The registry: ours is right and whole; a malformed one is refused with line and field."""

from __future__ import annotations

import csv
import hashlib
import json
import subprocess
import tarfile
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

from labkit import cluster, datasets, files, planner, serving
from labkit.cluster.inputs.published import in_seconds
from labkit.datasets.end_to_end import read_measured
from labkit.datasets.locality import read_reuse
from labkit.datasets.registry import Dataset, PublishedFile, load_registry
from labkit.errors import BadFile
from labkit.papers.unity import read_rules, terms_of
from labkit.serving.device.kernels import Program
from labkit.workbook import notebooks
from tests.published import Need, need_mirror

from .conftest import Book

ROOT = Path(__file__).resolve().parents[2]
OURS = load_registry(ROOT).datasets
EVERY = pytest.mark.parametrize("dataset", OURS.values(), ids=lambda dataset: dataset.name)


def test_every_data_set_that_a_notebook_names_is_registered() -> None:
    named = [notebooks.read(path).metadata.labkit for path in notebooks.paths(ROOT).values()]
    files = {name for meta in named for name in meta.get("datasets", [])}
    assert {name.partition("/")[0] for name in files} <= set(OURS)


@EVERY
def test_addresses_lead_to_the_commit_and_the_path(dataset: Dataset) -> None:
    for file in dataset.files:
        assert dataset.repository in file.url
        assert unquote(file.url).endswith(f"/{dataset.commit}/{file.path}")


@EVERY
def test_the_cited_paper_is_in_the_bibliography(dataset: Dataset) -> None:
    from labkit.workbook.queue import bibliography

    assert dataset.citation in bibliography.load(ROOT)


ELSEWHERE = ("profiler/profiled-time-miniset/",)
"""What is registered and read by one test, and is to be had from its authors alone."""


@EVERY
def test_the_mirror_holds_what_is_registered(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    folder = need_mirror()
    mirrored = [file for file in dataset.files if not file.path.startswith(ELSEWHERE)]
    for file in mirrored:
        content = (folder / dataset.name / file.path).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file.sha256
        assert len(content) == file.size_bytes
    assert datasets.available(dataset.name, [file.path for file in mirrored])


def test_the_registry_agrees_with_the_mirrors_own_index() -> None:
    folder = need_mirror()
    if not (folder / "index.json").is_file():
        pytest.skip("this mirror has no index")
    index = json.loads((folder / "index.json").read_text())
    assert set(OURS) <= set(index)  # a mirror may hold data for papers still to come
    for name, dataset in OURS.items():
        listed = index[name]
        assert (dataset.origin, dataset.commit) == (listed["repo"], listed["commit"])
        assert dataset.licence == listed["licence"]
        ours = {f.path: (unquote(f.url), f.sha256, f.size_bytes) for f in dataset.files}
        theirs = {f["path"]: (unquote(f["url"]), f["sha256"], f["bytes"]) for f in listed["files"]}
        both = {path: known for path, known in ours.items() if not path.startswith(ELSEWHERE)}
        assert both.items() <= theirs.items()


STANDINS = [(d, f) for d in OURS.values() for f in d.files if f.standin is not None]


def columns(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(csv.reader(line for line in lines if not line.startswith("#")))


@pytest.mark.parametrize(
    ("dataset", "file"), STANDINS, ids=lambda value: getattr(value, "path", "")
)
def test_a_standin_is_here_small_and_ours(dataset: Dataset, file: PublishedFile) -> None:
    assert file.standin is not None
    standin = ROOT / file.standin
    content = standin.read_bytes()
    assert standin.parent == ROOT / "data" / "profiles"
    assert len(content) < 200_000
    assert hashlib.sha256(content).hexdigest() not in {f.sha256 for f in dataset.files}
    assert list(standin.parent.glob("*.py")), "the script that makes it is committed beside it"


@pytest.mark.parametrize(
    ("dataset", "file"), STANDINS, ids=lambda value: getattr(value, "path", "")
)
def test_a_standin_has_the_published_columns(
    dataset: Dataset, file: PublishedFile, published_data: Need
) -> None:
    assert file.standin is not None
    standin = ROOT / file.standin
    wanted = [file.path]
    if file.path.endswith(".profile.json"):  # kernels, with the graph that launches them
        wanted.append(file.path.replace(".profile", ""))
    source = published_data(dataset.name, wanted)
    published = source.path(file.path)
    if published.suffix == ".csv":
        assert columns(standin) == columns(published)
    elif dataset.name == "unity-substitutions":  # rules in the same form, with known operators
        operators = {op for rule in read_rules(standin) for op in terms_of(rule.source)}
        assert {op.op for op in operators} <= {
            op.op for rule in read_rules(published) for op in terms_of(rule.source)
        }
    elif dataset.name == "dlrm-locality":  # histograms: the same bins of as many batches
        tables = [read_reuse(path) for path in (standin, published)]
        assert sorted(tables[0]) == sorted(tables[1])
        bins = ["batch", "above", "up_to"]
        assert tables[0][bins].equals(tables[1][bins])
    elif len(wanted) == 2:
        programs = [Program.read(standin), Program.read(published, source.path(wanted[1]))]
        assert programs[0].blocks == programs[1].blocks
        assert [*map(len, programs[0].wave_s)] == [*map(len, programs[1].wave_s)]
        assert programs[0].alone_s == pytest.approx(programs[1].alone_s, rel=0.25)
    elif published.suffix == ".gz":  # an archive of traces: cluster 06 of it
        with tarfile.open(published) as files:
            head = files.extractfile("cluster06.csv").readline().decode()  # type: ignore[union-attr]
        assert columns(standin) == head.strip().split(",")
    elif published.suffix == ".trace":  # as many jobs, of sizes that the published jobs have
        theirs = in_seconds(published)
        ours = pd.read_csv(standin, comment="#")
        assert set(ours) <= set(theirs)
        assert len(ours) == len(theirs)
        assert set(ours["gpus"].astype(str)) <= set(theirs["gpus"])
    elif dataset.name == "gavel-osdi20":  # throughputs of the same kinds, packable with the same
        speeds = [cluster.load_throughputs(path) for path in (standin, published)]
        assert speeds[0].kinds == speeds[1].kinds
        assert ((speeds[0].packed > 0) == (speeds[1].packed > 0)).all()
    elif dataset.name == "nexus-sosp19":  # seconds of the same batches
        profiles = [serving.BatchProfile.read(path) for path in (standin, published)]
        assert [*map(len, (p.latency_s for p in profiles))] == [len(profiles[1].latency_s)] * 2
        assert profiles[0].latency_s == pytest.approx(profiles[1].latency_s, rel=0.5)
    elif published.suffix == ".tsv":  # Alpa's: the same systems on the same GPUs, where they ran
        ours = read_measured(standin)
        theirs = read_measured(published).dropna().reset_index(drop=True)
        assert ours.drop(columns="tera_flops").equals(theirs.drop(columns="tera_flops"))
    else:  # a graph: what the engine makes of both has the same layers
        chains = [planner.Chain.read(path) for path in (standin, published)]
        assert chains[0].layers == chains[1].layers
        assert chains[0].time_s == pytest.approx(chains[1].time_s, rel=0.25)


def test_every_standin_stands_for_one_file() -> None:
    paths = [file.standin for _, file in STANDINS]
    assert len(set(paths)) == len(paths)


def test_no_published_file_is_committed() -> None:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    tracked = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    hashes = {hashlib.sha256(p.read_bytes()).hexdigest(): p for p in tracked if p.is_file()}
    published = {file.sha256 for dataset in OURS.values() for file in dataset.files}
    assert not {str(hashes[known]) for known in published & set(hashes)}


MALFORMED = [
    # what is replaced, by what, the line of the fault, what the message must say
    ("licence: MIT", "license: MIT", 2, ("bench.licence", "required")),
    ("    citation: bench24\n", "", 2, ("bench.citation", "required")),
    ("commit: c0ffee", "commit: C0FFEE", 5, ("bench.commit", "pattern")),
    ("origin: https://", "origin: ftp://", 4, ("bench.origin", "pattern")),
    ("path: measured/time.csv", "path: ../time.csv", 10, ("files.0.path", "relative path")),
    ("path: measured/time.csv", "path: /etc/passwd", 10, ("files.0.path", "relative path")),
    ("path: measured/time.csv", "path: a//b.csv", 10, ("files.0.path", "relative path")),
    ("path: notes.txt", "path: measured/time.csv", 9, ("bench.files", "two files with the path")),
    ("url: http://", "url: file://", 11, ("files.0.url", "pattern")),
    ("bytes: 18", "bytes: -18", 27, ("files.3.bytes", "-18")),
    ("bytes: 18", "bytes: '18'", 27, ("files.3.bytes", "'18'")),
    ("bytes: 18", "size: 18", 24, ("files.3.bytes", "required")),
    ("bytes: 18", "bytes: 18\n        md5: 0", 28, ("files.3.md5", "not permitted")),
    ("standin: data/", "standin: ../", 14, ("files.0.standin", "relative path")),
    ("datasets:", "data:", None, ("datasets", "required")),
    ("  bench:", "  Bench Mark:", 2, ("Bench Mark", "pattern")),
    ("    notes:", "   notes:", 8, ("not valid YAML",)),
    (
        "    citation: bench24",
        "    citation: b\n    citation: c",
        8,
        ("not valid YAML", "duplicate"),
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "told"), MALFORMED)
def test_a_malformed_registry_is_refused_with_line_and_field(
    book: Book, old: str, new: str, line: int | None, told: tuple[str, ...]
) -> None:
    path = book.root / "data" / "datasets.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(BadFile) as caught:
        datasets.open("bench/notes.txt")
    assert caught.value.exit_code == 2
    assert caught.value.path == path
    assert caught.value.line == line, str(caught.value)
    for part in told:
        assert part in str(caught.value)


@pytest.mark.parametrize("text", ["", "- a list\n", "just words\n", "datasets: 3\n"])
def test_something_else_is_no_registry(book: Book, text: str) -> None:
    (book.root / "data" / "datasets.yaml").write_text(text)
    with pytest.raises(BadFile):
        datasets.open("bench/notes.txt")


def test_a_missing_registry_is_told(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a workbook whose labkit came without its data; else labkit's own registry is read."""
    (book.root / "data" / "datasets.yaml").unlink()
    assert load_registry(book.root).datasets.keys() == OURS.keys()
    monkeypatch.setattr(files, "PACKAGE", book.root / "labkit")
    with pytest.raises(BadFile, match=r"datasets\.yaml: the file is missing"):
        datasets.open("bench/notes.txt")


def test_a_registry_that_changes_is_read_again(book: Book) -> None:
    load_registry(book.root)
    path = book.root / "data" / "datasets.yaml"
    path.write_text(path.read_text().replace("licence: MIT", "licence: BSD-3-Clause"))
    assert load_registry(book.root).dataset("bench").licence == "BSD-3-Clause"
