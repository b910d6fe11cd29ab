"""ElasticFlow's own simulator, an oracle for ours: run once on its workload, its answers stored.

``python -m tests.oracles.elasticflow_simulator FOLDER`` runs the simulator of a checkout of
https://github.com/pkusys/ElasticFlow (FOLDER is its ``ElasticFlow/scheduler``) as its
``run_fig8a.sh`` and ``run_fig8b.sh`` do, and writes ``stored/elasticflow_in_time.json``, by the
ends that the simulator records:

``schedules``
    for each, of 195 jobs, those in time and those at most a slot late; CPU seconds without imports
``ends_s``
    of its own schedule, as published and under :data:`CHANGES`; null: refused
``blocked_s``
    the same for two jobs, :data:`BLOCKED`
``cluster_06``
    shares of the 2,396 recorded jobs of its Fig. 8b, as published and mended

Its solver and its connection to workers are not used in a simulation and need not be installed.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from labkit import cluster, datasets
from labkit.papers import elasticflow

STORED = Path(__file__).parent / "stored" / "elasticflow_in_time.json"
COMMIT = "04a0109a6acdd7d89f4cb31b6a6a7a128bee6bb0"
GPUS = cluster.Cluster.nodes(16, gpus=4)
SCHEDULES = ("edf", "edf-accessctrl", "gandiva", "dlas-gpu", "ef-accessctrl")
SLOT_S = 60.0
RESTARTS = {"restart_s": 4.0, "doubling_s": 2.0}
CHANGES = {
    "published": "",
    # A restart costs 2 s on GPUs that ran any job before, more on others: here the same on all.
    "free restarts": "utils.estimate_overhead = lambda *_: 0.0",
    "restarts of 2 s": "utils.estimate_overhead = lambda *_: 2.0",
    # A job's progress stops at the end of its plan, which leaves out the restart: here with it.
    "mended": """
progress = jobs.JOBS.run_all_jobs
def with_restarts(*moments):
    for job in jobs.JOBS.runnable_jobs:
        job["real_end_time"] += job["overhead"]
    progress(*moments)
jobs.JOBS.run_all_jobs = with_restarts""",
}
BLOCKED = """\
job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration
0,0,1548,ncf,40,32768,1,33
1,50,1548,ncf,1050,32768,1,33
"""
"""33 s of work each; the first ends at 37 s, restart included, and the second arrives at 50 s."""
TESTBED = "../traces_for_ElasticFlow/elasticVpollux_e.csv"
_UNUSED = (
    "grpc",
    "cvxpy",
    "runtime",
    "runtime.rpc",
    "runtime.rpc.scheduler_client",
    "runtime.rpc.scheduler_server",
)
_RUN = f"""
import sys, time, types
for name in {_UNUSED}:
    module = sys.modules[name] = types.ModuleType(name)
    if "." in name:
        setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
sys.path.insert(0, ".")
import utils, flags, jobs, cluster, log, profiles
exec(sys.argv.pop(1))
start = time.process_time()
exec(compile(open("scheduler.py").read(), "scheduler.py", "exec"), {{"__name__": "__main__"}})
print("cpu seconds:", time.process_time() - start)
"""


def policies() -> tuple[cluster.Trace, dict[str, cluster.Policy | elasticflow.Deadlines]]:
    """The workload, and our policy for each of the simulator's schedules."""
    trace, rates = cluster.load_elastic()
    # Limits that the artifact sets by hand, for its own policy alone.
    limited = cluster.load_elastic(limits={"bert": 16, "ncf": 1})[1]
    return trace, {
        "edf": elasticflow.edf(rates, sizes="largest"),
        "edf-accessctrl": elasticflow.edf(rates, sizes="largest", judged="each"),
        "gandiva": elasticflow.time_slicing(rates, **RESTARTS),
        "dlas-gpu": cluster.las2d(restart_s=6.0, demotion="tiresias"),
        "ef-accessctrl": elasticflow.policy(
            limited, judged="together", rules="artifact", stay_s=2.0, **RESTARTS
        ),
    }


def simulate(
    simulator: Path,
    trace: Path | str,
    schedule: str,
    change: str = "published",
    spec: str = "n16g4",
    gpu: str = "T4",
) -> tuple[list[float | None], float]:
    """The end of each job, in order of arrival, and CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            f"--scheme={'gandiva' if schedule == 'gandiva' else 'elastic'}",
            f"--cluster_spec=cluster_specs/{spec}.csv",
            f"--schedule={schedule}",
            f"--log_path={folder}",
            f"--trace_file={trace}",
            "--simulation=True",
            f"--scheduling_slot={SLOT_S:.0f}",
            f"--gpu_type={gpu}",
        ]
        command = [sys.executable, "-c", _RUN, CHANGES[change], *arguments]
        run = subprocess.run(command, cwd=simulator, check=True, stdout=subprocess.PIPE, text=True)
        with (Path(folder) / "job.csv").open() as rows:
            ends = {row["job_id"]: float(row["end_time"]) for row in csv.DictReader(rows)}
    with (simulator / trace).open() as rows:
        ids = [row["job_id"] for row in csv.DictReader(rows)]
    cpu_s = float(re.findall(r"cpu seconds: (\S+)", run.stdout)[-1])
    return [ends.get(name) for name in ids], round(cpu_s, 2)


def counts(ends_s: object, trace: cluster.Trace) -> dict[str, int]:
    """Jobs in time, and jobs at most a slot late."""
    late_s = np.array(ends_s, dtype=float) - trace.column("deadline_s")
    return {
        "in_time": int((late_s <= 0).sum()),
        "in_time_or_a_slot_late": int((late_s <= SLOT_S).sum()),
    }


def main(simulator: Path) -> None:
    trace = cluster.load_elastic()[0]
    recorded = cluster.load_elastic("06")[0]
    runs = {name: simulate(simulator, TESTBED, name) for name in SCHEDULES}
    own = SCHEDULES[-1]
    with tempfile.TemporaryDirectory() as folder:
        (two := Path(folder) / "blocked.csv").write_text(BLOCKED)
        with tarfile.open(datasets.open("itp-elasticflow/data/elasticflow-traces.tar.gz")) as files:
            files.extract("cluster06.csv", folder, filter="data")
        large = Path(folder) / "cluster06.csv"
        answers = {
            "schedules": {
                name: counts(ends, trace) | {"cpu_s": cpu_s} for name, (ends, cpu_s) in runs.items()
            },
            "blocked_s": {
                name: simulate(simulator, two, own, name)[0] for name in ("published", "mended")
            },
            "cluster_06": {
                name: counts(simulate(simulator, large, own, name, "n64g8", "A100")[0], recorded)
                for name in ("published", "mended")
            },
            "ends_s": {name: simulate(simulator, TESTBED, own, name)[0] for name in CHANGES},
        }
    origin = {"origin": "https://github.com/pkusys/ElasticFlow", "commit": COMMIT}
    text = json.dumps(origin | answers, indent=1)
    # A list of ends stands on one line.
    text = re.sub(r"\[[^\[\]]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    STORED.write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
