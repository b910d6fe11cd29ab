"""An engine's command line from declarations: a function, its options, its examples.

    commands = Commands("memory", "Training memory: the peak and its moment.")

    @commands.add(examples=["labkit memory plan llama-2-7b --dp 64"])
    def plan(job: Job, *, explain: Annotated[str, option("Explain a component.")] = "") -> Report:
        '''The bytes of one rank: at the peak, at each moment, and what is sent.'''

Each field of a parameter that is a dataclass becomes an option, and so does each parameter with
``option(...)``; one of type :class:`Output` says where the report goes. The function returns a
:class:`labkit.kit.report.Report`; ``--json``, ``--html`` and ``--csv`` are every command's. Options
that are texts with units are read by the parsers below.
"""

from __future__ import annotations

import functools
import inspect
import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from labkit.errors import LabkitError, UsageError, shown
from labkit.files import write_atomically
from labkit.kit.report import Report
from labkit.quantities import BYTES

_BYTES = {"": 1} | {unit.lower(): size for unit, size in BYTES.items()}
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)")
_OUTPUTS = """
    Every command takes [cyan]--json FILE[/cyan] (keys end in their unit, a _fraction of 0.05 is
    5 %, null is what is missing), [cyan]--html FILE[/cyan] for a page with figures, and
    [cyan]--csv FILE[/cyan] for its rows; a FILE of [cyan]-[/cyan] is standard output.
"""


def option(
    help: str, *names: str, panel: str | None = None, complete: Any = None, **more: Any
) -> Any:
    """Declare a command's option, for ``Annotated[type, option(...)]``.

    Args:
        help: a sentence for ``--help``.
        names: its spellings; default: the field's name with hyphens.
        panel: the group in ``--help``; default: the ``PANEL`` of the dataclass, if it has one.
        complete: the names there are, as a function, for the shell's completion.
        more: what Typer's ``Option`` takes (``metavar``, ``min``).
    """
    completion = complete and completing(complete)
    return typer.Option(*names, help=help, rich_help_panel=panel, autocompletion=completion, **more)


def argument(help: str, *, metavar: str | None = None, complete: Any = None) -> Any:
    """Declare a command's positional argument, for ``Annotated[type, argument(...)]``.

    Args:
        help: a sentence for ``--help``.
        metavar: what stands for it there; default: its name in capitals.
        complete: the names there are, as a function, for the shell's completion.
    """
    return typer.Argument(
        help=help, metavar=metavar, autocompletion=complete and completing(complete)
    )


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Complete a word to one of ``names``, for the shell; it is a plain function, as Typer asks."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names() if name.startswith(incomplete)]
        except LabkitError:  # outside a checkout there is nothing to complete from
            return []

    return complete


def is_stdout(path: Path | None) -> bool:
    """Tell whether an output's path means standard output: ``-``, or its device."""
    return str(path) in ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


Written = TypeVar("Written")


def deliver(path: Path, write: Callable[[Path], Written]) -> Written:
    """Have ``write`` write its file at ``path``, or to standard output where that is ``-``.

    Raises:
        LabkitError: it cannot be written there.
    """
    try:
        if not is_stdout(path):
            return write(path)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "output"
            written = write(file)
            content = file.read_bytes()
        _to_stdout(content)
        return written
    except OSError as error:
        raise cannot_write(error, path) from None


def _to_stdout(content: bytes) -> None:
    """Write a file's bytes, which are UTF-8 whatever the terminal's encoding is."""
    sys.stdout.flush()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.buffer.write(content)
    else:
        sys.stdout.write(content.decode())
    sys.stdout.flush()


def cannot_write(error: OSError, path: Path | None = None) -> LabkitError:
    """Make the error that an output cannot be written, from the system's own.

    Args:
        error: what the system said.
        path: the output; default: the error's file, or else standard output.
    """
    place = "standard output" if is_stdout(path) else path or error.filename or "standard output"
    return LabkitError(f"cannot write {place}: {error.strerror or error}")


@dataclass(frozen=True, kw_only=True)
class Output:
    """Says where a report goes besides the terminal."""

    json_to: Annotated[
        Path | None,
        option("Write JSON; - for standard output.", "--json", panel="Output", metavar="FILE"),
    ] = None
    html: Annotated[
        Path | None, option("Write a page with figures; needs no network.", panel="Output")
    ] = None
    csv: Annotated[Path | None, option("Write the rows as a table.", panel="Output")] = None

    @property
    def takes_stdout(self) -> bool:
        """Whether standard output is for one of the files, and the rest goes to standard error."""
        return any(map(is_stdout, (self.json_to, self.html, self.csv)))

    def show(self, report: Report) -> None:
        """Print a report, and write what is asked for; a file on standard output comes alone.

        Raises:
            UsageError: two files are to go to standard output.
            LabkitError: something cannot be written.
        """
        from rich.console import Console

        files: dict[str, tuple[Path | None, Callable[[Path], object]]] = {
            "page": (self.html, report.write_page),
            "CSV": (self.csv, lambda path: write_atomically(path, report.csv_text())),
            **report.files,
            "JSON": (self.json_to, lambda path: write_atomically(path, report.json())),
        }
        to_stdout = [kind for kind, (path, _) in files.items() if is_stdout(path)]
        if len(to_stdout) > 1:
            raise UsageError(
                f"{' and '.join(to_stdout)} cannot both go to standard output; valid: - for one "
                "of them, the path of a file for each of the others"
            )
        console = Console(highlight=False, stderr=bool(to_stdout))
        report.print(console)
        for kind, (path, write) in files.items():
            if path is not None:
                deliver(path, write)
            if path is not None and not is_stdout(path):
                console.print(f"{kind:10} {path}", markup=False, soft_wrap=True)


Command = Callable[..., Report | None]


class Commands:
    """The commands of an engine; ``app`` is their Typer application."""

    def __init__(self, name: str, help: str) -> None:
        self.name = name
        self.help = inspect.cleandoc(help)
        self.examples: list[str] = []
        self.app = typer.Typer(name=name, no_args_is_help=True, rich_markup_mode="rich")

    def add(self, *, examples: Sequence[str]) -> Callable[[Command], Command]:
        """Register a function as a command of its name; its docstring becomes the help.

        ``examples`` are whole command lines; a test runs each, so they must work as they stand.
        """

        def register(function: Command) -> Command:
            self.examples += examples
            title = function.__name__.rstrip("_").replace("_", "-")
            text = f"{inspect.getdoc(function)}\n\n{example_lines(examples)}"
            self.app.command(title, help=text)(expanded(function))
            self.app.info.help = f"{self.help}\n{_OUTPUTS}\n{example_lines(self.first_examples())}"
            return function

        return register

    def first_examples(self) -> list[str]:
        """List one example of each command."""
        by_command = {text.split()[2]: text for text in reversed(self.examples)}
        return list(reversed(by_command.values()))


def example_lines(examples: Sequence[str]) -> str:
    """Write the examples as the end of a command's help, in Typer's markup."""
    lines = "\n\n".join(f"  [cyan]{text.replace('[', chr(92) + '[')}[/cyan]" for text in examples)
    return f"[bold]Examples[/bold]\n\n{lines}"


def expanded(function: Command) -> Callable[..., None]:
    """Give ``function`` an option for each field of its dataclasses, and the outputs."""
    hints = get_type_hints(function, include_extras=True)
    hints.pop("return", None)  # a report is a dataclass too
    groups: dict[str, Any] = {n: kind for n, kind in hints.items() if is_dataclass(kind)}
    every = groups if Output in groups.values() else {**groups, "": Output}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            parameters += _fields_as_options(groups[name])
        else:
            parameters.append(
                parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name])
            )
    if "" in every:
        parameters += _fields_as_options(Output)
    names = [parameter.name for parameter in parameters]
    if twice := {name for name in names if names.count(name) > 1}:
        raise TypeError(f"options given twice: {', '.join(sorted(twice))}")

    @functools.wraps(function)
    def run(**given: Any) -> None:
        records = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in every.items()
        }
        output = next(record for record in records.values() if isinstance(record, Output))
        report = function(**{name: records[name] for name in groups}, **given)
        if report is not None:
            try:
                output.show(report)
            except OSError as error:  # of the report's own text
                raise cannot_write(error) from None
            if report.exit_code:
                raise typer.Exit(report.exit_code)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@contextmanager
def as_options(names: Mapping[str, str]) -> Iterator[None]:
    """Have an error that leaves the block speak of the command's options.

    A library's error names its arguments. Each of ``names``, argument by argument, is replaced by
    the option that gives it.

    Raises:
        UsageError: the library raised one; the text is its own but for the names.

    >>> with as_options({"overwrite=True": "--overwrite"}):
    ...     raise UsageError("a trace is there: give overwrite=True")
    Traceback (most recent call last):
    labkit.errors.UsageError: a trace is there: give --overwrite
    """
    try:
        yield
    except UsageError as error:
        said = text = str(error)
        for argument, option in names.items():
            said = said.replace(argument, option)
        if said == text:
            raise
        raise UsageError(said) from None


def _fields_as_options(kind: Any) -> Iterator[inspect.Parameter]:
    """Turn a dataclass's fields into parameters of a command, each in the panel of its class."""
    hints = get_type_hints(kind, include_extras=True)
    for name, parameter in inspect.signature(kind).parameters.items():
        for option in getattr(hints[name], "__metadata__", ()):
            if isinstance(option, typer.models.OptionInfo) and option.rich_help_panel is None:
                option.rich_help_panel = getattr(kind, "PANEL", None)
        yield parameter.replace(annotation=hints[name])


# ---------------------------------------------------------------- what texts say


def words(text: str) -> list[str]:
    """Split a text at its commas.

    >>> words("1f1b, zb-h1")
    ['1f1b', 'zb-h1']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def pairs(name: str, text: str) -> dict[str, str]:
    """Read names with their values, separated by commas.

    Raises:
        UsageError: a part has no =; the message has the option's ``name``.

    >>> pairs("--columns", "arrival_s=Start, gpus=GPUs")
    {'arrival_s': 'Start', 'gpus': 'GPUs'}
    """
    found = {}
    for part in words(text):
        key, equals, value = part.partition("=")
        if not (equals and key.strip() and value.strip()):
            raise UsageError(
                f"{name}: got {shown(part)}; valid: name=value, or several as in a=b,c=d"
            )
        found[key.strip()] = value.strip()
    return found


def numbers(name: str, text: str) -> list[float]:
    """Read numbers separated by commas.

    Raises:
        UsageError: a part is no number; the message has the option's ``name``.

    >>> numbers("--deadline", "1, 1.5")
    [1.0, 1.5]
    """
    return [_read(float, name, part, "a number, or several as in 1,1.2,1") for part in words(text)]


def whole_numbers(name: str, text: str) -> list[int]:
    """Read whole numbers separated by commas; it raises what :func:`numbers` does."""
    return [_read(int, name, part, "a whole number, or several as in 2,4") for part in words(text)]


def byte_counts(name: str, text: str) -> list[float]:
    """Read numbers of bytes separated by commas, each with a unit in any case or without.

    Raises:
        UsageError: a part is no such number; the message has the option's ``name``.

    >>> byte_counts("--memory-limit", "1.5e9, 24 gib")
    [1500000000.0, 25769803776.0]
    """
    sizes = []
    for part in words(text) or [text]:
        match = _NUMBER.fullmatch(part)
        if match is None or match[2].lower() not in _BYTES:
            raise UsageError(
                f"{name}: {shown(part)} is no number of bytes; valid: a number and a unit, such as "
                f"1.5e9, 800MB or 24GiB (units in any case: {', '.join(BYTES)})"
            )
        sizes.append(float(match[1]) * _BYTES[match[2].lower()])
    return sizes


def byte_count(name: str, text: str) -> float:
    """Read one number of bytes as :func:`byte_counts` reads several.

    Raises:
        UsageError: it is no such number, or several; the message has the option's ``name``.

    >>> byte_count("--device", "80 gb")
    80000000000.0
    """
    sizes = byte_counts(name, text)
    if len(sizes) != 1:
        raise UsageError(f"{name} must be one number of bytes; got {shown(text)}")
    return sizes[0]


def single(values: Sequence[Any]) -> Any:
    """Return the only value, or all of them: one number for every stage, or one per stage."""
    return values[0] if len(values) == 1 else list(values)


def assignments(name: str, texts: Sequence[str] | None) -> dict[str, Any]:
    """Read ``NAME=VALUE`` texts as keyword arguments; hyphens in names become underscores.

    Values are read by :func:`value_of`.

    Raises:
        UsageError: a text is no assignment; the message has the option's ``name``.

    >>> assignments("--set", ["early-forwards=2,1,0", "warmup=b"])
    {'early_forwards': [2, 1, 0], 'warmup': 'b'}
    """
    values: dict[str, Any] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise UsageError(
                f"{name} {shown(text)} is not NAME=VALUE, such as early_forwards=2,1,0"
            )
        values[key.strip().replace("-", "_")] = value_of(value.strip())
    return values


def value_of(text: str) -> Any:
    """Read a text as a whole number, a list of them, a number, true or false, or else a word.

    >>> value_of("4"), value_of("2,1"), value_of("true"), value_of("b")
    (4, [2, 1], True, 'b')
    """
    for read in (int, lambda t: [int(part) for part in t.split(",")], float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _read(kind: Callable[[str], Any], name: str, text: str, valid: str) -> Any:
    """Convert a part of an option's text, or say what would be valid."""
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{name}: {shown(text)} is no number; valid: {valid}") from None


def without_missing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keep only those keyword arguments that were given (are not None)."""
    return {name: value for name, value in values.items() if value is not None}
