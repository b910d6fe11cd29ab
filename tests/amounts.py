"""Amounts that hypothesis draws: none, or as much as somebody could measure."""

from __future__ import annotations

from hypothesis import strategies as st

LEAST = 1e-9
"""labkit divides by no number below 1e-150, and no watt, second or share of a batch is so small."""


def amounts(most: float) -> st.SearchStrategy[float]:
    """Draw 0, or a number from :data:`LEAST` on."""
    return st.just(0.0) | st.floats(LEAST, most)
