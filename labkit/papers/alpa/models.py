"""The three models of Alpa's evaluation as chains of blocks, and what the artifact measured.

A block leads from one tensor to the next over one or more paths of operators, whose ends are added:
a transformer layer has two blocks, a residual block of a convolutional network is one. Every
operator is a product: rows by inputs with inputs by outputs, of one expert or of many.

Source: shapes and microbatches of benchmark/alpa/suite_paper_*.py and osdi22_artifact/suite_*.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Kind = Literal["gpt", "moe", "wresnet"]
E2E = "osdi22_artifact/results_e2e_ref.tsv"
"""The artifact's measured throughput of all systems."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """One operator of a microbatch.

    Attributes:
        flops: of a forward pass.
        parameters: that it trains; 0 for products of two activations.
        input_bytes, output_bytes: of its tensors.
        experts: among which rows are divided.
        heads: whether columns stay apart, as attention's heads do: it can be cut along them
            without sending anything, and its input and output are cut alike.
    """

    name: str
    flops: float
    parameters: float
    input_bytes: float
    output_bytes: float
    experts: int = 1
    heads: bool = False


@dataclass(frozen=True, kw_only=True)
class Block:
    """Paths of operators from one tensor to the next; an empty path is a residual connection.

    Attributes:
        input_bytes, output_bytes: of the tensors that it begins and ends with.
    """

    paths: tuple[tuple[Product, ...], ...]
    input_bytes: float
    output_bytes: float

    @property
    def operators(self) -> list[Product]:
        """All operators, path by path."""
        return [operator for path in self.paths for operator in path]

    @cached_property
    def flops(self) -> float:
        """Of a forward pass."""
        return sum(operator.flops for operator in self.operators)

    @cached_property
    def parameters(self) -> float:
        """That it trains."""
        return sum(operator.parameters for operator in self.operators)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model, cut into layers that stages are made of.

    Attributes:
        layers: blocks of each layer, of one microbatch.
        num_microbatches: of an iteration.
        parameter_bytes: of a parameter and its gradient.
        optimizer_bytes: of a parameter's optimizer state, which replicas may share.
        samples: of a microbatch, so that it can be cut into as many parts at most.
    """

    name: str
    kind: Kind
    layers: tuple[tuple[Block, ...], ...]
    num_microbatches: int
    samples: int
    element_bytes: int
    parameter_bytes: float = field(default=4.0)
    optimizer_bytes: float = field(default=12.0)

    @property
    def parameters(self) -> float:
        """That the model trains."""
        return sum(block.parameters for layer in self.layers for block in layer)

    @property
    def forward_flops(self) -> float:
        """Of a microbatch."""
        return sum(block.flops for layer in self.layers for block in layer)


def _dense(
    name: str, rows: float, inputs: float, outputs: float, element_bytes: int, experts: int = 1
) -> Product:
    """A product with trained weights, which each expert has."""
    return Product(
        name=name,
        flops=2 * rows * inputs * outputs,
        parameters=inputs * outputs * experts,
        input_bytes=rows * inputs * element_bytes,
        output_bytes=rows * outputs * element_bytes,
        experts=experts,
    )


def _attention(tokens: float, hidden: int, sequence: int) -> Block:
    """Attention with its residual connection, in half precision."""
    core = Product(
        name="attention",
        flops=4 * tokens * sequence * hidden,
        parameters=0,
        input_bytes=2 * 3 * tokens * hidden,
        output_bytes=2 * tokens * hidden,
        heads=True,
    )
    qkv = _dense("qkv", tokens, hidden, 3 * hidden, 2)
    joined = _dense("project", tokens, hidden, hidden, 2)
    size = 2 * tokens * hidden
    return Block(paths=((qkv, core, joined), ()), input_bytes=size, output_bytes=size)


def _network(tokens: float, hidden: int, factor: int, experts: int = 1) -> Block:
    """Two products with their residual connection; of experts, each token goes to two of them.

    Dispatch and combine are products with a matrix of zeros and ones, in groups of 2,048 tokens, as
    in GShard; half of each counts to each of the two products.
    """
    size = 2 * tokens * hidden
    sent = tokens if experts == 1 else 2 * tokens
    up = _dense("up", sent, hidden, factor * hidden, 2, experts)
    down = _dense("down", sent, factor * hidden, hidden, 2, experts)
    if experts > 1:
        dispatch = 4 * tokens * hidden * 2048
        up = Product(**{**vars(up), "name": "experts up", "flops": up.flops + dispatch})
        down = Product(**{**vars(down), "name": "experts down", "flops": down.flops + dispatch})
    return Block(paths=((up, down), ()), input_bytes=size, output_bytes=size)


def _vocabulary(tokens: float, hidden: int, words: int) -> Block:
    """The product with the vocabulary; its output is not sent on."""
    product = _dense("vocabulary", tokens, hidden, words, 2)
    return Block(paths=((product,),), input_bytes=2 * tokens * hidden, output_bytes=0.0)


def _grouped(blocks: list[Block], num_layers: int) -> tuple[tuple[Block, ...], ...]:
    """Equally many blocks in each layer."""
    size = len(blocks) // num_layers
    return tuple(tuple(blocks[size * place : size * (place + 1)]) for place in range(num_layers))


def _transformer(name: str, num_microbatches: int, num_layers: int) -> Model:
    """A GPT or an MoE of the suites: sequences of 1,024, a batch of 1,024 sequences."""
    kind, _, size = name.partition(" ")
    samples = 1024 // num_microbatches
    tokens = samples * 1024
    blocks: list[Block] = []
    if kind == "GPT":
        hidden, depth = _GPT[size]
        for _ in range(depth):
            blocks += [_attention(tokens, hidden, 1024), _network(tokens, hidden, 4)]
        words = 51200
    else:
        hidden, depth, experts = _MOE[size]
        for place in range(depth):
            many = experts if place % 2 else 1
            blocks += [_attention(tokens, hidden, 1024), _network(tokens, hidden, 8, many)]
        words = 32000
    layers = _grouped(blocks, num_layers)
    last = (*layers[-1], _vocabulary(tokens, hidden, words))
    return Model(
        name=name,
        kind="gpt" if kind == "GPT" else "moe",
        layers=(*layers[:-1], last),
        num_microbatches=num_microbatches,
        samples=samples,
        element_bytes=2,
    )


def _residual(places: float, inputs: int, filters: int, width: int, stride: int) -> Block:
    """A bottleneck block: 1 × 1, a wide 3 × 3, 1 × 1 to four times the filters.

    Args:
        places: of the input, of all images.
    """
    after = places / stride**2
    wide = filters * width
    tall = _dense("3 × 3", after, 9 * filters, wide, 4)
    # A window reads each number nine times, and a device needs it once.
    tall = Product(**{**vars(tall), "input_bytes": 4 * places * filters})
    main = (
        _dense("1 × 1", places, inputs, filters, 4),
        tall,
        _dense("1 × 1 out", after, wide, 4 * filters, 4),
    )
    side: tuple[Product, ...] = ()
    if stride > 1 or inputs != 4 * filters:
        beside = _dense("beside", after, inputs, 4 * filters, 4)
        side = (Product(**{**vars(beside), "input_bytes": 4 * places * inputs}),)
    return Block(
        paths=(main, side),
        input_bytes=4 * places * inputs,
        output_bytes=4 * after * 4 * filters,
    )


def _wide_resnet(name: str, num_microbatches: int) -> Model:
    """A Wide-ResNet of 50 layers on images of 224 × 224, in single precision; 16 layers."""
    base, width = _RESNET[name.partition(" ")[2]]
    samples = 1536 // num_microbatches
    side = 56
    inputs = base
    blocks = []
    for stage, count in enumerate((3, 4, 6, 3)):
        filters = base * 2**stage
        for place in range(count):
            stride = 2 if stage and not place else 1
            blocks.append(_residual(samples * side**2, inputs, filters, width, stride))
            inputs = 4 * filters
            side //= stride
    return Model(
        name=name,
        kind="wresnet",
        layers=tuple((block,) for block in blocks),
        num_microbatches=num_microbatches,
        samples=samples,
        element_bytes=4,
        parameter_bytes=8.0,
        optimizer_bytes=8.0,
    )


_GPT = {
    "0.35B": (1024, 24),
    "0.76B": (1536, 24),
    "1.3B": (2048, 24),
    "2.6B": (2560, 32),
    "6.7B": (4096, 32),
    "15B": (5120, 48),
}
_MOE = {
    "0.38B": (768, 8, 8),
    "0.69B": (768, 8, 16),
    "1.3B": (768, 16, 16),
    "2.4B": (1024, 16, 16),
    "10B": (1536, 16, 32),
    "27B": (2048, 16, 48),
}
_RESNET = {
    "0.25B": (160, 2),
    "0.5B": (224, 2),
    "1B": (320, 2),
    "2B": (448, 2),
    "4B": (640, 2),
    "6.8B": (320, 16),
}
SUITES: dict[Kind, dict[int, tuple[str, int, int]]] = {
    "gpt": {
        1: ("GPT 0.35B", 64, 6),
        2: ("GPT 0.76B", 128, 6),
        4: ("GPT 1.3B", 128, 6),
        8: ("GPT 2.6B", 128, 8),
        16: ("GPT 6.7B", 64, 8),
        32: ("GPT 15B", 128, 16),
    },
    "moe": {
        1: ("MoE 0.38B", 512, 4),
        2: ("MoE 0.69B", 32, 4),
        4: ("MoE 1.3B", 32, 8),
        8: ("MoE 2.4B", 32, 8),
        16: ("MoE 10B", 16, 8),
        32: ("MoE 27B", 128, 8),
    },
    "wresnet": {
        1: ("Wide-ResNet 0.25B", 24, 16),
        2: ("Wide-ResNet 0.5B", 24, 16),
        4: ("Wide-ResNet 1B", 24, 16),
        8: ("Wide-ResNet 2B", 24, 16),
        16: ("Wide-ResNet 4B", 32, 16),
        32: ("Wide-ResNet 6.8B", 32, 16),
    },
}
"""By number of GPUs: the model, microbatches of an iteration, layers that stages are made of."""


def model_on(kind: Kind, gpus: int, *, num_microbatches: int | None = None) -> Model:
    """The model that the artifact trains on so many GPUs.

    Args:
        num_microbatches: instead of the artifact's; the batch stays as it is.

    >>> round(model_on("wresnet", 32).parameters / 1e9, 1)
    6.7
    """
    name, usual, num_layers = SUITES[kind][gpus]
    count = num_microbatches or usual
    if kind == "wresnet":
        return _wide_resnet(name, count)
    return _transformer(name, count, num_layers)
