"""``numba.njit``, with a clear error where what it compiles can be kept nowhere on disk, and with
loops that Ctrl-C ends.

Compiling anew in each process would take longer than most answers, so what is compiled is kept.

Compiled code runs no Python, and so no handler of a signal: by itself a loop of an hour ignores
Ctrl-C for an hour. Every loop whose steps a user's value can make many therefore calls
:func:`hear` each so many steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from labkit.errors import LabkitError

_thread = threading.local()


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


def pause() -> None:
    """Run what Python owes: handlers of signals, and the end of a thread that was told to stop.

    Raises:
        KeyboardInterrupt: the block of :func:`threads` that this thread belongs to has failed.
    """
    stop = getattr(_thread, "stop", None)
    if stop is not None and stop.is_set():
        raise KeyboardInterrupt


@intrinsic
def _hear(typing_context: Any, step: Any, every: Any) -> Any:
    """Let Python hear Ctrl-C at each ``every``-th step of a compiled loop, in a microsecond or two.

    It calls :func:`pause`, and what that raises ends the compiled call as it is. (With ``objmode``,
    numba's own way, an interrupt becomes a SystemError: numba runs Python before it looks for
    errors.) What the loop's arrays held then stays in memory until the process ends.

    Args:
        step: the number of the step, an integer.
        every: a power of two.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, period = arguments
        place = builder.and_(number, builder.sub(period, ir.Constant(period.type, 1)))
        with cgutils.if_unlikely(builder, cgutils.is_null(builder, place)):
            # 1. Take Python's lock, which a loop with ``nogil`` does not hold, and call.
            api = context.get_python_api(builder)
            lock = api.gil_ensure()
            kind = ir.FunctionType(api.pyobj, [api.cstring])
            known = cgutils.get_or_insert_function(builder.module, kind, "PyImport_AddModule")
            name = context.insert_const_string(builder.module, __name__)
            module = builder.call(known, [name])  # borrowed: it counts no reference
            function = api.object_getattr_string(module, pause.__name__)
            answer = api.call_function_objargs(function, ())
            api.decref(function)
            api.decref(answer)
            api.gil_release(lock)
            # 2. Without an answer there is an exception, and it is set already.
            with cgutils.if_unlikely(builder, cgutils.is_null(builder, answer)):
                context.call_conv.return_exc(builder)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


hear = cast("Callable[[int, int], None]", _hear)  # as compiled code calls it


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for compiled loops. Where the block fails, by Ctrl-C too, the loops end with it.

    Python tells signals to its first thread alone.
    """
    stop = threading.Event()
    pool = ThreadPoolExecutor(count, initializer=setattr, initargs=(_thread, "stop", stop))
    try:
        yield pool
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
