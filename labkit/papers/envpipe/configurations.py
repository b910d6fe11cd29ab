"""What EnvPipe and its rivals save on the configurations of the authors' scripts.

Source: Choi et al., "EnvPipe: Performance-preserving DNN Training Framework for Saving Energy",
USENIX ATC'23, Fig. 9 and 12, and the scripts in the authors' repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pandas as pd

from labkit import pipeline
from labkit.kit.describe import checked
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.profiles.published import open_profile

PROFILES = {
    "a100/gpt3-175b": "GPT-3, A100",
    "a100/bloom": "Bloom, A100",
    "a40/gpt3-175b": "GPT-3, A40",
}
"""The published stage profiles: short name -> what tables call it."""


class Policy(StrEnum):
    """How the units' clocks are chosen: EnvPipe's way first, then what it can be compared with."""

    ENVPIPE = "EnvPipe"
    ON_1F1B = "EnvPipe's clocks on 1F1B"
    CLOCK_A_GPU = "one clock for each GPU"
    ONE_CLOCK = "one clock for all GPUs"
    VALLEY = "uniform valley clocks"


CASES: dict[Policy, dict[str, Any]] = {
    Policy.ENVPIPE: {"schedule": "envpipe", "method": "envpipe"},
    Policy.ON_1F1B: {"schedule": "1f1b", "method": "envpipe"},
    Policy.CLOCK_A_GPU: {"schedule": "1f1b", "method": "zeus-local"},
    Policy.ONE_CLOCK: {"schedule": "1f1b", "method": "zeus-global"},
    Policy.VALLEY: {"schedule": "1f1b", "method": "uniform"},
}
"""Schedule and planner of each policy, as :func:`labkit.pipeline.sweep` takes them."""


def open_profiles() -> dict[str, EnergyProfile]:
    """The profile of each job of :data:`PROFILES`, by its short name.

    >>> [profile.num_stages for profile in open_profiles().values()]
    [8, 8, 8]
    """
    return {name: open_profile(name).profile for name in PROFILES}


@checked
def shaped(profile: EnergyProfile, num_stages: int, last_stage: float) -> EnergyProfile:
    """Equal stages with the clock curve of a profile's first stage, but for the last.

    Args:
        profile: whose first stage is repeated.
        num_stages: of the pipeline.
        last_stage: work of the last stage, over that of any other; time and energy grow with it.
    """
    return profile.restage([0] * num_stages).scaled(factor=last_stage)


@checked
def savings(
    profiles: Mapping[str, EnergyProfile],
    shapes: pd.DataFrame,
    cases: Mapping[str, Mapping[str, Any]],
    *,
    bounds: bool = False,
) -> pd.DataFrame:
    """What each case saves on each shape of pipeline, against 1F1B at the highest clock.

    Args:
        profiles: whose first stage gives the clock curve, by name.
        shapes: a row a pipeline: stages, last_stage (see :func:`shaped`), microbatches. Rows that
            are equal are computed once.
        cases: for each name its schedule, planner and settings, as :data:`CASES` has them.
        bounds: whether to compute the most that any plan on a case's schedule saves as fast.

    Returns:
        A row for each profile, shape and case: profile, stages, last_stage, microbatches, plan (the
        case's name), saving_fraction, slowdown_fraction; with ``bounds`` best_saving_fraction.
    """
    columns = ["stages", "last_stage", "microbatches"]
    kept = ["plan", "saving_fraction", "slowdown_fraction"]
    if bounds:
        kept.append("best_saving_fraction")
    tables = []
    for name, profile in profiles.items():
        for stages, last_stage, size in shapes[columns].drop_duplicates().itertuples(index=False):
            equal = shaped(profile, int(stages), float(last_stage))
            ran = pipeline.sweep({name: equal}, [int(size)], cases, bounds=bounds)
            ran = ran.loc[ran["plan"] != "max clock", kept]
            place = {"profile": name, "stages": stages, "last_stage": last_stage}
            tables.append(ran.assign(**place, microbatches=size))
    return pd.concat(tables, ignore_index=True)[["profile", *columns, *kept]]
