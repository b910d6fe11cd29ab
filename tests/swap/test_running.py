"""What torch really holds under a plan, and the gradients that come out."""

from __future__ import annotations

from typing import Any

import pytest

from labkit import swap
from labkit.errors import BadValue
from labkit.swap import Chain, Plan

torch = pytest.importorskip("torch")
SHAPE = (256, 16)


class Residual(torch.nn.Module):
    """A linear layer and a tanh beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return x + torch.tanh(self.linear(x))


def blocks(number: int) -> list:
    return [Residual() for _ in range(number)]


@pytest.mark.parametrize("method", swap.METHODS)
def test_the_replay_is_torchs_peak_to_the_byte(method: str) -> None:
    chain, _ = swap.capture(lambda: blocks(20), SHAPE)
    plan = swap.plan(chain, method)
    assert swap.tracked_bytes(lambda: blocks(20), SHAPE, plan) == plan.replay().peak_bytes


@pytest.mark.parametrize("method", swap.METHODS)
def test_the_replay_of_a_resnet_is_torchs_peak(method: str) -> None:
    """Within half a percent: what a block needs for a moment is not all of one moment."""

    def network() -> list:
        return swap.resnet(50, width=8, classes=10)

    chain, _ = swap.capture(network, (8, 3, 64, 64))
    plan = swap.plan(chain, method)
    tracked = swap.tracked_bytes(network, (8, 3, 64, 64), plan)
    assert tracked == pytest.approx(plan.replay().peak_bytes, rel=5e-3)


def test_a_captured_block_is_its_tensors() -> None:
    """Linear layer, tanh, sum: the input and tanh's output are kept."""
    chain, num_params = swap.capture(lambda: blocks(3), SHAPE)
    one = 4 * 256 * 16
    assert chain.output_bytes == chain.kept_bytes == (one,) * 3
    assert chain.forward_cost == (2 * 256 * 16**2,) * 3
    assert chain.backward_cost == (4 * 256 * 16**2,) * 3
    own = 4 * (16**2 + 16)  # gradients of weight and bias, before they are added
    assert chain.backward_extra_bytes == (own,) * 3
    assert num_params == 3 * own / 4


def test_resnet_50_has_its_size() -> None:
    """He et al. 2015, Table 1: 25.6 million parameters; 3.8 billion multiply-adds an image by the
    paper, 4.1 with the stride in the 3 × 3 convolution, as everybody has it since."""
    chain, num_params = swap.capture(lambda: swap.resnet(50), (1, 3, 224, 224))
    assert num_params == 25_557_032
    assert sum(chain.forward_cost) / 2e9 == pytest.approx(4.09, abs=0.01)


@pytest.mark.parametrize("method", swap.METHODS)
def test_gradients_are_those_of_ordinary_training(method: str) -> None:
    """With dropout: a block that runs again draws what it drew first."""

    def network() -> list:
        torch.manual_seed(0)
        return swap.resnet(26, width=4, classes=5, dropout=0.3)

    x = torch.randn(2, 3, 32, 32)
    gradient = torch.randn(2, 5)
    plan = swap.plan(Chain.even(len(network())), method)
    ours = network()
    again = network()
    plain = network()
    torch.manual_seed(1)
    swap.execute(ours, x, lambda _: gradient, plan)
    torch.manual_seed(1)
    torch.nn.Sequential(*plain)(x).backward(gradient)
    torch.manual_seed(1)
    swap.execute(again, x, lambda _: gradient, plan, restore_random=False)

    def same(mine: list) -> bool:
        pairs = zip(*(torch.nn.Sequential(*n).parameters() for n in (mine, plain)), strict=True)
        return all(torch.equal(a.grad, b.grad) for a, b in pairs)

    assert same(ours)
    assert same(again) == (method == "all-kept")


def test_a_plan_that_lacks_something_does_not_run_on() -> None:
    chain = Chain.even(2)
    plan = Plan(chain=chain, operations=(("forward", 0), ("keep", 0)))
    with pytest.raises(BadValue, match=r"operations\[1\], keep of block 0, lacks"):
        swap.execute(blocks(2), torch.zeros(SHAPE), torch.zeros_like, plan)


def test_blocks_captured_before_are_told_apart_from_others_that_print_alike() -> None:
    class Twice(torch.nn.Linear):  # prints as Linear's own name would, but keeps a product more
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).sin().sin()

    def kept(block: torch.nn.Module) -> float:
        return swap.capture(lambda: [block], (4, 8))[0].kept_bytes[0]

    with torch.device("meta"):
        once = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.ReLU())
        plain = torch.nn.Linear(8, 8)
        twice = Twice(8, 8)
    twice._get_name = lambda: "Linear"  # type: ignore[method-assign]
    assert repr(plain) == repr(twice)
    assert kept(plain) < kept(twice)
    assert kept(once) > kept(once.eval())
    assert kept(once.train()) > kept(once.eval())
