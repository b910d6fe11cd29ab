"""Write the stand-in for the Zeus traces: a model of ours, no measurement (see ZEUS_STANDIN.md).

    python data/profiles/make_zeus_standin.py

rewrites standin_v100_power.csv and standin_train.csv beside this script. There is no random
generator in it: the spread between runs is a fixed set of normal quantiles, so every machine
writes the same bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

POWER_LIMITS_W = (100, 125, 150, 175, 200, 225, 250)
STATIC_POWER_W = 70.0
"""Drawn whenever a kernel is resident, whatever the clock."""
LOWEST_CLOCK = 0.35
NUM_RUNS = 5
LONGEST_RUN_EPOCHS = 300
"""No run is followed further: a target not met by then is never met."""

HEADER = """\
# STAND-IN, NOT A MEASUREMENT. Written by data/profiles/make_zeus_standin.py from the model in
# data/profiles/ZEUS_STANDIN.md. Columns as in the published trace of Zeus (NSDI'23).
"""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training job of the model; the symbols are those of ZEUS_STANDIN.md."""

    dataset: str
    network: str
    optimizer: str
    batch_sizes: tuple[int, ...]
    learning_rate: float
    """At the smallest batch size; grows with its square root."""
    num_samples: int
    sample_s: float
    step_s: float
    dynamic_power_w: float
    saturation: float
    memory_share: float
    epochs: float
    critical_batch_size: float
    smallest_useful: float
    spread: float
    targets: tuple[tuple[float, float, float], ...]
    """(metric, difficulty, largest batch size that generalises to it), easiest first."""


WORKLOADS = (
    Workload(
        dataset="cifar100",
        network="shufflenetv2",
        optimizer="adadelta",
        batch_sizes=(32, 64, 128, 256, 512, 1024, 2048, 4096),
        learning_rate=0.1,
        num_samples=50_000,
        sample_s=1.5e-4,
        step_s=0.02,
        dynamic_power_w=150,
        saturation=300,
        memory_share=0.5,
        epochs=15,
        critical_batch_size=300,
        smallest_useful=4,
        spread=0.09,
        targets=((0.4, 0.25, 4096), (0.5, 0.5, 4096), (0.6, 1.0, 2048), (0.65, 1.5, 256)),
    ),
    Workload(
        dataset="imagenet",
        network="resnet50",
        optimizer="adadelta",
        batch_sizes=(64, 128, 256, 360),
        learning_rate=0.1,
        num_samples=1_281_167,
        sample_s=2.6e-3,
        step_s=0.01,
        dynamic_power_w=185,
        saturation=12,
        memory_share=0.25,
        epochs=19,
        critical_batch_size=4000,
        smallest_useful=40,
        spread=0.06,
        targets=((0.5, 0.5, 4096), (0.6, 0.8, 4096), (0.65, 1.0, 4096), (0.7, 1.6, 256)),
    ),
    Workload(
        dataset="squad",
        network="bert_base_uncased",
        optimizer="adamw",
        batch_sizes=(8, 16, 32, 56),
        learning_rate=2.4e-6,
        num_samples=88_000,
        sample_s=1.9e-2,
        step_s=0.02,
        dynamic_power_w=190,
        saturation=1,
        memory_share=0.3,
        epochs=3.4,
        critical_batch_size=150,
        smallest_useful=0.5,
        spread=0.08,
        targets=((83.0, 0.7, 64), (84.0, 1.0, 64), (85.0, 1.2, 40)),
    ),
    Workload(
        dataset="librispeech",
        network="deepspeech2",
        optimizer="adamw",
        batch_sizes=(8, 16, 32, 48, 64, 96, 128, 192),
        learning_rate=5.3e-5,
        num_samples=281_000,
        sample_s=1.6e-2,
        step_s=0.35,
        dynamic_power_w=150,
        saturation=14,
        memory_share=0.6,
        epochs=6,
        critical_batch_size=240,
        smallest_useful=1,
        spread=0.06,
        targets=((60.0, 0.5, 512), (50.0, 0.7, 512), (40.0, 1.0, 256), (35.0, 1.4, 80)),
    ),
    Workload(
        dataset="movielens-1m",
        network="ncf",
        optimizer="adam",
        batch_sizes=(64, 256, 1024, 4096, 16384),
        learning_rate=5e-4,
        num_samples=5_000_000,
        sample_s=1.2e-6,
        step_s=4e-3,
        dynamic_power_w=20,
        saturation=2000,
        memory_share=0.9,
        epochs=4,
        critical_batch_size=60_000,
        smallest_useful=120,
        spread=0.12,
        targets=((0.375, 0.5, 65536), (0.4, 0.8, 65536), (0.41, 1.0, 65536), (0.42, 1.6, 2048)),
    ),
    Workload(
        dataset="sentiment140",
        network="bert_base_uncased",
        optimizer="adamw",
        batch_sizes=(8, 16, 32, 64, 128),
        learning_rate=1e-7,
        num_samples=1_600_000,
        sample_s=2.5e-3,
        step_s=0.015,
        dynamic_power_w=188,
        saturation=4,
        memory_share=0.3,
        epochs=2.4,
        critical_batch_size=900,
        smallest_useful=0.5,
        spread=0.02,
        targets=((0.82, 0.5, 256), (0.84, 1.0, 256), (0.85, 1.5, 48)),
    ),
)


def clock(workload: Workload, batch_size: int, power_limit_w: float) -> float:
    """Relative clock, 0.35 to 1, at which the power stays within the limit."""
    dynamic_w = workload.dynamic_power_w * utilisation(workload, batch_size)
    room = max(power_limit_w - STATIC_POWER_W, 0.0) / dynamic_w
    return min(1.0, max(LOWEST_CLOCK, room ** (1 / 3)))


def utilisation(workload: Workload, batch_size: int) -> float:
    return batch_size / (batch_size + workload.saturation)


def epoch_time_s(workload: Workload, batch_size: int, power_limit_w: float) -> float:
    """Steps of a fixed overhead, work that slows with the clock and work bound by memory."""
    speed = clock(workload, batch_size, power_limit_w)
    share = workload.memory_share
    sample_s = workload.sample_s * ((1 - share) / speed + share)
    return math.ceil(workload.num_samples / batch_size) * (workload.step_s + batch_size * sample_s)


def average_power_w(workload: Workload, batch_size: int, power_limit_w: float) -> float:
    speed = clock(workload, batch_size, power_limit_w)
    dynamic_w = workload.dynamic_power_w * utilisation(workload, batch_size)
    return STATIC_POWER_W + dynamic_w * speed**3


def epochs_to_target(workload: Workload, batch_size: int, difficulty: float, run: int) -> float:
    """Epochs of run 1..5: gradient noise at large batches, unstable steps at small ones."""
    noise = 1 + batch_size / workload.critical_batch_size + workload.smallest_useful / batch_size
    order = (run * 2 + workload.batch_sizes.index(batch_size)) % NUM_RUNS
    quantile = NormalDist().inv_cdf((order + 0.5) / NUM_RUNS)
    return workload.epochs * difficulty * noise * math.exp(workload.spread * quantile)


def power_csv() -> str:
    lines = ["dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"]
    for w in WORKLOADS:
        for batch_size in w.batch_sizes:
            for limit_w in POWER_LIMITS_W:
                time_s = epoch_time_s(w, batch_size, limit_w)
                power_w = average_power_w(w, batch_size, limit_w)
                lines.append(
                    f"{w.dataset},{w.network},{batch_size},{w.optimizer},{limit_w},"
                    f"{time_s:.6g},{power_w:.6g}"
                )
    return HEADER + "\n".join(lines) + "\n"


def train_csv() -> str:
    lines = ["dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch"]
    for w in WORKLOADS:
        for batch_size in w.batch_sizes:
            rate = w.learning_rate * math.sqrt(batch_size / w.batch_sizes[0])
            for run in range(1, NUM_RUNS + 1):
                for metric, difficulty, largest in w.targets:
                    epochs = epochs_to_target(w, batch_size, difficulty, run)
                    never = batch_size > largest or epochs > LONGEST_RUN_EPOCHS
                    lines.append(
                        f"{w.dataset},{w.network},{batch_size},{w.optimizer},{rate:.3g},{run},"
                        f"{metric:g},{'' if never else math.ceil(epochs)}"
                    )
    return HEADER + "\n".join(lines) + "\n"


def files() -> dict[str, str]:
    """The stand-in files by name, as text."""
    return {"standin_v100_power.csv": power_csv(), "standin_train.csv": train_csv()}


if __name__ == "__main__":
    for name, text in files().items():
        path = Path(__file__).with_name(name)
        path.write_text(text, encoding="utf-8", newline="\n")
        print(f"wrote {path.name}: {text.count(chr(10))} lines")
