"""What Perseus's authors published: profiles of their emulated jobs, and frontiers.

Source: Chung et al., "Reducing Energy Bloat in Large Model Training", SOSP 2024, and its artifact.
"""

from __future__ import annotations

import pandas as pd

from labkit import datasets
from labkit.datasets.registry import load_registry
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.profiles.published import DATASET, PUBLISHED, open_profile

JOBS = {
    "a100/gpt3-175b": "GPT-3 175B, A100",
    "a100/bloom": "Bloom 176B, A100",
    "a40/gpt3-175b": "GPT-3 175B, A40",
}
"""The emulated jobs whose profiles were published: short name -> what figures call it."""

FRONTIERS = "sosp24_data/emulation/iteration_time_energy/"
COLUMNS = ["makespan_s", "energy_j"]


def open_jobs() -> dict[str, EnergyProfile]:
    """The profile of each job of :data:`JOBS`, by its short name.

    >>> [profile.num_stages for profile in open_jobs().values()]
    [8, 8, 8]
    """
    return {name: open_profile(name).profile for name in JOBS}


def open_frontier(name: str, num_microbatches: int) -> pd.DataFrame:
    """The frontier that Perseus's authors published for a profile, fastest plan first.

    It is that of 1F1B on 8 stages, in time and energy as planned.

    Args:
        name: short name of the profile, such as ``a100/bloom``.
        num_microbatches: of an iteration; the artifact has 12, 24 and 48.

    Returns:
        Columns: makespan_s, energy_j; no rows where it was not published or is not on this machine.

    >>> open_frontier("a100/no-such-model", 12).empty
    True
    """
    device, _, model = name.partition("/")
    folder, _ = PUBLISHED.get(device, ("", 0.0))
    path = f"{FRONTIERS}{folder}/{model}_bf16_mb{num_microbatches}.csv"
    known = {file.path for file in load_registry().dataset(DATASET).files}
    if path not in known or not datasets.available(f"{DATASET}/{path}"):
        return pd.DataFrame({column: [] for column in COLUMNS})
    table = pd.read_csv(datasets.open(f"{DATASET}/{path}")).sort_values("time", ignore_index=True)
    return table.set_axis(COLUMNS, axis=1)
