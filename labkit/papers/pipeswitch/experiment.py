"""PipeSwitch's experiment: a query of two models that takes the GPU over, by ways of sending them.

Source: Bai et al. (OSDI'20), Fig. 7, and what the authors' scripts printed for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import pandas as pd

from labkit.papers.pipeswitch.layers import (
    Layers,
    Link,
    best_groups,
    bound_s,
    equal_groups,
    stream,
)
from labkit.planner.chain import Chain


class Way(StrEnum):
    """How a model's layers are sent, and when they run."""

    PIPESWITCH = "streamed in best groups"
    EQUAL_GROUPS = "streamed in equal groups"
    STREAMED_BY_LAYER = "streamed by layer"
    ONE_COPY = "one copy, then run"
    BY_LAYER = "by layer, then run"

    def seconds(self, layers: Layers, link: Link) -> float:
        """Until the forward pass has ended. Who copies everything before running waits once less.

        Args:
            layers: the model.
            link: over which it comes.
        """
        count = len(layers)
        copy_s = layers.total_bytes / link.bandwidth_bytes_per_s
        if self is Way.ONE_COPY:
            return copy_s + link.call_s + layers.ready_s
        if self is Way.BY_LAYER:
            return copy_s + count * link.call_s + layers.ready_s
        groups = {
            Way.PIPESWITCH: best_groups,
            Way.EQUAL_GROUPS: lambda layers, _: equal_groups(len(layers)),
            Way.STREAMED_BY_LAYER: lambda layers, _: (1,) * len(layers),
        }[self](layers, link)
        return stream(layers, link, groups).end_s


RERUNS = {
    Way.PIPESWITCH: "pipeswitch",
    Way.STREAMED_BY_LAYER: "per_layer",
    Way.ONE_COPY: "grouped",
    Way.BY_LAYER: "per_layer_no_pipeline",
}
"""The names of Fig. 7's ways in the authors' log; nobody reran equal groups."""


def read_reruns(path: Path) -> pd.DataFrame:
    """Seconds by figure and method, a column a model, as the authors' scripts printed them.

    Args:
        path: of ``reruns.csv``, which has milliseconds.
    """
    table = pd.read_csv(path, comment="#", index_col=["figure", "method"])
    return table / 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """ResNet-152 and BERT-base on the authors' GPU: two modelled models behind one fitted link.

    Attributes:
        resnet50: PipeDream's profile, from which ResNet-152 is made.
        reruns: of :func:`read_reruns`.
        change_s: of a change of process; part of every run but the ready model's.
    """

    resnet50: Chain
    reruns: pd.DataFrame
    change_s: float = 0.0

    @cached_property
    def models(self) -> dict[str, Layers]:
        """The models by their names in the reruns; each takes the ready model's seconds."""
        resnet_s = self.logged_s(5, "ready_model", "resnet152")
        bert_s = self.logged_s(5, "ready_model", "bert_base")
        return {
            "resnet152": Layers.resnet152(self.resnet50, total_s=resnet_s),
            "bert_base": Layers.bert_base(total_s=bert_s),
        }

    @cached_property
    def link(self) -> Link:
        """The link behind three reruns of ResNet-152 that have no groups."""
        whole_s = self.logged_s(7, "grouped", "resnet152")
        layer_by_layer_s = self.logged_s(7, "per_layer_no_pipeline", "resnet152")
        streamed_s = self.logged_s(7, "per_layer", "resnet152")
        return Link.fit(
            self.models["resnet152"],
            whole_s=whole_s - self.change_s,
            layer_by_layer_s=layer_by_layer_s - self.change_s,
            streamed_s=streamed_s - self.change_s,
        )

    def logged_s(self, figure: int, method: str, model: str) -> float:
        """One number of the authors' log."""
        return float(self.reruns[model].to_dict()[(figure, method)])

    def latency_s(self, way: Way, model: str) -> float:
        """Of a query that takes the GPU over."""
        return self.change_s + way.seconds(self.models[model], self.link)

    def overhead_s(self, way: Way, model: str) -> float:
        """What the query takes more than with its model ready on the GPU."""
        return self.latency_s(way, model) - self.models[model].ready_s

    def bound_s(self, model: str) -> float:
        """The latency that no grouping beats."""
        return self.change_s + bound_s(self.models[model], self.link)

    def rerun_s(self, way: Way, model: str) -> float | None:
        """The authors' rerun of Fig. 7; None: there is none."""
        if way not in RERUNS:
            return None
        return self.logged_s(7, RERUNS[way], model)
