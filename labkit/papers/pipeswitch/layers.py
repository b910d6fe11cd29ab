"""A model arrives over the host link while its first layers already run on the GPU.

Layers are sent in groups, one call each, and a group runs once it is whole::

    arrival[g] = arrival[g - 1] + call_s + bytes[g] / bandwidth
    end[g]     = max(arrival[g], end[g - 1]) + sync_s + compute_s[g]

Small groups overlap better and pay more calls. :func:`best_groups` finds the grouping that ends
first: after k groups and i layers the arrival is known, so the earliest end of that pair is all
that a longer plan needs, and a dynamic program over (k, i) is exact.

Source: Bai et al., PipeSwitch (OSDI'20), §4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, checked, description
from labkit.planner.chain import Chain


@description
class Layers:
    """A model's layers in the order they run, as they are sent to a GPU.

    Attributes:
        compute_s: seconds of each layer's forward pass.
        parameter_bytes: each layer's weights.

    Raises:
        BadValue: there are no layers, no weights, or as many of the one as of the other.
    """

    compute_s: tuple[NonNegative, ...]
    parameter_bytes: tuple[NonNegative, ...]

    def __post_init__(self) -> None:
        if len(self.compute_s) != len(self.parameter_bytes):
            counts = f"{len(self.parameter_bytes)} values, compute_s {len(self.compute_s)}"
            raise BadValue(f"Layers.parameter_bytes has {counts}")
        if not sum(self.parameter_bytes) > 0:
            raise BadValue("Layers need at least one layer with weights")

    @classmethod
    @checked
    def merged(
        cls,
        compute_s: Sequence[NonNegative],
        parameter_bytes: Sequence[NonNegative],
        *,
        total_s: Positive | None = None,
    ) -> Layers:
        """Layers with weights, from a profile.

        A layer without weights joins the last one that has some: to end a group before it would
        only let it run later. Layers before the first weights join that one, and wait for it.

        Args:
            compute_s: seconds of each layer's forward pass.
            parameter_bytes: each layer's weights; some may have none.
            total_s: seconds of the forward pass, to which the profile's are scaled; None: as they
                are.
        """
        sizes = np.asarray(parameter_bytes, float)
        work = np.asarray(compute_s, float)
        with_weights = np.flatnonzero(sizes)
        if not len(with_weights) or sizes.size != work.size or not work.sum() > 0:
            got = f"got {work.size} and {sizes.size}"
            raise BadValue(f"Layers.merged: as many seconds as bytes, some of each above 0; {got}")
        starts = np.r_[0, with_weights[1:]]
        scale = 1.0 if total_s is None else total_s / work.sum()
        return cls(
            compute_s=np.add.reduceat(work * scale, starts).tolist(),
            parameter_bytes=np.add.reduceat(sizes, starts).tolist(),
        )

    @classmethod
    @checked
    def resnet152(cls, resnet50: Chain, *, total_s: Positive | None = None) -> Layers:
        """ResNet-152 from a profile of ResNet-50: same blocks, more of two of its stages' last.

        Args:
            resnet50: its profile, with PipeDream's names of layers.
            total_s: as of :meth:`merged`.

        The stages have 3, 8, 36 and 3 residual blocks instead of 3, 4, 6 and 3 (He et al. 2016).
        A block ends with the activation after its addition.
        """
        ends = [i + 2 for i, name in enumerate(resnet50.layers) if name.endswith("Add")]
        if len(ends) != 16:
            raise BadValue(f"Layers.resnet152: ResNet-50 has 16 residual blocks; got {len(ends)}")
        blocks = np.split(np.arange(len(resnet50)), ends)
        times = dict.fromkeys(range(len(blocks)), 1)
        times |= {6: 5, 12: 31}  # the last blocks of the second and of the third stage
        order = np.concatenate([np.tile(blocks[place], count) for place, count in times.items()])
        seconds = np.array(resnet50.forward_s)[order]
        sizes = np.array(resnet50.parameter_bytes)[order]
        return cls.merged(seconds.tolist(), sizes.tolist(), total_s=total_s)

    @classmethod
    @checked
    def bert_base(cls, *, total_s: Positive, vocab: Count = 28_996) -> Layers:
        """BERT-base in 32 bits, module by module; seconds in proportion to the weights of products.

        Embeddings take no time; what attention does beside its products is left out.

        Args:
            total_s: seconds of the forward pass.
            vocab: words of the embedding; default: those of the cased model.

        Source: Devlin et al. 2019, §3.
        """
        hidden = 768
        norm = 2 * 768
        square = hidden * hidden + hidden
        wide = 4 * hidden * hidden
        products = [square] * 4 + [0, wide + 4 * hidden, wide + hidden, 0]
        layer = [weights or norm for weights in products]
        embeddings = [vocab * hidden, 512 * hidden, 2 * hidden, norm]
        sizes = 4.0 * np.array([*embeddings, *layer * 12, square])
        work = [0.0] * 4 + [float(p) for p in products * 12] + [0.0]
        return cls.merged(work, sizes.tolist(), total_s=total_s)

    def __len__(self) -> int:
        return len(self.compute_s)

    @property
    def ready_s(self) -> float:
        """Seconds of the forward pass where all weights are on the GPU already."""
        return sum(self.compute_s)

    @property
    def total_bytes(self) -> float:
        """Weights of all layers."""
        return sum(self.parameter_bytes)


@description
class Link:
    """The link from host to GPU.

    Attributes:
        bandwidth_bytes_per_s: of one copy.
        call_s: seconds of a copy beside its bytes.
        sync_s: seconds for which a group's computation waits to learn that its copy is done.
    """

    bandwidth_bytes_per_s: Positive
    call_s: NonNegative = 0.0
    sync_s: NonNegative = 0.0

    @classmethod
    @checked
    def fit(
        cls, layers: Layers, *, whole_s: Positive, layer_by_layer_s: Positive, streamed_s: Positive
    ) -> Link:
        """The link behind three measured runs of one model.

        Args:
            layers: the model that was run.
            whole_s: one copy, then the forward pass.
            layer_by_layer_s: a copy for each layer, then the forward pass.
            streamed_s: a copy for each layer, and each layer runs when it has arrived.

        Raises:
            BadValue: no link gives these seconds: a run is shorter than what it contains.
        """
        copy_s = whole_s - layers.ready_s
        calls_s = layer_by_layer_s - whole_s
        if copy_s <= 0 or calls_s < 0 or len(layers) < 2:
            raise BadValue(
                f"Link.fit: whole_s must exceed the {layers.ready_s:.4g} s of computing, and "
                f"layer_by_layer_s reach it; got {whole_s:.4g} and {layer_by_layer_s:.4g} s"
            )
        call_s = calls_s / (len(layers) - 1)
        bandwidth = layers.total_bytes / (copy_s - call_s)
        lowest_s = 0.0
        highest_s = streamed_s / len(layers)
        for _ in range(60):  # the end never falls as sync_s rises
            sync_s = (lowest_s + highest_s) / 2
            link = cls(bandwidth_bytes_per_s=bandwidth, call_s=call_s, sync_s=sync_s)
            if stream(layers, link, (1,) * len(layers)).end_s > streamed_s:
                highest_s = sync_s
            else:
                lowest_s = sync_s
        return link

    @checked
    def shared(self, gpus: Count) -> Link:
        """The link of one of several GPUs that copy at once behind it."""
        return replace(self, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s / gpus)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """When each group of layers has arrived, and when it has run."""

    arrival_s: tuple[float, ...]
    finish_s: tuple[float, ...]

    @property
    def end_s(self) -> float:
        """When the last group has run."""
        return self.finish_s[-1]


@checked
def stream(layers: Layers, link: Link, groups: Sequence[Count]) -> Stream:
    """When each group arrives and ends.

    Args:
        layers: the model.
        link: over which it comes.
        groups: how many layers each group holds, in order.

    Raises:
        BadValue: the groups do not hold the layers exactly.

    Source: §4.2.

    >>> layers = Layers(compute_s=(1.0, 1.0), parameter_bytes=(4.0, 2.0))
    >>> stream(layers, Link(bandwidth_bytes_per_s=2.0), (1, 1)).finish_s
    (3.0, 4.0)
    """
    if sum(groups) != len(layers):
        raise BadValue(f"stream: groups must hold {len(layers)} layers; got {sum(groups)}")
    starts = np.r_[0, np.cumsum(groups)[:-1]]
    sizes = np.add.reduceat(layers.parameter_bytes, starts)
    arrival_s = np.cumsum(link.call_s + sizes / link.bandwidth_bytes_per_s).tolist()
    ends_s = []
    now = 0.0
    work_s = np.add.reduceat(layers.compute_s, starts)
    for arrived_s, group_s in zip(arrival_s, work_s, strict=True):
        now = max(arrived_s, now) + link.sync_s + float(group_s)
        ends_s.append(now)
    return Stream(arrival_s=tuple(arrival_s), finish_s=tuple(ends_s))


@checked
def best_groups(layers: Layers, link: Link) -> tuple[int, ...]:
    """The groups whose forward pass ends first, by dynamic programming; of equals, the fewest.

    1. ``end[i]`` after k groups of i layers: the least over j < i, the layers of k - 1 groups, of
       max(arrival(k, i), end(k - 1, j)) + sync_s + compute_s of layers j to i.
    2. Stop at the first k whose last copy alone ends later than the best plan so far.
    3. Follow the best plan's groups back from the last layer.

    O(layers² × groups).

    Args:
        layers: the model.
        link: over which it comes.
    """
    num_layers = len(layers)
    computed_s = np.r_[0.0, np.cumsum(layers.compute_s)]
    sent_s = np.r_[0.0, np.cumsum(layers.parameter_bytes)] / link.bandwidth_bytes_per_s
    group_s = computed_s[None, :] - computed_s[:, None] + link.sync_s  # of layers [j, i]
    group_s[np.tril_indices(num_layers + 1)] = np.inf
    # 1. The earliest end by layers, for one group, two groups, and so on.
    end_s = np.full(num_layers + 1, np.inf)
    end_s[0] = 0.0
    best_s = np.inf
    best_count = 0
    layers_before = [np.zeros(0, int)]
    for count in range(1, num_layers + 1):
        arrival_s = sent_s + count * link.call_s
        if arrival_s[-1] >= best_s:  # 2. No longer plan can be better.
            break
        tried_s = np.maximum(arrival_s[None, :], end_s[:, None]) + group_s
        layers_before.append(tried_s.argmin(axis=0))
        end_s = tried_s.min(axis=0)
        if end_s[-1] < best_s * (1 - 1e-12):
            best_s = end_s[-1]
            best_count = count
    # 3. Back from the last layer, group by group.
    cuts = [num_layers]
    for count in range(best_count, 0, -1):
        cuts.append(int(layers_before[count][cuts[-1]]))
    return tuple(np.diff(cuts[::-1]).tolist())


@checked
def bound_s(layers: Layers, link: Link) -> float:
    """The second in which the forward pass ends at the earliest, however layers are grouped.

    Either the GPU computes without a gap once the first layer has arrived, or the last layer
    runs after all bytes have; one call and one wait at least.

    Args:
        layers: the model.
        link: over which it comes.
    """
    first_s = layers.parameter_bytes[0] / link.bandwidth_bytes_per_s
    last_s = layers.total_bytes / link.bandwidth_bytes_per_s
    paid_s = link.call_s + link.sync_s
    return paid_s + max(first_s + layers.ready_s, last_s + layers.compute_s[-1])


def equal_groups(num_layers: int) -> tuple[int, ...]:
    """Groups of as many layers as there are groups, without a search: the root of their number.

    Args:
        num_layers: of the model; the last group may be smaller.

    >>> equal_groups(11)
    (3, 3, 3, 2)
    """
    size = max(1, round(num_layers**0.5))
    whole, rest = divmod(num_layers, size)
    return (size,) * whole + (rest,) * (rest > 0)
