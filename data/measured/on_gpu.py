"""Measure on this machine's GPU what the workbook otherwise computes: ``make gpu``.

Four parts, each a CSV file beside this script, written after every row:

    overlap    gpu_overlap.csv   the gathered product, copies beside slices on two streams
    lookups    gpu_lookups.csv   lookups of many embedding tables, looped and fused
    dispatch   gpu_dispatch.csv  tokens brought to their experts' slots, by einsum and by index
    memory     gpu_memory.csv    peaks of small trainings beside the estimate's

A row has the card, torch's version, CUDA's, the driver's and the date. Rows of the same card,
torch and driver are replaced, those of others stay. A part begins nothing new when its share of
the eight minutes is over, and says what it left out. Without a CUDA device nothing is measured.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.files import write_atomically
from labkit.memory import Batch, Plan, Recipe
from labkit.memory.oracles import cases, cuda
from labkit.models import Model
from labkit.papers.overlap_decomp import gpu as overlap_decomp

HERE = Path(__file__).resolve().parent
NO_GPU = (
    "make gpu needs a CUDA device, and torch finds none here (torch.cuda.is_available() is False)"
)
ALL_S = 420
"""When nothing new begins in any part: a minute before the eight are over."""
SHARES_S = {"overlap": 110, "lookups": 60, "dispatch": 60, "memory": 150}
"""When a part begins nothing new. What was begun, loading torch and making numbers come on top."""
SAME = ["gpu", "torch", "driver"]
"""Columns that say whose measurement a row is."""

Row = dict[str, Any]
Step = tuple[str, Callable[[], list[Row]]]


# ---------------------------------------------------------------- a: copies beside products


def overlap(device: str, *, small: bool = False) -> Iterator[Step]:
    """Yield each shape of the gathered product; parts lie in the host's memory or the device's."""
    tokens = (64,) if small else (1024, 4096, 16384)
    outputs = (32,) if small else (1536, 6144, 24576)
    inner = 16 if small else 12288
    for count, columns in product(tokens, outputs):
        measure = partial(
            overlap_decomp.sweep,
            device,
            tokens=(count,),
            outputs=(columns,),
            workers=(8,),
            inner=inner,
            repeats=2 if small else 20,
        )
        yield f"{count} tokens, {columns} outputs", partial(_rows_of, measure, drop=("device",))


def _rows_of(measure: Callable[[], pd.DataFrame], *, drop: tuple[str, ...] = ()) -> list[Row]:
    """Measure a table and list its rows without some columns."""
    table = measure().drop(columns=list(drop))
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


# ---------------------------------------------------------------- b: lookups of many tables


def lookups(device: str, *, small: bool = False) -> Iterator[Step]:
    """Yield each number of tables, at one and at thirty-two ids a sample."""
    counts = (3,) if small else (10, 26, 100, 1000)
    ids = (2,) if small else (1, 32)
    rows = 16 if small else 1000
    samples = 4 if small else 64
    for count, per_sample in product(counts, ids):
        yield (
            f"{count} tables, {per_sample} ids",
            partial(_lookups_row, device, count, rows, samples, per_sample, 2 if small else 20),
        )


def _lookups_row(
    device: str, num_tables: int, rows: int, samples: int, ids: int, repeats: int
) -> list[Row]:
    """Measure a step of each variant on so many tables, and check that all do the same."""
    from labkit.papers import neo

    sizes: Row = {"rows": rows, "columns": 128, "samples": samples, "ids": ids}
    found = neo.compare(device, num_tables=(num_tables,), repeats=repeats, **sizes).iloc[0]
    few = min(num_tables, 10)
    drawn = neo.Lookups.draw(num_tables=few, device=device, **sizes)
    seconds = {f"{name.replace(', ', ' ').replace(' ', '_')}_s": s for name, s in found.items()}
    difference = neo.largest_difference(drawn)
    return [{"num_tables": num_tables, **sizes, **seconds, "difference": difference}]


# ---------------------------------------------------------------- c: tokens to slots


def dispatch(device: str, *, small: bool = False) -> Iterator[Step]:
    """Yield each number of tokens."""
    for tokens in (64,) if small else (1024, 4096, 16384):
        width = 8 if small else 2048
        repeats = 2 if small else 20
        yield f"{tokens} tokens", partial(_dispatch_row, device, tokens, width, repeats)


def _dispatch_row(device: str, tokens: int, width: int, repeats: int) -> list[Row]:
    """Bring tokens to the slots of eight experts of capacity factor 1, in each way.

    The ways are those of the notebook of Tutel: a product with the one-hot matrix of slots, made
    anew or given, and a write by index.
    """
    import torch

    from labkit.papers import tutel
    from labkit.papers.neo.lookups import least_s

    kind = torch.bfloat16 if device.startswith("cuda") else torch.float32
    random = torch.Generator().manual_seed(0)
    values = torch.randn(tokens, width, generator=random).to(device, kind)
    experts = torch.randint(8, (tokens,), generator=random).numpy()
    slot = torch.from_numpy(tutel.slots(experts, capacity=tokens // 8)).to(device)

    def one_hot() -> torch.Tensor:
        slots = torch.nn.functional.one_hot(slot + 1, tokens + 1)[:, 1:]
        return slots.to(kind)

    def einsum(places: torch.Tensor | None = None) -> torch.Tensor:
        return torch.einsum("ts,tw->sw", one_hot() if places is None else places, values)

    def sparse() -> torch.Tensor:
        filled = values.new_zeros(tokens, width)
        served = slot >= 0
        filled[slot[served]] = values[served]
        return filled

    given = one_hot()
    difference = float((einsum() - sparse()).abs().max())
    timed = partial(least_s, device=device, repeats=repeats)
    seconds = {
        "einsum_s": timed(einsum),
        "einsum_one_hot_given_s": timed(partial(einsum, given)),
        "sparse_s": timed(sparse),
    }
    about = {"tokens": tokens, "width": width, "experts": 8, "format": str(kind)[6:]}
    return [{**about, **seconds, "difference": difference}]


# ---------------------------------------------------------------- d: peaks of memory


def trainings() -> list[Plan]:
    """List the small trainings; each needs less than 24 GiB.

    They are GPTs and Llamas in fp32, bf16 and autocast with and without recomputation
    (:func:`cases.on_a_gpu`), and experts and a chunked loss besides.
    """
    bf16 = cases.RECIPES["bf16"]
    experts = replace(
        Model.preset("mixtral-8x7b").resized(num_layers=2),
        name="mixtral, 2 narrow layers",
        hidden=1024,
        heads=8,
        kv_heads=8,
        ffn=3584,
    )
    batch = Batch(seq=2048, micro_batch=2)
    llama = Model.preset("llama-2-7b").resized(name="llama-2-7b, 2 layers", num_layers=2)
    chunked = replace(batch, loss="chunked")
    return [
        *cases.on_a_gpu(),
        Plan(model=experts, recipe=bf16, batch=batch),
        Plan(model=experts, recipe=bf16, batch=replace(batch, recompute="full")),
        Plan(model=llama, recipe=bf16, batch=chunked),
    ]


def eight_bit() -> Plan:
    """Describe a training with bitsandbytes' 8-bit Adam on bf16 weights."""
    recipe = replace(Recipe.preset("adam-8bit"), master=None)
    small = Model.preset("gpt2-355m")
    return Plan(model=small, recipe=recipe, batch=Batch(seq=1024, micro_batch=4))


def memory(
    device: str, *, meter: cuda.Meter | None = None, plans: Iterable[Plan] | None = None
) -> Iterator[Step]:
    """Yield each training that the card can hold, by the estimate."""
    import torch

    read = meter or meter_of()
    room_bytes = torch.cuda.mem_get_info()[0] if device.startswith("cuda") else float("inf")
    for plan in trainings() if plans is None else plans:
        name = f"{plan.estimate.job.model.name}, {plan.recipe.name}"
        if plan.peak_bytes > 0.9 * room_bytes:
            print(f"memory: left out {name}: it needs {plan.peak_bytes / 2**30:.1f} GiB")
            continue
        yield name, partial(_memory_row, plan, read)
    if device.startswith("cuda") and find_spec("bitsandbytes"):
        yield "8-bit states", partial(_eight_bit_row, eight_bit(), read)


def meter_of() -> cuda.Meter:
    """Read the first GPU's peaks, of bytes in use and of what the allocator holds."""
    import torch

    return replace(cuda.gpu(), reserved=torch.cuda.max_memory_reserved)


def _give_back() -> None:
    """Free what an earlier training left, so that the next one's allocator begins anew."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()  # does nothing where CUDA was never used


def _memory_row(plan: Plan, meter: cuda.Meter) -> list[Row]:
    """Train two steps of a plan and set its peaks beside the estimate's."""
    _give_back()
    return [_beside(plan, cuda.peak_of(plan, meter), meter)]


def _eight_bit_row(plan: Plan, meter: cuda.Meter) -> list[Row]:
    """Do the same with bitsandbytes' optimizer."""
    from bitsandbytes.optim import Adam8bit

    _give_back()
    job = plan.estimate.job
    names = ("seq", "micro_batch", "period", "group", "chunks")
    given = {name: job.arguments[name] for name in names}
    given |= {"model": job.model, "mode": job.mode}
    seen = cuda.trained(given, lambda network: Adam8bit(network.parameters()), meter)
    return [_beside(plan, seen, meter)]


def _beside(plan: Plan, allocated: int, meter: cuda.Meter) -> Row:
    """Put the measured peaks beside the estimate's."""
    job = plan.estimate.job
    names = ("seq", "micro_batch", "recompute", "attention", "loss")
    reserved = None if meter.reserved is None else meter.reserved()
    predicted = int(cuda.on_card(plan, meter.about.get("gpu", "")).peak_bytes)
    return {
        "model": job.model.name,
        "recipe": plan.recipe.name,
        "step": plan.recipe.step,
        **{name: getattr(job.batch, name) for name in names},
        "predicted_bytes": predicted,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "error_fraction": round(predicted / allocated - 1, 6),
        "predicted_moment": plan.peak_moment,
    }


# ---------------------------------------------------------------- what is written

PARTS: dict[str, Callable[[str], Iterator[Step]]] = {
    "overlap": overlap,
    "lookups": lookups,
    "dispatch": dispatch,
    "memory": memory,
}


@dataclass(frozen=True, kw_only=True)
class Store:
    """Puts the rows of a part into its file, with what they were measured on."""

    folder: Path
    about: dict[str, str]

    def write(self, part: str, rows: list[Row]) -> Path:
        """Write the rows of this machine, and keep those of others."""
        path = self.folder / f"gpu_{part}.csv"
        table = pd.DataFrame(rows).assign(**self.about)
        if path.exists():
            before = pd.read_csv(path, dtype=dict.fromkeys(self.about, str))
            ours = (before[SAME] == [self.about[name] for name in SAME]).all(axis=1)
            table = pd.concat([before[~ours], table]) if not ours.all() else table
        write_atomically(path, table.to_csv(index=False, lineterminator="\n"))
        return path


def machine() -> dict[str, str]:
    """Say which card, torch, CUDA and driver measure, and when."""
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        driver = told.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        driver = "nvidia-smi tells none"
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "driver": driver,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def run(part: str, steps: Iterable[Step], store: Store, share_s: float) -> list[str]:
    """Measure the steps of a part until its share of the time is over; list what failed.

    What a card refuses (torch's errors, such as too little memory) is said and costs its row alone.
    """
    begun_s = time.monotonic()
    rows: list[Row] = []
    failed = []
    left_out = []
    for name, measure in steps:
        if time.monotonic() - begun_s > share_s:
            left_out.append(name)
            continue
        try:
            rows += measure()
        except RuntimeError as error:
            print(f"{part}: {name} failed: {str(error).splitlines()[0]}", file=sys.stderr)
            failed.append(name)
            continue
        path = store.write(part, rows)
        print(f"{part}: {name} -> {path.name}", flush=True)
    if left_out:
        print(f"{part}: {share_s:g} s are over; left out: {'; '.join(left_out)}")
    return failed


def main(arguments: list[str]) -> int:
    """Measure the parts asked for; the exit status is 1 where no CUDA device is or a row failed."""
    parser = argparse.ArgumentParser(prog="make gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all"
    )
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the CSV files")
    asked = parser.parse_args(arguments)
    if not find_spec("torch"):
        print("make gpu needs torch, which is not installed here", file=sys.stderr)
        return 1
    import torch

    if not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 1
    store = Store(folder=asked.out, about=machine())
    ends_s = time.monotonic() + ALL_S
    failed = []
    for part in asked.parts:
        share_s = min(SHARES_S[part], ends_s - time.monotonic())
        failed += run(part, PARTS[part]("cuda"), store, share_s)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
