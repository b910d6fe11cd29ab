"""The runs that ZeRO's figures show, as plans, and what fills the memory of a GPU in them.

Source: Tables 3 and 5 to 10, Figs. 2 to 4 and 6 to 8, with ``data/papers/zero/runs.csv``.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Any

import pandas as pd

from labkit.hardware import link
from labkit.memory import Batch, Cluster, Model, Parallel, Plan
from labkit.quantities import GB

VOCAB = 50257
TOKENS = 1024
"""Entries of the vocabulary, and tokens of a sample (§3.2, §6.1)."""
PARTITIONED = ("C2", "C4", "C5")
"""Configurations of Table 3 that divide the layers' inputs among the ranks of MP (Pa)."""


class Method(StrEnum):
    """How the states of a model, and its layers, are shared among GPUs."""

    ZERO = "Pos+g, MP in a node"
    POS = "Pos, MP in a node"
    STAGE3 = "Pos+g+p, MP in a node"
    ACROSS = "Pos+g, MP across nodes"
    MEGATRON = "Megatron-LM alone"

    @property
    def stage(self) -> int:
        """The stage of ZeRO, 0 for none."""
        return {Method.POS: 1, Method.STAGE3: 3, Method.MEGATRON: 0}.get(self, 2)

    @property
    def in_node(self) -> bool:
        """Whether the layers are laid out as ZeRO's runs have them, not as the baseline's."""
        return self in (Method.ZERO, Method.POS, Method.STAGE3)


def plan_of(run: Any) -> Plan:
    """A row of ``runs.csv`` as a plan.

    Args:
        run: as ``itertuples`` gives it: ``layers``, ``hidden``, ``heads``, ``gpus``, ``mp``,
            ``stage``, ``batch`` (samples of a replica) and ``config``.
    """
    model = Model(
        num_layers=run.layers,
        hidden=run.hidden,
        heads=run.heads,
        vocab=VOCAB,
        positions=TOKENS,
    )
    batch = Batch(
        seq=TOKENS,
        micro_batch=run.batch,
        formula="zero-paper",
        recompute="full",
        partition_checkpoints=run.config in PARTITIONED,
    )
    parallel = Parallel(dp=run.gpus // run.mp, tp=run.mp, zero=run.stage)
    return Plan(model=model, parallel=parallel, batch=batch)


def restaged(plan: Plan, stage: int) -> Plan:
    """The same plan at another stage of ZeRO."""
    return replace(plan, parallel=replace(plan.parallel, zero=stage))


def servers() -> Cluster:
    """The paper's DGX-2 servers at the rates that stand in data sheets.

    A ring between nodes gets one of the eight network cards, and all rings of a node share them.
    Operations are taken at 50 TFLOP/s, to be fitted.

    Source: §10.1, §10.2.
    """
    return Cluster(
        flops_per_s=50e12,
        ranks_per_node=16,
        ring=link("ib-edr"),
        node=link("dgx2-node"),
        inside=link("nvlink-v100"),
    )


def states_gb(runs: pd.DataFrame, stage: int | None = None) -> pd.Series:
    """Model states on a GPU, by run.

    Args:
        runs: with their plans in the column ``plan``.
        stage: of ZeRO, where not the run's own.
    """
    plans = [plan if stage is None else restaged(plan, stage) for plan in runs["plan"]]
    return pd.Series([plan.states_bytes / GB for plan in plans], runs.index)


def inputs_gb(runs: pd.DataFrame, layers_apart: int = 1) -> pd.Series:
    """Layer inputs that a GPU keeps for recomputing, by run: b·s·h values of 16 bits a layer.

    With Pa the ranks of MP divide them; with Pa+cpu (C5) the host keeps them.

    Args:
        runs: rows of ``runs.csv``.
        layers_apart: one input is kept for so many layers.

    Source: §6.1.
    """
    share = pd.Series(1.0, runs.index)
    divided = runs["config"].isin(PARTITIONED)
    share[divided] = 1 / runs.loc[divided, "mp"]
    share[runs["config"] == "C5"] = 0
    values = runs["batch"] * TOKENS * runs["hidden"] * runs["layers"] / layers_apart
    return 2 * values * share / GB


def largest_under(
    runs: pd.DataFrame, *, room_gb: float, stage: int | None = None, layers_apart: int = 2
) -> pd.Series:
    """Billions of parameters that fit into ``room_gb``, where memory grows with the model.

    Args:
        runs: of Fig. 6, one a configuration, whose shape and batch the model keeps.
        room_gb: of a GPU for states and layers' inputs.
        stage, layers_apart: as :func:`states_gb` and :func:`inputs_gb` take them.
    """
    needed_gb = states_gb(runs, stage) + inputs_gb(runs, layers_apart)
    return runs["size_billion"] * room_gb / needed_gb
