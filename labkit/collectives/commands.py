"""``labkit collectives``: what a collective costs, and which algorithm is fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, cast, get_args

from labkit import collectives
from labkit.collectives.building import Name
from labkit.collectives.figures import MOST_ROWS
from labkit.collectives.programs import Op
from labkit.errors import UsageError, not_among
from labkit.kit.command import Commands, argument, byte_count, option
from labkit.kit.report import Report, Sheet, records

commands = Commands(
    "collectives",
    """
    Collectives as programs: seconds on a fabric, bytes on each link, the fastest algorithm.

    Ranks stand on the devices in order. A link carries one message after another: latency each,
    and bytes by its bandwidth.
    """,
)

ALGORITHMS = [name for name in get_args(Name) if name != "sparse-blocks"]  # it asks for numbers
Algorithm = Annotated[str, argument("Such as ring or tree.", metavar="ALGORITHM")]


@dataclass(frozen=True, kw_only=True)
class Links:
    """Ranks and links."""

    PANEL: ClassVar[str] = "Ranks and links"
    workers: Annotated[int, option("Ranks that hold data.", "--workers", "-n")] = 8
    servers: Annotated[int, option("Machines beside them that add up.")] = 0
    bandwidth: Annotated[
        str, option("Of a rank's link (with --inside, of a node's).", metavar="BYTES/S")
    ] = "1.25GB"
    latency: Annotated[float, option("Seconds of a message at least.", metavar="S")] = 1e-5
    inside: Annotated[int, option("Ranks in a node; 0: links are all alike.")] = 0
    inside_bandwidth: Annotated[
        str, option("Of a rank's link inside its node.", metavar="BYTES/S")
    ] = "100GB"

    @property
    def fabric(self) -> collectives.Fabric:
        """The links described."""
        rate = byte_count("--bandwidth", self.bandwidth)
        ranks = self.workers + self.servers
        if not self.inside:
            return collectives.Fabric.flat(
                ranks, bandwidth_bytes_per_s=rate, latency_s=self.latency
            )
        if ranks % self.inside:
            raise UsageError(f"{ranks} ranks are no multiple of --inside {self.inside}")
        return collectives.Fabric.machines(
            ranks // self.inside,
            self.inside,
            inside_bytes_per_s=byte_count("--inside-bandwidth", self.inside_bandwidth),
            between_bytes_per_s=rate,
            latency_s=self.latency,
        )


def _operation(op: str) -> Op:
    if op not in get_args(Op):
        raise not_among("operation", op, get_args(Op))
    return cast(Op, op)


@commands.add(
    examples=[
        "labkit collectives cost ring -n 8 --bytes 100MB",
        "labkit collectives cost byteps -n 8 --servers 4 --bytes 100MB",
        "labkit collectives cost two-level -n 64 --inside 8 --op all-to-all --bytes 1MB",
    ]
)
def cost(
    algorithm: Algorithm,
    links: Links,
    *,
    message: Annotated[str, option("Of each worker.", "--bytes", metavar="BYTES")] = "100MB",
    op: Annotated[str, option(f"{', '.join(get_args(Op))}.")] = "all-reduce",
    pieces: Annotated[int, option("Of a tree or of servers, one behind another.")] = 1,
) -> Report:
    """One algorithm: its steps, the link that limits each, and what no algorithm can beat."""
    operation = _operation(op)
    if algorithm not in ALGORITHMS:
        raise not_among("algorithm", algorithm, ALGORITHMS)
    size = _whole(message)
    fabric = links.fabric
    written = collectives.program(
        cast(Name, algorithm),
        links.workers,
        size,
        op=operation,
        per_node=links.inside or None,
        num_servers=links.servers or None,
        num_pieces=pieces,
        element_bytes=1 if size % 4 else 4,
    )
    priced = collectives.cost(written, fabric)
    bound_s = collectives.bound(operation, fabric, size, num_workers=links.workers)
    steps = priced.frame()
    busy = priced.links().sort_values("busy_s", ascending=False, ignore_index=True)
    return Report(
        title=f"{operation} by {algorithm} among {links.workers} workers",
        lead=priced.why(),
        facts=[
            ("time_s", priced.time_s, f"{written.num_steps} steps"),
            ("bound_s", bound_s, "no algorithm without servers is faster"),
            ("sent_bytes", int(written.sent_bytes.sum()), "by all ranks together"),
            ("busiest_bytes", priced.busiest_bytes, "over the link that is busy longest"),
        ],
        tables=[
            Sheet(table=steps.head(20), heading="steps", note=_rest(steps, 20)),
            Sheet(table=busy.head(8), heading="busiest links", note=_rest(busy, 8)),
        ],
        data={
            "command": "cost",
            **priced.summary(),
            "bound_s": bound_s,
            "steps": records(steps),
            "links": records(busy),
        },
        csv=steps,
        figures=lambda: _picture(written),
    )


def _picture(written: collectives.Program) -> list[tuple[str, str, Any]]:
    if len(written.rows.step) > MOST_ROWS:
        return []
    return [("Who sends to whom", "", collectives.figure_program(written))]


def _rest(table: Any, shown: int) -> str:
    return f"{len(table) - shown} more" if len(table) > shown else ""


def _whole(message: str) -> int:
    size = byte_count("--bytes", message)
    if size < 1:
        raise UsageError(f"--bytes {message} must be at least one byte")
    return round(size)


@commands.add(
    examples=[
        "labkit collectives compare -n 16 --bytes 1kB,1MB,1GB",
        "labkit collectives compare -n 64 --inside 8 --op all-to-all --bytes 1MB,64MB",
    ]
)
def compare(
    links: Links,
    *,
    message: Annotated[
        str, option("Of each worker, several.", "--bytes", metavar="BYTES,…")
    ] = "1kB,1MB,100MB",
    op: Annotated[str, option(f"{', '.join(get_args(Op))}.")] = "all-reduce",
) -> Report:
    """The algorithms of an operation beside each other, the fastest of each message first."""
    operation = _operation(op)
    sizes = [_whole(text) for text in message.split(",")]
    table = collectives.compare(
        operation,
        links.fabric,
        sizes,
        num_workers=links.workers,
        num_servers=links.servers or None,
    )
    table["of_bound"] = table["time_s"] / table["bound_s"]
    return Report(
        title=f"{operation} among {links.workers} workers",
        lead="bound: no algorithm without servers is faster; times of it: how far each is away.",
        tables=[Sheet(table=table)],
        data={"command": "compare", "algorithms": records(table)},
        csv=table,
        figures=lambda: [("Seconds by message", "", collectives.figure_costs(table))],
    )
