"""Transformer shapes: which tensors a model has, and so how many parameters.

The presets stand in ``data/models.yaml``, each with its source. A model also comes from a Hugging
Face configuration (:meth:`Model.from_hf`) or from a torch module (:meth:`Model.from_module`).
"""

from labkit.models.layout import TensorShape, Unit
from labkit.models.model import Model, presets

__all__ = ["Model", "TensorShape", "Unit", "presets"]
