"""What executors and those who call them exchange: jobs, outcomes, and events on the way.

A run plans its jobs, and an executor takes those that must run one by one, as it has room, and
yields what happens to each, at last its outcome. A job carries the notebook's text and an outcome
gives the executed text back, so workers need share no file system.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from labkit.workbook.run import processes, results

if TYPE_CHECKING:
    from labkit.workbook.run.fingerprint import Fingerprint

Status = Literal["ok", "failed", "hung", "died", "broken"]
"""``failed``: a cell raised; ``hung``: a limit passed; ``died``: the kernel or its process went
away, though no cell said so (worth another try); ``broken``: it could not be started or kept."""

CELL_TIMEOUT_S = 600
MAX_ATTEMPTS = 2
"""How often a notebook is tried whose kernel, or the process or machine around it, goes away."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One notebook with one set of parameters. ``reason`` to run it; empty when up to date.

    ``path`` is below the workbook's folder; ``overrides`` are the values to inject over its
    defaults, ``parameters`` all of them; ``problem`` is why it cannot run.
    """

    key: str
    slug: str
    path: Path
    text: str = field(default="", repr=False)
    overrides: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    fingerprint: Fingerprint | None = field(default=None, repr=False)
    datasets: tuple[str, ...] = ()
    reason: str = ""
    expected_s: float | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        return self.key if self.slug == results.DEFAULT else f"{self.key} [{self.slug}]"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How every job of a run executes: in which workbook, with which variables and limits."""

    root: Path
    run_id: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    cell_timeout_s: float = CELL_TIMEOUT_S
    notebook_timeout_s: float | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What a kernel's environment gets besides the executor's own."""
        return {**self.environment, processes.RUN_MARK: self.run_id, "LABKIT_ROOT": str(self.root)}


@dataclass(frozen=True, kw_only=True)
class CellPlace:
    """A cell of the notebook as its author numbers it, counting from 1, injected cells left out."""

    number: int
    total: int
    tag: str = ""
    first_line: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended; ``notebook`` is its text as far as it was executed (empty if not begun).

    ``worker`` is the cluster's worker it ran on, ``provenance`` that worker's machine and versions;
    both are empty where it ran here.
    """

    status: Status
    notebook: str = field(default="", repr=False)
    cell: CellPlace | None = None
    error: str = ""
    message: str = ""
    started: str = ""
    duration_s: float = 0.0
    attempts: int = 1
    log: str = field(default="", repr=False)
    worker: str = ""
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def ended(self) -> str:
        """When it started, and the seconds it took: the machine's clock may have been set since."""
        begun = datetime.fromisoformat(self.started)
        return (begun + timedelta(seconds=self.duration_s)).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Progress of one job: it started (on ``worker``), reached a cell, is tried again, or ended."""

    kind: Literal["start", "cell", "retry", "end"]
    job: Job
    cell: CellPlace | None = None
    outcome: Outcome | None = None
    worker: str = ""


class Watcher(Protocol):
    """Who is told how a run goes."""

    def note(self, text: str) -> None: ...
    def begin(self, jobs: Sequence[Job], num_workers: int) -> None: ...
    def event(self, event: Event) -> None: ...


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
