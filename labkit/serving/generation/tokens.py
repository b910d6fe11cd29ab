"""What an iteration of a language model costs, by tokens, sequences and cached keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from annotated_types import Gt, Le
from numpy.typing import NDArray

from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, checked, description

if TYPE_CHECKING:
    from labkit.models import Model
    from labkit.serving.requests import Requests


Part = Annotated[float, Gt(0), Le(1)]
"""A share that is not nothing."""


def _check_cut(shape: Model, tensor: int, stages: int) -> None:
    """Refuse GPUs that cannot share the model so; raises BadValue."""
    if shape.heads % tensor:
        raise BadValue(
            f"roofline: tensor must divide the {shape.heads} heads of {shape.name}, got {tensor}"
        )
    if stages > shape.num_layers:
        raise BadValue(
            f"roofline: stages must be at most the {shape.num_layers} layers of {shape.name}, got"
            f" {stages}"
        )


@description
class TokenProfile:
    """Seconds of an iteration on one stage of a pipeline; all stages are alike.

    seconds = fixed_s + max(weights_s, tokens × token_s) + sequences × sequence_s
    + cached × cached_token_s

    Attributes:
        fixed_s: launches, synchronisation, latency of collectives.
        weights_s: reading all weights once; computing on few tokens hides behind it.
        token_s: computing on a token, prompt or output.
        sequence_s: what each sequence costs beside its tokens: attention that is not batched.
        cached_token_s: reading the keys and values of a token that is in the cache.
        stages: of the pipeline.
        slots: tokens whose keys and values fit in memory.
    """

    fixed_s: NonNegative = 0.0
    weights_s: NonNegative
    token_s: NonNegative = 0.0
    sequence_s: NonNegative = 0.0
    cached_token_s: NonNegative = 0.0
    stages: Count = 1
    slots: Count = 2**31
    name: str = "profile"

    def __post_init__(self) -> None:
        if not self.fixed_s + self.weights_s > 0:
            raise BadValue("TokenProfile: fixed_s + weights_s must be above 0; got 0")

    @classmethod
    @checked
    def roofline(
        cls,
        model: str,
        accelerator: str,
        *,
        tensor: Count = 1,
        stages: Count = 1,
        compute_share: Part = 0.5,
        bandwidth_share: Part = 0.8,
        memory_share: Part = 0.9,
        all_reduce_s: NonNegative = 15e-6,
        sequence_s: NonNegative = 0.0,
    ) -> Self:
        """A profile from shapes and datasheets, 16-bit weights: modelled, not measured.

        Operations of attention itself are left out: below 2 % at prompts of 1,024 tokens. A token
        is computed on the experts that it is sent to; an iteration reads all of them.

        Args:
            model, accelerator: presets of ``data/models.yaml`` and ``data/hardware.yaml``.
            tensor: GPUs that share each layer; two all-reduces a layer, ``all_reduce_s`` each.
                Where they are more than the heads of keys, each head is kept several times.
            stages: of the pipeline, at most one a layer.
            compute_share, bandwidth_share: of the datasheet's rates that kernels reach.
            memory_share: of memory that weights, keys and values may take.
            sequence_s: of one sequence's attention in a layer, beside reading the cache: nothing
                where one kernel takes all sequences, as over paged memory; a kernel for each of
                them, as in Orca (§4.2), takes microseconds.

        Raises:
            UsageError: there is no such preset.
            BadValue: heads do not divide by ``tensor``, there are more stages than layers, or the
                weights leave no memory for keys and values.

        >>> dense = TokenProfile.roofline("llama-3-8b", "H100-80GB")
        >>> copied = TokenProfile.roofline("llama-3-8b", "H100-80GB", tensor=16)
        >>> copied.cached_token_s / dense.cached_token_s  # 8 heads of keys, on 16 GPUs
        0.125
        """
        from labkit import hardware
        from labkit.models import Model

        shape = Model.preset(model)
        chip = hardware.accelerator(accelerator)
        _check_cut(shape, tensor, stages)
        layers = shape.num_layers / stages
        ways = tensor * stages
        weight_bytes = 2 * shape.num_params / ways
        cut = min(tensor, shape.kv_heads)
        cache_bytes = 4 * shape.kv_size * layers / cut  # of a token: keys and values, 2 bytes
        room = memory_share * chip.memory_bytes - weight_bytes
        if room < cache_bytes:
            raise BadValue(
                f"roofline: {model} on {ways} {accelerator} leaves no memory for a token; valid: "
                f"more GPUs than tensor {tensor} × stages {stages}, a smaller model, an "
                f"accelerator with more memory, or a memory_share above {memory_share:g}"
            )
        rate = bandwidth_share * chip.hbm_bytes_per_s
        flops = compute_share * chip.peak_flops
        return cls(
            fixed_s=2 * layers * all_reduce_s * (tensor > 1),
            weights_s=weight_bytes / rate,
            token_s=2 * shape.num_active_params / ways / flops,
            sequence_s=sequence_s * layers / tensor,
            cached_token_s=cache_bytes / rate,
            stages=stages,
            slots=int(room / cache_bytes),
            name=f"{model} on {ways} {accelerator}",
        )

    @checked
    def seconds(self, *, tokens: Count, sequences: Count = 1, cached: int = 0) -> float:
        """Seconds of one stage.

        Args:
            tokens: that an iteration processes, of prompts and outputs.
            sequences: requests in it.
            cached: tokens of theirs whose keys and values are read.

        >>> TokenProfile(weights_s=0.02, token_s=0.001, cached_token_s=0.0001).seconds(tokens=30)
        0.03
        """
        work = max(self.weights_s, tokens * self.token_s)
        rest = sequences * self.sequence_s
        return self.fixed_s + work + rest + cached * self.cached_token_s

    @checked
    def slower(self, factor: Positive) -> TokenProfile:
        """The same with every second multiplied.

        >>> TokenProfile(weights_s=0.02, token_s=0.001).slower(2).token_s
        0.002
        """
        names = ("fixed_s", "weights_s", "token_s", "sequence_s", "cached_token_s")
        return replace(self, **{name: getattr(self, name) * factor for name in names})

    @checked
    def alone_s(self, requests: Requests, *, batch: Count = 1) -> NDArray[np.float64]:
        """Latency of each request on an idle server: no schedule gives it sooner.

        Args:
            batch: in a batch of so many that are all like it.

        >>> from labkit import serving
        >>> one = serving.Requests(arrival_s=[0.0], output_tokens=[5])
        >>> TokenProfile(weights_s=0.02, stages=2).alone_s(one).round(9).tolist()
        [0.2]
        """
        prompt = requests.column("prompt_tokens")
        output = requests.column("output_tokens")
        first = np.maximum(self.weights_s, batch * np.maximum(prompt, 1) * self.token_s)
        later = (output - 1) * max(self.weights_s, batch * self.token_s)
        cached = batch * (output - 1) * (2 * prompt + output - 2) / 2
        each = output * (self.fixed_s + batch * self.sequence_s)
        return self.stages * (each + first + later + cached * self.cached_token_s)
