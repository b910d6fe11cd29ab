"""The order of what happens at one moment, and small cases worked out by hand."""

from __future__ import annotations

import pytest

from labkit import cluster
from labkit.errors import BadValue

EIGHT = cluster.Cluster.nodes(1, gpus=8)


def trace(*jobs: tuple[float, float, int]) -> cluster.Trace:
    arrival, duration, gpus = zip(*jobs, strict=True)
    return cluster.Trace(arrival_s=arrival, duration_s=duration, gpus=gpus)


def log(run: cluster.Run) -> list[tuple[float, str, int]]:
    """What happened, in order: (seconds, "start", "stop" or "end", job)."""
    events = []
    for job, start_s, end_s in zip(*(run.segments[n] for n in ("job", "start_s", "end_s"))):  # noqa: B905
        what = "end" if end_s == run.end_s[job] else "stop"
        events += [(float(start_s), "start", int(job)), (float(end_s), what, int(job))]
    return sorted(events, key=lambda event: (event[0], event[1] == "start", event[2]))


def test_a_log_of_two_queues() -> None:
    """Job 0 falls to the second queue when it has had 16 GPU-seconds, at 2 s: it goes on while
    nobody else is there. Job 1 has not had 16 yet, so it comes first; it falls at 5 s, and job 0,
    which fell before it, is ahead of it again."""
    run = cluster.simulate(trace((0, 6, 8), (3, 4, 8)), EIGHT, cluster.las2d(16))
    assert log(run) == [
        (0, "start", 0),
        (3, "stop", 0),
        (3, "start", 1),
        (5, "stop", 1),
        (5, "start", 0),
        (8, "end", 0),
        (8, "start", 1),
        (10, "end", 1),
    ]


@pytest.mark.parametrize("name", cluster.POLICIES)
def test_gpus_freed_at_a_moment_serve_who_arrives_at_it(name: str) -> None:
    run = cluster.simulate(trace((0, 5, 8), (5, 5, 8)), EIGHT, cluster.named(name))
    assert run.end_s.tolist() == [5, 10]
    assert run.waits_s.sum() == 0
    assert run.preemptions.sum() == 0


def test_who_arrives_together_is_served_in_the_order_of_the_trace() -> None:
    run = cluster.simulate(trace((0, 5, 8), (0, 1, 8), (0, 3, 8)), EIGHT, cluster.fifo())
    assert run.start_s.tolist() == [0, 5, 6]


def test_an_equal_newcomer_stops_nobody() -> None:
    run = cluster.simulate(trace((0, 9, 8), (3, 6, 8)), EIGHT, cluster.srtf())
    assert run.end_s.tolist() == [9, 15]
    shorter = cluster.simulate(trace((0, 9, 8), (3, 5, 8)), EIGHT, cluster.srtf())
    assert shorter.end_s.tolist() == [14, 8]
    assert shorter.preemptions.tolist() == [1, 0]


def test_a_stopped_job_pays_once_to_run_again() -> None:
    jobs = trace((0, 9, 8), (3, 5, 8))
    run = cluster.simulate(jobs, EIGHT, cluster.srtf(restart_s=2.0))
    assert run.end_s.tolist() == [16, 8]
    assert run.restart_s.tolist() == [2, 0]
    assert run.waits_s[0].tolist() == [0, 0, 0, 5, 0]


def test_blocking_and_passing() -> None:
    jobs = trace((0, 10, 6), (1, 1, 4), (2, 1, 2))
    assert cluster.simulate(jobs, EIGHT, cluster.fifo()).start_s.tolist() == [0, 10, 10]
    passing = cluster.simulate(jobs, EIGHT, cluster.fifo(blocks=False))
    assert passing.start_s.tolist() == [0, 10, 2]


def test_waiting_has_its_reasons() -> None:
    blocked = cluster.simulate(trace((0, 10, 6), (1, 1, 4), (2, 1, 2)), EIGHT, cluster.fifo())
    assert blocked.waits_s.tolist() == [[0, 0, 0, 0, 0], [9, 0, 0, 0, 0], [0, 8, 0, 0, 0]]
    nodes = cluster.Cluster.nodes(2, gpus=4)
    jobs = trace((0, 10, 3), (0, 12, 3), (1, 1, 2))
    spread = cluster.simulate(jobs, nodes, cluster.fifo(), placement="consolidated")
    assert spread.start_s.tolist() == [0, 0, 10]
    assert spread.waits_s[2].tolist() == [0, 0, 9, 0, 0]
    assert "free GPUs on few enough nodes" in spread.why(2)
    assert cluster.simulate(jobs, nodes, cluster.fifo()).start_s.tolist() == [0, 0, 1]


def test_a_job_falls_to_the_next_queue_at_its_threshold() -> None:
    """Eight GPUs for three seconds are 24 GPU-seconds: then the newcomer's queue comes first."""
    jobs = trace((0, 10, 8), (1, 10, 8))
    by_time = cluster.simulate(jobs, EIGHT, cluster.las(3))
    assert by_time.start_s.tolist() == [0, 3]
    assert by_time.end_s.tolist() == [13, 20]  # both in the last queue at 6: who runs stays ahead
    by_service = cluster.simulate(jobs, EIGHT, cluster.las2d(24))
    assert by_service.end_s.tolist() == by_time.end_s.tolist()


def test_las_leaves_the_last_queue_in_the_order_of_falling() -> None:
    jobs = trace((0, 4, 8), (0, 4, 8), (0, 4, 8))
    run = cluster.simulate(jobs, EIGHT, cluster.las(1))
    assert run.start_s.tolist() == [0, 1, 2]
    assert run.end_s.tolist() == [6, 9, 12]


def test_pools_are_taken_fastest_first_and_types_are_kept() -> None:
    machines = cluster.Cluster(
        pools=[
            cluster.Pool(nodes=1, gpus_per_node=4, gpu="old", speed=0.5),
            cluster.Pool(nodes=1, gpus_per_node=4, gpu="new", speed=2.0),
        ]
    )
    run = cluster.simulate(trace((0, 8, 4), (0, 8, 4), (0, 8, 4)), machines, cluster.fifo())
    assert run.end_s.tolist() == [4, 16, 8]
    typed = cluster.Trace(arrival_s=[0, 0], duration_s=[8, 8], gpus=[4, 4], gpu=["old", "old"])
    assert cluster.simulate(typed, machines, cluster.fifo()).end_s.tolist() == [16, 32]


def test_a_kind_may_be_unable_to_run_in_a_pool() -> None:
    only = cluster.Pool(nodes=1, gpus_per_node=4, gpu="old", speeds={"gpt2": 0.0, "vgg": 4.0})
    jobs = cluster.Trace(arrival_s=[0, 0], duration_s=[8, 8], gpus=[1, 1], kind=["gpt2", "vgg"])
    run = cluster.simulate(jobs, cluster.Cluster(pools=[only]), cluster.fifo())
    assert run.ran.tolist() == [False, True]
    assert run.end_s[1] == 2
    assert "old has 4 but cannot run it" in run.why("0")
    assert run.summary()["never_ran"] == 1


def test_a_job_larger_than_every_pool_is_reported_and_nobody_waits_for_it() -> None:
    machines = cluster.Cluster(
        pools=[
            cluster.Pool(nodes=1, gpus_per_node=4, gpu="a"),
            cluster.Pool(nodes=1, gpus_per_node=4, gpu="b"),
        ]
    )
    run = cluster.simulate(trace((0, 5, 6), (1, 5, 4)), machines, cluster.fifo())
    assert run.ran.tolist() == [False, True]
    assert run.start_s[1] == 1
    assert run.why(0) == "0 can never run: it needs 6 GPUs of one pool, and a has 4, b has 4"


def test_a_summary_says_what_the_jobs_say() -> None:
    jobs = cluster.Trace(
        arrival_s=[0, 1], duration_s=[10, 4], gpus=[8, 8], deadline_s=[10, 12], ids=["a", "b"]
    )
    run = cluster.simulate(jobs, EIGHT, cluster.fifo())
    summary = run.summary()
    assert summary["mean_jct_s"] == (10 + 13) / 2
    assert summary["makespan_s"] == 14
    assert summary["utilisation_fraction"] == 1
    assert summary["deadlines_met_fraction"] == 0.5
    assert run.frame()["deadline_met"].tolist() == [True, False]
    assert run.summary(warmup=0.5)["mean_jct_s"] == 13
    assert "the most GPU time went to a (72 GPU-s)" in run.why("b")


def test_ranks_are_one_a_queue() -> None:
    with pytest.raises(BadValue, match=r"one a queue, 2; got \(1,\)"):
        cluster.Policy(name="x", order="attained", thresholds=(1,), preemptive=True, ranks=(1,))
