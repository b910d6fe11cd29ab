"""Policies written as generators: the walk of an algorithm, line by line as a paper prints it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from labkit.errors import UsageError
from labkit.kit.describe import description
from labkit.tuning.policies.policy import Floats, Indices, Outcome, Policy, Task

Costs = list[list[float]]
Script = Callable[[int, Costs, Any], Generator[int, bool, None]]


@description(frozen=False)
class Scripted(Policy):
    """Takes each recurrence's batch size (its index) from a generator that yields it.

    ``script(default, costs, draws)`` is called once a seed and receives the index of b0, the costs
    that each batch size has shown so far (joules, oldest first) and standard normal draws, one a
    batch size; both are renewed in place before every decision. ``yield`` returns whether the run
    reached the target. Power limits come from the just-in-time profile.

    >>> def always_default(default, costs, draws):
    ...     while True:
    ...         yield default
    >>> Scripted(script=always_default).stops_early
    True
    """

    script: Script
    trusts_default: bool = True

    def begin(self, task: Task) -> None:
        super().begin(task)
        if task.concurrency > 1:
            raise UsageError(
                "a scripted policy learns of each run before it decides the next, so concurrency "
                f"must be 1, got {task.concurrency}"
            )
        seeds, sizes = task.shape
        self.draws = np.zeros(task.shape)
        self.costs: list[Costs] = [[[] for _ in range(sizes)] for _ in range(seeds)]
        self.scripts = [
            self.script(self.default, costs, draws)
            for costs, draws in zip(self.costs, self.draws, strict=True)
        ]
        if not all(hasattr(script, "send") for script in self.scripts):
            raise UsageError("Scripted.script must be a generator: a function that yields")
        self.reached: list[bool | None] = [None] * seeds

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        self.draws[who] = noise
        batch = np.array([self._next(seed) for seed in who], dtype=np.intp)
        return batch, self.limits[batch]

    def _next(self, seed: int) -> int:
        """Tell a seed's script how its run ended, and hear the next batch size."""
        try:
            batch = self.scripts[seed].send(self.reached[seed])  # type: ignore[arg-type]
        except StopIteration:
            raise UsageError(
                "a scripted policy must yield a batch size for every run, but its generator ended; "
                "let it end in `while True: yield …`"
            ) from None
        sizes = len(self.limits)
        if not isinstance(batch, int | np.integer) or not 0 <= batch < sizes:
            raise UsageError(
                f"a scripted policy must yield the index of a batch size, 0 to {sizes - 1}; "
                f"got {batch!r}"
            )
        return int(batch)

    def observe(self, who: Indices, outcome: Outcome) -> None:
        runs = zip(who, outcome.batch, outcome.cost_j, outcome.reached, strict=True)
        for seed, batch, cost_j, reached in runs:
            self.costs[seed][batch].append(float(cost_j))
            self.reached[seed] = bool(reached)
