"""Throughput of data parallelism on more and more GPUs, modelled.

An iteration's all-reduce takes a fixed time a step and its bytes' time on a link; part of it hides
behind the gradient, as Pollux models it, and everybody waits for the slowest GPU.

    T = (G^γ + R^γ)^(1/γ),    G = step · w(p),    R = tensors · hops · α + 2 (p - 1)/p · bytes / β

Source: Goyal et al. 2017, §4; overlap γ and waiting w: Qiao et al., "Pollux", OSDI 2021, §3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from labkit.hardware import Link
from labkit.kit.describe import Count, NonNegative, Positive, checked, description
from labkit.tuning.goodput.step_times import StepTimes


@description(slots=True)
class Job:
    """A training on servers of several GPUs.

    Attributes:
        step_s: seconds of an iteration on one server.
        gradient_bytes: that an iteration sums up.
        num_tensors: in which they are sent, one all-reduce each.
        gpus_per_server: of every server.
    """

    step_s: Positive
    gradient_bytes: NonNegative
    num_tensors: Count
    gpus_per_server: Count = 8


@checked
def efficiencies(
    job: Job, link: Link, fitted: StepTimes, num_servers: Sequence[Count]
) -> pd.DataFrame:
    """Throughput over that of as many single servers.

    Args:
        job: what is trained.
        link: between servers.
        fitted: how much of an all-reduce hides behind the gradient, and how long one waits for the
            slowest of several GPUs.
        num_servers: each at least 2.

    Returns:
        A row a number of servers: gpus; ring; halving and doubling; no overlap (of halving and
        doubling); no traffic (waiting alone).
    """
    servers = np.array(num_servers)
    gpus = job.gpus_per_server * servers
    wait = 1 + fitted.wait_per_doubling * np.log2(gpus)
    wait_alone = 1 + fitted.wait_per_doubling * np.log2(job.gpus_per_server)
    gradient_s = job.step_s * wait / wait_alone
    bytes_s = 2 * (servers - 1) / servers * job.gradient_bytes / link.bytes_per_s
    table = pd.DataFrame({"gpus": gpus})
    hops = {"ring": 2 * (servers - 1), "halving and doubling": 2 * np.log2(servers)}
    for name, count in hops.items():
        reduce_s = job.num_tensors * count * link.latency_s + bytes_s
        both_s = (gradient_s**fitted.overlap + reduce_s**fitted.overlap) ** (1 / fitted.overlap)
        table[name] = job.step_s / both_s
    table["no overlap"] = job.step_s / (gradient_s + reduce_s)
    table["no traffic"] = job.step_s / gradient_s
    return table
