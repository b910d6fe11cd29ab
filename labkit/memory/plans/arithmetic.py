"""A plan by the papers' arithmetic: bytes a parameter times parameters, all held at once.

For a bare parameter count, a model without a batch, or a batch whose activations ZeRO's formula
gives, an approximation of a GPT-like block which knows no kernels.

Source: ZeRO §3, §5; ZeRO++ §3.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from labkit.errors import BadValue
from labkit.memory.jobs import states
from labkit.memory.jobs.batch import FORMULA, Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.jobs.states import COMPONENTS
from labkit.memory.jobs.traffic import Collective
from labkit.memory.movement.volumes import step_collectives
from labkit.memory.tape.saved import Term
from labkit.memory.tape.step import Moment
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd


def listed(terms: Iterable[Term]) -> pd.DataFrame:
    """A table of terms: component, place, bytes, formula, source."""
    import pandas as pd

    columns = ["component", "place", "num_bytes", "formula", "source"]
    rows = [[getattr(term, name) for name in columns] for term in terms]
    return pd.DataFrame(rows, columns=columns)


class Arithmetic(NamedTuple):
    """The account of a plan in which everything is held at once; see :class:`Plan` for fields."""

    model: Model | int
    parallel: Parallel
    recipe: Recipe
    batch: Batch | None

    def check(self) -> None:
        """Refuse what the arithmetic has no term for.

        Raises:
            BadValue: activations need shapes and there is a count only, the model would be cut in
                a way the papers' formulas do not know, or the stage has nothing to offload.
        """
        self.recipe.check_offload(self.parallel.zero)
        self.recipe.refuse_adapter("the papers' arithmetic")
        if self.recipe.in_backward:
            raise BadValue(
                f"step must not be {self.recipe.step} in the papers' arithmetic, where all"
                " gradients are there at once; a Model with a Batch is estimated otherwise"
            )
        if isinstance(self.model, int) and self.batch is not None:
            raise BadValue("a bare parameter count has no shapes: give a Model")
        for name in ("pp", "ep", "cp"):
            if (degree := getattr(self.parallel, name)) > 1:
                raise BadValue(
                    f"{name} must be 1 in the papers' arithmetic, which knows data and tensor"
                    f" parallelism; got {degree}; a Model with a Batch is estimated otherwise"
                )
        if self.batch is not None and isinstance(self.model, Model):
            self.model.require_shapes()
            activation_bytes(self.model, self.batch)

    @property
    def num_params(self) -> int:
        """Parameters of the whole model (Ψ)."""
        return self.model if isinstance(self.model, int) else self.model.num_params

    @property
    def num_trained(self) -> int:
        """Parameters that have gradients and optimizer states; frozen ones have neither."""
        if isinstance(self.model, int) or not self.model.layout:
            return self.num_params
        return sum(tensor.numel for tensor in self.model.layout if tensor.trained)

    @property
    def peak_moment(self) -> Moment:
        """No moment of its own: everything is held at once."""
        return Moment.ALL_AT_ONCE

    @property
    def peak_bytes(self) -> float:
        """Bytes of all terms on the device together."""
        return sum(term.num_bytes for term in self.terms() if term.place == "device")

    @property
    def states_bytes(self) -> float:
        """Bytes of parameters, gradients and optimizer states on the device."""
        states = (term for term in self.terms() if term.component in COMPONENTS)
        return sum(term.num_bytes for term in states if term.place == "device")

    def terms(self) -> tuple[Term, ...]:
        """States, hpZ's second copy where there is one, and activations where there is a batch."""
        tp = self.parallel.tp
        width = self.recipe.parameter_bytes
        terms = [term for name in COMPONENTS for term in self._parted(self._state(name))]
        if group := self.parallel.secondary_group:
            name = "second copy of the parameters"
            size = width * self.num_params / tp / group
            terms.append(Term(name, size, f"{width} B × Ψ/{group}", "ZeRO++ §3.2 (hpZ)"))
        if self.batch is not None and isinstance(self.model, Model):
            size = activation_bytes(self.model, self.batch, tp=tp)
            terms.append(Term("activations", size, FORMULA, "see formula"))
        return tuple(terms)

    def _parted(self, term: Term) -> list[Term]:
        """A state's term, the optimizer's in two where a fraction of it is offloaded."""
        away = self.recipe.offload_fraction
        if term.component != "optimizer" or away == 1:
            return [term]
        return [
            replace(term, num_bytes=share * term.num_bytes, place=place)
            for share, place in ((1 - away, "device"), (away, term.place))
        ]

    def _state(self, component: str) -> Term:
        """A state's bytes: Ψ/N_m, and /N_d where the stage shards it or it leaves the device.

        At stage 1 too the host gets a rank's own share of the gradients, which is what it updates
        (ZeRO-Offload §4).
        """
        per_param = self.recipe.bytes_of(component)
        tp = self.parallel.tp
        place = getattr(self.recipe, f"offload_{component}")
        sharded = place != "device" or states.is_sharded(component, self.parallel.zero)
        degree = self.parallel.shard_degree if sharded else 1
        frozen = component != "parameters" and self.num_trained < self.num_params
        count = self.num_trained if frozen else self.num_params
        letter = "Ψ trained" if frozen else "Ψ"
        parts = "".join(f"/{n}" for n, there in ((tp, tp > 1), (degree, sharded)) if there)
        size = per_param * (count / tp / degree)
        return Term(component, size, f"{per_param} B × {letter}{parts}", "ZeRO §3.1, §5", place)

    def held(self) -> list[tuple[str, str, float]]:
        """Component, place and bytes of every term."""
        return [(term.component, term.place, term.num_bytes) for term in self.terms()]

    def table(self) -> pd.DataFrame:
        """Bytes of each component on the device and their total: one moment, all at once."""
        import pandas as pd

        sizes = {name: size for name, place, size in self.held() if place == "device"}
        moment = pd.Index([self.peak_moment], name="moment")
        return pd.DataFrame(sizes, moment).assign(total=self.peak_bytes)

    def elsewhere(self) -> pd.DataFrame:
        """What is kept on the CPU or on NVMe: component, place, bytes, formula, source."""
        return listed(term for term in self.terms() if term.place != "device")

    @property
    def letters(self) -> dict[str, int]:
        """Values of the letters in formulas."""
        letters = {"Ψ": self.num_params}
        if self.num_trained < self.num_params:
            letters["Ψ trained"] = self.num_trained
        return letters

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the arithmetic takes for granted, in sentences."""
        recipe = self.recipe
        return (
            f"{recipe.name}: {recipe.bytes_per_param} bytes a parameter ({recipe.parameter_bytes}"
            f" + {recipe.gradient_bytes} + {recipe.optimizer_bytes})",
            f"shards: {states.SHARDINGS['even']}",
            "all components held at once: an upper bound on the peak of what is counted",
            "activations " + ("left out" if self.batch is None else "zero-paper"),
            "left out: communication buffers, and the layer that stage 3 gathers",
        )

    def collectives(self, *, ranks_per_node: int) -> tuple[Collective, ...]:
        """Collectives of data parallelism and one micro-batch, one call a layer where layers are
        known.
        """
        units = self.model.num_layers if isinstance(self.model, Model) else 1
        at = {"ranks_per_node": ranks_per_node, "num_units": units}
        once = replace(self.recipe, accumulation=1)
        elements = self.num_params / self.parallel.tp
        return step_collectives(self.parallel, once, elements, **at)


def activation_bytes(model: Model, batch: Batch, *, tp: int = 1) -> float:
    """Bytes of activations on one rank: what layers keep, checkpoints, and the layers at work.

    A layer at work is divided by ``tp`` here, its input is not (that is the redundancy P_a removes)
    unless ``batch.partition_checkpoints``.

    Args:
        tp: ranks of tensor parallelism.

    Raises:
        BadValue: selective recomputation, since the formula has no term for attention.

    Source: ZeRO §3.2, §6.1.

    >>> gpt2 = Model.preset("gpt2-1.5b")
    >>> round(activation_bytes(gpt2, Batch(seq=1024, micro_batch=32)) / 1e9, 1)
    60.4
    """
    if batch.recompute == "selective":
        raise BadValue(
            "recompute must not be selective in the papers' arithmetic: zero-paper has no term for"
            " attention"
        )
    one_input = 2 * batch.tokens * model.hidden  # 16 bits each
    working = 12 * one_input / tp
    kept = model.num_layers - batch.num_recomputed(model.num_layers)
    if not batch.every:
        return kept * working
    shards = tp if batch.partition_checkpoints else 1
    inputs = batch.num_checkpoints(model.num_layers) * one_input / shards
    return inputs + (kept + batch.recompute_group) * working
