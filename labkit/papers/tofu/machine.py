"""Seconds and memory of a step on eight GPUs: cut by a plan, placed by layers, or swapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.papers.tofu.cuts import KEPT, SUM, Count, Method, Network, Plan, planned
from labkit.papers.tofu.networks import Model


@dataclass(frozen=True, kw_only=True)
class Machine:
    """GPUs of one machine (two to a K80, from memory).

    Attributes:
        cuts: halvings; there are 2 ** ``cuts`` GPUs.
        flops_per_s: that a GPU sustains (assumed).
        link_bytes_per_s: that a GPU receives from the others.
        host_bytes_per_s: to and from the host's memory, all GPUs together.
        memory_bytes: of a GPU.
        hidden_share: of what is received that passes while a GPU computes.
    """

    cuts: int = 3
    flops_per_s: float = 2e12
    link_bytes_per_s: float = 21e9
    host_bytes_per_s: float = 10e9
    memory_bytes: float = 12e9
    hidden_share: float = 0.0

    @property
    def gpus(self) -> int:
        """In all."""
        return 1 << self.cuts

    def ideal_s(self, model: Model) -> float:
        """Seconds of a step if nothing is sent and all GPUs compute."""
        return model.network.flops / self.gpus / self.flops_per_s

    def step_s(self, model: Model, plan: Plan) -> float:
        """Seconds of a step that is cut."""
        received_s = plan.moved_bytes / self.gpus / self.link_bytes_per_s
        return self.ideal_s(model) + (1 - self.hidden_share) * received_s

    def swapping_s(self, model: Model) -> float:
        """Seconds of a step where each GPU takes its samples and swaps weights with the host.

        A GPU whose weights and buffers fit sends gradients in a ring alone. Otherwise each of them
        reads the weights for the forward pass and for the backward one, and writes gradients; the
        host's link is shared, and hides behind computing as far as it fits.
        """
        if model.network.kept_bytes / self.gpus + 3 * model.weight_bytes <= self.memory_bytes:
            ring_bytes = 2 * (self.gpus - 1) / self.gpus * model.weight_bytes
            return self.ideal_s(model) + ring_bytes / self.link_bytes_per_s
        swapped_s = self.gpus * 3 * model.weight_bytes / self.host_bytes_per_s
        return max(self.ideal_s(model), swapped_s)

    def placement_s(self, model: Model) -> float:
        """Seconds of a step with consecutive layers on each GPU.

        Steps of a recurrent network follow one another through the GPUs like a pipeline; without
        recurrence one GPU computes at a time.
        """
        flops = [sum(layer.flops for layer in part) for part in placed(model, self.gpus)]
        slowest = max(flops) / model.steps
        through = sum(flops) / model.steps
        return ((model.steps - 1) * slowest + through) / self.flops_per_s


def placed(model: Model, gpus: int) -> list[list]:
    """Consecutive layers by GPU, such that what the fullest one keeps is least.

    The limit is found by halving an interval; layers are put on a GPU while they fit in it.
    """
    sizes = [layer.kept_bytes for layer in model.layers]
    low = max(sizes)
    high = sum(sizes)
    for _ in range(60):
        limit = (low + high) / 2
        if len(_filled(sizes, limit)) <= gpus:
            high = limit
        else:
            low = limit
    parts = []
    start = 0
    for count in _filled(sizes, high):
        parts.append([*model.layers[start : start + count]])
        start += count
    return parts


def _filled(sizes: Sequence[float], limit: float) -> list[int]:
    """How many layers each GPU takes when it takes as many as fit."""
    counts = [0]
    held = 0.0
    for size in sizes:
        if held + size > limit and counts[-1]:
            counts.append(0)
            held = 0.0
        counts[-1] += 1
        held += size
    return counts


def placement_share(model: Model, gpus: int) -> float:
    """What the fullest GPU keeps under placement, over what one GPU would keep."""
    kept = [sum(layer.kept_bytes for layer in part) for part in placed(model, gpus)]
    return max(kept) / sum(layer.kept_bytes for layer in model.layers)


def buffer_bytes(network: Network, plan: Plan) -> float:
    """The most that a GPU needs at once beside what it stores: one operator's inputs and output.

    Each is counted whole, as far as the operator needs it on one GPU.
    """
    most = 0.0
    for operator in network.operators:
        letters = plan.chosen[operator.name]
        needed = 0.0
        for name, term in (*operator.inputs, operator.output):
            halvings = sum(letter in term for letter in letters)
            stored = [(*term, SUM)[dimension] for dimension in plan.stored[name]]
            if stored != [*letters]:
                needed += network.tensors[name].num_bytes / 2**halvings
        most = max(most, needed)
    return most


def memory_share(model: Model, plan: Plan, gpus: int) -> float:
    """Bytes that a GPU holds, buffers included, over those of one GPU."""
    stored = 0.0
    for name, tensor in model.network.tensors.items():
        stored += tensor.kept_bytes / gpus * 2 ** plan.stored[name].count(KEPT)
    return (stored + buffer_bytes(model.network, plan)) / model.network.kept_bytes


def measures(machine: Machine, models: Sequence[Model], plans: Sequence[Plan]) -> dict[str, object]:
    """The claims' values on models and their plans; the first model's memory."""
    gains = []
    shares = []
    for model, plan in zip(models, plans, strict=True):
        step_s = machine.step_s(model, plan)
        gains += [machine.swapping_s(model) / step_s, machine.placement_s(model) / step_s]
        shares.append(machine.ideal_s(model) / step_s)
    return {
        "speedup": [min(gains), max(gains)],
        "ideal": [min(shares), max(shares)],
        "memory": memory_share(models[0], plans[0], machine.gpus),
    }


def ratios(
    networks: Sequence[Network], methods: Sequence[Method], count: Count = Count.EXACT
) -> dict[Method, list[float]]:
    """Bytes of each method over the least of all plans, for each network."""
    found: dict[Method, list[float]] = {method: [] for method in methods}
    for network in networks:
        least = planned(network, Method.FLAT, count=count).moved_bytes
        for method in methods:
            found[method].append(planned(network, method, count=count).moved_bytes / least)
    return found
