"""Compiled loops hear Ctrl-C; what would make them endless is refused before they begin."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from labkit import cluster, serving
from labkit.cluster.policies import allocators
from labkit.errors import BadValue
from labkit.kit import compiled
from labkit.papers import elasticflow, hare, synergy, tiresias
from labkit.pipeline.planning import envpipe
from labkit.serving.batching import groups
from labkit.serving.device import kernels, timeline
from labkit.serving.device.clients import Client, Gpu, Workload

ROOT = Path(__file__).resolve().parents[2]
NODE = cluster.Cluster.nodes(1, gpus=4)
ONE_JOB = cluster.Trace(arrival_s=[0], duration_s=[1e6], gpus=[1])
TWO_JOBS = cluster.Trace(arrival_s=[0, 0], duration_s=[1e6, 1e6], gpus=[4, 4])
PROGRAM = kernels.Program(name="p", blocks=(1,), total_s=(0.01,), wave_s=((0.01,),))


class Heard(Exception):
    """What the handler of a signal raises."""


@contextmanager
def interrupted() -> Iterator[None]:
    """A signal each tenth of a second; its handler fails where compiled code runs it, and nowhere
    else: not while numba compiles, nor before or after the loop."""

    def handle(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is compiled.pause.__code__:
            raise Heard

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_events() -> None:
    jobs = 40_000
    trace = cluster.Trace(
        arrival_s=np.zeros(jobs), duration_s=np.arange(1, jobs + 1), gpus=np.ones(jobs, int)
    )
    cluster.simulate(trace, NODE, cluster.srtf())


def run_shares() -> None:
    policy = cluster.share_policy("fifo", round_s=0.01)
    cluster.simulate(TWO_JOBS, NODE, policy, keeps_segments=False)


def run_division() -> None:
    sizes = np.arange(3000)
    allocators.divide(np.ones((3000, sizes.size)), sizes.size, sizes)


def run_iterations() -> None:
    requests = serving.Requests(arrival_s=[0], prompt_tokens=[1], output_tokens=[10**9])
    serving.simulate(requests, serving.TokenProfile(weights_s=0.01), serving.Batcher(max_batch=1))


def run_groups() -> None:
    requests = serving.Requests(
        arrival_s=np.arange(1e6), slo_s=np.ones(10**6), model=("m",) * 10**6
    )
    servers = groups.Groups(groups=(groups.Group(models=("m",)),) * 3000)
    serving.simulate(requests, [groups.ServedModel(name="m", latency_s=1.0)], servers)


def run_batches() -> None:
    count = 400_000
    names = [f"m{number}" for number in range(2000)]
    profile = serving.BatchProfile(name="p", latency_s=(0.01, 0.015))
    sessions = [
        serving.Session(model=name, profile=profile, rate_per_s=1.0, slo_s=1.0) for name in names
    ]
    slots = tuple(serving.Slot(session=session, batch=1, rate_per_s=1.0) for session in sessions)
    requests = serving.Requests(
        arrival_s=np.arange(count, dtype=float), slo_s=np.ones(count), model=("m0",) * count
    )
    servers = serving.BatchServers(servers=(serving.BatchServer(slots=slots),))
    serving.simulate(requests, servers.profiles, servers)


def run_kernels() -> None:
    workload = Workload(clients=(Client(program="p"),) * 2, until_s=1e6)
    timeline.simulate(workload, {"p": PROGRAM}, Gpu(mode="streams"))


def run_packing() -> None:
    needs = synergy.load_needs(ROOT / "data/papers/synergy/needs.csv")
    trace = cluster.Trace(arrival_s=[0], duration_s=[1e6], gpus=[1], kind=(min(needs),))
    cluster.simulate(trace, NODE, synergy.allocator(needs, round_s=0.01))


def run_tasks() -> None:
    jobs = hare.Rounds(
        arrival_s=[0, 0],
        weight=[1, 1],
        rounds=[10**7] * 2,
        tasks=[1, 1],
        task_s=np.ones((2, 4)),
        sync_s=[0, 0],
    )
    hare.schedule(jobs)


def run_deadlines() -> None:
    policy = elasticflow.Deadlines(name="turns", share="turns", round_s=0.01)
    trace = cluster.Trace(
        arrival_s=[0, 0], duration_s=[1e6, 1e6], gpus=[4, 4], deadline_s=[1e9, 1e9]
    )
    cluster.simulate(trace, NODE, policy)


def run_reconfiguring() -> None:
    """Instructions of one device, each a thousand clocks below its ceiling."""
    num = 20_000
    waits = (np.arange(num), np.append(num, np.arange(num - 1)), np.full(num, num))
    lags_s = (np.zeros(num), np.zeros(num))
    clock_mhz = np.arange(1000, 0, -1.0)
    row = np.full(num, 999)
    envpipe._reconfigure(waits, lags_s, np.ones(1000), clock_mhz, row, np.zeros_like(row), True)


LOOPS = [
    run_events,
    run_shares,
    run_division,
    run_iterations,
    run_groups,
    run_batches,
    run_kernels,
    run_packing,
    run_tasks,
    run_deadlines,
    run_reconfiguring,
]


@pytest.mark.parametrize("loop", LOOPS)
def test_every_compiled_loop_hears_an_interrupt(loop: Callable[[], None]) -> None:
    """Each would take half a minute to hours; what the handler raises comes out as it is."""
    with interrupted(), pytest.raises(Heard):
        loop()


def test_an_interrupt_ends_the_loops_of_threads_too() -> None:
    """Python hears signals in its first thread alone, which waits for the others."""

    def handle(*_: Any) -> None:
        raise KeyboardInterrupt

    run_events_once = cluster.Trace(arrival_s=[0], duration_s=[1], gpus=[1])
    cluster.simulate(run_events_once, NODE, cluster.share_policy("fifo"))  # compiled by now
    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    policies = [cluster.share_policy("fifo", round_s=0.002)] * 4
    try:
        with pytest.raises(KeyboardInterrupt):
            cluster.compare(TWO_JOBS, NODE, policies, windows=[(0, 2)])
    finally:
        signal.signal(signal.SIGALRM, before)


TOO_MANY: dict[str, tuple[Callable[[], Any], str]] = {
    "shares": (
        lambda: cluster.simulate(ONE_JOB, NODE, cluster.share_policy("fifo", round_s=1e-9)),
        "round_s of policy 'fifo' is 1e-09: .*valid: 0.001 s or longer",
    ),
    "a loop of its own": (
        lambda: cluster.simulate(ONE_JOB, NODE, synergy.allocator({}, round_s=1e-4)),
        "round_s of policy .*valid: 0.001 s or longer",
    ),
    "queues": (lambda: tiresias.gittins([1.0, 2.0], queues=10**9), "queues.*10000"),
    "slices": (
        lambda: tiresias.slices(1e-6, longest_s=1e6),
        "quantum_s 1e-06 .*valid: 100 or longer",
    ),
    "tokens": (
        lambda: serving.simulate(
            serving.Requests(arrival_s=[0], prompt_tokens=[0], output_tokens=[2**31 - 1]),
            serving.TokenProfile(weights_s=0.01),
            serving.Batcher(),
        ),
        "request 0 has output_tokens 2147483647.*valid: at most 1,000,000,000",
    ),
    "programs": (
        lambda: timeline.simulate(
            Workload(clients=(Client(program="p"),), until_s=1e9),
            {"p": PROGRAM},
            Gpu(mode="streams"),
        ),
        "until_s is 1e.09: client 0 .*valid: at most 1e.07 s",
    ),
}


@pytest.mark.parametrize("case", TOO_MANY)
def test_steps_without_end_are_refused_by_the_name_of_the_field(case: str) -> None:
    call, message = TOO_MANY[case]
    with pytest.raises(BadValue, match=message):
        call()
