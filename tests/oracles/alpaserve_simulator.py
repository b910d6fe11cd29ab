"""AlpaServe's own compiled simulator, an oracle for ours: run once, its answers stored.

``python -m tests.oracles.alpaserve_simulator FOLDER`` takes one function out of a checkout of
https://github.com/alpa-projects/mms, runs it on requests of ours and writes
``stored/alpaserve_latencies.json``: for each case a hash of all end times in nanoseconds, the mean
latency and the share of requests in time. The repository has no licence; nothing of it is kept.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from labkit import serving

STORED = Path(__file__).parent / "stored" / "alpaserve_latencies.json"
COMMIT = "dba47b18e95f037aadc8aff336e2e7e337010495"
FIXED_S = 0.011
"""What its simulator adds to every answer."""
MIX = {"even": (1, 1), "skew": (2, 8)}


def single(value: float) -> float:
    """The nearest number of single precision, which its simulator keeps latencies in."""
    return float(np.float32(value))


MODELS = tuple(
    serving.ServedModel(name=f"m{i}", latency_s=single(0.4), memory_bytes=13e9) for i in range(8)
)


def cases() -> dict[str, tuple[serving.Requests, tuple[serving.Group, ...]]]:
    """The paper's two models on two GPUs, and eight on four groups with an objective."""
    alone = tuple(serving.Group(models=(f"m{i}",)) for i in range(2))
    split = (serving.Group(models=("m0", "m1"), stages=2),)
    chosen: dict[str, tuple[serving.Requests, tuple[serving.Group, ...]]] = {}
    for mix, shares in MIX.items():
        for cv in (1, 3):
            requests = stream([3 * share / sum(shares) for share in shares], cv, 20_000)
            chosen |= {
                f"{mix}-{cv}-replication": (requests, alone),
                f"{mix}-{cv}-pipeline": (requests, split),
            }
    busy = stream([1.0] * 8, 3, 5_000, slo_s=single(2.0))
    fours = tuple(
        serving.Group(models=tuple(f"m{i}" for i in range(8) if i % 4 != place), stages=2)
        for place in range(4)
    )
    return chosen | {"eight": (busy, fours)}


def stream(
    rates: list[float], cv: float, count: int, slo_s: float = float("inf")
) -> serving.Requests:
    return serving.merge_streams(
        [
            serving.generate(rate, int(count * rate), cv=cv, slo_s=slo_s, model=f"m{i}", rng=i)
            for i, rate in enumerate(rates)
        ]
    )


def digest(end_s: Any, per_s: float = 1e9) -> str:
    """A hash of times in whole nanoseconds, or other parts; -1 for a request that was dropped."""
    whole = np.rint(np.nan_to_num(np.asarray(end_s), nan=-1 / per_s) * per_s).astype("<i8")
    return hashlib.sha256(whole.tobytes()).hexdigest()


def theirs(folder: Path) -> Any:
    """Their function of requests, groups and latencies, compiled."""
    import numba

    text = (folder / "alpa_serve" / "simulator" / "controller.py").read_text()
    body = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == "simulate_requests_mixed"
    ]
    space: dict[str, Any] = {"np": np, "inf": 1e20, "numba": numba}
    exec(compile(ast.Module(body, []), "theirs", "exec"), space)  # the checkout's, on purpose
    return space["simulate_requests_mixed"]


def main(folder: Path) -> None:
    simulate = theirs(folder)
    stored = {}
    for name, (requests, groups) in cases().items():
        count = len(requests)
        order = [model.name for model in MODELS]
        hosts = np.full((len(order), len(groups)), -1, np.int32)
        for m, model in enumerate(order):
            mine = [place for place, group in enumerate(groups) if model in group.models]
            hosts[m, : len(mine)] = mine
        stages = np.array([group.stages for group in groups], np.int32)
        latency = np.zeros((len(order), len(groups), stages.max()), np.float32)
        for m, model in enumerate(MODELS):
            for g, group in enumerate(groups):
                latency[m, g, : group.stages] = model.latency_s / group.stages
        finish = np.empty(count)
        good = np.empty(count, bool)
        ids = np.array([order.index(model) for model in requests.model], np.int32)
        arrival = requests.column("arrival_s").copy()
        slo_s = requests.column("slo_s")
        slo = np.minimum(slo_s, 1e20).astype(np.float32)
        simulate(finish, good, arrival, ids, slo, hosts, stages, latency, count)
        end_s = np.where(good, finish, np.nan)
        stored[name] = {
            "sha256": digest(end_s),
            "attainment": float(good.mean()),
            "mean_latency_s": float(np.nanmean(end_s - arrival)),
        }
    origin = {"origin": "https://github.com/alpa-projects/mms", "commit": COMMIT}
    STORED.write_text(json.dumps(origin | {"cases": stored}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
