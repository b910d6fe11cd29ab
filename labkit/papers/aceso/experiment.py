"""The artifact's jobs, the ways to find plans for them, and the values of the claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np
import pandas as pd

from labkit.datasets import Source
from labkit.papers.aceso.alleviating import Result, alleviate, by_bottleneck, in_random_order
from labkit.papers.aceso.pricing import Job, Recompute
from labkit.papers.aceso.rivals import even_grid, layer_grid, walk
from labkit.papers.aceso.tables import FOLDER, LINKS, Tables, file_names

REFERENCE = "results/ref"
PUBLISHED_PLAN = "search/single_gpu_configs/gpt_350M_mbs8_recomp.json"
REFERENCES = {
    "throughput": f"{REFERENCE}/e2e_norm_thpt_large_gpt.csv",
    "deep": f"{REFERENCE}/e2e_thpt_scale_scale-layer.csv",
    "cost": f"{REFERENCE}/search_cost_large_gpt.csv",
    "time": f"{REFERENCE}/perf_model_time_large_gpt.csv",
    "memory": f"{REFERENCE}/perf_model_mem_large_gpt.csv",
}
"""The authors' own results."""
STANDIN_DEGREES = (1, 2, 4)


class Way(StrEnum):
    """How a plan is found."""

    BOTTLENECK = "bottleneck first (Aceso)"
    RANDOM = "moves in random order"
    WALK = "Metropolis walk"
    LAYERS = "grid of whole layers (Alpa's space)"
    EVEN = "even grid (Megatron's)"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A network, its GPUs, and how it is trained in the artifact.

    Attributes:
        network: of the tables.
        layers: of a GPT; None for a network that the tables hold as a whole.
        copies: weights, gradients and state over the weights.
        headroom_mib: kept free while choosing what is computed again.
        budget: stages priced, times the notebook's.
    """

    network: str
    layers: int | None
    gpus: int
    batch: int = 1024
    limit_mib: float = 28000.0
    copies: float = 8.0
    headroom_mib: float = 0.0
    budget: int = 1

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degrees that the GPUs allow."""
        return tuple(degree for degree in (1, 2, 4, 8) if degree <= self.gpus)

    def job(self, tables: Tables) -> Job:
        """The job, with the tables of its network."""
        chain = tables.operators if self.layers is None else tables.layers(self.layers)
        return Job(
            tables=tables,
            chain=chain,
            gpus=self.gpus,
            gpus_of_a_machine=self.gpus,
            batch=self.batch,
            limit_mib=self.limit_mib,
            copies=self.copies,
            headroom_mib=self.headroom_mib,
        )


SETTINGS: dict[str, Setting] = {
    "GPT 1.3B": Setting(network="gpt_1_3B", layers=24, gpus=4),
    "GPT 1.3B, 12,000 MiB": Setting(
        network="gpt_1_3B", layers=24, gpus=4, batch=512, limit_mib=12000.0
    ),
    "GPT 2.6B": Setting(network="gpt_2_6B", layers=32, gpus=8),
    "Wide-ResNet 4B": Setting(network="resnet_4B", layers=None, gpus=8, batch=1536, copies=4.0),
    "64 layers": Setting(network="gpt_scale-layer", layers=64, gpus=8, headroom_mib=1000.0),
    "1,024 layers": Setting(
        network="gpt_scale-layer", layers=1024, gpus=8, headroom_mib=1000.0, budget=10
    ),
}
"""The artifact's settings that are tried here (scripts/aceso_*_search.sh)."""


def files() -> list[str]:
    """All files of the data set that the notebook reads."""
    names = [f"{FOLDER}/gpt_350M_mbs8_tp1_algo0.csv", PUBLISHED_PLAN]
    for setting in SETTINGS.values():
        names += file_names(setting.network, setting.degrees).values()
    return sorted({*names, *LINKS.values(), *REFERENCES.values()})


def open_jobs(data: Source) -> dict[str, Job]:
    """Jobs by name; on a stand-in, which has one microbatch of GPT 1.3B, those of GPT 1.3B."""
    tables: dict[str, Tables] = {}
    if data.is_standin:
        frames = {}
        for degree in STANDIN_DEGREES:
            frames[degree] = data.frame(file_names("gpt_1_3B", STANDIN_DEGREES)[4, degree])
        tables["gpt_1_3B"] = Tables.scaled(frames)
    else:
        for setting in SETTINGS.values():
            tables[setting.network] = read_tables(data, setting.network, setting.degrees)
    jobs = {}
    for name, setting in SETTINGS.items():
        if setting.network in tables:
            jobs[name] = setting.job(tables[setting.network])
    return jobs


def read_tables(data: Source, network: str, degrees: tuple[int, ...]) -> Tables:
    """A network's tables."""
    frames = {key: data.frame(name) for key, name in file_names(network, degrees).items()}
    links = {inside: data.frame(name) for inside, name in LINKS.items()}
    return Tables.read(network, frames, links)


def published_job(data: Source) -> Job:
    """GPT 350M on one GPU, whose plan and predictions are published."""
    frame = data.frame(f"{FOLDER}/gpt_350M_mbs8_tp1_algo0.csv")
    links = {inside: data.frame(name) for inside, name in LINKS.items()}
    tables = Tables.read("gpt_350M", {(8, 1): frame}, links)
    return Setting(network="gpt_350M", layers=24, gpus=1).job(tables)


@lru_cache(maxsize=256)
def find(job: Job, way: Way, budget: int, seed: int = 0) -> Result:
    """What a way finds.

    Args:
        budget: stages priced; grids price what they price.
        seed: of the ways that draw.
    """
    rng = np.random.default_rng(seed)
    if way is Way.EVEN:
        return even_grid(job)
    if way is Way.LAYERS:
        return layer_grid(job)
    if way is Way.WALK:
        return walk(job, budget=budget, rng=rng)
    choose = by_bottleneck if way is Way.BOTTLENECK else in_random_order(rng)
    return alleviate(job, budget=budget, choose=choose)


def budget_of(name: str, budget: int) -> int:
    """Stages priced for a setting."""
    return SETTINGS[name].budget * budget


def gain(jobs: Mapping[str, Job], name: str, way: Way, over: Way, budget: int) -> float:
    """Predicted throughput of a way's plan over another's."""
    budget = budget_of(name, budget)
    rival = find(jobs[name], over, budget)
    return rival.iteration_s / find(jobs[name], way, budget).iteration_s


def search_cost(job: Job, way: Way, budget: int) -> float:
    """Stages priced until within 2 % of the best known plan, over those of the grid of layers."""
    best_s = min(find(job, each, budget).iteration_s for each in Way)
    reached = find(job, way, budget).priced_within(1.02 * best_s)
    return min(reached, 10.0 * budget) / find(job, Way.LAYERS, budget).priced


def measures(jobs: Mapping[str, Job], way: Way, budget: int) -> dict[str, object]:
    """The values of the claims on the search; those whose tables are missing are left out."""
    first = jobs["GPT 1.3B"]
    values: dict[str, object] = {
        "search-cost": search_cost(first, way, budget),
        "their-plan": find(first, way, budget).iteration_s,
    }
    if "Wide-ResNet 4B" in jobs:
        values["over-alpa"] = gain(jobs, "Wide-ResNet 4B", way, Way.LAYERS, budget)
        gpts = ("GPT 1.3B", "GPT 2.6B")
        deep = ("64 layers", "1,024 layers")
        values["over-alpa-gpt"] = [gain(jobs, name, way, Way.LAYERS, budget) for name in gpts]
        if way is not Way.LAYERS:  # pricing all stages of 1,024 layers would take hours
            values["deep"] = [gain(jobs, name, way, Way.EVEN, budget) for name in deep]
    return values


def above_the_limit(jobs: Mapping[str, Job], budget: int) -> int:
    """Plans of both orders and of the even grid, for any job, whose memory passes the limit."""
    count = 0
    for name, job in jobs.items():
        for way in (Way.BOTTLENECK, Way.RANDOM, Way.EVEN):
            price = find(job, way, budget_of(name, budget)).price
            count += price is not None and not price.fits
    return count


def noisy(job: Job, spread: float, rng: np.random.Generator) -> Job:
    """The job with every time of the tables off by a factor of about one plus or minus the spread.

    An operator's forward and backward time are off by one factor, at each microbatch and degree.
    """
    values = job.tables.values.copy()
    factors = np.exp(spread * rng.standard_normal(values.shape[:3]))
    values[..., :2] *= factors[..., None]
    return replace(job.fresh(), tables=replace(job.tables, values=values))


def gradients_s(job: Job, result: Result) -> float:
    """Seconds that summing the gradients of replicas in rings would add to an iteration.

    Stages sum theirs at the same time; links inside the machine run at their highest rate.
    """
    if result.plan is None:
        return 0.0
    longest_s = 0.0
    rate = job.tables.inside_gb_per_s.max() * 1e9
    for stage in result.plan.stages:
        row = job.tables.microbatches.index(result.plan.microbatch // stage.replicas)
        column = job.tables.degrees.index(stage.degree)
        weights_mib = job.tables.values[row, column, job.names[stage.first : stage.end], 4].sum()
        share = 2 * (stage.replicas - 1) / stage.replicas
        longest_s = max(longest_s, share * weights_mib * 2**20 / rate)
    return float(longest_s)


def always_again(job: Job) -> float:
    """Iteration of the best plan of whole layers if every layer is computed again."""
    return layer_grid(job, recomputes=(Recompute.ALL,)).iteration_s


def reference(frame: pd.DataFrame) -> pd.DataFrame:
    """A published table of results with a row a system and a column a size."""
    table = frame.set_index(frame.columns[0]).rename_axis(None)
    return table.astype(float)
