"""A training plan and what it needs: describe, then ask what a rank holds and sends."""

from __future__ import annotations

from dataclasses import field, fields
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le, Lt

from labkit.errors import BadValue, UsageError, not_among
from labkit.hardware import accelerator
from labkit.kit.describe import Count, NonNegative, Whole, checked, description
from labkit.memory.jobs import traffic
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.plans.arithmetic import Arithmetic
from labkit.memory.plans.detail import Estimate, estimate
from labkit.memory.tape.saved import Term
from labkit.memory.tape.step import Moment
from labkit.memory.traced.network import Network
from labkit.models import Model
from labkit.quantities import GB, format_bytes

if TYPE_CHECKING:
    import pandas as pd

PARTS = (Parallel, Batch, Recipe)
# What may be said of a plan beside its model and the names of its parts: by field, whose it is.
FIELDS = {item.name: kind for kind in PARTS for item in fields(kind)}
del FIELDS["name"], FIELDS["source"]
Capacity = Count | str  # bytes, or an accelerator's name
Headroom = Annotated[float, Gt(0), Le(1)]


@description(slots=True)
class Plan:
    """A model, how it is spread, in which number formats, on which batch: what one rank needs.

    There are two accounts. A model with a batch is estimated tensor by tensor and moment by moment,
    and the peak is the largest moment (:class:`~labkit.memory.plans.detail.Estimate`); ``ideal``
    divides by the number of ranks where torch rounds up to whole rows. A bare parameter count, a
    model without a batch and a batch with a paper's ``formula`` keep the papers' arithmetic, where
    everything is held at once (:class:`~labkit.memory.plans.arithmetic.Arithmetic`).

    ``rank`` is the pipeline rank whose account it is, from 0; the fullest where it is None.
    ``fragmentation`` is the share of the device that cannot be used, ``context_bytes`` what CUDA's
    context and libraries take of it: both are allowances, no part of the peak.

    >>> plan = Plan(model=7_500_000_000, parallel=Parallel(dp=64, zero=1))
    >>> round(plan.states_bytes / 1e9, 1)
    31.4
    """

    model: Model | Count
    parallel: Parallel = field(default_factory=Parallel)
    recipe: Recipe = field(default_factory=Recipe.mixed_adam)
    batch: Batch | None = None
    fragmentation: Annotated[float, Ge(0), Lt(1)] = 0.0
    context_bytes: NonNegative = 0
    ideal: bool = False
    rank: Whole | None = None

    def __post_init__(self) -> None:
        if not self.detailed:
            self._arithmetic.check()
        if self.rank is None:
            return
        if not self.detailed:
            raise BadValue(
                f"rank must be None in the papers' arithmetic, where all are alike, got {self.rank}"
            )
        if self.rank >= self.parallel.pp:
            raise BadValue(
                f"rank must be in 0..{self.parallel.pp - 1}, the pipeline's ranks, got {self.rank}"
            )

    @property
    def num_params(self) -> int:
        """Parameters of the whole model (Ψ)."""
        return self.model if isinstance(self.model, int) else self.model.num_params

    @property
    def detailed(self) -> bool:
        """Whether the plan is estimated tensor by tensor and moment by moment."""
        return (
            isinstance(self.model, Model) and self.batch is not None and self.batch.formula is None
        )

    @property
    def traced(self) -> bool:
        """Whether a network's own module is run for it, which takes seconds."""
        return self.detailed and isinstance(self.model, Network)

    @property
    def account(self) -> Arithmetic | Estimate:
        """The papers' arithmetic, or the account by moments."""
        return self.estimate if self.detailed else self._arithmetic

    @property
    def _arithmetic(self) -> Arithmetic:
        """The papers' account of the plan."""
        return Arithmetic(self.model, self.parallel, self.recipe, self.batch)

    def sized(self) -> tuple[Model, Batch]:
        """The model and the batch of a detailed plan.

        Raises:
            UsageError: the plan is not detailed.
        """
        if not isinstance(self.model, Model) or self.batch is None or self.batch.formula:
            raise UsageError(
                "moments need a Model and a Batch without a paper's formula;"
                " this plan keeps the papers' arithmetic"
            )
        return self.model, self.batch

    @property
    def estimate(self) -> Estimate:
        """Every moment of a detailed plan.

        Raises:
            UsageError: the plan is not detailed, something does not divide, or is not known.
        """
        model, batch = self.sized()
        if isinstance(model, Network):
            from labkit.memory.plans import traced  # it counts as accounts by moments do

            return traced.account(model, self.parallel, self.recipe, batch, self.ideal)
        return estimate(model, self.parallel, self.recipe, batch, self.ideal, self.rank)

    @property
    def peak_bytes(self) -> int | float:
        """Bytes on the device at the largest moment; by the papers' arithmetic, of all together."""
        peak = self.account.peak_bytes
        return int(peak) if float(peak).is_integer() else peak

    @property
    def reserved_bytes(self) -> float:
        """The peak with what the allocator holds beside it, by the allowance for fragmentation."""
        return self.peak_bytes / (1 - self.fragmentation)

    @property
    def peak_moment(self) -> Moment:
        """When the peak is reached; it prints as its text."""
        return self.account.peak_moment

    def moments(self) -> pd.DataFrame:
        """Bytes of each component on the device at each moment of a step, a row a moment.

        By the papers' arithmetic there is one moment, when all is held at once. Raises as
        :attr:`estimate` does.
        """
        return self.account.table()

    def ranks(self) -> pd.DataFrame:
        """Each pipeline rank at its own peak, a row a rank; none by the papers' arithmetic.

        Columns are rank, num_layers, ends (which of embedding and head it has), in_flight (the most
        microbatches whose activations it holds), peak_moment, the bytes of each component there,
        and peak_bytes. Raises as :attr:`estimate` does.
        """
        import pandas as pd

        return self.estimate.ranks() if self.detailed else pd.DataFrame()

    def elsewhere(self) -> pd.DataFrame:
        """What is kept on the CPU or on NVMe: component, place, bytes, formula, source.

        Raises as :attr:`estimate` does.
        """
        return self.account.elsewhere()

    @property
    def states_bytes(self) -> float:
        """Bytes of model states on the fullest rank, which is the papers' figure."""
        return self.account.states_bytes

    def terms(self) -> tuple[Term, ...]:
        """The account, largest idea first: states, then what the plan adds to them.

        Terms of a detailed plan are not all there at the same moment.
        """
        return self.account.terms()

    def frame(self) -> pd.DataFrame:
        """The account as a table: component, place, bytes, GB, share of the total (at the peak).

        ``place`` is ``"device"``, ``"cpu"`` or ``"nvme"``. What is offloaded has no share of the
        device's peak (NaN): those of ``"device"`` add up to 1.
        """
        import pandas as pd

        columns = ["component", "place", "num_bytes"]
        table = pd.DataFrame(self.account.held(), columns=columns)
        shares = (table["num_bytes"] / self.account.peak_bytes).where(table["place"] == "device")
        return table.assign(size_gb=table["num_bytes"] / GB, share=shares)

    @checked
    def explain(self, component: str) -> str:
        """How a number comes about: its formula, value and source.

        Args:
            component: a component's name, or the beginning of several names such as
                ``"activation.mlp"``: each is then explained, and their sum given.

        Raises:
            UsageError: the plan has no such component; the message lists those it has.
        """
        every = self.terms()
        wanted = component
        if self.detailed:  # its terms are named in the singular, its table in the plural
            wanted = component.replace("activations", "activation", 1)
        chosen = [t for t in every if f"{t.component}.".startswith(f"{wanted}.")]
        if not chosen:
            parts = (term.component.split(".") for term in every)
            starts = (".".join(part[: end + 1]) for part in parts for end in range(len(part)))
            raise not_among("component", component, dict.fromkeys(starts))
        lines = [
            f"{t.component}: {t.formula} = {format_bytes(t.num_bytes)}"
            f"{'' if t.place == 'device' else f' on {t.place}'} ({t.source})"
            for t in chosen
        ]
        if len(chosen) > 1:
            lines.append(f"{component}: {format_bytes(sum(t.num_bytes for t in chosen))} in all")
        letters = self.account.letters.items()
        given = "with " + ", ".join(f"{letter} = {value:,}" for letter, value in letters)
        return "\n".join([*lines, given])

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the account takes for granted, and the allowances, in sentences."""
        notes = self.account.assumptions
        if not (self.fragmentation or self.context_bytes):
            return notes
        size = format_bytes(self.context_bytes) if self.context_bytes else "nothing"
        return (
            *notes,
            f"allowances, no part of the peak: {self.fragmentation:.0%} of the device for"
            f" fragmentation, {size} for CUDA's context and libraries",
        )

    @checked
    def collectives(self, *, ranks_per_node: Count = 8) -> tuple[traffic.Collective, ...]:
        """The collectives of one step, one call a layer where layers are known.

        Those of data parallelism only, but for a detailed plan.
        """
        return self.account.collectives(ranks_per_node=ranks_per_node)

    @checked
    def traffic(self, *, ranks_per_node: Count = 8) -> pd.DataFrame:
        """What one step sends, a row a collective: its message, bytes of a rank, bytes out of each
        node.
        """
        return traffic.frame(self.account.collectives(ranks_per_node=ranks_per_node))

    @checked
    def usable_bytes(self, capacity: Capacity, *, headroom: Headroom = 1.0) -> float:
        """What this plan may fill of a device.

        Args:
            capacity: an accelerator's name, or a number of bytes.
            headroom: the share of it that may be filled.
        """
        size = accelerator(capacity).memory_bytes if isinstance(capacity, str) else capacity
        return size * headroom * (1 - self.fragmentation) - self.context_bytes

    @checked
    def fits(self, capacity: Capacity, *, headroom: Headroom = 1.0) -> bool:
        """Whether everything the plan accounts for fits a device.

        Args:
            capacity, headroom: as :meth:`usable_bytes` takes them.
        """
        return self.peak_bytes <= self.usable_bytes(capacity, headroom=headroom)
