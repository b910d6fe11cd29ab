"""The measuring side: one process imports torch, forks the ranks, and each rank trains for real.

Started by :mod:`labkit.memory.oracles.oracle` as ``python -m labkit.memory.oracles.worker``, with
the experiment as JSON on the command line; every rank writes what it measured to a file. Nothing
else imports this module, so that the engine itself never loads torch.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # every optimizer loads it at first use: once here, not once a rank
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing import start_processes

from labkit.memory.oracles import networks, schemes
from labkit.memory.oracles.meters import CollectiveMeter, received_bytes, storage_bytes
from labkit.memory.oracles.schemes import Adam, Run
from labkit.memory.tape.mode import Mode
from labkit.models import Model

# Adam divides by √v + eps. A larger eps than the default keeps parameters whose gradient is zero
# but for rounding (a key's bias) from amplifying the order of summation into a visible step.
ADAM = Adam(lr=1e-4, eps=1e-6)

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>: the signal to get when the thread that forked us ends


def build(model: Model, spec: dict[str, Any]) -> networks.Decoder:
    """The same small weights on every rank; the tensors are those the formulas count."""
    torch.manual_seed(spec["seed"])
    network = networks.build(model, Mode(dtype="fp32"), seq=spec["seq"])
    shapes = [tuple(p.shape) for p in network.parameters()]
    assert shapes == [tensor.shape for tensor in model.tensors()]
    with torch.no_grad():
        for table in filter(None, (network.token, network.position)):
            table.weight.mul_(0.02)
    return network


def batches(model: Model, spec: dict[str, Any]) -> Iterator[Tensor]:
    """One global batch of random tokens a step, the same on every rank."""
    source = torch.Generator().manual_seed(spec["seed"] + 1)
    for _ in range(spec["steps"]):
        shape = (spec["global_batch"], spec["seq"] + 1)
        yield torch.randint(model.vocab, shape, generator=source)


def _pair(batch: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and what should follow them."""
    return batch[:, :-1], batch[:, 1:].contiguous()


def train(trainer: schemes.Trainer, chosen: Iterable[Tensor]) -> None:
    """A step on each batch."""
    for batch in chosen:
        trainer.zero_grad()
        trainer.network(*_pair(batch)).backward()
        trainer.step()


def reference_weights(model: Model, spec: dict[str, Any]) -> list[Tensor]:
    """The weights after training on whole batches in one process: what every scheme must give."""
    network = build(model, spec)
    train(schemes.Trainer(network, network, ADAM.over(network.parameters())), batches(model, spec))
    return [p.detach().clone() for p in network.parameters()]


def measure(model: Model, spec: dict[str, Any], run: Run, expected: list[Tensor]) -> dict:
    """Train under one scheme and report what this rank held, sent and ended with."""
    trainer = schemes.trainer(run, build(model, spec), ADAM)
    share = spec["global_batch"] // run.num_ranks
    *warm_up, last = (
        batch[run.rank * share : (run.rank + 1) * share] for batch in batches(model, spec)
    )
    train(trainer, warm_up)
    trainer.zero_grad()
    dist.barrier(group=run.group)
    before = received_bytes()
    held: dict[str, int] = {}
    with CollectiveMeter() as meter:
        meter.phase = "forward"
        loss = trainer.network(*_pair(last))
        held["parameters after forward"] = storage_bytes(trainer.network.parameters())
        meter.phase = "backward"
        loss.backward()
        held["gradients"] = storage_bytes(trainer.gradients())
        meter.phase = "step"
        trainer.step()
    dist.barrier(group=run.group)
    after = received_bytes()
    held["parameters"] = storage_bytes(trainer.network.parameters())
    held["optimizer"], held["step counters"] = trainer.optimizer_bytes()
    return {
        "scheme": run.scheme,
        "ranks": run.num_ranks,
        "rank": run.rank,
        "held_bytes": held,
        "collectives": meter.summary(),
        "received_bytes": None if before is None or after is None else after - before,
        "largest_difference": _difference(trainer.full_weights(), expected),
    }


def _difference(weights: list[Tensor], expected: list[Tensor]) -> float:
    pairs = zip(weights, expected, strict=True)
    return max(float((ours - whole).abs().max()) for ours, whole in pairs)


def run_rank(rank: int, spec: dict[str, Any]) -> None:
    """One rank's life: join, run every scheme on the first 2, 3, … ranks, write, leave."""
    folder = Path(spec["folder"])
    _die_with_parent()
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    _use_loopback()
    model = Model(**spec["model"])
    dist.init_process_group(
        "gloo",
        init_method=(folder / "store").as_uri(),
        rank=rank,
        world_size=max(spec["ranks"]),
        timeout=timedelta(seconds=spec["timeout_s"]),
    )
    expected = reference_weights(model, spec)
    reports = [
        measure(model, spec, run, expected)
        for run in schemes.runs(rank, spec["ranks"], spec["schemes"], spec["group"])
        if run.group is not None
    ]
    dist.barrier()
    (folder / f"rank{rank}.json").write_text(json.dumps(reports))
    dist.destroy_process_group()


def _use_loopback() -> None:
    """Gloo otherwise looks up the host's name, which not every machine can."""
    names = {name for _, name in socket.if_nameindex()}
    loopback = [name for name in ("lo", "lo0") if name in names]
    if loopback and "GLOO_SOCKET_IFNAME" not in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]


def _die_with_parent() -> None:
    """Leave at once when the process that made this one is gone, also if it is gone already.

    On Linux the kernel sees to it. A thread that looks cannot be relied on: torch's FileStore, for
    one, keeps Python's lock while it retries, for minutes, to open a file whose folder is gone.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    maker = parent.pid  # not os.getppid(): that may be another's by now
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == maker:
            time.sleep(0.5)
        os._exit(1)

    if os.getppid() != maker:
        os._exit(1)
    if sys.platform != "linux":
        threading.Thread(target=watch, daemon=True).start()


def main(spec: dict[str, Any]) -> None:
    """Fork the ranks after torch is loaded, so that it is loaded once; the first that fails ends
    the others and raises here."""
    method = "fork" if sys.platform == "linux" else "spawn"
    ranks = start_processes(
        run_rank, (spec,), max(spec["ranks"]), join=False, daemon=True, start_method=method
    )
    threading.Thread(target=_leave_with_caller, args=(spec["folder"],), daemon=True).start()
    while not ranks.join():
        pass


def _leave_with_caller(folder: str) -> None:
    """The caller holds the other end of stdin: when it ends, however it ends, so do we.

    A caller that was killed could not remove its folder either.
    """
    while os.read(0, 1):  # not sys.stdin: its lock, held here, would block our own shutdown
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
