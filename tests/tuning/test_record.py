"""Recording a trace: real trainings, the model of power, and what happens when it is cut short."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import tuning
from labkit.errors import BadFile, BadValue, UsageError
from labkit.files import project_root
from labkit.tuning.recording import record, training
from labkit.tuning.recording.capping import CapModel
from labkit.tuning.recording.meters import Reading, machine
from labkit.tuning.recording.record import Grid
from labkit.tuning.recording.training import Trained, Training, load_digits, train
from labkit.tuning.traces import trace as recorded

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

DIGITS = project_root() / recorded.HOME / "digits"
SMALL = Grid(
    networks=("mlp",),
    batch_sizes=(64, 512),
    seeds=(1, 2),
    targets=(0.8, 0.9),
    max_epochs=8,
    default_batch_size=64,
    default_target=0.9,
)
WHAT = Training(
    network="cnn", batch_size=128, rng=3, learning_rate=0.1, max_epochs=3, targets=(0.99,)
)


def retrain(trace_meta: dict[str, Any], network: str, batch_size: int, seed: int) -> Trained:
    """One run of a recorded grid again, from what its ``meta.json`` says."""
    grid: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in trace_meta["grid"].items()
    }
    for what in Grid(**grid).trainings():
        if (what.network, what.batch_size, what.rng) == (network, batch_size, seed):
            return train(what, device=trace_meta["device"])
    raise UsageError(f"no run {network}/{batch_size}/{seed} in this grid")


# ---------------------------------------------------------------- training


def test_the_same_seed_trains_the_same_and_another_does_not() -> None:
    data = load_digits()
    first = train(WHAT, data)
    again = train(WHAT, data)
    assert first.accuracies == again.accuracies
    assert train(replace(WHAT, rng=4), data).accuracies != first.accuracies


def test_training_leaves_torchs_own_randomness_and_threads_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    train(replace(WHAT, max_epochs=1))
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_no_image_is_both_trained_on_and_validated_with() -> None:
    images, classes, held, names = load_digits()
    assert (len(images), len(held)) == (len(classes), len(names)) == (1438, 359)
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1
    rows = {row.numpy().tobytes() for row in images}
    assert not any(row.numpy().tobytes() in rows for row in held)


def test_a_run_ends_at_the_hardest_target_and_says_when_each_was_reached() -> None:
    done = train(replace(WHAT, batch_size=32, targets=(0.5, 0.9), max_epochs=20))
    first = done.epochs_to(0.5)
    second = done.epochs_to(0.9)
    assert first is not None
    assert second is not None
    assert first <= second == len(done.accuracies)
    assert all(a < 0.9 for a in done.accuracies[:-1])
    assert done.epochs_to(1.01) is None
    assert len(done.epoch_s) == len(done.cpu_s) == len(done.accuracies)
    assert min(done.epoch_s) > 0


def test_without_scikit_learn_the_refusal_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)  # as Python marks what is absent
    with pytest.raises(UsageError, match=r"needs sklearn, which is not .* 'mlsys-labkit\[torch\]'"):
        record.record(SMALL, tmp_path / "t")
    assert not (tmp_path / "t").exists()


# ---------------------------------------------------------------- the committed trace


@pytest.fixture(scope="module")
def digits() -> tuning.TrainingTrace:
    return tuning.load("digits")


@pytest.mark.parametrize("cell", [("mlp", 64, 1), ("cnn", 256, 2)])
def test_a_cell_of_the_committed_trace_trains_to_the_same_epochs(
    cell: tuple[str, int, int], digits: tuning.TrainingTrace
) -> None:
    """Exactly, on the processor and torch it was recorded with; elsewhere within a factor of 2."""
    told = recorded.meta(DIGITS)
    if told["versions"]["torch"].split("+")[0] != metadata.version("torch").split("+")[0]:
        pytest.skip(f"recorded with torch {told['versions']['torch']}")
    network, size, seed = cell
    job = digits.job(f"digits-{network}")
    stored = job.epochs_to_target[job.batch_sizes.index(size)][seed - 1]
    found = retrain(told, network, size, seed).epochs_to(job.target_metric)
    assert found is not None
    if told["machine"]["name"] == machine()["name"]:
        assert found == stored
    assert stored / 2 <= found <= 2 * stored


def test_the_committed_trace_is_small_complete_and_says_what_it_is(
    digits: tuning.TrainingTrace,
) -> None:
    told = recorded.meta(DIGITS)
    assert recorded.folder_of("digits") == DIGITS
    assert sum(path.stat().st_size for path in DIGITS.iterdir()) < 200_000
    assert len(digits.gaps()) == 0
    assert digits.names == ["digits-mlp", "digits-cnn"]
    assert digits.energy_source == told["energy_source"]
    for key in ("command", "script", "date", "machine", "versions", "counter", "time_per_epoch"):
        assert told[key]
    assert (Path(tuning.__file__).parents[2] / told["script"]).is_file()
    grid = Grid(**{k: tuple(v) if isinstance(v, list) else v for k, v in told["grid"].items()})
    assert len(digits.train) == len(grid.trainings()) * len(grid.targets)


def test_the_committed_power_is_what_the_stated_model_says(digits: tuning.TrainingTrace) -> None:
    """Every modelled row follows from the measured row at the highest limit and the constants."""
    told = recorded.meta(DIGITS)
    if told["energy_source"] != "modelled":
        pytest.skip("measured")
    constants = told["energy_model"]
    model = CapModel(**(constants | {"power_limits_w": tuple(constants["power_limits_w"])}))
    for name in digits.names:
        job = digits.job(name)
        full_s = job.epoch_time_s[:, -1]
        power_w = np.array(job.average_power_w)
        for row, seconds in enumerate(full_s):
            activity = model.activity(1 / seconds, 1 / full_s.min())
            for column, limit in enumerate(job.power_limits_w):
                clock = model.clock(limit, activity)
                assert power_w[row, column] == pytest.approx(model.power_w(clock, activity), 1e-5)
                assert job.epoch_time_s[row, column] == pytest.approx(
                    model.time_s(seconds, clock), rel=1e-5
                )


# ---------------------------------------------------------------- the model


@settings(max_examples=60, deadline=None)
@given(st.floats(0.4, 1), st.floats(20.5, 100), st.floats(20.5, 100))
def test_a_lower_limit_never_draws_more_nor_runs_faster(
    activity: float, one_w: float, other_w: float
) -> None:
    model = CapModel()
    (low, high) = sorted((one_w, other_w))
    slow = model.clock(low, activity)
    fast = model.clock(high, activity)
    assert model.min_clock <= slow <= fast <= 1
    assert model.power_w(slow, activity) <= model.power_w(fast, activity)
    assert model.time_s(1.0, slow) >= model.time_s(1.0, fast)
    if slow > model.min_clock:  # below, the limit no longer binds
        assert model.power_w(slow, activity) <= low + 1e-9


def test_the_model_refuses_constants_that_cannot_be() -> None:
    for wrong, said in (
        ({"idle_w": -1.0}, "CapModel.idle_w must be a finite number, above 0"),
        ({"min_clock": 0.0}, "CapModel.min_clock must be .*, above 0"),
        ({"memory_share": 1.5}, r"memory_share must be .* at most 1; got 1\.5"),
    ):
        with pytest.raises(BadValue, match=said):
            CapModel(**wrong)


# ---------------------------------------------------------------- recording


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


def test_a_recording_is_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []  # the batch size of every epoch that is trained

    def epoch(network: Any, optimizer: Any, images: Any, labels: Any, batches: Any, *rest: Any):
        seen.append(max(map(len, batches)))
        return one_epoch(network, optimizer, images, labels, batches, *rest)

    one_epoch = training._epoch
    monkeypatch.setattr(training, "_epoch", epoch)
    record.record(SMALL, tmp_path / "t")
    assert files(tmp_path / "t") == {"train.csv", "power.csv", "meta.json"}
    trace = tuning.load(str(tmp_path / "t"))
    job = trace.job("digits-mlp")
    assert trace.energy_source == "modelled"
    assert job.batch_sizes == (64, 512)
    assert job.default_batch_size == 64
    assert job.target_metric == 0.9
    assert [len(runs) for runs in job.epochs_to_target] == [2, 2]
    rates = trace.train.groupby("batch_size")["learning_rate"].first().tolist()
    assert rates == pytest.approx((0.1, 0.1 * math.sqrt(8)), abs=1e-5)
    for size, runs in zip(job.batch_sizes, job.epochs_to_target, strict=True):
        total = sum(SMALL.max_epochs if math.isinf(epochs) else epochs for epochs in runs)
        assert seen.count(size) == total
    assert tuning.simulate(job, seeds=range(2)).summary()["policy"] == "zeus"


def test_a_target_that_is_never_reached_stays_empty(tmp_path: Path) -> None:
    hard = replace(SMALL, targets=(0.5, 1.0), default_target=1.0, max_epochs=2, seeds=(1,))
    record.record(hard, tmp_path)
    trace = tuning.load(str(tmp_path))
    assert trace.job("digits-mlp").epochs_to_target == ((math.inf,), (math.inf,))
    assert np.isfinite(trace.train[trace.train["target_metric"] == 0.5]["target_epoch"]).any()


class Cut(Exception):
    pass


def cut_after(runs: int) -> Any:
    started: list[str] = []

    def tell(text: str) -> None:
        started.append(text)
        if len(started) > runs:
            raise Cut

    return tell


def test_a_recording_cut_short_goes_on_where_it_ended(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    parts = tmp_path / "parts"
    record.record(SMALL, whole)
    with pytest.raises(Cut):
        record.record(SMALL, parts, tell=cut_after(2))
    assert files(parts) == {"partial.json"}
    with pytest.raises(UsageError, match="did not end: give resume=True to go on with it"):
        record.record(SMALL, parts)
    with pytest.raises(UsageError, match="was recorded with another grid"):
        record.record(replace(SMALL, max_epochs=9), parts, resume=True)
    trained: list[str] = []
    record.record(SMALL, parts, resume=True, tell=trained.append)
    assert trained == ["3/4 mlp, batch 64, seed 2", "4/4 mlp, batch 512, seed 2"]
    assert files(parts) == {"train.csv", "power.csv", "meta.json"}
    assert (parts / "train.csv").read_text() == (whole / "train.csv").read_text()


def test_nothing_is_overwritten_unless_asked_for(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("mine")
    with pytest.raises(UsageError, match=r"already holds a trace \(train\.csv\)"):
        record.record(SMALL, tmp_path)
    with pytest.raises(UsageError, match="either resume a recording or overwrite it"):
        record.record(SMALL, tmp_path, resume=True, overwrite=True)
    assert (tmp_path / "train.csv").read_text() == "mine"
    with pytest.raises(UsageError, match="nothing to resume"):
        record.record(SMALL, tmp_path / "elsewhere", resume=True)
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "partial.json").write_text("{}")
    (tmp_path / "train.csv").unlink()
    with pytest.raises(BadFile, match="not an unfinished recording"):
        record.record(SMALL, tmp_path, resume=True)
    record.record(replace(SMALL, seeds=(1,)), tmp_path, overwrite=True)
    assert files(tmp_path) == {"train.csv", "power.csv", "meta.json"}


class Counter:
    """A RAPL meter's three methods with a steady draw of 30 W."""

    source = "a made-up counter"
    period_s = 0.1
    documented = "updated every 100 ms, as nobody says"

    def begin(self) -> None:
        self.begun = True

    def end(self) -> Reading:
        assert self.begun
        return Reading(time_s=2.0, energy_j=60.0)

    def limit_w(self) -> float | None:
        return None


def test_with_a_counter_energy_is_measured_at_the_one_limit_there_is(tmp_path: Path) -> None:
    cells = record.record(SMALL, tmp_path, meter=Counter())  # type: ignore[arg-type]
    trace = tuning.load(str(tmp_path))
    assert trace.energy_source == recorded.meta(tmp_path)["energy_source"] == "measured"
    told = recorded.meta(tmp_path)
    assert told["shortest_window_s"] == 2.0
    assert told["counter_error_fraction"] == pytest.approx(0.05)  # a step of 0.1 s in 2 s
    assert "as nobody says" in told["counter_documented"]
    job = trace.job("digits-mlp")
    assert job.power_limits_w == (30.0,)
    assert {power for row in job.average_power_w for power in row} == {30.0}
    walls = [
        min(cell["epoch_s"] for name, cell in cells.items() if f"/{size}/" in name)
        for size in job.batch_sizes
    ]
    assert job.epoch_time_s[:, 0] == pytest.approx(walls, rel=1e-5)


class Capped(Counter):
    """A device whose limit may be set; draws what it is limited to."""

    power_limits_w = (100.0, 200.0)

    def __init__(self) -> None:
        self.limit = 200.0
        self.resets = 0

    def set_limit(self, power_limit_w: float) -> None:
        self.limit = power_limit_w

    def reset(self) -> None:
        self.resets += 1

    def end(self) -> Reading:
        return Reading(time_s=400 / self.limit, energy_j=400.0)


def test_a_device_with_limits_is_swept_over_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "SLICE_S", 0.01)
    what = replace(WHAT, network="mlp", batch_size=512)
    meter = Capped()
    bench = record.Bench(data=load_digits(), device="cpu", meter=meter, tell=lambda _: None)
    rows = bench.swept([what], {("mlp", 512): 0.005})
    assert [row[2] for row in rows] == [100.0, 200.0]
    assert [row[4] for row in rows] == [100.0, 200.0]
    assert [row[3] for row in rows] == [2.0, 1.0]  # two epochs in each slice
    assert meter.resets == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"networks": ("mpl",)}, "no network 'mpl'; did you mean 'mlp'"),
        ({"batch_sizes": (64, 64)}, "batch_sizes must be .*, each once; got"),
        ({"batch_sizes": (0, 64)}, "Grid.batch_sizes must be .* at least 1"),
        ({"seeds": ()}, "Grid.seeds must be .*, not empty"),
        ({"seeds": (-1,)}, "Grid.seeds must be .* at least 0"),
        ({"targets": (0.9, 1.5)}, r"Grid.targets must be .* at most 1, .*got \(0\.9, 1\.5\)"),
        ({"default_batch_size": 65}, "default_batch_size 65 must be among batch_sizes 64, 512"),
        ({"default_target": 0.97}, r"default_target 0\.97 must be among targets 0\.8, 0\.9"),
        ({"max_epochs": 0}, "Grid.max_epochs must be .* at least 1; got 0"),
        ({"base_learning_rate": 0.0}, "learning_rate must be .* above 0; got 0"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises((UsageError, BadValue), match=said):
        replace(SMALL, **wrong)


def test_a_recorded_trace_is_found_by_name_and_read_with_care(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    monkeypatch.delenv("LABKIT_DATA_MIRROR", raising=False)
    assert "digits" in recorded.names()
    with pytest.raises(UsageError, match=r"recorded on one machine: leave gpu \('a40'\) out"):
        tuning.load("digits", gpu="a40")
    with pytest.raises(UsageError, match="no trace 'digit'; did you mean 'digits'"):
        tuning.load("digit")
    for text, said in (
        ("{", "not valid YAML"),
        ("{}", "lacks a field; field 'machine'"),
        (
            '{"machine": {"name": "m"}, "workloads": {"w": {"title": "t"}}, "energy_source": "x"}',
            r"Workload needs network and .*; field 'workloads\.w'",
        ),
    ):
        (tmp_path / "meta.json").write_text(text)
        with pytest.raises(BadFile, match=said):
            tuning.load(str(tmp_path))


def test_the_script_behind_the_trace_can_make_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command in meta.json is one that labkit has, with options it knows."""
    from labkit.cli import main

    command = recorded.meta(DIGITS)["command"]
    monkeypatch.chdir(tmp_path)
    program, *words = command.split()
    assert program == "labkit"
    assert main([*words, "--resume"]) == 2  # refused only because there is nothing to resume
    assert list(tmp_path.iterdir()) == []
