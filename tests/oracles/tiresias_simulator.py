"""Tiresias's own simulator, an oracle for ours: run once over a trace, its end times stored.

``python -m tests.oracles.tiresias_simulator FOLDER`` runs the simulator of a checkout of
https://github.com/SymbioticLab/Tiresias (FOLDER is its ``simulator``) on cluster 06 of
``itp-elasticflow`` and writes ``stored/tiresias_end_times.json``: for each policy the mean
completion time, the last end, and a hash of all end times in whole seconds, by place in the trace.
The simulator is written for Python 2; all that Python 3 lacks for it is ``sys.maxint``.
"""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit import cluster

STORED = Path(__file__).parent / "stored" / "tiresias_end_times.json"
COMMIT = "959f9b08f44fa1b4f2b3aed79b01e4d439264a94"
NODES = 12
GPUS_PER_NODE = 8
POLICIES: dict[str, cluster.Policy] = {
    "fifo": cluster.fifo(),
    "fjf": cluster.fifo(blocks=False),
    "dlas": cluster.las(3250, 7200),
    "dlas-gpu": cluster.las2d(3250, 7200, demotion="tiresias"),
    "shortest-gpu": cluster.srsf(),
    "shortest": cluster.srtf(),
}
"""The simulator's names of its schedules, and ours."""
_RUN = "import sys, runpy; sys.maxint = sys.maxsize; sys.path.insert(0, '.'); runpy.run_path("


def digest(end_s: Any) -> str:
    """A hash of end times in whole seconds."""
    whole = np.rint(np.asarray(end_s)).astype("<i8")
    return hashlib.sha256(whole.tobytes()).hexdigest()


def simulate(
    simulator: Path, trace: cluster.Trace, schedule: str, folder: Path
) -> tuple[Any, float]:
    """End times by place in the trace, and CPU seconds, of one schedule with counted GPUs."""
    jobs = pd.DataFrame(
        {
            "job_id": range(len(trace)),
            "num_gpu": trace.column("gpus"),
            "submit_time": trace.column("arrival_s").astype(int),
            "iterations": 1,
            "model_name": "vgg19",
            "duration": trace.column("duration_s").astype(int),
            "interval": 1,
        }
    )
    jobs.to_csv(folder / "jobs.csv", index=False)
    heading = "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node"
    (folder / "nodes.csv").write_text(f"{heading}\n1,{NODES},{GPUS_PER_NODE},128,256\n")
    arguments = [
        "--scheme=count",
        f"--schedule={schedule}",
        f"--trace_file={folder / 'jobs.csv'}",
        f"--cluster_spec={folder / 'nodes.csv'}",
        f"--log_path={folder / schedule}",
    ]
    code = f"{_RUN}'run_sim.py', run_name='__main__')"
    start_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=simulator,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    table = pd.read_csv(folder / schedule / "job.csv").sort_values("job_id")
    cpu_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - start_s
    return table["end_time"].to_numpy(), cpu_s


def main(simulator: Path) -> None:
    trace = cluster.load("itp-elasticflow", part="06")
    stored: dict[str, Any] = {
        "origin": "https://github.com/SymbioticLab/Tiresias",
        "commit": COMMIT,
        "trace": trace.name,
        "nodes": NODES,
        "gpus_per_node": GPUS_PER_NODE,
        "schedules": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        for schedule in POLICIES:
            end_s, cpu_s = simulate(simulator, trace, schedule, Path(folder))
            stored["schedules"][schedule] = {
                "mean_jct_s": float((end_s - trace.column("arrival_s")).mean()),
                "last_end_s": int(end_s.max()),
                "sha256": digest(end_s),
                "cpu_s": round(cpu_s, 1),
            }
    STORED.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
