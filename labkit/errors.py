"""Errors meant for people: one paragraph that says what is wrong and what would be right."""

from pathlib import Path


class LabkitError(Exception):
    """Something failed. The command line prints the message, without a traceback, and exits 1."""

    exit_code = 1


class UsageError(LabkitError):
    """The request itself is wrong: an unknown key, a bad option, a malformed file. Exits 2."""

    exit_code = 2


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
        self.path, self.problem, self.line = path, problem, line
        self.field, self.value, self.valid = field, value, valid
        where = f"{path}:{line}" if line is not None else str(path)
        parts = [f"{where}: {problem}"]
        if field:
            parts.append(f"field {field!r}")
        if value is not None:
            parts.append(f"found {value!r}")
        if valid:
            parts.append(f"valid: {valid}")
        super().__init__("; ".join(parts))
