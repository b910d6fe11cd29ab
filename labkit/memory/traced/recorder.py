"""Records a step of a torch module operator by operator, on tensors without numbers.

The recorder stands between autograd and torch's ``FakeTensorMode``: it sees every operator that
autograd runs in either direction and asks each result's storage when it is freed. What an operator
allocates and frees inside itself is not seen. Storages that change their size, as FSDP2 has it with
gathered parameters, end and begin anew.

Where a GPU's operators keep other bytes than a CPU's, functions are exchanged before they run
(:class:`AsOnCuda`): dropout keeps a mask of one byte an element, an attention kernel none; with
``gpu``, statistics of a LayerNorm are fp32, and autocast runs in fp32 what CUDA's does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from labkit.memory.traced.modules import in_dicts
from labkit.memory.traced.ranks import Reducer
from labkit.memory.traced.recording import (
    ACTIVATIONS,
    CACHE,
    CACHED,
    GATHER,
    GATHERED,
    GRADIENTS,
    SENT,
    TEMPORARIES,
    WHOLE,
    Recording,
    Storage,
)

FP32 = 4
BIASED = (
    "attention with a bias that has a gradient is written out, as on a CPU; a GPU's"
    " memory-efficient kernel keeps no scores"
)
_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_STATISTICS = {"aten::native_layer_norm": (1, 2)}
"""Results that are fp32 on a GPU whatever their input is."""
# torch's documentation, "CUDA Ops that can autocast to float32", by the names of its functions.
_NAMES = """
acos asin binary_cross_entropy_with_logits cosh cosine_embedding_loss cdist cosine_similarity
cross_entropy cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss kl_div l1_loss
layer_norm log log10 log_softmax log1p log2 margin_ranking_loss mse_loss multilabel_margin_loss
multi_margin_loss nll_loss norm normalize pdist poisson_nll_loss pow prod reciprocal rsqrt sinh
smooth_l1_loss soft_margin_loss softmax softmin softplus sum renorm tan triplet_margin_loss
"""
_FP32 = frozenset(_NAMES.split())


class AsOnCuda(TorchFunctionMode):
    """Runs other functions in place of those whose bytes differ between a CPU and a GPU.

    Args:
        gpu: also those that autocast runs in fp32 on CUDA and not on a CPU.
    """

    def __init__(self, gpu: bool) -> None:
        super().__init__()
        self.gpu = gpu
        self.biased = False  # whether attention has met a bias that wants a gradient

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in (functional.dropout, torch.dropout):
            return self._dropout(func, args, given)
        if func is functional.scaled_dot_product_attention:
            # A kernel's own dropout keeps the state of a random generator only.
            given |= dict(zip(_ATTENTION, args, strict=False))
            mask = given.get("attn_mask")
            self.biased = self.biased or (mask is not None and mask.requires_grad)
            return func(**given | {"dropout_p": 0.0})
        if func is torch.rand and args and args[0] in ([], ()):
            return 1.0  # whether a layer is dropped: none is
        widens = self.gpu and getattr(func, "__name__", "") in _FP32
        if widens and torch.is_autocast_enabled("cpu"):
            return self._in_fp32(func, args, given)
        return func(*args, **given)

    @staticmethod
    def _dropout(func: Any, args: Any, given: dict[str, Any]) -> Any:
        """Dropout with a mask of truth values, as one kernel."""
        own = "training" if func is functional.dropout else "train"
        values = {"p": 0.5, own: True, "inplace": False}
        values |= dict(zip(("input", "p", own, "inplace"), args, strict=False)) | given
        if values["inplace"]:
            return func(*args, **given)
        if not values[own] or not values["p"]:
            return values["input"]
        return torch.native_dropout(values["input"], values["p"], True)[0]  # type: ignore[arg-type]

    @staticmethod
    def _in_fp32(func: Any, args: Any, given: dict[str, Any]) -> Any:
        """A function on operands cast to fp32, autocast being off as it is inside CUDA's."""

        def wide(tensor: Tensor) -> Tensor:
            narrow = tensor.dtype in (torch.bfloat16, torch.float16)
            return tensor.float() if narrow else tensor

        args, given = tree_map_only(Tensor, wide, (args, given))
        with torch.autocast("cpu", enabled=False):
            return func(*args, **given)


class Recorder(TorchDispatchMode):
    """Counts what operators allocate; :meth:`recording` is what it saw.

    Args:
        module: whose parameters and buffers are there before.
        inputs: the batch, which is as well.
        gpu: statistics of LayerNorm are fp32.
        reducer: what reduces gradients, at ZeRO's stage 2.
    """

    def __init__(
        self, module: nn.Module, inputs: Any, *, gpu: bool, reducer: Reducer | None = None
    ) -> None:
        super().__init__()
        self.gpu = gpu
        self.module = module
        self.reducer = reducer
        self.forward = True
        self.turn = 0
        self.at: list[str] = []  # modules whose forward pass runs, the innermost last
        self.behind = ""  # the module whose backward pass runs
        self.times: list[str] = []
        self.made: list[dict[str, Any]] = []
        self.alive: dict[int, int] = {}  # a storage's address and its place in ``made``
        self.accumulated: dict[int, int] = {}
        self.watches: list[Any] = []
        self.weights = {_address(p) for p in module.parameters()}
        self.known = set(self.weights)
        self.buffers_bytes = self._count((*module.buffers(), *in_dicts(module)))
        self.inputs_bytes = self._count(leaf for leaf in tree_leaves(inputs) if _is(leaf))

    def _count(self, tensors: Iterable[Tensor]) -> int:
        """Bytes of storages that are there before, each once."""
        total = 0
        for tensor in tensors:
            if _address(tensor) not in self.known:
                self.known.add(_address(tensor))
                total += tensor.untyped_storage().nbytes()
        return total

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        self._see(func, args, results)
        if func._schema.name.startswith("fsdp::"):
            self._communicates(func._schema.name, args, kwargs or {}, results)
        return results

    def _communicates(self, name: str, args: Any, given: Mapping[str, Any], results: Any) -> None:
        """Say what the buffers of one of FSDP2's operators are for."""
        if name == "fsdp::all_gather_copy_in":
            self._name(GATHER, results)
        elif name == "fsdp::split_with_sizes_copy":
            self._name(GATHERED, given["out"])
        elif name == "fsdp::chunk_cat":
            self._name(WHOLE, args[0])
            self._name(SENT, given["out"])

    def _name(self, category: str, tensors: Any) -> None:
        """Set the category of the storages of tensors."""
        for tensor in filter(_is, tree_leaves(tensors)):
            place = self.alive.get(_address(tensor))
            if place is not None:
                self.made[place]["category"] = category

    def _see(self, func: Any, args: Any, results: Any) -> None:
        """Note the storages that are new."""
        before = len(self.made)
        name = func._schema.name
        statistics = _STATISTICS.get(name, ()) if self.gpu else ()
        for place, tensor in enumerate(filter(_is, tree_leaves(results))):
            storage = _storage(tensor)
            address = storage._cdata
            if address in self.alive or address in self.known:
                continue
            size = tensor.numel() * FP32 if place in statistics else storage.nbytes()
            self._born(
                storage,
                num_bytes=size,
                category=self._category(name, args),
                operator=name.removeprefix("aten::"),
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
            )
        if len(self.made) > before:
            self.times.append(self.at[-1] if self.at else self.behind)

    def _born(self, storage: Any, **what: Any) -> None:
        """Note a storage from now on."""
        address = storage._cdata
        self.alive[address] = len(self.made)
        module = self.at[-1] if self.at else self.behind
        self.made.append({**what, "module": module, "born": len(self.times), "died": None})
        self.watches.append(weakref.ref(storage, partial(self._freed, address)))

    def _resized(self, storage: Any) -> None:
        """A storage changed its size: the one that it was is gone."""
        size = storage.nbytes()
        place = self.alive.get(storage._cdata)
        before = 0 if place is None else self.made[place]["num_bytes"]
        if storage._cdata in self.known or size == before:
            return
        self._freed(storage._cdata)
        if size:
            what = {"operator": "resize_", "shape": (size,), "dtype": "uint8"}
            self._born(storage, num_bytes=size, category=GATHERED, **what)
            self.times.append(self.made[-1]["module"])

    def _category(self, name: str, args: Any) -> str:
        """What a storage is, as far as is known when it is made."""
        casts = name == "aten::_to_copy" and torch.is_autocast_enabled("cpu")
        if casts and _address(args[0]) in self.weights:
            return CACHED
        return ACTIVATIONS if self.forward or self.at else TEMPORARIES

    def _freed(self, address: int, _: Any = None) -> None:
        """A storage is gone: the last time that counted it is the one before."""
        place = self.alive.pop(address, None)
        if place is not None:
            self.made[place]["died"] = len(self.times) - 1

    def turns(self) -> None:
        """The forward pass is over: what is gone by now was not kept."""
        self.forward = False
        self.turn = len(self.times)
        for storage in self.made:
            if storage["died"] is not None and storage["category"] == ACTIVATIONS:
                storage["category"] = TEMPORARIES

    def accumulates(self, parameter: Tensor) -> None:
        """A parameter's gradient is done."""
        if parameter.grad is None:
            return
        if self.reducer is not None:
            self._name(WHOLE, parameter.grad)
            return
        self._accumulated(parameter.grad)

    def _accumulated(self, gradient: Tensor) -> None:
        """A gradient is there to stay."""
        place = self.alive.get(_address(gradient))
        if place is not None and place not in self.accumulated:
            self.made[place]["category"] = GRADIENTS
            self.accumulated[place] = len(self.times) - 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow which module is at work in both directions, and gradients."""
        handles = []
        for name, module in self.module.named_modules():
            before = partial(self._enters, name)
            handles.append(module.register_forward_pre_hook(before))
            after = partial(self._leaves, name)
            handles.append(module.register_forward_hook(after, always_call=True))
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(self.accumulates)
                handles.append(hook)
        storages: Any = torch.UntypedStorage
        resize = storages.resize_

        def noted(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            self._resized(storage)
            return result

        storages.resize_ = noted
        try:
            yield
        finally:
            storages.resize_ = resize
            for handle in handles:
                handle.remove()

    def _enters(self, name: str, *_: Any) -> None:
        """A module's forward pass starts."""
        self.at.append(name)

    def _leaves(self, name: str, module: Any, inputs: Any, outputs: Any) -> None:
        """A module's forward pass ends; the gradients of what it returns will name it."""
        while self.at and self.at.pop() != name:
            pass  # modules that were left by an exception, as recomputation does
        if self.forward:
            for tensor in filter(_is, tree_leaves(outputs)):
                if tensor.requires_grad:
                    tensor.register_hook(partial(self._returns, name))

    def _returns(self, name: str, _: Tensor) -> None:
        """The gradient of a module's result is there; of modules one in another the innermost."""
        if not self.behind.startswith(f"{name}."):
            self.behind = name

    def recording(self, notes: tuple[str, ...]) -> Recording:
        """All that was seen."""
        reached = set() if self.reducer is None else self.reducer.reached
        shares = [] if self.reducer is None else self.reducer.shares
        for tensor in (*shares, *(p.grad for p in self.module.parameters())):
            if tensor is not None:  # FSDP2 sets gradients without autograd
                self._accumulated(tensor)
        end = len(self.times) - 1
        for storage in self.made:
            if storage["died"] is None:
                storage["died"] = end
        unused = tuple(
            name
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad and parameter.grad is None and id(parameter) not in reached
        )
        return Recording(
            storages=tuple(Storage(**storage) for storage in self.made),
            modules=tuple(self.times),
            turn=self.turn,
            accumulated=self.accumulated,
            buffers_bytes=self.buffers_bytes,
            inputs_bytes=self.inputs_bytes,
            unused=unused,
            notes=notes,
        )


def record(
    module: nn.Module,
    inputs: Mapping[str, Any],
    loss_of: Callable[[Any], Tensor],
    *,
    autocast: bool = False,
    gpu: bool = False,
    keep_output: bool = False,
    reducer: Reducer | None = None,
    notes: tuple[str, ...] = (),
) -> Recording:
    """Record one forward and backward pass of a module, on whatever tensors it has.

    Args:
        module: in training mode, its gradients not there.
        inputs: what it is called with.
        loss_of: the number to differentiate, of what it returns.
        autocast: whether it runs under bf16 autocast.
        gpu: operators as a GPU runs them (see the module's docstring).
        keep_output: what it returns stays until the end, as in a loop that keeps it.
        reducer: what reduces gradients, at ZeRO's stage 2.
        notes: of the recording.
    """
    recorder = Recorder(module, inputs, gpu=gpu, reducer=reducer)
    functions = AsOnCuda(gpu)
    with functions, recorder.watching(), recorder:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = module(**inputs)
            loss = loss_of(output)
        if not keep_output:
            del output
        recorder.turns()
        backward(loss)
        if reducer is not None:
            reducer.finish()
    return recorder.recording((*notes, *([BIASED] if functions.biased else [])))


def record_forward(
    module: nn.Module,
    inputs: Mapping[str, Any],
    *,
    autocast: bool = False,
    gpu: bool = False,
    notes: tuple[str, ...] = (),
) -> Recording:
    """Record a forward pass without gradients; what it returns is there at the end.

    Args:
        module: in evaluation mode.
        inputs, autocast, gpu, notes: as :func:`record` takes them.
    """
    recorder = Recorder(module, inputs, gpu=gpu)
    with AsOnCuda(gpu), recorder.watching(), recorder, torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = module(**inputs)
        for name in ("past_key_values", "cache_params"):  # the latter of state-space models
            recorder._name(CACHE, cached_tensors(getattr(output, name, None)))
        recorder.turns()
        return recorder.recording(notes)


def cached_tensors(cache: Any) -> list[Tensor]:
    """The tensors of a cache of transformers: of each layer, also of caches in it."""
    found: list[Tensor] = []
    for part in getattr(cache, "layers", None) or ():
        found += [value for value in tree_leaves(list(vars(part).values())) if _is(value)]
    for name in ("self_attention_cache", "cross_attention_cache"):
        if hasattr(cache, name):  # of an encoder and a decoder
            found += cached_tensors(getattr(cache, name))
    return found


def backward(loss: Tensor) -> None:
    """Run the backward pass of a loss inside of the modes at work.

    torch's own functions for it leave the mode of functions first, and layers that are computed
    again would keep other bytes than they did.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    how = {"allow_unreachable": True, "accumulate_grad": True}
    engine.run_backward((loss,), (torch.ones_like(loss),), False, False, (), **how)


def _is(leaf: Any) -> bool:
    """Whether a leaf of arguments or results is a tensor."""
    return isinstance(leaf, Tensor)


def _address(tensor: Tensor) -> int:
    """The address of a tensor's storage."""
    address: int = _storage(tensor)._cdata
    return address


def _storage(tensor: Any) -> Any:
    """A tensor's storage; of one that is spread over ranks, this rank's."""
    return getattr(tensor, "_local_tensor", tensor).untyped_storage()
