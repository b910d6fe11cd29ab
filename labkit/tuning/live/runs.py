"""A real training command under a real device's counter, tuned from recurrence to recurrence.

    meter = live.find_device()
    state = live.recur(Path("job.json"), live.LiveJob(command=("python", "train.py")), meter)

Each call runs the command once at the batch size and power limit that :mod:`state` decides,
measures time and energy, and adds the run to the state. A command that tells its steps (see
:func:`tick`) has its power limits profiled just in time, during its own first steps; of one that
does not, whole runs at the default batch size try the limits one by one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from labkit.errors import LabkitError, UsageError
from labkit.tuning.configurations.power_limits import Slice, cost_j, profile_limits
from labkit.tuning.live.state import Decision, LiveJob, LiveRun, LiveState, open_state
from labkit.tuning.recording.meters import GpuMeter

STEPS_FILE = "LABKIT_STEPS"
"""Environment variable: the file a command adds one byte to after each training step."""

POLL_S = 0.5
"""How often the cost so far is looked at."""
GRACE_S = 10.0
MOST_READINGS = 20


def tick() -> None:
    """Tell that a training step ended; a training script calls this in its loop.

    Outside a live run it does nothing. A script that cannot import labkit adds a byte to the file
    that ``$LABKIT_STEPS`` names.
    """
    if path := os.environ.get(STEPS_FILE):
        with open(path, "ab") as stream:
            stream.write(b".")


def find_device(index: int = 0) -> GpuMeter:
    """Find the GPU that live runs are measured on.

    Raises:
        UsageError: there is none that zeus-ml can read.
    """
    try:
        return GpuMeter(index)
    except LabkitError as error:
        raise UsageError(
            f"live runs need a GPU whose energy and power limit zeus-ml can read: {error}. "
            "`labkit tuning record` and `labkit tuning simulate` need none."
        ) from None


def recur(
    path: Path,
    job: LiveJob,
    meter: GpuMeter,
    *,
    output: IO[str] | int | None = None,
    tell: Callable[[Decision], None] = lambda _: None,
) -> LiveState:
    """Run the job once more and add what it took to the state at ``path``.

    The file is written when the command has ended, whole or not at all; several recurrences may run
    at once. Whatever happens, the device goes back to its default limit; a run that is interrupted
    leaves no trace in the state.

    Args:
        path: where the state is; the first run makes it.
        job: what recurs.
        meter: measures the runs, and sets their power limits.
        output: where the command's standard output goes; default: where this process's does.
        tell: hears the decision, before the command starts.

    Raises:
        UsageError: the state is of another job or device, or the command cannot start.
    """
    from filelock import FileLock

    state = open_state(path, job, meter.source, meter.power_limits_w)
    decision = state.decide()
    tell(decision)
    run = _Run(state=state, decision=decision, meter=meter).finish(output)
    with FileLock(path.with_name(f".{path.name}.lock")):
        latest = open_state(path, job, meter.source, meter.power_limits_w)
        latest = replace(latest, runs=(*latest.runs, run))
        latest.save(path)
    return latest


@dataclass(kw_only=True)
class _Run:
    """One run of the command: its process, and what it has taken so far."""

    state: LiveState
    decision: Decision
    meter: GpuMeter
    time_s: float = 0.0
    energy_j: float = 0.0
    limit_w: float = 0.0
    slices: tuple[Slice, ...] = ()

    def finish(self, output: IO[str] | int | None) -> LiveRun:
        """Run the command to its end and sum up what it took."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        with contextlib.ExitStack() as stack:
            stack.callback(self.meter.reset)
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            self.steps_file = Path(folder) / "steps"
            self.steps_file.touch()
            self._set_limit(self.decision.power_limit_w)
            self.meter.begin()
            stack.callback(self._close_window)
            self.process = self._started(output)
            stack.callback(_stop, self.process)
            if self.decision.profiles:
                self._profile()
            stopped = self._watch()
            self._account()
        code = None if stopped else self.process.returncode
        return LiveRun(
            batch_size=self.decision.batch_size,
            power_limit_w=self.limit_w,
            time_s=self.time_s,
            energy_j=self.energy_j,
            ended="stopped" if stopped else "failed" if code else "reached",
            exit_code=code,
            sweeps=self.decision.sweeps,
            slices=self.slices,
            started=started,
        )

    def _account(self) -> tuple[float, float]:
        """Add what the window took, and start the next."""
        took = self.meter.end()
        self.meter.begin()
        self.time_s += took.time_s
        self.energy_j += took.energy_j
        return took.time_s, took.energy_j

    def _set_limit(self, power_limit_w: float) -> None:
        """Set the device's power limit, and remember it."""
        self.meter.set_limit(power_limit_w)
        self.limit_w = power_limit_w

    def _watch(self) -> bool:
        """Wait for the command's end, and tell whether it had to be stopped for its cost."""
        job = self.state.job
        highest = self.state.power_limits_w[-1]
        stop_j = self.state.stop_j
        while self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(POLL_S)
            self._account()
            spent_j = cost_j(self.energy_j, self.time_s, eta=job.eta, max_power_w=highest)
            if spent_j > stop_j and self.process.poll() is None:
                _stop(self.process)
                return True
        return False

    def _started(self, output: IO[str] | int | None) -> subprocess.Popen:
        """Start the command in a session of its own, to be stopped with all that it starts."""
        words = self.state.job.words(self.decision.batch_size)
        environment = {**os.environ, STEPS_FILE: str(self.steps_file)}
        try:
            return subprocess.Popen(words, stdout=output, env=environment, start_new_session=True)
        except OSError as error:
            raise UsageError(f"the command {words[0]!r} cannot be started: {error}") from None

    def _close_window(self) -> None:
        """Close the meter's window and ignore what goes wrong: by now all is accounted for, or
        another error counts.
        """
        with contextlib.suppress(Exception):
            self.meter.end()

    # ------------------------------------------------------------ power limits, just in time

    def _profile(self) -> None:
        """Try every limit on slices of the run, then go on at the best.

        Should the command end first, what was measured is dropped: the next run profiles again.
        """
        with contextlib.suppress(_Ended):
            self.slices = profile_limits(self.run_slice, self.state.power_limits_w)
            self._set_limit(self.state.select(self.slices))

    def run_slice(self, power_limit_w: float) -> Slice:
        """Let the command do the same number of its own steps at a limit, and measure them.

        A quarter as many steps pass first, for the clock to settle.
        """
        number = self.state.job.steps
        self._set_limit(power_limit_w)
        self._wait(self._steps() + max(1, number // 4))
        before, _, _ = self._mark()
        self._wait(before + number)
        after, time_s, energy_j = self._mark()
        done = after - before
        return Slice(power_limit_w=power_limit_w, time_s=time_s / done, energy_j=energy_j / done)

    def _mark(self) -> tuple[int, float, float]:
        """Read together how many steps are done, and the time and energy since the last mark.

        They are read again should a step have ended in between: this process may have had to wait.
        """
        time_s = energy_j = 0.0
        for _ in range(MOST_READINGS):
            steps = self._steps()
            took_s, took_j = self._account()
            time_s = time_s + took_s
            energy_j = energy_j + took_j
            if self._steps() == steps:
                break
        return steps, time_s, energy_j

    def _steps(self) -> int:
        """How many steps the command has told."""
        return self.steps_file.stat().st_size

    def _wait(self, steps: int) -> None:
        """Wait until the command has told so many steps."""
        while self._steps() < steps:
            if self.process.poll() is not None:
                raise _Ended
            time.sleep(0.01)


class _Ended(Exception):
    """The command ended in the middle of a slice."""


def _stop(process: subprocess.Popen) -> None:
    """End the command, where it still runs, and all it started: it is asked to, then killed."""
    if process.poll() is not None:
        return
    for how, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        try:
            process.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            continue
