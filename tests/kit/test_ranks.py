"""Functions on real ranks: what they return, what goes over the wire, and how they fail."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from labkit.errors import BadValue, LabkitError
from labkit.kit.ranks import RanksRun, on_ranks

pytest.importorskip("torch")

NUMBERS = 1 << 18  # floats in a message: control bytes are nothing beside it


def _all_reduce(rank: int, numbers: int) -> float:
    import torch
    import torch.distributed as dist

    message = torch.full((numbers,), float(rank + 1))
    dist.all_reduce(message)
    return float(message.sum())


def _to_the_right(rank: int, numbers: int) -> list[float]:
    """Rank r sends r + 1 numbers' worth of messages to rank r + 1."""
    import torch
    import torch.distributed as dist

    size = dist.get_world_size()
    work = [
        dist.isend(torch.full((numbers,), float(rank)), (rank + 1) % size) for _ in range(rank + 1)
    ]
    left = (rank - 1) % size
    message = torch.empty(numbers)
    seen = []
    for _ in range(left + 1):
        dist.recv(message, left)
        seen.append(float(message.mean()))
    for part in work:
        part.wait()
    return seen


@pytest.fixture(scope="module")
def reduced() -> RanksRun:
    return on_ranks(_all_reduce, 3, NUMBERS)


@pytest.fixture(scope="module")
def passed_on() -> RanksRun:
    return on_ranks(_to_the_right, 4, NUMBERS)


def test_every_rank_returns_the_sum(reduced: RanksRun) -> None:
    assert reduced.results == (6.0 * NUMBERS,) * 3


def test_a_ring_moves_the_least_that_an_all_reduce_can(reduced: RanksRun) -> None:
    """2 (n − 1) messages' worth in all (Patarasuk and Yuan 2009, §3)."""
    assert reduced.received_bytes is not None
    moved = int(reduced.received_bytes.sum())
    assert moved == pytest.approx(2 * (3 - 1) * 4 * NUMBERS, rel=2e-3)
    assert not reduced.received_bytes.diagonal().any()


def test_bytes_are_told_apart_by_receiver_and_sender(passed_on: RanksRun) -> None:
    assert passed_on.results[1] == [0.0]
    assert passed_on.results[0] == [3.0] * 4
    expected = np.zeros((4, 4))
    for rank in range(4):
        expected[(rank + 1) % 4, rank] = 4 * NUMBERS * (rank + 1)
    assert passed_on.received_bytes is not None
    np.testing.assert_allclose(passed_on.received_bytes, expected, rtol=2e-3, atol=500)


def test_bytes_between_nodes(passed_on: RanksRun) -> None:
    """Of nodes 0-1 and 2-3, rank 1 sends across two messages and rank 3 four."""
    assert passed_on.across_bytes(2) == pytest.approx(6 * 4 * NUMBERS, rel=2e-3)
    assert passed_on.across_bytes(4) == 0


def test_what_a_notebook_defines_travels_with_what_it_closes_over() -> None:
    weight = np.arange(3)
    assert on_ranks(lambda rank, add: (weight * rank + add).tolist(), 2, 1).results == (
        [1, 1, 1],
        [1, 2, 3],
    )


def test_a_function_by_name() -> None:
    assert on_ranks("operator:add", 2, 40).results == (40, 41)


def test_a_failing_rank_is_named_with_its_traceback() -> None:
    def fail(rank: int) -> None:
        if rank == 1:
            raise ValueError("no such luck")

    with pytest.raises(LabkitError, match=r"rank 1 failed:(.|\n)*ValueError: no such luck"):
        on_ranks(fail, 2, timeout_s=60)


def test_a_rank_that_hangs_ends() -> None:
    def sleep(rank: int) -> None:
        import time

        time.sleep(600)

    with pytest.raises(LabkitError, match="did not finish within 4 s"):
        on_ranks(sleep, 2, timeout_s=4)
    assert on_ranks("operator:add", 2, 40).results == (40, 41)


def _lineage(rank: int) -> tuple[int, int, bool]:
    """The rank's process, the server's, and whether an earlier call left its mark."""
    import psutil
    import torch

    marked = hasattr(torch, "mark")
    torch.mark = rank  # type: ignore[attr-defined]
    return os.getpid(), psutil.Process().parents()[1].pid, marked


def test_a_server_stays_and_its_ranks_are_new() -> None:
    calls = [on_ranks(_lineage, num_ranks).results for num_ranks in (2, 2, 3)]
    ranks, servers, marks = zip(*[rank for results in calls for rank in results], strict=True)
    assert len(set(ranks)) == 7
    assert len(set(servers)) == 1
    assert not any(marks)


def test_a_rank_loads_no_compiler() -> None:
    """torch.compile's modules take longer to load than torch: the meter must do without."""

    def loaded(rank: int) -> bool:
        import torch

        torch.ones(2).sum()
        return "torch._dynamo" in sys.modules

    assert on_ranks(loaded, 1).results == (False,)


def test_a_rank_that_dies_is_named_and_the_next_call_works() -> None:
    def die(rank: int) -> None:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    server = on_ranks(_lineage, 1).results[0][1]
    with pytest.raises(LabkitError, match="rank 1 ended with signal SIGKILL"):
        on_ranks(die, 2, timeout_s=60)
    assert on_ranks(_lineage, 2).results[0][1] == server


def test_a_server_that_died_is_replaced() -> None:
    server = on_ranks(_lineage, 1).results[0][1]
    os.kill(server, signal.SIGKILL)
    assert soon(lambda: psutil.Process(server).status() == psutil.STATUS_ZOMBIE)
    assert on_ranks(_lineage, 1).results[0][1] != server
    assert not psutil.pid_exists(server)


def test_a_server_that_dies_during_a_call_is_reported() -> None:
    def kill(rank: int) -> None:
        os.kill(_lineage(rank)[1], signal.SIGKILL)

    with pytest.raises(LabkitError, match=r"server ended with -9"):
        on_ranks(kill, 1, timeout_s=60)
    assert on_ranks("operator:add", 1, 40).results == (40,)


def test_an_interrupt_reaches_the_caller_and_not_an_idle_server() -> None:
    """A terminal and Jupyter interrupt, and a kernel ends, what is in the caller's group."""
    server = on_ranks(_lineage, 1).results[0][1]
    assert os.getpgid(server) == server != os.getpgrp()


def test_ranks_see_the_environment_and_the_folder_of_the_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_TEST_OF_RANKS", "set")
    seen = on_ranks(lambda rank: (os.getcwd(), os.environ["LABKIT_TEST_OF_RANKS"]), 1)
    assert seen.results == ((str(tmp_path), "set"),)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_has_a_server_of_its_own() -> None:
    server = on_ranks(_lineage, 1).results[0][1]
    child = multiprocessing.get_context("fork").Process(target=_other_server, args=(server,))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert on_ranks(_lineage, 1).results[0][1] == server


def _other_server(server: int) -> None:
    assert on_ranks(_lineage, 1).results[0][1] != server


def test_calls_from_threads_take_turns() -> None:
    with ThreadPoolExecutor(3) as pool:
        runs = pool.map(lambda n: on_ranks("operator:add", 2, n).results, (10, 20, 30))
    assert list(runs) == [(10, 11), (20, 21), (30, 31)]


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"])
def test_a_server_ends_with_its_caller(end: str) -> None:
    code = (
        "import os; from labkit.kit.ranks import on_ranks\n"
        "on_ranks('operator:add', 1, 1)\n"
        "import psutil; print(psutil.Process().children()[0].pid, flush=True)\n" + end
    )
    caller = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    server = int(caller.stdout.split()[-1])
    assert soon(lambda: not psutil.pid_exists(server))


def soon(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((print, 0), r"num_ranks must be .*1"),
        ((print, "two"), "num_ranks"),
        ((3, 2), "function"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple, complaint: str) -> None:
    with pytest.raises(BadValue, match=complaint):
        on_ranks(*arguments)


def test_a_function_that_cannot_be_sent_is_refused() -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(LabkitError, match="cannot be sent"):
        on_ranks(lambda rank: lock, 2)
