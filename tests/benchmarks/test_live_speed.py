"""Live figures that are moved again and again in a real kernel: nothing hangs, and how soon each
move is drawn. ``make bench`` runs it. The aim: under 150 ms, alone on the machine, for a move that
follows the last drawing after PAUSE_S; moves of one pull are drawn together.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest

from labkit.cli import panel

MOVES = 300
RUNS = 20
PAUSE_S = 0.1
MOVED = """
import asyncio, json, random, statistics, time
from labkit.cli import panel
live, rng, wall_ms, cpu_ms = panel.show(NAME), random.Random(0), [], []
while len(wall_ms) < MOVES:
    axis = rng.choice(list(live._axes.values()))
    value = rng.choice(axis.values)
    if axis.is_range:
        value = rng.uniform(axis.values[0], axis.values[-1])
        value = round(value) if isinstance(axis.step, int) else value
    control, drawn = live.controls[axis.name], live.num_drawn
    if value == control.value:
        continue
    await asyncio.sleep(PAUSE_S)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    control.value = value
    while live.num_drawn == drawn and not live.error:
        await asyncio.sleep(0.001)
    assert not live.error, live.error
    wall_ms.append(1e3 * (time.perf_counter() - wall_s))
    cpu_ms.append(1e3 * (time.process_time() - cpu_s))
print(json.dumps({
    "median_ms": statistics.median(wall_ms), "worst_ms": max(wall_ms),
    "median_cpu_ms": statistics.median(cpu_ms), "worst_cpu_ms": max(cpu_ms),
}))
"""
OUTPUTS = """
import ipywidgets
from IPython.display import display
from labkit import workbook
from labkit.kit import draw
out = ipywidgets.Output()
with out:
    print(1); out.clear_output(); print(2)
display(out, ipywidgets.interactive(lambda a=1: print(a)))
workbook.explore(lambda n: draw.finish(draw.go.Figure(draw.go.Bar(y=[n]))), n=(1, 9))
"""


def executed(folder: Path, source: str) -> Any:
    """A notebook of this one cell, through papermill with our engine."""
    import papermill

    spec = {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}}
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)], metadata=spec)
    nbformat.write(notebook, folder / "in.ipynb")
    return papermill.execute_notebook(
        folder / "in.ipynb",
        folder / "out.ipynb",
        engine_name="labkit",
        progress_bar=False,
        execution_timeout=600,
    )


@pytest.mark.large
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", panel.PANELS)
def test_a_panel_is_moved_three_hundred_times(benchmark: Any, tmp_path: Path, name: str) -> None:
    source = MOVED.replace("NAME", repr(name)).replace("MOVES", str(MOVES))
    source = source.replace("PAUSE_S", str(PAUSE_S))
    done = benchmark.pedantic(lambda: executed(tmp_path, source), rounds=1)
    (said,) = [out.text for out in done.cells[0].outputs if out.output_type == "stream"]
    benchmark.extra_info |= (took := json.loads(said))
    print(f"\n{name}: " + ", ".join(f"{key} {value:.0f}" for key, value in took.items()))


@pytest.mark.large
@pytest.mark.timeout(900)
@pytest.mark.parametrize("live", ["0", "1"])
def test_twenty_runs_with_widgets_end(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: str
) -> None:
    monkeypatch.setenv("LABKIT_LIVE", live)
    benchmark.pedantic(lambda: executed(tmp_path, OUTPUTS), rounds=RUNS)
