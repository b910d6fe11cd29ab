"""Selective recomputation and sequence parallelism (Korthikanti et al., MLSys 2023).

``block`` cuts a transformer layer over real ranks and counts what each keeps, ``steps`` has the
paper's four trainings with their bytes and a model of their time, ``figures`` draws. The paper's
two ideas stand in its notebook, as code that runs on real ranks.
"""

from labkit.papers.reduce_act_recomp.block import (
    Block,
    budgeted,
    kept_bytes,
    measure,
    operations,
    tensors,
    trained,
)
from labkit.papers.reduce_act_recomp.figures import (
    figure_first_stage,
    figure_idea,
    figure_shares,
    figure_stages,
    figure_trade,
)
from labkit.papers.reduce_act_recomp.steps import (
    CAPACITY_BYTES,
    Recompute,
    StepModel,
    Training,
    Way,
    fewest_layers,
    layer_bytes,
    model_flops,
    read_trainings,
    same_bytes,
    stage_bytes,
)

__all__ = [
    "CAPACITY_BYTES",
    "Block",
    "Recompute",
    "StepModel",
    "Training",
    "Way",
    "budgeted",
    "fewest_layers",
    "figure_first_stage",
    "figure_idea",
    "figure_shares",
    "figure_stages",
    "figure_trade",
    "kept_bytes",
    "layer_bytes",
    "measure",
    "model_flops",
    "operations",
    "read_trainings",
    "same_bytes",
    "stage_bytes",
    "tensors",
    "trained",
]
