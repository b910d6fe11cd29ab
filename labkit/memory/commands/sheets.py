"""Tables of the reports of ``labkit memory``, each from the frame that it shows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from labkit.kit.report import Sheet
from labkit.quantities import formatted

if TYPE_CHECKING:
    import pandas as pd

    from labkit.memory import certainty

MOST_PEAKS = 5  # measured ones that stand beside a plan
MOST_TENSORS = 6
EXACTLY = "{:,.0f}".format  # bytes, to the last
# Columns of the table of moments, narrower than its data.
GROUPS = {
    "parameters": ("parameters", "second copy of the parameters", "cast parameters"),
    "gathered": ("gathered layers", "gather buffers", "gathered sequence"),
    "gradients": ("gradients", "gradients to be reduced", "reduce buffers"),
    "optimizer": ("optimizer",),
    "activations": ("activations",),
    "the rest": ("cached weights", "temporaries", "buffers and inputs", "workspaces"),
}


def helping(table: pd.DataFrame) -> Sheet:
    """What would help, one change at a time."""
    columns = {"say": "say also, or instead", "peak_bytes": "peak", "fits": "fits"}
    return Sheet(heading="What would help", table=table, columns=columns)


def moments(table: pd.DataFrame) -> Sheet:
    """Make a sheet of the moments, with their components added up in groups."""
    shown = table.reset_index()[["moment"]]
    for group, names in (*GROUPS.items(), ("total", ("total",))):
        held = [name for name in names if name in table]
        shown[f"{group}_bytes"] = table[held].sum(axis=1).to_numpy()
    return Sheet(
        heading="Moments of a step", table=shown, wide=["gathered_bytes", "the rest_bytes"]
    )


def at_peak(components: pd.DataFrame) -> Sheet:
    """What is there at the peak, by component."""
    table = components.rename(columns={"share": "share_fraction"})
    columns = {"component": "component", "num_bytes": "bytes", "share_fraction": "share"}
    return Sheet(heading="At the peak", table=table, columns=columns)


def sent(collectives: pd.DataFrame) -> Sheet:
    """What a step sends between ranks."""
    table = collectives[collectives["ranks"] > 1]
    table = table.assign(message=table["collective"] + " of " + table["what"])
    columns = ["axis", "phase", "message", "link", "sent_bytes"]
    return Sheet(heading="Sent in a step", table=table, columns=columns)


def largest(tensors: pd.DataFrame) -> Sheet:
    """What a traced network holds most of at its peak."""
    table = tensors.head(MOST_TENSORS)
    table = table.assign(module=table["module"].where(table["module"] != "", "the loss"))
    names = ("module", "operator", "shape", "number")
    columns = {name: name for name in names} | {"num_bytes": "bytes"}
    return Sheet(heading="Largest tensors at the peak", table=table, columns=columns)


def nearest(sure: certainty.Certainty) -> Sheet:
    """Make a sheet of the measured peaks that are most like a plan."""
    shown = sure.nearest.rename(columns={"error": "error_fraction"})
    more = len(shown) - MOST_PEAKS
    return Sheet(
        heading="Measured peaks most like it",
        note=f"and {more} more as near (--json)" if more > 0 else "",
        table=shown.head(MOST_PEAKS),
        columns={
            "run": "run",
            "measured_bytes": "measured",
            "error_fraction": "ours",
            "differs": "which has",
        },
        ratio={"differs": 1},
    )


def limits(table: pd.DataFrame) -> Sheet:
    """Make a sheet of what fits, and of what the next step would need."""

    def whole(value: float, none: str = "") -> str:
        return f"{value:,.0f}" if value == value else none

    nothing = partial(whole, none="nothing")
    columns = {
        "question": "all else as given",
        "value": "fits",
        "peak_bytes": "with",
        "next_value": "next",
        "lacking_bytes": "short by",
        "binds": "what binds",
    }
    sizes = partial(formatted, "num_bytes")
    return Sheet(
        table=table,
        columns=columns,
        formats={
            "value": nothing,
            "next_value": whole,
            "peak_bytes": sizes,
            "lacking_bytes": sizes,
        },
        ratio={"binds": 1},
    )


def ranks(table: pd.DataFrame, usable: float) -> Sheet:
    """Make a sheet of the pipeline's ranks, each at its own peak."""
    shown = table.assign(fits=table["peak_bytes"] <= usable)
    states = ["parameters_bytes", "gradients_bytes", "optimizer_bytes"]
    shown["states_bytes"] = table[[name for name in states if name in table]].sum(axis=1)
    if "activations_bytes" not in table:
        shown["activations_bytes"] = 0.0
    return Sheet(
        heading="Ranks of the pipeline, each at its own peak",
        table=shown,
        columns={
            "rank": "rank",
            "num_layers": "layers",
            "ends": "with",
            "in_flight": "in flight",
            "peak_moment": "fullest at",
            "states_bytes": "states",
            "activations_bytes": "activations",
            "peak_bytes": "peak",
            "fits": "fits",
        },
        formats={"in_flight": "{:g}".format},
        wide=["states_bytes"],
        note="in flight: microbatches whose activations a rank holds at once",
    )


def exactly(num_bytes: float) -> str:
    """Bytes to the last; a dash where nothing ran."""
    return "–" if num_bytes != num_bytes else EXACTLY(num_bytes)


def by_family(rows: pd.DataFrame, *, fresh: bool) -> list[Sheet]:
    """A table a part of the families; what ran them is said below the last."""
    from labkit.memory.oracles import families

    now = families.versions()
    then = now if fresh else families.stored()["versions"]
    ran = ", ".join(f"{name} {version}" for name, version in then.items())
    notes = [
        f"bytes at the peak on one rank, and how far ours is off, there and at stages of ZeRO on"
        f" {families.RANKS} ranks; run with {ran}; seconds are the processor's"
    ]
    if then != now:
        here = ", ".join(f"{name} {version}" for name, version in now.items()) or "none of them"
        notes.append(f"here there is {here}: --fresh runs all anew")
    sheets = []
    for part, heading in families.PARTS.items():
        table = families.by_family(rows[rows["part"] == part])
        names = [str(name) for name in table.columns]
        stages = [name for name in names if name.startswith("zero_")]
        sheets.append(
            Sheet(
                heading=heading,
                table=table,
                columns={
                    "family": "family",
                    "model": "model",
                    "tracked_bytes": "torch",
                    "predicted_bytes": "ours",
                    "error_bytes": "off",
                    **{name: f"ZeRO {name[5]}" for name in stages},
                    "seconds": "ours, s",
                    "tracker_seconds": "torch, s",
                },
                formats={name: exactly for name in names if name.endswith("_bytes")}
                | dict.fromkeys(("seconds", "tracker_seconds"), "{:.2f}".format),
                wide=["model", "tracker_seconds"],
            )
        )
    sheets[-1] = replace(sheets[-1], note="; ".join(notes))
    return sheets
