"""Whatever is asked of collectives: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from labkit import collectives
from tests import kinds

FABRIC = collectives.Fabric.flat(4, bandwidth_bytes_per_s=1e9, latency_s=1e-5)
RING = collectives.program("ring", 3, 48)
TENSORS = [np.zeros(12, dtype=np.float32)] * 3
LAYERS = pd.DataFrame(
    {"forward_s": [1.0, 1.0], "backward_s": [2.0, 2.0], "parameter_bytes": [4, 4]}
)
WISH = {"op": "all-reduce", "fabric": FABRIC, "num_workers": 3, "num_servers": 1}


def examples() -> Mapping[str, Mapping[str, Any]]:
    return {
        "Fabric": {"levels": FABRIC.levels, "add_bytes_per_s": 1e9},
        "Fabric.flat": {"count": 3, "bandwidth_bytes_per_s": 1e9, "latency_s": 0.0},
        "Fabric.machines": {
            "count": 2,
            "devices": 2,
            "inside_bytes_per_s": 1e10,
            "between_bytes_per_s": 1e9,
            "latency_s": 0.0,
        },
        "Fabric.scaled": {"bandwidth": 2.0},
        "best": {**WISH, "num_bytes": 48},
        "bound": {"op": "all-reduce", "fabric": FABRIC, "num_bytes": 48, "num_workers": 3},
        "byteps_shares": {"num_workers": 4, "num_servers": 2},
        "compare": {**WISH, "num_bytes": (48, 96)},
        "cost": {"program": RING, "fabric": FABRIC},
        "execute": {"program": RING, "tensors": TENSORS, "on": "threads"},
        "figure_costs": {
            "table": collectives.compare("all-reduce", FABRIC, [48]),
            "title": "a",
        },
        "figure_overlap": {"runs": {"a": collectives.overlap(LAYERS, [1.0, 1.0])}, "title": "a"},
        "figure_program": {"program": RING, "title": "a"},
        "fit": {"num_bytes": (1.0, 2.0, 3.0), "time_s": (1.0, 2.0, 3.0)},
        "message_time": {
            "name": "parameter-server",
            "fabric": FABRIC,
            "op": "all-reduce",
            "num_workers": 3,
            "num_servers": 1,
            "num_pieces": 2,
        },
        "names": {"op": "all-reduce"},
        "overlap": {
            "profile": LAYERS,
            "message_s": [1.0, 1.0],
            "policy": "priority",
            "bucket_bytes": 4,
        },
        "program": {
            "name": "ring",
            "num_workers": 3,
            "num_bytes": 48,
            "op": "all-reduce",
            "bits": 8,
            "element_bytes": 4,
        },
        "program:sparse": {
            "name": "sparse-blocks",
            "num_workers": 2,
            "num_bytes": 48,
            "num_servers": 1,
            "num_pieces": 1,
            "nonzero": np.ones((2, 3), dtype=bool),
        },
        "program:nodes": {"name": "hierarchical", "num_workers": 4, "num_bytes": 48, "per_node": 2},
    }


def objects() -> Mapping[str, Any]:
    return {"Fabric": FABRIC}


ROOM = kinds.Room(
    collectives,
    examples,
    objects,
    strange={r"add_bytes_per_s\.inf": "adding takes no time unless something is said"},
)


def test_every_public_call_has_an_example() -> None:
    ROOM.check_examples()


@pytest.mark.parametrize("name", ROOM.names())
def test_odd_values(name: str) -> None:
    ROOM.check(name)
