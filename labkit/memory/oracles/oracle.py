"""Measured, not modelled: a small GPT or Llama trained on real processes under each scheme.

Every rank reports the bytes behind its parameters, gradients and optimizer states, every collective
it issued, what its sockets received, and how far its weights ended from training in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING, Any

from labkit import extras
from labkit.errors import UsageError
from labkit.kit.describe import Count, Positive, checked
from labkit.kit.randomness import Rng, seed_of
from labkit.kit.ranks import on_ranks
from labkit.memory.jobs import states
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.jobs.states import on_rank
from labkit.memory.jobs.traffic import ring_passes
from labkit.memory.tape.sizes import shape_of
from labkit.models import Model
from labkit.quantities import format_bytes

if TYPE_CHECKING:
    import pandas as pd

ROTARY_SEQ = 16  # tokens a sample where positions do not say
SECOND_COPY = "second copy of the parameters"  # what is there of them after the forward pass
GROUPED = ("hpz", "mics")  # those in which only some ranks share a shard, or a second one
# The plan of what each scheme does, groups of two.
SCHEMES: dict[str, dict[str, Any]] = {
    # DistributedDataParallel: everything on every rank.
    "ddp": {"zero": 0},
    # The paper's stage 1 by hand: reduce-scatter, update a flat slice, all-gather.
    "zero1": {"zero": 1, "shard_rule": "flat"},
    # ZeroRedundancyOptimizer: all-reduce, update whole tensors, broadcast.
    "zero1-torch": {"zero": 1, "shard_rule": "tensor"},
    # Stage 2 by hand: each gradient reduced to its owners and dropped.
    "zero2-flat": {"zero": 2, "shard_rule": "flat"},
    # FSDP2, parameters kept after the forward pass, or dropped and gathered again.
    "zero2": {"zero": 3, "reshard_after_forward": False},
    "zero3": {"zero": 3},
    # The same, parameters kept in a second shard among a group after the forward pass.
    "hpz": {"zero": 3, "secondary_group": 2},
    # The same, states sharded among a group, gradients all-reduced across groups (also HSDP).
    "mics": {"zero": 3, "partition_group": 2},
}


def parallel_of(scheme: str, ranks: int, *, group: int = 2) -> Parallel:
    """The plan of what a scheme does.

    Args:
        scheme: one of :data:`SCHEMES`.
        ranks: of all.
        group: ranks that share a shard, or a second one, in the schemes of :data:`GROUPED`.

    >>> parallel_of("hpz", 4).secondary_group
    2
    """
    sized = {"secondary_group": group, "partition_group": group}
    fields = {name: sized.get(name, value) for name, value in SCHEMES[scheme].items()}
    return Parallel(dp=ranks, **fields)


def scheme_of(parallel: Parallel) -> tuple[str, int] | None:
    """The scheme that does what a plan says, and its groups' size; None where none does.

    HSDP is MiCS said from the other side, and has its scheme.
    """
    same = parallel
    if parallel.replicate > 1:
        same = replace(parallel, replicate=1, partition_group=parallel.shard_degree)
    group = same.secondary_group or same.partition_group or 2
    for scheme in SCHEMES:
        if same == parallel_of(scheme, same.dp, group=group):
            return scheme, group
    return None


_WHOSE = ["scheme", "ranks", "rank"]  # columns that say whose report it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What the ranks of one experiment reported; see the frames for what they say."""

    model: Model
    group: int
    reports: tuple[dict[str, Any], ...]

    def _table(self) -> pd.DataFrame:
        """A row a rank's report, with ``model_bytes``: what a ring pass over all parameters sends.

        That is (n−1)/n times their bytes.
        """
        import pandas as pd

        table = pd.DataFrame(self.reports)
        size = 4 * self.model.num_params
        return table.assign(model_bytes=size * (table["ranks"] - 1) / table["ranks"])

    def states(self, components: Sequence[str] = states.COMPONENTS) -> pd.DataFrame:
        """Bytes a rank holds of each component, measured and predicted, one row each."""
        import pandas as pd

        recipe = Recipe.fp32_adam()
        rows = []
        for report in self.reports:
            parallel = parallel_of(report["scheme"], report["ranks"], group=self.group)
            predicted = on_rank(self.model, parallel, recipe, report["rank"])
            for component in filter(predicted.__contains__, components):
                rows.append(
                    {name: report[name] for name in _WHOSE}
                    | {"component": component}
                    | {"measured_bytes": report["held_bytes"][component]}
                    | {"predicted_bytes": predicted[component]}
                )
        return pd.DataFrame(rows)

    def fullest(self, ranks: int) -> pd.DataFrame:
        """What the fullest of ``ranks`` ranks held of states under each scheme, as measured."""
        table = self.states().query("ranks == @ranks")
        totals = table.groupby(["scheme", "rank"], sort=False)["measured_bytes"].sum()
        return totals.groupby("scheme", sort=False).max().to_frame("states_bytes")

    def volumes(self, ranks: int) -> pd.DataFrame:
        """What one of ``ranks`` ranks sent in a step, in model sizes, by scheme and collective."""
        table = self.traffic().query("ranks == @ranks and rank == 0")
        sent = table.pivot_table(
            index="scheme", columns="collective", values="model_sizes", aggfunc="sum", sort=False
        )
        return sent.assign(total=sent.sum(axis=1)).rename_axis(columns=None)

    def traffic(self) -> pd.DataFrame:
        """Collectives of the last step: the message as issued, and what a ring requires a rank to
        send.

        ``model_sizes`` is what was sent in units of (n−1)/n model sizes: the papers' 2 and 3.
        """
        import pandas as pd

        table = self._table().explode("collectives", ignore_index=True)
        issued = pd.DataFrame(table["collectives"].tolist())
        group = issued.pop("ranks")
        ring = issued["message_bytes"] * (group - 1) / group
        sent = ring * issued["collective"].map(ring_passes)
        sizes = {"sent_bytes": sent, "model_sizes": sent / table["model_bytes"]}
        return table[_WHOSE].join(issued).assign(**sizes)

    def sockets(self) -> pd.DataFrame:
        """Bytes that all ranks' TCP connections received in the last step, headers left out.

        ``model_sizes`` is in the same unit as in :meth:`traffic`. Empty where the system cannot
        tell (anything but Linux).
        """
        table = self._table().dropna(subset="received_bytes")
        sizes = table["received_bytes"] / table["model_bytes"]
        return table[[*_WHOSE, "received_bytes"]].assign(model_sizes=sizes)

    def exactness(self) -> pd.DataFrame:
        """The largest difference of any weight from training in one process, by scheme."""
        groups = self._table().groupby(["scheme", "ranks"], sort=False)
        return groups["largest_difference"].max().reset_index()


@checked
def measure(
    model: Model,
    *,
    schemes: Sequence[str] = ("ddp", "zero1", "zero2", "zero3"),
    ranks: Sequence[Count] = (2, 3, 4),
    steps: Count = 3,
    group: Count = 2,
    seq: Count | None = None,
    rng: Rng = 0,
    timeout_s: Positive = 120.0,
) -> Measurement:
    """Train ``model`` in fp32 on this machine's CPU, over gloo, under each scheme.

    All schemes and all numbers of ranks share one set of processes, so torch is loaded once. They
    end with this process, however it ends. The batch that all of them share is the fewest samples
    that divide evenly.

    Args:
        schemes: of :data:`SCHEMES`.
        ranks: numbers of ranks, 2 to 16.
        steps: optimizer steps; the traffic is that of the last.
        group: ranks that share a shard in the schemes of :data:`GROUPED`, which leave out numbers
            of ranks that are no larger multiple of it.
        seq: tokens of a sample; by default all of the model's positions.
        rng: of the weights and the tokens.
        timeout_s: after which all processes are ended.

    Raises:
        UsageError: torch is missing, a scheme is unknown, or the model is no plain GPT or Llama.
        LabkitError: a rank failed (its traceback is in the message), or time ran out.
    """
    extras.need("memory.measure", "torch", "torch", "psutil")
    spec: dict[str, Any] = {
        "schemes": list(schemes),
        "ranks": sorted(set(ranks)),
        "steps": steps,
        "global_batch": lcm(*ranks),
        "group": group,
        "seq": seq or model.positions or ROTARY_SEQ,
        "rng": seed_of(rng),
    }
    _validate(model, spec)
    worker = "labkit.memory.oracles.worker:reports"
    run = on_ranks(worker, max(spec["ranks"]), model, spec, timeout_s=timeout_s)
    reports = [report for of_rank in run.results for report in of_rank]
    order = {name: index for index, name in enumerate(schemes)}
    reports.sort(key=lambda report: (report["ranks"], order[report["scheme"]], report["rank"]))
    return Measurement(model=model, group=group, reports=tuple(reports))


def _validate(model: Model, spec: dict[str, Any]) -> None:
    """Refuse what cannot be trained here, the memory of the machine included."""
    import psutil

    if unknown := [name for name in spec["schemes"] if name not in SCHEMES]:
        raise UsageError(f"no scheme {', '.join(unknown)}; there are: {', '.join(SCHEMES)}")
    if not spec["ranks"] or min(spec["ranks"]) < 2 or max(spec["ranks"]) > 16:
        raise UsageError(f"ranks must be between 2 and 16, got {spec['ranks']}")
    if spec["group"] < 2:
        raise UsageError(f"group must be >= 2, got {spec['group']}")
    shape_of(model)  # refuses what they lack
    if model.num_experts or model.kv_rank or model.qk_norm:
        raise UsageError(
            "only plain GPT and Llama blocks are trained on ranks, without experts, latent"
            f" attention or normalised heads; {model.name or 'this model'!r} has some: oracle"
            " 'fake' runs it"
        )
    num_ranks = max(spec["ranks"])
    there = psutil.virtual_memory().total
    needed = 16 * model.num_params * num_ranks  # whole parameters at some stage: 4 + 4 + 8 bytes
    if needed > there:
        raise UsageError(
            f"{num_ranks} ranks that train {model.num_params:,} parameters in fp32 take at least"
            f" {format_bytes(needed)}, and this machine has {format_bytes(there)}: take a smaller"
            " model of the same kind, or oracle 'fake', which runs the step without numbers"
        )
    if model.positions and spec["seq"] > model.positions:
        raise UsageError(f"seq must be at most the model's {model.positions} positions")
