"""Numbers of Korthikanti et al. 2022, Narayanan et al. 2021 and Grattafiori et al. 2024."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from labkit import quantities
from labkit.memory.tape import saved
from labkit.models import Model
from tests.oracles.printed import tables
from tests.oracles.printed.claim import Claim, Rule, cell_of, half_unit, number, records, rows_of


def korthikanti(root: Path) -> Iterator[Claim]:
    folder = root / "reduce-act-recomp"
    yield from _formulas(folder)
    for row in rows_of(folder / "table3.csv"):
        thousands = 1000 if row["model"].endswith("T") else 1
        name = row["model"].strip("BT")
        model = tables.gpt({k: int(v) for k, v in row.items() if v.isdigit()})
        yield Claim(
            **cell_of("reduce-act-recomp", "Table 3", f"{row['model']}: parameters"),
            printed=row["model"],
            theirs=float(name) * thousands,
            ours=model.num_params / quantities.BILLION,
            unit="billion parameters",
            given=0.01 * float(name) * thousands,
            note="the name; one percent",
        )
        product = int(row["tp"]) * int(row["pp"])
        yield number("reduce-act-recomp", "Table 3", f"{row['model']}: GPUs", row["gpus"], product)
    yield from _times(folder)
    yield from _utilisation(folder)
    yield from _text(folder)


_EQUATIONS = {
    "no parallelism": "eq. 1",
    "tensor parallel (baseline)": "eq. 2",
    "tensor + sequence parallel": "eq. 4",
}


def _formulas(folder: Path) -> Iterator[Claim]:
    """Table 2, and eq. 1 to 6: GPT-3's layer, sample by sample; ours is the sum of saved tensors.

    §4 leaves out small buffers: ours are without norm statistics and causal masks here.
    """
    model = Model.preset("gpt3-175b")
    tp = 8
    seq = 2048
    sbh = seq * model.hidden
    for row in rows_of(folder / "table2.csv"):
        degree = tp if row["tensor"] == "yes" else 1
        layer = tables.Layer(
            seq=seq, micro_batch=1, hidden=model.hidden, heads=model.heads, tp=degree
        )
        terms = saved.layer_terms(
            model,
            saved.Mode(attention="eager", recompute=row["recompute"], dropout_mask_bytes=1),
            seq=seq,
            micro_batch=1,
            tp=degree,
            sequence_parallel=row["sequence"] == "yes",
        )
        ignored = ("norm statistics", "causal mask")
        kept = sum(t.num_bytes for t in terms if not t.component.endswith(ignored)) / sbh
        printed = float(layer.printed_bytes(row) / sbh)
        name = row["configuration"]
        where = f"Table 2, {_EQUATIONS[name]}" if name in _EQUATIONS else "Table 2"
        claim: dict[str, Any] = {
            "printed": _formula(row),
            "unit": "s·b·h bytes, GPT-3, t = 8",
            "given": 0.0,
        }
        yield Claim(
            **cell_of("reduce-act-recomp", where, f"{name}, a layer"),
            **claim,
            theirs=printed,
            ours=kept,
        )
        if row["sequence"] == "yes":
            equation = "eq. 5" if row["recompute"] == "none" else "eq. 6"
            yield Claim(
                **cell_of("reduce-act-recomp", equation, f"{name}, all layers"),
                **claim | {"printed": f"l·({_formula(row)})"},
                theirs=printed * model.num_layers,
                ours=kept * model.num_layers,
            )


def _formula(row: dict[str, Any]) -> str:
    """A row of Table 2 as it reads."""
    parts = [row["whole"]] if row["whole"] != "0" else []
    parts += [f"{row['over_t']}/t"] if row["over_t"] != "0" else []
    parts += ["5as/h"] if row["scores"] != "0" else []
    parts += ["5as/(h·t)"] if row["scores_over_t"] != "0" else []
    return " + ".join(parts)


def _times(folder: Path) -> Iterator[Claim]:
    """Table 4: milliseconds add up, overheads follow."""
    rows = rows_of(folder / "table4.csv")
    base = float(rows[0]["combined_ms"])
    for row in rows:
        here = cell_of("reduce-act-recomp", "Table 4", row["experiment"])
        total = Fraction(row["forward_ms"]) + Fraction(row["backward_ms"])
        printed = row["combined_ms"]
        yield Claim(
            **here, printed=printed, theirs=float(printed), ours=float(total), unit="ms", given=0.0
        )
        if printed := row["overhead_percent"]:
            ours = 100 * (float(row["combined_ms"]) / base - 1)
            yield Claim(**here, printed=printed, theirs=float(printed), ours=ours, unit="%")


def _utilisation(folder: Path) -> Iterator[Claim]:
    """Table 5: from its own seconds, whose rounding widens the tolerance."""
    for row in records(tables.utilisation(folder)):
        for name in ("increase", "mfu", "hfu"):
            printed = row[f"{name}_percent"]
            value = row[name]
            spread = max(row[f"{name}_high"] - value, value - row[f"{name}_low"])
            yield number(
                "reduce-act-recomp",
                "Table 5",
                f"{row['model']}: {name}",
                printed,
                value,
                "%",
                given=float(half_unit(printed)) + spread,
                note="tolerance: its last digit, and that of the seconds",
            )


def _text(folder: Path) -> Iterator[Claim]:
    """Numbers of the running text."""
    sizes = {row["model"]: row for row in rows_of(folder / "table3.csv")}
    shares = tables.footprints(folder).set_index(["configuration", "model"])["share"]
    both = shares["tensor + sequence parallel + selective recomputation"]
    for row in rows_of(folder / "text.csv"):
        size = {k: int(v) for k, v in sizes.get(row["model"], {}).items() if v.isdigit()}
        ours, rule, given, note = _of_text(row["what"], size, both, shares)
        yield Claim(
            **cell_of("reduce-act-recomp", row["section"], f"{row['what']}, {row['model']}"),
            printed=row["printed"],
            theirs=float(row["printed"]),
            ours=ours,
            unit=row["unit"],
            rule=rule,
            given=given,
            note=note,
        )


def _of_text(
    what: str, size: dict[str, int], both: Any, shares: Any
) -> tuple[float, Rule, float | None, str]:
    seq = 2048
    vocab = 51200
    scores = 5 * size["heads"] * seq / size["hidden"] if size else 0.0
    if what.startswith("attention over"):
        return scores, "within", None, ""
    if what.startswith("saved by"):
        return 100 * scores / (34 + scores), "within", None, ""
    if what.startswith("operations added"):
        more = tables.hardware_flops(size, vocab=0) / tables.model_flops(size, vocab=0)
        return 100 * (more - 1), "within", None, "eq. 8; Appendix A's text gives a third of it"
    if what.startswith("output tensors"):
        ours = 2 * seq * size["micro_batch"] * size["hidden"] * size["pp"] / quantities.GIB
        return ours, "within", None, "in GiB"
    if what.startswith("ends beside"):
        ends = (1 + 4 * (1 + vocab / size["hidden"])) / size["layers"]
        note = "its own expression is 0.57 %: the percent sign is one too many"
        return 100 * ends / (34 + scores), "at most", None, note
    if what.startswith("both techniques"):
        note = "4.25/21 for the two largest: 20.2"
        return 100 * float(both.max()), "at most", 0.5, note
    full = 100 * float(shares["full recomputation"].max())
    return full, "within", 0.5, "the most of the four; the others are 7 to 10"


def megatron(root: Path) -> Iterator[Claim]:
    """Table 1 of Narayanan et al. 2021; an aggregate follows from rounded TFLOP/s."""
    for row in records(tables.clusters(root / "megatron-sc21" / "table1.csv")):
        here = cell_of("megatron-sc21", "Table 1", f"{row['billion']}B")
        for column, name, unit in (
            ("billion", "ours_billion", "billion parameters"),
            ("peak_percent", "ours_percent", "%"),
            ("petaflops", "ours_petaflops", "PFLOP/s"),
        ):
            printed = row[column]
            slack = 0.5 * row["gpus"] / 1000 if column == "petaflops" else 0.0
            yield Claim(
                **here | {"cell": f"{here['cell']}: {column.replace('_', ' ')}"},
                printed=printed,
                theirs=float(printed),
                ours=row[name],
                unit=unit,
                given=float(half_unit(printed)) + slack,
            )
        held = row["states_bytes"] + row["activation_bytes"]
        note = "18 bytes a parameter, full recomputation, one sample at a time"
        yield _fits(here, "80 GB A100", held, note)


def llama(root: Path) -> Iterator[Claim]:
    """Table 4 of Grattafiori et al. 2024."""
    for row in records(tables.llama(root / "llama-3" / "table4.csv")):
        here = cell_of("llama-3", "Table 4", f"{row['gpus']} GPUs, sequence {row['seq']}")
        if row["kernels"] == "all saved tensors":
            for name, printed, theirs, ours, unit, note in (
                ("GPUs", str(row["gpus"]), row["gpus"], row["ours_gpus"], "", ""),
                ("tokens", row["tokens"], 16 * quantities.MIB, row["ours_tokens"], "", "M is 2^20"),
                (
                    "MFU",
                    f"{row['mfu_percent']}",
                    row["mfu_percent"],
                    row["ours_percent"],
                    "%",
                    "400 of 989 TFLOP/s are 40.4; 41 needs 405" if row["tflops"] == 400 else "",
                ),
            ):
                yield Claim(
                    **here | {"cell": f"{here['cell']}: {name}"},
                    printed=printed,
                    theirs=float(theirs),
                    ours=float(ours),
                    unit=unit,
                    given=0.5 if name == "MFU" else 0.0,
                    note=note,
                )
            continue
        note = "norms' and SwiGLU's outputs computed again; with all of them kept it does not fit"
        yield _fits(here, "80 GB H100", row["states_bytes"] + row["activation_bytes"], note)


def _fits(here: dict[str, Any], device: str, held: float, note: str) -> Claim:
    return Claim(
        **here | {"cell": f"{here['cell']}: fits where it ran"},
        printed=device,
        theirs=tables.DEVICE_BYTES / quantities.GB,
        ours=held / quantities.GB,
        unit="GB",
        rule="at most",
        note=note,
    )
