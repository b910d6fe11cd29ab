"""A folder with two tables of one's own: what is derived from them, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from labkit import tuning
from labkit.errors import BadFile, UsageError
from labkit.files import shipped
from labkit.tuning.traces import sweeps

TRAIN = "dataset,network,optimizer,batch_size,learning_rate,run,target_metric,target_epoch"
POWER = "dataset,network,optimizer,batch_size,power_limit,time_per_epoch,average_power"
SPEEDS = {280: 0.80, 330: 0.90, 380: 0.95, 480: 1.0}
"""Of a ViT-B/16 on an RTX 3090 by power limit (blog.qwertyforce.dev), over the highest limit's."""


def folder_with(folder: Path, train: list[str], power: list[str]) -> Path:
    (folder / "train.csv").write_text("\n".join([TRAIN, *train]))
    (folder / "power.csv").write_text("\n".join([POWER, *power]))
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """The sweep above: an epoch takes 100 s at the highest limit; draws are made up, below it."""
    power = [f"cats,vit,sgd,64,{w},{100 / share!r},{w - 10}" for w, share in SPEEDS.items()]
    return folder_with(tmp_path, ["cats,vit,sgd,64,0.1,1,0.8,10"], power)


@pytest.mark.parametrize(("slowdown", "limit"), [(1 / 9 + 1e-9, 330), (1 / 19 + 1e-9, 380)])
def test_the_lowest_limit_within_a_slowdown(sweep: Path, slowdown: float, limit: int) -> None:
    """90 % of the speed is 1/9 slower, 95 % is 1/19."""
    job = tuning.load(str(sweep)).job("cats")
    chosen = tuning.best_power_limits(job, selector="max-slowdown", max_slowdown=slowdown)
    assert [job.power_limits_w[place] for place in chosen] == [limit]


def test_a_sweep_needs_no_more_than_its_tables(sweep: Path) -> None:
    trace = tuning.load(sweep, gpu="RTX 3090")
    assert (trace.names, trace.gpu, trace.is_own_sweep) == (["cats"], "RTX 3090", True)
    job = trace.job("cats")
    assert (job.default_batch_size, job.target_metric, job.max_epochs) == (64, 0.8, 10)
    assert tuning.load(sweep).gpu == "unnamed GPU"


def test_a_recorded_trace_without_its_meta_is_the_same_jobs(tmp_path: Path) -> None:
    """What meta.json says can be given instead; two networks on one dataset need longer names."""
    for name in ("train.csv", "power.csv"):
        (tmp_path / name).write_bytes((shipped("data/measured/digits") / name).read_bytes())
    own = tuning.load(str(tmp_path))
    recorded = tuning.load("digits")
    assert sorted(own.names) == ["digits/cnn/sgd", "digits/mlp/sgd"]
    for network in ("mlp", "cnn"):
        meant = recorded.job(f"digits-{network}")
        job = own.job(
            f"digits/{network}/sgd", default_batch_size=64, target_metric=0.97, max_epochs=50
        )
        assert replace(job, name=meant.name, title=meant.title) == meant
    assert own.job("digits/mlp/sgd").target_metric == 0.98


def test_what_is_derived_follows_the_runs(tmp_path: Path) -> None:
    """Word error rates fall; 20 was never reached; batch size 128 was never profiled."""
    train = [
        "speech,ds2,adam,32,0.1,1,40,3",
        "speech,ds2,adam,32,0.1,1,30,7.5",
        "speech,ds2,adam,32,0.1,1,20,",
        "speech,ds2,adam,128,0.1,1,40,5",
    ]
    folder_with(tmp_path, train, ["speech,ds2,adam,32,100,10,90", "speech,ds2,adam,16,100,9,90"])
    with pytest.warns(tuning.IncompleteTrace, match="128"):
        trace = tuning.load(str(tmp_path))
    job = trace.job("speech")
    assert (job.default_batch_size, job.target_metric, job.max_epochs) == (32, 30, 8)
    assert trace.targets("speech") == [40, 30, 20]
    assert trace.job("speech", target_metric=20).epochs_to_target == ((math.inf,),)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (
            "train.csv",
            None,
            r"train\.csv: the file is missing; valid: a table with columns dataset",
        ),
        ("power.csv", None, r"power\.csv: the file is missing; valid: .*average_power"),
        ("power.csv", "dataset\nx", r"power\.csv:1: lacks column network"),
        (
            "power.csv",
            f"{POWER}\ncats,vit,sgd,8,100,10,90",
            r"power\.csv: profiles no workload that train\.csv beside it trains",
        ),
        (
            "power.csv",
            f"{POWER}\ncats,vit,sgd,64,100,10,",
            r"power\.csv:2: not a positive number; field 'average_power'",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::labkit.tuning.TraceWarning")
def test_what_a_sweep_lacks_is_named(sweep: Path, file: str, text: str | None, said: str) -> None:
    if text is None:
        (sweep / file).unlink()
    else:
        (sweep / file).write_text(text)
    with pytest.raises(BadFile, match=said):
        tuning.load(str(sweep))


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_without_tables_is_told_what_belongs_there(tmp_path: Path, kind: type) -> None:
    with pytest.raises(BadFile, match="a folder without the tables of a trace; valid: train"):
        tuning.load(kind(tmp_path))
    with pytest.raises(UsageError, match=r"no (recorded )?trace '"):
        tuning.load(kind(tmp_path / "none"))


def test_what_the_report_says_names_every_option() -> None:
    said = sweeps.DERIVED.format(b0=64, target=0.8, epochs=10)
    assert all(flag in said for flag in ("--b0", "--target", "--max-epochs"))
