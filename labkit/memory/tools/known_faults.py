"""Known faults of estimators, each with a case that shows it: what the tool gives, what is right.

:func:`faults` names them; ``fault.show()`` runs a case, :func:`fault_table` all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.errors import not_among
from labkit.memory.tools import framework_faults, peer_faults
from labkit.memory.tools.conventions import CONVENTIONS
from labkit.memory.tools.fault import Fault

if TYPE_CHECKING:
    import pandas as pd

FAULTS: tuple[Fault, ...] = (*framework_faults.FOUND, *peer_faults.FOUND)


def faults(convention: str) -> tuple[Fault, ...]:
    """The known faults of a convention; none for ``zero-paper`` and ``torch``.

    Raises:
        UsageError: there is no such convention.

    >>> faults("cookbook")[0].name, faults("cookbook")[0].show().share
    ('divided twice', 0.125)
    """
    if convention not in CONVENTIONS:
        raise not_among("convention", convention, CONVENTIONS)
    return tuple(fault for fault in FAULTS if fault.convention == convention)


def fault_table() -> pd.DataFrame:
    """Every known fault with its case: bytes told, bytes that are right, the one over the other."""
    import pandas as pd

    rows = []
    for fault in FAULTS:
        seen = fault.show()
        row: dict[str, Any] = {
            "convention": fault.convention,
            "fault": fault.name,
            "case": fault.case,
        }
        row |= {"told_bytes": seen.told_bytes, "right_bytes": seen.right_bytes}
        row |= {"told_over_right": seen.share, "right": fault.right, "sentence": fault.sentence}
        rows.append(row)
    return pd.DataFrame(rows)
