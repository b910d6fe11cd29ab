"""The project's folder and files: found from anywhere, read with line numbers, written whole."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args, get_origin

from labkit.errors import BadFile, UsageError, in_short, refused, shown

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    Model = TypeVar("Model", bound=BaseModel)
    Item = TypeVar("Item")

MARKER = "reading_queue.yaml"
DEEPEST = 64
"""Lists and mappings inside one another that a YAML file may have."""
MOST_DIGITS = 1000
"""Digits that a whole number of a YAML file may have."""
PACKAGE = Path(__file__).resolve().parent
"""The folder of the installed package ``labkit``."""
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
"""What a terminal obeys instead of showing it; texts that commands print hold none."""


def project_root(start: Path | None = None) -> Path:
    """Find the workbook's top folder: ``$LABKIT_ROOT``, else the nearest parent holding the queue.

    It looks upwards from ``start`` (default: the working directory), then from the installed
    package, so an editable install works from any folder.

    Raises:
        UsageError: no workbook is found, or ``$LABKIT_ROOT`` holds none.
    """
    root = workbook_around(start)
    if root is None:
        raise UsageError(
            f"no workbook found: neither {(start or Path.cwd()).resolve()} nor a folder above it "
            f"holds {MARKER}; change into the project's folder, set LABKIT_ROOT, or make a "
            "workbook of your own: labkit init FOLDER"
        )
    return root


def workbook_around(start: Path | None = None) -> Path | None:
    """As :func:`project_root`, but None where no workbook is found; raises UsageError where
    ``$LABKIT_ROOT`` is set and holds none."""
    if configured := os.environ.get("LABKIT_ROOT"):
        root = Path(configured).expanduser().resolve()
        if (root / MARKER).is_file():
            return root
        raise UsageError(f"LABKIT_ROOT={configured} is not a workbook: it holds no {MARKER}")
    begin = (start or _working_folder()).resolve()
    for folder in (begin, *begin.parents, *PACKAGE.parents):
        if (folder / MARKER).is_file():
            return folder
    return None


def _working_folder() -> Path:
    """Find the working directory; raises UsageError where somebody removed it meanwhile."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError(
            "the working directory is gone; change into one that exists (cd), then repeat"
        ) from None


def shipped(name: str, root: Path | None = None) -> Path:
    """Where ``name``, such as ``data/models.yaml``, of the data that labkit brings stands.

    It is the workbook's own file or folder where the workbook has one of that name, else the one
    that came with the package. Whether the latter exists is the reader's to see.

    Args:
        name: its path from the workbook's top folder, with ``/``.
        root: the workbook's top folder; default: the one around the working directory.

    Raises:
        UsageError: there is no workbook, and the package was installed without its data.
    """
    home = root or workbook_around()
    if home is not None and (home / name).exists():
        return home / name
    brought = home_of_data()
    # Only a copy of the sources apart from their workbook has neither: say where to go.
    return (brought or home or project_root()) / name


def home_of_data() -> Path | None:
    """Find the folder in which the ``data/`` that labkit brings stand: the installed package
    (``setup.py`` puts them there), else the checkout that the package lies in."""
    homes = (PACKAGE, PACKAGE.parent)
    return next((home for home in homes if (home / "data" / "models.yaml").is_file()), None)


def encoded(text: str) -> bytes:
    """Encode as UTF-8; half of a surrogate pair, which UTF-8 cannot hold, becomes its escape.

    >>> encoded("é\\ud800").decode()
    'é\\\\ud800'
    """
    return text.encode("utf-8", "backslashreplace")


LONGEST_NAME_BYTES = 255
"""Of a file or folder, on the file systems there are."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write ``content`` to ``path`` so that a reader, or a crash, sees the old file or the new.

    A link stays, and the file it leads to is written. What is no file, such as a device or a pipe,
    cannot be replaced by one: it is written to as it stands.

    Raises:
        BadFile: the path is a folder, or no name that a file may have.
    """
    _check_name(path)
    if path.is_dir():
        raise BadFile(path, "is a folder", valid="the path of a file to write")
    data = encoded(content) if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        with naming(path):
            path.write_bytes(data)
        return
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with naming(path), os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _check_name(path: Path) -> None:
    """Refuse a name that no file can have, before a file system says so in its own words."""
    valid = f"parts of up to {LONGEST_NAME_BYTES} bytes, none of them NUL"
    try:
        longest = max(len(os.fsencode(part)) for part in (*path.parts, ""))
    except ValueError:  # half of a surrogate pair
        raise BadFile(path, "is no name of a file", valid=valid) from None
    if longest > LONGEST_NAME_BYTES or "\0" in str(path):
        raise BadFile(path, "is no name of a file", valid=valid)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name ``path`` in a block's ``OSError`` that names no file: a write's, on a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # a TimeoutError of a library's may have neither
            error.filename = error.filename or str(path)
        raise


def read_text(path: Path) -> str:
    """Read the text of a file.

    Raises:
        BadFile: it is missing, is a folder, is not UTF-8, or its path can be none.
        LabkitError: the disk refused to read it; names the remedy.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadFile(path, "the file is missing") from None
    except IsADirectoryError:
        raise BadFile(path, "is a folder, not a file") from None
    except UnicodeDecodeError as error:
        raise BadFile(path, f"not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise refused(error) or BadFile(path, f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # a zero byte, or half of a surrogate pair
        raise BadFile(path, f"no path of a file: {error}") from None


def load_json(path: Path) -> Any:
    """Parse a JSON file.

    Raises:
        BadFile: it is missing, or is not JSON.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFile(path, f"must be JSON: {error}") from None


@contextmanager
def holding(path: Path, valid: str) -> Iterator[None]:
    """Say that a file does not hold what it must, where a block cannot make a record of it.

    Args:
        path: the file whose contents the block makes a record of, and nothing else.
        valid: what it should hold.

    >>> with holding(Path("a.json"), "a list of speeds"):
    ...     float({}["speed"])
    Traceback (most recent call last):
    labkit.errors.BadFile: a.json: lacks 'speed'; valid: a list of speeds
    """
    try:
        yield
    except BadFile:
        raise
    except KeyError as error:
        raise BadFile(path, f"lacks {shown(error.args[0])}", valid=valid) from error
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise BadFile(path, in_short(str(error)), valid=valid) from error


def load_yaml(path: Path) -> Any:
    """Parse a YAML file, whose tree :func:`line_of` finds places in.

    Raises:
        BadFile: it is missing, is not YAML, or repeats a key.
    """
    return parse_yaml(path, read_text(path))


def parse_yaml(path: Path, text: str) -> Any:
    """Parse a ``text`` as :func:`load_yaml` does, before it is in the file; ``path`` names it."""
    import yaml

    try:
        return yaml.load(text, _loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = " ".join(str(getattr(error, "problem", None) or "unreadable").split())
        raise BadFile(
            path,
            f"not valid YAML: {problem}",
            line=None if mark is None else mark.line + 1,
            valid="balanced quotes and brackets, spaces for indentation, every key once",
        ) from None


class _Mapping(dict[Any, Any]):
    """A mapping that knows the lines of its keys."""

    lines: Any = ()  # of each key, from 1


class _Sequence(list[Any]):
    """A list that knows the lines of its items."""

    lines: Any = ()  # of each item, from 1


_SCALARS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+(_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "merge": r"<<",
}
"""Which plain scalars are more than text: YAML 1.2's core schema, and digits grouped by ``_``."""


@cache
def _loader() -> Any:
    """Make PyYAML's safe parser in C, fifteen times as fast as one in Python, follow YAML 1.2's
    rules.

    Dates stay texts: the model reads them, and says of which field one is no day. Repeated keys,
    control characters, and what is too deep or too long to handle are refused.
    """
    import yaml

    def refusal(problem: str, node: Any) -> Exception:
        return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}

        depth = 0

        def descend_resolver(self, parent: Any, index: Any) -> None:
            self.depth += 1
            if self.depth > DEEPEST:  # before the parser in C has no stack left
                raise refusal(f"lists or mappings more than {DEEPEST} deep", parent)
            super().descend_resolver(parent, index)

        def ascend_resolver(self) -> None:
            self.depth -= 1
            super().ascend_resolver()

        def construct_scalar(self, node: Any) -> Any:
            value = super().construct_scalar(node)
            if isinstance(value, str) and CONTROL.search(value):
                raise refusal("a control character", node)
            return value

        def construct_int(self, node: Any) -> int:
            text = str(self.construct_scalar(node))
            if len(text) > MOST_DIGITS:
                raise refusal(f"a whole number of more than {MOST_DIGITS} digits", node)
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)

        def construct_map(self, node: Any) -> _Mapping:
            own = [key for key, _ in node.value if not key.tag.endswith(":merge")]
            tree = _Mapping(self.construct_mapping(node, deep=True))
            tree.lines = {}
            for key, place in ((self.construct_object(key), key) for key in own):
                if key in tree.lines:
                    raise refusal(f"duplicate key {key!r}", place)
                tree.lines[key] = place.start_mark.line + 1
            return tree

        def construct_seq(self, node: Any) -> _Sequence:
            tree = _Sequence(self.construct_sequence(node, deep=True))
            tree.lines = [item.start_mark.line + 1 for item in node.value]
            return tree

    for kind, pattern in _SCALARS.items():
        test = re.compile(f"(?:{pattern})$")
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", test, None)
    for kind in ("int", "map", "seq"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", getattr(Loader, f"construct_{kind}"))
    return Loader


def validate(path: Path, tree: Any, model: type[Model]) -> Model:
    """Read ``tree`` (from :func:`load_yaml`) as a pydantic ``model``.

    Args:
        path: the file, for errors.
        tree: what it holds.
        model: the class to make of it.

    Raises:
        BadFile: it names the file, line, field and value of the first thing that is wrong.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise _first_error(path, tree, model, error.errors(include_url=False)[0]) from None


@cache
def named(path: Path, kind: Callable[..., Item], *within: str) -> dict[str, Item]:
    """Read the entries of a YAML file's mapping, each as ``kind(name=…, …)``, once.

    Args:
        path: the file.
        kind: the class of an entry.
        within: the keys that lead to the mapping.

    Raises:
        BadFile: ``kind`` refuses an entry, or takes other fields.
    """
    entries = tree = load_yaml(path)
    for part in within:
        entries = entries[part]
    items = {}
    for name, fields in entries.items():
        try:
            items[name] = kind(name=name, **fields)
        except (TypeError, UsageError) as error:
            problem = f"{name}: {error}"
            raise BadFile(path, problem, line=line_of(tree, (*within, name))) from None
    return items


def bad_field(
    path: Path,
    tree: Any,
    location: tuple[int | str, ...],
    problem: str,
    *,
    value: object = None,
    valid: str = "",
) -> BadFile:
    """Make the error that what stands at ``location`` of ``tree`` has a ``problem``, with its line.

    Args:
        path: the file.
        tree: what it holds.
        location: the keys and indices that lead to the field.
        problem: what is wrong.
        value: what was found there.
        valid: what would be right.
    """
    field = ".".join(map(str, location)) or "(whole file)"
    line = line_of(tree, location)
    return BadFile(path, problem, line=line, field=field, value=value, valid=valid)


def _first_error(path: Path, tree: Any, model: type[BaseModel], error: ErrorDetails) -> BadFile:
    """Turn pydantic's first error into one of the file."""
    location = error["loc"]
    value = error.get("input")
    shown = value if isinstance(value, str | int | float | bool) else None
    expected = str(error.get("ctx", {}).get("expected", "")) or _valid(model, location)
    return bad_field(path, tree, location, error["msg"], value=shown, valid=expected)


def _valid(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """Say what the model allows at ``location``: its description, else the fields there are."""
    known: type[BaseModel] | None = model
    text = ""
    is_key = False
    for part in location:
        if isinstance(part, int) or known is None or is_key:
            is_key = False  # an item of a list or a mapping: the model is the item's own
            continue
        if part not in known.model_fields:
            return f"the fields {', '.join(known.model_fields)}"
        annotation = known.model_fields[part].annotation
        text = known.model_fields[part].description or ""
        known = _model_inside(annotation)
        is_key = get_origin(annotation) is dict
    return text


def _model_inside(annotation: Any) -> type[BaseModel] | None:
    """Find the model in an annotation such as ``list[Model]``."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_inside, get_args(annotation))), None)


def line_of(tree: Any, location: tuple[int | str, ...]) -> int | None:
    """Find the line, from 1, of the deepest part of ``location`` that a file's ``tree`` has."""
    line: int | None = None
    node = tree
    for part in location:
        try:
            inner = node[part]
            line = node.lines[part] if isinstance(node, _Mapping | _Sequence) else line
        except (KeyError, IndexError, TypeError):
            break
        node = inner
    return line
