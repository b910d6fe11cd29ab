"""The options of ``labkit memory``, and the plan that they describe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from labkit.cli.pipeline_input import settings, whole_numbers
from labkit.errors import UsageError

if TYPE_CHECKING:
    from labkit.memory import Plan

MODEL, PARALLEL, BATCH, DEVICE_PANEL, OUT = "Model", "Parallelism", "Batch", "Device", "Output"


def option(default: Any, *names: str, panel: str, **more: Any) -> Any:
    return typer.Option(default, *names, rich_help_panel=panel, **more)


NAME = typer.Argument(..., metavar="MODEL", help="A preset such as llama-2-7b, or a config.json.")
DP = option(1, "--dp", panel=PARALLEL, help="Data-parallel ranks.")
TP = option(1, "--tp", panel=PARALLEL, help="Tensor-parallel ranks.")
SP = option(False, "--sp", panel=PARALLEL, help="With sequence parallelism.")
PP = option(1, "--pp", panel=PARALLEL, help="Pipeline devices.")
ZERO = option(0, "--zero", "-z", panel=PARALLEL, help="ZeRO's stage, 0 to 3.")
WORLD = option(None, "--world-size", panel=PARALLEL, help="Refuse other products of the degrees.")
RECIPE = option("bf16-mixed", "--recipe", "-r", panel=MODEL, help="Number formats, optimizer.")
SEQ = option(2048, "--seq", "-s", panel=BATCH, help="Tokens of a sample.")
MICRO = option(1, "--micro-batch", "-b", panel=BATCH, help="Samples a replica at a time.")
RECOMPUTE = option("none", "--recompute", panel=BATCH, help="none, selective, full, or every k.")
SET = option(
    None,
    "--set",
    panel=PARALLEL,
    metavar="NAME=VALUE",
    help="Another field of Parallel, Batch or Recipe, such as ep=8 or step=fused. Repeatable.",
)
DEVICE = option("H100-80GB", "--device", "-d", panel=DEVICE_PANEL, help="An accelerator.")
HEADROOM = option(0.9, "--headroom", panel=DEVICE_PANEL, help="Share of it that may be filled.")
IDEAL = option(False, "--ideal", panel=PARALLEL, help="Shards of Ψ/N, not of whole rows.")
VARY = option("micro_batch", "--vary", panel=OUT, help="micro_batch, seq, layers, dp, zero, tp …")
AXIS = option(
    None,
    "--axis",
    "-a",
    panel=OUT,
    metavar="NAME=V,V",
    help="An axis, such as dp=8,64. Repeatable.",
)
ORACLE = option("fake", "--oracle", panel=OUT, help="fake, gloo or cuda.")
EXPLAIN = option("", "--explain", panel=OUT, help="A term: formula, numbers, source.")
JSON = option("", "--json", panel=OUT, metavar="FILE", help="Write JSON; - is standard output.")
HTML = option(None, "--html", panel=OUT, help="Write a page with figures.")
CSV = option(None, "--csv", panel=OUT, help="Write the rows as a table.")


def plan(
    name: str,
    parallel: dict[str, Any],
    batch: dict[str, Any],
    recipe: str,
    assignments: Sequence[str] | None = None,
    *,
    world_size: int | None = None,
    ideal: bool = False,
) -> Plan:
    """The plan of a command's options.

    Raises:
        UsageError: an option breaks a rule; the message names it.
    """
    from labkit.memory import Batch, Model, Parallel, Plan, Recipe
    from labkit.memory.grid import BATCH_FIELDS, PARALLEL_FIELDS, RECIPE_FIELDS

    more = settings("--set", assignments)
    known = {*PARALLEL_FIELDS, *BATCH_FIELDS, *RECIPE_FIELDS}
    if unknown := [key for key in more if key not in known]:
        from labkit.errors import not_among

        raise not_among("field (--set)", unknown[0], sorted(known))
    batch = batch | {"recompute": _recompute(batch["recompute"])}
    chosen = Recipe.preset(recipe)
    if changes := {key: value for key, value in more.items() if key in RECIPE_FIELDS}:
        from dataclasses import replace

        chosen = replace(chosen, **changes)
    spread = Parallel(**parallel, **{k: v for k, v in more.items() if k in PARALLEL_FIELDS})
    if world_size is not None:
        spread.check_world_size(world_size)
    return Plan(
        model=Model.from_hf(name) if name.endswith(".json") else Model.preset(name),
        parallel=spread,
        recipe=chosen,
        batch=Batch(**batch, **{k: v for k, v in more.items() if k in BATCH_FIELDS}),
        ideal=ideal,
    )


def _recompute(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def axes(assignments: Sequence[str] | None) -> dict[str, list[Any]]:
    """``NAME=V,V`` options as axes of a sweep.

    Raises:
        UsageError: there is none, or one has no values.

    >>> axes(["dp=8,64", "recompute=none,full"])
    {'dp': [8, 64], 'recompute': ['none', 'full']}
    """
    if not assignments:
        raise UsageError("--axis must be given, such as --axis dp=8,64 --axis zero=0,1,2,3")
    found: dict[str, list[Any]] = {}
    for text in assignments:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise UsageError(f"--axis must be NAME=V,V, got {text!r}")
        name = name.strip().replace("-", "_")
        try:
            found[name] = whole_numbers("--axis", values)
        except UsageError:
            found[name] = [_word(one.strip()) for one in values.split(",")]
    return found


def _word(text: str) -> Any:
    return {"true": True, "false": False}.get(text.lower(), _recompute(text))
