"""Live runs of real commands on a made-up device: what is decided, measured, kept and restored."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import BadFile, BadValue, LabkitError, UsageError
from labkit.tuning import live
from labkit.tuning.live import runs
from labkit.tuning.live.state import LiveJob, LiveRun, LiveState
from labkit.tuning.recording.meters import GpuMeter, RaplMeter, Reading

LIMITS = (100.0, 150.0, 200.0)
TIME = {100.0: 2.0, 150.0: 1.2, 200.0: 1.0}
"""Seconds a unit of work takes at each limit; each draws its limit all the time."""
ENERGY = {limit: limit * time for limit, time in TIME.items()}  # 200, 180, 200 J: 150 W is best

WORK = """
import os, pathlib, sys, time
work, units, code = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
steps = os.environ["LABKIT_STEPS"]
pathlib.Path(work + ".pid").write_text(str(os.getpid()))
for _ in range(units):
    for path in (work, steps):
        with open(path, "ab") as stream:
            stream.write(b".")
    time.sleep(float(sys.argv[4]) if len(sys.argv) > 4 else 0)
sys.exit(code)
"""


@dataclass
class Device:
    """A device whose clock and counter go with the work a command has done (bytes of a file)."""

    work: Path
    limits: tuple[float, ...] = LIMITS
    limit: float = LIMITS[-1]
    history: list[float] = field(default_factory=list)
    resets: int = 0
    start: int | None = None
    seen: int = 0
    source: str = "a made-up device"

    @property
    def power_limits_w(self) -> tuple[float, ...]:
        return self.limits

    def set_limit(self, power_limit_w: float) -> None:
        self.limit = power_limit_w
        self.history.append(power_limit_w)

    def reset(self) -> None:
        self.limit = LIMITS[-1]
        self.resets += 1

    def begin(self) -> None:
        assert self.start is None
        self.start = self.seen  # a counter runs on between two windows, and so does the work

    def end(self) -> Reading:
        assert self.start is not None
        now = self.done()
        units = now - self.start
        self.start = None
        self.seen = now
        return Reading(time_s=units * TIME[self.limit], energy_j=units * ENERGY[self.limit])

    def done(self) -> int:
        return self.work.stat().st_size if self.work.exists() else 0


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path / "work")


def job(device: Device, units: str = "10", code: int = 0, pause: float = 0, **more: Any) -> LiveJob:
    words = (sys.executable, "-c", WORK, str(device.work), units, str(code), str(pause))
    return LiveJob(command=words, **more)


def running(device: Device) -> bool:
    """Whether the last command is still at work."""
    pid = int(Path(f"{device.work}.pid").read_text())
    return Path(f"/proc/{pid}").exists()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost is looked at twenty-five times as often as elsewhere."""
    monkeypatch.setattr(runs, "POLL_S", 0.02)


def recur(path: Path, what: LiveJob, device: Device) -> LiveState:
    return live.recur(path, what, device)


def test_whole_runs_try_the_limits_from_the_highest_down_then_keep_the_best(
    device: Device, tmp_path: Path
) -> None:
    state = tmp_path / "job.json"
    for _ in range(5):
        found = recur(state, job(device, eta=1.0), device)
    assert [run.power_limit_w for run in found.runs] == [200, 150, 100, 150, 150]
    assert [run.sweeps for run in found.runs] == [True, True, True, False, False]
    assert {run.ended for run in found.runs} == {"reached"}
    for run in found.runs:
        assert run.time_s == pytest.approx(10 * TIME[run.power_limit_w])
        assert run.energy_j == pytest.approx(10 * ENERGY[run.power_limit_w])
    assert device.resets == 5
    assert live.load(state) == found


def test_time_alone_keeps_the_highest_limit_and_a_slowdown_allowed_takes_a_lower(
    device: Device, tmp_path: Path
) -> None:
    for name, selector, slack, best in (
        ("time", "time", None, 200),
        ("slow", "max-slowdown", 0.25, 150),
        ("slower", "max-slowdown", 1.0, 100),
    ):
        for _ in range(4):
            what = job(device, selector=selector, max_slowdown=slack)
            found = recur(tmp_path / f"{name}.json", what, device)
        assert found.runs[-1].power_limit_w == best


def test_a_command_that_tells_its_steps_is_profiled_in_its_first_run(tmp_path: Path) -> None:
    """One run instead of one a limit; the rest of it already goes on at the best limit."""
    enough = tmp_path / "enough"

    class Profiled(Device):
        def set_limit(self, power_limit_w: float) -> None:
            super().set_limit(power_limit_w)
            if len(self.history) == 1 + len(LIMITS) + 1:  # to start with, each once, the best
                enough.touch()

    device = Profiled(tmp_path / "work")
    endless = WORK.replace("for _ in range(units)", f"while not os.path.exists({str(enough)!r})")
    words = (sys.executable, "-c", endless, str(device.work), "0", "0", "0.005")
    what = LiveJob(command=words, steps=40, eta=1.0)
    found = recur(tmp_path / "job.json", what, device)
    (run,) = found.runs
    assert device.history == [200, 200, 150, 100, 150]
    assert [one.power_limit_w for one in run.slices] == [100, 150, 200]
    for one in run.slices:  # the work of a step is counted before the step is
        assert one.time_s == pytest.approx(TIME[one.power_limit_w], rel=2 / 40)
    assert run.power_limit_w == 150
    again = recur(tmp_path / "job.json", what, device)
    assert again.runs[-1].slices == ()
    assert device.history[5:] == [150]


def test_a_command_too_short_to_profile_is_profiled_again_next_time(
    device: Device, tmp_path: Path
) -> None:
    what = job(device, units="3", steps=20)
    for _ in range(2):
        found = recur(tmp_path / "job.json", what, device)
    assert [run.slices for run in found.runs] == [(), ()]
    assert found.decide().profiles
    assert [run.time_s > 0 for run in found.runs] == [True, True]


def test_batch_sizes_are_chosen_by_the_policy_that_replays_traces(
    device: Device, tmp_path: Path
) -> None:
    """Down from b0 until one fails, then up, twice; what fails is never run again."""
    device.limits = (200.0,)
    script = (
        "import sys; size = int(sys.argv[1]);"
        "open(sys.argv[2], 'ab').write(b'.' * {2: 15, 4: 8, 8: 10, 16: 12}[size]);"
        "sys.exit(size == 2)"
    )
    what = LiveJob(
        command=(sys.executable, "-c", script, "{batch_size}", str(device.work)),
        batch_sizes=(2, 4, 8, 16),
        default_batch_size=8,
    )
    for _ in range(12):
        found = recur(tmp_path / "job.json", what, device)
    sizes = [run.batch_size for run in found.runs]
    assert sizes[:4] == [8, 4, 2, 16]
    assert set(sizes[4:7]) == {4, 8, 16}
    assert 2 not in sizes[4:]
    assert sizes[7:] == [4] * 5  # costs do not vary, so Thompson sampling is sure
    assert [run.ended for run in found.runs if run.batch_size == 2] == ["failed"]


def test_a_run_that_costs_too_much_is_stopped(device: Device, tmp_path: Path) -> None:
    device.limits = (200.0,)
    state = tmp_path / "job.json"
    first = recur(state, job(device), device)
    assert first.stop_j == pytest.approx(2 * (0.5 * 10 * 200 + 0.5 * 200 * 10))
    endless = LiveState(
        job=job(device, units="100000", pause=0.01),
        device=device.source,
        power_limits_w=device.limits,
        runs=first.runs,
    )
    endless.save(state)
    found = recur(state, endless.job, device)
    assert found.runs[-1].ended == "stopped"
    assert found.runs[-1].exit_code is None
    assert found.cost_j(found.runs[-1]) > first.stop_j
    assert not running(device)


def test_a_command_that_fails_is_kept_as_failed_and_the_limit_tried_again(
    device: Device, tmp_path: Path
) -> None:
    found = recur(tmp_path / "job.json", job(device, code=3), device)
    assert (found.runs[0].ended, found.runs[0].exit_code) == ("failed", 3)
    assert found.stop_j == math.inf
    assert found.decide().power_limit_w == 200


def test_what_cannot_start_leaves_no_state_and_restores_the_limit(
    device: Device, tmp_path: Path
) -> None:
    state = tmp_path / "job.json"
    with pytest.raises(UsageError, match="'no-such-program' cannot be started"):
        recur(state, LiveJob(command=("no-such-program",)), device)
    assert not state.exists()
    assert device.resets == 1
    assert device.start is None


def test_an_interrupt_ends_the_command_and_restores_the_limit(
    device: Device, tmp_path: Path
) -> None:
    class Interrupted(Device):
        def end(self) -> Reading:
            if self.done() >= 5:
                self.done = lambda: 0  # type: ignore[method-assign]
                self.start = None
                raise KeyboardInterrupt
            return super().end()

    interrupted = Interrupted(device.work)
    what = job(device, units="100000", pause=0.01)
    with pytest.raises(KeyboardInterrupt):
        recur(tmp_path / "job.json", what, interrupted)
    assert interrupted.resets == 1
    assert not (tmp_path / "job.json").exists()
    assert not running(device)


def test_a_state_of_another_job_or_device_is_refused(device: Device, tmp_path: Path) -> None:
    state = tmp_path / "job.json"
    recur(state, job(device), device)
    with pytest.raises(UsageError, match=r"made with eta 0\.5, now 0\.1"):
        recur(state, job(device, eta=0.1), device)
    with pytest.raises(UsageError, match="made with device a made-up device, now another"):
        recur(state, job(device), Device(device.work, source="another"))
    with pytest.raises(UsageError, match=r"made with power limits .* now \(200\.0,\)"):
        recur(state, job(device), Device(device.work, limits=(200.0,)))
    state.write_text("{")
    with pytest.raises(BadFile, match="Invalid JSON"):
        live.load(state)
    state.write_text(json.dumps({"format": 9}))
    with pytest.raises(BadFile, match="not the state of a job; field 'format'; found 9"):
        live.load(state)
    state.write_text(json.dumps({"format": 1, "job": {}}))
    with pytest.raises(BadFile, match="not the state of a job"):
        live.load(state)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"command": ()}, "command must hold the words to run"),
        ({"beta": 1.0}, "LiveJob.beta must be a finite number, above 1; got 1"),
        ({"eta": 2.0}, "LiveJob.eta must be .* at most 1; got 2"),
        ({"selector": "best"}, "selector must be one of 'cost'"),
        ({"batch_sizes": (4, 2)}, r"batch_sizes must ascend, got \(4, 2\)"),
        ({"batch_sizes": (2, 4)}, "default_batch_size 1 must be among batch_sizes 2, 4"),
        ({"batch_sizes": (1, 2)}, r"must hold \{batch_size\}"),
        ({"steps": -1}, "LiveJob.steps must be a whole number, at least 0; got -1"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises((UsageError, BadValue), match=said):
        LiveJob(**({"command": ("true",)} | wrong))


def test_ticks_go_to_the_file_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.tick()  # outside a live run nothing happens
    monkeypatch.setenv(runs.STEPS_FILE, str(tmp_path / "steps"))
    live.tick()
    live.tick()
    assert (tmp_path / "steps").read_bytes() == b".."


# ---------------------------------------------------------------- counters


class Gpus:
    """What zeus-ml gives of one GPU, power in milliwatts."""

    def __init__(self, *, permitted: bool = True) -> None:
        self.permitted = permitted
        self.set_mw = [300_000]

    def __len__(self) -> int:
        return 1

    def getName(self, index: int) -> str:  # noqa: N802
        return "a GPU"

    def getPowerManagementLimitConstraints(self, index: int) -> tuple[int, int]:  # noqa: N802
        return 210_000, 300_000

    def setPowerManagementLimit(self, index: int, limit_mw: int) -> None:  # noqa: N802
        if not self.permitted:
            raise RuntimeError("No permission to set the power limit")
        self.set_mw.append(limit_mw)

    def resetPowerManagementLimit(self, index: int) -> None:  # noqa: N802
        self.setPowerManagementLimit(index, 300_000)


class Monitor:
    """ZeusMonitor's two calls."""

    def begin_window(self, key: str, sync_execution: bool = True) -> None:
        assert not sync_execution  # the wrapping process computes nothing on the GPU
        self.key = key

    def end_window(self, key: str, sync_execution: bool = True) -> Any:
        assert key == self.key
        assert not sync_execution
        return type("Measurement", (), {"time": 2.0, "total_energy": 500.0})()


class NewGpus:
    """The same under the names that zeus 0.16 has, as zeus-ml is called now."""

    def __init__(self) -> None:
        self.older = Gpus()
        self.set_mw = self.older.set_mw
        self.get_name = self.older.getName
        self.get_power_management_limit_constraints = self.older.getPowerManagementLimitConstraints
        self.set_power_management_limit = self.older.setPowerManagementLimit
        self.reset_power_management_limit = self.older.resetPowerManagementLimit

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("kind", [Gpus, NewGpus])
def test_a_gpu_is_measured_and_limited_through_zeus(kind: type) -> None:
    gpus = kind()
    meter = GpuMeter(monitor=Monitor(), gpus=gpus)
    assert meter.power_limits_w == (225.0, 250.0, 275.0, 300.0)
    meter.begin()
    assert meter.end() == Reading(time_s=2.0, energy_j=500.0)
    meter.set_limit(250.0)
    assert gpus.set_mw[-1] == 250_000
    with pytest.raises(UsageError, match="240 W cannot be set; there are: 225, 250, 275, 300"):
        meter.set_limit(240.0)
    meter.reset()
    assert gpus.set_mw[-1] == 300_000
    with pytest.raises(LabkitError, match="no GPU 1: this machine has 1"):
        GpuMeter(1, monitor=Monitor(), gpus=gpus)


def test_the_fakes_are_called_as_zeus_is() -> None:
    """The made-up GPU and monitor have zeus-ml's methods and parameters."""
    from inspect import signature

    from zeus.device.gpu import GPUs
    from zeus.monitor import ZeusMonitor

    for fake, real in ((Gpus, GPUs), (Monitor, ZeusMonitor)):
        for name, method in vars(fake).items():
            if callable(method) and not name.startswith("__"):
                theirs = list(signature(getattr(real, name)).parameters.values())
                ours = list(signature(method).parameters)
                assert len(ours) <= len(theirs)
                required = [p for p in theirs[len(ours) :] if p.default is p.empty]
                assert not required, name
    assert {"gpu_indices", "cpu_indices"} <= set(signature(ZeusMonitor).parameters)
    assert "sync_execution" in signature(ZeusMonitor.end_window).parameters


def test_a_gpu_whose_limit_nobody_may_set_has_one() -> None:
    gpus = Gpus(permitted=False)
    meter = GpuMeter(monitor=Monitor(), gpus=gpus)
    assert meter.power_limits_w == (300.0,)
    meter.set_limit(300.0)
    meter.reset()
    assert gpus.set_mw == [300_000]


def test_rapl_adds_up_the_sockets_and_survives_a_wrap(tmp_path: Path) -> None:
    for number, start in enumerate((999_000_000, 5_000_000)):
        zone = tmp_path / f"intel-rapl:{number}"
        zone.mkdir()
        (zone / "max_energy_range_uj").write_text("999999999\n")
        (zone / "energy_uj").write_text(f"{start}\n")
        (zone / "constraint_0_power_limit_uw").write_text("90000000\n")
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of a socket: already counted in it
    meter = RaplMeter(tmp_path)
    meter.begin()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1000000\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("8000000\n")
    assert meter.end().energy_j == pytest.approx(1.0 + 1.0 + 3.0)
    assert meter.limit_w() == 180.0
    with pytest.raises(UsageError, match="no window was begun"):
        meter.end()
    with pytest.raises(LabkitError, match="no RAPL counter"):
        RaplMeter(tmp_path / "none")


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU here")
def test_without_a_gpu_the_refusal_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match=r"live runs need a GPU .*zeus-ml.*labkit tuning record"):
        live.find_device()


def test_runs_with_slices_come_back_from_the_file_as_they_were(tmp_path: Path) -> None:
    from labkit.tuning.configurations.power_limits import Slice

    slices = tuple(Slice(power_limit_w=w, time_s=1.0, energy_j=w) for w in LIMITS)
    run = LiveRun(
        batch_size=1, power_limit_w=150, time_s=3, energy_j=4, ended="failed", slices=slices
    )
    state = LiveState(
        job=LiveJob(command=("true",)), device="d", power_limits_w=LIMITS, runs=(run,)
    )
    state.save(tmp_path / "s.json")
    assert live.load(tmp_path / "s.json") == state
