"""``labkit tuning``: batch size and power limit of recurring jobs, from the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from labkit.cli import tuning_options as ask

tuning = typer.Typer(
    name="tuning",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""
    Batch size and power limit: what each choice costs, and who finds the best as a job recurs.

    Every command takes [cyan]--json FILE[/cyan], or [cyan]-[/cyan] for standard output; keys end in
    their unit, null is what is missing.

    [bold]Examples[/bold]

      [cyan]labkit tuning outcomes cifar100 --gpu a40[/cyan]
      [cyan]labkit tuning simulate cifar100 --policies zeus,grid,oracle[/cyan]
      [cyan]labkit tuning savings[/cyan]
      [cyan]labkit tuning goodput cifar10 --gpus-used 16 --nodes 4[/cyan]
      [cyan]labkit tuning record my-trace --networks mlp --batch-sizes 16,64,256[/cyan]
      [cyan]labkit tuning live --state job.json -- python train.py[/cyan]
    """,
)


def register(app: typer.Typer) -> None:
    app.add_typer(tuning)


_GRID: dict[str, Any] = {"panel": ask.GRID, "metavar": "A,B"}


@tuning.command()
def record(
    folder: Path = typer.Argument(..., help="Where train.csv, power.csv and meta.json go."),
    networks: str = ask.option("mlp,cnn", "--networks", help="mlp, cnn.", **_GRID),
    batch_sizes: str = ask.option("8,16,32,64,128,256,512", "--batch-sizes", help="", **_GRID),
    seeds: str = ask.option("1,2,3,4,5", "--seeds", help="One run each.", **_GRID),
    targets: str = ask.option(
        "0.9,0.95,0.97,0.98", "--targets", help="Validation accuracies.", **_GRID
    ),
    max_epochs: int = ask.option(50, "--max-epochs", panel=ask.GRID, help="Then: never."),
    b0: int = ask.option(64, "--default-batch-size", "--b0", panel=ask.GRID, help="Of the job."),
    target: float = ask.option(0.97, "--default-target", panel=ask.GRID, help="Of the job."),
    device: str = ask.option("cpu", "--device", panel=ask.RUN, help="cpu or cuda."),
    resume: bool = ask.option(False, "--resume", panel=ask.RUN, help="Go on where it ended."),
    overwrite: bool = ask.option(
        False, "--overwrite", panel=ask.RUN, help="Replace what is there."
    ),
    json_to: str = ask.JSON,
    html: Path = ask.HTML,
) -> None:
    """Train small networks on handwritten digits over batch sizes and seeds; write a trace.

    Epochs and time are measured. Energy is measured where the machine has a counter that may be
    read (a GPU through zeus-ml, RAPL), and modelled elsewhere: every file says which.
    """
    from labkit.cli import pipeline_view, tuning_record

    grid = tuning_record.grid(networks, batch_sizes, seeds, targets, max_epochs, b0, target)
    given = {
        "--networks": networks,
        "--batch-sizes": batch_sizes,
        "--seeds": seeds,
        "--targets": targets,
        "--max-epochs": max_epochs,
        "--b0": b0,
        "--default-target": target,
        "--device": device,
    }
    command = [folder.name, *tuning_record.text_of(given)]
    found = tuning_record.recorded(
        grid, folder, device=device, resume=resume, overwrite=overwrite, command=command
    )
    pipeline_view.tell(found, json_to, html)
