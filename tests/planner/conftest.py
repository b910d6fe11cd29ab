"""Small random chains, and the profiles that PipeDream's authors publish."""

from __future__ import annotations

from functools import cache

from hypothesis import strategies as st

from labkit import planner
from labkit.planner.chain import DATASET, short_names
from tests.published import need


@st.composite
def chains(draw: st.DrawFn, most: int = 6) -> planner.Chain:
    """Up to ``most`` layers with seconds, bytes and weights of very different sizes."""
    count = draw(st.integers(1, most))
    times = st.floats(1e-3, 1.0)
    sizes = st.one_of(st.just(0.0), st.floats(1e3, 1e9))
    several = {"min_size": count, "max_size": count}
    return planner.Chain(
        forward_s=tuple(draw(st.lists(times, **several))),
        backward_s=tuple(draw(st.lists(times, **several))),
        activation_bytes=tuple(draw(st.lists(sizes, **several))),
        cut_bytes=tuple(draw(st.lists(sizes, **several))),
        parameter_bytes=tuple(draw(st.lists(sizes, **several))),
    )


@st.composite
def fabrics(draw: st.DrawFn, most: int = 5) -> planner.Fabric:
    return planner.Fabric.flat(
        draw(st.integers(1, most)),
        bandwidth_bytes_per_s=draw(st.floats(1e6, 1e11)),
        latency_s=draw(st.sampled_from([0.0, 1e-3])),
    )


@cache
def published(name: str) -> planner.Chain:
    """A published profile; skips where it is not here."""
    path = short_names()[name]
    return planner.Chain.read(need(DATASET, [path]).path(path))
