"""ZeRO++ (Wang et al., 2023): quantised messages, and a training step on slow networks, modelled.

``quantised`` packs tensors and adds up quantised gradients, ``digits`` trains a small network on
rounded traffic, ``steps`` models a step of 384 V100s, ``figures`` draws. The paper's idea, three
collectives that send a quarter, stands in its notebook, as code that runs on real ranks.
"""

from labkit.papers.zeropp.digits import rounding_error, train_digits
from labkit.papers.zeropp.figures import (
    figure_idea,
    figure_largest,
    figure_lines,
    figure_parity,
)
from labkit.papers.zeropp.quantised import pack, ring_sum, rounded, two_hop_sum, unpack
from labkit.papers.zeropp.steps import (
    GPT_18B,
    GPT_138B,
    Method,
    StepModel,
    straight_line,
)

__all__ = [
    "GPT_18B",
    "GPT_138B",
    "Method",
    "StepModel",
    "figure_idea",
    "figure_largest",
    "figure_lines",
    "figure_parity",
    "pack",
    "ring_sum",
    "rounded",
    "rounding_error",
    "straight_line",
    "train_digits",
    "two_hop_sum",
    "unpack",
]
