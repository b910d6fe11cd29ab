"""Frozen parameters: what a real step allocates for the others, and nothing for them."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.memory import Batch, Model, Parallel, Plan, Recipe
from labkit.memory.tape.mode import Mode

torch = pytest.importorskip("torch")
GPT = Model(name="tiny", num_layers=2, hidden=32, heads=4, vocab=64, positions=16)


def network(trains: Any) -> Any:
    """A small decoder of which the parameters that ``trains`` names are trained."""
    from labkit.memory.oracles import networks

    module = networks.build(GPT, Mode(dtype="fp32"), seq=16)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(trains(name))
    return module


def measured(module: Any) -> tuple[int, int]:
    """Bytes of gradients and of Adam's momentum and variance after a real step."""
    from labkit.memory.oracles import networks

    optimizer = networks.adamw(module, "foreach")
    batch = [torch.zeros(1, 16, dtype=torch.int64) for _ in range(2)]
    module(*batch).backward()
    optimizer.step()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    states = [
        part
        for state in optimizer.state.values()
        for name, part in state.items()
        if name != "step"  # on the host, where a step runs over lists
    ]
    return sum(g.nbytes for g in gradients), sum(part.nbytes for part in states)


@pytest.mark.parametrize(
    "trains",
    [
        lambda name: "mlp" in name,
        lambda name: name.startswith("norm"),
        lambda name: "blocks.1" in name,
        lambda name: True,
    ],
)
def test_states_are_those_of_a_real_step(trains: Any) -> None:
    module = network(trains)
    plan = Plan(
        model=Model.from_module(module),
        recipe=Recipe.fp32_adam(step="foreach"),
        batch=Batch(seq=16, micro_batch=1),
    )
    row = plan.moments().loc["optimizer step"]
    assert (row["gradients"], row["optimizer"]) == measured(module)


def test_sharding_divides_what_is_trained() -> None:
    module = network(lambda name: "mlp" in name)
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    plan = Plan(
        model=Model.from_module(module),
        parallel=Parallel(dp=2, zero=2),
        recipe=Recipe.fp32_adam(step="fused"),
        batch=Batch(seq=16, micro_batch=1),
    )
    assert plan.moments().loc["optimizer step", "gradients"] == 4 * trained / 2


def test_the_plan_says_what_it_takes_for_granted() -> None:
    plan = Plan(
        model=Model.from_module(network(lambda name: "mlp" in name)),
        batch=Batch(seq=16, micro_batch=1),
    )
    assert any("layers keep only what a gradient above them needs" in n for n in plan.assumptions)
