"""Whatever is asked of tuning: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit import tuning
from labkit.errors import LabkitError
from labkit.tuning import goodput, live, noise
from labkit.tuning.configurations import power_limits
from labkit.tuning.recording.capping import CapModel
from labkit.tuning.recording.record import Grid
from labkit.tuning.recording.training import Training
from tests import kinds
from tests.tuning.conftest import STANDIN, random_job
from tests.tuning.test_goodput import JUMPY, steps_of

JOB = random_job(3, num_sizes=3, num_limits=2, reliable=True)
TRACE = tuning.TrainingTrace.from_csv(*STANDIN, gpu="v100")
SLICE = power_limits.Slice(power_limit_w=100.0, time_s=2.0, energy_j=150.0)
MODEL = goodput.GoodputModel(step_times=JUMPY, init_batch_size=64, noise_scale=900.0)
POWER = tuning.GpuPower.from_job(JOB)
PROGRESS = tuning.ModelledProgress(init_batch_size=8, phases=((50.0, 100.0),))
NOISE = noise.GradientNoise(grad_sqr=2.0, covariance_trace=64.0)
SIMULATED: dict[str, Any] = {"job": JOB, "policy": "default", "seeds": [0], "recurrences": 4}
CHOICE: dict[str, Any] = {
    "step_times": JUMPY,
    "progress": PROGRESS,
    "power": POWER,
    "allocations": [(1, 1)],
    "batch_sizes": [8],
    "atomic_bsz_range": (1, 8),
    "deadline_s": 1e9,
    "host": tuning.HostPower(),
}
POLICIES = (
    tuning.CostCurve(),
    tuning.EpsilonGreedy(),
    tuning.Fixed(batch=0, power=0),
    tuning.GridSearch(),
    tuning.Halving(),
    tuning.LowerConfidenceBound(),
    tuning.RandomSearch(),
    tuning.Scripted(script=lambda default, costs, draws: iter(())),  # type: ignore[arg-type, return-value]
    tuning.Thompson(),
    tuning.Zeus(),
)
TRAIN_CSV = STANDIN[0].read_text()
POWER_CSV = STANDIN[1].read_text()


def fields_of(valid: Any) -> dict[str, Any]:
    return {field.name: getattr(valid, field.name) for field in fields(valid) if field.init}


def examples() -> Mapping[str, Mapping[str, Any]]:
    described = (JOB, TRACE, POWER, tuning.HostPower(), PROGRESS, *POLICIES)
    sizes: dict[str, Any] = {"batch_size": [64], "init_batch_size": 32.0, "noise_scale": 9.0}
    surface = goodput.surface(
        MODEL, allocations=PLACES, max_batch_size=256, atomic_bsz_range=(8, 128)
    )
    knobs = tuning.choose(**CHOICE).one_by_one(num_nodes=1, num_gpus=1, batch_size=8)
    return {
        **{type(each).__name__: fields_of(each) for each in described},
        "GpuPower.at": {"atomic_bsz": [8, 9]},
        "GpuPower.from_job": {"job": JOB},
        "GpuPower.scaled": {"max_power_w": 200.0},
        "HostPower.idle_gpus": {"num_nodes": np.array([1, 2]), "num_gpus": np.array([1, 3])},
        "JointChoice.one_by_one": {"num_nodes": 1, "num_gpus": 1, "batch_size": 8},
        "ModelledProgress.from_tables": {"tables": goodput.load(workload="cifar10")},
        "ModelledProgress.steps": {"batch_size": [8, 16], "rule": "linear"},
        "Runs.path": {"seed": 0},
        "Runs.per_recurrence": {"quantity": "energy_j"},
        "TrainingTrace.each_target": {"names": ("squad",)},
        "TrainingTrace.from_csv": {
            "train_csv": STANDIN[0],
            "power_csv": STANDIN[1],
            "gpu": "v100",
            "workloads": tuning.PUBLISHED,
        },
        "TrainingTrace.gaps": {"name": "squad"},
        "TrainingTrace.job": {
            "name": "squad",
            "host_power_w": 1.0,
            "overrides": {"default_batch_size": 32},
        },
        "TrainingTrace.jobs": {"overrides": {"title": "t"}},
        "TrainingTrace.targets": {"name": "squad", "overrides": {"title": "t"}},
        "best_power_limits": {"job": JOB, "eta": 0.5, "selector": "cost"},
        "best_power_limits:slowdown": {
            "job": JOB,
            "selector": "max-slowdown",
            "max_slowdown": 0.1,
        },
        "choose": CHOICE,
        "convergence": {"job": JOB},
        "cost_j": {"energy_j": [5.0, 6.0], "time_s": [2.0, 3.0], "eta": 0.5, "max_power_w": 100.0},
        "default_choice": {"job": JOB, "eta": 0.5},
        "epoch_cost_j": {"job": JOB, "eta": 0.5},
        "figure_goodput": {"table": surface},
        "figure_fit": {
            "table": goodput.cross_validate(steps_of(JUMPY).head(12), folds=2),
            "of": "measured",
        },
        "figure_choice": {"choice": tuning.choose(**CHOICE)},
        "figure_knobs": {"table": knobs},
        "efficiency": sizes,
        "adascale_gain": sizes,
        "learning_rate": {**sizes, "rule": "adascale", "init_learning_rate": 0.1},
        "load": {"source": "digits"},
        "load:gpu": {"source": "zeus-nsdi23", "gpu": "a40"},
        "from_two_batches": {
            "small_sqr": 3.0,
            "small_batch": 8.0,
            "large_sqr": 2.0,
            "large_batch": 16.0,
        },
        "from_replicas": {"gradients": [[1.0, 2.0], [2.0, 1.0]], "examples_each": 4.0},
        "average": {"estimates": [NOISE]},
        "optimum": {"job": JOB, "eta": 0.5},
        "outcomes": {"job": JOB, "eta": 0.5},
        "savings": {"traces": [TRACE], "policies": ["default"], "seeds": [0]},
        "select_limits": {
            "time_s": [2.0, 1.0],
            "energy_j": [3.0, 4.0],
            "max_power_w": 9.0,
            "selector": "cost",
            "eta": 0.5,
        },
        "simulate": {**SIMULATED, "drift": [JOB], "concurrency": 1, "beta": 2.0},
        "simulate:zeus": {**SIMULATED, "policy": tuning.Zeus()},
        "sweep": {"jobs": [JOB], "policies": ["default"], "seeds": [0]},
    }


def objects() -> Mapping[str, Any]:
    choice = tuning.choose(**CHOICE)
    made = (JOB, TRACE, POWER, tuning.HostPower(), PROGRESS, choice, tuning.simulate(**SIMULATED))
    return {type(each).__name__: each for each in (*made, *POLICIES)}


ASKED = ("begin", "decide", "observe", "patience", "score", "start")
"""What simulate asks of a policy at every recurrence, with arrays of its own making."""
ROOM = kinds.Room(
    tuning,
    examples,
    objects,
    left_out={
        **{
            f"{policy}.{method}": "simulate asks it, at every recurrence, with arrays of its own"
            for policy in (*(type(each).__name__ for each in POLICIES), "Policy")
            for method in ASKED
        },
        **dict.fromkeys(("Policy", "Task", "Outcome"), "what policies are told, or derive from"),
        **dict.fromkeys(("Runs", "JointChoice"), "a result"),
        **dict.fromkeys(("ImplausiblePower", "IncompleteTrace", "TraceWarning"), "a warning"),
    },
    also={
        **{
            f"simulate.{name}": "(policy must|concurrency must|Scripted)"
            for name in ("policy", "concurrency")
        },
        "savings.policies": "no policy",
        "sweep.policies": "no policy",
        "choose.batch_sizes": "batch_size must be",
        "choose.atomic_bsz_range": "examples a GPU",
        "choose.deadline_s": "nothing reaches the target within",
        **{
            f"JointChoice.one_by_one.{name}": "is not in the grid"
            for name in ("num_nodes", "num_gpus", "batch_size")
        },
    },
    strange={
        r"relative_speed\.\.\.nan|busy_power_w\.\.\.nan": "a pair that was not profiled",
        r"epochs_to_target\.\.\.inf|target_epoch\.inf": "a run that never reached the target",
        r"phases\.\.\.inf": "a noise scale where no gradient is left",
        r"^nan$": "a cost of what is not known: a limit that was not profiled",
        r"^\.?inf$": "steps at a learning rate with which no run ends",
    },
    thin={
        "": 4,
        "TrainingTrace": 16,
        "savings": 20,
        "load": 16,
        "simulate": 12,
        "sweep": 8,
        "figure_knobs": 8,
        "figure_goodput": 8,
        "figure_fit": 8,
        "figure_choice": 8,
    },
)


def test_every_public_call_has_an_example() -> None:
    ROOM.check_examples()


@pytest.mark.parametrize("name", ROOM.names())
def test_odd_values(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ROOM.check(name)


def shortened(text: str) -> str:
    """A table's comments left out, and all but its first rows."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return "\n".join(lines[:3]) + "\n"


ODD_TRAIN = kinds.tables(shortened(TRAIN_CSV), every=6)
ODD_POWER = kinds.tables(shortened(POWER_CSV), every=6)


@pytest.mark.parametrize("content", ODD_TRAIN, ids=kinds.numbered(ODD_TRAIN))
def test_odd_files_of_training(content: bytes, tmp_path: Path) -> None:
    kinds.check_file(
        lambda path: tuning.TrainingTrace.from_csv(path, STANDIN[1]),
        tmp_path / "train.csv",
        content,
        strange=r"target_epoch\.inf",
    )


@pytest.mark.parametrize("content", ODD_POWER, ids=kinds.numbered(ODD_POWER))
def test_odd_files_of_power(content: bytes, tmp_path: Path) -> None:
    kinds.check_file(
        lambda path: tuning.TrainingTrace.from_csv(STANDIN[0], path),
        tmp_path / "power.csv",
        content,
        strange=r"target_epoch\.inf",
    )


# ---------------------------------------------------------------- what is public within


TRAINING = Training(
    network="mlp", batch_size=8, rng=1, learning_rate=0.1, max_epochs=1, targets=(0.9,)
)
DESCRIPTIONS: list[Any] = [
    tuning.PUBLISHED["squad"],
    SLICE,
    tuning.simulate(**SIMULATED).experiment,
    NOISE,
    MODEL,
    JUMPY,
    JUMPY.tiers[0],
    CapModel(),
    Grid(),
    TRAINING,
    live.LiveJob(command=("train",)),
]
STEPS = steps_of(JUMPY)
PLACES = [(1, 1), (1, 2)]
FUNCTIONS: dict[Callable[..., Any], dict[str, Any]] = {
    power_limits.profile_limits: {"run_slice": lambda _: SLICE, "power_limits_w": []},
    goodput.fit: {"frame": STEPS},
    goodput.measurements: {"frame": STEPS},
    goodput.cross_validate: {"frame": STEPS.head(12), "folds": 2},
    goodput.speedups: {"model": MODEL, "allocations": PLACES, "max_batch_size": 256},
    goodput.surface: {
        "model": MODEL,
        "allocations": PLACES,
        "max_batch_size": 256,
        "atomic_bsz_range": (8, 128),
    },
    goodput.load: {"source": "pollux-osdi21", "workload": "cifar10"},
    MODEL.optimize: {"num_nodes": 1, "num_gpus": 2, "max_batch_size": 256},
    JUMPY.throughput: {"num_nodes": 1, "num_gpus": 2, "atomic_bsz": 32},
}

SLOW = {goodput.load, goodput.cross_validate, goodput.fit}


@pytest.mark.parametrize("valid", DESCRIPTIONS, ids=lambda value: type(value).__name__)
@pytest.mark.filterwarnings("ignore")
def test_fields(valid: Any) -> None:
    kinds.check_fields(valid)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda value: value.__qualname__)
@pytest.mark.filterwarnings("ignore")
def test_arguments(function: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = kinds.WRONG[:: 3 if function in SLOW else 1]
    kinds.check_arguments(function, FUNCTIONS[function], wrong=wrong)


def test_the_known_raw_error_is_one_sentence() -> None:
    with pytest.raises(LabkitError, match=r"tuning\.simulate: job must be a Job; got 'text'"):
        tuning.simulate(job="text")
