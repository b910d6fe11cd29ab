"""How many optimizer steps a job needs to its target, by batch size and learning-rate rule.

Every step is taken as one on a noisy quadratic. With |G|² the squared gradient, h its
curvature and φ the noise scale, a step of rate ε on a batch of B lowers the loss in expectation by
ε|G|² − ½ε²h|G|²(1 + φ/B): most at ε* ∝ 1/(1 + φ/B), which grows with B as AdaScale's gain does, and
by a share ρ(2 − ρ) of that at a rate of ρε*. From ρ = 2 the loss no longer falls. The initial
learning rate is taken to be the best one at the initial batch size.

Source: McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), §2.2; Johnson et
al., "AdaScale SGD" (ICML'20).
"""

from __future__ import annotations

from typing import Annotated, Any, get_args

import numpy as np
from annotated_types import MinLen
from numpy.typing import ArrayLike, NDArray

from labkit.errors import BadValue
from labkit.kit.describe import Count, Positive, checked, description
from labkit.tuning.goodput.large_batch import Noise, ScalingRule, adascale_gain, learning_rate
from labkit.tuning.goodput.tables import Tables


@description(slots=True)
class ModelledProgress:
    """Predicts steps to the target by the noisy quadratic, for any batch size and rule.

    The run at ``init_batch_size`` is a sequence of (steps, noise scale in examples): what it did in
    so many steps, another batch size does in fewer, by its gain and by how far its learning rate is
    from the best.
    """

    init_batch_size: Count
    phases: Annotated[tuple[tuple[Positive, Noise], ...], MinLen(1)]
    origin: str = "the given noise scales"

    @classmethod
    @checked
    def from_tables(cls, tables: Tables, *, metric: float | None = None) -> ModelledProgress:
        """Take every epoch of a published run at the initial batch size as a phase.

        Args:
            tables: the measurements of one workload.
            metric: the target, first reached at the end of an epoch; None takes the whole run.
        """
        run = tables.initial_run(metric)
        steps = np.diff(run["iteration"].to_numpy(float), prepend=0.0)
        return cls(
            init_batch_size=tables.init_batch_size,
            phases=tuple(zip(steps.tolist(), run["noise_scale"].tolist(), strict=True)),
            origin=f"the noise scales measured in each epoch of {tables.workload}",
        )

    @property
    def rules(self) -> tuple[ScalingRule, ...]:
        """The rules it knows, best first, so that it stands for all where they agree."""
        return tuple(sorted(get_args(ScalingRule)))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted of progress, as sentences."""
        return (
            f"Steps to the target follow the noisy quadratic model and {self.origin}: what a step "
            "is worth depends on the batch size and the learning rate alone, and any batch size "
            "generalises as well as the initial one.",
            "The best learning rate grows with the batch size as adascale says, and the initial "
            f"one is 1 of the best at {self.init_batch_size} "
            "examples; a rule at twice the best rate or above never reaches the target.",
        )

    @checked
    def steps(self, batch_size: ArrayLike, rule: ScalingRule = "adascale") -> NDArray[np.float64]:
        """Count steps to the target: infinite where the rate is twice the best one in any phase.

        >>> job = ModelledProgress(init_batch_size=128, phases=((700, 768),))
        >>> job.steps([128, 1024], "adascale").tolist()
        [700.0, 175.0]
        >>> job.steps([128, 512, 1024], "linear").round(1).tolist()
        [700.0, 306.2, inf]
        """
        size = np.asarray(batch_size, dtype=float)
        total = np.zeros(size.shape)
        for done, noise_scale in self.phases:
            init: dict[str, Any] = {
                "init_batch_size": self.init_batch_size,
                "noise_scale": noise_scale,
            }
            gain = adascale_gain(size, **init)
            share = learning_rate(rule, size, init_learning_rate=1.0, **init) / gain
            worth = share * (2 - share)
            with np.errstate(divide="ignore"):
                total = total + np.where(worth > 0, done / (gain * worth), np.inf)
        return total


@checked
def useful_sizes(low: Count, high: Count) -> tuple[int, ...]:
    """List batch sizes from ``low`` to ``high``: its doublings, and half-way between, which split
    well.

    >>> useful_sizes(8, 32)
    (8, 12, 16, 24, 32)
    """
    if low > high:
        raise BadValue(f"batch sizes must ascend, got {low} to {high}")
    doublings = 2 ** np.arange(int(np.log2(high / low)) + 1)
    sizes = low * doublings[:, None] * np.array([1, 1.5])
    return tuple(sorted({round(size) for size in sizes.ravel().tolist() if size <= high}))
