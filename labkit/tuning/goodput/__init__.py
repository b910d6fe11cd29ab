"""Goodput: examples a second, counted by what they are worth to training.

    tables = goodput.load("pollux-osdi21", "cifar10")
    model = goodput.fit(tables.steps, init_batch_size=128, noise_scale=tables.noise_scale(0.5))
    model.optimize(num_nodes=4, num_gpus=16, max_batch_size=4096, atomic_bsz_range=(32, 1024))

Source: Pollux (OSDI'21), §3.
"""

from labkit.tuning.goodput.model import GoodputModel, Optimum, fit, speedups, surface
from labkit.tuning.goodput.step_fit import cross_validate, measurements
from labkit.tuning.goodput.step_times import StepTimes, SyncTier
from labkit.tuning.goodput.tables import Tables, load

__all__ = [
    "GoodputModel",
    "Optimum",
    "StepTimes",
    "SyncTier",
    "Tables",
    "cross_validate",
    "fit",
    "load",
    "measurements",
    "speedups",
    "surface",
]
