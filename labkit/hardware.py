"""Accelerators and links: capacities and rates, each with its source (``data/hardware.yaml``)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from labkit import files
from labkit.errors import BadValue, not_among, shown
from labkit.quantities import GIB

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A GPU with its nominal memory, dense peak rate, memory and NVLink bandwidth (both
    directions).

    ``capability`` is CUDA's compute capability; None where the maker has no such thing.
    """

    name: str
    memory_gib: float
    peak_flops: float
    hbm_bytes_per_s: float
    nvlink_bytes_per_s: float
    source: str
    capability: float | None = None

    @property
    def memory_bytes(self) -> int:
        """The nominal capacity; a process gets a little less (context, reserved pages)."""
        return int(self.memory_gib * GIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins ranks: its bandwidth in one direction, and what one more hop costs."""

    name: str
    bytes_per_s: float
    latency_s: float
    source: str


def accelerator(name: str) -> Accelerator:
    """Look up the accelerator of that name.

    Case, spaces, hyphens and the maker's name do not count, nor does the memory where there is one
    size only.

    Raises:
        UsageError: none has it; the message lists all there are.

    >>> accelerator("NVIDIA RTX 4090").name, accelerator("h100").name
    ('RTX-4090', 'H100-80GB')
    """
    return _pick("accelerator", Accelerator, name)


def named_in(text: str) -> str | None:
    """The name of the accelerator that a text speaks of, whatever memory it says.

    It is None where the text names none that is known, or several.

    Raises:
        BadValue: it is no text.

    >>> named_in("8x NVIDIA H100 80GB HBM3"), named_in("V100 or A100"), named_in("not said")
    ('H100-80GB', None, None)
    """
    if not isinstance(text, str):
        raise BadValue(f"text must be a text, got {shown(text)}")
    kinds: dict[str, str] = {}
    for name in files.named(files.shipped("data/hardware.yaml"), Accelerator, "accelerators"):
        kinds.setdefault(_SIZE.sub("", name), name)
    found = [
        name
        for kind, name in kinds.items()
        if re.search(rf"(?<!\w){kind.replace('-', '[- ]')}(?!\w)", text)
    ]
    return found[0] if len(found) == 1 else None


def link(name: str) -> Link:
    """Look up the link of that name; it raises as :func:`accelerator` does."""
    return _pick("link", Link, name)


def _pick(what: str, kind: Callable[..., Item], name: str) -> Item:
    """Look a name up in the file."""
    known = files.named(files.shipped("data/hardware.yaml"), kind, f"{what}s")
    if not isinstance(name, str):
        raise not_among(what, name, known)
    if name in known:
        return known[name]
    alike = [key for key in known if _letters(key) == _letters(name)]
    alike = alike or [key for key in known if _letters(_SIZE.sub("", key)) == _letters(name)]
    if len(alike) != 1:
        raise not_among(what, name, known)
    return known[alike[0]]


_SIZE = re.compile(r"-\d+GB$")
_MAKERS = re.compile(r"^(nvidia|amd|google)?(geforce|instinct|cloud)?")


def _letters(name: str) -> str:
    """What of a name counts when it is looked up."""
    return _MAKERS.sub("", re.sub(r"[\s_-]", "", name.lower()))
