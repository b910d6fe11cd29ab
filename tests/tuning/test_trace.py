from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest

from labkit import tuning
from labkit.errors import BadFile, UsageError

TRAIN = """\
# a comment
dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch
digits,mlp,8,sgd,0.1,1,0.9,3
digits,mlp,8,sgd,0.1,2,0.9,5
digits,mlp,16,sgd,0.2,1,0.9,
digits,mlp,32,sgd,0.4,1,0.9,9
"""
POWER = """\
dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power
digits,mlp,8,sgd,100,4,90
digits,mlp,8,sgd,150,3,120
digits,mlp,16,sgd,100,2,95
digits,mlp,16,sgd,150,1,140
"""
SETTINGS = {
    "network": "mlp",
    "optimizer": "sgd",
    "default_batch_size": 8,
    "target_metric": 0.9,
    "max_epochs": 10,
}


def read(folder: Path, train: str = TRAIN, power: str = POWER) -> tuning.TrainingTrace:
    (folder / "train.csv").write_text(train)
    (folder / "power.csv").write_text(power)
    return tuning.TrainingTrace.from_csv(folder / "train.csv", folder / "power.csv")


def test_a_job_joins_what_was_trained_and_what_was_profiled(tmp_path: Path) -> None:
    job = read(tmp_path).job("digits", **SETTINGS)
    assert job.batch_sizes == (8, 16)  # 32 was trained but never profiled
    assert job.power_limits_w == (100.0, 150.0)
    assert job.epochs_to_target == ((3.0, 5.0), (math.inf,))
    assert job.learning_rates == (0.1, 0.2)
    assert job.epoch_energy_j.tolist() == [[360.0, 360.0], [190.0, 140.0]]
    assert job.max_power_w == 150.0
    assert job.num_recurrences == 2 * 2 * 2


def test_host_power_is_drawn_for_as_long_as_the_epoch_lasts(tmp_path: Path) -> None:
    job = read(tmp_path).job("digits", **SETTINGS, host_power_w=10)
    assert job.epoch_energy_j.tolist() == [[400.0, 390.0], [210.0, 150.0]]


def test_the_published_default_is_clamped_to_what_fits_but_a_given_one_is_not(
    published: tuning.TrainingTrace,
) -> None:
    assert published.job("librispeech").default_batch_size == 192  # b0 is 256, never profiled
    assert published.job("cifar100").default_batch_size == 1024
    with pytest.raises(UsageError, match=r"default_batch_size 256 is not in the trace.*128, 156"):
        published.job("librispeech", default_batch_size=256)


def test_targets_run_from_easy_to_hard_also_where_lower_is_better(
    standin: tuning.TrainingTrace,
) -> None:
    assert standin.targets("librispeech") == [60.0, 50.0, 40.0, 35.0]
    assert standin.targets("squad") == [83.0, 84.0, 85.0]


def test_harder_targets_never_need_fewer_epochs(published: tuning.TrainingTrace) -> None:
    for name in published.names:
        targets = published.targets(name)
        for easier, harder in pairwise(targets):
            pairs = zip(
                published.job(name, target_metric=easier).epochs_to_target,
                published.job(name, target_metric=harder).epochs_to_target,
                strict=True,
            )
            assert all(a <= b for low, high in pairs for a, b in zip(low, high, strict=True))


def test_loading_by_name_gives_the_stand_in_where_the_data_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LABKIT_DATA_MIRROR", raising=False)
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    trace = tuning.load("zeus-nsdi23", gpu="v100")
    assert trace.names == list(tuning.PUBLISHED)
    assert trace.job("cifar100").default_batch_size == 1024


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("train", "target_epoch\n", "epoch\n", r"train\.csv:1: lacks column target_epoch"),
        ("train", "0.9,5", "0.9,-5", r"train\.csv:4: .*'target_epoch'.*'-5.*or empty for never"),
        ("power", "150,3,120", "150,fast,120", r"power\.csv:3: .*'time_per_epoch'.*found 'fast'"),
        ("power", "100,2,95", "100,2,", r"power\.csv:4: .*'average_power'.*a positive number"),
        ("train", "0.1,2,0.9", "0.1,1,0.9", r"train\.csv:4: 1 rows repeat an earlier one"),
    ],
)
def test_a_malformed_file_is_refused_by_line_field_and_value(
    tmp_path: Path, file: str, old: str, new: str, said: str
) -> None:
    texts = {"train": TRAIN, "power": POWER}
    texts[file] = texts[file].replace(old, new)
    with pytest.raises(BadFile, match=said):
        read(tmp_path, **texts)


def test_a_missing_file_or_one_that_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be read"):
        tuning.TrainingTrace.from_csv(tmp_path / "no.csv", tmp_path / "no.csv")
    with pytest.raises(BadFile, match="not a table"):
        read(tmp_path, train="# nothing\n")


def test_a_gap_in_the_power_grid_is_named(tmp_path: Path) -> None:
    trace = read(tmp_path, power=POWER.replace("digits,mlp,16,sgd,150,1,140\n", ""))
    with pytest.raises(UsageError, match=r"1 pairs .* not profiled, the first is \(16, 150\)"):
        trace.job("digits", **SETTINGS)


def test_a_wrong_name_target_or_setting_is_answered_with_what_there_is(
    tmp_path: Path, standin: tuning.TrainingTrace
) -> None:
    trace = read(tmp_path)
    with pytest.raises(UsageError, match=r"no workload 'mnist'.*there are: digits"):
        trace.job("mnist")
    with pytest.raises(UsageError, match="give network, optimizer"):
        trace.job("digits")
    with pytest.raises(UsageError, match="max_epochs must be >= 1, got 0"):
        trace.job("digits", **{**SETTINGS, "max_epochs": 0})
    with pytest.raises(UsageError, match=r"target_metric 0\.61 was not recorded; there are: 0\.4,"):
        standin.job("cifar100", target_metric=0.61)
    with pytest.raises(UsageError, match="no setting batch_size"):
        standin.job("cifar100", batch_size=3)
    with pytest.raises(UsageError, match="host_power_w must be >= 0, got -1"):
        standin.job("cifar100", host_power_w=-1)


def test_coverage_counts_batch_sizes_trained_profiled_and_usable(
    published: tuning.TrainingTrace,
) -> None:
    rows = published.coverage().set_index("workload")
    imagenet = rows.loc["ResNet-50, ImageNet"]
    assert (imagenet["trained"], imagenet["profiled"], imagenet["usable"]) == (7, 8, 5)
