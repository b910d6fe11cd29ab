"""A network as a chain of layers: seconds, bytes kept, bytes that cross each cut, parameters.

PipeDream's profiles (``graph.txt``) are graphs. :meth:`Chain.read` puts their layers into one
topological order; a cut after a layer is crossed by the output of every earlier layer that a
later one still needs.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from labkit import files
from labkit.errors import BadFile, BadValue, not_among
from labkit.kit import tables
from labkit.kit.describe import Count, NonNegative, Positive, checked, description

if TYPE_CHECKING:
    import pandas as pd

_NUMBERS = ("forward_s", "backward_s", "activation_bytes", "cut_bytes", "parameter_bytes")
COLUMNS = ("layer", *_NUMBERS)
"""The columns of a chain as a CSV file."""
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_FIELD = re.compile(rf"({'|'.join(_FIELDS)})=(\[[^\]]*\]|[^,\s]+)")
_UNNEEDED = "__getitem__"
MOST_LAYERS = 5_000
"""Layers of a chain: its tables hold a number for every pair of them."""
NumLayers = Annotated[int, Ge(1), Le(MOST_LAYERS)]
DATASET = "pipedream-sosp19"


@description
class Chain:
    """Layers in the order they run, of one minibatch (or microbatch) on one device.

    Attributes:
        forward_s, backward_s: seconds of each layer's passes.
        activation_bytes: what each layer keeps for its backward pass.
        cut_bytes: what crosses the cut after each layer; the last is 0 (nothing follows).
        parameter_bytes: each layer's weights.
        layers: names; empty numbers them.
        tensors: how many different outputs cross the cut after each layer; empty: one.

    Raises:
        BadValue: the fields are of different lengths, empty or negative, or take no time at all.
    """

    forward_s: tuple[NonNegative, ...]
    backward_s: tuple[NonNegative, ...]
    activation_bytes: tuple[NonNegative, ...]
    cut_bytes: tuple[NonNegative, ...]
    parameter_bytes: tuple[NonNegative, ...]
    layers: tuple[str, ...] = ()
    tensors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.forward_s)
        for name in (each.name for each in fields(self)):
            size = len(getattr(self, name))
            if size != count and not (name in ("layers", "tensors") and size == 0):
                raise BadValue(f"Chain.{name} has {size} values, forward_s {count}")
        if count > MOST_LAYERS:
            raise BadValue(f"Chain.forward_s must have {MOST_LAYERS} layers at most; got {count}")
        if not sum(self.forward_s) + sum(self.backward_s) > 0:
            raise BadValue("a Chain needs at least one layer that takes time")
        names = self.layers or tuple(f"layer {number}" for number in range(1, count + 1))
        object.__setattr__(self, "layers", names)
        object.__setattr__(self, "tensors", self.tensors or (1,) * count)
        object.__setattr__(self, "cut_bytes", (*self.cut_bytes[:-1], 0.0))

    @classmethod
    @checked
    def even(
        cls,
        num_layers: NumLayers,
        *,
        forward_s: Positive,
        backward_s: Positive,
        cut_bytes: NonNegative = 0.0,
        parameter_bytes: NonNegative = 0.0,
    ) -> Chain:
        """Equal layers, each keeping what crosses the cut after it.

        Args:
            forward_s, backward_s: seconds of a layer's passes.
            cut_bytes: what crosses each cut.
            parameter_bytes: a layer's weights.

        >>> Chain.even(3, forward_s=0.5, backward_s=1.0, cut_bytes=8.0).cut_bytes
        (8.0, 8.0, 0.0)
        """
        return cls(
            forward_s=(forward_s,) * num_layers,
            backward_s=(backward_s,) * num_layers,
            activation_bytes=(cut_bytes,) * num_layers,
            cut_bytes=(cut_bytes,) * num_layers,
            parameter_bytes=(parameter_bytes,) * num_layers,
        )

    @classmethod
    @checked
    def read(cls, path: str | Path) -> Chain:
        """A profile: PipeDream's ``graph.txt``, or a CSV file with the columns of a chain.

        The graph's inputs take no part, as in the authors' planner (they stay in the first
        stage). The CSV columns are layer, forward_s, backward_s, activation_bytes, cut_bytes,
        parameter_bytes; lines that start with # are skipped.

        Raises:
            BadFile: the file cannot be read; names the line and what would be valid.
        """
        path = Path(path)
        text = files.read_text(path)
        start = next((line for line in text.splitlines() if line.strip("# \t")), "")
        if start.startswith("node"):
            return _from_graph(path, text)
        return _from_table(path)

    def __len__(self) -> int:
        return len(self.forward_s)

    @cached_property
    def time_s(self) -> float:
        """Seconds of one minibatch on one device."""
        return float(self.compute_s[0, -1])

    @cached_property
    def compute_s(self) -> np.ndarray:
        """Seconds of layers i to j - 1 on one device, as ``[i, j]``; shape (n + 1, n + 1)."""
        return _between(np.add(self.forward_s, self.backward_s))

    @cached_property
    def weight_bytes(self) -> np.ndarray:
        """Parameters of layers i to j - 1, as ``[i, j]``."""
        return _between(self.parameter_bytes)

    @cached_property
    def kept_bytes(self) -> np.ndarray:
        """Activations that layers i to j - 1 keep, as ``[i, j]``."""
        return _between(self.activation_bytes)

    @cached_property
    def crossing_bytes(self) -> np.ndarray:
        """What crosses the cut before layer i; nothing at both ends. Shape (n + 1,)."""
        return np.concatenate([[0.0], self.cut_bytes])

    @checked
    def coarse(self, most_tensors: Count = 1) -> Chain:
        """Layers merged so that at most so many tensors cross each cut that is left.

        >>> crossing = {"cut_bytes": (1.0, 2.0, 0.0), "tensors": (2, 1, 1)}
        >>> ones = (1.0,) * 3
        >>> chain = Chain(forward_s=ones, backward_s=ones, activation_bytes=ones,
        ...               parameter_bytes=ones, **crossing)
        >>> chain.coarse().forward_s
        (2.0, 1.0)
        """
        wide = np.asarray(self.tensors[:-1]) <= most_tensors
        ends = [*(np.flatnonzero(wide) + 1).tolist(), len(self)]
        starts = [0, *ends[:-1]]
        pairs = list(zip(starts, ends, strict=True))
        summed = ("forward_s", "backward_s", "activation_bytes", "parameter_bytes")
        values: dict[str, Any] = {
            name: [sum(getattr(self, name)[i:j]) for i, j in pairs] for name in summed
        }
        for name in ("cut_bytes", "tensors", "layers"):
            values[name] = [getattr(self, name)[end - 1] for end in ends]
        return Chain(**values)

    @checked
    def scaled(self, *, batch: Positive) -> Chain:
        """As with ``batch`` times the examples.

        Seconds and activations scale with the batch, which is an assumption: a smaller batch
        uses a GPU less well.
        """
        names = ("forward_s", "backward_s", "activation_bytes", "cut_bytes")
        changed: dict[str, Any] = {n: [value * batch for value in getattr(self, n)] for n in names}
        return replace(self, **changed)

    def frame(self) -> pd.DataFrame:
        """One row a layer, with the columns of a chain's CSV file and how many tensors cross."""
        import pandas as pd

        columns = {"layer": self.layers, **{name: getattr(self, name) for name in _NUMBERS}}
        return pd.DataFrame({**columns, "tensors": self.tensors})


def _between(values: Iterable[float]) -> np.ndarray:
    """Sums over layers i to j - 1, as ``[i, j]``; negative or 0 where j <= i."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(list(values), dtype=float))])
    return total[None, :] - total[:, None]


# ---------------------------------------------------------------- files


def _from_table(path: Path) -> Chain:
    table = tables.typed(path, valid=_valid())
    if missing := [name for name in COLUMNS if name not in table]:
        raise BadFile(path, f"lacks the columns {', '.join(missing)}", valid=_valid())
    try:
        values: dict[str, Any] = {name: table[name].tolist() for name in _NUMBERS}
        if "tensors" in table:
            values["tensors"] = table["tensors"].tolist()
        return Chain(**values, layers=tuple(table["layer"].astype(str)))
    except BadValue as error:
        raise BadFile(path, str(error), valid=_valid()) from None


def _valid() -> str:
    return f"PipeDream's graph.txt, or a CSV file with the columns {', '.join(COLUMNS)}"


Node = tuple[str, float, float, float, float]
"""What a layer is, seconds forward and backward, bytes of output and of parameters."""


def _from_graph(path: Path, text: str) -> Chain:
    nodes, edges = _parse(path, text)
    nodes, edges = _pruned(nodes, edges)
    order = linear_order(nodes, edges)
    place = {name: position for position, name in enumerate(order)}
    ends = dict.fromkeys(order, -1)  # the last position that needs a layer's output
    for source, target in edges:
        ends[source] = max(ends[source], place[target])
    held = [[name for name in order[: i + 1] if ends[name] > i] for i in range(len(order))]
    rows = [nodes[name] for name in order]
    return Chain(
        forward_s=tuple(row[1] for row in rows),
        backward_s=tuple(row[2] for row in rows),
        activation_bytes=tuple(row[3] for row in rows),
        cut_bytes=tuple(sum(nodes[name][3] for name in names) for names in held),
        parameter_bytes=tuple(row[4] for row in rows),
        layers=tuple(f"{name} {nodes[name][0]}" for name in order),
        tensors=tuple(len(names) for names in held),
    )


def _parse(path: Path, text: str) -> tuple[dict[str, Node], list[tuple[str, str]]]:
    nodes: dict[str, Node] = {}
    edges: list[tuple[str, str]] = []
    valid = f"NAME -- KIND -- {'=…, '.join(_FIELDS)}=… for a layer, TAB NAME -- NAME for an edge"
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.strip().split(" -- ")
        if line.startswith("\t") and len(parts) == 2:
            edges.append((parts[0], parts[1]))
        elif line.strip():
            values = dict(_FIELD.findall(parts[-1]))
            try:
                ms, ms_back, output, weights = (_total(values[name]) for name in _FIELDS)
                kind = parts[1].partition("(")[0].strip()
                nodes[parts[0]] = (kind, ms / 1e3, ms_back / 1e3, output, weights)
            except (KeyError, ValueError, IndexError):
                raise BadFile(path, "no layer of a profile", line=number, valid=valid) from None
    strangers = {name for edge in edges for name in edge} - nodes.keys()
    if strangers or not nodes:
        names = ", ".join(sorted(strangers)[:3])
        raise BadFile(path, f"edges name layers that are missing: {names or 'all'}", valid=valid)
    return nodes, edges


def _total(text: str) -> float:
    """A size, or the sum of several: ``[6291456.0; 131072.0]``."""
    return sum(float(part) for part in text.strip("[]").split(";"))


def _pruned(
    nodes: Mapping[str, Node], edges: Sequence[tuple[str, str]]
) -> tuple[dict[str, Node], list[tuple[str, str]]]:
    """Without the inputs, and without outputs that nobody takes (parts of a tuple)."""
    kept = {name: node for name, node in nodes.items() if not node[0].startswith("Input")}
    while True:
        left = [(a, b) for a, b in edges if a in kept and b in kept]
        needed = {a for a, _ in left}
        unused = {n for n, node in kept.items() if node[0] == _UNNEEDED and n not in needed}
        if not unused:
            return kept, left
        kept = {name: node for name, node in kept.items() if name not in unused}


def linear_order(nodes: Iterable[str], edges: Iterable[tuple[str, str]]) -> list[str]:
    """The nodes with every edge pointing forward; among those that are ready, as a file numbers.

    Raises:
        BadValue: the edges form a cycle.
    """
    sorter = TopologicalSorter(dict.fromkeys(nodes, ()))
    for source, target in edges:
        sorter.add(target, source)
    try:
        sorter.prepare()
    except CycleError as error:
        raise BadValue(f"the layers {', '.join(error.args[1][:5])} form a cycle") from None
    ready: list[tuple[int, str]] = []
    order: list[str] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, (int(re.sub(r"\D", "", name) or 0), name))
        order.append(heapq.heappop(ready)[1])
        sorter.done(order[-1])
    return order


# ---------------------------------------------------------------- profiles by name


class NamedChain(NamedTuple):
    """A chain, what it is called, and why it is a stand-in (empty where it is not)."""

    chain: Chain
    origin: str
    standin_reason: str = ""


def short_names() -> dict[str, str]:
    """Published profiles: short name -> file of the dataset."""
    from labkit.datasets.registry import load_registry

    paths = (Path(file.path) for file in load_registry().dataset(DATASET).files)
    return {path.parent.name: str(path) for path in paths if path.name == "graph.txt"}


def open_chain(text: str) -> NamedChain:
    """The chain of a file or of a published profile.

    Raises:
        UsageError: there is no such file or profile.
        BadFile: the file is no profile.
    """
    from labkit import datasets

    path = Path(text).expanduser()
    if path.is_file():
        return NamedChain(Chain.read(path), text)
    known = short_names()
    if text not in known:
        raise not_among("profile (or file)", text, known)
    source = datasets.source(DATASET, [known[text]])
    reason = source.reason if source.is_standin else ""
    return NamedChain(Chain.read(source.path(known[text])), text, reason)
