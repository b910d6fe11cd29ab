"""What planners of different papers choose for one transformer on one cluster, priced alike.

A method's plan is some stages, each on neighbouring devices with a layout for each operator. All
plans have one price. For M microbatches of an iteration:

    seconds = sum over stages of c + sum over cuts of t + (M - 1) · max of c and t
              + the longest exchange of a stage's gradients
    c       a microbatch's compute and transfers of a stage (:mod:`labkit.planner.layouts`)
    t       activations over a cut and their gradients back
    memory  16 bytes a parameter of a device's part (weights, gradients, Adam in fp32), and what its
            operators made for each microbatch in flight: as many as stages from here on, at most M

Nothing is computed twice to save memory, and no gradient is hidden. Each method takes the number of
microbatches with which it is fastest within the memory, or needs least where none fits.

Methods are what the papers search over, with this price in place of theirs:

    data parallelism   samples on all devices
    One weird trick    linear operators by channels on all devices, the rest by samples
    OptCNN             the best cuts of each output (samples, channels, places), exactly
    FlexFlow           the same cuts by a random walk from data parallelism
    Tofu               each operator halved again and again, at the least seconds of sending
    Megatron-LM        columns, then rows, in groups inside a machine; samples across groups
    GSPMD              samples × channels of all operators: an annotation, completed
    Unity              the best of all layouts, copies and sums of parts among them, exactly
    PipeDream          stages with replicas that give most minibatches a second
    DAPPLE             stages with replicas whose iteration ends first, on meshes as Alpa's
    Whale              a stage a machine, by work; equal devices get equal samples
    Alpa               stages on meshes by its program, the best layouts inside each
    Aceso              stages with samples and groups, moved until no move helps

Source: the papers named; their notebooks have their own costs, models and clusters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from labkit.errors import BadValue, UsageError, not_among
from labkit.kit.describe import Count, Positive, checked, description
from labkit.kit.fabric import Fabric
from labkit.models import Model
from labkit.planner.chain import Chain
from labkit.planner.choosers import CHOOSERS
from labkit.planner.layouts import Layouts, split
from labkit.planner.meshes import StageTable, place
from labkit.planner.moves import descend
from labkit.planner.networks import AXES, SUMMED, Draft, Network, network, transformer_names
from labkit.planner.planning import plan as best_stages
from labkit.planner.throughput import Stage as Plain

if TYPE_CHECKING:
    import pandas as pd

_STATE_BYTES = 16
"""Of a parameter: weight and gradient in two bytes each, and a copy and two moments in four."""
_PASSES = 3
_FEWEST_BLOCKS = 4
_MOVES = 150
"""Plans that Aceso's descent prices from each of its first plans."""


class Stage(NamedTuple):
    """Blocks ``first`` to ``end`` - 1 on so many devices, and how their layouts are chosen.

    Attributes:
        chooser: a key of the lineup's choosers.
    """

    first: int
    end: int
    devices: int
    chooser: str


class Stages(NamedTuple):
    """A plan: its stages, and the microbatches of an iteration."""

    stages: tuple[Stage, ...]
    num_microbatches: int


class StagePrice(NamedTuple):
    """What a stage costs.

    Attributes:
        seconds: of a microbatch.
        gradients_s: of an iteration.
        state_bytes, kept_bytes: of the fullest device: always, and for a microbatch in flight.
        layouts, plan: what it chose from, and chose.
    """

    seconds: float
    gradients_s: float
    state_bytes: float
    kept_bytes: float
    layouts: Layouts
    plan: dict[str, str]


class Price(NamedTuple):
    """What a plan costs: seconds of an iteration, and memory of the fullest device."""

    iteration_s: float
    memory_bytes: float


@description
class Job:
    """A transformer, an iteration of it, and machines of equal devices.

    Attributes:
        model: a name that ``planner.network`` knows.
        batch: sequences of an iteration.
        length: tokens of a sequence.
        fabric: machines of devices.
        flops_per_s: that a device sustains.
        memory_bytes: of a device.
        num_layers: blocks; None for all of the model's.

    Raises:
        BadValue: the fabric has not two levels, a machine or their number is no power of two, or
            there are fewer than four blocks.
        UsageError: planner.network knows no such transformer.
    """

    model: str
    batch: Count
    length: Count
    fabric: Fabric
    flops_per_s: Positive
    memory_bytes: Positive
    num_layers: Count | None = None

    def __post_init__(self) -> None:
        counts = [level.count for level in self.fabric.levels]
        if len(counts) != 2 or any(count & (count - 1) for count in counts):
            raise BadValue(
                f"planner.Job: fabric has levels of {counts} units; two levels are valid, machines "
                "and their devices, and powers of two of each"
            )
        known = transformer_names()
        if self.model not in known:
            raise not_among("model", self.model, known)
        blocks = self.num_layers or Model.preset(self.model).num_layers
        if blocks < _FEWEST_BLOCKS:
            raise BadValue(
                f"planner.Job: num_layers is {blocks}; {_FEWEST_BLOCKS} or more are valid, so that "
                "two stand between the first and the last"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Lineup:
    """All methods on a job.

    Stages and layouts that were priced once are remembered.
    """

    job: Job
    _prices: dict[object, StagePrice] = field(default_factory=dict, repr=False)
    _layouts: dict[object, Layouts] = field(default_factory=dict, repr=False)
    _tables: dict[object, dict[object, np.ndarray]] = field(default_factory=dict, repr=False)

    # ------------------------------------------------------------ parts of the model

    @property
    def whole(self) -> Network:
        """The model, with a sequence a step."""
        job = self.job
        return network(job.model, batch=1, length=job.length, num_layers=job.num_layers)

    @property
    def num_blocks(self) -> int:
        """Blocks of the model."""
        return sum(operator.kind == "scores" for operator in self.whole.operators)

    def part(self, first: int, end: int, batch: int) -> Network:
        """Blocks ``first`` to ``end`` - 1; the embedding stands with the first, the head with the
        last."""
        job = self.job
        operators = network(job.model, batch=batch, length=job.length, num_layers=1).by_name
        draft = Draft.of_tokens(job.model, batch, job.length)
        embedding = operators["embedding"]
        hidden = embedding.output["channel"]
        if first == 0:
            last = draft.embedding("embedding", hidden, embedding.depth)
        else:
            tokens = draft.operators.pop("tokens")
            draft.operators["input"] = replace(tokens, name="input", output=embedding.output)
            last = "input"
        heads = operators["block1_scores"].heads
        wide = operators["block1_up"].output["channel"]
        for number in range(first + 1, end + 1):
            last = draft.block(f"block{number}", heads, wide, after=last)
        if end == self.num_blocks:
            draft.norm("norm", after=last)
            draft.linear("head", operators["head"].output["channel"], bias=False)
        return draft.network()

    def mesh(self, first_device: int, devices: int) -> Fabric:
        """The links of neighbouring devices; those that share a machine's link have a part each."""
        near, far = self.job.fabric.levels
        same = first_device // near.count == (first_device + devices - 1) // near.count
        if same:
            return Fabric(levels=(replace(near, count=devices),))
        if first_device % near.count == devices % near.count == 0:
            return Fabric(levels=(near, replace(far, count=devices // near.count)))
        share = far.bandwidth_bytes_per_s / near.count
        return Fabric(levels=(replace(far, count=devices, bandwidth_bytes_per_s=share),))

    # ------------------------------------------------------------ prices

    def layouts(
        self, stage: Stage, first_device: int, num_microbatches: int, *, cuts_alone: bool
    ) -> Layouts:
        """The layouts of a stage.

        Raises:
            BadValue: a microbatch has no whole number of sequences.
        """
        batch = self.job.batch // num_microbatches
        fabric = self.mesh(first_device, stage.devices)
        key = ((stage.first, stage.end), fabric, batch, cuts_alone)
        if key not in self._layouts:
            layouts = split(
                self.part(stage.first, stage.end, batch),
                fabric,
                flops_per_s=self.job.flops_per_s,
                element_bytes=2,
                axes=("sample", "channel", "height"),
                copies=not cuts_alone,
            )
            shared = self._tables.setdefault(key[1:], {})  # blocks are alike, as are their edges
            self._layouts[key] = replace(layouts, _tables=shared)
        return self._layouts[key]

    def price_stage(self, stage: Stage, first_device: int, num_microbatches: int) -> StagePrice:
        """What a stage costs that begins at a device."""
        fabric = self.mesh(first_device, stage.devices)
        key = (stage, fabric, num_microbatches)
        if key not in self._prices:
            chooser, cuts_alone = CHOOSERS[stage.chooser]
            layouts = self.layouts(stage, first_device, num_microbatches, cuts_alone=cuts_alone)
            plan = chooser(layouts, num_microbatches)
            self._prices[key] = _priced(layouts, plan)
        return self._prices[key]

    def price(self, plan: Stages) -> Price:
        """What a plan costs.

        Raises:
            BadValue: a stage knows no layout as its chooser wants it.
        """
        prices = self._stage_prices(plan)
        work_s = [price.seconds for price in prices]
        moving_s = [seconds for seconds, _ in self._cuts(plan)]
        count = plan.num_microbatches
        seconds = sum(work_s) + sum(moving_s) + (count - 1) * max(work_s + moving_s)
        memory = [
            price.state_bytes + min(len(prices) - number, count) * price.kept_bytes
            for number, price in enumerate(prices)
        ]
        gradients_s = max(price.gradients_s for price in prices)
        return Price(seconds + gradients_s, max(memory))

    def _stage_prices(self, plan: Stages) -> list[StagePrice]:
        first_device = 0
        prices = []
        for stage in plan.stages:
            prices.append(self.price_stage(stage, first_device, plan.num_microbatches))
            first_device += stage.devices
        return prices

    def link_bytes(self, plan: Stages) -> np.ndarray:
        """Bytes of an iteration on the links inside machines, and on those between them."""
        carried = np.zeros(2)
        count = plan.num_microbatches
        for price in self._stage_prices(plan):
            gradients = price.layouts.gradient_level_bytes(price.plan)
            moved = price.layouts.level_bytes(price.plan) - gradients
            inside = price.layouts.fabric.levels[0] == replace(
                self.job.fabric.levels[0], count=price.layouts.fabric.levels[0].count
            )
            kinds = [0, 1][: len(moved)] if inside else [1]
            carried[kinds] += count * moved + gradients
        for _, num_bytes in self._cuts(plan):
            carried += count * num_bytes
        return carried

    def _cuts(self, plan: Stages) -> list[tuple[float, np.ndarray]]:
        """Seconds and bytes of a microbatch over each cut, there and back."""
        firsts = np.cumsum([stage.devices for stage in plan.stages])[:-1]
        return [self._cut(plan, number, int(first)) for number, first in enumerate(firsts)]

    def _cut(self, plan: Stages, number: int, device: int) -> tuple[float, np.ndarray]:
        """Seconds and bytes of a microbatch over the cut after a stage, there and back."""
        near, far = self.job.fabric.levels
        hidden = self.whole.by_name["embedding"].output["channel"]
        batch = self.job.batch // plan.num_microbatches
        num_bytes = batch * self.job.length * hidden * 2
        across = device % near.count == 0
        level = far if across else near
        before = plan.stages[number].devices
        links = 1 if across else min(before, plan.stages[number + 1].devices)
        seconds = level.latency_s + num_bytes / (links * level.bandwidth_bytes_per_s)
        carried = np.zeros(2)
        carried[int(across)] = 2 * num_bytes
        return 2 * seconds, carried

    # ------------------------------------------------------------ plans

    def microbatches(self) -> list[int]:
        """How many an iteration may have: powers of two up to 32 that divide its sequences."""
        return [2**power for power in range(6) if self.job.batch % 2**power == 0]

    def fitting(self, plans: Iterator[Stages]) -> tuple[Stages, Price]:
        """The fastest plan that fits, or the one that needs least memory.

        Raises:
            UsageError: there is no plan.
        """
        best: tuple[tuple[bool, float], Stages, Price] | None = None
        for plan in plans:
            try:
                price = self.price(plan)
            except BadValue:  # too few sequences for so many devices
                continue
            fits = price.memory_bytes <= self.job.memory_bytes
            rank = (not fits, price.iteration_s if fits else price.memory_bytes)
            if best is None or rank < best[0]:
                best = (rank, plan, price)
        if best is None:
            raise UsageError("planner.lineup: no plan has a layout for each operator")
        return best[1], best[2]

    def flat(self, *choosers: str) -> Iterator[Stages]:
        """One stage on all devices, in each way and with each number of microbatches."""
        devices = self.job.fabric.num_devices
        for count in self.microbatches():
            for chooser in choosers:
                yield Stages((Stage(0, self.num_blocks, devices, chooser),), count)

    def chain(self, num_microbatches: int) -> Chain:
        """Blocks as a chain, of a microbatch; the first has the embedding, the last the head."""
        batch = self.job.batch // num_microbatches
        parts = [self.part(number, number + 1, batch) for number in range(self.num_blocks)]
        flops = [sum(operator.forward_flops for operator in part.operators) for part in parts]
        weights = [sum(operator.weights for operator in part.operators) for part in parts]
        kept = [sum(operator.num_outputs for operator in part.operators) for part in parts]
        crossing = batch * self.job.length * self.whole.by_name["embedding"].output["channel"]
        return Chain(
            forward_s=tuple(each / self.job.flops_per_s for each in flops),
            backward_s=tuple(2 * each / self.job.flops_per_s for each in flops),
            activation_bytes=tuple(2.0 * each for each in kept),
            cut_bytes=(2.0 * crossing,) * len(parts),
            parameter_bytes=tuple(2.0 * each for each in weights),
        )

    def replicated(self) -> Iterator[Stages]:
        """PipeDream's stages, which its program replicates; machines with stages inside.

        Plans whose machines hold replicas of several stages are left out: their stages do not stand
        on neighbouring devices.
        """
        for count in self.microbatches():
            stages: list[Plain] = []
            for outer in best_stages(self.chain(count), self.job.fabric).stages:
                if outer.replicas == 1:
                    stages += outer.inside
                elif len(outer.inside) == 1:
                    stages.append(outer)
            if stages[-1].end == self.num_blocks:
                named = [Stage(s.first, s.end, s.num_devices, "samples") for s in stages]
                yield Stages(tuple(named), count)

    def a_machine_each(self) -> Iterator[Stages]:
        """Whale's stages: a machine each, cut where their work is most even."""
        near, far = self.job.fabric.levels
        work = np.cumsum(self.chain(1).forward_s)
        ends = [
            int(np.abs(work - work[-1] * number / far.count).argmin()) + 1
            for number in range(1, far.count)
        ]
        bounds = [0, *ends, self.num_blocks]
        stages = [Stage(first, end, near.count, "samples") for first, end in pairwise(bounds)]
        for count in self.microbatches():
            yield Stages(tuple(stages), count)

    def on_meshes(self, *ways: str) -> Iterator[Stages]:
        """Stages whose iteration ends first, by Alpa's program, on meshes of devices.

        1. A mesh takes for k blocks what it takes for one, and k - 1 times what one more adds.
        2. The program places stages within the memory; the plan is then priced as it is.

        Args:
            ways: to lay out a stage's operators; "groups" are as large as the mesh.
        """
        devices = self.job.fabric.num_devices
        sizes = [2**power for power in range(devices.bit_length()) if 2**power <= devices]
        named = [
            (size, f"groups {size}" if way == "groups" else way) for size in sizes for way in ways
        ]
        meshes = list(dict.fromkeys(named))
        for count in self.microbatches():
            tables = [self._mesh_table(size, way, count) for size, way in meshes]
            table = StageTable(
                meshes=tuple(f"{size} {way}" for size, way in meshes),
                devices=np.array([size for size, _ in meshes]),
                seconds=np.stack([seconds for seconds, _, _ in tables]),
                stage_bytes=np.stack([state for _, state, _ in tables]),
                microbatch_bytes=np.stack([kept for _, _, kept in tables]),
            )
            try:
                found = place(
                    table,
                    devices,
                    num_microbatches=count,
                    memory_bytes=self.job.memory_bytes,
                    tolerance=1e-3,
                )
            except UsageError:  # nothing fits with so few microbatches
                continue
            firsts = (0, *found.ends[:-1])
            stages = [
                Stage(first, end, *meshes[mesh])
                for first, end, mesh in zip(firsts, found.ends, found.meshes, strict=True)
            ]
            yield Stages(tuple(stages), count)

    def _mesh_table(
        self, size: int, way: str, count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Seconds, state and kept bytes of all stages on a mesh, as ``[first, end]``."""
        blocks = self.num_blocks
        shape = (blocks + 1, blocks + 1)
        values = np.full((3, *shape), np.inf)
        ends = {"whole": (0, 1), "middle": (1, 2), "last": (blocks - 1, blocks)}
        try:
            one = {
                name: self._values(Stage(*bounds, size, way), count)
                for name, bounds in ends.items()
            }
            more = self._values(Stage(1, 3, size, way), count) - one["middle"]
        except BadValue:
            return values[0], np.zeros(shape), np.zeros(shape)
        for first in range(blocks):
            for end in range(first + 1, blocks + 1):
                total = one["middle"] + (end - first - 1) * more
                if first == 0:
                    total = total + one["whole"] - one["middle"]
                if end == blocks:
                    total = total + one["last"] - one["middle"]
                values[:, first, end] = total
        state, kept = np.where(np.isfinite(values[1:]), values[1:], 0.0)
        return values[0], state, kept

    def _values(self, stage: Stage, count: int) -> np.ndarray:
        price = self.price_stage(stage, 0, count)
        seconds = price.seconds + price.gradients_s / count
        return np.array([seconds, price.state_bytes, price.kept_bytes])

    def moved(self) -> Iterator[Stages]:
        """Aceso's plan: from even stages, a move at a time, until none helps."""
        devices = self.job.fabric.num_devices
        starts = []
        for num_stages in (1, 2, 4):
            if num_stages <= min(devices, self.num_blocks):
                ends = np.arange(num_stages + 1) * self.num_blocks // num_stages
                each = devices // num_stages
                stages = [Stage(int(a), int(b), each, f"groups {each}") for a, b in pairwise(ends)]
                starts.append(Stages(tuple(stages), max(self.microbatches()[:-1])))
        for start in starts:
            moves = _StageMoves(self)
            if math.isfinite(moves.cost(start)):
                yield descend(moves, start, num_plans=_MOVES).plan

    # ------------------------------------------------------------ all of them

    @property
    def methods(self) -> dict[str, Callable[[], Iterator[Stages]]]:
        """The plans that each method chooses among, by its paper."""
        inside = self.job.fabric.levels[0].count
        groups = [f"groups {2**power}" for power in range(1, inside.bit_length())]
        return {
            "data parallelism (Horovod)": partial(self.flat, "samples"),
            "One weird trick": partial(self.flat, "weird"),
            "OptCNN": partial(self.flat, "cuts"),
            "FlexFlow": partial(self.flat, "walk"),
            "Tofu": partial(self.flat, "halves"),
            "GSPMD": partial(self.flat, "samples and channels"),
            "Megatron-LM": partial(self.flat, *groups),
            "Unity": partial(self.flat, "all layouts"),
            "PipeDream": self.replicated,
            "DAPPLE": partial(self.on_meshes, "samples"),
            "Whale": self.a_machine_each,
            "Alpa": partial(self.on_meshes, "all layouts", "groups"),
            "Aceso": self.moved,
        }

    @property
    def bound_s(self) -> float:
        """All operations on all devices, nothing else: no plan is faster."""
        flops = sum(operator.forward_flops for operator in self.whole.operators) * self.job.batch
        return _PASSES * flops / (self.job.flops_per_s * self.job.fabric.num_devices)

    def words(self, plan: Stages) -> str:
        """A plan in words: devices of its stages, how each is laid out, microbatches."""
        groups: list[tuple[str, int]] = []
        for stage in plan.stages:
            name = f"{stage.devices} × {_WORDS.get(stage.chooser, stage.chooser)}"
            if groups and groups[-1][0] == name:
                groups[-1] = (name, groups[-1][1] + 1)
            else:
                groups.append((name, 1))
        parts = [f"{count} stages of {name}" if count > 1 else name for name, count in groups]
        count = plan.num_microbatches
        return f"{', then '.join(parts)}; {count} microbatch{'es' if count > 1 else ''}"


_WORDS = {
    "weird": "samples, linear operators by channels",
    "cuts": "the best cuts",
    "walk": "cuts found at random",
    "halves": "halves of halves",
    "all layouts": "the best layouts",
}


def _priced(layouts: Layouts, plan: dict[str, str]) -> StagePrice:
    """What a stage costs in a plan."""
    seconds = 0.0
    gradients_s = 0.0
    state = 0.0
    kept = 0.0
    for operator in layouts.network.operators:
        layout = layouts.layout(operator.name, plan[operator.name])
        seconds += layouts.compute_s(operator, layout) + layouts.sums_s(operator, layout)
        gradients_s += layouts.gradients_s(operator, layout)
        depth = layout[len(AXES)] if operator.kind in SUMMED and len(layout) > len(AXES) else 1
        state += _STATE_BYTES * operator.weights / (layout[1] * depth)
        kept += layouts.element_bytes * operator.num_outputs / prod(layout[: len(AXES)])
    for source, reader in layouts.network.edges:
        seconds += layouts.transfer_s(source, reader, plan)
    return StagePrice(seconds, gradients_s, state, kept, layouts, plan)


class _StageMoves:
    """Aceso's moves: microbatches, groups, blocks to a neighbour, devices to a neighbour."""

    def __init__(self, lineup: Lineup) -> None:
        self.lineup = lineup

    def cost(self, plan: Stages) -> float:
        """Seconds within the memory, or many more outside."""
        try:
            price = self.lineup.price(plan)
        except BadValue:
            return math.inf
        over = price.memory_bytes / self.lineup.job.memory_bytes
        return price.iteration_s if over <= 1 else 1e6 * over

    def propose(self, plan: Stages, rng: np.random.Generator) -> Stages:
        """One of the changes."""
        changes = list(self.changes(plan))
        return changes[int(rng.integers(len(changes)))]

    def changes(self, plan: Stages) -> Iterator[Stages]:
        """All plans that are one move away."""
        for count in (plan.num_microbatches * 2, plan.num_microbatches // 2):
            if count in self.lineup.microbatches():
                yield plan._replace(num_microbatches=count)
        for up in (True, False):  # groups and microbatches together, in all stages
            if together := _regrouped(plan, up, self.lineup.microbatches()):
                yield together
        for number, stage in enumerate(plan.stages):
            ways = int(stage.chooser.rpartition(" ")[2])
            for other in (ways * 2, ways // 2):
                if 1 <= other <= stage.devices:
                    yield self._with(plan, number, stage._replace(chooser=f"groups {other}"))
        for number in range(len(plan.stages) - 1):
            for step in (1, -1):
                end = plan.stages[number].end + step
                if plan.stages[number].first < end < plan.stages[number + 1].end:
                    changed = self._with(plan, number, plan.stages[number]._replace(end=end))
                    after = changed.stages[number + 1]._replace(first=end)
                    yield self._with(changed, number + 1, after)

    @staticmethod
    def _with(plan: Stages, number: int, stage: Stage) -> Stages:
        stages = (*plan.stages[:number], stage, *plan.stages[number + 1 :])
        return plan._replace(stages=stages)

    def price(self, plan: Stages, change: Stages, limit: float) -> tuple[float, Stages]:
        """What the changed plan costs, and that plan."""
        return self.cost(change), change


def _regrouped(plan: Stages, up: bool, microbatches: Sequence[int]) -> Stages | None:
    """Groups twice or half as large, with as many more or fewer microbatches; None if too far."""
    stages = []
    for stage in plan.stages:
        ways = int(stage.chooser.rpartition(" ")[2])
        ways = ways * 2 if up else ways // 2
        if not 1 <= ways <= stage.devices:
            return None
        stages.append(stage._replace(chooser=f"groups {ways}"))
    count = plan.num_microbatches * 2 if up else plan.num_microbatches // 2
    return Stages(tuple(stages), count) if count in microbatches else None


@checked
def lineup(job: Job, *, methods: Sequence[str] | None = None) -> pd.DataFrame:
    """What each method plans for a job, all priced alike.

    Args:
        methods: names of some of them; None for all.

    Returns:
        One row a method: its plan in words, seconds of an iteration and what no plan can beat,
        bytes of an iteration on links inside machines and between them, memory of the fullest
        device, and whether it fits.

    Raises:
        UsageError: there is no such method.
    """
    import pandas as pd

    line = Lineup(job=job)
    known = line.methods
    rows = []
    for name in methods or known:
        if name not in known:
            raise not_among("methods: method", name, known)
        plan, price = line.fitting(known[name]())
        (inside_bytes, between_bytes) = line.link_bytes(plan)
        rows.append(
            {
                "method": name,
                "plan": line.words(plan),
                "iteration_s": price.iteration_s,
                "bound_s": line.bound_s,
                "inside_machines_bytes": inside_bytes,
                "between_machines_bytes": between_bytes,
                "device_memory_bytes": price.memory_bytes,
                "fits": price.memory_bytes <= job.memory_bytes,
            }
        )
    return pd.DataFrame(rows)
