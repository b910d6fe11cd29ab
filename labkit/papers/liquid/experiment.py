"""How much sooner jobs end by one way of placing than by others, over draws of jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from labkit.papers.liquid.jobs import Workers, draw_workers
from labkit.papers.liquid.placing import Way
from labkit.papers.liquid.racks import Racks
from labkit.papers.liquid.running import compare

WAYS = (Way.RANDOM, Way.SPREAD, Way.PACK, Way.FEWEST_NODES, Way.BEST_FIT)
BASELINES = (Way.SPREAD, Way.PACK)


def two_racks(gbit_per_s: float, *, rack_links: float = 2.0) -> Racks:
    """Two racks of four nodes of four GPUs.

    Args:
        gbit_per_s: of a node's link, each way.
        rack_links: what a rack's link carries, in nodes' links.
    """
    node_bytes_per_s = gbit_per_s * 1e9 / 8
    return Racks(
        racks=2,
        nodes=4,
        gpus=4,
        node_bytes_per_s=node_bytes_per_s,
        rack_bytes_per_s=rack_links * node_bytes_per_s,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """Draws of jobs on two racks; ``dataclasses.replace`` changes one setting.

    Attributes:
        gbit_per_s: of a node's link.
        rack_links: what a rack's link carries, in nodes' links.
        load: work that arrives a second over what all GPUs can do without a network.
        num_draws: of jobs, with the seeds from 0 on.
        num_jobs: of a draw.
    """

    gbit_per_s: float = 100.0
    rack_links: float = 2.0
    load: float = 0.6
    num_draws: int = 4
    num_jobs: int = 150
    _tables: list[pd.DataFrame] = field(default_factory=list, init=False, repr=False)

    @property
    def racks(self) -> Racks:
        return two_racks(self.gbit_per_s, rack_links=self.rack_links)

    def draws(self) -> list[Workers]:
        return [
            draw_workers(self.racks, num_jobs=self.num_jobs, load=self.load, rng=seed)
            for seed in range(self.num_draws)
        ]

    def means_s(self) -> pd.DataFrame:
        """Mean seconds: rows (measure, draw), a column a way; ``computing`` has no network."""
        if not self._tables:
            self._tables.append(compare(self.racks, self.draws(), WAYS))
        return self._tables[0]

    def gains(self, way: Way | str) -> pd.DataFrame:
        """Of each draw, what a way gains over the better of spreading and packing.

        Args:
            way: of placing; ``computing`` gives what no way beats.

        Returns:
            A row a draw: ``execution``, by how much faster jobs run, as a share of their speed;
            ``completion``, by how much sooner they complete, as a share of their time.
        """
        means_s = self.means_s()
        baseline_s = means_s[[*BASELINES]].min(axis=1)
        speed = baseline_s / means_s[way] - 1
        saved = 1 - means_s[way] / baseline_s
        return pd.DataFrame({"execution": speed["execution"], "completion": saved["completion"]})
