"""Reads ``alpa-osdi22``: training rates of six systems, as Alpa's authors measured them."""

from __future__ import annotations

import ast
from pathlib import Path

import pandas as pd

METHODS = {
    "parax.auto": "Alpa",
    "parax.intra_only": "intra-operator alone",
    "parax.inter_only": "inter-operator alone",
    "parax.ppdp": "stages and data parallelism",
    "megatron": "Megatron-LM",
    "deepspeed": "DeepSpeed",
}
"""Names of the artifact's systems; Alpa was called Parax before."""


def read_measured(path: Path) -> pd.DataFrame:
    """The artifact's end-to-end table: kind, method, GPUs, TFLOP/s of a GPU (NaN: out of memory).

    Args:
        path: of ``results_e2e_ref.tsv``, or of the table that stands in for it.
    """
    if path.suffix == ".csv":
        return pd.read_csv(path, comment="#")
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        _, _, hosts, gpus, kind, method, values, *_ = line.split("\t")
        tera_flops = float(ast.literal_eval(values)["tflops"])
        rows.append(
            {
                "kind": kind,
                "method": METHODS[method],
                "gpus": int(hosts) * int(gpus),
                "tera_flops": tera_flops if tera_flops > 0 else float("nan"),
            }
        )
    return pd.DataFrame(rows)
