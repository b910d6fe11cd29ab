"""Four more estimators, rebuilt term by term, and what six of them get wrong.

``labkit memory compare`` shows ZeRO's paper, DeepSpeed, Megatron-LM and torch. llm-analysis,
Calculon, the cookbook and Accelerate are here: each is held against the tool's own numbers, and the
faults (:mod:`.framework_faults`, :mod:`.peer_faults`) set all of them beside the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from labkit import memory
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.plans.conventions import total_bytes
from labkit.memory.tape.saved import Term
from tests.oracles.estimators import calculon, peers

OTHERS: dict[str, Callable[..., Iterable[Term]]] = {
    "llm-analysis": peers.llm_analysis,
    "calculon": calculon.lines,
    "cookbook": peers.cookbook,
    "accelerate": peers.accelerate,
}


def count(convention: str, model: Any, *asked: Any, **settings: Any) -> tuple[Term, ...]:
    """:func:`labkit.memory.convention_terms`, of all eight estimators."""
    if convention not in OTHERS:
        return memory.convention_terms(convention, model, *asked, **settings)  # type: ignore[arg-type]
    parallel, recipe, batch = (*asked, None, None, None)[:3]
    parallel = parallel or Parallel()
    recipe = recipe or Recipe.mixed_adam()
    return tuple(OTHERS[convention](model, parallel, recipe, batch, **settings))


def told_bytes(convention: str, terms: Iterable[Term]) -> int:
    """The one number on the device that the tool gives: the sum, but for Accelerate."""
    return peers.accelerate_total(terms) if convention == "accelerate" else total_bytes(terms)
