"""A module on ranks that are not there: cut by torch's FSDP2, or its gradients reduced by unit.

Units are the children of the module's outermost lists, its layers; all else is the root. Where both
ends may be units of their own, they are the embedding of tokens and the head.

Importing this module does not load torch; its functions do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.errors import BadValue, UsageError
from labkit.memory.jobs.parallel import Parallel

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh

EMBEDDING = "embedding"
HEAD = "head"
ROOT = ""


@contextmanager
def fake_group(num_ranks: int, rank: int = 0) -> Iterator[None]:
    """A process group of ranks that are not there, but for this process.

    Raises:
        UsageError: this process is in a group already.
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise UsageError("torch.distributed is in use in this process already")
    dist.init_process_group("fake", rank=rank, world_size=num_ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def mesh_of(parallel: Parallel) -> DeviceMesh:
    """Arrange the ranks that share a shard in rows, replicated across rows where there are
    several.
    """
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    ranks = torch.arange(parallel.dp).view(-1, parallel.shard_degree)
    if len(ranks) == 1:
        return DeviceMesh("cpu", ranks[0], mesh_dim_names=("shard",))
    return DeviceMesh("cpu", ranks, mesh_dim_names=("replicate", "shard"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a traced module is spread over data-parallel ranks.

    Attributes:
        parallel: at ZeRO's stage 2 or 3, on 2 ranks or more.
        compute: the format in which FSDP2 gathers; None for that of the parameters.
        reduce: the format in which it reduces; None for that of the gradients.
        at_once: at stage 2, whether each gradient goes into a bucket as soon as it is there, in
            place of all of a unit together.
    """

    parallel: Parallel
    compute: str | None = None
    reduce: str | None = None
    at_once: bool = False

    @contextmanager
    def ranks(self) -> Iterator[DeviceMesh | None]:
        """The ranks, and at stage 3 their mesh; no tensor mode may be at work."""
        if self.parallel.zero < 3:
            yield None
            return
        with fake_group(self.parallel.dp):
            yield mesh_of(self.parallel)

    def cut(self, module: nn.Module, mesh: DeviceMesh | None) -> Reducer | None:
        """Wrap the module's units in FSDP2 at stage 3; at stage 2, what reduces its gradients.

        Raises:
            BadValue: a unit that should stay gathered is not there.
        """
        units = units_of(module, self.parallel.wrap)
        if mesh is None:
            return Reducer(units, self.parallel.shard_degree, self.at_once)
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(
            param_dtype=_dtype(self.compute), reduce_dtype=_dtype(self.reduce)
        )
        kept = _kept(units, self.parallel.keep_gathered)
        for name, unit in units.items():
            again = self.parallel.reshard_after_forward and name != kept
            fully_shard(unit, mesh=mesh, reshard_after_forward=again, mp_policy=policy)
        return None


class Reducer:
    """Reduces gradients over ranks unit by unit, and keeps this rank's rows of each tensor.

    A unit's gradients are whole until its last one is there.

    Args:
        units: modules by name, the root last.
        num_ranks: how many ranks share the gradients.
        at_once: each gradient is reduced by itself.
    """

    def __init__(self, units: dict[str, nn.Module], num_ranks: int, at_once: bool) -> None:
        self.num_ranks = num_ranks
        self.shares: list[Tensor] = []
        self.reached: set[int] = set()
        self.groups: list[list[nn.Parameter]] = []
        taken: set[int] = set()
        for unit in units.values():
            own = [p for p in unit.parameters() if p.requires_grad and id(p) not in taken]
            taken.update(map(id, own))
            self.groups += [[p] for p in own] if at_once else [own]
        self.waiting = [len(group) for group in self.groups]
        for number, group in enumerate(self.groups):
            for parameter in group:
                parameter.register_post_accumulate_grad_hook(self._reached(number))

    def _reached(self, number: int) -> Any:
        """What runs when a gradient of a group is there."""

        def hook(parameter: Tensor) -> None:
            self.reached.add(id(parameter))
            self.waiting[number] -= 1
            if not self.waiting[number]:
                self._reduce(self.groups[number])

        return hook

    def _reduce(self, group: list[nn.Parameter]) -> None:
        """Keep rows of each gradient, and drop it."""
        for parameter in group:
            gradient = parameter.grad
            if gradient is None:
                continue
            rows = gradient.shape[0] if gradient.dim() else 1
            share = -(-rows // self.num_ranks) * (gradient.numel() // rows)
            self.shares.append(gradient.new_empty(share))
            parameter.grad = None

    def finish(self) -> None:
        """Reduce what waits for gradients that do not come."""
        for group in self.groups:
            self._reduce(group)


def units_of(module: nn.Module, wrap: str) -> dict[str, nn.Module]:
    """The units of a module by name, the root last: what FSDP2 gathers together.

    Args:
        wrap: ``"blocks"``: each child of the outermost lists; ``"parts"``: also the embedding of
            tokens and the head, where the module names them and they share no tensor with others.
    """
    units = dict(_in_lists(module, ""))
    if wrap == "parts":
        for name, of in ((EMBEDDING, "get_input_embeddings"), (HEAD, "get_output_embeddings")):
            end = _end(module, of)
            if end is not None and end is not module and end not in units.values():
                units[name] = end
    alone = {name: unit for name, unit in units.items() if _is_alone(unit, module)}
    return alone | {ROOT: module}


def _end(module: nn.Module, of: str) -> nn.Module | None:
    """An end of the module by the method that names it; None where it names none."""
    try:
        end: nn.Module | None = getattr(module, of)()
    except (AttributeError, NotImplementedError):
        return None
    return end


def _in_lists(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The children of lists that are in no other list, those with parameters."""
    from torch import nn

    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if isinstance(child, nn.ModuleList):
            for number, unit in child.named_children():
                if next(unit.parameters(), None) is not None:
                    yield f"{path}.{number}", unit
        else:
            yield from _in_lists(child, f"{path}.")


def _is_alone(unit: nn.Module, module: nn.Module) -> bool:
    """Whether no part of the module beside the unit has one of its tensors."""
    own = {id(parameter) for parameter in unit.parameters()}
    inside = set(unit.modules())
    return not any(
        id(parameter) in own
        for part in module.modules()
        if part not in inside
        for parameter in part._parameters.values()
    )


def _kept(units: dict[str, nn.Module], kept: str) -> str | None:
    """The name of the unit that stays gathered after its forward pass."""
    if kept == "none":
        return None
    layers = [name for name in units if name not in {EMBEDDING, HEAD, ROOT}]
    name = HEAD if kept == HEAD else (layers[-1] if layers else "")
    if not name or name not in units:
        raise BadValue(
            f"keep_gathered must be none where the network has no {kept} that is a unit of its own,"
            f" got {kept}"
        )
    return name


def _dtype(name: str | None) -> Any:
    """A number format as torch has it; 16 bits are all alike."""
    import torch

    if name is None:
        return None
    return torch.float32 if name == "fp32" else torch.bfloat16
