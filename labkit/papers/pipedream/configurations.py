"""The profiles and plans that PipeDream's authors publish.

Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019,
and the authors' repository.
"""

from __future__ import annotations

import json

from labkit import planner
from labkit.datasets.sources import Source
from labkit.planner.chain import Chain
from labkit.planner.plans import Plan

NETWORKS = {
    "vgg16": "VGG-16",
    "resnet50": "ResNet-50",
    "alexnet": "AlexNet",
    "gnmt": "GNMT",
}
"""Networks with a published profile and a published plan: short name -> what tables call it."""

PROFILED_IMAGES = {"vgg16": 128, "resnet50": 128, "alexnet": 256}
"""Images of a minibatch in the authors' profiles, by the sizes of the activations: the third
convolution of AlexNet gives 384 × 13 × 13 numbers an image, the first of VGG-16 64 × 224 × 224.
Their run configurations (runtime/image_classification/driver_configs) have as many, but 64 for
VGG-16."""

CASES = {
    ("vgg16", 4): "hybrid",
    ("vgg16", 8): "hybrid",
    ("vgg16", 16): "hybrid",
    ("alexnet", 4): "hybrid",
    ("resnet50", 16): "dp",
    ("gnmt", 4): "hybrid",
}
"""Network and number of GPUs of each plan that the authors run -> which of their configurations."""


COSTINGS = {
    "code": "program",
    "code+activations": "program, activations charged",
    "server": "servers, overlapped",
    "ring": "rings, overlapped",
}
"""Ways to add up the costs of a stage: the planner's name -> what tables call it."""


def file_names() -> list[str]:
    """The files of the data set that the notebook opens: profiles, then configurations."""
    profiles = [f"{network}/graph.txt" for network in NETWORKS]
    return profiles + [_configuration(*case) for case in CASES]


def read_chains(data: Source) -> dict[str, Chain]:
    """The profile of each network of :data:`NETWORKS`, by its short name.

    Args:
        data: the data set, opened with :func:`file_names`.
    """
    return {name: planner.Chain.read(data.path(f"{name}/graph.txt")) for name in NETWORKS}


def published_plans(data: Source) -> dict[tuple[str, int], str]:
    """The plans that the authors run, as replicas of each stage, such as ``15-1``.

    Args:
        data: the data set, opened with :func:`file_names`. Configurations that are not here (they
            have no stand-in) are left out.
    """
    plans = {}
    for network, gpus in CASES:
        name = _configuration(network, gpus)
        if data.has(name):
            stages = json.loads(data.path(name).read_text(encoding="utf-8"))["stage_to_rank_map"]
            plans[network, gpus] = "-".join(str(len(ranks)) for ranks in stages.values())
    return plans


def last_layer(plan: Plan) -> str:
    """The last layer of a plan's first stage, as the profile names it.

    >>> chain = planner.Chain.even(4, forward_s=1, backward_s=2)
    >>> fabric = planner.Fabric.flat(2, bandwidth_bytes_per_s=1e9)
    >>> last_layer(planner.price(chain, fabric, (1, 1), (3,)))
    'layer 3'
    """
    return plan.chain.layers[plan.stages[0].end - 1]


def _configuration(network: str, gpus: int) -> str:
    return f"{network}/gpus={gpus}/{CASES[network, gpus]}_conf.json"
