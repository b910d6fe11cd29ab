"""The clients of REEF's benchmark, DISB, from a table of models and rates.

Source: Han et al. (OSDI'22), and the workloads of its artifact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.errors import BadValue, not_among
from labkit.kit.describe import Positive, Whole, checked
from labkit.serving.device.clients import Client, Workload
from labkit.serving.device.kernels import Program

if TYPE_CHECKING:
    import pandas as pd


@checked
def workload_of(
    rows: pd.DataFrame,
    programs: Mapping[str, Program],
    *,
    until_s: Positive,
    share: Positive = 1.0,
    rng: np.random.Generator | Whole | None = None,
) -> Workload:
    """Periodic clients from a table with the columns model, real_time and rate_per_s.

    Where a column ``moments_ms`` has a text, such as "64 216", the client's programs come at these
    milliseconds of every second instead.

    Args:
        rows: one a client.
        programs: by model.
        until_s: programs that would come later are left out.
        share: of the real-time clients' rates.
        rng: draws each client's first moment within its period; None: as DISB begins, others at
            0 and real-time clients one after another, the period's rest between them.

    Raises:
        BadValue: a column is missing, a rate is not above 0, or a moment is not within a second.
        UsageError: a model has no program.
    """
    import pandas as pd

    rates = pd.to_numeric(rows.get("rate_per_s", [0.0]), errors="coerce")
    if not {"model", "real_time"} <= set(rows) or not ((rates > 0) & (rates < np.inf)).all():
        raise BadValue("workload_of: rows need model, real_time and a rate_per_s above 0, finite")
    for model in set(rows["model"]) - set(programs):
        raise not_among("model of the clients", str(model), programs)
    draw = None if rng is None else np.random.default_rng(rng)
    table: list[dict[str, Any]] = rows.to_dict("records")  # type: ignore[assignment]
    rest_s = _rest_s([row for row in table if row["real_time"]], programs, share)
    next_real_s = 0.0
    clients = []
    for row in table:
        program = programs[row["model"]]
        real_time = bool(row["real_time"])
        pace = share if real_time else 1.0
        period_s = 1 / (row["rate_per_s"] * pace)
        if draw is not None:
            first_s = draw.uniform(0, period_s)
        else:
            first_s = next_real_s if real_time else 0.0
        if real_time:
            next_real_s += program.alone_s + rest_s
        if pd.isna(row.get("moments_ms")):
            due_s = np.arange(first_s, until_s, period_s)
        else:
            due_s = _moments_s(str(row["moments_ms"]), until_s * pace) / pace
            due_s = due_s + (0.0 if draw is None else first_s)
        arrival_s = tuple(due_s[due_s < until_s].tolist())
        clients.append(Client(program=row["model"], arrival_s=arrival_s, real_time=real_time))
    return Workload(clients=tuple(clients), until_s=until_s)


def _rest_s(
    real_time: list[dict[str, Any]], programs: Mapping[str, Program], share: float
) -> float:
    """Seconds between one real-time client's program and the next one's, if they take turns."""
    if not real_time:
        return 0.0
    needed_s = sum(programs[row["model"]].alone_s for row in real_time)
    fastest_per_s = share * max(row["rate_per_s"] for row in real_time)
    return max(1 / fastest_per_s - needed_s, 0.0) / len(real_time)


def _moments_s(text: str, until_s: float) -> NDArray[np.float64]:
    """The same moments of every second until then."""
    try:
        moments_s = np.sort(np.array(text.split() or ["nan"], float)) / 1e3
    except ValueError:
        moments_s = np.full(1, np.nan)
    if not ((moments_s >= 0) & (moments_s < 1)).all():
        raise BadValue(f"workload_of: moments_ms needs numbers from 0 to below 1000; got {text!r}")
    return np.add.outer(np.arange(np.ceil(until_s)), moments_s).ravel()
