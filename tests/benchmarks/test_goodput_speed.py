"""Fitting step times and picking a batch: ours beside Pollux's own library, adaptdl, in one run.

Prints CPU seconds and their ratio, and what each predicts of steps it has not seen. ``make bench``
runs it; nothing here asserts a time. adaptdl asks for old versions of much that its goodput module
does not use: ``pip install --no-deps adaptdl autograd`` is enough.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd
import pytest

from labkit.tuning import goodput
from labkit.tuning.goodput import step_fit
from tests.tuning.test_goodput import JUMPY, published_tables, steps_of

WORKLOADS = ["made up", "cifar10"]
PLACE = ["num_nodes", "num_gpus", "atomic_bsz"]
FOLDS = 2  # the peer takes seconds a fit


def measured(workload: str) -> pd.DataFrame:
    if workload == "made up":
        return goodput.measurements(steps_of(JUMPY, spread=0.05))
    return published_tables(workload).steps


def fit_of_peer(peer: Any, table: pd.DataFrame) -> Any:
    columns = [*PLACE, "compute_time_s", "step_time_s"]
    return peer.fit_perf_params(*(table[column].to_numpy() for column in columns))


def left_out_error_of_peer(peer: Any, table: pd.DataFrame) -> float:
    """Median relative error of the peer's predictions of rows left out as ours are."""
    part = np.random.default_rng(0).permutation(len(table)) % FOLDS
    errors = []
    for fold in range(FOLDS):
        rest = table[part != fold]
        out = table[part == fold]
        model = peer.GoodputFunction(fit_of_peer(peer, rest), (1.0, 1.0), 1)
        nodes, gpus, size = (out[column].to_numpy() for column in PLACE)
        predicted_s = gpus * size / model.throughput(nodes, gpus, size, 0)
        errors.append(np.abs(predicted_s / out["step_time_s"].to_numpy() - 1))
    return float(np.median(np.concatenate(errors)))


@pytest.mark.filterwarnings("ignore")  # autograd's and scipy's, of overflows on the peer's way
@pytest.mark.parametrize("workload", WORKLOADS)
def test_fit_beside_adaptdl(benchmark: Any, workload: str) -> None:
    peer = pytest.importorskip("adaptdl.goodput")
    table = measured(workload)
    start = time.process_time()
    fit_of_peer(peer, table)
    peer_s = time.process_time() - start

    start = time.process_time()
    benchmark.pedantic(step_fit.fit, (table,), rounds=1, iterations=1)
    ours_s = time.process_time() - start
    errors = step_fit.cross_validate(table, by="row", folds=FOLDS)["relative_error"].abs()
    ours = float(errors.median())
    theirs = left_out_error_of_peer(peer, table)
    assert ours < theirs
    benchmark.extra_info |= {
        "ours_cpu_s": round(ours_s, 3),
        "adaptdl_cpu_s": round(peer_s, 3),
        "ours_left_out_median": round(ours, 4),
        "adaptdl_left_out_median": round(theirs, 4),
    }
    print(
        f"\n{workload}, {len(table)} steps: {ours_s:.3f} CPU s, adaptdl {peer_s:.3f}: "
        f"{peer_s / ours_s:.0f} times faster; left-out error {ours:.1%}, adaptdl {theirs:.1%}"
    )


@pytest.mark.parametrize("accumulation", [False, True])
def test_optimum_beside_adaptdl(
    benchmark: Any, accumulation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both search the same model, linear and as adaptdl has it; ours may not find less."""
    peer = pytest.importorskip("adaptdl.goodput")
    if not hasattr(np, "int"):  # the peer still names a type that NumPy dropped
        monkeypatch.setattr(np, "int", int, raising=False)
    init = 64
    noise = 900.0
    limits = (8, 256)
    parameters = (0.03, 0.002, 0.11, 0.004, 0.02, 0.003, 1.8)
    theirs = peer.GoodputFunction(peer.PerfParams(*parameters), (1.0, noise / init), init)
    ours = goodput.GoodputModel(
        step_times=_linear(*parameters), init_batch_size=init, noise_scale=noise
    )
    nodes = np.arange(1, 17)
    given = (nodes, 4 * nodes, 8192, limits, accumulation)
    start = time.process_time()
    for _ in range(20):
        best_of_peer = theirs.optimize(*given)
    peer_s = (time.process_time() - start) / 20
    start = time.process_time()
    for _ in range(20):
        ours.optimize(*given)
    ours_s = (time.process_time() - start) / 20
    best = benchmark(ours.optimize, *given)
    assert (best.goodput >= best_of_peer[0] * (1 - 1e-9)).all()
    gain = float(np.max(best.goodput / np.maximum(best_of_peer[0], 1e-9)) - 1)
    benchmark.extra_info |= {"ours_cpu_s": round(ours_s, 5), "adaptdl_cpu_s": round(peer_s, 5)}
    print(
        f"\n16 allocations{', accumulation' if accumulation else ''}: {ours_s * 1e3:.2f} CPU ms, "
        f"adaptdl {peer_s * 1e3:.2f} for its 50 sizes, ratio {ours_s / peer_s:.1f}; at most "
        f"{gain:.2%} more goodput"
    )


def _linear(*parameters: float) -> goodput.StepTimes:
    base_s, per_example_s, across, more_across, within, more_within, overlap = parameters
    return goodput.StepTimes(
        base_s=base_s,
        per_example_s=per_example_s,
        tiers=(
            goodput.SyncTier(from_nodes=1, base_s=within, per_gpu_s=more_within),
            goodput.SyncTier(from_nodes=2, base_s=across, per_gpu_s=more_across),
        ),
        overlap=overlap,
    )
