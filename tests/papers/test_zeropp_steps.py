"""ZeRO++'s modelled step, and straight lines through throughputs."""

import pytest

from labkit.memory import Cluster, Model
from labkit.memory.plans.throughput import throughput
from labkit.papers.zeropp import GPT_18B, GPT_138B, Method, StepModel, straight_line

OURS = StepModel(gpu_flops_per_s=50e12)


def test_sizes_are_the_posts() -> None:
    assert GPT_18B.num_params == pytest.approx(18e9, rel=0.05)
    assert GPT_138B.num_params == pytest.approx(138e9, rel=0.01)


@pytest.mark.parametrize("model", [GPT_18B, GPT_138B])
def test_a_quarter_of_the_traffic_is_a_quarter_of_the_slope(model: Model) -> None:
    """3M of two bytes against 0.75M, whatever a GPU's rate and the latencies are."""
    slopes = {}
    for method in (Method.ZERO3, Method.ZEROPP, Method.WITHOUT_COPY):
        rates = [OURS.rate_flops(method, gbit, model) / 1e12 for gbit in (200, 800)]
        slopes[method], _ = straight_line([200, 800], rates)
    assert slopes[Method.ZERO3] / slopes[Method.ZEROPP] == pytest.approx(4, rel=1e-3)
    assert slopes[Method.ZERO3] / slopes[Method.WITHOUT_COPY] == pytest.approx(3 / 1.25, rel=1e-3)


def test_slope_is_the_bytes_that_leave_a_server() -> None:
    """Gbit for 1,000 TFLOP: 3M of 16 bits, less the share that stays in the server."""
    rates = [OURS.rate_flops(Method.ZERO3, gbit) / 1e12 for gbit in (200, 800)]
    slope, start = straight_line([200, 800], rates)
    servers = Cluster.of_servers(OURS.gpu_flops_per_s, gbit_per_s=800)
    tflop = throughput(OURS.plan(Method.ZERO3), servers).flops / 1e12
    assert slope == pytest.approx(3 * 16 * GPT_18B.num_params / 1e9 / tflop * 1000, rel=0.01)
    assert 1000 / start < OURS.gpu_flops_per_s / 1e12  # hops and servers' own traffic take time


def test_nothing_beats_a_gpu_that_never_waits() -> None:
    for method in Method:
        for overlap in (False, True):
            model = StepModel(gpu_flops_per_s=50e12, overlap=overlap)
            rates = [model.rate_flops(method, gbit) for gbit in (100, 200, 400, 800)]
            assert rates == sorted(rates)
            assert rates[-1] < 50e12


def test_half_of_the_line_is_half_of_the_bandwidth() -> None:
    half = StepModel(gpu_flops_per_s=50e12, line_share=0.5)
    assert half.rate_flops(Method.ZEROPP, 400) == OURS.rate_flops(Method.ZEROPP, 200)
    assert OURS.parity(Method.ZERO3, slow=800) == 1
    assert OURS.gain(Method.ZERO3, 100) == 1


def test_groups_of_mics_hold_the_states() -> None:
    """16 bytes a parameter in a group, in 32 GB a GPU."""
    for model in (GPT_18B, GPT_138B):
        group = OURS.plan(Method.MICS, model).parallel.partition_group
        assert group is not None
        assert 16 * model.num_params / group < 32e9
