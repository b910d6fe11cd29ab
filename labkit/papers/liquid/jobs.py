"""Jobs of workers and a parameter server, drawn from six networks."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from labkit.cluster.inputs.published import generate
from labkit.cluster.inputs.traces import Trace
from labkit.errors import BadValue
from labkit.kit.describe import Count, Positive, Whole, checked, description
from labkit.papers.liquid.racks import Racks

NETWORKS = {
    "ResNet-50": (25.6e6, 0.25),
    "VGG-16": (138.4e6, 0.35),
    "AlexNet": (61.1e6, 0.10),
    "Inception-v3": (23.8e6, 0.30),
    "BERT-base": (110e6, 0.40),
    "LSTM": (66e6, 0.30),
}
"""Parameters, and seconds of a step without the network (ours: round numbers of one GPU)."""


@description
class Workers:
    """Jobs of workers and a parameter server.

    Attributes:
        trace: when each comes and on how many GPUs; its duration is the seconds it computes.
        model_bytes, compute_s: a number a job: its model, and a step without the network.
    """

    trace: Trace
    model_bytes: ArrayLike
    compute_s: ArrayLike

    def __post_init__(self) -> None:
        for name in ("model_bytes", "compute_s"):
            array = np.array(getattr(self, name), dtype=float)
            if array.shape != (len(self.trace),) or not (np.isfinite(array) & (array > 0)).all():
                raise BadValue(f"Workers.{name} must be one number above 0 a job")
            object.__setattr__(self, name, array)


@checked
def draw_workers(racks: Racks, *, num_jobs: Count, load: Positive, rng: Whole = 0) -> Workers:
    """Jobs of :data:`NETWORKS`, each as likely, on 1, 2, 4 or 8 GPUs; Poisson arrivals.

    Args:
        racks: where they run.
        num_jobs: how many.
        load: work that arrives a second, over what all GPUs can do without a network.
        rng: a seed.
    """
    trace = generate(
        num_jobs,
        num_gpus=racks.racks * racks.nodes * racks.gpus,
        load=load,
        sigma=1.0,
        mean_duration_s=1800.0,
        gpus={1: 0.4, 2: 0.3, 4: 0.2, 8: 0.1},
        rng=rng,
    )
    kind = np.random.default_rng([rng, 1]).integers(len(NETWORKS), size=num_jobs)
    parameters, compute_s = np.array(list(NETWORKS.values()))[kind].T
    return Workers(trace=trace, model_bytes=4 * parameters, compute_s=compute_s)
