"""``labkit init``: a workbook of a group's own, which the installed labkit serves.

What makes a folder a workbook is its queue (:data:`labkit.files.MARKER`). The queue is written
last, so that a folder is a whole workbook or none.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit import __version__, files
from labkit.errors import UsageError
from labkit.kit import page

PACKAGE = "labkit.workbook"
FORMAT = "data/papers/README.md"
"""The file of ours that explains a paper's facts; it travels with the package."""
TEMPLATES = {
    "README.md": "readme.j2",
    "Makefile": "makefile.j2",
    ".gitignore": "gitignore.j2",
    ".gitattributes": "gitattributes.j2",
    "data/papers.bib": "bibliography.j2",
    files.MARKER: "reading_queue.j2",
}
"""The files of a new workbook and what they are made from, the marker last."""
OF_GIT = ".git"
"""What a folder may hold already: a group often makes its repository first."""
MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Founded:
    """A new workbook: its folder, and its files, named from there."""

    folder: Path
    names: tuple[str, ...]


def found(folder: Path) -> Founded:
    """Make a workbook in ``folder``, which is made where it is missing.

    Files that say already what they would are left, so that a call that was cut short can be
    repeated.

    Args:
        folder: a folder that is empty but for git's own.

    Raises:
        UsageError: it is a workbook, is no folder, or holds files of its own; they are named.
    """
    folder = folder.expanduser().resolve()
    contents = _contents(folder)
    _refuse_what_is_there(folder, contents)
    written: list[Path] = []
    try:
        for name, text in contents.items():
            path = folder / name
            if not path.exists():
                written.append(path)
                files.write_atomically(path, text)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return Founded(folder=folder, names=tuple(contents))


def _contents(folder: Path) -> dict[str, str]:
    """The text of each file by its name, in the order of writing."""
    environment = page.environment(PACKAGE).overlay(autoescape=False)
    values = {"title": folder.name or "Our workbook", "version": __version__}
    made = {
        name: environment.get_template(template).render(values) + "\n"
        for name, template in TEMPLATES.items()
    }
    brought = files.home_of_data()
    explained = {} if brought is None else {FORMAT: files.read_text(brought / FORMAT)}
    return {"notebooks/.gitkeep": "", **explained, **made}


def _refuse_what_is_there(folder: Path, contents: Mapping[str, str]) -> None:
    """Raise where ``folder`` is a workbook, is a file, or holds what this call would not write."""
    if (folder / files.MARKER).exists():
        raise UsageError(f"{folder} is a workbook already: it holds {files.MARKER}")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; valid: an empty folder, or the name of a new one")
    ours = {folder / name: text for name, text in contents.items()}
    above = {parent for path in ours for parent in path.parents}
    theirs = [
        path.relative_to(folder).as_posix()
        for path in _entries(folder, above)
        if path != folder / OF_GIT and not _says(path, ours.get(path))
    ]
    if theirs:
        more = len(theirs) - MOST_NAMED
        listed = ", ".join(theirs[:MOST_NAMED]) + f" and {more} more" * (more > 0)
        raise UsageError(
            f"{folder} holds files of its own: {listed}; valid: an empty folder, or the name of a "
            "new one"
        )


def _entries(folder: Path, above: Container[Path]) -> Iterator[Path]:
    """What stands in ``folder``; folders that are ``above`` files of ours are entered, others and
    links are not."""
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        if path in above and path.is_dir() and not path.is_symlink():
            yield from _entries(path, above)
        else:
            yield path


def _says(path: Path, text: str | None) -> bool:
    """Whether ``path`` is a file that holds ``text`` already."""
    is_file = path.is_file() and not path.is_symlink()
    return text is not None and is_file and path.read_bytes() == files.encoded(text)
