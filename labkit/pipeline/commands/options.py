"""The options of ``labkit pipeline``, each said once: several commands take the same ones.

A field that bears the name of a description's field holds its value, read from the option's text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from labkit import pipeline
from labkit.errors import UsageError
from labkit.kit.command import (
    argument,
    as_options,
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
    from labkit.pipeline.profiles.profile import EnergyProfile
    from labkit.pipeline.profiles.published import NamedProfile
    from labkit.pipeline.scheduling.schedule import Schedule
    from labkit.pipeline.simulation.costs import Network


def _of(
    metavar: str, read: Callable[[str, str], list[Any]], shape: Callable[[list[Any]], Any] = single
) -> Callable[[str, str], Any]:
    """Options by name and help whose text holds values: one for all stages, or one per stage."""
    return lambda name, help: option(
        help, name, metavar=metavar, parser=lambda text: shape(read(name, text))
    )


_numbers = _of("X,…", numbers)
_sizes = _of("BYTES,…", byte_counts)
_counts = _of("N,…", whole_numbers)
_several = _of("X,…", numbers, list)
_several_sizes = _of("BYTES,…", byte_counts, list)
_several_counts = _of("N,…", whole_numbers, list)


def names(help: str, panel: str) -> Any:
    """An option whose text holds names."""
    return option(help, panel=panel, metavar="A,B,…", parser=words)


Trace = Annotated[Path | None, option("Write trace events for ui.perfetto.dev.", panel="Output")]
_NAME = argument(
    "`labkit pipeline schedules` lists them.", complete=lambda: pipeline.schedules()["name"]
)
_MICROBATCHES = option("Microbatches in an iteration.", "--microbatches", "-m", panel="Schedule")
_PROFILE = option(
    "A CSV file, a short name such as a100/bloom, or a dataset's file.",
    "--profile",
    "-p",
    complete=lambda: import_module("labkit.pipeline.profiles.published").short_names(),
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many microbatches there are, and how a schedule may use its devices."""

    PANEL: ClassVar[str] = "Schedule"
    microbatches: Annotated[int | None, _MICROBATCHES] = None
    num_chunks: Annotated[Any, _counts("--chunks", "Chunks of the model on a device.")] = None
    max_in_flight: Annotated[Any, _counts("--max-in-flight", "Most activations held.")] = None

    @property
    def count(self) -> int:
        """The number of microbatches, which must be given."""
        if self.microbatches is None:
            raise UsageError("--microbatches is needed")
        return self.microbatches

    @property
    def settings(self) -> dict[str, Any]:
        """The schedule's options that were given, as keyword arguments of ``build``."""
        return without_missing({key: getattr(self, key) for key in ("num_chunks", "max_in_flight")})


@dataclass(frozen=True, kw_only=True)
class Order(Size):
    """A schedule by its name and options, or an order of one's own."""

    schedule: Annotated[str, _NAME] = ""
    set: Annotated[
        list[str] | None, option("Its other options, such as warmup=b.", metavar="NAME=VALUE")
    ] = None
    order: Annotated[Path | None, option("A CSV file with an order of your own.")] = None

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | assignments("--set", self.set)

    def read(self, stages: int | None = None) -> Schedule | None:
        """The schedule of the order file, which decides all options; None where one is named."""
        if bool(self.schedule) == bool(self.order):
            raise UsageError(
                "name a schedule (`labkit pipeline schedules` lists them) or --order FILE"
            )
        if self.order is None:
            return None
        given = {"--stages": stages, **self.settings, "--microbatches": self.microbatches}
        if excess := ", ".join(without_missing(given)):
            raise UsageError(f"--order says all of the schedule itself: leave out {excess}")
        return pipeline.load_order(self.order)


@dataclass(frozen=True, kw_only=True)
class Links:
    """What carries messages."""

    PANEL: ClassVar[str] = "Network"
    latency_s: Annotated[Any, _numbers("--latency", "Seconds of a message at least.")] = None
    bandwidth_bytes_per_s: Annotated[Any, _sizes("--bandwidth", "Of a link: 25GB.")] = None
    message_bytes: Annotated[Any, _sizes("--message-bytes", "To the next stage: 1MB.")] = None
    overlap: Annotated[
        bool, option("Whether a device computes while it sends.", "--overlap/--no-overlap")
    ] = True

    @property
    def network(self) -> Network | None:
        """The network; None where nothing of it was said."""
        given = without_missing(vars(self))
        if given.keys() == {"overlap"}:
            if not self.overlap:
                raise UsageError("--no-overlap needs a network: give --latency or --bandwidth")
            return None
        if self.bandwidth_bytes_per_s is not None and self.message_bytes is None:
            raise UsageError("--bandwidth needs --message-bytes: what a stage sends to the next")
        if self.message_bytes is not None and self.bandwidth_bytes_per_s is None:
            raise UsageError("--message-bytes needs --bandwidth, in bytes a second")
        return pipeline.Network(**given)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements that clocks are chosen from, and when the iteration must end."""

    PANEL: ClassVar[str] = "Clocks"
    profile: Annotated[str, _PROFILE]
    blocking_power: Annotated[
        float | None, option("Watts of a waiting GPU; published profiles know it.", metavar="W")
    ] = None
    smooth: Annotated[bool, option("Plan on the profile without its noise.", "--smooth")] = False
    weight_fraction: Annotated[float, option("A weight half's share of a split backward.")] = 0.5
    deadlines_s: Annotated[Any, _several("--deadline", "Latest end of the iteration (s).")] = None
    slowdowns: Annotated[Any, _several("--slowdown", "The same: 0.05 for 5 % later.")] = None

    @cached_property
    def source(self) -> NamedProfile:
        """The profile, without its noise where that is asked for."""
        from labkit.pipeline.profiles.published import open_profile

        with as_options({"blocking_power_w": "--blocking-power"}):
            source = open_profile(self.profile, self.blocking_power)
        return source._replace(profile=source.profile.smoothed()) if self.smooth else source

    def fitted(self, name: str, size: Size, **settings: Any) -> tuple[Schedule, EnergyProfile]:
        """A named schedule over the profile's stages, and the profile as it runs them."""
        settings["weight_fraction"] = self.weight_fraction
        return pipeline.fitted(self.source.profile, name, size.count, **settings)

    def deadlines(self, fastest_s: float) -> list[float | None]:
        """The latest ends of the iteration in seconds; ``[None]`` for the default."""
        if self.deadlines_s and self.slowdowns:
            raise UsageError("give --deadline or --slowdown, not both: one follows from the other")
        if self.slowdowns:
            return [(1 + share) * fastest_s for share in self.slowdowns]
        return self.deadlines_s or [None]

    def deadline_s(self, fastest_s: float) -> float | None:
        """The only deadline that was given; raises UsageError where there are more."""
        deadline_s, *more = self.deadlines(fastest_s)
        if more:
            raise UsageError("only one deadline here; `labkit pipeline choose` takes several")
        return deadline_s


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a stage's work takes and holds: one number, or one per stage such as 1,1.2,1."""

    PANEL: ClassVar[str] = "Work"
    forward_s: Annotated[Any, _numbers("--forward", "Seconds of a forward: 1 or 1,1.2,1.")] = "1"
    backward_s: Annotated[Any, _numbers("--backward", "Of a backward's input half.")] = "1"
    weight_s: Annotated[Any, _numbers("--weight", "Of its weight half.")] = "1"
    activation_bytes: Annotated[Any, _sizes("--activation-bytes", "Held by a forward: 1GB.")] = "1"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a joint choice is made from, and what a device has room for."""

    PANEL: ClassVar[str] = "Schedule"
    num_microbatches: Annotated[int, _MICROBATCHES]
    schedules: Annotated[Any, names("Default: every synchronous one.", "Schedule")] = None
    num_chunks: Annotated[Any, _several_counts("--chunks", "Chunks of a device, to try.")] = "2"
    activation_bytes: Annotated[
        Any, _sizes("--activation-bytes", "Of a microbatch on a stage.")
    ] = "1"
    parameter_bytes: Annotated[Any, _sizes("--parameter-bytes", "Of a stage, optimizer too.")] = "0"
    memory_limits_bytes: Annotated[
        Any, _several_sizes("--memory-limit", "What a device has, such as 24GiB; each in turn.")
    ] = None
    tolerance: Annotated[float, option("Stop where no candidate saves this share more.")] = 0.0
