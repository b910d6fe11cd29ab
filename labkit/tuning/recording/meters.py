"""Energy counters: a GPU through zeus (or zeus-ml, as it was called), a processor through RAPL.

A meter measures windows of time and energy, from ``begin()`` to ``end()``, and its ``source`` says
what it is. Where a GPU lets its power limit be set, its meter is also the way to set it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import platform
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabkitError, UsageError

RAPL_HOME = Path("/sys/class/powercap")
LIMIT_STEP_W = 25.0
"""Distance of the power limits tried on a GPU, as in zeus-ml's optimizer."""

_NOT_OURS_TO_SET = ("NoPermission", "NotSupported", "No permission")


_NVML_SAYS = (
    "updated every 20 to 100 ms, as PETSc's manual says (PetscLogGpuEnergyMeter); NVML documents "
    "millijoules for nvmlDeviceGetTotalEnergyConsumption and no period, and for its sensor an "
    "accuracy (±5 %, nvmlDeviceGetPowerUsage) on Fermi and Kepler alone, so none of this GPU"
)
_RAPL_SAYS = (
    "updated about every millisecond, as Intel's Software Developer's Manual says (volume 3, RAPL "
    "energy status registers), which documents no accuracy of the energy itself"
)


def period_error(period_s: float, window_s: float) -> float:
    """The most by which a window's energy is off because its counter moves in steps, as a share.

    Each end of a window reads a count that is up to one period old, so their difference misses or
    adds the energy of one period at most, where the draw is steady.

    Args:
        period_s: how often the counter moves.
        window_s: how long the window is.

    >>> period_error(0.1, 2.0)
    0.05
    """
    return period_s / window_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one window took: its time and its energy."""

    time_s: float
    energy_j: float


# ---------------------------------------------------------------- a processor


class RaplMeter:
    """Reads package energy of all sockets from the kernel's RAPL counters (microjoules).

    Raises:
        LabkitError: there is no counter, or it may not be read.
    """

    period_s = 0.001
    documented = _RAPL_SAYS

    def __init__(self, home: Path = RAPL_HOME) -> None:
        self.zones = sorted(p for p in home.glob("intel-rapl:*") if p.name.count(":") == 1)
        if not self.zones:
            raise LabkitError(f"no RAPL counter: {home} has no intel-rapl zone")
        try:
            self._ranges = [self._number(zone, "max_energy_range_uj") for zone in self.zones]
            self._counters()
        except OSError as error:
            raise LabkitError(f"RAPL may not be read here: {error}") from None
        self._start: tuple[float, list[int]] | None = None
        self.source = f"RAPL, package energy of {len(self.zones)} socket(s)"

    def begin(self) -> None:
        """Begin a window."""
        self._start = time.perf_counter(), self._counters()

    def end(self) -> Reading:
        """End the window and say what it took.

        It is right even where a counter wrapped once: windows must be shorter than a whole turn.

        Raises:
            UsageError: no window was begun.
        """
        if self._start is None:
            raise UsageError("no window was begun")
        (start_s, before) = self._start
        now_s = time.perf_counter()
        after = self._counters()
        self._start = None
        used = sum(
            (b - a) % (turn + 1) for a, b, turn in zip(before, after, self._ranges, strict=True)
        )
        return Reading(time_s=now_s - start_s, energy_j=used / 1e6)

    def limit_w(self) -> float | None:
        """The sum of the sockets' long-term limits; None where the kernel does not tell."""
        try:
            microwatts = [self._number(zone, "constraint_0_power_limit_uw") for zone in self.zones]
        except OSError:
            return None
        return sum(microwatts) / 1e6 or None

    def _counters(self) -> list[int]:
        return [self._number(zone, "energy_uj") for zone in self.zones]

    @staticmethod
    def _number(zone: Path, name: str) -> int:
        return int((zone / name).read_text(encoding="ascii"))


# ---------------------------------------------------------------- a GPU


class GpuMeter:
    """Reads one GPU's energy counter through zeus-ml, and sets its power limit where that is
    allowed.

    ``power_limits_w`` lists the limits that may be set, ascending; there is one where nobody may
    set any.

    Args:
        index: the GPU's number as ``CUDA_VISIBLE_DEVICES`` counts.
        monitor: a ``ZeusMonitor``; it is made here where left out.
        gpus: what ``zeus.device.get_gpus()`` returns; it is called here where left out.

    Raises:
        LabkitError: there is no GPU, or zeus-ml is not installed.
    """

    period_s = 0.1
    documented = _NVML_SAYS

    def __init__(self, index: int = 0, *, monitor: Any = None, gpus: Any = None) -> None:
        self.index = index
        self._gpus = _gpus() if gpus is None else gpus
        if not 0 <= index < len(self._gpus):
            raise LabkitError(f"no GPU {index}: this machine has {len(self._gpus)}")
        self._monitor = _monitor(index) if monitor is None else monitor
        self.power_limits_w = self._settable()
        self.source = f"{_call(self._gpus, 'get_name', index)}, zeus-ml's monitor"

    def begin(self) -> None:
        # whoever computes must have waited for the GPU: here it would only make a CUDA context
        """Begin a window."""
        self._monitor.begin_window("labkit", sync_execution=False)

    def end(self) -> Reading:
        """End the window and say what it took."""
        window = self._monitor.end_window("labkit", sync_execution=False)
        return Reading(time_s=window.time, energy_j=window.total_energy)

    def set_limit(self, power_limit_w: float) -> None:
        """Run at this limit (one of ``power_limits_w``) from here on."""
        if power_limit_w not in self.power_limits_w:
            raise UsageError(
                f"power limit {power_limit_w:g} W cannot be set; there are: "
                f"{', '.join(f'{w:g}' for w in self.power_limits_w)}"
            )
        if len(self.power_limits_w) > 1:
            _call(self._gpus, "set_power_management_limit", self.index, round(power_limit_w * 1000))

    def reset(self) -> None:
        """Set the GPU's default limit again."""
        if len(self.power_limits_w) > 1:
            _call(self._gpus, "reset_power_management_limit", self.index)

    def _settable(self) -> tuple[float, ...]:
        """List limits in steps from the highest down, or the highest alone if none may be set."""
        low_mw, high_mw = _call(self._gpus, "get_power_management_limit_constraints", self.index)
        try:
            _call(self._gpus, "reset_power_management_limit", self.index)
        except Exception as error:  # zeus-ml's errors share no base of their own with NVML's
            if not any(word in f"{type(error).__name__} {error}" for word in _NOT_OURS_TO_SET):
                raise
            return (high_mw / 1000,)
        steps = int((high_mw - low_mw) / 1000 // LIMIT_STEP_W)
        return tuple(high_mw / 1000 - LIMIT_STEP_W * step for step in range(steps, -1, -1))


def _call(gpus: Any, name: str, *arguments: Any) -> Any:
    """Call a method of zeus's GPUs, which zeus-ml spells with capitals (``getName``)."""
    first, *others = name.split("_")
    older = first + "".join(map(str.capitalize, others))
    return getattr(gpus, name if hasattr(gpus, name) else older)(*arguments)


def _gpus() -> Any:
    """Open zeus-ml's GPUs, without what it prints on a machine that has none."""
    try:
        with _quiet():
            from zeus.device import get_gpus

            gpus = get_gpus()
    except ImportError:
        raise LabkitError(
            "zeus-ml is not installed: pip install zeus-ml, or zeus, as newer versions are called"
        ) from None
    except Exception:  # libraries of vendors that are not here fail in ways of their own
        raise LabkitError(
            "no GPU that zeus-ml can read (neither NVIDIA's nor AMD's management library answers)"
        ) from None
    if not len(gpus):
        raise LabkitError("no GPU that zeus-ml can read")
    return gpus


def _monitor(index: int) -> Any:
    """Make zeus-ml's monitor of one GPU, without what it prints."""
    with _quiet():
        from zeus.monitor import ZeusMonitor

        return ZeusMonitor(gpu_indices=[index], cpu_indices=[])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what a library logs and prints."""
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(previous)


# ---------------------------------------------------------------- the machine


def machine() -> dict[str, Any]:
    """Describe this machine: the name of its processor, how many there are, and the operating
    system.
    """
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "name": " ".join(model[1].split()) if model else platform.machine(),
        "num_cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }
