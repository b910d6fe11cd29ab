"""One training step of a module, run on tensors without numbers: what :class:`Recording` holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError
from labkit.memory.jobs.batch import Batch
from labkit.memory.traced.modules import Subject, first_line, no_packing, quiet, takes
from labkit.memory.traced.ranks import Spread
from labkit.memory.traced.recording import Recording

if TYPE_CHECKING:
    from torch import nn


def made(subject: Subject) -> nn.Module:
    """The module of a subject, on tensors without numbers, to be measured."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), quiet(), _worded(f"{subject.name} cannot be made"):
        return subject.build(attention="sdpa", bits=32, recompute=False)


@contextmanager
def _worded(what: str) -> Iterator[None]:
    """Turn whatever a module raises into an error of one line, which starts with ``what``."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # a module's code is anybody's
        raise UsageError(f"{what}: {first_line(error)}") from error


@lru_cache(maxsize=64)
def traced(
    subject: Subject, batch: Batch, *, bits: int, autocast: bool, spread: Spread | None = None
) -> Recording:
    """Record a forward and a backward pass.

    Args:
        subject: what is run.
        batch: on which samples; of its options those that a module can follow.
        bits: 16 or 32, of the parameters and what is computed with them.
        autocast: whether products run in 16 bits under autocast.
        spread: how it is spread over ranks, from ZeRO's stage 2 on.

    Raises:
        UsageError: the module cannot be run like this; the message has torch's first line.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    from labkit.memory.traced import recorder

    failed = f"{subject.name} cannot be traced with these inputs and formats"
    mesh: Any = None
    with ExitStack() as contexts:
        contexts.enter_context(quiet())
        if spread is not None:
            mesh = contexts.enter_context(spread.ranks())
        for context in (no_packing(), FakeTensorMode(), _worded(failed)):
            contexts.enter_context(context)
        module: Any = subject.build(
            attention=batch.attention, bits=bits, recompute=batch.recompute == "full"
        )
        inputs = subject.inputs(module, batch)
        reducer = spread.cut(module, mesh) if spread is not None else None
        return recorder.record(
            module,
            inputs,
            subject.loss,
            autocast=autocast,
            gpu=batch.gpu,
            keep_output=batch.logits_held == "compute",
            reducer=reducer,
            notes=tuple(_notes(subject, batch, module, inputs)),
        )


@lru_cache(maxsize=64)
def forwarded(subject: Subject, batch: Batch, *, bits: int, autocast: bool) -> Recording:
    """Record a forward pass without gradients, as inference and a prefill run it.

    Args:
        subject, batch, bits, autocast: as :func:`traced` takes them.

    Raises:
        UsageError: the module cannot be run like this; the message has torch's first line.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    from labkit.memory.traced import recorder

    failed = f"{subject.name} cannot be run forward with these inputs and formats"
    with quiet(), no_packing(), FakeTensorMode(), _worded(failed):
        module: Any = subject.build(attention=batch.attention, bits=bits, recompute=False)
        module.eval()
        inputs = subject.questions(module, batch)
        notes = tuple(_forward_notes(subject, batch, module, inputs))
        return recorder.record_forward(
            module, inputs, autocast=autocast, gpu=batch.gpu, notes=notes
        )


def _forward_notes(
    subject: Subject, batch: Batch, module: Any, inputs: dict[str, Any]
) -> Iterator[str]:
    """What a forward pass is, in sentences."""
    if batch.attention != "eager" and subject.attention(batch.attention) == "eager":
        yield f"attention is as {subject.name} writes it out: the class has no kernel of torch's"
    if "logits_to_keep" in inputs:
        yield "logits are those of the last token, as generation asks for them"


def _notes(subject: Subject, batch: Batch, module: Any, inputs: dict[str, Any]) -> Iterator[str]:
    """What the module does otherwise than was asked."""
    if batch.attention != "eager" and subject.attention(batch.attention) == "eager":
        yield f"attention is as {subject.name} writes it out: the class has no kernel of torch's"
    if "input_ids" in inputs and "pixel_values" in set(takes(module)) - set(inputs):
        yield f"{subject.name} is trained on text alone, without images"
