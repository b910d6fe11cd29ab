"""One replica of a language model: requests go in, a :class:`~labkit.serving.results.Run` comes
out.

A :class:`Batcher` runs in the compiled loops; a :class:`Batching` of one's own in the plain one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.errors import BadValue
from labkit.kit.describe import checked
from labkit.serving.generation import loops
from labkit.serving.generation.batcher import Batcher, Batching
from labkit.serving.generation.plain import Replica
from labkit.serving.generation.tokens import TokenProfile
from labkit.serving.requests import Requests
from labkit.serving.results import Run

CAUSES = np.array(["", "batch", "memory"])
"""What a request was passed over for, by the loops' numbers."""
MOST_OUTPUTS = 10**9
"""Output tokens of a request by iteration, each an iteration of its own: minutes of a run."""


@checked
def simulate(requests: Requests, profile: TokenProfile, server: Batcher | Batching) -> Run:
    """Run requests through one replica, iteration by iteration. O(iterations × batch).

    Args:
        profile: what an iteration costs, and how many slots of keys and values there are.
        server: a batcher, or one's own.

    Source: Algorithm 1 of Orca (OSDI'22), with its pool sorted by arrival, its reservation, and as
    many batches in flight as the pipeline has stages.

    Raises:
        BadValue: a request needs more slots than the profile has, or by iteration more iterations
            than :data:`MOST_OUTPUTS`; or a batcher of one's own chose a batch that cannot be.
    """
    table = _table(requests)
    if isinstance(server, Batcher):
        table["reserve"] = server.reserve_tokens or table["prompt"] + table["output"]
        _check(table, profile, server)
        state = _compiled(table, profile, server)
    else:
        state = Replica(table, profile, server).run()
    (counts,) = state
    return Run(
        requests=requests,
        profile=profile,
        batcher=server,
        start_s=table["start"],
        first_s=table["first"],
        end_s=table["end"],
        stall_s=table["stall"],
        causes=tuple(CAUSES[table["cause"]]),
        preemptions=table["preempted"],
        wasted_steps=table["wasted"],
        iterations=int(counts["iterations"]),
        sequences=float(counts["sequences"]),
        busy_s=float(counts["busy"]),
        most_slots=int(counts["most"]),
    )


def _table(requests: Requests) -> NDArray[Any]:
    """The requests as the loops have them; who has no prompt processes one token first."""
    table = np.zeros(len(requests), loops.REQUEST)
    table["arrival"] = requests.column("arrival_s")
    table["prompt"] = np.maximum(requests.column("prompt_tokens"), 1)
    table["output"] = requests.column("output_tokens")
    table["need"] = table["prompt"]
    table["start"] = np.nan
    table["end"] = np.nan
    return table


def _compiled(table: NDArray[Any], profile: TokenProfile, batcher: Batcher) -> NDArray[Any]:
    costs = loops.Costs(*(getattr(profile, name) for name in loops.Costs._fields))
    rule = loops.Rule(
        max_batch=batcher.max_batch,
        chunk=batcher.chunk_tokens or 0,
        block=batcher.block_tokens if batcher.memory == "paged" else 0,
        microbatches=batcher.microbatches,
        longest=batcher.prompts == "longest",
    )
    loop = loops.by_iteration if batcher.level == "iteration" else loops.by_request
    state: NDArray[Any] = loop(table, costs, rule)
    return state


def _check(table: NDArray[Any], profile: TokenProfile, batcher: Batcher) -> None:
    most_outputs = table["output"].max()
    if batcher.level == "iteration" and most_outputs > MOST_OUTPUTS:
        raise BadValue(
            f"simulate: request {int(table['output'].argmax())} has output_tokens {most_outputs}, "
            f"each an iteration of its own; valid: at most {MOST_OUTPUTS:,}"
        )
    length = table["prompt"] + table["output"]
    need = table["reserve"]
    if batcher.memory == "paged":
        need = -(-length // batcher.block_tokens) * batcher.block_tokens
    elif (length > need).any():
        row = int(np.argmax(length > need))
        raise BadValue(
            f"simulate: request {row} has {length[row]} tokens in and out; valid: at most "
            f"reserve_tokens, {batcher.reserve_tokens}"
        )
    if (need > profile.slots).any():
        row = int(np.argmax(need > profile.slots))
        raise BadValue(
            f"simulate: request {row} needs {need[row]} slots of keys and values; valid: at most "
            f"the profile's {profile.slots}"
        )
