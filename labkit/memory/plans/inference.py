"""A traced network's forward pass alone: weights, what the pass holds, keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from labkit.errors import BadValue
from labkit.kit.describe import checked
from labkit.memory.jobs.batch import Batch
from labkit.memory.traced.network import Network
from labkit.memory.traced.recording import CACHE, CATEGORIES, Recording
from labkit.memory.traced.step import forwarded

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["fp32", "bf16", "fp16"]
_KNOWN = ("seq", "target_seq", "micro_batch", "attention", "gpu")


@dataclass(frozen=True, kw_only=True, eq=False)
class Inference:
    """What one forward pass without gradients needs on a device.

    Attributes:
        recording: what the pass allocated.
        parameters_bytes: bytes of the weights.
    """

    network: Network
    batch: Batch
    recording: Recording
    parameters_bytes: int

    @cached_property
    def time(self) -> int:
        """The fullest time of the recording."""
        return int(np.argmax(sum(self.recording.bytes_by_category.values())))

    @property
    def peak_bytes(self) -> int:
        """Bytes on the device at the fullest time."""
        return sum(self._rows().values())

    @property
    def cache_bytes(self) -> int:
        """Keys and values that are there at the end; 0 where the class keeps none."""
        return int(self.recording.bytes_by_category[CACHE][-1])

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the account takes for granted, in sentences."""
        return (
            f"{self.network.source}: every operator of one forward pass without gradients, in"
            " evaluation mode, on tensors without numbers; torch's MemTracker sees the same bytes",
            *self.recording.notes,
            "left out: CUDA's context, library workspaces, fragmentation, room that a server"
            " reserves for requests to come",
        )

    def _rows(self) -> dict[str, int]:
        """Bytes by component at the fullest time."""
        recording = self.recording
        rows = {"parameters": self.parameters_bytes}
        for name in CATEGORIES:
            rows[name] = int(recording.bytes_by_category[name][self.time])
        return rows | {"buffers and inputs": recording.buffers_bytes + recording.inputs_bytes}

    def frame(self) -> pd.DataFrame:
        """Bytes by component at the fullest time: component, num_bytes and share of the peak."""
        import pandas as pd

        rows = [(name, size) for name, size in self._rows().items() if size]
        table = pd.DataFrame(rows, columns=["component", "num_bytes"])
        return table.assign(share=table["num_bytes"] / self.peak_bytes)

    def largest(self, number: int = 10) -> pd.DataFrame:
        """What the pass holds most of at the fullest time: see :meth:`Recording.largest`."""
        return self.recording.largest(self.time, number)

    def timeline(self) -> pd.DataFrame:
        """Bytes at every operator that allocates: see :meth:`Recording.timeline`."""
        return self.recording.timeline()


@checked
def inference(network: Network, batch: Batch, *, parameters: Format = "bf16") -> Inference:
    """Run a network's forward pass without gradients and count: one pass, or a prefill.

    Classes that generate keep keys and values in the library's own cache; of each sample the last
    token's logits are asked for. Encoders, vision and diffusion models run once.

    Args:
        network: what is run, in evaluation mode.
        batch: samples; of its other fields, those of training must have their defaults.
        parameters: the format of weights and of what is computed with them.

    Raises:
        BadValue: a field of the batch belongs to training, or a sample is too long.
        UsageError: the module cannot be run; the message has torch's first line.
    """
    for name in Batch.__dataclass_fields__:
        usual = Batch.__dataclass_fields__[name].default
        if name not in _KNOWN and getattr(batch, name) != usual:
            raise BadValue(
                f"{name} must be {usual} where a forward pass is run alone, got"
                f" {getattr(batch, name)}"
            )
    network.check_batch(batch)
    bits = 32 if parameters == "fp32" else 16
    assert network.subject is not None
    recording = forwarded(network.subject, batch, bits=bits, autocast=False)
    return Inference(
        network=network,
        batch=batch,
        recording=recording,
        parameters_bytes=bits // 8 * network.num_params,
    )
