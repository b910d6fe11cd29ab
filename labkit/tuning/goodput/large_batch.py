"""What a step of a larger batch is worth, and the learning rates that keep up with it.

Source: Goyal et al., "Accurate, Large Minibatch SGD" (2017); Johnson et al., "AdaScale SGD"
(ICML'20); Pollux (OSDI'21).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from annotated_types import Ge

from labkit.errors import UsageError, shown
from labkit.kit.describe import AnyNumber, Positive, checked

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Noise = Annotated[AnyNumber, Ge(0)]
"""A gradient noise scale in examples; infinite where no gradient is left of the noise."""
ScalingRule = Literal["none", "sqrt", "linear", "adascale", "sqrt-adascale"]


@checked
def efficiency(
    batch_size: ArrayLike, *, init_batch_size: Positive, noise_scale: Noise
) -> NDArray[np.float64]:
    """What an example is worth in batches of ``batch_size``: (φ + M0) / (φ + M), which is 1 at M0.

    Args:
        batch_size: M, in examples; arrays broadcast.
        init_batch_size: M0, the batch size the job was tuned for.
        noise_scale: φ, in examples.

    Raises:
        UsageError: a batch is below ``init_batch_size``.

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

    Args:
        batch_size: M, in examples; arrays broadcast.
        init_batch_size: M0, the batch size the job was tuned for.
        noise_scale: φ, in examples.

    Source: Johnson et al. 2020 (the gain ratio of AdaScale); Pollux §3.1.
    """
    size = np.asarray(batch_size, dtype=float)
    if not (np.isfinite(size) & (size >= init_batch_size)).all():
        raise UsageError(
            f"efficiency is against init_batch_size {init_batch_size:g}, so batch_size must be at "
            f"least that, and finite; got {shown(batch_size)}"
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
        rule: ``linear`` (Goyal et al. §2.1) and ``sqrt`` multiply by k = M/M0 and √k; ``adascale``
            by the gain, which is between 1 and k; ``sqrt-adascale`` by its root, as Adam and its
            kin want it; ``none`` keeps the rate.
        batch_size: M, in examples; arrays broadcast.
        init_batch_size: M0, the batch size the job was tuned for.
        init_learning_rate: the rate it was tuned with.
        noise_scale: φ in examples, for the two rules that adapt.

    >>> learning_rate("linear", 1024, init_batch_size=256, init_learning_rate=0.1).item()
    0.4
    """
    size = np.asarray(batch_size, dtype=float)
    if not (np.isfinite(size) & (size > 0)).all():
        raise UsageError(f"batch_size must be finite and above 0; got {shown(batch_size)}")
    if rule.endswith("adascale"):
        if noise_scale is None:
            raise UsageError(f"the rule {rule!r} needs noise_scale")
        factor = adascale_gain(size, init_batch_size=init_batch_size, noise_scale=noise_scale)
    else:
        factor = np.ones_like(size) if rule == "none" else size / init_batch_size
    return init_learning_rate * (np.sqrt(factor) if rule.startswith("sqrt") else factor)
