"""A training job on servers of GPUs, with gradients summed as Horovod sums them.

Source: Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow",
2018, and the benchmark page of its authors.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from labkit import collectives, planner
from labkit.collectives.building import Name
from labkit.collectives.overlapping import Event, Message, Overlap
from labkit.collectives.scaling import MessageTime
from labkit.datasets import Source
from labkit.kit.fabric import GBIT, Fabric

FILES: dict[str, str] = {"ResNet-101": "resnet101/graph.txt", "VGG-16": "vgg16/graph.txt"}
"""Profiles that the notebook opens, by the name of the network."""
GPUS_PER_SERVER = 4
INSIDE_BYTES_PER_S = 15.75e9
"""PCI Express 3.0 with 16 lanes, as in data/hardware.yaml: Pascal GPUs of the benchmark's time."""
MIB = 1 << 20


def read_profiles(data: Source) -> dict[str, pd.DataFrame]:
    """The layers of each network of :data:`FILES` that is here: seconds and bytes, first to last.

    Args:
        data: ``pipedream-sosp19``, opened with the files of :data:`FILES`.
    """
    return {
        network: planner.Chain.read(data.path(name)).frame()
        for network, name in FILES.items()
        if data.has(name)
    }


@lru_cache(maxsize=64)
def _unit_time(gpus: int, algorithm: Name) -> MessageTime:
    """Seconds of a message where a hop between servers takes 1 s, and 1 byte crosses in 1 s.

    Parameter servers stand on as many further machines, four on each, as there are workers.
    """
    with_servers = algorithm == "parameter-server"
    machines = max(1, gpus // GPUS_PER_SERVER) * (2 if with_servers else 1)
    fabric = Fabric.machines(
        machines,
        min(gpus, GPUS_PER_SERVER),
        inside_bytes_per_s=INSIDE_BYTES_PER_S,
        between_bytes_per_s=1.0,
        latency_s=1.0,
    )
    if with_servers:
        return collectives.message_time(algorithm, fabric, num_servers=gpus)
    if algorithm == "hierarchical":
        return collectives.message_time(algorithm, fabric, per_node=GPUS_PER_SERVER)
    return collectives.message_time(algorithm, fabric)


@lru_cache(maxsize=256)
def message_time(gpus: int, algorithm: Name, gbit_per_s: float, hop_s: float) -> MessageTime:
    """Seconds of a message by its bytes, on servers of four GPUs.

    The program is priced once; its lines between servers are then scaled to the hop and the link.
    """
    seconds = copy(_unit_time(gpus, algorithm))
    scaled = []
    for lines, count in seconds.steps:
        between = lines[:, :1] > 0  # inside a server a hop takes no time
        scaled.append((np.where(between, lines * [hop_s, 1 / (gbit_per_s * GBIT)], lines), count))
    seconds.steps = scaled
    return seconds


def fused(
    ready_s: Sequence[float],
    num_bytes: Sequence[int],
    message_s: Callable[[float], float],
    *,
    threshold_bytes: int,
    cycle_s: float = 0.0,
) -> list[tuple[int, float, float]]:
    """Look for ready gradients once a cycle, and send them in messages up to a threshold.

    1. Look when the network is free and a gradient is ready, at the next cycle.
    2. Of the gradients that are ready, take the first few that fit into the buffer; send them as
       one message. Repeat until those of this look are sent.
    3. Look again.

    Args:
        ready_s: when each gradient exists, in this order.
        num_bytes: of each gradient.
        message_s: seconds of a message of so many bytes.
        threshold_bytes: of the fusion buffer; a gradient that is larger goes alone, and so does
            each where it is 0.
        cycle_s: between two looks; 0 looks at any time.

    Returns:
        Of each message, how many gradients it has, when it starts and when it ends.

    Source: §7, and ``docs/tensor-fusion`` of the authors' code.

    >>> fused([1.0, 1.5, 2.0, 4.0], [8, 8, 8, 8], lambda size: 2.0, threshold_bytes=16)
    [(1, 1.0, 3.0), (2, 3.0, 5.0), (1, 5.0, 7.0)]
    >>> fused([1.0, 1.5, 4.0], [8, 8, 8], lambda size: 2.0, threshold_bytes=16, cycle_s=2.0)
    [(2, 2.0, 4.0), (1, 4.0, 6.0)]
    """
    messages = []
    free_s = 0.0
    first = 0
    while first < len(ready_s):
        look_s = max(free_s, ready_s[first])
        if cycle_s:
            look_s = max(look_s, math.ceil(look_s / cycle_s) * cycle_s)
        waiting = bisect_right(ready_s, look_s)  # those before this are ready
        free_s = look_s
        while first < waiting:
            end = first + 1
            size = num_bytes[first]
            while end < waiting and size + num_bytes[end] <= threshold_bytes:
                size += num_bytes[end]
                end += 1
            start_s = free_s
            free_s = start_s + message_s(size)
            messages.append((end - first, start_s, free_s))
            first = end
    return messages


@dataclass(frozen=True, kw_only=True)
class Job:
    """One network on so many GPUs.

    Args:
        profile: its layers: forward_s, backward_s, parameter_bytes; only shares of time count.
        images_per_s: of one GPU alone.
        gpus: how many train it, four a server.
        batch: images of a GPU and step.
        gbit_per_s: of a server's link, each way.
        hop_s: of a message between servers.
        threshold_bytes: of the fusion buffer; 0 sends each gradient alone.
        cycle_s: between two looks for ready gradients.
        algorithm: that sums a message, a name of ``labkit.collectives``.
        wait_s: added to each message, the coordinator's round for example.
    """

    profile: pd.DataFrame
    images_per_s: float
    gpus: int
    batch: int = 64
    gbit_per_s: float = 25.0
    hop_s: float = 10e-6
    threshold_bytes: int = 64 * MIB
    cycle_s: float = 5e-3
    algorithm: Name = "ring"
    wait_s: float = 0.0

    def layers(self) -> pd.DataFrame:
        """The profile, scaled to one GPU's rate."""
        scaled = self.profile.copy()
        columns = ["forward_s", "backward_s"]
        whole_s = scaled[columns].to_numpy().sum()
        scaled[columns] *= self.batch / self.images_per_s / whole_s
        return scaled

    def message_s(self, num_bytes: float) -> float:
        """Seconds that a message takes."""
        seconds = message_time(self.gpus, self.algorithm, self.gbit_per_s, self.hop_s)
        return self.wait_s + float(seconds(num_bytes))

    def gradients(self) -> tuple[list[float], list[int], list[int]]:
        """When each gradient of a step exists, its bytes, and its layer; last layer first."""
        layers = self.layers()
        backward_s = layers["backward_s"].to_numpy()[::-1]
        sizes = layers["parameter_bytes"].to_numpy(dtype=int)[::-1]
        exists_s = layers["forward_s"].sum() + backward_s.cumsum()
        numbers = range(len(layers) - 1, -1, -1)
        kept = sizes > 0
        ready_s = [float(second) for second in exists_s[kept]]
        layer = [number for number, keep in zip(numbers, kept, strict=True) if keep]
        return ready_s, [int(size) for size in sizes[kept]], layer

    def step(self) -> Overlap:
        """A step on two lanes; the next one waits for all messages."""
        layers = self.layers()
        ready_s, num_bytes, layer = self.gradients()
        sent = fused(
            ready_s,
            num_bytes,
            self.message_s,
            threshold_bytes=self.threshold_bytes,
            cycle_s=self.cycle_s,
        )
        events = _computing(layers)
        messages = []
        first = 0
        for count, start_s, end_s in sent:
            lowest = layer[first + count - 1]
            size = sum(num_bytes[first : first + count])
            messages.append(Message(lowest, layer[first], size))
            events.append(Event("network", "gradients", lowest, start_s, end_s))
            first += count
        compute_s = float(layers[["forward_s", "backward_s"]].to_numpy().sum())
        return Overlap(
            policy="wait-free",
            step_s=max([compute_s, *(end_s for _, _, end_s in sent)]),
            compute_s=compute_s,
            network_s=sum(end_s - start_s for _, start_s, end_s in sent),
            events=tuple(events),
            messages=tuple(messages),
        )

    def efficiency(self) -> float:
        """The rate of a GPU over that of one GPU alone."""
        step = self.step()
        return step.compute_s / step.step_s

    def speedup(self) -> float:
        """The rate of all GPUs over that of one."""
        return self.gpus * self.efficiency()


def _computing(layers: pd.DataFrame) -> list[Event]:
    """All layers forward, then backward."""
    events = []
    now_s = 0.0
    passes = (("forward", range(len(layers))), ("backward", range(len(layers) - 1, -1, -1)))
    for what, order in passes:
        seconds = layers[f"{what}_s"].to_numpy()
        for layer in order:
            end_s = now_s + float(seconds[layer])
            events.append(Event("compute", what, layer, now_s, end_s))
            now_s = end_s
    return events
