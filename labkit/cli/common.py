"""What several commands share: the names that the shell completes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from labkit.errors import LabkitError
from labkit.files import project_root


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Completes a word to one of ``names`` for the shell; to nothing where there is no workbook."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names() if name.startswith(incomplete)]
        except LabkitError:
            return []

    return complete


def _notebooks() -> Iterable[str]:
    from labkit.workbook import notebooks

    return notebooks.paths(project_root())


complete_notebooks = completing(_notebooks)
