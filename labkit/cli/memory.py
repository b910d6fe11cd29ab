"""``labkit memory``: what a training job needs on a device, from the shell."""

from __future__ import annotations

from pathlib import Path

import typer

from labkit.cli import memory_options as ask

memory = typer.Typer(
    name="memory",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""
    Training memory: the peak and its moment, what fits, what dominates.

    MODEL is a preset of data/models.yaml or a Hugging Face config.json.
    Every command takes [cyan]--json FILE[/cyan], or [cyan]-[/cyan] for standard output; keys end in
    their unit, null is what is missing.

    [bold]Examples[/bold]

      [cyan]labkit memory plan llama-2-7b --dp 64 --zero 3 --seq 4096[/cyan]
      [cyan]labkit memory fit llama-2-7b --dp 64 --zero 3 --vary seq[/cyan]
      [cyan]labkit memory sweep llama-3-70b -a dp=64,512 -a zero=1,3 -a tp=1,8[/cyan]
      [cyan]labkit memory check gpt2-124m --recipe fp32-adam --seq 512[/cyan]
      [cyan]labkit memory compare llama-2-7b --dp 8 --zero 3[/cyan]
    """,
)


def register(app: typer.Typer) -> None:
    app.add_typer(memory)


@memory.command()
def plan(
    model: str = ask.NAME,
    dp: int = ask.DP,
    tp: int = ask.TP,
    sp: bool = ask.SP,
    pp: int = ask.PP,
    zero: int = ask.ZERO,
    world_size: int = ask.WORLD,
    recipe: str = ask.RECIPE,
    seq: int = ask.SEQ,
    micro_batch: int = ask.MICRO,
    recompute: str = ask.RECOMPUTE,
    assignments: list[str] = ask.SET,
    ideal: bool = ask.IDEAL,
    device: str = ask.DEVICE,
    headroom: float = ask.HEADROOM,
    explain: str = ask.EXPLAIN,
    json_to: str = ask.JSON,
    html: Path = ask.HTML,
) -> None:
    """The bytes of one rank: at the peak, at each moment, and what is sent."""
    from labkit.cli import memory_report, pipeline_view

    parallel = {"dp": dp, "tp": tp, "sp": sp, "pp": pp, "zero": zero}
    batch = {"seq": seq, "micro_batch": micro_batch, "recompute": recompute}
    made = ask.plan(model, parallel, batch, recipe, assignments, world_size=world_size, ideal=ideal)
    if explain:
        typer.echo(made.explain(explain))
        return
    pipeline_view.tell(memory_report.of_plan(made, device, headroom), json_to, html)


@memory.command()
def fit(
    model: str = ask.NAME,
    vary: str = ask.VARY,
    dp: int = ask.DP,
    tp: int = ask.TP,
    sp: bool = ask.SP,
    pp: int = ask.PP,
    zero: int = ask.ZERO,
    recipe: str = ask.RECIPE,
    seq: int = ask.SEQ,
    micro_batch: int = ask.MICRO,
    recompute: str = ask.RECOMPUTE,
    assignments: list[str] = ask.SET,
    device: str = ask.DEVICE,
    headroom: float = ask.HEADROOM,
    json_to: str = ask.JSON,
    html: Path = ask.HTML,
) -> None:
    """The largest micro-batch, sequence or number of layers, or the least degree, that fits."""
    from labkit.cli import memory_report, pipeline_view

    parallel = {"dp": dp, "tp": tp, "sp": sp, "pp": pp, "zero": zero}
    batch = {"seq": seq, "micro_batch": micro_batch, "recompute": recompute}
    made = ask.plan(model, parallel, batch, recipe, assignments)
    report = memory_report.of_fit(made, vary.replace("-", "_"), device, headroom)
    pipeline_view.tell(report, json_to, html)


@memory.command()
def sweep(
    model: str = ask.NAME,
    axes: list[str] = ask.AXIS,
    dp: int = ask.DP,
    tp: int = ask.TP,
    sp: bool = ask.SP,
    pp: int = ask.PP,
    zero: int = ask.ZERO,
    recipe: str = ask.RECIPE,
    seq: int = ask.SEQ,
    micro_batch: int = ask.MICRO,
    recompute: str = ask.RECOMPUTE,
    assignments: list[str] = ask.SET,
    device: str = ask.DEVICE,
    headroom: float = ask.HEADROOM,
    json_to: str = ask.JSON,
    html: Path = ask.HTML,
    csv: Path = ask.CSV,
) -> None:
    """Every combination of some axes: the peak, its moment, and whether it fits."""
    from labkit.cli import memory_report, pipeline_view

    parallel = {"dp": dp, "tp": tp, "sp": sp, "pp": pp, "zero": zero}
    batch = {"seq": seq, "micro_batch": micro_batch, "recompute": recompute}
    made = ask.plan(model, parallel, batch, recipe, assignments)
    report, table = memory_report.of_sweep(made, ask.axes(axes), device, headroom)
    pipeline_view.tell(report, json_to, html)
    if csv is not None:
        from labkit.files import write_atomically

        write_atomically(csv, table.to_csv(index=False))
        pipeline_view.wrote("CSV", csv, json_to)


@memory.command()
def check(
    model: str = ask.NAME,
    oracle: str = ask.ORACLE,
    dp: int = ask.DP,
    zero: int = ask.ZERO,
    recipe: str = ask.RECIPE,
    seq: int = ask.SEQ,
    micro_batch: int = ask.MICRO,
    recompute: str = ask.RECOMPUTE,
    assignments: list[str] = ask.SET,
    json_to: str = ask.JSON,
    html: Path = ask.HTML,
) -> None:
    """A plan beside a run of the same: torch's tracker, gloo ranks, or a GPU."""
    from labkit.cli import memory_report, pipeline_view

    batch = {"seq": seq, "micro_batch": micro_batch, "recompute": recompute}
    made = ask.plan(model, {"dp": dp, "zero": zero}, batch, recipe, assignments)
    pipeline_view.tell(memory_report.of_check(made, oracle), json_to, html)


@memory.command()
def compare(
    model: str = ask.NAME,
    dp: int = ask.DP,
    tp: int = ask.TP,
    sp: bool = ask.SP,
    pp: int = ask.PP,
    zero: int = ask.ZERO,
    recipe: str = ask.RECIPE,
    seq: int = ask.SEQ,
    micro_batch: int = ask.MICRO,
    recompute: str = ask.RECOMPUTE,
    assignments: list[str] = ask.SET,
    json_to: str = ask.JSON,
    html: Path = ask.HTML,
) -> None:
    """The same job as ZeRO's paper, DeepSpeed, Megatron-LM and torch count it, and why."""
    from labkit.cli import memory_report, pipeline_view

    parallel = {"dp": dp, "tp": tp, "sp": sp, "pp": pp, "zero": zero}
    batch = {"seq": seq, "micro_batch": micro_batch, "recompute": recompute}
    made = ask.plan(model, parallel, batch, recipe, assignments)
    pipeline_view.tell(memory_report.of_comparison(made), json_to, html)
