"""Profiles by name: a CSV file, a published profile's short name (``a100/bloom``), a data file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from labkit.errors import UsageError, not_among
from labkit.pipeline.profiles.profile import EnergyProfile

# Profiles of the Perseus artifact by device: how its files call it, and its blocking power (W).
# Source: the artifact's own planner settings, as the notes in data/datasets.yaml give them.
PUBLISHED = {"a100": ("a100_sxm", 83.64), "a40": ("a40", 70.38)}
DATASET = "perseus-sosp24"
PROFILES = "sosp24_data/emulation/stage_profile/"


class NamedProfile(NamedTuple):
    """A profile, what it is called, and why it is a stand-in (empty where it is not)."""

    profile: EnergyProfile
    origin: str
    standin_reason: str = ""

    @property
    def data(self) -> dict[str, Any]:
        """What a report's JSON says of the profile."""
        return {
            "origin": self.origin,
            "is_standin": bool(self.standin_reason),
            "num_stages": self.profile.num_stages,
            "blocking_power_w": self.profile.blocking_power_w,
            "num_measurements": len(self.profile.kept),
            "num_dropped": self.profile.num_dropped,
        }


def short_names() -> dict[str, tuple[str, float]]:
    """Published profiles: short name -> dataset file and blocking power (W)."""
    from labkit.datasets.registry import load_registry

    names = {}
    for file in load_registry().dataset(DATASET).files:
        model, _, device = Path(file.path).stem.removesuffix("_bf16").partition("+")
        for short, (name, power_w) in PUBLISHED.items():
            if file.path.startswith(PROFILES) and device == name:
                names[f"{short}/{model}"] = (f"{DATASET}/{file.path}", power_w)
    return dict(sorted(names.items()))


def open_profile(text: str, blocking_power_w: float | None = None) -> NamedProfile:
    """The profile that ``text`` names.

    Args:
        text: a CSV file, a short name such as ``a100/bloom``, or a data set's file.
        blocking_power_w: what a GPU draws while it waits for another stage; None where it is known
            (published profiles).

    Raises:
        UsageError: there is no such profile, or its blocking power is not known.
        BadFile: the file is no profile.
    """
    path = Path(text).expanduser()
    reason = ""
    known_w = None
    if not path.is_file():
        path, reason, known_w = _data_file(text)
    power_w = known_w if blocking_power_w is None else blocking_power_w
    if power_w is None:
        raise UsageError(
            f"blocking_power_w is needed for {text}: what a GPU draws while it waits, in watts"
        )
    return NamedProfile(EnergyProfile.from_csv(path, blocking_power_w=power_w), text, reason)


def _data_file(text: str) -> tuple[Path, str, float | None]:
    """A data set's file: where it is, why it is a stand-in, and its blocking power."""
    from labkit import datasets
    from labkit.datasets.registry import load_registry

    known = short_names()
    reference, power_w = known.get(text, (text, None))
    if text not in known:
        if text.partition("/")[0] not in load_registry().datasets:
            if text.endswith(".csv") or Path(text).is_absolute():
                raise UsageError(f"profile {text}: there is no such file")
            raise not_among("profile", text, known)
        power_w = next((w for name, w in PUBLISHED.values() if f"+{name}_" in text), None)
    source = datasets.source(reference)
    return source.path(source.asked[0]), source.reason if source.is_standin else "", power_w
