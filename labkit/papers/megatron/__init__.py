"""Megatron-LM (arXiv 1909.08053): its models and servers, and a training step of them, modelled.

``profile`` reads times of operators that others published and scales them to other models,
``steps`` adds what the GPUs send each other, ``figures`` draws. The paper's idea, the cut of a
layer, stands in its notebook, as code that runs on real ranks.
"""

from labkit.papers.megatron.figures import (
    figure_idea,
    figure_lost,
    figure_messages,
    figure_scaling,
    figure_steps,
)
from labkit.papers.megatron.profile import (
    PROFILED,
    Kind,
    divided_evenly,
    profile_name,
    read_operators,
    scaling_errors,
)
from labkit.papers.megatron.steps import (
    MESSAGES,
    Messages,
    Method,
    StepModel,
    dgx2h,
    plan_of,
)

__all__ = [
    "MESSAGES",
    "PROFILED",
    "Kind",
    "Messages",
    "Method",
    "StepModel",
    "dgx2h",
    "divided_evenly",
    "figure_idea",
    "figure_lost",
    "figure_messages",
    "figure_scaling",
    "figure_steps",
    "plan_of",
    "profile_name",
    "read_operators",
    "scaling_errors",
]
