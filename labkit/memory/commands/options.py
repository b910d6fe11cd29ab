"""What options of ``labkit memory`` describe: a plan, the room on a device, axes of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from labkit.errors import BadValue, UsageError, not_among
from labkit.kit.command import argument, assignments, byte_counts, option
from labkit.kit.describe import field_rules
from labkit.kit.rules import Refused
from labkit.memory import Batch, Model, Parallel, Plan, Recipe
from labkit.models import presets
from labkit.quantities import format_bytes


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a model is spread, in which formats, on which batch."""

    PANEL = "Job"
    dp: Annotated[
        int | None, option("Data-parallel ranks. Default: 1, or what fills the world.")
    ] = None
    tp: Annotated[int, option("Tensor-parallel ranks.")] = 1
    sp: Annotated[bool, option("With sequence parallelism.", "--sp")] = False
    pp: Annotated[int, option("Pipeline devices.")] = 1
    zero: Annotated[int, option("ZeRO's stage, 0 to 3.", "--zero", "-z")] = 0
    world_size: Annotated[
        int | None, option("Ranks in all: dp · tp · cp · pp.", "--world-size", "-w")
    ] = None
    recipe: Annotated[str, option("Number formats and optimizer.", "--recipe", "-r")] = "bf16-mixed"
    seq: Annotated[
        int | None,
        option("Tokens of a sample. Default: 2048, or the positions learnt.", "--seq", "-s"),
    ] = None
    micro_batch: Annotated[int, option("Samples a replica at a time.", "--micro-batch", "-b")] = 1
    recompute: Annotated[str, option("none, selective, full, or every k-th layer.")] = "none"
    assigned: Annotated[
        list[str],
        option(
            "Another field of Parallel, Batch or Recipe, such as ep=8, step=fused or"
            " offload_optimizer=cpu. Repeatable.",
            "--set",
            metavar="NAME=VALUE",
        ),
    ] = field(default_factory=list)
    ideal: Annotated[bool, option("Shards of Ψ/N, not of whole rows.", "--ideal")] = False

    def of(self, model: Model) -> Plan:
        """The plan for a model.

        Raises:
            UsageError: an option breaks a rule; the message names it.
        """
        more = self._assigned()
        seq = min(2048, model.positions or 2048) if self.seq is None else self.seq
        batch = {"seq": seq, "micro_batch": self.micro_batch, "recompute": _word(self.recompute)}
        degrees = {"tp": self.tp, "sp": self.sp, "pp": self.pp, "zero": self.zero}
        degrees |= {} if self.dp is None else {"dp": self.dp}
        spread = Parallel if self.world_size is None else partial(Parallel.of, self.world_size)
        return Plan(
            model=model,
            parallel=spread(**degrees | more[Parallel]),
            recipe=replace(Recipe.preset(self.recipe), **more[Recipe]),
            batch=Batch(**batch | more[Batch]),
            ideal=self.ideal,
        )

    def _assigned(self) -> dict[type, dict[str, Any]]:
        """What ``--set`` says, by what it describes."""
        kinds = (Parallel, Batch, Recipe)
        known = {item.name: kind for kind in kinds for item in fields(kind)}
        del known["name"], known["source"]
        values: dict[type, dict[str, Any]] = {kind: {} for kind in kinds}
        for name, value in assignments("--set", self.assigned).items():
            if name not in known:
                raise not_among("field (--set)", name, sorted(known))
            values[known[name]][name] = _accepted(known[name], name, value)
        return values


def _accepted(kind: type, name: str, value: Any) -> Any:
    """``value`` as the field takes it: ``none`` may be None, a number a tuple of one."""
    rule = field_rules(kind)[name]
    for candidate in (value, None if value == "none" else value, [value]):
        with suppress(Refused):
            return rule.accept(candidate)
    return rule.apply(f"--set {name}", value)


def _word(text: str) -> Any:
    """A whole number, true or false, or the word itself."""
    if text.removeprefix("-").isdigit():
        return int(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def model_of(name: str) -> Model:
    """A preset, or the model of a configuration's path."""
    path = Path(name)
    is_path = name.endswith(".json") or path.is_dir() or len(path.parts) > 1
    return Model.from_hf(path) if is_path else Model.preset(name)


@dataclass(frozen=True, kw_only=True)
class Job(Spread):
    """A model and all that :class:`Spread` says."""

    model: Annotated[
        str,
        argument(
            "A preset such as llama-2-7b, a config.json, or the folder it is in.",
            metavar="MODEL",
            complete=presets,
        ),
    ]

    def plan(self) -> Plan:
        """Raises as :meth:`Spread.of` does."""
        return self.of(model_of(self.model))


@dataclass(frozen=True, kw_only=True)
class Room:
    """What of a device may be filled."""

    PANEL = "Device"
    device: Annotated[str, option("An accelerator, or bytes such as 24GiB.", "--device", "-d")] = (
        "H100-80GB"
    )
    headroom: Annotated[float, option("Share of it that may be filled, above 0 to 1.")] = 0.9
    context: Annotated[str, option("Bytes that CUDA's context takes, such as 1GB.")] = "0"
    fragmentation: Annotated[float, option("Share of the device lost in pieces.")] = 0.0

    def allow(self, plan: Plan) -> Plan:
        """``plan`` with the allowances."""
        context = round(_bytes("--context", self.context))
        return replace(plan, context_bytes=context, fragmentation=self.fragmentation)

    @property
    def given(self) -> dict[str, Any]:
        """``device`` and ``headroom`` as the engine takes them.

        Raises:
            UsageError: the device is neither an accelerator's name nor a number of bytes.
        """
        if not self.device[:1].isdigit():
            return {"device": self.device, "headroom": self.headroom}
        size = int(_bytes("--device", self.device))
        if size < 1:
            raise BadValue(f"--device must be at least one byte, got {self.device!r}")
        return {"device": size, "headroom": self.headroom}

    @property
    def name(self) -> str:
        return f"{self.headroom:.0%} of {self.device}"

    def usable_bytes(self, plan: Plan) -> float:
        return plan.usable_bytes(self.given["device"], headroom=self.headroom)

    def text(self, plan: Plan) -> str:
        """How much of the device may be filled, and what allowances leave it at that."""
        less = [f"{plan.fragmentation:.0%} fragmentation"] if plan.fragmentation else []
        size = plan.context_bytes
        less += [f"{format_bytes(size)} of CUDA context"] if size else []
        suffix = f" less {' and '.join(less)} (allowances)" if less else ""
        return f"{format_bytes(self.usable_bytes(plan))} may be filled: {self.name}{suffix}"


def _bytes(name: str, text: str) -> float:
    sizes = byte_counts(name, text)
    if len(sizes) != 1:
        raise BadValue(f"{name} must be one number of bytes, got {len(sizes)}")
    return sizes[0]


def axes_of(texts: Sequence[str]) -> dict[str, list[Any]]:
    """``NAME=V,V`` options as axes of a sweep.

    Raises:
        UsageError: there is none, or one has no values.

    >>> axes_of(["dp=8,64", "recompute=none,2"])
    {'dp': [8, 64], 'recompute': ['none', 2]}
    """
    if not texts:
        raise UsageError("--axis must be given, such as --axis dp=8,64 --axis zero=0,1,2,3")
    values_of: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not all(part.strip() for part in values.split(",")):
            raise UsageError(f"--axis must be NAME=V,V, got {text!r}")
        if name in values_of:
            raise UsageError(f"--axis {name} must be given once, with all its values")
        read: Any = {"model": model_of, "recipe": Recipe.preset}.get(name, _word)
        values_of[name] = [read(part.strip()) for part in values.split(",")]
    return values_of
