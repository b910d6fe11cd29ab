"""What options of ``labkit memory`` describe: a plan, the room on a device, axes of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from labkit import memory
from labkit.errors import BadValue, UsageError, not_among
from labkit.hardware import accelerator
from labkit.kit.command import argument, assignments, byte_count, option, value_of
from labkit.kit.describe import field_rules
from labkit.kit.rules import Refused
from labkit.memory.commands import words
from labkit.memory.jobs.adapter import KINDS, TARGETS, Adapter, targets_of
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import PRESETS, Recipe
from labkit.memory.plans.frameworks import FRAMEWORKS, Framework, framework
from labkit.memory.plans.plan import FIELDS, Plan
from labkit.memory.tape.tuners import PROMPTS
from labkit.memory.traced.network import networks
from labkit.models import Model, plain_name, presets
from labkit.models.huggingface import READERS, fields_of
from labkit.models.transformers_versions import known_versions
from labkit.quantities import MIB, format_bytes

# What a plan is where no framework is named: no defaults of anybody's, no allowances.
DEFAULTS = Framework(name="none", recipe="bf16-mixed", fields={}, context_bytes=0, source="")


_USUAL = Recipe().name
_RECIPES = "; ".join(f"{name} ({said.get('name', _USUAL)})" for name, said in PRESETS.items())


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a model is spread, in which formats, on which batch."""

    PANEL = "Job"
    dp: Annotated[
        int | None, option("Data-parallel ranks. Default: 1, or what fills the world.")
    ] = None
    tp: Annotated[int, option("Tensor-parallel ranks.")] = 1
    sp: Annotated[bool, option("Add sequence parallelism.", "--sp")] = False
    pp: Annotated[int, option("Pipeline devices.")] = 1
    zero: Annotated[int | None, option("ZeRO's stage, 0 to 3. Default: 0.", "--zero", "-z")] = None
    world_size: Annotated[
        int | None, option("Ranks in all: dp · tp · cp · pp.", "--world-size", "--gpus", "-w")
    ] = None
    framework: Annotated[
        str | None,
        option(
            f"Defaults of {', '.join(FRAMEWORKS)}; whatever else is said goes before them.",
            "--framework",
            "-f",
        ),
    ] = None
    recipe: Annotated[
        str | None,
        option(
            f"Number formats and optimizer: {_RECIPES}. Default: bf16-mixed.",
            "--recipe",
            "-r",
        ),
    ] = None
    seq: Annotated[
        int | None,
        option(
            "Tokens of a sample. Default: 2048, or the positions learnt.",
            *("--seq", "--seq-len", "-s"),
        ),
    ] = None
    micro_batch: Annotated[
        int, option("Samples a replica at a time.", "--micro-batch", "--batch-size", "-b")
    ] = 1
    recompute: Annotated[
        str | None, option("none, selective, operators, full, or every k-th layer. Default: none.")
    ] = None
    assigned: Annotated[
        list[str] | None,
        option(
            "Another field of Parallel, Batch or Recipe, such as ep=8, step=fused,"
            " offload_optimizer=cpu, offload_fraction=0.5, offload_activations=cpu, step=backward,"
            " loss_chunk_tokens=1024, sp_gather=buffer or layer_split=torchtitan. Repeatable.",
            "--set",
            metavar="NAME=VALUE",
        ),
    ] = None
    lora_rank: Annotated[
        int | None,
        option("Train adapters of this rank only; the recipe is then lora unless it is said."),
    ] = None
    lora_targets: Annotated[
        str | None,
        option(
            f"Projections that have adapters: some of {', '.join(TARGETS)}, or all."
            " Default: q,v, or qkv.",
            metavar="NAME,NAME",
        ),
    ] = None
    lora_config: Annotated[
        str | None, option("PEFT's adapter_config.json in place of the two.", metavar="FILE")
    ] = None
    adapter: Annotated[
        str | None,
        option(
            f"What is trained beside a frozen base: {', '.join(KINDS)}. Default: lora, or prompt"
            " with --prompt-tokens. --lora-targets are IA3's too, by default k,v,down.",
            metavar="KIND",
        ),
    ] = None
    prompt_tokens: Annotated[
        int | None,
        option("Virtual tokens of prompt tuning or P-tuning, in addition to each sample's."),
    ] = None
    prompt_hidden: Annotated[
        int | None, option("Width of P-tuning's MLP. Default: the model's.")
    ] = None
    train: Annotated[
        str | None,
        option(
            "Train these parts only, all else frozen: embedding, norm, head, layers, layers.30-31,"
            " layers.30-31.mlp (attention, norms, biases).",
            metavar="PART,PART",
        ),
    ] = None
    ideal: Annotated[bool, option("Shards of Ψ/N, not of whole rows.", "--ideal")] = False

    def of(self, model: Model, card: str | None = None) -> Plan:
        """Build the plan for a model, on an accelerator of that name where it is a framework's.

        Raises:
            UsageError: an option breaks a rule; the message names it.
        """
        if self.recipe is not None and self.recipe not in PRESETS:
            words.say_instead("recipe", self.recipe)
        if self.framework is not None and self.framework not in FRAMEWORKS:
            words.say_instead("framework", self.framework)
        said = self._said()
        said |= self._adapter(model)
        if self.train is not None:
            if said.get("trained"):
                raise BadValue("--set trained must be left out where --train is given")
            said["trained"] = tuple(part.strip() for part in self.train.split(","))
        adapter = said.get("adapter")
        virtual = adapter.tokens if isinstance(adapter, Adapter) else 0
        said["seq"] = said.get("seq", usual_seq(model, virtual))
        if self.world_size is not None:
            degrees = {name: said[name] for name in ("dp", "tp", "cp", "pp") if name in said}
            said["dp"] = Parallel.of(self.world_size, **degrees).dp
        if self.framework is None:
            return replace(DEFAULTS.plan(model, **said), ideal=self.ideal)
        frame = framework(self.framework)
        return replace(frame.plan(model, card=card, **said), ideal=self.ideal)

    def _adapter(self, model: Model) -> dict[str, Any]:
        """Say what is trained where an option says so: the adapter, and its recipe.

        Raises:
            UsageError: an option breaks a rule; the message names it.
        """
        options = (
            *(self.lora_rank, self.lora_targets, self.adapter),
            *(self.prompt_tokens, self.prompt_hidden),
        )
        is_said = any(option is not None for option in options)
        if self.lora_config is None and not is_said:
            return {}
        recipe = self.recipe or "lora"
        if recipe not in PRESETS:
            raise not_among("recipe", recipe, PRESETS)
        usual: Adapter = PRESETS[recipe].get("adapter", Adapter())
        if self.lora_config is None:
            return {"recipe": recipe, "adapter": self._said_adapter(model, usual)}
        if is_said:
            raise BadValue(
                "--lora-config must be given without --lora-rank, --lora-targets, --adapter,"
                " --prompt-tokens and --prompt-hidden"
            )
        read = Adapter.from_peft(self.lora_config, model)
        return {"recipe": recipe, "adapter": read.on_base_of(usual)}

    def _said_adapter(self, model: Model, usual: Adapter) -> Adapter:
        """The adapter that single options describe.

        Args:
            usual: the recipe's, for what they leave out.
        """
        if self.lora_rank is not None and self.lora_rank < 1:
            raise BadValue(f"--lora-rank must be at least 1, got {self.lora_rank}")
        kind: Any = self.adapter or ("lora" if self.prompt_tokens is None else "prompt")
        if kind not in KINDS:
            raise not_among("kind (--adapter)", kind, KINDS)
        if kind in PROMPTS:
            return self._prompt(kind, usual)
        if (self.prompt_tokens, self.prompt_hidden) != (None, None):
            raise BadValue(
                f"--prompt-tokens and --prompt-hidden must be left out where --adapter is {kind}"
            )
        if kind == "ia3" and self.lora_rank is not None:
            raise BadValue("--lora-rank must be left out where --adapter is ia3: it has no rank")
        names = self.lora_targets or usual_targets(kind, model)
        is_all = names in {"all", "all-linear"}
        targets: Any = targets_of(
            "--lora-targets", "all-linear" if is_all else names.split(","), model
        )
        return replace(usual, kind=kind, rank=self.lora_rank or usual.rank, targets=targets)

    def _prompt(self, kind: Any, usual: Adapter) -> Adapter:
        """The adapter that is virtual tokens."""
        if (self.lora_rank, self.lora_targets) != (None, None):
            raise BadValue(
                f"--lora-rank and --lora-targets must be left out where --adapter is {kind}"
            )
        if self.prompt_tokens is None or self.prompt_tokens < 1:
            raise BadValue(
                f"--prompt-tokens must be at least 1 where --adapter is {kind}, got"
                f" {self.prompt_tokens}"
            )
        return replace(usual, kind=kind, tokens=self.prompt_tokens, hidden=self.prompt_hidden)

    @property
    def notes(self) -> tuple[str, ...]:
        """Say whose defaults a plan has, and where they were read."""
        if self.framework is None:
            return ()
        return (f"defaults of {self.framework}: {framework(self.framework).source}",)

    def _said(self) -> dict[str, Any]:
        """List by field what the options and ``--set`` say."""
        said: dict[str, Any] = {}
        for item in fields(Spread):
            value = getattr(self, item.name)
            if item.name in {*FIELDS, "recipe"} and value not in (None, item.default):
                said[item.name] = value_of(value) if item.name == "recompute" else value
        for name, value in assignments("--set", self.assigned).items():
            if name == "adapter":
                raise BadValue("--set adapter must be left out: --lora-rank says what is trained")
            if name not in FIELDS:
                words.say_instead("field (--set)", name)
                raise not_among("field (--set)", name, sorted(FIELDS))
            if name in said:
                option_name = name.replace("_", "-")
                raise BadValue(f"--set {name} must be left out where --{option_name} is given")
            said[name] = _accepted(FIELDS[name], name, value)
        return said


def usual_targets(kind: str, model: Model) -> str:
    """The projections that adapters are beside where nobody says, with commas between."""
    if kind == "ia3":
        return "qkv,down" if model.fused_qkv else "k,v,down"
    return "qkv" if model.fused_qkv else "q,v"


def usual_seq(model: Model, virtual: int = 0) -> int:
    """The tokens of a sample where nobody says: as many as are learnt, 1 where it takes none.

    Args:
        virtual: tokens in front of them, which have positions too.
    """
    if isinstance(model, memory.Network) and not model.tokens:
        return 1
    learnt = model.positions - virtual if model.positions > virtual else model.positions
    return min(2048, learnt or 2048)


def _accepted(kind: type, name: str, value: Any) -> Any:
    """Convert ``value`` to what the field takes: ``none`` may be None, and a number a tuple of
    one.
    """
    rule = field_rules(kind)[name]
    for candidate in (value, None if value == "none" else value, [value]):
        with suppress(Refused):
            return rule.accept(candidate)
    return rule.apply(f"--set {name}", value)


def model_of(
    name: str, transformers_version: str | None = None, architecture: str | None = None
) -> Model:
    """Load a preset by its name, or the model that a configuration describes by its path.

    One whose ``model_type`` has no closed forms is a network to be traced, and so is each whose
    ``architecture`` is said.
    """
    path = Path(name)
    known = any(plain in presets() for plain in (name, plain_name(name)))
    if name.endswith(".json") or path.is_dir() or (path.exists() and not known):
        fields = fields_of(path)
        if architecture is None and fields.get("model_type") in (None, *READERS):
            return Model.from_hf(fields, transformers_version=transformers_version)
        if transformers_version is not None:
            raise BadValue(
                "--transformers-version must be left out where a network is traced: it is the"
                " installed version's"
            )
        return memory.Network.from_hf(fields, architecture=architecture)
    options = {"transformers-version": transformers_version, "architecture": architecture}
    for option_name, value in options.items():
        if value is not None:
            raise BadValue(f"--{option_name} must be left out for the preset {name}")
    return memory.Network.preset(name) if name in networks() else Model.preset(name)


def network_of(name: str, architecture: str | None = None) -> memory.Network:
    """Load a network that is traced, by its name or from a configuration, of any architecture."""
    path = Path(name)
    if name.endswith(".json") or path.is_dir() or len(path.parts) > 1:
        return memory.Network.from_hf(fields_of(path), architecture=architecture)
    if architecture is not None:
        raise BadValue(f"--architecture must be left out for the network {name}")
    return memory.Network.preset(name)


_FAMILIES = {
    "Llama": "llama",
    "GPT-2": "gpt2",
    "Mistral": "mistral",
    "Mixtral": "mixtral",
    "Qwen2": "qwen2",
}
_VERSIONS = "; ".join(f"{name}: {known_versions(kind)}" for name, kind in _FAMILIES.items())


@dataclass(frozen=True, kw_only=True)
class Job(Spread):
    """A model, and all that :class:`Spread` says of how it is trained."""

    model: Annotated[
        str,
        argument(
            "A preset such as llama-2-7b, a config.json, or the folder it is in.",
            metavar="MODEL",
            complete=presets,
        ),
    ]

    transformers_version: Annotated[
        str | None,
        option(
            "Whose modules a config.json is for, such as 4.30. Default: the installed version's."
            f" {_VERSIONS}."
        ),
    ] = None
    architecture: Annotated[
        str | None,
        option("Trace this class of transformers for a config.json, such as BertForMaskedLM."),
    ] = None

    def plan(self, card: str | None = None) -> Plan:
        """Build the plan that the options describe; it raises what :meth:`Spread.of` raises."""
        return self.of(model_of(self.model, self.transformers_version, self.architecture), card)


@dataclass(frozen=True, kw_only=True)
class Room:
    """Says how much of a device may be filled."""

    PANEL = "Device"
    device: Annotated[
        str, option("An accelerator such as H200 or RTX-4090, or bytes as 24GiB.", "--device", "-d")
    ] = "H100-80GB"
    headroom: Annotated[float, option("Share of it that may be filled, above 0 to 1.")] = 0.9
    context: Annotated[
        str | None, option("Bytes of CUDA's context, such as 1GB. Default: 0, or the framework's.")
    ] = None
    fragmentation: Annotated[
        float | None, option("Share of the device lost in pieces. Default: 0, or the framework's.")
    ] = None

    def allow(self, plan: Plan) -> Plan:
        """Copy ``plan`` and give the copy these allowances."""
        said: dict[str, Any] = {}
        if self.context is not None:
            said["context_bytes"] = round(byte_count("--context", self.context))
        if self.fragmentation is not None:
            said["fragmentation"] = self.fragmentation
        return replace(plan, **said)

    @property
    def given(self) -> dict[str, Any]:
        """The options ``device`` and ``headroom`` that the engine's functions take.

        Raises:
            UsageError: the device is neither an accelerator's name nor a number of bytes.
        """
        return {"device": self._capacity, "headroom": self.headroom}

    @property
    def _capacity(self) -> int | str:
        """The accelerator's own name, or the number of bytes."""
        if not self.device[:1].isdigit():
            try:
                return accelerator(self.device).name
            except UsageError as error:
                raise UsageError(f"{error}; or a number of bytes, such as 24GiB") from None
        size = int(byte_count("--device", self.device))
        if size < 1:
            raise BadValue(f"--device must be at least one byte, got {self.device!r}")
        if self.device.isdigit() and size < MIB:
            raise BadValue(
                f"--device must have a unit below {MIB:,} bytes, such as {self.device}GB or"
                f" {self.device}GiB, got {self.device!r}"
            )
        return size

    @property
    def card(self) -> str | None:
        """The accelerator's own name; None for a number of bytes."""
        capacity = self._capacity
        return capacity if isinstance(capacity, str) else None

    @property
    def name(self) -> str:
        """The device and its share as a figure's legend names them."""
        capacity = self._capacity
        return f"{self.headroom:.0%} of {capacity if isinstance(capacity, str) else self.device}"

    def usable_bytes(self, plan: Plan) -> float:
        """How many bytes of the device the plan may fill."""
        return plan.usable_bytes(self.given["device"], headroom=self.headroom)

    def reserved(self, plan: Plan) -> list[tuple[str, float, str]]:
        """One more row for a report where there is an allowance: the peak, with what the allocator
        holds beside it.
        """
        if not plan.fragmentation:
            return []
        return [("reserved_bytes", plan.reserved_bytes, "with the allowance for the allocator")]

    def text(self, plan: Plan) -> str:
        """Say how much of the device may be filled, and which allowances leave it at that."""
        less = [f"{plan.fragmentation:.0%} fragmentation"] if plan.fragmentation else []
        size = plan.context_bytes
        less += [f"{format_bytes(size)} of CUDA context"] if size else []
        suffix = f" less {' and '.join(less)} (allowances)" if less else ""
        return f"{format_bytes(self.usable_bytes(plan))} may be filled: {self.name}{suffix}"


def axes_of(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Read ``NAME=V,V`` options as the axes of a sweep.

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
        readers: dict[str, Any] = {"model": model_of, "recipe": Recipe.preset}
        read = readers.get(name, value_of)
        values_of[name] = [read(part.strip()) for part in values.split(",")]
    return values_of
