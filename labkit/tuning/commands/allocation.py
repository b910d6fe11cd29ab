"""``labkit tuning goodput`` and ``choose``: how many GPUs, and at which batch size and limit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from labkit.errors import UsageError
from labkit.kit.command import argument, option
from labkit.kit.report import Figure, Report, Sheet, records, standin_banner
from labkit.quantities import joules, percent, seconds
from labkit.tuning.commands.options import GpuName, TraceName, commands, only_name

if TYPE_CHECKING:
    import pandas as pd

    from labkit.tuning import GpuPower, HostPower, JointChoice, TrainingTrace
    from labkit.tuning.goodput import Tables


@dataclass(frozen=True, kw_only=True)
class PolluxOptions:
    """A workload of Pollux's measurements, and the GPUs there are."""

    workload: Annotated[
        str,
        argument("bert, cifar10, deepspeech2, imagenet, ncf or yolov3.", metavar="[WORKLOAD]"),
    ] = "cifar10"
    nodes: Annotated[
        int, option("Most nodes; allocations double up to them.", min=1, panel="Job")
    ] = 4
    gpus_used: Annotated[int, option("Most GPUs, spread evenly.", min=1, panel="Job")] = 16

    @property
    def allocations(self) -> list[tuple[int, int]]:
        """(nodes, GPUs) from one GPU up, doubling, on as few nodes as hold them evenly.

        >>> PolluxOptions(nodes=2, gpus_used=8).allocations
        [(1, 1), (1, 2), (1, 4), (2, 8)]
        """
        nodes, gpus = self.nodes, self.gpus_used
        if gpus < nodes:
            raise UsageError(f"--gpus-used {gpus} is fewer than --nodes {nodes}")
        counts = [2**k for k in range(gpus.bit_length()) if 2**k < gpus] + [gpus]
        return [(-(-count // -(-gpus // nodes)), count) for count in counts]


def step_note(tables: Tables) -> str:
    if tables.is_standin:
        return "step times and training runs were made by a model of ours, not measured"
    return "step times and training runs were measured by Pollux's authors, on T4 GPUs"


_GOODPUT = {
    "num_nodes": "nodes", "num_gpus": "GPUs", "batch_size": "batch", "atomic_bsz": "on a GPU",
    "num_gradients": "gradients", "goodput": "goodput (examples/s)", "speedup": "speed-up",
}  # fmt: skip
_FRONT = {
    "mark": "", "num_gpus": "GPUs", "num_nodes": "nodes", "batch_size": "batch", "rule": "rule",
    "power_limit_w": "limit", "time_s": "time", "energy_j": "energy",
}  # fmt: skip
_KNOBS = {
    "knobs": "free", "batch_size": "batch", "num_gpus": "GPUs", "power_limit_w": "limit",
    "time_s": "time", "energy_j": "energy", "energy_saving_fraction": "saved",
}  # fmt: skip


@commands.add(examples=["labkit tuning goodput cifar10 --gpus-used 8 --nodes 2"])
def goodput(
    pollux: PolluxOptions,
    *,
    at: Annotated[float, option("Share of training done, 0 to 1.", panel="Job")] = 0.5,
    accumulation: Annotated[
        bool, option("Allow gradients to be accumulated.", "--accumulation", panel="Job")
    ] = False,
) -> Report:
    """Fit Pollux's step times and say which batch is worth most on each allocation."""
    from labkit import tuning
    from labkit.tuning.goodput.tables import WORKLOADS

    places = pollux.allocations
    tables = tuning.goodput.load("pollux-osdi21", pollux.workload)
    init, noise = tables.init_batch_size, tables.noise_scale(at)
    most, (low, high) = tables.max_batch_size, tables.atomic_bsz_range
    limits: dict[str, Any] = {"max_batch_size": most, "atomic_bsz_range": (low, high)}
    model = tuning.goodput.fit(tables.steps, init_batch_size=init, noise_scale=noise)
    left_out = tuning.goodput.cross_validate(tables.steps)
    error = float(left_out["relative_error"].abs().median())
    table = tuning.goodput.speedups(model, places, accumulation=accumulation, **limits)
    where, of = ("in the stand-in", "the stand-in's") if tables.standin else ("measured",) * 2
    return Report(
        title=f"{WORKLOADS[pollux.workload][0]}: the batch of most goodput",
        lead=f"{at:.0%} through training, where the gradient noise scale is {noise:,.0f} examples",
        facts=[
            ("fit", percent(error, 1), "median error of step times on rows left out"),
            ("step times", f"{len(tables.steps):,}", where),
        ],
        tables=[
            Sheet(table=table.assign(num_gradients=table["accum_steps"] + 1), columns=_GOODPUT)
        ],
        csv=table,
        banner=standin_banner({"step times and training runs": tables.standin}),
        notes=[
            f"batches of {init:,} to {most:,} examples, {low:,} to {high:,} on a GPU, as {where}",
            "goodput (examples a second, each worth one at the initial batch size) and speed-up "
            "are predicted from the fit",
            step_note(tables),
        ],
        figures=lambda: _goodput_figures(
            tuning.goodput.surface(model, places, **limits), left_out, noise, of
        ),
        data={
            "command": "goodput",
            "workload": pollux.workload,
            "is_standin": tables.is_standin,
            "noise_scale_examples": noise,
            "median_left_out_error_fraction": error,
            "allocations": records(table),
        },
    )


def _goodput_figures(
    grid: pd.DataFrame, left_out: pd.DataFrame, noise: float, of: str
) -> list[Figure]:
    from labkit.tuning import goodput_figures as draw

    note = f"Predicted, where the gradient noise scale is {noise:,.0f} examples."
    fit = f"Predicted against {of} step times"
    return [
        ("Goodput", note, draw.figure_goodput(grid)),
        (fit, "Of rows left out of the fit.", draw.figure_fit(left_out)),
    ]


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
    """What GPUs draw, as in a workload of a power trace, and what draws power besides."""

    trace: TraceName = "zeus-nsdi23"
    gpu: GpuName = ""
    power_of: Annotated[
        str,
        option("Workload whose power trace is taken; default: the one most alike.", panel="Power"),
    ] = ""
    gpu_power_w: Annotated[
        float,
        option(
            "Highest limit of the GPU, to which the power trace is scaled (T4: 70); 0: "
            "as recorded.",
            metavar="W",
            panel="Power",
        ),
    ] = 70.0
    host_w: Annotated[
        float,
        option("Draw of each node's host.", "--host-w", "--host-power", metavar="W", panel="Power"),
    ] = 0.0
    gpus_per_node: Annotated[
        int | None, option("Take nodes of so many GPUs whole.", min=1, panel="Power")
    ] = None
    idle_gpu_w: Annotated[
        float | None, option("Draw of a GPU left over on them.", metavar="W", panel="Power")
    ] = None

    def load(self, alike: str) -> tuple[TrainingTrace, GpuPower, HostPower]:
        """The trace, the GPU's power and the hosts; ``alike``: the workload taken if there."""
        from labkit import tuning

        if self.idle_gpu_w is not None and self.gpus_per_node is None:
            raise UsageError(
                "--idle-gpu-w is of GPUs left over on whole nodes: give --gpus-per-node"
            )
        source = tuning.load(self.trace, gpu=self.gpu or None)
        near = [name for name in (alike, "cifar100") if name in source.names]
        name = only_name(source, self.power_of or "".join(near[:1]), ", --power-of")
        power = tuning.GpuPower.from_job(source.job(name))
        host = tuning.HostPower(
            node_power_w=self.host_w,
            gpus_per_node=self.gpus_per_node,
            idle_gpu_power_w=self.idle_gpu_w or 0.0,
        )
        return source, power.scaled(self.gpu_power_w) if self.gpu_power_w else power, host


@commands.add(examples=["labkit tuning choose cifar10 --gpus-used 8 --nodes 2 --deadline 20000"])
def choose(
    pollux: PolluxOptions,
    power: PowerOptions,
    *,
    deadline: Annotated[float | None, option("Seconds.", metavar="S", panel="Job")] = None,
    metric: Annotated[
        float | None, option("Target metric; default: the run's end.", panel="Job")
    ] = None,
) -> Report:
    """Batch size, learning-rate rule, power limit and GPUs together: least energy in time.

    Step times and progress are Pollux's, on T4 GPUs. How power limits act is taken from a power
    trace of another GPU, scaled to --gpu-power-w: a guess, said among the assumptions.
    """
    from labkit import tuning
    from labkit.tuning.choice.progress import useful_sizes
    from labkit.tuning.goodput.tables import WORKLOADS

    places = pollux.allocations
    trace, gpu, host = power.load(ALIKE.get(pollux.workload, ""))
    tables = tuning.goodput.load("pollux-osdi21", pollux.workload)
    choice = tuning.choose(
        tuning.goodput.fit(tables.steps),
        tuning.ModelledProgress.from_tables(tables, metric=metric),
        gpu,
        allocations=places,
        batch_sizes=useful_sizes(tables.init_batch_size, tables.max_batch_size),
        deadline_s=deadline,
        atomic_bsz_range=tables.atomic_bsz_range,
        host=host,
    )
    front, best, knobs = choice.frontier, choice.best, _knobs(choice, tables.init_batch_size)
    origins = {
        "step times and training runs": tables.standin,
        f"the {trace.gpu} power trace": trace.standin,
    }
    by = "no deadline" if deadline is None else f"within {seconds(deadline)}"
    return Report(
        title=f"{WORKLOADS[pollux.workload][0]}, {by}: {best}",
        lead=str(choice.certificate),
        facts=[
            ("energy", joules(best.energy_j), f"{best.average_power_w:,.0f} W on average"),
            ("time", seconds(best.time_s), f"{best.steps:,.0f} steps"),
        ],
        tables=_choice_sheets(front, knobs),
        csv=front,
        banner=standin_banner(origins),
        notes=[step_note(tables), *choice.assumptions],
        figures=partial(_choice_figures, choice, knobs),
        data={
            "command": "choose",
            "workload": pollux.workload,
            "is_standin": tables.is_standin or bool(trace.standin),
            "deadline_s": deadline,
            "best": asdict(best),
            "frontier": records(front),
            "knobs": None if knobs is None else records(knobs),
            "assumptions": list(choice.assumptions),
        },
    )


def _knobs(choice: JointChoice, init_batch_size: int) -> pd.DataFrame | None:
    """Each knob alone, from the fewest GPUs that hold the initial batch size, if any does."""
    able = choice.points[choice.points["batch_size"] == init_batch_size]
    if able.empty:
        return None
    nodes, gpus = able[["num_nodes", "num_gpus"]].sort_values(["num_gpus", "num_nodes"]).iloc[0]
    table = choice.one_by_one(num_nodes=nodes, num_gpus=gpus, batch_size=init_batch_size)
    given = f"none: batch {init_batch_size:,}, {gpus} on {nodes}"
    return table.assign(knobs=table["knobs"].replace("as given", given))


def _choice_sheets(front: pd.DataFrame, knobs: pd.DataFrame | None) -> list[Sheet]:
    shown = front.assign(mark=["→" if chosen else "" for chosen in front["is_chosen"]])
    heading = "What nothing beats in time and energy both"
    sheets = [Sheet(heading=heading, table=shown, columns=_FRONT)]
    if knobs is not None:
        heading = "What each knob is worth, the others as given"
        note = "empty: nothing is in time" if knobs["energy_j"].isna().any() else ""
        sheets.append(Sheet(heading=heading, note=note, table=knobs, columns=_KNOBS))
    return sheets


def _choice_figures(choice: JointChoice, knobs: pd.DataFrame | None) -> list[Figure]:
    from labkit.tuning import goodput_figures

    drawn: list[Figure] = [
        (
            "Time and energy to the target",
            "Predicted; grey: other points evaluated, the slowest and dearest left out.",
            goodput_figures.figure_choice(choice),
        )
    ]
    if knobs is not None:
        note = "Predicted; what is not free stays at the initial batch size and the highest limit."
        drawn.append(("What each knob is worth", note, goodput_figures.figure_knobs(knobs)))
    return drawn
