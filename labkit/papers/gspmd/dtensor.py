"""Torch's DTensor on pretended ranks: where it leaves sums to be added, and what each rank holds.

The process group is torch's ``fake`` one: one process is rank 0 of four, and nothing is sent.
"""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd

from labkit.memory.traced.ranks import fake_group
from labkit.papers.gspmd.graphs import Graph, Layout
from labkit.papers.gspmd.partitions import local_shape, partition

RANKS = 4
SIDES = (8, 16, 32)
"""Rows, summed numbers and columns of the product."""


def compare_products() -> pd.DataFrame:
    """Products of two matrices for all cuts of both: what DTensor makes of them, and what we do.

    Returns:
        One row a pair of cuts: the output's cut by DTensor ("rows", "columns", "whole", "sums"),
        ours, and whether a rank holds as many numbers of it. DTensor leaves sums to be added later;
        we take the output's cut from it, and "sums" where we add them within the operation.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placements: dict[str, Any] = {"rows": Shard(0), "columns": Shard(1), "whole": Replicate()}
    rows = []
    with fake_group(RANKS):
        mesh = init_device_mesh("cpu", (RANKS,))
        for left, right in itertools.product(placements, placements):
            one = distribute_tensor(torch.ones(SIDES[0], SIDES[1]), mesh, [placements[left]])
            other = distribute_tensor(torch.ones(SIDES[1], SIDES[2]), mesh, [placements[right]])
            made: Any = one @ other
            theirs = _word(made.placements[0])
            ours, shape = our_product(left, right, theirs)
            rows.append(
                {
                    "left": left,
                    "right": right,
                    "DTensor": theirs,
                    "ours": ours,
                    "same": ours == theirs and shape == tuple(made.to_local().shape),
                }
            )
    return pd.DataFrame(rows)


def _word(placement: Any) -> str:
    if placement.is_partial():
        return "sums"
    if placement.is_replicate():
        return "whole"
    return "rows" if placement.dim == 0 else "columns"


def our_product(left: str, right: str, output: str) -> tuple[str, tuple[int, ...]]:
    """How our partitioner makes an output of that cut, and the shape that a device holds.

    Args:
        output: "sums" asks for a whole output, which sums may be added for.
    """
    cuts: dict[str, Layout] = {"rows": ("x", ""), "columns": ("", "x")}
    graph = Graph()
    graph.given("left", SIDES[:2])
    graph.given("right", SIDES[1:])
    graph.product("ik,kj->ij", "left", "right", to="output")
    names = {"left": left, "right": right, "output": output}
    layouts = {name: cuts.get(cut, ("", "")) for name, cut in names.items()}
    program = partition(graph, layouts, {"x": RANKS})
    kinds = [instruction.kind for instruction in program.instructions]
    shape = local_shape(graph, program.mesh, "output", layouts)
    summed = {"all-reduce", "reduce-scatter"} & set(kinds)
    return ("sums" if summed else output.replace("sums", "whole")), shape
