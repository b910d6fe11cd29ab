"""lowtime's frontiers, an oracle for ours: stored, since each takes lowtime seconds.

``python -m tests.oracles.lowtime_frontiers`` computes them and writes
``stored/lowtime_frontiers.json`` with lowtime's version and a hash of each problem's profile.
"""

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd

from labkit.pipeline import EnergyProfile, build
from labkit.pipeline.scheduling.schedule import KINDS

STORED = Path(__file__).parent / "stored" / "lowtime_frontiers.json"
UNIT_S = 2.0**-10  # a power of two, so that whole units are exact in floating point
CASES = (("1f1b", 3), ("gpipe", 3), ("zb-h1", 2), ("chimera", 2))  # schedule, microbatches


def exponential_profile(rng, num_stages, *, noise=0.0, every=1, kinds=("forward", "backward")):
    """Stages whose energy above waiting falls exponentially in time, a clock every few units."""
    power_w = 1.0
    rows = []
    for stage in range(num_stages):
        for kind in kinds:
            least = int(rng.integers(10, 30))
            units = np.arange(least, least + every * int(rng.integers(6, 12)), every)
            units = units + (rng.uniform(0, 0.9, len(units)) if noise else 0)
            net_j = rng.uniform(1, 5) * np.exp(-rng.uniform(0.05, 0.2) * (units - least)) + 8
            net_j += noise * rng.standard_normal(len(units))
            for level, (unit, joule) in enumerate(zip(units, net_j, strict=True)):
                time_s = unit * UNIT_S
                rows.append((stage, kind, 1500 - 15 * level, time_s, joule + power_w * time_s))
    columns = ["stage", "instruction", "frequency", "time", "energy"]
    return EnergyProfile.from_frame(pd.DataFrame(rows, columns=columns), blocking_power_w=power_w)


def kinds_of(schedule):
    return [KINDS[kind] for kind in np.unique(schedule.kind)]


def problem(case):
    """The schedule and the noisy profile of a case."""
    schedule = build(case[0], 2, case[1])
    rng = np.random.default_rng(5)
    kinds = kinds_of(schedule)
    return schedule, exponential_profile(rng, schedule.num_stages, noise=0.02, every=3, kinds=kinds)


def digest(profile):
    return hashlib.sha256(np.round(profile.frame()["energy_j"], 9).to_numpy().tobytes()).hexdigest()


def lowtime_frontier(schedule, profile, unit_s):
    """Time and energy as Perseus's driver prints them, from lowtime on the same graph."""
    import networkx as nx
    from lowtime.cost_model import ExponentialModel
    from lowtime.graph_utils import add_sink_node, add_source_node
    from lowtime.operation import (
        CandidateExecutionOptions,
        ExecutionOption,
        Operation,
        OperationSpec,
    )
    from lowtime.solver import PhillipsDessouky

    specs = {}
    for kind, stage in profile.works():
        options = [
            ExecutionOption(
                real_time=profile.time_s[row], unit_time=unit_s, cost=profile.energy_j[row], knob=0
            )
            for row in profile.rows(stage, KINDS[kind])
        ]
        kept = CandidateExecutionOptions(options=options)
        for option in kept.options:
            option.cost -= profile.blocking_power_w * option.quant_time * unit_s
        model = ExponentialModel(kept, search_strategy="best")
        specs[kind, stage] = OperationSpec(options=kept, cost_model=model)
    dag = nx.DiGraph(source_node=-2, sink_node=-1)
    for i in range(len(schedule)):
        dag.add_node(i, op=Operation(specs[int(schedule.kind[i]), int(schedule.stage[i])]))
    graph = schedule.graph
    n = len(schedule)
    dag.add_edges_from(
        (int(j), i) for i in range(n) for j in {graph.before[i], graph.needs[i]} if j < n
    )
    add_source_node(dag, -2)
    add_sink_node(dag, -1)
    waiting_w = profile.blocking_power_w * schedule.num_devices
    return np.array(
        [(r.real_time, r.cost + waiting_w * r.real_time) for r in PhillipsDessouky(dag).run()]
    )


def stored():
    """What was stored, by case: pairs of time (s) and energy (J).

    Raises:
        AssertionError: a problem is not the one that was solved.
    """
    frontiers = {}
    for record in json.loads(STORED.read_text())["frontiers"]:
        case = tuple(record["case"])
        assert record["profile_sha256"] == digest(problem(case)[1]), case
        frontiers[case] = record["frontier"]
    return frontiers


def store():
    """Solve every case with lowtime and write the frontiers."""
    records = [
        {
            "case": case,
            "profile_sha256": digest(problem(case)[1]),
            "frontier": lowtime_frontier(*problem(case), UNIT_S).tolist(),
        }
        for case in CASES
    ]
    content = {"versions": {"lowtime": version("lowtime")}, "frontiers": records}
    STORED.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    store()
