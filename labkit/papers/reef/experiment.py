"""REEF's experiment: who shares the GPU and how, over a GPU kept for real-time programs.

Source: Han et al. (OSDI'22), evaluation on DISB, and its artifact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import pandas as pd

from labkit.papers.reef.clients import workload_of
from labkit.serving.device.clients import Gpu, Mode
from labkit.serving.device.kernels import Program
from labkit.serving.results import GpuRun
from labkit.serving.simulation import simulate


class Policy(StrEnum):
    """How real-time programs get the GPU: REEF, parts of it, and its rivals."""

    REEF = "REEF"
    NO_RESET = "REEF without reset"
    NO_PADDING = "REEF without padding"
    ANTMAN = "AntMan"
    WAIT = "wait"
    STREAMS = "streams"
    SEQUENTIAL = "one at a time"
    ALONE = "real-time only"

    def on(self, gpu: Gpu) -> Gpu:
        """The GPU as this policy uses it.

        >>> Policy.NO_RESET.on(Gpu(mode="alone")).killable
        0.0
        """
        if self is Policy.NO_RESET:
            return replace(gpu, mode="padded", killable=0.0)
        return replace(gpu, mode=_MODES[self])


_MODES: dict[Policy, Mode] = {
    Policy.REEF: "padded",
    Policy.NO_PADDING: "reset",
    Policy.ANTMAN: "guests",
    Policy.WAIT: "wait",
    Policy.STREAMS: "streams",
    Policy.SEQUENTIAL: "sequential",
    Policy.ALONE: "alone",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """Workloads of clients on one simulated GPU.

    Attributes:
        clients: rows of clients, with the columns of :func:`workload_of` and ``workload``.
        programs: by model.
        until_s: simulated seconds.
        gpu: the GPU; its mode is chosen by the policy.
        share: of the real-time clients' rates.
    """

    clients: pd.DataFrame
    programs: dict[str, Program]
    until_s: float
    gpu: Gpu
    share: float = 1.0

    @property
    def disb(self) -> list[str]:
        """The benchmark's workloads, A to E."""
        names = self.clients["workload"].unique()
        return [str(name) for name in names if str(name).startswith("DISB")]

    def run(self, policy: Policy, workload: str, *, rng: int | None = None) -> GpuRun:
        """One workload under one policy.

        Args:
            policy: how real-time programs get the GPU.
            workload: its name in the table.
            rng: shifts every client within its period; None: as the artifact begins.
        """
        rows = self.clients[self.clients["workload"] == workload]
        clients = workload_of(rows, self.programs, until_s=self.until_s, share=self.share, rng=rng)
        return simulate(clients, self.programs, policy.on(self.gpu))

    def over_alone(
        self, policy: Policy, workload: str, *, rng: int | None = None
    ) -> tuple[float, float]:
        """Mean real-time latency and programs a second, over a GPU kept for real-time programs."""
        alone = self.run(Policy.ALONE, workload, rng=rng)
        return self.run(policy, workload, rng=rng).over(alone)

    def bound(self, workload: str) -> float:
        """The throughput that no policy beats: all that the best-effort clients ask for."""
        rows = self.clients[self.clients["workload"] == workload]
        asked_per_s = rows.loc[rows["real_time"] == 0, "rate_per_s"].sum()
        return float(1 + asked_per_s / self.run(Policy.ALONE, workload).rate_per_s())

    def load(self, workload: str) -> float:
        """Real-time work that was done, in seconds a second of the GPU alone."""
        done = self.run(Policy.ALONE, workload).frame()["program"]
        return sum(self.programs[name].alone_s for name in done) / self.until_s

    def compare(self, policy: Policy) -> pd.DataFrame:
        """DISB under a policy, over a GPU kept for real-time programs; a row a workload."""
        rows = {}
        for workload in self.disb:
            latency, throughput = self.over_alone(policy, workload)
            rows[workload] = {"latency": latency, "throughput": throughput}
        return pd.DataFrame(rows).T

    def preemption(self, policy: Policy) -> pd.Series[float]:
        """Latency that a policy adds to real-time programs, as a share, by workload of DISB.

        DISB B is left out: its real-time client leaves no gap in which anything else would run.
        """
        added: pd.Series[float] = self.compare(policy)["latency"].drop("DISB B") - 1
        return added
