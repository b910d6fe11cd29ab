"""Results to show: slides and pages that work with no network, the site, the scoreboard."""

from labkit.workbook.export.decks import Written, write_slides
from labkit.workbook.export.site import Report, write_reference, write_scoreboard, write_site
from labkit.workbook.export.sweeps import write as write_sweep

__all__ = [
    "Report",
    "Written",
    "write_reference",
    "write_scoreboard",
    "write_site",
    "write_slides",
    "write_sweep",
]
