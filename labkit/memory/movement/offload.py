"""Model states beside the device: what the GPU, the host and its NVMe hold, and what moves.

The bytes of a :class:`~labkit.memory.jobs.recipe.Recipe` that keeps states elsewhere (ZeRO-Offload,
ZeRO-Infinity), and what crosses each link in a step.

Source: Ren et al. 2021 (ZeRO-Offload), §3; Rajbhandari et al. 2021 (ZeRO-Infinity), §4 and §6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from labkit.kit.describe import Count, Whole, checked
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Place, Recipe
from labkit.memory.jobs.states import COMPONENTS, is_sharded
from labkit.memory.tape.lines import Term
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd

OFFLOAD = "Ren et al. 2021 (ZeRO-Offload), §3"
INFINITY = "Rajbhandari et al. 2021 (ZeRO-Infinity), §6"
Link = Literal["PCIe to device", "PCIe to host", "NVMe read", "NVMe write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Where one rank's model states are and what moves between device, host and NVMe in a step.

    ``flows`` are of one optimizer step, their ``place`` is a link. Activations, pinned staging
    buffers and the bucket in which gradients leave are not counted.
    """

    held: tuple[Term, ...]
    flows: tuple[Term, ...]

    def bytes_at(self, *places: Place | Link) -> float:
        """Bytes kept at places, or that cross links in a step."""
        return sum(term.num_bytes for term in (*self.held, *self.flows) if term.place in places)

    def frame(self) -> pd.DataFrame:
        """What is where and what moves: component, bytes, formula, source, place or link."""
        import pandas as pd

        return pd.DataFrame([asdict(term) for term in (*self.held, *self.flows)])

    def step_s(self, *, pcie_bytes_per_s: float, nvme_bytes_per_s: float) -> float:
        """Least seconds that the transfers take, the two links at work at once, each one way
        at a time; bandwidths are one rank's."""
        return max(
            self.bytes_at("PCIe to device") / pcie_bytes_per_s,
            self.bytes_at("PCIe to host") / pcie_bytes_per_s,
            self.bytes_at("NVMe read", "NVMe write") / nvme_bytes_per_s,
        )


@checked
def offload(
    model: Model | Count, parallel: Parallel, recipe: Recipe, *, device: Whole = 0
) -> Offload:
    """Bytes and traffic of one rank; ``recipe.offload_*`` say where each state is kept.

    ``model`` may be a parameter count. Shards are even, as the papers count.

    Raises:
        BadValue: ZeRO's stage cannot keep a state there (:meth:`Recipe.check_offload`).

    >>> recipe = Recipe(offload_gradients="cpu", offload_optimizer="cpu")
    >>> placed = offload(10**9, Parallel(zero=2), recipe)
    >>> [placed.bytes_at(place) / 1e9 for place in ("device", "cpu", "PCIe to host")]
    [2.0, 14.0, 2.0]
    """
    recipe.check_offload(parallel.zero)
    if isinstance(model, int):
        usual, experts = model / parallel.tp / parallel.pp, 0.0
    else:
        usual, experts = parallel.elements(model, device)
    share = usual / parallel.shard_degree + experts / parallel.expert_shard_degree
    held = []
    for component in COMPONENTS:
        place: Place = getattr(recipe, f"offload_{component}")
        width = recipe.bytes_of(component)
        # What leaves the device is always a shard: at stage 1 too, the host gets what it updates.
        sharded = place != "device" or is_sharded(component, parallel.zero)
        held.append(
            Term(
                component=component,
                num_bytes=float(width * (share if sharded else usual + experts)),
                formula=f"{width} B × Ψ" + (f"/{parallel.shard_degree}" if sharded else ""),
                source={"device": "ZeRO §5", "cpu": OFFLOAD, "nvme": INFINITY}[place],
                place=place,
            )
        )
    return Offload(held=tuple(held), flows=tuple(_flows(share, recipe)))


def _flows(share: float, recipe: Recipe) -> Iterator[Term]:
    """Per optimizer step of m micro-batches; P, G, K are a rank's shards of the three states.

    Parameters kept away come once forward and once backward in every micro-batch; all-gathers do
    the rest (bandwidth-centric partitioning, ZeRO-Infinity §6.1). Gradients leave as they are
    reduced, once a micro-batch where they are kept away, once a step where only the update is.
    What the update needs comes to it, and what it changed goes back.
    """
    often = recipe.accumulation
    size = {name: recipe.bytes_of(name) * share for name in COMPONENTS}
    where = {name: getattr(recipe, f"offload_{name}") for name in COMPONENTS}
    update_away = where["optimizer"] != "device"

    def flow(what: str, link: Link, times: int, formula: str, source: str = INFINITY) -> Term:
        moved = times * size[what.split()[-1]]
        return Term(component=what, num_bytes=moved, formula=formula, source=source, place=link)

    if where["parameters"] != "device":
        passes = f"2·{often} × P: forward and backward"
        yield flow("parameters", "PCIe to device", 2 * often, passes)
        if where["parameters"] == "nvme":
            yield flow("parameters", "NVMe read", 2 * often, passes)
            yield flow("updated parameters", "NVMe write", 1, "P")
        if not update_away:
            yield flow("updated parameters", "PCIe to host", 1, "P")
    elif update_away:
        yield flow("updated parameters", "PCIe to device", 1, "P", OFFLOAD)
    if where["gradients"] != "device":
        yield flow("gradients", "PCIe to host", often, f"{often} × G", OFFLOAD)
        if where["gradients"] == "nvme":
            yield flow("gradients", "NVMe write", often, f"{often} × G")
            # Every sum but the first reads the last, and the update reads it.
            yield flow("gradients", "NVMe read", often, f"{often} × G: sums, update")
        if not update_away:
            yield flow("gradients", "PCIe to device", 1, "G: to the update", OFFLOAD)
    elif update_away:
        yield flow("gradients", "PCIe to host", 1, "G, once a step", OFFLOAD)
    if where["optimizer"] == "nvme":
        yield flow("optimizer", "NVMe read", 1, "K: read, updated by the CPU")
        yield flow("optimizer", "NVMe write", 1, "K: written back")
