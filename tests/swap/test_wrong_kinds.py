"""Whatever is asked of swap: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from labkit import swap
from tests import kinds


def blocks() -> list[nn.Module]:
    return [nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)]


def examples() -> Mapping[str, Mapping[str, Any]]:
    chain = swap.Chain.even(3)
    plan = swap.all_kept(chain)
    ones = (1.0, 1.0, 1.0)
    return {
        "Chain": {
            "input_bytes": 1,
            "output_bytes": ones,
            "kept_bytes": ones,
            "forward_cost": ones,
            "backward_cost": ones,
        },
        "Chain.even": {"num_blocks": 3, "kept_bytes": 1.0},
        "all_kept": {"chain": chain},
        "segments": {"chain": chain, "starts": 2},
        "recursive": {"chain": chain},
        "searched": {"chain": chain, "tries": 2},
        "optimum": {"chain": chain, "memory_bytes": 9.0, "slots": 9},
        "plan": {"chain": chain, "method": "searched"},
        "replay": {"chain": chain, "operations": plan.operations},
        "Optimum.plan": {"memory_bytes": 9.0},
        "figure_tradeoff": {"chain": chain, "slots": 20, "title": "a"},
        "resnet": {"num_layers": 14, "width": 2, "classes": 3, "dropout": 0.1},
        "capture": {"make": blocks, "shape": (2, 4)},
        "tracked_bytes": {"make": blocks, "shape": (2, 4), "plan": plan},
        "execute": {
            "blocks": blocks(),
            "x": torch.ones(2, 4),
            "gradient": torch.ones_like,
            "plan": plan,
        },
    }


def objects() -> Mapping[str, Any]:
    chain = swap.Chain.even(3)
    plan = swap.all_kept(chain)
    return {
        "Chain": chain,
        "Plan": plan,
        "Replay": swap.replay(chain, plan.operations),
        "Optimum": swap.optimum(chain, slots=20),
    }


ROOM = kinds.Room(swap, examples, objects)


def test_every_public_call_has_an_example() -> None:
    ROOM.check_examples()


@pytest.mark.parametrize("name", ROOM.names())
def test_odd_values(name: str) -> None:
    ROOM.check(name)
