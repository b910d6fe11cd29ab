"""Write the stand-in for Pollux's traces of one workload: a model of ours, no measurement.

    python data/profiles/make_pollux_standin.py

rewrites standin_pollux_*.csv beside this script; POLLUX_STANDIN.md says what the model is. There
is no random generator in it: the spread is a fixed sequence of normal quantiles, so every machine
writes the same bytes.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from pathlib import Path
from statistics import NormalDist

ATOMIC_SIZES = (32, 64, 128, 256, 512, 1024)
LARGEST_BATCH = 4096
BASE_S, PER_EXAMPLE_S = 0.02, 0.0005
"""Gradient of m examples on one GPU: BASE_S + PER_EXAMPLE_S·m."""
WAIT_PER_DOUBLING = 0.03
SYNC_S = {1: (0.01, 0.0), 2: (0.08, 0.02), 3: (0.1, 0.02)}
"""By nodes (3 and more alike): base, and what each doubling of GPUs adds."""
OVERLAP = 2.0
SPREAD = 0.04
OWN_S = 0.0005
"""What one GPU alone reports as synchronisation."""

INIT_BATCH_SIZE, BATCH_SIZES = 128, (128, 256, 512, 1024, 2048, 4096)
NUM_EPOCHS, STEPS_PER_EPOCH = 40, 400
FIRST_NOISE_SCALE, LAST_NOISE_SCALE = 150.0, 12000.0
FIRST_GRAD_SQR, LAST_GRAD_SQR = 4.0, 0.1
BEST_METRIC, EPOCHS_TO_LEARN = 0.93, 8.0

HEADER = """\
# STAND-IN, NOT A MEASUREMENT. Written by data/profiles/make_pollux_standin.py from the model in
# data/profiles/POLLUX_STANDIN.md. Columns as in the published artifact of Pollux (OSDI'21).
"""


class _Spread:
    """Normal quantiles at the fractional parts of multiples of the golden ratio, in turn."""

    def __init__(self) -> None:
        self.count = 0

    def factor(self) -> float:
        self.count += 1
        share = (self.count * (math.sqrt(5) - 1) / 2) % 1
        return math.exp(SPREAD * NormalDist().inv_cdf(share))


def step_s(nodes: int, gpus: int, size: int) -> tuple[float, float]:
    """Step time and the part of it beyond the gradient, without spread."""
    grad = BASE_S + PER_EXAMPLE_S * size
    if gpus == 1:
        return grad + OWN_S, OWN_S
    base, more = SYNC_S[min(nodes, 3)]
    sync = base + more * math.log2(gpus / max(nodes, 2)) if nodes > 1 else base
    last = grad * (1 + WAIT_PER_DOUBLING * math.log2(gpus))
    step = (last**OVERLAP + sync**OVERLAP) ** (1 / OVERLAP)
    return step, step - grad


def placements() -> list[str]:
    """One to four GPUs on each of one to four nodes; of unlike nodes also in the other order."""
    names = []
    for nodes in range(1, 5):
        for digits in combinations_with_replacement("1234", nodes):
            name = "".join(digits)
            names += [name] if name == name[::-1] else [name, name[::-1]]
    return names


def rows_of_steps(places: list[tuple[str, int, int]], spread: _Spread) -> list[str]:
    rows = []
    for name, nodes, gpus in places:
        for size in ATOMIC_SIZES:
            if gpus * size <= LARGEST_BATCH:
                step, sync = step_s(nodes, gpus, size)
                factor = spread.factor()
                rows.append(f"{name},{size},{factor * step:.5f},{factor * sync:.5f}")
    return rows


def rows_of_run(batch_size: int) -> list[str]:
    """Epochs of the initial size's progress, in as many steps as the gain leaves of them."""
    rows, iteration = [], 0.0
    for epoch in range(1, NUM_EPOCHS + 1):
        share = (epoch - 1) / (NUM_EPOCHS - 1)
        noise = FIRST_NOISE_SCALE * (LAST_NOISE_SCALE / FIRST_NOISE_SCALE) ** share
        grad_sqr = FIRST_GRAD_SQR * (LAST_GRAD_SQR / FIRST_GRAD_SQR) ** share
        gain = (noise / INIT_BATCH_SIZE + 1) / (noise / batch_size + 1)
        iteration += STEPS_PER_EPOCH / gain
        metric = BEST_METRIC * (1 - math.exp(-epoch / EPOCHS_TO_LEARN))
        rows.append(
            f"{epoch * STEPS_PER_EPOCH},{round(iteration)},{metric:.4f},{grad_sqr:.6g},"
            f"{grad_sqr * noise / INIT_BATCH_SIZE:.6g}"
        )
    return rows


def files() -> dict[str, str]:
    """Name and text of every file."""
    spread = _Spread()
    named = [(name, len(name), sum(map(int, name))) for name in placements()]
    grown = [
        (f"{nodes},{each * nodes}", nodes, each * nodes)
        for nodes in (6, 8, 12, 16)
        for each in (1, 2, 4)
    ]
    tables = {
        "placements": ["placement,local_bsz,step_time,sync_time", *rows_of_steps(named, spread)],
        "scalability": [
            "num_nodes,num_replicas,local_bsz,step_time,sync_time",
            *rows_of_steps(grown, spread),
        ],
    }
    for size in BATCH_SIZES:
        header = "progress,iteration,metric,grad_sqr,grad_var"
        tables[f"validation-{size}"] = [header, *rows_of_run(size)]
    return {
        f"standin_pollux_{name}.csv": HEADER + "\n".join(rows) + "\n"
        for name, rows in tables.items()
    }


if __name__ == "__main__":
    for file_name, text in files().items():
        (Path(__file__).parent / file_name).write_text(text, encoding="utf-8")
