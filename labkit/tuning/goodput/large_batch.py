"""What a larger batch costs and brings: steps saved, examples wasted, learning rates that keep up.

One number rules all of it. Below the critical batch size, twice the batch needs half the steps and
hardly more examples; above it, twice the examples and hardly fewer steps. To first order it equals
the gradient noise scale, which can be measured without training to the end.

Source: McCandlish et al., "An Empirical Model of Large-Batch Training" (2018); Goyal et al.,
"Accurate, Large Minibatch SGD" (2017); Johnson et al., "AdaScale SGD" (ICML'20); Pollux (OSDI'21).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from annotated_types import Ge

from labkit.errors import UsageError
from labkit.kit.describe import AnyNumber, Positive, checked, description

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Noise = Annotated[AnyNumber, Ge(0)]
"""A gradient noise scale in examples; infinite where no gradient is left of the noise."""
ScalingRule = Literal["none", "sqrt", "linear", "adascale", "sqrt-adascale"]

_ROUNDING = 1e-9


# ---------------------------------------------------------------- one step


@checked
def efficiency(
    batch_size: ArrayLike, *, init_batch_size: Positive, noise_scale: Noise
) -> NDArray[np.float64]:
    """What an example is worth in batches of ``batch_size``: (φ + M0) / (φ + M), 1 at M0.

    Raises:
        UsageError: a batch is below ``init_batch_size``, or the noise scale negative.

    Source: Pollux §3.1.

    >>> efficiency([128, 256, 1024], init_batch_size=128, noise_scale=768).tolist()
    [1.0, 0.875, 0.5]
    """
    return adascale_gain(batch_size, init_batch_size=init_batch_size, noise_scale=noise_scale) / (
        np.asarray(batch_size) / init_batch_size
    )


@checked
def adascale_gain(
    batch_size: ArrayLike, *, init_batch_size: Positive, noise_scale: Noise
) -> NDArray[np.float64]:
    """How many steps at M0 one step at M is worth: (φ/M0 + 1) / (φ/M + 1), from 1 to M/M0.

    Source: Johnson et al. 2020 (the gain ratio of AdaScale); Pollux §3.1.
    """
    size = np.asarray(batch_size, dtype=float)
    if (size < init_batch_size).any():
        raise UsageError(
            f"efficiency is against init_batch_size {init_batch_size:g}, so a batch size must be "
            f"at least that; got {size.min():g}"
        )
    if np.isinf(noise_scale):
        return size / init_batch_size
    return (noise_scale / init_batch_size + 1) / (noise_scale / size + 1)


@checked
def learning_rate(
    rule: ScalingRule,
    batch_size: ArrayLike,
    *,
    init_batch_size: Positive,
    init_learning_rate: Positive,
    noise_scale: Noise | None = None,
) -> NDArray[np.float64]:
    """The learning rate for ``batch_size`` that is as good as the initial one was.

    Args:
        rule: ``linear`` (Goyal et al. §2.1) and ``sqrt`` multiply by k = M/M0 and √k;
            ``adascale`` by the gain, which is between 1 and k; ``sqrt-adascale`` by its root, as
            Adam and its kin want it; ``none`` keeps the rate.
        noise_scale: in examples, for the two that adapt.

    >>> learning_rate("linear", 1024, init_batch_size=256, init_learning_rate=0.1).item()
    0.4
    """
    size = np.asarray(batch_size, dtype=float)
    if rule.endswith("adascale"):
        if noise_scale is None:
            raise UsageError(f"the rule {rule!r} needs noise_scale")
        factor = adascale_gain(size, init_batch_size=init_batch_size, noise_scale=noise_scale)
    else:
        factor = np.ones_like(size) if rule == "none" else size / init_batch_size
    return init_learning_rate * (np.sqrt(factor) if rule.startswith("sqrt") else factor)


# ---------------------------------------------------------------- a whole training run


@description
@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalBatch:
    """Least steps (of endless batches) and least examples (of the smallest ones) to a target.

    Between them every batch size B trades steps S for examples E = B·S along
    (S/min_steps − 1)(E/min_examples − 1) = 1.

    Source: McCandlish et al. 2018, §2.3.
    """

    min_steps: Positive
    min_examples: Positive

    @property
    def batch_size(self) -> float:
        """The critical batch size: there, both steps and examples are twice their least.

        >>> CriticalBatch(min_steps=100, min_examples=64000).batch_size
        640.0
        """
        return self.min_examples / self.min_steps

    def steps(self, batch_size: ArrayLike) -> NDArray[np.float64]:
        """Optimizer steps to the target: min_steps · (1 + B_crit / B)."""
        return self.min_steps * (1 + self.batch_size / np.asarray(batch_size, dtype=float))

    def examples(self, batch_size: ArrayLike) -> NDArray[np.float64]:
        """Examples to the target: min_examples · (1 + B / B_crit)."""
        return self.min_examples * (1 + np.asarray(batch_size, dtype=float) / self.batch_size)

    @classmethod
    @checked
    def from_noise(
        cls, noise_scale: Positive, *, init_batch_size: Positive, init_steps: Positive
    ) -> CriticalBatch:
        """The trade-off of a job that takes ``init_steps`` at one size and has this noise scale.

        Assumes that the critical batch size is the noise scale, and this the same all along.
        Source: McCandlish et al. 2018, §2.3.
        """
        min_steps = init_steps / (1 + noise_scale / init_batch_size)
        return cls(min_steps=min_steps, min_examples=min_steps * noise_scale)

    @classmethod
    @checked
    def fit(cls, batch_sizes: ArrayLike, steps: ArrayLike) -> CriticalBatch:
        """The trade-off nearest to measured steps by batch size, by relative error.

        steps = min_steps + min_examples / B is linear in both, so this is one non-negative least
        squares problem.

        Raises:
            UsageError: fewer than two batch sizes, or steps that do not fall with the batch size
                or fall in exact proportion (then one of the two has no finite estimate).
        """
        from scipy.optimize import nnls

        size, count = np.asarray(batch_sizes, dtype=float), np.asarray(steps, dtype=float)
        known = np.isfinite(count)
        size, count = size[known], count[known]
        if len(np.unique(size)) < 2:
            raise UsageError("a trade-off needs steps at two batch sizes or more")
        terms = np.stack([np.ones_like(size), 1 / size], 1) / count[:, None]
        scale = terms.max(0)
        least = nnls(terms / scale, np.ones_like(size))[0] / scale
        share = least * terms.max(0)  # what each adds to a predicted count, at most
        if share.min() < _ROUNDING:
            how = "do not fall as it grows" if share[1] < share[0] else "fall in proportion to it"
            raise UsageError(
                f"no critical batch size shows in steps at batch sizes {size.min():g} to "
                f"{size.max():g}: they {how}"
            )
        return cls(min_steps=float(least[0]), min_examples=float(least[1]))
