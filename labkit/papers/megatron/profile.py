"""Times of a GPT layer's operators on V100s, and how they grow with the model.

The profiles are Aceso's (EuroSys 2024): a layer's operators and the model's two ends on one GPU of
a tensor-parallel group, by the size of that group (its degree). A product that ends a
tensor-parallel region was timed together with the all-reduce that follows it. Two products of equal
work, one with an all-reduce and one without, tell how long the all-reduce took.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import pandas as pd

from labkit.errors import BadValue
from labkit.memory import Batch, Model, Plan

TIMES = ["forward_s", "backward_s"]

PROFILED = Plan(
    model=Model(num_layers=24, hidden=2048, heads=32, vocab=51200, positions=2048),
    batch=Batch(seq=2048, micro_batch=4),
)
"""The GPT of 1.3B parameters that Aceso profiled, and its batch."""


class Kind(StrEnum):
    """Operators whose work grows alike."""

    PRODUCTS = "products with a weight"
    ATTENTION = "attention's products"
    SOFTMAX = "softmax"
    GELU = "GeLU"
    REPEATED = "repeated on every GPU"
    ENDS = "embedding and loss"


KINDS: dict[str, Kind] = {
    "enc-attention-qkv": Kind.PRODUCTS,
    "enc-attention-dense": Kind.PRODUCTS,
    "enc-MLP-GEMM-1": Kind.PRODUCTS,
    "enc-MLP-GEMM-2": Kind.PRODUCTS,
    "enc-attention-score": Kind.ATTENTION,
    "enc-attention-context": Kind.ATTENTION,
    "enc-attention-softmax": Kind.SOFTMAX,
    "enc-attention-dropout": Kind.SOFTMAX,
    "enc-MLP-gelu": Kind.GELU,
    # Norms, and dropout with the residual, work on all of the hidden states on every GPU.
    "enc-1st-layernorm": Kind.REPEATED,
    "enc-2nd-layernorm": Kind.REPEATED,
    "enc-post-attention-dropout": Kind.REPEATED,
    "enc-post-MLP-dropout": Kind.REPEATED,
    "encoder-embedding": Kind.ENDS,
    "final-layernorm": Kind.ENDS,
    "gpt-post-process": Kind.ENDS,
}
"""Aceso's operators. Dropout of the attention scores counts as softmax, whose shape it has."""

POWERS: dict[Kind, tuple[int, int, int]] = {
    Kind.PRODUCTS: (2, 0, 0),
    Kind.ATTENTION: (1, 1, 0),
    Kind.SOFTMAX: (0, 1, 1),
    Kind.GELU: (1, 0, 0),
    Kind.REPEATED: (1, 0, 0),
    Kind.ENDS: (1, 0, 0),
}
"""Powers of hidden size, tokens a sample and heads that the work of a token grows with."""


def profile_name(size: str, degree: int) -> str:
    """The file that holds Aceso's profile of a GPT of that ``size`` at that degree.

    >>> profile_name("1_3B", 2)
    'profiled-time-eurosys/gpt_1_3B_mbs4_tp2_algo0.csv'
    """
    return f"profiled-time-eurosys/gpt_{size}_mbs4_tp{degree}_algo0.csv"


def read_operators(profiles: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """Seconds of every operator by tensor-parallel degree, without the all-reduces.

    Args:
        profiles: Aceso's tables by degree: ``op_name``, then the microseconds of the forward and
            of the backward pass.

    Returns:
        A row for each degree and operator, with its kind, ``forward_s`` and ``backward_s``.

    Raises:
        BadValue: an operator is missing.
    """
    tables = {}
    for degree, profile in profiles.items():
        times = profile.set_index("op_name").iloc[:, :2] / 1e6
        times.columns = pd.Index(TIMES)
        if missing := sorted(set(KINDS) - set(times.index)):
            raise BadValue(f"profile of degree {degree} must have the operator {missing[0]}")
        if degree > 1:
            times = _without_all_reduces(times)
        tables[degree] = times.loc[[*KINDS]].assign(kind=[*KINDS.values()])
    return pd.concat(tables, names=["degree", "operator"])


def _without_all_reduces(times: pd.DataFrame) -> pd.DataFrame:
    """The table without what the MLP's two products, of equal work, differ by.

    The second holds an all-reduce in the forward pass, the first in the backward pass; attention's
    two products hold the same.
    """
    times = times.copy()
    extra = times.loc["enc-MLP-GEMM-2"] - times.loc["enc-MLP-GEMM-1"]
    times.loc[["enc-MLP-GEMM-2", "enc-attention-dense"], "forward_s"] -= extra["forward_s"]
    times.loc[["enc-MLP-GEMM-1", "enc-attention-qkv"], "backward_s"] += extra["backward_s"]
    return times


def divided_evenly(operators: pd.DataFrame) -> pd.DataFrame:
    """The table as it were if every operator of one GPU divided evenly among a group."""
    alone = operators.loc[1]
    tables = {}
    for degree in operators.index.unique("degree"):
        tables[degree] = alone.assign(**{name: alone[name] / degree for name in TIMES})
    return pd.concat(tables, names=["degree", "operator"])


def growth(plan: Plan, profiled: Plan = PROFILED, *, by_scores: bool = False) -> dict[Kind, float]:
    """How much more work each kind of operator has in ``plan`` than where it was profiled.

    Args:
        by_scores: attention's products grow with the number of scores, as products that memory
            bounds do, rather than with their operations.

    Raises:
        UsageError: one of the plans has no model or no batch.
    """
    model, batch = plan.sized()
    before, then = profiled.sized()
    ratios = (model.hidden / before.hidden, batch.seq / then.seq, model.heads / before.heads)
    grown = {}
    for kind, powers in POWERS.items():
        if by_scores and kind is Kind.ATTENTION:
            powers = POWERS[Kind.SOFTMAX]
        grown[kind] = batch.tokens / then.tokens
        for ratio, power in zip(ratios, powers, strict=True):
            grown[kind] *= ratio**power
    grown[Kind.ENDS] *= model.vocab / before.vocab
    return grown


def scaling_errors(
    operators: pd.DataFrame,
    others: Mapping[int, pd.DataFrame],
    plan: Plan,
    profiled: Plan = PROFILED,
) -> pd.DataFrame:
    """How far a layer's time, scaled from one profile, is off another profile of ``plan``.

    Args:
        others: that other profile's tables by degree, as :func:`read_operators` takes them.

    Returns:
        A row a degree: ``published_s``, and ``error_fraction``, the scaled time over it less one.
    """
    columns = ["degree", "published_s", "error_fraction"]
    if not others:
        return pd.DataFrame(columns=columns, dtype=float)
    grown = growth(plan, profiled)
    rows = []
    for degree, times in read_operators(others).groupby("degree"):
        ours = operators.loc[degree]
        factor = ours["kind"].map(grown).astype(float)
        in_layer = ours["kind"] != Kind.ENDS
        scaled_s = ours.loc[in_layer, TIMES].mul(factor[in_layer], axis=0).to_numpy().sum()
        published_s = times.loc[times["kind"] != Kind.ENDS, TIMES].to_numpy().sum()
        rows.append([degree, published_s, scaled_s / published_s - 1])
    return pd.DataFrame(rows, columns=columns)
