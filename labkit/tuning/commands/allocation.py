"""``labkit tuning goodput`` and ``choose``: how many GPUs, and at which batch size and limit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import pandas as pd

from labkit import tuning
from labkit.errors import UsageError
from labkit.kit.command import argument, option
from labkit.kit.report import Figure, Report, Sheet, records
from labkit.quantities import percent, seconds
from labkit.tuning.choice.choose import JointChoice, place_text
from labkit.tuning.choice.gpu_power import GpuPower, HostPower
from labkit.tuning.choice.progress import useful_sizes
from labkit.tuning.commands import options
from labkit.tuning.commands.options import commands, report
from labkit.tuning.goodput import Tables
from labkit.tuning.traces.trace import TrainingTrace

DATASET = "pollux-osdi21"


@dataclass(frozen=True, kw_only=True)
class PolluxOptions:
    """A workload of Pollux's measurements, and how many GPUs it may have."""

    PANEL = "Job"
    workload: Annotated[
        str, argument("bert, cifar10, deepspeech2, imagenet, ncf or yolov3.", metavar="[WORKLOAD]")
    ] = "cifar10"
    nodes: Annotated[int, option("Most nodes; allocations double up to them.", min=1)] = 4
    gpus_used: Annotated[int, option("Most GPUs, spread evenly.", min=1)] = 16

    @property
    def allocations(self) -> list[tuple[int, int]]:
        """Lists (nodes, GPUs) from one GPU up, doubling, on as few nodes as hold them evenly.

        >>> PolluxOptions(nodes=2, gpus_used=8).allocations
        [(1, 1), (1, 2), (1, 4), (2, 8)]
        """
        nodes = self.nodes
        gpus = self.gpus_used
        if gpus < nodes:
            raise UsageError(f"--gpus-used {gpus} is fewer than --nodes {nodes}")
        counts = [2**k for k in range(gpus.bit_length()) if 2**k < gpus] + [gpus]
        return [(-(-count // -(-gpus // nodes)), count) for count in counts]


def step_note(tables: Tables) -> str:
    """Say where step times and training runs come from."""
    if tables.standin:
        return "step times and training runs were made by a model of ours, not measured"
    return "step times and training runs were measured by Pollux's authors, on T4 GPUs"


# ---------------------------------------------------------------- goodput


_GOODPUT = {
    "num_nodes": "nodes",
    "num_gpus": "GPUs",
    "batch_size": "batch",
    "atomic_bsz": "on a GPU",
    "num_gradients": "gradients",
    "goodput": "goodput (examples/s)",
    "speedup": "speed-up",
}


@commands.add(examples=["labkit tuning goodput cifar10 --gpus-used 8 --nodes 2"])
def goodput(
    pollux: PolluxOptions,
    *,
    at: Annotated[float, options.in_job("Share of training done, 0 to 1.")] = 0.5,
    accumulation: Annotated[
        bool, options.in_job("Allow gradients to be accumulated.", "--accumulation")
    ] = False,
) -> Report:
    """Fit Pollux's step times and say which batch is worth most on each allocation."""
    places = pollux.allocations
    tables = tuning.goodput.load(DATASET, pollux.workload)
    init = tables.init_batch_size
    noise = tables.noise_scale(at)
    most = tables.max_batch_size
    low, high = tables.atomic_bsz_range
    model = tuning.goodput.fit(tables.steps, init_batch_size=init, noise_scale=noise)
    limits: dict[str, Any] = {"max_batch_size": most, "atomic_bsz_range": (low, high)}
    table = tuning.goodput.speedups(model, places, accumulation=accumulation, **limits)
    shown = table.assign(num_gradients=table["accum_steps"] + 1)
    left_out = tuning.goodput.cross_validate(tables.steps)
    error = float(left_out["relative_error"].abs().median())
    where, of = ("in the stand-in", "made-up") if tables.standin else ("measured",) * 2
    draw = tuning.goodput_figures
    at_noise = f"the gradient noise scale is {noise:,.0f} examples"
    return report(
        "goodput",
        {
            "workload": pollux.workload,
            "noise_scale_examples": noise,
            "median_left_out_error_fraction": error,
            "allocations": records(table),
        },
        standins={"step times and training runs": tables.standin},
        title=f"{tables.title}: the batch of most goodput",
        lead=f"{at:.0%} through training, where {at_noise}",
        facts=[
            ("fit", percent(error, 1), "median error of step times on rows left out"),
            ("step times", f"{len(tables.steps):,}", where),
        ],
        tables=[Sheet(table=shown, columns=_GOODPUT)],
        csv=table,
        notes=[
            f"batches of {init:,} to {most:,} examples, {low:,} to {high:,} on a GPU, as {where}",
            "goodput (examples a second, each worth one at the initial batch size) and speed-up "
            "are predicted from the fit",
            step_note(tables),
        ],
        figures=lambda: [
            (
                "Goodput",
                f"Predicted, where {at_noise}.",
                draw.figure_goodput(tuning.goodput.surface(model, places, **limits)),
            ),
            (
                f"Predicted against {of} step times",
                "Of rows left out of the fit.",
                draw.figure_fit(left_out, of=of),
            ),
        ],
    )


# ---------------------------------------------------------------- choose

ALIKE = {
    "bert": "squad",
    "cifar10": "cifar100",
    "deepspeech2": "librispeech",
    "imagenet": "imagenet",
    "ncf": "movielens-1m",
}
"""Zeus's workload whose network and data are nearest to Pollux's."""


@dataclass(frozen=True, kw_only=True)
class PowerOptions:
    """Says what GPUs draw, by a workload of a power trace, and what draws power besides."""

    PANEL = "Power"
    trace: options.TraceName = "zeus-nsdi23"
    gpu: options.GpuName = ""
    power_of: Annotated[
        str, option("Workload whose power trace is taken; default: the one most alike.")
    ] = ""
    gpu_power_w: Annotated[
        float, option("Highest limit, to which the power trace is scaled (T4: 70); 0: as recorded.")
    ] = 70.0
    host_w: Annotated[float, option("Draw of each node's host.", "--host-w", "--host-power")] = 0.0
    gpus_per_node: Annotated[int | None, option("Take nodes of so many GPUs whole.", min=1)] = None
    idle_gpu_w: Annotated[float | None, option("Draw of a GPU left over on them.")] = None

    def load(self, alike: str) -> tuple[TrainingTrace, GpuPower, HostPower]:
        """Load the trace, the GPU's power and the hosts; the workload ``alike`` is taken if the
        trace has it.
        """
        if self.idle_gpu_w is not None and self.gpus_per_node is None:
            raise UsageError(
                "--idle-gpu-w is of GPUs left over on whole nodes: give --gpus-per-node"
            )
        trace = tuning.load(self.trace, gpu=self.gpu or None)
        near = next((name for name in (alike, "cifar100") if name in trace.names), "")
        name = options.only_name(trace, self.power_of or near, ", --power-of")
        power = GpuPower.from_job(trace.job(name))
        host = HostPower(
            node_power_w=self.host_w,
            gpus_per_node=self.gpus_per_node,
            idle_gpu_power_w=self.idle_gpu_w or 0.0,
        )
        return trace, power.scaled(self.gpu_power_w) if self.gpu_power_w else power, host


@commands.add(examples=["labkit tuning choose cifar10 --gpus-used 8 --nodes 2 --deadline 20000"])
def choose(
    pollux: PolluxOptions,
    power: PowerOptions,
    *,
    deadline: Annotated[float | None, options.in_job("Seconds.", metavar="S")] = None,
    metric: Annotated[
        float | None, options.in_job("Target metric; default: the run's end.")
    ] = None,
) -> Report:
    """Batch size, learning-rate rule, power limit and GPUs together: least energy in time.

    Step times and progress are Pollux's, on T4 GPUs. How power limits act is taken from a power
    trace of another GPU, scaled to --gpu-power-w: a guess, said among the assumptions.
    """
    places = pollux.allocations
    trace, gpu, host = power.load(ALIKE.get(pollux.workload, ""))
    tables = tuning.goodput.load(DATASET, pollux.workload)
    init = tables.init_batch_size
    choice = tuning.choose(
        tuning.goodput.fit(tables.steps).step_times,
        tuning.ModelledProgress.from_tables(tables, metric=metric),
        gpu,
        allocations=places,
        batch_sizes=useful_sizes(init, tables.max_batch_size),
        deadline_s=deadline,
        atomic_bsz_range=tables.atomic_bsz_range,
        host=host,
    )
    front = choice.frontier
    best = choice.best
    knobs = _knobs(choice, init)
    by = "no deadline" if deadline is None else f"within {seconds(deadline)}"
    origins = {
        "step times and training runs": tables.standin,
        f"the {trace.gpu} power trace": trace.standin,
    }
    return report(
        "choose",
        {
            "workload": pollux.workload,
            "deadline_s": deadline,
            "best": dict(best),
            "frontier": records(front),
            "knobs": None if knobs is None else records(knobs),
            "assumptions": list(choice.assumptions),
        },
        standins=origins,
        title=f"{tables.title}, {by}: {place_text(best)}",
        lead=choice.certificate,
        facts=[
            ("energy_j", best.energy_j, f"{best.average_power_w:,.0f} W on average"),
            ("time_s", best.time_s, f"{best.steps:,.0f} steps"),
        ],
        tables=_choice_sheets(front, knobs),
        csv=front,
        notes=[step_note(tables), *choice.assumptions],
        figures=partial(_choice_figures, choice, knobs),
    )


def _knobs(choice: JointChoice, init_batch_size: int) -> pd.DataFrame | None:
    """Free each knob alone, from the fewest GPUs that hold the initial batch size, if any does."""
    able = choice.points[choice.points["batch_size"] == init_batch_size]
    if able.empty:
        return None
    nodes, gpus = able[["num_nodes", "num_gpus"]].sort_values(["num_gpus", "num_nodes"]).iloc[0]
    table = choice.one_by_one(num_nodes=nodes, num_gpus=gpus, batch_size=init_batch_size)
    given = f"none: batch {init_batch_size:,}, {gpus} on {nodes}"
    return table.assign(knobs=table["knobs"].replace("as given", given))


def _choice_sheets(front: pd.DataFrame, knobs: pd.DataFrame | None) -> list[Sheet]:
    """Put the front in one sheet and the knobs, if there are any, in another."""
    at = {"batch_size": "batch", "num_gpus": "GPUs", "power_limit_w": "limit"}
    costs = {"time_s": "time", "energy_j": "energy"}
    columns = {"mark": "", "num_nodes": "nodes", **at, "rule": "rule", **costs}
    shown = front.assign(mark=front["is_chosen"].map({True: "→", False: ""}))
    heading = "What nothing beats in time and energy both"
    sheets = [Sheet(heading=heading, table=shown, columns=columns)]
    if knobs is not None:
        heading = "What each knob is worth, the others as given"
        note = "empty: nothing is in time" if knobs["energy_j"].isna().any() else ""
        columns = {"knobs": "free", **at, **costs, "energy_saving_fraction": "saved"}
        sheets.append(Sheet(heading=heading, note=note, table=knobs, columns=columns))
    return sheets


def _choice_figures(choice: JointChoice, knobs: pd.DataFrame | None) -> list[Figure]:
    """Draw the front and the knobs, if there are any."""
    draw = tuning.goodput_figures
    note = "Predicted; grey: other points evaluated, the slowest and dearest left out."
    drawn = [("Time and energy to the target", note, draw.figure_choice(choice))]
    if knobs is not None:
        note = "Predicted; what is not free stays at the initial batch size and the highest limit."
        drawn.append(("What each knob is worth", note, draw.figure_knobs(knobs)))
    return drawn
