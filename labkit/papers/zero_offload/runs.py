"""ZeRO-Offload: the runs it prints, the servers they ran on, and Adam's speed on this CPU.

Source: Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC'21.
"""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd

from labkit import hardware
from labkit.memory import Batch, Cluster, Model, Parallel, Plan, Recipe
from labkit.memory.plans.throughput import fit_cluster

TIMED_PARAMS = 9_000_000  # of the tensor that Adam is timed on
V100_FLOPS_PER_S = 50e12  # where the fit of a V100's sustained rate begins
GPUS_PER_SERVER = 16  # of a DGX-2


def printed_runs(path: Path, recipe: Recipe | None = None) -> pd.DataFrame:
    """Runs of GPTs (``layers, hidden, heads, gpus, mp, stage, batch``), each with its ``plan``.

    Every layer is recomputed; there are 1,024 tokens and GPT-2's vocabulary, as in ZeRO's appendix.

    Args:
        path: a CSV of the runs.
        recipe: of each plan; mixed-precision Adam by default.
    """
    table = pd.read_csv(path)
    sizes = ["layers", "hidden", "heads", "gpus", "mp", "stage", "batch"]
    plans = [
        Plan(
            model=Model(num_layers=layers, hidden=hidden, heads=heads, vocab=50257, positions=1024),
            parallel=Parallel(dp=gpus // mp, tp=mp, zero=stage),
            batch=Batch(seq=1024, micro_batch=batch, recompute="full"),
            recipe=recipe or Recipe(),
        )
        for layers, hidden, heads, gpus, mp, stage, batch in table[sizes].to_numpy().tolist()
    ]
    return table.assign(plan=pd.Series(plans, dtype=object))


def dgx2_cluster(path: Path) -> Cluster:
    """DGX-2 servers whose V100s and rings sustain what Fig. 4 of ZeRO shows.

    Args:
        path: ZeRO's runs, as :func:`printed_runs` reads them.
    """
    fig4 = printed_runs(path).query("figure == 'Fig. 4' and stage == 2")
    ring, node, inside = map(hardware.link, ("ib-edr", "dgx2-node", "nvlink-v100"))
    line_rate = Cluster(
        flops_per_s=V100_FLOPS_PER_S,
        ring=ring,
        node=node,
        inside=inside,
        ranks_per_node=GPUS_PER_SERVER,
    )
    measured = (fig4["tflops"] * 1e12).tolist()
    return fit_cluster(line_rate, list(fig4["plan"]), measured, free=["flops_per_s", "ring"])


def adam_speed() -> pd.Series[float]:
    """Seconds a parameter of one step of torch's fp32 Adam, by how it runs (``Recipe.step``).

    It has one thread, whose processor time counts rather than the clock's; the faster of two steps
    after the first is taken. Tensors above 32 MiB, as large models have, get fresh pages at each
    allocation (glibc's largest ``M_MMAP_THRESHOLD``), which is part of what temporaries cost.
    """
    import torch

    seconds: dict[str, list[float]] = {"for-loop": [], "foreach": [], "fused": []}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for step, times in seconds.items():
            weight = torch.nn.Parameter(torch.ones(TIMED_PARAMS))
            weight.grad = torch.ones(TIMED_PARAMS)
            adam = torch.optim.Adam([weight], foreach=step == "foreach", fused=step == "fused")
            adam.step()
            for _ in range(2):
                start_s = time.thread_time()
                adam.step()
                times.append((time.thread_time() - start_s) / TIMED_PARAMS)
    finally:
        torch.set_num_threads(threads)
    return pd.Series({step: min(times) for step, times in seconds.items()}, name="s_per_param")
