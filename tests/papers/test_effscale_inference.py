"""Layouts against collectives on virtual chips, the paper's formulas and its table of contexts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from labkit.errors import BadValue
from labkit.models import Model
from labkit.papers.effscale_inference import (
    PALM as MODELS,
)
from labkit.papers.effscale_inference import (
    Attention,
    Layout,
    Partition,
    fewest_bytes,
    figure_frontier,
    figure_idea,
    figure_layouts,
    figure_sizes,
    frontier,
    layouts,
    pareto,
)

PALM = Model.preset("palm-540b")
MULTIHEAD = replace(PALM, kv_heads=48, head_dim=128)
TOY = Model(num_layers=1, hidden=32, heads=4, vocab=64, positions=64, ffn=128)
INT8 = Partition(model=PALM, weight_bytes=1)


class Chips:
    """Arrays of virtual chips, and the elements that one of them has received."""

    received = 0.0

    def gather(self, parts: list[Any]) -> Any:
        whole = np.concatenate(parts, axis=1)
        self.received += whole.size - parts[0].size
        return whole

    def scatter(self, sums: list[Any]) -> list[Any]:
        self.received += sums[0].size * (len(sums) - 1) / len(sums)
        return list(np.split(sum(sums), len(sums), axis=1))


@pytest.mark.parametrize("ways", [1, 2, 4, 16])
def test_a_2d_layer_computes_the_layer_and_moves_the_bytes_that_are_counted(ways: int) -> None:
    """Width over ``ways`` chips, inner columns over the other 16 / ways."""
    chips = Chips()
    rest = 16 // ways
    rng = np.random.default_rng(0)
    partition = Partition(model=TOY, chips=16, split=ways)
    wide_in, wide_out = partition.columns
    keep = wide_out // rest
    x = rng.normal(size=(16, TOY.hidden))
    w_in = rng.normal(size=(TOY.hidden, wide_in))
    w_out = rng.normal(size=(wide_out, TOY.hidden))
    blocks_in = [np.split(rows, rest, axis=1) for rows in np.split(w_in, ways)]
    blocks_out = [np.split(columns, rest) for columns in np.split(w_out, ways, axis=1)]
    held = np.split(x, 16, axis=1)
    rows = [Chips().gather(held[i * rest : (i + 1) * rest]) for i in range(ways)]
    chips.gather(held[:rest])
    inner = []
    for j in range(rest):
        own = Chips() if j else chips
        parts = own.scatter([rows[i] @ blocks_in[i][j] for i in range(ways)])
        column = np.maximum(np.concatenate(parts, axis=1)[:, :keep], 0)
        inner.append(own.gather(np.split(column, ways, axis=1)))
    out = []
    for i in range(ways):
        own = Chips() if i else chips
        out += own.scatter([inner[j] @ blocks_out[i][j] for j in range(rest)])
    whole = np.concatenate(
        [np.maximum(h[:, :keep], 0) for h in np.split(x @ w_in, rest, axis=1)], 1
    )
    np.testing.assert_allclose(np.concatenate(out, axis=1), whole @ w_out)
    assert 2 * chips.received == pytest.approx(partition.layer_bytes(16))


def test_two_products_of_width_times_four_move_what_the_paper_says() -> None:
    """1D: 2BE; 2D: 8BE / √n at √n / 2 ways; gathered: 4E √(BF / n) at its best N (§3.2)."""
    plain = replace(TOY, hidden=2**14, ffn=2**16, heads=1, head_dim=1, kv_heads=1)
    n = 2**16
    tokens = 2**22
    units = {
        Layout.ONE_D: 2.0 * tokens * plain.hidden,
        Layout.TWO_D: 8 * tokens * plain.hidden / n**0.5,
        Layout.GATHERED: 4 * plain.hidden * (tokens * plain.ffn / n) ** 0.5,
    }
    for layout, elements in units.items():
        partition = Partition(model=plain, chips=n, layout=layout)
        assert partition.layer_bytes(tokens) == pytest.approx(2 * elements, rel=0.02)
    assert replace(partition, layout=Layout.TWO_D).ways(tokens) == n**0.5 / 2


def test_longest_contexts_are_those_of_table_1() -> None:
    """Within 2 %: printed to two or three digits."""
    for batch, printed in {128: (1320, 660, 43_000), 512: (330, 165, 10_700)}.items():
        ours = [
            Partition(model=model, attention=split).longest_context(batch)
            for model, split in (
                (MULTIHEAD, Attention.HEADS),
                (PALM, Attention.HEADS),
                (PALM, Attention.BATCH),
            )
        ]
        np.testing.assert_allclose(ours, printed, rtol=0.02)


def test_a_pass_is_never_faster_than_the_paper_measured() -> None:
    """Table 2: seconds of PaLM 540B on 64 chips; everything overlapped is a bound."""
    bf16 = replace(INT8, weight_bytes=2)
    measured = {
        0.29: INT8.step(1, tokens=2048),
        0.0285: INT8.step(64, context=2048),
        85.2: replace(bf16, layout=Layout.GATHERED).step(512, tokens=2048),
        0.0938: bf16.step(512, context=2048),
    }
    for seconds, modelled in measured.items():
        assert 0.2 * seconds < modelled.least_s <= modelled.total_s < seconds


def test_more_tokens_want_weights_to_travel_further() -> None:
    table = layouts(INT8, [2**k for k in range(6, 25)])
    assert fewest_bytes(table) == ["2D", *(f"gathered over {n}" for n in (4, 16, 64))]


def test_weights_are_read_once_and_halved_by_int8() -> None:
    both = [replace(INT8, weight_bytes=size).step(64, context=2048) for size in (1, 2)]
    assert both[1].weights_s == 2 * both[0].weights_s
    assert both[0].weights_s == pytest.approx(540e9 / 64 / 1.2e12, rel=0.01)
    assert both[0].traffic_s == both[1].traffic_s


def test_larger_batches_are_cheaper_and_slower_and_more_chips_faster_and_dearer() -> None:
    slices = {str(n): replace(INT8, chips=n) for n in (64, 256)}
    table = frontier(slices, [1, 64, 512], context=2048).set_index(["partition", "batch"])
    for chips in slices:
        assert table.chip_s[chips].is_monotonic_decreasing
        assert table.token_s[chips].is_monotonic_increasing
        assert (table.least_s[chips] <= table.token_s[chips]).all()
    assert table.token_s["256", 64] < table.token_s["64", 64]
    assert table.chip_s["256", 64] > table.chip_s["64", 64]


def test_collectives_go_around_the_axes_of_a_torus() -> None:
    """4 × 4 × 4: 9 steps around all axes, 6 around two, 3 around one; a layer has two of both."""
    per_layer = 1e-6 * PALM.num_layers
    assert replace(INT8, layout=Layout.ONE_D).step(64).hops_s == pytest.approx(2 * 9 * per_layer)
    assert replace(INT8, split=4).step(64).hops_s == pytest.approx(2 * (6 + 3) * per_layer)


def test_wrong_splits_are_refused() -> None:
    with pytest.raises(BadValue, match="split must divide 64 chips; got 3"):
        replace(INT8, split=3)
    with pytest.raises(BadValue, match="layout '1D' has none"):
        replace(INT8, layout=Layout.ONE_D, split=2)


def test_the_three_models_have_the_sizes_that_they_are_called_by() -> None:
    for name, model in MODELS.items():
        assert model.num_params == pytest.approx(1e9 * float(name.removesuffix("B")), rel=0.08)


def test_a_cache_divided_by_tokens_needs_no_batch() -> None:
    by_tokens = replace(INT8, attention=Attention.SEQUENCE)
    assert by_tokens.cache_bytes(1, 6400) == pytest.approx(INT8.cache_bytes(1, 6400) / 64)
    assert by_tokens.longest_context(1) == pytest.approx(64 * INT8.longest_context(1), rel=1e-3)
    assert by_tokens.longest_context(64) == pytest.approx(INT8.longest_context(64), rel=1e-3)


def test_nothing_on_a_pareto_line_is_beaten_by_anything_tried() -> None:
    models = {name: replace(INT8, model=model) for name, model in MODELS.items()}
    best = pareto(models, [1, 8, 64], [1, 16, 256], context=2048)
    for name, rows in best.groupby("partition"):
        assert rows.token_s.is_monotonic_increasing
        assert rows.chip_s.is_monotonic_decreasing
        tried = frontier({name: replace(models[name], chips=64)}, [16], context=2048).iloc[0]
        assert ((rows.token_s <= tried.token_s) & (rows.chip_s <= tried.chip_s)).any()
    assert best[best.partition == "540B"].chips.min() == 64  # int8 weights fill 17 chips
    assert [trace.name for trace in figure_sizes(best).data] == [*MODELS]


def test_figures_draw_a_line_a_layout_and_the_papers_point() -> None:
    moved = layouts(INT8, [64, 4096])
    assert [trace.name for trace in figure_layouts(moved).data] == [*moved.layout.unique()]
    assert figure_idea().data
    lines = frontier({"2D": INT8, "1D": replace(INT8, layout=Layout.ONE_D)}, [1, 64])
    point = {"batch": 64, "chips": 64, "token_ms": 28.5}
    figure = figure_frontier(lines, bound="2D", paper=point, title="frontier")
    assert figure.data[-1].x == (28.5,)
    bound = 1e3 * lines.loc[lines.partition == "2D", "least_s"]
    assert figure.data[-2].y == pytest.approx(tuple(bound), rel=1e-5)
