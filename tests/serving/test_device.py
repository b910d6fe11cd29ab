"""The kernel timeline: theory of sharing, SimPy's priority queue, REEF's padding by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from labkit import datasets, serving
from labkit.errors import BadFile, BadValue, UsageError
from labkit.serving.device.clients import Mode
from labkit.serving.device.kernels import MODELS, Program
from tests.published import Need


class Issues(NamedTuple):
    """A client that issues this program."""

    program: Program
    arrival_s: tuple[float, ...] | None = None
    gap_s: float = 0.0
    real_time: bool = False


def simulate(clients: list[Issues], *, mode: Mode, until_s: float, **gpu: Any) -> serving.GpuRun:
    """The clients on a GPU, each with a program of its own name."""
    programs = {f"program {place}": client.program for place, client in enumerate(clients)}
    asked = [
        serving.Client(**client._replace(program=name)._asdict())
        for name, client in zip(programs, clients, strict=True)
    ]
    workload = serving.Workload(clients=tuple(asked), until_s=until_s)
    return serving.simulate(workload, programs, serving.Gpu(mode=mode, **gpu))


def program(name: str = "p", *, blocks: tuple[int, ...] = (60, 60), s: float = 0.01) -> Program:
    """Kernels that fill every unit, whose waves grow in proportion: two take turns."""
    count = len(blocks)
    waves = ((s, 2 * s, 3 * s),) * count
    return Program(name=name, blocks=blocks, total_s=(s,) * count, wave_s=waves)


def random_program(rng: np.random.Generator, name: str) -> Program:
    kernels = range(int(rng.integers(2, 6)))
    waves = [sorted(rng.uniform(0.001, 0.02, int(rng.integers(1, 6))).tolist()) for _ in kernels]
    return Program(
        name=name,
        blocks=tuple(rng.integers(1, 300, len(kernels)).tolist()),
        total_s=tuple(rng.uniform(0.002, 0.03, len(kernels)).tolist()),
        wave_s=tuple(map(tuple, waves)),
    )


MODES: tuple[Mode, ...] = ("alone", "sequential", "streams", "wait", "reset", "padded", "guests")


@pytest.mark.parametrize("mode", MODES)
def test_a_client_alone_takes_its_kernels_in_every_mode(mode: Mode) -> None:
    run = simulate([Issues(program=program(), real_time=True)], mode=mode, until_s=1.001)
    assert run.log["end_s"] == pytest.approx(0.02 * np.arange(1, 51))
    assert run.busy_fraction == pytest.approx(1.0)


def test_equal_kernels_that_fill_the_units_share_the_gpu_evenly() -> None:
    """Processor sharing: n equal programs issued together end after n times their time."""
    clients = [Issues(program=program(), arrival_s=(0.0,)) for _ in range(3)]
    run = simulate(clients, mode="streams", until_s=1.0)
    assert run.log["end_s"] == pytest.approx([0.06] * 3)


def test_kernels_on_different_units_do_not_slow_each_other() -> None:
    clients = [Issues(program=program(blocks=(30, 30)), arrival_s=(0.0,)) for _ in range(2)]
    run = simulate(clients, mode="streams", until_s=1.0)
    assert run.log["end_s"] == pytest.approx([0.02, 0.02])
    assert run.busy_fraction == pytest.approx(0.02)


@pytest.mark.parametrize("seed", range(8))
def test_sequential_is_simpys_priority_queue(seed: int) -> None:
    """Clients that queue for one resource, real-time ones first; nobody is stopped."""
    simpy = pytest.importorskip("simpy")
    rng = np.random.default_rng(seed)
    clients = [
        Issues(
            program=random_program(rng, f"p{c}"),
            arrival_s=tuple(np.sort(rng.uniform(0, 2, 12)).tolist()),
            real_time=bool(c % 2),
        )
        for c in range(4)
    ]
    env = simpy.Environment()
    ends = []
    gpu = simpy.PriorityResource(env)

    def issues(number: int, client: Issues) -> object:
        held = None
        for due in client.arrival_s or ():
            if held and due > env.now:
                gpu.release(held)
                held = None
            yield env.timeout(max(due - env.now, 0))
            turn = gpu.request(priority=0 if client.real_time else 1)
            if held:  # its next program is due already: it queues before the GPU goes to another
                gpu.release(held)
            yield turn
            yield env.timeout(client.program.alone_s)
            ends.append((number, env.now))
            held = turn
        gpu.release(held)

    for number, client in enumerate(clients):
        env.process(issues(number, client))
    env.run()
    log = simulate(clients, mode="sequential", until_s=100.0).log
    assert log["client"].tolist() == [number for number, _ in ends]
    assert log["end_s"] == pytest.approx([end for _, end in ends])


@pytest.mark.parametrize("seed", range(6))
def test_reset_adds_its_own_time_and_nothing_else(seed: int) -> None:
    """However many others run, a real-time program that comes alone waits for the reset only."""
    rng = np.random.default_rng(seed)
    real = random_program(rng, "real")
    others = [Issues(program=random_program(rng, f"p{c}")) for c in range(1 + seed)]
    due = tuple(np.arange(1, 9) * 1.0)
    clients = [Issues(program=real, arrival_s=due, real_time=True), *others]
    for mode in ("reset", "padded"):
        run = simulate(clients, mode=mode, reset_s=0.001, until_s=10.0)
        assert run.latency_s() == pytest.approx(real.alone_s + 0.001)
    alone = simulate(clients, mode="alone", until_s=10.0).latency_s().mean()
    waits = simulate(clients, mode="wait", until_s=10.0).latency_s().mean()
    streams = simulate(clients, mode="streams", until_s=10.0).latency_s().mean()
    assert alone == pytest.approx(real.alone_s)
    assert alone < waits
    assert alone <= streams


def test_work_is_conserved_where_clients_take_turns() -> None:
    """Busy time is that of all programs where each kernel fills the units, killed parts twice:
    the kernel begun at 300 ms is killed 10 ms later; at 50 ms nothing runs."""
    clients = [
        Issues(program=program(s=0.013), arrival_s=(0.05, 0.31), real_time=True),
        Issues(program=program(s=0.02), arrival_s=(0.0, 0.1, 0.3)),
    ]
    run = simulate(clients, mode="reset", reset_s=0.0, until_s=10.0)
    work_s = 2 * 2 * 0.013 + 3 * 2 * 0.02
    assert len(run.log) == 5
    assert 10 * run.busy_fraction == pytest.approx(work_s + 0.01)


def test_padding_by_hand() -> None:
    """40 blocks in one layer leave 20 units; two of the guest's blocks a unit end in time, twice.

    So a real kernel carries 20 * 2 * 2 = 80 blocks, and a guest of 160 needs two of them.
    """
    real = Program(name="r", blocks=(40,), total_s=(0.010,), wave_s=((0.01, 0.01, 0.01),))
    waves = (0.003, 0.005, 0.011)
    guest = Program(name="g", blocks=(160,), total_s=(0.02,), wave_s=(waves,))
    clients = [
        Issues(program=real, arrival_s=(0.0,) * 10, real_time=True),
        Issues(program=guest, arrival_s=(0.0, 0.0)),
    ]
    run = simulate(clients, mode="padded", until_s=0.1001)
    ends = run.log["end_s"][run.log["client"] == 1]
    assert ends == pytest.approx([0.02, 0.04])
    assert run.latency_s() == pytest.approx([0.01] * 10)
    heavy = Program(name="h", blocks=(160,), total_s=(0.02,), wave_s=((0.011,),))
    run = simulate([clients[0], Issues(program=heavy)], mode="padded", until_s=0.1001)
    assert len(run.log) == 10  # its shortest wave outlasts the kernel: nothing is carried
    slow = simulate(clients, mode="padded", contention=0.3, until_s=1.0)
    assert slow.latency_s().max() == pytest.approx(0.01 * (1 + 0.3 * 20 / 60))


def test_kernels_that_must_not_be_killed_are_waited_for() -> None:
    clients = [
        Issues(program=program(s=0.001), arrival_s=(0.105,), real_time=True),
        Issues(program=program(s=0.02)),
    ]
    for share, waited_s in ((1.0, 0.0), (0.0, 0.015)):
        run = simulate(clients, mode="reset", killable=share, reset_s=0.0, until_s=1.0)
        assert run.latency_s() == pytest.approx([0.002 + waited_s])


def test_a_guest_finishes_its_kernel_beside_the_owner_and_launches_no_other() -> None:
    """The owner comes at 5 of the guest's 20 ms; both then run at half speed for 20 ms."""
    clients = [
        Issues(program=program(blocks=(60,), s=0.02), arrival_s=(0.005,), real_time=True),
        Issues(program=program(blocks=(60, 60), s=0.02), arrival_s=(0.0,)),
    ]
    run = simulate(clients, mode="guests", until_s=1.0)
    assert run.latency_s() == pytest.approx([0.020 + 0.015])
    assert run.latency_s(real_time=False) == pytest.approx([0.060])


def test_a_closed_loop_waits_for_its_gap() -> None:
    run = simulate([Issues(program=program(), gap_s=0.03)], mode="streams", until_s=0.501)
    assert run.log["end_s"] == pytest.approx(0.02 + 0.05 * np.arange(10))
    assert run.rate_per_s() == pytest.approx(10 / 0.501)


def test_wrong_clients_are_refused_with_what_would_be_valid() -> None:
    with pytest.raises(BadValue, match="not empty"):
        simulate([], mode="alone", until_s=1.0)
    with pytest.raises(BadValue, match="mode"):
        simulate([Issues(program=program())], mode="fair", until_s=1.0)  # type: ignore[arg-type]
    workload = serving.Workload(clients=(serving.Client(program="bert"),), until_s=1.0)
    with pytest.raises(UsageError, match=r"no program of the clients 'bert'.*vgg"):
        serving.simulate(workload, {"vgg": program()}, serving.Gpu(mode="alone"))


# ---------------------------------------------------------------- programs


def test_programs_are_read_whole() -> None:
    source = datasets.source("reef-osdi22", serving.program_paths())
    programs = serving.load_programs(source)
    for read in programs.values():
        assert len(read) > 50
        assert all(list(w) == sorted(w) for w in read.wave_s)
    assert set(programs) == set(MODELS)


def test_published_programs_have_the_kernels_of_their_graphs(published_data: Need) -> None:
    source = published_data("reef-osdi22", serving.program_paths())
    for name, read in serving.load_programs(source).items():
        graph = json.loads(source.path(f"resource/{name}/{name}.json").read_text())
        assert len(read) == len(graph["kernels"])


def test_a_program_from_csv_and_wrong_files(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("kernel,blocks,total_us,waves_us\na,64,20,10 12\nb,1,8,8\n")
    read = Program.read(path)
    assert read.blocks == (64, 1)
    assert read.alone_s == pytest.approx(28e-6)
    assert read.wave_s[0] == pytest.approx((10e-6, 12e-6))
    path.write_text("kernel,blocks\na,64\n")
    with pytest.raises(BadFile, match="needs the columns"):
        Program.read(path)
    profile = tmp_path / "m.profile.json"
    graph = tmp_path / "m.json"
    profile.write_text('{"kernel_latency": {}}')
    graph.write_text('{"kernels": [{"name": "conv", "launch_params": [1, 1, 1, 1, 1, 1]}]}')
    with pytest.raises(BadFile, match=r"lacks the kernel conv that .*m\.json"):
        Program.read(profile, graph)
    graph.write_text("not JSON")
    with pytest.raises(BadFile, match="must be JSON: Expecting value"):
        Program.read(profile, graph)
    with pytest.raises(BadValue, match="needs blocks, total_s and wave_s"):
        Program(name="x", blocks=(1, 2), total_s=(1.0,), wave_s=((1.0,),))
