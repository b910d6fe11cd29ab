"""Logs of others as traces: which rows are jobs, what they held, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labkit import cluster
from labkit.cluster.inputs.published import from_path_or_name
from labkit.errors import BadFile, BadValue

SWF = """\
; Version: 2.2
; MaxProcs: 16
;
  7   100   20   600  8 -1 -1  8  900 -1 1 3 1 -1 0 1 -1 -1
  8   110   -1    60 -1 -1 -1  9   -1 -1 1 4 1 -1 0 1 -1 -1
  9   120    5     0  4 -1 -1  4   60 -1 5 3 1 -1 0 1 -1 -1
 10   130    5    -1  4 -1 -1  4   60 -1 5 3 1 -1 0 1 -1 -1
 11   140    5    30 -1 -1 -1 -1   60 -1 1 3 1 -1 0 1 -1 -1
 12   150    5    30  4 -1 -1  4   60 -1 2 3 1 -1 0 1 -1 -1
 12   150    5    99  4 -1 -1  4   60 -1 1 -1 1 -1 0 2 -1 -1
"""
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,1,1,1,1000,,LS,Running,0,500,0
p1,1,1,1,460,,LS,Running,10,100,12
p2,1,1,0,0,,LS,Running,20,90,20
p3,1,1,8,1000,V100M16|V100M32,Burstable,Failed,30,80,40
p4,1,1,1,1000,,BE,Pending,40,50,
"""


@pytest.fixture
def swf(tmp_path: Path) -> Path:
    path = tmp_path / "log.swf"
    path.write_text(SWF)
    return path


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    path = tmp_path / "pods.csv"
    path.write_text(PODS)
    return path


def test_a_line_of_the_standard_workload_format_is_a_job(swf: Path) -> None:
    assert cluster.from_swf(swf).frame().to_dict("list") == {
        "job_id": ["7", "8", "12"],
        "arrival_s": [100, 110, 150],
        "duration_s": [600, 60, 99],
        "gpus": [8, 9, 4],
        "deadline_s": [np.inf] * 3,
        "estimate_s": [900, np.inf, 60],
        "recorded_start_s": [120, np.inf, 155],
        "tenant": ["3", "4", ""],
    }


def test_what_is_no_job_of_the_log_is_counted(swf: Path) -> None:
    name = cluster.from_swf(swf).name
    assert "1 parts of jobs, 2 that never ran, 1 without processors" in name
    assert "2 partitions read as one cluster" in name


def test_processors_become_gpus_by_a_rule_that_rounds_up(swf: Path) -> None:
    trace = cluster.from_swf(swf, processors_per_gpu=4)
    assert trace.column("gpus").tolist() == [2, 3, 1]
    by_command = from_path_or_name(str(swf), processors_per_gpu=4)
    assert by_command.column("gpus").tolist() == [2, 3, 1]


def test_a_log_is_known_by_its_first_line(swf: Path) -> None:
    other = swf.with_name("log.txt")
    other.write_text(SWF)
    assert len(from_path_or_name(str(other))) == 3


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("  7   100", "  7   soon", r"log\.swf:4: no number; field 'submit_s'; found 'soon'"),
        ("  7   100   20", "  7   100", r"log\.swf:4: a line of 17 fields"),
        ("  7   100", "  7   -1", r"log\.swf:4: .*'submit_s'; found -1"),
        ("  8   110", "  7   110", r"log\.swf:5: an id stands twice"),
    ],
)
def test_a_bad_line_of_a_log_is_named(swf: Path, old: str, new: str, complaint: str) -> None:
    swf.write_text(SWF.replace(old, new))
    with pytest.raises(BadFile, match=complaint):
        cluster.from_swf(swf)


def test_a_log_without_jobs_is_refused(swf: Path) -> None:
    swf.write_text("; Version: 2.2\n")
    with pytest.raises(BadFile, match="holds no jobs"):
        cluster.from_swf(swf)
    swf.write_text("".join(SWF.splitlines(keepends=True)[5:7]))
    with pytest.raises(BadFile, match=r"no line is .* that ran \(0 parts of jobs, 2 that never"):
        cluster.from_swf(swf)


def test_pods_that_held_a_gpu_are_the_trace(pods: Path) -> None:
    """p0 runs still at the log's end; p2 has no GPU; p4 never ran; p1 held 0.46 of a GPU."""
    trace = from_path_or_name(str(pods))
    assert trace.frame().to_dict("list") == {
        "job_id": ["p1", "p3"],
        "arrival_s": [10, 30],
        "duration_s": [88, 40],
        "gpus": [1, 8],
        "deadline_s": [np.inf] * 2,
        "recorded_start_s": [12, 40],
    }
    assert "1 pods without a GPU, 1 that never ran, 1 not finished" in trace.name
    assert "1 parts of a GPU count as one each" in trace.name


def test_pods_without_scheduled_times_run_from_their_creation(pods: Path) -> None:
    rows = [line.rsplit(",", 1)[0] for line in PODS.splitlines()]
    pods.write_text("\n".join(rows[:-1]))
    trace = cluster.from_pods(pods)
    assert trace.column("duration_s").tolist() == [90, 50]
    assert not trace.has("recorded_start_s")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("gpu_milli", "milli", "gpu_milli"),
        ("8,1000", "2.5,1000", r"pods\.csv:5: .*'gpus'; found 2\.5"),
        ("30,80", "never,80", r"pods\.csv:5: no number; field 'creation_time'; found 'never'"),
        ("30,80,40", "30,80,20", r"pods\.csv:5: .*'scheduled_time'; found 20"),
    ],
)
def test_a_bad_pod_is_named(pods: Path, old: str, new: str, complaint: str) -> None:
    pods.write_text(PODS.replace(old, new))
    with pytest.raises(BadFile, match=complaint):
        cluster.from_pods(pods)


def test_recorded_starts_count_from_the_first_arrival(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        "submit_time,start_time,duration,gpu_num\n"
        "2020-04-08 18:55:08,2020-04-08 18:56:08,10,1\n"
        "2020-04-08 18:55:18,,10,1\n"
    )
    trace = cluster.from_csv(path)
    assert trace.column("recorded_start_s").tolist() == [60, np.inf]


HELIOS = """\
job_id,user,gpu_num,state,submit_time,start_time,duration
a,u1,1,COMPLETED,2020-04-08 18:55:08,2020-04-08 18:55:38,60
b,u2,0,COMPLETED,2020-04-08 18:56:08,2020-04-08 18:56:08,10
c,u2,4,RUNNING,2020-04-08 18:57:08,2020-04-08 18:57:08,
d,u1,8,FAILED,2020-04-08 18:58:08,2020-04-08 18:59:48,30
"""


def test_rows_of_a_csv_file_that_are_no_job_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "helios.csv"
    path.write_text(HELIOS)
    trace = cluster.from_csv(path, leaves_out=True)
    assert trace.name == "helios (left out: 1 jobs without a GPU, 1 without a duration)"
    assert trace.ids == ("a", "d")
    assert trace.column("arrival_s").tolist() == [0, 180]
    assert trace.column("recorded_start_s").tolist() == [30, 280]
    assert from_path_or_name(str(path)).name == trace.name
    with pytest.raises(BadFile, match=r"helios\.csv:4: no number; field 'duration'"):
        cluster.from_csv(path)


def test_a_csv_file_without_a_job_that_ran_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "helios.csv"
    path.write_text("".join(HELIOS.splitlines(keepends=True)[n] for n in (0, 2, 3)))
    with pytest.raises(BadFile, match="no row is a GPU job that ran"):
        cluster.from_csv(path, leaves_out=True)


def test_recorded_waits_stand_beside_simulated_ones() -> None:
    """Two jobs of the whole cluster: the second waits 9 s here, and 20 s as it was recorded."""
    trace = cluster.Trace(
        arrival_s=[0, 1, 2],
        duration_s=[10, 5, 5],
        gpus=[8, 8, 8],
        recorded_start_s=[0, 21, np.inf],
    )
    run = cluster.simulate(trace, cluster.Cluster.nodes(1), cluster.fifo())
    summary = run.summary()
    assert summary["median_recorded_wait_s"] == 10
    assert summary["median_simulated_wait_s"] == 4.5
    assert run.frame()["recorded_wait_s"].tolist()[:2] == [0, 20]
    plain = cluster.simulate(trace.changed(recorded_start_s=()), run.cluster, cluster.fifo())
    assert "median_recorded_wait_s" not in plain.summary()
    assert "recorded_wait_s" not in plain.frame()


def test_a_sweep_counts_jobs_that_one_of_its_clusters_is_too_small_for() -> None:
    trace = cluster.Trace(arrival_s=[0, 1], duration_s=[10, 10], gpus=[64, 8])
    sizes = [cluster.Cluster.nodes(nodes) for nodes in (4, 8)]
    table = cluster.sweep([trace], sizes, [cluster.fifo(), cluster.srsf()])
    assert table["never_ran"].tolist() == [1, 1, 0, 0]
    assert table["mean_jct_s"].tolist() == [10, 10, 14.5, 15]
    with pytest.raises(BadValue, match="gpus 64 is more than the cluster has"):
        cluster.sweep([trace], sizes[:1], [cluster.fifo()])
    with pytest.raises(BadValue, match="gpus 64 is more than the cluster has"):
        cluster.sweep([trace], sizes, [cluster.share_policy("las")])


def test_a_cluster_on_which_no_job_fits_has_a_row_of_a_sweep() -> None:
    trace = cluster.Trace(arrival_s=[0], duration_s=[10], gpus=[64])
    sizes = [cluster.Cluster.nodes(nodes) for nodes in (4, 8)]
    table = cluster.sweep([trace], sizes, [cluster.fifo()])
    assert table["never_ran"].tolist() == [1, 0]
    assert table["jobs"].tolist() == [0, 1]
