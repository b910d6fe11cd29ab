"""What executors and those who call them exchange: jobs, outcomes, and events on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

Status = Literal["ok", "failed", "hung", "died", "broken"]
"""``failed``: a cell raised; ``hung``: a limit passed; ``died``: the kernel or its process went
away, though no cell said so (worth another try); ``broken``: it could not be started or kept."""

MAX_ATTEMPTS = 2
"""How often a notebook is tried whose kernel, or the process or machine around it, goes away."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One notebook to execute. ``parameters`` are the values to inject over its defaults."""

    key: str
    slug: str
    notebook: str = field(repr=False)
    parameters: dict[str, Any]
    cwd: str
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    cell_timeout_s: float = 600.0
    notebook_timeout_s: float | None = None

    @property
    def name(self) -> str:
        return self.key if self.slug == "default" else f"{self.key} [{self.slug}]"


@dataclass(frozen=True, kw_only=True)
class CellPlace:
    """A cell of the notebook as its author numbers it, counting from 1, injected cells left out."""

    number: int
    total: int
    tag: str = ""
    first_line: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended; ``notebook`` is its text as far as it was executed (empty if not begun)."""

    status: Status
    notebook: str = field(default="", repr=False)
    cell: CellPlace | None = None
    error: str = ""
    message: str = ""
    started: str = ""
    duration_s: float = 0.0
    attempts: int = 1
    log: str = field(default="", repr=False)

    @property
    def ended(self) -> str:
        """When it started, and the seconds it took: the machine's clock may have been set since."""
        begun = datetime.fromisoformat(self.started)
        return (begun + timedelta(seconds=self.duration_s)).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Progress of one job: it started, reached a cell, is tried again, or ended."""

    kind: Literal["start", "cell", "retry", "end"]
    job: Job
    cell: CellPlace | None = None
    outcome: Outcome | None = None


Listener = Callable[[Event], None]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
