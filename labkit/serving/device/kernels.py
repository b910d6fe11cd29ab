"""GPU kernels of a model: their blocks, and how long a wave of them takes by blocks a unit.

A compute unit holds several blocks at once. ``wave_s[k][n - 1]`` is what kernel k takes where each
unit holds n of its blocks, for as many as fit; ``total_s[k]`` is the kernel alone on the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit import files
from labkit.errors import BadFile, BadValue, not_among
from labkit.kit import tables
from labkit.kit.describe import Count, NonNegative, Positive, Whole, checked, description

if TYPE_CHECKING:
    from labkit.datasets import Source

MODELS = ("bert", "densenet", "inception", "resnet", "resnet152", "vgg")
COLUMNS = ("kernel", "blocks", "total_us", "waves_us")
"""The columns of a program as a CSV file; ``waves_us`` holds numbers with spaces between."""


@description
class Program:
    """The kernels of one inference or mini-batch, in the order they are launched.

    A block more cannot make a wave shorter (the profiles are rounded to 2 µs): waves are made to
    never fall.

    Attributes:
        blocks: thread blocks of each kernel.
        total_s: seconds of each alone on the GPU.
        wave_s: of each kernel, seconds of a wave by the blocks that a compute unit holds: 1, 2, ….
    """

    name: str
    blocks: tuple[Count, ...]
    total_s: tuple[Positive, ...]
    wave_s: tuple[tuple[Positive, ...], ...]

    def __post_init__(self) -> None:
        counts = {len(self.blocks), len(self.total_s), len(self.wave_s)}
        if counts == {0} or len(counts) > 1 or not all(self.wave_s):
            raise BadValue(
                f"Program {self.name!r} needs blocks, total_s and wave_s of each kernel, one "
                f"kernel or more; got {sorted(counts)}"
            )
        rising = tuple(tuple(np.maximum.accumulate(waves).tolist()) for waves in self.wave_s)
        object.__setattr__(self, "wave_s", rising)

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def work(self) -> list[tuple[int, float]]:
        """Blocks and seconds alone of each kernel."""
        return list(zip(self.blocks, self.total_s, strict=True))

    @checked
    def longer(self, times: Positive) -> Program:
        """The same kernels, each taking so many times as long."""
        waves = tuple(tuple(s * times for s in row) for row in self.wave_s)
        return replace(self, total_s=tuple(s * times for s in self.total_s), wave_s=waves)

    @checked
    def resident(self, kernel: Whole, units: Count = 60) -> float:
        """Blocks of a kernel that a unit holds, at most.

        Raises:
            BadValue: there is no such kernel.
        """
        self._check(kernel)
        return min(self.blocks[kernel] / units, float(len(self.wave_s[kernel])))

    def _check(self, kernel: int) -> None:
        """Refuse a place at which there is no kernel."""
        if kernel >= len(self):
            raise BadValue(
                f"Program {self.name}: kernel must be from 0 to {len(self) - 1}; got {kernel}"
            )

    @checked
    def slowed(self, kernel: Whole, others: NonNegative, units: Count = 60) -> float:
        """How much longer a kernel takes beside blocks of other programs.

        Args:
            kernel: its place in the program.
            others: blocks a compute unit of the other programs.
            units: compute units of the GPU.

        >>> waves = ((0.01, 0.02, 0.03),)  # n blocks a unit take n times as long
        >>> full = Program(name="full", blocks=(60,), total_s=(0.01,), wave_s=waves)
        >>> full.slowed(0, others=1.0)
        2.0
        """
        self._check(kernel)
        waves = self.wave_s[kernel]
        own = self.resident(kernel, units)
        together = own + others
        counts = range(1, len(waves) + 1)
        alone_s, beside_s = np.interp([max(own, 1.0), max(together, 1.0)], counts, waves)
        return float(beside_s * max(together / len(waves), 1.0) / alone_s)

    @property
    def alone_s(self) -> float:
        """Seconds of the program alone on the GPU."""
        return sum(self.total_s)

    @classmethod
    @checked
    def read(cls, profile: str | Path, graph: str | Path | None = None) -> Program:
        """From REEF's two files of a model, or from one CSV file with our columns.

        Args:
            profile: ``NAME.profile.json``, which holds microseconds by kernel, or a CSV file with
                the columns kernel, blocks, total_us and waves_us.
            graph: ``NAME.json``, which holds the kernels in their order; None for a CSV file.

        Raises:
            BadFile: a file cannot be read, or lacks a kernel, a key or a column.
        """
        path = Path(profile)
        if path.suffix == ".csv":
            return _from_table(path)
        if graph is None:
            raise BadFile(path, "a profile of kernels needs the graph that launches them")
        timed = _of_each(path, "kernel_latency", dict)
        launched = _of_each(Path(graph), "kernels", list)
        if not all(isinstance(kernel.get("name"), str) for kernel in launched):
            raise BadFile(Path(graph), "has a kernel without a name")
        missing = [k["name"] for k in launched if k["name"] not in timed]
        if missing:
            raise BadFile(path, f"lacks the kernel {missing[0]} that {graph} launches")
        rows = [timed[kernel["name"]] for kernel in launched]
        with files.holding(Path(graph), "kernels with launch_params, three counts of blocks first"):
            blocks = tuple(int(np.prod(kernel["launch_params"][:3])) for kernel in launched)
        with files.holding(path, "kernels with total_latency and latency, in microseconds"):
            return cls(
                name=path.name.split(".")[0],
                blocks=blocks,
                total_s=tuple(row["total_latency"] / 1e6 for row in rows),
                wave_s=tuple(tuple(us / 1e6 for us in row["latency"]) for row in rows),
            )


def _of_each(path: Path, key: str, kind: type) -> Any:
    """What a file says of each kernel: mappings, in a list or by the kernel's name."""
    table = files.load_json(path)
    found = table.get(key) if isinstance(table, dict) else None
    rows = found.values() if isinstance(found, dict) else found
    if not isinstance(found, kind) or not all(isinstance(row, dict) for row in rows or ()):
        raise BadFile(path, f"must hold the key {key}, of mappings, one a kernel", field=key)
    if found == []:
        raise BadFile(path, "holds no kernel", field=key)
    return found


def _from_table(path: Path) -> Program:
    table = tables.typed(path, valid=",".join(COLUMNS))
    if not set(COLUMNS) <= set(table.columns):
        raise BadFile(path, f"needs the columns {', '.join(COLUMNS)}")
    with files.holding(path, ",".join(COLUMNS)):
        waves = [[float(us) / 1e6 for us in str(text).split()] for text in table["waves_us"]]
        return Program(
            name=path.stem.removeprefix("standin_kernels_"),
            blocks=tuple(table["blocks"].tolist()),
            total_s=tuple(table["total_us"] / 1e6),
            wave_s=tuple(tuple(row) for row in waves),
        )


@checked
def program_paths(models: Sequence[str] = MODELS) -> list[str]:
    """The two published files of each model, as ``Source`` and ``paper.data`` take them.

    >>> program_paths(["vgg"])
    ['resource/vgg/vgg.profile.json', 'resource/vgg/vgg.json']
    """
    endings = (".profile.json", ".json")
    return [f"resource/{model}/{model}{ending}" for model in models for ending in endings]


@checked
def load_programs(source: Source, models: Sequence[str] = MODELS) -> dict[str, Program]:
    """The programs of ``reef-osdi22`` by model, published or stood in for.

    Args:
        source: the dataset, as ``labkit.datasets.source`` opens it.
        models: which of them.
    """
    if unknown := [model for model in models if model not in MODELS]:
        raise not_among("program", unknown[0], MODELS)
    programs = {}
    for model in models:
        profile, graph = program_paths([model])
        launches = None if source.is_standin else source.path(graph)
        programs[model] = Program.read(source.path(profile), launches)
    return programs
