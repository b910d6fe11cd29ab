"""ZeRO's runs as plans, and what fills a GPU in them."""

from pathlib import Path

import pandas as pd
import pytest

from labkit.papers import zero

PAPER = Path(__file__).resolve().parents[2] / "data" / "papers" / "zero"
RUNS = pd.read_csv(PAPER / "runs.csv")
RUNS["plan"] = [zero.plan_of(run) for run in RUNS.itertuples()]
FIG6 = RUNS[RUNS["figure"] == "Fig. 6"].set_index("config", drop=False)


def test_plans_have_the_sizes_and_gpus_of_their_rows() -> None:
    for run in RUNS.itertuples():
        assert run.plan.num_params / 1e9 == pytest.approx(run.size_billion, rel=0.15)
        assert run.plan.parallel.dp * run.mp == run.gpus
        assert run.plan.parallel.zero == run.stage


def test_inputs_are_those_of_section_6_1() -> None:
    """33 GB for 100B at batch 32 and one input for every second layer, 2 GB with Pa."""
    run = RUNS.query("figure == 'Fig. 2' and size_billion == 100 and stage == 2")
    whole = run.assign(config="C3")
    assert zero.inputs_gb(whole, 2).item() == pytest.approx(33, rel=0.02)
    assert zero.inputs_gb(run, 2).item() == pytest.approx(2, rel=0.05)
    assert zero.inputs_gb(run.assign(config="C5")).item() == 0
    assert zero.inputs_gb(whole).item() == 2 * zero.inputs_gb(whole, 2).item()


def test_states_fall_with_the_stage() -> None:
    by_stage = [zero.states_gb(FIG6, stage) for stage in range(4)]
    for less, more in zip(by_stage[1:], by_stage, strict=False):
        assert (less < more).all()
    assert (zero.states_gb(FIG6) == zero.states_gb(FIG6, 2)).tolist()[2:] == [True] * 3


def test_the_largest_model_fills_the_room() -> None:
    """Memory grows with the model: at its size, states and inputs are all the room."""
    room_gb = 20.0
    largest = zero.largest_under(FIG6, room_gb=room_gb)
    needed_gb = zero.states_gb(FIG6) + zero.inputs_gb(FIG6, 2)
    assert (largest / FIG6["size_billion"] * needed_gb).tolist() == pytest.approx([room_gb] * 5)
    assert (zero.largest_under(FIG6, room_gb=room_gb, stage=0) < largest).all()


def test_methods_say_their_stage_and_layout() -> None:
    assert [method.stage for method in zero.Method] == [2, 1, 3, 2, 0]
    assert [method.in_node for method in zero.Method] == [True, True, True, False, False]
