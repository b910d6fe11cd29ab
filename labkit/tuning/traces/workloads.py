"""What a user submits again and again: the six workloads Zeus was evaluated on, and one's own."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.kit.describe import Count, description


@description
@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a user submits: a model, its default batch size and when training counts as done."""

    title: str
    network: str
    optimizer: str
    default_batch_size: Count
    target_metric: float
    metric_name: str
    max_epochs: Count
    higher_is_better: bool = True
    dataset: str = ""
    """As in the trace's ``dataset`` column; empty where it is the workload's own name."""


_ACCURACY, _ERRORS = "accuracy", "word error rate (%)"
_PUBLISHED = (
    # name, title, network, optimizer, b0, target, metric, most epochs
    ("cifar100", "ShuffleNet-v2, CIFAR-100", "shufflenetv2", "adadelta", 1024, 0.6, _ACCURACY, 100),
    ("imagenet", "ResNet-50, ImageNet", "resnet50", "adadelta", 256, 0.65, _ACCURACY, 100),
    ("squad", "BERT, SQuAD", "bert_base_uncased", "adamw", 32, 84.0, "F1", 6),
    ("librispeech", "DeepSpeech2, LibriSpeech", "deepspeech2", "adamw", 256, 40.0, _ERRORS, 16),
    ("movielens-1m", "NeuMF, MovieLens-1M", "ncf", "adam", 1024, 0.41, "NDCG", 100),
    ("sentiment140", "BERT, Sentiment140", "bert_base_uncased", "adamw", 128, 0.84, _ACCURACY, 10),
)
PUBLISHED: dict[str, Workload] = {
    name: Workload(
        title=title,
        network=network,
        optimizer=optimizer,
        default_batch_size=default,
        target_metric=target,
        metric_name=metric,
        max_epochs=most,
        higher_is_better=metric != _ERRORS,
    )
    for name, title, network, optimizer, default, target, metric, most in _PUBLISHED
}
"""The six workloads as the authors' artifact defines them (b0, target, epoch limit).

Source: ml-energy/zeus, examples/research_reproducibility/zeus_nsdi23/run_alibaba.py.
"""
