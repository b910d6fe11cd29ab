"""The panels: an engine with a control for each of its parameters, in the browser.

A :class:`Panel` says which controls an engine has and which figures are drawn for their values; a
function makes it of what the user brings. Only the engines' public names are called; a figure is
drawn again when a control moves that its function takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from shlex import quote
from typing import TYPE_CHECKING, Any

from labkit.errors import not_among
from labkit.quantities import format_bytes

if TYPE_CHECKING:
    from labkit.workbook.review.live import Live


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Figures over common controls; ``call`` gives the shell command that answers the same."""

    title: str
    call: Callable[..., str]
    figures: tuple[Callable[..., Any], ...]
    axes: Mapping[str, Any]
    label: Mapping[str, str] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)


def pipeline(profile: str = "", model: str = "") -> Panel:
    """Pipeline planner: the plan on its schedule, the frontier, activations in flight."""
    from labkit import pipeline
    from labkit.pipeline.profiles.published import open_profile

    name = profile or "a100/gpt3-175b"
    source = open_profile(name)

    @lru_cache(maxsize=64)
    def planned(schedule: str, num_microbatches: int, slower: float, method: str) -> Any:
        built, fitted = pipeline.fitted(source.profile, schedule, num_microbatches)
        first_s = pipeline.plan(built, fitted, "max-clock").makespan_s
        return built, fitted, pipeline.plan(built, fitted, method, first_s * (1 + slower))

    @lru_cache(maxsize=32)
    def front(schedule: str, num_microbatches: int) -> Any:
        return pipeline.frontier(*planned(schedule, num_microbatches, 0.0, "max-clock")[:2], 6)

    def gantt(**knobs: Any) -> Any:
        plan = planned(**knobs)[2]
        title = f"{plan.schedule.name}: {plan.energy_j:,.0f} J in {plan.makespan_s:.3f} s"
        return pipeline.figure_timeline(plan.frame(), colour="clock", title=title)

    def energies(**knobs: Any) -> Any:
        import pandas as pd

        plan = planned(**knobs)[2]
        row = {"plan": knobs["method"], "makespan_s": plan.makespan_s, "energy_j": plan.energy_j}
        table = front(knobs["schedule"], knobs["num_microbatches"])
        return pipeline.figure_frontier(table, plans=pd.DataFrame([row]), title="Frontier")

    def held(**knobs: Any) -> Any:
        return pipeline.figure_memory(planned(**knobs)[2].timeline.memory_frame())

    return Panel(
        title=f"Pipeline planner: {source.origin} {source.standin_reason}",
        call=lambda schedule, num_microbatches, slower, method: (
            f"labkit pipeline plan {schedule} -p {quote(name)} -m {num_microbatches} "
            f"--slowdown {slower:g} --method {method}"
        ),
        figures=(gantt, energies, held),
        axes={
            "schedule": ["1f1b", "gpipe", "zb-h1"],
            "num_microbatches": (4, 16),
            "slower": (0.0, 0.4),
            "method": ["max-clock", "optimal"],
        },
        label={"num_microbatches": "microbatches", "slower": "deadline later by"},
        start={"num_microbatches": 8, "method": "optimal"},
    )


def memory(profile: str = "", model: str = "") -> Panel:
    """Does it fit: what a device holds at each moment, and what one change would make of it."""
    import pandas as pd

    from labkit import memory
    from labkit.memory.commands.options import Spread, model_of

    shape = model_of(model or "llama-2-7b")
    changes: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "as it is": lambda now: {},
        "zero + 1": lambda now: {"zero": min(now["zero"] + 1, 3)},
        "twice the ranks": lambda now: {"dp": 2 * now["dp"]},
        "half the micro-batch": lambda now: {"micro_batch": max(now["micro_batch"] // 2, 1)},
        "half the tokens": lambda now: {"seq": now["seq"] // 2},
        "recompute all": lambda now: {"recompute": "full"},
    }

    @lru_cache(maxsize=512)
    def planned(**knobs: Any) -> memory.Plan:
        return Spread(**knobs).of(shape)

    def moments(device: str, **knobs: Any) -> Any:
        plan = planned(**knobs)
        usable = plan.usable_bytes(device)
        verdict = "fits" if plan.peak_bytes <= usable else "does not fit"
        title = f"{shape.name} {verdict}: {format_bytes(plan.peak_bytes)} at the peak"
        look: dict[str, Any] = {"capacity_gb": usable / 1e9, "capacity_name": device}
        return memory.figures.figure_moments(plan.moments(), title=title, **look)

    def remedies(device: str, **knobs: Any) -> Any:
        plans = {name: planned(**knobs | change(knobs)) for name, change in changes.items()}
        usable = plans["as it is"].usable_bytes(device)
        rows = pd.concat({name: plan.frame() for name, plan in plans.items()}, names=["plan"])
        rows = rows.reset_index().assign(size_gb=lambda table: table["num_bytes"] / 1e9)
        fits = [name for name, plan in plans.items() if plan.peak_bytes <= usable]
        title = f"At the peak after one change; fits: {', '.join(fits) or 'none of these'}"
        look: dict[str, Any] = {"capacity_gb": usable / 1e9, "capacity_name": device}
        return memory.figures.figure_states(rows, title=title, **look)

    return Panel(
        title=f"Does it fit: {shape.name} (estimated)",
        call=lambda **knobs: " ".join(
            [f"labkit memory plan {quote(model or shape.name)}"]
            + [f"--{name.replace('_', '-')} {value}" for name, value in knobs.items()]
        ),
        figures=(moments, remedies),
        axes={
            "dp": [1, 2, 4, 8, 16, 32, 64, 128, 256],
            "zero": [0, 1, 2, 3],
            "micro_batch": (1, 16),
            "seq": [1024, 2048, 4096, 8192],
            "recompute": ["none", "selective", "full"],
            "device": ["A100-80GB", "A100-40GB", "H100-80GB", "V100-32GB"],
        },
        label={"dp": "data-parallel ranks", "zero": "ZeRO stage", "seq": "tokens"},
        start={"dp": 8, "zero": 1, "seq": 2048},
    )


def tuning(profile: str = "", model: str = "") -> Panel:
    """Tuner: every configuration, the way a policy takes through them, the Pareto front."""
    from labkit import tuning

    name = profile or "zeus-nsdi23"
    trace = tuning.load(name)
    jobs = {workload: trace.job(workload) for workload in trace.workloads}

    @lru_cache(maxsize=8)  # two figures each ask for the same
    def known(workload: str, eta: float) -> tuple[Any, Any]:
        return tuning.outcomes(jobs[workload], eta=eta), tuning.optimum(jobs[workload], eta=eta)

    def surface(workload: str, eta: float) -> Any:
        table, _ = known(workload, eta)
        return tuning.figures.figure_map(table, value="cost_j", title="Cost of each configuration")

    def path(workload: str, eta: float, policy: str, seed: int) -> Any:
        runs = tuning.simulate(jobs[workload], policy=policy, eta=eta, seeds=[seed])
        _, best = known(workload, eta)
        title = f"Where {policy} goes (simulated, seed {seed})"
        return tuning.figures.figure_search_path(runs.path(seed), best, title=title)

    def front(workload: str, eta: float) -> Any:
        table, best = known(workload, eta)
        return tuning.figures.figure_pareto(table, chosen=best, title="Time and energy")

    return Panel(
        title=f"Tuner: {trace.gpu} {trace.standin}",
        call=lambda workload, eta, policy, seed: (
            f"labkit tuning simulate {workload} --trace {quote(name)} --eta {eta:g} "
            f"-p {policy} --seeds {seed + 1}"
        ),
        figures=(surface, path, front),
        axes={
            "workload": list(jobs),
            "eta": (0.0, 1.0),
            "policy": ["zeus", "grid", "thompson"],
            "seed": (0, 20),
        },
        label={"eta": "weight of energy, η"},
        start={"eta": 0.5},
    )


def cluster(profile: str = "", model: str = "") -> Panel:
    """Cluster: completion times beside first come, first served and the bound; the GPUs' use."""
    from labkit import cluster

    few = "--jobs 400"

    @lru_cache(maxsize=64)
    def trace_of(load: float, gpus: int) -> Any:
        if profile:
            return cluster.from_csv(profile)
        return cluster.generate(400, num_gpus=gpus, load=load, rng=0)

    @lru_cache(maxsize=8)  # both figures ask for the same
    def runs(nodes: int, load: float, policy: str, restart_s: float) -> list[Any]:
        machines = cluster.Cluster.nodes(nodes, gpus=8)
        trace = trace_of(load, 8 * nodes)
        chosen = dict.fromkeys((policy, "fifo"))
        return [
            cluster.simulate(trace, machines, cluster.named(name, restart_s=restart_s))
            for name in chosen
        ]

    def times(nodes: int, **knobs: Any) -> Any:
        both = runs(nodes=nodes, **knobs)
        least = cluster.bound(both[0].trace, cluster.Cluster.nodes(nodes, gpus=8))
        return cluster.figure_jct(both, bound=least, title="Completion times (simulated)")

    def use(**knobs: Any) -> Any:
        return cluster.figure_timeline(runs(**knobs)[0], title="The cluster over time (simulated)")

    return Panel(
        title=f"Cluster: {profile or 'synthetic jobs'}",
        call=lambda nodes, load, policy, restart_s: (
            f"labkit cluster simulate {quote(profile) if profile else f'--load {load:g} {few}'} "
            f"--gpus {8 * nodes} --policy {policy} --restart-s {restart_s:g}"
        ),
        figures=(times, use),
        axes={
            "nodes": (2, 32),
            "load": (0.3, 1.3),
            "policy": ["las2d", "srsf", "srtf", "las", "sjf", "fifo"],
            "restart_s": (0.0, 600.0),
        },
        label={"nodes": "nodes of 8 GPUs", "restart_s": "seconds that a stop costs"},
        start={"nodes": 8, "load": 0.9},
    )


def serving(profile: str = "", model: str = "") -> Panel:
    """Serving: latency over throughput by batcher, and the requests of one run over time."""
    from labkit import serving
    from labkit.serving.commands import RequestOptions

    name = model or "gpt-13b"
    rates_per_s = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]

    @lru_cache(maxsize=64)
    def stream(rate: float, cv: float) -> Any:
        return RequestOptions(trace=profile, rate=rate, cv=cv, count=500).read()

    @lru_cache(maxsize=64)
    def server(tensor: int) -> Any:
        return serving.TokenProfile.roofline(name, "A100-40GB", tensor=tensor)

    def curves(rate: float, cv: float, max_batch: int, tensor: int) -> Any:
        batchers = {
            "by iteration": serving.Batcher(max_batch=max_batch),
            "by request": serving.Batcher(level="request", max_batch=max_batch),
        }
        now = stream(rate, cv)  # what the command answers for is one of the line's points
        least = serving.bound(now, server(tensor), batchers["by iteration"])
        rates = sorted({now.rate_per_s, *rates_per_s})
        table = serving.sweep(now, server(tensor), batchers, rates)
        title = "Latency over throughput (simulated)"
        return serving.figure_latency(table, bound_per_s=least.rate_per_s, title=title)

    def requests(rate: float, cv: float, max_batch: int, tensor: int) -> Any:
        batcher = serving.Batcher(max_batch=max_batch)
        run = serving.simulate(stream(rate, cv), server(tensor), batcher)
        return serving.figure_requests({"": run}, title="The first requests (simulated)")

    return Panel(
        title=f"Serving: {name} on A100-40GB",
        call=lambda rate, cv, max_batch, tensor: (
            f"labkit serving simulate {quote(profile) if profile else f'--count 500 --cv {cv:g}'} "
            f"--rate {rate:g} --model {name} --tensor {tensor} --stages 1 --max-batch {max_batch}"
        ),
        figures=(curves, requests),
        axes={
            "rate": (0.25, 8.0),
            "cv": (1.0, 6.0),
            "max_batch": (1, 64),
            "tensor": [1, 2, 4, 8],
        },
        label={"rate": "requests a second", "cv": "variation of the gaps"},
        start={"max_batch": 16, "rate": 1.0},
    )


PANELS: dict[str, Callable[..., Panel]] = {
    make.__name__: make for make in (pipeline, memory, tuning, cluster, serving)
}


def notebook(name: str, profile: str = "", model: str = "") -> str:
    """The notebook that Voilà shows: one cell, which shows the panel."""
    import nbformat

    source = f"from labkit.cli import panel\npanel.show({name!r}, {profile!r}, {model!r})"
    cells = [nbformat.v4.new_code_cell(source)]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec}))


def built(name: str, *, profile: str = "", model: str = "") -> Panel:
    """The panel ``name`` on what the user brought.

    Raises:
        UsageError: there is no such panel, or it cannot use what was brought.
    """
    if name not in PANELS:
        raise not_among("panel", name, PANELS)
    return PANELS[name](profile=profile, model=model)


def show(name: str, profile: str = "", model: str = "") -> Live:
    """The panel ``name`` as widgets, under a heading."""
    from IPython.display import HTML, display

    from labkit.workbook.review import axes
    from labkit.workbook.review.live import Live

    panel = built(name, profile=profile, model=model)
    display(HTML(f"<h1>{panel.title}</h1>"))
    knobs = axes.read(panel.axes, panel.label, dict(panel.start))
    return Live(panel.figures, knobs, call=panel.call)
