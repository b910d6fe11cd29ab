"""A sweep as a YAML file. Apart, since few runs have one and Pydantic's model takes a while."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from labkit import files
from labkit.workbook.run.parameters import Choice, Setting, Sweep


def read(path: Path) -> Sweep:
    """The sweep of a YAML file::

        fixed: {gpu: A40}              # in every run
        grid:                          # every combination
          eta_knob: [0, 0.5, 1]
        zip:                           # first with first, second with second
          num_stages: [4, 8]
          num_microbatches: [16, 32]
        list:                          # several parameters at a time, as listed
          - {policy: zeus}
          - {policy: "grid, pruned", beta: 2}
        seeds: 5                       # the notebook's own and the four after it; or [1, 2, 3]

    A run for each combination of grid × zip × list × seeds; a parameter stands in one of them.
    Values have the types that YAML gives them. Raises BadFile, which names the line, the field, the
    value and what would be valid.
    """
    tree = files.load_yaml(path)
    content = files.validate(path, {} if tree is None else tree, _File)
    columns = content.zip
    points = content.list
    rows = range(len(next(iter(columns.values()), ())))
    choices: list[Choice] = [
        *([(Setting(name, value, ("fixed", name)),)] for name, value in content.fixed.items()),
        *(
            [(Setting(name, value, ("grid", name, i)),) for i, value in enumerate(values)]
            for name, values in content.grid.items()
        ),
        [tuple(Setting(n, columns[n][i], ("zip", n, i)) for n in columns) for i in rows],
        [
            tuple(Setting(name, value, ("list", i, name)) for name, value in point.items())
            for i, point in enumerate(points)
        ],
    ]
    return Sweep(
        choices=[choice for choice in choices if choice],
        seeds=content.seeds,
        seeds_place=("seeds",),
        refuse=partial(files.bad_field, path, tree),
    )


def _refused(problem: str, valid: str) -> PydanticCustomError:
    return PydanticCustomError("sweep", "{problem}", {"problem": problem, "expected": valid})


def _scalar(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise _refused("not a value", "a number, a text, true or false")
    return value


def _listed(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        raise _refused("not a list of values", "a list such as [1, 2]")
    return value


def _as_long(columns: Mapping[str, Sequence[Any]]) -> Mapping[str, Sequence[Any]]:
    if len(set(map(len, columns.values()))) > 1:
        lengths = ", ".join(f"{name}: {len(values)}" for name, values in columns.items())
        raise _refused(f"lists of unequal length ({lengths})", "lists of equal length")
    return columns


def _as_seeds(value: Any) -> Any:
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(type(part) is int and part >= 0 for part in listed) or value == 0:
        raise _refused("no seeds", "how many, 1 or more; or a list of whole numbers")
    return value


_Value = Annotated[Any, BeforeValidator(_scalar)]
_Column = Annotated[Sequence[_Value], BeforeValidator(_listed)]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    fixed: Mapping[str, _Value] = {}
    grid: Mapping[str, _Column] = {}
    zip: Annotated[Mapping[str, _Column], AfterValidator(_as_long)] = {}
    list: Sequence[Mapping[str, _Value]] = ()
    seeds: Annotated[int | Sequence[int] | None, BeforeValidator(_as_seeds)] = None
