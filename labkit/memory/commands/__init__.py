"""``labkit memory``: what a training job needs on a device, from the shell."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

from labkit import files, memory
from labkit.errors import BadValue, UsageError
from labkit.kit.command import Commands, argument, option
from labkit.kit.report import Figure, Report, Sheet, records
from labkit.memory import certainty
from labkit.memory.commands import helps, sheets
from labkit.memory.commands.options import (
    Job,
    Room,
    Spread,
    axes_of,
    model_of,
    network_of,
    usual_seq,
)
from labkit.memory.jobs.adapter import KIND_NAMES
from labkit.memory.jobs.states import STAGE_NAMES
from labkit.memory.plans.estimate import COMPONENTS
from labkit.memory.plans.plan import Plan
from labkit.memory.plans.search import what_fits
from labkit.memory.plans.traced import Traced
from labkit.models import presets
from labkit.quantities import GB, format_bytes, formatted

if TYPE_CHECKING:
    import pandas as pd

commands = Commands(
    "memory",
    """
    Training memory: the peak and its moment, what fits, what dominates.

    MODEL is a preset of data/models.yaml or a Hugging Face config.json.
    """,
)
TO_A_TRILLION = ["llama-2-7b", "llama-2-13b", "llama-2-70b", "gpt3-175b", "llama-3-405b", "gpt-1t"]
MOST_BARS = 36
MOST_LINES = 8  # in a figure
_PLACES = {"component": "component", "place": "place", "num_bytes": "bytes"}


@commands.add(
    examples=[
        "labkit memory plan llama-2-7b --dp 64 --zero 3 --seq 4096",
        "labkit memory plan llama-3-70b --world-size 1024 --tp 8 --pp 4 --zero 1",
        "labkit memory plan llama-3-8b --framework torchtitan --dp 8 --seq 8192",
        "labkit memory plan mistral-7b --lora-rank 16 --lora-targets q,v",
        "labkit memory plan llama-3-8b --recipe qlora --lora-targets all --recompute full",
        "labkit memory plan llama-3-8b --adapter dora --lora-rank 16 --lora-targets all",
        "labkit memory plan llama-2-7b --adapter p-tuning --prompt-tokens 20 --prompt-hidden 512",
        "labkit memory plan llama-2-70b -f hf-trainer --dp 2 --zero 3 --recipe qlora-fsdp"
        " --seq 512 --recompute full --device 24GB",
        "labkit memory plan llama-3-8b --train layers.30-31,norm,head --recipe fp32-adam",
        "labkit memory plan llama-2-7b --recipe lomo --seq 512 --recompute full",
        "labkit memory plan llama-3-8b --recipe adam-8bit-in-backward --recompute full --set"
        " offload_activations=cpu",
        "labkit memory plan llama-3-8b --framework torchtitan --dp 8 --set cp=8 --seq 131072",
        "labkit memory plan bert-large --framework hf-trainer --seq 512 --micro-batch 4",
        "labkit memory plan gpt2-1.5b --explain activation.mlp",
        "labkit memory plan llama-3-8b --pp 4 --rank 3",
    ]
)
def plan(
    job: Job,
    room: Room,
    rank: Annotated[
        int | None, option("The account of this pipeline rank, from 0. Default: the fullest.")
    ] = None,
    explain: Annotated[str, option("Explain a component instead: formula, numbers, source.")] = "",
) -> Report:
    """The bytes of one rank: at the peak, at each moment, and what is sent."""
    plan = replace(room.allow(job.plan(room.card)), rank=rank)
    if explain:
        return Report(text=plan.explain(explain))
    frame = plan.frame()
    moments = plan.moments()
    sent = plan.traffic()
    away = plan.elsewhere()
    usable = room.usable_bytes(plan)
    ranks = plan.ranks()
    sure = certainty.of(plan, job.framework)
    margin = usable - plan.peak_bytes
    doubt = ", less than the error below" if sure.covers(margin, plan.peak_bytes) else ""
    notes = (*job.notes, *plan.assumptions)
    fits = plan.peak_bytes <= usable
    helping = helps.table(job, room, plan) if not fits and rank is None else None
    shown = [
        *([] if helping is None else [sheets.helping(helping)]),
        sheets.at_peak(frame),
        *([sheets.ranks(ranks, usable)] if len(ranks) > 1 else []),
        sheets.moments(moments),
        Sheet(heading="Elsewhere", table=away, columns=_PLACES),
        sheets.nearest(sure),
    ]
    largest = _largest_of(plan)
    if largest is not None:
        shown.append(sheets.largest(largest))
    if len(sent):
        shown.append(sheets.sent(sent))
    return Report(
        title=f"{_name(plan)}: {format_bytes(plan.peak_bytes)} at the peak",
        lead=_lead(plan),
        facts=[
            ("peak_bytes", plan.peak_bytes, plan.peak_moment),
            *([] if rank is None else [("rank", str(rank), f"of {len(ranks)}, counted from 0")]),
            *room.reserved(plan),
            ("fits", fits, room.text(plan)),
            ("margin_bytes", margin, f"of what may be filled{doubt}"),
            ("how sure", sure.verdict, sure.reason),
        ],
        tables=[sheet for sheet in shown if len(sheet.table)],
        notes=notes,
        csv=moments.reset_index(),
        data={
            "command": "plan",
            "peak_bytes": plan.peak_bytes,
            "peak_moment": plan.peak_moment,
            "usable_bytes": usable,
            "fits": fits,
            "components": records(frame),
            "moments": records(moments.reset_index()),
            "elsewhere": records(away),
            "traffic": records(sent),
            "assumptions": notes,
            "rank": rank,
            "ranks": records(ranks),
            "measured": sure.data(),
            **({} if largest is None else {"largest": records(largest)}),
            **({} if helping is None else {"helps": records(helping)}),
        },
        figures=lambda: [_figure_of_moments(plan, room)],
    )


@commands.add(
    examples=[
        "labkit memory fit llama-3-8b --framework torchtitan --dp 8 --seq 8192",
        "labkit memory fit llama-2-7b --dp 64 --zero 3 --vary seq",
        "labkit memory fit llama-3-70b --zero 3 --vary dp --device A100-80GB",
    ]
)
def fit(
    job: Job,
    room: Room,
    vary: Annotated[
        str | None,
        option(
            "One quantity: micro_batch, seq, layers, dp, zero, tp, pp, ep or cp. Default: the"
            " largest micro-batch, longest sequence and fewest GPUs, each with the rest as given."
        ),
    ] = None,
) -> Report:
    """The largest micro-batch, longest sequence and fewest GPUs that fit, and what binds."""
    import pandas as pd

    if vary is None:
        return _all_that_fits(job, room)
    asked = vary.replace("-", "_")
    if job.world_size is not None and asked in ("dp", "tp", "cp", "pp"):
        raise BadValue(
            f"--world-size must be left out where {asked} varies: it is dp · tp · cp · pp"
        )
    plan = room.allow(job.plan(room.card))
    largest = memory.fit(plan, vary=asked, **room.given)
    best = largest.plan
    sure = certainty.of(best or plan, job.framework)
    data = _fitted(asked, largest.value, largest.usable_bytes, best)
    value = "nothing" if largest.value is None else largest.value
    facts: list[tuple[str, Any, str]] = [(asked, value, room.text(plan))]
    if best is not None:
        facts.append(("peak_bytes", best.peak_bytes, best.peak_moment))
    facts.append(("how sure", sure.verdict, sure.reason))
    return Report(
        title=f"{_name(plan)}: what {asked} fits",
        lead=_lead(best or plan),
        facts=facts,
        tables=[sheets.moments(best.moments())] if best else [],
        notes=(best or plan).assumptions,
        csv=pd.DataFrame([data]),
        data={"command": "fit", **data, "measured": sure.data()},
        figures=lambda: [_figure_of_moments(best or plan, room)],
    )


def _all_that_fits(job: Job, room: Room) -> Report:
    """The largest micro-batch, longest sequence and fewest GPUs, in a table."""
    plan = room.allow(job.plan(room.card))
    limits = memory.limits(plan, **room.given)
    asked, value = limits.loc[0, ["vary", "value"]]
    largest = None if math.isnan(value) else int(value)
    best = None
    if largest is not None:
        assert plan.batch is not None
        best = replace(plan, batch=replace(plan.batch, micro_batch=largest))
    usable = room.usable_bytes(plan)
    sure = certainty.of(best or plan, job.framework)
    return Report(
        title=f"{_name(plan)}: what fits",
        lead=_lead(plan),
        facts=[
            ("usable_bytes", usable, room.text(plan).split(": ", 1)[1]),
            ("how sure", sure.verdict, sure.reason),
        ],
        tables=[sheets.limits(limits)],
        notes=(*job.notes, *plan.assumptions),
        csv=limits,
        data={
            "command": "fit",
            **_fitted(asked, largest, usable, best),
            "limits": records(limits),
            "measured": sure.data(),
        },
        figures=lambda: [_figure_of_moments(plan, room)],
    )


def _fitted(asked: str, value: int | None, usable: float, best: Plan | None) -> dict[str, Any]:
    """What JSON has of the extreme value that fits, and of the plan there."""
    return {
        "vary": asked,
        "value": value,
        "usable_bytes": usable,
        "peak_bytes": best.peak_bytes if best else None,
        "peak_moment": best.peak_moment if best else None,
    }


@commands.add(
    examples=[
        "labkit memory sweep llama-3-70b -a dp=64,512 -a zero=1,3 -a tp=1,8",
        "labkit memory sweep llama-2-7b -w 64 -a tp=1,2,4,8 -a recompute=none,full",
    ]
)
def sweep(
    job: Job,
    room: Room,
    axes: Annotated[
        list[str],
        option("An axis, such as dp=8,64. Repeatable.", "--axis", "-a", metavar="NAME=V,V"),
    ] = [],  # noqa: B006
) -> Report:
    """Every combination of some axes: the peak, its moment, and whether it fits.

    With --world-size, dp is what the other degrees leave; rows where they do not divide say so.
    """
    chosen = axes_of(axes)
    if job.world_size is not None:
        chosen.setdefault("world_size", [job.world_size])
        job = replace(job, world_size=None)
    plan = _base(job, room, chosen)
    table = _swept(job, room, plan, chosen)
    names = [*chosen, *(["dp"] if "world_size" in chosen and "dp" not in chosen else [])]
    verdict = table["fits"].map({True: "yes", False: "no"})
    verdict = table["problem"].where(table["problem"].ne(""), verdict)
    sure = certainty.of(plan, job.framework)
    shown = table[[*names, "peak_bytes", "peak_moment"]].assign(fits=verdict)
    return Report(
        title=f"{_name(plan)}: {len(table):,} configurations, {int(table['fits'].sum()):,} fit",
        lead=f"{room.text(plan)}; {plan.recipe.name}",
        tables=[Sheet(table=shown)],
        notes=[f"the plan that is swept is {sure.verdict} {sure.reason}", *plan.assumptions],
        csv=table,
        data={
            "command": "sweep",
            "axes": {
                name: [getattr(value, "name", value) for value in values]
                for name, values in chosen.items()
            },
            "device": room.device,
            "rows": records(table),
            "measured": sure.data(),
        },
        figures=lambda: _figures_of_sweep(table, list(chosen), room.usable_bytes(plan)),
    )


_GUIDES = ("world_size", "dp", "tp", "pp", "zero")
"""Options that a framework's defaults follow."""


def _base(job: Job, room: Room, axes: dict[str, list[Any]]) -> Plan:
    """The plan that is swept: of the options alone, or of the first point where there is one.

    Raises:
        UsageError: there is no plan at any; the message is that of the options alone.
    """
    guides = [name for name in _GUIDES if name in axes]
    numbers = [[value for value in axes[name] if isinstance(value, int)] for name in guides]
    try:
        return _possible(job, room)
    except UsageError:
        for point in product(*numbers):
            with suppress(UsageError):
                said: dict[str, Any] = dict(zip(guides, point, strict=True))
                return _possible(replace(job, **said), room)
        raise


def _possible(job: Job, room: Room) -> Plan:
    """The job's plan where it has a peak; one that is traced is not run for it."""
    plan = room.allow(job.plan(room.card))
    if not plan.traced:
        _ = plan.peak_bytes  # it raises what is wrong
    return plan


def _swept(job: Job, room: Room, plan: Plan, axes: dict[str, list[Any]]) -> pd.DataFrame:
    """Sweep; under a framework each row has the defaults of its own degrees and stage, as a plan of
    them has.
    """
    import pandas as pd

    table = memory.sweep(plan, **(room.given | axes))
    guides = [name for name in _GUIDES if name in axes]
    if job.framework is None or not guides:
        return table
    parts = []
    for point in product(*(dict.fromkeys(axes[name]) for name in guides)):
        said = dict(zip(guides, point, strict=True))
        rows = table[(table[guides] == list(point)).all(axis=1)]
        only = {name: [value] * axes[name].count(value) for name, value in said.items()}
        try:
            here = room.allow(replace(job, **said).plan(room.card))
        except UsageError as error:
            reason = rows["problem"].where(rows["problem"].ne(""), str(error))
            lost = dict.fromkeys(rows.filter(like="_bytes"), math.nan)
            parts.append(rows.assign(**lost, peak_moment="", problem=reason, fits=False))
            continue
        parts.append(memory.sweep(here, **(room.given | axes | only)).set_index(rows.index))
    whole = pd.concat(parts).sort_index()
    lacking = whole.filter(like="_bytes").isna().mul(whole["peak_bytes"].notna(), axis=0)
    whole = whole.mask(lacking.reindex(columns=whole.columns, fill_value=False), 0)
    return whole[[*table, *(name for name in whole if name not in table)]]


@commands.add(examples=["labkit memory frontier llama-2-7b gpt3-175b --dp 64"])
def frontier(
    spread: Spread,
    room: Room,
    models: Annotated[
        list[str], argument("Presets or config.json files.", metavar="[MODEL]...", complete=presets)
    ] = [],  # noqa: B006
) -> Report:
    """What fits, model by model and ZeRO stage by stage, and the least ranks that make it fit.

    Without MODEL: from 7 billion parameters to a trillion.
    """
    chosen = [model_of(name) for name in models or TO_A_TRILLION]
    plan = room.allow(spread.of(chosen[0], room.card))
    bars, least = what_fits(plan, models=chosen, **room.given)
    usable = room.usable_bytes(plan)
    sums = bars.groupby(["model", "plan"], sort=False)["num_bytes"].sum()
    table = least.merge(sums.rename("peak_bytes").reset_index(), on=["model", "plan"])
    sure = [
        certainty.of(
            replace(plan, model=model, parallel=replace(plan.parallel, zero=stage)),
            spread.framework,
        )
        for model, stage in product(chosen, STAGE_NAMES)
    ]
    verdicts = [one.verdict for one in sure]
    shown = table.assign(fits=table["peak_bytes"] <= usable, **{"how sure": verdicts})
    shown = shown.rename(columns={"plan": "stage", "dp": "least dp"})
    columns = ["model", "stage", "peak_bytes", "fits", "how sure", "least dp"]
    capacity: dict[str, Any] = {"capacity_gb": usable / GB, "capacity_name": room.name}
    return Report(
        title="What fits, and from how many data-parallel ranks on",
        lead=f"{_lead(plan, stage=False)}; {room.text(plan)}",
        tables=[Sheet(table=shown, columns=columns)],
        notes=[
            "how sure: the largest error on the measured peaks of"
            f" {spread.framework or 'all frameworks'} that are most like a row (why: --json)",
            *plan.assumptions,
        ],
        csv=table,
        data={
            "command": "frontier",
            "usable_bytes": usable,
            "rows": records(table),
            "components": records(bars),
            "measured": [one.data() for one in sure],
        },
        figures=lambda: [("What fits", "", memory.figures.figure_fits(bars, least, **capacity))],
    )


@commands.add(examples=["labkit memory check gpt2-124m --recipe fp32-adam --seq 512"])
def check(job: Job, oracle: Annotated[str, option("fake, gloo or cuda.")] = "fake") -> Report:
    """A plan beside a run of the same: torch's tracker, gloo ranks, or a GPU."""
    plan = job.plan()
    table = memory.check(plan, oracle=oracle)
    whole = dict.fromkeys(("predicted_bytes", "measured_bytes", "difference_bytes"), sheets.EXACTLY)
    return Report(
        title=f"{_name(plan)} beside a run ({oracle})",
        lead=_lead(plan),
        tables=[Sheet(table=table, formats=whole)],
        data={"command": "check", "oracle": oracle, "components": records(table)},
        figures=lambda: [_figure_of_pairs(table, "component")],
    )


@commands.add(examples=["labkit memory compare llama-2-7b --dp 8 --zero 3"])
def compare(job: Job) -> Report:
    """The same job as ZeRO's paper, DeepSpeed, Megatron-LM and torch count it, and why."""
    from labkit.memory.plans import conventions

    plan = job.plan()
    indexed = conventions.differences(plan)
    refused = indexed.attrs["refused"]
    table = indexed.reset_index()
    names = [name for name in table.columns if name not in ("component", "why")]

    def figures() -> list[Figure]:
        counted = table[~table["component"].isin([conventions.TOTAL, "host"])]
        tidy = counted.melt(id_vars="component", value_vars=names, var_name="plan").dropna()
        sizes = tidy.assign(size_gb=tidy["value"].astype(float) / GB)
        drawn = memory.figures.figure_states(sizes)
        return [("On the device, by convention", "", drawn)]

    return Report(
        title=f"{_name(plan)} by other people's arithmetic",
        lead=_lead(plan),
        tables=[
            Sheet(
                table=table,
                columns=["component", *names],
                formats=dict.fromkeys(names, partial(formatted, "num_bytes")),
            ),
            Sheet(heading="Why", table=table, columns=["component", "why"], ratio={"why": 1}),
        ],
        notes=[f"{name} says nothing of this: {text}" for name, text in refused.items()],
        data={
            "command": "compare",
            "components": records(table),
            "refused": refused,
            "peak_bytes": plan.peak_bytes,
        },
        figures=figures,
    )


@commands.add(
    examples=["labkit memory accuracy --part gpu", "labkit memory accuracy --part families"]
)
def accuracy(
    every: Annotated[bool, option("Every case: several minutes.", "--all")] = False,
    parts: Annotated[
        list[str] | None,
        option(
            "Only layers, models, adapters, shards, stage3, families or gpu. Repeatable.", "--part"
        ),
    ] = None,
    fresh: Annotated[
        bool, option("Run families anew, in minutes, in place of what is stored.", "--fresh")
    ] = False,
) -> Report:
    """What is predicted beside what torch does, from a layer to a GPU; a minute or two."""
    import pandas as pd

    from labkit.memory.oracles import accuracy, cuda

    facts: list[tuple[str, str, str]] = []
    by_part: dict[str, Sheet] = {}
    data: dict[str, Any] = {"command": "accuracy"}
    of_families: list[Sheet] = []
    chosen = parts or list(accuracy.PARTS)
    if not parts and (lacking := accuracy.lacking()):
        facts.append(("adapters", "not run", lacking))
        chosen.remove("adapters")
    for part in chosen:
        table = accuracy.table(part, every=every, fresh=fresh)
        data["rows" if part == "models" else part] = [] if table is None else records(table)
        if table is None:
            how = f"run {cuda.COMMAND} --out data/measured/ where there is a GPU"
            facts.append(("on a GPU", "not yet measured", how))
            continue
        error = "worst_error_bytes" if "worst_error_bytes" in table else "error_bytes"
        off = table[table[error] != 0]
        value = f"{len(off)} of {len(table)} off" if len(off) else f"all {len(table)} equal"
        worst = f", by {off[error].abs().max():,.0f} bytes at most" if len(off) else ""
        facts.append((part, value, accuracy.PARTS[part] + worst))
        if "tracked_moment" in table:
            alike = (table["predicted_moment"] == table["tracked_moment"]).sum()
            facts.append(("", f"{alike} of {len(table)}", "name the same moment"))
        if part == "families":
            of_families = sheets.by_family(table, fresh=fresh)
            continue
        names = [str(column) for column in table.columns]
        by_part[part] = Sheet(
            heading=accuracy.PARTS[part][0].upper() + accuracy.PARTS[part][1:],
            table=table,
            columns=[name for name in names if table[name].astype(str).ne("").any()],
            formats={name: sheets.EXACTLY for name in names if name.endswith("_bytes")},
            page_only=off.empty and part != "models",
        )

    def figures() -> list[Figure]:
        if "models" not in by_part:
            return []
        table = by_part["models"].table.rename(columns={"tracked_bytes": "measured_bytes"})
        texts = ("model", "dtype", "attention", "recompute", "loss", "step", "micro_batch", "seq")
        cases = table[list(texts)].astype(str).agg(" ".join, axis=1)
        return [_figure_of_pairs(table.assign(case=cases), "case")]

    tables = [*by_part.values(), *of_families]
    csv = by_part.get("models", tables[-1]).table if tables else pd.DataFrame()
    return Report(
        title="Predicted, and what torch does",
        facts=facts,
        tables=tables,
        data=data,
        csv=pd.DataFrame(data["families"]) if chosen == ["families"] else csv,
        figures=figures,
    )


@commands.add(examples=["labkit memory forward bert-base --seq 128 --micro-batch 8"])
def forward(
    model: Annotated[
        str,
        argument("A network such as bert-base, a config.json, or its folder.", metavar="MODEL"),
    ],
    seq: Annotated[
        int | None,
        option("Tokens of a sample. Default: 2048, or the positions learnt.", "--seq", "-s"),
    ] = None,
    micro_batch: Annotated[int, option("Samples at a time.", "--micro-batch", "-b")] = 1,
    parameters: Annotated[str, option("Format of weights: fp32, bf16 or fp16.")] = "bf16",
    target_seq: Annotated[
        int | None, option("Tokens that a decoder beside an encoder has. Default: the first.")
    ] = None,
    architecture: Annotated[
        str | None, option("Class of transformers that a config.json is for.")
    ] = None,
) -> Report:
    """The bytes of one forward pass without gradients: an encoder's, or a decoder's prefill."""
    network = network_of(model, architecture)
    batch = memory.Batch(
        seq=usual_seq(network) if seq is None else seq,
        micro_batch=micro_batch,
        target_seq=target_seq,
    )
    pass_ = memory.inference(network, batch, parameters=parameters)
    frame = pass_.frame()
    largest = pass_.largest()
    facts: list[Any] = [("peak_bytes", pass_.peak_bytes, "weights and all that the pass holds")]
    if pass_.cache_bytes:
        each = pass_.cache_bytes / batch.tokens
        facts.append(("keys and values", format_bytes(pass_.cache_bytes), f"{each:,.0f} a token"))
    return Report(
        title=f"{network.name}, a forward pass: {format_bytes(pass_.peak_bytes)} at the peak",
        facts=facts,
        tables=[sheets.at_peak(frame), sheets.largest(largest)],
        notes=pass_.assumptions,
        csv=frame,
        data={
            "command": "forward",
            "peak_bytes": pass_.peak_bytes,
            "cache_bytes": pass_.cache_bytes,
            "components": records(frame),
            "largest": records(largest),
            "assumptions": pass_.assumptions,
        },
    )


@commands.add(examples=["labkit memory peaks", "labkit memory peaks --framework torchtitan"])
def peaks(
    framework: Annotated[
        str | None, option("Runs of one framework only.", "--framework", "-f")
    ] = None,
    traced: Annotated[
        bool, option("Runs of architectures that are traced, some seconds each.", "--traced")
    ] = False,
) -> Report:
    """Peaks that others measured on GPUs and published, beside ours; sources with --json."""
    path = files.shipped(memory.published.TRACED) if traced else None
    rows = memory.published.peak_errors(framework, path=path)
    off = rows["error"].abs().to_numpy()
    columns = ["run", "kind", "measured_bytes", "predicted_bytes", "error_fraction"]
    shown = rows.rename(columns={"error": "error_fraction"}).groupby("framework", sort=False)
    return Report(
        title="Published peaks of GPU memory, and ours",
        facts=[
            ("within 10 %", f"{(off <= 0.1).sum()} of {len(rows)}", "by options alone"),
            ("worst", formatted("error_fraction", off.max()), rows["run"].iloc[off.argmax()]),
        ],
        tables=[Sheet(heading=str(name), table=part, columns=columns) for name, part in shown],
        notes=[
            "Nothing is fitted to these runs. Reserved bytes are compared with the computed peak"
            " times what the framework's logs reserve for one allocated byte."
        ],
        data={"command": "peaks", "rows": records(rows)},
        csv=rows,
    )


# ---------------------------------------------------------------- parts of the reports


def _name(plan: Plan) -> str:
    """The model's name, or how it prints itself where it has none."""
    return str(getattr(plan.model, "name", plan.model))


def _lead(plan: Plan, *, stage: bool = True) -> str:
    """Sum a plan up in one line: its degrees, recipe, batch and recomputation."""
    spread = plan.parallel
    batch = plan.batch
    assert batch is not None
    sizes = {name: getattr(spread, name) for name in ("dp", "tp", "pp", "cp", "ep")}
    degrees = ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    return (
        f"{degrees or 'one rank'}{f', ZeRO stage {spread.zero}' if stage else ''};"
        f" {_called(plan.recipe)};"
        f" {batch.micro_batch} × {batch.seq:,} tokens, recompute {batch.recompute}"
    )


def _called(recipe: memory.Recipe) -> str:
    """A recipe's name; one for LoRA says which other kind of adapter it trains, if it does."""
    kind = recipe.adapter.kind if recipe.adapter is not None else "lora"
    return recipe.name.replace("LoRA", KIND_NAMES[kind], 1)


def _largest_of(plan: Plan) -> pd.DataFrame | None:
    """What a traced network holds most of at its peak; None for other plans."""
    account = plan.account
    return account.largest() if isinstance(account, Traced) else None


def _figure_of_moments(plan: Plan, room: Room) -> Figure:
    """Draw the moments of a plan beside what the device has."""
    drawn = memory.figures.figure_moments(
        plan.moments(), capacity_gb=room.usable_bytes(plan) / GB, capacity_name=room.name
    )
    return "Moments of a step", "", drawn


def _figure_of_pairs(table: pd.DataFrame, category: str) -> Figure:
    """Draw predictions beside what was seen, as a pair of bars for each row."""
    return "Predicted and measured", "", memory.figures.figure_pairs(table, category=category)


def _figures_of_sweep(table: pd.DataFrame, axes: list[str], usable: float) -> list[Figure]:
    """Draw stacked bars where rows are few, lines where they are many and an axis is a number."""

    def named(names: list[str]) -> list[str]:
        rows = records(table[names])
        return [", ".join(f"{k} {v}".replace("_", " ") for k, v in row.items()) for row in rows]

    if len(table) <= MOST_BARS:
        bars = _by_component(table.assign(plan=named(axes)))
        look: dict[str, Any] = {"capacity_gb": usable / GB, "height": 180 + 30 * len(table)}
        return (
            [("At the peak", "", memory.figures.figure_states(bars, **look))] if len(bars) else []
        )
    numbers = [name for name in axes if table[name].dtype.kind in "iu"]
    if not numbers:
        return []
    x = max(numbers, key=lambda name: table[name].nunique())
    lines = table.assign(plan=named([name for name in axes if name != x]))
    plans = list(dict.fromkeys(lines["plan"]))
    few = lines[lines["plan"].isin(plans[:MOST_LINES])]
    note = f"the first {MOST_LINES} of {len(plans)} combinations" if len(plans) > MOST_LINES else ""
    levels = {"what may be filled": usable / GB}
    return [("Peaks", note, memory.figures.figure_sweep(few, y="peak_bytes", x=x, levels=levels))]


def _by_component(table: pd.DataFrame) -> pd.DataFrame:
    """Turn a sweep's columns into one row for each ``plan`` and component of its peak."""
    columns = {f"{name.replace(' ', '_')}_bytes": name for name in COMPONENTS}
    held = table[["plan", *(name for name in columns if name in table)]].rename(columns=columns)
    tidy = held.melt(id_vars="plan", var_name="component", value_name="num_bytes")
    return tidy[tidy["num_bytes"] > 0].assign(size_gb=tidy["num_bytes"] / GB)
