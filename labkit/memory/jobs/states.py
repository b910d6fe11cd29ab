"""Model states of one rank by ZeRO's stage, tensor by tensor, and where they are kept.

A state that is sharded over N ranks is cut by the plan's rule: ceil(d0/N) rows of every tensor (as
FSDP2 allocates), one of N slices of a flat buffer, or the whole tensors of the fullest rank; or 1/N
of its elements where the ideal is asked for. The number of data-parallel ranks and of layers may be
arrays that broadcast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from labkit.memory.jobs.adapter import TENSORS, Adapter
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import (
    COUNTER_BYTES,
    DTYPE_BYTES,
    QUANTISED,
    Recipe,
    element_bytes,
    state_bytes,
)
from labkit.memory.jobs.trained import entries, is_end_trained, trained_in_layer
from labkit.memory.tape.mode import BF16
from labkit.memory.tape.saved import Term
from labkit.memory.tape.trained import Trained
from labkit.models import Model, TensorShape
from labkit.models.tensors import Role, Unit

STAGE_NAMES: dict[int, str] = {0: "Baseline DP", 1: "Pos", 2: "Pos+g", 3: "Pos+g+p"}
COMPONENTS = ("parameters", "gradients", "optimizer")
# The first ZeRO stage that shards each component.
SHARDED_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}

SHARDINGS: dict[str, str] = {
    "even": "Ψ/N of every state, as the papers count (exact only where all divides evenly)",
    "flat": "one flat buffer cut into N slices of ceil(Ψ/N) elements (ZeRO §5.1, DeepSpeed)",
    "dim0": "ceil(d0/N) rows of every tensor, padded (PyTorch FSDP2)",
    "tensor": "whole tensors, largest first to the emptiest rank (PyTorch ZeroRedundancyOptimizer)",
}
SOURCES = {
    "ideal": "ZeRO §5",
    "dim0": "ZeRO §5; rows as torch's FSDP2 allocates them",
    "flat": "ZeRO §5.1; equal slices of one padded buffer, as DeepSpeed keeps it",
    "tensor": "ZeRO §5; whole tensors as torch's ZeroRedundancyOptimizer deals them out",
}
_RULES = {
    "ideal": "Ψ/{n}",
    "dim0": "Σ ceil(d0/{n})·rest",
    "flat": "ceil(Ψ/{n})",
    "tensor": "the fullest of {n} ranks' tensors",
}


def is_sharded(component: str, zero: int) -> bool:
    """Whether ZeRO stage ``zero`` shards ``component``."""
    return zero >= SHARDED_FROM[component]


def shard_shapes(
    tensors: Sequence[TensorShape], *, num_ranks: int, rank: int = 0
) -> tuple[TensorShape, ...]:
    """What a rank has of every tensor where chunks of ceil(rows/N) are dealt out, maybe no rows.

    The last ranks get less, or nothing: this is ``torch.chunk``'s rule, which FSDP2 follows. For
    states that depend on shapes: ``state_bytes(shard_shapes(...), recipe)``.

    Args:
        num_ranks: N.
        rank: which of them.

    >>> from labkit.models import Model
    >>> [t.shape for t in shard_shapes(Model.preset("tiny-gpt").tensors()[:2], num_ranks=4, rank=3)]
    [(62, 50), (6, 50)]
    """
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank must be in 0..{num_ranks - 1}, got {rank}")
    shards = []
    for tensor in tensors:
        rows, *rest = tensor.shape
        chunk = -(-rows // num_ranks)
        held = max(0, min(chunk, rows - rank * chunk))
        shards.append(replace(tensor, shape=(held, *rest)))
    return tuple(shards)


def dealt(tensors: Iterable[TensorShape], num_ranks: int) -> list[list[TensorShape]]:
    """The whole tensors that each rank owns: largest first, to the rank with the least so far.

    Ties keep the tensors' order and go to the lowest rank. Source: the rule documented for
    PyTorch's ``ZeroRedundancyOptimizer`` ("sorted-greedy").
    """
    load = [0] * num_ranks
    ranks: list[list[TensorShape]] = [[] for _ in load]
    for tensor in sorted(tensors, key=lambda tensor: -tensor.numel):
        emptiest = load.index(min(load))
        ranks[emptiest].append(tensor)
        load[emptiest] += tensor.numel
    return ranks


class Rows(NamedTuple):
    """Tensors that are alike: their rows, elements a row, how often in a unit, and in which.

    ``kind`` tells layers apart of which not the same is trained.
    """

    rows: int
    rest: int
    number: int
    expert: bool
    unit: str
    times: int
    shape: tuple[int, ...]
    matrix: bool
    trained: bool
    packed: bool = False
    copied: bool = False
    embedding: bool = False
    kind: int = 0


@lru_cache(maxsize=1024)
def rows_of(
    model: Model,
    cut: Parallel,
    device: int,
    adapter: Adapter | None = None,
    trained: Trained | None = None,
) -> tuple[Rows, ...]:
    """The distinct tensors that a rank of a pipeline device holds, before ZeRO.

    With an ``adapter`` they are frozen, and its matrices are there beside them, and copies of the
    ends that it saves. ``trained`` is what else is not frozen, where a model is described by its
    sizes; a measured one's tensors say it themselves.

    A router's correction is not among them: no gradient reaches it, and it is kept with the
    buffers (:func:`labkit.memory.tape.moments.held`).
    """
    counts: Counter[Rows] = Counter()
    for unit in cut.units(model, device):
        for tensor in unit.tensors:
            if model.router_bias and tensor.name.endswith("router.bias"):
                continue
            counts.update(_rows_like(model, cut, unit, tensor, adapter, trained))
    counts.update(_prompt_rows(adapter, model))
    return tuple(rows._replace(number=number) for rows, number in counts.items())


def _rows_like(
    model: Model,
    cut: Parallel,
    unit: Unit,
    tensor: TensorShape,
    adapter: Adapter | None,
    trained: Trained | None,
) -> Iterator[Rows]:
    """A unit's tensor, and what is beside it, once each."""
    first = tensor.shape[0] if tensor.shape else 1
    frozen = Rows(
        rows=first,
        rest=tensor.numel // first,
        number=1,
        expert=tensor.role == "expert",
        unit=unit.name if cut.wrap == "parts" or "block" in unit.name else "root",
        times=unit.count,
        shape=tensor.shape,
        matrix=tensor.is_hidden_matrix,
        trained=False,
        embedding=tensor.role == "embedding",
    )
    if trained is None or model.layout:
        yield frozen._replace(trained=tensor.trained)
        return
    if "block" not in unit.name:
        learns = is_end_trained(tensor.name, trained)
        copied = learns and adapter is not None
        yield frozen._replace(trained=learns and not copied)
        if copied:
            yield frozen._replace(trained=True, copied=True)
        return
    kinds = entries(model, trained, experts=unit.name == "expert block")
    if len(kinds) == 1:
        kinds = dict.fromkeys(kinds, unit.count)
    for kind, (names, times) in enumerate(kinds.items()):
        here = frozen._replace(times=times, embedding=False, kind=kind)
        yield here._replace(
            trained=trained_in_layer(tensor, names, model),
            packed=adapter is not None and adapter.packed and len(tensor.shape) == 2,
        )
        if adapter is not None and "adapters" in names and len(tensor.shape) == 2:
            for rows, rest in _adapters(adapter, tensor):
                own = here._replace(rows=rows, rest=rest, shape=(rows, rest))
                yield own._replace(expert=False, matrix=True, trained=True)


def _prompt_rows(adapter: Adapter | None, model: Model) -> Iterator[Rows]:
    """The tensors of virtual tokens, whose table, the first of them, is an embedding."""
    shapes = () if adapter is None else adapter.prompt_shapes(model.hidden)
    for place, shape in enumerate(shapes):
        first, *rest = shape
        yield Rows(
            rows=first,
            rest=prod(rest),
            number=1,
            expert=False,
            unit="root",
            times=1,
            shape=shape,
            matrix=place > 0 and len(shape) == 2,
            trained=True,
            embedding=place == 0,
        )


def _adapters(adapter: Adapter, tensor: TensorShape) -> Iterator[tuple[int, int]]:
    """The shapes of what an adapter has beside a matrix of a layer, where it is a target."""
    name = tensor.name.removesuffix(".weight").rpartition(".")[2]
    if tensor.role == "hidden" and name in {TENSORS[target][0] for target in adapter.targets}:
        rows, columns = tensor.shape
        if adapter.kind == "ia3":
            yield (1, columns) if name == TENSORS["down"][0] else (rows, 1)
            return
        yield adapter.rank, columns
        yield rows, adapter.rank
        if adapter.kind == "dora":
            yield rows, 1


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
    def trained(self) -> Holding:
        """The part of it that has gradients and optimizer states."""
        if all(tensor.trained for tensor in self.tensors):
            return self
        return replace(self, tensors=tuple(tensor for tensor in self.tensors if tensor.trained))

    @property
    def updated(self) -> tuple[Holding, ...]:
        """What is trained, in one part a recipe: copies of ends that an adapter saves are in the
        format of the base.
        """
        tensors = self.trained.tensors
        copies = tuple(tensor for tensor in tensors if tensor.copied)
        rest = tuple(tensor for tensor in tensors if not tensor.copied)
        parts = [replace(self, tensors=rest)] if rest else []
        if copies:
            base = self.recipe.parameters
            follow = self.recipe.states == self.recipe.gradients
            states = base if follow and self.recipe.per_element else self.recipe.states
            recipe = replace(self.recipe, gradients=base, states=states)
            parts.append(replace(self, tensors=copies, recipe=recipe))
        return tuple(parts)

    @property
    def degree(self) -> Any:
        """Ranks that share one copy of what is sharded."""
        if self.parallel.partition_group:
            return self.parallel.partition_group
        return self.dp * self.parallel.cp // self.parallel.replicate

    def count(self, tensor: Rows) -> Any:
        """How many tensors like this there are on the rank."""
        layered = self.layers is not None and tensor.unit == "block"
        return tensor.number * (self.layers if layered else tensor.times)

    @property
    def whole(self) -> Any:
        """Elements of the rank before ZeRO."""
        return sum(self.count(tensor) * tensor.rest * tensor.rows for tensor in self.tensors)

    @property
    def rule(self) -> str:
        """The rule by which it is cut, a key of :data:`SOURCES`."""
        return "ideal" if self.ideal else self.parallel.shard_rule

    @property
    def source(self) -> str:
        """Where the rule was read."""
        return SOURCES[self.rule]

    def elements(self, degree: Any) -> Any:
        """Elements kept where everything is shared by ``degree`` ranks."""
        if self.rule == "flat":
            return sum(self._slices(degree))
        if self.rule == "tensor":
            return self._each(degree, Holding._fullest)["elements"]
        total: Any = 0
        for tensor in self.tensors:
            parts = self.parts(tensor, degree)
            rows = tensor.rows / parts if self.ideal else -(-tensor.rows // parts)
            total = total + self.count(tensor) * tensor.rest * rows
        return total

    def _slices(self, degree: Any) -> list[Any]:
        """Elements of a rank's slice of each flat buffer: routed experts have one of their own."""
        slices = []
        for expert in (False, True):
            mine = [tensor for tensor in self.tensors if tensor.expert == expert]
            if mine:
                size = sum(self.count(tensor) * tensor.rest * tensor.rows for tensor in mine)
                slices.append(-(-size // self.parts(mine[0], degree)))
        return slices

    def _fullest(self, degree: int) -> dict[str, Any]:
        """Elements and state bytes of the rank that gets most where whole tensors are dealt out."""
        whole = [_shape(t.shape) for t in self.tensors for _ in range(self.count(t))]
        mine = max(dealt(whole, degree), key=_size)
        return {"elements": _size(mine), **state_bytes(mine, self.recipe)}

    def largest(self, degree: Any) -> Any:
        """Elements of the largest tensor's shard."""
        if self.rule == "flat":
            return self.elements(degree)
        if self.rule == "tensor":
            return max(tensor.rows * tensor.rest for tensor in self.tensors)
        shards = [
            -(-tensor.rows // self.parts(tensor, degree)) * tensor.rest for tensor in self.tensors
        ]
        return np.maximum.reduce(np.broadcast_arrays(*shards))

    def parts(self, tensor: Rows, degree: Any) -> Any:
        """Ranks that share a tensor where ``degree`` ranks share one copy: of experts ``ep`` times
        fewer.
        """
        if not tensor.expert or self.parallel.ep == 1:
            return degree
        return np.maximum(1, degree // self.parallel.ep)

    def degree_of(self, component: str) -> Any:
        """Ranks over which ``component`` is sharded: 1 below its stage.

        What leaves the device is always a shard: at stage 1 too, the host gets what it updates.
        """
        away = getattr(self.recipe, f"offload_{component}") != "device"
        return self.degree if away or is_sharded(component, self.parallel.zero) else 1

    def states(self) -> Iterator[Term]:
        """Parameters, gradients (all there at once) and optimizer, and hpZ's second copy."""
        recipe = self.recipe
        group = self.parallel.secondary_group
        if recipe.adapter is None:
            yield self._state("parameters", recipe.parameter_bytes)
        else:
            yield from self._base(recipe.adapter)
        if self.parallel.persistent:
            yield self._persistent()
        if not recipe.in_backward:
            for part in self.updated:
                yield part._state("gradients", part.recipe.gradient_bytes)
                yield from part._optimizer()
        elif self.trained.tensors:
            size = recipe.gradient_bytes * self.trained.largest(1)
            formula = f"{recipe.gradient_bytes} B × the largest tensor"
            yield Term("gradients", size, formula, recipe.source or self.source)
            yield from self.trained._optimizer()
        if group:
            shared = self.degree
            width = recipe.parameter_bytes
            size = width * self.elements(shared) * shared / group
            formula = f"{width} B × {self._rule(shared)} × N/{group}"
            source = "ZeRO++ §3.2 (hpZ); torch's FSDP2 cuts the gathered tensor, padding and all"
            yield Term("second copy of the parameters", size, formula, source)

    def _base(self, adapter: Adapter) -> Iterator[Term]:
        """Parameters where there are adapters: the frozen base, in two formats, and theirs."""
        width = 4 if adapter.rest == "fp32" else self.recipe.parameter_bytes
        place = self.recipe.offload_parameters
        frozen = [tensor for tensor in self.tensors if not tensor.trained]
        rest = replace(self, tensors=tuple(t for t in frozen if not t.packed))
        name = "rest of the base" if adapter.packed else "base"
        source = self.recipe.source or "Hu et al. 2022 §4"
        degree = self.degree_of("parameters")
        cut = self.parallel.zero == 3
        formula = f"{width} B × {rest._rule(degree)}, frozen" if cut else f"{width} B × Ψ frozen"
        sizes = [self.count(t) * t.rows * t.rest for t in rest.tensors]
        elements = rest.elements(degree) if cut and rest.tensors else sum(sizes)
        yield Term(f"parameters.{name}", width * elements, formula, source, place)
        if adapter.packed:
            yield from self._packed([t for t in frozen if t.packed], adapter)
        for part in self.updated:
            own = part._state("parameters", part.recipe.gradient_bytes)
            copied = part.tensors[0].copied
            yield replace(own, component=f"parameters.{'copies' if copied else 'adapters'}")

    def _packed(self, packed: Sequence[Rows], adapter: Adapter) -> Iterator[Term]:
        """The base in 4 bits and its scales, which stay whole where it is cut."""
        source = "Dettmers et al. 2023 §3; bitsandbytes, functional.py"
        name = "parameters.base in 4 bits"
        if self.parallel.zero < 3 or not adapter.is_cut:
            matrices = [self.count(t) * adapter.base_bytes(t.rows * t.rest) for t in packed]
            formula = "Σ of matrices: n/2 + scales of 64 weights each"
            yield Term(name, sum(matrices), formula, source)
            return
        degree = self.degree_of("parameters")
        stored = [self.count(t) * self.packed_share(t, degree) for t in packed]
        formula = f"Σ of matrices: {adapter.storage_bytes} B × ceil(rows/N) of one column"
        yield Term(name, sum(stored), formula, source, self.recipe.offload_parameters)
        scales = [self.count(t) * adapter.scale_bytes(t.rows * t.rest) for t in packed]
        formula = "Σ of matrices: scales of 64 weights each, whole on every rank"
        yield Term("parameters.scales of the base", sum(scales), formula, source)

    def stays(self, tensor: Rows) -> bool:
        """Whether a tensor is whole on every rank, beside its shard."""
        return not tensor.packed and tensor.rows * tensor.rest <= self.parallel.persistent

    def gathered_format(self, tensor: Rows) -> str:
        """The format in which a tensor is whole."""
        recipe = self.recipe
        if recipe.adapter is not None and tensor.trained and not tensor.copied:
            return recipe.adapter_format
        return recipe.parameters if recipe.autocast else recipe.compute_format

    def _persistent(self) -> Term:
        """What is whole on every rank beside its shard, since it is small."""
        size = sum(
            DTYPE_BYTES[self.gathered_format(tensor)]
            * (self.count(tensor) * tensor.rows * tensor.rest)
            for tensor in self.tensors
            if self.stays(tensor)
        )
        formula = f"Σ of tensors of at most {self.parallel.persistent:,} elements, whole"
        source = "DeepSpeed, runtime/zero/parameter_offload.py (mark_persistent_parameters)"
        return Term("parameters.small ones, whole", size * (self.degree > 1), formula, source)

    def packed_share(self, tensor: Rows, degree: Any) -> Any:
        """Bytes of a rank's share of a matrix in 4 bits, without its scales."""
        adapter = self.recipe.adapter
        assert adapter is not None
        rows = adapter.packed_rows(tensor.rows * tensor.rest)
        return adapter.storage_bytes * (rows / degree if self.ideal else -(-rows // degree))

    def _state(self, component: str, width: float) -> Term:
        """A state of so many bytes an element, with its formula and its place."""
        degree = self.degree_of(component)
        elements = self.elements(degree)
        formula = self._rule(degree)
        if self.rule == "flat" and self.parallel.zero and np.ndim(degree) == 0 and degree == 1:
            # What is not sharded lies in the same buffer, padded to equal slices.
            elements = self._padded()
            formula = "N·ceil(Ψ/N)"
        place = getattr(self.recipe, f"offload_{component}")
        return Term(component, width * elements, f"{width} B × {formula}", self.source, place)

    def _padded(self) -> Any:
        """Elements of flat buffers that are not sharded, padded to equal slices."""
        degrees = [self.degree]
        if len(self._slices(1)) > 1:
            degrees.append(self.parts(next(t for t in self.tensors if t.expert), self.degree))
        return sum(d * part for d, part in zip(degrees, self._slices(self.degree), strict=True))

    def _rule(self, degree: Any) -> str:
        """The formula of the elements that a rank keeps."""
        if np.ndim(degree) == 0 and degree == 1:
            return "Ψ of the rank"
        size = f"{degree}" if np.ndim(degree) == 0 else "N"
        return _RULES[self.rule].format(n=size)

    def _optimizer(self) -> Iterator[Term]:
        """The optimizer's states, kind by kind."""
        degree = self.degree_of("optimizer")
        recipe = self.recipe
        for kind, num_bytes in self._kinds(degree).items():
            formula = f"{kind} of {self._rule(degree)}"
            source = recipe.source or self.source
            if kind == "step" or kind.startswith("paged"):
                place = recipe.counters_on if kind == "step" else "cpu"
                yield Term(f"optimizer.{kind}", num_bytes, formula, source, place)
                continue
            place = recipe.offload_optimizer
            away = recipe.offload_fraction
            if away < 1:
                rest = f"{1 - away:g} of {formula}"
                yield Term(f"optimizer.{kind}", (1 - away) * num_bytes, rest, source)
                num_bytes, formula = away * num_bytes, f"{away:g} of {formula}"
            yield Term(f"optimizer.{kind}", num_bytes, formula, source, place)

    def _kinds(self, degree: Any) -> dict[str, Any]:
        """Bytes of each kind of optimizer state."""
        if self.rule == "tensor":
            kinds = self._each(degree, Holding._fullest)
            return {kind: size for kind, size in kinds.items() if kind != "elements"}
        if self.recipe.per_element:
            elements = self.elements(degree)
            widths = element_bytes(self.recipe)
            kinds = {kind: width * elements for kind, width in widths.items()}
            if self.recipe.optimizer == "adam":
                kinds["step"] = COUNTER_BYTES * self._counters(degree)
            return kinds
        return self._each(degree, Holding._by_shape)

    def _counters(self, degree: Any) -> Any:
        """Tensors the optimizer sees: one a flat buffer."""
        if self.rule == "flat":
            return len(self._slices(degree))
        return sum(self.count(tensor) for tensor in self.tensors)

    def _each(self, degree: Any, of: Callable[[Holding, int], dict[str, Any]]) -> dict[str, Any]:
        """``of`` what is held and a degree, once for each pair of layers and degrees in arrays."""

        @cache
        def of_pair(parts: Any, layers: Any) -> dict[str, Any]:
            layered = self if layers is None else replace(self, layers=int(layers))
            return of(layered, int(parts))

        sizes = np.frompyfunc(of_pair, 2, 1)(degree, self.layers)
        if isinstance(sizes, dict):
            return sizes
        kinds = dict.fromkeys(kind for each in sizes.flat for kind in each)
        return {
            kind: np.array([each.get(kind, 0) for each in sizes.flat]).reshape(sizes.shape)
            for kind in kinds
        }

    def _by_shape(self, degree: int) -> dict[str, Any]:
        """Bytes of each kind of state where they depend on each tensor's shape."""
        if self.rule == "flat":
            return dict(state_bytes([_shape((n,)) for n in self._slices(degree)], self.recipe))
        total: dict[str, float] = {}
        for tensor in self.tensors:
            parts = int(self.parts(tensor, degree))
            rows = tensor.rows if self.ideal else -(-tensor.rows // parts)
            role: Role = "hidden" if tensor.matrix else "embedding" if tensor.embedding else "head"
            shard = TensorShape(name="", shape=(rows, *tensor.shape[1:]), unit="", role=role)
            share = self.count(tensor) / parts if self.ideal else self.count(tensor)
            layout = QUANTISED.get(self.recipe.optimizer)
            for kind, num_bytes in state_bytes([shard], self.recipe).items():
                once = kind == "tables" and layout is not None and layout.shared
                total[kind] = num_bytes if once else total.get(kind, 0) + share * num_bytes
        return total


def step_temporaries(held: Holding, degree: Any) -> Any:
    """Bytes that the step of an optimizer other than Adam allocates and frees again.

    As torch 2.13's ``MemTracker`` counts them: Adafactor over lists takes one update of every
    tensor at once; one by one, the last tensor's is still there when the next one's is made. SGD
    works in place, and so, as bitsandbytes' kernels do, is 8-bit Adam taken to (nobody ran it).
    Muon orthogonalises one matrix at a time.
    """
    width = DTYPE_BYTES[held.recipe.states]
    lists = held.recipe.step == "foreach"
    if held.recipe.optimizer == "adafactor":
        return width * (held.elements(degree) if lists else 2 * held.largest(degree))
    if held.recipe.optimizer != "muon":
        return 0
    update = [0]
    others = [0]  # of a matrix; Adam's roots for all else
    for tensor in held.tensors:
        rows = -(-tensor.rows // held.parts(tensor, degree))
        size = rows * tensor.rest
        if tensor.matrix:  # the update, two bf16 copies of it, two squares of its shorter side
            square = np.minimum(rows, tensor.rest) ** 2
            update.append((width + 2 * BF16) * size + 2 * BF16 * square)
        elif held.recipe.step != "fused":
            others.append(width * (held.count(tensor) if lists else 3) * size)
    total = sum(others) if lists else _largest(others)
    return _largest([*update, total])


def _largest(sizes: Sequence[Any]) -> Any:
    """The elementwise maximum of sizes."""
    largest = np.maximum.reduce(np.broadcast_arrays(*sizes))
    return largest if largest.ndim else largest.item()


def _shape(shape: tuple[int, ...]) -> TensorShape:
    """A tensor of which only the shape matters: a slice of a flat buffer is no matrix."""
    return TensorShape(name="", shape=shape, unit="", role="head")


def _size(tensors: Iterable[TensorShape]) -> int:
    """Elements of all tensors together."""
    return sum(tensor.numel for tensor in tensors)


def on_rank(model: Model, parallel: Parallel, recipe: Recipe, rank: int) -> dict[str, float]:
    """Bytes of parameters, gradients and optimizer states that ``rank`` allocates.

    For data parallelism alone. ``"step counters"`` and ``"second copy of the parameters"`` stand
    apart. FSDP2 pads parameters and gradients on every rank to the fullest rank's rows, so that one
    call gathers them; the optimizer's states have the rows a rank really has.
    """
    tensors = model.tensors()
    degree = parallel.shard_degree
    rows = rows_of(model, parallel, 0)
    held = Holding(tensors=rows, parallel=parallel, recipe=recipe, dp=parallel.dp)
    mine: Sequence[TensorShape] = tensors
    if parallel.shard_rule == "flat":
        mine = [_shape((size,)) for size in held._slices(degree)]
    elif parallel.shard_rule == "tensor":
        mine = dealt(tensors, degree)[rank]
    elif parallel.zero:
        mine = shard_shapes(tensors, num_ranks=degree, rank=rank % degree)
    kinds = state_bytes(mine, recipe)
    sizes = {"step counters": kinds.pop("step", 0), "optimizer": sum(kinds.values())}
    others = (term for term in held.states() if term.row != "optimizer")
    return sizes | {term.component: term.num_bytes for term in others}
