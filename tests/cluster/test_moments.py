"""Rounds: two moments that floating point cannot tell apart are one."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.cluster.loops.rounds import Steady


def test_work_too_short_for_the_clock_to_move_is_done() -> None:
    """At 700,000 s the clock steps by 1e-10 s: a job with less left would be asked for for ever."""
    steady = Steady(np.array([4.7e-11, 5.0, 1e-12]), lambda jobs, held: np.array([1.0, 1.0, 0.0]))
    needed = steady.advance(np.arange(3), np.ones((3, 1), dtype=int), np.zeros(3))
    assert steady.left.tolist() == [0.0, 5.0, 1e-12]  # the third stands still
    assert needed[0] == pytest.approx(0, abs=1e-9)
