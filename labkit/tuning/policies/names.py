"""Policies by name: from the user's default to an oracle, all on one interface.

The interface is in :mod:`policy`; each family of policies has its own module.
"""

from __future__ import annotations

from labkit.errors import not_among
from labkit.tuning.configurations.outcomes import optimum
from labkit.tuning.policies import searches
from labkit.tuning.policies.cost_curve import CostCurve
from labkit.tuning.policies.policy import Indices, Policy
from labkit.tuning.policies.pruning import Zeus
from labkit.tuning.traces.job import Job

POLICIES: dict[str, str] = {
    "default": "the user's batch size b0 at the highest power limit",
    "tuned-power": "b0 at the power limit a just-in-time profile finds",
    "grid": "grid search over both, pruning batch sizes that miss the target",
    "grid-early-stop": "grid search that also stops a run at β times the cheapest so far",
    "halving": "successive halving over batch sizes, profiled power, early stopping",
    "random": "b0, the others once in random order, then the cheapest; profiled power, stops",
    "epsilon-greedy": "the cheapest mean, or with ε = 0.1 any; profiled power, stops early",
    "ucb": "the least lower confidence bound of cost; profiled power, stops early",
    "thompson": "Gaussian Thompson sampling over all batch sizes; profiled power, stops early",
    "zeus": "pruning from b0 down then up, Thompson sampling, profiled power, early stopping",
    "cost-curve": "a Bayesian cost curve over batch sizes, explored for what it is still worth",
    "oracle": "the configuration of least expected cost, known beforehand",
}
"""Policies by name, with what they do."""

_SIMPLE: dict[str, Policy] = {
    "grid": searches.GridSearch(),
    "grid-early-stop": searches.GridSearch(stops_early=True),
    "halving": searches.Halving(),
    "random": searches.RandomSearch(),
    "epsilon-greedy": searches.EpsilonGreedy(),
    "ucb": searches.LowerConfidenceBound(),
    "thompson": searches.Thompson(),
    "zeus": Zeus(),
    "cost-curve": CostCurve(),
}


def policy_named(name: str, job: Job, eta: float, profiled_limits: Indices) -> Policy:
    """Make the policy called ``name`` (one of :data:`POLICIES`) for this job.

    Args:
        name: as the command takes it.
        job: read by the oracle alone.
        eta: weight of energy against time, which says what the oracle runs.
        profiled_limits: the limit that a profile of each batch size chooses; ``tuned-power`` takes
            what the profile of b0 says.
    """
    if name in _SIMPLE:
        return _SIMPLE[name]
    b0, highest = job.baseline
    if name == "default":
        return searches.Fixed(batch=b0, power=highest)
    if name == "tuned-power":
        return searches.Fixed(batch=b0, power=int(profiled_limits[b0]), profiles_power=True)
    if name == "oracle":
        best = optimum(job, eta=eta)
        batch = job.batch_sizes.index(best.batch_size)
        return searches.Fixed(batch=batch, power=job.power_limits_w.index(best.power_limit_w))
    raise not_among("policy", name, POLICIES)
