"""Somebody else's workbook is listed, checked and exported, and nothing of it runs."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_output

from labkit.cli import main
from labkit.errors import BadFile
from labkit.workbook import notebooks
from labkit.workbook.export import clean
from labkit.workbook.export.markup import Markup
from labkit.workbook.export.site import write_site
from labkit.workbook.notebooks import PLOTLY_MIME
from labkit.workbook.review.claims import CLAIMS_MIME
from labkit.workbook.review.tables import METRICS_MIME, SHARED_MIME
from labkit.workbook.run import results
from tests.export import hostile, offline, synthetic

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign")
    return hostile.make(folder / "workbook", folder / "ran")


@pytest.mark.parametrize(
    "command",
    [
        "queue",
        "queue show alpha",
        "queue search payload",
        "queue export",
        "check",
        "slides alpha",
        "site --no-reference",
        "compare alpha beta --html out.html",
        "compare alpha beta --markdown out.md",
        "ask alpha --list",
        "data",
        "run --help",
    ],
)
def test_no_command_but_run_runs_anything(
    foreign: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.setenv("LABKIT_ROOT", str(foreign))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", _refuse)
    assert main(command.split()) in (0, 1, 2)  # most find fault with it
    assert not (foreign.parent / "ran").exists()


def _refuse(*arguments: Any, **_: Any) -> None:
    pytest.fail(f"a process was started: {arguments}")


@pytest.mark.parametrize(
    ("html", "kept"),
    [
        (
            '<b onclick="f()" class="plot k" style="color:red;position:fixed">t</b>',
            '<b class="k" style="color:red">t</b>',
        ),
        ('<b style="background:url(data:image/png;base64,x)">t</b>', "<b>t</b>"),
        ('<b style="background:\\75rl(https://example.org)">t</b>', "<b>t</b>"),
        ('<b style="margin:-999px;padding:2px">t</b>', '<b style="padding:2px">t</b>'),
        ('<a href="javascript:f()">t</a>', "<a>t</a>"),
        ('<a href="data:text/html,x">t</a>', "<a>t</a>"),
        ('<a href="//example.org/x">t</a>', "<a>t</a>"),
        ('<a href="https://example.org/x">t</a>', '<a href="https://example.org/x">t</a>'),
        ('<img src="data:text/html;base64,eA==">', "<img>"),
        ('<img src="https://example.org/x.png">', "<img>"),
        ("<section><aside>t</aside></section>", "t"),
        (
            "<svg><a href='https://e.org'><path d='M0'></path></a><animate></svg>",
            '<svg><a href="https://e.org"><path d="M0"></path></a></svg>',
        ),
        ("<svg><style>a{}</style><script>f()</script><use href='#a'></use></svg>", "<svg></svg>"),
        ('<rect fill="url(#g)"></rect>', ""),
        (
            '<svg><rect fill="url(#g)" stroke="url(x.svg#g)"></rect></svg>',
            '<svg><rect fill="url(#g)"></rect></svg>',
        ),
        ("<input type=text onfocus=f()>", '<input disabled="">'),
    ],
)
def test_cleaning_keeps_what_is_listed(html: str, kept: str) -> None:
    assert clean.clean(html) == kept
    assert clean.clean(kept) == kept  # a second time changes nothing


PICTURE = "data:image/png;base64,eA=="
AWAY = "https://example.org/x"


@pytest.mark.parametrize(
    ("figure", "kept"),
    [
        ({"data": [{"type": "choropleth", "geojson": AWAY}]}, {"data": []}),
        ({"data": [{"type": "scattergeo", "lat": [1]}, {"y": [1]}]}, {"data": [{"y": [1]}]}),
        ({"data": [{"type": "densitymapbox"}, {"type": "scattermap"}]}, {"data": []}),
        ({"data": [{"type": "scatter", "y": [1]}]}, {"data": [{"type": "scatter", "y": [1]}]}),
        ({"data": [{"geojson": AWAY, "y": [1]}]}, {"data": [{"y": [1]}]}),
        ({"layout": {"geo": {"scope": "world"}, "geo2": {}}}, {"layout": {}}),
        ({"layout": {"map": {"style": AWAY}, "mapbox3": {"style": "basic"}}}, {"layout": {}}),
        ({"layout": {"map": {"style": {"sources": {"x": {"tiles": [AWAY]}}}}}}, {"layout": {}}),
        ({"frames": [{"data": [{"type": "scattergeo"}]}]}, {"frames": [{"data": []}]}),
        ({"args": [{"images[0].source": AWAY}]}, {"args": [{}]}),
        ({"args": [{"source": [PICTURE, AWAY]}]}, {"args": [{}]}),
        ({"args": [{"type": ["scattergeo"]}]}, {"args": []}),
        ({"args": [{"mapbox.style": "basic", "y": [[1]]}]}, {"args": [{"y": [[1]]}]}),
        ({"images": [{"source": PICTURE}]}, {"images": [{"source": PICTURE}]}),
        ({"images": [{"source": AWAY, "x": 1}]}, {"images": [{"x": 1}]}),
        ({"link": {"source": [0, 1]}}, {"link": {"source": [0, 1]}}),
    ],
)
def test_a_figure_asks_no_other_machine(figure: Any, kept: Any) -> None:
    """The page's policy would stop it too; this is the wall before it."""
    assert clean.figure(figure) == kept
    assert clean.figure(kept) == kept


def test_what_goes_is_told_and_what_is_malformed_stops_nothing(tmp_path: Path) -> None:
    markup = Markup(tmp_path, lambda _: None)
    outputs = [new_output("display_data", data=data) for data in hostile.OUTPUTS]
    html = "".join(markup.outputs(new_code_cell("x", id="c", outputs=outputs)))
    assert "payload" in html
    problems = "\n".join(markup.problems)
    for part in ("<script>", "<iframe>", "<style>", "onclick", "fetches", "malformed"):
        assert part in problems
    soup = offline.parse(html)
    assert [tag for tag in soup.find_all("script") if tag.get("type") != "application/json"] == []
    assert offline.resources(html) == []


@pytest.mark.parametrize("record", ["text", {"id": "x"}, {"verdict": hostile.BREAKOUT}])
def test_a_malformed_claim_stops_its_own_page_alone(root: Path, record: Any) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    stored = json.loads(path.read_text(encoding="utf-8"))
    bundles = [
        o["data"] for cell in stored["cells"] for o in cell.get("outputs", []) if "data" in o
    ]
    (bundle,) = [bundle for bundle in bundles if CLAIMS_MIME in bundle]
    bundle[CLAIMS_MIME][0] = bundle[CLAIMS_MIME][0] | record if "verdict" in record else record
    path.write_text(json.dumps(stored), encoding="utf-8")
    report = write_site(root)
    assert any("malformed" in problem for problem in report.problems)
    assert "index.html" in report.written
    assert "papers/alpha.html" not in report.written


def test_a_drawing_is_a_picture(tmp_path: Path) -> None:
    """No browser runs or fetches anything for an ``<img>``; without a namespace it shows none."""
    markup = Markup(tmp_path, lambda _: None)
    data = {"image/svg+xml": "<svg viewBox='0 0 9 9'><rect/></svg>"}
    output = new_output("display_data", data=data)
    (html,) = markup.outputs(new_code_cell("x", id="c", outputs=[output]))
    assert re.fullmatch(r'<img alt="" src="data:image/svg\+xml;base64,[\w+/=]+">', html)


# Where archives are opened: one member is read in memory, of a file that was checked by its hash.
ARCHIVES = {"labkit/cluster/inputs/published.py", "data/profiles/fit.py"}
# Where code may load what runs when it is loaded, and why.
LOADERS = {
    "labkit/files.py": {"yaml"},  # its safe loader, which makes no objects
    "labkit/kit/describe.py": {"eval"},  # annotations, which stand in our own modules
    "labkit/kit/rank_process.py": {"cloudpickle"},  # between our own processes
    "labkit/kit/ranks.py": {"cloudpickle"},
    "labkit/kit/sweep.py": {"cloudpickle"},
    "labkit/workbook/run/cluster.py": {"pickle"},  # between a client and its Dask workers
    "labkit/workbook/run/remote.py": {"pickle"},
    "labkit/papers/ray/lineage.py": {"pickle"},  # between our own processes, by pipes
}
RUNNING = {"eval", "exec", "compile", "os.system", "unpack_archive", "extractall"}
MODULES = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib", "yaml"}
WORDS = re.compile("|".join((*RUNNING, *MODULES, "torch.load", "shell", "YAML")))


def _loaders(source: str) -> set[str]:
    """What in a module's ``source`` could run the file that it reads."""
    uses = set()
    for node in ast.walk(ast.parse(source)) if WORDS.search(source) else ():
        if isinstance(node, ast.Import):
            uses |= MODULES & {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            uses |= MODULES & {(node.module or "").split(".")[0]}
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            is_method = name.endswith((".eval", ".compile"))  # of a network, of re
            uses |= RUNNING & ({name, name.rpartition(".")[2]} if not is_method else {name})
            uses |= {"allow_pickle", "shell"} & options.keys()
            uses |= (
                {"torch.load"} if name == "torch.load" and "weights_only" not in options else set()
            )
            uses |= {"YAML"} if options.get("typ", "'rt'") not in ("'rt'", "'safe'") else set()
    return uses


def test_nothing_loads_what_runs_when_it_is_loaded() -> None:
    paths = [*(ROOT / "labkit").rglob("*.py"), *(ROOT / "data").rglob("*.py")]
    uses = {path.relative_to(ROOT).as_posix(): _loaders(path.read_text()) for path in paths}
    assert {name: names for name, names in uses.items() if names} == LOADERS
    opening = re.compile(r"import (tarfile|zipfile|shutil.*unpack)|\b(tarfile|zipfile)\b.*import")
    archives = {name for name in uses if opening.search((ROOT / name).read_text())}
    assert archives == ARCHIVES
    bad = "torch.load(p); exec(x); np.load(p, allow_pickle=True); import yaml; YAML(typ='unsafe')"
    assert _loaders(bad) == {"torch.load", "exec", "allow_pickle", "yaml", "YAML"}


@pytest.mark.parametrize(
    "tag", ["object/apply:os.system", "object/new:os.system", "name:os.system"]
)
def test_yaml_that_names_python_objects_is_refused(tmp_path: Path, tag: str) -> None:
    from labkit import files

    mark = tmp_path / "ran"
    with pytest.raises(files.BadFile, match=f"x.yaml:1: .*{tag}"):
        files.parse_yaml(tmp_path / "x.yaml", f"a: !!python/{tag} ['touch {mark}']\n")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("reading_queue.yaml", "why: superseded", 'why: "\\e]0;owned\\a"'),
        ("reading_queue.yaml", "presenter: Ada", 'presenter: "A\\x9b31m"'),
        ("data/papers.bib", "Alpha:", "Alpha\x1b[2J:"),
        ("data/papers/alpha/claims.yaml", '"Table 1"', '"Table\\x1b[8m 1"'),
    ],
)
def test_texts_give_a_terminal_no_orders(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    old: str,
    new: str,
) -> None:
    monkeypatch.setenv("LABKIT_ROOT", str(root))
    text = (root / name).read_text(encoding="utf-8").replace("reason: sup", "why: sup", 1)
    assert old in text
    (root / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    line = text[: text.index(old)].count("\n") + 1
    assert main(["site", "--no-reference"]) != 0
    printed = "".join(capfd.readouterr())
    assert f"{Path(name).name}:{line}" in printed
    assert "control character" in printed
    assert "\x1b" not in printed
    assert "\x9b" not in printed


def test_parameters_are_read_and_not_run(tmp_path: Path) -> None:
    cell = new_code_cell(f"a: int = __import__('os').system('touch {tmp_path}/ran')")
    cell.metadata.tags = ["parameters"]
    from nbformat.v4 import new_notebook

    with pytest.raises(ValueError, match="a is computed"):
        notebooks.parameters(new_notebook(cells=[cell]))
    assert not (tmp_path / "ran").exists()


Y = {"type": "scatter", "x": [1, 2], "y": [2, 1]}
MALFORMED_FIGURES: list[Any] = [
    {"data": [Y], "layout": {"xaxis": "s"}},
    {"data": [Y], "layout": {"yaxis2": [1]}},
    {"data": [Y], "layout": {"title": [1]}},
    {"data": [Y], "layout": {"title": {"text": 5}}},
    {"data": [Y], "layout": {"sliders": [{"steps": 3}]}},
    {"data": [Y], "layout": {"updatemenus": "x"}},
    {"data": [Y], "layout": {"annotations": ["x"]}},
    {"data": [Y | {"line": [1]}], "layout": {}},
    {"data": [Y | {"marker": "x"}], "layout": {}},
    {"data": [Y | {"name": {}}], "layout": {}},
    {"data": [Y | {"y": 5}], "layout": {}},
    {"data": [Y | {"xaxis": 5}], "layout": {}},
    {"data": "x", "layout": {}},
    [],
]
ODD_FIGURES: list[Any] = [
    {"data": [Y | {"y": [10**400, 1]}], "layout": {}},
    {"data": [Y | {"y": [float("nan"), float("inf"), None, [1], {}]}], "layout": {}},
    {"data": [Y | {"x": {"bdata": "AAA=", "dtype": "i1"}}], "layout": {}},
    {"data": [Y | {"name": "half \ud800"}], "layout": {"title": "\udcff"}},
]
"""Figures that Plotly may not draw, but that have its form."""
ODD_TEXTS = ["![x](a%00b.png)", f"![x]({'n' * 5000}.png)", "half of a pair: \ud800", "<b>\udfff"]


@pytest.fixture
def altered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Any], None]], None]:
    """Alters the notebook's JSON, and asks every command that shows or judges it."""
    root = synthetic.make(tmp_path / "workbook")
    monkeypatch.setenv("LABKIT_ROOT", str(root))
    monkeypatch.chdir(tmp_path)
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    whole = path.read_text()
    known = set(range(3))

    def ask(alter: Callable[[Any], None]) -> None:
        notebook = json.loads(whole)
        alter(notebook)
        path.write_text(json.dumps(notebook))
        commands = ["check alpha", "slides alpha -o x.html", "site --no-reference", "run alpha -n"]
        for command in [*commands, "results", "queue show alpha"]:
            assert main(command.split()) in known

    return ask


def test_a_malformed_output_is_left_out_and_reported(
    altered: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def alter(notebook: Any) -> None:
        for cell in notebook["cells"]:
            if "reproduction" in cell["metadata"].get("tags", []):
                cell["source"] += "".join(f"\n\n{text}" for text in ODD_TEXTS)
        code = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
        code["outputs"] = [
            {"output_type": "display_data", "metadata": {}, "data": {PLOTLY_MIME: figure}}
            for figure in [*MALFORMED_FIGURES, *ODD_FIGURES]
        ]

    altered(alter)
    shown = capsys.readouterr()
    assert "an output was left out, since it is malformed" in shown.err
    assert "half of a pair: \\ud800" in Path("x.html").read_text(encoding="utf-8")
    found = [notebooks.is_figure(figure) for figure in [*MALFORMED_FIGURES, *ODD_FIGURES]]
    assert found == [False] * len(MALFORMED_FIGURES) + [True] * len(ODD_FIGURES)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("labkit", "x"),
        ("labkit", [1]),
        ("labkit", {"datasets": "abc"}),
        ("labkit", {"datasets": [1]}),
        ("labkit", {"size": []}),
        ("labkit", {"anatomy": {}}),
        ("tags", 5),
        ("tags", [1]),
        ("outputs", [{"output_type": "display_data", "metadata": {}, "data": [1]}]),
    ],
)
def test_malformed_metadata_are_an_error_of_the_notebook(
    altered: Any, place: str, value: Any
) -> None:
    def alter(notebook: Any) -> None:
        code = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
        {"labkit": notebook["metadata"], "tags": code["metadata"], "outputs": code}[place][
            place
        ] = value

    altered(alter)


@pytest.mark.parametrize(
    "address",
    [
        "../secret.png",
        "%2e%2e/secret.png",
        "..%2fsecret.png",
        "..%252fsecret.png",
        "sub/../../secret.png",
        "..\\secret.png",
        "{outside}/secret.png",
        "file://{outside}/secret.png",
        "//localhost{outside}/secret.png",
        "link.png",
        "linked/secret.png",
        "link.png%00.png",
        "notes.txt",
    ],
)
def test_no_file_from_outside_a_notebooks_folder_is_embedded(tmp_path: Path, address: str) -> None:
    inside = tmp_path / "notebooks"
    (inside / "sub").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(b"secret of the machine")
    (inside / "notes.txt").write_bytes(b"secret of the machine")
    (inside / "own.png").write_bytes(b"own")
    (inside / "link.png").symlink_to(tmp_path / "secret.png")
    (inside / "linked").symlink_to(tmp_path, target_is_directory=True)
    markup = Markup(inside, lambda _: None)
    image = address.format(outside=tmp_path)
    html = markup.text(f'![own](own.png) ![other]({image}) <img src="{image}">')
    assert html.count("data:") == 1  # our own picture alone
    assert "b3du" in html


@pytest.mark.parametrize("name", ["../../x.png", "/x.png", "%2e%2e/x.png", "..\\x.png"])
def test_names_of_outputs_and_attachments_write_no_file(altered: Any, name: str) -> None:
    """nbconvert's exporters write files by such names; ours write one page."""
    picture = {"image/png": "eA=="}

    def alter(notebook: Any) -> None:
        for cell in notebook["cells"]:
            cell["metadata"] |= {"filename": name, "name": name}
            if cell["cell_type"] == "markdown":
                cell["attachments"] = {name: picture}
                cell["source"] += f"\n\n![a](attachment:{name})"
                continue
            metadata = {"filename": name, "filenames": {"image/png": name}}
            cell["outputs"] = [
                {"output_type": "display_data", "data": picture, "metadata": metadata}
            ]

    here = Path.cwd().parent
    before = {path for path in here.rglob("*") if path.is_file()}
    altered(alter)
    written = {path for path in here.rglob("*") if path.is_file()} - before
    assert not [path for path in written if path.name.endswith("x.png")]
    assert not Path("/x.png").exists()


def test_headings_with_quotes_or_of_one_name_stay_inside_their_ids(tmp_path: Path) -> None:
    texts = ['"><img src=x onerror=f()>', "a' onclick='f()", "Same", "Same", "&quot; x=&quot;"]
    html = Markup(tmp_path, lambda _: None).text("\n\n".join(f"# {text}" for text in texts))
    headings = offline.parse(html).find_all("h1")
    assert len(headings) == len(texts)
    assert all(set(heading.attrs) == {"id"} for heading in headings)
    assert "onerror" not in html.replace(headings[0]["id"], "")


def test_a_pipe_is_no_notebook(tmp_path: Path) -> None:
    root = synthetic.make(tmp_path / "workbook")
    os.mkfifo(root / "notebooks" / "energy" / "pipe.ipynb")
    assert list(notebooks.paths(root)) == ["alpha"]


def test_a_notebook_too_deep_for_the_parser_is_none(tmp_path: Path) -> None:
    path = tmp_path / "deep.ipynb"
    path.write_text("[" * 100_000)
    for read in (notebooks.read, notebooks.glimpse):
        with pytest.raises(BadFile, match="not a Jupyter notebook"):
            read(path)


STORED = {
    "no notebook": "{",
    "a list": "[]",
    "a cell that is none": '{"nbformat": 4, "metadata": {}, "cells": [1]}',
    "what it carries is none": json.dumps(
        {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {},
            "cells": [
                {
                    "cell_type": "code",
                    "id": "a",
                    "source": "1",
                    "metadata": {},
                    "execution_count": 1,
                    "outputs": [
                        {
                            "output_type": "display_data",
                            "metadata": {},
                            "data": {CLAIMS_MIME: [1], SHARED_MIME: 5, METRICS_MIME: [1]},
                        }
                    ],
                }
            ],
        }
    ),
}
FORGED: list[dict[str, Any]] = [
    {"duration_s": "x"},
    {"parameters": None},
    {"datasets": [1]},
    {"metrics": {"\x1b]0;x\x07": 1e308, "": 2}, "parameters": {"\x1b[31m": [1, {"b": None}]}},
]


@pytest.mark.parametrize("book", STORED)
@pytest.mark.parametrize("meta", FORGED)
def test_a_forged_result_stops_no_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    book: str,
    meta: dict[str, Any],
) -> None:
    """Whoever may write to results/ can seal what they like."""
    root = synthetic.make(tmp_path / "workbook")
    monkeypatch.setenv("LABKIT_ROOT", str(root))
    monkeypatch.chdir(tmp_path)
    files = {"alpha.ipynb": STORED[book], "claims.json": "[]"}
    results.store(root, "alpha", "default", files, {"parameters": {}, **meta})
    for command in ("results", "diff alpha alpha", "run alpha -n", "slides alpha -o x.html"):
        assert main(command.split()) in (0, 1, 2)
    for command in ("clean", "check alpha", "compare alpha beta --markdown x.md"):
        assert main(command.split()) in (0, 1, 2)
    shown = capsys.readouterr()
    assert "\x1b]" not in shown.out + shown.err
