"""torch's own builders of pipeline schedules, an oracle for ours.

Building every order with torch takes minutes, and they change only with torch. So
``python -m tests.oracles.torch_orders`` builds them once and stores what identifies them (a hash
of the order, its makespan in unit time) in ``stored/torch_orders.json`` beside torch's version.
The tests compare ours with what is stored and build a random sample of it live.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from labkit.errors import UsageError, not_among
from labkit.pipeline import Costs, Instruction, Schedule, simulate
from labkit.pipeline.scheduling.orders import instructions

STORED = Path(__file__).parent / "stored" / "torch_orders.json"
UNIT = Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0)

# Our names, torch's, and whether torch's takes stages per rank.
PEERS = {
    "gpipe": ("GPipe", False),
    "1f1b": ("1F1B", False),
    "loop-bfs": ("LoopedBFS", True),
    "interleaved-1f1b": ("Interleaved1F1B", True),
    "interleaved-zb": ("InterleavedZeroBubble", True),
    "zb-v": ("ZBVZeroBubble", False),
    "dualpipe-v": ("DualPipeV", False),
}
SIZES = (
    (1, 4), (2, 4), (3, 7), (4, 4), (4, 8), (4, 10), (8, 16), (8, 64), (16, 32), (4, 2), (8, 4),
)  # fmt: skip
Case = tuple[str, int, int, int]  # our name, devices, microbatches, chunks a device


def torch_schedule(
    name: str, num_stages: int, num_microbatches: int, *, num_chunks: int = 2
) -> Schedule:
    """torch's own order for the schedule of our ``name``, sizes as for ``pipeline.build``.

    ``"zb-h1"`` is torch's InterleavedZeroBubble with one stage a rank, which torch builds but
    its visualiser refuses.

    Raises:
        UsageError: torch has no such schedule, or not for these sizes; the message is torch's.
    """
    if name not in (*PEERS, "zb-h1"):
        raise not_among("schedule of torch's", name, (*PEERS, "zb-h1"))
    try:
        if name == "zb-h1":
            rows = _one_stage_zero_bubble(num_stages, num_microbatches)
        else:
            from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

            theirs, chunked = PEERS[name]
            per_rank = num_chunks if chunked else None
            rows = get_schedule_ops(theirs, num_stages, num_microbatches, per_rank)
    except (ValueError, AssertionError) as error:
        sizes = f"{num_stages} stages, {num_microbatches} microbatches"
        raise UsageError(f"torch builds no {name!r} for {sizes}: {error}") from None
    return from_torch(rows, name=f"torch {name}")


def from_torch(rows: Iterable[Sequence[Any]], *, name: str = "torch") -> Schedule:
    """The schedule of torch's own actions: a row per rank, each of actions, strings or None.

    ``torch.distributed.pipelining._schedule_visualizer.get_schedule_ops`` gives such rows. One
    fault of theirs is put right: up to torch 2.13 the last rank of 1F1B numbers its forwards
    1 to M where its backwards are 0 to M - 1, which no schedule can mean.
    """
    order = []
    for row in rows:
        actions = ("" if action is None else str(action) for action in row)
        order.append(_renumbered([part for action in actions for part in instructions(action)]))
    return Schedule.from_order(order, name=name)


def _renumbered(device: list[Instruction]) -> list[Instruction]:
    """A rank whose one stage's forwards are 1 to M and backwards 0 to M - 1, put right."""
    if len({each.stage for each in device}) != 1:
        return device
    forwards = {each.microbatch for each in device if each.kind == "forward"}
    backwards = {each.microbatch for each in device if each.kind == "backward"}
    count = len(forwards)
    if forwards != set(range(1, count + 1)) or backwards != set(range(count)):
        return device
    return [each._replace(microbatch=each.microbatch - (each.kind == "forward")) for each in device]


def _one_stage_zero_bubble(num_ranks: int, num_microbatches: int) -> Sequence[Sequence[Any]]:
    from unittest import mock

    from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble
    from torch.distributed.pipelining.stage import PipelineStage

    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank = 0
    stage.group_size = num_ranks
    stage.num_stages = num_ranks
    stage.submod = None
    order = ScheduleInterleavedZeroBubble([stage], num_microbatches).pipeline_order
    return [order[rank] for rank in range(num_ranks)]


def cases() -> Iterator[Case]:
    """What is stored: every peer at every size, and ZB-V at sizes around its limits."""
    for name in (*PEERS, "zb-h1"):
        chunked = name in PEERS and PEERS[name][1]
        for num_chunks in (2, 3) if chunked else (1,):
            yield from ((name, *size, num_chunks) for size in SIZES)
    for stages in range(1, 9):
        for microbatches in (*range(1, 2 * stages + 3), 5 * stages):
            yield "zb-v", stages, microbatches, 1


def facts(schedule: Schedule) -> list[Any]:
    """What identifies an order: a hash of all its instructions; and its makespan in unit time."""
    text = "|".join(" ".join(map(str, device)) for device in schedule.order)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return [digest, simulate(schedule, UNIT).makespan_s]


def torch_facts(case: Case) -> list[Any] | None:
    """:func:`facts` of torch's order; None where torch builds none."""
    name, stages, microbatches, num_chunks = case
    try:
        return facts(torch_schedule(name, stages, microbatches, num_chunks=num_chunks))
    except UsageError:
        return None


def stored() -> dict[Case, list[Any] | None]:
    """What was stored, by case."""
    content = json.loads(STORED.read_text())
    return {(name, *sizes): found for name, *sizes, found in content["orders"]}  # type: ignore[misc]


def store() -> None:
    """Build every case with torch and write what identifies it."""
    import torch

    orders = [[*case, torch_facts(case)] for case in dict.fromkeys(cases())]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in orders)
    version = json.dumps({"torch": torch.__version__})
    STORED.write_text(f'{{"versions": {version},\n "orders": [\n{lines}\n ]}}\n')


if __name__ == "__main__":
    store()
