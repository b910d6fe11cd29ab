"""Algorithm 1 of Orca once more, as SimPy processes and plain Python: the oracle of the loops."""

from __future__ import annotations

from typing import Any

import simpy

from labkit import serving


def by_iteration(
    requests: serving.Requests, profile: serving.TokenProfile, batcher: serving.Batcher
) -> list[float]:
    """When each request ends; reserved memory, prompts whole or in chunks."""
    env = simpy.Environment()
    stages = [simpy.Resource(env, 1) for _ in range(profile.stages)]
    pool: list[dict[str, Any]] = []
    changed = [env.event()]
    table = requests.frame()
    state = {"reserved": 0, "scheduled": 0}

    def notify() -> None:
        changed[0].succeed()
        changed[0] = env.event()

    def arrivals() -> Any:
        for i, row in table.iterrows():
            yield env.timeout(row.arrival_s - env.now)
            pool.append(
                {
                    "i": i,
                    "prompt": int(row.prompt_tokens),
                    "out": int(row.output_tokens),
                    "cached": 0,
                    "made": 0,
                    "take": 0,
                    "running": False,
                }
            )
            notify()

    def iteration(batch: list[dict[str, Any]]) -> Any:
        tokens = sum(r["take"] for r in batch)
        cached = sum(r["cached"] for r in batch)
        step = profile.seconds(tokens=tokens, sequences=len(batch), cached=cached)
        for stage in stages:
            with stage.request() as turn:
                yield turn
                yield env.timeout(step)
        for r in batch:
            r["cached"] = r["cached"] + r["take"]
            r["running"] = False
            r["made"] += r["cached"] >= r["prompt"]
            if r["made"] == r["out"]:
                ends[r["i"]] = env.now
                state["reserved"] -= r["prompt"] + r["out"]
                pool.remove(r)
        state["scheduled"] -= 1
        notify()

    def scheduler() -> Any:
        while len(ends) < len(table):
            batch = []
            budget = batcher.chunk_tokens or 10**9
            if state["scheduled"] < profile.stages:
                for r in sorted((r for r in pool if not r["running"]), key=lambda r: r["i"]):
                    if len(batch) == batcher.max_batch:
                        break
                    r["take"] = min(max(r["prompt"] - r["cached"], 1), budget)
                    if r["cached"] < r["prompt"]:
                        if not r["take"] and not r["cached"]:
                            break  # who comes later begins later
                        if not r["take"]:
                            continue
                        budget -= r["take"] if r["prompt"] - r["cached"] > 1 else 0
                    if not r["cached"]:
                        if state["reserved"] + r["prompt"] + r["out"] > profile.slots:
                            break
                        state["reserved"] += r["prompt"] + r["out"]
                    r["take"] = max(r["take"], 1)
                    batch.append(r)
            if not batch:
                yield changed[0]
                continue
            for r in batch:
                r["running"] = True
            state["scheduled"] += 1
            env.process(iteration(batch))

    ends: dict[int, float] = {}
    env.process(arrivals())
    env.run(env.process(scheduler()))
    return [ends[i] for i in range(len(table))]


def by_request(
    requests: serving.Requests, profile: serving.TokenProfile, batcher: serving.Batcher
) -> list[float]:
    """When each request ends: one microbatch, step by step."""
    rows = list(requests.frame().itertuples())
    now = 0.0
    ends = []
    while len(ends) < len(rows):
        now = max(now, rows[len(ends)].arrival_s)
        waiting = [row for row in rows[len(ends) :] if row.arrival_s <= now]
        batch = waiting[: batcher.max_batch]
        prompts = [row.prompt_tokens for row in batch]
        padded = batcher.prompts == "longest"
        length = max(prompts) if padded else min(prompts)
        left = [row.output_tokens + (0 if padded else row.prompt_tokens - length) for row in batch]
        tokens = len(batch) * length
        cached = 0
        while max(left) > 0:
            now += profile.stages * profile.seconds(
                tokens=tokens, sequences=len(batch), cached=cached
            )
            cached = len(batch) * length
            tokens = len(batch)
            length = length + 1
            left = [steps - 1 for steps in left]
        ends += [now] * len(batch)
    return ends
