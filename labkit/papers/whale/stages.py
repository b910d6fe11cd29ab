"""Stages of a pipeline on unequal GPUs: cut evenly, by speed, and best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def cut_by_share(layers_s: Sequence[float], shares: Sequence[float]) -> list[int]:
    """First layer of each stage and the end, where stages get their shares of the seconds.

    A cut lies where the seconds before it are nearest to what they should be; each stage has a
    layer at least.

    >>> cut_by_share([1.0, 1.0, 1.0, 1.0], [1.0, 1.0]), cut_by_share([1.0] * 4, [3.0, 1.0])
    ([0, 2, 4], [0, 3, 4])
    """
    before_s = np.concatenate([[0.0], np.cumsum(layers_s)])
    wanted_s = before_s[-1] * np.cumsum(shares) / np.sum(shares)
    cuts = [0]
    for stage, seconds in enumerate(wanted_s[:-1]):
        earliest = cuts[-1] + 1
        latest = len(layers_s) - (len(shares) - 1 - stage)
        allowed = np.arange(earliest, latest + 1)
        cuts.append(int(allowed[np.argmin(np.abs(before_s[allowed] - seconds))]))
    return [*cuts, len(layers_s)]


def stages_s(
    layers_s: Sequence[float], cuts: Sequence[int], slowness: Sequence[float]
) -> list[float]:
    """Seconds of each stage on its GPU, which takes ``slowness`` times as long as the fastest."""
    before_s = np.concatenate([[0.0], np.cumsum(layers_s)])
    lengths = np.diff(before_s[list(cuts)])
    return (lengths * np.asarray(slowness, dtype=float)).tolist()


def best_cut(layers_s: Sequence[float], slowness: Sequence[float]) -> list[int]:
    """The cut whose slowest stage is fastest, GPUs in the order given.

    1. ``best[end]`` is the slowest stage of the first layers, up to ``end``, on the GPUs so far.
    2. With one GPU more, the last stage may begin anywhere: take the start that is best.
    """
    before_s = np.concatenate([[0.0], np.cumsum(layers_s)])
    count = len(layers_s)
    best = before_s * slowness[0]
    best[0] = np.inf  # a stage has a layer at least
    choices = []
    for slow in slowness[1:]:
        longer = np.full(count + 1, np.inf)
        start_of = np.zeros(count + 1, dtype=int)
        for end in range(1, count + 1):
            ways = np.maximum(best[:end], (before_s[end] - before_s[:end]) * slow)
            start_of[end] = int(np.argmin(ways))
            longer[end] = ways[start_of[end]]
        choices.append(start_of)
        best = longer
    cuts = [count]
    for start_of in reversed(choices):
        cuts.append(int(start_of[cuts[-1]]))
    return [0, *reversed(cuts)]


def pipeline_s(stage_s: Sequence[float], microbatches: int) -> float:
    """Seconds of a step: all stages once, and the slowest again for each other micro-batch."""
    return sum(stage_s) + (microbatches - 1) * max(stage_s)


def kept_bytes(
    activation_bytes: Sequence[float], weight_bytes: Sequence[float], cuts: Sequence[int]
) -> list[float]:
    """What each stage keeps: four times its weights (with gradients and Adam's two numbers), and
    activations of as many micro-batches as there are stages left, its own among them (1F1B)."""
    stages = len(cuts) - 1
    kept = []
    for stage in range(stages):
        layers = slice(cuts[stage], cuts[stage + 1])
        activations = (stages - stage) * sum(activation_bytes[layers])
        kept.append(4 * sum(weight_bytes[layers]) + activations)
    return kept
