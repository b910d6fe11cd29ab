"""Model states beside the device: what the GPU, the host and its NVMe hold, and what moves.

Source: Ren et al. 2021 (ZeRO-Offload), §3; Rajbhandari et al. 2021 (ZeRO-Infinity), §4 and §6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from labkit.kit.describe import Count, checked
from labkit.memory.jobs.modules import refuse_frozen
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Place, Recipe
from labkit.memory.jobs.states import COMPONENTS, is_sharded
from labkit.models import Model

Link = Literal["PCIe to device", "PCIe to host", "NVMe read", "NVMe write"]


class Part(NamedTuple):
    """Bytes of a model state at a place, or over a link in a step."""

    component: str
    place: Place | Link
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Where one rank's model states are, and what of them moves in one optimizer step.

    Activations, pinned staging buffers and the bucket in which gradients leave are not counted.
    """

    held: tuple[Part, ...]
    flows: tuple[Part, ...]

    def bytes_at(self, *places: Place | Link) -> float:
        """Bytes kept at the places, or crossing the links in a step, that are named."""
        return sum(part.num_bytes for part in (*self.held, *self.flows) if part.place in places)


@checked
def offload(model: Model | Count, parallel: Parallel, recipe: Recipe) -> Offload:
    """Bytes and traffic of one rank, of a pipeline's first device where there is one.

    Shards are even, as the papers count.

    Args:
        model: its shape, or a number of parameters.
        recipe: its ``offload_*`` say where each state is kept.

    Raises:
        BadValue: ZeRO's stage cannot keep a state there (:meth:`Recipe.check_offload`).

    >>> recipe = Recipe(offload_gradients="cpu", offload_optimizer="cpu")
    >>> placed = offload(10**9, Parallel(zero=2), recipe)
    >>> [placed.bytes_at(place) / 1e9 for place in ("device", "cpu", "PCIe to host")]
    [2.0, 14.0, 2.0]
    """
    recipe.check_offload(parallel.zero)
    refuse_frozen(model, recipe, "offload")
    recipe.refuse_fraction("offload")
    if isinstance(model, int):
        usual = model / parallel.tp / parallel.pp
        experts = 0.0
    else:
        usual, experts = parallel.elements(model)
    share = usual / parallel.shard_degree + experts / parallel.expert_shard_degree
    held = []
    for component in COMPONENTS:
        place: Place = getattr(recipe, f"offload_{component}")
        # What leaves the device is always a shard: at stage 1 too, the host gets what it updates.
        sharded = place != "device" or is_sharded(component, parallel.zero)
        size = recipe.bytes_of(component) * (share if sharded else usual + experts)
        held.append(Part(component, place, float(size)))
    return Offload(held=tuple(held), flows=tuple(_flows(share, recipe)))


def _flows(share: float, recipe: Recipe) -> Iterator[Part]:
    """What crosses links in an optimizer step of m micro-batches, of a rank's shards of the states.

    Parameters kept away come once forward and once backward in every micro-batch; all-gathers do
    the rest (bandwidth-centric partitioning, ZeRO-Infinity §6.1). Gradients leave as they are
    reduced, once a micro-batch where they are kept away, once a step where only the update is. What
    the update needs comes to it, and what it changed goes back.
    """
    often = recipe.accumulation
    update_away = recipe.offload_optimizer != "device"

    def flow(component: str, link: Link, times: int = 1) -> Part:
        return Part(component, link, times * recipe.bytes_of(component) * share)

    if recipe.offload_parameters != "device":
        yield flow("parameters", "PCIe to device", 2 * often)
        if recipe.offload_parameters == "nvme":
            yield flow("parameters", "NVMe read", 2 * often)
            yield flow("parameters", "NVMe write")
        if not update_away:
            yield flow("parameters", "PCIe to host")
    elif update_away:
        yield flow("parameters", "PCIe to device")
    if recipe.offload_gradients != "device":
        yield flow("gradients", "PCIe to host", often)
        if recipe.offload_gradients == "nvme":
            yield flow("gradients", "NVMe write", often)
            yield flow("gradients", "NVMe read", often)  # every sum but the first, and the update
        if not update_away:
            yield flow("gradients", "PCIe to device")
    elif update_away:
        yield flow("gradients", "PCIe to host")
    if recipe.offload_optimizer == "nvme":
        yield flow("optimizer", "NVMe read")
        yield flow("optimizer", "NVMe write")
