"""Real ranks over gloo against the formulas: to the byte, on 2, 3 and 4 ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit import memory
from labkit.errors import LabkitError, UsageError
from labkit.memory.oracles import oracle
from labkit.memory.oracles.cases import TINY_LLAMA as LLAMA
from labkit.memory.oracles.oracle import Measurement

pytest.importorskip("torch")

# Sizes that divide neither by 3 nor by 4: a formula that forgets a ceiling is caught.
TINY = memory.Model.preset("tiny-gpt")
SHARDED = ["zero2-flat", "zero3", "hpz", "mics"]


@pytest.fixture(scope="module")
def measured() -> Measurement:
    # In its second step DDP still agrees on its buckets; the third is as all that follow.
    return memory.measure(TINY, schemes=list(oracle.SCHEMES), steps=3)


@pytest.fixture(scope="module")
def llama() -> Measurement:
    return memory.measure(LLAMA, schemes=SHARDED, ranks=[3, 4], steps=2)


def test_every_scheme_ran_at_every_size(measured: Measurement) -> None:
    seen = {(report["scheme"], report["ranks"]) for report in measured.reports}
    plain = set(oracle.SCHEMES) - set(oracle.GROUPED)
    assert seen == {(name, n) for name in plain for n in (2, 3, 4)} | {("hpz", 4), ("mics", 4)}


@pytest.mark.parametrize("which", ["measured", "llama"])
def test_bytes_equal_the_formula_on_every_rank(which: str, request: Any) -> None:
    table = request.getfixturevalue(which).states()
    wrong = table[table["measured_bytes"] != table["predicted_bytes"]]
    assert wrong.empty, wrong.to_string()
    assert set(table["scheme"]) == set(SHARDED if which == "llama" else oracle.SCHEMES)


def test_llamas_train_as_in_one_process(llama: Measurement) -> None:
    assert llama.exactness()["largest_difference"].max() < 1e-6


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("scheme", list(oracle.SCHEMES))
def test_plans_count_what_the_fullest_rank_holds(
    scheme: str, ranks: int, measured: Measurement
) -> None:
    """The plan's own account, which never asks for a rank's share."""
    if scheme in oracle.GROUPED and ranks < 4:
        pytest.skip("no larger multiple of the group")
    plan = memory.Plan(
        model=TINY,
        parallel=oracle.parallel_of(scheme, ranks),
        recipe=memory.Recipe.fp32_adam(step="fused"),
        batch=memory.Batch(seq=8),
    )
    held = [r["held_bytes"] for r in measured.reports if r["ranks"] == ranks]
    names = [r["scheme"] for r in measured.reports if r["ranks"] == ranks]
    for component in ("parameters", "gradients", "optimizer"):
        seen = max(h[component] for h, name in zip(held, names, strict=True) if name == scheme)
        terms = [t for t in plan.terms() if t.component.partition(".")[0] == component]
        told = sum(t.num_bytes for t in terms if t.component != "optimizer.step")
        assert told == seen, component


@pytest.mark.parametrize(
    ("which", "model", "degrees"),
    [
        ("measured", TINY, {"dp": 3, "zero": 1, "shard_rule": "tensor"}),
        ("llama", LLAMA, {"dp": 4, "zero": 3, "secondary_group": 2}),
    ],
    ids=["whole tensors", "hpz"],
)
def test_check_sets_a_plan_beside_every_rank(
    which: str,
    model: memory.Model,
    degrees: dict[str, Any],
    request: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the byte, on the ranks measured above; `labkit memory check` runs its own in its test."""
    run = request.getfixturevalue(which)

    def part_of_it(model: memory.Model, *, schemes: Any, ranks: Any, **_: Any) -> Measurement:
        wanted = [r for r in run.reports if r["scheme"] in schemes and r["ranks"] in ranks]
        assert wanted
        assert model == run.model
        return replace(run, reports=tuple(wanted))

    monkeypatch.setattr(oracle, "measure", part_of_it)
    plan = memory.Plan(
        model=model,
        parallel=memory.Parallel(**degrees),
        recipe=memory.Recipe.fp32_adam(),
        batch=memory.Batch(seq=8),
    )
    table = memory.check(plan, oracle="gloo").set_index("component")
    assert (table["difference_bytes"] == 0).all(), table.to_string()
    ranks = {f"optimizer, rank {rank}" for rank in range(plan.parallel.dp)}
    assert ranks | {"optimizer, plan"} <= set(table.index)
    second = "second copy of the parameters, plan" in table.index
    assert second == (plan.parallel.secondary_group is not None)


def test_schemes_and_plans_name_each_other() -> None:
    for scheme in oracle.SCHEMES:
        assert oracle.scheme_of(oracle.parallel_of(scheme, 8, group=4)) in {
            (scheme, 4),
            (scheme, 2),
        }
    hsdp = memory.Parallel(dp=6, zero=3, replicate=2)
    assert oracle.scheme_of(hsdp) == ("mics", 3)
    assert oracle.scheme_of(memory.Parallel(dp=2, tp=2, zero=3)) is None


def test_the_summary_is_the_fullest_rank_of_the_states(measured: Measurement) -> None:
    states = measured.states().query("ranks == 3")
    fullest = measured.fullest(3)
    for scheme, rows in states.groupby("scheme"):
        by_rank = rows.groupby("rank")["measured_bytes"].sum()
        assert fullest["states_bytes"][scheme] == by_rank.max()
    assert fullest["states_bytes"]["ddp"] == 16 * TINY.num_params


def test_the_even_split_would_have_been_wrong(measured: Measurement) -> None:
    """Else the test above could not tell the two formulas apart."""
    sharded = measured.states().query("scheme == 'zero3' and ranks == 4 and rank == 0")
    recipe = memory.Recipe.fp32_adam()
    even = [recipe.bytes_of(name) * TINY.num_params / 4 for name in sharded["component"]]
    assert (sharded["measured_bytes"] > even).all()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_volumes_are_two_two_and_three_model_sizes(measured: Measurement, ranks: int) -> None:
    """ZeRO §7, within what padding to equal chunks adds."""
    found = measured.volumes(ranks)["total"]
    assert found["ddp"] == pytest.approx(2, rel=1e-9)
    assert found["zero1"] == pytest.approx(2, rel=1e-3)
    assert found["zero1-torch"] == pytest.approx(3, rel=1e-9)
    assert found["zero2-flat"] == pytest.approx(2, rel=1e-3)
    assert found["zero2"] == pytest.approx(2, rel=0.04)
    assert found["zero3"] == pytest.approx(1.5 * found["zero2"], rel=1e-9)


def test_the_second_shard_halves_the_backward_gather(measured: Measurement) -> None:
    """hpZ gathers from 2 ranks, not 4: 1/2 of a message leaves each rank where 3/4 did."""
    table = measured.traffic().query("rank == 0 and ranks == 4 and collective == 'all-gather'")
    sent = table.set_index(["scheme", "phase"])["sent_bytes"]
    assert sent["hpz", "forward"] == sent["zero3", "forward"]
    assert sent["hpz", "backward"] / sent["zero3", "backward"] == pytest.approx((1 / 2) / (3 / 4))


def test_parameters_live_as_long_as_the_stage_says(measured: Measurement) -> None:
    first = [r for r in measured.reports if (r["ranks"], r["rank"]) == (4, 0)]
    after, between = (
        {report["scheme"]: report["held_bytes"][when] for report in first}
        for when in (oracle.SECOND_COPY, "parameters")
    )
    assert after["ddp"] == between["ddp"] == 4 * TINY.num_params
    assert after["zero2"] == 4 * between["zero2"]
    assert after["zero3"] == between["zero3"]
    assert after["hpz"] == 2 * between["hpz"]


def test_sockets_carry_the_ring_volume_of_an_all_reduce(measured: Measurement) -> None:
    """The kernel's own count, so independent of how we count; a few headers on top."""
    table = measured.sockets()
    if table.empty:
        pytest.skip("only Linux counts bytes for each connection")
    found = table.groupby(["scheme", "ranks"])["model_sizes"].mean()
    for ranks in (2, 3, 4):
        assert found["ddp", ranks] == pytest.approx(2, rel=0.05)
        # gloo makes an all-reduce of a reduce-scatter: one model size more than issued
        assert found["zero3", ranks] == pytest.approx(
            measured.volumes(ranks)["total"]["zero3"] + 1, rel=0.05
        )


def test_weights_equal_training_in_one_process(measured: Measurement) -> None:
    assert measured.exactness()["largest_difference"].max() < 1e-6


# ---------------------------------------------------------------- when things go wrong


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"schemes": ["zero9"]}, "no scheme zero9"),
        ({"ranks": [1]}, "between 2 and 16"),
    ],
)
def test_impossible_experiments_are_refused(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        memory.measure(TINY, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("preset", "complaint"),
    [
        ("mixtral-8x7b", "plain GPT and Llama blocks"),
        ("qwen3-8b", "normalised heads"),
        ("gpt3-175b", r"4 ranks that train 17\d,.* take at least 11"),
    ],
)
def test_what_cannot_be_trained_here_is_refused(preset: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        memory.measure(memory.Model.preset(preset))


def test_a_failing_rank_is_reported_and_ends_the_others() -> None:
    """A sample larger than any address space: every rank fails, and the message says why."""
    with pytest.raises(LabkitError, match=r"rank \d failed(.|\n)*alloc"):
        memory.measure(LLAMA, ranks=[2], seq=2**50, timeout_s=60)


def test_time_runs_out() -> None:
    with pytest.raises(LabkitError, match=r"did not finish within 0\.5 s"):
        memory.measure(TINY, ranks=[2], steps=10**6, timeout_s=0.5)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for processes in /proc")
def test_ranks_end_with_a_caller_that_is_killed() -> None:
    code = (
        "from labkit import memory;"
        "memory.measure(memory.Model.preset('tiny-gpt'), ranks=[2], steps=10**6, timeout_s=300)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code])
    try:
        assert _until(lambda: len(_descendants(caller.pid)) >= 3), "the ranks never started"
        family = _descendants(caller.pid)
        os.kill(caller.pid, signal.SIGKILL)
        assert _until(lambda: not any(map(_alive, family)))
    finally:
        caller.kill()
        caller.wait()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("busy", ["before it looks", "with Python's lock held"])
def test_a_rank_outlives_its_maker_in_no_state(busy: str, tmp_path: Path) -> None:
    """``PyDLL`` keeps Python's lock during a call, as torch's FileStore does when it retries."""
    note = tmp_path / "pid"
    code = f"""
import ctypes, multiprocessing, os, pathlib, time
from labkit.kit import rank_process as worker
maker = os.getpid()
def rank():
    while {busy == "before it looks"} and os.getppid() == maker:
        time.sleep(0.01)
    pathlib.Path({str(note)!r}).write_text(str(os.getpid()))
    worker._die_with_parent()
    pathlib.Path({str(note)!r} + ".ready").touch()
    ctypes.PyDLL(None).sleep(300)
multiprocessing.get_context("fork").Process(target=rank).start()
while {busy != "before it looks"} and not pathlib.Path({str(note)!r} + ".ready").exists():
    time.sleep(0.01)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert _until(lambda: note.exists() and note.read_text() != "")
    pid = int(note.read_text())
    try:
        assert _until(lambda: not _alive(pid), seconds=20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    """A process that ended but that nobody has asked after yet still has an entry."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_descendants(child)]
    return found


def _until(true: object, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():  # type: ignore[operator]
            return True
        time.sleep(0.1)
    return False
