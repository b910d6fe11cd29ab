"""ARK's rings move every byte, its model by hand and against the engine."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pandas as pd
import pytest

from labkit import collectives, workbook
from labkit.collectives import Fabric
from labkit.papers import ark
from labkit.papers.ark.figures import timeline

MEASURED = workbook.open_paper("ark").points("measured").set_index("num_bytes")


@pytest.mark.parametrize("way", ark.WAYS)
@pytest.mark.parametrize("num_messages", [1, 16, 50])
def test_every_way_brings_every_byte(way: ark.rings.Way, num_messages: int) -> None:
    run = ark.run(way, 300, num_messages)
    assert run.wrong_bytes == 0
    assert (run.seconds > 0).all()


def test_only_the_mediated_way_wakes_processes() -> None:
    assert ark.run("mediated", 64, 400).sleeps > 0.5
    for way in ("self-driven", "self-driven, one at a time", "own copies"):
        assert ark.run(way, 64, 400).sleeps < 0.5


def test_measuring_gives_a_row_a_size_and_a_column_a_way() -> None:
    found = ark.measure([64, 1000], num_messages=20, rounds=1)
    assert found.shape == (2, len(ark.WAYS))
    assert (found > 0).to_numpy().all()


def test_stored_times_have_the_order_of_wake_ups() -> None:
    assert list(MEASURED.columns) == list(ark.WAYS)
    assert (MEASURED.loc[2**21] > MEASURED.loc[64]).all()
    small = MEASURED.loc[:8192]
    for way in ("self-driven", "self-driven, one at a time", "own copies"):
        assert (small[way] < small["mediated, queued"]).all()
    assert (small["mediated, queued"] < small["mediated"]).all()


def test_a_starter_by_hand() -> None:
    starter = ark.Starter(latency_s=8.0, bytes_per_s=1.0)
    assert starter.message_s(2) == 10
    assert replace(starter, in_flight=5).message_s(2) == 2
    for share in (0.5, 0.9):
        few = replace(starter, in_flight=1)
        assert few.rate(few.size_at(share)) == pytest.approx(share)
    assert starter.size_at(0.9) == pytest.approx(9 * 8)


def test_messages_under_way_follow_from_rate_and_latency() -> None:
    starter = ark.Starter(latency_s=39e-6)
    share = 1 / 3.9
    under_way = ark.in_flight(39e-6, 8192, share, starter.bytes_per_s)
    between_s = starter.alone_s(8192) / under_way
    assert 8192 / between_s == pytest.approx(share * starter.bytes_per_s)


def test_all_reduces_take_as_long_as_the_textbooks_ring() -> None:
    messages = [1000.0, 4096.0]
    seconds = ark.all_reduces_s(messages, 2e-6, num_gpus=4, bytes_per_s=1e9)
    by_hand = sum(6 * (2e-6 + size / 4 / 1e9) for size in messages)
    assert seconds == pytest.approx(by_hand)
    fabric = Fabric.flat(4, bandwidth_bytes_per_s=1e9, latency_s=2e-6)
    ring = collectives.program("ring", 4, 4096)
    one_s = ark.all_reduces_s([4096], 2e-6, num_gpus=4, bytes_per_s=1e9)
    assert one_s == pytest.approx(collectives.cost(ring, fabric).time_s)


def test_gradients_are_the_models() -> None:
    assert sum(ark.tensor_bytes("gpt2-124m")) == 2 * 124_439_808


def test_the_pictures_engine_copies_without_a_pause() -> None:
    copies = [bar for bar in timeline() if bar[:2] == ("self-driven: engine", "copies")]
    for earlier, later in pairwise(copies):
        assert earlier[3] == later[2]
    assert len(ark.figure_idea().data) == 4


def test_lines_have_the_papers_points_and_level() -> None:
    lines = pd.DataFrame({"own copies (bound)": [1.0, 2.0]}, index=[64, 1024])
    figure = ark.figure_lines(
        lines,
        title="t",
        x="x",
        y="y",
        ticks=["64 B", "1 KiB"],
        points={"paper": (64, 3.9)},
        level=("paper", 1.8),
        log_y=False,
    )
    assert len(figure.data) == 3
