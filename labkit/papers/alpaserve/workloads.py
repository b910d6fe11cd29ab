"""AlpaServe's experiment: what arrives, on which cluster, and the highest load that it bears.

Source: Li et al., AlpaServe (OSDI'23), §6.1, §6.2, and its authors' programs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from labkit.kit.describe import Count, NonNegative, Positive, Share, Whole, checked, description
from labkit.papers.alpaserve.placement import Method, Placement, place
from labkit.serving.batching.groups import Groups, ServedModel
from labkit.serving.requests import Requests, merge_streams, traffic
from labkit.serving.results import Served
from labkit.serving.simulation import simulate
from labkit.serving.sweeps import highest_load

REQUESTS = 8000.0
"""Expected requests of a stream (ours)."""
LOWEST_PER_S = 0.1
HIGHEST_PER_S = 20.0
SMALLEST_CV = 0.5
LARGEST_CV = 12.0


@description
class Arrivals:
    """Requests for the models of a cluster, each model's with gamma distributed gaps of its own.

    Attributes:
        cv: coefficient of variation of a model's gaps: standard deviation over mean.
        uneven: whether models differ in popularity, from a fiftieth to nearly a quarter of all
            requests, in equal steps; otherwise all are alike.
        turned: whether the order of popularity is turned round.
        by_minute: requests in each minute of a recorded time; the stream is moved so that every
            minute has its share. Empty: it is not moved.
        minutes_apart: by how much each model is ahead of the one before in the recorded time.
        rng: a seed.
    """

    cv: Positive = 1.0
    uneven: bool = False
    turned: bool = False
    by_minute: tuple[NonNegative, ...] = ()
    minutes_apart: Whole = 7
    rng: Whole = 0

    @checked
    def draw(self, num_models: Count, rate_per_s: Positive, *, slo_s: Positive) -> Requests:
        """Some 8,000 requests at this rate.

        Args:
            num_models: that they ask for.
            rate_per_s: of all models together.
            slo_s: the latency objective of each request.

        >>> Arrivals(cv=2.0).draw(2, 10.0, slo_s=1.0).models
        ('model 0', 'model 1')
        """
        shares = np.full(num_models, 1 / num_models)
        if self.uneven:
            shares = np.linspace(0.02, 2 / num_models - 0.02, num_models)
        if self.turned:
            shares = shares[::-1]
        rates_per_s = {f"model {k}": rate_per_s * float(share) for k, share in enumerate(shares)}
        requests = traffic(
            rates_per_s, REQUESTS / rate_per_s, slo_s=slo_s, cv=self.cv, rng=self.rng
        )
        return self._moved(requests) if self.by_minute else requests

    def _moved(self, requests: Requests) -> Requests:
        """The stream with its time running as fast as requests came in the recorded time.

        Model i is i times ``minutes_apart`` ahead, and the recorded time is repeated.
        """
        came = np.array(self.by_minute)
        num_models = len(requests.models)
        shifted = [np.roll(came, self.minutes_apart * model) for model in range(num_models)]
        # The recorded time once for each model, one after the other: the share of all requests
        # that have come after each minute, and the share of the time that has passed.
        come = np.concatenate([[0.0], *shifted]).cumsum() / came.sum()
        passed = np.linspace(0, num_models, num_models * len(came) + 1)
        arrival_s = requests.column("arrival_s")
        model = requests.model_index
        moment = np.interp(arrival_s / arrival_s[-1] + model, come, passed) - model
        return requests.changed(arrival_s=arrival_s[-1] * moment)


@description
class Cluster:
    """GPUs that serve models of one size, as in the authors' artifact.

    Attributes:
        latency_s: of a model on one GPU.
        model_bytes: its weights.
        gpu_bytes: memory of a GPU for weights.
        slo_scale: the objective of a request, in latencies.
        overhead: what splitting a model adds to its latency, as a share.
        num_models, num_gpus: how many of each.
    """

    latency_s: Positive = 0.396
    model_bytes: Positive = 13.4e9
    gpu_bytes: Positive = 13.96e9
    slo_scale: Positive = 5.0
    overhead: NonNegative = 0.1
    num_models: Count = 8
    num_gpus: Count = 8

    @property
    def bound_per_s(self) -> float:
        """Requests a second that the GPUs can compute, if none waits for work."""
        return self.num_gpus / self.latency_s

    @property
    def models(self) -> list[ServedModel]:
        """The models, which differ by name alone."""
        return [
            ServedModel(
                name=f"model {number}",
                latency_s=self.latency_s,
                memory_bytes=self.model_bytes,
                stage_overhead=self.overhead,
                tensor_overhead=self.overhead,
            )
            for number in range(self.num_models)
        ]

    @checked
    def draw(self, arrivals: Arrivals, rate_per_s: Positive) -> Requests:
        """Requests to this cluster's models, with their objective."""
        slo_s = self.slo_scale * self.latency_s
        return arrivals.draw(self.num_models, rate_per_s, slo_s=slo_s)

    @checked
    def place(self, requests: Requests, method: Method) -> Placement:
        """Where the method puts the models, judged on these requests."""
        return place(
            requests,
            self.models,
            num_gpus=self.num_gpus,
            memory_bytes=self.gpu_bytes,
            shapes=method.shapes,
        )

    @checked
    def serve(self, requests: Requests, placement: Placement) -> Served:
        """What becomes of requests on groups that were chosen for others."""
        return simulate(requests, self.models, Groups(groups=placement.groups))

    @checked
    def highest_rate(self, method: Method, arrivals: Arrivals) -> float:
        """Requests a second at which the method still has 99 % in time."""
        requests = self.draw(arrivals, 1.0)

        def attainment(rate_per_s: float) -> float:
            return self.place(requests.at_rate(rate_per_s), method).attainment

        return highest_load(attainment, LOWEST_PER_S, HIGHEST_PER_S)

    @checked
    def largest_cv(self, method: Method, arrivals: Arrivals, *, load: Positive = 0.1) -> float:
        """The burstiness at which the method still has 99 % in time.

        Args:
            method: how models are placed.
            arrivals: whose gaps are changed.
            load: requests a second over :attr:`bound_per_s`.
        """

        def attainment(cv: float) -> float:
            requests = self.draw(replace(arrivals, cv=cv), load * self.bound_per_s)
            return self.place(requests, method).attainment

        return highest_load(attainment, SMALLEST_CV, LARGEST_CV)


@checked
def two_models(share: Share, *, cv: Positive = 1.0, rng: Whole = 0) -> Requests:
    """Requests for two models, A and B, as the authors' script of Fig. 2 draws them.

    Together 3 a second over 20,000 seconds; each model has a legacy generator of its own.

    Args:
        share: of the requests that A gets.
        cv: coefficient of variation of each model's gaps.
        rng: a seed; 0 has the arrivals of the script.
    """
    parts = []
    for stream, (model, own_share) in enumerate([("A", share), ("B", 1 - share)]):
        rate_per_s = 3 * own_share
        generator = np.random.RandomState(2 * rng + stream)
        gaps_s = generator.gamma(cv**-2, cv**2 / rate_per_s, int(24e3 * rate_per_s))
        arrival_s = gaps_s.cumsum()
        arrival_s = arrival_s[arrival_s < 2e4]
        parts.append(Requests(arrival_s=arrival_s, model=(model,) * len(arrival_s)))
    return merge_streams(parts)
