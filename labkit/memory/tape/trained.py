"""Which parameters of a network are trained, and the stretches of layers that are alike in it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from labkit.memory.tape.step import Stretch

Names = frozenset[str]
ALL: Names = frozenset({"all"})
NONE: Names = frozenset()
NORMS = ("attention norm", "mlp norm")
ATTENTION = (
    "qkv",
    "query",
    "key",
    "value",
    "out",
    "query norm",
    "key norm",
    "query down",
    "latent down",
    "latent norm",
    "latent up",
)
"""Parameters of a layer by the part they are in, biases apart; all others are the MLP's."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The parameters that are trained; all others are frozen.

    Attributes:
        ends: outside the layers: some of ``embedding``, ``position``, ``norm`` and ``head`` (which
            is the ``embedding`` where the two are one matrix); ``input`` is no parameter: the
            embedding's output, which then has a gradient; nor is ``prompt``, which is put in front
            of it.
        layers: of each layer, or once where all layers are alike: :data:`ALL`, parts
            (``attention``, ``mlp``, ``norms``, ``biases``), parameters by their names on the tape,
            or the layer's ``adapters``.
    """

    ends: Names = NONE
    layers: tuple[Names, ...] = (NONE,)

    @property
    def deepest(self) -> int:
        """The first layer that has a gradient; as many as there are layers where none has."""
        if self.ends & {"embedding", "position", "input", "prompt"}:
            return -1
        chosen = (number for number, names in enumerate(self.layers) if names)
        return next(chosen, len(self.layers))

    def stretch(self, number: int, group: int = 1) -> Stretch:
        """Layers up to the deepest one that has a gradient are named the first, all others the
        last; of ``group`` layers that are recomputed together all are.
        """
        return Stretch.FIRST if number // group * group <= self.deepest else Stretch.LAST


def is_trained(name: str, chosen: Names | None) -> bool:
    """Whether a parameter of a layer, by its name on the tape, is among the chosen ones.

    >>> is_trained("qkv, bias", frozenset({"biases"})), is_trained("qkv", frozenset({"mlp"}))
    (True, False)
    """
    if chosen is None or "all" in chosen:
        return True
    whole, bias, _ = name.partition(", bias")
    part = "norms" if whole in NORMS else "attention" if whole in ATTENTION else "mlp"
    return name in chosen or part in chosen or bool(bias and "biases" in chosen)


class Run(NamedTuple):
    """Layers one after another of one kind, of which the same is trained."""

    start: int
    end: int
    names: Names
    experts: bool


def runs(trained: Trained, dense: int) -> list[Run]:
    """The runs of a stack of which the first ``dense`` layers have no experts."""
    kinds = ((names, number >= dense) for number, names in enumerate(trained.layers))
    found: list[Run] = []
    for (names, experts), group in groupby(kinds):
        start = found[-1].end if found else 0
        found.append(Run(start, start + len(list(group)), names, experts))
    return found
