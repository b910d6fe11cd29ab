"""The cluster's panel: completion times beside first come, first served and the bound; its use."""

from __future__ import annotations

from functools import lru_cache
from shlex import quote
from typing import Any

from labkit import cluster
from labkit.kit.panel import Panel

GPUS_PER_NODE = 8
NUM_JOBS = 400
"""Of the synthetic trace that stands in where the user brings none."""
BASELINE = "fifo"


def panel(profile: str = "") -> Panel:
    """One policy on a cluster of nodes, beside first come, first served.

    Args:
        profile: a CSV file of jobs; default: synthetic jobs, whose load a control moves.
    """

    @lru_cache(maxsize=64)
    def trace_at(load: float, gpus: int) -> Any:
        if profile:
            return cluster.from_csv(profile)
        return cluster.generate(NUM_JOBS, num_gpus=gpus, load=load, rng=0)

    @lru_cache(maxsize=8)  # both figures ask for the same
    def runs_of(nodes: int, load: float, policy: str, restart_s: float) -> list[Any]:
        """The policy's run, and the baseline's where that is another."""
        machines = cluster.Cluster.nodes(nodes, gpus=GPUS_PER_NODE)
        trace = trace_at(load, GPUS_PER_NODE * nodes)
        return [
            cluster.simulate(trace, machines, cluster.named(name, restart_s=restart_s))
            for name in dict.fromkeys((policy, BASELINE))
        ]

    def times(nodes: int, **controls: Any) -> Any:
        runs = runs_of(nodes=nodes, **controls)
        machines = cluster.Cluster.nodes(nodes, gpus=GPUS_PER_NODE)
        least = cluster.bound(runs[0].trace, machines)
        return cluster.figure_jct(runs, bound=least, title="Completion times (simulated)")

    def use(**controls: Any) -> Any:
        run = runs_of(**controls)[0]
        return cluster.figure_timeline(run, title="The cluster over time (simulated)")

    def command(nodes: int, load: float, policy: str, restart_s: float) -> str:
        jobs = quote(profile) if profile else f"--load {load:g} --jobs {NUM_JOBS}"
        return (
            f"labkit cluster simulate {jobs} --gpus {GPUS_PER_NODE * nodes} --policy {policy} "
            f"--restart-s {restart_s:g}"
        )

    return Panel(
        title=f"Cluster: {profile or 'synthetic jobs'}",
        figures=(times, use),
        axes={
            "nodes": (2, 32),
            "load": (0.3, 1.3),
            "policy": ["las2d", "srsf", "srtf", "las", "sjf", "fifo"],
            "restart_s": (0.0, 600.0),
        },
        call=command,
        label={"nodes": "nodes of 8 GPUs", "restart_s": "seconds that a stop costs"},
        start={"nodes": 8, "load": 0.9},
    )
