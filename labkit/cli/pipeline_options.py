"""The options of ``labkit pipeline``, each said once: several commands take the same ones."""

from __future__ import annotations

from typing import Any

import typer

SIZE, WORK, NET, CLOCKS, OUT = "Schedule", "Work", "Network", "Clocks", "Output"


def _schedules(incomplete: str) -> list[str]:
    from labkit.pipeline.scheduling.families import FAMILIES

    return [name for name in FAMILIES if name.startswith(incomplete)]


def _profiles(incomplete: str) -> list[str]:
    """Published profiles for the shell; nothing where there is no workbook."""
    from labkit.cli.pipeline_input import short_names
    from labkit.errors import LabkitError

    try:
        return [name for name in short_names() if name.startswith(incomplete)]
    except LabkitError:
        return []


def option(default: Any, *names: str, panel: str, **more: Any) -> Any:
    return typer.Option(default, *names, rich_help_panel=panel, **more)


NAME = typer.Argument(
    None,
    metavar="SCHEDULE",
    autocompletion=_schedules,
    help="`labkit pipeline schedules` lists them.",
)
STAGES = option(None, "--stages", "-s", panel=SIZE, help="Devices in the pipeline.")
MICROBATCHES = option(
    None, "--microbatches", "-m", panel=SIZE, help="Microbatches in an iteration."
)
CHUNKS = option(None, "--chunks", panel=SIZE, help="Chunks of the model on a device.")
CAP = option(
    "",
    "--max-in-flight",
    panel=SIZE,
    metavar="N",
    help="Most activations a device has memory for, one number or one per device.",
)
SET = option(
    None,
    "--set",
    panel=SIZE,
    metavar="NAME=VALUE",
    help="Another option of the schedule, such as warmup=b or num_waves=2. Repeatable.",
)
ORDER = option(
    None, "--order", panel=SIZE, help="A CSV file with an order of your own, instead of a name."
)

FORWARD = option(
    "1",
    "--forward",
    panel=WORK,
    metavar="S",
    help="Seconds of a forward, one number or one per stage, such as 1,1.2,1.",
)
BACKWARD = option(
    "1", "--backward", panel=WORK, metavar="S", help="Of the input half of a backward."
)
WEIGHT = option(
    "1",
    "--weight",
    panel=WORK,
    metavar="S",
    help="Of the weight half; a whole backward takes both.",
)
ACTIVATIONS = option(
    "",
    "--activation-bytes",
    panel=WORK,
    metavar="BYTES",
    help="What a microbatch on a stage holds, such as 1.2GB. Default: memory counts activations.",
)
JITTER = option(0.0, "--jitter", panel=WORK, help="Spread of every duration: 0.05 for 5 %.")
SEED = option(0, "--seed", panel=WORK, help="Of the jitter.")

LATENCY = option("", "--latency", panel=NET, metavar="S", help="Seconds of a message at least.")
BANDWIDTH = option("", "--bandwidth", panel=NET, metavar="BYTES/S", help="Of a link, such as 25GB.")
MESSAGE = option(
    "",
    "--message-bytes",
    panel=NET,
    metavar="BYTES",
    help="What a stage sends to the next, such as 64MiB.",
)
OVERLAP = option(
    True, "--overlap/--no-overlap", panel=NET, help="Whether a device computes while it sends."
)

PROFILE = option(
    ...,
    "--profile",
    "-p",
    panel=CLOCKS,
    metavar="PROFILE",
    autocompletion=_profiles,
    help="A CSV file, a short name such as a100/bloom, or a dataset's file.",
)
POWER = option(
    None,
    "--blocking-power",
    panel=CLOCKS,
    metavar="W",
    help="What a GPU draws while it waits; published profiles know theirs.",
)
SMOOTH = option(False, "--smooth", panel=CLOCKS, help="Plan on the profile without its noise.")
WEIGHT_SHARE = option(
    0.5,
    "--weight-fraction",
    panel=CLOCKS,
    metavar="X",
    help="Share of a backward that its weight half takes, where a schedule splits it.",
)
METHOD = option("optimal", "--method", panel=CLOCKS, help="The planner.")
METHODS = option(
    "", "--methods", panel=CLOCKS, metavar="A,B,…", help="Planners. Default: all of them."
)
PLANNER_SET = option(
    None,
    "--planner-set",
    panel=CLOCKS,
    metavar="NAME=VALUE",
    help="A setting of the planner, such as reconfigure=greedy. Repeatable.",
)
SCHEDULES = option("1f1b", "--schedules", panel=SIZE, metavar="A,B,…", help="Schedules.")
DEADLINE = option(
    "", "--deadline", panel=CLOCKS, metavar="S", help="Latest end of the iteration, in seconds."
)
SLOWDOWN = option(
    "",
    "--slowdown",
    panel=CLOCKS,
    metavar="X",
    help="The deadline as a share beyond the default one: 0.05 for 5 % later.",
)
FRONTIER = option(
    0,
    "--frontier",
    panel=CLOCKS,
    metavar="N",
    min=0,
    help="Also plan for N deadlines, from the fastest to where nothing more is saved.",
)

ANY_SCHEDULES = option(
    "", "--schedules", panel=SIZE, metavar="A,B,…", help="Default: every synchronous one."
)
ANY_CHUNKS = option(
    "2", "--chunks", panel=SIZE, metavar="V,…", help="Chunks a device, where a schedule has them."
)
MEMORY = option(
    "",
    "--memory-limit",
    panel=SIZE,
    metavar="BYTES,…",
    help="What a device has, such as 24GiB (or a number of activations). Several: each in turn.",
)
PARAMETERS = option(
    "",
    "--parameter-bytes",
    panel=SIZE,
    metavar="BYTES",
    help="Parameters, gradients and optimizer state of a stage, one number or one per stage.",
)
HELD = option(
    "",
    "--activation-bytes",
    panel=SIZE,
    metavar="BYTES",
    help="Of one microbatch on a stage, one number or one per stage. Default: 1, an activation.",
)
TOLERANCE = option(
    0.0,
    "--tolerance",
    panel=CLOCKS,
    metavar="X",
    help="Stop once no candidate can save more than this share beyond the best.",
)

JSON = option("", "--json", panel=OUT, metavar="FILE", help="Write JSON; - for standard output.")
HTML = option(None, "--html", panel=OUT, help="Write a page with figures; needs no network.")
TRACE = option(None, "--trace", panel=OUT, help="Write trace events for ui.perfetto.dev.")
CSV = option(None, "--csv", panel=OUT, help="Write a table with a row for every instruction.")
SAVE_ORDER = option(None, "--save-order", panel=OUT, help="Write the order in torch's CSV format.")
