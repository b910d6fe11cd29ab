"""What an iteration of a language model costs, by tokens, sequences and cached keys and values."""

from __future__ import annotations

from dataclasses import fields, replace
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


def _shape(model: str | Model) -> Model:
    """Look up a preset."""
    from labkit.models import Model

    return Model.preset(model) if isinstance(model, str) else model


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


def _check_room(slots: int, name: str, tensor: int, stages: int, memory_share: float) -> None:
    """Refuse GPUs whose memory the weights fill; raises BadValue."""
    if slots < 1:
        raise BadValue(
            f"roofline: {name} leaves no memory for a token; valid: more GPUs than tensor "
            f"{tensor} × stages {stages}, a smaller model, an accelerator with more memory, or "
            f"a memory_share above {memory_share:g}"
        )


@description
class TokenProfile:
    """Seconds of an iteration on one stage of a pipeline; all stages are alike.

    seconds = fixed_s + max(weights_s, tokens × token_s) + tokens × sent_token_s
    + sequences × sequence_s + cached × cached_token_s

    Attributes:
        fixed_s: launches, synchronisation, latency of collectives.
        weights_s: reading all weights once; computing on few tokens hides behind it.
        token_s: computing on a token, prompt or output.
        sequence_s: what each sequence costs beside its tokens: attention that is not batched.
        cached_token_s: reading the keys and values of a token that is in the cache.
        sent_token_s: sending a token's activations between GPUs that share a layer.
        request_s: of a request before a batch can take it, such as reading and tokenising it;
            many are prepared at a time.
        stages: of the pipeline.
        slots: tokens whose keys and values fit in memory.
    """

    fixed_s: NonNegative = 0.0
    weights_s: NonNegative
    token_s: NonNegative = 0.0
    sequence_s: NonNegative = 0.0
    cached_token_s: NonNegative = 0.0
    sent_token_s: NonNegative = 0.0
    request_s: NonNegative = 0.0
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
        model: str | Model,
        accelerator: str,
        *,
        tensor: Count = 1,
        stages: Count = 1,
        compute_share: Part = 0.5,
        bandwidth_share: Part = 0.8,
        memory_share: Part = 0.9,
        all_reduce_s: NonNegative = 15e-6,
        sequence_s: NonNegative = 0.0,
        link_bytes_per_s: Positive | None = None,
        iteration_s: NonNegative = 0.0,
        request_s: NonNegative = 0.0,
    ) -> Self:
        """A profile from shapes and datasheets, 16-bit weights: modelled, not measured.

        Operations of attention itself are left out: below 2 % at prompts of 1,024 tokens. A token
        is computed on the experts that it is sent to; an iteration reads all of them. Several
        replicas have a share of the requests each.

        Args:
            model: a preset of ``data/models.yaml``, or a :class:`labkit.models.Model`.
            accelerator: a preset of ``data/hardware.yaml``.
            tensor: GPUs that share each layer; two all-reduces a layer, ``all_reduce_s`` each.
                Where they are more than the heads of keys, each head is kept several times.
            stages: of the pipeline, at most one a layer.
            compute_share, bandwidth_share: of the datasheet's rates that kernels reach.
            memory_share: of memory that weights, keys and values may take.
            sequence_s: of one sequence's attention in a layer, beside reading the cache: nothing
                where one kernel takes all sequences, as over paged memory; a kernel for each of
                them, as in Orca (§4.2), takes microseconds.
            link_bytes_per_s: of a GPU in an all-reduce, which sends 2 (tensor − 1) / tensor times
                a token's activations around a ring; None: they take ``all_reduce_s`` alone.
            iteration_s, request_s: of an iteration beside the GPUs' work, and of a request before
                its first, such as scheduling and tokenising.

        Raises:
            UsageError: there is no such preset.
            BadValue: the GPUs cannot share the model, or it leaves no memory for keys and values.

        """
        from labkit import hardware

        shape = _shape(model)
        chip = hardware.accelerator(accelerator)
        _check_cut(shape, tensor, stages)
        layers = shape.num_layers / stages
        ways = tensor * stages
        weight_bytes = 2 * shape.num_params / ways
        cache_bytes = 4 * shape.kv_size * layers / min(tensor, shape.kv_heads)  # of a token
        slots = int((memory_share * chip.memory_bytes - weight_bytes) / cache_bytes)
        name = f"{shape.name} on {ways} {accelerator}"
        _check_room(slots, name, tensor, stages, memory_share)
        rate = bandwidth_share * chip.hbm_bytes_per_s
        flops = compute_share * chip.peak_flops
        sent_bytes = 2 * layers * 2 * (tensor - 1) / tensor * 2 * shape.hidden
        return cls(
            fixed_s=2 * layers * all_reduce_s * (tensor > 1) + iteration_s,
            weights_s=weight_bytes / rate,
            token_s=2 * shape.num_active_params / ways / flops,
            sequence_s=sequence_s * layers / tensor,
            cached_token_s=cache_bytes / rate,
            sent_token_s=sent_bytes / link_bytes_per_s if link_bytes_per_s else 0.0,
            request_s=request_s,
            stages=stages,
            slots=slots,
            name=name,
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
        work = max(self.weights_s, tokens * self.token_s) + tokens * self.sent_token_s
        rest = sequences * self.sequence_s
        return self.fixed_s + work + rest + cached * self.cached_token_s

    @checked
    def slower(self, factor: Positive) -> TokenProfile:
        """The same with every second multiplied.

        >>> TokenProfile(weights_s=0.02, token_s=0.001).slower(2).token_s
        0.002
        """
        names = [item.name for item in fields(self) if item.name.endswith("_s")]
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
        reused = requests.reused_tokens
        computed = np.maximum(prompt, 1) - reused
        first = np.maximum(self.weights_s, batch * computed * self.token_s)
        later = (output - 1) * max(self.weights_s, batch * self.token_s)
        cached = batch * (reused + (output - 1) * (2 * prompt + output - 2) / 2)
        each = output * (self.fixed_s + batch * self.sequence_s)
        sent = batch * (computed + output - 1) * self.sent_token_s
        stage = each + first + later + sent + cached * self.cached_token_s
        return self.request_s + self.stages * stage
