"""What ``labkit pipeline`` is asked: numbers, schedules, networks and profiles from words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError, not_among

if TYPE_CHECKING:
    from labkit.datasets import Source
    from labkit.pipeline.profiles.profile import EnergyProfile
    from labkit.pipeline.scheduling.schedule import Schedule
    from labkit.pipeline.simulation.costs import Costs
    from labkit.pipeline.simulation.network import Network

_BYTES = {"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)")

# Profiles of the Perseus artifact by device: how its files call it, and its blocking power.
# Source: the artifact's own planner settings, as the notes in data/datasets.yaml give them.
PUBLISHED = {"a100": ("a100_sxm", 83.64), "a40": ("a40", 70.38)}
DATASET, PROFILES = "perseus-sosp24", "sosp24_data/emulation/stage_profile/"


def numbers(option: str, text: str) -> float | list[float]:
    """One number, or several separated by commas (one per stage).

    Raises:
        UsageError: a part is no number.
    """
    values = [_number(option, part) for part in text.split(",")]
    return values[0] if len(values) == 1 else values


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"{option}: {text.strip()!r} is no number; valid: one number, or one per stage "
            "separated by commas, such as 1,1.2,1"
        ) from None


def byte_counts(option: str, text: str) -> list[float]:
    """Numbers of bytes separated by commas, each with a unit or without: ``1.5e9``, ``24GiB``.

    Raises:
        UsageError: a part is no number of bytes.
    """
    found = []
    for part in text.split(","):
        match = _NUMBER.fullmatch(part.strip())
        if match is None or match[2] not in _BYTES:
            raise UsageError(
                f"{option}: {part.strip()!r} is no number of bytes; valid: a number and a unit, "
                f"such as 1.5e9, 800MB or 24GiB (units: {', '.join(filter(None, _BYTES))})"
            )
        found.append(float(match[1]) * _BYTES[match[2]])
    return found


def bytes_each(option: str, text: str) -> float | list[float]:
    """As :func:`byte_counts`, a single one as a number for every stage."""
    found = byte_counts(option, text)
    return found[0] if len(found) == 1 else found


def whole_numbers(option: str, text: str) -> list[int]:
    """Integers separated by commas.

    Raises:
        UsageError: a part is no integer.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"{option}: {text!r} is no list of whole numbers, such as 2 or 2,4"
        ) from None


def words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def settings(option: str, assignments: Sequence[str] | None) -> dict[str, Any]:
    """``NAME=VALUE`` options as keyword arguments; hyphens in names become underscores.

    A value is a whole number, a list of them, a number, or a word.

    Raises:
        UsageError: one is no assignment.
    """
    found: dict[str, Any] = {}
    for one in assignments or ():
        name, equals, value = one.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{option} {one!r} is not NAME=VALUE, such as early_forwards=2,1,0")
        found[name.strip().replace("-", "_")] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    for read in (int, lambda t: [int(part) for part in t.split(",")], float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def network(latency: str, bandwidth: str, message_bytes: str, overlap: bool) -> Network | None:
    """What carries messages; None where nothing of it was said.

    Raises:
        UsageError: something is missing for what was said, or no number.
    """
    from labkit.pipeline.simulation.network import Network

    if not (latency or bandwidth or message_bytes):
        if not overlap:
            raise UsageError("--no-overlap needs a network: give --latency or --bandwidth")
        return None
    if bandwidth and not message_bytes:
        raise UsageError("--bandwidth needs --message-bytes: what a stage sends to the next")
    if message_bytes and not bandwidth:
        raise UsageError("--message-bytes needs --bandwidth, in bytes a second")
    return Network(
        latency_s=numbers("--latency", latency) if latency else 0.0,
        bandwidth_bytes_per_s=bytes_each("--bandwidth", bandwidth) if bandwidth else None,
        message_bytes=bytes_each("--message-bytes", message_bytes) if message_bytes else 0.0,
        overlap=overlap,
    )


def deadlines(deadline: str, slowdown: str, fastest_s: float) -> list[float | None]:
    """Deadlines in seconds, from seconds or from slowdowns of ``fastest_s``; None for the default.

    Raises:
        UsageError: both are given, or one is no number.
    """
    if deadline and slowdown:
        raise UsageError("give --deadline or --slowdown, not both: one follows from the other")
    if deadline:
        return [_number("--deadline", part) for part in deadline.split(",")]
    if slowdown:
        return [(1 + _number("--slowdown", part)) * fastest_s for part in slowdown.split(",")]
    return [None]


def the_deadline(deadline: str, slowdown: str, fastest_s: float) -> float | None:
    """As :func:`deadlines`, where only one will do."""
    found = deadlines(deadline, slowdown, fastest_s)
    if len(found) > 1:
        raise UsageError("only one deadline here; `labkit pipeline choose` takes several")
    return found[0]


# ---------------------------------------------------------------- profiles


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profile and where it comes from.

    Attributes:
        origin: what it is called in tables and JSON.
        standin: why these are not the published measurements; empty where they are.
    """

    profile: EnergyProfile
    origin: str
    standin: str = ""

    @property
    def warning(self) -> str:
        """What must be said first of a stand-in; empty for published measurements."""
        if not self.standin:
            return ""
        return (
            f"STAND-IN DATA: {self.origin} is not the published profile but one of ours, and its "
            f"numbers show how things work, not how they are. Why: {self.standin}"
        )

    @property
    def data(self) -> dict[str, Any]:
        """What it is, for JSON."""
        return {
            "origin": self.origin,
            "is_standin": bool(self.standin),
            "num_stages": self.profile.num_stages,
            "blocking_power_w": self.profile.blocking_power_w,
            "num_measurements": len(self.profile.kept),
            "num_dropped": self.profile.num_dropped,
        }


def profile(text: str, blocking_power_w: float | None, *, smooth: bool = False) -> Profile:
    """A profile from a CSV file, a published short name (``a100/bloom``) or a dataset's file.

    Raises:
        UsageError: it is none of these, or the blocking power is not said and not known.
        BadFile: the file is no profile.
    """
    from labkit.pipeline.profiles.profile import EnergyProfile

    path, origin, standin, known_w = _located(text)
    power_w = known_w if blocking_power_w is None else blocking_power_w
    if power_w is None:
        raise UsageError(
            f"--blocking-power is needed for {text}: what a GPU draws while it waits, in watts"
        )
    found = EnergyProfile.from_csv(path, blocking_power_w=power_w)
    return Profile(profile=found.smoothed() if smooth else found, origin=origin, standin=standin)


def _located(text: str) -> tuple[Path, str, str, float | None]:
    """Where the profile is, what it is called, why it is a stand-in, its blocking power."""
    from labkit import datasets

    path = Path(text).expanduser()
    if path.is_file():
        return path, text, "", None
    known = short_names()
    reference, power_w = known.get(text, (text, None))
    if text not in known:
        if not _names_dataset(text):
            if path.suffix == ".csv" or path.is_absolute():
                raise UsageError(f"--profile {text}: there is no such file")
            raise not_among("profile", text, known)
        power_w = next((w for name, w in PUBLISHED.values() if f"+{name}_" in text), None)
    source = datasets.source(reference)
    return source.path(source.asked[0]), text, _standin(source), power_w


def _names_dataset(text: str) -> bool:
    from labkit.datasets.registry import load_registry

    return text.partition("/")[0] in load_registry().datasets


def short_names() -> dict[str, tuple[str, float]]:
    """Published profiles: short name -> dataset file and blocking power (W)."""
    from labkit.datasets.registry import load_registry

    found = {}
    for file in load_registry().dataset(DATASET).files:
        stem = file.path.removeprefix(PROFILES)
        if stem == file.path:
            continue
        model, _, device = stem.removesuffix(".csv").removesuffix("_bf16").partition("+")
        for short, (name, power_w) in PUBLISHED.items():
            if device == name:
                found[f"{short}/{model}"] = (f"{DATASET}/{file.path}", power_w)
    return dict(sorted(found.items()))


def _standin(source: Source) -> str:
    return source.reason if source.is_standin else ""


# ---------------------------------------------------------------- schedules


def needed(option: str, value: int | None) -> int:
    """The value of an option that must be given.

    Raises:
        UsageError: it was not.
    """
    if value is None:
        raise UsageError(f"{option} is needed")
    return value


def options(
    num_chunks: int | None, max_in_flight: str, assignments: Sequence[str] | None
) -> dict[str, Any]:
    """What the schedule's options are, as keyword arguments of ``build``."""
    found = settings("--set", assignments)
    if num_chunks is not None:
        found["num_chunks"] = num_chunks
    if max_in_flight:
        caps = whole_numbers("--max-in-flight", max_in_flight)
        found["max_in_flight"] = caps[0] if len(caps) == 1 else caps
    return found


def costs(forward: str, backward: str, weight: str, activation_bytes: str) -> Costs:
    """What a stage's work costs."""
    from labkit.pipeline.simulation.costs import Costs

    return Costs(
        forward_s=numbers("--forward", forward),
        backward_s=numbers("--backward", backward),
        weight_s=numbers("--weight", weight),
        activation_bytes=bytes_each("--activation-bytes", activation_bytes or "1"),
    )


def schedule(
    name: str | None,
    order: Path | None,
    num_stages: int | None,
    num_microbatches: int | None,
    options: dict[str, Any],
    work: Costs | None = None,
) -> Schedule:
    """A named schedule, or the one in an order file.

    List schedulers make their order for ``work`` where it is given.

    Raises:
        UsageError: both or neither, a size is missing, or the schedule cannot be built.
    """
    from labkit.pipeline.scheduling.policies import build

    if (name is None) == (order is None):
        raise UsageError("name a schedule (`labkit pipeline schedules` lists them) or --order FILE")
    if name is not None:
        if num_stages is None or num_microbatches is None:
            raise UsageError(f"{name} needs --stages and --microbatches")
        return build(name, num_stages, num_microbatches, **_made_for(name, work, options))
    assert order is not None
    given = {"--stages": num_stages, "--microbatches": num_microbatches, **options}
    if told := [key for key, value in given.items() if value is not None]:
        raise UsageError(f"--order says all of the schedule itself: leave out {', '.join(told)}")
    from labkit.pipeline.scheduling.orders import load_order

    return load_order(order)


def _made_for(name: str, work: Costs | None, options: dict[str, Any]) -> dict[str, Any]:
    """``options``, and the durations that the order of a list scheduler is made for."""
    from labkit.pipeline.scheduling.families import FAMILIES

    if name not in FAMILIES or work is None or "durations_s" in options:
        return options
    each = (work.forward_s, work.backward_s, work.weight_s)
    if "durations_s" not in FAMILIES[name].options or each[0] == each[1] == each[2]:
        return options
    return {**options, "durations_s": each}


def schedule_for(
    profile: EnergyProfile,
    name: str | None,
    order: Path | None,
    num_microbatches: int | None,
    options: dict[str, Any],
    weight_fraction: float,
) -> tuple[Schedule, EnergyProfile]:
    """A schedule over a profile's stages, and the profile cut and split as it runs them.

    Raises:
        UsageError: as :func:`schedule`, or the profile cannot be made to fit.
    """
    if name is None or order is not None:
        made = schedule(name, order, None, num_microbatches, options)
        return made, profile.for_schedule(made, weight_fraction)
    from labkit.pipeline.planning.fitted import fitted

    count = needed("--microbatches", num_microbatches)
    return fitted(profile, name, count, weight_fraction=weight_fraction, **options)


def no_single_plan(**asked: Path | None) -> None:
    """Refuse files of one plan where there are several plans.

    Raises:
        UsageError: one was asked for.
    """
    for name, path in asked.items():
        if path is not None:
            raise UsageError(f"--{name} needs one plan: give one memory limit and one deadline")
