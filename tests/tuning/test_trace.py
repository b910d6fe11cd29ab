from __future__ import annotations

import math
import warnings
from itertools import pairwise
from pathlib import Path

import pytest

from labkit import tuning
from labkit.errors import BadFile, UsageError
from tests.tuning.conftest import trace_files

pytestmark = pytest.mark.filterwarnings("ignore::labkit.tuning.TraceWarning")

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
    trace = read(tmp_path)
    job = trace.job("digits", **SETTINGS)
    assert job.batch_sizes == (8, 16)  # 32 was trained but never profiled
    assert job.power_limits_w == (100.0, 150.0)
    assert job.epochs_to_target == ((3.0, 5.0), (math.inf,))
    assert trace.train.groupby("batch_size")["learning_rate"].first().tolist()[:2] == [0.1, 0.2]
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
    rates = standin.targets("librispeech")
    scores = standin.targets("squad")
    assert rates == sorted(rates, reverse=True)  # word error rates
    assert scores == sorted(scores)
    assert {40.0, *rates} == {*rates}
    assert {84.0, *scores} == {*scores}


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
        ("train", "target_epoch\n", "epoch\n", r"train\.csv:2: lacks column target_epoch"),
        ("train", "0.9,5", "0.9,-5", r"train\.csv:4: .*'target_epoch'.*'-5.*or empty for never"),
        ("power", "150,3,120", "150,fast,120", r"power\.csv:3: .*'time_per_epoch'.*found 'fast'"),
        ("power", "100,2,95", "100,2,", r"power\.csv:4: .*'average_power'.*a positive number"),
        ("train", "0.9,5", "0.9,0", r"train\.csv:4: not a positive number; .*found '0'"),
        ("train", "mlp,32,", "mlp,32.5,", r"train\.csv:6: not whole; .*'batch_size'.*'32\.5'"),
        ("train", "digits,mlp,16", ",mlp,16", r"train\.csv:5: blank in 1 rows; field 'dataset'"),
        ("train", ",1,0.9,9", ",,0.9,9", r"train\.csv:6: blank in 1 rows; field 'run'"),
        ("power", "average_power\n", "average_power,batch_size\n", r"power\.csv:1: names .* twice"),
        ("power", "150,3,120", "inf,3,120", r"power\.csv:3: .*'power_limit'.*found 'inf'"),
    ],
)
def test_a_malformed_file_is_refused_by_line_field_and_value(
    tmp_path: Path, file: str, old: str, new: str, said: str
) -> None:
    texts = {"train": TRAIN, "power": POWER}
    texts[file] = texts[file].replace(old, new)
    with pytest.raises(BadFile, match=said):
        read(tmp_path, **texts)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0.2,1,0.9,\n", "0.2,1,0.9\n", r"csv:5: an incomplete .* 7 fields where the header has 8"),
        ("0.9,9\n", "0.9,9,7\n", r"csv:6: .*broken row: 9 fields where the header has 8"),
        ("0.9,9\n", "0.9", r"csv:6: .* 7 fields .*; field 'target_epoch'; found 'digits,mlp,32,"),
    ],
)
def test_a_cut_row_is_not_taken_for_a_run_that_never_got_there(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    """A file cut short in its last row would otherwise say "never" of that run."""
    with pytest.raises(BadFile, match=said):
        read(tmp_path, train=TRAIN.replace(old, new))


@pytest.mark.parametrize(
    ("file", "row", "said"),
    [
        (
            "train",
            "digits,mlp,8,sgd,0.1,2,0.9,5",
            r"csv:7: 1 rows repeat an earlier one, 0 of them with other values; .*line 4",
        ),
        (
            "train",
            "digits,mlp,8,sgd,0.1,2,0.9,6",
            r"csv:7: 1 rows repeat an earlier one, 1 of them with other values; .*line 4",
        ),
        ("train", "digits,mlp,8,sgd,0.1,2,0.90,5", r"1 rows repeat an earlier one, 0 of them"),
        (
            "power",
            "digits,mlp,8,sgd,150,4,120",
            r"csv:6: 1 rows repeat .*, 1 of them .* line 3; field .*; found 'digits, mlp, sgd, 8",
        ),
        (
            "train",
            "digits,mlp,8,sgd,0.3,3,0.9,5",
            r"csv:7: 1 rows contradict .*'learning_rate'; found '0\.3'; valid: 0\.1, as on line 3",
        ),
        (
            "train",
            "digits,mlp,8,sgd,0.1,1,0.8,4",
            r"csv:3: 1 rows say that a run reached a harder target before an easier one;"
            r" field 'target_epoch'; found '3\.0'; valid: no earlier than line 7, .* epoch 4",
        ),
    ],
)
def test_rows_that_repeat_or_contradict_are_refused_with_both_lines(
    tmp_path: Path, file: str, row: str, said: str
) -> None:
    texts = {"train": TRAIN, "power": POWER}
    if "0.8,4" in row:  # another run, so that the file shows which way targets harden
        texts["train"] += row + "\ndigits,mlp,8,sgd,0.1,2,0.8,1\n"
    else:
        texts[file] += row + "\n"
    with pytest.raises(BadFile, match=said):
        read(tmp_path, **texts)


def test_an_easier_target_may_be_the_higher_one(tmp_path: Path) -> None:
    """An error rate: the file need not say so, only agree with itself."""
    rows = "".join(
        f"speech,rnn,8,sgd,0.1,{run},{target},{epoch}\n"
        for run in (1, 2)
        for target, epoch in ((40, 9), (50, 4), (60, 4))
    )
    trace = read(tmp_path, train=TRAIN + rows)
    assert len(trace.train) == 4 + 6
    with pytest.raises(BadFile, match=r"csv:8: 1 rows say .* found '3\.0'.* line 9, which"):
        read(tmp_path, train=TRAIN + rows.replace("1,60,4", "1,60,5").replace("1,50,4", "1,50,3"))


def test_gaps_are_warned_of_by_name_with_counts(tmp_path: Path) -> None:
    power = POWER + "digits,mlp,64,sgd,100,2,95\nletters,mlp,8,sgd,100,3,150\n"
    with pytest.warns(tuning.TraceWarning) as told:
        trace = read(tmp_path, power=power)
    by_kind = {warning.category: str(warning.message) for warning in told}
    assert set(by_kind) == {tuning.IncompleteTrace, tuning.ImplausiblePower}
    for said in (
        "1 batch sizes trained, never profiled (32)",
        "1 batch sizes profiled, never trained (64)",
        "2 batch sizes with fewer runs (16: 1 of 2, 32: 1 of 2)",
        "1 pairs of batch size and power limit not profiled (64 @ 150 W)",
        "letters/mlp/sgd: 1 workload profiled, never trained",
    ):
        assert said in by_kind[tuning.IncompleteTrace]
    assert "letters/mlp/sgd: 1 rows above their power limit" in by_kind[tuning.ImplausiblePower]
    assert "8 @ 100 W: 150.0 W" in by_kind[tuning.ImplausiblePower]
    gaps = trace.gaps()
    assert gaps["count"].tolist() == [1, 1, 2, 1, 1, 1]
    assert trace.job("digits", **SETTINGS).batch_sizes == (8, 16)  # and the rest is usable


def test_targets_that_some_runs_lack_are_counted(tmp_path: Path) -> None:
    with pytest.warns(tuning.IncompleteTrace, match="3 runs without some target"):
        read(tmp_path, train=TRAIN + "digits,mlp,8,sgd,0.1,1,0.8,2\n")


def test_a_full_grid_is_no_reason_to_warn(tmp_path: Path) -> None:
    full = "".join(line for line in TRAIN.splitlines(True) if ",32," not in line)
    full = full.replace(",16,sgd,0.2,1,0.9,", ",16,sgd,0.2,1,0.9,\ndigits,mlp,16,sgd,0.2,2,0.9,")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read(tmp_path, train=full).gaps()) == 0


def test_gaps_of_the_published_trace_are_listed_and_not_warned_of() -> None:
    """Known since its bytes are; the A40 drew well above its limit in 22 rows."""
    trace_files("published", "a40")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gaps = tuning.load("zeus-nsdi23", gpu="a40").gaps()
    over = gaps[gaps["gap"].str.startswith("rows above")]
    assert over["count"].sum() == 22


def test_energy_is_said_to_be_measured_or_modelled_never_both(tmp_path: Path) -> None:
    def marked(*marks: str) -> str:
        head, *rows = POWER.splitlines()
        marked = [f"{row},{marks[i % len(marks)]}" for i, row in enumerate(rows)]
        return "\n".join([f"{head},energy_source", *marked])

    assert read(tmp_path).energy_source == ""
    assert read(tmp_path, power=marked("modelled")).energy_source == "modelled"
    with pytest.raises(BadFile, match=r"csv:3: 2 rows contradict .*'energy_source'.*'measured'"):
        read(tmp_path, power=marked("modelled", "measured"))
    with pytest.raises(BadFile, match=r"csv:2: .*'energy_source'; found 'guessed'; valid: meas"):
        read(tmp_path, power=marked("guessed"))


def test_a_missing_file_or_one_that_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="the file is missing"):
        tuning.TrainingTrace.from_csv(tmp_path / "no.csv", tmp_path / "no.csv")
    with pytest.raises(BadFile, match="not a table"):
        read(tmp_path, train="# nothing\n")
    with pytest.raises(BadFile, match="a header but no rows"):
        read(tmp_path, power=POWER.splitlines()[0] + "\n")


def test_a_gap_in_the_power_grid_is_a_hole_of_the_job_and_warned_of(tmp_path: Path) -> None:
    trace = read(tmp_path, power=POWER.replace("digits,mlp,16,sgd,150,1,140\n", ""))
    with pytest.warns(tuning.IncompleteTrace, match=r"'digits': 1 pairs .* \(16 @ 150 W\)"):
        job = trace.job("digits", **SETTINGS)
    assert job.profiled.tolist() == [[True, True], [True, False]]
    assert job.num_holes == 1


def test_a_wrong_name_target_or_setting_is_answered_with_what_there_is(
    tmp_path: Path, standin: tuning.TrainingTrace
) -> None:
    trace = read(tmp_path)
    with pytest.raises(UsageError, match=r"no workload of this trace 'mnist'.*there are: digits"):
        trace.job("mnist")
    with pytest.raises(UsageError, match="give network, optimizer"):
        trace.job("digits")
    with pytest.raises(UsageError, match=r"Workload.max_epochs must be .* at least 1; got 0"):
        trace.job("digits", **{**SETTINGS, "max_epochs": 0})
    with pytest.raises(UsageError, match=r"target_metric 0\.61 was not recorded; there are: 0\.\d"):
        standin.job("cifar100", target_metric=0.61)
    with pytest.raises(UsageError, match="Workload has no field 'batch_size'"):
        standin.job("cifar100", batch_size=3)
    with pytest.raises(UsageError, match=r"host_power_w must be .* at least 0; got -1"):
        standin.job("cifar100", host_power_w=-1)


def test_coverage_counts_batch_sizes_trained_profiled_and_usable(
    published: tuning.TrainingTrace,
) -> None:
    rows = published.coverage().set_index("workload")
    imagenet = rows.loc["ResNet-50, ImageNet"]
    assert (imagenet["trained"], imagenet["profiled"], imagenet["usable"]) == (7, 8, 5)
