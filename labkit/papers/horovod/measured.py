"""What real ranks measure: small tensors summed one by one and fused, and one message by size."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from labkit.kit.ranks import on_ranks


def _timed_sums(rank: int, num_tensors: int, num_values: int) -> tuple[float, float]:
    """Seconds of all-reduces one by one, and of one of all tensors; what they sum is checked."""
    import torch
    import torch.distributed as dist

    tensors = [torch.full((num_values,), float(rank + place)) for place in range(num_tensors)]
    wanted = sum(range(dist.get_world_size()))
    together = torch.cat(tensors)
    dist.all_reduce(torch.ones(1))  # connections are made here
    dist.barrier()
    start_s = perf_counter()
    for tensor in tensors:
        dist.all_reduce(tensor)
    alone_s = perf_counter() - start_s
    dist.barrier()
    start_s = perf_counter()
    buffer = together.clone()
    dist.all_reduce(buffer)
    parts = buffer.split(num_values)
    fused_s = perf_counter() - start_s
    for alone, part in zip(tensors, parts, strict=True):
        assert torch.equal(alone, part)
    assert parts[0][0].item() == wanted
    return alone_s, fused_s


def fusion_gain(num_ranks: int, num_tensors: int = 1000, num_bytes: int = 4096) -> float:
    """How many times as fast tensors of so many bytes are summed fused as one by one, on gloo."""
    run = on_ranks(_timed_sums, num_ranks, num_tensors, num_bytes // 4)
    seconds = np.array(run.results).max(axis=0)
    return float(seconds[0] / seconds[1])


def _timed_sizes(rank: int, sizes: list[int], repeats: int) -> list[float]:
    """The fewest seconds of an all-reduce of each size: the least disturbed of its repeats."""
    import torch
    import torch.distributed as dist

    fewest_s = []
    for size in sizes:
        tensor = torch.zeros(size // 4)
        seconds = []
        for _ in range(repeats):
            dist.barrier()
            start_s = perf_counter()
            dist.all_reduce(tensor)
            seconds.append(perf_counter() - start_s)
        fewest_s.append(min(seconds))
    return fewest_s


def all_reduce_s(num_ranks: int, sizes: list[int], repeats: int = 9) -> list[float]:
    """The fewest seconds of an all-reduce of each size (bytes), on gloo."""
    run = on_ranks(_timed_sizes, num_ranks, sizes, repeats)
    return [float(seconds) for seconds in np.array(run.results).max(axis=0)]
