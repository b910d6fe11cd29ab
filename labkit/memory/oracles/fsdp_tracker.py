"""One training step under FSDP2 and torch's memory tracker, on tensors without numbers.

The ranks are made up too: torch's ``fake`` process group says it is rank 0 of as many as are asked
for, and its collectives do nothing, but FSDP2 allocates and frees what it would. Tracked by
``MemTracker``; its ``FSDPMemTracker`` counts the same and splits it differently, but counts the
first step's making of the optimizer's states into the peak.

Importing this module does not load torch; its function does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from labkit.errors import UsageError
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.oracles import tracker
from labkit.memory.plans import fsdp
from labkit.memory.tape import forms
from labkit.memory.tape import moments as predicted
from labkit.memory.tape.saved import Mode
from labkit.models import Model

PREFETCH = "backward, middle"
# Moments of the tracker that the estimate names otherwise, or tells apart.
NAMES = {"loss backward": ("loss backward", forms.HEAD), PREFETCH: (fsdp.PREFETCH,)}


def track(
    model: Model,
    mode: Mode,
    parallel: Parallel,
    *,
    seq: int,
    micro_batch: int,
    step: str = "fused",
    period: int = 1,
    group: int = 1,
    param_dtype: str | None = None,
    reduce_dtype: str | None = None,
) -> dict[str, dict[str, int]]:
    """By moment, bytes on rank 0 at its fullest point, by the tracker's categories and in total.

    ``param_dtype`` and ``reduce_dtype`` (``"bf16"``, ``"fp32"``) are FSDP2's mixed precision.

    Raises:
        UsageError: the plan is not data parallelism at stage 3, or the networks lack a part.
    """
    plain = Parallel(
        dp=parallel.dp,
        zero=3,
        replicate=parallel.replicate,
        partition_group=parallel.partition_group,
        reshard_after_forward=parallel.reshard_after_forward,
    )
    if parallel != plain or parallel.dp < 2:
        raise UsageError(
            "FSDP2 is tracked for data parallelism at zero = 3 on 2 ranks or more; with a"
            " secondary_group it looks at its mesh's numbers, which tensors here do not have"
        )
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from labkit.memory.oracles import networks, schemes

    dtypes = {"bf16": torch.bfloat16, "fp32": torch.float32, None: None}
    policy = MixedPrecisionPolicy(
        param_dtype=dtypes[param_dtype],
        reduce_dtype=dtypes[reduce_dtype],
    )
    with _ranks(parallel) as mesh, FakeTensorMode():
        network = networks.build(model, mode, seq=seq, period=period, group=group)
        schemes.shard(network, mesh, parallel.reshard_after_forward, mp_policy=policy)
        optimizer = networks.adamw(network, step)
        tracker._make_states(network, optimizer)
        batch = [torch.zeros(micro_batch, seq, dtype=torch.int64) for _ in range(2)]
        watch = tracker._watch(network, optimizer, batch)
        tracker._name_moments(network, watch, mode, group=group, period=period)
        with watch:
            with networks.autocast(mode):
                loss = network(*batch)
            watch.moment = "loss backward"
            loss.backward()
            del loss
            watch.moment = predicted.STEP
            optimizer.step()
    return dict(watch.largest)


@contextmanager
def _ranks(parallel: Parallel) -> Iterator[Any]:
    """A mesh of made-up ranks, of which this process is the first."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise UsageError("torch.distributed is in use in this process already")
    dist.init_process_group("fake", rank=0, world_size=parallel.dp, store=FakeStore())
    try:
        shard = parallel.shard_degree
        if shard == parallel.dp:
            yield init_device_mesh("cpu", (shard,), mesh_dim_names=("shard",))
        else:
            names = ("replicate", "shard")
            yield init_device_mesh("cpu", (parallel.dp // shard, shard), mesh_dim_names=names)
    finally:
        dist.destroy_process_group()
