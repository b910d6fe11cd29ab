"""The paper's four trainings: what a GPU keeps of a layer, and how long a step takes, modelled.

A layer's work is counted in three kinds: operations of the matrix products, bytes that norms,
dropouts, GeLU and softmax move through memory, and bytes that the ranks of a layer send. Three
rates turn counts into seconds.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022,
§4 to §6, Table 2, eqs. 7 and 8.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.memory import Model, Parallel
from labkit.memory.tape.mode import Mode
from labkit.memory.tape.saved import layer_terms, total_bytes

CAPACITY_BYTES = 80 * 2**30
"""Memory of an A100 with 80 GB."""

_STATE_BYTES = 18  # of each parameter: weights, gradient, Adam's states (mixed precision)
_ADAM_BYTES = 32  # moved for each parameter when Adam updates it
_VALUE_BYTES = 2  # a 16-bit number


class Recompute(StrEnum):
    """What of a layer is computed again in the backward pass."""

    NOTHING = "none"
    CORE = "selective"
    LAYER = "full"


@dataclass(frozen=True, kw_only=True)
class Way:
    """Which activations a rank keeps, beside tensor parallelism.

    Args:
        recompute: what is computed again.
        sequence_parallel: norms, dropouts and sums work on a slice of the tokens.
        layers_fraction: of layers, those whose recomputation ``recompute`` says; the others keep
            everything.
    """

    recompute: Recompute = Recompute.NOTHING
    sequence_parallel: bool = False
    layers_fraction: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Training:
    """One row of the paper's Table 3; all have 2,048 tokens a sample and 51,200 words."""

    model: str
    heads: int
    hidden: int
    layers: int
    tp: int
    pp: int
    gpus: int
    batch: int
    micro_batch: int
    chunks: int
    seq: int = 2048
    vocab: int = 51200

    @property
    def microbatches(self) -> int:
        """Microbatches of a step; without data parallelism all go through one pipeline."""
        return self.batch // self.micro_batch

    @property
    def layers_per_stage(self) -> int:
        return self.layers // self.pp

    @property
    def network(self) -> Model:
        """The GPT of these sizes."""
        return Model(
            num_layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            vocab=self.vocab,
            positions=self.seq,
        )


def read_trainings(table3: pd.DataFrame) -> dict[str, Training]:
    """The trainings of Table 3 by the model's name.

    Args:
        table3: a row a training, with the fields of :class:`Training` as columns.
    """
    rows = table3.to_dict("records")
    return {str(row["model"]): Training(**{str(key): row[key] for key in row}) for row in rows}


def layer_counts(
    training: Training, way: Way, *, fused: float = 0.0, gather_hidden: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The work of one rank on a layer and a microbatch, forward and backward.

    With n = s·b·h numbers in the stream and t ranks, the products take 24·n·h/t operations
    forward, attention's core 4·n·s/t more, and the backward pass twice as many. The core moves 13
    bytes a score forward and 19 backward (softmax, dropout and what they read), norms and dropouts
    22 and 34 bytes a number of the stream, GeLU's surroundings 16/t and 24/t. Two all-reduces a
    pass send 8·n·(1 − 1/t) bytes; with sequence parallelism the backward pass gathers its inputs
    once more.

    Args:
        fused: the share of the scores that stays inside a kernel.
        gather_hidden: that extra gather takes no time, as §4.2.2 intends.

    Returns:
        Twice an array of operations, bytes through memory, and bytes sent.
    """
    tokens = training.micro_batch * training.seq
    stream = tokens * training.hidden
    scores = (1 - fused) * training.heads * tokens * training.seq / training.tp
    sliced = training.tp if way.sequence_parallel else 1
    sent = 4 * _VALUE_BYTES * stream * (1 - 1 / training.tp)
    products = 24 * stream * training.hidden / training.tp
    # 1. Attention's core, from scores to the sum of values.
    core = np.array([4 * stream * training.seq / training.tp, 13 * scores, 0])
    # 2. Forward: products, then what moves through memory, then what is sent.
    moved = stream * (22 / sliced + 16 / training.tp)
    forward = core + np.array([products, moved, sent])
    # 3. Backward: two products for each; the extra gather is half of what is sent.
    moved = stream * (34 / sliced + 24 / training.tp)
    gathers_again = way.sequence_parallel and not gather_hidden
    backward = 2 * core + np.array([2 * products, moved, (1.5 if gathers_again else 1) * sent])
    backward[1] += 19 * scores - 2 * core[1]
    # 4. What is computed again.
    if way.recompute is Recompute.CORE:
        backward += way.layers_fraction * core
    elif way.recompute is Recompute.LAYER:
        backward += way.layers_fraction * forward
    return forward, backward


def iteration_counts(
    training: Training, way: Way, *, fused: float = 0.0, gather_hidden: bool = False
) -> NDArray[np.float64]:
    """The same of a whole step on the last stage: all microbatches, the head, the bubble, Adam."""
    passes = layer_counts(training, way, fused=fused, gather_hidden=gather_hidden)
    stage = (passes[0] + passes[1]) * training.layers_per_stage
    tokens = training.micro_batch * training.seq
    head = np.array([6 * tokens * training.hidden * training.vocab / training.tp, 0, 0])
    parameters = 12 * training.layers * training.hidden**2 / training.pp / training.tp
    adam = np.array([0, _ADAM_BYTES * parameters, 0])
    bubble = (training.pp - 1) / training.chunks * stage
    return training.microbatches * (stage + head) + bubble + adam


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """Seconds of layers and steps at three fitted costs.

    Args:
        costs: seconds of an operation, of a byte through memory, of a byte sent.
        fused: the share of attention's scores that stays inside a kernel.
        gather_hidden: sequence parallelism's extra gather takes no time.
        network_bytes_per_s: of a GPU's network card, for the gradients of replicas.
    """

    costs: tuple[float, float, float]
    fused: float = 0.0
    gather_hidden: bool = False
    network_bytes_per_s: float = 25e9

    @classmethod
    def fitted(
        cls,
        layers: Iterable[tuple[Training, Way, float, float]],
        iterations: Iterable[tuple[Training, Way, float]],
        *,
        gather_hidden: bool = False,
        network_bytes_per_s: float = 25e9,
    ) -> StepModel:
        """The costs, none negative, with the least squared relative errors of measured times.

        Args:
            layers: training, way, seconds forward and seconds backward of one layer.
            iterations: training, way, seconds of a step.
        """
        from scipy.optimize import nnls

        counts: list[NDArray[np.float64]] = []
        seconds: list[float] = []
        for training, way, forward_s, backward_s in layers:
            counts += layer_counts(training, way, gather_hidden=gather_hidden)
            seconds += [forward_s, backward_s]
        for training, way, step_s in iterations:
            counts.append(iteration_counts(training, way, gather_hidden=gather_hidden))
            seconds.append(step_s)
        relative = np.array(counts) / np.array(seconds)[:, None]
        costs, _ = nnls(relative, np.ones(len(seconds)))
        return cls(
            costs=(float(costs[0]), float(costs[1]), float(costs[2])),
            gather_hidden=gather_hidden,
            network_bytes_per_s=network_bytes_per_s,
        )

    def passes_s(self, training: Training, way: Way) -> tuple[float, float]:
        """Seconds of a layer forward and backward, one microbatch."""
        forward, backward = layer_counts(
            training, way, fused=self.fused, gather_hidden=self.gather_hidden
        )
        return float(forward @ self.costs), float(backward @ self.costs)

    def added(self, training: Training, way: Way) -> float:
        """Time that a layer takes beyond tensor parallelism without recomputation (fraction)."""
        return sum(self.passes_s(training, way)) / sum(self.passes_s(training, Way())) - 1

    def iteration_s(self, training: Training, way: Way) -> float:
        """Seconds of a step on the GPUs of Table 3."""
        counts = iteration_counts(training, way, fused=self.fused, gather_hidden=self.gather_hidden)
        return float(counts @ self.costs)

    def replicated_s(self, training: Training, way: Way, replicas: int) -> float:
        """Seconds of a step with data parallelism: fp32 gradients go round a ring after it."""
        parameters = training.network.num_params / training.gpus
        ring_bytes = 2 * (replicas - 1) / replicas * 4 * parameters
        return self.iteration_s(training, way) + ring_bytes / self.network_bytes_per_s


def model_flops(training: Training) -> float:
    """Operations of a step that a GPU must do, recomputation left out.

    72·b·l·s·h²·(1 + s/6h + V/12hl) over the number of GPUs (eq. 7).
    """
    attention = training.seq / 6 / training.hidden
    head = training.vocab / 12 / training.hidden / training.layers
    layers = 72 * training.batch * training.layers * training.seq * training.hidden**2
    return layers * (1 + attention + head) / training.gpus


def layer_bytes(training: Training, way: Way, *, fused: float = 0.0) -> float:
    """Bytes that a rank keeps of a layer, as torch keeps them.

    A mean over the layers where only some are recomputed.

    Args:
        fused: the share of the layers whose attention is one kernel, which keeps no scores.
    """
    parts = {way.recompute: way.layers_fraction, Recompute.NOTHING: 1 - way.layers_fraction}
    if way.recompute is Recompute.NOTHING:
        parts = {Recompute.NOTHING: 1.0}
    attentions: dict[Literal["eager", "sdpa"], float] = {"eager": 1 - fused, "sdpa": fused}
    total = 0.0
    for recompute, fraction in parts.items():
        for attention, share in attentions.items():
            mode = Mode(attention=attention, recompute=recompute.value, dropout_mask_bytes=1)
            terms = layer_terms(
                training.network,
                mode,
                seq=training.seq,
                tp=training.tp,
                micro_batch=training.micro_batch,
                sequence_parallel=way.sequence_parallel,
            )
            total += fraction * share * total_bytes(terms)
    return total


def stage_bytes(training: Training, way: Way) -> NDArray[np.float64]:
    """Bytes of states and activations of a GPU in each pipeline stage.

    A stage holds the activations of as many microbatches as its schedule has in flight (§4.2.3).
    """
    pipeline = Parallel(
        tp=training.tp,
        pp=training.pp,
        chunks=training.chunks,
        schedule="interleaved-1f1b" if training.chunks > 1 else "1f1b",
    )
    stages = np.arange(training.pp)
    in_flight = np.array(pipeline.in_flight(stages, training.microbatches), dtype=float)
    states = _STATE_BYTES * training.network.num_params / training.gpus
    return states + in_flight * training.layers_per_stage * layer_bytes(training, way)


def fewest_layers(training: Training, *, capacity_bytes: float = CAPACITY_BYTES) -> Way:
    """Sequence parallelism, and of a stage's layers as few recomputed whole as memory allows.

    §5 names this alternative for a model with few layers a GPU. Where even all layers are not
    enough, all are recomputed.
    """
    per_stage = training.layers_per_stage
    way = Way(recompute=Recompute.LAYER, sequence_parallel=True)
    for layers in range(per_stage):
        fewer = replace(way, layers_fraction=layers / per_stage)
        if stage_bytes(training, fewer)[0] <= capacity_bytes:
            return fewer
    return way


def same_bytes(training: Training, way: Way) -> Way:
    """As many layers recomputed whole as keep no more bytes than a way does."""
    whole = replace(way, recompute=Recompute.LAYER)
    everything = layer_bytes(training, replace(way, recompute=Recompute.NOTHING))
    saved = everything - layer_bytes(training, way)
    return replace(whole, layers_fraction=saved / (everything - layer_bytes(training, whole)))
