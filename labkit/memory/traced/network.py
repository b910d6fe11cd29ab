"""A model of any architecture, known by its tensors and by a module that can be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import extras, files
from labkit.errors import BadValue, not_among
from labkit.kit.describe import checked, description
from labkit.memory.jobs.batch import Batch
from labkit.memory.traced.modules import Configured, Given, configured, positions_of, takes
from labkit.memory.traced.step import made
from labkit.models import Model, TensorShape
from labkit.models.huggingface import fields_of

if TYPE_CHECKING:
    from torch import nn


@description(slots=True)
class Network(Model):
    """A model whose step is traced: its module runs once on tensors without numbers.

    A plan of it takes seconds where a :class:`~labkit.models.Model` of known sizes takes a
    millisecond; every architecture can be traced that torch runs. Its sizes are not known, only its
    tensors, so it can be spread by data parallelism alone.

    Attributes:
        subject: what is run.
        tokens: whether it takes tokens, so that ``Batch.seq`` means something.
    """

    subject: Configured | Given | None = None
    tokens: bool = True

    @classmethod
    @checked
    def preset(cls, name: str) -> Network:
        """Look up a network of ``data/networks.yaml``.

        Raises:
            UsageError: there is none of that name, or no transformers.
        """
        known = networks()
        if name not in known:
            more = "a config.json, or its folder, describes any other"
            raise not_among("network", name, known, more=more)
        return replace(cls.from_hf(known[name].config), name=name)

    @classmethod
    @checked
    def from_hf(  # type: ignore[override]
        cls, config: Mapping[str, Any] | str | Path, *, architecture: str | None = None
    ) -> Network:
        """The library's own class for a Hugging Face configuration; no weights are loaded.

        No code from elsewhere runs: what ``auto_map`` names is not looked at.

        Args:
            config: the dict, or where its JSON file is.
            architecture: a class of transformers such as ``BertForMaskedLM``, by default the first
                of the configuration's ``architectures``, else what its type is mostly trained as.

        Raises:
            UsageError: transformers is not there or knows no such type or class, or there is no
                such file.
        """
        subject = configured(fields_of(config), architecture)
        return _configured_network(subject)

    @classmethod
    @checked
    def from_module(  # type: ignore[override]
        cls,
        module: nn.Module,
        *,
        inputs: Callable[[Batch], Mapping[str, Any]],
        loss: Callable[[Any], Any] | None = None,
        tokens: bool = True,
        name: str = "",
    ) -> Network:
        """A torch module of one's own; it may be on the meta device, and is not changed.

        Args:
            module: the module; what it freezes is not trained.
            inputs: makes its arguments by name of a :class:`Batch`, on the CPU, such as
                ``lambda batch: {"x": torch.zeros(batch.micro_batch, 3, 64, 64)}``.
            loss: the number to differentiate, of what the module returns; by default its ``loss``,
                or what it returns.
            tokens: whether ``inputs`` looks at ``Batch.seq``.
            name: what the model is called; the module's class where it is empty.

        Raises:
            UsageError: the module has no parameters, or there is no torch.
        """
        extras.need("tracing a module", "torch", "torch")
        measured = Model.from_module(module, name=name)
        return cls(
            name=measured.name,
            layout=measured.layout,
            source=f"traced from a {type(module).__name__}",
            subject=Given(module, inputs, loss),
            tokens=tokens,
        )

    def check_batch(self, batch: Batch) -> None:
        """Refuse samples that the network does not take.

        Raises:
            BadValue: it takes no tokens, or has not learnt as many positions.
        """
        if not self.tokens and (batch.seq, batch.target_seq) != (1, None):
            raise BadValue(
                f"seq must be 1 for {self.name}, which takes no tokens, got {batch.seq}: its"
                " configuration says how large a sample is"
            )
        for name in ("seq", "target_seq"):
            length = getattr(batch, name)
            if length and 0 < self.positions < length:
                raise BadValue(f"{name} must be <= {self.positions}, got {length}")


@description(slots=True)
class Described:
    """The configuration of a network, and where it was read."""

    name: str
    config: Mapping[str, Any]
    source: str


def networks() -> dict[str, Described]:
    """List the configurations of ``data/networks.yaml`` by name."""
    return files.named(files.shipped("data/networks.yaml"), Described)


@lru_cache(maxsize=16)
def _configured_network(subject: Configured) -> Network:
    """The network of a configuration; its tensors are those of the class."""
    import transformers

    module: Any = made(subject)
    layout: tuple[TensorShape, ...] = Model.from_module(module).layout
    where = f"{subject.architecture} of transformers {transformers.__version__}"
    return Network(
        name=subject.architecture,
        layout=layout,
        source=f"traced from {where}",
        positions=positions_of(module),
        subject=subject,
        tokens="input_ids" in takes(module),
    )
