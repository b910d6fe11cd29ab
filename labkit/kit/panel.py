"""The panel of an engine: its figures over common controls, and the command that says the same.

An engine's module ``panel`` has one function, ``panel``, which makes a :class:`Panel` of what a
user brings: ``profile``, a file or a name of the engine's profile, trace or requests, and
``model``, a configuration or a preset. It has those of the two parameters that it can use. The
command line lists panels and serves them; what they show is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Figures over common controls.

    Attributes:
        title: what stands above the controls.
        figures: functions that draw; each is called again when a control moves that it has a
            parameter for.
        axes: the controls by name: ``(low, high)`` is a range, a list holds single values.
        label: what a control is called, where its name does not say it.
        start: where a control stands first; default: at its first value.
        call: the shell command that answers the same, from the values of all controls.
    """

    title: str
    figures: tuple[Callable[..., Any], ...]
    axes: Mapping[str, Any]
    call: Callable[..., str]
    label: Mapping[str, str] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)
