"""Aceso's tables: microseconds and MiB of each operator on V100s, by microbatch and degree.

A table is a file for each microbatch (samples on one GPU of a tensor-parallel group) and degree
(GPUs of that group): a row an operator. What the tables do not hold is NaN.

Source: the artifact's ``profiler/profiled-time-eurosys``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from labkit.errors import BadValue

DATASET = "aceso-eurosys24"
FOLDER = "profiler/profiled-time-eurosys"
COLUMNS = (
    "forward-compute",
    "backward-compute",
    "input_size",
    "output_size",
    "weights",
    "activations",
    "fwd_reserved",
    "bwd_reserved",
)
"""Microseconds of both passes, then MiB."""
FORWARD, BACKWARD, INPUT, OUTPUT, WEIGHTS, KEPT, FORWARD_SPACE, BACKWARD_SPACE = range(8)
LINKS = {True: f"{FOLDER}/p2p_intra_node.csv", False: f"{FOLDER}/p2p_inter_node.csv"}
"""Files of GB/s between two GPUs of one machine, and of two."""
GPT_MICROBATCHES = (1, 2, 4, 8)
RESNET_MICROBATCHES = (16, 32, 48, 64)
_HEAD = 1
"""Operators of a GPT before its layers."""
_LAYER = 13
"""Operators of a GPT's layer."""


def file_names(network: str, degrees: Sequence[int]) -> dict[tuple[int, int], str]:
    """Files of a network's tables, by microbatch and degree.

    >>> file_names("gpt_1_3B", [1])[4, 1].rpartition("/")[2]
    'gpt_1_3B_mbs4_tp1_algo0.csv'
    """
    sizes = RESNET_MICROBATCHES if network.startswith("resnet") else GPT_MICROBATCHES
    return {
        (size, degree): f"{FOLDER}/{network}_mbs{size}_tp{degree}_algo0.csv"
        for size, degree in product(sizes, degrees)
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class Tables:
    """What one GPU spends on each operator.

    Attributes:
        network: such as ``gpt_1_3B``.
        operators: their names, in the order of the files.
        microbatches: samples of a microbatch on one GPU, rising.
        degrees: GPUs that share an operator, rising.
        values: microseconds and MiB, ``[microbatch, degree, operator, column]``.
        inside_gb_per_s: of a link inside a machine, for messages of 1, 2, 4, … MiB.
        between_gb_per_s: of a link between machines.
    """

    network: str
    operators: tuple[str, ...]
    microbatches: tuple[int, ...]
    degrees: tuple[int, ...]
    values: np.ndarray
    inside_gb_per_s: np.ndarray
    between_gb_per_s: np.ndarray

    @classmethod
    def read(
        cls,
        network: str,
        frames: Mapping[tuple[int, int], pd.DataFrame],
        links: Mapping[bool, pd.DataFrame],
    ) -> Tables:
        """Tables from files.

        Args:
            frames: by microbatch and degree.
            links: inside a machine (True) and between machines.

        Raises:
            BadValue: a file has other operators than the first.
        """
        microbatches = tuple(sorted({size for size, _ in frames}))
        degrees = tuple(sorted({degree for _, degree in frames}))
        first = frames[microbatches[0], degrees[0]]
        operators = tuple(first["op_name"])
        shape = (len(microbatches), len(degrees), len(operators), len(COLUMNS))
        values = np.full(shape, np.nan)
        for (size, degree), frame in frames.items():
            if tuple(frame["op_name"]) != operators:
                raise BadValue(
                    f"{network}, microbatch {size}, degree {degree}: op_name must list the "
                    f"operators of microbatch {microbatches[0]}"
                )
            place = microbatches.index(size), degrees.index(degree)
            values[place] = frame[list(COLUMNS)].to_numpy(float)
        return cls(
            network=network,
            operators=operators,
            microbatches=microbatches,
            degrees=degrees,
            values=values,
            inside_gb_per_s=links[True].iloc[0].to_numpy(float),
            between_gb_per_s=links[False].iloc[0].to_numpy(float),
        )

    @classmethod
    def scaled(cls, frames: Mapping[int, pd.DataFrame]) -> Tables:
        """Tables of GPT 1.3B made of times at one microbatch of four samples, by degree.

        Times grow with the samples, sizes follow from shapes (hidden 2,048, sequence 2,048, 32
        heads, half precision), and every link has 40 GB/s. For runs without the published tables.
        """
        degrees = tuple(sorted(frames))
        operators = tuple(frames[degrees[0]]["op_name"])
        shape = (len(GPT_MICROBATCHES), len(degrees), len(operators), len(COLUMNS))
        values = np.zeros(shape)
        for (row, size), (column, degree) in product(
            enumerate(GPT_MICROBATCHES), enumerate(degrees)
        ):
            times = frames[degree].set_index("op_name").loc[[*operators]]
            values[row, column, :, :2] = times.iloc[:, :2].to_numpy(float) * size / 4
            values[row, column, :, 2:6] = [_sizes_mib(name, size, degree) for name in operators]
        return cls(
            network="gpt_1_3B",
            operators=operators,
            microbatches=GPT_MICROBATCHES,
            degrees=degrees,
            values=values,
            inside_gb_per_s=np.full(11, 40.0),
            between_gb_per_s=np.full(11, 5.0),
        )

    def layers(self, count: int) -> tuple[str, ...]:
        """The operators of a GPT with so many layers."""
        head = self.operators[:_HEAD]
        layer = self.operators[_HEAD : _HEAD + _LAYER]
        return head + layer * count + self.operators[_HEAD + _LAYER :]


_HIDDEN_MIB = 8.0
"""Hidden states of one sample: 2,048 tokens by 2,048 numbers of two bytes."""
_WEIGHTS_MIB = {
    "encoder-embedding": 200.0,
    "enc-attention-qkv": 24.0,
    "enc-attention-dense": 8.0,
    "enc-MLP-GEMM-1": 32.0,
    "enc-MLP-GEMM-2": 32.0,
    "gpt-post-process": 200.0,
}
"""Weights of one copy, in half precision."""
_KEPT_DIVIDED = {
    "enc-attention-qkv": 3.0,
    "enc-attention-score": 32.0,
    "enc-attention-softmax": 32.0,
    "enc-attention-dropout": 48.0,
    "enc-attention-context": 1.0,
    "enc-MLP-GEMM-1": 4.0,
    "enc-MLP-gelu": 4.0,
    "gpt-post-process": 50.0,
}
"""Outputs that a degree divides, in hidden states of a sample (the loss's are single precision)."""
_KEPT_WHOLE = {"encoder-embedding": 1.5, "dropout": 1.5}
"""Outputs that every GPU keeps; dropout has a mask of a byte beside its two."""


def _sizes_mib(operator: str, samples: int, degree: int) -> list[float]:
    """Input, output, weights and what is kept for the backward pass, from shapes."""
    hidden = _HIDDEN_MIB * samples
    weights = _WEIGHTS_MIB.get(operator, 0.0) / degree
    if operator in _KEPT_DIVIDED:
        kept = _KEPT_DIVIDED[operator] * hidden / degree
    else:
        kept = _KEPT_WHOLE.get(operator.split("-")[-1], 1.0) * hidden
    received = 2**-7 * samples if operator == "encoder-embedding" else hidden
    sent = 0.0 if operator == "gpt-post-process" else hidden
    return [received, sent, weights, kept]
