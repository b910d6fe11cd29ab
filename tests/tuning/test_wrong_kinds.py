"""Every field of every public description and every argument of every public function, fed with
every wrong kind: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from labkit import tuning
from labkit.errors import LabkitError
from labkit.tuning import goodput, large_batch, live, noise
from labkit.tuning.configurations import power_limits
from labkit.tuning.recording.capping import CapModel
from labkit.tuning.recording.record import Grid
from labkit.tuning.recording.training import Training
from tests.tuning.conftest import STANDIN, random_job
from tests.tuning.test_goodput import JUMPY, steps_of
from tests.wrong_kinds import WRONG, problem, problems

JOB = random_job(3, num_sizes=3, num_limits=2, reliable=True)
TRACE = tuning.TrainingTrace.from_csv(*STANDIN, gpu="v100")
SLICE = power_limits.Slice(power_limit_w=100.0, time_s=2.0, energy_j=150.0)
MODEL = goodput.GoodputModel(step_times=JUMPY, init_batch_size=64, noise_scale=900.0)
POWER = tuning.GpuPower.from_job(JOB)
PROGRESS = tuning.ModelledProgress(init_batch_size=8, phases=((50.0, 100.0),))
NOISE = noise.GradientNoise(grad_sqr=2.0, covariance_trace=64.0)

TRAINING = Training(
    network="mlp", batch_size=8, rng=1, learning_rate=0.1, max_epochs=1, targets=(0.9,)
)
DESCRIPTIONS: list[Any] = [
    JOB,
    TRACE,
    tuning.PUBLISHED["squad"],
    SLICE,
    tuning.Fixed(batch=0, power=0),
    tuning.GridSearch(),
    tuning.RandomSearch(),
    tuning.Halving(),
    tuning.EpsilonGreedy(),
    tuning.LowerConfidenceBound(),
    tuning.Thompson(),
    tuning.Zeus(),
    tuning.CostCurve(),
    tuning.simulate(JOB, seeds=[0], recurrences=2, policy="default").experiment,
    POWER,
    tuning.HostPower(),
    PROGRESS,
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
    tuning.best_power_limits: {"job": JOB},
    tuning.convergence: {"job": JOB},
    tuning.cost_j: {"energy_j": 5.0, "time_s": 2.0, "eta": 0.5, "max_power_w": 100.0},
    tuning.default_choice: {"job": JOB},
    tuning.epoch_cost_j: {"job": JOB, "eta": 0.5},
    tuning.load: {"source": "digits"},
    tuning.optimum: {"job": JOB},
    tuning.outcomes: {"job": JOB},
    tuning.savings: {"traces": [TRACE], "policies": ["default"], "seeds": [0]},
    tuning.select_limits: {"time_s": [2.0, 1.0], "energy_j": [3.0, 4.0], "max_power_w": 9.0},
    tuning.simulate: {"job": JOB, "policy": "default", "seeds": [0], "recurrences": 4},
    tuning.sweep: {"jobs": [JOB], "policies": ["default"], "seeds": [0]},
    tuning.choose: {
        "step_times": JUMPY,
        "progress": PROGRESS,
        "power": POWER,
        "allocations": [(1, 1)],
        "batch_sizes": [8],
        "atomic_bsz_range": (1, 8),
    },
    TRACE.job: {"name": "squad"},
    TRACE.targets: {"name": "squad"},
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
    large_batch.efficiency: {"batch_size": [64], "init_batch_size": 32.0, "noise_scale": 9.0},
    large_batch.learning_rate: {
        "rule": "linear",
        "batch_size": [64],
        "init_batch_size": 32.0,
        "init_learning_rate": 0.1,
    },
    noise.from_two_batches: {
        "small_sqr": 3.0,
        "small_batch": 8.0,
        "large_sqr": 2.0,
        "large_batch": 16.0,
    },
    noise.from_replicas: {"gradients": [[1.0, 2.0], [2.0, 1.0]], "examples_each": 4.0},
    noise.average: {"estimates": [NOISE]},
}

SLOW = {goodput.load, goodput.cross_validate, goodput.fit, tuning.savings}


@pytest.mark.parametrize("valid", DESCRIPTIONS, ids=lambda value: type(value).__name__)
@pytest.mark.filterwarnings("ignore")
def test_fields(valid: Any) -> None:
    given = {field.name: getattr(valid, field.name) for field in fields(valid) if field.init}
    assert problems(type(valid), given, given, WRONG) == []
    assert problem(lambda: type(valid)(**given, nonsense=1)) == ""
    assert problem(lambda: type(valid)("text", 5, None)) == ""


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda value: value.__qualname__)
@pytest.mark.filterwarnings("ignore")
def test_arguments(function: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    given = FUNCTIONS[function]
    names = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    values = WRONG[:: 3 if function in SLOW else 1]
    assert problems(function, given, names, values) == []
    assert problem(lambda: function(**given, nonsense=1)) == ""


def test_the_known_raw_error_is_one_sentence() -> None:
    with pytest.raises(LabkitError, match=r"tuning\.simulate: job must be a Job; got 'text'"):
        tuning.simulate(job="text")
