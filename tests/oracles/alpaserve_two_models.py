"""AlpaServe's own example, two models on two GPUs (§3.1, Fig. 2), run by its own code.

``python -m tests.oracles.alpaserve_two_models FOLDER`` imports a checkout of
https://github.com/alpa-projects/mms and writes ``stored/alpaserve_two_models.json``: for each case
a hash of the arrivals that its generator draws and of the times at which its requests end, their
mean latency as its statistics cut it (10 s at either end), and the CPU of a request, its generator
and its statistics included. The repository has no licence; nothing of it is kept. It is run twice:

- ``script``: as ``experiments/motivation/illustrative_example.py`` does, 20,000 s of requests from
  seeds 0 and 1 through the compiled simulator. The profiles it reads are not in the repository; the
  latency is a constant of the script, and the stages are even.
- ``loop``: 600 s of requests from seeds 1 and 2 through the simulator with an event loop. Its
  overheads (network, dispatch, start) are drawn, 10 ms in all; the hash is of a run with each at
  its mean, so that every end compares with ours. With these settings it gives ``RECORDED``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock, patch

import numpy as np

from labkit import serving
from tests.oracles.alpaserve_simulator import COMMIT, digest, single

STORED = Path(__file__).parent / "stored" / "alpaserve_two_models.json"
RATE_PER_S = 3.0
NAMES = ("a", "b")
MIXES = {
    "poisson": ((1, 1), 1), "skew": ((2, 8), 1),
    "bursts": ((1, 1), 3), "skewed bursts": ((2, 8), 3),
}  # fmt: skip
"""Shares of the two models, and the coefficient of variation of their gaps."""
RECORDED = {"poisson": 1.29, "skew": 5.98, "bursts": 1.81, "skewed bursts": 3.52}
"""Mean latency of replication over the pipeline's, measured once with the authors' artifact."""
CUT_S = 10
_UNUSED = (
    "ray",
    "ray.actor",
    "ray.util",
    "ray.util.scheduling_strategies",
    "uvicorn",
    "fastapi",
    "fastapi.encoders",
    "starlette",
    "starlette.datastructures",
    "starlette.middleware",
    "starlette.middleware.cors",
    "starlette.requests",
    "starlette.responses",
    "starlette.types",
    "matplotlib",
    "matplotlib.pyplot",
)


class Setting(NamedTuple):
    """One way to run the example.

    Attributes:
        penalty: what the compiled simulator adds to a latency for each stage.
        fixed_s: what is added to every answer.
    """

    seconds: float
    seeds: tuple[int, int]
    latency_s: float
    stage_overhead: float
    penalty: float
    fixed_s: float
    precision: Any

    def latency_of(self, stages: int) -> float:
        """Seconds of one request on one GPU, if it took as long there as its stages together."""
        more = 1 + self.stage_overhead * (stages > 1)
        stage_s = self.latency_s * more / stages * (1 + self.penalty * stages)
        return float(self.precision(stage_s) * stages)


SETTINGS = {
    "script": Setting(20_000, (0, 1), 0.39624744, 0.0, 0.009, 0.011, single),
    "loop": Setting(600, (1, 2), 0.396, 0.02, 0.0, 0.010, float),
}


def arrivals(rate_per_s: float, cv: float, seconds: float, seed: int) -> Any:
    """As its ``GammaProcess``: NumPy's older generator, gaps summed one by one."""
    count = int(rate_per_s * seconds * 1.2)
    gaps = np.random.RandomState(seed).gamma(1 / cv**2, cv**2 / rate_per_s, size=count)
    arrival_s = np.cumsum(gaps)
    assert arrival_s[-1] >= seconds, "its generator would draw a second time"
    return arrival_s[arrival_s < seconds]


def requests(setting: Setting, mix: str) -> serving.Requests:
    shares, cv = MIXES[mix]
    drawn = [
        arrivals(share / sum(shares) * RATE_PER_S, cv, setting.seconds, seed)
        for share, seed in zip(shares, setting.seeds, strict=True)
    ]
    return serving.merge_streams(
        [
            serving.Requests(arrival_s=arrival_s, model=(name,) * len(arrival_s))
            for name, arrival_s in zip(NAMES, drawn, strict=True)
        ]
    )


def plan(setting: Setting, stages: int) -> tuple[list[serving.Group], list[serving.ServedModel]]:
    """Each model alone on a GPU, or both in two stages; and the models."""
    latency_s = setting.latency_of(stages)
    held = [NAMES] if stages == 2 else [(name,) for name in NAMES]
    return (
        [serving.Group(models=names, stages=stages) for names in held],
        [serving.ServedModel(name=name, latency_s=latency_s) for name in NAMES],
    )


def ours(setting: Setting, mix: str, stages: int) -> serving.Served:
    groups, models = plan(setting, stages)
    server = serving.Groups(groups=groups, fixed_s=setting.fixed_s)
    return serving.simulate(requests(setting, mix), models, server)


def ends(arrival_s: Any, end_s: Any) -> str:
    """A hash of all ends, to the microsecond, in order of arrival.

    Gaps of bursts fall below the last digit of a double; its heap then takes requests of one moment
    in any order. So they are put in order of their ends.
    """
    moment = np.cumsum(np.diff(arrival_s, prepend=0) > 1e-11)
    return digest(np.asarray(end_s)[np.lexsort((end_s, moment))], per_s=1e6)


def mean_latency_s(arrival_s: Any, latency_s: Any) -> float:
    """Without the first and the last 10 s, counted as its statistics count them."""
    cut = int(CUT_S / (arrival_s[-1] - arrival_s[0]) * len(arrival_s))
    return float(latency_s[cut:-cut].mean())


def _case(setting: Setting, mix: str, stages: int) -> Any:
    """The case for its simulators."""
    from alpa_serve import profiling
    from alpa_serve.placement_policy.base_policy import ModelPlacement
    from alpa_serve.simulator.executable import Executable
    from alpa_serve.simulator.workload import GammaProcess, Workload
    from alpa_serve.util import ServingCase

    (shares, cv) = MIXES[mix]
    shape = profiling.ParallelConfig(1, 1, stages)
    stage_s = setting.latency_s * (1 + setting.stage_overhead * (stages > 1)) / stages
    measured = profiling.LatencyMemData({1: [stage_s] * stages}, {1: [0] * stages}, [0] * stages)
    profile = profiling.ProfilingResult("model", {shape: measured}, 0, 0)
    groups = [[0, 1]] if stages == 2 else [[0], [1]]

    def register(controller: Any) -> None:
        for name in NAMES:
            controller.register_model.remote(name, partial(Executable, profile))

    def workload(start: float = 0) -> Any:
        return Workload.merge(
            *(
                GammaProcess(share / sum(shares) * RATE_PER_S, cv).generate_workload(
                    name, start, setting.seconds, slo=np.inf, seed=seed
                )
                for name, share, seed in zip(NAMES, shares, setting.seeds, strict=True)
            )
        )

    def place(controller: Any) -> Any:
        for group, models in enumerate(groups):
            controller.create_mesh_group_manager.remote(group, (1, stages))
            for model in models:
                controller.create_replica.remote(NAMES[model], group, [shape])
        return ModelPlacement([shape] * len(groups), groups)

    return ServingCase(register, workload, place)


def _run(simulate: Any, case: Any) -> tuple[Any, Any, float]:
    """Start and end of every request, and its mean latency."""
    seen: list[Any] = []
    from alpa_serve.simulator.workload import Workload

    whole = Workload.compute_stats

    def kept(self: Any, start: Any, finish: Any, good: Any, warmup: float) -> Any:
        seen.extend([np.array(start), np.array(finish)])
        return whole(self, start, finish, good, warmup)

    np.random.seed(0)  # its overheads come from NumPy's global generator
    with patch.object(Workload, "compute_stats", kept):
        stats, _ = simulate(case)
    return seen[0], seen[1], float(stats.latency_mean)


def _row(simulate: Any, setting: Setting, mix: str, stages: int) -> dict[str, Any]:
    begin = time.process_time()
    start, _, mean_s = _run(simulate, _case(setting, mix, stages))
    cpu_s = time.process_time() - begin
    with patch.object(np.random, "normal", lambda loc, scale, size: np.full(size, loc)):
        start, end, _ = _run(simulate, _case(setting, mix, stages))
    return {
        "requests": len(start),
        "arrivals": digest(start),
        "ends": ends(start, end),
        "mean_latency_s": round(mean_s, 6),
        "cpu_us_a_request": round(cpu_s / len(start) * 1e6, 2),
    }


def main(folder: Path) -> None:
    import numba

    sys.modules.update({name: MagicMock() for name in _UNUSED})
    sys.path.insert(0, str(folder))
    waits = asyncio.wait  # it passes coroutines, which Python takes no longer
    asyncio.wait = lambda them, **how: waits([asyncio.ensure_future(it) for it in them], **how)
    from alpa_serve.simulator.controller import approximate_one_case, simulate_one_case

    simulators = {"script": approximate_one_case, "loop": simulate_one_case}
    approximate_one_case(_case(SETTINGS["loop"], "poisson", 2))  # compiles
    runs = {
        name: {
            f"{mix}, {stages}": _row(simulators[name], setting, mix, stages)
            for mix in MIXES
            for stages in (1, 2)
        }
        for name, setting in SETTINGS.items()
    }
    versions = {
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "numba": numba.__version__,
    }
    origin = {"origin": "https://github.com/alpa-projects/mms", "commit": COMMIT}
    STORED.write_text(json.dumps(origin | {"versions": versions} | runs, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
