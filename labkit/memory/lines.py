"""Lines of accounts of memory: our own terms, and somebody else's lines."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What is counted, how many bytes, by which formula, from where; on the device or its host.

    ``component`` may say more than its row of a comparison: ``"activations.mlp"`` belongs to the
    row ``"activations"``.
    """

    component: str
    num_bytes: Fraction | float
    formula: str
    source: str
    place: Literal["device", "host"] = "device"

    @property
    def row(self) -> str:
        return self.component.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One line of the account: what is held, how many bytes, by which formula, from where."""

    component: str
    num_bytes: float
    formula: str
    source: str
    place: str = "device"
