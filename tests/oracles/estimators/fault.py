"""What a fault of an estimator is, and the models, sizes and counts its cases are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.models import Model
from tests.oracles.estimators import count, told_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Bytes that a tool gives in a case, and bytes that would be right."""

    told_bytes: float
    right_bytes: float

    @property
    def share(self) -> float:
        """What it gives over what is right."""
        return self.told_bytes / self.right_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something an estimator gets wrong: what, in which case it shows, and why that is right.

    >>> Fault(
    ...     convention="none", name="half", sentence="", case="", right="", pair=lambda: (1, 2)
    ... ).show().share
    0.5
    """

    convention: str
    name: str
    sentence: str
    case: str
    right: str
    pair: Callable[[], tuple[float, float]]

    def show(self) -> Shown:
        """The case, run."""
        told, right = self.pair()
        return Shown(told_bytes=float(told), right_bytes=float(right))


def collector(found: list[Fault]) -> Callable[..., Any]:
    """A decorator that notes a function of the bytes told and the bytes that are right."""

    def fault(convention: str, name: str, sentence: str, *, case: str, right: str) -> Any:
        def noted(pair: Callable[[], tuple[float, float]]) -> Callable[[], tuple[float, float]]:
            found.append(
                Fault(
                    convention=convention,
                    name=name,
                    sentence=sentence,
                    case=case,
                    right=right,
                    pair=pair,
                )
            )
            return pair

        return noted

    return fault


LLAMA = Model.preset("llama-2-7b")
GPT2 = Model.preset("gpt2-1.5b")
GPT3 = Model.preset("gpt3-175b")
MIXTRAL = Model.preset("mixtral-8x7b")
TOKENS = Batch(seq=4096)
SELECTIVE = replace(TOKENS, recompute="selective")
ONE = Parallel()
SP = Parallel(sp=True)


def bytes_of(row: str, convention: str, *asked: Any, **settings: Any) -> float:
    """Bytes of one row of a convention (or of one of its lines)."""
    lines = count(convention, *asked, **settings)
    return float(sum(line.num_bytes for line in lines if row in (line.row, line.component)))


def wider(row: str, convention: str, *asked: Any, **settings: Any) -> float:
    """What h more of MLP width costs in a row, for Llama-2-7B."""
    wide = LLAMA.resized(ffn=LLAMA.ffn + LLAMA.hidden)
    sizes = [bytes_of(row, convention, one, *asked, **settings) for one in (LLAMA, wide)]
    return sizes[1] - sizes[0]


def wider_kept() -> float:
    return wider("activations", "torch", ONE, Recipe.bf16_mixed(), TOKENS)


def squares(model: Model = LLAMA) -> int:
    """Elements of an h × h matrix in every layer."""
    return model.hidden**2 * model.num_layers


def streams(model: Model, batch: Batch = TOKENS) -> int:
    """Elements of one s·b·h tensor in every layer."""
    return batch.tokens * model.hidden * model.num_layers


def loss_peak(model: Model = LLAMA) -> int:
    """Eager fp32 cross-entropy at its peak: logits, their logarithms and their gradients."""
    return 12 * TOKENS.tokens * model.vocab


def kept_widths(times: int) -> int:
    """Bytes of ``times`` 16-bit tensors of an expert's width in all layers of Mixtral."""
    return times * 2 * TOKENS.tokens * MIXTRAL.expert_ffn * MIXTRAL.num_layers


def counted(convention: str, **settings: Any) -> tuple[float, float]:
    told = bytes_of("parameters", convention, GPT2, **settings)
    return told, 2 * GPT2.num_params


def beside_the_peak(convention: str) -> tuple[float, float]:
    from labkit.memory.plans.plan import Plan

    zero = 3 if convention == "deepspeed" else 0
    parallel = Parallel(dp=64, zero=zero)
    recipe = Recipe.bf16_mixed()
    lines = count(convention, LLAMA, parallel, recipe, TOKENS)
    plan = Plan(model=LLAMA, parallel=parallel, recipe=recipe, batch=TOKENS)
    return told_bytes(convention, lines), plan.peak_bytes
