"""ElasticFlow's own simulator, an oracle for ours: run once on its workload, its counts stored.

``python -m tests.oracles.elasticflow_simulator FOLDER`` runs the simulator of a checkout of
https://github.com/pkusys/ElasticFlow (FOLDER is its ``ElasticFlow/scheduler``) as its
``run_fig8a.sh`` does and writes ``stored/elasticflow_in_time.json``: for each schedule the jobs in
time, of 195, and the CPU seconds, its imports left out. Its solver and its connection to workers
are not used in a simulation and need not be installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from labkit import cluster

STORED = Path(__file__).parent / "stored" / "elasticflow_in_time.json"
COMMIT = "04a0109a6acdd7d89f4cb31b6a6a7a128bee6bb0"
GPUS = cluster.Cluster.nodes(16, gpus=4)
SCHEDULES = ("edf", "edf-accessctrl", "gandiva", "dlas-gpu", "ef-accessctrl")
_COSTS = {"restart_s": 4.0, "doubling_s": 2.0}
_UNUSED = (
    "grpc", "cvxpy", "runtime", "runtime.rpc", "runtime.rpc.scheduler_client",
    "runtime.rpc.scheduler_server",
)  # fmt: skip
_RUN = f"""
import sys, time, types
for name in {_UNUSED}:
    module = sys.modules[name] = types.ModuleType(name)
    if "." in name:
        setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
sys.path.insert(0, ".")
import utils, flags, jobs, cluster, log, profiles
start = time.process_time()
exec(compile(open("scheduler.py").read(), "scheduler.py", "exec"), {{"__name__": "__main__"}})
print("cpu seconds:", time.process_time() - start)
"""


def policies() -> tuple[cluster.Trace, dict[str, cluster.Policy | cluster.Deadlines]]:
    """The workload, and our policy for each of the simulator's schedules."""
    trace, rates = cluster.load_elastic()
    # Limits that the artifact sets by hand, for its own policy alone.
    limited = cluster.load_elastic(limits={"bert": 16, "ncf": 1})[1]
    return trace, {
        "edf": cluster.edf(rates, sizes="largest"),
        "edf-accessctrl": cluster.edf(rates, sizes="largest", judged="each"),
        "gandiva": cluster.time_slicing(rates, **_COSTS),
        "dlas-gpu": cluster.las2d(restart_s=6.0, demotion="tiresias"),
        "ef-accessctrl": cluster.elasticflow(limited, judged="together", stay_s=2.0, **_COSTS),
    }


def simulate(simulator: Path, schedule: str, folder: Path) -> dict[str, float]:
    """Jobs in time and CPU seconds of one schedule."""
    arguments = [
        "--print", f"--scheme={'gandiva' if schedule == 'gandiva' else 'elastic'}",
        "--cluster_spec=cluster_specs/n16g4.csv", f"--schedule={schedule}", f"--log_path={folder}",
        "--trace_file=../traces_for_ElasticFlow/elasticVpollux_e.csv", "--simulation=True",
        "--scheduling_slot=60", "--gpu_type=T4",
    ]  # fmt: skip
    command = [sys.executable, "-c", _RUN, *arguments]
    run = subprocess.run(command, cwd=simulator, check=True, stdout=subprocess.PIPE, text=True)
    in_time = re.findall(r"accepted jobs: +(\d+)", run.stdout)[-1]
    cpu_s = re.findall(r"cpu seconds: (\S+)", run.stdout)[-1]
    return {"in_time": int(in_time), "cpu_s": round(float(cpu_s), 2)}


def main(simulator: Path) -> None:
    origin = {"origin": "https://github.com/pkusys/ElasticFlow", "commit": COMMIT}
    with tempfile.TemporaryDirectory() as folder:
        rows = {name: simulate(simulator, name, Path(folder)) for name in SCHEDULES}
    STORED.write_text(json.dumps(origin | {"schedules": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
