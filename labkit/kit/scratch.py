"""Temporary folders that go with their process, or, where it was killed, with the next to look."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RANKS = "labkit-ranks-"
"""How the folders of :func:`labkit.kit.ranks.on_ranks` are named."""


def claimed(prefix: str, base: str | None = None) -> tuple[Path, int]:
    """Make a temporary folder that this process holds a lock on, and return both.

    A process that is killed leaves the folder, but not the lock: :func:`sweep` removes it.

    Args:
        prefix: how its name begins.
        base: where it stands; default: where temporary files go.
    """
    import fcntl  # not everywhere: who only loads this must not fail

    where = Path(base or tempfile.gettempdir())
    unheld = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=where))
    lock = os.open(unheld, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = where / unheld.name.removeprefix(".")
    unheld.rename(folder)  # only now a name that others sweep
    return folder, lock


@contextmanager
def folder(prefix: str) -> Iterator[Path]:
    """Give a block a folder as :func:`claimed` makes it, and remove it at the end."""
    made, lock = claimed(prefix)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def sweep(prefix: str, base: str | None = None) -> None:
    """Remove the folders of :func:`claimed` whose process was killed."""
    import fcntl

    for left in Path(base or tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # held, or another user's
            lock = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
