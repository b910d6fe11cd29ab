"""A network's layouts as tasks on GPUs and links, and the searches of FlexFlow and its rivals.

An operator is a task a GPU forward and one backward. What a GPU reads and does not hold leaves the
sender's unit on its link out and arrives over the receiver's link in: the reader waits for both, as
in :class:`labkit.planner.layouts.Layouts`, whose exchange ends with its slowest link. Gradients of
replicas travel in rings after an operator's backward tasks, and nothing but the end waits for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from math import prod

import numpy as np
import pandas as pd

from labkit import planner
from labkit.planner.layouts import Layouts
from labkit.planner.moves import Chosen, Search
from labkit.planner.simulating import Part, Timeline

GPUS_OF_A_MACHINE = 4
NETWORKS: dict[str, str] = {
    "alexnet": "AlexNet",
    "resnet50": "ResNet-50",
    "inception3": "Inception-v3",
}
"""Networks, and what they are called."""
Task = tuple[str, int]
"""A part's name, and the task's place in it."""
_FORWARD = 1 / 3
"""Of an operator's seconds; its backward pass has twice as many operations."""


class Way(StrEnum):
    """How a plan is found."""

    WALK = "FlexFlow: a random walk on simulated times"
    DESCENT = "descent on simulated times"
    OPTCNN = "OptCNN: the best by the sum of times"
    KRIZHEVSKY = "Krizhevsky's"
    DATA = "data parallelism"


RIVALS = (Way.KRIZHEVSKY, Way.DATA)
"""What the paper's throughput is compared with: data parallelism, and experts' plans."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """GPUs in machines of four, and a batch of so many images a GPU.

    Attributes:
        gpus: 1, 2, 4, or a multiple of 4.
        images: of a step, a GPU.
        inside_bytes_per_s: of a GPU's link inside its machine, each way.
        between_bytes_per_s: of a machine's link, each way; its GPUs share it.
        flops_per_s: that a GPU sustains.
    """

    gpus: int = 16
    images: int = 64
    inside_bytes_per_s: float = 20e9
    between_bytes_per_s: float = 12.5e9
    flops_per_s: float = 5e12

    @property
    def fabric(self) -> planner.Fabric:
        """The links."""
        if self.gpus <= GPUS_OF_A_MACHINE:
            return planner.Fabric.flat(self.gpus, bandwidth_bytes_per_s=self.inside_bytes_per_s)
        return planner.Fabric.machines(
            self.gpus // GPUS_OF_A_MACHINE,
            GPUS_OF_A_MACHINE,
            inside_bytes_per_s=self.inside_bytes_per_s,
            between_bytes_per_s=self.between_bytes_per_s,
        )

    def split(self, network: str) -> Simulated:
        """A network by its name on this cluster."""
        return _split(self, network)


@lru_cache(maxsize=64)
def _split(cluster: Cluster, network: str) -> Simulated:
    shapes = planner.network(network, batch=cluster.images * cluster.gpus)
    return Simulated(planner.split(shapes, cluster.fabric, flops_per_s=cluster.flops_per_s))


@dataclass(frozen=True, eq=False)
class Simulated:
    """A network's layouts, and the timeline of each plan.

    Attributes:
        layouts: from which operators choose.
    """

    layouts: Layouts
    _drawn: dict[object, Part] = field(default_factory=dict, repr=False)
    _found: dict[object, Search[Chosen]] = field(default_factory=dict, repr=False)

    @cached_property
    def _links(self) -> list[tuple[int, int]]:
        """Of each level: the first resource of its units' links, and how many units it has."""
        links = []
        begin = self.layouts.fabric.num_devices
        for size in self.layouts.fabric.group_sizes:
            count = self.layouts.fabric.num_devices // size
            links.append((begin, count))
            begin += 2 * count
        return links

    def resource_names(self) -> list[str]:
        """What each resource is: GPUs, then links out and in by level."""
        names = [f"GPU {gpu}" for gpu in range(self.layouts.fabric.num_devices)]
        for level, (_, count) in enumerate(self._links):
            unit = "GPU" if level == 0 else "machine"
            for way in ("out of", "into"):
                names += [f"{way} {unit} {number}" for number in range(count)]
        return names

    def operator(self, name: str, choice: str) -> Part:
        """Tasks of an operator: forward by GPU, backward by GPU, then rings of gradients."""
        key = (name, choice)
        if key not in self._drawn:
            operator = self.layouts.network.by_name[name]
            layout = self.layouts.layout(name, choice)
            count = prod(layout)
            compute_s = self.layouts.compute_s(operator, layout)
            gpus = np.arange(count)
            resources = [gpus, gpus]
            seconds = [np.full(count, _FORWARD * compute_s), np.full(count, compute_s * 2 / 3)]
            needs = [(name, name, np.stack([gpus, gpus + count], axis=1))]
            rings = self._rings(name, choice)
            if rings:
                resources.append(np.array([resource for resource, _ in rings]))
                seconds.append(np.array([each for _, each in rings]))
                pairs = np.argwhere(np.ones((count, len(rings)), dtype=bool))
                needs.append((name, name, pairs + np.array([count, 2 * count])))
            self._drawn[key] = Part(
                resources=np.concatenate(resources),
                seconds=np.concatenate(seconds),
                needs=tuple(needs),
            )
        return self._drawn[key]

    def _rings(self, name: str, choice: str) -> list[tuple[int, float]]:
        """Links out of units of each level that an operator's gradients take, and for how long."""
        operator = self.layouts.network.by_name[name]
        layout = self.layouts.layout(name, choice)
        num_bytes = self.layouts.gradient_bytes(operator, layout)
        rings = []
        fabric = self.layouts.fabric
        for level, size, (begin, _) in zip(
            fabric.levels, fabric.group_sizes, self._links, strict=True
        ):
            if num_bytes and prod(layout) > size:
                sent = min(size, layout[1]) * num_bytes
                units = math.ceil(prod(layout) / size)
                rings += [(begin + u, sent / level.bandwidth_bytes_per_s) for u in range(units)]
        return rings

    def edge(self, source: str, reader: str, plan: Mapping[str, str]) -> Part:
        """Transfers of an edge, forward and back, and what waits for what between its ends.

        Forward, a task a link out of a unit and a task a link into one; backward the same bytes go
        the other way.
        """
        key = (source, reader, plan[source], plan[reader])
        if key not in self._drawn:
            self._drawn[key] = self._transfers(source, reader, plan)
        return self._drawn[key]

    def _transfers(self, source: str, reader: str, plan: Mapping[str, str]) -> Part:
        name = f"{source} → {reader}"
        senders = prod(self.layouts.layout(source, plan[source]))
        readers = prod(self.layouts.layout(reader, plan[reader]))
        alike = np.arange(min(senders, readers))
        here = np.stack([alike, alike], axis=1)
        needs = [(source, reader, here), (reader, source, here + np.array([readers, senders]))]
        links: list[np.ndarray] = [np.zeros(0, dtype=int)]
        seconds: list[np.ndarray] = [np.zeros(0)]
        num_tasks = 0
        moved = self.layouts.moved_bytes(source, reader, plan)
        for (sending, receiving), sent, (sender_shift, receiver_shift) in [
            ((source, reader), moved, (0, 0)),
            ((reader, source), moved.T, (readers, senders)),
        ]:
            if not sent.any():
                continue
            sender, receiver = np.nonzero(sent)
            routes, message_s = self._routes(sender, receiver, sent[sender, receiver])
            # A task on each link that is used, in the order in which messages come to use it.
            places, used = pd.factorize(routes.ravel())
            links.append(used)
            seconds.append(np.bincount(places, weights=np.repeat(message_s, 2)))
            places += num_tasks
            num_tasks += len(used)
            before = _distinct(np.repeat(sender, 2) + sender_shift, places)
            after = _distinct(places, np.repeat(receiver, 2) + receiver_shift)
            needs += [(sending, name, before), (name, receiving, after)]
        return Part(
            resources=np.concatenate(links), seconds=np.concatenate(seconds), needs=tuple(needs)
        )

    def _routes(
        self, sender: np.ndarray, receiver: np.ndarray, num_bytes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The two links that each message takes, and how long it takes each.

        Returns:
            Resources out of a unit and into one, shape (messages, 2); and seconds.
        """
        fabric = self.layouts.fabric
        sizes = np.array([*fabric.group_sizes, fabric.num_devices])
        level = np.zeros(len(sender), dtype=int)  # the lowest at which one unit holds both ends
        for size in sizes[1:-1]:
            level += sender // size != receiver // size
        begin, count = np.array(self._links).T
        latency_s = np.array([each.latency_s for each in fabric.levels])
        bytes_per_s = np.array([each.bandwidth_bytes_per_s for each in fabric.levels])
        out = begin[level] + sender // sizes[level]
        into = begin[level] + count[level] + receiver // sizes[level]
        message_s = latency_s[level] + num_bytes / bytes_per_s[level]
        return np.stack([out, into], axis=1), message_s

    def parts(self, nodes: Iterable[str], plan: Mapping[str, str]) -> dict[str, Part]:
        """The parts of operators under a plan, and of their edges, as moves want them."""
        wanted = set(nodes)
        parts = {}
        for operator in self.layouts.network.operators:
            if operator.name in wanted:
                parts[operator.name] = self.operator(operator.name, plan[operator.name])
        for source, reader in self.layouts.network.edges:
            if source in wanted or reader in wanted:
                parts[f"{source} → {reader}"] = self.edge(source, reader, plan)
        return parts

    def plain_tasks(self, plan: Mapping[str, str]) -> dict[Task, tuple[str, float, list[Task]]]:
        """A plan's tasks by part and place: resource, milliseconds, and the tasks that it needs."""
        names = self.resource_names()
        parts = self.parts(plan, plan)
        tasks: dict[Task, tuple[str, float, list[Task]]] = {}
        for name, part in parts.items():
            for place, (resource, seconds) in enumerate(
                zip(part.resources, part.seconds, strict=True)
            ):
                tasks[name, place] = (names[resource], 1000 * float(seconds), [])
        for part in parts.values():
            for earlier, later, pairs in part.needs:
                for one, other in pairs:
                    tasks[later, int(other)][2].append((earlier, int(one)))
        return tasks

    def moves(self, *, delta: bool = True) -> planner.TimelineMoves:
        """Moves that simulate."""
        return planner.TimelineMoves(self.layouts.problem.choices, self.parts, delta=delta)

    def timeline(self, plan: Mapping[str, str]) -> Timeline:
        """A plan's timeline."""
        return planner.simulate(self.parts(plan, plan))

    @cached_property
    def _eliminated(self) -> Mapping[str, str]:
        return planner.choose(self.layouts.problem).plan

    def fixed_plan(self, way: Way) -> Mapping[str, str]:
        """A plan that is known without a search: Krizhevsky's, data parallelism, or OptCNN's."""
        if way is Way.OPTCNN:
            return self._eliminated
        gpus = self.layouts.fabric.num_devices
        samples = planner.layout_name((gpus, 1, 1, 1))
        channels = planner.layout_name((1, gpus, 1, 1))
        plan = {}
        for operator in self.layouts.network.operators:
            by_channels = way is Way.KRIZHEVSKY and operator.kind == "dense"
            plan[operator.name] = channels if by_channels else samples
        return plan

    def search(self, way: Way, *, num_plans: int, temperature: float, seed: int) -> Search[Chosen]:
        """The best of the searches that begin at data parallelism and at Krizhevsky's plan.

        Args:
            num_plans: that both price together; a descent ends by itself if it can.
            temperature: as a share of data parallelism's time.
        """
        key = (way, num_plans, temperature, seed)
        if key not in self._found:
            moves = self.moves()
            found = []
            for start in (Way.DATA, Way.KRIZHEVSKY):
                begin = moves.start(self.fixed_plan(start))
                if way is Way.DESCENT:
                    found.append(planner.descend(moves, begin, num_plans=num_plans // 2))
                    continue
                rng = np.random.default_rng(seed)
                temperature_s = temperature * moves.start(self.fixed_plan(Way.DATA)).cost
                found.append(
                    planner.walk(
                        moves, begin, num_plans=num_plans // 2, temperature=temperature_s, rng=rng
                    )
                )
            self._found[key] = min(found, key=lambda search: search.cost)
        return self._found[key]

    def plan(self, way: Way, *, num_plans: int, temperature: float, seed: int) -> Mapping[str, str]:
        """The name of each operator's layout."""
        if way in (Way.WALK, Way.DESCENT):
            found = self.search(way, num_plans=num_plans, temperature=temperature, seed=seed)
            return found.plan.choices
        return self.fixed_plan(way)

    def sent_bytes(self, plan: Mapping[str, str]) -> float:
        """Bytes that all GPUs send in a step."""
        table = self.layouts.parts(plan)
        return float(table["transferred_bytes"].sum() + table["gradient_bytes"].sum())


def _distinct(earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Each pair once, in order; shape (pairs, 2)."""
    width = int(later.max()) + 1
    keys = np.unique(earlier * width + later)
    return np.stack([keys // width, keys % width], axis=1)
