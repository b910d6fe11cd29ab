"""Which operators each version of the transformers library runs, family by family.

Versions were read and run beside torch's tracker (``tests/oracles/transformers_peaks.py``), without
kernels from the hub and without a mask given to the model. Llama's modules of 4.38 and 4.39 hand a
mask to every kernel of attention, which then is another one; they are left out.
"""

from __future__ import annotations

from labkit.models.sizes import Operator

Version = tuple[int, int]
Operators = tuple[Operator, ...]

NEWEST: Version = (5, 23)
LLAMA_WITHOUT_GROUPS: Version = (4, 31)
"""The first version whose Llama may have fewer key heads than query heads."""
EXPERTS_IN_GROUPS: Version = (5, 0)
"""The first version that runs experts as batched products."""

_PLAIN: Operators = ("norm", "mask", "softmax-fp32")
_REPEATED: Operators = (*_PLAIN, "repeat-kv")
_SHIFTED: Operators = (*_REPEATED, "shifted-loss")
_BESIDE: Operators = (*_SHIFTED, "loss-beside")
_LATE: dict[Version, Operators] = {(4, 49): _REPEATED, (4, 54): _PLAIN}
_OWN: Operators = (*_SHIFTED, "own-tables")
_EAGER: Operators = (*_OWN, "no-sdpa")
_OF_SAMPLES: Operators = (*_EAGER, "mask-a-sample")
_FIRST: Operators = (
    *(name for name in _OF_SAMPLES if name != "repeat-kv"),
    "narrow-loss",
    "norm-of-input",
    "clamp",
)
# By family, from which version on its modules run which operators.
CHANGES: dict[str, dict[Version, Operators]] = {
    "gpt2": {
        (4, 28): ("shifted-loss", "narrow-loss", "no-sdpa"),
        (4, 42): ("shifted-loss", "narrow-loss"),
        (4, 48): ("shifted-loss", "loss-beside"),
        (4, 49): (),
        (4, 52): ("mask",),
    },
    "llama": {
        (4, 28): _FIRST,
        (4, 30): (*_FIRST, "norm-wide"),
        (4, 31): _OF_SAMPLES,
        (4, 35): _EAGER,
        (4, 36): _OWN,
        (4, 43): _SHIFTED,
        (4, 46): _BESIDE,
        **_LATE,
    },
    "mistral": {
        (4, 34): _OF_SAMPLES,
        (4, 35): _EAGER,
        (4, 37): _OWN,
        (4, 48): _BESIDE,
        **_LATE,
    },
    "mixtral": {
        (4, 36): _EAGER,
        (4, 37): _OWN,
        (4, 46): (*_OWN, "loss-beside"),
        (4, 48): _BESIDE,
        **_LATE,
    },
    "qwen2": {(4, 37): _OWN, (4, 45): _SHIFTED, (4, 46): _BESIDE, **_LATE},
    "deepseek_v3": {(4, 50): _REPEATED, (4, 54): _PLAIN},
    "qwen3": {(4, 51): _REPEATED, (4, 54): _PLAIN},
    "qwen3_moe": {(4, 51): _REPEATED, (4, 54): _PLAIN},
}
# Versions left out: the first, and the next that is known.
_UNKNOWN: dict[str, tuple[Version, Version]] = {"llama": ((4, 38), (4, 40))}


def operators_of(kind: str, version: Version) -> Operators:
    """The operators of a family's modules in a version that is known.

    >>> operators_of("llama", (5, 0))
    ('norm', 'mask', 'softmax-fp32')
    """
    return CHANGES[kind][max(since for since in CHANGES[kind] if since <= version)]


def nearest_version(kind: str, version: Version) -> Version:
    """The known version of a family that is nearest; where none is older, or it is one of those
    left out, a later one.
    """
    version = min(max(version, min(CHANGES[kind])), NEWEST)
    if kind in _UNKNOWN:
        first, after = _UNKNOWN[kind]
        if first <= version < after:
            return after
    return version


def known_versions(kind: str) -> str:
    """The known versions of a family, in words.

    >>> known_versions("llama"), known_versions("mixtral")
    ('4.28 to 4.37, 4.40 to 5.23', '4.36 to 5.23')
    """
    first = version_text(min(CHANGES[kind]))
    if kind not in _UNKNOWN:
        return f"{first} to {version_text(NEWEST)}"
    (major, minor), after = _UNKNOWN[kind]
    return f"{first} to {major}.{minor - 1}, {version_text(after)} to {version_text(NEWEST)}"


def version_text(version: Version) -> str:
    """A version's numbers with a dot."""
    return ".".join(map(str, version))
