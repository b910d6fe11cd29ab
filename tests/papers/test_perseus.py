"""The frontiers that Perseus published: read whole, fastest first, or told to be missing."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.papers.perseus import open_frontier
from labkit.pipeline.planning.perseus import UNIT_S
from labkit.pipeline.profiles.published import PUBLISHED
from tests.published import Need

NUM_STAGES = 8


def test_a_published_frontier_trades_time_for_energy(published_data: Need) -> None:
    """A unit later costs less, until a slower plan costs more; never more than all GPUs waiting."""
    published_data("perseus-sosp24")
    front = open_frontier("a100/gpt3-175b", 12)
    assert np.diff(front["makespan_s"]) == pytest.approx(UNIT_S)
    more_j = np.diff(front["energy_j"])
    least = int(front["energy_j"].argmin())
    assert (more_j[:least] < 0).all()
    assert (more_j[least:] <= NUM_STAGES * PUBLISHED["a100"][1] * UNIT_S).all()


@pytest.mark.parametrize(("name", "size"), [("a100/gpt3-175b", 13), ("h100/gpt3-175b", 12)])
def test_what_was_not_published_has_no_rows(name: str, size: int) -> None:
    assert open_frontier(name, size).empty
