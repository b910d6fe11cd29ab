"""Order tables: what torch writes and reads, as schedules and back.

One row per device (torch: rank), one cell per instruction in running order: the stage, a letter
and the microbatch, as in ``0F3``. ``F`` is a forward, ``B`` a full backward, ``I`` and ``W`` its
input and weight halves. ``(0F7;7B3)OVERLAP_F_B`` is a forward and a backward that torch runs as
one; here they run one after the other. An empty cell is a device that waits, and orders nothing.

Cells that send and receive (``SEND_F``, ``RECV_F``, ``SEND_B``, ``RECV_B``), gather and free
weights (``UNSHARD``, ``RESHARD``) or reduce gradients (``REDUCE_GRAD``) are left out: who waits
for whose result follows from the instructions themselves.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from labkit.errors import BadFile, UsageError
from labkit.files import read_text, write_atomically
from labkit.kit.describe import checked
from labkit.pipeline.scheduling.graph import DeadlockError
from labkit.pipeline.scheduling.schedule import Instruction, Kind, Schedule

_LETTERS: dict[str, Kind] = {"F": "forward", "B": "backward", "I": "input", "W": "weight"}
_OF_KIND = {kind: letter for letter, kind in _LETTERS.items()}
_CELL = re.compile(r"(\d+)([FBIW])(\d+)", re.ASCII)
_PAIR = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
_NO_WORK = re.compile(r"\d+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)\d*", re.ASCII)
_VALID = (
    "a stage, one of F B I W, a microbatch (0F3, 2W5); (0F7;7B3)OVERLAP_F_B; a stage and one of "
    "SEND_F RECV_F SEND_B RECV_B UNSHARD RESHARD REDUCE_GRAD; or nothing"
)


@checked
def load_order(path: str | Path) -> Schedule:
    """Read the schedule in a file of torch's CSV format; it is named after the file.

    Both of torch's forms are read: with communication cells and without.

    Raises:
        BadFile: the file is missing, a cell says nothing known, or the table is no whole schedule;
            the message names the row and cell, counted from 1.
        DeadlockError: the order can never finish; the message names the circle.
    """
    path = Path(path)
    try:
        table = list(csv.reader(io.StringIO(read_text(path), newline="")))
    except csv.Error as error:
        raise BadFile(path, f"not CSV: {error}") from None
    while table and not any(cell.strip() for cell in table[-1]):
        table.pop()
    if not table:
        raise BadFile(path, "the table is empty", valid="one row of cells per device")
    order: list[list[Instruction]] = []
    for row, cells in enumerate(table, start=1):
        order.append([])
        for column, cell in enumerate(cells, start=1):
            try:
                order[-1] += instructions(cell)
            except ValueError:
                raise BadFile(
                    path,
                    "a cell that is no instruction",
                    line=row,
                    field=f"cell {column}",
                    value=cell,
                    valid=_VALID,
                ) from None
    try:
        schedule = Schedule.from_order(order, name=path.stem)
    except UsageError as error:
        raise BadFile(path, str(error)) from None
    try:
        _ = schedule.graph
    except DeadlockError as error:
        raise DeadlockError(f"{path}: {error}") from None
    return schedule


@checked
def save_order(schedule: Schedule, path: str | Path) -> None:
    """Write the schedule's order in torch's CSV format, compute cells only.

    There are no empty cells: how long a device waits is for durations to say. Names, weight
    versions and whether iterations overlap are not written.
    """
    lines = io.StringIO(newline="")
    csv.writer(lines, lineterminator="\r\n").writerows(
        [f"{stage}{_OF_KIND[kind]}{microbatch}" for stage, kind, microbatch in device]
        for device in schedule.order
    )
    write_atomically(Path(path), lines.getvalue())


def instructions(cell: str) -> list[Instruction]:
    """Read what a cell makes its device run.

    Raises:
        ValueError: it says nothing known.
    """
    cell = cell.strip()
    if not cell or _NO_WORK.fullmatch(cell):
        return []
    if pair := _PAIR.fullmatch(cell):
        return [instruction for part in pair[1].split(";") for instruction in instructions(part)]
    if cell_match := _CELL.fullmatch(cell):
        return [Instruction(int(cell_match[1]), _LETTERS[cell_match[2]], int(cell_match[3]))]
    raise ValueError(cell)
