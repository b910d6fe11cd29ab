"""The schedules there are: of each the least that describes it, where it comes from, its bubble."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from labkit.errors import not_among
from labkit.pipeline.scheduling.forms import Form, Listed, Merge, Sizes, Steps


class Bubble(NamedTuple):
    """How many seconds each device idles in one iteration, if all stages are alike.

    The first field says it in words, with when it holds; the others are functions of the sizes and
    F, B, W: the seconds of a forward, an input half and a weight half of one chunk. It holds for
    list schedulers' orders if they were made as if F = B = W.
    """

    words: str
    idle_s: Callable[..., float]
    holds: Callable[..., bool] = lambda z, f, b, w: True


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a name stands for, at any size.

    Attributes:
        form: what its orders follow from.
        options: what it takes besides ``max_in_flight``, each with its default.
        constraint, possible: the sizes it is made for, in words ("" for any) and as a test.
        peak: activations of the device that holds most, in words.
        asynchronous, weight_versions: as for :class:`Schedule`.
    """

    summary: str
    source: str
    form: Form
    options: Mapping[str, Any] = field(default_factory=dict)
    constraint: str = ""
    possible: Callable[[Sizes], bool] = lambda sizes: True
    bubble: Bubble
    peak: str
    asynchronous: bool = False
    weight_versions: Callable[[Sizes], np.ndarray] | None = None

    def chunks(self, settings: Mapping[str, Any]) -> int:
        """How many stages stand on each device; a bidirectional stage stands on two."""
        if isinstance(self.form, Merge):
            return int(settings.get("num_chunks", 1))
        return 1 if self.form.bidirectional else 2 * int(settings.get("num_waves", 1))

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients are instructions of their own."""
        form = self.form
        if isinstance(form, Merge):
            return form.weight_lag is not None
        return form.split_backward if isinstance(form, Listed) else True


EVEN = (1.0, 1.0, 1.0)
"""Durations for which list schedulers make their orders by default, all alike."""
_RAMP = Bubble("(S-1)(F+B+W)", lambda z, f, b, w: (z.num_devices - 1) * (f + b + w))
_LOOPED = Bubble(  # for each further chunk a wait where a round has fewer microbatches than S
    "(S-1 + (v-1) max(0, S-M)) (F+B+W)",
    lambda z, f, b, w: (
        (f + b + w)
        * (z.num_devices - 1 + (z.num_chunks - 1) * max(0, z.num_devices - z.num_microbatches))
    ),
)
_ZB_H1 = Bubble(
    "(S-1) max(F+B-W, F, B) for M >= S",
    lambda z, f, b, w: (z.num_devices - 1) * max(f + b - w, f, b),
    lambda z, f, b, w: z.num_microbatches >= z.num_devices,
)
_ZB_H2 = Bubble(
    "(S-1) max(F+B-2W, F, B-F) for M >= 2S - 1",
    lambda z, f, b, w: (z.num_devices - 1) * max(f + b - 2 * w, f, b - f),
    lambda z, f, b, w: z.num_microbatches >= 2 * z.num_devices - 1,
)
_ZB_V = Bubble(
    "(S-1) F for F = B = W, M >= 2S - 1",
    lambda z, f, b, w: (z.num_devices - 1) * f,
    lambda z, f, b, w: f == b == w and z.num_microbatches >= 2 * z.num_devices - 1,
)
_HANAYO = Bubble(
    "2 (S-1)(B+W) for one wave, M = S, F <= B+W",
    lambda z, f, b, w: 2 * (z.num_devices - 1) * (b + w),
    lambda z, f, b, w: z.num_chunks == 2 and z.num_microbatches == z.num_devices and f <= b + w,
)


def _chimera_holds(sizes: Sizes, forward_s: float, input_s: float, weight_s: float) -> bool:
    """Tell when Chimera's bubble has a closed form."""
    more = sizes.num_microbatches - sizes.num_devices
    longest = input_s + weight_s
    return more >= 0 and more % 2 == 0 and forward_s <= (longest / 2 if more else longest)


_CHIMERA = Bubble(
    "(S-2)(B+W) for even M >= S, 2F <= B+W (M = S: F <= B+W)",
    lambda z, f, b, w: (z.num_devices - 2) * (b + w),
    _chimera_holds,
)
_DUALPIPE_V_BUBBLE, _DUALPIPE_BUBBLE = (
    Bubble(
        f"({pairs}-1)(F+B-W) for W <= B <= F <= B+W; (F&B + B - 2W) where forwards and backwards "
        "run as one",
        lambda z, f, b, w, share=share: (z.num_devices // share - 1) * (f + b - w),
        lambda z, f, b, w: w <= b <= f <= b + w,
    )
    for pairs, share in (("S", 1), ("S/2", 2))
)


# S devices, M microbatches, d the device's number. Both chunks' forwards and backwards alternate
# in the middle; before it only forwards that have arrived, after it weight halves fill the gaps.
_DUALPIPE_V = (
    ("F0", lambda z, d: 2 * (z.num_devices - 1 - d)),
    ("F0 F1", lambda z, d: d + 1),
    ("I1 W F1", lambda z, d: z.num_devices - 1 - d),
    ("F0 B1 F1 B0", lambda z, d: z.num_microbatches - 2 * z.num_devices + d + 1),
    ("B1 F1 B0", lambda z, d: z.num_devices - 1 - d),
    ("B1 B0", lambda z, d: (d + 1) // 2),
    ("B1 I0", lambda z, d: (d + 1) % 2),
    ("I1 I0", lambda z, d: (d + 1) // 2),
    ("W I0", lambda z, d: z.num_devices - 1 - d),
    ("W", lambda z, d: d + 1),
)


def _dapple_warm_up(sizes: Sizes) -> np.ndarray:
    """How many forwards each device runs before its first backward, by DAPPLE's policy A or B."""
    return sizes.ahead if sizes.settings["warmup"] == "a" else 2 * sizes.ahead - 1


def _envpipe_warm_up(sizes: Sizes) -> np.ndarray:
    early = sizes.settings["early_forwards"]
    return sizes.ahead + (2 * (sizes.ahead - 1) if early is None else np.asarray(early))


_1F1B: dict[str, Any] = {"form": Merge(warm_up=lambda z: z.ahead), "peak": "S", "bubble": _RAMP}
_LOOPS: dict[str, Any] = {"options": {"num_chunks": 2}, "bubble": _LOOPED}
_IN_ROUNDS: dict[str, Any] = {
    "constraint": "M to be a multiple of max(1, M // S), the rounds",
    "possible": lambda z: z.num_microbatches % z.num_rounds == 0,
}

FAMILIES: dict[str, Family] = {
    "gpipe": Family(
        summary="all forwards, then all backwards",
        source="GPipe (NeurIPS 2019)",
        form=Merge(warm_up=lambda z: z.num_microbatches),
        bubble=_RAMP,
        peak="M",
    ),
    "1f1b": Family(
        summary="a backward as soon as there is one, then one forward for each",
        source="PipeDream-Flush in PipeDream-2BW (ICML 2021)",
        **_1F1B,
    ),
    "interleaved-1f1b": Family(
        summary="1F1B with several chunks of the model a device, round robin",
        source="Megatron-LM (SC 2021), section 2.2; uneven rounds as in torch",
        form=Merge(warm_up=lambda z: (z.num_chunks - 1) * z.per_round + 2 * z.ahead - 1),
        **_IN_ROUNDS,
        **_LOOPS,
        peak="(v-1)S + 2S - 1 chunks",
    ),
    "loop-bfs": Family(
        summary="several chunks a device; all microbatches pass one before the next",
        source="Breadth-First Pipeline Parallelism (MLSys 2023)",
        form=Merge(warm_up=lambda z: z.num_units, breadth_first=True),
        **_LOOPS,
        peak="vM chunks",
    ),
    "dapple": Family(
        summary="early backward; warm-up policy a keeps S - d microbatches, b keeps 2(S - d) - 1",
        source="DAPPLE (PPoPP 2021)",
        form=Merge(warm_up=_dapple_warm_up),
        options={"warmup": "a"},
        bubble=_RAMP,
        peak="S (a) or 2S - 1 (b)",
    ),
    "pipedream": Family(
        summary="1F1B without a flush; each device keeps the weights of its microbatches in flight",
        source="PipeDream (SOSP 2019)",
        **_1F1B,
        asynchronous=True,
        weight_versions=lambda z: z.ahead,
    ),
    "pipedream-2bw": Family(
        summary="1F1B without a flush; gradients accumulate over M, two versions of the weights",
        source="PipeDream-2BW (ICML 2021)",
        **_1F1B,
        asynchronous=True,
        weight_versions=lambda z: np.full(z.num_devices, 2),
    ),
    "pipedream-flush": Family(
        summary="1F1B with a flush after each iteration: another name of 1f1b",
        source="PipeDream-2BW (ICML 2021)",
        **_1F1B,
    ),
    "envpipe": Family(
        summary="1F1B with some forwards early, so that idle time comes after what it can slow",
        source="EnvPipe (USENIX ATC 2023)",
        form=Merge(warm_up=_envpipe_warm_up),
        options={"early_forwards": None},
        bubble=_RAMP,
        peak="S + early forwards",
    ),
    "zb-h1": Family(
        summary="1F1B whose weight gradients wait for the gaps, in no more memory",
        source="Zero Bubble Pipeline Parallelism (ICLR 2024)",
        form=Merge(warm_up=lambda z: z.ahead, weight_lag=lambda z: z.num_devices - z.ahead),
        bubble=_ZB_H1,
        peak="S",
    ),
    "zb-h2": Family(
        summary="zb-h1 with more forwards in flight: no gap between a device's first and last",
        source="Zero Bubble Pipeline Parallelism (ICLR 2024)",
        form=Merge(
            warm_up=lambda z: 2 * z.ahead - 1,
            weight_lag=lambda z: 2 * (z.num_devices - z.ahead),
        ),
        bubble=_ZB_H2,
        peak="2S - 1",
    ),
    "interleaved-zb": Family(
        summary="zb-h1 with several chunks of the model a device, round robin",
        source="Zero Bubble Pipeline Parallelism (ICLR 2024); torch's InterleavedZeroBubble",
        form=Merge(
            warm_up=lambda z: (z.num_chunks - 1) * z.per_round + z.ahead,
            weight_lag=lambda z: z.num_devices - z.ahead,
        ),
        options={"num_chunks": 2},
        **_IN_ROUNDS,
        bubble=_ZB_H1,
        peak="vS chunks",
    ),
    "zb-v": Family(
        summary="two chunks a device, there and back; weight gradients fill the gaps",
        source="Zero Bubble Pipeline Parallelism (arXiv 2401.10241), section 6",
        form=Listed(split_backward=True, room=lambda z: 2 * z.num_devices, tapering=False),
        options={"durations_s": EVEN},
        bubble=_ZB_V,
        peak="2S chunks",
    ),
    "hanayo": Family(
        summary="2w chunks a device in w waves there and back",
        source="Hanayo (SC 2023)",
        form=Listed(
            split_backward=False,
            room=lambda z: z.num_stages + 2 * z.num_devices,
            tapering=True,
        ),
        options={"num_waves": 1, "durations_s": EVEN},
        bubble=_HANAYO,
        peak="(2w+2)S chunks",
    ),
    "chimera": Family(
        summary="two pipelines in opposite directions on the same devices",
        source="Chimera (SC 2021)",
        form=Listed(
            split_backward=False, room=lambda z: z.num_devices, tapering=True, bidirectional=True
        ),
        constraint="an even S",
        possible=lambda z: z.num_devices % 2 == 0,
        options={"durations_s": EVEN},
        bubble=_CHIMERA,
        peak="S",
    ),
    "dualpipe": Family(
        summary="two directions; forwards run beside backwards of the other direction",
        source="DeepSeek-V3 (arXiv 2412.19437), section 3.2.1",
        form=Steps(table=_DUALPIPE_V, least=lambda z: z.num_devices + 1, bidirectional=True),
        constraint="even S and M, M >= 2S",
        possible=lambda z: (
            z.num_devices % 2 == z.num_microbatches % 2 == 0
            and z.num_microbatches >= 2 * z.num_devices
        ),
        bubble=_DUALPIPE_BUBBLE,
        peak="S + 1",
    ),
    "dualpipe-v": Family(
        summary="dualpipe folded: two chunks a device, there and back, on half of the devices",
        source="DualPipe's authors' repository; torch's DualPipeV",
        form=Steps(table=_DUALPIPE_V, least=lambda z: 2 * z.num_devices + 1),
        constraint="M >= 2S",
        possible=lambda z: z.num_microbatches >= 2 * z.num_devices,
        bubble=_DUALPIPE_V_BUBBLE,
        peak="2S + 1 chunks",
    ),
}


def family_of(name: str) -> Family:
    """Look up what a name stands for."""
    if name not in FAMILIES:
        raise not_among("schedule", name, FAMILIES)
    return FAMILIES[name]
