"""Memory against time: what a chain of blocks keeps for its backward pass, and what it recomputes.

    chain = swap.Chain.even(32)          # or swap.capture(make_blocks, shape)[0]
    plan = swap.segments(chain, 6)       # or recursive, searched, all_kept
    swap.replay(chain, plan.operations)  # what it holds at most, what it recomputes
    swap.optimum(chain).frontier()       # the exact least cost at every memory

:func:`execute` carries a plan out in torch. Importing this loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labkit.swap.chain import Chain, Plan, Replay, replay
from labkit.swap.methods import METHODS, all_kept, optimum, plan, recursive, searched, segments

if TYPE_CHECKING:
    import labkit.swap.figures as figures
    from labkit.swap.running import Residual, capture, execute, resnet, tracked_bytes

_LAZY = ("Residual", "capture", "execute", "resnet", "tracked_bytes")

__all__ = [
    "METHODS",
    "Chain",
    "Plan",
    "Replay",
    "Residual",
    "all_kept",
    "capture",
    "execute",
    "figures",
    "optimum",
    "plan",
    "recursive",
    "replay",
    "resnet",
    "searched",
    "segments",
    "tracked_bytes",
]


def __getattr__(name: str) -> Any:
    if name == "figures":
        return import_module("labkit.swap.figures")
    if name in _LAZY:
        return getattr(import_module("labkit.swap.running"), name)
    raise AttributeError(f"module 'labkit.swap' has no attribute {name!r}")
