"""Every rule of the anatomy: silent on a good notebook, speaking when a notebook breaks it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import nbformat.v4 as v4
import pytest
from nbformat import NotebookNode

from labkit.errors import UsageError
from labkit.workbook.notebooks import GUESS_MIME
from labkit.workbook.review import check, claims, rules
from labkit.workbook.review.rules import prose

BIB = """\
@inproceedings{alpha, title = {Alpha: Bubbles {Are} Free}, author = {Ada One and Bo Two},
  booktitle = {NSDI}, year = {2023}, url = {https://example.org/alpha}}
@inproceedings{beta, title = {Beta}, author = {Cy Three}, booktitle = {SOSP}, year = {2024},
  url = {https://example.org/beta}}
"""
QUEUE = """\
papers:
  - key: alpha
    status: reading
    priority: 1
    companions: [beta]
  - key: beta
    status: queued
    priority: 2
"""
GLANCE = "".join(
    f"{name}: one line\n" for name in ("insight", "method", "results", "advantages", "weaknesses")
)
CLAIMS = """\
claims:
  - id: saving
    kind: headline
    statement: Energy saved
    flip: the highest clock everywhere
    paper: 0.284
    unit: fraction
    source: abstract
    verified: false
    judge: ratio
    # The profile is of another year, one in twenty is the same.
    tolerance: 0.05
    dataset: profiles
  - id: energy
    kind: headline
    statement: Energy of an iteration
    flip: the highest clock everywhere
    paper: 100
    unit: J
    source: abstract
    verified: false
    judge: at-most
  - id: rows
    kind: consistency
    statement: Rows of Table 1
    paper: 3
    source: Table 1
    verified: false
    judge: equal
abstract_numbers: ["28.4 %", "0.1 thousand joules", "16 GPUs"]
not_claims:
  - {number: 16 GPUs, reason: the size of the testbed}
"""
PARAMETERS = """\
parameters:
  num_stages: {tried: [4, 16], at_least: 1}
  scale: {tried: [0.5, 2], above: 0}
"""
VALUES = {"saving": 0.28, "energy": 72.0, "rows": 3}
FLIPS = {"saving": 0.0, "energy": 130.0}
DATASETS = f"""\
datasets:
  profiles:
    title: Stage profiles
    origin: https://example.org/owner/repo
    commit: {"a" * 40}
    licence: MIT
    citation: beta
    notes: none
    files: [{{path: p.csv, url: "https://example.org/p.csv", sha256: {"b" * 64}, bytes: 1}}]
"""

QUESTION = """\
**{n}. Does the saving survive?** Change `num_stages`.

<details><summary>Answer</summary>

Yes, because the bubbles stay where they were.

</details>"""

STRONGER = (
    "It assumes that the profile stays as it was measured once. It would be stronger if it dealt "
    "with drift, which the cell below tries."
)

# id, kind, tag, slide type, source
GOOD = [
    (
        "title",
        "markdown",
        "title",
        "slide",
        "# Alpha: Bubbles Are Free\n\nAda One, Bo Two · NSDI 2023 · "
        "[paper](https://example.org/alpha)\n\nPipelines leave slack that clocks can use.",
    ),
    (
        "parameters",
        "code",
        "parameters",
        "skip",
        "num_stages: int = 8  # pipeline depth, §6.1\nscale: float = 1  # of times (ours)",
    ),
    (
        "setup",
        "code",
        "setup",
        "skip",
        'from labkit import workbook\npaper = workbook.open_paper("alpha")',
    ),
    ("data", "code", "path-30", "skip", 'data = paper.data("profiles")'),
    (
        "at-a-glance",
        "markdown",
        "at-a-glance",
        "slide",
        "## At a glance\n\n| | |\n|---|---|\n| **insight** | bubbles are free |\n"
        "| **method** | stretch work |\n| **results** | 28 % less |\n| **advantages** | fast |\n"
        "| **weaknesses** | one schedule |",
    ),
    ("insight", "markdown", "insight", "", "## Insight\n\n" + "Stages wait for others. " * 10),
    ("idea", "code", "idea path-5 path-30", "", "figures.finish(timeline(num_stages))"),
    (
        "predict",
        "code",
        "predict path-5 path-30",
        "",
        'guess = workbook.predict("How much is saved?", unit="%")\nguess',
    ),
    ("mechanism", "markdown", "mechanism", "slide", "## The mechanism\n\nSlow what can wait."),
    ("naive", "code", "", "", "full_speed = [1.0 for stage in range(num_stages)]"),
    ("change", "markdown", "", "", "One change: a stage that waits runs slower."),
    (
        "change-code",
        "code",
        "",
        "",
        "def stretched(waits):\n    plan = []\n    for wait in waits:\n"
        "        plan.append(1 / (1 + wait))\n    return plan\n\n"
        "slack = [num_stages - stage for stage in range(num_stages)]\nplan = stretched(slack)",
    ),
    ("moved", "markdown", "change-me", "", "**Change me.** Set `slack[0] = 0`: the assert fails."),
    ("mechanism-code", "code", "", "", "assert plan[0] == 1 / 9\nsum(full_speed) - sum(plan)"),
    (
        "symbols",
        "markdown",
        "symbols",
        "skip",
        "## Symbols\n\n| symbol | meaning | unit | code | equation |\n|---|---|---|---|---|\n"
        "| $p$ | stages | | `num_stages` | 1 |",
    ),
    (
        "fig3",
        "markdown",
        "figure",
        "slide",
        "## Fig. 3 (§2): a timeline\n\nIt shows the bubbles; it does not show their energy.",
    ),
    ("fig3-code", "code", "", "", "ideal = 7 / 8"),
    ("fig3-notice", "markdown", "", "", "Notice how the bubbles shrink."),
    (
        "table1",
        "markdown",
        "figure",
        "",
        "## Table 1: models\n\nIt shows the sizes, not the memory. Notice the last row.",
    ),
    ("table1-code", "code", "", "", "num_stages * 2"),
    ("reproduction", "markdown", "reproduction", "slide", "## The headline\n\nOne sweep, printed."),
    (
        "reproduction-code",
        "code",
        "path-5 path-30",
        "",
        "saved, joules, rows, flat = sweep(num_stages)",
    ),
    ("reproduction-figure", "code", "", "", "guess.mark(draw(saved))"),
    ("claims", "markdown", "claims", "slide", "## Claims"),
    (
        "claims-code",
        "code",
        "",
        "",
        'paper.claims({"saving": saved, "energy": joules, "rows": rows}, data, flips=flat)',
    ),
    ("rivals", "markdown", "rivals", "", "## Rivals"),
    ("rivals-code", "code", "", "", "paper.rivals(headline, ['Alpha', 'one clock'], claims_of)"),
    (
        "differences",
        "markdown",
        "differences",
        "",
        "## Where we differ\n\nOurs lacks the network, so that every stage waits less than theirs "
        "does: the paper reports 28.4 % (abstract), the cell above prints ours.",
    ),
    ("weaknesses", "markdown", "weaknesses", "slide", "## Weaknesses"),
    ("weak-drift", "markdown", "", "", f"### Profiles drift\n\n{STRONGER}"),
    ("weak-drift-code", "code", "weakness", "", "num_stages + 1"),
    ("weak-memory", "markdown", "", "", f"### Memory is left out\n\n{STRONGER}"),
    ("weak-memory-code", "code", "weakness", "", "num_stages + 2"),
    ("weak-scale", "markdown", "", "", f"### One schedule\n\n{STRONGER}"),
    ("companions", "markdown", "companions", "", "## Beside its companions"),
    ("companions-code", "code", "", "", 'paper.beside("beta")'),
    ("explorable", "markdown", "explorable", "slide", "## Try it\n\nMove the depth."),
    ("explorable-code", "code", "", "", "workbook.explore(draw, num_stages=[2, 4])"),
    (
        "discussion",
        "markdown",
        "discussion",
        "slide",
        "## Discussion\n\n" + "\n\n".join(QUESTION.format(n=n) for n in range(1, 5)),
    ),
    ("comments", "markdown", "comments", "skip", "## Detailed comments\n\nA typo in §3."),
    ("sources", "markdown", "sources", "skip", "## Sources"),
    ("sources-code", "code", "", "skip", "paper.sources(data)"),
]

PLOTLY = "application/vnd.plotly.v1+json"
OURS = {"paper": "alpha", "size": "standard", "datasets": ["profiles"]}
SLIDER = {"data": [], "layout": {"sliders": [{"steps": [{"label": "2"}, {"label": "4"}]}]}}


@dataclass
class Published:
    name: str = "profiles"
    is_standin: bool = False
    fit_error: None = None


def result(data: dict[str, Any]) -> NotebookNode:
    return v4.new_output("execute_result", data=data)


def good(root: Path) -> NotebookNode:
    """A notebook that keeps every rule, outputs as one clean run leaves them."""
    notebook = v4.new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
            "labkit": OURS,
        }
    )
    for name, kind, tags, slide, source in GOOD:
        make = v4.new_markdown_cell if kind == "markdown" else v4.new_code_cell
        metadata: dict[str, Any] = {"tags": tags.split()} if tags else {}
        if slide:
            metadata["slideshow"] = {"slide_type": slide}
        notebook.cells.append(make(source=source, id=name, metadata=metadata))
    table = claims.judge(root, "alpha", VALUES, [Published()], FLIPS)
    cell(notebook, "claims-code").outputs = [result(table._repr_mimebundle_())]
    cell(notebook, "explorable-code").outputs = [result({PLOTLY: SLIDER})]
    cell(notebook, "rivals-code").outputs = [result({PLOTLY: SLIDER})]
    cell(notebook, "idea").outputs = [result({PLOTLY: SLIDER})]
    cell(notebook, "predict").outputs = [result({GUESS_MIME: {"question": "?", "unit": ""}})]
    cell(notebook, "mechanism-code").outputs = [result({"text/plain": "5.28"})]
    cell(notebook, "table1-code").outputs = [result({"text/plain": "16"})]
    number_runs(notebook)
    return notebook


def number_runs(notebook: NotebookNode) -> None:
    code = [node for node in notebook.cells if node.cell_type == "code"]
    for count, node in enumerate(code, 1):
        node.execution_count = count
        for output in node.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(node for node in notebook.cells if node.id == name)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        "reading_queue.yaml": QUEUE,
        "data/papers.bib": BIB,
        "data/datasets.yaml": DATASETS,
        "data/papers/alpha/claims.yaml": CLAIMS,
        "data/papers/alpha/parameters.yaml": PARAMETERS,
        "data/papers/beta/glance.yaml": GLANCE + "source: abstract\nverified: true\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def write(root: Path, notebook: NotebookNode, key: str = "alpha") -> Path:
    path = root / f"notebooks/energy/{key}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


def findings(root: Path, notebook: NotebookNode) -> list[check.Finding]:
    path = write(root, notebook)
    return check.check_notebook(root, "alpha", path)


def test_the_good_notebook_keeps_every_rule(root: Path) -> None:
    assert findings(root, good(root)) == []
    report = check.check(root)
    assert report.is_clean
    assert report.notebooks == ("alpha",)
    assert report.num_rules == len(rules.RULES)


@pytest.mark.parametrize(
    ("duration_s", "fingerprint", "problems"),
    [
        (20.6, "now", ["its last run took 21 s"]),
        (19.9, "now", []),
        (20.6, "before an edit", []),  # no result of the notebook as it is
        ("x", "now", []),  # forged
        (10**400, "now", []),
    ],
)
def test_a_slow_run_is_a_warning_that_fails_nothing(
    root: Path, duration_s: Any, fingerprint: str, problems: list[str]
) -> None:
    notebook = good(root)
    notebook.metadata["labkit"]["outputs"] = "now"
    assert findings(root, notebook) == []
    file = root / "results" / "alpha" / "default" / "run.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"duration_s": duration_s, "fingerprint": fingerprint}))
    slow = findings(root, notebook)
    assert [finding.problem for finding in slow] == problems
    assert all("at most 20 s" in finding.fix for finding in slow)
    assert check.check(root).is_clean
    notebook.cells.pop()
    findings(root, notebook)
    assert not check.check(root).is_clean


# ---------------------------------------------------------------- one rule broken at a time

Edit = Callable[[NotebookNode], None]


def replace(name: str, old: str, new: str) -> Edit:
    def edit(notebook: NotebookNode) -> None:
        node = cell(notebook, name)
        assert old in node.source
        node.source = node.source.replace(old, new)

    return edit


def again(name: str, code: str) -> Edit:
    """More code at the end of a cell."""

    def edit(notebook: NotebookNode) -> None:
        cell(notebook, name).source += f"\n{code}"

    return edit


def drop(*names: str) -> Edit:
    def edit(notebook: NotebookNode) -> None:
        notebook.cells = [node for node in notebook.cells if node.id not in names]
        number_runs(notebook)

    return edit


def drop_text(name: str) -> Edit:
    def edit(notebook: NotebookNode) -> None:
        node = cell(notebook, name)
        node.source = node.source.split("\n")[0] + "\n\nThe network."

    return edit


def swap(one: str, other: str) -> Edit:
    def edit(notebook: NotebookNode) -> None:
        ids = [node.id for node in notebook.cells]
        i = ids.index(one)
        j = ids.index(other)
        notebook.cells[i], notebook.cells[j] = notebook.cells[j], notebook.cells[i]
        number_runs(notebook)

    return edit


def add(source: str, *, before: str, kind: str = "code", tag: str = "", count: int = 1) -> Edit:
    def edit(notebook: NotebookNode) -> None:
        place = [node.id for node in notebook.cells].index(before)
        make = v4.new_code_cell if kind == "code" else v4.new_markdown_cell
        for number in range(count):
            metadata = {"tags": [tag]} if tag else {}
            new = make(source=source, id=f"added-{number}", metadata=metadata)
            notebook.cells.insert(place, new)
        number_runs(notebook)

    return edit


def metadata(name: str, **values: Any) -> Edit:
    def edit(notebook: NotebookNode) -> None:
        (cell(notebook, name) if name else notebook).metadata.update(values)

    return edit


def output(name: str, *outputs: NotebookNode) -> Edit:
    def edit(notebook: NotebookNode) -> None:
        cell(notebook, name).outputs = list(outputs)
        number_runs(notebook)

    return edit


def rename(name: str, to: str) -> Edit:
    def edit(notebook: NotebookNode) -> None:
        cell(notebook, name).id = to

    return edit


def stored(field: str, value: Any, **more: Any) -> Edit:
    def edit(notebook: NotebookNode) -> None:
        records = cell(notebook, "claims-code").outputs[0].data[claims.CLAIMS_MIME]
        records[0].update({field: value, **more})

    return edit


def verdict(sentence: str) -> Edit:
    def edit(notebook: NotebookNode) -> None:
        cell(notebook, "table1-code").metadata["tags"] = ["verdict"]
        cell(notebook, "table1-code").outputs = [result({"text/markdown": sentence})]
        number_runs(notebook)

    return edit


def joules_from(source: str) -> Edit:
    return replace(
        "reproduction-code",
        "saved, joules, rows, flat = sweep(num_stages)",
        f"saved, rows, flat = sweep(num_stages)\n{source}",
    )


def counts(*numbers: int | None) -> Edit:
    def edit(notebook: NotebookNode) -> None:
        code = [node for node in notebook.cells if node.cell_type == "code"]
        for node, number in zip(code, numbers, strict=False):
            node.execution_count = number

    return edit


def old_format(notebook: NotebookNode) -> None:
    notebook.nbformat_minor = 4
    for node in notebook.cells:
        del node["id"]


def big(notebook: NotebookNode) -> None:
    cell(notebook, "table1-code").outputs = [result({"text/plain": "16" * 800_000})]
    number_runs(notebook)


TYPED = (  # ways to type the value of `joules` or `saved`
    "joules = 72.0",
    "joules = joules_per_step = 7 * 10.3",
    "joules, steps = 72.0, 3",
    "half = 36\njoules = half + half",
    "joules = round(float('72.04'), 1)",
    "import numpy as np\njoules = np.array([72.0, 73.0])",
    "joules = [72.0, 73.0][0]",
    "import pandas as pd\njoules = pd.DataFrame({'j': [72.0]}).j.mean()",
    "joules = [36 for _ in range(2)]",
    "def energy():\n    return 72.0\njoules = energy()",
    "joules = 70\njoules += 2",
)
UNIT = "0x7f3a2b4c5d6e"
BROKEN: list[tuple[str, Edit, str]] = [
    ("tried", again("parameters", "more: int = 1  # ours"), "lacks 'more'"),
    ("tried", replace("parameters", "scale: float = 1  # of times (ours)", ""), "is no parameter"),
    ("tried", replace("parameters", "int = 8", "int = 16"), "is tried at 1 other values"),
    ("tried", replace("parameters", "int = 8", "str = '8'"), "has 4, which is not of type str"),
    ("tried", replace("parameters", "float = 1", "float = 0"), "valid: above 0"),
    ("suggested", replace("weak-drift", "It assumes", "Set `num_stages = 64`. It assumes"),
     "set num_stages = 64, untried"),
    ("explorable-start", replace("explorable-code", "4]", "4], start=num_stages"), "do not hold"),
    ("format", old_format, "has no cell ids"),
    ("todo", replace("fig3-notice", "Notice", "TODO: Notice"), "still to be written: Notice how"),
    ("sections", drop("insight"), "no cell is tagged 'insight'"),
    ("sections", drop("mechanism"), "no cell is tagged 'mechanism'"),
    ("sections", swap("insight", "mechanism"), "'insight' comes after 'mechanism'"),
    ("sections", add("## Again", before="weak-drift-code", kind="markdown", tag="weaknesses"),
     "starts twice"),
    ("preface", add("Hello", before="title", kind="markdown"), "before the first section"),
    ("amounts", drop("table1", "table1-code"), "1 sections tagged 'figure'"),
    ("amounts", metadata("", labkit=OURS | {"size": "flagship"}), "3 judged claims"),
    ("amounts", stored("verdict", "not attempted"), "1 claims of kind 'headline'"),
    ("amounts", metadata("weak-drift-code", tags=["nbval-skip"]), "1 weaknesses with a code"),
    ("words", replace("insight", "Stages", "word " * 200), "words outside folds"),
    ("mechanism", replace("mechanism-code", "assert", "print"), "not asserted"),
    ("mechanism", drop("naive", "change-code", "mechanism-code"), "no code shows"),
    ("steps", drop("naive"), "has 2 code cells"),
    ("steps", drop("change", "moved"), "3 code cells with no sentence"),
    ("steps", swap("naive", "mechanism-code"), "before the steps that it checks"),
    ("steps", output("mechanism-code"), "shows no number"),
    ("idea", metadata("idea", tags=[]), "no cell is tagged 'idea'"),
    ("idea", swap("idea", "mechanism-code"), "comes after the code of it"),
    ("idea", output("idea"), "shows nothing"),
    ("predict", metadata("predict", tags=[]), "nothing asks for a guess"),
    ("predict", replace("predict", "workbook.predict", "ask"), "nothing asks for a guess"),
    ("predict", swap("predict", "reproduction-figure"), "after the headline"),
    ("predict", output("predict"), "the question does not show"),
    ("predict", replace("reproduction-figure", "guess.mark", ""), "drawn into no figure"),
    ("rivals", drop("rivals"), "no cell is tagged 'rivals'"),
    ("rivals", replace("rivals-code", "paper.rivals", "print"), "paper.rivals is not called"),
    ("rivals", output("rivals-code"), "no stored figure has a menu"),
    ("sections", swap("rivals", "claims"), "'claims' comes after 'rivals'"),
    ("change-me", metadata("moved", tags=[]), "0 cells tagged 'change-me'"),
    ("change-me", metadata("", labkit=OURS | {"size": "flagship"}), "1 cells tagged"),
    ("change-me", replace("moved", "`", ""), "names no line to change"),
    ("ways", metadata("idea", tags=["idea"]), "2 cells tagged 'path-5'"),
    ("ways", metadata("idea", tags=["idea", "path-5"]), "and not of half an hour"),
    ("imports", replace("setup", "paper =", "seed = 0\npaper ="), "more than imports: seed = 0"),
    ("functions", replace("change-code", "    plan = []\n", "    plan = []\n" * 22),
     "stretched() has 26 lines"),
    ("asserts", replace("mechanism-code", "plan[0] == 1 / 9", "(n := plan[0]) == 1 / 9"), ":="),
    ("asserts", replace("mechanism-code", "plan[0] == 1 / 9", "plan.pop() == stretched(slack)"),
     "does work: pop(), stretched()"),
    ("lambdas", replace("naive", "full_speed =", "fast = lambda n: n\nfull_speed ="), "fast is a"),
    ("lambdas", replace("naive", "full_speed =", "fast = cache(lambda n: n)\nfull_speed ="),
     "fast is a lambda"),
    ("packed", replace("naive", "full_speed =", "a, b = 1, len('x')\nfull_speed ="),
     "packed: a, b"),
    ("comprehensions", replace("naive", "1.0", "max(n for n in (1, 2))"), "2 comprehensions"),
    ("mechanism", metadata("change-code", tags=["hide-input"]), "is hidden"),
    ("tags", metadata("weak-drift-code", tags=["weaknes"]), "unknown tag 'weaknes'"),
    ("tags", metadata("claims", tags=["claims", "differences"]), "tags of two sections"),
    ("setup", metadata("setup", tags=[]), "0 cells tagged 'setup'"),
    ("setup", swap("setup", "at-a-glance"), "not right after the parameters"),
    ("setup", replace("setup", '"alpha"', '"beta"'), "opens 'beta'"),
    ("python", add("class Thing: ...", before="table1"), "defines class Thing"),
    ("python", add("!pip list", before="table1"), "not Python: !pip list"),
    ("python", add("%timeit 1", before="table1"), "not Python: %timeit 1"),
    ("python", add("for", before="table1"), "does not parse"),
    ("metadata", metadata("", papermill={}), "notebook metadata 'papermill'"),
    ("metadata", metadata("", widgets={}), "notebook metadata 'widgets'"),
    ("metadata", metadata("", language_info={"name": "python", "version": "3.11.7"}), "version"),
    ("metadata", metadata("", kernelspec={"name": "lab", "display_name": "x"}), "'python3'"),
    ("metadata", metadata("table1-code", papermill={}), "cell metadata 'papermill'"),
    ("metadata", metadata("table1-code", tags=[]), "an empty list of tags"),
    (
        "metadata",
        metadata("", labkit=OURS | {"paper": "beta"}),
        "labkit.paper is 'beta'",
    ),
    (
        "metadata",
        metadata("", labkit=OURS | {"x": 1}),
        "metadata labkit.x",
    ),
    ("metadata", metadata("", labkit=OURS | {"size": None}), "size is None"),
    ("metadata", metadata("", labkit=OURS | {"anatomy": 2}), "metadata labkit.anatomy"),
    ("cell-ids", rename("table1-code", "3f9c1ab0"), "generated cell id"),
    ("cell-ids", rename("table1-code", "b0c1ab0e-1f2d-4c3b-9d8e-3f9c1ab03f9c"), "generated"),
    ("parameters", replace("parameters", "num_stages: int", "num_stages"), "not a typed parameter"),
    ("parameters", replace("parameters", "int = 8", "int = 8.5"), "not a scalar literal"),
    ("parameters", again("rivals-code", "num_stages = 7"), "'num_stages' is given another value"),
    ("parameters", again("rivals-code", "for num_stages in (1, 2):\n    pass"), "another value"),
    ("parameters", replace("parameters", "int = 8", "int = True"), "not a scalar literal"),
    ("parameters", replace("parameters", "int = 8", "list = [8]"), "not a scalar literal"),
    ("parameters", replace("parameters", "int = 8", "int = max(8, 9)"), "not a scalar literal"),
    ("parameters", replace("parameters", "  # of times (ours)", ""), "'scale' has no comment"),
    ("datasets", replace("data", '"profiles"', '"traces"'), "'traces', which the metadata"),
    ("datasets", metadata("", labkit=OURS | {"datasets": ["profiles", "traces"]}),
     "no dataset 'traces'"),
    ("verdict", replace("title", "\n\nPipelines leave slack that clocks can use.", ""),
     "no verdict"),
    ("verdict", metadata("setup", tags=["setup", "verdict"]), "prints no Markdown"),
    ("verdict", verdict("It saves 12 % of it."), "fewer than two numbers"),
    ("at-a-glance", replace("at-a-glance", "| **method** | stretch work |\n", ""),
     "insight, results"),
    ("at-a-glance", replace("at-a-glance", "**method**", "**approach**"), "approach"),
    ("at-a-glance", replace("at-a-glance", "| fast |", "| |"), "'advantages' is empty"),
    ("insight", replace("insight", "Stages wait for others. " * 10, "Wait."), "too short"),
    ("symbols", replace("symbols", "| equation |", "|"), "a symbol table of 4 columns"),
    ("symbols", replace("symbols", "| $p$ | stages | | `num_stages` | 1 |", ""), "has no rows"),
    ("figure", replace("fig3", "Fig. 3 (§2): a", "A"), "names no figure or table"),
    ("figure", replace("fig3", "shows the bubbles; it does not show", "has"),
     "what the figure shows"),
    ("figure", replace("fig3", "; it does not show their energy", ""), "leaves out"),
    ("figure", replace("fig3-notice", "Notice how the bubbles shrink.", ""), "what to notice"),
    ("figure", drop("table1-code"), "no code redraws it"),
    ("reproduction", drop("reproduction-code", "reproduction-figure"), "no code"),
    ("differences", drop_text("differences"), "too short"),
    ("weaknesses", metadata("table1-code", tags=["weakness"]), "in the wrong place"),
    ("weaknesses", replace("weak-scale", STRONGER, "Only one."), "says too little: One schedule"),
    ("companions", drop("companions-code"), "paper.beside is not called"),
    ("companions", replace("companions-code", '"beta"', ""), "names no companion"),
    ("companions-known", replace("companions-code", "beta", "gamma"), "'gamma' is not in"),
    ("explorable", drop("explorable-code"), "no code"),
    ("explorable", output("explorable-code"), "no stored figure has a slider"),
    (
        "explorable",
        output("explorable-code", result({PLOTLY: {"data": [], "layout": {}}})),
        "no stored figure has a slider",
    ),
    ("discussion", replace("discussion", "**", "*"), "0 questions"),
    ("discussion", replace("discussion", "**4. ", "**5. "), "not numbered 1, 2, 3"),
    ("discussion", replace("discussion", "survive?**", "survive**"), "question 1 asks nothing"),
    ("discussion", replace("discussion", "<details>", "<div>"), "question 1 has no folded answer"),
    ("discussion", replace("discussion", "Yes, because the bubbles stay where they were.", ""),
     "question 1 is not answered"),
    ("discussion", replace("discussion", "</summary>\n\n", "</summary>\n"), "no empty line after"),
    ("discussion", replace("discussion", "`num_stages`", "the depth"), "changing a parameter"),
    ("comments", replace("comments", "A typo in §3.", ""), "no detailed comments"),
    ("sources", drop("sources-code"), "last cell is not paper.sources"),
    ("sources", swap("sources", "sources-code"), "last cell is not paper.sources"),
    ("sources", replace("sources-code", "data", ""), "given no data set"),
    ("headings", replace("reproduction", "## ", ""), "does not start with a heading"),
    ("references", replace("fig3-notice", "the bubbles", "our figure shows the bubbles"),
     "'our figure shows', which is not there"),
    ("references", replace("table1", "the last row", "what our table shows"), "'our table shows'"),
    ("references", replace("fig3-notice", "the bubbles", "the second panel"), "'the second panel'"),
    ("references", replace("differences", "the cell above", "the second table"),
     "'the second table'"),
    ("references", replace("insight", "Stages wait", "In the figure above stages wait"),
     "'the figure above'"),
    ("references", replace("discussion", "the bubbles stay", "the table below says they stay"),
     "'the table below'"),
    ("references", replace("discussion", "the bubbles stay", "the headline figure says they stay"),
     "'the headline figure'"),
    ("references", replace("fig3-notice", "the bubbles", "the bubbles of `fastest-first`"),
     "'fastest-first'"),
    ("drawn", output("table1-code", result({PLOTLY: {"layout": {}, "data": [
        {"name": "peak", "y": [None, None]}, {"name": "mean", "y": [1, None]}]}})),
     "the line 'peak' has no value"),
    ("hand-typed", replace("reproduction", "printed.", "printed: 27 % less."), "'27 %'"),
    ("hand-typed", replace("differences", " (abstract), the", ". It is 1.9 GB less: the"),
     "'1.9 GB'"),
    ("hand-typed", replace("weak-drift", "tries.", "tries: 3× worse."), "'3×'"),
    ("hand-typed", replace("title", "that clocks", "of 13–26 % that clocks"), "'13–26 %'"),
    ("kindness", replace("weak-drift", "It assumes", "It is bad that it assumes"), "'bad' judges"),
    ("kindness", replace("weak-scale", "tries.", "tries, with a typo."), "'typo' is no weakness"),
    ("title", replace("title", "Are Free", "Are Cheap"), "not the paper's title"),
    ("title", replace("title", ", Bo Two", ""), "authors missing: Bo Two"),
    ("title", replace("title", "NSDI", "OSDI"), "the venue is missing"),
    ("title", replace("title", "2023", "2022"), "the year is missing"),
    ("title", replace("title", "org/alpha", "org/beta"), "the link is missing"),
    ("claims", replace("claims-code", '"saving"', '"savings"'), "did you mean 'saving'?"),
    ("claims", replace("claims-code", "paper.claims", "print"), "paper.claims is not called"),
    ("claims-stored", stored("flip_verdict", None, verdict="not earned"), "never computed"),
    ("claims-stored", stored("fitted", 0.07), "from stand-in data"),
    ("claims-stored", output("claims-code"), "no stored output holds claims"),
    ("claims-stored", stored("paper_value", 0.3), "another paper_value than claims.yaml"),
    ("claims-stored", stored("verified", True), "another verified"),
    ("claims-stored", stored("id", "other"), "stored claims lack 'saving'"),
    ("claims-stored", stored("verdict", "not judged"), "from stand-in data"),
    ("executed", counts(1, 2, 2), "execution count 2, where a clean run has 3"),
    ("executed", counts(1, None), "execution count None"),
    ("executed", counts(*[None] * 25), "never executed"),
    ("errors", output("table1-code", v4.new_output("error", ename="KeyError")), "KeyError"),
    (
        "errors",
        output("table1-code", v4.new_output("stream", name="stderr", text="Warning: old\n")),
        "Warning: old",
    ),
    ("paths", replace("table1-code", "num", "'/home/ada/x.csv'; num"), "/home/ada/x.csv"),
    ("paths", output("table1-code", result({"text/plain": "at /tmp/run-1/a"})), "/tmp/run-1/a"),
    (
        "paths",
        output("table1-code", result({PLOTLY: {"data": [{"name": "C:\\Users\\a"}]}})),
        "C:\\Users\\a",
    ),
    ("changing", output("table1-code", result({"text/plain": f"<x at {UNIT}>"})), "memory address"),
    (
        "changing",
        output("table1-code", result({"text/html": '<table id="T_1a2b3">'})),
        "Styler id",
    ),
    ("size", big, "1.6 MB"),
    *(("literals", joules_from(source), "'energy' is typed") for source in TYPED),
    ("literals", replace("claims-code", "=flat", "={'saving': 0.0}"), "'saving' is typed"),
    *(("paper-literals", replace("table1-code", "num", f"{source}; num"),
       "the paper's value of claim 'saving'")
      for source in ("0.284", "28.4", "print(f'{num_stages}: 28.4 % (abstract)')")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "edit", "words"),
    BROKEN,
    ids=[f"{number}-{rule}" for number, (rule, _, _) in enumerate(BROKEN)],
)
def test_a_broken_rule_is_found_and_said(root: Path, rule: str, edit: Edit, words: str) -> None:
    notebook = good(root)
    before = copy.deepcopy(notebook)
    edit(notebook)
    assert notebook != before
    found = [finding for finding in findings(root, notebook) if finding.rule == rule]
    assert found, "the rule is silent"
    assert any(words in finding.problem for finding in found), found
    assert all(finding.fix for finding in found)


BROKEN_BY_FILES = {"abstract", "queue", "seconds", "tolerances"}


def test_every_rule_has_a_notebook_that_breaks_it() -> None:
    assert {rule for rule, _, _ in BROKEN} | BROKEN_BY_FILES == {r.name for r in rules.RULES}


@pytest.mark.parametrize(
    "source",
    [
        "joules = engine.energy(72.0)",
        "joules = table.energy_j.max()",
        "joules = 72.0 * scale_of(1)",
        "joules = [measure(n) for n in (1, 2)]",
        "joules = 0\nfor step in run(3):\n    joules += step",
        "joules = 1.0 if table.empty else 2 * saved",
        "def energy(n):\n    return 2 * simulate(n)\njoules = energy(4)",
        "joules = num_stages",
    ],
)
def test_a_computed_value_may_reach_the_claims(root: Path, source: str) -> None:
    notebook = good(root)
    joules_from(source)(notebook)
    assert [finding for finding in findings(root, notebook) if finding.rule == "literals"] == []


@pytest.mark.parametrize(
    "source",
    [
        'paper.claims({**{"saving": 0.28}}, data)',
        'paper.claims({"rows": rows} | {"saving": 0.28}, data)',
        "paper.claims(dict(saving=0.28), data)",
        'paper.claims(dict(zip(["saving"], [0.28])), data)',
        'values = {"rows": rows}\nvalues["saving"] = 0.28\npaper.claims(values, data)',
        'values = {"rows": rows}\nvalues.update(saving=0.28)\npaper.claims(values, data)',
        'paper.claims({"saving": saved}, data, flips={"saving": -1 / 3})',
        "paper.claims({name: 0.28 for name in ids}, data)",
    ],
)
def test_a_typed_value_is_found_in_any_mapping(root: Path, source: str) -> None:
    notebook = good(root)
    cell(notebook, "claims-code").source = source
    assert "literals" in {finding.rule for finding in findings(root, notebook)}


# ---------------------------------------------------------------- the files beside a notebook


@pytest.mark.parametrize(
    ("name", "old", "new", "rule", "words"),
    [
        ("reading_queue.yaml", "reading", "queued", "queue", "the queue says 'queued'"),
        ("reading_queue.yaml", "status: reading", "status: red", "queue", "reading_queue.yaml:3"),
        ("data/papers.bib", "alpha,", "alfa,", "title", "not in data/papers.bib"),
        ("data/papers.bib", "year = {2023}", "year = {soon}", "title", "papers.bib:"),
        ("data/papers/alpha/claims.yaml", "ratio", "ratoi", "claims", "claims.0.judge"),
        ("data/papers/alpha/claims.yaml", "dataset: profiles", "dataset: y", "claims", "needs 'y'"),
        ("data/papers/alpha/claims.yaml", "    # The", "    note: The", "tolerances", "yaml:12: a"),
        ("data/papers/alpha/claims.yaml", "0.284", "0.2", "claims-stored", "paper_value"),
        ("data/papers/alpha/claims.yaml", "id: saving", "id: cost", "claims-stored", "'saving'"),
        ("data/papers/alpha/claims.yaml", "28.4 %", "2.84 %", "abstract", "'2.84 %' is neither"),
        ("data/papers/alpha/claims.yaml", "{number: 16", "{number: 8", "abstract", "'16 GPUs'"),
        ("data/papers/alpha/claims.yaml", "abstract_numbers:", "#", "abstract", "does not list"),
        ("data/papers/alpha/claims.yaml", "Energy saved", "TODO", "claims", "still to be written"),
        ("data/papers/beta/glance.yaml", "method", "how", "companions-known", "glance.yaml"),
        ("data/datasets.yaml", "profiles:", "traces:", "datasets", "'profiles'"),
    ],
)
def test_a_file_that_disagrees_is_found(
    root: Path, name: str, old: str, new: str, rule: str, words: str
) -> None:
    notebook = good(root)
    path = root / name
    assert old in path.read_text(encoding="utf-8")
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    found = [finding for finding in findings(root, notebook) if finding.rule == rule]
    assert any(words in finding.problem for finding in found), findings(root, notebook)
    assert not any(str(root) in finding.problem for finding in found)


def test_a_notebook_that_does_not_read_is_one_finding_and_stops_nothing(root: Path) -> None:
    write(root, good(root))
    (root / "notebooks/energy/gamma.ipynb").write_text("{not json", encoding="utf-8")
    report = check.check(root)
    assert [(finding.file, finding.rule) for finding in report.findings] == [
        ("notebooks/energy/gamma.ipynb", "readable"),
    ]
    assert report.notebooks == ("alpha", "gamma")


def test_the_facts_of_papers_without_a_notebook_are_read_too(root: Path) -> None:
    write(root, good(root))
    other = root / "data/papers/gamma/claims.yaml"
    other.parent.mkdir()
    other.write_text("claims: []\n", encoding="utf-8")
    assert [finding.file for finding in check.check(root).findings] == [
        "data/papers/gamma/claims.yaml"
    ]
    assert check.check(root, ["alpha"]).is_clean


def test_a_class_stands_in_the_mechanism_alone(root: Path) -> None:
    notebook = good(root)
    replace("naive", "full_speed", "class Gather:\n    pass\n\nfull_speed")(notebook)
    assert findings(root, notebook) == []


def test_a_claim_that_the_rival_meets_too_is_no_fault_of_the_notebook(root: Path) -> None:
    notebook = good(root)
    stored("flip_verdict", "reproduced", verdict="not earned")(notebook)
    assert findings(root, notebook) == []


def test_an_abstract_without_a_number_needs_one_headline(root: Path) -> None:
    notebook = good(root)
    stored("verdict", "not attempted")(notebook)
    file = root / "data/papers/alpha/claims.yaml"
    text = re.sub(r"abstract_numbers: .*", "abstract_numbers: []", file.read_text())
    assert "abstract_numbers: []" in text
    assert "of kind 'headline'" in str(findings(root, notebook))
    file.write_text(text)
    assert "of kind 'headline'" not in str(findings(root, notebook))


def test_a_headline_that_says_why_it_is_not_attempted_stands_for_one(root: Path) -> None:
    notebook = good(root)
    stored("verdict", "not attempted")(notebook)
    file = root / "data/papers/alpha/claims.yaml"
    text = file.read_text()
    note = "    note: what the cluster's jobs hold is not published\n"
    first, second = text.split("  - id: energy", 1)
    assert "of kind 'headline'" in str(findings(root, notebook))
    file.write_text(first + note + "  - id: energy" + second)
    assert "of kind 'headline'" not in str(findings(root, notebook))


def test_numbers_that_stand_for_many_things_may_be_typed(root: Path) -> None:
    notebook = good(root)
    replace("table1-code", "num", "print(3, 100, 'num_stages', 7 * 12); num")(notebook)
    assert [f for f in findings(root, notebook) if f.rule == "paper-literals"] == []


def test_code_for_the_talk_is_tagged_within_its_section(root: Path) -> None:
    notebook = good(root)
    metadata("change-code", tags=["mechanism"])(notebook)
    assert findings(root, notebook) == []


def test_an_unknown_key_lists_the_notebooks(root: Path) -> None:
    write(root, good(root))
    with pytest.raises(UsageError, match="no notebook for 'alhpa'; did you mean 'alpha'"):
        check.check(root, ["alhpa"])


def test_findings_come_in_the_order_of_the_cells(root: Path) -> None:
    notebook = good(root)
    for name, old in (("comments", "A typo"), ("fig3-notice", "Notice"), ("insight", "Stages")):
        replace(name, old, "TODO")(notebook)
    cells = [finding.cell for finding in findings(root, notebook)]
    assert cells == sorted(cells, key=lambda number: number or 0)
    assert {"comments", "fig3-notice", "insight"} == {f.cell_id for f in findings(root, notebook)}


# ---------------------------------------------------------------- prose


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("We save 12 % of it.", ["12 %"]),
        ("We save 12% and 3.5 J at 2.1× the time.", ["12%", "3.5 J", "2.1×"]),
        ("It takes 13–26 % or 13 to 26 percent.", ["13–26 %", "13 to 26 percent"]),
        ("A 5x gain, 8-fold, 1,024 GiB.", ["5x", "8-fold", "1,024 GiB"]),
        ("The paper saves 28.4 % on 16 GPUs.", []),
        ("It saves 28.4 % (§6.2). It saves 28.4 % (Fig. 10).", []),
        ("It saves 28.4 % (§6.2). We save 12 %.", ["12 %"]),
        ("See Fig. 10. It has 12 %.", ["12 %"]),
        ("Try `deadline = 5 %` or $x = 5\\%$.", []),
        ("- the paper's 5 %\n- our 6 %", ["6 %"]),
        ("| paper | 5 % |\n| ours | 6 % |", ["6 %"]),
        ("Eight stages, 12 microbatches, 16 GPUs, GPT-3 175B, A100, 1F1B.", []),
        ("The 2023 paper.\n\nWith 3 s of waiting.", ["3 s"]),
    ],
)
def test_hand_typed_results_are_told_from_the_papers(text: str, numbers: list[str]) -> None:
    assert [number for number, _ in prose.hand_typed(text)] == numbers
