"""What Hare gains over the best gang, over several draws of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.papers.hare.rounds import Rounds, draw_rounds
from labkit.papers.hare.schedules import GANGS, compare

if TYPE_CHECKING:
    import pandas as pd

JOBS_PER_GPU = 4
"""Jobs that are drawn, over the GPUs of the cluster."""


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Jobs on a cluster with as many GPUs of each type, drawn several times.

    Attributes:
        steps_per_s: of kinds of jobs (rows) on types of GPU (columns).
        gpus: of each type.
        seeds: of the draws.
        load: work that arrives a second, over what all GPUs can do.
        task_s: of a task on the first type.
        tasks: numbers of tasks of a round, each as likely.
        error: spread of lognormal factors by which the times that decisions rest on are wrong.
        switch_s: what a GPU loses when it takes a task of another job than its last.
    """

    steps_per_s: ArrayLike
    gpus: int = 5
    seeds: Sequence[int] = range(5)
    load: float = 2.0
    task_s: float = 60.0
    tasks: tuple[int, ...] = (1, 2, 4)
    error: float = 0.0
    switch_s: float = 0.0

    def jobs(self, seed: int) -> Rounds:
        """One draw."""
        num_types = np.shape(self.steps_per_s)[1]
        return draw_rounds(
            self.steps_per_s,
            (self.gpus,) * num_types,
            num_jobs=JOBS_PER_GPU * self.gpus * num_types,
            load=self.load,
            tasks=self.tasks,
            task_s=self.task_s,
            rng=seed,
        )

    def weighted_jct_s(self) -> pd.DataFrame:
        """Weighted mean completion time: a row a seed, a column a way, and the bound."""
        import pandas as pd

        rows = []
        for seed in self.seeds:
            jobs = self.jobs(seed)
            believed_s = self._believed_s(jobs, seed)
            ran = compare(jobs, believed_s=believed_s, switch_s=self.switch_s)
            rows.append({**ran["weighted_jct_s"], "bound": jobs.bound_s()})
        return pd.DataFrame(rows, index=[*self.seeds])

    def _believed_s(self, jobs: Rounds, seed: int) -> NDArray[np.float64]:
        """Times of tasks that decisions rest on."""
        true_s = jobs.column("task_s")
        noise = np.random.default_rng(99 + seed).normal(size=true_s.shape)
        return np.asarray(true_s * np.exp(self.error * noise))

    def gains(self) -> pd.DataFrame:
        """How many times sooner than the best gang jobs end, by weight: a row a seed."""
        ran = self.weighted_jct_s()
        best = ran[[*GANGS]].min(axis=1)
        return 1 / ran.div(best, axis=0)

    def changed(self, **fields: Any) -> Draws:
        """The same with other fields."""
        return replace(self, **fields)


def summary(gains: pd.DataFrame) -> dict[str, float]:
    """Medians of the gains that the notebook asks about, and the range of Hare's.

    Args:
        gains: as :meth:`Draws.gains` returns them.
    """
    ways = ["gangs by round", "gangs by round, Hare's order", "relaxed, by area", "relaxed"]
    row = {way: float(gains[way].median()) for way in ways}
    return row | {
        "relaxed, least": float(gains["relaxed"].min()),
        "relaxed, most": float(gains["relaxed"].max()),
    }
