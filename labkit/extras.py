"""What an installation may lack, and the sentence that says how to get it.

The package is imported as ``labkit`` and installed as :data:`DISTRIBUTION`, which brings what the
engines need; what runs notebooks, computes in torch or serves JupyterLab is an extra of its own
(``pyproject.toml``). Code that cannot go on without one calls :func:`need` before it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from labkit.errors import UsageError

DISTRIBUTION = "mlsys-labkit"
"""The name to install by. ``labkit`` itself is somebody else's package on the public index."""


def command(extra: str) -> str:
    """What to type for an extra of labkit.

    >>> command("torch")
    "pip install 'mlsys-labkit[torch]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


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
    memory.check needs torch, which is not installed here: pip install 'mlsys-labkit[torch]'
    """
    verb = "is" if len(missing) == 1 else "are"
    return UsageError(
        f"{what} needs {' and '.join(missing)}, which {verb} not installed here: {command(extra)}"
    )
