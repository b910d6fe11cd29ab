"""The networks of ``labkit.memory.oracles.networks`` once more on a tape: sizes, no numbers.

Line by line the same programs, down to the local variables that keep a tensor alive; the tests
hold the two against each other. Only this module knows both the programs and the units.
"""

from __future__ import annotations

from functools import partial

from labkit.memory.tape import tape as tapes
from labkit.memory.tape.mode import FP32, INT64
from labkit.memory.tape.network import Network, Program
from labkit.memory.tape.older_blocks import OlderBlock
from labkit.memory.tape.operators import ATTENTION, MATRIX_PRODUCT, Linear
from labkit.memory.tape.shadow_blocks import Block, Place
from labkit.memory.tape.sizes import EXPERTS, MIXED
from labkit.memory.tape.step import Moment, Phase, Stretch
from labkit.memory.tape.tape import Tape, Tensor, call, unit
from labkit.memory.tape.trained import Trained
from labkit.memory.tape.trained import runs as trained_runs
from labkit.memory.tape.tuners import P_TUNING, PROMPTS


def every_second_product(kind: str, number: int) -> bool:
    """torchtitan's choice of what selective checkpointing keeps besides a layer's input."""
    return kind == ATTENTION or (kind == MATRIX_PRODUCT and number % 2 == 1)


RUNS = (tapes.GROUPS, tapes.INNER, tapes.INNER_LAST, tapes.GROUPS_INNER)
"""Multiplicities of the layers between the ends of a run; of further runs each layer is listed."""


def run_multiplicities(program: Program) -> dict[int, int]:
    """The multiplicity of what lies between a run's ends, by where it starts: the longest runs'."""
    assert program.trained is not None
    found = trained_runs(program.trained, program.layers[0])
    longest = sorted(found, key=lambda run: run.start - run.end)
    pairs = zip(longest, RUNS, strict=False)
    return {run.start: number for run, number in pairs if run.end - run.start > 3}


class Shadow(Network):
    """A network on a tape, whole: its layers in order, its loss, and the step through both."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.phase = Phase.FORWARD
        self.token = self.end("embedding", "h·v")
        self.position = self.end("position", "h·p") if program.positions else None
        self.inputs: list[Tensor] = []  # of every layer, beside the stream
        block = OlderBlock if self.llama and "own-tables" in self.mode.older else Block
        self.prompt = self._prompt()
        self.segments = [
            ([block(self, place) for place in places], whole) for places, whole in self._segments()
        ]
        self.norm = [self.end("norm", "h") for _ in range(1 if self.llama else 2)]
        self.output = self.token if program.tied else self.end("head", "h·v")

    def _prompt(self) -> list[Tensor]:
        """The parameters of virtual tokens: a table, then weights and biases of its encoder."""
        tuner = self.program.tuner
        if tuner not in PROMPTS:
            return []
        sizes = ["τ·h"]
        if tuner == P_TUNING:
            sizes += ["h·η", "η", "η²", "η", "h·η", "h"]
        return [self.adapter(size) for size in sizes]

    def _segments(self) -> list[tuple[list[Place], bool]]:
        """The layers in order, in stretches that keep one input each where the flag is set."""
        run = {
            "flat": self._flat,
            "nested": self._nested,
            "periodic": self._periodic,
            "listed": self._listed,
            "runs": self._runs,
        }
        segments = run[self.program.structure]()
        trained = self.program.trained
        if trained is not None and len(trained.layers) == 1:
            (names,) = trained.layers
            segments = [
                ([place._replace(trained=names) for place in group], flag)
                for group, flag in segments
            ]
        if self.program.stack != EXPERTS:
            return segments
        return [
            ([place._replace(experts=True) for place in group], flag) for group, flag in segments
        ]

    def _flat(self) -> list[tuple[list[Place], bool]]:
        """Layers that all keep alike: a first, those between, a last.

        Where there are both kinds of layers, those without experts are all named the first.
        """
        full = self.mode.recompute in {"full", "operators"}
        places = [Place(Stretch.FIRST), Place(Stretch.MIDDLE, tapes.GROUPS), Place(Stretch.LAST)]
        if self.program.stack == MIXED:
            last = Place(Stretch.LAST, experts=True)
            places = [
                Place(Stretch.FIRST),
                Place(Stretch.MIDDLE, tapes.INNER),
                Place(Stretch.FIRST),
            ]
            places += [last, Place(Stretch.MIDDLE, tapes.GROUPS, experts=True), last]
        return [([place], full) for place in places]

    def _listed(self) -> list[tuple[list[Place], bool]]:
        """Every layer for itself, as where two kinds of layers lie in what repeats."""
        dense, rest = self.program.layers
        every = [Place(Stretch.FIRST)] * dense + [Place(Stretch.LAST, experts=True)] * rest
        trained = self.program.trained
        if trained is not None and len(trained.layers) > 1:
            every = [
                Place(self.depth_of(number), experts=number >= dense, trained=names)
                for number, names in enumerate(trained.layers)
            ]
        repeat = self.program.repeat
        if self.mode.recompute == "full":
            starts = range(0, len(every), repeat)
            return [(every[start : start + repeat], True) for start in starts]
        return [([place], not number % repeat) for number, place in enumerate(every, start=1)]

    def depth_of(self, number: int) -> Stretch:
        """The name of a layer where some are frozen; those recomputed together have one."""
        trained = self.program.trained
        assert trained is not None
        grouped = self.program.structure == "listed" and self.mode.recompute == "full"
        return trained.stretch(number, self.program.repeat if grouped else 1)

    def _runs(self) -> list[tuple[list[Place], bool]]:
        """Runs of layers of which the same is trained: the first two, those between, the last.

        The second is not like the first where nobody asks for a gradient of the first one's input.
        """
        trained = self.program.trained
        assert trained is not None
        full = self.mode.recompute in {"full", "operators"}
        places: list[Place] = []
        multiplicities = run_multiplicities(self.program)
        for run in trained_runs(trained, self.program.layers[0]):
            like = Place(Stretch.MIDDLE, experts=run.experts, trained=run.names)
            between = multiplicities.get(run.start)
            ends = range(run.start, run.end)
            before, after = (list(ends), []) if between is None else (ends[:2], ends[-1:])
            places += [like._replace(stretch=self.depth_of(n)) for n in before]
            if between is not None:
                places.append(like._replace(multiplicity=between))
            places += [like._replace(stretch=self.depth_of(n)) for n in after]
        return [([place], full) for place in places]

    def _nested(self) -> list[tuple[list[Place], bool]]:
        """Layers recomputed in groups: a first one, those between, the last full one, the last."""
        rows = (
            (Place(Stretch.FIRST), tapes.INNER),
            (Place(Stretch.MIDDLE, tapes.GROUPS), tapes.GROUPS_INNER),
            (Place(Stretch.LAST_FULL), tapes.INNER),
            (Place(Stretch.LAST), tapes.INNER_LAST),
        )
        return [([ends, Place(Stretch.MIDDLE, inner), ends], True) for ends, inner in rows]

    def _periodic(self) -> list[tuple[list[Place], bool]]:
        """Layers of which every so many is recomputed: a first period, those between, the last, the
        rest.
        """
        first = Place(Stretch.FIRST)
        last = Place(Stretch.LAST)
        inner = Place(Stretch.MIDDLE, tapes.INNER)
        rows = (
            (first, False),
            (inner, False),
            (first, False),
            (first, True),
            (Place(Stretch.MIDDLE, tapes.GROUPS_INNER), False),
            (Place(Stretch.MIDDLE, tapes.GROUPS), True),
            (Place(Stretch.MIDDLE), False),
            (inner, False),
            (last, False),
            (last, True),
            (Place(Stretch.MIDDLE, tapes.INNER_LAST), False),
            (last, False),
        )
        return [([place], again) for place, again in rows]

    def enter(self, block: Block, tensor: Tensor) -> None:
        """From here on ``block`` is at work, and ``tensor`` is its own."""
        place = block.place
        between = place.stretch is Stretch.MIDDLE  # never fuller than the ends
        self.tape.label = None if between else Moment.of_layers(self.phase, place.stretch)
        self.tape.multiplicity = place.multiplicity
        self.tape.layer = block
        self.tape.count_as(tensor, multiplicity=place.multiplicity)

    def leave(self, label: Moment, tensor: Tensor) -> None:
        """Note that the layers are done, in either direction, and that ``label`` begins."""
        self.tape.label = label
        self.tape.multiplicity = tapes.ONE
        self.tape.layer = None
        self.tape.count_as(tensor, multiplicity=tapes.ONE)

    def step(self) -> Tape:
        """Run a step forward and backward; the points are on the tape that is returned."""
        loss = self.run_forward()
        self.phase = Phase.BACKWARD
        self.tape.label = Moment.LOSS_BACKWARD
        self.tape.multiplicity = tapes.ONE
        self.tape.backward(loss)
        return self.tape

    def run_forward(self) -> Tensor:
        """Run the forward pass; autocast's copies of parameters are cached until it is done."""
        self.tape.casts = {} if self.mode.dtype == "autocast" else None
        loss = self.forward()
        self.tape.need(*(self.tape.casts or {}).values())
        self.tape.casts = None
        return loss

    def forward(self) -> Tensor:
        """Embed the tokens, run the layers, and compute the loss."""
        if self.prompt:
            return self.behind_prompt()
        ids = Tensor(None, unit("b·s"), INT64)
        x = self.embedded(ids, self.all_tokens)
        return self.from_embeddings(self.scattered(x), ids)

    def embedded(self, ids: Tensor, elements: tapes.Counts) -> Tensor:
        """Embeddings of tokens, which ask for a gradient where their table does not and a program
        wants it.
        """
        x = self.ops.embedding(ids, self.token, elements)
        if x.frozen and "input" in (self.program.trained or Trained()).ends:
            x = self.tape.leaf(x, copied=bool(self.prompt) and self.program.batched)
        return x

    @call
    def behind_prompt(self) -> Tensor:
        """The loss of a sequence with virtual tokens in front of it (peft's own lines)."""
        local = self.tape.local
        real = unit("b·s") - unit("b·τ")
        embeds = self.embedded(Tensor(None, real, INT64), unit("b·s·h") - unit("b·τ·h"))
        targets = self.ops.joined_labels()
        layers = [
            Linear(self.prompt[place], self.prompt[place + 1], unit(size))
            for place, size in zip((1, 3, 5), ("τ·η", "τ·η", "τ·h"), strict=False)
            if place < len(self.prompt)
        ]
        prompts = self.ops.virtual_tokens(
            self.prompt[0], layers, embeds.width, one_sample=not self.program.batched
        )
        x = self.ops.join((unit("b·s·h"), embeds.width), local(prompts), embeds)
        return self.from_embeddings(local(x), targets)

    def from_embeddings(self, x: Tensor, targets: Tensor) -> Tensor:
        """The loss, from embeddings on."""
        if self.position is not None:
            numbers = self.tape.new(unit("s"), INT64, x)
            self.tape.named("position numbers", numbers)
            spread = self.ops.embedding(numbers, self.position, unit("s·h"))
            x = self.ops.add(x, spread, reduce_y=True)
        x = self.ops.dropout(x, self.mode.dropout_mask_bytes)
        if x.node is not None:  # nobody asks for a gradient of a frozen embedding
            x.node.hook = lambda grad: self.leave(Moment.EMBEDDING_BACKWARD, grad)
        x = self.body(x)
        with self.part("head"):
            return self.loss(x, targets)

    @call
    def body(self, x: Tensor) -> Tensor:
        """Everything from the embedding's output to the final norm's."""
        self.inputs = [self.tape.local(tensor) for tensor in self._inputs()]
        x = self.through_blocks(x)
        with self.part("head"):
            return self.normalise(x, self.norm)

    def _inputs(self) -> list[Tensor]:
        """The mask and the position numbers that older layers are given; checkpoints keep them."""
        older = self.mode.older
        found = []
        with self.part("layers"):
            if self.llama and "own-tables" in older:
                found.append(self.tape.new(unit("s"), INT64))
                self.tape.named("position numbers", *found)
            if self.mode.attention == "eager" and "mask-a-sample" in older:
                found.append(self.ops.mask_of_samples(self.width))
                self.tape.named("causal mask", found[-1])
        if self.mode.recompute != "none":
            self.tape.log_saved(*found)
        return found

    @call
    def through_blocks(self, x: Tensor) -> Tensor:
        """Run the layers; a stretch that is recomputed runs as a checkpoint."""
        for group, whole in self.segments:
            if not whole:
                x = self.unit(group, x)
            else:
                self.enter(group[0], x)
                with self.part(""):
                    self.tape.named("input", x)
                keeps = every_second_product if self.mode.recompute == "operators" else None
                run = partial(self._again, group)
                if self.program.reentrant:
                    x = self.tape.reentrant(run, x, *self._tables(), *self.inputs)
                    self._when_back(group[-1], x)
                    continue
                x = self.tape.checkpoint(run, x, *self._tables(), *self.inputs, keeps=keeps)
        self.leave(Moment.LOSS_FORWARD, x)
        return x

    def _again(self, group: list[Block], x: Tensor, *tables: Tensor) -> Tensor:
        """Run a group of layers as a checkpoint, to which rotary tables are given as well."""
        before = self.ops.tables
        self.ops.tables = [[table] for table in tables[: len(self._tables())]] or before
        try:
            return self.unit(group, x)
        finally:
            self.ops.tables = before

    def _tables(self) -> list[Tensor]:
        """Rotary tables, where a checkpoint's inputs are copied to the host."""
        if not (self.llama and self.tape.offload):
            return []
        return [table for tables in self.ops.tables for table in tables]

    @call
    def unit(self, group: list[Block], x: Tensor) -> Tensor:
        """Run a group of layers one after another."""
        for block in group:
            self.enter(block, x)
            x = block.forward(x)
            self._when_back(block, x)
        return x

    def _when_back(self, block: Block, x: Tensor) -> None:
        """Note that the gradient of a block's output has it at work again."""
        if x.node is not None:  # frozen layers on a frozen stream have no gradient
            x.node.hook = lambda grad: self.enter(block, grad)

    @call
    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The loss as the mode computes it: whole, in one kernel, or one part of the tokens at a
        time.
        """
        if self.mode.loss == "fused":
            with self.part("loss"):
                return self.ops.fused_loss(x, self.output)
        if self.mode.loss == "chunked-output":
            return self.loss_of_parts(x, targets)
        if self.mode.loss != "chunked":
            return self.head(x, targets, "b·s·v")
        self.tape.named("input", x)
        total = self.tape.new(unit("1"), FP32)
        # The first chunk is the last to be recomputed, and so the only one without the norm's
        # output beside it: the fullest is the second.
        places = (*(("c", tapes.ONE),) * 2, ("c", tapes.CHUNKS), ("e", tapes.ONE))
        parts = self.ops.split(x, tuple(unit(f"{size}·h") for size, _ in places))
        for part, (size, multiplicity) in zip(parts, places, strict=True):
            chunk = self.ops.scale(self.chunk(part, targets, size, multiplicity))
            self.tape.count_as(chunk, multiplicity=tapes.ONE)
            self.tape.multiplicity = tapes.ONE
            total = self.ops.add(total, chunk)
        self.enter_chunk(tapes.ONE, Moment.LOSS_FORWARD)
        return self.ops.scale(total)

    @call
    def loss_of_parts(self, x: Tensor, targets: Tensor) -> Tensor:
        """Logits of all parts of the tokens, then the loss of each; the loop holds them till then.

        The fullest is one of the last two parts.
        """
        local = self.tape.local
        places = (("c", tapes.ONE), ("c", tapes.CHUNKS), ("c", tapes.ONE), ("e", tapes.ONE))
        parts = self.ops.split(x, tuple(unit(f"{size}·h") for size, _ in places))
        logits = []
        for part, (size, multiplicity) in zip(parts, places, strict=True):
            self.enter_chunk(multiplicity, Moment.LOSS_FORWARD)
            output = Linear(self.output, None, unit(f"{size}·v"))
            logits.append(local(self._of_chunk(self.column(part, output, "input"), multiplicity)))
        self.tape.multiplicity = tapes.ONE
        total = self.tape.new(unit("1"), FP32)
        for each, (_, multiplicity) in zip(logits, places, strict=True):
            self.enter_chunk(multiplicity, Moment.LOSS_FORWARD)
            chunk = self._of_chunk(self.part_of_loss(each, targets), multiplicity)
            self.tape.count_as(chunk, multiplicity=tapes.ONE)
            self.tape.multiplicity = tapes.ONE
            total = self.ops.add(total, chunk)
        self.enter_chunk(tapes.ONE, Moment.LOSS_FORWARD)
        return self.ops.scale(total)

    def part_of_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of one part's logits, in fp32."""
        with self.part("loss"):
            return self.ops.cross_entropy(self.ops.cast(logits, FP32), targets)

    def _of_chunk(self, tensor: Tensor, multiplicity: int) -> Tensor:
        """The same tensor, whose backward pass notes which part of the head is at work."""
        assert tensor.node is not None
        tensor.node.hook = lambda _: self.enter_chunk(multiplicity, Moment.LOSS_BACKWARD)
        return tensor

    def chunk(self, part: Tensor, targets: Tensor, size: str, multiplicity: int) -> Tensor:
        """The head's loss of one part of the tokens, recomputed in the backward pass."""
        self.enter_chunk(multiplicity, Moment.LOSS_FORWARD)
        given = (part,) if targets.storage is None else (part, targets)
        loss = self.tape.checkpoint(lambda y, *_: self.head(y, targets, f"{size}·v"), *given)
        assert loss.node is not None
        loss.node.hook = lambda _: self.enter_chunk(multiplicity, Moment.LOSS_BACKWARD)
        return loss

    def enter_chunk(self, multiplicity: int, label: Moment) -> None:
        """Note that a part of the head is at work, which stands for ``multiplicity`` like it."""
        self.tape.multiplicity = multiplicity
        self.tape.label = label if multiplicity == tapes.ONE else None

    @call
    def head(self, x: Tensor, targets: Tensor, logits_unit: str) -> Tensor:
        """Logits and their loss, with the logits held on where the training loop holds them."""
        output = Linear(self.output, None, unit(logits_unit))
        loss = self.mode.loss
        logits = self.column(self.gathered(x), output, "input")
        if self.mode.logits_held == "compute":
            self.tape.held.append(logits)
        if loss == "vocab-parallel" or (self.mode.shifted and "loss-beside" in self.mode.older):
            self.tape.local(logits)
        if not (self.mode.shifted and "narrow-loss" in self.mode.older):
            logits = self.ops.cast(logits, FP32)
        if self.mode.logits_held == "fp32":
            self.tape.held.append(logits)
        with self.part("loss"):
            if self.mode.shifted:
                return self.shifted_loss(logits)
            if loss.startswith("vocab-parallel"):
                return self.ops.vocab_parallel_loss(logits, targets, copy=loss.endswith("copy"))
            run = self.ops.loss_parallel if loss == "loss-parallel" else self.ops.cross_entropy
            return run(logits, targets)

    @call
    def shifted_loss(self, logits: Tensor) -> Tensor:
        """The loss of all tokens of a sample but the last, by copies where there are several
        samples.
        """
        local = self.tape.local
        several = self.program.batched
        fewer = logits.elements - unit("b·v")
        if several:
            rows = local(self.ops.shifted(logits, fewer))
            targets = local(self.tape.new(unit("b·s") - unit("b"), INT64, rows))
            self.tape.named("shifted targets", targets)
        else:
            rows = self.ops.view(logits, fewer)
            targets = Tensor(None, unit("b·s"), INT64)
        wide = FP32 if self.tape.casts is not None else rows.width
        return self.ops.cross_entropy(self.ops.cast(rows, wide), targets)
