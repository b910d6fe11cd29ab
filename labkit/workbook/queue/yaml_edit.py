"""Edits of a YAML file of records that leave the lines of all other records as they are.

The file must hold a mapping with a list of mappings (``listing``), as ``reading_queue.yaml`` does.
ruamel says on which lines each record stands; an edit replaces or moves those alone. A record that
changes goes through ruamel's round trip, which keeps its comments, order and quoting. Lines end in
``\\n`` here.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq
from ruamel.yaml.scalarstring import FoldedScalarString, PlainScalarString

WIDTH = 100
LONGEST_ON_ONE_LINE = 60


class _Place(NamedTuple):
    """A record's first line with the comments right above it, its own first, the line after."""

    top: int
    first: int
    stop: int
    column: int


def rewritten(
    text: str, listing: str, before: Mapping[Any, BaseModel], after: Mapping[Any, BaseModel]
) -> str:
    """``text`` with the records ``after`` in place of those ``before``, by a name of each.

    A record keeps its lines wherever it goes, with the comment lines right above it; of one that
    changes only those fields are written, and a new one is laid out as the last. Blank lines and
    other comments between records stay where they are. No record may go.
    """
    lines, places = _placed(text, listing)
    column = places[-1].column if places else 4
    blocks = []
    at = dict(zip(before, places, strict=True))
    for name, record in after.items():
        if name in at:
            blocks.append(_edited(lines, at[name], before[name], record))
        else:
            fields = record.model_dump(exclude_defaults=True)
            laid_out = {field: _laid_out(value, column) for field, value in fields.items()}
            blocks.append(_block(laid_out, "- ".rjust(column)))
    if not places:
        empty = re.compile(rf"^{listing}:[ \t]*(\[\s*\])?[ \t]*\n?", re.MULTILINE)
        return empty.sub(lambda _: f"{listing}:\n" + "\n".join(blocks), "".join(lines), count=1)
    tops = [*(place.top for place in places[1:]), len(lines)]
    gaps = ["".join(lines[place.stop : top]) for place, top in zip(places, tops, strict=True)]
    apart = "\n" if len(places) < 2 or places[-1].top > places[-2].stop else ""
    *between, ending = gaps
    num_new = len(blocks) - len(places)
    pairs = zip(blocks, [*between, *[apart] * num_new, ending], strict=True)
    return "".join([*lines[: places[0].top], *(block + gap for block, gap in pairs)])


def _edited(lines: Sequence[str], place: _Place, old: BaseModel, new: BaseModel) -> str:
    """The lines of a record with its changed fields set, or removed where they have no value.

    A new field goes after the last one before it in the model's order.
    """
    top, first, stop, column = place
    was, fields = (record.model_dump(exclude_defaults=True) for record in (old, new))
    order = [*type(new).model_fields]
    changes = {n: fields.get(n) for n in order if fields.get(n) != was.get(n)}
    if not changes:
        return "".join(lines[top:stop])
    mark = lines[first][:column]
    own = lines[first][column:]
    text = "".join([" " * column, own, *lines[first + 1 : stop]])
    record = _yaml().load(textwrap.dedent(text))
    for name, value in changes.items():
        if value is None:
            record.pop(name, None)
        elif name in record:
            record[name] = _laid_out(value, column)
        else:
            earlier = [known for known in record if known in order[: order.index(name)]]
            record.insert(list(record).index(earlier[-1]) + 1, name, _laid_out(value, column))
    return "".join([*lines[top:first], _block(record, mark)])


def _placed(text: str, listing: str) -> tuple[list[str], list[_Place]]:
    """The lines of ``text`` and where each record of the list stands among them."""
    text = text if text.endswith("\n") else text + "\n"
    lines = text.splitlines(keepends=True)
    node = next(value for key, value in _yaml().compose(text).value if key.value == listing)
    records = node.value if isinstance(node.value, list) else []
    ends = [record.start_mark.line for record in records[1:]]
    ends += [record.end_mark.line + bool(record.flow_style) for record in records[-1:]]
    places = []
    for record, stop in zip(records, ends, strict=True):
        top = first = record.start_mark.line
        while lines[top - 1].lstrip().startswith("#"):
            top -= 1
        while not lines[stop - 1].strip() or lines[stop - 1].lstrip().startswith("#"):
            stop -= 1
        places.append(_Place(top, first, stop, record.start_mark.column))
    return lines, places


def _laid_out(value: Any, column: int) -> Any:
    """``value`` as a new field shows it: a list in brackets, a long text folded."""
    if isinstance(value, list | tuple):
        items = CommentedSeq(value)
        items.fa.set_flow_style()
        return items
    if not isinstance(value, str):
        return value
    width = WIDTH - column - 2
    wrapped = textwrap.wrap(value, width, break_long_words=False, break_on_hyphens=False)
    if len(value) <= LONGEST_ON_ONE_LINE or " ".join(wrapped) != value:
        return PlainScalarString(value)
    folded = FoldedScalarString(value)
    folded.fold_pos = [end - 1 for end in accumulate(len(line) + 1 for line in wrapped[:-1])]
    return folded


def _block(record: Mapping[str, Any], mark: str) -> str:
    """The lines of one record, the first after ``mark``."""
    stream = io.StringIO()
    _yaml().dump(record, stream)
    return mark + textwrap.indent(stream.getvalue(), " " * len(mark))[len(mark) :]


def _yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 1_000_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml
