"""``labkit tuning record`` and ``live``: trainings that really run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from labkit import tuning
from labkit.kit.command import (
    Output,
    argument,
    as_options,
    numbers,
    option,
    whole_numbers,
    words,
)
from labkit.kit.report import Report, Sheet, records
from labkit.quantities import joules, percent, seconds
from labkit.tuning.commands import options
from labkit.tuning.commands.options import commands, energy_notes
from labkit.tuning.configurations.outcomes import config_text
from labkit.tuning.live import Decision, LiveJob, find_device, recur
from labkit.tuning.recording import record as recording
from labkit.tuning.recording.meters import GpuMeter
from labkit.tuning.traces.trace import meta as trace_meta

RUNS_SHOWN = 20
STATE = Path("labkit-live.json")


def say(text: str) -> None:
    """Write progress to standard error, since it is no part of the result."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """What is recorded: every network at every batch size with every seed."""

    PANEL = "Grid"
    networks: Annotated[str, option("mlp, cnn.", metavar="A,B")] = "mlp,cnn"
    batch_sizes: Annotated[str, option("Examples of one step.", metavar="A,B")] = (
        "8,16,32,64,128,256,512"
    )
    seeds: Annotated[str, option("Each has a run of its own.", metavar="A,B")] = "1,2,3,4,5"
    targets: Annotated[str, option("Validation accuracies.", metavar="A,B")] = "0.9,0.95,0.97,0.98"
    max_epochs: Annotated[int, option("A run ends here.")] = 50
    default_batch_size: Annotated[
        int, option("What the job runs at.", "--default-batch-size", "--b0")
    ] = 64
    default_target: Annotated[float, option("What the job must reach.")] = 0.97

    def grid(self) -> recording.Grid:
        """Read the options' lists and make the grid of them."""
        lists = {
            "networks": words(self.networks),
            "batch_sizes": whole_numbers("--batch-sizes", self.batch_sizes),
            "seeds": whole_numbers("--seeds", self.seeds),
            "targets": numbers("--targets", self.targets),
        }
        return recording.Grid(**asdict(self) | lists)


def counter_notes(meta: Mapping[str, Any]) -> list[str]:
    """Say how far off measured energy may be, by the counter's steps and by what is documented."""
    if "counter_error_fraction" not in meta:
        return []
    error = percent(meta["counter_error_fraction"], 2)
    return [
        f"the counter's steps put energy and power off by at most {error}: the shortest window had "
        f"{seconds(meta['shortest_window_s'])}, and the counter is {meta['counter_documented']}"
    ]


@commands.add(
    examples=["labkit tuning record my-trace --networks mlp --batch-sizes 64,256 --seeds 1"]
)
def record(
    folder: Annotated[Path, argument("Where train.csv, power.csv and meta.json go.")],
    grid: GridOptions,
    *,
    device: Annotated[str, options.in_run("cpu or cuda.")] = "cpu",
    resume: Annotated[bool, options.in_run("Go on where it ended.", "--resume")] = False,
    overwrite: Annotated[bool, options.in_run("Replace what is there.", "--overwrite")] = False,
) -> Report:
    """Train small networks on handwritten digits over batch sizes and seeds; write a trace.

    Epochs and time are measured. Energy is measured where the machine has a counter that may be
    read (a GPU through zeus-ml, RAPL), and modelled elsewhere: every file says which. How far off
    the counter may be stands in the report and in meta.json.
    """
    given = asdict(grid) | {"device": device}
    texts = [f"--{name.replace('_', '-')} {value}" for name, value in given.items()]
    meter = recording.find_meter(device)
    with as_options({"overwrite=True": "--overwrite", "resume=True": "--resume"}):
        cells = recording.record(
            grid.grid(),
            folder,
            device=device,
            meter=meter,
            resume=resume,
            overwrite=overwrite,
            command=" ".join(["labkit tuning record", folder.name, *texts]),
            tell=say,
        )
    trace = tuning.load(str(folder))
    meta = trace_meta(folder)
    tables = {name: tuning.outcomes(trace.job(name)) for name in trace.names}
    sizes = [table.drop_duplicates("batch_size").assign(workload=n) for n, table in tables.items()]
    counter = "no counter" if meter is None else meter.source
    columns = ["workload", "batch_size", "reach_probability", "expected_epochs"]
    shown = pd.concat(sizes).replace(float("inf"), float("nan"))
    return Report(
        title=f"Recorded {len(cells)} runs into {folder}",
        lead=f"load it with tuning.load({str(folder)!r})",
        facts=[("energy", trace.energy_source, counter)],
        tables=[Sheet(table=shown, columns=columns, formats={"reach_probability": percent})],
        notes=[*energy_notes(trace.energy_source), *counter_notes(meta)],
        data={
            "command": "record",
            "folder": str(folder),
            "energy_source": trace.energy_source,
            "counter": counter,
            "counter_error_fraction": meta.get("counter_error_fraction"),
            "outcomes": {name: records(table) for name, table in tables.items()},
        },
    )


@commands.add(
    examples=["labkit tuning live --batch-sizes 32,64 -- python train.py --batch-size {batch_size}"]
)
def live(
    command: Annotated[list[str], argument("What to run.", metavar="-- COMMAND")],
    cost: options.CostOptions,
    output: Output,
    *,
    state: Annotated[Path, options.in_run("Remembers the job from run to run; one a job.")] = STATE,
    batch_sizes: Annotated[
        str, options.in_grid("Values of {batch_size} in COMMAND.", metavar="A,B")
    ] = "1",
    default_batch_size: options.DefaultSize = None,
    beta: options.Beta = 2.0,
    steps: Annotated[int, options.in_run("Steps in a slice, where COMMAND tells its steps.")] = 0,
    tries: Annotated[int, options.in_run("Runs until one succeeds.", min=1)] = 1,
    gpu_index: Annotated[int, options.in_run("Which GPU.")] = 0,
) -> Report:
    """Run a training command on a GPU at the batch size and power limit its past runs suggest.

    Each call is one recurrence. Exit code: 0 if the command succeeded, else 1. COMMAND may hold
    {batch_size}; exit code 0 of COMMAND means that the target was reached. A script that calls
    labkit.tuning.live.tick() after each step, run with --steps N, has its power limits profiled in
    its first run. Without a GPU the command is refused and nothing is run or written.
    """
    meter = find_device(gpu_index)
    sizes = whole_numbers("--batch-sizes", batch_sizes)
    default = sizes[0] if default_batch_size is None else default_batch_size
    job = LiveJob(
        command=tuple(command),
        batch_sizes=tuple(sizes),
        default_batch_size=default,
        beta=beta,
        steps=steps,
        **asdict(cost),
    )
    return run_live(state, job, meter, tries, to_stderr=output.takes_stdout)


def run_live(
    path: Path, job: LiveJob, meter: GpuMeter, tries: int, *, to_stderr: bool = False
) -> Report:
    """Run the job until it succeeds, at most ``tries`` times; exit code 1 where it never did."""

    def announce(decision: Decision) -> None:
        size = f"batch size {decision.batch_size}, " if len(job.batch_sizes) > 1 else ""
        say(f"▶ {size}{decision.power_limit_w:g} W  ({decision.why})")

    for _ in range(tries):
        state = recur(path, job, meter, output=sys.stderr if to_stderr else None, tell=announce)
        if state.runs[-1].ended == "reached":
            break
    last = state.runs[-1]
    following = state.decide()
    table = state.frame()
    notes = []
    if len(state.power_limits_w) == 1:
        notes.append("the power limit may not be set here: only batch sizes are chosen")
    elif not state.job.steps:
        notes.append(
            "the command tells no steps: whole runs at the default batch size try the limits, and"
            " their order is taken to hold for every batch size"
        )
    columns = ["run", "batch_size", "power_limit_w", "ended", "time_s", "energy_j", "cost_j"]
    shown = table.assign(run=table.index + 1).tail(RUNS_SHOWN)
    chosen = config_text(following.batch_size, following.power_limit_w)
    return Report(
        title=f"Run {len(state.runs)} {last.ended}: {joules(last.energy_j)} in {last.time_s:.4g} s",
        lead=f"measured by {state.device}; remembered in {path}",
        facts=[("next", chosen, following.why)],
        tables=[Sheet(heading="Runs", table=shown, columns=columns)],
        csv=table,
        notes=notes,
        exit_code=0 if last.ended == "reached" else 1,
        data={
            "command": "live",
            "device": state.device,
            "ended": last.ended,
            "next": {
                "batch_size": following.batch_size,
                "power_limit_w": following.power_limit_w,
                "why": following.why,
            },
            "runs": records(table),
        },
    )
