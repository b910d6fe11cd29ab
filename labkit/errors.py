"""Errors meant for people: one paragraph that says what is wrong and what would be right."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path


class LabkitError(Exception):
    """Something failed. The command line prints the message, no traceback, and exits with 1."""

    exit_code = 1


class UsageError(LabkitError):
    """The request itself is wrong: an unknown key, a bad option, a bad file. It exits with 2."""

    exit_code = 2


class BadValue(UsageError, ValueError):
    """A value breaks a rule; the message names the value and the rule. Also a ``ValueError``."""


class BadFile(UsageError):
    """A file of the project's does not say what it must.

    The message names the file, the line, the field, the value found and what would be valid.
    """

    def __init__(
        self,
        path: Path,
        problem: str,
        *,
        line: int | None = None,
        field: str = "",
        value: object = None,
        valid: str = "",
    ) -> None:
        self.path = path
        self.problem = problem
        self.line = line
        self.field = field
        self.value = value
        self.valid = valid
        name = in_short(str(path), most=1000)
        where = f"{name}:{line}" if line is not None else name
        parts = [f"{where}: {problem}"]
        if field:
            parts.append(f"field {field!r}")
        if value is not None:
            parts.append(f"found {shown(value)}")
        if valid:
            parts.append(f"valid: {valid}")
        super().__init__("; ".join(parts))


_RIGHTS = "give yourself the right to read and write there"
_REMEDIES = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room within your quota",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "mount that file system writable",
    errno.ENOLCK: "use a file system that has locks, or one whose lock server answers",
    errno.EIO: "look at that disk: it failed",
}


def refused(error: OSError) -> LabkitError | None:
    """Explain that a disk refused to do its work, with the remedy; None for any other error.

    >>> print(refused(OSError(errno.ENOSPC, "No space left on device", "results/a")))
    results/a: No space left on device; make room on that disk, then repeat what you did
    """
    if error.errno not in _REMEDIES:
        return None
    path = f"{error.filename}: " * bool(error.filename)
    remedy = _REMEDIES[error.errno]
    return LabkitError(f"{path}{error.strerror}; {remedy}, then repeat what you did")


MOST_LISTED = 40
"""Names that an error lists; of more it names the nearest."""
_LIKENESS = 0.55
_LEAST_BEGINNING = 3  # letters


def nearest(
    value: object, valid: Iterable[str], *, most: int = 3, likeness: float = _LIKENESS
) -> list[str]:
    """Find the valid names most like ``value``, the most like first; case does not matter.

    A name that has parts, such as ``metric.time_s``, is also found by its last one, and any name by
    three letters or more that it begins with.

    Args:
        value: what was said.
        valid: the names there are.
        most: how many names to find.
        likeness: from 0 to 1, the least that one must have.

    >>> nearest("Time", ["run.slug", "metric.time_s"])
    ['metric.time_s']
    """
    import difflib

    spelled: dict[str, dict[str, None]] = {}
    for name in valid:
        last = name.rpartition(".")[2]
        for part in (name, last if last[:1].isalpha() else name):
            spelled.setdefault(part.casefold(), {})[name] = None
    text = (value if isinstance(value, str) else shown(value)).casefold()
    found = difflib.get_close_matches(text, spelled, n=len(spelled) or 1, cutoff=likeness)
    if len(text) >= _LEAST_BEGINNING:
        found += [name for name in spelled if name.startswith(text)]
    return list(dict.fromkeys(name for each in found for name in spelled[each]))[:most]


def shown(value: object) -> str:
    """Show a value on one short line, whatever it is: even a data frame, or a number that Python
    does not print.

    >>> shown("x" * 5000)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxxx'"
    >>> shown(10**5000)
    'a whole number of thousands of digits'
    """
    import reprlib

    short = reprlib.Repr()
    short.maxstring = 60
    short.maxother = 60
    short.maxlong = 60
    try:
        return " ".join(short.repr(value).split())
    except ValueError:  # Python prints no integer of more than 4,300 digits
        return "a whole number of thousands of digits"


def in_short(text: str, *, most: int = 300) -> str:
    """Give a text itself, or its beginning and end where it is longer than so many letters.

    >>> in_short("no such file")
    'no such file'
    >>> in_short("x" * 301)
    'xxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxxx'
    """
    return text if len(text) <= most else shown(text)[1:-1]


def did_you_mean(value: object, valid: Iterable[str], *, most: int = 3) -> str:
    """Ask whether one of the valid names most like ``value`` was meant; empty where none is like
    it.

    Args:
        value: what was said.
        valid: the names there are.
        most: how many names to ask about.

    >>> did_you_mean("1f1", ["gpipe", "1f1b"])
    "did you mean '1f1b'?"
    """
    near = nearest(value, valid, most=most)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


def not_among(what: str, value: object, valid: Iterable[str], *, more: str = "") -> UsageError:
    """Make the error that ``value`` is no ``what``: what it may have meant, and all there are.

    Args:
        what: the kind of thing.
        value: what was said.
        valid: the names there are; of more than :data:`MOST_LISTED` the nearest alone are named.
        more: what lists them all, or brings more.

    >>> print(not_among("schedule", "1f1", ["gpipe", "1f1b"]))
    no schedule '1f1'; did you mean '1f1b'? There are: gpipe, 1f1b
    >>> print(not_among("column", "foo", map(str, range(500)), more="`labkit results` shows them"))
    no column 'foo'; there are 500, the nearest are 99, 98, 97; `labkit results` shows them
    """
    names = list(dict.fromkeys(valid))
    hint = did_you_mean(value, names)
    there = "There" if hint else "there"
    if len(names) <= MOST_LISTED:
        listed = f"{there} are: {', '.join(names) or 'none'}"
    elif hint:
        listed = f"There are {len(names)}"
    else:
        near = ", ".join(nearest(value, names, likeness=0))
        listed = f"there are {len(names)}, the nearest are {near}"
    ending = f"; {more}" if more else ""
    return UsageError(f"no {what} {shown(value)}; {hint + ' ' if hint else ''}{listed}{ending}")
