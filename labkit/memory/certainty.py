"""How sure an answer is: its error on the measured peaks that are most like it.

The peaks are those of ``data/measured/gpu_peaks.yaml``; nothing is fitted to them, so each error is
that of a prediction. What they are (``data/measured/gpu_peak_errors.csv``) is computed once, since
all of them take seconds where an estimate takes a millisecond; a test computes them again, and
``python -m labkit.memory.certainty`` renews the file.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import files
from labkit.kit.describe import checked
from labkit.memory.jobs.adapter import KIND_NAMES, Adapter
from labkit.memory.plans import frameworks
from labkit.memory.plans.plan import Plan
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd

    from labkit.memory.jobs.batch import Batch
    from labkit.memory.jobs.recipe import Recipe

ERRORS = "data/measured/gpu_peak_errors.csv"
AT_LEAST = 3  # peaks that stand for an answer, and all that are as near as the last of them


@dataclass(frozen=True, kw_only=True)
class Known:
    """A measured peak with our error on it, and what kind of run it was."""

    run: str
    framework: str
    kind: str
    measured_bytes: int
    predicted_bytes: int
    error: float
    features: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Certainty:
    """What measured peaks say of an answer.

    Attributes:
        framework: whose peaks were looked at; None for all.
        nearest: the peaks most like the plan, nearest first: run, framework, kind, measured_bytes,
            predicted_bytes, error (predicted over measured, less 1), and how it differs: what it
            has in place of what the plan has, in words.
        worst: the largest error of the nearest, without its sign; NaN where there is none.
        num_peaks, worst_of_all: how many peaks of that framework there are, and the largest error.
        detailed: whether the plan has moments, and so can be held against a measured peak.
        traced: whether its network is traced; the measured peaks are of closed forms.
        elsewhere: the plan's features that only other frameworks' peaks have.
        unmeasured: its features that no peak has.
    """

    framework: str | None
    nearest: pd.DataFrame
    worst: float
    num_peaks: int
    worst_of_all: float
    detailed: bool
    traced: bool
    elsewhere: tuple[str, ...]
    unmeasured: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """The error in two words."""
        return "not measured" if math.isnan(self.worst) else f"within {_percent(self.worst)}"

    @property
    def reason(self) -> str:
        """On which peaks, and what of the plan nobody measured, in a sentence without its end."""
        whose = f"of {self.framework}" if self.framework else "of all frameworks (none is named)"
        if not self.detailed:
            return "the papers' arithmetic has no moments to hold against a measured peak"
        if self.traced:
            return (
                "the peaks with known errors are of decoders in closed form; the few of traced"
                " networks stand in `labkit memory peaks --traced`"
            )
        if math.isnan(self.worst):
            return f"no measured peak {whose} is known"
        like = "" if self.nearest["differs"].eq("").any() else ", none of them like it in all"
        few = len(self.nearest)
        many = self.num_peaks
        text = f"on the only measured peak {whose}{', which is not like it in all' if like else ''}"
        if 1 < few == many:
            text = f"on all {many} measured peaks {whose}{like}"
        elif few < many:
            text = (
                f"on the {few} nearest of {many} measured peaks {whose}{like}; on all {many} within"
                f" {_percent(self.worst_of_all)}"
            )
        if self.unmeasured:
            text += f"; nothing measured with {_listed(self.unmeasured)}"
        if self.elsewhere:
            text += f"; with other frameworks only: {_listed(self.elsewhere)}"
        return text

    def covers(self, margin_bytes: float, peak_bytes: float) -> bool:
        """Tell whether an error as large as the worst would change if something fits."""
        return abs(margin_bytes) <= self.worst * peak_bytes

    def data(self) -> dict[str, Any]:
        """What JSON has of it."""
        from labkit.kit.report import records

        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "framework": self.framework,
            "worst_error": self.worst,
            "num_peaks": self.num_peaks,
            "worst_error_of_all": self.worst_of_all,
            "unmeasured": list(self.unmeasured),
            "elsewhere": list(self.elsewhere),
            "nearest": records(self.nearest),
        }


def _percent(error: float) -> str:
    """An error, rounded up to what it is within.

    >>> _percent(0.0401), _percent(0.0004)
    ('4.1 %', '0.1 %')
    """
    return f"{math.ceil(error * 1000) / 10:g} %"


def _listed(names: Iterable[str]) -> str:
    """Names in a row, the last two joined by "or"."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


_DEGREES = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
PRECISIONS = (
    "autocast",
    "fp32 throughout",
    "fp32 weights, computed with in 16 bits",
    "a frozen 16-bit base",
    "a frozen 16-bit base under autocast",
    "16-bit weights with a master copy",
    "16-bit weights alone",
)
"""How numbers are kept: one of these."""


@checked
def features(plan: Plan) -> frozenset[str]:
    """What kind of run a plan is, in words: what its memory follows other rules for.

    >>> from labkit.memory.jobs.batch import Batch
    >>> sorted(features(Plan(model=Model.preset("gpt2-124m"), batch=Batch(seq=64))))
    ['16-bit weights with a master copy', 'ZeRO stage 0', 'no recomputation']
    """
    parallel = plan.parallel
    recipe = plan.recipe
    found = {f"ZeRO stage {parallel.zero}", _precision(recipe)}
    cut = [word for name, word in _DEGREES.items() if getattr(parallel, name) > 1]
    found |= {f"{word} parallelism" for word in cut}
    if parallel.pp > 1 and len(parallel.stages(0)) > 1:
        found.add("several stages a rank")
    if plan.batch is not None:
        again = plan.batch.recompute
        word = "full" if again == 1 else "every k-th layer" if isinstance(again, int) else again
        found.add("no recomputation" if word == "none" else f"recomputation ({word})")
    if recipe.adapter is not None:
        found |= _of_adapter(recipe.adapter)
    if recipe.optimizer != "adam":
        found.add(f"the optimizer {recipe.optimizer}")
    if recipe.in_backward:
        found.add("a step inside the backward pass")
    if recipe.trained:
        found.add("a trained part")
    if recipe.paged or _moves(recipe) or _moves(plan.batch):
        found.add("offloading")
    if isinstance(plan.model, Model):
        found |= {"experts"} if plan.model.num_experts else set()
        found |= {"latent attention"} if plan.model.kv_rank else set()
    return frozenset(found)


def _of_adapter(adapter: Adapter) -> set[str]:
    """What kind of adapter it is, and on what base."""
    found = {"adapters"}
    if adapter.is_prompt:
        found.add("virtual tokens")
    elif adapter.kind != "lora":
        found.add(KIND_NAMES[adapter.kind])
    if adapter.packed:
        found.add("a 4-bit base")
    if adapter.rest == "fp32":
        found.add("norms, embeddings and head in fp32 beside it")
    return found


def _precision(recipe: Recipe) -> str:
    """How numbers are kept, in words."""
    frozen = recipe.adapter is not None and recipe.parameter_bytes < 4
    kinds = (
        recipe.autocast and not frozen,
        recipe.compute_bytes == 4,
        recipe.parameter_bytes == 4,
        frozen and not recipe.autocast,
        frozen,
        recipe.master is not None,
        True,
    )
    return PRECISIONS[kinds.index(True)]


def _moves(part: Recipe | Batch | None) -> bool:
    """Whether a part of a plan keeps anything off the device."""
    if part is None:
        return False
    names = [field.name for field in fields(part) if field.name.startswith("offload")]
    places = [getattr(part, name) for name in names]
    return any(isinstance(place, str) and place != "device" for place in places)


@lru_cache(maxsize=4)
def _known(path: Path) -> tuple[Known, ...]:
    """The measured peaks with our errors, as they are stored."""
    with path.open(encoding="utf-8", newline="") as rows:
        return tuple(
            Known(
                run=row["run"],
                framework=row["framework"],
                kind=row["kind"],
                measured_bytes=int(row["measured_bytes"]),
                predicted_bytes=int(row["predicted_bytes"]),
                error=int(row["predicted_bytes"]) / int(row["measured_bytes"]) - 1,
                features=frozenset(row["features"].split("; ")),
            )
            for row in csv.DictReader(rows)
        )


@checked
def of(plan: Plan, framework: str | None = None) -> Certainty:
    """How far off we are on the measured peaks that are most like ``plan``.

    Peaks of the framework are looked at; nearest are those that differ in the fewest
    :func:`features`, and among these the ones whose size is the most alike. At least three stand
    for the answer, and all that are as near as the third.

    Args:
        plan: what was asked.
        framework: whose defaults it has, a name of :data:`FRAMEWORKS`; None: all peaks are looked
            at, though a plan without a framework's options is nobody's run.

    Raises:
        UsageError: there is no framework of that name.

    >>> from labkit.memory import FRAMEWORKS
    >>> plan = FRAMEWORKS["torchtitan"].plan(Model.preset("llama-3-8b"), dp=8, cp=2, seq=8192)
    >>> of(plan, "torchtitan").elsewhere
    ('context parallelism',)
    """
    import pandas as pd

    every = _known(files.shipped(ERRORS))
    if framework is not None:
        frameworks.framework(framework)
    comparable = plan.detailed and not plan.traced
    among = [known for known in every if framework in (None, known.framework) and comparable]
    asked = features(plan)
    near = sorted(among, key=lambda known: _distance(plan, asked, known))
    if near:
        edge, _ = _distance(plan, asked, near[min(AT_LEAST, len(near)) - 1])
        near = [known for known in near if len(_differences(asked, known.features)) <= edge]
    rows = [
        {
            "run": known.run,
            "framework": known.framework,
            "kind": known.kind,
            "measured_bytes": known.measured_bytes,
            "predicted_bytes": known.predicted_bytes,
            "error": known.error,
            "differs": ", ".join(_differences(asked, known.features)),
        }
        for known in near
    ]
    here = frozenset[str]().union(*(known.features for known in among))
    anywhere = frozenset[str]().union(*(known.features for known in every))
    return Certainty(
        framework=framework,
        nearest=pd.DataFrame(rows),
        worst=max((abs(known.error) for known in near), default=math.nan),
        num_peaks=len(among),
        worst_of_all=max((abs(known.error) for known in among), default=math.nan),
        detailed=plan.detailed,
        traced=plan.traced,
        elsewhere=tuple(sorted((asked - here) & anywhere)),
        unmeasured=tuple(sorted(asked - anywhere)),
    )


def _distance(plan: Plan, asked: frozenset[str], known: Known) -> tuple[int, float]:
    """How unlike a peak is: features that differ, then how far its size is."""
    ratio = max(1.0, float(plan.peak_bytes)) / known.measured_bytes
    return len(_differences(asked, known.features)), abs(math.log(ratio))


def _differences(asked: frozenset[str], there: frozenset[str]) -> list[str]:
    """What a peak has in place of what the plan has."""
    missed = [name for name in sorted(asked - there) if not _is_choice(name)]
    lacking = [f"no {name.removeprefix('a ')}" for name in missed]
    return [*lacking, *sorted(there - asked)]


def _is_choice(feature: str) -> bool:
    """Whether every run has this feature or another in its place."""
    return feature in PRECISIONS or "recomputation" in feature or feature.startswith("ZeRO stage")


def table() -> list[dict[str, str]]:
    """The rows of :data:`ERRORS`, computed now: every peak beside ours, and its features."""
    from labkit.memory import published

    runs = published.peaks()
    rows = published.peak_errors()
    kept = ("run", "framework", "kind", "measured_bytes", "predicted_bytes")
    texts = [dict(zip(kept, map(str, row), strict=True)) for row in rows[[*kept]].to_numpy()]
    for text in texts:
        text["features"] = "; ".join(sorted(features(runs[text["run"]].plan)))
    return texts


def _renew(path: Path) -> None:
    """Compute the errors again and write them."""
    rows = table()
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    _renew(files.shipped(ERRORS))
