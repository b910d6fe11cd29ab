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
from datetime import date
from itertools import accumulate
from typing import Any, NamedTuple

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq
from ruamel.yaml.scalarstring import FoldedScalarString, PlainScalarString

Scalar = str | int | date
WIDTH = 100
LONGEST_ON_ONE_LINE = 60


class _Place(NamedTuple):
    """A record's first line with the comments right above it, its own first, the line after."""

    top: int
    first: int
    stop: int
    column: int


def set_fields(
    text: str, listing: str, index: int, changes: Mapping[str, Scalar | None], order: Sequence[str]
) -> str:
    """``text`` with scalar fields of record ``index`` set, or removed where the value is None.

    A new field goes after the last field before it in ``order``.

    >>> set_fields("p:\\n- k: a  # x\\n  s: new\\n", "p", 0, {"s": "old"}, ["k", "s"])
    'p:\\n- k: a  # x\\n  s: old\\n'
    """
    lines, places = _placed(text, listing)
    _, first, stop, column = places[index]
    mark, own = lines[first][:column], lines[first][column:]
    record = _yaml().load(textwrap.dedent("".join([" " * column, own, *lines[first + 1 : stop]])))
    for name in sorted(changes, key=order.index):
        value = changes[name]
        if value is None:
            record.pop(name, None)
        elif name in record:
            record[name] = _laid_out(value, column)
        else:
            before = [known for known in record if known in order[: order.index(name)]]
            record.insert(list(record).index(before[-1]) + 1, name, _laid_out(value, column))
    lines[first:stop] = [_block(record, mark)]
    return "".join(lines)


def changed(
    text: str, listing: str, before: Sequence[BaseModel], after: Sequence[BaseModel]
) -> str:
    """``text`` with the records ``after``: first those of ``before``, changed."""
    for place, (old, new) in enumerate(zip(before, after, strict=False)):
        kept, wanted = old.model_dump(), new.model_dump()
        changes = {name: value or None for name, value in wanted.items() if value != kept[name]}
        if changes:
            text = set_fields(text, listing, place, changes, tuple(wanted))
    for record in after[len(before) :]:
        text = append_record(text, listing, record.model_dump(exclude_defaults=True))
    return text


def append_record(text: str, listing: str, record: Mapping[str, Any]) -> str:
    """``text`` with one more record at the end of the list, in the layout of the last one."""
    lines, places = _placed(text, listing)
    column = places[-1].column if places else 4
    fields = {name: _laid_out(value, column) for name, value in record.items()}
    block = _block(fields, "- ".rjust(column))
    if not places:
        empty = re.compile(rf"^{listing}:[ \t]*(\[\s*\])?[ \t]*\n?", re.MULTILINE)
        return empty.sub(lambda _: f"{listing}:\n{block}", "".join(lines), count=1)
    apart = len(places) < 2 or places[-1].top > places[-2].stop
    lines.insert(places[-1].stop, ("\n" if apart else "") + block)
    return "".join(lines)


def move_record(text: str, listing: str, index: int, before: int) -> str:
    """``text`` with record ``index`` in front of record ``before`` (their number: at the end).

    Comment lines directly above a record, without a blank line between, move with it.
    """
    lines, places = _placed(text, listing)
    order = [i for i in range(len(places)) if i != index]
    order.insert(before - (before > index), index)
    result = lines[: places[0].top]
    following = [*(place.top for place in places[1:]), len(lines)]
    for source, place, until in zip(order, places, following, strict=True):
        result += lines[places[source].top : places[source].stop] + lines[place.stop : until]
    return "".join(result)


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
