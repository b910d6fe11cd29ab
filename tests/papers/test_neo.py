"""Neo's plans by hand and by bounds, its seconds, lookups, caches, and training on shards."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional

from labkit import workbook
from labkit.errors import BadFile
from labkit.files import project_root
from labkit.papers import neo
from labkit.papers.neo.machine import network_weights
from labkit.papers.neo.sharding import NARROWEST, WAYS, WHOLE, cuts_of
from labkit.papers.neo.training import slices
from tests.published import Need

POINTS = workbook.open_paper("neo").points("tables")
DAYS = neo.tables_of(POINTS, "rows")
MLPERF = neo.tables_of(POINTS, "mlperf_rows", "ids")
STANDIN = project_root() / "data" / "profiles" / "standin_locality.csv"


def test_the_tables_have_the_size_that_their_authors_print() -> None:
    gigabytes = sum(table.num_bytes for table in DAYS) / 1e9
    assert gigabytes == pytest.approx(91.1, abs=0.05)  # the README prints 91.10 and calls it GiB
    assert sum(table.ids for table in MLPERF) == 214


@pytest.mark.parametrize(("num_gpus", "others"), [(16, 3.1), (128, 25)])
def test_others_shares_of_whole_tables_are_mlperfs(num_gpus: int, others: float) -> None:
    """The group's notes have 3.1 and 25: they are of tables that are capped at 40 million rows."""
    whole = neo.place(MLPERF, num_gpus, neo.weigh_bytes)
    assert whole.imbalance(neo.weigh_bytes) == pytest.approx(others, rel=0.02)


@pytest.mark.parametrize("cut", [WHOLE, neo.Cut(by_rows=4), neo.Cut(by_rows=8, by_columns=2)])
def test_pieces_are_the_table(cut: neo.Cut) -> None:
    for rows in (3, 8, 1001):
        table = neo.Table(name="t", rows=rows, ids=5)
        cut_up = neo.pieces(table, cut)
        assert sum(piece.num_bytes for piece in cut_up) == table.num_bytes
        assert sum(piece.ids for piece in cut_up) == pytest.approx(cut.by_columns * table.ids)
        for piece, (row, column) in zip(cut_up, slices(table, cut), strict=True):
            assert len(range(rows)[row]) == piece.rows
            assert column.stop - column.start == piece.columns


@pytest.mark.parametrize("num_gpus", [4, 16, 128])
@pytest.mark.parametrize("tables", [DAYS, MLPERF], ids=["days", "mlperf"])
def test_a_plan_holds_every_byte_once_and_is_as_even_as_its_bound(
    tables: list[neo.Table], num_gpus: int
) -> None:
    plan = neo.four_d(tables, num_gpus, neo.weigh_bytes)
    loads = plan.loads(neo.weigh_bytes)
    assert loads.sum() == sum(table.num_bytes for table in tables)  # copies cost more: none
    heaviest = max(piece.num_bytes for shards in plan.gpus for piece in shards)
    assert loads.max() <= loads.mean() + heaviest  # Graham's bound
    assert plan.imbalance(neo.weigh_bytes) <= 1.1


@pytest.mark.parametrize("num_gpus", [8, 64])
def test_more_ways_of_cutting_are_never_slower_by_the_plans_own_measure(num_gpus: int) -> None:
    machine = neo.Machine(num_gpus=num_gpus)
    whole = neo.place(MLPERF, num_gpus, machine.shard_s).loads(machine.shard_s).max()
    largest = []
    for ways in ((), ("columns",), ("columns", "rows"), WAYS):
        plan = neo.four_d(MLPERF, num_gpus, machine.shard_s, ways=ways)
        largest.append(plan.loads(machine.shard_s).max())
    assert largest[0] <= 1.05 * whole
    for fewer, more in pairwise(largest):
        assert more <= 1.05 * fewer


def test_cuts_are_powers_of_two_within_their_limits() -> None:
    table = neo.Table(name="t", rows=100)
    cuts = cuts_of(table, 8, WAYS, copied_bytes=10**6)
    assert neo.Cut(copied=True) in cuts
    assert len(cuts) == 3 * 4 + 1
    assert all(table.columns // cut.by_columns >= NARROWEST for cut in cuts)
    assert cuts_of(table, 8, (), copied_bytes=10**6) == [WHOLE]
    assert neo.Cut(copied=True) not in cuts_of(table, 8, WAYS, copied_bytes=1000)


def test_seconds_by_hand() -> None:
    machine = neo.Machine(
        num_gpus=2, samples=10, per_node=1, far_bytes_per_s=1.0, memory_bytes_per_s=1.0
    )
    piece = neo.pieces(neo.Table(name="t", rows=4, ids=3, columns=2), WHOLE)[0]
    assert machine.lookup_s(piece) == 3 * 10 * 3 * 2 * 4
    half = 0.5  # of what a GPU sends, the other GPU gets half
    assert machine.exchange_s(piece) == half * (10 * 3 * 8 + 2 * 10 * 2 * 4)
    copied = replace(piece, copied=True)
    assert machine.lookup_s(copied) == machine.lookup_s(piece) / 2
    assert machine.exchange_s(copied) == half * 2 * 4 * 2 * 4
    assert network_weights(26) == 13 * 512 + 512 * 256 + 256 * 128 + (
        479 * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256
    )


def test_cutting_columns_multiplies_ids_and_cutting_rows_multiplies_sums() -> None:
    table = neo.Table(name="t", rows=1000, ids=100)
    ids_only = neo.Machine(num_gpus=8)

    def sent_s(cut: neo.Cut) -> float:
        return sum(ids_only.exchange_s(piece) for piece in neo.pieces(table, cut))

    ids_s = ids_only.link_s(ids_only.samples * 100 * 8)
    sums_s = ids_only.link_s(2 * ids_only.samples * 128 * 4)
    assert sent_s(WHOLE) == pytest.approx(ids_s + sums_s)
    assert sent_s(neo.Cut(by_columns=4)) == pytest.approx(4 * ids_s + sums_s)
    assert sent_s(neo.Cut(by_rows=4)) == pytest.approx(ids_s + 4 * sums_s)


def test_hits_and_fusion_only_help() -> None:
    plan = neo.place(MLPERF, 8, neo.weigh_bytes)
    machine = neo.Machine(num_gpus=8, hit_share=0.5)
    rate = machine.rate(plan, 26)
    assert replace(machine, hit_share=0.9).rate(plan, 26) > rate
    loops_s = replace(machine, fused=False).embedding_s(plan)
    assert loops_s.sum() > machine.embedding_s(plan).sum()
    assert replace(machine, fixed_s=1.0).rate(plan, 26) < machine.samples


def test_all_variants_of_lookups_give_what_torch_gives() -> None:
    drawn = neo.Lookups.draw(num_tables=4, rows=9, columns=6, samples=8, ids=3)
    assert neo.largest_difference(drawn) < 1e-5
    tables = [table.clone().requires_grad_() for table in drawn.weights.chunk(4)]
    outputs = []
    for table, ids in zip(tables, drawn.ids, strict=True):
        outputs.append(functional.embedding_bag(ids.reshape(8, 3), table, mode="sum"))
    stacked = torch.stack(outputs)
    stacked.backward(drawn.gradients)
    torch.optim.SGD(tables, lr=neo.lookups.RATE).step()
    copy = drawn.copy()
    assert (copy.step("all fused") - stacked).abs().max() < 1e-5
    assert (copy.weights - torch.cat(tables)).abs().max() < 1e-5


def test_compare_measures_each_variant_on_the_device_that_it_is_given() -> None:
    seconds = neo.compare("cpu", num_tables=(2, 5), rows=8, columns=4, samples=4, repeats=2)
    assert seconds.shape == (2, len(neo.VARIANTS))
    assert (seconds > 0).to_numpy().all()


def test_published_reuse_is_read_whole(published_data: Need) -> None:
    path = published_data("dlrm-locality", [neo.reuse.FILE]).path(neo.reuse.FILE)
    bins = neo.read_reuse(path)
    assert len(bins) == 17 * 17  # batches, bins
    sums = bins.groupby("batch")[["rows_share", "lookups_share"]].sum()
    assert ((sums - 1).abs() < 0.01).to_numpy().all()
    assert bins["num_lookups"].iloc[0] == 887_017_990
    standin = neo.read_reuse(STANDIN)
    columns = ["batch", "above", "up_to"]
    pd.testing.assert_frame_equal(standin[columns], bins[columns])


def test_a_text_without_histograms_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "reuse.txt"
    path.write_text("a.pt\nAvg # of indices: 3\n")
    with pytest.raises(BadFile, match="no two histograms"):
        neo.read_reuse(path)


def test_drawn_lookups_have_the_reuse_that_was_counted() -> None:
    bins = neo.read_reuse(STANDIN)
    bins = bins[bins["batch"] == 0]
    lookups = neo.draw_lookups(bins, 300_000)
    uses = np.bincount(lookups)
    for bin_ in bins[bins["up_to"] <= 512].itertuples():
        inside = uses[(uses > bin_.above) & (uses <= bin_.up_to)]
        assert len(inside) / len(uses) == pytest.approx(bin_.rows_share, abs=0.03)
        assert inside.sum() / len(lookups) == pytest.approx(bin_.lookups_share, abs=0.03)


@pytest.mark.parametrize("room", [1, 7, 60, 500])
def test_hits_are_those_of_an_ordered_dictionary_and_below_the_bound(room: int) -> None:
    rng = np.random.default_rng(room)
    lookups = rng.zipf(1.3, 3000) % 400
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in lookups.tolist():
        if row in held:
            hits += 1
            held.move_to_end(row)
            continue
        if len(held) == room:
            held.popitem(last=False)
        held[row] = None
    assert neo.recency_hits(lookups, room) == hits / len(lookups)
    assert hits / len(lookups) <= neo.best_hits(lookups, room)


@pytest.mark.parametrize(
    "cuts",
    [
        {"wide": neo.Cut(by_rows=4, by_columns=2), "small": neo.Cut(copied=True)},
        {"wide": neo.Cut(by_columns=8), "middle": neo.Cut(by_rows=2)},
    ],
)
def test_training_on_pieces_is_training(cuts: dict[str, neo.Cut]) -> None:
    tables = [
        neo.Table(name="wide", rows=50, ids=3, columns=16),
        neo.Table(name="middle", rows=7, ids=1, columns=16),
        neo.Table(name="small", rows=3, ids=2, columns=16),
    ]
    whole = neo.train(tables, {})
    on_pieces = neo.train(tables, cuts)
    start = neo.train(tables, {}, steps=0)
    for name, weights in whole.items():
        assert np.abs(weights - on_pieces[name]).max() < 1e-9
        assert np.abs(weights - start[name]).max() > 1e-3


def test_figures_are_drawn() -> None:
    assert len(neo.figure_idea().layout.shapes) == 14
    loads = {"whole": np.array([3.0, 1.0]), "cut": np.array([2.0, 2.0])}
    assert len(neo.figure_loads(loads, title="t", y="y").data) == 2
    lines = pd.DataFrame({"ours": [1.0, 2.0], "bound": [2.0, 4.0]}, index=[8, 16])
    figure = neo.figure_lines(
        lines, title="t", x="x", y="y", points={"paper": {8: 1.0}}, levels={"even": (1, "bound")}
    )
    assert len(figure.data) == 4
