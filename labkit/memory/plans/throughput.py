"""Time of a plan's step: from a sustained rate and an α–β model, or with an optimizer on the host.

    step = operations / sustained rate + tensor-parallel collectives + data-parallel collectives

Tensor- and context-parallel collectives block; data-parallel ones run alone too unless a cluster
overlaps them. What kernels, updates and allocators add is part of the sustained rate. An optimizer
may run on the host, in turn with the GPU or beside it:

    gradients = what leaves the device, less the backward pass that hides it
    host      = max(update, parameters back) if tiled, else their sum
    step      = GPU + gradients + host; max(GPU + gradients, host) with a delayed update

Source of the latter: Ren et al. 2021 (ZeRO-Offload), §4 (schedule), §5 (tiled copies, delayed
update).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from labkit.errors import BadValue, not_among
from labkit.hardware import Link, link
from labkit.kit.describe import Count, NonNegative, Positive, checked, description
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.modules import refuse_frozen
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.jobs.traffic import Collective
from labkit.memory.movement.offload import offload
from labkit.memory.movement.volumes import collectives
from labkit.memory.plans.plan import Plan
from labkit.memory.tape.step import Phase
from labkit.models import Model

# Share of a step's operations that the backward pass has at least, whatever is recomputed.
BACKWARD_SHARE = 2 / 3
PLACES = ("device", "device", "device"), ("device", "device", "cpu"), ("device", "cpu", "cpu")


Rate = Literal["flops_per_s", "ring", "node", "inside"]


@description(slots=True)
class Cluster:
    """The rates that a training step runs at; links count one direction.

    Attributes:
        flops_per_s: operations a second that a GPU sustains.
        ring: what a single ring gets between nodes (one network card of a node).
        node: what all rings that leave a node share (all its cards).
        inside: what a rank gets inside its node.
        ranks_per_node: GPUs of a node.
        overlap: data-parallel collectives of the backward pass hide behind its operations.
        staged: gathers over nodes first cross them, a ring for each GPU of a node (MiCS §3.3).
    """

    flops_per_s: Positive
    ring: Link
    node: Link
    inside: Link
    ranks_per_node: Count = 8
    overlap: bool = False
    staged: bool = False

    @checked
    def time_s(self, item: Collective) -> float:
        """Seconds of a collective: the mean latency of its ring's hops, and bytes over bandwidth.

        A ring over several nodes has as many hops between nodes as there are nodes.
        """
        if item.nodes == 1:
            return item.num_hops * self.inside.latency_s + item.sent_bytes / self.inside.bytes_per_s
        near = item.num_ranks // item.nodes
        if self.staged and item.kind == "all-gather" and near > 1:
            part = replace(item, message_bytes=item.message_bytes / near, num_ranks=item.nodes)
            across = replace(part, rings_per_node=item.rings_per_node * near)
            return self.time_s(across) + self.time_s(replace(item, num_ranks=near, nodes=1))
        between = min(1.0, item.nodes / item.num_ranks)
        hop_s = between * self.ring.latency_s + (1 - between) * self.inside.latency_s
        shared = min(item.rings_per_node * self.ring.bytes_per_s, self.node.bytes_per_s)
        return item.num_hops * hop_s + item.node_bytes / shared

    @classmethod
    @checked
    def of_servers(
        cls,
        flops_per_s: Positive,
        *,
        gbit_per_s: Positive,
        inside: str = "nvlink-v100",
        ranks_per_node: Count = 16,
        latency_s: NonNegative = 5e-6,
        overlap: bool = False,
        staged: bool = False,
    ) -> Cluster:
        """Servers whose network cards together carry so much each way, all of it for one ring.

        Args:
            flops_per_s: operations a second that a GPU sustains.
            gbit_per_s: of a server's cards together, each way.
            inside: the link between GPUs of a server, a name of ``data/hardware.yaml``.
            ranks_per_node: GPUs of a server.
            latency_s: of a hop between servers.
            overlap, staged: as :class:`Cluster` has them.

        >>> Cluster.of_servers(50e12, gbit_per_s=100).node.bytes_per_s / 1e9
        12.5
        """
        name = f"{gbit_per_s:g} Gbit/s"
        rate = gbit_per_s / 8 * 1e9
        between = Link(name=name, bytes_per_s=rate, latency_s=latency_s, source="as given")
        return cls(
            flops_per_s=flops_per_s,
            ring=between,
            node=between,
            inside=link(inside),
            ranks_per_node=ranks_per_node,
            overlap=overlap,
            staged=staged,
        )

    @checked
    def scaled(self, rate: Rate, factor: Positive) -> Cluster:
        """The cluster with one rate (``flops_per_s``, or a link's bandwidth) times ``factor``."""
        if rate == "flops_per_s":
            return replace(self, flops_per_s=self.flops_per_s * factor)
        link: Link = getattr(self, rate)
        faster: dict[str, Link] = {rate: replace(link, bytes_per_s=link.bytes_per_s * factor)}
        return replace(self, **faster)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One optimizer step of one rank: its operations, and the seconds of its parts and of the
    whole.

    Attributes:
        compute_s: operations on the GPU.
        tensor_s, data_s: collectives that nothing hides, of tensor and of data parallelism.
        update_s: an update on the host.
    """

    flops: float
    compute_s: float
    tensor_s: float
    data_s: float
    update_s: float = 0.0
    step_s: float

    @property
    def gpu_s(self) -> float:
        """Seconds of the GPU's operations and collectives."""
        return self.compute_s + self.tensor_s + self.data_s

    @property
    def flops_per_s(self) -> float:
        """Throughput of one GPU."""
        return self.flops / self.step_s


def throughput(plan: Plan, cluster: Cluster) -> StepTime:
    """How long a step of ``plan`` takes on ``cluster``.

    Operations are those carried out: 2 a parameter and token forward plus 4·s·h a layer and token
    for attention, twice that backward, and what is recomputed once more.

    Raises:
        BadValue: the plan has no batch or no shapes, or it has experts or a pipeline.

    >>> from labkit import hardware
    >>> from labkit.memory import Batch, Model, Parallel
    >>> links = {name: hardware.link("nvlink-v100") for name in ("ring", "node", "inside")}
    >>> plan = Plan(model=Model.preset("gpt2-1.5b"), batch=Batch(seq=1024), parallel=Parallel())
    >>> round(throughput(plan, Cluster(flops_per_s=50e12, **links)).flops_per_s / 1e12, 1)
    50.0
    """
    model = plan.model
    batch = plan.batch
    parallel = plan.parallel
    if not isinstance(model, Model) or batch is None or model.num_experts or parallel.pp > 1:
        raise BadValue(
            "plan must have a dense Model, a Batch and pp = 1 for its throughput,"
            f" got {getattr(model, 'name', model)}, {batch}, pp = {parallel.pp}"
        )
    model.require_shapes()
    refuse_frozen(model, plan.recipe, "throughput")
    plan.recipe.refuse_fraction("throughput")
    looked_up = (model.positions + (0 if model.tied else model.vocab)) * model.hidden
    attention = 4 * batch.seq * model.heads * model.head_dim * model.num_layers
    forward = 2 * (model.num_params - looked_up) + attention
    layers = forward - 2 * model.vocab * model.hidden
    again = layers * batch.num_recomputed(model.num_layers) / model.num_layers
    again = {"selective": attention, "operators": (layers - attention) / 2}.get(
        str(batch.recompute), again
    )
    tokens = batch.tokens * plan.recipe.accumulation / parallel.tp / parallel.cp
    seconds = 1 / cluster.flops_per_s
    at = {"ranks_per_node": cluster.ranks_per_node}
    sent = collectives(model, parallel, plan.recipe, batch, **at)
    data_s = sum(cluster.time_s(item) for item in sent if item.axis == "dp")
    if cluster.overlap:
        at_once = [item for item in sent if item.axis == "dp" and item.phase is Phase.BACKWARD]
        backward_s = tokens * (2 * forward + again) * seconds
        data_s -= min(backward_s, sum(cluster.time_s(item) for item in at_once))
    tensor_s = sum(cluster.time_s(item) for item in sent if item.axis != "dp")
    compute_s = tokens * (3 * forward + again) * seconds
    return StepTime(
        flops=tokens * (3 * forward + again),
        compute_s=compute_s,
        tensor_s=tensor_s,
        data_s=data_s,
        step_s=compute_s + tensor_s + data_s,
    )


def throughputs(plans: Iterable[Plan], cluster: Cluster) -> list[float]:
    """Operations a second and GPU of each plan; raises as :func:`throughput` does."""
    return [throughput(plan, cluster).flops_per_s for plan in plans]


def fit_cluster(
    cluster: Cluster, plans: Sequence[Plan], measured: Sequence[float], *, free: Sequence[Rate]
) -> Cluster:
    """``cluster`` with its ``free`` rates fitted to measured throughputs.

    Least squares of the logarithms, so that every run counts by its relative error.

    Args:
        measured: FLOP/s and GPU of each plan.
        free: ``"flops_per_s"``, or links whose bandwidth is fitted.

    Raises:
        BadValue: there are not as many plans as measurements, or fewer than free rates.
    """
    from scipy.optimize import least_squares

    if len(plans) != len(measured) or len(plans) < len(free):
        raise BadValue(
            f"plans and measured must be as many as each other and at least {len(free)}"
            f" (one a free rate), got {len(plans)} and {len(measured)}"
        )

    def at(logarithms: Sequence[float]) -> Cluster:
        fitted = cluster
        for rate, logarithm in zip(free, logarithms, strict=True):
            fitted = fitted.scaled(rate, math.exp(logarithm))
        return fitted

    def misses(logarithms: Sequence[float]) -> list[float]:
        rates = throughputs(plans, at(logarithms))
        return [math.log(rate / wanted) for rate, wanted in zip(rates, measured, strict=True)]

    return at(least_squares(misses, [0.0] * len(free)).x)


@description(slots=True)
class Update:
    """How a rank's optimizer runs.

    Attributes:
        s_per_param: with all cores of the host (or the whole GPU) at work.
        link_bytes_per_s: of one GPU's link to the host, in one direction.
        ranks: GPUs that share the host.
        tiled: parameters go back while others are updated.
        delayed: the update runs beside the next forward and backward pass, whose parameters are
            then one step old.
    """

    s_per_param: Positive
    link_bytes_per_s: Positive
    ranks: Count = 1
    tiled: bool = True
    delayed: bool = False


@checked
def updated_step(plan: Plan, cluster: Cluster, update: Update) -> StepTime:
    """How long a step of ``plan`` takes on ``cluster`` with its update where the recipe has it.

    Args:
        plan: its recipe says what crosses the link.
        update: how the optimizer runs.

    Raises:
        BadValue: as :func:`throughput` does, and where parameters are offloaded, gradients without
            the optimizer, or anything to NVMe.

    Source: ZeRO-Offload §4 and §5.
    """
    recipe = plan.recipe
    places = (recipe.offload_parameters, recipe.offload_gradients, recipe.offload_optimizer)
    if places not in PLACES:
        raise BadValue(
            "recipe must offload the optimizer, it and the gradients, or nothing, to the cpu, got"
            f" parameters on {places[0]}, gradients on {places[1]}, optimizer on {places[2]}"
        )
    step = throughput(plan, cluster)
    moved = offload(plan.model, plan.parallel, recipe)
    leaves_s = moved.bytes_at("PCIe to host") / update.link_bytes_per_s
    back_s = moved.bytes_at("PCIe to device") / update.link_bytes_per_s
    states = next(term for term in moved.held if term.component == "optimizer")
    update_s = update.s_per_param * states.num_bytes / recipe.optimizer_bytes * update.ranks
    busy_s = step.gpu_s + max(0.0, leaves_s - BACKWARD_SHARE * step.compute_s)
    host_s = max(update_s, back_s) if update.tiled else update_s + back_s
    step_s = max(busy_s, host_s) if update.delayed else busy_s + host_s
    return replace(step, update_s=update_s, step_s=step_s)


@checked
def rivals(
    model: Model,
    cluster: Cluster,
    methods: Sequence[str] | None = None,
    *,
    gpus: Count,
    partition_group: Count,
    seq: Count = 2048,
    micro_batch: Count = 1,
    accumulation: Count = 1,
    host: Update | None = None,
) -> pd.DataFrame:
    """Run one job by each of the methods that compete for it.

    Layers are recomputed. Tensor parallelism and ZeRO++'s second copy span a node; its hpZ alone
    quantises nothing, the whole sends int8 weights and int4 gradients.

    Args:
        model: what is trained.
        cluster: its rates.
        methods: those wanted beside ZeRO-3; None for all.
        gpus: how many the job has.
        partition_group: GPUs of a group of MiCS.
        seq, micro_batch, accumulation: tokens of a sample, samples a GPU at a time, and how often
            in a step.
        host: how an update on the host runs. With it ZeRO-Offload comes last, with tensor
            parallelism: without that, the parameters stay whole on each GPU.

    Returns:
        Index method; columns gpu_flops_per_s, traffic_s (what is not computing), states_bytes of a
        GPU, and gain, the throughput over ZeRO-3's.

    Raises:
        UsageError: there is no such method.
        BadValue: the nodes of the cluster or the groups do not divide the GPUs.
    """
    usual = Recipe.mixed_adam(accumulation=accumulation)
    ways = _ways(gpus, cluster.ranks_per_node, partition_group, usual, offloads=host is not None)
    rows = []
    for name in ways if methods is None else dict.fromkeys(["ZeRO-3", *methods]):
        if name not in ways:
            raise not_among("method", name, ways)
        parallel, recipe = ways[name]
        batch = Batch(seq=seq, micro_batch=micro_batch * parallel.tp, recompute="full")
        plan = Plan(model=model, parallel=parallel, recipe=recipe, batch=batch)
        on_host = host if recipe.offload_optimizer == "cpu" else None
        step = updated_step(plan, cluster, on_host) if on_host else throughput(plan, cluster)
        rows.append([name, step.flops_per_s, step.step_s - step.compute_s, plan.states_bytes])
    columns = ["method", "gpu_flops_per_s", "traffic_s", "states_bytes"]
    table = pd.DataFrame(rows, columns=columns).set_index("method")
    rate = table["gpu_flops_per_s"]
    return table.assign(gain=rate / rate["ZeRO-3"])


def _ways(
    gpus: int, node: int, partition_group: int, usual: Recipe, *, offloads: bool
) -> dict[str, tuple[Parallel, Recipe]]:
    """How each method spreads a job over the GPUs, and in which number formats."""
    quantised = replace(usual, gather="int8", reduce="int4")
    ways = {
        "Megatron-LM": (Parallel(tp=node, dp=gpus // node), usual),
        "Megatron-LM, ZeRO-1": (Parallel(tp=node, dp=gpus // node, zero=1), usual),
        "ZeRO-3": (Parallel(dp=gpus, zero=3), usual),
        "ZeRO++, hpZ": (Parallel(dp=gpus, zero=3, secondary_group=node), usual),
        "ZeRO++": (Parallel(dp=gpus, zero=3, secondary_group=node), quantised),
        "MiCS": (Parallel(dp=gpus, zero=3, partition_group=partition_group), usual),
    }
    if offloads:
        away = replace(usual, offload_gradients="cpu", offload_optimizer="cpu")
        ways["Megatron-LM, ZeRO-Offload"] = (Parallel(tp=node, dp=gpus // node, zero=2), away)
    return ways
