"""``labkit planner``: stages of a network on devices, from the shell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast, get_args

from labkit import planner
from labkit.errors import BadValue, UsageError, not_among
from labkit.kit.command import Commands, argument, byte_count, numbers, option
from labkit.kit.report import Report, Sheet, records, standin_banner
from labkit.planner.chain import NamedChain, open_chain, short_names
from labkit.planner.costing import COSTINGS, CostingName
from labkit.planner.layouts import Layouts
from labkit.planner.networks import NAMES, transformer_names
from labkit.planner.plans import Objective, Plan

if TYPE_CHECKING:
    import pandas as pd

commands = Commands(
    "planner",
    """
    Parallel training plans: which layers stand on which devices, and what bounds them.

    A profile is PipeDream's graph.txt, a CSV file (columns layer, forward_s, backward_s,
    activation_bytes, cut_bytes, parameter_bytes), or the short name of a published one
    (vgg16, resnet50, gnmt, …).
    """,
)


Profile = Annotated[
    str, argument("A file or a short name.", metavar="PROFILE", complete=short_names)
]


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Devices and links."""

    PANEL: ClassVar[str] = "Devices"
    devices: Annotated[int, option("Devices in all.", "--devices", "-d")] = 16
    bandwidth: Annotated[
        str, option("Of a device's link (with --inside, of a machine's).", metavar="BYTES/S")
    ] = "1.25GB"
    latency: Annotated[float, option("Seconds of a message at least.", metavar="S")] = 0.0
    inside: Annotated[int, option("Devices in a machine; 0: links are all alike.")] = 0
    inside_bandwidth: Annotated[
        str, option("Of a device's link inside its machine.", metavar="BYTES/S")
    ] = "12GB"

    @property
    def fabric(self) -> planner.Fabric:
        """The fabric described."""
        rate = byte_count("--bandwidth", self.bandwidth)
        if not self.inside:
            return planner.Fabric.flat(
                self.devices, bandwidth_bytes_per_s=rate, latency_s=self.latency
            )
        if self.devices % self.inside:
            raise UsageError(f"--devices {self.devices} is no multiple of --inside {self.inside}")
        return planner.Fabric.machines(
            self.devices // self.inside,
            self.inside,
            inside_bytes_per_s=byte_count("--inside-bandwidth", self.inside_bandwidth),
            between_bytes_per_s=rate,
            latency_s=self.latency,
        )


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What a plan should be good at."""

    PANEL: ClassVar[str] = "Aim"
    objective: Annotated[str, option("throughput, latency or flush.")] = "throughput"
    costing: Annotated[str, option(f"How costs add up: {', '.join(COSTINGS)}.")] = "ring"
    microbatches: Annotated[
        int | None, option("Of an iteration, for latency and flush.", "--microbatches", "-m")
    ] = None
    memory: Annotated[str, option("What a device has, such as 16GB.", metavar="BYTES")] = ""
    coarse: Annotated[bool, option("Cut only where a single tensor crosses.")] = False

    def plan(self, chain: planner.Chain, fabric: planner.Fabric) -> Plan:
        """The best plan."""
        for name, value, valid in (
            ("objective", self.objective, get_args(Objective)),
            ("costing", self.costing, COSTINGS),
        ):
            if value not in valid:
                raise not_among(name, value, valid)
        return planner.plan(
            chain,
            fabric,
            objective=cast(Objective, self.objective),
            costing=cast(CostingName, self.costing),
            num_microbatches=self.microbatches,
            memory_bytes=byte_count("--memory", self.memory) if self.memory else None,
        )

    def opened(self, profile: str) -> NamedChain:
        """The profile, merged where that is asked for."""
        named = open_chain(profile)
        return named._replace(chain=named.chain.coarse()) if self.coarse else named


def _banner(named: NamedChain) -> str:
    return standin_banner({f"the layer times of {named.origin}": named.standin_reason})


def _plan_data(plan: Plan) -> dict[str, Any]:
    keys = ("name", "cost_s", "bound_s", "gap", "evaluations", "num_devices")
    return {**{key: getattr(plan, key) for key in keys}, "cuts": plan.cuts}


@commands.add(
    examples=[
        "labkit planner plan vgg16 -d 16 --bandwidth 1.25GB",
        "labkit planner plan alexnet -d 8 --objective latency -m 16 --coarse",
        "labkit planner plan vgg16 -d 16 --inside 4 --bandwidth 1.25GB --inside-bandwidth 12GB",
    ]
)
def plan(profile: Profile, devices: Devices, aim: Aim) -> Report:
    """The best stages: layers, replicas, what limits them, what another bandwidth would cost."""
    named = aim.opened(profile)
    fabric = devices.fabric
    start = process_time()
    best = aim.plan(named.chain, fabric)
    took = process_time() - start
    table = best.frame()
    flat = len(fabric.levels) == 1
    links = planner.sensitivity(best, bandwidth=(0.25, 0.5, 2.0, 4.0)) if flat else None
    tables = [Sheet(table=table, heading="stages", wide=("num_layers", "in_flight"))]
    if links is not None:
        note = "kept: this plan; best: the best one there"
        tables.append(Sheet(table=links, heading="links so many times as fast", note=note))
    return Report(
        title=f"{named.origin} on {fabric.num_devices} devices: {best.name}",
        lead=best.why(),
        banner=_banner(named),
        facts=[
            ("cost_s", best.cost_s, best.objective),
            ("gap_fraction", best.gap, "no plan can be cheaper by more"),
            ("one device_s", named.chain.time_s, "a minibatch"),
            ("planned in_s", took, f"{best.evaluations:,} evaluations"),
        ],
        tables=tables,
        data={
            "command": "plan",
            "plan": _plan_data(best),
            "stages": records(table),
            "bandwidth": records(links) if links is not None else [],
        },
        figures=lambda: [
            ("Layers", "", planner.figure_layers(named.chain, plans={best.name: best})),
            *([("Stages", "", planner.figure_plans({named.origin: best}))] if flat else []),
        ],
    )


@commands.add(
    examples=[
        "labkit planner compare vgg16",
        "labkit planner compare gnmt -d 4 --bandwidths 0.5,1.25,5",
    ]
)
def compare(
    profile: Profile,
    devices: Devices,
    aim: Aim,
    *,
    bandwidths: Annotated[
        str, option("GB/s of every link, several: a row each.", panel="Devices", metavar="X,…")
    ] = "",
) -> Report:
    """The plan under every costing, beside data parallelism."""
    if devices.inside or aim.objective != "throughput" or aim.memory:
        raise UsageError(
            "compare takes links that are all alike, objective throughput and no --memory"
        )
    named = aim.opened(profile)
    rates = [rate * 1e9 for rate in numbers("--bandwidths", bandwidths)]
    rates = rates or [devices.fabric.levels[0].bandwidth_bytes_per_s]
    fabrics = [
        planner.Fabric.flat(devices.devices, bandwidth_bytes_per_s=rate, latency_s=devices.latency)
        for rate in rates
    ]
    table = planner.sweep({named.origin: named.chain}, fabrics, costings=COSTINGS)
    columns = {
        "bandwidth_gb_per_s": "bandwidth",
        "costing": "costing",
        "plan": "plan",
        "cost_s": "cost",
        "data_parallel_s": "data parallel",
        "speedup": "speed-up",
        "bytes_saved_fraction": "fewer bytes",
        "fullest_bytes": "fullest",
    }
    return Report(
        title=f"{named.origin} on {devices.devices} devices",
        lead="Seconds a minibatch in steady state; speedup over data parallelism.",
        banner=_banner(named),
        tables=[Sheet(table=table, columns=columns)],
        data={"command": "compare", "plans": records(table)},
        csv=table,
    )


def _networks() -> list[str]:
    return [*NAMES, *transformer_names()]


def _stretches(parts: pd.DataFrame) -> pd.DataFrame:
    """Operators one after the other that are split alike, as one row."""
    parts = parts[parts["kind"] != "input"]
    number = (parts["layout"] != parts["layout"].shift()).cumsum()
    whole = parts.groupby(number).agg(
        first=("operator", "first"),
        last=("operator", "last"),
        operators=("operator", "size"),
        layout=("layout", "first"),
        compute_s=("compute_s", "sum"),
        transfers_s=("transfers_s", "sum"),
        gradients_s=("gradients_s", "sum"),
        transferred_bytes=("transferred_bytes", "sum"),
        gradient_bytes=("gradient_bytes", "sum"),
    )
    return whole.reset_index(drop=True)


def _rivals(layouts: Layouts) -> dict[str, float]:
    """Seconds of a step with one layout for all operators, and with one more for dense ones.

    Of a transformer also Megatron-LM's layouts, in groups of each size. A
    batch that has too few samples for all devices knows some of them only.
    """
    devices = layouts.fabric.num_devices
    samples = (devices, 1, 1, 1)
    channels = (1, devices, 1, 1)
    plans: dict[str, Callable[[], dict[str, str]]] = {
        "data parallel": partial(layouts.same, samples),
        "dense layers by channels": partial(layouts.same, samples, channels),
    }
    groups = range(2, devices + 1) if layouts.network.is_transformer else ()
    for ways in groups:
        if devices % ways == 0:
            named = f"columns, then rows, in groups of {ways}"
            plans[named] = partial(layouts.columns_then_rows, ways, devices // ways)
    rivals = {}
    for name, plan in plans.items():
        try:
            rivals[name] = layouts.problem.cost(plan())
        except BadValue:
            continue
    return rivals


@commands.add(
    examples=[
        "labkit planner split alexnet -d 4 --batch 128",
        "labkit planner split vgg16 -d 16 --batch 512 --tflops 8 --inside 4",
        "labkit planner split gpt2-124m -d 4 --batch 8 --bandwidth 150GB --tflops 50",
    ]
)
def split(
    network: Annotated[
        str,
        argument(
            f"A network: {', '.join(NAMES)}, or a GPT of data/models.yaml.",
            metavar="NETWORK",
            complete=_networks,
        ),
    ],
    devices: Devices,
    *,
    batch: Annotated[int, option("Samples of a step, on all devices.", panel="Step")] = 256,
    tflops: Annotated[
        float, option("TFLOP/s that a device sustains.", panel="Step", metavar="X")
    ] = 5.0,
    length: Annotated[
        int | None, option("Tokens of a sequence, of a transformer.", panel="Step")
    ] = None,
) -> Report:
    """How each operator is split over the devices: the best layouts, and what nothing can beat."""
    layouts = planner.split(
        planner.network(network, batch=batch, length=length),
        devices.fabric,
        flops_per_s=tflops * 1e12,
    )
    start = process_time()
    best = planner.choose(layouts.problem)
    took = process_time() - start
    table = _stretches(layouts.parts(best.plan))
    rivals = _rivals(layouts)
    columns = {
        "first": "from",
        "last": "to",
        "layout": "layout",
        "compute_s": "compute",
        "transfers_s": "transfers",
        "gradients_s": "gradients",
    }
    return Report(
        title=f"{network} on {devices.devices} devices, {batch} samples a step",
        lead="A layout says into how many parts an output is cut, along which axes. Operators that "
        "are split alike stand in one row.",
        facts=[
            ("step_s", best.cost, "compute, transfers and gradients one after the other"),
            ("gap_fraction", max(best.gap, 0.0), "no layouts can be cheaper by more"),
            *((f"{name}_s", seconds, "a step") for name, seconds in rivals.items()),
            ("planned in_s", took, f"{best.evaluations:,} entries of tables"),
        ],
        tables=[Sheet(table=table, columns=columns, heading="layouts")],
        data={
            "command": "split",
            "step_s": best.cost,
            "bound_s": best.bound,
            "rivals_s": rivals,
            "layouts": dict(best.plan),
            "stretches": records(table),
        },
        csv=table,
    )


@commands.add(
    examples=[
        "labkit planner lineup gpt2-124m -d 8 --inside 4 --batch 16 --length 256",
        "labkit planner lineup gpt3-1.3b -d 16 --inside 8 --bandwidth 12.5GB "
        "--inside-bandwidth 150GB --batch 64 --tflops 50 --memory 32GiB",
    ]
)
def lineup(
    network: Annotated[
        str,
        argument("A GPT of data/models.yaml.", metavar="MODEL", complete=transformer_names),
    ],
    devices: Devices,
    *,
    batch: Annotated[int, option("Sequences of an iteration.", panel="Step")] = 64,
    tflops: Annotated[
        float, option("TFLOP/s that a device sustains.", panel="Step", metavar="X")
    ] = 50.0,
    length: Annotated[int, option("Tokens of a sequence.", panel="Step")] = 1024,
    memory: Annotated[
        str, option("What a device has, such as 16GB.", panel="Devices", metavar="BYTES")
    ] = "32GiB",
) -> Report:
    """What the planners of thirteen papers choose for one transformer, all priced alike."""
    job = planner.Job(
        model=network,
        batch=batch,
        length=length,
        fabric=devices.fabric,
        flops_per_s=tflops * 1e12,
        memory_bytes=byte_count("--memory", memory),
    )
    start = process_time()
    table = planner.lineup(job)
    took = process_time() - start
    columns = {
        "method": "method",
        "plan": "plan",
        "iteration_s": "iteration",
        "inside_machines_bytes": "inside machines",
        "between_machines_bytes": "between machines",
        "device_memory_bytes": "memory of a device",
        "fits": "fits",
    }
    return Report(
        title=f"{network} on {devices.devices} devices, {batch} sequences of {length} tokens",
        lead="Seconds of an iteration, its bytes on links, and what the fullest device holds. Each "
        "method searches what its paper does, in one price for all.",
        facts=[
            ("bound_s", float(table["bound_s"].iloc[0]), "all operations on all devices alone"),
            ("planned in_s", took, "all methods"),
        ],
        tables=[Sheet(table=table, columns=columns, wide=("plan",))],
        data={"command": "lineup", "plans": records(table)},
        csv=table,
    )
