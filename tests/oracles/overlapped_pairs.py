"""DualPipe's makespan where a forward and a backward overlap, computed from the order alone."""

import numpy as np

from labkit.pipeline import Costs, Schedule
from labkit.pipeline.scheduling.schedule import BACKWARD, FORWARD


def paired_span_s(schedule: Schedule, costs: Costs) -> float:
    """The makespan if a forward and the whole backward right after it run as one.

    As DualPipe means it: the two overlap, so they start when the inputs of both are there and
    hand on both results at their common end. They take as long as one after the other; what
    overlapping saves is for ``costs`` to say.
    """
    duration_s = costs.durations_s(schedule)
    kind = schedule.kind
    needs = schedule.graph.needs.tolist()
    whole = (kind == FORWARD)[:-1] & (kind == BACKWARD)[1:]
    whole &= schedule.device[:-1] == schedule.device[1:]
    whole &= np.array(needs[1:]) != np.arange(len(schedule) - 1)  # not its own forward's
    ends = np.cumsum(schedule.lengths).tolist()
    head = [end - length for end, length in zip(ends, schedule.lengths, strict=True)]
    end_s: list[float | None] = [None] * len(schedule) + [0.0]
    free_s = [0.0] * schedule.num_devices
    while head != ends:
        before = list(head)
        for device, end in enumerate(ends):
            while head[device] < end:
                i = head[device]
                unit = [i, i + 1] if i + 1 < end and whole[i] else [i]
                ready = [x for x in (end_s[needs[j]] for j in unit) if x is not None]
                if len(ready) < len(unit):
                    break
                free_s[device] = max(free_s[device], *ready) + sum(duration_s[j] for j in unit)
                for j in unit:
                    end_s[j] = free_s[device]
                head[device] = i + len(unit)
        assert head != before, "the pairs wait for each other in a circle"
    return max(free_s)
