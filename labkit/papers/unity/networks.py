"""Small networks as graphs: an MLP of two towers, a DLRM without lookups, a block of Inception,
a bottleneck.

Shapes follow the authors' examples where these have them; what is ours is said.
"""

from __future__ import annotations

from labkit.papers.unity.terms import CHANNELS, Op, Term, leaf, term

Graph = tuple[Term, ...]


def dense(x: Term, name: str, inputs: int, outputs: int, *, relu: bool = True) -> Term:
    """A linear operator with a weight of its own, and a ReLU apart from it."""
    weight = leaf(Op.WEIGHT, name, outputs, inputs)
    made = term(Op.LINEAR, x, weight)
    return term(Op.RELU, made) if relu else made


def mlp(samples: int, *, layers: int = 2, width: int = 8192, inputs: int = 1024) -> Graph:
    """Two towers of wide layers that are added: the authors' MLP, with fewer layers.

    Source: ``examples/cpp/MLP_Unify`` of FlexFlow (eight layers of 8,192, inputs of 1,024).
    """
    towers = []
    for tower in ("a", "b"):
        last = leaf(Op.INPUT, f"x{tower}", samples, inputs)
        before = inputs
        for number in range(1, layers + 1):
            relu = number < layers
            last = dense(last, f"w{tower}{number}", before, width, relu=relu)
            before = width
        towers.append(last)
    return (term(Op.ADD, *towers),)


def dlrm(samples: int) -> Graph:
    """An MLP below, a concat with what the lookups bring, an MLP above.

    The lookups themselves are left out: the rules have no such operator. Sizes are from memory of
    the authors' run scripts: 64-512-512-64 below, eight tables of 64, 576-1024-1024-1024-1 above.
    """
    last = leaf(Op.INPUT, "x", samples, 64)
    for number, (inputs, outputs) in enumerate([(64, 512), (512, 512), (512, 64)], start=1):
        last = dense(last, f"below{number}", inputs, outputs)
    last = term(Op.CONCAT, last, leaf(Op.INPUT, "lookups", samples, 512), axis=CHANNELS)
    sizes = [(576, 1024), (1024, 1024), (1024, 1024), (1024, 1)]
    for number, (inputs, outputs) in enumerate(sizes, start=1):
        last = dense(last, f"above{number}", inputs, outputs)
    return (last,)


def inception(images: int) -> Graph:
    """Four branches of one input, concatenated: convolutions of 1 × 1, a sample a place.

    Channels are near those of Inception-v3's first block, in multiples of 64 (ours), on 8 × 8
    places.
    """
    samples = 64 * images
    x = leaf(Op.INPUT, "x", samples, 192)
    first = dense(x, "a", 192, 64)
    second = dense(dense(x, "b1", 192, 64), "b2", 64, 64)
    third = dense(dense(x, "c1", 192, 64), "c2", 64, 128)
    fourth = dense(x, "d", 192, 64)
    left = term(Op.CONCAT, first, second, axis=CHANNELS)
    right = term(Op.CONCAT, third, fourth, axis=CHANNELS)
    return (term(Op.CONCAT, left, right, axis=CHANNELS),)


def bottleneck(samples: int, *, wide: int = 8192, narrow: int = 1024) -> Graph:
    """A wide layer and a narrow one behind it, a ReLU after each (ours)."""
    x = leaf(Op.INPUT, "x", samples, narrow)
    return (dense(dense(x, "w1", narrow, wide), "w2", wide, narrow),)
