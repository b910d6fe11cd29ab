"""The options of ``labkit pipeline``, each said once: several commands take the same ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from labkit import pipeline
from labkit.errors import UsageError
from labkit.kit.command import (
    argument,
    assignments,
    byte_counts,
    numbers,
    option,
    single,
    whole_numbers,
    without_missing,
    words,
)

if TYPE_CHECKING:
    from labkit.pipeline.profiles.published import NamedProfile
    from labkit.pipeline.scheduling.schedule import Schedule
    from labkit.pipeline.simulation.costs import Costs, Network


def _schedule_names() -> Iterable[str]:
    from labkit.pipeline.scheduling.families import FAMILIES

    return FAMILIES


def _profile_names() -> Iterable[str]:
    from labkit.pipeline.profiles.published import short_names

    return short_names()


Name = Annotated[
    str | None,
    argument(
        "`labkit pipeline schedules` lists them.", metavar="SCHEDULE", complete=_schedule_names
    ),
]
Trace = Annotated[Path | None, option("Write trace events for ui.perfetto.dev.", panel="Output")]
_MICROBATCHES = option("Microbatches in an iteration.", "--microbatches", "-m", panel="Schedule")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many microbatches there are, and how a schedule may use its devices."""

    PANEL: ClassVar[str] = "Schedule"
    microbatches: Annotated[int | None, _MICROBATCHES] = None
    chunks: Annotated[str, option("Chunks of the model on a device.", metavar="V")] = ""
    max_in_flight: Annotated[
        str, option("Most activations a device can hold, one number or one each.", metavar="N")
    ] = ""

    @property
    def count(self) -> int:
        """The number of microbatches, which must be given."""
        if self.microbatches is None:
            raise UsageError("--microbatches is needed")
        return self.microbatches

    @property
    def settings(self) -> dict[str, Any]:
        """The schedule's options that were given, as keyword arguments of ``build``."""
        texts = {"num_chunks": ("--chunks", self.chunks)}
        texts |= {"max_in_flight": ("--max-in-flight", self.max_in_flight)}
        return {key: single(whole_numbers(*text)) for key, text in texts.items() if text[1]}


@dataclass(frozen=True, kw_only=True)
class Order:
    """A schedule's further options, or an order of one's own."""

    PANEL: ClassVar[str] = "Schedule"
    set: Annotated[
        list[str] | None,
        option("Another of the schedule's options, such as warmup=b.", metavar="NAME=VALUE"),
    ] = None
    order: Annotated[Path | None, option("A CSV file with an order of your own.")] = None

    def loaded(
        self, name: str | None, size: Size, **excess: Any
    ) -> tuple[Schedule | None, dict[str, Any]]:
        """The order file's schedule, None where a name is given instead; the named one's options.

        Raises:
            UsageError: both or neither, or an option that the file decides.
        """
        options = size.settings | assignments("--set", self.set)
        if (name is None) == (self.order is None):
            raise UsageError(
                "name a schedule (`labkit pipeline schedules` lists them) or --order FILE"
            )
        if self.order is None:
            return None, options
        given = {f"--{key}": value for key, value in excess.items()} | options
        if given := without_missing({**given, "--microbatches": size.microbatches}):
            raise UsageError(
                f"--order says all of the schedule itself: leave out {', '.join(given)}"
            )
        return pipeline.load_order(self.order), options


@dataclass(frozen=True, kw_only=True)
class Links:
    """What carries messages."""

    PANEL: ClassVar[str] = "Network"
    latency: Annotated[str, option("Seconds of a message at least.", metavar="S")] = ""
    bandwidth: Annotated[str, option("Of a link, such as 25GB.", metavar="BYTES/S")] = ""
    message_bytes: Annotated[
        str, option("What a stage sends to the next, such as 64MiB.", metavar="BYTES")
    ] = ""
    overlap: Annotated[
        bool, option("Whether a device computes while it sends.", "--overlap/--no-overlap")
    ] = True

    @property
    def network(self) -> Network | None:
        """The network; None where nothing of it was said."""
        if not (self.latency or self.bandwidth or self.message_bytes):
            if not self.overlap:
                raise UsageError("--no-overlap needs a network: give --latency or --bandwidth")
            return None
        if self.bandwidth and not self.message_bytes:
            raise UsageError("--bandwidth needs --message-bytes: what a stage sends to the next")
        if self.message_bytes and not self.bandwidth:
            raise UsageError("--message-bytes needs --bandwidth, in bytes a second")
        return pipeline.Network(
            latency_s=each("--latency", self.latency or "0"),
            bandwidth_bytes_per_s=bytes_each("--bandwidth", self.bandwidth or None),
            message_bytes=bytes_each("--message-bytes", self.message_bytes or "0"),
            overlap=self.overlap,
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements that clocks are chosen from."""

    PANEL: ClassVar[str] = "Clocks"
    profile: Annotated[
        str,
        option(
            "A CSV file, a short name such as a100/bloom, or a dataset's file.",
            *("--profile", "-p"),
            complete=_profile_names,
        ),
    ]
    blocking_power: Annotated[
        float | None, option("Watts of a waiting GPU; published profiles know it.", metavar="W")
    ] = None
    smooth: Annotated[bool, option("Plan on the profile without its noise.", "--smooth")] = False
    weight_fraction: Annotated[
        float, option("Share of a backward that is its weight half, where split.", metavar="X")
    ] = 0.5

    def opened(self) -> NamedProfile:
        """The profile, without its noise where that is asked for."""
        from labkit.pipeline.profiles.published import open_profile

        source = open_profile(self.profile, self.blocking_power)
        return source._replace(profile=source.profile.smoothed()) if self.smooth else source


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """When the iteration must end."""

    PANEL: ClassVar[str] = "Clocks"
    deadline: Annotated[str, option("Latest end of the iteration, in seconds.", metavar="S")] = ""
    slowdown: Annotated[
        str, option("The same as a share beyond the default: 0.05 for 5 % later.", metavar="X")
    ] = ""

    def all(self, fastest_s: float) -> list[float | None]:
        """The deadlines in seconds; ``[None]`` for the default."""
        if self.deadline and self.slowdown:
            raise UsageError("give --deadline or --slowdown, not both: one follows from the other")
        if self.slowdown:
            return [(1 + share) * fastest_s for share in numbers("--slowdown", self.slowdown)]
        return [*numbers("--deadline", self.deadline)] or [None]

    def only(self, fastest_s: float) -> float | None:
        """As :meth:`all`, where only one deadline will do."""
        deadline_s, *more = self.all(fastest_s)
        if more:
            raise UsageError("only one deadline here; `labkit pipeline choose` takes several")
        return deadline_s


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a stage's work takes and holds: one number, or one per stage such as 1,1.2,1."""

    PANEL: ClassVar[str] = "Work"
    forward: Annotated[str, option("Seconds of a forward, or 1,1.2,1.", metavar="S")] = "1"
    backward: Annotated[str, option("Of the input half of a backward.", metavar="S")] = "1"
    weight: Annotated[str, option("Of the weight half; a backward is both.", metavar="S")] = "1"
    activation_bytes: Annotated[
        str, option("What a microbatch on a stage holds, such as 1.2GB.", metavar="BYTES")
    ] = "1"
    jitter: Annotated[float, option("Spread of every duration: 0.05 for 5 %.")] = 0.0
    seed: Annotated[int, option("Of the jitter.")] = 0

    @property
    def costs(self) -> Costs:
        """Of every stage."""
        return pipeline.Costs(
            forward_s=each("--forward", self.forward),
            backward_s=each("--backward", self.backward),
            weight_s=each("--weight", self.weight),
            activation_bytes=bytes_each("--activation-bytes", self.activation_bytes),
        )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a joint choice is made from, and what a device has room for."""

    PANEL: ClassVar[str] = "Schedule"
    microbatches: Annotated[int, _MICROBATCHES]
    schedules: Annotated[str, option("Default: every synchronous one.", metavar="A,B,…")] = ""
    chunks: Annotated[str, option("Chunks a device, where a schedule has them.")] = "2"
    memory_limit: Annotated[
        str, option("What a device has, such as 24GiB; several: each in turn.", metavar="BYTES,…")
    ] = ""
    activation_bytes: Annotated[
        str, option("Of a microbatch on a stage; 1 counts activations.", metavar="BYTES")
    ] = "1"
    parameter_bytes: Annotated[
        str, option("Parameters, gradients and optimizer state of a stage.", metavar="BYTES")
    ] = "0"
    tolerance: Annotated[
        float, option("Stop when no candidate can save this share more.", metavar="X")
    ] = 0.0

    @property
    def described(self) -> dict[str, Any]:
        """The arguments of a joint search."""
        return {
            "num_microbatches": self.microbatches,
            "schedules": words(self.schedules) or None,
            "num_chunks": whole_numbers("--chunks", self.chunks),
            "activation_bytes": bytes_each("--activation-bytes", self.activation_bytes),
            "parameter_bytes": bytes_each("--parameter-bytes", self.parameter_bytes),
            "tolerance": self.tolerance,
        }

    @property
    def limits_bytes(self) -> list[float | None]:
        """The limits on a device's memory; ``[None]`` for none."""
        return [*byte_counts("--memory-limit", self.memory_limit)] if self.memory_limit else [None]


def each(name: str, text: str) -> Any:
    """One number for all stages, or one per stage."""
    return single(numbers(name, text))


def bytes_each(name: str, text: str | None) -> Any:
    """The same in bytes; None where nothing is given."""
    return None if text is None else single(byte_counts(name, text))
