"""States and temporaries of optimizers' steps: against torch's own, tensor by tensor."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.memory import Batch, Model, Plan, Recipe
from labkit.memory.jobs.recipe import state_bytes
from labkit.memory.tape.step import Moment

MODEL = Model(name="small", num_layers=2, hidden=48, heads=4, vocab=101, positions=40)
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("adam", {}),
    ("adam", {"amsgrad": True}),
    ("sgd", {}),
    ("sgd", {"momentum": False}),
    ("adafactor", {}),
    ("muon", {}),
]


def _optimizers(recipe: Recipe, tensors: Any) -> list[Any]:
    """Torch's optimizers for parameters like ``tensors``, each with its parameters' gradients."""
    import torch

    given = [(t, torch.nn.Parameter(torch.zeros(t.shape))) for t in tensors]
    every = [p for _, p in given]
    how: dict[str, Any] = {"foreach": recipe.step == "foreach"}
    if recipe.step == "fused":
        how = {"fused": True}
    if recipe.optimizer == "sgd":
        return [torch.optim.SGD(every, lr=0.1, momentum=0.9 * recipe.momentum, **how)]
    if recipe.optimizer == "adafactor":
        return [torch.optim.Adafactor(every, **how)]
    if recipe.optimizer == "adam":
        return [torch.optim.AdamW(every, amsgrad=recipe.amsgrad, **how)]
    matrices = [p for t, p in given if t.is_hidden_matrix]
    others = [p for t, p in given if not t.is_hidden_matrix]
    return [torch.optim.Muon(matrices), torch.optim.AdamW(others, **how)]


def _seen(recipe: Recipe) -> tuple[int, int]:
    """Bytes of states, and the most that a second step allocates for itself."""
    import torch
    from torch.distributed._tools.mem_tracker import MemTracker

    class Watch(MemTracker):
        top = 0

        def total(self) -> int:
            return sum(part["Total"] for part in self._curr_mem_snap.values())

        def _update_peak_stats(self, peak_state: Any) -> None:
            self.top = max(self.top, self.total())

    states = 0
    most = 0
    for optimizer in _optimizers(recipe, MODEL.tensors()):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        held = [v for state in optimizer.state.values() for v in state.values()]
        states += sum(v.nbytes for v in held if torch.is_tensor(v))
        watch = Watch()
        watch.track_external(optimizer, *parameters, *[p.grad for p in parameters])
        with watch:
            before = watch.total()
            optimizer.step()
        most = max(most, watch.top - before)
    return states, most


@pytest.mark.parametrize("step", ["foreach", "for-loop", "fused"])
@pytest.mark.parametrize(("optimizer", "choices"), KINDS)
def test_states_and_temporaries_are_torchs(
    optimizer: str, choices: dict[str, Any], step: str
) -> None:
    pytest.importorskip("torch")
    if step == "fused" and optimizer == "adafactor":
        pytest.skip("torch has no fused Adafactor")
    recipe = Recipe.fp32_adam(optimizer=optimizer, step=step, **choices)
    states, temporaries = _seen(recipe)
    assert sum(state_bytes(MODEL.tensors(), recipe).values()) == states
    plan = Plan(model=MODEL, recipe=recipe, batch=Batch(seq=8))
    told = plan.moments().loc[Moment.STEP].get("temporaries", 0)
    # Adafactor's statistics: a number a tensor over lists, a tensor's rows and columns otherwise.
    slack = 4 * len(MODEL.tensors()) + 4 * max(sum(t.shape) for t in MODEL.tensors())
    if (optimizer, step) == ("adafactor", "for-loop"):  # two of the largest follow each other
        assert temporaries - slack <= told <= 2 * temporaries
    elif optimizer == "adafactor":
        assert told == pytest.approx(temporaries, abs=slack)
    else:
        assert told == temporaries


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"optimizer": "adam-8bit", "states": "int4"},
            "states must be fp32 for adam-8bit",
        ),
        ({"momentum": False}, "momentum must be True for adam"),
        ({"optimizer": "sgd", "block": 64}, "block must be None for sgd, got 64"),
    ],
)
def test_no_option_of_an_optimizer_is_ignored(said: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe(**said)
