"""``labkit tuning record`` and ``live``: trainings that really run."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pandas as pd

from labkit.kit.command import Output, argument, numbers, option, whole_numbers, words
from labkit.kit.report import Report, Sheet, records
from labkit.quantities import joules, percent
from labkit.tuning.commands.options import (
    Beta,
    DefaultSize,
    Eta,
    Selector,
    Slowdown,
    commands,
    energy_notes,
)

if TYPE_CHECKING:
    from labkit.tuning.live import Decision, LiveJob, LiveState
    from labkit.tuning.recording.meters import CappedMeter
    from labkit.tuning.recording.record import Grid

RUNS_SHOWN = 20


def say(text: str) -> None:
    """Progress goes to standard error: it is not part of the result."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """What is recorded: every network at every batch size with every seed."""

    networks: Annotated[str, option("mlp, cnn.", metavar="A,B", panel="Grid")] = "mlp,cnn"
    batch_sizes: Annotated[str, option("Of one step.", metavar="A,B", panel="Grid")] = (
        "8,16,32,64,128,256,512"
    )
    seeds: Annotated[str, option("One run each.", metavar="A,B", panel="Grid")] = "1,2,3,4,5"
    targets: Annotated[str, option("Validation accuracies.", metavar="A,B", panel="Grid")] = (
        "0.9,0.95,0.97,0.98"
    )
    max_epochs: Annotated[int, option("Then: never.", panel="Grid")] = 50
    default_batch_size: Annotated[
        int, option("Of the job.", "--default-batch-size", "--b0", panel="Grid")
    ] = 64
    default_target: Annotated[float, option("Of the job.", panel="Grid")] = 0.97

    def grid(self) -> Grid:
        from labkit.tuning.recording.record import Grid

        lists = {
            "networks": tuple(words(self.networks)),
            "batch_sizes": tuple(whole_numbers("--batch-sizes", self.batch_sizes)),
            "seeds": tuple(whole_numbers("--seeds", self.seeds)),
            "targets": tuple(numbers("--targets", self.targets)),
        }
        return Grid(**asdict(self) | lists)


@commands.add(
    examples=["labkit tuning record my-trace --networks mlp --batch-sizes 64,256 --seeds 1"]
)
def record(
    folder: Annotated[Path, argument("Where train.csv, power.csv and meta.json go.")],
    options: GridOptions,
    *,
    device: Annotated[str, option("cpu or cuda.", panel="Run")] = "cpu",
    resume: Annotated[bool, option("Go on where it ended.", "--resume", panel="Run")] = False,
    overwrite: Annotated[
        bool, option("Replace what is there.", "--overwrite", panel="Run")
    ] = False,
) -> Report:
    """Train small networks on handwritten digits over batch sizes and seeds; write a trace.

    Epochs and time are measured. Energy is measured where the machine has a counter that may be
    read (a GPU through zeus-ml, RAPL), and modelled elsewhere: every file says which.
    """
    from labkit import tuning
    from labkit.tuning.recording import record as recording

    given = asdict(options) | {"device": device}
    texts = [f"--{name.replace('_', '-')} {value}" for name, value in given.items()]
    meter = recording.find_meter(device)
    cells = recording.record(
        options.grid(),
        folder,
        device=device,
        meter=meter,
        resume=resume,
        overwrite=overwrite,
        command=" ".join(["labkit tuning record", folder.name, *texts]),
        tell=say,
    )
    trace = tuning.load(str(folder))
    tables = {name: tuning.outcomes(trace.job(name)) for name in trace.names}
    shown = pd.concat(
        table.drop_duplicates("batch_size").assign(workload=name) for name, table in tables.items()
    ).replace(float("inf"), float("nan"))
    counter = "no counter" if meter is None else meter.source
    columns = {
        "workload": "workload", "batch_size": "batch size",
        "reach_probability": "reach the target", "expected_epochs": "epochs",
    }  # fmt: skip
    return Report(
        title=f"Recorded {len(cells)} runs into {folder}",
        lead=f"load it with tuning.load({str(folder)!r})",
        facts=[("energy", trace.energy_source, counter)],
        tables=[Sheet(table=shown, columns=columns, formats={"reach_probability": percent})],
        notes=energy_notes(trace.energy_source),
        data={
            "command": "record",
            "folder": str(folder),
            "energy_source": trace.energy_source,
            "counter": counter,
            "outcomes": {name: records(table) for name, table in tables.items()},
        },
    )


@commands.add(
    examples=["labkit tuning live --batch-sizes 32,64 -- python train.py --batch-size {batch_size}"]
)
def live(
    command: Annotated[list[str], argument("What to run.", metavar="-- COMMAND")],
    output: Output,
    *,
    state: Annotated[
        Path, option("File that remembers the job from run to run; one a job.", panel="Run")
    ] = Path("labkit-live.json"),
    batch_sizes: Annotated[
        str, option("For {batch_size} in COMMAND.", metavar="A,B", panel="Grid")
    ] = "1",
    default_batch_size: DefaultSize = None,
    eta: Eta = 0.5,
    beta: Beta = 2.0,
    selector: Selector = "cost",
    max_slowdown: Slowdown = None,
    steps: Annotated[
        int, option("Steps in a slice, where COMMAND tells its steps.", panel="Run")
    ] = 0,
    tries: Annotated[int, option("Runs until one succeeds.", min=1, panel="Run")] = 1,
    gpu_index: Annotated[int, option("Which GPU.", panel="Run")] = 0,
) -> Report:
    """Run a training command on a GPU at the batch size and power limit its past runs suggest.

    Each call is one recurrence. Exit code: 0 if the command succeeded, else 1. COMMAND may hold
    {batch_size}; exit code 0 of COMMAND means that the target was reached. A script that calls
    labkit.tuning.live.tick() after each step, run with --steps N, has its power limits profiled in
    its first run. Without a GPU the command is refused and nothing is run or written.
    """
    from labkit.tuning.live import LiveJob, find_device

    meter = find_device(gpu_index)
    sizes = tuple(whole_numbers("--batch-sizes", batch_sizes))
    job = LiveJob(
        command=tuple(command),
        batch_sizes=sizes,
        default_batch_size=sizes[0] if default_batch_size is None else default_batch_size,
        eta=eta,
        beta=beta,
        selector=selector,
        max_slowdown=max_slowdown,
        steps=steps,
    )
    return run_live(state, job, meter, tries, to_stderr=output.json_to == "-")


def run_live(
    path: Path, job: LiveJob, meter: CappedMeter, tries: int, *, to_stderr: bool = False
) -> Report:
    """Run the job until it succeeds, at most ``tries`` times; exit code 1 where it never did."""
    from labkit.tuning.live import recur

    def announce(decision: Decision) -> None:
        size = f"batch size {decision.batch_size}, " if len(job.batch_sizes) > 1 else ""
        say(f"▶ {size}{decision.power_limit_w:g} W  ({decision.why})")

    for _ in range(tries):
        state = recur(path, job, meter, output=sys.stderr if to_stderr else None, tell=announce)
        if state.runs[-1].ended == "reached":
            break
    return _live_report(path, state)


def _live_report(path: Path, state: LiveState) -> Report:
    last, following = state.runs[-1], state.decide()
    names = ("batch_size", "power_limit_w", "time_s", "energy_j", "cost_j", "ended")
    costs = {run: state.cost_j(run) for run in state.runs}
    table = pd.DataFrame(
        [[getattr(run, name, costs[run]) for name in names] for run in state.runs], columns=names
    )
    shown = table.assign(run=range(1, len(table) + 1)).tail(RUNS_SHOWN)
    columns = {
        "run": "run", "batch_size": "batch size", "power_limit_w": "limit", "ended": "ended",
        "time_s": "time", "energy_j": "energy", "cost_j": "cost",
    }  # fmt: skip
    notes = []
    if len(state.power_limits_w) == 1:
        notes.append("the power limit may not be set here: only batch sizes are chosen")
    elif not state.job.steps:
        notes.append(
            "the command tells no steps: whole runs at the default batch size try the limits, and"
            " their order is taken to hold for every batch size"
        )
    chosen = f"{following.batch_size:,} @ {following.power_limit_w:g} W"
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
