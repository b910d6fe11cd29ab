"""A transformer described by its sizes, or measured tensor by tensor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import files
from labkit.errors import BadValue, UsageError, not_among
from labkit.kit.describe import checked, description
from labkit.models import layout
from labkit.models.sizes import Sizes
from labkit.models.tensors import Cut, TensorShape, Unit, by_unit

if TYPE_CHECKING:
    from torch import nn


@description(slots=True)
class Model(Sizes):
    """A decoder-only transformer, described by its sizes or measured tensor by tensor.

    Its fields are those of :class:`~labkit.models.sizes.Sizes`: ``num_layers``, ``hidden``,
    ``heads`` and ``vocab`` have no default; the others say how its blocks look. Derived defaults
    are filled in: ``dataclasses.replace`` keeps them, :meth:`resized` derives them anew.

    >>> Model.preset("gpt2-124m").num_params
    124439808
    """

    @classmethod
    @checked
    def preset(cls, name: str) -> Model:
        """Look up a model of ``data/models.yaml``, also by the name it has on a hub.

        Raises:
            UsageError: there is none of that name; the message has like names.

        >>> Model.preset("meta-llama/Llama-3.1-8B-Instruct").name
        'llama-3-8b'
        """
        known = presets()
        found = name if name in known else plain_name(name)
        if found not in known:
            more = "a config.json, or its folder, describes any other"
            raise not_among("model", name, known, more=more)
        return known[found]

    @classmethod
    @checked
    def from_hf(
        cls, config: Mapping[str, Any] | str | Path, *, transformers_version: str | None = None
    ) -> Model:
        """Read the model of a Hugging Face configuration.

        Args:
            config: the dict, or where its JSON file is.
            transformers_version: whose :attr:`operators` the model has, by default the installed
                one's; :attr:`source` says which.

        Raises:
            UsageError: the kind of model is unknown, a size is missing, there is no such file, or
                nobody ran that version's modules.

        >>> sizes = {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
        >>> Model.from_hf({"model_type": "gpt2", "n_positions": 1024, **sizes}).num_params
        124439808
        """
        from labkit.models.huggingface import read

        return cls(**read(config, transformers_version))

    @classmethod
    @checked
    def from_module(cls, module: nn.Module, *, name: str = "") -> Model:
        """Measure a torch module's parameters, and its sizes where they can be recognised.

        Parameters that modules share count once. See :meth:`require_shapes`.

        Args:
            module: the module.
            name: what the model is called; the module's class where it is empty.

        Raises:
            UsageError: the module has no parameters.
        """
        from labkit.models.measured import read

        return cls(**read(module, name))

    def require_shapes(self) -> Model:
        """Return this model, whose layers and widths are known.

        Raises:
            UsageError: only its tensors are known.
        """
        if not self.hidden:
            raise UsageError(
                f"model {self.name!r} was measured from its parameters and its layers were not"
                " recognised: only its states are known. Describe it with Model(num_layers=…,"
                " hidden=…, heads=…, vocab=…) for activations"
            )
        return self

    @property
    def num_params(self) -> int:
        """The number of parameters."""
        return sum(unit.count * unit.numel for unit in self.units())

    @property
    def num_active_params(self) -> int:
        """The number of parameters that one token meets: of routed experts, those it is sent to.

        >>> round(Model.preset("mixtral-8x7b").num_active_params / 1e9, 1)  # of 46.7 billion
        12.9
        """
        idle = self.num_experts - self.experts_per_token
        if not self.num_experts or not idle:
            return self.num_params
        routed = sum(
            unit.count * tensor.numel
            for unit in self.units()
            for tensor in unit.tensors
            if tensor.role == "expert"
        )
        return self.num_params - routed * idle // self.num_experts

    def tensors(self, **part: Any) -> tuple[TensorShape, ...]:
        """List every parameter tensor in the order of the forward pass; linear weights are (out,
        in).

        ``part`` is what :meth:`units` takes.
        """
        if self.layout:
            self._refuse_cut(part)
            return self.layout
        return layout.in_order(self, self._cut(part))

    def units(self, **part: Any) -> tuple[Unit, ...]:
        """List the distinct units and how often each occurs: all a sum over tensors needs, and few.

        Args:
            part: what one rank holds: ``tp`` and ``ep`` (degrees of tensor and expert parallelism;
                Megatron's layout: heads, MLP width and vocabulary are cut, norms and routers
                copied), ``first_layer`` and ``end_layer`` (a pipeline stage's layers),
                ``embedding`` and ``head`` (whether it has those ends; a tied head apart from its
                embedding is a copy).

        Raises:
            BadValue: something does not divide.

        >>> [(unit.name, unit.count) for unit in Model.preset("llama-2-7b").units(end_layer=8)]
        [('embedding', 1), ('block', 8), ('head', 1)]
        """
        if self.layout:
            self._refuse_cut(part)
            return _measured_units(self.layout)
        return layout.units(self, self._cut(part))

    def _cut(self, part: dict[str, Any]) -> Cut:
        """Describe the part of the model that is meant."""
        cut = Cut(**{"end_layer": self.num_layers, **part})
        if not cut.first_layer <= cut.end_layer <= self.num_layers:
            raise BadValue(
                f"first_layer and end_layer must rise from 0 to {self.num_layers}, the layers of "
                f"{self.name}; got {cut.first_layer} and {cut.end_layer}"
            )
        return cut

    def _refuse_cut(self, part: dict[str, Any]) -> None:
        """Refuse to cut a model of which only the tensors are known."""
        if part:
            raise UsageError(
                f"model {self.name!r} was measured whole: how {', '.join(part)} would cut it is"
                " not known"
            )

    def resized(self, **changes: Any) -> Model:
        """Give this model other sizes; those that followed from defaults follow again.

        >>> Model.preset("gpt2-124m").resized(hidden=1536).ffn
        6144
        """
        same = asdict(self) | {"layout": self.layout}
        for name, default in self._defaults().items():
            if same[name] == default:
                same[name] = 0
        return Model(**(same | changes))


# What a hub's name has beside the model's: whose it is, and what it was trained for.
_OWNER = re.compile(r"^[^/]+/|^meta-")
_TUNED = re.compile(r"-(instruct|chat|it|hf|base|v0\.[12]|(unsloth-)?bnb-4bit)$")
# Later releases of the same sizes.
_SAME_SIZES = (
    (re.compile(r"^llama-3\.1-(8b|70b|405b)$"), r"llama-3-\1"),
    (re.compile(r"^llama-3\.3-70b$"), "llama-3-70b"),
)


@checked
def plain_name(name: str) -> str:
    """A model's own name in one from a hub: without its owner and what it was tuned for.

    Args:
        name: as a hub has it.

    >>> plain_name("mistralai/Mixtral-8x7B-Instruct-v0.1"), plain_name("Qwen/Qwen2.5-7B")
    ('mixtral-8x7b', 'qwen2.5-7b')
    """
    plain = name.lower()
    while plain != (shorter := _TUNED.sub("", _OWNER.sub("", plain))):
        plain = shorter
    for later, first in _SAME_SIZES:
        plain = later.sub(first, plain)
    return plain


def presets() -> dict[str, Model]:
    """List the models of ``data/models.yaml`` by name."""
    return files.named(files.shipped("data/models.yaml"), Model)


@lru_cache(maxsize=64)
def _measured_units(tensors: tuple[TensorShape, ...]) -> tuple[Unit, ...]:
    """Gather measured tensors into units."""
    units = by_unit(tensors)
    return tuple(Unit(name=name, count=1, tensors=members) for name, members in units.items())
