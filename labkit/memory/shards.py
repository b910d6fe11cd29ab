"""Model states of one rank by ZeRO's stage, tensor by tensor, and where they are kept.

A state that is sharded over N ranks takes ceil(d0/N) rows of every tensor (as FSDP2 allocates), or
1/N of its elements where the ideal is asked for. The number of data-parallel ranks and of layers
may be arrays that broadcast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from labkit.memory.parallel import Parallel
from labkit.memory.recipe import Place, Recipe, state_bytes
from labkit.memory.states import is_sharded
from labkit.models import Model, TensorShape

FSDP2 = "ZeRO §5; rows as torch's FSDP2 allocates them"
IDEAL = "ZeRO §5"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One state of a rank: its bytes, which may be an array, and where they are."""

    component: str
    num_bytes: Any
    formula: str
    source: str
    place: Place = "device"


class Rows(NamedTuple):
    """Tensors alike: rows, elements a row, how often in a unit, in which unit."""

    rows: int
    rest: int
    number: int
    expert: bool
    unit: str
    times: int
    shape: tuple[int, ...]
    matrix: bool


@lru_cache(maxsize=1024)
def rows_of(model: Model, cut: Parallel, device: int) -> tuple[Rows, ...]:
    """The distinct tensors a rank of a pipeline device holds before ZeRO."""
    found: Counter[tuple[Any, ...]] = Counter()
    for unit in cut.units(model, device):
        for tensor in unit.tensors:
            first = tensor.shape[0]
            alike = (first, tensor.numel // first, tensor.role == "expert", unit.name)
            found[(*alike, unit.count, tensor.shape, tensor.is_hidden_matrix)] += 1
    return tuple(
        Rows(rows, rest, number, expert, unit, count, shape, matrix)
        for (rows, rest, expert, unit, count, shape, matrix), number in found.items()
    )


def unit_elements(tensors: tuple[Rows, ...]) -> dict[str, int]:
    """Elements of one unit of each kind, whole."""
    found: dict[str, int] = {}
    for one in tensors:
        found[one.unit] = found.get(one.unit, 0) + one.rows * one.rest * one.number
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a rank of a pipeline device holds; ``dp`` and ``layers`` may be arrays.

    ``layers`` None: as many as the model and the pipeline say.
    """

    tensors: tuple[Rows, ...]
    parallel: Parallel
    recipe: Recipe
    dp: Any
    layers: Any = None
    ideal: bool = False

    @property
    def degree(self) -> Any:
        """Ranks that share one copy of what is sharded."""
        if self.parallel.partition_group:
            return self.parallel.partition_group
        return self.dp * self.parallel.cp // self.parallel.replicate

    def count(self, one: Rows) -> Any:
        """How many tensors like this there are on the rank."""
        layered = self.layers is not None and one.unit == "block"
        return one.number * (self.layers if layered else one.times)

    def elements(self, degree: Any) -> Any:
        """Elements kept where everything is shared by ``degree`` ranks."""
        total: Any = 0
        for one in self.tensors:
            parts = self._parts(one, degree)
            rows = one.rows / parts if self.ideal else -(-one.rows // parts)
            total = total + self.count(one) * one.rest * rows
        return total

    def largest(self, degree: Any) -> Any:
        """Elements of the largest tensor's shard."""
        shards = [-(-one.rows // self._parts(one, degree)) * one.rest for one in self.tensors]
        return np.maximum.reduce(np.broadcast_arrays(*shards))

    def _parts(self, one: Rows, degree: Any) -> Any:
        if not one.expert or self.parallel.ep == 1:
            return degree
        return np.maximum(1, degree // self.parallel.ep)

    def degree_of(self, component: str) -> Any:
        """Ranks over which ``component`` is sharded: 1 below its stage.

        What leaves the device is always a shard: at stage 1 too, the host gets what it updates.
        """
        away = getattr(self.recipe, f"offload_{component}") != "device"
        return self.degree if away or is_sharded(component, self.parallel.zero) else 1

    def states(self) -> Iterator[State]:
        """Parameters, gradients (all there at once) and optimizer, and hpZ's second copy."""
        recipe, group = self.recipe, self.parallel.secondary_group
        yield self._state("parameters", recipe.parameter_bytes)
        yield self._state("gradients", recipe.gradient_bytes)
        yield from self._optimizer()
        if group:
            yield State(
                component="second copy of the parameters",
                num_bytes=recipe.parameter_bytes * self.elements(group),
                formula=f"{recipe.parameter_bytes} B × {self._rule(group)}",
                source="ZeRO++ §3.2 (hpZ)",
            )

    def _state(self, component: str, width: float) -> State:
        degree = self.degree_of(component)
        return State(
            component=component,
            num_bytes=width * self.elements(degree),
            formula=f"{width} B × {self._rule(degree)}",
            source=IDEAL if self.ideal else FSDP2,
            place=getattr(self.recipe, f"offload_{component}"),
        )

    def _rule(self, degree: Any) -> str:
        if np.ndim(degree) == 0 and degree == 1:
            return "Ψ of the rank"
        size = f"{degree}" if np.ndim(degree) == 0 else "N"
        return f"Ψ/{size}" if self.ideal else f"Σ ceil(d0/{size})·rest"

    def _optimizer(self) -> Iterator[State]:
        degree, recipe = self.degree_of("optimizer"), self.recipe
        for kind, num_bytes in self._kinds(degree).items():
            counters = kind == "step"
            yield State(
                component=f"optimizer.{kind}",
                num_bytes=num_bytes,
                formula=f"{kind} of {self._rule(degree)}",
                source=recipe.source or (IDEAL if self.ideal else FSDP2),
                place=recipe.counters_on if counters else recipe.offload_optimizer,
            )

    def _kinds(self, degree: Any) -> dict[str, Any]:
        """Bytes of each kind of optimizer state."""
        if self.recipe.per_element:
            elements = self.elements(degree)
            one = _per_element(self.recipe)
            found = {kind: width * elements for kind, width in one.items()}
            if self.recipe.optimizer == "adam":
                found["step"] = 4 * sum(self.count(tensor) for tensor in self.tensors)
            return found
        if np.ndim(degree) == 0 and np.ndim(self.layers) == 0:
            return self._by_shape(int(degree), self.layers)
        both = np.broadcast_arrays(degree, 0 if self.layers is None else self.layers)
        pairs, where = np.unique(
            np.stack([part.ravel() for part in both]), axis=1, return_inverse=True
        )
        each = [
            self._by_shape(int(parts), None if self.layers is None else int(layers))
            for parts, layers in pairs.T
        ]
        kinds = dict.fromkeys(kind for one in each for kind in one)
        return {
            kind: np.array([one.get(kind, 0) for one in each])[where.ravel()].reshape(both[0].shape)
            for kind in kinds
        }

    def _by_shape(self, degree: int, layers: Any) -> dict[str, Any]:
        """The same where they depend on each tensor's shape."""
        total: dict[str, float] = {}
        for one in self.tensors:
            parts = int(self._parts(one, degree))
            rows = one.rows if self.ideal else -(-one.rows // parts)
            role = "hidden" if one.matrix else "embedding"
            shard = TensorShape(name="", shape=(rows, *one.shape[1:]), unit="", role=role)  # type: ignore[arg-type]
            layered = layers is not None and one.unit == "block"
            times = one.number * (layers if layered else one.times) / (parts if self.ideal else 1)
            for kind, num_bytes in state_bytes([shard], self.recipe).items():
                once = kind == "tables"
                total[kind] = num_bytes if once else total.get(kind, 0) + times * num_bytes
        return total


def _per_element(recipe: Recipe) -> dict[str, float]:
    """Bytes of each kind of state for one element, of optimizers that treat all alike."""
    from labkit.memory.recipe import DTYPE_BYTES

    found: dict[str, float] = {"master": recipe.master_bytes} if recipe.master else {}
    width = DTYPE_BYTES[recipe.states]
    if recipe.optimizer == "adam" or recipe.momentum:
        found["momentum"] = width
    if recipe.optimizer == "adam":
        found["variance"] = width
    if recipe.amsgrad:
        found["largest variance"] = width
    return found
