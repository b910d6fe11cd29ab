"""One line of an account of memory: ours, or somebody else's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """What is counted, how many bytes, by which formula, from where; on the device or its host.

    ``component`` may say more than its row of a comparison: ``"activations.mlp"`` belongs to the
    row ``"activations"``. ``num_bytes`` is a number, an exact fraction, or an array of a sweep.

    >>> Term(component="optimizer.momentum", num_bytes=8, formula="4·Ψ", source="Adam").row
    'optimizer'
    """

    component: str
    num_bytes: Any
    formula: str
    source: str
    place: str = "device"

    @property
    def row(self) -> str:
        return self.component.partition(".")[0]
