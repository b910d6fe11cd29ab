"""Megatron-LM: a step from a published profile, whose operators are scaled as their work grows.

    step = Σ profiled time × growth of its work × layers × passes + collectives by the α–β model

The profiles are Aceso's (EuroSys 2024): a GPT layer's operators and the model's two ends on one GPU
of a tensor-parallel group. Where an operator ends a tensor-parallel region, its time there holds an
all-reduce; two products of equal work, one with and one without, tell how much that is.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019, §3 and §5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from labkit.errors import BadValue
from labkit.memory.plans.plan import Plan
from labkit.memory.plans.throughput import Cluster, throughput
from labkit.models import Model

# An operator's kind, and the powers of hidden size, sequence and heads that its work grows with,
# for the same tokens a step.
KINDS: dict[str, tuple[tuple[int, int, int], str]] = {
    "matrix products": (
        (2, 0, 0),
        "enc-attention-qkv enc-attention-dense enc-MLP-GEMM-1 enc-MLP-GEMM-2",
    ),
    "attention's products": ((1, 1, 0), "enc-attention-score enc-attention-context"),
    "softmax": ((0, 1, 1), "enc-attention-softmax enc-attention-dropout"),
    "GeLU": ((1, 0, 0), "enc-MLP-gelu"),
    # Norms, and dropout with the residual, work on all of the hidden states on every GPU.
    "repeated": (
        (1, 0, 0),
        "enc-1st-layernorm enc-2nd-layernorm enc-post-attention-dropout enc-post-MLP-dropout",
    ),
    "ends": ((1, 0, 0), "encoder-embedding final-layernorm gpt-post-process"),
}


def read_operators(profiles: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """Seconds of every operator by tensor-parallel degree, all-reduces taken out.

    Args:
        profiles: Aceso's tables by degree, 1 among them: ``op_name``, then the microseconds of the
            forward and of the backward pass.

    Returns:
        Index: degree and operator; columns: kind, ``forward_s`` and ``backward_s``.

    Raises:
        BadValue: an operator is missing.
    """
    kinds = {name: kind for kind, (_, names) in KINDS.items() for name in names.split()}
    tables = {}
    for degree, profile in profiles.items():
        times = profile.set_index("op_name").iloc[:, :2] / 1e6
        times.columns = ["forward_s", "backward_s"]
        if missing := sorted(set(kinds) - set(times.index)):
            raise BadValue(f"profile of degree {degree} must have the operator {missing[0]}")
        if degree > 1:
            first = times.loc["enc-MLP-GEMM-1"]
            second = times.loc["enc-MLP-GEMM-2"]
            extra = second - first  # of equal work: what the all-reduce takes, either way round
            times.loc[["enc-MLP-GEMM-2", "enc-attention-dense"], "forward_s"] -= extra["forward_s"]
            times.loc[["enc-MLP-GEMM-1", "enc-attention-qkv"], "backward_s"] += extra["backward_s"]
        tables[degree] = times.loc[[*kinds]].assign(kind=[*kinds.values()])
    return pd.concat(tables, names=["degree", "operator"])


def evenly(operators: pd.DataFrame) -> pd.DataFrame:
    """The profile as it were if every operator of one GPU divided evenly among a group."""
    alone = operators.loc[1]
    columns = ["forward_s", "backward_s"]
    times = {
        degree: alone.assign(**{name: alone[name] / degree for name in columns})
        for degree in operators.index.unique("degree")
    }
    return pd.concat(times, names=["degree", "operator"])


def growth(profiled: Plan, plan: Plan, *, by_scores: bool = False) -> dict[str, float]:
    """How many times as much work each kind of operator has in ``plan`` as where it was profiled.

    Args:
        profiled: the job of the profile; it and ``plan`` have a Model and a Batch.
        by_scores: attention's products grow with the number of scores, as products that memory
            bounds do, rather than with their operations.

    Raises:
        BadValue: one of the two has no Model or no Batch.
    """
    model = plan.model
    batch = plan.batch
    before = profiled.model
    then = profiled.batch
    if not (isinstance(model, Model) and isinstance(before, Model) and batch and then):
        raise BadValue("plan and profiled must each have a Model and a Batch")
    sizes = (model.hidden / before.hidden, batch.seq / then.seq, model.heads / before.heads)
    tokens = batch.tokens / then.tokens
    powers = {kind: power for kind, (power, _) in KINDS.items()}
    if by_scores:
        powers["attention's products"] = powers["softmax"]
    grown = {}
    for kind, power in powers.items():
        grown[kind] = tokens
        for size, exponent in zip(sizes, power, strict=True):
            grown[kind] *= size**exponent
    grown["ends"] *= model.vocab / before.vocab
    return grown


def step_parts(
    operators: pd.DataFrame,
    profiled: Plan,
    plan: Plan,
    cluster: Cluster,
    *,
    slowdown: float = 1.0,
    launch_s: float = 0.0,
    by_scores: bool = False,
    cut_stream: bool = False,
) -> pd.Series:
    """Seconds of a step of ``plan`` by kind of operator, with its collectives.

    Args:
        operators: :func:`read_operators`'s.
        profiled: the job that was profiled.
        cluster: what its collectives run on.
        slowdown: multiplies every operator.
        launch_s: added for each layer, whatever the degree.
        by_scores: as :func:`growth` takes it.
        cut_stream: what every GPU repeats is divided among the group, as sequence parallelism does.

    Raises:
        BadValue: the plan's tensor-parallel degree was not profiled, or as
            :func:`~labkit.memory.plans.throughput.throughput` says.
    """
    degree = plan.parallel.tp
    if degree not in operators.index.unique("degree"):
        known = ", ".join(map(str, operators.index.unique("degree")))
        raise BadValue(f"tp must be among the degrees profiled ({known}), got {degree}")
    sent = throughput(plan, cluster)
    times = operators.loc[degree]
    grown = times["kind"].map(growth(profiled, plan, by_scores=by_scores)) * slowdown
    assert isinstance(plan.model, Model)
    assert plan.batch is not None
    layers = plan.model.num_layers
    again = plan.batch.num_recomputed(layers)
    inner = times["kind"] != "ends"
    forward_s = times["forward_s"] * (1 + inner * (layers + again - 1))
    seconds = (forward_s + times["backward_s"] * (1 + inner * (layers - 1))) * grown
    parts = seconds.groupby(times["kind"]).sum().reindex([*KINDS])
    if cut_stream:
        parts["repeated"] /= degree
    rest = {"all-reduces": sent.tensor_s, "gradients": sent.data_s, "launches": launch_s * layers}
    return pd.concat([parts, pd.Series(rest)])


def rate_flops(
    operators: pd.DataFrame, profiled: Plan, plan: Plan, cluster: Cluster, **changes: Any
) -> float:
    """Operations a second and GPU, by :func:`step_parts`, which takes the same arguments."""
    parts = step_parts(operators, profiled, plan, cluster, **changes)
    return throughput(plan, cluster).flops / float(parts.sum())


def scaling_errors(
    operators: pd.DataFrame, profiled: Plan, others: Mapping[int, pd.DataFrame], plan: Plan
) -> pd.DataFrame:
    """How far a layer's time, scaled from one profile, is off another profile of ``plan``.

    Args:
        operators, profiled: the profile that is scaled, and its job.
        others: the other profile's tables, as :func:`read_operators` takes them.
        plan: the other profile's job.

    Returns:
        Columns: degree, published_s of a layer, off_fraction (scaled over published, less 1).
    """
    rows = []
    grown = growth(profiled, plan)
    for degree, times in read_operators(others).groupby("degree") if others else ():
        columns = ["forward_s", "backward_s"]
        scaled = operators.loc[degree]
        factor = scaled["kind"].map(grown) * (scaled["kind"] != "ends")
        published_s = times.loc[times["kind"] != "ends", columns].to_numpy().sum()
        off = scaled[columns].mul(factor, axis=0).to_numpy().sum() / published_s - 1
        rows.append({"degree": degree, "published_s": published_s, "off_fraction": off})
    return pd.DataFrame(rows, columns=["degree", "published_s", "off_fraction"])
