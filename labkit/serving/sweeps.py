"""The same requests at several loads: a table of runs, or the highest load that still fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le

from labkit.errors import BadValue, shown
from labkit.kit.describe import Positive, Share, checked
from labkit.quantities import is_finite_number
from labkit.serving.generation.batcher import Batcher, Batching
from labkit.serving.generation.replica import simulate
from labkit.serving.generation.tokens import TokenProfile
from labkit.serving.requests import Requests

if TYPE_CHECKING:
    import pandas as pd

Steps = Annotated[int, Ge(1), Le(1000)]
"""Halvings of an interval; floats are told apart by far fewer."""


@checked
def sweep(
    requests: Requests,
    profile: TokenProfile,
    batchers: Mapping[str, Batcher | Batching],
    rates_per_s: Sequence[Positive],
) -> pd.DataFrame:
    """The same requests at several rates under several batchers: one row each.

    Args:
        batchers: by the name that the column ``batcher`` shows.
        rates_per_s: mean rates to which the requests' gaps are stretched.

    Returns:
        The name of the batcher, and the columns of :meth:`Run.summary`.
    """
    import pandas as pd

    streams = [requests.at_rate(rate) for rate in dict.fromkeys(rates_per_s)]
    rows = []
    for name, batcher in batchers.items():
        for stream in streams:
            rows.append({"batcher": name} | simulate(stream, profile, batcher).summary())
    return pd.DataFrame(rows)


@checked
def highest_load(
    attainment: Callable[[float], float],
    low: Positive,
    high: Positive,
    *,
    target: Share = 0.99,
    steps: Steps = 8,
) -> float:
    """The highest load at which a server still attains its target, by bisection of its logarithm.

    Args:
        attainment: the share of requests in time at a load: a rate, a burstiness.
        low, high: where to look; ``low`` is returned where even that fails.
        target: the share that is enough.
        steps: halvings of the interval.

    Raises:
        BadValue: ``high`` is not above ``low``, or ``attainment`` gives no number.

    >>> highest_load(lambda load: 1.0 if load <= 8 else 0.5, 1, 64, steps=20)
    8.0
    """
    if high <= low:
        raise BadValue(f"highest_load: high must be above low; got {low} and {high}")

    def attains(load: float) -> bool:
        try:
            share = attainment(load)
        except TypeError as error:
            raise BadValue(
                f"highest_load: attainment must map a load to a share; {error}"
            ) from error
        if not is_finite_number(share):
            raise BadValue(
                f"highest_load: attainment must give a share; got {shown(share)} at {load:g}"
            )
        return share >= target

    return high if attains(high) else bisected(attains, low, high, steps)


def bisected(fits: Callable[[float], bool], low: float, high: float, steps: int) -> float:
    """The highest load that fits, by bisection of its logarithm.

    Args:
        fits: whether a load fits.
        low: a load that fits; it is returned where no other does.
        high: a load that does not fit.
        steps: halvings of the interval.
    """
    for _ in range(steps):
        middle = (low * high) ** 0.5
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
