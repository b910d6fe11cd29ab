"""A training job on servers with a slow network, by MiCS and by what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from labkit import memory
from labkit.models import Model

BERT_10B = Model(num_layers=127, hidden=2560, heads=40, vocab=32768, positions=512)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One model on so many GPUs, in servers of eight; layers are recomputed.

    Args:
        gpus: how many train it.
        model: what is trained.
        group: GPUs that share one copy of the states (MiCS).
        gbit_per_s: of a server's network cards together, each way.
        hop_s: latency of a hop between servers.
        micro_batch: samples of ``seq`` tokens that a GPU takes at a time.
        accumulation: micro-batches of a step.
        flops_per_s: operations a second that a GPU sustains between collectives.
        inside: the link between GPUs of a server, a name of ``data/hardware.yaml``.
        overlap: traffic of the backward pass hides behind its operations.
        staged: gathers over servers first cross them, then go on inside (§3.3).
    """

    gpus: int
    model: Model = BERT_10B
    group: int = 8
    gbit_per_s: float = 100.0
    hop_s: float = 20e-6
    micro_batch: int = 8
    accumulation: int = 4
    seq: int = 512
    flops_per_s: float = 5e13
    inside: str = "nvlink-v100"
    overlap: bool = False
    staged: bool = False

    def compared(self, method: str = "MiCS") -> pd.DataFrame:
        """ZeRO-3 and a method, as :func:`labkit.memory.rivals` has them."""
        cluster = memory.Cluster.of_servers(
            flops_per_s=self.flops_per_s,
            gbit_per_s=self.gbit_per_s,
            inside=self.inside,
            ranks_per_node=8,
            latency_s=self.hop_s,
            overlap=self.overlap,
            staged=self.staged,
        )
        return memory.rivals(
            self.model,
            cluster,
            [method],
            gpus=self.gpus,
            partition_group=self.group,
            seq=self.seq,
            micro_batch=self.micro_batch,
            accumulation=self.accumulation,
        )

    def rate_flops(self, method: str = "MiCS") -> float:
        """Operations a second of one GPU."""
        return float(self.compared(method)["gpu_flops_per_s"].to_dict()[method])

    def traffic_s(self, method: str = "MiCS") -> float:
        """Seconds of a step in which a GPU does not compute."""
        return float(self.compared(method)["traffic_s"].to_dict()[method])
