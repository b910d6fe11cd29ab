"""What each layer of a network packs for its backward pass, by torch's saved-tensor hooks.

Running all steps of the tests under torch's tracker takes minutes, and what it sees changes only
with torch and with the networks. So ``python -m tests.oracles.packing`` runs them once and stores
what it saw in ``stored/packing.json`` beside torch's version and a hash of the networks' code,
which comments, docstrings and layout do not change. The tests compare with what is stored and run
a random sample live; where torch or the networks are others than those stored, all of them.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from labkit.memory.oracles import tracker
from labkit.memory.tape.mode import Mode
from labkit.models import Model

STORED = Path(__file__).parent / "stored" / "packing.json"
LIVE_OF = 8  # one step of so many runs live
SOURCES = ("blocks", "kernels", "networks", "older", "tracker")
_TRACK = tracker.track  # a test may put :func:`step` in its place
Case = tuple[Model, Mode, tuple[tuple[str, Any], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """One step as :func:`labkit.memory.oracles.tracker.track` has it, and what was packed in it.

    Attributes:
        layer_saved_bytes: unique storages each layer packs for its backward pass, parameters
            left out; a storage counts where it is packed first.
        saved_bytes: the same over the whole network.
        layer_kept_bytes: what MemTracker's total grew from the start of one layer to the start of
            the next, so without the last layer; includes all that lives, saved or not.
    """

    layer_saved_bytes: tuple[int, ...]
    saved_bytes: int
    layer_kept_bytes: tuple[int, ...]
    moments: dict[str, dict[str, int]]
    peak_moment: str
    peak_bytes: int


def track(model: Model, mode: Mode, **sizes: Any) -> Packing:
    """One step on fake tensors, its packed storages layer by layer."""
    packed: list[_Packed] = []

    @contextmanager
    def observe(network: Any, watch: Any, batch: list[Any]) -> Iterator[None]:
        packed.append(_Packed(network, watch, batch))
        with packed[0].hooks():
            yield

    step = _TRACK(model, mode, observe=observe, **sizes)
    return Packing(
        layer_saved_bytes=tuple(packed[0].by_layer),
        saved_bytes=packed[0].total,
        layer_kept_bytes=tuple(late - early for early, late in pairwise(packed[0].starts)),
        moments=step.moments,
        peak_moment=step.peak_moment,
        peak_bytes=step.peak_bytes,
    )


def step(case: Case) -> Packing:
    """What is stored of a step; a sample of the steps, and those not stored, run here and now."""
    key = key_of(case)
    known = stored()
    model, mode, sizes = case
    if key in known and int(key, 16) % LIVE_OF:
        return known[key]
    live = track(model, mode, **dict(sizes))
    assert key not in known or live == known[key], "stored steps are stale: run this module"
    return live


def case_of(model: Model, mode: Mode, **sizes: Any) -> Case:
    return model, mode, tuple(sizes.items())


def key_of(case: Case) -> str:
    return hashlib.sha256(repr(case).encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """What stored steps depend on: torch, and the networks that ran."""
    import torch

    folder = Path(tracker.__file__).parent
    code = "".join(code_of(folder / f"{name}.py") for name in SOURCES)
    return {"torch": torch.__version__, "code_sha256": hashlib.sha256(code.encode()).hexdigest()}


def code_of(path: Path) -> str:
    """A module's syntax tree as a text, its docstrings left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


@cache
def stored() -> dict[str, Packing]:
    """Stored steps by key; none where they are those of another torch or other networks."""
    file = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    if file.get("versions") != versions():
        return {}
    return {key: packing_of(values) for key, values in file["steps"].items()}


def packing_of(values: dict[str, Any]) -> Packing:
    lists = {name: tuple(values[name]) for name in ("layer_saved_bytes", "layer_kept_bytes")}
    return Packing(**values | lists)


def main() -> None:
    """Run every step of the tests and store what was seen."""
    from labkit.memory.oracles.cases import on_one_rank
    from tests.memory import steps, test_architectures

    rows = [*steps.grid(), *steps.others()]
    rows += [*test_architectures.grid(), *test_architectures.others()]
    cases = [row.values[0] for row in rows]
    cases += [case_of(**tracker.settings_of(plan)) for plan in on_one_rank()]
    seen = {key_of(case): asdict(track(case[0], case[1], **dict(case[2]))) for case in cases}
    file = {"versions": versions(), "steps": seen}
    STORED.write_text(json.dumps(file, sort_keys=True, indent=0) + "\n", encoding="utf-8")


class _Packed:
    """Storages that the graph packs during a forward pass, by the layer that packs them first.

    A checkpoint packs its inputs before its first layer starts; they count as that layer's.
    """

    def __init__(self, network: Any, watch: Any, batch: list[Any]) -> None:
        known = [*network.parameters(), *network.buffers(), *batch]
        self.watch = watch
        self.starts = []
        self.seen = {tensor.untyped_storage()._cdata for tensor in known}
        # A weak reference keeps an address from being given to another storage, not the bytes.
        self.addresses: list[Any] = []
        self.by_layer = [0] * len(network.blocks)
        self.outside: dict[int, int] = {}
        self.total = 0
        self.layer: int | None = None
        self.forward = True
        for number, block in enumerate(network.blocks):
            block.register_forward_pre_hook(self._enter(number))
            block.register_forward_hook(self._leave)

    def _enter(self, number: int) -> Any:
        def hook(module: Any, inputs: Any) -> None:
            if self.forward:
                (now,) = self.watch._curr_mem_snap.values()
                self.starts.append(now["Total"])
            self.layer = number
            own = self.outside.pop(inputs[0].untyped_storage()._cdata, 0)
            self.by_layer[number] += own

        return hook

    def _leave(self, *_: Any) -> None:
        self.layer = None

    def pack(self, tensor: Any) -> Any:
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        if storage._cdata not in self.seen:
            self.seen.add(storage._cdata)
            self.addresses.append(StorageWeakRef(storage))
            self.total += storage.nbytes()
            if self.layer is None:
                self.outside[storage._cdata] = storage.nbytes()
            else:
                self.by_layer[self.layer] += storage.nbytes()
        return tensor

    @contextmanager
    def hooks(self) -> Iterator[None]:
        from torch.autograd.graph import saved_tensors_hooks

        with saved_tensors_hooks(self.pack, lambda tensor: tensor):
            yield
        self.forward = False


if __name__ == "__main__":
    main()
