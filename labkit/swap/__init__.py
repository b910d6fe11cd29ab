"""Memory against time: what a chain of blocks keeps for its backward pass, and what it recomputes.

    chain = swap.Chain.even(32)          # or swap.capture(make_blocks, shape)[0]
    plan = swap.segments(chain, 6)       # or recursive, searched, all_kept
    swap.replay(chain, plan.operations)  # what it holds at most, what it recomputes
    swap.optimum(chain).frontier()       # the exact least cost at every memory

:func:`execute` carries a plan out in torch. Importing this loads no torch.
"""

import lazy_loader

_HOMES = {  # where each public name comes from; modules are loaded with the first of their names
    "chain": ("Chain", "Plan", "Replay", "replay"),
    "methods": ("METHODS", "all_kept", "optimum", "plan", "recursive", "searched", "segments"),
    "running": ("capture", "execute", "resnet", "tracked_bytes"),
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submodules=("figures",), submod_attrs=_HOMES
)
