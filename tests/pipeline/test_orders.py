import csv

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from labkit.errors import BadFile, UsageError
from labkit.pipeline import (
    Costs,
    DeadlockError,
    Schedule,
    build,
    load_order,
    save_order,
    simulate,
)
from labkit.pipeline.scheduling.families import FAMILIES
from tests.oracles.torch_orders import from_torch


@given(
    name=st.sampled_from(list(FAMILIES)), stages=st.integers(1, 5), microbatches=st.integers(1, 12)
)
def test_a_saved_order_comes_back(tmp_path_factory, name, stages, microbatches):
    try:
        schedule = build(name, stages, microbatches)
    except UsageError:
        assume(False)
        raise
    path = tmp_path_factory.mktemp("orders") / f"{name}.csv"
    save_order(schedule, path)
    again = load_order(path)
    assert again.order == schedule.order
    assert (again.name, again.num_stages) == (name, schedule.num_stages)


def test_the_table_is_as_torch_writes_it(tmp_path):
    path = tmp_path / "mine.csv"
    save_order(build("zb-h1", 2, 2), path)
    assert path.read_text().splitlines() == ["0F0,0F1,0I0,0W0,0I1,0W1", "1F0,1I0,1F1,1I1,1W0,1W1"]
    assert list(tmp_path.iterdir()) == [path]


def test_idle_cells_communication_and_pairs_are_understood(tmp_path):
    path = tmp_path / "comm.csv"
    path.write_text(
        "0UNSHARD,0F0,0SEND_F0,,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0I1, 0W1,0REDUCE_GRAD,0RESHARD\n"
        ",1RECV_F0,1F0,1RECV_F1,(1F1;1B0)OVERLAP_F_B,1SEND_B0,1B1,1SEND_B1\n\n"
    )
    cells = [[str(one) for one in device] for device in load_order(path).order]
    assert cells[0] == [
        "forward 0 on stage 0",
        "forward 1 on stage 0",
        "backward 0 on stage 0",
        "input 1 on stage 0",
        "weight 1 on stage 0",
    ]
    assert cells[1] == [
        "forward 0 on stage 1",
        "forward 1 on stage 1",
        "backward 0 on stage 1",
        "backward 1 on stage 1",
    ]


def torch_peer(name: str, num_ranks: int, num_microbatches: int, per_rank: int = 2):
    """torch's schedule object, of stages that do nothing."""
    from unittest import mock

    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    stage_type = pytest.importorskip("torch.distributed.pipelining.stage").PipelineStage
    stage = mock.create_autospec(stage_type, instance=True)
    stage.group_rank = 0
    stage.group_size = num_ranks
    stage.submod = None
    stage.num_stages = num_ranks * per_rank
    return schedules.get_schedule_class(name)([stage] * per_rank, num_microbatches)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
@pytest.mark.parametrize(
    ("theirs", "name"),
    [
        ("Interleaved1F1B", "interleaved-1f1b"),
        ("InterleavedZeroBubble", "interleaved-zb"),
        ("LoopedBFS", "loop-bfs"),
        ("DualPipeV", "dualpipe-v"),
    ],
)
def test_what_torch_dumps_is_what_we_build(tmp_path, theirs, name, form):
    path = tmp_path / "torch.csv"
    torch_peer(theirs, 4, 8)._dump_csv(path, form)
    assert load_order(path).order == build(name, 4, 8).order


@pytest.mark.slow
@pytest.mark.parametrize("name", ["interleaved-1f1b", "interleaved-zb", "zb-v", "hanayo"])
def test_torch_loads_what_we_save(tmp_path, name):
    path = tmp_path / "ours.csv"
    schedule = build(name, 4, 8)
    save_order(schedule, path)
    peer = torch_peer("ZBVZeroBubble" if name in ("zb-v", "hanayo") else "LoopedBFS", 4, 8)
    peer._load_csv(path)
    assert from_torch(peer.pipeline_order[rank] for rank in range(4)).order == schedule.order
    again = tmp_path / "again.csv"
    peer._dump_csv(again, "compute_only")
    with path.open(newline="") as ours, again.open(newline="") as theirs:
        assert list(csv.reader(ours)) == list(csv.reader(theirs))


def test_torchs_shifted_forwards_are_put_right():
    schedule = from_torch([["0F0", "0F1", "0B0", "0B1"], [None, "1F1", "1B0", "1F2", "1B1"]])
    assert schedule.order == build("1f1b", 2, 2).order
    with pytest.raises(UsageError, match="lacks"):  # of nothing else
        from_torch([["0F0", "0F1", "0B0", "0B1"], ["1F1", "1B1", "1F2", "1B2"]])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0F0,0X0\n", r"bad\.csv:1: a cell that is no instruction; field 'cell 2'; found '0X0'"),
        ("0F0,0B0\n1F0,1B\n", r"bad\.csv:2: .*'cell 2'; found '1B'; valid: a stage, one of F B"),
        ("0F0,F0\n", "found 'F0'"),
        ("0F0,-1B0\n", "found '-1B0'"),
        ("0F0,0B0x\n", "found '0B0x'"),
        ("(0F0;0X0)OVERLAP_F_B\n", "field 'cell 1'; found '\\(0F0;0X0\\)OVERLAP_F_B'"),
        ("\n", "the table is empty"),
        ("", "the table is empty"),
        ("0F0\n", "lacks 1 of the instructions"),
        ("0F0,0B0,0F0\n", "runs forward 0 on stage 0 twice"),
        ("0B0,0F0\n", "before its forward"),
        ("0F0,0B0\n1F0,1I0\n", "lacks 1 .* first weight 0 on stage 1"),
    ],
)
def test_a_bad_table_says_where_and_what_would_be_right(tmp_path, text, problem):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BadFile, match=problem):
        load_order(path)


def test_a_missing_file_is_said_to_be():
    with pytest.raises(BadFile, match="the file is missing"):
        load_order("nowhere.csv")


def test_a_table_that_deadlocks_names_the_circle(tmp_path):
    path = tmp_path / "stuck.csv"
    path.write_text("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n")
    with pytest.raises(DeadlockError) as error:
        load_order(path)
    text = str(error.value)
    assert "stuck.csv: the order deadlocks" in text
    assert "backward 0 on stage 0 waits for backward 0 on stage 1" in text
    assert "forward 1 on stage 1 waits for forward 1 on stage 0" in text


def test_a_table_of_one_s_own_simulates(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n")
    line = simulate(load_order(path), Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0))
    assert isinstance(line.schedule, Schedule)
    assert line.makespan_s == 9.0
