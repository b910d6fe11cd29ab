"""Schedules by name: :func:`build` makes the order, :func:`schedules` lists them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from labkit.errors import BadValue, UsageError, did_you_mean
from labkit.kit.describe import Count, NonNegative, Whole, checked
from labkit.kit.rules import rule
from labkit.pipeline.scheduling.families import FAMILIES, Family, family_of
from labkit.pipeline.scheduling.forms import Sizes, durations_by_kind, scheduled
from labkit.pipeline.scheduling.schedule import Schedule, check_size

if TYPE_CHECKING:
    import pandas as pd


_RULES = {  # of options that are the same for all devices
    "num_chunks": rule(Count),
    "num_waves": rule(Count),
    "warmup": rule(Literal["a", "b"]),
    "durations_s": rule(Sequence[NonNegative | Sequence[NonNegative]]),
}


@checked
def build(name: str, num_stages: Count, num_microbatches: Count, **options: Any) -> Schedule:
    """A named schedule of any size.

    Args:
        name: one of :func:`schedules`, which says what each is and where it comes from.
        num_stages: S, the devices in the pipeline. Where a device holds v chunks of the model the
            result has v S stages.
        num_microbatches: M, also fewer than S.
        **options: ``max_in_flight`` for every schedule: how many activations (of a microbatch
            on a stage) a device has memory for, one number or one per device.
            ``num_chunks`` for ``"interleaved-1f1b"``, ``"interleaved-zb"`` and ``"loop-bfs"``:
            the chunks of a device. ``num_waves`` for ``"hanayo"``: how often the stages go there
            and back over the devices. ``durations_s`` for ``"zb-v"``, ``"hanayo"`` and
            ``"chimera"``: seconds of a forward, an input half and a weight half, one number each
            or one per stage, for which the order is made; default: all alike. ``warmup`` for
            ``"dapple"``: policy ``"a"`` or ``"b"``. ``early_forwards`` for ``"envpipe"``: how
            many more forwards than 1F1B each stage runs before its first backward, one number or
            one per stage (see :func:`labkit.pipeline.early_forwards`); default: as many as fit
            into the wait for the first backward where a backward takes two forwards.

    Raises:
        UsageError: an unknown name or option, sizes the schedule is not made for, or memory in
            which no order of its kind can run.

    >>> print(*build("1f1b", num_stages=2, num_microbatches=3).order[0], sep="; ")
    forward 0 on stage 0; forward 1 on stage 0; backward 0 on stage 0; forward 2 on stage 0; \
backward 1 on stage 0; backward 2 on stage 0
    >>> build("zb-v", num_stages=4, num_microbatches=8).num_stages
    8
    """
    family = family_of(name)
    valid = {"max_in_flight", *family.options}
    if unknown := sorted(set(options) - valid):
        hint = did_you_mean(unknown[0], valid)
        raise UsageError(
            f"schedule {name!r} has no option {unknown[0]!r}; "
            f"{hint + ' It' if hint else 'it'} has: {', '.join(sorted(valid))}"
        )
    check_size(
        num_stages * num_microbatches,
        f"num_stages {num_stages} and num_microbatches {num_microbatches}",
    )
    limit = _per_device("max_in_flight", options.pop("max_in_flight", None), num_stages, Count)
    sizes = _sizes(name, family, int(num_stages), int(num_microbatches), options)
    least = family.form.least(sizes)
    if limit is not None and (small := limit < least).any():
        device = int(np.argmax(small))
        raise UsageError(
            f"schedule {name!r} of these sizes holds at least {least} activations on a device; "
            f"max_in_flight of device {device} must be >= {least}, found {int(limit[device])}"
        )
    versions = family.weight_versions and tuple(family.weight_versions(sizes).tolist())
    more = {"asynchronous": family.asynchronous, "weight_versions": versions}
    return scheduled(name, sizes, family.form.orders(sizes, limit), **more)


@checked
def closed_form_bubble_ratio(
    schedule: Schedule,
    *,
    forward_s: NonNegative,
    backward_s: NonNegative,
    weight_s: NonNegative = 0.0,
) -> float | None:
    """Compute the idle share of the devices' time in one iteration, by formula.

    It is for stages that are all alike and communication that takes no time: then it is what
    :func:`simulate` finds. It is None where the schedule has no formula, or none that holds for
    these sizes and durations: :func:`schedules` says which.

    Args:
        schedule: what runs.
        forward_s, backward_s, weight_s: seconds, as :class:`Costs` has them.

    >>> closed_form_bubble_ratio(build("gpipe", 4, 12), forward_s=1.0, backward_s=2.0)
    0.2
    """
    family = family_of(schedule.name)
    devices = schedule.num_devices
    chunks = schedule.num_stages // devices
    seen = {"num_chunks": chunks, "num_waves": chunks // 2}
    options = {key: seen[key] for key in seen.keys() & family.options.keys()}
    sizes = _sizes(schedule.name, family, devices, schedule.num_microbatches, options)
    durations = (forward_s, backward_s, weight_s)
    if not family.bubble.holds(sizes, *durations):
        return None
    idle_s = family.bubble.idle_s(sizes, *durations)
    work_s = sum(durations) * sizes.num_units
    return idle_s / (idle_s + work_s) if work_s else 0.0


def schedules() -> pd.DataFrame:
    """List what can be built, one row per name.

    Columns: name, summary, source, options (with their defaults; every schedule also takes
    ``max_in_flight``), constraint, splits_backward, asynchronous, bubble (seconds each device idles
    in an iteration; S devices, M microbatches, v chunks, F, B, W seconds of a forward and of the
    input and weight halves of a backward on one chunk), peak_in_flight (activations on the device
    that holds most, for M large enough).
    """
    import pandas as pd

    same = ("summary", "source", "constraint", "splits_backward", "asynchronous")
    rows = [
        {"name": name}
        | {key: getattr(family, key) for key in same}
        | {"bubble": family.bubble.words}
        | {"options": ", ".join(f"{key}={value}" for key, value in family.options.items())}
        | {"peak_in_flight": family.peak}
        for name, family in FAMILIES.items()
    ]
    return pd.DataFrame(rows)


def _sizes(
    name: str, family: Family, num_devices: int, num_microbatches: int, options: dict[str, Any]
) -> Sizes:
    """Check every option, fill in those that are missing, and return the sizes."""
    settings = {**family.options, **options}
    for key in _RULES.keys() & settings.keys():
        settings[key] = _RULES[key].apply(key, settings[key])
    if settings.get("early_forwards") is not None:
        early = settings["early_forwards"]
        settings["early_forwards"] = _per_device("early_forwards", early, num_devices, Whole)
    chunks = family.chunks(settings)
    check_size(
        num_devices * chunks * num_microbatches,
        f"num_stages {num_devices} (of {chunks} chunks: num_chunks or num_waves) and "
        f"num_microbatches {num_microbatches}",
    )
    if "durations_s" in settings:
        durations_s = settings["durations_s"]
        settings["durations_s"] = durations_by_kind(durations_s, num_devices * chunks)
    sizes = Sizes(
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        num_chunks=chunks,
        settings=settings,
    )
    if not family.possible(sizes):
        raise UsageError(
            f"schedule {name!r} needs {family.constraint}; got {num_devices} devices and "
            f"{num_microbatches} microbatches"
        )
    return sizes


def _per_device(name: str, value: Any, num_devices: int, kind: Any) -> np.ndarray | None:
    """Read one whole number for all devices, or one each, as an array; None stands for none."""
    value = rule(kind | Sequence[kind] | None).apply(name, value)
    if value is None or isinstance(value, int):
        return None if value is None else np.full(num_devices, value)
    if len(value) != num_devices:
        raise BadValue(f"{name} has {len(value)} values for {num_devices} stages")
    return np.array(value, dtype=int)
