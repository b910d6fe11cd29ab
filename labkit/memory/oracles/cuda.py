"""Peaks on a real GPU beside the estimate's.

``python -m labkit.memory.oracles.cuda --out data/measured/`` measures, prints and stores them.

Each configuration trains two steps in a fresh network: the first makes the optimizer's states, the
second is measured by the allocator's own count of bytes in use (``max_memory_allocated``, which
leaves out CUDA's context and what the allocator keeps without using it). Without a GPU it refuses.

Importing this module does not load torch; its functions do.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from labkit import extras
from labkit.errors import UsageError
from labkit.files import write_atomically
from labkit.hardware import accelerator, named_in
from labkit.memory.oracles import cases
from labkit.memory.plans import workspaces
from labkit.memory.plans.plan import Plan

FILE = "memory_cuda.csv"
COMMAND = "python -m labkit.memory.oracles.cuda"
NO_GPU = (
    "measuring on a GPU needs one that torch can use, and torch finds none here (torch.cuda"
    f".is_available() is False); run {COMMAND} --out data/measured/ on a machine that has one, or"
    " oracle 'fake', which runs the same step without numbers"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """Where a step runs, and how its peak is read: ``start`` forgets the past, ``peak`` reads.

    ``reserved`` reads the most that the allocator held, where somebody asks for it.
    """

    device: str
    start: Callable[[], None]
    peak: Callable[[], int]
    about: dict[str, str]
    reserved: Callable[[], int] | None = None


def gpu() -> Meter:
    """The first GPU, by torch's allocator.

    Raises:
        UsageError: there is none, or no torch that could use it.
    """
    extras.need("measuring on a GPU", "torch", "torch")
    import torch

    if not torch.cuda.is_available():
        raise UsageError(NO_GPU)

    def peak() -> int:
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    about = {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    return Meter(device="cuda", start=torch.cuda.reset_peak_memory_stats, peak=peak, about=about)


def peak_of(plan: Plan, meter: Meter) -> int:
    """Bytes at the fullest point of a plan's second step on ``meter``'s device.

    Raises:
        UsageError: the plan is not one that one rank can run.
    """
    from labkit.memory.oracles import networks, tracker

    given = tracker.settings_of(plan, "cuda")
    del given["parallel"]
    return trained(given, partial(networks.adamw, step=given.pop("step")), meter)


def trained(given: dict[str, Any], optimizer_of: Callable[[Any], Any], meter: Meter) -> int:
    """Bytes at the fullest point of the second step of a network, with any optimizer.

    Args:
        given: what :func:`labkit.memory.oracles.networks.build` takes, and ``micro_batch``.
        optimizer_of: makes the optimizer of the network.
        meter: where it runs and how its peak is read.
    """
    import torch

    from labkit.memory.oracles import networks

    samples = given.pop("micro_batch")
    with torch.device(meter.device):
        network = networks.build(**given)
        optimizer = optimizer_of(network)
        tokens, targets = (torch.zeros(samples, given["seq"], dtype=torch.int64) for _ in range(2))
        for _ in range(2):
            optimizer.zero_grad()
            meter.start()
            with networks.autocast(given["mode"], meter.device):
                loss = network(tokens, targets)
            loss.backward()
            del loss
            optimizer.step()
        return meter.peak()


def on_card(plan: Plan, gpu: str) -> Plan:
    """The plan with cuBLAS's workspaces on the card of that name, which the allocator counts too.

    A card that is not known has none.
    """
    card = named_in(gpu)
    if card is None or plan.batch is None:
        return plan
    size = workspaces.of_torch(accelerator(card))
    return replace(plan, batch=replace(plan.batch, workspace_bytes=size))


def measure(chosen: Iterable[Plan], meter: Meter) -> pd.DataFrame:
    """A row a plan: what it is, the predicted and the measured peak, the error, and the machine."""
    import torch

    rows = []
    for plan in chosen:
        job = plan.estimate.job
        predicted = int(on_card(plan, meter.about.get("gpu", "")).peak_bytes)
        seen = peak_of(plan, meter)
        rows.append(
            {"model": job.model.name, "recipe": plan.recipe.name, "step": plan.recipe.step}
            | {name: getattr(job.batch, name) for name in ("seq", "micro_batch")}
            | {name: str(getattr(job.batch, name)) for name in ("recompute", "attention")}
            | {"predicted_bytes": predicted, "measured_bytes": seen}
            | {"error_bytes": predicted - seen, "error_fraction": round(predicted / seen - 1, 6)}
            | {"predicted_moment": plan.peak_moment, "script": "labkit.memory.oracles.cuda"}
            | {"date": f"{datetime.now(UTC):%Y-%m-%d}", "torch": torch.__version__}
            | {"machine": f"{platform.system()} {platform.machine()}"}
            | meter.about
        )
    return pd.DataFrame(rows)


def stored(folder: Path) -> pd.DataFrame | None:
    """What was measured before and kept in ``folder``; None where nothing was."""
    path = folder / FILE
    return pd.read_csv(path) if path.exists() else None


def main(arguments: list[str]) -> int:
    """Measure, print, and store atomically; the exit status is 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the CSV; only printed if left out")
    folder = parser.parse_args(arguments).out
    try:
        table = measure(cases.on_a_gpu(), gpu())
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    print(table.drop(columns=["script", "date", "machine"]).to_string(index=False))
    if folder:
        write_atomically(folder / FILE, table.to_csv(index=False, lineterminator="\n"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
