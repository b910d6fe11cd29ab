"""One state of an interactive panel: every ZeRO stage with every kind of recomputation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError, not_among
from labkit.memory.estimate import COMPONENTS
from labkit.memory.plan import Plan
from labkit.memory.states import STAGE_NAMES
from labkit.units import GB

if TYPE_CHECKING:
    import pandas as pd


def panel(
    plan: Plan,
    *,
    device: int | str,
    headroom: float = 1.0,
    zero: Iterable[int] = tuple(STAGE_NAMES),
    recompute: Iterable[str | int] = ("none", "selective", "full"),
    **changes: Any,
) -> pd.DataFrame:
    """What ``plan`` with ``changes`` holds at its peak, for each stage and kind of recomputation.

    ``changes`` are single values of any axis of :func:`labkit.memory.sweep`: ``dp=64, tp=8``. A row
    a component: ``stage``, ``zero``, ``recompute``, ``component``, ``num_bytes``, ``size_gb``,
    ``peak_moment``, ``fits``. What breaks a rule is one row without a component, with its
    ``problem``. Some ten milliseconds.

    Raises:
        UsageError: the plan is not detailed, a change has no such axis or breaks a rule by itself.

    >>> from labkit.memory import Batch, Model, Parallel
    >>> plan = Plan(model=Model.preset("llama-2-7b"), batch=Batch(seq=4096))
    >>> found = panel(plan, device="H100-80GB", dp=64, zero=[3], recompute=["full"])
    >>> found["fits"].all(), found["peak_moment"].unique().tolist()
    (np.True_, ['loss backward'])
    """
    import pandas as pd

    from labkit.memory import grid

    if not plan.detailed:
        raise UsageError("a panel needs a plan with a Model and a Batch without a paper's formula")
    if unknown := [name for name in changes if name not in grid.AXES]:
        raise not_among("axis", unknown[0], grid.AXES)
    axes: dict[str, Iterable[Any]] = {"zero": list(zero), "recompute": list(recompute)}
    room = plan.usable_bytes(device, headroom=headroom)
    table = grid.sweep(grid.at(plan, changes), axes, usable_bytes=room)
    rows: list[dict[str, Any]] = []
    for one in table.to_dict("records"):
        here = {"stage": STAGE_NAMES[one["zero"]], "zero": one["zero"]}
        here |= {name: one[name] for name in ("recompute", "peak_moment", "fits", "problem")}
        sizes = {name: one.get(f"{name.replace(' ', '_')}_bytes", 0) for name in COMPONENTS}
        if one["problem"]:
            rows.append(here | {"component": "", "num_bytes": float("nan")})
        rows += [
            here | {"component": n, "num_bytes": size} for n, size in sizes.items() if size > 0
        ]
    found = pd.DataFrame(rows)
    order = ["stage", "zero", "recompute", "component", "num_bytes", "peak_moment", "fits"]
    return found[[*order, "problem"]].assign(size_gb=found["num_bytes"] / GB)
