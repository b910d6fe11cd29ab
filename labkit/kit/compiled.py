"""``numba.njit``, with a clear error where what it compiles can be kept nowhere on disk.

Compiling anew in each process would take longer than most answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from labkit.errors import LabkitError


def njit(**options: Any) -> Callable[[Any], Any]:
    """Compile as ``numba.njit`` does.

    Raises:
        LabkitError: what is compiled can be kept nowhere on disk.
    """

    def compiled(function: Any) -> Any:
        try:
            return numba.njit(**options)(function)
        except RuntimeError as error:
            if "cannot cache function" not in str(error):
                raise
            raise LabkitError(
                f"{function.__code__.co_filename}: no place to keep it compiled, neither beside it "
                "nor in your cache folder; set NUMBA_CACHE_DIR to a folder that can be written"
            ) from None

    return compiled
