"""What ``labkit pipeline choose`` reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.cli.pipeline_report import plan_data, plan_facts, plan_figures, sizes_of
from labkit.cli.pipeline_view import Report, Sheet, joules, percent, records, seconds, size

if TYPE_CHECKING:
    import pandas as pd

    from labkit.cli.pipeline_input import Profile
    from labkit.pipeline.choice.joint import JointChoice, Search


def of_choice(choice: JointChoice, source: Profile) -> Report:
    """The best plan, and what became of every other candidate."""
    best, chosen, table = choice.best, choice.chosen, choice.frame()
    limit = choice.memory_limit_bytes
    facts = [
        ("schedule", chosen.title, f"one of {len(table)} candidates"),
        (
            "memory",
            size(chosen.peak_bytes),
            "of the fullest device" + ("" if limit is None else f", limit {size(limit)}"),
        ),
        *plan_facts(best, choice.reference, "1F1B at the highest clock"),
    ]
    facts[-2] = ("lower bound", joules(choice.bound_j), "of every candidate within the limits")
    facts[-1] = ("gap", percent(choice.gap, 3), "above the bound at most")
    return Report(
        title=f"Least energy within the limits: {sizes_of(best.schedule)}",
        lead=f"profile {source.origin}, {best.profile.blocking_power_w:g} W while waiting",
        banner=source.warning,
        facts=facts,
        tables=[
            _sheet(_best_of_each(table), "Each schedule at its best"),
            _sheet(table, "All candidates", page_only=True),
        ],
        notes=[
            *choice.assumptions,
            *(f"Left out: {why}." for why in choice.left_out.values()),
        ],
        data={
            "command": "choose",
            "profile": source.data,
            "memory_limit_bytes": limit,
            "deadline_s": choice.deadline_s,
            "best": plan_data(best, choice.reference)
            | {
                "bound_j": choice.bound_j,
                "gap_fraction": choice.gap,
                "options": {key: np.asarray(v).tolist() for key, v in chosen.settings.items()},
                "max_in_flight": chosen.max_in_flight,
                "activation_bytes": chosen.activation_bytes,
                "parameter_bytes": chosen.parameter_bytes,
            },
            "candidates": records(table),
            "left_out": choice.left_out,
            "assumptions": list(choice.assumptions),
        },
        draw=lambda: plan_figures(best, choice.reference, beside="1F1B"),
    )


def _best_of_each(table: pd.DataFrame) -> pd.DataFrame:
    """Of each schedule and its chunks the first row: rows stand from the best on."""
    return table.drop_duplicates(["schedule", "num_chunks"]).reset_index(drop=True)


def _sheet(table: pd.DataFrame, heading: str, *, page_only: bool = False) -> Sheet:
    rows = [
        (
            one["schedule"],
            str(one["num_chunks"]),
            "" if one["max_in_flight"] is None else str(one["max_in_flight"]),
            size(one["peak_activation_bytes"] + one["parameter_bytes"]),
            seconds(one["fastest_s"]),
            "" if one["energy_j"] is None else joules(one["energy_j"]),
            "" if one["bound_j"] is None else joules(one["bound_j"]),
            percent(one["saving_fraction"]),
            _why(one),
        )
        for one in records(table)
    ]
    columns = (
        "schedule", "chunks", "cap", "memory", "fastest", "energy", "bound", "saved", "verdict",
    )  # fmt: skip
    return Sheet(
        heading=heading, columns=columns, rows=rows, words=(0, 8), wide=(1, 4), page_only=page_only
    )


def _why(one: dict[str, Any]) -> str:
    """Why a candidate was not chosen, in a word or two: its numbers stand beside."""
    if not one["dropped"]:
        return "the best"
    if not one["fits"]:
        return "too large"
    if one["energy_j"] is not None:
        return "costs more"
    return "too slow" if one["bound_j"] is None else "cannot win"


def of_tradeoff(
    search: Search,
    limits: Sequence[float | None],
    deadlines: Sequence[float | None],
    source: Profile,
) -> Report:
    """The least energy for every pair of a memory limit and a deadline."""
    table = search.tradeoff(memory_limits_bytes=limits, deadlines_s=deadlines)
    rows = [
        (
            "none" if one["memory_limit_bytes"] is None else size(one["memory_limit_bytes"]),
            seconds(one["deadline_s"]),
            one["schedule"] or "nothing fits",
            "" if one["max_in_flight"] is None else str(one["max_in_flight"]),
            "" if one["makespan_s"] is None else seconds(one["makespan_s"]),
            "" if one["energy_j"] is None else joules(one["energy_j"]),
            percent(one["saving_fraction"]),
            "" if one["energy_j"] is None else percent(one["energy_j"] / one["bound_j"] - 1, 3),
        )
        for one in records(table)
    ]
    columns = (
        "memory limit", "deadline", "schedule", "cap", "makespan", "energy", "saved", "gap",
    )  # fmt: skip
    problems = [one for one in table["problem"] if one]
    return Report(
        title=f"What memory and time are worth: {sizes_of(search.reference.schedule)}",
        lead=f"profile {source.origin}; saved: of the energy of 1F1B at the highest clock, "
        f"{joules(search.reference.energy_j)} in {seconds(search.reference.makespan_s)}",
        banner=source.warning,
        tables=[Sheet(heading="", columns=columns, rows=rows, words=(2,))],
        notes=[*dict.fromkeys(problems), *search.assumptions()],
        data={
            "command": "choose",
            "profile": source.data,
            "reference": {
                "makespan_s": search.reference.makespan_s,
                "energy_j": search.reference.energy_j,
            },
            "tradeoff": records(table),
            "left_out": search.left_out,
            "assumptions": list(search.assumptions()),
        },
        draw=lambda: _figures(table),
    )


def _figures(table: pd.DataFrame) -> list[tuple[str, str, Any]]:
    from labkit.pipeline.figures.plan_figures import figure_tradeoff

    small = table["peak_activation_bytes"].max() < 1000
    unit = "activations" if small else "bytes"
    note = "Each mark names the schedule of least energy there."
    return [("Energy against limits", note, figure_tradeoff(table, unit=unit))]
