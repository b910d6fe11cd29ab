"""Does it fit: what a device holds at each moment, and what one change would make of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from shlex import quote
from typing import Any

import pandas as pd

from labkit import memory
from labkit.hardware import accelerator
from labkit.kit.panel import Panel
from labkit.memory import certainty
from labkit.memory.commands.options import Spread, model_of
from labkit.models import presets
from labkit.quantities import format_bytes, significant

DEFAULT_MODEL = "llama-2-7b"
SEQS = (1024, 2048, 4096, 8192)
SEQ = 2048
"""Tokens of a sequence where the panel starts."""
DEVICES = ["A100-80GB", "A100-40GB", "H100-80GB", "V100-32GB"]

Settings = dict[str, Any]
REMEDIES: dict[str, Callable[[Settings], Settings]] = {
    "as it is": lambda now: {},
    "zero + 1": lambda now: {"zero": min(now["zero"] + 1, 3)},
    "twice the ranks": lambda now: {"dp": 2 * now["dp"]},
    "half the micro-batch": lambda now: {"micro_batch": max(now["micro_batch"] // 2, 1)},
    "half the tokens": lambda now: {"seq": now["seq"] // 2},
    "recompute all": lambda now: {"recompute": "full"},
}
"""One change of a plan's settings each, by what it is called: the settings that it replaces."""


def capacity_of(device: str) -> str:
    """What a device holds, in the unit of its name and in that of the axis.

    >>> capacity_of("A100-80GB")
    'A100-80GB: 80 GiB, 85.9 GB'
    """
    num_bytes = accelerator(device).memory_bytes
    return f"{device}: {significant(num_bytes / 2**30)} GiB, {format_bytes(num_bytes)}"


def menu_of(first: str) -> list[str]:
    """List the models of the menu: the user's own, then the presets that take as many tokens."""
    long = [name for name, shape in presets().items() if (shape.positions or SEQ) >= SEQ]
    return list(dict.fromkeys([first, *long]))


def panel(model: str = "") -> Panel:
    """A training plan of a model, beside the capacity of a device.

    Args:
        model: a preset, or a Hugging Face ``config.json``; it stands first in the menu of models.

    Raises:
        UsageError: there is no such model.
    """
    first = model or DEFAULT_MODEL
    model_of(first)  # raises where there is no such model

    @lru_cache(maxsize=512)
    def plan_at(*, model: str, **settings: Any) -> memory.Plan:
        return Spread(**settings).of(model_of(model))

    def moments(device: str, **settings: Any) -> Any:
        plan = plan_at(**settings)
        usable_bytes = plan.usable_bytes(device)
        verdict = "fits" if plan.peak_bytes <= usable_bytes else "does not fit"
        name = model_of(settings["model"]).name
        sure = certainty.of(plan)
        title = (
            f"{name} {verdict}: {format_bytes(plan.peak_bytes)} at the peak"
            f" (how sure: {sure.verdict})"
        )
        return memory.figures.figure_moments(
            plan.moments(),
            title=title,
            capacity_gb=usable_bytes / 1e9,
            capacity_name=capacity_of(device),
        )

    def remedies(device: str, **settings: Any) -> Any:
        plans = {name: plan_at(**settings | change(settings)) for name, change in REMEDIES.items()}
        usable_bytes = plans["as it is"].usable_bytes(device)
        parts = pd.concat({name: plan.frame() for name, plan in plans.items()}, names=["plan"])
        parts = parts.reset_index().assign(size_gb=lambda table: table["num_bytes"] / 1e9)
        fitting = [name for name, plan in plans.items() if plan.peak_bytes <= usable_bytes]
        title = f"At the peak after one change; fits: {', '.join(fitting) or 'none of these'}"
        return memory.figures.figure_states(
            parts,
            title=title,
            capacity_gb=usable_bytes / 1e9,
            capacity_name=capacity_of(device),
        )

    def command(*, model: str, **settings: Any) -> str:
        options = [f"--{name.replace('_', '-')} {value}" for name, value in settings.items()]
        return " ".join([f"labkit memory plan {quote(model)}", *options])

    return Panel(
        title="Does it fit (estimated)",
        figures=(moments, remedies),
        axes={
            "model": menu_of(first),
            "dp": [1, 2, 4, 8, 16, 32, 64, 128, 256],
            "zero": [0, 1, 2, 3],
            "micro_batch": (1, 16),
            "seq": sorted({*SEQS, min(model_of(first).positions or SEQ, SEQ)}),
            "recompute": ["none", "selective", "full"],
            "device": DEVICES,
        },
        call=command,
        label={"dp": "data-parallel ranks", "zero": "ZeRO stage", "seq": "tokens"},
        start={"dp": 8, "zero": 1, "seq": min(model_of(first).positions or SEQ, SEQ)},
    )
