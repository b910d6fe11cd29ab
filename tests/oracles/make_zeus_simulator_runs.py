"""Run zeus-ml's simulator over every case of ``zeus_simulator.py`` and store what it did.

    python -m tests.oracles.make_zeus_simulator_runs

Needs zeus-ml and the published traces (``labkit data fetch zeus-nsdi23``); takes some minutes.
Cases whose versions and files are those of the stored file are not run again.
"""

from __future__ import annotations

import json
from importlib import metadata

from tests.oracles import zeus_simulator as peer
from tests.tuning.conftest import trace_files


def main() -> None:
    names = ("zeus-ml", "numpy", "pandas")
    versions = {name: metadata.version(name) for name in names}
    before = peer.stored() if peer.STORED.exists() else {"versions": {}}
    inputs = {}
    runs = {}
    for case in peer.cases():
        files = trace_files(case.trace, case.gpu)
        trace = f"{case.trace}/{case.gpu}"
        inputs[trace] = peer.digest(*files)
        if before["versions"] == versions and before["inputs"].get(trace) == inputs[trace]:
            runs[peer.name_of(case)] = before["runs"][peer.name_of(case)]
            continue
        table = peer.kept(case, peer.simulate(*files, case))
        runs[peer.name_of(case)] = table.to_numpy(dtype=object).tolist()
        print(peer.name_of(case), flush=True)
    lines = [f" {json.dumps(name)}: {json.dumps(rows)}" for name, rows in runs.items()]
    head = json.dumps({"versions": versions, "inputs": inputs})
    text = head[:-1] + ',\n"runs": {\n' + ",\n".join(lines) + "\n}}\n"
    peer.STORED.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
