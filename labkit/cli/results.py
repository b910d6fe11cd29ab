"""``labkit results``, ``diff`` and ``clean``: the runs on disk shown, compared, cleared away."""

from __future__ import annotations

import sys
from collections import Counter
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from labkit.cli.run import complete_notebooks, joined
from labkit.errors import UsageError
from labkit.files import project_root
from labkit.kit.command import example_lines, expanded, option
from labkit.kit.report import Report, Sheet, records
from labkit.quantities import NOTHING, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pandas as pd

    from labkit.workbook.run.inventory import Stored
    from labkit.workbook.run.results import RunRecord

commands = typer.Typer()
_RESULTS = (
    "labkit results",
    "labkit results zeus --where eta_knob=0.5 --where state=current",
    "labkit results zeus --claims --csv claims.csv",
    "labkit results zeus --metrics",
)
_DIFFS = (
    "labkit diff 'zeus[eta_knob=0.0]' 'zeus[eta_knob=1.0]'",
    "labkit diff zeus results/zeus/seed=1",
)
_CLAIM = ("id", "kind", "paper_value", "our_value", "unit", "verdict")


def results(
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            help="Papers; none: all.", metavar="[KEY...]", autocompletion=complete_notebooks
        ),
    ] = None,
    *,
    where: Annotated[
        list[str] | None,
        option("Only runs of which it holds; = != < <= > >=. Repeatable.", metavar="COLUMN=VALUE"),
    ] = None,
    claims: Annotated[bool, option("A row a claim of each run.", "--claims")] = False,
    metrics: Annotated[bool, option("A row a metric of each run.", "--metrics")] = False,
) -> Report:
    """The runs on disk: verdicts, and whether they still hold; their claims; their metrics.

    A run is current, or stale: notebook, code or data changed since. An orphan's notebook, or one
    of its parameters, is gone; failed is what the last run left where that raised. Conditions
    name a parameter, state, slug, a claim or a metric; --json and --csv have every column.
    """
    from labkit.workbook.run import inventory

    if claims and metrics:
        raise UsageError("--claims and --metrics are two tables; valid: one of them")
    stored = list(inventory.inventory(project_root(), keys or ()))
    table = inventory.matching(inventory.table(stored), where or ())
    states = Counter(table["run.state"]) if len(table) else Counter()
    of_runs = _claims if claims else _metrics if metrics else None
    shown = of_runs(table, stored) if of_runs and len(table) else table
    runs = f"{len(stored)} run{'s' * (len(stored) != 1)}"
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    return Report(
        title=f"{len(table)} of {runs}" if where else runs,
        lead=counts or ("" if where else "no results yet: `labkit run` makes them"),
        tables=[Sheet(table=shown) if of_runs else _overview(table)][: len(shown)],
        csv=shown,
        data={"command": "results", "runs": records(shown)},
    )


def _overview(table: pd.DataFrame) -> Sheet:
    """A line a run: its name, state, verdicts and seconds."""
    if table.empty:
        return Sheet(table=table)
    columns = {
        "run.paper": "paper",
        "run.slug": "run",
        "run.state": "state",
        "verdicts": "verdicts",
    }
    columns |= {"run.duration_s": "took"} if "run.duration_s" in table.columns else {}
    shown = table.assign(verdicts=[_tally(row) for row in table.to_dict("records")])
    return Sheet(table=shown, columns={**columns, "run.reason": ""}, wide=["run.reason"])


def _tally(row: Mapping[Any, Any]) -> str:
    from labkit.workbook.review.tally import SYMBOLS

    counts = Counter(row[name] for name in row if name.startswith("verdict."))
    return "  ".join(f"{counts[v]} {SYMBOLS[v]}" for v in SYMBOLS if counts[v])


def _chosen(table: pd.DataFrame, stored: Sequence[Stored]) -> Iterator[tuple[Stored, RunRecord]]:
    """The whole results among the runs of the table."""
    chosen = set(zip(table["run.paper"], table["run.slug"], strict=True))
    for each in stored:
        if each.record and (each.key, each.folder.name) in chosen:
            yield each, each.record


def _claims(table: pd.DataFrame, stored: Sequence[Stored]) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {"paper": each.key, "run": each.folder.name, "state": each.state}
        | {name: claim[name] for name in _CLAIM}
        for each, record in _chosen(table, stored)
        for claim in record.claims
    ]
    return pd.DataFrame(rows)


def _metrics(table: pd.DataFrame, stored: Sequence[Stored]) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {"paper": each.key, "run": each.folder.name, "metric": name, "value": value}
        for each, record in _chosen(table, stored)
        for name, value in record.meta.get("metrics", {}).items()
    ]
    return pd.DataFrame(rows)


commands.command(help=f"{getdoc(results)}\n\n{example_lines(_RESULTS)}")(expanded(results))


# ---------------------------------------------------------------- two runs


def diff(
    run: Annotated[str, typer.Argument(help="KEY, KEY\\[PARAMETERS] or a folder.", metavar="RUN")],
    other: Annotated[str, typer.Argument(help="The run to compare it with.", metavar="RUN")],
) -> Report:
    """Two runs compared: parameters, claims and metrics, and what else they rest on.

    A run is named by its paper (its default parameters), by paper and parameters as
    [cyan]labkit results[/cyan] shows them, or by its folder.
    """
    from labkit.workbook.run import inventory

    pair = [inventory.resolve(project_root(), text) for text in (run, other)]
    names = [f"{each.key} [{each.slug}]" for each in pair]
    sheets = {
        "parameters": _rows([each.parameters for each in pair], changed=True),
        "claims": _rows(
            [_values(each, "our_value") for each in pair], [_values(e, "verdict") for e in pair]
        ),
        "metrics": _rows([each.meta.get("metrics", {}) for each in pair]),
    }
    before, after = (each.meta.get("fingerprint_parts", {}) for each in pair)
    known = {*before, *after} - {"parameters"}
    rest = sorted(name for name in known if before.get(name) != after.get(name))
    return Report(
        title=f"{names[0]} and {names[1]}",
        lead="the same notebook, code and data" if not rest else f"also differ: {', '.join(rest)}",
        tables=[Sheet(table=t, heading=name.capitalize()) for name, t in sheets.items() if len(t)],
        data={"command": "diff", "runs": names, "also_differ": rest}
        | {name: records(table) for name, table in sheets.items()},
    )


def _values(run: RunRecord, field: str) -> dict[str, Any]:
    return {claim["id"]: claim[field] for claim in run.claims}


def _rows(
    values: Sequence[Mapping[str, Any]],
    verdicts: Sequence[Mapping[str, str]] = (),
    *,
    changed: bool = False,
) -> pd.DataFrame:
    """A row a name: the first run's value, the second's, their ratio; verdicts where given."""
    import pandas as pd

    first, second = values
    rows = []
    for name in dict.fromkeys([*first, *second]):
        row: dict[str, Any] = {"name": name, "first": first.get(name), "second": second.get(name)}
        if changed and row["first"] == row["second"]:
            continue
        if not changed:
            row["ratio"] = _ratio(first.get(name), second.get(name))
        if verdicts:
            before, after = (own.get(name, NOTHING) for own in verdicts)
            row["verdict"] = before if before == after else f"{before} → {after}"
        rows.append(row)
    return pd.DataFrame(rows)


def _ratio(first: Any, second: Any) -> float | None:
    both = all(type(value) in (int, float) for value in (first, second))
    return second / first if both and first else None


commands.command(help=f"{getdoc(diff)}\n\n{example_lines(_DIFFS)}")(expanded(diff))


# ---------------------------------------------------------------- clearing away


@commands.command()
def clean(
    keys: list[str] | None = typer.Argument(
        None, metavar="[KEY]...", help="Papers; none: all.", autocompletion=complete_notebooks
    ),
    sweeps: bool = typer.Option(False, "--sweeps", help="Also current runs of sweeps."),
    defaults: bool = typer.Option(
        False, "--defaults", help="Also stale runs of the notebooks' own parameters."
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help="Remove without asking."),
) -> None:
    """List and remove results that nothing rests on any more.

    These are results of deleted notebooks, runs with parameters that the notebook no longer has,
    stale runs of sweeps, and what failures left. It lists them and asks; where it cannot ask it
    removes nothing without --yes. Runs that are at work are waited for.

    [bold]Examples[/bold]: [cyan]labkit clean[/cyan], [cyan]labkit clean zeus --sweeps --yes[/cyan]
    """
    from labkit.workbook.run import guard, inventory

    root = project_root()
    console = Console(highlight=False, soft_wrap=True)

    def listed() -> dict[Any, Stored]:
        stored = inventory.inventory(root, keys or ())
        old = (s for s in stored if inventory.is_clearable(s, sweeps=sweeps, defaults=defaults))
        return {each.folder: each for each in old}

    found = listed()
    chosen = {folder: each for folder, each in found.items() if not each.kept_because}
    for folder in found.keys() - chosen.keys():
        why = found[folder].kept_because
        console.print(f"{folder.relative_to(root)}  left alone: {why}", markup=False)
    for folder, each in chosen.items():
        console.print(
            f"{folder.relative_to(root)}  {each.state}: {each.reason or 'of a sweep'}", markup=False
        )
    size = format_bytes(sum(each.num_bytes for each in chosen.values()))
    what = f"{len(chosen)} folder{'s' * (len(chosen) != 1)}, {size}"
    if not chosen:
        console.print("nothing to clear away")
        return
    if not yes and not (sys.stdin.isatty() and typer.confirm(f"Remove {what}?")):
        console.print(f"{what}; nothing removed: `labkit clean --yes` removes them", markup=False)
        return
    with guard.lock(root, console.print):
        still = listed().keys() & chosen.keys()  # a run may have renewed some meanwhile
        for folder in still:
            inventory.remove(root, chosen[folder])
    joined(root)
    console.print(f"removed {len(still)} of {what}", markup=False)
