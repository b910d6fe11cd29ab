"""Whether a reader's front end listens to this kernel, so that controls are live; loads nothing."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from importlib.util import find_spec

from labkit import extras

LIVE = "LABKIT_LIVE"
"""1 asks for live controls, 0 for stored states, whoever runs the kernel."""
FRONT_ENDS = ("JPY_SESSION_NAME", "VOILA_BASE_URL")
"""What JupyterLab's server and Voilà tell the kernels that they start for a reader."""


def is_live(environment: Mapping[str, str] | None = None) -> bool:
    """Whether a front end listens to this kernel, by what its server told it.

    Kernels of papermill, nbclient and nbval are told nothing, and so store.

    >>> is_live({"JPY_SESSION_NAME": "paper.ipynb", "LABKIT_LIVE": "0"})
    False
    """
    told_by = os.environ if environment is None else environment
    asked = told_by.get(LIVE, "")
    if asked == "0" or not (asked or any(told_by.get(name) for name in FRONT_ENDS)):
        return False
    missing = [name for name in ("ipywidgets", "anywidget") if find_spec(name) is None]
    if missing:
        warnings.warn(
            f"{missing[0]} is not installed, so figures show stored states only: "
            + extras.command("lab"),
            stacklevel=3,
        )
    return not missing
