"""What an installation may lack, and the sentence that says how to get it.

``pip install labkit`` brings what the engines need; what runs notebooks, computes in torch or
serves JupyterLab is an extra of its own (``pyproject.toml``). Code that cannot go on without one
calls :func:`need` before it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from labkit.errors import UsageError


def need(what: str, extra: str, *packages: str) -> None:
    """Raise unless ``packages`` can be imported; none of them is.

    Args:
        what: who needs them, as the sentence's subject, such as ``memory.check``.
        extra: the extra of labkit that brings them, such as ``torch``.
        packages: names as they are imported.

    Raises:
        UsageError: one is missing; the message says how to install it.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise lacking(what, missing, extra)


def lacking(what: str, missing: Sequence[str], extra: str) -> UsageError:
    """The error that ``what`` lacks the packages ``missing``, which ``extra`` would bring.

    >>> print(lacking("memory.check", ["torch"], "torch"))
    memory.check needs torch, which is not installed here: pip install 'labkit[torch]'
    """
    verb = "is" if len(missing) == 1 else "are"
    return UsageError(
        f"{what} needs {' and '.join(missing)}, which {verb} not installed here: "
        f"pip install 'labkit[{extra}]'"
    )
