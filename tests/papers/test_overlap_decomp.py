"""Decomposed products: their numbers, their seconds against closed forms and the engine's ring."""

from dataclasses import replace

import numpy as np
import pytest

from labkit import collectives
from labkit.errors import BadValue, UsageError
from labkit.papers import overlap_decomp
from labkit.papers.overlap_decomp import Layer, Product, gpu
from labkit.papers.overlap_decomp.layers import SIX, Chip


def matrices(shape: tuple[int, int], workers: int, seed: int) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).standard_normal((workers, *shape)))


@pytest.mark.parametrize("workers", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("rings", [1, 2])
def test_slices_give_the_whole_product(workers: int, rings: int) -> None:
    rows = matrices((3, 6), workers, 0)
    weights = matrices((6, 5), workers, 1)
    whole = [np.concatenate(rows) @ part for part in weights]
    parts = overlap_decomp.gathered(rows, weights, rings=rings)  # type: ignore[arg-type]
    assert overlap_decomp.largest_difference(parts, whole) < 1e-14

    rows = matrices((3 * workers, 6), workers, 2)
    total = sum(own @ part for own, part in zip(rows, weights, strict=True))
    sums = overlap_decomp.scattered(rows, weights, rings=rings)  # type: ignore[arg-type]
    assert overlap_decomp.largest_difference(sums, np.split(total, workers)) < 1e-14


def test_a_difference_is_seen() -> None:
    whole = [np.ones((2, 2)), np.full((2, 2), 4.0)]
    wrong = [whole[0], whole[1] + np.eye(2)]
    assert overlap_decomp.largest_difference(wrong, whole) == 0.25


def plain(workers: int, slice_s: float, hop_s: float, **other: object) -> Product:
    return Product(
        workers=workers,
        compute_s=workers * slice_s,
        collective_s=(workers - 1) * hop_s / 2,
        hop_s=hop_s,
        half_hop_s=hop_s / 2,
        **other,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize(("slice_s", "hop_s"), [(1.0, 3.0), (3.0, 1.0), (2.0, 2.0)])
def test_one_ring_takes_a_slice_and_the_longer_lane(
    scatter: bool, slice_s: float, hop_s: float
) -> None:
    product = plain(8, slice_s, hop_s, scatter=scatter)
    assert product.loop(rings=1).seconds == slice_s + 7 * max(slice_s, hop_s)


@pytest.mark.parametrize("workers", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("scatter", [False, True])
def test_two_rings_need_half_the_hops(workers: int, scatter: bool) -> None:
    starved = plain(workers, 1e-9, 1.0, scatter=scatter)
    assert starved.loop().seconds == pytest.approx((workers - 1) / 2, rel=1e-6)
    busy = plain(workers, 1.0, 1e-9, scatter=scatter)
    assert busy.loop().seconds == pytest.approx(workers, rel=1e-6)


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("rings", [1, 2])
@pytest.mark.parametrize("unrolled", [False, True])
def test_lanes_do_all_the_work_and_no_loop_beats_the_bound(
    scatter: bool, rings: int, unrolled: bool
) -> None:
    for hop_s in (0.1, 1.0, 10.0):
        product = plain(8, 1.0, hop_s, scatter=scatter, add_s=0.01, copy_s=0.01)
        timeline = product.loop(rings=rings, unrolled=unrolled)  # type: ignore[arg-type]
        slices = [e.end_s - e.start_s for e in timeline.events if e.what == "slice"]
        assert sum(slices) == pytest.approx(8)
        sent_s = timeline.busy_s("right") + timeline.busy_s("left")
        assert sent_s == pytest.approx(7 * hop_s)
        assert timeline.seconds >= product.bound_s - 1e-12
        assert product.faster(rings=rings) <= product.whole_s  # type: ignore[arg-type]


def test_a_scattered_result_hides_nothing_unless_the_loop_is_unrolled() -> None:
    product = plain(4, 1.0, 1.0, scatter=True)
    assert product.loop(rings=1, unrolled=False).seconds == 4 + 3
    assert product.loop(rings=1).seconds == 4


def test_the_log_of_three_chips() -> None:
    timeline = plain(3, 1.0, 2.0).loop(rings=1)
    assert [tuple(event) for event in timeline.events] == [
        ("right", "hop", 0.0, 2.0),
        ("compute", "slice", 0.0, 1.0),
        ("right", "hop", 2.0, 4.0),
        ("compute", "slice", 2.0, 3.0),
        ("compute", "slice", 4.0, 5.0),
    ]


@pytest.mark.parametrize("workers", [4, 8, 16])
def test_a_gather_takes_as_long_as_the_engines_ring(workers: int) -> None:
    chip = Chip(latency_s=1e-6)
    fabric = collectives.Fabric.flat(
        workers, bandwidth_bytes_per_s=2 * chip.link_bytes_per_s, latency_s=chip.latency_s
    )
    engine_s = collectives.message_time("ring", fabric, op="all-gather")
    for shard_bytes in (2**12, 2**20, 2**28):
        ours_s = chip.collective_s(workers, shard_bytes)
        assert ours_s == pytest.approx(engine_s(workers * shard_bytes), rel=1e-9)


def test_a_layer_counts_as_many_operations_as_its_weights_and_its_attention() -> None:
    layer = Layer(width=4096)
    rows = layer.tokens * layer.workers
    weights = 12 * layer.width**2
    expected = 6 * rows * weights + 12 * rows * layer.sequence * layer.width
    computed_s = layer.alone_s + sum(product.compute_s for product in layer.products.values())
    counted = computed_s * layer.chip.flops_per_s * layer.workers
    assert counted == pytest.approx(expected)
    assert layer.whole_s > layer.seconds() > layer.bound_s


def test_what_hides_behind_other_products_is_the_shorter_of_the_two() -> None:
    layer = Layer(width=10**6)  # computing is far longer than sending
    sent_s = [product.collective_s for product in layer.products.values()]
    assert layer.whole_s - layer.beside_s == pytest.approx(4 * sent_s[0])  # of ten alike
    assert len(set(sent_s)) == 1


def test_models_have_the_sizes_of_their_names() -> None:
    sizes = {"10B": 10e9, "32B": 32e9, "100B": 100e9, "200B": 200e9, "500B": 500e9, "1T": 1e12}
    assert {model.name for model in SIX} == set(sizes)
    for model in SIX:
        assert model.parameters == pytest.approx(sizes[model.name], rel=0.05)


def test_gating_never_loses_and_small_slices_do() -> None:
    chip = Chip(slice_s=1e-3)
    layer = Layer(width=4096, chip=chip)
    assert layer.seconds() == layer.whole_s
    assert layer.seconds(gated=False) > layer.whole_s
    product = replace(layer, tokens=1, chip=Chip(slice_s=0.0)).products["inner, forward"]
    assert product.slices_s(1) == pytest.approx(128 * product.compute_s / product.workers)
    assert product.slices_s(2) == product.slices_s(1)  # one tile holds both


def test_the_loop_on_a_device_gives_the_whole_product() -> None:
    found = gpu.measure("cpu", tokens=64, inner=32, outputs=16, workers=4, repeats=1)
    assert found.difference < 1e-6
    assert found.gain > 0
    with pytest.raises(BadValue, match="multiple of workers 4"):
        gpu.measure("cpu", tokens=63, workers=4)


def test_a_sweep_has_a_row_a_shape_and_a_gpu_is_asked_for() -> None:
    import torch

    table = gpu.sweep("cpu", tokens=(8, 16), outputs=(4,), workers=(2, 4), inner=8, repeats=1)
    assert len(table) == 2 * 2 * 1 * 2
    assert (table["difference"] < 1e-6).all()
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="finds no device 'cuda'"):
            gpu.measure("cuda")
