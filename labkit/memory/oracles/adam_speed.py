"""How fast Adam runs on this machine's CPU: tensor by tensor, over lists, or in one kernel."""

from __future__ import annotations

import time

import pandas as pd

from labkit.kit.describe import Count, checked


@checked
def adam_speed(num_params: Count = 9_000_000, *, repeats: Count = 2) -> pd.Series[float]:
    """Seconds a parameter of one step of torch's fp32 Adam, by how it runs (``Recipe.step``).

    One thread, its processor time rather than the clock's, the fastest of ``repeats`` steps after
    the first. Tensors above 32 MiB, as large models have, get fresh pages at each allocation
    (glibc's largest ``M_MMAP_THRESHOLD``), which is part of what temporaries cost.
    """
    import torch

    seconds: dict[str, list[float]] = {"for-loop": [], "foreach": [], "fused": []}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for step, times in seconds.items():
            weight = torch.nn.Parameter(torch.ones(num_params))
            weight.grad = torch.ones(num_params)
            adam = torch.optim.Adam([weight], foreach=step == "foreach", fused=step == "fused")
            adam.step()
            for _ in range(repeats):
                start_s = time.thread_time()
                adam.step()
                times.append((time.thread_time() - start_s) / num_params)
    finally:
        torch.set_num_threads(threads)
    return pd.Series({step: min(times) for step, times in seconds.items()}, name="s_per_param")
