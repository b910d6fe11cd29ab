"""What a Gantt chart shows besides times: passes over the devices, colours, rows that overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from labkit.kit.draw import PALETTE, SEQUENTIAL

if TYPE_CHECKING:
    import pandas as pd

_PALEST = 0.62  # how much white the last lane's colour has


class Lanes(NamedTuple):
    """The passes that microbatches make over the devices.

    Attributes:
        lane: of each row of the table, 0 for the first pass.
        names: what each lane is called.
    """

    lane: np.ndarray
    names: tuple[str, ...]


def find_lanes(table: pd.DataFrame) -> Lanes:
    """Chunks and directions: with several stages a device, or several devices a stage, who is who.

    A lane is a chunk (the device's first, second... stage) of the microbatches that enter the
    pipeline at the same device. A pipeline of one stage a device has one lane.

    >>> from labkit.pipeline import Costs, build, simulate
    >>> find_lanes(simulate(build("1f1b", 2, 2), Costs.uniform(1.0, 2.0)).frame()).names
    ('chunk 0',)
    """
    microbatch = table["microbatch"].to_numpy()
    device, stage = table["device"].to_numpy(), table["stage"].to_numpy()
    first = stage == 0
    enters = np.zeros(1 + microbatch.max(), dtype=int)
    enters[microbatch[first]] = device[first]
    doors = np.unique(device[first])
    door = np.searchsorted(doors, enters[microbatch])
    chunk = np.zeros(len(table), dtype=int)
    for d in np.unique(device):
        for route in range(len(doors)):
            mine = (device == d) & (door == route)
            chunk[mine] = np.searchsorted(np.unique(stage[mine]), stage[mine])
    chunks = 1 + int(chunk.max())
    return Lanes(door * chunks + chunk, tuple(_names(doors.tolist(), chunks)))


def _names(doors: list[int], chunks: int) -> list[str]:
    if len(doors) == 1:
        return [f"chunk {chunk}" for chunk in range(chunks)]
    ways = [f"in at device {door}" for door in doors]
    if chunks == 1:
        return ways
    return [f"{way}, chunk {chunk}" for way in ways for chunk in range(chunks)]


def kind_fills(kinds: Sequence[str], lane: Sequence[int]) -> np.ndarray:
    """Each row's colour by its kind, the paler the higher its lane."""
    shades = shades_of(kinds, 1 + max(lane, default=0))
    return np.array([shades[kind][n] for kind, n in zip(kinds, lane, strict=True)])


def shades_of(kinds: Sequence[str], count: int) -> dict[str, list[str]]:
    """The colours of each kind's lanes, the first one's being the palette's own."""
    paler = [_PALEST * k / max(count - 1, 2) for k in range(count)]
    return {kind: [mixed(PALETTE[kind], "#FFFFFF", part) for part in paler] for kind in set(kinds)}


def scale_fills(share: np.ndarray) -> np.ndarray:
    """Colours of shares 0 to 1 on the sequential scale, in 256 steps; grey where NaN."""
    stops = [stop for stop, _ in SEQUENTIAL]
    table = []
    for level in np.linspace(0, 1, 256).tolist():
        k = min(int(np.searchsorted(stops, level, side="right")) - 1, len(stops) - 2)
        part = (level - stops[k]) / (stops[k + 1] - stops[k])
        table.append(mixed(SEQUENTIAL[k][1], SEQUENTIAL[k + 1][1], part))
    level = np.round(255 * np.clip(np.nan_to_num(share), 0, 1)).astype(int)
    return np.where(np.isnan(share), PALETTE["muted"], np.array(table)[level])


def mixed(colour: str, other: str, amount: float) -> str:
    """``colour`` with a share of ``other``, both written #RRGGBB.

    >>> mixed("#000000", "#FFFFFF", 0.5)
    '#808080'
    """
    a, b = (np.array([int(c[i : i + 2], 16) for i in (1, 3, 5)]) for c in (colour, other))
    return "#" + "".join(f"{round(value):02X}" for value in (a + amount * (b - a)).tolist())


def steps_by_device(memory: pd.DataFrame, end_s: float) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Each device's (device, time_s, value) as the corners of its steps, out to ``end_s``.

    Args:
        memory: columns device and time_s, and the value in the third: it holds until the next
            row of its device.
    """
    corners = []
    for device in sorted(memory["device"].unique().tolist()):
        part = memory[memory["device"] == device]
        time, value = part["time_s"].to_numpy(), part.iloc[:, 2].to_numpy(dtype=float)
        last = np.append(time[1:] != time[:-1], True)  # of several at once only the last shows
        time, value = np.append(time[last], end_s), value[last]
        corners.append((device, np.repeat(time, 2)[1:-1], np.repeat(value, 2)))
    return corners
