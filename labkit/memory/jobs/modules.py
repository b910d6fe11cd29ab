"""A module that says itself what is trained: adapters beside its base, or frozen parameters."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from labkit.errors import BadValue
from labkit.memory.jobs.adapter import TARGETS, Adapter
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.jobs.trained import tape_name
from labkit.memory.tape.shadow_blocks import ADAPTED
from labkit.models import Model, TensorShape
from labkit.models.tensors import COPIES, by_unit

_MATRIX = re.compile(r"(?P<path>.*)\.lora_(?P<half>[AB]|magnitude_vector)\.(?P<set>[^.]+)\.weight")
_FACTORS = re.compile(r"(?P<path>.*)\.ia3_l\.(?P<set>[^.]+)")


@lru_cache(maxsize=64)
def resolved(model: Model, recipe: Recipe) -> tuple[Model, Recipe]:
    """The base and the recipe of a module with adapters: as if the recipe had said them.

    Of a recipe's own adapter only its base counts then (``base``, ``quant_storage``, ``rest``); any
    other field must be the module's, or the default.

    Raises:
        UsageError: the module has something beside its base that the account does not know.
    """
    beside = [tensor for tensor in model.layout if tensor.is_beside]
    if not beside:
        return model, recipe
    model.require_shapes()
    found = _adapter_in(model, beside)
    given = recipe.adapter or Adapter()
    if given.on_base_of(Adapter()) not in {Adapter(), found}:
        raise BadValue(
            f"adapter must be None, or as the module {model.name} has it, {found}; got {given}"
        )
    return replace(model, layout=()), replace(recipe, adapter=found.on_base_of(given))


def refuse_frozen(model: Model | int, recipe: Recipe, what: str) -> None:
    """Refuse frozen parameters where they would be ignored: a recipe's, or a module's own.

    Args:
        what: what knows none, as a sentence's subject.

    Raises:
        BadValue: there are some.
    """
    layout = model.layout if isinstance(model, Model) else ()
    if not all(tensor.trained for tensor in layout):
        raise BadValue(
            f"model must have no frozen parameters, as {getattr(model, 'name', model)} has: {what}"
            " takes every parameter as trained; the account by moments (a Model with a Batch) knows"
            " them"
        )
    recipe.refuse_adapter(what)


def _adapter_in(model: Model, beside: list[TensorShape]) -> Adapter:
    """The adapter that a module has."""
    if trained := [t.name for t in model.layout if t.trained and not t.is_beside]:
        raise BadValue(
            f"{model.name}: a base with adapters must be frozen, but for copies (modules_to_save):"
            f" {trained[0]} is trained"
        )
    if any("prompt_encoder." in tensor.name for tensor in beside):
        return _virtual_tokens(model, beside)
    if any(".ia3_l." in tensor.name for tensor in beside):
        return _factors(model, beside)
    saved = _copies(model, beside)
    ranks: set[int] = set()
    dropouts: set[bool] = set()
    targets: dict[str, set[str]] = {}
    for tensor in beside:
        if COPIES in tensor.name:
            continue
        said = _MATRIX.fullmatch(tensor.name)
        name = said and tape_name(f"{said['path']}.weight", model)
        if said is None or name not in ADAPTED or not tensor.trained:
            raise BadValue(
                f"{model.name}: what is beside the base must be LoRA's two matrices of projections"
                f" of a layer, trained; got {tensor.name}{'' if tensor.trained else ', frozen'}"
            )
        if said["half"] == "A":
            ranks.add(tensor.shape[0])
        dropouts.add(tensor.dropout)
        chosen = targets.setdefault(tensor.unit, set())
        chosen.add(f"{ADAPTED[name]} {said['half']} {said['set']}")
    every = {frozenset(chosen) for chosen in targets.values()}
    if len(ranks) != 1 or len(dropouts) != 1 or len(every) != 1:
        raise BadValue(
            f"{model.name}: adapters must have one rank, one dropout and the same targets in every"
            f" layer that has any; ranks are {sorted(ranks)}"
        )
    names = {text.partition(" ")[0] for text in next(iter(every))}
    dora = any("magnitude" in text for text in next(iter(every)))
    if (3 if dora else 2) * len(names) != len(next(iter(every))):
        raise BadValue(f"{model.name}: each projection must have one adapter, got several sets")
    order = list(by_unit(t for t in model.layout if t.unit != "root"))
    layers = tuple(number for number, unit in enumerate(order) if unit in targets)
    return Adapter(
        rank=ranks.pop(),
        targets=tuple(target for target in TARGETS if target in names),  # type: ignore[misc]
        dropout=dropouts.pop(),
        layers=None if len(layers) == model.num_layers else layers,
        saved=saved,
        kind="dora" if dora else "lora",
    )


def _copies(model: Model, beside: list[TensorShape]) -> tuple[Any, ...]:
    """The ends of which a module has trained copies.

    Raises:
        BadValue: it has a copy of another part.
    """
    saved = [tensor.role for tensor in beside if COPIES in tensor.name]
    if unknown := [role for role in saved if role not in {"embedding", "head"}]:
        raise BadValue(
            f"{model.name}: modules_to_save must be the embedding or the head, got a copy of a part"
            f" that is {unknown[0]}"
        )
    return tuple(end for end in ("embedding", "head") if end in saved)


def _virtual_tokens(model: Model, beside: list[TensorShape]) -> Adapter:
    """The virtual tokens that a module has in front of each sample."""
    shapes = [tensor.shape for tensor in beside]
    table = next((t for t in beside if t.name.endswith(".embedding.weight")), beside[0])
    tokens = table.shape[0]
    known = [Adapter(kind="prompt", tokens=tokens)]
    if len(shapes) > 1:
        known.append(Adapter(kind="p-tuning", tokens=tokens, hidden=shapes[1][0]))
    for adapter in known:
        learns = all(tensor.trained for tensor in beside)
        if learns and list(adapter.prompt_shapes(model.hidden)) == shapes:
            return adapter
    names = ", ".join(tensor.name for tensor in beside[:3])
    raise BadValue(
        f"{model.name}: what is beside the base must be one set of virtual tokens, of prompt tuning"
        f" or of P-tuning with an MLP; with an LSTM, or a prefix of every layer, trace the module"
        f" (Network.from_module); got {names}"
    )


def _factors(model: Model, beside: list[TensorShape]) -> Adapter:
    """The IA3 that a module has."""
    targets: dict[str, set[str]] = {}
    for tensor in beside:
        if COPIES in tensor.name:
            continue
        said = _FACTORS.fullmatch(tensor.name)
        name = said and tape_name(f"{said['path']}.weight", model)
        target = ADAPTED.get(str(name))
        of_input = tensor.shape[0] == 1
        if said is None or not target or of_input != (target == "down") or not tensor.trained:
            raise BadValue(
                f"{model.name}: IA3's factors must be trained, and of a projection's output, or of"
                f" down's input (feedforward_modules); got {tensor.name}, {tensor.shape}"
            )
        targets.setdefault(tensor.unit, set()).add(f"{target} {said['set']}")
    every = {frozenset(chosen) for chosen in targets.values()}
    names = {text.partition(" ")[0] for chosen in every for text in chosen}
    if len(every) != 1 or len(names) != len(next(iter(every))) or len(targets) != model.num_layers:
        raise BadValue(
            f"{model.name}: every layer must have one set of IA3's factors, of the same projections"
        )
    saved = _copies(model, beside)
    return Adapter(
        kind="ia3",
        targets=tuple(target for target in TARGETS if target in names),  # type: ignore[misc]
        saved=saved,
    )
