"""DAPPLE's published planner on random jobs, and the engine's search in that planner's own cost.

``python -m tests.oracles.dapple_planner PROGRAM`` runs the planner on :func:`random_jobs` and
writes ``stored/dapple_planner.json``. PROGRAM is the authors' Rust code (AlibabaPAI/DAPPLE, at
``COMMIT``), in which three things were changed, none of them in how it plans:

1. ``src/main.rs`` is ``dapple_planner.rs`` beside this file, which reads jobs and prints plans.
2. The bindings to Python are left out: ``pyo3``, ``src/input`` and ``src/api``.
3. Loops run one after the other (``iter`` for ``par_iter``), and ``OrderedFloat`` is four lines of
   our own, so that the program needs no other library.

Each device stands in a machine of its own, as ``Devices::new(n, 1..n)`` has it: then what crosses a
cut takes longer by the reader's number of devices alone, and their cost of an iteration adds up
over stages. For rp replicas of each of i pipelines, M = batch / rp microbatches, stages k to j:

    seconds = C / (rp M) + sum of a_k / (rp M B) + (M - 1) b + max over s of max(0, e_s - s b)
    b       = max of C_kj / (replicas M) and 2 a_k / (M B)
    e_s     = 2 (r - 1)/r W_s / 3e9

with B = 1e9 bytes/s to a single device and 3e9 to several. W_s is the weights of the stage and of
the layer after it: their index of a stage's last layer is that of the next one's first. Plans of
two stages (``compute_bipartition``) count a_k once in b.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labkit.planner.latency import Flush, Search
from labkit.planner.throughput import Stage

STORED = Path(__file__).parent / "stored" / "dapple_planner.json"
COMMIT = "fd75dcfbc6c73a7624b9fd9d8c3334e5d04bcd20"
NUM_JOBS = 60
ONE_BYTES_PER_S = 1e9
SEVERAL_BYTES_PER_S = 3e9


class Job(NamedTuple):
    """Layers, each with its seconds and bytes of a whole batch, and the devices."""

    devices: int
    batch: int
    compute_s: list[float]
    output_bytes: list[float]
    parameter_bytes: list[float]

    @property
    def line(self) -> str:
        """What the program reads."""
        values = [self.compute_s, self.output_bytes, self.parameter_bytes]
        texts = [" ".join(map(repr, each)) for each in values]
        return "|".join([f"{self.devices} {self.batch}", *texts])


def random_jobs(number: int = NUM_JOBS, seed: int = 32) -> list[Job]:
    """Layers of very different sizes; as many at least as devices, else the program panics."""
    rng = np.random.default_rng(seed)
    jobs = []
    for _ in range(number):
        devices = int(rng.integers(3, 17))
        layers = int(rng.integers(devices, devices + 17))
        jobs.append(
            Job(
                devices=devices,
                batch=int(devices * rng.integers(2, 17)),
                compute_s=rng.lognormal(0, 1, layers).round(4).tolist(),
                output_bytes=(10 ** rng.uniform(6, 9, layers)).round().tolist(),
                parameter_bytes=(10 ** rng.uniform(6, 9.5, layers)).round().tolist(),
            )
        )
    return jobs


def stages_cost(job: Job, rp: int, *, transfers_in_block: float = 2.0) -> Flush:
    """Their cost of every possible stage, as ``[replicas / rp - 1, k, j]``.

    Args:
        rp: replicas of each device of a pipeline.
        transfers_in_block: how often a transfer counts in a block.
    """
    size = len(job.compute_s) + 1
    microbatches = job.batch // rp
    replicas = rp * np.arange(1, job.devices // rp + 1)[:, None, None]
    before = np.concatenate([[0.0], np.cumsum(job.compute_s)])
    seconds = before[None, :] - before[:, None]
    reads = np.concatenate([[0.0], job.output_bytes[:-1], [0.0]])[None, :, None]
    rate = np.where(replicas == 1, ONE_BYTES_PER_S, SEVERAL_BYTES_PER_S)
    reading_s = reads / rate / microbatches
    weights = np.concatenate([[0.0], np.cumsum(job.parameter_bytes)])
    with_next = np.concatenate([weights[1:], weights[-1:]])  # their last layer is the next's first
    synced = with_next[None, :] - weights[:, None]
    possible = np.arange(size)[:, None] < np.arange(size)[None, :]
    work = seconds[None] / rp / microbatches + reading_s / rp
    block = np.maximum(seconds[None] / replicas / microbatches, transfers_in_block * reading_s)
    exchange = 2 * (replicas - 1) / replicas * synced[None] / SEVERAL_BYTES_PER_S
    return Flush(
        work_s=np.where(possible, work, np.inf),
        block_s=np.where(possible, block, np.inf),
        exchange_s=exchange,
        num_microbatches=microbatches,
        hidden=True,
    )


def priced(job: Job, answer: dict[str, Any]) -> float:
    """Seconds of an iteration of the program's plan, by the formula above."""
    starts = [stage[0] for stage in answer["stages"]]
    ends = [*starts[1:], len(job.compute_s)]
    two_stages = len(starts) == 2 and sum(s[2] for s in answer["stages"]) == job.devices
    ways = [2.0, 1.0] if two_stages and answer["rp"] == 1 else [2.0]
    slots = [stage[2] for stage in answer["stages"]]
    stages = list(map(Stage, starts, ends, slots))
    costs = [stages_cost(job, answer["rp"], transfers_in_block=w).cost_s(stages) for w in ways]
    return min(costs)


def best_s(job: Job) -> float:
    """The least seconds of an iteration in their cost, by the engine's exact search.

    1. All plans of two stages, as the program counts them.
    2. For each rp that the program tries, all stages; it knows those of least block only. Each
       search looks for plans that are better than the best so far.
    """
    best = np.inf
    single = stages_cost(job, 1, transfers_in_block=1.0)
    layers = len(job.compute_s)
    for first in range(1, job.devices):
        for cut in range(1, layers):
            halves = [Stage(0, cut, first), Stage(cut, layers, job.devices - first)]
            best = min(best, single.cost_s(halves))
    for rp in sorted({job.devices // slots for slots in range(2, job.devices + 1)}):
        search = Search(stages_cost(job, rp), 1e-9, [Stage(0, layers, 1)])
        search.cost_s = min(best, search.cost_s)
        search.run()
        best = min(best, search.cost_s)
    return float(best)


def main(program: str) -> None:
    """Run the program and store its plans."""
    jobs = random_jobs()
    lines = "\n".join(job.line for job in jobs)
    ran = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in ran.stderr.splitlines()]
    assert len(answers) == len(jobs)
    stored = {"repository": "AlibabaPAI/DAPPLE", "commit": COMMIT, "answers": answers}
    STORED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
