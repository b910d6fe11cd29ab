"""Printed tables of other papers beside the engine: what follows from each row's own columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import quantities
from labkit.memory import Parallel, Recipe
from labkit.memory.movement.volumes import step_collectives
from labkit.models import Model
from tests.oracles.printed.offload_graph import Placement

if TYPE_CHECKING:
    import pandas as pd


# What a transformer layer keeps for its backward pass, tensor by tensor: bytes as multiples of
# s·b·h, of a·s²·b, and whether tensor parallelism divides it. Attention's core is what selective
# recomputation drops. Source: Korthikanti et al. 2022, §4.1, §4.2.1, §5.
KEPT_TENSORS: tuple[tuple[str, int, int, bool], ...] = (
    ("inputs of both layer norms", 4, 0, False),
    ("shared input of query, key and value", 2, 0, False),
    ("query and key", 4, 0, True),
    ("softmax output", 0, 2, True),
    ("mask of the softmax dropout", 0, 1, True),
    ("output of the softmax dropout", 0, 2, True),
    ("value", 2, 0, True),
    ("input of the output projection", 2, 0, True),
    ("mask of the attention dropout", 1, 0, False),
    ("input of the first MLP matrix", 2, 0, False),
    ("input of GeLU", 8, 0, True),
    ("input of the second MLP matrix", 8, 0, True),
    ("mask of the MLP dropout", 1, 0, False),
)
A100_FLOPS_PER_S = 312e12
H100_FLOPS_PER_S = 989e12
DEVICE_BYTES = 80 * quantities.GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The sizes that Korthikanti's formulas take; the MLP is four times as wide."""

    seq: int
    micro_batch: int
    hidden: int
    heads: int
    tp: int = 1

    def kept_bytes(self, *, sequence_parallel: bool, recompute: str) -> Fraction:
        """Bytes kept, tensor by tensor (equations 1, 2, 4, 6 and the 2·sbh of §5).

        >>> Layer(seq=8, micro_batch=1, hidden=4, heads=2).kept_bytes(
        ...     sequence_parallel=False, recompute="none"
        ... )
        Fraction(1728, 1)
        """
        width = self.seq * self.micro_batch * self.hidden
        if recompute == "full":
            return Fraction(2 * width)
        scores = self.heads * self.seq**2 * self.micro_batch
        found = Fraction(0)
        for _, hidden, core, divided in KEPT_TENSORS:
            size = hidden * width + (core * scores if recompute == "none" else 0)
            found += Fraction(size, self.tp if divided or sequence_parallel else 1)
        return found

    def printed_bytes(self, row: Mapping[str, Any]) -> Fraction:
        """The same by the coefficients of one row of the paper's Table 2."""
        ratio = Fraction(self.heads * self.seq, self.hidden)
        factor = int(row["whole"]) + Fraction(int(row["over_t"]), self.tp)
        factor += ratio * (int(row["scores"]) + Fraction(int(row["scores_over_t"]), self.tp))
        return self.seq * self.micro_batch * self.hidden * factor


def model_flops(row: Mapping[str, Any], *, seq: int = 2048, vocab: int = 51200) -> float:
    """Operations of an iteration, nothing recomputed (Korthikanti et al. 2022, eq. 7).

    ``row`` has ``batch``, ``layers`` and ``hidden``.
    """
    return _flops(row, seq, vocab, 6)


def hardware_flops(row: Mapping[str, Any], *, seq: int = 2048, vocab: int = 51200) -> float:
    """The same with attention recomputed, as the paper counts (eq. 8).

    The text of its Appendix A adds 4·B·s²·h operations a layer, which would make the term 2s/9h;
    the equation has s/3h, three times as much, and so do its 2.7 % and 1.6 % and Table 5.
    """
    return _flops(row, seq, vocab, 3)


def _flops(row: Mapping[str, Any], seq: int, vocab: int, attention: int) -> float:
    layers = int(row["layers"])
    hidden = int(row["hidden"])
    dense = 72.0 * int(row["batch"]) * layers * seq * hidden**2
    return dense * (1 + seq / (attention * hidden) + vocab / (12 * hidden * layers))


def utilisation(folder: Path) -> pd.DataFrame:
    """Korthikanti's Table 5 beside what its times and equations 7 and 8 give.

    Adds ``increase``, ``mfu`` and ``hfu`` in percent, each with ``_low`` and ``_high``: the range
    that the rounding of the printed seconds leaves.
    """
    import pandas as pd

    table = pd.read_csv(folder / "table5.csv", dtype=str)
    sizes = pd.read_csv(folder / "table3.csv").set_index("model")
    rows = []
    for row in _records(table):
        size = sizes.loc[row["model"]]
        peak = int(size["gpus"]) * A100_FLOPS_PER_S
        slow, fast = (_rounded(row[name]) for name in ("full_s", "present_s"))
        found: dict[str, Any] = dict(row)
        found |= _ranged("increase", [100 * (a / b - 1) for a in slow for b in fast])
        for name, flops in (("mfu", model_flops(size)), ("hfu", hardware_flops(size))):
            found |= _ranged(name, [100 * flops / second / peak for second in fast])
        rows.append(found)
    return pd.DataFrame(rows)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _rounded(printed: str) -> tuple[float, float, float]:
    """A printed number, and the least and largest that would be printed so."""
    half = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    return float(printed), float(printed) - half, float(printed) + half


def _ranged(name: str, values: list[float]) -> dict[str, float]:
    return {name: values[0], f"{name}_low": min(values), f"{name}_high": max(values)}


def footprints(folder: Path, *, seq: int = 2048, vocab: int = 51200) -> pd.DataFrame:
    """What each technique of Table 2 needs on the first stage of each model of Table 3.

    Bytes of states (18 a parameter: Megatron's without sharding), of activations (equations 5 and
    6, times the interleaving's 1 + (p − 1)/(p·m)), their ``share`` of the tensor-parallel baseline,
    and ``fits`` an 80 GB A100.
    """
    import pandas as pd

    techniques = pd.read_csv(folder / "table2.csv")
    recipe = Recipe.preset("fp32-gradients")
    rows = []
    for size in _records(pd.read_csv(folder / "table3.csv")):
        layer = Layer(
            seq=seq,
            micro_batch=size["micro_batch"],
            hidden=size["hidden"],
            heads=size["heads"],
            tp=size["tp"],
        )
        flight = 1 + Fraction(size["pp"] - 1, size["pp"] * size["chunks"])
        layers = size["layers"] * (flight if size["chunks"] > 1 else 1)
        states = recipe.bytes_per_param * _first_stage(size, seq, vocab)
        base = layer.kept_bytes(sequence_parallel=False, recompute="none") * layers
        for technique in _records(techniques[techniques["tensor"] == "yes"]):
            kept = layers * layer.kept_bytes(
                sequence_parallel=technique["sequence"] == "yes", recompute=technique["recompute"]
            )
            rows.append(
                {
                    "model": size["model"],
                    "configuration": technique["configuration"],
                    "states_bytes": states,
                    "activation_bytes": float(kept),
                    "share": float(kept / base),
                    "fits": states + kept <= DEVICE_BYTES,
                }
            )
    return pd.DataFrame(rows)


def gpt(size: Mapping[str, Any], seq: int = 2048, vocab: int = 51200) -> Model:
    """A GPT of the sizes in a row of Korthikanti's or Narayanan's tables."""
    return Model(
        num_layers=size["layers"],
        hidden=size["hidden"],
        heads=size["heads"],
        vocab=vocab,
        positions=seq,
    )


def _first_stage(size: Mapping[str, Any], seq: int, vocab: int) -> int:
    """Parameters on a GPU of the first stage, where the embedding is."""
    parallel = Parallel(tp=size["tp"], pp=size["pp"])
    return sum(unit.count * unit.numel for unit in parallel.units(gpt(size, seq, vocab)))


def clusters(path: Path, *, seq: int = 2048, vocab: int = 51200) -> pd.DataFrame:
    """Narayanan's Table 1 beside what its other columns give, and whether it fits where it ran.

    Adds ``ours_billion`` (parameters), ``ours_percent`` of an A100's peak, ``ours_petaflops``,
    ``states_bytes`` (18 a parameter on the first stage), ``activation_bytes`` of one sample at a
    time with every layer recomputed: all layers' inputs, twice over (the most that interleaving can
    hold), and one layer at work; ``fits``, and ``largest_micro_batch`` that would.
    """
    import pandas as pd

    recipe = Recipe.preset("fp32-gradients")
    printed = ("billion", "peak_percent", "petaflops")
    rows = []
    for row in _records(pd.read_csv(path, dtype=dict.fromkeys(printed, str))):
        layer = Layer(
            seq=seq, micro_batch=1, hidden=row["hidden"], heads=row["heads"], tp=row["tp"]
        )
        inputs = layer.kept_bytes(sequence_parallel=False, recompute="full")
        working = layer.kept_bytes(sequence_parallel=False, recompute="none")
        flight = 2 - Fraction(1, row["pp"])
        states = recipe.bytes_per_param * _first_stage(row, seq, vocab)
        kept = inputs * row["layers"] * flight + working
        rows.append(
            row
            | {
                "ours_billion": gpt(row, seq, vocab).num_params / quantities.BILLION,
                "ours_percent": 100 * row["tflops"] * 1e12 / A100_FLOPS_PER_S,
                "ours_petaflops": row["tflops"] * row["gpus"] / 1000,
                "states_bytes": states,
                "activation_bytes": float(kept),
                "fits": states + kept <= DEVICE_BYTES,
                "largest_micro_batch": int((DEVICE_BYTES - states) // kept),
            }
        )
    return pd.DataFrame(rows)


# Bytes a token and layer that a Llama layer keeps in 16 bits, in units of h (k: key width over h,
# f: MLP width over h): all that its kernels save, and what is left where the norms' and SwiGLU's
# outputs are computed again, which is cheap.
_LLAMA_KEPT: dict[str, Callable[[float, float], float]] = {
    "all saved tensors": lambda k, f: 12 + 4 * k + 8 * f,
    "norms and SwiGLU computed again": lambda k, f: 8 + 4 * k + 4 * f,
}


def llama(path: Path) -> pd.DataFrame:
    """Llama 3's Table 4 beside what its other columns give, and what a GPU would hold.

    Bytes on the second pipeline device (the first has one layer less): 16-bit parameters, fp32
    gradients and one shard of Adam's states; activations of 8,192 tokens a rank in the p·v + p − 1
    layers that interleaving by single layers keeps in flight, under two assumptions (``kernels``).
    """
    import pandas as pd

    model = Model.preset("llama-3-405b")
    parameters = 2 * model.hidden * (model.hidden + model.kv_size) + 3 * model.hidden * model.ffn
    rows = []
    for row in _records(pd.read_csv(path)):
        each = -(-model.num_layers // row["pp"])
        share = parameters * each / row["tp"]
        states = (2 + 4) * share + 12 * share / (row["dp"] * row["cp"])
        tokens = row["seq"] / row["cp"] / row["tp"]
        in_flight = row["pp"] * each + row["pp"] - 1
        for kernels, kept in _LLAMA_KEPT.items():
            width = kept(model.kv_size / model.hidden, model.ffn / model.hidden) * model.hidden
            size = tokens * width * in_flight
            rows.append(
                row
                | {
                    "ours_gpus": row["tp"] * row["cp"] * row["pp"] * row["dp"],
                    "ours_tokens": row["seq"] * row["batch_per_dp"] * row["dp"],
                    "ours_percent": 100 * row["tflops"] * 1e12 / H100_FLOPS_PER_S,
                    "kernels": kernels,
                    "states_bytes": states,
                    "activation_bytes": size,
                    "fits": states + size <= DEVICE_BYTES,
                }
            )
    return pd.DataFrame(rows)


def cut_graph(path: Path) -> pd.DataFrame:
    """ZeRO-Offload's Table 1 beside the cuts of its data-flow graph: adds ours and traffic."""
    import pandas as pd

    table = pd.read_csv(path, dtype={"reduction": str})
    cuts = [
        Placement(parameters=p, gradients=g, update=u)
        for p, g, u in table[["parameters", "gradients", "update"]].to_numpy().tolist()
    ]
    table["ours_memory"] = [one.gpu_bytes for one in cuts]
    table["ours_reduction"] = [float(one.reduction) for one in cuts]
    table["traffic"] = [one.traffic_bytes for one in cuts]
    return table


def between_nodes(path: Path, *, dp: int, ranks_per_node: int = 8) -> pd.DataFrame:
    """ZeRO++'s volumes between nodes, in model sizes, beside ours over ``dp`` ranks."""
    import pandas as pd

    table = pd.read_csv(path)
    schemes = {
        "zero3": (Parallel(dp=dp, zero=3), Recipe()),
        "zeropp": (
            Parallel(dp=dp, zero=3, secondary_group=ranks_per_node),
            Recipe.preset("quantised"),
        ),
    }
    for name, scheme in schemes.items():
        found = {
            (item.what, item.phase): item.node_bytes
            for item in step_collectives(*scheme, elements=1 / 2, ranks_per_node=ranks_per_node)
        }
        found["total", "step"] = sum(found.values())
        table[f"ours_{name}"] = [
            found[what, phase] for what, phase in table[["what", "phase"]].to_numpy().tolist()
        ]
    return table
