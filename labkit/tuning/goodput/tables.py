"""Published measurements of goodput: step times by placement, and training runs by batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from labkit.errors import UsageError, not_among
from labkit.kit.describe import Share, checked
from labkit.tuning.goodput.step_fit import measurements

if TYPE_CHECKING:
    from labkit.datasets import Source

WORKLOADS: dict[str, tuple[str, bool]] = {
    "bert": ("BERT, SQuAD", True),
    "cifar10": ("ResNet-18, CIFAR-10", True),
    "deepspeech2": ("DeepSpeech2, CMU-ARCTIC", False),
    "imagenet": ("ResNet-50, ImageNet", True),
    "ncf": ("NeuMF, MovieLens", True),
    "yolov3": ("YOLOv3, PASCAL-VOC", False),
}
"""Title of each workload of the data set, and whether its metric rises as it learns.

The metric of yolov3 in the files is a loss, that of deepspeech2 the word error rate.

Source: Pollux Table 1.
"""

_FOLDER = "simulator/traces/{workload}/"


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What was measured of one workload; a stand-in was fitted to what was measured."""

    workload: str
    steps: pd.DataFrame
    """As :func:`step_fit.measurements`; allocations beyond four nodes have no digits."""
    runs: pd.DataFrame
    """One row an epoch: batch_size, progress (steps at the initial size it was worth), iteration,
    metric, grad_sqr and grad_var (of a gradient of the initial size), noise_scale (examples)."""
    standin: str = ""
    """Why the files are ours in place of the published ones; empty where they are as published."""

    def __repr__(self) -> str:
        return (
            f"Tables({self.workload!r}{', stand-in' if self.standin else ''}: {len(self.steps):,} "
            f"step times, batch sizes {self.init_batch_size} to {self.max_batch_size})"
        )

    @property
    def title(self) -> str:
        """The network and its data."""
        return WORKLOADS[self.workload][0]

    @property
    def init_batch_size(self) -> int:
        """The batch size the workload was tuned for: the smallest one trained with."""
        return int(self.runs["batch_size"].min())

    @property
    def max_batch_size(self) -> int:
        """The largest batch size trained with."""
        return int(self.runs["batch_size"].max())

    @property
    def atomic_bsz_range(self) -> tuple[int, int]:
        """Least and most examples that were measured on one GPU."""
        return int(self.steps["atomic_bsz"].min()), int(self.steps["atomic_bsz"].max())

    @checked
    def noise_scale(self, progress_fraction: Share) -> float:
        """φ in examples after this share (0 to 1) of the run at the initial batch size.

        It is interpolated between epochs, on a logarithmic scale; an epoch whose estimate is
        infinite (no gradient left of the noise) is left out.
        """
        run = self.runs[self.runs["batch_size"] == self.init_batch_size]
        run = run[np.isfinite(run["noise_scale"]) & (run["noise_scale"] > 0)]
        share = run["progress"] / run["progress"].max()
        log_scale = np.log(run["noise_scale"].to_numpy())
        return float(np.exp(np.interp(progress_fraction, share, log_scale)))

    @checked
    def initial_run(self, metric: float | None = None) -> pd.DataFrame:
        """The run at the initial batch size, up to the epoch that first reaches ``metric``.

        Raises:
            UsageError: no epoch reaches it.
        """
        run = self.runs[self.runs["batch_size"] == self.init_batch_size]
        if metric is not None:
            rises = WORKLOADS[self.workload][1]
            there = run["metric"] >= metric if rises else run["metric"] <= metric
            if not there.any():
                best = run["metric"].max() if rises else run["metric"].min()
                raise UsageError(
                    f"{self.workload}: metric {metric:g} was not reached with the initial batch "
                    f"size; the best of that run is {best:g}"
                )
            run = run.iloc[: int(there.argmax()) + 1]
        return run.reset_index(drop=True)


@checked
def load(source: str | Source = "pollux-osdi21", workload: str = "cifar10") -> Tables:
    """Load one workload of a data set laid out as ``pollux-osdi21``.

    Args:
        source: a data set's name, or one already opened (``paper.data(...)``).
        workload: a key of :data:`WORKLOADS`.

    Raises:
        UsageError: the data set holds no step times, or there is no such workload.
    """
    if workload not in WORKLOADS:
        raise not_among("workload", workload, WORKLOADS)
    folder = _FOLDER.format(workload=workload)
    if isinstance(source, str):
        from labkit import datasets
        from labkit.datasets.registry import load_registry

        known = [f.path for f in load_registry().dataset(source).files]
        files = [path for path in known if path.startswith(folder)]
        if not files:
            raise UsageError(f"dataset {source!r} holds no step times; pollux-osdi21 does")
        source = datasets.source(source, files)
    steps = [
        measurements(source.frame(folder + name)) for name in ("placements.csv", "scalability.csv")
    ]
    names = sorted(f for f in source.files if f.startswith(folder + "validation-"))
    sizes = [int(name.rsplit("-", 1)[1].removesuffix(".csv")) for name in names]
    runs = [source.frame(name).assign(batch_size=b) for name, b in zip(names, sizes, strict=True)]
    table = pd.concat(runs, ignore_index=True)
    init = table["batch_size"].min()
    with np.errstate(divide="ignore"):
        table["noise_scale"] = init * table["grad_var"].to_numpy() / table["grad_sqr"].to_numpy()
    table = table.sort_values(["batch_size", "iteration"], ignore_index=True)
    return Tables(
        workload=workload,
        steps=pd.concat(steps, ignore_index=True),
        runs=table,
        standin=source.reason if source.is_standin else "",
    )
