"""What a layer keeps for its backward pass, term by term, from the tape's own record.

The tape notes each storage that a node saves, or a checkpoint as its input, with its name in the
model (:meth:`~labkit.memory.tape.tape.Tape.named`). The formulas printed here are its
coefficients; sizes may be arrays that broadcast. The tests hold them against the storages that
torch saves and against closed forms written by hand, with 0 bytes of difference.

Letters: b samples, s tokens a sample, h hidden size, q width of all a query heads, k width of all
key heads, f width of the MLP, v vocabulary; those of latents and experts stand at
:data:`labkit.memory.tape.tape.UNITS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from labkit.memory.tape.forms import Kept, kept, multiplicities
from labkit.memory.tape.mode import Mode
from labkit.memory.tape.moments import by_samples
from labkit.memory.tape.network import Program
from labkit.memory.tape.sizes import Numbers, Shape, is_array, shape_of, units
from labkit.memory.tape.tape import UNITS

__all__ = ["Mode", "Shape", "Term", "end_terms", "layer_terms", "stack_terms"]

TORCH = "torch 2.13, saved tensors"
_SOURCES = {
    "input": f"{TORCH}; Korthikanti et al. 2022, Table 2",
    "log of sums": f"{TORCH}; Dao et al. 2022, Algorithm 1",
    "dropout mask": "Korthikanti et al. 2022, §4",
    "dropout mask and output": "Korthikanti et al. 2022, §4",
    "gradient of the input": f"{TORCH}; Hsu et al. 2024 (Liger Kernel)",
    "gradient of the weight": f"{TORCH}; Hsu et al. 2024 (Liger Kernel)",
}
Wanted = Callable[[Kept], bool]


@dataclass(frozen=True, slots=True)
class Term:
    """What is counted, how many bytes, by which formula, from where; on the device or its host.

    ``component`` may say more than its row of a comparison: ``"activations.mlp"`` belongs to the
    row ``"activations"``. ``num_bytes`` is a number, an exact fraction, or an array of a sweep.

    >>> Term("optimizer.momentum", 8, "4·Ψ", "Adam").row
    'optimizer'
    """

    component: str
    num_bytes: Any
    formula: str
    source: str
    place: str = "device"

    @property
    def row(self) -> str:
        """The row of a comparison that the term belongs to."""
        return self.component.partition(".")[0]


def layer_terms(
    shape: Shape, mode: Mode, *, experts: bool | None = None, **sizes: Any
) -> tuple[Term, ...]:
    """What one layer keeps, all of it (``recompute="full"``: its input only).

    ``sizes`` are fields of :class:`~labkit.memory.tape.sizes.Numbers`. ``experts`` asks for a layer
    with experts or for one with an MLP; by default for the kind that the last layer is of. With
    ``recompute="every"`` these are the terms of a layer that is not recomputed;
    :func:`stack_terms` counts both kinds.

    >>> from labkit.models import Model
    >>> gpt = Model.preset("gpt2-124m")
    >>> terms = layer_terms(gpt, Mode(), seq=1024, micro_batch=1)
    >>> sum(t.num_bytes for t in terms) == 1024 * (32 * gpt.hidden + 4 * gpt.heads + 8)
    True
    """
    routed = bool(shape.num_experts) if experts is None else experts
    if mode.recompute == "every":
        mode = replace(mode, recompute="none")
    return _terms(shape, mode, sizes, lambda part: part.experts == routed, of_one=True)


def stack_terms(shape: Shape, mode: Mode, **sizes: Any) -> tuple[Term, ...]:
    """What all layers together keep at the end of the forward pass.

    ``group`` layers keep one input between them under ``recompute="full"``; under ``"every"``
    each ``period``-th layer keeps its input only.
    """
    terms = _terms(shape, mode, sizes, lambda part: part.experts is not None)
    return tuple(replace(term, component=f"layers.{term.component}") for term in terms)


def end_terms(shape: Shape, mode: Mode, **sizes: Any) -> tuple[Term, ...]:
    """What is kept before the first layer and after the last: positions, final norm, head, loss.

    ``sizes`` are fields of :class:`~labkit.memory.tape.sizes.Numbers`.
    """
    # Checkpoints of older layers keep a mask and position numbers that no layer makes.
    again = "own-tables" in mode.older and mode.recompute != "none"
    whole = replace(mode, recompute="full" if again else "none")
    return _terms(shape, whole, sizes, lambda part: part.experts is None, of_one=True)


def total_bytes(terms: tuple[Term, ...]) -> Any:
    """The sum of the terms' bytes."""
    return sum(term.num_bytes for term in terms)


def _terms(
    shape: Shape, mode: Mode, sizes: dict[str, Any], wanted: Wanted, *, of_one: bool = False
) -> tuple[Term, ...]:
    """The wanted terms of one layer (``of_one``), or of as many layers as there are."""
    shape = shape_of(shape)
    numbers = Numbers(**sizes)

    def where(one_sample: Any, alone: Term, many: Term) -> Term:
        """Attention written out copies nothing for one sample alone."""
        return replace(many, num_bytes=np.where(one_sample, alone.num_bytes, many.num_bytes))

    of = partial(_by_component, shape, numbers, wanted, of_one)
    return tuple(by_samples(shape, mode, numbers, of, where).values())


def _by_component(
    shape: Shape, numbers: Numbers, wanted: Wanted, of_one: bool, program: Program
) -> dict[str, Term]:
    """The wanted terms of one program by component, those of one name added up."""
    times = multiplicities(shape, numbers, program)
    value = units(shape, numbers, program.mode)
    terms: dict[str, Term] = {}
    for part in filter(wanted, kept(program)):
        size = sum(width * value[place] for place, width in part.amount)
        text = " + ".join(_product(width, UNITS[place]) for place, width in part.amount)
        text = text.replace("+ -", "- ")
        if not of_one:
            layers = sum(n * times[place] for place, n in enumerate(part.times) if n)
            size = layers * size
            text = f"{'l' if is_array(layers) else layers}·({text})"
        if before := terms.get(part.component):
            size = before.num_bytes + size
            text = f"{before.formula} + {text}"
        source = _SOURCES.get(part.component.rpartition(".")[2], TORCH)
        terms[part.component] = Term(
            component=part.component, num_bytes=size, formula=text, source=source
        )
    return terms


def _product(width: int, unit: str) -> str:
    """A factor of a formula, such as ``4·b·s·h``."""
    return str(width) if unit == "1" else unit if width == 1 else f"{width}·{unit}"
