"""``labkit tuning`` itself, and what its commands share: options, and the frame of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from labkit import tuning
from labkit.errors import UsageError
from labkit.kit.command import Commands, argument, option, without_missing
from labkit.kit.report import Report, standin_banner
from labkit.tuning.traces.job import Job
from labkit.tuning.traces.trace import TrainingTrace

commands = Commands(
    "tuning",
    "Batch size and power limit: what each choice costs, and who finds the best as a job recurs.",
)

# An option in one of the groups of the help.
in_grid, in_job, in_policy, in_run, in_trace = (
    partial(option, panel=panel) for panel in ("Grid", "Job", "Policy", "Run", "Trace")
)

Eta = Annotated[float, in_policy("Weight of energy against time, 0 to 1.")]
Beta = Annotated[float, in_policy("Stop a run at this many times the cheapest.")]
DefaultSize = Annotated[
    int | None, in_job("The user's batch size.", "--default-batch-size", "--b0")
]
_A_TRACE = (
    "A data set, a recorded trace such as digits, or a folder: your own train.csv, power.csv."
)
TraceName = Annotated[str, in_trace(_A_TRACE, "--trace", "-t")]
GpuName = Annotated[
    str, in_trace("v100 (default), a40, …; of your own folder: its name.", "--gpu", "-g")
]


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Says what a configuration costs, and how a power limit is chosen by it."""

    PANEL = "Power limit"
    eta: Eta = 0.5
    selector: Annotated[str, option("cost, energy, time or max-slowdown.")] = "cost"
    max_slowdown: Annotated[float | None, option("0.05 allows 5 % more time.", metavar="X")] = None


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """A workload of a trace, and what differs from its published defaults."""

    PANEL = "Job"
    workload: Annotated[str, argument("Such as cifar100.", metavar="[WORKLOAD]")] = ""
    trace: TraceName = "zeus-nsdi23"
    gpu: GpuName = ""
    default_batch_size: DefaultSize = None
    target: Annotated[float | None, option("Another recorded target metric.")] = None
    max_epochs: Annotated[int | None, option("When a run counts as failed.")] = None
    host_power: Annotated[float, option("Draw of the rest of the server.", metavar="W")] = 0.0

    def load(self) -> tuple[TrainingTrace, Job]:
        """Load the trace, and the job in it that the options describe."""
        trace = tuning.load(self.trace, gpu=self.gpu or None)
        given = {
            "default_batch_size": self.default_batch_size,
            "target_metric": self.target,
            "max_epochs": self.max_epochs,
        }
        name = only_name(trace, self.workload)
        return trace, trace.job(name, host_power_w=self.host_power, **without_missing(given))


def only_name(trace: TrainingTrace, name: str, flag: str = "") -> str:
    """Return ``name``, or the trace's only workload where no name is given."""
    if not name and len(trace.names) > 1:
        raise UsageError(f"name a workload of this trace{flag}: {', '.join(trace.names)}")
    return name or trace.names[0]


def report(
    command: str, data: Mapping[str, Any], *, standins: Mapping[str, str], **more: Any
) -> Report:
    """A report that names itself in its JSON, and warns of stand-ins (``standin_banner``)."""
    is_standin = any(standins.values())
    return Report(
        data={"command": command, "is_standin": is_standin, **data},
        banner=standin_banner(standins),
        **more,
    )


def energy_notes(source: str) -> list[str]:
    """Say what to know of energy that was not measured; where it was measured there is no note."""
    if source != "modelled":
        return []
    return [
        "energy, and time below the highest clock, are modelled (labkit/tuning/recording/"
        "capping.py): this machine let no counter be read; epochs and their time at full clock are "
        "measured"
    ]
