"""A training step of a GPT on V100s, modelled.

    step = Σ profiled time × growth of its work × layers × passes
         + all-reduces inside layers + gradients between replicas

Times of operators come from :mod:`labkit.papers.megatron.profile`, all-reduces from the memory
engine's α–β model at the line rate of the links. A :class:`Method` says how a group of GPUs shares
the layers: the paper's cut, or what stands in its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import pandas as pd

from labkit.errors import BadValue
from labkit.hardware import link
from labkit.memory import Batch, Cluster, Model, Parallel, Plan
from labkit.memory.jobs.traffic import Collective, placed
from labkit.memory.plans.throughput import throughput
from labkit.memory.tape.step import Phase
from labkit.papers.megatron.profile import PROFILED, TIMES, Kind, growth

VOCAB = 51200
"""Entries of the vocabulary, padded to a multiple of 128 × 8 (§5.1)."""
TOKENS = 1024
SAMPLES = 8
"""Tokens of a sample, samples of a replica (§5.1)."""

INNER = (Kind.ATTENTION, Kind.SOFTMAX, Kind.GELU)
"""What stands between the two products of a pair."""
ELEMENTWISE = (Kind.SOFTMAX, Kind.GELU, Kind.REPEATED)
"""Operators that read and write more than they compute, which a compiler can fuse."""


class Method(StrEnum):
    """How the GPUs of a group share the layers of a model."""

    COLUMNS_THEN_ROWS = "columns, then rows"
    ROWS_FIRST = "rows first"
    TOKENS_BETWEEN = "tokens between"
    PIPELINE = "pipeline"


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Widths of the all-reduces of one layer, in order, as multiples of the hidden size."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


MESSAGES: dict[Method, Messages] = {
    # Attention's output and the MLP's; backward, their inputs' gradients.
    Method.COLUMNS_THEN_ROWS: Messages(forward=(1, 1), backward=(1, 1)),
    # Queries, keys and values; attention's output; the MLP's inner values; its output.
    Method.ROWS_FIRST: Messages(forward=(3, 1, 4, 1), backward=(4, 1, 1, 1)),
}
"""What a layer's ranks add up. Tokens between the pairs: the memory engine knows the messages."""


def dgx2h() -> Cluster:
    """The paper's servers: 16 V100s at 300 GB/s both ways, 100 GB/s between servers (§5).

    The sustained rate is the paper's single GPU; the step's model does not use it.
    """
    return Cluster(
        flops_per_s=39e12,
        ranks_per_node=16,
        ring=link("dgx2-node"),
        node=link("dgx2-node"),
        inside=link("nvlink-v100"),
    )


def plan_of(
    row: Any,
    *,
    degree: int | None = None,
    replicas: int = 1,
    heads: int | None = None,
    recompute: str = "full",
    sequence_parallel: bool = False,
) -> Plan:
    """A model of Table 1 on as many GPUs as one of its replicas takes, times ``replicas``.

    Args:
        row: one row of ``scaling.csv``, as ``itertuples`` gives it: ``hidden``, ``heads``,
            ``layers``, ``degree``.
        degree: GPUs of a replica, where not the table's.
        heads: attention heads, where not the table's.
        recompute: what is recomputed in the backward pass; the paper recomputes whole layers.
        sequence_parallel: norms, dropout and residuals are divided by tokens.

    Source: §4.2, §5.1, Table 1.
    """
    model = Model(
        num_layers=row.layers,
        hidden=row.hidden,
        heads=heads or row.heads,
        vocab=VOCAB,
        positions=TOKENS,
    )
    return Plan(
        model=model,
        parallel=Parallel(tp=degree or row.degree, dp=replicas, sp=sequence_parallel),
        batch=Batch(seq=TOKENS, micro_batch=SAMPLES, recompute=recompute),
    )


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """How long a step of a plan takes.

    Attributes:
        operators: seconds by degree and operator, from
            :func:`~labkit.papers.megatron.profile.read_operators`.
        servers: the links between GPUs.
        method: how a group of GPUs shares the layers.
        slowdown: multiplies the time of every operator.
        fused: multiplies that of operators which read and write more than they compute.
        launch_s: is added for each layer, whatever the degree.
        by_scores: attention's products grow with the number of scores.
        profiled: the plan that the operators were timed on.

    A pipeline works on one sample at a time and divides its layers evenly; an operator takes as
    long for a sample as its share of the time for all of them. What it sends takes no time. Both
    favour it. With rows first, every GPU computes what stands between two products for all heads
    and columns.
    """

    operators: pd.DataFrame
    servers: Cluster = field(default_factory=dgx2h)
    method: Method = Method.COLUMNS_THEN_ROWS
    slowdown: float = 1.0
    fused: float = 1.0
    launch_s: float = 0.0
    by_scores: bool = False
    profiled: Plan = PROFILED

    def parts(self, plan: Plan) -> pd.Series:
        """Seconds of a step by kind of operator, then of what is not an operator.

        Raises:
            BadValue: the plan's tensor-parallel degree was not profiled, or as
                :func:`~labkit.memory.plans.throughput.throughput` does.
            UsageError: the plan has no model or no batch.
        """
        if self.method is Method.TOKENS_BETWEEN:
            plan = replace(plan, parallel=replace(plan.parallel, sp=True))
        degree = plan.parallel.tp
        _, batch = plan.sized()
        seconds = self._operators_s(plan)
        sent = throughput(plan, self.servers)
        bubble_s = 0.0
        tensor_s = sent.tensor_s + self._extra_messages_s(plan)
        if self.method is Method.PIPELINE:
            bubble_s = float(seconds.sum()) * (degree - 1) / batch.micro_batch
            tensor_s = 0.0
        rest = {
            "all-reduces": tensor_s,
            "gradients": sent.data_s,
            "launches": self.launch_s * plan.sized()[0].num_layers,
            "bubble": bubble_s,
        }
        return pd.concat([seconds, pd.Series(rest)])

    def step_s(self, plan: Plan) -> float:
        """Seconds of a step."""
        return float(self.parts(plan).sum())

    def flops(self, plan: Plan) -> float:
        """Operations of a step on one GPU; those of recomputation count, as the paper counts."""
        return throughput(plan, self.servers).flops

    def rate_flops(self, plan: Plan) -> float:
        """Operations a second of one GPU."""
        return self.flops(plan) / self.step_s(plan)

    def _operators_s(self, plan: Plan) -> pd.Series:
        """Seconds of a step by kind of operator, on one GPU of the group.

        1. Time each operator of a layer, forward and backward, as it was profiled.
        2. Scale it by how its work grows, and repeat it for the layers, again for those that are
           recomputed.
        3. Sum by kind.
        """
        model, batch = plan.sized()
        times = self._times(plan)
        factor = times["kind"].map(growth(plan, self.profiled, by_scores=self.by_scores))
        factor = factor.astype(float) * self.slowdown
        factor = factor.where(~times["kind"].isin(ELEMENTWISE), factor * self.fused)
        in_layer = times["kind"] != Kind.ENDS
        forward_passes = model.num_layers + batch.num_recomputed(model.num_layers)
        forward_s = times["forward_s"].where(~in_layer, times["forward_s"] * forward_passes)
        backward_s = times["backward_s"].where(~in_layer, times["backward_s"] * model.num_layers)
        seconds = (forward_s + backward_s) * factor
        return seconds.groupby(times["kind"]).sum().reindex([*Kind])

    def _times(self, plan: Plan) -> pd.DataFrame:
        """The profile of one GPU of the group, as the method divides the operators."""
        degree = plan.parallel.tp
        known = self.operators.index.unique("degree")
        if degree not in known:
            listed = ", ".join(map(str, known))
            raise BadValue(f"tp must be among the degrees profiled ({listed}), got {degree}")
        times = self.operators.loc[degree].copy()
        alone = self.operators.loc[1]
        is_whole = times["kind"].isin(INNER) & (self.method is Method.ROWS_FIRST)
        times.loc[is_whole, TIMES] = alone.loc[is_whole, TIMES]
        if self.method is Method.PIPELINE:
            times[TIMES] = alone[TIMES] / degree
        elif plan.parallel.sp:
            times.loc[times["kind"] == Kind.REPEATED, TIMES] /= degree
        return times

    def _extra_messages_s(self, plan: Plan) -> float:
        """Seconds that the method's all-reduces take beyond those of the paper's cut."""
        if plan.parallel.tp == 1 or self.method not in MESSAGES:
            return 0.0
        ours_s = self._messages_s(plan, MESSAGES[self.method])
        papers_s = self._messages_s(plan, MESSAGES[Method.COLUMNS_THEN_ROWS])
        return ours_s - papers_s

    def _messages_s(self, plan: Plan, messages: Messages) -> float:
        """Seconds of the all-reduces inside all layers, those of recomputation among them."""
        model, batch = plan.sized()
        place = placed(plan.parallel.tp, 1, self.servers.ranks_per_node)
        num_bytes = batch.tokens * model.hidden * plan.recipe.compute_bytes
        again = batch.num_recomputed(model.num_layers)
        widths = [*messages.forward * (model.num_layers + again)]
        widths += messages.backward * model.num_layers
        sums = Collective(
            phase=Phase.FORWARD,
            kind="all-reduce",
            what="sums",
            message_bytes=num_bytes * sum(widths),
            num_calls=len(widths),
            axis="tp",
            **place,
        )
        return self.servers.time_s(sums)
