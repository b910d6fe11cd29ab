"""Synergy's own simulator, an oracle for ours: run once, its end times stored.

``python -m tests.oracles.synergy_simulator FOLDER`` runs the simulator of a checkout of
https://github.com/msr-fiddle/synergy (FOLDER is its ``simulator``) and writes
``stored/synergy_end_times.json``: for each run the mean completion time and a hash of the end times
of the jobs it counts. The log it read its jobs from is not published; its mode for exponential
arrivals takes nothing from it but the number of jobs, and draws durations from seed 42. With
those, the run ``readme`` prints what the authors' README prints, digit for digit.

Needed to run it today: empty modules in the place of gRPC, NUMA, cvxpy and Matplotlib;
``collections.abc``; no statistics of utilisation and no deep copies for deployment (both unused).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from labkit import cluster
from labkit.papers import synergy
from tests.oracles.tiresias_simulator import digest

STORED = Path(__file__).parent / "stored" / "synergy_end_times.json"
COMMIT = "1bb2bed6edc9c5f953d0b7f0a40e4fdad053489c"
NEEDS = Path(__file__).parents[2] / "data/papers/synergy/needs.csv"
_SMALL = {"nodes": 4, "rate": 1.9, "split": (33, 33, 33), "seed": 42, "jobs": (0, 250)}
_WIDE = {"nodes": 4, "rate": 1.0, "split": (30, 70, 0), "seed": 7, "jobs": (0, 200), "wide": True}
_FULL = {"nodes": 16, "rate": 9.0, "split": (20, 70, 10), "seed": 42, "jobs": (4000, 5000)}
RUNS: dict[str, dict[str, Any]] = {
    "readme": {**_FULL, "order": "fifo", "give": "tune"},
    "full-fifo-proportional": {**_FULL, "order": "fifo", "give": "proportional"},
    **{
        f"{order}-{give}": {**_SMALL, "order": order, "give": give}
        for order, give in (
            ("las", "proportional"),
            ("las", "tune"),
            ("fifo", "greedy"),
            ("srtf", "greedy"),
            ("drf", "greedy"),
            ("srtf", "tune"),
            ("tetris", "greedy"),
        )
    },
    **{
        f"wide-{order}-{give}": {**_WIDE, "order": order, "give": give}
        for order, give in (
            ("fifo", "proportional"),
            ("fifo", "tune"),
            ("fifo", "greedy"),
            ("srtf", "tune"),
        )
    },
}
"""Runs of the simulator; ``wide`` has jobs of 1 to 8 GPUs."""
_CODE = """
import copy, json, logging, random, sys, types
import collections, collections.abc
collections.Mapping = collections.abc.Mapping
for name in ("numa", "cvxpy", "matplotlib", "matplotlib.pyplot", "matplotlib.dates", "deployment",
             "deployment.runtime", "deployment.runtime.rpc", "deployment.helper", "opt_algo",
             "deployment.runtime.rpc.scheduler_server", "deployment.runtime.rpc.scheduler_client",
             "opt_algo.synergy_opt"):
    module = sys.modules[name] = types.ModuleType(name)
    if "." in name:
        setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
sys.modules["opt_algo.synergy_opt"].Solver = None
sys.modules["deployment.helper"].get_self_ip = str
sys.path.insert(0, "."), logging.disable(logging.CRITICAL)
import runner, time
from helpers import utils
from jobs.job import Job
from jobs.workload import Workload
from metrics.cluster_util import ClusterUtilization
from resources.cluster import Cluster
class Copies:
    def __getattr__(self, name): return getattr(copy, name)
    def deepcopy(self, x): return [] if x and isinstance(x[0], Job) else copy.deepcopy(x)
for name in ("fifo_synergy_new", "srtf_synergy_new", "las_synergy_new", "drf", "tetris"):
    sys.modules["schedulers." + name].copy = Copies()
ClusterUtilization.put = lambda *_: None
Cluster.alloc_stats = Cluster.utilization_stats = Cluster.demand_stats = property(lambda _: {})
plan = json.loads(sys.argv[1])
def stored(*_):
    random.seed(plan["seed"])
    jobs = [Job(i, 0, 1, utils.get_gavel_like_iter(), 1, None, None, None, None, 0,
                iter_is_duration=True) for i in range(7000)]
    random.seed(plan["seed"])
    return jobs
Workload.get_philly_jobs, ends, finish = stored, {}, runner.Runner.finish_job
def finished(self, job):
    ends[job.job_id] = job.job_arrival_time, self.time
    finish(self, job)
runner.Runner.finish_job = finished
random.seed(plan["seed"])
start = time.process_time()
runner.Runner(
    None if plan.get("wide") else "stored", plan["order"].upper(), plan["rate"], plan["jobs"],
    tuple(plan["split"]), True, placement=False, fair=plan["give"] == "proportional",
    tune=plan["give"] == "tune", config_file="nodes.ini").run_simulation()
print(json.dumps([time.process_time() - start, [ends[job] for job in range(*plan["jobs"])]]))
"""


def as_program(name: str) -> tuple[cluster.Trace, cluster.Cluster, synergy.Resources]:
    """Our input of a run, with whole iterations a round as the program counts them."""
    plan = RUNS[name]
    trace = synergy.draw_mix(
        plan["jobs"][1] + 1100,
        jobs_per_hour=plan["rate"],
        split=plan["split"],
        rng=plan["seed"],
        wide=plan.get("wide", False),
    )
    policy = synergy.allocator(
        synergy.load_needs(NEEDS),
        give=plan["give"],
        order=plan["order"],
        ends="boundary",
        whole=True,
    )
    return trace, cluster.Cluster.nodes(plan["nodes"]), policy


def main(simulator: Path) -> None:
    runs = {}
    for name, plan in RUNS.items():
        text = (simulator / "configs/default_cluster.ini").read_text()
        nodes = text.replace("servers_per_rack = 16", f"servers_per_rack = {plan['nodes']}")
        (simulator / "nodes.ini").write_text(nodes)
        out = subprocess.run(
            [sys.executable, "-c", _CODE, json.dumps(plan)],
            cwd=simulator,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        cpu_s, ends = json.loads(out.splitlines()[-1])
        arrival, end = np.array(ends).T
        runs[name] = {
            "mean_jct_h": float((end - arrival).mean() / 3600),
            "sha256": digest(end),
            "p99_jct_h": float(np.percentile(end - arrival, 99) / 3600),
            "cpu_s": round(cpu_s, 1),
        }
    STORED.write_text(json.dumps({"commit": COMMIT, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
