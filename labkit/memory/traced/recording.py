"""What one forward and backward pass allocated: each storage's size, kind, place and lifetime.

A clock counts operators that allocate. A storage is there from its own time to the last at which
something held it; so bytes by category at every time are sums of what came minus what went, and no
tensor is needed any more. Nothing here loads torch: :mod:`labkit.memory.traced.recorder` records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labkit.memory.tape.step import Phase

if TYPE_CHECKING:
    import pandas as pd

ACTIVATIONS = "activations"
GRADIENTS = "gradients"
CACHED = "cached weights"
TEMPORARIES = "temporaries"
GATHERED = "gathered layers"
GATHER = "gather buffers"
SENT = "reduce buffers"
WHOLE = "gradients to be reduced"
CACHE = "keys and values"
CATEGORIES = (GATHERED, GATHER, GRADIENTS, WHOLE, SENT, ACTIVATIONS, CACHED, CACHE, TEMPORARIES)
ALWAYS = -1
"""The time before the first operator."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Bytes that an operator allocated.

    Attributes:
        category: one of :data:`CATEGORIES`.
        module: the dotted name of the module at work; empty outside of all.
        operator, shape, dtype: what made it, and the tensor that it was made for.
        born, died: the first and the last time at which it is there.
    """

    num_bytes: int
    category: str
    module: str
    operator: str
    shape: tuple[int, ...]
    dtype: str
    born: int
    died: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """One forward and backward pass.

    Attributes:
        storages: all that was allocated, in order.
        modules: the module at work at each time.
        turn: the first time of the backward pass; before it is the forward pass with the loss.
        accumulated: when each gradient of ``storages`` was done, by its place among them.
        buffers_bytes, inputs_bytes: what the module and the batch hold beside the parameters.
        unused: parameters that got no gradient though they ask for one.
        notes: what the module does otherwise than was asked, in sentences.
    """

    storages: tuple[Storage, ...]
    modules: tuple[str, ...]
    turn: int
    accumulated: dict[int, int]
    buffers_bytes: int
    inputs_bytes: int
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        """How many times there are."""
        return len(self.modules)

    def span(self, phase: Phase) -> slice:
        """The times of a phase."""
        return slice(0, self.turn) if phase is Phase.FORWARD else slice(self.turn, self.end)

    @cached_property
    def bytes_by_category(self) -> dict[str, NDArray[np.int64]]:
        """Bytes of each category at every time."""
        return {name: self._summed(name) for name in CATEGORIES}

    @cached_property
    def arriving(self) -> NDArray[np.int64]:
        """Bytes of gradients that are made and not yet added to what is there, at every time."""
        changes = np.zeros(self.end + 1, dtype=np.int64)
        for place, time in self.accumulated.items():
            storage = self.storages[place]
            changes[storage.born] += storage.num_bytes
            changes[min(time, storage.died) + 1] -= storage.num_bytes
        return changes.cumsum()[: self.end]

    def _summed(self, category: str) -> NDArray[np.int64]:
        """What came of a category minus what went, at every time."""
        changes = np.zeros(self.end + 1, dtype=np.int64)
        for storage in self.storages:
            if storage.category == category:
                changes[storage.born] += storage.num_bytes
                changes[storage.died + 1] -= storage.num_bytes
        return changes.cumsum()[: self.end]

    @property
    def gradients_bytes(self) -> int:
        """Bytes of all gradients once they are there."""
        return int(self.bytes_by_category[GRADIENTS][-1]) if self.end else 0

    def there(self, time: int) -> list[Storage]:
        """The storages that are there at a time, largest first."""
        live = (s for s in self.storages if s.born <= time <= s.died)
        return sorted(live, key=lambda storage: -storage.num_bytes)

    def alike(self, time: int) -> list[tuple[Storage, int]]:
        """The storages there at a time, those of like layers as one with their number; the largest
        of them together first.
        """
        groups: dict[Storage, int] = {}
        for storage in self.there(time):
            module = _NUMBER.sub("*", storage.module)
            like = replace(storage, module=module, born=0, died=0)
            groups[like] = groups.get(like, 0) + 1
        return sorted(groups.items(), key=lambda item: -item[0].num_bytes * item[1])

    def largest(self, time: int, number: int) -> pd.DataFrame:
        """The largest of :meth:`alike`, a row each: module (``*`` for layers), operator, shape,
        dtype, category, number and num_bytes, of all of them; none before the first operator.
        """
        import pandas as pd

        names = ("module", "operator", "shape", "dtype", "category")
        rows = [
            [*(getattr(storage, name) for name in names), count, count * storage.num_bytes]
            for storage, count in (self.alike(time) if time >= 0 else [])[:number]
        ]
        return pd.DataFrame(rows, columns=[*names, "number", "num_bytes"])

    def kept(self) -> dict[str, int]:
        """Bytes that the forward pass keeps for the backward pass, by module with ``*`` for layers.

        Layers of a stack are one: ``encoder.layer.3.attention`` is ``encoder.layer.*.attention``.
        """
        sizes: dict[str, int] = {}
        for storage in self.storages:
            if storage.born < self.turn <= storage.died and storage.category == ACTIVATIONS:
                name = _NUMBER.sub("*", storage.module) or "loss"
                sizes[name] = sizes.get(name, 0) + storage.num_bytes
        return dict(sorted(sizes.items(), key=lambda item: -item[1]))

    def timeline(self) -> pd.DataFrame:
        """A row a time: phase, module at work, bytes of each category and of all."""
        import pandas as pd

        table = pd.DataFrame(self.bytes_by_category, pd.RangeIndex(self.end, name="time"))
        total = table.sum(axis=1) + self.buffers_bytes + self.inputs_bytes
        phases = [str(Phase.FORWARD)] * self.turn + [str(Phase.BACKWARD)] * (self.end - self.turn)
        table.insert(0, "phase", phases)
        table.insert(1, "module", list(self.modules))
        return table.assign(total=total)
