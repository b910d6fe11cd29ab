"""Transformer shapes: which tensors a model has, and so how many parameters.

The presets stand in ``data/models.yaml``, each with its source. A model also comes from a Hugging
Face configuration (:meth:`Model.from_hf`) or from a torch module (:meth:`Model.from_module`).
"""

from labkit.models.model import Model, plain_name, presets
from labkit.models.tensors import TensorShape, Unit

__all__ = ["Model", "TensorShape", "Unit", "plain_name", "presets"]
