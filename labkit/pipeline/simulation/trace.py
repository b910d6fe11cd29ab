"""Timelines as trace events, the JSON that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from labkit.files import write_atomically
from labkit.pipeline.scheduling.schedule import FORWARD, Schedule
from labkit.pipeline.simulation.costs import boundaries

if TYPE_CHECKING:
    import pandas as pd

_NS_DIGITS = 3  # of a microsecond: trace viewers count in nanoseconds

Event = dict[str, Any]


class Timed(Protocol):
    """What a trace reads of a timeline (:class:`labkit.pipeline.Timeline`)."""

    @property
    def schedule(self) -> Schedule: ...
    @property
    def start_s(self) -> np.ndarray: ...
    @property
    def end_s(self) -> np.ndarray: ...
    def memory_frame(self) -> pd.DataFrame: ...


def save_events(path: Path | str, name: str, events: list[Event]) -> Path:
    """Write events as one JSON file, whole or not at all; ``name`` is what the viewer shows."""
    content = {"displayTimeUnit": "ms", "otherData": {"name": name}, "traceEvents": events}
    write_atomically(Path(path), json.dumps(content, separators=(",", ":"), allow_nan=False))
    return Path(path)


def trace_events(
    line: Timed, table: pd.DataFrame, *, waiting_power_w: float | None = None
) -> list[Event]:
    """A timeline as events: names first, then all others in order of time, in microseconds.

    Every device is a process: one track for its instructions, counters of activation bytes and
    power below. Arrows run from an instruction to the one on another device that waits for it.

    Args:
        line: the timeline.
        table: its ``frame()``, or that of its plan.
        waiting_power_w: what a device draws while it waits, for the counter of its power; the
            table then has ``power_w``.

    Source: the Trace Event Format (Google), https://docs.google.com/document/d/
    1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: phases M, X, s, f, C.
    """
    timed = [*_slices(table), *_arrows(line), *_memory_counters(line)]
    if waiting_power_w is not None:
        timed += _power_counters(table, waiting_power_w)
    timed.sort(key=lambda event: (event["ts"], "XsfC".index(event["ph"])))  # arrows after slices
    return [*_names(table), *timed]


def _us(seconds: Any) -> Any:
    return np.round(np.asarray(seconds, dtype=float) * 1e6, _NS_DIGITS)


def _event(phase: str, device: Any, ts: float, name: str, **more: Any) -> Event:
    return {"ph": phase, "pid": int(device), "tid": 0, "ts": ts, "name": name, **more}


def _names(table: pd.DataFrame) -> Iterator[Event]:
    for device in sorted(set(table["device"].tolist())):
        for name, args in (
            ("process_name", {"name": f"device {device}"}),
            ("process_sort_index", {"sort_index": device}),
            ("thread_name", {"name": "instructions"}),
        ):
            yield {"ph": "M", "pid": device, "tid": 0, "name": name, "args": args}


def _slices(table: pd.DataFrame) -> Iterator[Event]:
    extra = [c for c in ("slack_s", "clock_mhz", "energy_j", "power_w") if c in table.columns]
    columns = [table[c].tolist() for c in ("device", "stage", "kind", "microbatch", *extra)]
    start = _us(table["start_s"]).tolist()
    end = _us(table["end_s"]).tolist()
    free: dict[int, float] = {}  # by device: where its last slice ends
    for ts, done, device, stage, kind, microbatch, *more in zip(start, end, *columns, strict=True):
        if 0 < free.get(device, 0.0) - ts < 2 * 10**-_NS_DIGITS:
            ts = free[device]  # neighbours that rounding let overlap
        free[device] = done = max(ts, done)
        args = {"stage": stage, "microbatch": microbatch, "kind": kind}
        args |= dict(zip(extra, more, strict=True))
        took = round(done - ts, _NS_DIGITS)
        yield _event("X", device, ts, f"{kind} {microbatch}", dur=took, cat=kind, args=args)


def _arrows(line: Timed) -> Iterator[Event]:
    """A start and a finish for each message between devices; arrows leave a slice at its end."""
    schedule = line.schedule
    start = _us(line.start_s)
    end = _us(line.end_s)
    leaves = np.round(np.maximum(start, end - 10**-_NS_DIGITS), _NS_DIGITS)
    for number, receiver in enumerate(np.flatnonzero(boundaries(schedule) >= 0)):
        sender = schedule.graph.needs[receiver]
        name = "activation" if schedule.kind[receiver] == FORWARD else "gradient"
        both = {"cat": "message", "id": number}
        yield _event("s", schedule.device[sender], float(leaves[sender]), name, **both)
        yield _event("f", schedule.device[receiver], float(start[receiver]), name, bp="e", **both)


def _memory_counters(line: Timed) -> Iterator[Event]:
    memory = line.memory_frame()
    rows = zip(memory["device"], _us(memory["time_s"]).tolist(), memory.iloc[:, 2], strict=True)
    for device, ts, value in rows:
        yield _event("C", device, ts, "activation bytes", args={"value": float(value)})


def _power_counters(table: pd.DataFrame, waiting_power_w: float) -> Iterator[Event]:
    """From each start what the instruction draws, from each end what waiting draws.

    Where the next instruction starts at once its power comes later at the same time, and holds.
    """
    for device, part in table.sort_values("start_s", kind="stable").groupby("device"):
        start = _us(part["start_s"]).tolist()
        end = _us(part["end_s"]).tolist()
        steps = [(0.0, waiting_power_w)]
        following = [*start[1:], np.inf]  # rounding may let neighbours overlap
        for ts, done, power, next_ts in zip(start, end, part["power_w"], following, strict=True):
            steps += [(ts, float(power)), (min(done, next_ts), waiting_power_w)]
        for ts, power in steps:
            yield _event("C", device, ts, "power (W)", args={"value": power})
