"""How the ranks of a training job share the work, and what of a model each of them holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from labkit.errors import BadValue, UsageError, not_among
from labkit.kit.describe import Whole, checked, description
from labkit.memory.jobs.batch import Batch
from labkit.memory.tape.mode import CpExchange, SequenceGather, Size
from labkit.models import Model, Unit

Rule = Literal["dim0", "flat", "tensor"]
Layers = Annotated[int, Ge(0), Le(2**40)]
# A ZeRO stage: which of optimizer states, gradients and parameters are sharded.
Stage = Annotated[int, Ge(0), Le(3)]
GradientBuckets = Literal["none", "views", "copies"]
Wrap = Literal["parts", "blocks"]
KeepGathered = Literal["none", "last block", "head"]
LayerSplit = Literal["even", "megatron-embedding", "megatron-loss", "megatron-both", "torchtitan"]
# Sizes of groups that dp × cp must divide by.
GROUPS = ("ep", "replicate", "partition_group", "secondary_group")
_UNLESS_STAGE_3: dict[str, Any] = {
    "partition_group": None,
    "replicate": 1,
    "secondary_group": None,
    "wrap": "parts",
    "reshard_after_forward": True,
    "keep_gathered": "none",
    "persistent": 0,
}
# By rule of cutting a model into stages: layers that the embedding and the head count as.
_ENDS: dict[str, tuple[int, int]] = {
    "even": (0, 0),
    "megatron-embedding": (1, 0),
    "megatron-loss": (0, 1),
    "megatron-both": (1, 1),
    "torchtitan": (1, 1),
}

# Activations one device holds at most, in microbatches on one of its chunks: d devices precede it
# of p, there are m microbatches, v chunks a device; m >= 2p, a multiple of p.
_HELD: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "gpipe": lambda d, p, m, v: m * v,
    "loop-bfs": lambda d, p, m, v: m * v,
    "1f1b": lambda d, p, m, v: p - d,
    "dapple": lambda d, p, m, v: p - d,
    "pipedream-flush": lambda d, p, m, v: p - d,
    "interleaved-1f1b": lambda d, p, m, v: 2 * (p - 1 - d) + (v - 1) * p + 1,
    "zb-h1": lambda d, p, m, v: p,
    "zb-h2": lambda d, p, m, v: 2 * p - 1,
    "interleaved-zb": lambda d, p, m, v: p * v,
    "zb-v": lambda d, p, m, v: 2 * p,
    "chimera": lambda d, p, m, v: p,
    "dualpipe": lambda d, p, m, v: p + 1,
    "dualpipe-v": lambda d, p, m, v: 2 * p + 1,
}
# Schedules whose devices hold several stages: looped, there and back again, or both ways at once.
_LOOPED = ("interleaved-1f1b", "loop-bfs", "interleaved-zb")
_FOLDED = ("zb-v", "dualpipe-v")
_BOTH_WAYS = ("chimera", "dualpipe")


@checked
def split_layers(
    num_layers: Layers,
    num_stages: Size,
    split: LayerSplit = "even",
    *,
    first: Layers | None = None,
    last: Layers | None = None,
) -> tuple[int, ...]:
    """Layers of each pipeline stage, by a framework's rule.

    Args:
        split: ``"even"``; ``"megatron-embedding"``, ``-loss`` or ``-both``, where the embedding or
            the head count as one layer each (``--account-for-embedding-in-pipeline-split`` and
            ``-loss-``) and all must divide; ``"torchtitan"``, where both count as one and what is
            left over goes to the earlier stages, one each.
        first, last: the layers of the first and the last stage
            (``--decoder-first-pipeline-num-layers`` and ``-last-``); the others share the rest.

    Source: Megatron-LM, ``core/transformer/transformer_block.py``; torchtitan,
    ``distributed/pipeline_parallel.py``.

    Raises:
        BadValue: the layers do not divide, or a stage would have less than none.

    >>> split_layers(32, 4, "torchtitan"), split_layers(126, 16, first=7, last=7)[:3]
    ((8, 9, 8, 7), (7, 8, 8))
    """
    given = [size for size in (first, last) if size is not None]
    if given and (split != "even" or num_stages <= len(given)):
        raise BadValue(
            f"split must be even, and stages more than {len(given)}, where first or last is given;"
            f" got {split} and {num_stages}"
        )
    if sum(given) > num_layers:
        raise BadValue(
            f"first and last must be at most num_layers together, {num_layers}; got {sum(given)}"
        )
    if num_stages == 1:
        return (num_layers,)
    embedding, head = _ENDS[split]
    counted = num_layers + embedding + head - sum(given)
    each, over = divmod(counted, num_stages - len(given))
    if (over and split != "torchtitan") or each < max(embedding, head):
        ends = f" and ends, {counted} by the rule {split}," if split != "even" else ""
        must = "be at least" if split == "torchtitan" else "divide by"
        raise BadValue(
            f"num_layers ({num_layers}){ends} must {must} the stages ({num_stages}); give layers a"
            " device by layers=(…)"
        )
    layers = [each + (stage < over) for stage in range(num_stages)]
    layers[0], layers[-1] = layers[0] - embedding, layers[-1] - head
    layers[0] = layers[0] if first is None else first
    layers[-1] = layers[-1] if last is None else last
    return tuple(layers)


# An estimate asks for the same layers several times; checking arguments takes longer than sharing.
_split_once = lru_cache(maxsize=1024)(split_layers)


@description(slots=True)
class Parallel:
    """The degrees of every kind of parallelism; their product is the number of ranks.

    Attributes:
        dp: data-parallel degree (N_d): replicas of the model, sharded or not.
        tp: tensor-parallel degree (N_m), Megatron's layout; ``sp`` divides what lies between the
            tensor-parallel parts along the sequence (Korthikanti et al. 2022, §4.2).
        sp_gather: whether the inputs of column-parallel products, which ``sp`` gathers, are
            gathered ``"again"`` in the backward pass, again and always into one ``"buffer"`` that
            is kept between its uses (Megatron-LM), or ``"kept"`` (nanotron).
        cp: ranks that share each sequence; ZeRO shards over them too. ``cp_exchange``: how they
            exchange keys and values in a layer: all at once (``"all-gather"``, the default of
            torch's ``context_parallel``), one rank's at a time (``"all-to-all"``, its other way),
            or around a ``"ring"`` whose every step is kept until a layer is done (Megatron-LM's
            ``p2p``).
        pp: pipeline stages in space; ``layers`` says how many each device has where not alike (0: a
            device with an end of the model only), ``layer_split`` by which framework's rule they
            are shared out otherwise (see :func:`split_layers`), ``chunks`` into how many pieces a
            device's layers are cut (interleaving).
        schedule: by name, as :func:`labkit.pipeline.build` has them.
        ep: ranks that share the experts, taken from the dp × cp ranks.
        zero: ZeRO's stage.
        partition_group: shards the states within groups of that many ranks only (MiCS).
        replicate: the same said from the other side (HSDP): copies of the sharded states.
        secondary_group: one more copy of the parameters in each such group (ZeRO++ hpZ; FSDP2's
            ``reshard_after_forward`` as a number).
        reshard_after_forward: False keeps gathered layers until the backward pass is done with
            them (FSDP2), at stage 3.
        wrap: the units that stage 3 gathers: ``"parts"``, each layer, the embedding, and final norm
            with head; or ``"blocks"``, each layer, and all else as the root, which stays gathered
            from its forward to its backward pass (PyTorch's tutorial of FSDP2). Ends that share
            the embedding are the root either way.
        keep_gathered: what is not resharded between forward and backward pass: the ``"last
            block"`` (torchtitan in 2024) or the ``"head"`` (torchtitan since 2025).
        persistent: tensors of no more elements are whole on every rank at stage 3, beside their
            shards (DeepSpeed's ``stage3_param_persistence_threshold``, 100,000 by default); 0: none
            are.
        shard_rule: how what is sharded is cut: ``"dim0"`` rows of every tensor (FSDP2), ``"flat"``
            one buffer in equal slices (ZeRO §5.1, DeepSpeed; stages 1 and 2), ``"tensor"`` whole
            tensors (torch's ZeroRedundancyOptimizer; stage 1). See
            :data:`labkit.memory.jobs.states.SHARDINGS`.
        gradient_buckets: the buckets, as large as all gradients, that torch's
            DistributedDataParallel makes once and keeps (stage 0): gradients are ``"copies"``
            beside them, as is its default, or ``"views"`` of them (``gradient_as_bucket_view``);
            ``"none"``: each gradient is reduced by itself.

    >>> Parallel(dp=4, tp=8, pp=2, zero=1).world_size
    64
    """

    dp: Size = 1
    tp: Size = 1
    sp: bool = False
    sp_gather: SequenceGather = "again"
    cp: Size = 1
    cp_exchange: CpExchange = "all-gather"
    pp: Size = 1
    layers: tuple[Layers, ...] | None = None
    layer_split: LayerSplit = "even"
    chunks: Size = 1
    schedule: str = "1f1b"
    ep: Size = 1
    zero: Stage = 0
    partition_group: Size | None = None
    replicate: Size = 1
    secondary_group: Size | None = None
    reshard_after_forward: bool = True
    wrap: Wrap = "parts"
    keep_gathered: KeepGathered = "none"
    persistent: Whole = 0
    shard_rule: Rule = "dim0"
    gradient_buckets: GradientBuckets = "none"

    def __post_init__(self) -> None:
        self._check_sharding()
        self._check_pipeline()

    def _check_sharding(self) -> None:
        """Refuse options of sharding that their stage or each other rules out."""
        stages = {"dim0": (0, 1, 2, 3), "flat": (1, 2), "tensor": (1,)}
        if self.zero not in stages[self.shard_rule]:
            valid = " or ".join(map(str, stages[self.shard_rule]))
            raise BadValue(
                f"zero must be {valid} where shard_rule is {self.shard_rule}, got {self.zero}"
            )
        if self.zero and self.gradient_buckets != "none":
            raise BadValue(
                f"gradient_buckets must be none unless zero is 0, got {self.gradient_buckets} at"
                f" stage {self.zero}: they are DistributedDataParallel's"
            )
        for name, usual in _UNLESS_STAGE_3.items():
            if self.zero != 3 and getattr(self, name) != usual:
                raise BadValue(f"{name} must be {usual} unless zero is 3, got zero={self.zero}")
        if not self.reshard_after_forward and self.secondary_group:
            raise BadValue(
                "reshard_after_forward must be True where there is a secondary_group, got"
                f" {self.secondary_group}"
            )
        if self.replicate > 1 and self.partition_group:
            raise BadValue("replicate must be 1 where partition_group is given: they say the same")
        for name in GROUPS:
            size = getattr(self, name) or 1
            if self.sharing % size:
                raise BadValue(f"dp × cp ({self.sharing}) must divide by {name} ({size})")

    def _check_pipeline(self) -> None:
        """Refuse stages and schedules that cannot be."""
        if self.layers is not None and len(self.layers) != self.pp:
            raise BadValue(f"layers must have pp ({self.pp}) numbers, got {len(self.layers)}")
        if self.layers is not None and not all(self.layers[1:-1] or (1,)):
            raise BadValue(f"layers must be >= 1 between the first and the last, got {self.layers}")
        if self.schedule not in _HELD:
            raise not_among("schedule", self.schedule, _HELD)
        if (self.chunks > 1) != (self.schedule in _LOOPED):
            bound = ">= 2" if self.schedule in _LOOPED else "1"
            raise BadValue(
                f"chunks must be {bound} for {self.schedule}, got {self.chunks};"
                f" schedules that loop are {', '.join(_LOOPED)}"
            )
        if self.schedule in _BOTH_WAYS and self.pp > 1 and self.pp % 2:
            raise BadValue(f"pp must be even for {self.schedule}, got {self.pp}")
        if self.layers is not None and (self.chunks > 1 or self.schedule in _FOLDED + _BOTH_WAYS):
            raise BadValue("layers must be None where a device has several stages")

    @classmethod
    @checked
    def of(cls, world_size: Size, **degrees: Any) -> Parallel:
        """``world_size`` ranks, data parallel in what the other degrees leave.

        Raises:
            BadValue: the degrees do not divide the number of ranks.

        >>> Parallel.of(1024, tp=8, pp=4, zero=1).dp
        32
        """
        if "dp" in degrees:
            spread = cls(**degrees)
            if world_size != spread.world_size:
                raise BadValue(
                    f"world size must be dp · tp · cp · pp = {spread.dp} · {spread.tp} ·"
                    f" {spread.cp} · {spread.pp} = {spread.world_size}, got {world_size}"
                )
            return spread
        alone = cls(**{name: degrees[name] for name in ("tp", "cp", "pp") if name in degrees})
        if world_size % alone.world_size:
            raise BadValue(
                f"world size ({world_size}) must divide by tp · cp · pp ="
                f" {alone.tp} · {alone.cp} · {alone.pp} = {alone.world_size}"
            )
        return cls(dp=world_size // alone.world_size, **degrees)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.dp * self.tp * self.cp * self.pp

    @property
    def sharing(self) -> int:
        """Ranks with the same part of the model: what ZeRO can shard over."""
        return self.dp * self.cp

    @property
    def shard_degree(self) -> int:
        """Ranks that share one copy of what is sharded."""
        return self.partition_group or self.sharing // self.replicate

    @property
    def expert_shard_degree(self) -> int:
        """Ranks that share one copy of the sharded states of routed experts; at least 1."""
        return max(1, self.shard_degree // self.ep)

    @property
    def sequence_pieces(self) -> int:
        """What a sequence must divide by.

        Each rank of ``cp`` takes two pieces, one early and one late, to even out the work; ``tp``
        cuts them with ``sp``.
        """
        return (2 * self.cp if self.cp > 1 else 1) * (self.tp if self.sp else 1)

    @property
    def model_copies(self) -> int:
        """Copies of its stages' parameters a device needs: 2 where a pipeline runs both ways."""
        return 2 if self.schedule in _BOTH_WAYS and self.pp > 1 else 1

    @checked
    def check(self, model: Model, batch: Batch | None = None) -> None:
        """Refuse to cut ``model``, or a sequence, where it does not divide.

        Raises:
            BadValue: heads, MLP or experts by tp or ep, layers by pp, or the sequence by tp or cp;
                or the sequence is longer than the positions that the model has learnt.
            UsageError: a measured model would be cut.
        """
        if model.layout and self.tp * self.ep * self.pp > 1:
            raise UsageError(
                f"model {model.name!r} was measured whole: how tp, ep or pp would cut it is not"
                " known"
            )
        if not model.layout:
            for device in range(self.pp):
                self.units(model, device)
        if batch is not None:
            if batch.seq % self.sequence_pieces:
                rule = "2·cp·tp" if self.cp > 1 and self.sp else "2·cp" if self.cp > 1 else "tp"
                raise BadValue(f"seq ({batch.seq}) must divide by {rule} ({self.sequence_pieces})")
            if 0 < model.positions < batch.seq:
                raise BadValue(
                    f"seq must be <= {model.positions}, the positions that {model.name} has learnt,"
                    f" got {batch.seq}"
                )

    def stage_layers(self, num_layers: int) -> tuple[int, ...]:
        """Layers of each stage in the order of the forward pass; devices may have several.

        Raises:
            BadValue: they do not divide, or do not add up.

        >>> Parallel(pp=4, schedule="zb-v").stage_layers(32)
        (4, 4, 4, 4, 4, 4, 4, 4)
        """
        if self.layers is not None:
            if sum(self.layers) != num_layers:
                raise BadValue(
                    f"layers must add up to {num_layers}, got {' + '.join(map(str, self.layers))}"
                    f" = {sum(self.layers)}"
                )
            return self.layers
        stages = self.pp * (2 if self.schedule in _FOLDED else self.chunks)
        return _split_once(num_layers, stages if self.pp > 1 else 1, self.layer_split)

    def stages(self, device: int) -> tuple[int, ...]:
        """The stages that a device of the pipeline holds."""
        if not 0 <= device < self.pp:
            raise BadValue(f"device must be in 0..{self.pp - 1}, got {device}")
        if self.pp == 1:
            return (0,)
        if self.schedule in _BOTH_WAYS:
            return (device, self.pp - 1 - device)
        if self.schedule in _FOLDED:
            return (device, 2 * self.pp - 1 - device)
        return tuple(device + self.pp * chunk for chunk in range(self.chunks))

    def units(self, model: Model, device: int = 0) -> tuple[Unit, ...]:
        """The distinct units a rank of a pipeline device holds, before ZeRO, and how often each.

        Raises:
            BadValue: something does not divide.

        >>> [(u.name, u.count) for u in Parallel(pp=2).units(Model.preset("llama-2-7b"), 1)]
        [('block', 16), ('head', 1)]
        """
        return tuple(unit for part in self._parts(model, device) for unit in model.units(**part))

    def elements(self, model: Model, device: int = 0) -> tuple[int, int]:
        """Elements a rank of a pipeline device holds before ZeRO: usual ones, routed experts'."""
        sums = [0, 0]
        for unit in self.units(model, device):
            for tensor in unit.tensors:
                sums[tensor.role == "expert"] += unit.count * tensor.numel
        return sums[0], sums[1]

    def _parts(self, model: Model, device: int) -> list[dict[str, Any]]:
        """The arguments of :meth:`Model.units` for each stage of the device.

        A device with both ends has them in one part, so that a tied head there is no copy.
        """
        if model.layout:
            return [{}]
        lengths = self.stage_layers(model.num_layers)
        ends = {0, len(lengths) - 1}
        held = self.stages(device)
        both = ends <= set(held)
        return [
            {"tp": self.tp, "ep": self.ep}
            | {"first_layer": sum(lengths[:stage]), "end_layer": sum(lengths[: stage + 1])}
            | {"embedding": stage == 0, "head": stage == (0 if both else len(lengths) - 1)}
            for stage in held
        ]

    def in_flight(self, device: Any, num_microbatches: Any) -> Any:
        """Activations a device holds at most, in microbatches on all of its layers.

        ``device`` and ``num_microbatches`` may be arrays that broadcast. A fraction counts chunks:
        a device with two stages that holds three activations of one of them holds 1.5. It is exact
        from 2·pp microbatches on, in multiples of pp, and an upper bound below.

        Source: GPipe Fig. 2; 1F1B (PipeDream-Flush) Fig. 2; Korthikanti et al. 2022, §4.2.3
        (interleaved); Qi et al. 2024 (zero bubble); DeepSeek-V3, Table 2.

        >>> [int(Parallel(pp=4).in_flight(device, 8)) for device in range(4)]
        [4, 3, 2, 1]
        """
        import numpy as np

        per_device = len(self.stages(0)) if self.schedule not in _BOTH_WAYS else 1
        most = num_microbatches * per_device
        if self.pp == 1 and self.schedule not in {"gpipe", "loop-bfs"}:
            return np.minimum(1 + 0 * device, most)
        held = _HELD[self.schedule](device, self.pp, num_microbatches, self.chunks)
        return np.minimum(held + 0 * device, most) / per_device
