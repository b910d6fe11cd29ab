"""What tests of shares of time have in common: a small table of speeds, jobs of its kinds, and what
must hold for every policy."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import cluster

GPU_TYPES = ("fast", "slow")
TABLE = cluster.Throughputs(
    kinds=("a", "b"),
    gpu_types=GPU_TYPES,
    alone=np.array([[2.0, 1.0], [3.0, 3.0]]),
    shared=np.array([[[1.5, 0.5], [1.0, 0.9]], [[1.5, 1.0], [2.4, 1.0]]]),
)
ALONE = cluster.Throughputs(
    kinds=TABLE.kinds, gpu_types=GPU_TYPES, alone=TABLE.alone, shared=0 * TABLE.shared
)


def jobs(kinds: str, seconds: float, gpus: int = 1, arrival_s: float = 0.0) -> cluster.Trace:
    size = len(kinds)
    return cluster.Trace(
        arrival_s=np.arange(size) * arrival_s,
        duration_s=np.full(size, seconds),
        gpus=np.full(size, gpus),
        kind=tuple(kinds),
    )


def occupied(done: cluster.Run, pool: int) -> int:
    """The most GPUs of a pool held at once."""
    mine = done.segments["pool"] == pool
    start, end = (np.round(done.segments[name][mine], 6) for name in ("start_s", "end_s"))
    gpus = done.segments["gpus"][mine]
    moments = np.concatenate([end, start])
    change = np.concatenate([-gpus, gpus])
    return int(np.cumsum(change[np.argsort(moments, kind="stable")]).max())


def check_no_gpu_is_used_twice_and_all_work_is_done(
    chosen: cluster.SharePolicy, seed: int, *, most_gpus: int, pairs: bool
) -> None:
    """On three fast and four slow GPUs; ``pairs``: two jobs may hold one GPU."""
    draw = np.random.default_rng(seed)
    size = 25
    trace = cluster.Trace(
        arrival_s=np.sort(draw.uniform(0, 20_000, size)),
        duration_s=draw.exponential(6_000, size) + 1,
        gpus=draw.integers(1, most_gpus, size, endpoint=True),
        kind=tuple(draw.choice(["a", "b"], size)),
    )
    done = cluster.simulate(trace, TABLE.cluster(3, 4), chosen)
    speed = TABLE.of(trace.kind)[0]
    job = done.segments["job"]
    pool = done.segments["pool"]
    held_s = done.segments["end_s"] - done.segments["start_s"]
    work = np.zeros(size)
    np.add.at(work, job, held_s * speed[job, pool])
    assert done.ran.all()
    most = speed.max(axis=1)
    assert (work >= trace.column("duration_s") - 1e-3).all()
    assert (work <= trace.column("duration_s") + (done.restart_s + 1e-3) * most).all()
    if not pairs:
        assert [occupied(done, p) <= room for p, room in enumerate((3, 4))] == [True, True]
    waited = done.waits_s.sum(axis=1) + np.bincount(job, held_s, size)
    assert waited == pytest.approx(done.jct_s, rel=1e-9)
