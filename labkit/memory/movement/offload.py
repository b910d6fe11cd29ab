"""Model states beside the device: what the GPU, the host and its NVMe hold, and what moves.

The bytes of a :class:`~labkit.memory.jobs.recipe.Recipe` that keeps states elsewhere (ZeRO-Offload,
ZeRO-Infinity), and what crosses each link in a step.

Source: Ren et al. 2021 (ZeRO-Offload), §3; Rajbhandari et al. 2021 (ZeRO-Infinity), §4 and §6.
"""

from __future__ import annotations

from collections.abc import Iterable
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

    def bytes_at(self, place: Place) -> float:
        return sum(state.num_bytes for state in self.held if state.place == place)

    def bytes_over(self, *links: Link) -> float:
        return sum(flow.num_bytes for flow in self.flows if flow.place in links)

    @property
    def device_bytes(self) -> float:
        return self.bytes_at("device")

    @property
    def cpu_bytes(self) -> float:
        return self.bytes_at("cpu")

    @property
    def nvme_bytes(self) -> float:
        return self.bytes_at("nvme")

    @property
    def pcie_bytes(self) -> float:
        """Bytes a step between host and device, both ways."""
        return self.bytes_over("PCIe to device", "PCIe to host")

    @property
    def nvme_traffic_bytes(self) -> float:
        """Bytes a step from and to NVMe."""
        return self.bytes_over("NVMe read", "NVMe write")

    def frame(self) -> pd.DataFrame:
        """What is where: component, bytes, formula, source, place."""
        return _table(self.held)

    def traffic(self) -> pd.DataFrame:
        """What moves in a step: what, bytes, formula, source, link."""
        return _table(self.flows).rename(columns={"component": "what", "place": "link"})

    def step_s(self, *, pcie_bytes_per_s: float, nvme_bytes_per_s: float) -> float:
        """Least seconds that the transfers take, the two links at work at once, each one way
        at a time; bandwidths are one rank's."""
        return max(
            self.bytes_over("PCIe to device") / pcie_bytes_per_s,
            self.bytes_over("PCIe to host") / pcie_bytes_per_s,
            self.nvme_traffic_bytes / nvme_bytes_per_s,
        )


def _table(terms: Iterable[Term]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([asdict(term) for term in terms])


@checked
def offload(
    model: Model | Count, parallel: Parallel, recipe: Recipe, *, device: Whole = 0
) -> Offload:
    """Bytes and traffic of one rank; ``recipe.offload_*`` say where each state is kept.

    ``model`` may be a parameter count. Shards are even, as the papers count.

    Raises:
        BadValue: ZeRO's stage cannot keep a state there (:meth:`Recipe.check_offload`).

    >>> recipe = Recipe(offload_gradients="cpu", offload_optimizer="cpu")
    >>> found = offload(10**9, Parallel(zero=2), recipe)
    >>> found.device_bytes / 1e9, found.cpu_bytes / 1e9, found.pcie_bytes / 1e9
    (2.0, 14.0, 4.0)
    """
    recipe.check_offload(parallel.zero)
    elements = _elements(model, parallel, device)
    held = tuple(_held(component, elements, parallel, recipe) for component in COMPONENTS)
    shard = {state.component: state.num_bytes for state in held}
    shard |= {name: _sharded(name, elements, parallel, recipe) for name in COMPONENTS}
    return Offload(held=held, flows=tuple(_flows(shard, recipe)))


def _elements(model: Model | int, parallel: Parallel, device: int) -> tuple[float, float]:
    """Parameters of a rank before ZeRO: usual ones, and those of routed experts."""
    if isinstance(model, int):
        return model / parallel.tp / parallel.pp, 0.0
    return parallel.elements(model, device)


def _sharded(
    component: str, elements: tuple[float, float], parallel: Parallel, recipe: Recipe
) -> float:
    usual, experts = elements
    share = usual / parallel.shard_degree + experts / parallel.expert_shard_degree
    return float(recipe.bytes_of(component) * share)


def _held(
    component: str, elements: tuple[float, float], parallel: Parallel, recipe: Recipe
) -> Term:
    place: Place = getattr(recipe, f"offload_{component}")
    width = recipe.bytes_of(component)
    # What leaves the device is always a shard: at stage 1 too, the host gets what it updates.
    if place != "device" or is_sharded(component, parallel.zero):
        size = _sharded(component, elements, parallel, recipe)
        formula = f"{width} B × Ψ/{parallel.shard_degree}"
    else:
        size, formula = float(width * sum(elements)), f"{width} B × Ψ"
    source = {"device": "ZeRO §5", "cpu": OFFLOAD, "nvme": INFINITY}[place]
    return Term(component=component, num_bytes=size, formula=formula, source=source, place=place)


def _flows(shard: dict[str, float], recipe: Recipe) -> Iterable[Term]:
    """Per optimizer step of m micro-batches; P, G, K are a rank's shards of the three states."""
    often = recipe.accumulation
    where = {name: getattr(recipe, f"offload_{name}") for name in COMPONENTS}
    update_away = where["optimizer"] != "device"
    yield from _parameter_flows(shard["parameters"], where["parameters"], often, update_away)
    yield from _gradient_flows(shard["gradients"], where["gradients"], often, update_away)
    if where["optimizer"] == "nvme":
        size, text = shard["optimizer"], "K: read, updated by the CPU"
        yield _flow("optimizer states", "NVMe read", size, text, INFINITY)
        yield _flow("optimizer states", "NVMe write", size, "K: written back", INFINITY)


def _parameter_flows(size: float, place: str, often: int, update_away: bool) -> Iterable[Term]:
    """Forward and backward each bring a rank's shard once a micro-batch; all-gathers do the rest
    (bandwidth-centric partitioning, ZeRO-Infinity §6.1). The update sends what it changed."""
    if place != "device":
        text, passes = f"2·{often} × P: forward and backward", 2 * often * size
        yield _flow("parameters", "PCIe to device", passes, text, INFINITY)
        if place == "nvme":
            yield _flow("parameters", "NVMe read", passes, text, INFINITY)
            yield _flow("updated parameters", "NVMe write", size, "P", INFINITY)
        if not update_away:
            yield _flow("updated parameters", "PCIe to host", size, "P", INFINITY)
    elif update_away:
        yield _flow("updated parameters", "PCIe to device", size, "P", OFFLOAD)


def _gradient_flows(size: float, place: str, often: int, update_away: bool) -> Iterable[Term]:
    """Gradients leave as they are reduced, once a micro-batch where they are kept away, once a
    step where only the update is; they come back where the update is on the device."""
    if place != "device":
        yield _flow("gradients", "PCIe to host", often * size, f"{often} × G", OFFLOAD)
        if place == "nvme":
            yield _flow("gradients", "NVMe write", often * size, f"{often} × G", INFINITY)
            reads = often * size  # every sum but the first reads the last, and the update reads it
            yield _flow("gradients", "NVMe read", reads, f"{often} × G: sums, update", INFINITY)
        if not update_away:
            yield _flow("gradients", "PCIe to device", size, "G: to the update", OFFLOAD)
    elif update_away:
        yield _flow("gradients", "PCIe to host", size, "G, once a step", OFFLOAD)


def _flow(what: str, link: Link, num_bytes: float, formula: str, source: str) -> Term:
    return Term(component=what, num_bytes=num_bytes, formula=formula, source=source, place=link)
