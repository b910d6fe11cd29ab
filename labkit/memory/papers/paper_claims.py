"""Papers' memory numbers as claims: what each prints, what we get, and whether that agrees.

``published.claims()`` is the table. A tolerance is half a unit of the last printed digit unless a
claim says otherwise; one that we know to differ has a note that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from labkit.memory.papers import megatron_claims, zero_claims
from labkit.memory.papers.claim import Claim

# By folder of ``data/papers``, which is what each is given the parent of.
SOURCES: dict[str, Callable[[Path], Iterator[Claim]]] = {
    "zero": zero_claims.zero,
    "reduce-act-recomp": megatron_claims.korthikanti,
    "megatron-sc21": megatron_claims.megatron,
    "llama-3": megatron_claims.llama,
    "zero-offload": zero_claims.offload,
    "zeropp": zero_claims.zeropp,
    "zero-infinity": zero_claims.infinity,
}
