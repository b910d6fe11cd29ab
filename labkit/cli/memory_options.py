"""The options of ``labkit memory``, and the plan that they describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from labkit.cli.pipeline_input import byte_counts, settings
from labkit.errors import BadValue, UsageError, not_among

if TYPE_CHECKING:
    from labkit.memory import Model, Parallel, Plan, Recipe

MODEL, PARALLEL, BATCH, DEVICE, OUT = "Model", "Parallelism", "Batch", "Device", "Output"
# Degrees whose product is the number of ranks.
DEGREES = ("dp", "tp", "cp", "pp")


def _option(panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **more)


def _models(incomplete: str) -> list[str]:
    """Presets for the shell; nothing where there is no workbook."""
    from labkit.errors import LabkitError
    from labkit.models import presets

    try:
        return [name for name in presets() if name.startswith(incomplete)]
    except LabkitError:
        return []


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a model is spread, in which formats, on which batch."""

    dp: Annotated[
        int | None,
        _option(PARALLEL, "--dp", help="Data-parallel ranks. Default: 1, or what fills the world."),
    ] = None
    tp: Annotated[int, _option(PARALLEL, "--tp", help="Tensor-parallel ranks.")] = 1
    sp: Annotated[bool, _option(PARALLEL, "--sp", help="With sequence parallelism.")] = False
    pp: Annotated[int, _option(PARALLEL, "--pp", help="Pipeline devices.")] = 1
    zero: Annotated[int, _option(PARALLEL, "--zero", "-z", help="ZeRO's stage, 0 to 3.")] = 0
    world_size: Annotated[
        int | None,
        _option(PARALLEL, "--world-size", "-w", help="Ranks in all: dp · tp · cp · pp."),
    ] = None
    recipe: Annotated[
        str, _option(MODEL, "--recipe", "-r", help="Number formats and optimizer.")
    ] = "bf16-mixed"
    seq: Annotated[
        int | None,
        _option(
            BATCH,
            "--seq",
            "-s",
            help="Tokens of a sample. Default: 2048, or as many positions as the model has learnt.",
        ),
    ] = None
    micro_batch: Annotated[
        int, _option(BATCH, "--micro-batch", "-b", help="Samples a replica at a time.")
    ] = 1
    recompute: Annotated[
        str, _option(BATCH, "--recompute", help="none, selective, full, or every k-th layer.")
    ] = "none"
    assignments: Annotated[
        list[str],
        _option(
            PARALLEL,
            "--set",
            metavar="NAME=VALUE",
            help="Another field of Parallel, Batch or Recipe, such as ep=8, step=fused or"
            " offload_optimizer=cpu. Repeatable.",
        ),
    ] = field(default_factory=list)
    ideal: Annotated[
        bool, _option(PARALLEL, "--ideal", help="Shards of Ψ/N, not of whole rows.")
    ] = False

    def of(self, chosen: Model | str) -> Plan:
        """The plan for a model, or for the one of that name (a preset, a configuration's path).

        Raises:
            UsageError: an option breaks a rule; the message names it.
        """
        from labkit.memory import Batch, Plan

        more = self._more()
        described = model(chosen) if isinstance(chosen, str) else chosen
        seq = min(2048, described.positions or 2048) if self.seq is None else self.seq
        batch = {"seq": seq, "micro_batch": self.micro_batch}
        batch["recompute"] = _number_or_word(self.recompute)  # type: ignore[assignment]
        return Plan(
            model=described,
            parallel=self._parallel(more["Parallel"]),
            recipe=self._recipe(more["Recipe"]),
            batch=Batch(**(batch | more["Batch"])),
            ideal=self.ideal,
        )

    def _more(self) -> dict[str, dict[str, Any]]:
        """What ``--set`` says, by what it describes."""
        from labkit.memory import Batch, Parallel, Recipe

        given = settings("--set", self.assignments)
        kinds = (Parallel, Batch, Recipe)
        known = {name: kind for kind in kinds for name in get_type_hints(kind)}
        for name in ("name", "source"):
            del known[name]
        if unknown := [name for name in given if name not in known]:
            raise not_among("field (--set)", unknown[0], sorted(known))
        found: dict[str, dict[str, Any]] = {kind.__name__: {} for kind in kinds}
        for name, value in given.items():
            found[known[name].__name__][name] = _typed(known[name], name, value)
        return found

    def _parallel(self, more: dict[str, Any]) -> Parallel:
        from labkit.memory import Parallel

        degrees = {"tp": self.tp, "sp": self.sp, "pp": self.pp, "zero": self.zero} | more
        if self.dp is not None:
            degrees.setdefault("dp", self.dp)
        if self.world_size is None:
            return Parallel(**degrees)
        return Parallel.of(self.world_size, **degrees)

    def _recipe(self, more: dict[str, Any]) -> Recipe:
        from labkit.memory import Recipe

        chosen = Recipe.preset(self.recipe)
        return replace(chosen, **more) if more else chosen


@dataclass(frozen=True, kw_only=True)
class Job(Spread):
    """A model and all that :class:`Spread` says."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            autocompletion=_models,
            help="A preset such as llama-2-7b, a config.json, or the folder it is in.",
        ),
    ]

    def plan(self) -> Plan:
        """Raises as :meth:`Spread.of` does."""
        return self.of(self.model)


@dataclass(frozen=True, kw_only=True)
class Room:
    """What may be filled."""

    device: Annotated[
        str, _option(DEVICE, "--device", "-d", help="An accelerator, or bytes such as 24GiB.")
    ] = "H100-80GB"
    headroom: Annotated[
        float, _option(DEVICE, "--headroom", help="Share of it that may be filled, above 0 to 1.")
    ] = 0.9
    context: Annotated[
        str,
        _option(
            DEVICE, "--context", metavar="BYTES", help="What CUDA's context takes, such as 1GB."
        ),
    ] = "0"
    fragmentation: Annotated[
        float, _option(DEVICE, "--fragmentation", help="Share of the device lost in pieces.")
    ] = 0.0

    def allow(self, plan: Plan) -> Plan:
        """``plan`` with the allowances."""
        (context,) = _one(byte_counts("--context", self.context), "--context")
        return replace(plan, context_bytes=round(context), fragmentation=self.fragmentation)

    @property
    def size(self) -> int | str:
        """The accelerator's name, or a number of bytes.

        Raises:
            UsageError: it is neither.
        """
        if not self.device[:1].isdigit():
            return self.device
        (size,) = _one(byte_counts("--device", self.device), "--device")
        if size < 1:
            raise BadValue(f"--device must be at least one byte, got {self.device!r}")
        return int(size)

    @property
    def name(self) -> str:
        return f"{self.headroom:.0%} of {self.device}"


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where a report goes beside the terminal."""

    json_to: Annotated[
        str, _option(OUT, "--json", metavar="FILE", help="Write JSON; - is standard output.")
    ] = ""
    html: Annotated[
        Path | None, _option(OUT, "--html", help="Write a page with figures; needs no network.")
    ] = None
    csv: Annotated[Path | None, _option(OUT, "--csv", help="Write the rows as a table.")] = None


VARY = _option(OUT, "--vary", help="micro_batch, seq, layers, dp, zero, tp, pp, ep or cp.")
AXES = _option(
    OUT, "--axis", "-a", metavar="NAME=V,V", help="An axis, such as dp=8,64. Repeatable."
)
ORACLE = _option(OUT, "--oracle", help="fake, gloo or cuda.")
EXPLAIN = _option(OUT, "--explain", help="A term: formula, numbers, source.")
MODELS = typer.Argument(
    metavar="[MODEL]...", autocompletion=_models, help="Presets or config.json files."
)


def _one(values: list[float], option: str) -> list[float]:
    if len(values) != 1:
        raise BadValue(f"{option} must be one number of bytes, got {len(values)}")
    return values


def model(name: str) -> Model:
    """A preset, or the model of a configuration's path."""
    from labkit.memory import Model

    path = Path(name)
    if name.endswith(".json") or path.is_dir() or len(path.parts) > 1:
        return Model.from_hf(path)
    return Model.preset(name)


def _number_or_word(text: str) -> str | int:
    return int(text) if text.removeprefix("-").isdigit() else text


def _typed(kind: type, name: str, value: Any) -> Any:
    """``value`` as the field of that name takes it: ``none`` for nothing, lists as tuples.

    Raises:
        BadValue: the field takes no such value.
    """
    hint = get_type_hints(kind)[name]
    kinds = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    for one in kinds:
        if get_origin(one) is Literal and value in get_args(one):
            return value
        if get_origin(one) is tuple and isinstance(value, list | int) and value is not True:
            return tuple(value) if isinstance(value, list) else (value,)
        if type(value) is one or (one is float and type(value) is int):
            return value
    if value == "none" and NoneType in kinds:
        return None
    words = {bool: "true or false", int: "a whole number", NoneType: "none"}
    valid = [
        ", ".join(map(str, get_args(one))) if get_origin(one) is Literal
        else words.get(one, "whole numbers such as 8,7,9")
        for one in kinds
    ]  # fmt: skip
    raise BadValue(f"--set {name} must be {' or '.join(valid)}, got {value!r}")


def axes(assignments: Sequence[str] | None) -> dict[str, list[Any]]:
    """``NAME=V,V`` options as axes of a sweep.

    Raises:
        UsageError: there is none, or one has no values, or values of two kinds.

    >>> axes(["dp=8,64", "recompute=none,2"])
    {'dp': [8, 64], 'recompute': ['none', 2]}
    """
    if not assignments:
        raise UsageError("--axis must be given, such as --axis dp=8,64 --axis zero=0,1,2,3")
    found: dict[str, list[Any]] = {}
    for text in assignments:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not all(part.strip() for part in values.split(",")):
            raise UsageError(f"--axis must be NAME=V,V, got {text!r}")
        if name in found:
            raise UsageError(f"--axis {name} must be given once, with all its values")
        make = {"model": model, "recipe": _preset}.get(name, _value)
        found[name] = [make(one.strip()) for one in values.split(",")]
    return found


def _value(text: str) -> Any:
    return {"true": True, "false": False}.get(text.lower(), _number_or_word(text))


def _preset(text: str) -> Recipe:
    from labkit.memory import Recipe

    return Recipe.preset(text)
