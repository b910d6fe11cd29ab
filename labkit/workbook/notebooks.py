"""The notebooks of the workbook: where they are and what their cells declare."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import BadFile, UsageError, not_among

if TYPE_CHECKING:
    from nbformat import NotebookNode


SCALARS = {"int": int, "float": float, "str": str, "bool": bool}
PLOTLY_MIME = "application/vnd.plotly.v1+json"
GUESS_MIME = "application/vnd.labkit.guess+json"
"""The question of ``workbook.predict`` and its unit, as a stored output carries them."""
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
MAGIC = re.compile(r"^\s*[%!?]|^\s*[\w, ]+=\s*[%!]|\?\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One assignment of a notebook's ``parameters`` cell."""

    name: str
    default: Any
    annotation: str = ""


def paths(root: Path) -> dict[str, Path]:
    """Every notebook of the workbook by paper key (its file name), sorted by key.

    Raises UsageError where two families hold a notebook of the same key.
    """
    known: dict[str, Path] = {}
    for path in sorted((root / "notebooks").rglob("*.ipynb"), key=lambda p: p.stem):
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue
        if not path.is_file():  # a pipe, say, that would be read without end
            continue
        if path.stem in known:
            raise UsageError(f"two notebooks for {path.stem!r}: {known[path.stem]} and {path}")
        known[path.stem] = path
    return known


def path_of(root: Path, key: str) -> Path:
    """The notebook of paper ``key``; raises UsageError, with those there are, where it has none."""
    known = paths(root)
    if key not in known:
        raise not_among("notebook for", key, known)
    return known[key]


def read(path: Path) -> NotebookNode:
    """Read a notebook (nbformat 4); raises BadFile where it is none."""
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
        _check_form(notebook)
        return notebook
    except FileNotFoundError:
        raise BadFile(path, "the notebook is missing") from None
    except Exception as error:  # nbformat raises many kinds for the one fault
        reason = " ".join(str(error).split())[:200]
        raise BadFile(path, f"not a Jupyter notebook: {reason}") from None


def _check_form(notebook: Any) -> None:
    """Raise ValueError where what all commands look at is not of its kind, as in no notebook that
    Jupyter or we have written; outputs are looked at one by one where they are shown."""
    labkit = notebook.metadata.get("labkit", {})
    if not isinstance(labkit, dict):
        raise ValueError(f"metadata.labkit is {labkit!r:.80}; valid: a mapping, such as paper: KEY")
    datasets = labkit.get("datasets", [])
    if not _are_texts(datasets):
        raise ValueError(f"metadata.labkit.datasets is {datasets!r:.80}; valid: a list of names")
    for number, cell in enumerate(notebook.cells, start=1):
        tags = cell.metadata.get("tags", [])
        if not _are_texts(tags):
            raise ValueError(f"the tags of cell {number} are {tags!r:.80}; valid: a list of texts")
        outputs = cell.get("outputs", [])
        bundles = [output.get("data", {}) for output in outputs]
        if not all(isinstance(bundle, dict) for bundle in bundles):
            raise ValueError(f"an output of cell {number} holds no data by their type")


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.get("metadata", {}).get("tags", []))


def tagged(notebook: NotebookNode, tag: str) -> list[NotebookNode]:
    """The cells that carry ``tag``, in order."""
    return [cell for cell in notebook.cells if tag in tags(cell)]


def tree(source: str) -> ast.Module | None:
    """A cell's code parsed, lines that only IPython understands left out; None: no Python."""
    plain = "\n".join("" if MAGIC.search(line) else line for line in source.splitlines())
    for code in (source, plain):
        with suppress(SyntaxError):
            return ast.parse(code)
    return None


def calls(tree: ast.AST | None, method: str) -> Iterator[ast.Call]:
    """The calls ``something.method(...)`` in ``tree``."""
    for node in ast.walk(tree) if tree else ():
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == method
        ):
            yield node


def carried(notebook: NotebookNode, mime: str) -> Iterator[Any]:
    """What the outputs of the notebook hold of one MIME type, in order."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    bundles = (output.get("data", {}) for output in outputs)
    return (bundle[mime] for bundle in bundles if mime in bundle)


def dataset_names(notebook: NotebookNode) -> list[str]:
    """The datasets the notebook declares in ``metadata.labkit.datasets``."""
    return list(notebook.metadata.get("labkit", {}).get("datasets", []))


def kernel(notebook: NotebookNode) -> tuple[str, str]:
    """The kernel that the notebook's metadata name, and its language in small letters; "" for what
    they do not say."""
    metadata = notebook.metadata
    spec = metadata.get("kernelspec", {})
    language = spec.get("language") or metadata.get("language_info", {}).get("name", "")
    return spec.get("name", ""), language.lower()


def parameters(notebook: NotebookNode) -> dict[str, Parameter]:
    """The values of the cell tagged ``parameters``, by name; empty where there is none.

    Raises SyntaxError where the cell is not Python, and ValueError where a default is no plain
    literal (``60 * 60``, say, or a call): a run sets its values after the cell, so what the cell
    computes of another parameter would keep that one's default.
    """
    declared: dict[str, Parameter] = {}
    for cell in tagged(notebook, "parameters"):
        for node in ast.parse(cell.source).body:
            parameter = _parameter(node)
            if parameter is not None:
                declared[parameter.name] = parameter
    return declared


def _parameter(node: ast.stmt) -> Parameter | None:
    match node:
        case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value):
            annotation = ast.unparse(node.annotation)
        case ast.Assign(targets=[ast.Name(name)], value=value):
            annotation = ""
        case _:
            return None
    try:
        default = ast.literal_eval(value)
    except (ValueError, TypeError, MemoryError, RecursionError):
        raise ValueError(
            f"{name} is computed, `{ast.unparse(node):.80}`, before a run sets its values; valid: "
            "a plain value, such as 8, 0.5, 'a100', True or None, or computing it in a cell below"
        ) from None
    return Parameter(name=name, default=default, annotation=annotation)


# ---------------------------------------------------------------- read without nbformat


class Node(dict[str, Any]):
    """A JSON object whose fields are attributes, as nbformat's are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def glimpse(path: Path) -> Any:
    """The notebook at ``path`` in milliseconds, to look at only: its JSON without validation.

    Deciding that nothing has to run must be quick, and importing nbformat alone takes longer.
    Raises BadFile where it is no notebook of format 4 (nbformat then says what is wrong with it).
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return read(path)


def parse(text: str) -> Any:
    """As :func:`glimpse`, of a text; raises ValueError and its like where it is no notebook."""
    notebook = json.loads(text, object_hook=Node)
    if notebook.nbformat != 4:
        raise ValueError(f"nbformat {notebook.nbformat}")
    for cell in notebook.cells:
        cell["source"] = joined(cell["source"])
        cell.setdefault("metadata", Node())
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = joined(output["text"])
    notebook.setdefault("metadata", Node())
    _check_form(notebook)
    return notebook


def is_figure(value: Any) -> bool:
    """Whether a stored output has the form of a Plotly figure: a list of traces and a layout, whose
    parts that are read here and elsewhere are of their kinds."""
    parts = value if isinstance(value, dict) else {}
    data = parts.get("data")
    layout = parts.get("layout")
    if not isinstance(data, list) or not all(_is_mapping(trace, _OF_TRACE) for trace in data):
        return False
    if not isinstance(layout, dict) or not _is_mapping(layout, _OF_LAYOUT):
        return False
    if not all(isinstance(layout.get(name, []), list) for name in _LISTS):
        return False
    axes = [part for name, part in layout.items() if name.startswith(("xaxis", "yaxis"))]
    lists = [part for name in _LISTS for part in layout.get(name, [])]
    titles = [each.get("title") for each in (layout, *axes) if isinstance(each, dict)]
    return (
        all(_is_mapping(part, _OF_PART) for part in (*axes, *lists))
        and all(isinstance(title, str | dict | None) for title in titles)
        and all(isinstance(t.get("text"), str | None) for t in titles if isinstance(t, dict))
    )


_TEXT = str | None
_MAPPING = dict | None
_VALUES = list | dict | None  # a list, or numbers packed
_LISTS = ("annotations", "images", "shapes", "sliders", "updatemenus")
_OF_TRACE: dict[str, Any] = {
    **dict.fromkeys(("type", "name", "mode", "orientation", "xaxis", "yaxis"), _TEXT),
    **dict.fromkeys(("line", "marker"), _MAPPING),
    **dict.fromkeys(("x", "y"), _VALUES),
}
_OF_LAYOUT: dict[str, Any] = {"height": int | float | None}
_OF_PART: dict[str, Any] = {"steps": list | None, "buttons": list | None}


def _is_mapping(value: Any, kinds: dict[str, Any]) -> bool:
    """Whether ``value`` is a mapping, and what it has under some names is of these kinds."""
    return isinstance(value, dict) and all(
        isinstance(value.get(name), kind) for name, kind in kinds.items()
    )


def joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
