"""What a notebook imports: ``from labkit import workbook``.

Each name loads its module on first use, and none of them pulls in the runner, the exporter or the
queue, so that a notebook's kernel starts fast.
"""

import lazy_loader

_HOMES = {  # where each public name comes from
    "review.explore": ("explore",),
    "review.paper": ("Paper", "open_paper"),
    "review.predict": ("Guess", "predict"),
    "review.tables": ("Table", "table"),
}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
