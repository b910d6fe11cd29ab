"""A small workbook with one reviewed paper, whose notebook holds every kind of thing we export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import plotly.graph_objects as go
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit.kit import draw as figures
from labkit.workbook import notebooks
from labkit.workbook.export import benchmarks
from labkit.workbook.review import claims
from labkit.workbook.review.explore import explore
from labkit.workbook.run import fingerprint, results

QUEUE = """\
papers:
  - key: alpha
    status: reviewed
    priority: 1
    presenter: Ada
    date: 2026-03-14
    why: its idle time is our free energy
    tags: [energy, pipeline]
    companions: [beta]
  - key: beta
    status: reading
    priority: 1
    why: the optimum to hold alpha against
    tags: [energy]
  - key: gamma
    status: queued
    priority: 2
    why: <b>bold</b> claims & a "quoted" reason
    tags: [memory]
  - key: delta
    status: dropped
    priority: 3
    reason: superseded
    tags: [memory]
"""

BIBLIOGRAPHY = "".join(
    f"""@inproceedings{{{key},
  title     = {{{title}}},
  author    = {{{author}}},
  booktitle = {{Proceedings of the Example Symposium (ES 20)}},
  year      = {{{year}}},
  url       = {{https://example.org/{key}}},
}}

"""
    for key, title, author, year in (
        ("alpha", "Alpha: Idle Time as Free Energy in Pipeline Training", "Lovelace, Ada", 2020),
        ("beta", "Beta: The Time--Energy Frontier", "Hopper, Grace and Turing, Alan", 2021),
        ("gamma", "Gamma & the Memory Wall", "Noether, Emmy and others", 2022),
        ("delta", "Delta: Swapping by Hand", "Knuth, Don", 2019),
    )
)

CLAIMS = """\
claims:
  - id: saving
    kind: headline
    flip: the highest clock everywhere
    statement: "Energy saving with four stages"
    paper: 0.252
    unit: fraction
    source: "§6.2, Fig. 10"
    verified: true
    checked: "abstract"
    judge: ratio
    tolerance: 0.05
  - id: slowdown
    kind: mechanism
    flip: the lowest clock everywhere
    statement: "Iteration time grows by less than this"
    paper: 0.01
    unit: fraction
    source: "§6.2"
    verified: false
    judge: at-most
    tolerance: 0
  - id: order
    kind: consistency
    statement: "Which plan needs the least energy, least first"
    paper: [ours, uniform, max]
    source: "Table 2"
    verified: true
    checked: "Table 2"
    judge: ordering
    tolerance: 0
  - id: memory
    kind: headline
    flip: no sharding
    statement: "Peak memory of the largest stage"
    paper: 31.4
    unit: GB
    source: "Table 1"
    verified: true
    checked: "Table 1"
    judge: absolute
    tolerance: 0.5
"""

OURS: dict[str, Any] = {"saving": 0.249, "slowdown": 0.013, "order": ["ours", "uniform", "max"]}
FLIPS = {"saving": 0.0, "slowdown": 0.4}


def make(root: Path) -> Path:
    """A workbook under ``root``; its one notebook stands at ``notebooks/energy/alpha.ipynb``."""
    files = {
        "reading_queue.yaml": QUEUE,
        "data/papers.bib": BIBLIOGRAPHY,
        "data/papers/alpha/claims.yaml": CLAIMS,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook(root), path)
    return root


def run(root: Path, change: Callable[[NotebookNode], None] | None = None, **overrides: Any) -> Path:
    """Store a result of alpha, as ``labkit run`` would leave it; returns its folder.

    ``change`` is applied to the executed notebook before it is stored.
    """
    made = notebook(root)
    if change is not None:
        change(made)
    parameters = {"num_stages": 4, "eta": 0.5, **overrides}
    texts = {
        "alpha.ipynb": nbformat.writes(made),
        "claims.json": results.dumps(claims.from_notebook(made)),
    }
    slug = results.slug_of(overrides)
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    made_of = fingerprint.of_notebook(root, path, notebooks.glimpse(path), overrides)
    meta = {
        "key": "alpha",
        "slug": slug,
        "parameters": parameters,
        "overrides": overrides,
        "fingerprint": made_of.digest,
        "fingerprint_parts": dict(made_of.parts),
    }
    return results.store(root, "alpha", slug, texts, meta)


def notebook(root: Path) -> NotebookNode:
    cells = [
        text(
            "title",
            "slide",
            "# Alpha: Idle Time as Free Energy in Pipeline Training\n\n"
            "Ada Lovelace · ES 2020 · [paper](https://example.org/alpha)\n\n"
            "**Verdict:** a pipeline's idle time pays for a quarter of its energy, where the "
            "heaviest stage comes last.",
        ),
        code("parameters", "skip", "num_stages: int = 4  # §3\neta: float = 0.5  # §4"),
        code("setup", "skip", "from labkit import workbook\npaper = workbook.open_paper('alpha')"),
        text(
            "at-a-glance",
            "slide",
            "## At a glance\n\n| | |\n|---|---|\n"
            "| insight | Idle time is bought already: slow clocks in it cost nothing. |\n"
            "| method | Stretch each operation into the slack $f_i - s_i$ that follows it. |\n"
            "| results | 25.2 % less energy within 1 % of the time on 4 GPUs. |\n"
            "| advantages | No change to the model, none to the schedule. |\n"
            "| weaknesses | Profiles are taken once; clocks drift with temperature. |",
        ),
        text("insight", "slide", MATHS),
        text("symbols", "slide", SYMBOLS),
        text("mechanism", "-", MECHANISM),
        code("mechanism", "-", "slack = latest - earliest\nassert (slack >= 0).all()"),
        text("aloud", "notes", "Say **aloud** that energy is measured at the board."),
        text(
            "figure",
            "slide",
            "## Figure 3: a stage's time against its energy\n\n"
            "Each point is one clock. It shows the convex trade-off; it does not show memory.",
        ),
        code("frontier", "-", "figure_frontier(profile)", plot(frontier())),
        text("notice", "-", "Notice the knee at 1.2 s: below it a joule buys little time."),
        text("figure", "subslide", "### Figure 4: bytes a stage"),
        code("bytes", "-", "figure_bytes(plan)", plot(bars())),
        text("reproduction", "skip", HEADLINE),
        code("saving", "skip", "figure_saving(plan)", plot(frontier())),
        text("claims", "slide", "## Claims vs measured"),
        code(
            "judged", "-", "paper.claims(ours)", shown(claims.judge(root, "alpha", OURS, (), FLIPS))
        ),
        text("weaknesses", "-", WEAKNESSES),
        code("weakness", "-", "drift(profile)", shown_as({"text/html": DRIFT})),
        text("untested", "-", "### It would be stronger with memory\n\nUntested."),
        text("explorable", "slide", "## Explore: how many stages?"),
        code("explore", "-", "workbook.explore(figure, num_stages=[2, 4, 8])", plot(moving())),
        text("discussion", "slide", DISCUSSION),
        text("comments", "slide", LINKS),
        code("log", "-", "print(text)", new_output("stream", name="stdout", text=LOG)),
        code("hostile", "skip", "banner()", shown_as({"text/html": HOSTILE})),
    ]
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "labkit": {"paper": "alpha", "datasets": []},
    }
    return new_notebook(cells=cells, metadata=metadata)


MATHS = r"""## Insight

A stage waits. With $S$ stages and $M$ microbatches the idle share of 1F1B is

$$
\beta = \frac{S - 1}{M + S - 1}, \qquad
E(t) = \sum_{i=1}^{n} e_i(t_i) + P_b \left( T - \sum_{i=1}^{n} t_i \right)
$$

so the plan is $\min_{t} E(t)$ subject to $s_j \ge s_i + t_i$ on every edge:

$$
\begin{aligned}
T^{*} &= \max_i \; (s_i + t_i) \\
\hat{E} &= \operatorname*{argmin}_{t \in \mathcal{T}} E(t)
\end{aligned}
$$

Code such as `cost = "$5"` stays as it is.
"""

MECHANISM = "## The mechanism\n\nSlow what can wait by its slack $f_i - s_i$."

HEADLINE = (
    "## The headline: energy over time\n\nOurs: both stages, simulated. Our table has the rest. "
    "It does not show memory."
)

WEAKNESSES = """## Weaknesses, each an experiment

### It would be stronger with clocks that drift

The table has the saving after an hour."""

DRIFT = (
    "<table><caption>After an hour</caption><thead><tr><th>stage</th><th>saving (%)</th></tr>"
    "</thead><tbody><tr><td>0</td><td>24</td></tr></tbody></table>"
)

SYMBOLS = r"""## Symbols

| paper | meaning | unit | in code |
|---|---|---|---|
| $S$ | pipeline stages | | `num_stages` |
| $\eta$ | weight of energy against time | | `eta` |
| $P_b$ | power while blocked | W | `blocking_power_w` |
| $t_{ik}$ | time of operation $i$ at clock $k$ | s | `time_s` |
"""

DISCUSSION = """## Discussion

1. Why is the last stage the heaviest?

<details><summary>Answer</summary>

It holds the loss head: $V \\times h$ weights more, and their logits.

</details>

2. What if clocks switch slowly? Change `eta`.

<details><summary>Answer</summary>

Then short slack is lost, and the saving falls with it.

</details>
"""

LINKS = """## Detailed comments

- [beside itself](alpha.ipynb#Symbols), [no page yet](../memory/gamma.ipynb),
  [outside](https://example.org/alpha)
- x < y & y > z
"""

LOG = "\x1b[32mplanned\x1b[0m 12 operations </pre></script><b>not bold</b>\n"

HOSTILE = """<div onclick="alert(1)" style="background:url(https://example.org/x.png)">kept text
<script src="https://example.org/x.js">alert(2)</script>
<link rel="stylesheet" href="https://example.org/x.css">
<img src="https://example.org/x.png" alt="gone"><style>@import "https://example.org/y.css";</style>
</div>"""


def frontier() -> go.Figure:
    time_s = np.linspace(1, 2, 40)
    fig = go.Figure()
    fig.add_scatter(
        x=time_s,
        y=300 + 90 / time_s**3,
        name="stage 0 </script><!--",
        line_color=figures.PALETTE["ours"],
    )
    fig.add_scatter(
        x=time_s, y=330 + 110 / time_s**3, name="bound", line_color=figures.PALETTE["bound"]
    )
    return figures.finish(
        fig, title="Energy falls as a stage slows, and then rises", x="time (s)", y="energy (J)"
    )


def bars() -> go.Figure:
    fig = go.Figure()
    for name, scale in (("parameter", 4.0), ("gradient", 4.0), ("optimizer", 12.0)):
        fig.add_bar(
            x=[f"stage {n}" for n in range(4)],
            y=[scale * (1 + n / 10) for n in range(4)],
            name=name,
            marker_color=figures.PALETTE[name],
        )
    fig.update_layout(barmode="stack")
    return figures.finish(fig, title="The last stage holds most", y="memory (GB)")


def moving() -> go.Figure:
    def draw(num_stages: int, chunks: int) -> go.Figure:
        share = [(num_stages - 1) / (chunks * m + num_stages - 1) for m in (4, 8, 16, 32)]
        bar = go.Bar(x=[4, 8, 16, 32], y=share, marker_color=figures.PALETTE["bubble"])
        fig = go.Figure(bar)
        fig.update_xaxes(type="category")
        return figures.finish(
            fig, title=f"Idle share, {num_stages} stages", x="microbatches", y="idle share"
        )

    label = {"num_stages": "pipeline stages"}
    return explore(draw, num_stages=[2, 4, 8, 16], chunks=[1, 2], label=label)


def timings(root: Path, **numbers: Any) -> Path:
    """Store what ``make bench`` leaves, one benchmark with these ``numbers``; return the file."""
    stored = {
        "machine_info": {"machine": "x", "cpu": {"brand_raw": "A CPU"}, "python_version": "3.11"},
        "commit_info": {"id": "0123456789abcdef"},
        "datetime": "2026-01-02T03:04:05",
        "benchmarks": [
            {"fullname": "tests/test_fast_speed.py::test_a_run[4]", "extra_info": numbers}
        ],
    }
    path = root / benchmarks.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored), encoding="utf-8")
    return path


def text(name: str, slide: str, source: str) -> NotebookNode:
    cell = new_markdown_cell(source, id=_id(name, source))
    cell.metadata = NotebookNode({"slideshow": {"slide_type": slide}, "tags": [name]})
    return cell


def code(name: str, slide: str, source: str, *outputs: NotebookNode) -> NotebookNode:
    cell = new_code_cell(source, id=_id(name, source), outputs=list(outputs), execution_count=1)
    cell.metadata = NotebookNode({"slideshow": {"slide_type": slide}, "tags": [name]})
    return cell


def _id(name: str, source: str) -> str:
    return f"{name}-{sum(source.encode()) % 10_000}"


def plot(fig: go.Figure) -> NotebookNode:
    return shown_as(fig._repr_mimebundle_())


def shown(value: Any) -> NotebookNode:
    return shown_as(value._repr_mimebundle_())


def shown_as(data: dict[str, Any]) -> NotebookNode:
    return new_output("display_data", data=data)
