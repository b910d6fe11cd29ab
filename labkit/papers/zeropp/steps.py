"""A training step of a GPT on 384 V100s, modelled, by ZeRO-3, ZeRO++ and what could replace it.

    step = operations / rate of a GPU + bytes that leave a server / bandwidth of the server
         + what is sent inside servers

The memory engine counts operations and bytes, and its α–β model turns bytes into seconds. A
:class:`Method` says what the three collectives of a step send. :func:`straight_line` asks the
same formula of measured throughputs: step time against the time of a bit is a straight line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from labkit.memory import Batch, Cluster, Model, Parallel, Plan, Recipe
from labkit.memory.plans.throughput import throughput

GPUS = 384
GPUS_PER_SERVER = 16
"""The paper's DGX-2 servers, with NVLink inside."""

GPT_18B = Model.preset("megatron-18b")
"""The post's 18B: 40 layers of 6144 (DeepSpeed's ZeRO++ tutorial)."""
GPT_138B = GPT_18B.resized(num_layers=76, hidden=12288, heads=96)
"""A GPT as large as the post's 138B, whose shape is not published; the shape is ours."""


class Method(StrEnum):
    """What shards the states of a model, and what its three collectives send."""

    ZERO3 = "ZeRO-3"
    ZEROPP = "ZeRO++"
    WITHOUT_COPY = "without the second copy"
    COPY_ALONE = "the second copy alone"
    MICS = "MiCS"


_QUANTISED = (Method.ZEROPP, Method.WITHOUT_COPY)
_COPIED = (Method.ZEROPP, Method.COPY_ALONE)


def _group_of(model: Model) -> int:
    """GPUs of a group of MiCS: one server, or six where a server does not hold the states."""
    return GPUS_PER_SERVER if model.num_params < 32e9 else 6 * GPUS_PER_SERVER


def _fewest_samples(tokens: int, model: Model) -> int:
    """Samples of equal length, none longer than the positions that the model has learnt."""
    longest = model.positions or tokens
    fewest = -(-tokens // longest)
    return next(samples for samples in range(fewest, tokens + 1) if tokens % samples == 0)


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """How fast 384 V100s train a GPT, layers recomputed.

    The tokens of a GPU in a step are one sample, or as few as hold them: a GPT has learnt so many
    positions and no more.

    Attributes:
        gpu_flops_per_s: operations a second that a GPU sustains while it computes.
        tokens: of a GPU in a step.
        overlap: the collectives of the backward pass run beside its computing.
        line_share: what collectives obtain of a server's bandwidth.
    """

    gpu_flops_per_s: float
    tokens: int = 2048
    overlap: bool = False
    line_share: float = 1.0

    def rate_flops(self, method: Method, gbit_per_s: float, model: Model = GPT_18B) -> float:
        """Operations a second of one GPU, its waiting included.

        Args:
            method: how the GPUs share the states.
            gbit_per_s: of a server's network cards together, each way.
            model: what is trained.
        """
        cluster = Cluster.of_servers(
            self.gpu_flops_per_s,
            gbit_per_s=gbit_per_s * self.line_share,
            ranks_per_node=GPUS_PER_SERVER,
            overlap=self.overlap,
        )
        return throughput(self.plan(method, model), cluster).flops_per_s

    def plan(self, method: Method, model: Model = GPT_18B) -> Plan:
        """The job as the memory engine describes it."""
        parallel = Parallel(
            dp=GPUS,
            zero=3,
            secondary_group=GPUS_PER_SERVER if method in _COPIED else None,
            partition_group=_group_of(model) if method is Method.MICS else None,
        )
        recipe = Recipe.mixed_adam()
        if method in _QUANTISED:
            recipe = Recipe.mixed_adam(gather="int8", reduce="int4")
        samples = _fewest_samples(self.tokens, model)
        return Plan(
            model=model,
            parallel=parallel,
            recipe=recipe,
            batch=Batch(seq=self.tokens // samples, micro_batch=samples, recompute="full"),
        )

    def gain(self, method: Method, gbit_per_s: float, model: Model = GPT_18B) -> float:
        """Throughput over ZeRO-3's on the same network."""
        baseline = self.rate_flops(Method.ZERO3, gbit_per_s, model)
        return self.rate_flops(method, gbit_per_s, model) / baseline

    def parity(
        self, method: Method, model: Model = GPT_18B, *, slow: float = 200, fast: float = 800
    ) -> float:
        """Throughput on a slow network over ZeRO-3's on a fast one (both in Gbit/s)."""
        baseline = self.rate_flops(Method.ZERO3, fast, model)
        return self.rate_flops(method, slow, model) / baseline


def straight_line(gbit_per_s: Sequence[float], tflops: Sequence[float]) -> tuple[float, float]:
    """Slope and start of step time against the time of a bit, through measured throughputs.

    The step time is in seconds for 1,000 TFLOP of operations, the time of a bit in nanoseconds.
    The slope is then Gbit sent for 1,000 TFLOP that nothing hides, and 1,000 over the start is
    the rate (TFLOP/s) of a GPU that waits for no network.

    Args:
        gbit_per_s: bandwidths, two or more.
        tflops: throughput of a GPU (TFLOP/s) with each.

    >>> slope, start = straight_line([100, 200], [1000 / 30, 1000 / 25])
    >>> round(slope), round(start)
    (1000, 20)
    """
    bit_ns = 1 / np.asarray(gbit_per_s, dtype=float)
    step_s = 1000 / np.asarray(tflops, dtype=float)
    slope, start = np.polyfit(bit_ns, step_s, 1)
    return float(slope), float(start)
