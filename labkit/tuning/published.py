"""What was published of Zeus's savings, to stand beside ours: the simulator's and the paper's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from labkit.tuning.bandit import simulate
from labkit.tuning.trace import TrainingTrace

PAPER_RANGE = (0.153, 0.758)
"""Energy-to-accuracy reductions over the six workloads (Zeus, NSDI'23, abstract)."""

SIMULATOR_ENERGY_REDUCTION: dict[str, dict[str, float]] = {
    "v100": {
        "cifar100": 0.748,
        "imagenet": 0.204,
        "squad": 0.191,
        "librispeech": 0.383,
        "movielens-1m": 0.646,
        "sentiment140": 0.209,
    },
    "a40": {
        "cifar100": 0.667,
        "imagenet": 0.134,
        "squad": 0.168,
        "librispeech": 0.663,
        "movielens-1m": 0.619,
        "sentiment140": 0.206,
    },
}
"""Mean of five seeds, last five recurrences, η = 0.5: zeus-ml's own simulator on its traces."""


def savings(
    traces: Iterable[TrainingTrace],
    policies: Iterable[str] = ("zeus",),
    **settings: Any,
) -> pd.DataFrame:
    """Steady-state savings of each workload, GPU and policy, beside the simulator's figure.

    ``settings``: those of ``simulate`` (``eta``, ``beta``, ``seeds``, ``recurrences``). Columns:
    those of ``Runs.summary``, with gpu, name, and peer_energy_reduction: missing where nobody
    published one, or for a policy other than theirs.
    """
    rows = []
    policies = tuple(policies)
    for trace in traces:
        peer = SIMULATOR_ENERGY_REDUCTION.get(trace.gpu, {})
        for name in trace.names:
            job = trace.job(name)
            for policy in policies:
                row = simulate(job, policy=policy, **settings).summary().to_dict()
                known = peer.get(name, np.nan) if policy == "zeus" else np.nan
                rows.append(
                    {"gpu": trace.gpu, "name": name} | row | {"peer_energy_reduction": known}
                )
    return pd.DataFrame(rows)
