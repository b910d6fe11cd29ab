"""Compiled loops: ``numba.njit``, with a clear error where what it compiles can be kept nowhere.

numba keeps it beside the module, else in the user's cache folder. Where neither may be written (a
shared installation, no home), compiling anew in each process would take longer than most answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from labkit.errors import LabkitError


def njit(**options: Any) -> Callable[[Any], Any]:
    def compiled(function: Any) -> Any:
        try:
            return numba.njit(**options)(function)
        except RuntimeError as error:
            if "cannot cache function" not in str(error):
                raise
            file = function.__code__.co_filename
            cause = "neither its folder nor your cache folder can be written"
            remedy = "set NUMBA_CACHE_DIR to a folder that can"
            raise LabkitError(f"{file}: no place to keep it compiled: {cause}; {remedy}") from None

    return compiled
