"""The tuner's panel: every configuration, a policy's way through them, the Pareto front."""

from __future__ import annotations

from functools import lru_cache
from shlex import quote
from typing import Any

from labkit import tuning
from labkit.kit.panel import Panel

DEFAULT_TRACE = "zeus-nsdi23"


def panel(profile: str = "") -> Panel:
    """The configurations of a training trace's jobs, and where a policy goes among them.

    Args:
        profile: the name of a trace, or a folder that ``labkit tuning record`` made.

    Raises:
        UsageError: there is no such trace.
    """
    name = profile or DEFAULT_TRACE
    trace = tuning.load(name)
    jobs = {workload: trace.job(workload) for workload in trace.workloads}

    @lru_cache(maxsize=8)  # two figures ask for the same
    def outcomes_of(workload: str, eta: float) -> tuple[Any, Any]:
        """The table of all configurations, and the cheapest of them."""
        job = jobs[workload]
        return tuning.outcomes(job, eta=eta), tuning.optimum(job, eta=eta)

    def surface(workload: str, eta: float) -> Any:
        table, _ = outcomes_of(workload, eta)
        return tuning.figures.figure_map(table, value="cost_j", title="Cost of each configuration")

    def path(workload: str, eta: float, policy: str, seed: int) -> Any:
        runs = tuning.simulate(jobs[workload], policy=policy, eta=eta, seeds=[seed])
        _, cheapest = outcomes_of(workload, eta)
        title = f"Where {policy} goes (simulated, seed {seed})"
        return tuning.figures.figure_search_path(runs.path(seed), cheapest, title=title)

    def front(workload: str, eta: float) -> Any:
        table, cheapest = outcomes_of(workload, eta)
        return tuning.figures.figure_pareto(table, chosen=cheapest, title="Time and energy")

    def command(workload: str, eta: float, policy: str, seed: int) -> str:
        return (
            f"labkit tuning simulate {workload} --trace {quote(name)} --eta {eta:g} "
            f"-p {policy} --seeds {seed + 1}"
        )

    return Panel(
        title=f"Tuner: {trace.gpu} {trace.standin}",
        figures=(surface, path, front),
        axes={
            "workload": list(jobs),
            "eta": (0.0, 1.0),
            "policy": ["zeus", "grid", "thompson"],
            "seed": (0, 20),
        },
        call=command,
        label={"eta": "weight of energy, η"},
        start={"eta": 0.5},
    )
