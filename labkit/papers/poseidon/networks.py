"""Networks as tables of layers with weights: seconds, bytes, and the shape of a dense layer.

Columns: ``layer``, ``forward_s``, ``backward_s``, ``parameter_bytes``, and ``inputs`` and
``outputs`` of a dense layer, 0 for all others.
"""

from __future__ import annotations

import pandas as pd

from labkit import planner

FILES: dict[str, str] = {"VGG-16": "vgg16/graph.txt", "ResNet-50": "resnet50/graph.txt"}
"""Profiles that the notebook opens."""
CLASSES_22K = 21_841
"""Of ImageNet22K, as the last layer of VGG19-22K has them."""
_VALUE_BYTES = 4
_SECONDS = ["forward_s", "backward_s"]
_REPEATED = {"conv3_3": "conv3_4", "conv4_3": "conv4_4", "conv5_3": "conv5_4"}
"""Convolutions that VGG-19 has beyond VGG-16, after their equals in shape."""
_VGG16 = [
    *("conv1_1", "conv1_2", "conv2_1", "conv2_2"),
    *(f"conv{block}_{place}" for block in (3, 4, 5) for place in (1, 2, 3)),
    *("fc6", "fc7", "fc8"),
]
_DENSE = {"fc6": (25_088, 4_096), "fc7": (4_096, 4_096), "fc8": (4_096, 1_000)}


def weighted(profile: pd.DataFrame) -> pd.DataFrame:
    """Layers with weights; the seconds of others go to the one before (the first's to it).

    Where the last one is dense (``Linear`` in its name), it gets its shape from 1,000 classes.

    Args:
        profile: as :meth:`labkit.planner.Chain.frame` gives it.
    """
    group = (profile["parameter_bytes"] > 0).cumsum().clip(lower=1)
    layers = profile.groupby(group.to_numpy()).agg(
        layer=("layer", "first"),
        forward_s=("forward_s", "sum"),
        backward_s=("backward_s", "sum"),
        parameter_bytes=("parameter_bytes", "sum"),
    )
    layers = layers.reset_index(drop=True).assign(inputs=0, outputs=0)
    last = layers.index[-1]
    if "Linear" in str(layers.loc[last, "layer"]):
        outputs = 1_000
        numbers = int(layers["parameter_bytes"].iloc[-1]) // _VALUE_BYTES
        layers.loc[last, ["inputs", "outputs"]] = [numbers // outputs - 1, outputs]  # less the bias
    return layers


def vgg19_22k(profile: pd.DataFrame) -> pd.DataFrame:
    """VGG-19 with 21,841 classes, its seconds those of VGG-16's layers.

    1. Name the layers with weights; pooling and activations go to the layer before.
    2. Repeat the last convolution of the third, fourth and fifth block, whose shape VGG-19 repeats.
    3. Widen the last layer to 21,841 outputs: weights and seconds grow alike.

    Args:
        profile: VGG-16's, as :meth:`labkit.planner.Chain.frame` gives it.
    """
    layers = weighted(profile).assign(layer=_VGG16)
    rows = []
    for row in layers.to_dict("records"):
        name = row["layer"]
        inputs, outputs = _DENSE.get(name, (0, 0))
        row = {**row, "inputs": inputs, "outputs": outputs}
        if name == "fc8":
            wider = CLASSES_22K / outputs
            row["outputs"] = CLASSES_22K
            for column in (*_SECONDS, "parameter_bytes"):
                row[column] *= wider
        rows.append(row)
        if name in _REPEATED:
            rows.append({**row, "layer": _REPEATED[name]})
    return pd.DataFrame(rows)


def by_operations(name: str) -> pd.DataFrame:
    """A network of :func:`labkit.planner.network`, its seconds by multiply-adds.

    The backward pass takes twice as long as the forward pass. Only ratios of seconds count.
    """
    rows = []
    for operator in planner.network(name, batch=1).operators:
        if not operator.weights:
            continue
        inputs = 0
        outputs = 0
        positions = operator.output.get("height", 1) * operator.output.get("width", 1)
        if operator.kind == "dense":
            outputs = operator.output["channel"]
            inputs = operator.depth
        rows.append(
            {
                "layer": operator.name,
                "forward_s": float(operator.weights * positions),
                "backward_s": 2.0 * operator.weights * positions,
                "parameter_bytes": _VALUE_BYTES * operator.weights,
                "inputs": inputs,
                "outputs": outputs,
            }
        )
    return pd.DataFrame(rows)


def scaled(layers: pd.DataFrame, *, images_per_s: float, batch: int) -> pd.DataFrame:
    """The same layers on a GPU that trains so many images a second by itself."""
    whole_s = float(layers[_SECONDS].to_numpy().sum())
    return layers.assign(
        **{name: layers[name] * (batch / images_per_s / whole_s) for name in _SECONDS}
    )
