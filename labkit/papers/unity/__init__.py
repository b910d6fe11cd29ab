"""Unity (OSDI 2022): algebra and layouts of a network, optimised together or one after the other.

``terms`` has parallel computation graphs and their numbers, ``rules`` reads the authors' rules and
tries them, ``costs`` prices a graph, ``layouts`` finds the best layouts of a graph, ``search`` the
best graph, ``networks`` and ``study`` make the experiment, ``figures`` draws.
"""

from labkit.papers.unity.costs import Machine
from labkit.papers.unity.figures import figure_gain, figure_idea, figure_times, figure_verdicts
from labkit.papers.unity.layouts import best_layouts
from labkit.papers.unity.rules import (
    Rule,
    Verdict,
    matches,
    read_rules,
    reduction,
    same_numbers,
    tried,
    written,
)
from labkit.papers.unity.search import equal_steps, search
from labkit.papers.unity.study import (
    Library,
    Outcome,
    Setting,
    Way,
    by_width,
    kept_apart,
    measures,
    table,
)
from labkit.papers.unity.terms import (
    CHANNELS,
    COPIES,
    SAMPLES,
    Misplaced,
    Op,
    Term,
    evaluate,
    layout,
    leaf,
    numbers_for,
    replaced,
    term,
    terms_of,
    words,
)

__all__ = [
    "CHANNELS",
    "COPIES",
    "SAMPLES",
    "Library",
    "Machine",
    "Misplaced",
    "Op",
    "Outcome",
    "Rule",
    "Setting",
    "Term",
    "Verdict",
    "Way",
    "best_layouts",
    "by_width",
    "equal_steps",
    "evaluate",
    "figure_gain",
    "figure_idea",
    "figure_times",
    "figure_verdicts",
    "kept_apart",
    "layout",
    "leaf",
    "matches",
    "measures",
    "numbers_for",
    "read_rules",
    "reduction",
    "replaced",
    "same_numbers",
    "search",
    "table",
    "term",
    "terms_of",
    "tried",
    "words",
    "written",
]
