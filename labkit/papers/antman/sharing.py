"""How much slower an owner becomes beside guests, and how much more of the GPU is used.

The owner's kernels go first; a guest launches its own only where the owner waits. The GPU they
share is the engine's kernel timeline, in its mode ``guests``.

Source: Xiao et al., AntMan: Dynamic Scaling on GPU Clusters for Deep Learning (OSDI'20), §3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Lt

from labkit.errors import BadValue
from labkit.kit.describe import Positive, checked
from labkit.serving.device.clients import Client, Gpu, Mode, Workload
from labkit.serving.device.kernels import Program
from labkit.serving.results import GpuRun
from labkit.serving.simulation import simulate

if TYPE_CHECKING:
    import pandas as pd

BelowOne = Annotated[float, Ge(0), Lt(1)]


class Shared(NamedTuple):
    """What sharing a GPU did."""

    slowdown_fraction: float
    """By how much the owner's mini-batch and wait became longer."""
    units_fraction: float
    """Compute units in use, of all."""
    guests_fraction: float
    """The guests' ended programs, in seconds alone a second."""
    run: GpuRun


@checked
def beside(
    owner: Program,
    guests: Sequence[Program],
    *,
    mode: Mode,
    idle_share: BelowOne,
    until_s: Positive,
) -> Shared:
    """An owner that repeats a mini-batch and a wait, beside guests that never wait.

    Args:
        mode: how they share the GPU, as of :class:`labkit.serving.Gpu`.
        idle_share: of the owner's time alone, what it waits; 0 to below 1.

    Raises:
        BadValue: ``until_s`` is over before the owner's first mini-batch is.
    """
    gap_s = owner.alone_s * idle_share / (1 - idle_share)
    programs = {"owner": owner}
    clients = [Client(program="owner", gap_s=gap_s, real_time=True)]
    for number, guest in enumerate(guests):
        programs[f"guest {number}"] = guest
        clients.append(Client(program=f"guest {number}"))
    workload = Workload(clients=tuple(clients), until_s=until_s)
    run = simulate(workload, programs, Gpu(mode=mode))
    if not run.latency_s().size:
        raise BadValue(f"beside: until_s {until_s:g}; valid: over {owner.alone_s:.3g}, the owner's")
    cycle_s = run.latency_s().mean() + gap_s
    ended = np.bincount(run.log["client"], minlength=len(clients))[1:].tolist()
    guests_s = sum(count * guest.alone_s for count, guest in zip(ended, guests, strict=True))
    return Shared(
        slowdown_fraction=round(float(cycle_s / (owner.alone_s + gap_s)) - 1, 9),
        units_fraction=run.busy_fraction,
        guests_fraction=guests_s / until_s,
        run=run,
    )


@checked
def pairs(
    programs: Mapping[str, Program],
    ways: Mapping[Mode, str],
    *,
    idle_share: BelowOne,
    until_s: Positive,
) -> pd.DataFrame:
    """Every program as the owner beside every other, by each way of sharing and its name.

    Args:
        programs: by name.
        ways: the modes to try besides the owner alone, and what the table calls each.
        idle_share, until_s: as of :func:`beside`.

    Returns:
        Columns ``owner``, ``guest``, ``way``, those of :class:`Shared` but the run, and
        ``alone_units_fraction``: units in use with the owner alone.
    """
    import pandas as pd

    rows = []
    for owner, guest in permutations(programs, 2):
        alone = beside(programs[owner], [], mode="alone", idle_share=idle_share, until_s=until_s)
        for mode, way in ways.items():
            shared = beside(
                programs[owner],
                [programs[guest]],
                mode=mode,
                idle_share=idle_share,
                until_s=until_s,
            )
            rows.append((owner, guest, way, *shared[:3], alone.units_fraction))
    columns = ["owner", "guest", "way", *Shared._fields[:3], "alone_units_fraction"]
    return pd.DataFrame(rows, columns=columns)


def gains(pairs: pd.DataFrame) -> pd.Series:
    """Units in use that sharing gains, by way, in a cluster with all the pairs; fractions.

    Args:
        pairs: as :func:`pairs` returns them.
    """
    mean = pairs.groupby("way")[["units_fraction", "alone_units_fraction"]].mean()
    return mean["units_fraction"] / mean["alone_units_fraction"] - 1
