"""results/: whole folders or none, whatever happens while they are written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.workbook.run import results, runs

CLAIM = dict.fromkeys(("paper", "id", "kind", "statement", "unit", "source"), "a") | {
    "verdict": "reproduced",
    "paper_value": 1,
    "our_value": 1.5,
    "ratio": 1.5,
    "verified": True,
}
FILES = {"zero.ipynb": "{}", "claims.json": json.dumps([CLAIM]), "figures/01.json": "{}"}
SCALARS = st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False), st.text(max_size=90))
NAMES = st.from_regex(r"[a-z][a-z_0-9]{0,20}", fullmatch=True)


def put(root: Path, slug: str = "default", fingerprint: str = "one") -> Path:
    meta = {"parameters": {"seed": 0}, "fingerprint": fingerprint}
    return results.store(root, "zero", slug, FILES, meta)


def names_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_stored_result_reads_back(tmp_path: Path) -> None:
    put(tmp_path, "seed=3")
    put(tmp_path)
    first, second = results.records(tmp_path)
    assert (first.slug, second.slug) == ("default", "seed=3")
    assert first.parameters == {"seed": 0}
    assert first.claims == [CLAIM]
    assert first.notebook.read_text() == "{}"
    assert names_under(first.folder) == {*FILES, "run.json"}


def test_storing_again_leaves_no_trace_of_the_old_result_or_of_the_building(tmp_path: Path) -> None:
    put(tmp_path, fingerprint="old")
    put(tmp_path, fingerprint="new")
    [record] = results.records(tmp_path)
    assert record.meta["fingerprint"] == "new"
    inside = names_under(results.results_folder(tmp_path))
    assert inside == {f"zero/default/{name}" for name in (*FILES, "run.json")}


HARMS = ["missing", "cut short", "no run.json", "broken run.json"]


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_folder_is_no_result(tmp_path: Path, harm: str) -> None:
    folder = put(tmp_path)
    if harm == "missing":
        (folder / "figures/01.json").unlink()
    elif harm == "cut short":
        (folder / "claims.json").write_text("")
    elif harm == "no run.json":
        (folder / "run.json").unlink()
    else:
        (folder / "run.json").write_text((folder / "run.json").read_text()[:40])
    assert list(results.records(tmp_path)) == []


def test_any_altered_byte_is_noticed_though_size_and_time_stay(tmp_path: Path) -> None:
    folder = put(tmp_path)
    times = {name: (folder / name).stat() for name in (*FILES, "run.json")}
    for name, before in times.items():
        path = folder / name
        whole = (folder / name).read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            assert results.inspect(folder) == (None, f"result damaged: {name}")
        path.write_bytes(whole)
    [record] = results.records(tmp_path)
    assert record.meta["fingerprint"] == "one"


@pytest.mark.parametrize("crash_at", [0, 1, 2])
def test_a_crash_at_any_step_leaves_the_old_result_the_new_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    """Stops at each of the operations that change the tree, as kill -9 would."""
    put(tmp_path, fingerprint="old")
    steps = iter(range(99))

    def stopping(real: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            if next(steps) == crash_at:
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", stopping(os.rename))
        patch.setattr(shutil, "rmtree", stopping(shutil.rmtree))
        with pytest.raises(KeyboardInterrupt):
            put(tmp_path, fingerprint="new")
    seen = [record.meta["fingerprint"] for record in results.records(tmp_path)]
    assert seen == {0: ["old"], 1: [], 2: ["new"]}[crash_at]
    results.sweep_scratch(tmp_path)
    put(tmp_path, fingerprint="newer")
    assert [record.meta["fingerprint"] for record in results.records(tmp_path)] == ["newer"]
    assert not (results.results_folder(tmp_path) / ".tmp").exists() or not names_under(
        results.results_folder(tmp_path) / ".tmp"
    )


@pytest.mark.parametrize("step", ["mkdtemp", "mkdir", "write", "aside", "in place"])
def test_a_disk_that_refuses_at_any_step_leaves_the_old_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    put(tmp_path, fingerprint="old")

    def refusing(real: Any, due: Any = lambda *args: True) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if due(*args):
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        if step == "mkdtemp":
            patch.setattr(tempfile, "mkdtemp", refusing(tempfile.mkdtemp))
        elif step == "mkdir":
            patch.setattr(Path, "mkdir", refusing(Path.mkdir, lambda path: path.name == "figures"))
        elif step == "write":
            due = lambda path, content: path.name == "run.json"  # noqa: E731
            patch.setattr(Path, "write_bytes", refusing(Path.write_bytes, due))
        else:
            put_aside = lambda old, new: str(new).endswith("-old")  # noqa: E731
            in_place = lambda old, new: Path(new).name == "default" and "-old" not in str(old)  # noqa: E731
            patch.setattr(
                os, "rename", refusing(os.rename, put_aside if step == "aside" else in_place)
            )
        with pytest.raises(OSError, match="No space left"):
            put(tmp_path, fingerprint="new")
    assert [record.meta["fingerprint"] for record in results.records(tmp_path)] == ["old"]
    results.sweep_scratch(tmp_path)
    put(tmp_path, fingerprint="new")
    assert [record.meta["fingerprint"] for record in results.records(tmp_path)] == ["new"]


def test_a_later_success_removes_the_failure(tmp_path: Path) -> None:
    folder = results.store_failure(tmp_path, "zero", "default", {"zero.ipynb": "{}"})
    assert folder == tmp_path / "results/.failed/zero/default"
    assert list(results.records(tmp_path)) == []
    other = results.store_failure(tmp_path, "zeus", "seed=1", {"zeus.ipynb": "{}"})
    put(tmp_path)
    assert not folder.parent.exists()
    assert other.is_dir()


@given(st.dictionaries(NAMES, SCALARS, max_size=8))
def test_a_slug_is_one_safe_file_name(overrides: dict[str, Any]) -> None:
    slug = results.slug_of(overrides)
    assert Path(slug).name == slug
    assert 0 < len(slug.encode()) <= 200
    assert not slug.startswith(".")
    assert slug.isprintable()


@given(st.dictionaries(NAMES, st.integers(), max_size=30), st.dictionaries(NAMES, st.integers()))
def test_different_parameters_have_different_slugs(
    one: dict[str, int], other: dict[str, int]
) -> None:
    assert (results.slug_of(one) == results.slug_of(other)) == (one == other)


def test_run_json_lists_every_file_with_its_hash(tmp_path: Path) -> None:
    folder = put(tmp_path)
    listed = json.loads((folder / "run.json").read_text())["files"]
    assert listed == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES
    }


def test_what_a_parameter_says_never_breaks_the_seal(tmp_path: Path) -> None:
    """The seal's own place is sealed as zeros, which a text or a number may hold as well."""
    texts = ["0" * 64, '"sha256": "' + "0" * 64 + '"', "\ud800"]
    meta = {"parameters": {"text": texts[0], "more": texts[1], "half": texts[2], "n": 10**400}}
    results.store(tmp_path, "zero", "default", {"claims.json": "[]"}, meta)
    [record] = results.records(tmp_path)
    assert record.parameters == meta["parameters"]
    assert runs.write(tmp_path, "zero")
    [row] = pd.read_parquet(runs.path_of(tmp_path, "zero")).to_dict("records")
    assert (row["text"], row["half"], int(row["n"])) == ("0" * 64, "\\ud800", 10**400)


FORGED = {
    "parameters": [None, [], "x"],
    "overrides": [[], {"seed": [1]}],
    "metrics": [[1], {"time_s": {}}],
    "datasets": [[], {"a": {}}, {"a": {"standin": "no"}}, {"a": 1}],
    "machine": ["big", {"memory_bytes": "much"}],
    "duration_s": ["x", -1, 10**400, float("nan"), None, [1]],
    "fingerprint": [1, None],
    "fingerprint_parts": [[], {"source": 1}],
    "started": [0],
    "ended": [{}],
    "git_commit": [1],
}
"""What somebody may seal, by its field; anybody can compute a seal."""


@pytest.mark.parametrize("field", FORGED)
def test_a_forged_field_is_damage(tmp_path: Path, field: str) -> None:
    for value in FORGED[field]:
        meta = {"parameters": {}, field: value}
        folder = results.store(tmp_path, "zero", "default", FILES, meta)
        assert results.inspect(folder) == (None, "result damaged: run.json"), value
        assert results.read(folder) is None


VALUES = [10**400, {}, [], [[1]], [1, None], "\x1b[31m", float("nan")]
TEXTS = [1, None, "\x07"]
NUMBERS = ["x", 10**400]
TRUTHS = ["x", 1]
FORGED_CLAIM = {
    **dict.fromkeys(("our_value", "paper_value", "flip_value"), VALUES),
    **dict.fromkeys(("paper", "id", "kind", "statement", "unit", "source"), TEXTS),
    **dict.fromkeys(("ratio", "fitted", "tolerance"), NUMBERS),
    **dict.fromkeys(("verified", "can_fail"), TRUTHS),
    "flip": [1],
    "verdict": ["good", 1, [], None],
    "flip_verdict": ["good", 1],
}


@pytest.mark.parametrize("field", FORGED_CLAIM)
def test_a_forged_claim_is_damage(tmp_path: Path, field: str) -> None:
    for value in FORGED_CLAIM[field]:
        files = {**FILES, "claims.json": json.dumps([CLAIM | {field: value}])}
        folder = results.store(tmp_path, "zero", "default", files, {"parameters": {}})
        assert results.inspect(folder) == (None, "result damaged: claims.json"), value
        assert results.read(folder) is None


@pytest.mark.parametrize(
    "claims", ["[1]", "1", "null", "[null]", "{}", "[" * 9999, "[" + "9" * 5000 + "]"]
)
def test_what_is_no_list_of_claims_is_damage(tmp_path: Path, claims: str) -> None:
    files = {**FILES, "claims.json": claims}
    folder = results.store(tmp_path, "zero", "default", files, {"parameters": {}})
    assert results.inspect(folder) == (None, "result damaged: claims.json")


def test_a_result_s_files_are_files_of_its_folder(tmp_path: Path) -> None:
    """Neither a path that leaves it, nor a device or a pipe that is read without end."""
    outside = tmp_path / "outside"
    outside.write_text("x")
    digest = hashlib.sha256(b"x").hexdigest()
    for name in (str(outside), "../../../outside", "/dev/zero"):
        folder = put(tmp_path)
        meta = json.loads((folder / "run.json").read_text())
        meta["files"][name] = digest
        seal(folder, meta)
        assert results.inspect(folder) == (None, "result damaged: run.json")
    for damage in ("claims.json", "run.json"):
        folder = put(tmp_path)
        (folder / damage).unlink()
        os.mkfifo(folder / damage)
        assert results.inspect(folder) == (None, f"result damaged: {damage}")
        (folder / damage).unlink()
        (folder / damage).symlink_to("/dev/zero")
        assert results.inspect(folder) == (None, f"result damaged: {damage}")
    for files in ([], None, {"claims.json": 1}, {}):
        folder = put(tmp_path)
        seal(folder, {"parameters": {}, "files": files})
        assert results.inspect(folder) == (None, "result damaged: run.json")


def seal(folder: Path, meta: dict[str, Any]) -> None:
    """Write a ``run.json`` as :func:`results.store` would seal it."""
    text = results.dumps({**meta, "sha256": "0" * 64})
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / "run.json").write_text(text.replace("0" * 64, digest))
