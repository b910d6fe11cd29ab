"""What is known of a job that recurs on a real device, and what its next run should be.

The state is a JSON file: the job as it was first described, and every run since. What to run next
is worked out from it anew each time, by the same policy that replays traces (:mod:`pruning`), so
nothing is lost between recurrences and the file can be read by people.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from annotated_types import Gt, MinLen
from pydantic import TypeAdapter, ValidationError

from labkit.errors import BadFile, BadValue, UsageError
from labkit.files import read_text, write_atomically
from labkit.kit.describe import Count, NonNegative, Positive, Share, Whole, description
from labkit.tuning.configurations import power_limits
from labkit.tuning.configurations.power_limits import Selector, Slice

FORMAT = 1
Ending = Literal["reached", "failed", "stopped"]
PLACE = "{batch_size}"
WORSE_IN_A_ROW = 2
"""A sweep of limits by whole runs ends after this many limits worse than the best before."""


@description(slots=True)
class LiveJob:
    """A recurring command and how it is to be tuned.

    Attributes:
        command: its words; ``{batch_size}`` in one of them stands for the batch size.
        batch_sizes, default_batch_size: those to choose among, ascending, and where to begin.
        eta: weight of energy against time, 1 to 0.
        beta: a run is stopped once it costs so many times the cheapest that reached its target.
        selector, max_slowdown: how a limit is chosen, as in ``select_limits``.
        steps: training steps in a slice of the just-in-time profile; 0 where the command tells
            none.
        seed: of the policy's draws.
    """

    command: tuple[str, ...]
    batch_sizes: Annotated[tuple[Count, ...], MinLen(1)] = (1,)
    default_batch_size: Count = 1
    eta: Share = 0.5
    beta: Annotated[float, Gt(1)] = 2.0
    selector: Selector = "cost"
    max_slowdown: NonNegative | None = None
    steps: Whole = 0
    seed: Whole = 0

    def __post_init__(self) -> None:
        power_limits.check_selector(self.selector, self.max_slowdown)
        if not self.command:
            raise UsageError(
                "command must hold the words to run, such as python and train.py; got none"
            )
        if list(self.batch_sizes) != sorted(set(self.batch_sizes)):
            raise BadValue(f"batch_sizes must ascend, got {self.batch_sizes}")
        if self.default_batch_size not in self.batch_sizes:
            raise BadValue(
                f"default_batch_size {self.default_batch_size} must be among batch_sizes "
                f"{', '.join(map(str, self.batch_sizes))}"
            )
        if len(self.batch_sizes) > 1 and not any(PLACE in word for word in self.command):
            raise UsageError(
                f"command must hold {PLACE} for its batch size to be chosen, as in "
                f"python train.py --batch-size {PLACE}; got {' '.join(self.command)}"
            )

    def words(self, batch_size: int) -> list[str]:
        """The command for one batch size."""
        return [word.replace(PLACE, str(batch_size)) for word in self.command]


@description(slots=True)
class LiveRun:
    """One run that ended.

    Attributes:
        ended: ``"reached"`` (exit code 0), ``"failed"`` (any other) or ``"stopped"`` (for its
            cost).
        sweeps: whether the limit was being tried, rather than the batch size.
        slices: of a just-in-time profile made during this run, ascending.
        started: when, as an ISO text.
    """

    batch_size: Count
    power_limit_w: Positive
    time_s: NonNegative
    energy_j: NonNegative
    ended: Ending
    exit_code: int | None = None
    sweeps: bool = False
    slices: tuple[Slice, ...] = ()
    started: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to run next, and why in a few words."""

    batch_size: int
    power_limit_w: float
    why: str
    sweeps: bool = False
    profiles: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """A job, its device, and all runs so far."""

    job: LiveJob
    device: str
    power_limits_w: tuple[float, ...]
    runs: tuple[LiveRun, ...] = ()

    def cost_j(self, run: LiveRun) -> float:
        """What a run cost, by the job's weight of energy against time."""
        highest = self.power_limits_w[-1]
        eta = self.job.eta
        cost = power_limits.cost_j(run.energy_j, run.time_s, eta=eta, max_power_w=highest)
        return float(cost)

    @property
    def stop_j(self) -> float:
        """The cost at which a run is stopped: β times the cheapest that reached its target."""
        costs = [self.cost_j(run) for run in self.runs if run.ended == "reached"]
        return self.job.beta * min(costs, default=math.inf)

    def limit_profile(self, batch_size: int) -> tuple[Slice, ...]:
        """What is known of the limits at a batch size; nothing at first.

        Where the command tells its steps, its own slices say it. Else whole runs at the default
        batch size do, one a limit, which are taken to rank the limits for every batch size.
        """
        for run in reversed(self.runs):
            if run.slices and run.batch_size == batch_size:
                return run.slices
        return () if self.job.steps else self._swept()

    def decide(self) -> Decision:
        """What to run next: limits first where whole runs must show them, then batch sizes."""
        several = len(self.power_limits_w) > 1
        if several and not self.job.steps and (limit := self._next_limit()) is not None:
            b0 = self.job.default_batch_size
            return Decision(batch_size=b0, power_limit_w=limit, why="tries limits", sweeps=True)
        size = self._next_batch_size()
        if profile := self.limit_profile(size):
            limit = self.select(profile)
            why = f"best {self.job.selector}"
            return Decision(batch_size=size, power_limit_w=limit, why=why)
        why = "profiles limits as it runs" if several else "one limit only"
        highest = self.power_limits_w[-1]
        return Decision(batch_size=size, power_limit_w=highest, why=why, profiles=several)

    def select(self, profile: tuple[Slice, ...]) -> float:
        """The limit (W) the job's selector takes from a profile."""
        index = power_limits.select_limits(
            [part.time_s for part in profile],
            [part.energy_j for part in profile],
            max_power_w=profile[-1].power_limit_w,
            selector=self.job.selector,
            eta=self.job.eta,
            max_slowdown=self.job.max_slowdown,
        )
        return profile[int(index)].power_limit_w

    def frame(self) -> pd.DataFrame:
        """One row a run: batch_size, power_limit_w, time_s, energy_j, cost_j, ended."""
        columns = ["batch_size", "power_limit_w", "time_s", "energy_j", "cost_j", "ended"]
        rows = [asdict(run) | {"cost_j": self.cost_j(run)} for run in self.runs]
        return pd.DataFrame(rows, columns=columns)

    # ------------------------------------------------------------ how

    def _swept(self) -> tuple[Slice, ...]:
        """Mean time and energy of whole runs at the default batch size, by limit."""
        done = np.array([r.sweeps and r.ended == "reached" for r in self.runs], dtype=bool)
        means = self.frame()[done].groupby("power_limit_w")[["time_s", "energy_j"]].mean()
        rows = zip(means.index, means["time_s"], means["energy_j"], strict=True)
        return tuple(Slice(power_limit_w=w, time_s=s, energy_j=j) for w, s, j in rows)

    def _next_limit(self) -> float | None:
        """The highest limit not tried yet; None once going lower has stopped to pay.

        The highest of all until a run there has succeeded.
        """
        swept = self._swept()
        if not swept:
            return self.power_limits_w[-1]
        best = self.select(swept)
        tried = {r.power_limit_w for r in self.runs if r.sweeps}
        left = [limit for limit in self.power_limits_w if limit not in tried]
        worse = sum(limit < best for limit in tried)
        return left[-1] if left and worse < WORSE_IN_A_ROW else None

    def _next_batch_size(self) -> int:
        """What the published policy plays next, after every run that was not made for a limit."""
        from labkit.tuning.policies.policy import Outcome, Task
        from labkit.tuning.policies.pruning import Zeus

        sizes = self.job.batch_sizes
        played = [run for run in self.runs if not run.sweeps]
        task = Task(
            batch_sizes=sizes,
            power_limits_w=self.power_limits_w,
            default_index=sizes.index(self.job.default_batch_size),
            profiled_limits=np.zeros(len(sizes), dtype=np.intp),
            num_recurrences=len(played) + 1,
            num_seeds=1,
        )
        player = Zeus().start(task)
        rng = np.random.default_rng(self.job.seed)
        who = np.array([0])
        for run in played:
            player.decide(who, rng.standard_normal((1, len(sizes))))
            seen = Outcome(
                batch=np.array([sizes.index(run.batch_size)]),
                power=np.array([self.power_limits_w.index(run.power_limit_w)]),
                cost_j=np.array([self.cost_j(run)]),
                epochs=np.ones(1),  # a command says nothing of epochs: the whole run is one
                reached=np.array([run.ended == "reached"]),
            )
            player.observe(who, seen)
        batch, _ = player.decide(who, rng.standard_normal((1, len(sizes))))
        return sizes[int(batch[0])]

    # ------------------------------------------------------------ the file

    def save(self, path: Path) -> None:
        """Write the state to its file, whole or not at all."""
        content = {"format": FORMAT} | asdict(self)
        write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def load(path: Path) -> LiveState:
    """The state in a file.

    Raises:
        BadFile: it holds none, or one of another format.
    """
    try:
        content = TypeAdapter(dict[str, Any]).validate_json(read_text(path))
        if (value := content.pop("format", None)) != FORMAT:
            raise BadFile(path, "not the state of a job", field="format", value=value, valid="1")
        return TypeAdapter(LiveState).validate_python(content)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise BadFile(path, f"not the state of a job: {fault['msg']}", field=where) from None


def open_state(path: Path, job: LiveJob, device: str, limits: tuple[float, ...]) -> LiveState:
    """The state in a file, or a fresh one where there is none.

    Args:
        limits: the power limits of the device in watts, ascending.

    Raises:
        UsageError: the file is of another job, device or set of limits; the message names the
            difference.
    """
    if not path.exists():
        return LiveState(job=job, device=device, power_limits_w=limits)
    state = load(path)
    was = asdict(state.job) | {"device": state.device, "power limits": state.power_limits_w}
    for name, now in (asdict(job) | {"device": device, "power limits": limits}).items():
        if was[name] != now:
            raise UsageError(
                f"{path} was made with {name} {was[name]}, now {now}: give the same, or a new file"
            )
    return state
