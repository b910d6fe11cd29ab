"""EnvPipe's figure of the energy valley."""

from __future__ import annotations

import pandas as pd

from labkit import pipeline
from labkit.papers import envpipe

ROWS = [  # one stage whose least energy lies at 1,200 MHz, and whose least above waiting at 1,000
    (0, kind, mhz, factor * seconds, factor * joules)
    for kind, factor in (("forward", 1.0), ("backward", 2.0))
    for mhz, seconds, joules in ((1400, 1.0, 400.0), (1200, 1.2, 380.0), (1000, 1.5, 385.0))
]
COLUMNS = ["stage", "instruction", "frequency", "time", "energy"]


def test_the_valley_is_marked_where_it_is() -> None:
    table = pd.DataFrame(ROWS, columns=COLUMNS)
    profile = pipeline.EnergyProfile.from_frame(table, blocking_power_w=80.0)
    figure = envpipe.figure_valley(profile.stage_table(0))
    assert [trace.name for trace in figure.data] == ["energy", "above waiting"]
    assert [note.x for note in figure.layout.annotations] == [1200, 1000]
