"""How fast Adam runs on this machine's CPU: tensor by tensor, over lists, or in one kernel."""

from __future__ import annotations

import time

import pandas as pd

NUM_PARAMS = 9_000_000


def adam_speed() -> pd.Series[float]:
    """Seconds a parameter of one step of torch's fp32 Adam, by how it runs (``Recipe.step``).

    One thread, its processor time rather than the clock's, the fastest of two steps after the
    first. Tensors above 32 MiB, as large models have, get fresh pages at each allocation
    (glibc's largest ``M_MMAP_THRESHOLD``), which is part of what temporaries cost.
    """
    import torch

    seconds: dict[str, list[float]] = {"for-loop": [], "foreach": [], "fused": []}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for step, times in seconds.items():
            weight = torch.nn.Parameter(torch.ones(NUM_PARAMS))
            weight.grad = torch.ones(NUM_PARAMS)
            adam = torch.optim.Adam([weight], foreach=step == "foreach", fused=step == "fused")
            adam.step()
            for _ in range(2):
                start_s = time.thread_time()
                adam.step()
                times.append((time.thread_time() - start_s) / NUM_PARAMS)
    finally:
        torch.set_num_threads(threads)
    return pd.Series({step: min(times) for step, times in seconds.items()}, name="s_per_param")
