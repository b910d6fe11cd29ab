"""Plans by stage, the largest models, and the printed tables cell by cell beside ours.

A printed table is a small CSV that keeps every digit as printed, since the digits say how a cell
was cut (``data/papers/zero/*.csv``).

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC'20, Table 1, Table 2 and §5.4.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from labkit import quantities
from labkit.kit.describe import Count, checked
from labkit.memory import Parallel, Plan, fit
from labkit.memory.jobs.states import STAGE_NAMES
from labkit.models import Model


@checked
def stages(model: Model | Count, *, dp: Count) -> dict[str, Plan]:
    """The same plan at ZeRO stages 0 to 3, by the paper's names for them.

    Args:
        model: its shape, or a number of parameters.
        dp: data-parallel ranks, the paper's N_d.

    >>> [round(plan.states_bytes / 1e9, 1) for plan in stages(7_500_000_000, dp=64).values()]
    [120.0, 31.4, 16.6, 1.9]
    """
    return {
        name: Plan(model=model, parallel=Parallel(dp=dp, zero=zero))
        for zero, name in STAGE_NAMES.items()
    }


@checked
def largest_model(parallel: Parallel, capacity_bytes: Count) -> int:
    """Parameters of the largest model whose states fit a GPU, the paper's "max model size".

    States are those of mixed-precision Adam, and nothing stands beside them.

    Args:
        capacity_bytes: of a GPU; the paper counts 32 × 10⁹ for a V100 of 32 GB.

    >>> largest_model(Parallel(dp=64, tp=2, zero=1), 32 * 10**9) / 1e9
    15.283582089
    """
    plan = Plan(model=1, parallel=parallel)
    return fit(plan, vary="model", device=capacity_bytes).value or 0


def printed_states(path: Path) -> pd.DataFrame:
    """Table 1, the model states on a GPU: columns ``model, dp, zero, printed_gb``, and ours.

    Adds ``ours_gb`` and ``cut``, how the digits came from it (:func:`labkit.quantities.cut`).
    """
    table = pd.read_csv(path, dtype={"printed_gb": str})
    table["ours_gb"] = [
        Plan(model=model, parallel=Parallel(dp=dp, zero=zero)).states_bytes / quantities.GB
        for model, dp, zero in table[["model", "dp", "zero"]].to_numpy().tolist()
    ]
    return table.assign(cut=list(map(quantities.cut, table["ours_gb"], table["printed_gb"])))


def printed_largest(path: Path, *, dp: int, capacity_bytes: int) -> pd.DataFrame:
    """Table 2, the largest models: ``tp, gpus, kind, zero, printed, unit`` (B or T), and ours.

    Args:
        dp, capacity_bytes: data-parallel ranks, and bytes of a GPU, behind ``ours``.

    Returns:
        Adds ``ours`` (by :func:`largest_model`, in billions like ``printed_billion``), ``cell``
        (both as one text), and ``cut``: how the cell came from its column's first row times
        ``tp``, as such tables are often filled.
    """
    table = pd.read_csv(path, dtype={"printed": str})
    thousands = table["unit"].map({"B": 1, "T": 1000})
    table["printed_billion"] = table["printed"].astype(float) * thousands
    table["ours"] = [
        largest_model(Parallel(dp=dp, tp=tp, zero=zero), capacity_bytes) / quantities.BILLION
        for tp, zero in table[["tp", "zero"]].to_numpy().tolist()
    ]
    first = table.groupby(["kind", "zero"])["printed_billion"].transform("first")
    multiple = (first * table["tp"] / thousands).round(9)
    table["cut"] = list(map(quantities.cut, multiple, table["printed"]))
    printed = table["printed"] + table["unit"]
    return table.assign(cell=printed + table["ours"].map(" ({:.5g}B)".format))


def printed_grid(table: pd.DataFrame, *index: str) -> pd.DataFrame:
    """Cells of :func:`printed_largest` laid out as printed, a column a stage.

    Args:
        index: columns that name a row; rows stay in the table's order.
    """
    cells = table.pivot(index=list(index), columns="zero", values="cell")
    cells = cells.reindex(pd.MultiIndex.from_frame(table[list(index)].drop_duplicates()))
    return cells.rename(columns=STAGE_NAMES).rename_axis(columns=None)
