"""Stand-ins: small parametric models, fitted to the published data, and the tables they give.

    python data/profiles/fit.py           # fit to the published files, write coefficients.json
    python data/profiles/fit.py --write   # write the stand-ins from coefficients.json alone

Every quantity is a log-linear model, ``log y = Σ c_j φ_j``, fitted by least squares; the terms φ
are in ``MODELS`` below and in README.md. ``coefficients.json`` holds the coefficients, the grid of
settings that were published (clocks, batch sizes, power limits) and the relative errors of the
fit, median and worst. The same file gives the same stand-ins on every machine.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

FOLDER = Path(__file__).parent
COEFFICIENTS = FOLDER / "coefficients.json"
DIGITS = 6
PERSEUS = "sosp24_data/emulation/stage_profile"
ZEUS = "examples/research_reproducibility/zeus_nsdi23/trace"
POLLUX = "simulator/traces/{}"
GAVEL = "scheduler/simulation_throughputs.json"
PHILLY = "scheduler/traces/msr/seed=0/{}.trace"
VIRTUAL_CLUSTERS = (
    "0e4a51",
    "103959",
    "11cb48",
    "2869ce",
    "6214e9",
    "6c71a0",
    "7f04ca",
    "b436b2",
    "e13805",
    "ed69ec",
    "ee9e8c",
)
ROW_S = 3600.0
"""Jobs of a virtual cluster that are submitted at most so long after each other are alike."""
PIPEDREAM = "profiler/{}/profiles/{}/graph.txt"
ACESO = "profiler/profiled-time-eurosys"
REEF = "reef-osdi22"
KERNEL_KINDS = ("winograd", "conv2d", "matmul", "dense", "softmax", "pool")
"""Kinds of kernels, by a part of their names; the first that fits."""
NEXUS = "tests/data/model_db/profiles/TITAN_X_(Pascal)"
NETWORK = "data/profiling/network/{}/{}.csv"
ALPA = "osdi22_artifact/results_e2e_ref.tsv"
ITP = "data/raw-traces.tar.gz"
ELASTIC = "ElasticFlow/scheduler/throughputs_{}/{}.csv"
ELASTIC_JOBS = "ElasticFlow/traces_for_ElasticFlow/elasticVpollux_e.csv"
ITP_JOBS = "data/elasticflow-traces.tar.gz"
JOB_COLUMNS = {"submission_time": "submit_time", "num_iteration": "iteration", "deadline": "ddl"}
"""Columns of a drawn trace: as in the archive, as in the testbed's file."""
POLLUX_KINDS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
"""Networks that Pollux's jobs train."""
LEAST_GRADIENT = 1e-4
"""Squared gradient over its variance, at least. Less would change a training's speed only at
batches of 10,000 times the initial size."""
WORKLOAD = ("dataset", "network", "optimizer")
"""The columns that name a job of Zeus's traces."""
MAIN_TARGETS = {
    "cifar100": 0.6,
    "imagenet": 0.65,
    "librispeech": 40.0,
    "movielens-1m": 0.41,
    "squad": 84.0,
    "sentiment140": 0.84,
}
"""The targets that Zeus's experiments use; they weigh three times as much in the fit."""
PRODUCT_SIZES = {
    "enc-attention-qkv": 3,
    "enc-attention-dense": 1,
    "enc-MLP-GEMM-1": 4,
    "enc-MLP-GEMM-2": 4,
    "gpt-post-process": 25,
}
"""Elements of each weight, in squares of the hidden size 2,048."""
OPERATOR_KINDS = {
    **dict.fromkeys(PRODUCT_SIZES, "product"),
    **{f"enc-attention-{name}": "score" for name in ("score", "softmax", "dropout", "context")},
    **dict.fromkeys(["enc-1st-layernorm", "enc-2nd-layernorm", "final-layernorm"], "norm"),
    **dict.fromkeys(["enc-post-attention-dropout", "enc-post-MLP-dropout"], "dropout"),
    "enc-MLP-gelu": "dropout",
    "encoder-embedding": "embedding",
}

FAMILIES = ("A3C", "CycleGAN", "LM", "Recommendation", "ResNet-18", "ResNet-50", "Transformer")
SHORT = 0.001
"""Share of a network's seconds below which a layer's pass counts as none."""
LIGHT_BYTES = 1e4
"""Weights up to which a layer's seconds do not depend on them."""

Table = pd.DataFrame
Terms = Callable[[Table], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """A published file and its model.

    Attributes:
        name: of the stand-in, ``standin_<name>.csv``.
        dataset, path: the published file; ``*`` in both names stands for the batch size of each
            file of a series, which are modelled together.
        keys: columns that name a group of rows with coefficients of its own.
        terms: the design matrix of a group's rows, by column that is modelled.
        tabulate: the published file as the table that is modelled, and back.
        read: a file of a source as a table.
    """

    name: str
    dataset: str
    path: str
    keys: tuple[str, ...]
    terms: dict[str, Terms]
    tabulate: Callable[[Table], Table] = lambda table: table
    read: Callable[[Any, str], Table] = lambda source, path: source.frame(path)
    publish: Callable[[Table], Table] = lambda table: table


# ---------------------------------------------------------------- terms


def powers(x: np.ndarray, degree: int) -> np.ndarray:
    """Columns 1, x, …, x^degree."""
    return np.vander(x, degree + 1, increasing=True)


def indicators(values: pd.Series) -> np.ndarray:
    return pd.get_dummies(values).to_numpy(dtype=float)


def products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Every product of a column of the one and a column of the other."""
    return np.einsum("ri,rj->rij", left, right).reshape(len(left), -1)


def centred(values: pd.Series) -> np.ndarray:
    """Doublings from the middle, a few to the unit, so that powers stay small."""
    doublings = np.log2(values.to_numpy(dtype=float))
    ends = doublings.min() + doublings.max()
    return (doublings - ends / 2) / 3


def stage_terms(degree: int) -> Terms:
    """One factor a stage, and a polynomial of the slowdown that all stages share."""

    def terms(rows: Table) -> np.ndarray:
        slowdown = rows["frequency"].max() / rows["frequency"].to_numpy() - 1
        return np.hstack([indicators(rows["stage"]), powers(slowdown, degree)[:, 1:]])

    return terms


def power_terms(rows: Table) -> np.ndarray:
    """One factor a batch size, and the power limit's polynomial, which turns with batch size."""
    limit = np.log(rows["power_limit"].to_numpy() / rows["power_limit"].max())
    shape = products(powers(centred(rows["batch_size"]), 2), powers(limit, 4)[:, 1:])
    return np.hstack([indicators(rows["batch_size"]), shape])


def epoch_terms(rows: Table) -> np.ndarray:
    """For each target a cubic of batch size; the fourth and fifth power are shared."""
    size = powers(centred(rows["batch_size"]), 5)
    return np.hstack([products(indicators(rows["target_metric"]), size[:, :4]), size[:, 4:]])


def step_terms(rows: Table) -> np.ndarray:
    """Quadratics of examples and GPUs, in one node and over several; one GPU alone is apart."""
    size = np.log(rows["local_bsz"].to_numpy(dtype=float) / 128)
    gpus = np.log(rows["gpus"].to_numpy(dtype=float))
    nodes = np.log(rows["nodes"].to_numpy(dtype=float))
    by_gpus = products(powers(gpus, 2)[:, 1:], powers(size, 2))
    each = np.hstack([powers(size, 3), by_gpus])
    kind = np.where(gpus == 0, 0, np.where(nodes == 0, 1, 2))
    parts = [np.where((kind == k)[:, None], each, 0.0) for k in range(3)]
    between = products(powers(nodes, 2)[:, 1:], powers(size, 1))
    return np.hstack([*parts, np.where((kind == 2)[:, None], between, 0.0)])


def progress_terms(rows: Table) -> np.ndarray:
    """Chebyshev polynomials of the logarithm of progress, of degree 6 or a third of the epochs.

    Trainings of two epochs share lines of progress that turn with batch size.
    """
    progress = np.log(rows["progress"].to_numpy(dtype=float))
    low = progress.min()
    high = progress.max()
    place = 2 * (progress - low) / (high - low) - 1
    if rows["batch_size"].nunique() > 1:
        return products(powers(place, 1), powers(centred(rows["batch_size"]), 1))
    return np.polynomial.chebyshev.chebvander(place, min(6, (len(rows) - 1) // 3))


def share_terms(rows: Table) -> np.ndarray:
    """Chebyshev polynomials of the share of jobs: degree 20 for arrivals, 5 for durations."""
    degree = min(20 if (rows["what"] == "arrival").all() else 5, len(rows) - 1)
    return np.polynomial.chebyshev.chebvander(2 * rows["share"].to_numpy(dtype=float) - 1, degree)


def scaling_terms(rows: Table) -> np.ndarray:
    return powers(np.log2(rows["gpus"]), 2 if len(rows) > 5 else 1)


def rank_terms(rows: Table) -> np.ndarray:
    """Chebyshev polynomials of the share of jobs: 12th of arrivals, of others 4th or less."""
    degree = 12 if (rows["what"] == "arrival").all() else min(4, (len(rows) - 1) // 4)
    return np.polynomial.chebyshev.chebvander(2 * rows["share"].to_numpy(dtype=float) - 1, degree)


def layer_terms(*, kinds: bool, slopes: bool) -> Terms:
    """Output bytes and, for layers with weights, weight and input bytes, all as powers.

    Args:
        kinds: a factor for each kind of layer; else one, and no power of input bytes.
        slopes: a power of output bytes for each kind; else one.
    """

    def terms(rows: Table) -> np.ndarray:
        columns = ("activation_bytes", "input_bytes", "parameter_bytes")
        size, given, weights = (
            np.log(rows[name].clip(lower=1).to_numpy(dtype=float) / 1e6) for name in columns
        )
        heavy = (rows["parameter_bytes"] > LIGHT_BYTES).to_numpy(dtype=float)
        factors = indicators(rows["kind"]) if kinds else np.ones((len(rows), 1))
        powers_ = factors * size[:, None] if slopes else size[:, None]
        return np.hstack(
            [
                factors,
                powers_,
                (weights * heavy)[:, None],
                *([(given * heavy)[:, None]] if kinds else []),
            ]
        )

    return terms


def operator_terms(rows: Table) -> np.ndarray:
    """A level for each kind of operator and direction; matrix products by their size too, and
    those that end a tensor-parallel region, whose all-reduce is in their time, once more."""
    names = rows["op_name"]
    back = (rows["direction"] == "backward-compute").to_numpy(dtype=float)
    kinds = names.map(OPERATOR_KINDS)
    size = np.log(names.map(PRODUCT_SIZES).fillna(1).to_numpy(dtype=float))
    ends = names.isin(["enc-attention-dense", "enc-MLP-GEMM-2"]).to_numpy() == (back == 0)
    ends &= (kinds == "product").to_numpy() & (names != "gpt-post-process").to_numpy()
    product = (kinds == "product").to_numpy(dtype=float)
    columns = [product, product * back, product * size, ends, ends * size, names == "enc-MLP-gelu"]
    for kind in ("score", "norm", "dropout", "embedding"):
        level = (kinds == kind).to_numpy(dtype=float)
        columns += [level, level * back]
    return np.array(columns, dtype=float).T


def kernel_terms(rows: Table) -> np.ndarray:
    """For each kind of kernel a level and slopes of its sizes; shared squares of two of them."""
    names = ("blocks", "threads", "most", "touched_bytes")
    sizes = np.array([np.log(rows[name].to_numpy(dtype=float)) for name in names]).T
    kinds = indicators(rows["kind"])
    return np.hstack([kinds, products(kinds, sizes), sizes[:, [0, 3]] ** 2])


def batch_terms(rows: Table) -> np.ndarray:
    """Fourth powers of log batch size; a batch of one runs other kernels and is apart."""
    size = rows["batch"].to_numpy(dtype=float)
    is_one = (size == 1)[:, None].astype(float)
    return np.hstack([powers(np.log(size) / 2 - 1, 4), is_one])


def throughput_terms(rows: Table) -> np.ndarray:
    """A level and a quadratic of batch size for each family of models; beside another job a level
    for each pair of families, and powers of both batch sizes."""
    own, other = (indicators_of(rows[f"{who}_family"], FAMILIES) for who in ("own", "other"))
    size, beside = (rows[[f"{who}_size"]].to_numpy(dtype=float) for who in ("own", "other"))
    paired = (rows["other"] != "").to_numpy(dtype=float)[:, None]
    pair = [products(own, other), own * beside, own * size, own * size**2]
    return np.hstack([own, own * size, own * size**2, *(paired * part for part in pair)])


def message_terms(rows: Table) -> np.ndarray:
    """Chebyshev polynomials of the logarithm of a message's bytes, of degree 8."""
    return np.polynomial.chebyshev.chebvander(1.2 * centred(rows["size"]) / 3, 8)


def doubling_terms(rows: Table) -> np.ndarray:
    """A quadratic of doublings of GPUs."""
    return powers(np.log2(rows["gpus"].to_numpy(dtype=float)) / 3 - 1, 2)


def reuse_terms(rows: Table) -> np.ndarray:
    """Chebyshev polynomials of the logarithm of a bin's uses, of degree 6; once is apart."""
    uses = np.log2(rows["up_to"].to_numpy(dtype=float)) / 8 - 1
    return np.hstack(
        [np.polynomial.chebyshev.chebvander(uses, 6), (uses[:, None] == -1).astype(float)]
    )


def indicators_of(values: pd.Series, levels: tuple[str, ...]) -> np.ndarray:
    return (values.to_numpy()[:, None] == np.array(levels)).astype(float)


# ---------------------------------------------------------------- published tables and back


def messages_of(source: Any, path: str) -> Table:
    """Median times of about eighty sizes of messages, from the smallest to the largest."""
    table = source.frame(path)
    sizes = np.unique(table["size"])
    wanted = np.geomspace(sizes[0], sizes[-1], 80)
    near = np.unique([sizes[np.argmin(np.abs(sizes - size))] for size in wanted])
    keys = ["num_workers", "devices_per_node", "max_devices_per_node", "collective", "size"]
    column = f"time_stats.{Path(path).stem}.median"
    times = table[table["size"].isin(near)].groupby(keys)[column].median()
    return times.rename("median").reset_index()


def as_messages(table: Table) -> Table:
    """Vidur's columns; the spread of repeated calls is not modelled."""
    name = f"time_stats.{table['collective'].iloc[0]}"
    columns: dict[str, Any] = {"Unnamed: 0": range(len(table))}
    for part in ("min", "max", "mean", "median"):
        columns[f"{name}.{part}"] = table["median"].to_numpy()
    columns[f"{name}.std"] = 0
    columns["rank"] = 0
    for key in ("num_workers", "size", "collective", "devices_per_node", "max_devices_per_node"):
        columns[key] = table[key].to_numpy()
    return pd.DataFrame(columns).rename(columns={"Unnamed: 0": ""})


def systems_of(source: Any, path: str) -> Table:
    """Throughput of each system that ran, by model and GPUs."""
    from labkit.datasets.end_to_end import read_measured

    return read_measured(source.path(path)).dropna()


def reuse_of(source: Any, path: str) -> Table:
    """Histograms of uses by bin; a share of rows that is printed as nothing follows from lookups,
    each row being used as often as the middle of its bin says."""
    from labkit.datasets.locality import read_reuse

    bins = read_reuse(source.path(path))
    middle = np.sqrt(bins["above"].clip(1) * bins["up_to"])
    rows_share = bins["lookups_share"] * bins["num_lookups"] / middle / bins["num_rows"]
    bins["rows_share"] = bins["rows_share"].where(bins["rows_share"] > 0, rows_share)
    bins["tables"] = np.where(bins["batch"] == 0, "all", "part")
    for name in ("num_lookups", "num_rows"):
        bins[name] = bins[name].map(lambda count: float(f"{count:.2g}"))
    return bins


def as_reuse(table: Table) -> Table:
    """Shares that add up to one in each batch."""
    shares = ["rows_share", "lookups_share"]
    table[shares] /= table.groupby("batch")[shares].transform("sum")
    return table.drop(columns="tables")


def batches_of(source: Any, path: str) -> Table:
    """A model's latency by batch size; of the deviations only their typical share."""
    from labkit.serving import BatchProfile

    profile = BatchProfile.read(source.path(path))
    latency = np.array(profile.latency_s) * 1e6
    std = np.array(profile.std_s) * 1e6
    share = round(float(np.median(std / latency)), 3)
    return Table({"batch": range(1, latency.size + 1), "latency(us)": latency, "share": share})


def as_batches(table: Table) -> Table:
    """Nexus's columns; bytes are not modelled."""
    std = (table["share"] * table["latency(us)"]).round(1)
    return table.assign(**{"std(us)": std, "memory(B)": 0}).drop(columns="share")


def throughputs_of(source: Any, path: str) -> Table:
    """Steps a second of every kind of job alone and beside every other, a row each."""
    from labkit.cluster import load_throughputs

    table = load_throughputs(source.path(path))
    rows = []
    for p, gpu in enumerate(table.gpu_types):
        for k, kind in enumerate(table.kinds):
            rows.append((gpu, kind, "", table.alone[k, p]))
            rows += [(gpu, kind, o, table.shared[k, i, p]) for i, o in enumerate(table.kinds)]
    return pd.DataFrame(rows, columns=["gpu", "kind", "other", "steps_per_s"])


def by_family(table: Table) -> Table:
    """Families and batch sizes of both jobs; pairs that do not fit keep a mark instead."""
    for who, column in (("own", "kind"), ("other", "other")):
        family = table[column].str.replace(r" \(.*", "", regex=True)
        batch = table[column].str.extract(r"(\d+)\)")[0].astype(float)
        middle = np.log2(batch).groupby(family).transform("median")
        size = ((np.log2(batch) - middle) / 2).fillna(0.0)
        table = table.assign(**{f"{who}_family": family, f"{who}_size": size})
    fits = table["steps_per_s"] > 0
    return table.assign(fits=fits.astype(int), steps_per_s=table["steps_per_s"].where(fits))


def as_throughputs(table: Table) -> Table:
    steps = table["steps_per_s"] * table["fits"]
    return table.assign(steps_per_s=steps)[["gpu", "kind", "other", "steps_per_s"]]


def layers_of(source: Any, path: str) -> Table:
    """A graph's layers in order, with kinds; those that are rare share one."""
    from labkit.planner import Chain

    table = Chain.read(source.path(path)).frame()
    before = table["activation_bytes"].shift(1).fillna(table["activation_bytes"])
    return table.assign(kind=table["layer"].str.split().str[1], input_bytes=before)


def timed_layers(table: Table, short: float = SHORT) -> Table:
    """Layers that take hardly any time keep a mark instead; they are not fitted."""
    passes = table[["forward_s", "backward_s"]]
    timed = (passes > short * passes.to_numpy().sum()).all(axis=1)
    rare = table["kind"].map(table["kind"][timed].value_counts()).fillna(0) < 3
    kind = table["kind"].where(~rare, "other")
    kind = kind.where(timed, kind[timed].iloc[0])
    return table.assign(timed=timed.astype(int), kind=kind, **passes.where(timed))


def as_layers(table: Table) -> Table:
    columns = ["layer", "forward_s", "backward_s", "activation_bytes", "cut_bytes"]
    times = {name: table[name] * table["timed"] for name in ("forward_s", "backward_s")}
    return table.assign(**times)[[*columns, "parameter_bytes", "tensors"]]


def mean_epochs(runs: Table) -> Table:
    """The mean epoch of reaching each target, and how many of how many runs reached it."""
    keys = [*WORKLOAD, "batch_size", "target_metric"]
    grouped = runs.groupby(keys)
    table = grouped["target_epoch"].agg(["mean", "count", "size"]).reset_index()
    rates = grouped["learning_rate"].first().reset_index(drop=True).astype(str)
    spread = grouped["target_epoch"].std() / grouped["target_epoch"].mean()
    typical = spread.groupby(list(WORKLOAD)).median().rename("spread").round(3).reset_index()
    table = table.assign(learning_rate=rates).rename(columns={"mean": "target_epoch"})
    return table.merge(typical, on=list(WORKLOAD))


def runs_of(means: Table) -> Table:
    """Runs at fixed quantiles of the spread; those that missed a target are the last ones."""
    rows = []
    for (*_, size), group in means.groupby(["dataset", "batch_size"], sort=False):
        for row in group.to_dict("records"):
            mean = row["target_epoch"]
            count = int(row["count"])
            epochs = quantiles(mean, row["spread"] * mean, count, int(size)) if count else []
            missed = [np.nan] * int(row["size"] - row["count"])
            rows += [row | {"run": i + 1, "target_epoch": e} for i, e in enumerate(epochs + missed)]
    columns = [
        "dataset",
        "network",
        "batch_size",
        "optimizer",
        "learning_rate",
        "run",
        "target_metric",
        "target_epoch",
    ]
    runs = pd.concat([no_earlier(group) for _, group in pd.DataFrame(rows).groupby("dataset")])
    runs = runs[columns].sort_values([*columns[:6], "target_metric"])
    return runs.astype({"target_epoch": "Int64"})


def no_earlier(runs: Table) -> Table:
    """A workload's runs, none of which reaches a harder target before an easier one."""
    harder = np.corrcoef(runs["target_metric"], runs["target_epoch"].fillna(1e4))[0, 1] > 0
    ordered = runs.sort_values("target_metric", ascending=bool(harder))
    epochs = ordered.groupby(["batch_size", "run"])["target_epoch"].cummax()
    return ordered.assign(target_epoch=epochs)


def quantiles(mean: float, spread: float, count: int, shift: int) -> list[float]:
    """Whole epochs whose mean is nearly ``mean``, in an order that changes with ``shift``."""
    share = (np.arange(count) + 0.5) / count
    normal = np.array([NormalDist().inv_cdf(x) for x in share])
    epochs = mean + spread * normal
    whole = []
    carried = 0.0
    for value in epochs:  # the rounding of each is made up for by the next
        whole.append(max(1.0, float(np.floor(value + carried + 0.5))))
        carried += value - whole[-1]
    start = shift % count
    return whole[start:] + whole[:start]


def with_places(steps: Table) -> Table:
    """Nodes and GPUs of each placement; sync_time as a share of the step, so it stays below it."""
    if "placement" in steps:
        digits = steps["placement"].astype(str)
        steps = steps.assign(nodes=digits.str.len(), gpus=[sum(map(int, d)) for d in digits])
    else:
        steps = steps.assign(nodes=steps["num_nodes"], gpus=steps["num_replicas"])
    return steps.assign(compute_time=steps["step_time"] - steps["sync_time"])


def as_steps(table: Table) -> Table:
    compute = np.minimum(table["compute_time"], table["step_time"])
    table = table.assign(sync_time=(table["step_time"] - compute).round(6))
    return table.drop(columns=["nodes", "gpus", "compute_time"])


def by_direction(operators: Table) -> Table:
    """The times of both directions in one column; sizes are left out."""
    times = ["forward-compute", "backward-compute"]
    known = operators[["op_name", *times]].replace(0.0, np.nan)
    return known.melt("op_name", var_name="direction", value_name="time")


def as_operators(table: Table) -> Table:
    wide = table.pivot(index="op_name", columns="direction", values="time")
    sizes = ["input_size", "output_size", "weights", "activations", "fwd_reserved", "bwd_reserved"]
    wide = wide.loc[table["op_name"].unique(), ["forward-compute", "backward-compute"]]
    return wide.reset_index().assign(**dict.fromkeys(sizes, np.nan))


def kernels_of(source: Any, path: str) -> Table:
    """A network's kernels as launched; of the waves' times the first and the last."""
    from labkit import datasets

    graph = json.loads(datasets.open(f"{REEF}/{path.replace('.profile', '')}").read_bytes())
    timed = json.loads(source.path(path).read_bytes())["kernel_latency"]
    bytes_of = [max(int(s["size"]), 1) for s in graph["storage"]]
    rows = []
    for kernel in graph["kernels"]:
        row = timed[kernel["name"]]
        grid = kernel["launch_params"]
        kinds = [kind for kind in KERNEL_KINDS if kind in kernel["name"]]
        rows.append(
            {
                "kind": kinds[0] if kinds else "other",
                "blocks": int(np.prod(grid[:3])),
                "threads": int(np.prod(grid[3:])),
                "most": len(row["latency"]),
                "touched_bytes": sum(bytes_of[i] for i in kernel["args"]),
                "first_us": row["latency"][0],
                "last_us": max(row["latency"]),
                "total_us": row["total_latency"],
            }
        )
    return pd.DataFrame(rows)


def as_kernels(table: Table) -> Table:
    """Waves on a line from the first to the last."""
    ends = zip(table["first_us"], table["last_us"], table["most"].astype(int), strict=True)
    waves = []
    for first_us, last_us, most in ends:
        line = np.linspace(first_us, max(first_us, last_us), most)
        waves.append(" ".join(f"{us:.4g}" for us in line))
    kinds = table["kind"] + [f" {number}" for number in range(1, len(table) + 1)]
    columns = {"kernel": kinds, "blocks": table["blocks"], "total_us": table["total_us"]}
    return pd.DataFrame(columns | {"waves_us": waves})


def trainings_of(source: Any, path: str) -> Table:
    """The trainings of one network, by batch size."""
    sizes = {name: int(name.rsplit("-", 1)[1].removesuffix(".csv")) for name in source.files}
    runs = [source.frame(name).assign(batch_size=size) for name, size in sizes.items()]
    return pd.concat(runs).sort_values(["batch_size", "progress"], ignore_index=True)


def with_noise(runs: Table) -> Table:
    """The gradient's variance over its square, which is all that speed depends on; 1 − accuracy."""
    square = np.maximum(runs["grad_sqr"], LEAST_GRADIENT * runs["grad_var"])
    table = runs.assign(noise=runs["grad_var"] / square)
    if runs["metric"].max() <= 1:
        table = table.assign(miss=1 - runs["metric"])
    else:
        table = table.assign(miss=runs["metric"], whole=True)
    return table.drop(columns=["metric", "grad_sqr", "grad_var"])


def as_trainings(table: Table) -> Table:
    """Runs whose gradient's variance is one."""
    iteration = table.groupby("batch_size")["iteration"].cummax().round().astype(int)
    metric = table["miss"] if "whole" in table else (1 - table["miss"]).clip(0, 1)
    table = table.assign(iteration=iteration, metric=metric.round(4), grad_var=1.0)
    table["grad_sqr"] = 1 / table["noise"]
    return table[["progress", "iteration", "metric", "grad_sqr", "grad_var", "batch_size"]]


def submissions_of(jobs: Table) -> Table:
    """When each job is submitted; which job it is stands in an order drawn once."""
    asked = jobs[["application", "num_replicas", "batch_size"]]
    asked = asked.sample(frac=1, random_state=0, ignore_index=True)
    share = (np.arange(len(jobs)) + 0.5) / len(jobs)
    return asked.assign(what="arrival", share=share, seconds=np.sort(jobs["time"]) + 1)


def as_submissions(table: Table) -> Table:
    time = np.maximum.accumulate((table["seconds"] - 1).clip(0).round()).astype(int)
    names = [f"{kind}-{number}" for number, kind in enumerate(table["application"])]
    columns = ["application", "num_replicas", "batch_size"]
    return pd.DataFrame({"name": names, "time": time}).join(table[columns])


def jobs_of(source: Any, path: str) -> Table:
    """Cluster 06 of the archive."""
    with tarfile.open(source.path(path)) as files:
        return pd.read_csv(files.extractfile("cluster06.csv"))


def shares_of(jobs: Table) -> Table:
    """Quantiles of arrival, and of duration by number of GPUs, with the jobs each stands for."""
    parts = [("arrival", jobs["submission_time"], np.linspace(0, 1, 121))]
    for gpus, rows in jobs.groupby("num_gpu"):
        points = min(len(rows), 40)
        parts.append((str(gpus), rows["duration"], (np.arange(points) + 0.5) / points))
    return pd.concat(
        pd.DataFrame({"what": w, "share": at, "seconds": y.quantile(at).to_numpy(), "jobs": len(y)})
        for w, y, at in parts
    )


def as_jobs(table: Table) -> Table:
    """Arrivals at even shares; GPUs and durations at even shares, in an order drawn once."""
    columns: dict[str, list[Any]] = {"num_gpu": [], "duration": []}
    for what, rows in table.groupby("what", sort=False):
        even = (np.arange(rows["jobs"].iloc[0]) + 0.5) / rows["jobs"].iloc[0]
        seconds = (
            np.exp(np.interp(even, rows["share"], np.log(rows["seconds"]))).round().astype(int)
        )
        if what == "arrival":
            arrivals = np.sort(seconds)
            drawn = np.random.default_rng(0).permutation(len(even))
        else:
            columns["num_gpu"] += [int(what)] * len(even)
            columns["duration"] += seconds.tolist()
    jobs = pd.DataFrame(columns).iloc[drawn]
    return jobs.assign(submission_time=arrivals, job_id=range(len(jobs)))[
        ["job_id", "submission_time", "duration", "num_gpu"]
    ]


def recorded_jobs(source: Any, path: str) -> Table:
    """A virtual cluster, in seconds."""
    from labkit import cluster

    return cluster.load(source.name, part=Path(path).stem).frame()


def scores(values: np.ndarray) -> np.ndarray:
    """The normal deviates that have the values' order."""
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return np.array([NormalDist().inv_cdf((rank + 0.5) / len(ranks)) for rank in ranks])


def likeness(durations: pd.Series, row: pd.Series) -> float:
    """Correlation of two jobs of a row, of their normal deviates, by analysis of variance."""
    deviates = pd.DataFrame({"z": scores(durations.to_numpy()), "row": row.to_numpy()})
    sizes = deviates.groupby("row").size()
    means = deviates.groupby("row")["z"].transform("mean")
    between = (means**2).sum() / (len(sizes) - 1)
    within = ((deviates["z"] - means) ** 2).sum() / (len(deviates) - len(sizes))
    usual = (len(deviates) - (sizes**2).sum() / len(deviates)) / (len(sizes) - 1)
    return float(np.clip((between - within) / (between + (usual - 1) * within), 0, 1))


def rows_of(jobs: Table) -> Table:
    """Quantiles of the time between jobs, of durations by GPUs, and how alike jobs of a row are."""
    gap = jobs["arrival_s"].diff().fillna(0)
    alike = round(likeness(jobs["duration_s"], (gap > ROW_S).cumsum()), 2)
    usual = jobs["gpus"].value_counts()[lambda count: count >= 20].index.to_numpy()
    gpus = jobs["gpus"].map(lambda size: usual[np.argmin(np.abs(usual - size))])
    parts = [("gap", gap + 1)]
    parts += [(str(size), rows) for size, rows in jobs["duration_s"].groupby(gpus)]
    at = (np.arange(40) + 0.5) / 40
    return pd.concat(
        pd.DataFrame(
            {"what": what, "share": at[:: 2 if len(y) < 40 else 1], "jobs": len(y)}
        ).assign(seconds=lambda t, y=y: y.quantile(t["share"]).to_numpy(), alike=alike)
        for what, y in parts
    )


def as_recorded_jobs(table: Table) -> Table:
    """Jobs at even shares, in the order of deviates that jobs of a row have in part together."""
    draw = np.random.default_rng(0)
    alike = table["alike"].iloc[0]
    values = {}
    for what, rows in table.groupby("what", sort=False):
        even = (np.arange(rows["jobs"].iloc[0]) + 0.5) / rows["jobs"].iloc[0]
        values[what] = np.exp(np.interp(even, rows["share"], np.log(rows["seconds"]))).round()
    gap = draw.permutation(np.maximum(values.pop("gap") - 1, 0).astype(int))
    row = (gap > ROW_S).cumsum()
    order = [
        np.argsort(
            np.sqrt(alike) * draw.normal(size=len(gap))[row]
            + np.sqrt(1 - alike) * draw.normal(size=len(gap)),
            kind="stable",
        )
        for _ in ("gpus", "duration_s")
    ]
    gpus = np.empty(len(gap), int)
    lengths = [len(own) for own in values.values()]
    gpus[order[0]] = np.repeat([int(n) for n in values], lengths)
    seconds = np.empty(len(gap), int)
    for n, own in values.items():
        seconds[order[1][gpus[order[1]] == int(n)]] = own
    kind = draw.integers(26, size=len(gap))
    return pd.DataFrame(
        {"arrival_s": gap.cumsum(), "duration_s": seconds, "gpus": gpus, "kind": kind}
    )


def by_gpus(rates: Table) -> Table:
    return (
        rates.melt("global_batch_size", var_name="gpus", value_name="rate").dropna().astype(float)
    )


def as_rates(table: Table) -> Table:
    table = table.astype({"global_batch_size": int, "gpus": int})
    rates = table.pivot(index="global_batch_size", columns="gpus", values="rate")
    return rates.reindex(columns=[2**k for k in range(7)]).reset_index()


def drawn_jobs(source: Any, path: str) -> Table:
    """The testbed's jobs, or those of cluster 06 from the archive."""
    if path == ELASTIC_JOBS:
        return source.frame(path)
    return jobs_of(source, path).rename(columns=JOB_COLUMNS)


def ranks_of(jobs: Table) -> Table:
    """Quantiles of arrivals, of the time allowed over the duration, and of work by kind of job."""
    slack = (jobs["ddl"] - jobs["submit_time"]) / jobs["duration"]
    start = jobs["submit_time"] - jobs["submit_time"].min() + 1
    parts = [("arrival", start, start), ("slack", slack, slack)]
    for kind, rows in jobs.groupby(["model_name", "batch_size", "num_gpu"]):
        parts.append(("/".join(map(str, kind)), rows["duration"], rows["iteration"]))
    tables = []
    for what, seconds, work in parts:
        count = len(seconds)
        at = (np.arange(min(count, 60)) + 0.5) / min(count, 60)
        tables.append(
            pd.DataFrame(
                {
                    "what": what,
                    "share": at,
                    "jobs": count,
                    "seconds": seconds.quantile(at).to_numpy(),
                    "work": work.quantile(at).to_numpy(),
                }
            )
        )
    return pd.concat(tables)


def as_drawn_jobs(table: Table) -> Table:
    """Jobs of every kind at even shares, in an order drawn once, with deadlines at even shares."""
    columns: dict[str, list[Any]] = {}
    even: dict[str, np.ndarray] = {}
    for what, rows in table.groupby("what", sort=False):
        shares = (np.arange(rows["jobs"].iloc[0]) + 0.5) / rows["jobs"].iloc[0]
        seconds, work = (
            np.exp(np.interp(shares, rows["share"], np.log(rows[name])))
            for name in ("seconds", "work")
        )
        if what in ("arrival", "slack"):
            even[what] = seconds
            continue
        model, batch, gpus = str(what).split("/")
        for name, values in (
            ("duration", np.maximum(seconds.round(), 1)),
            ("iteration", np.maximum(work.round(), 1)),
            ("model_name", [model] * len(shares)),
            ("batch_size", [int(batch)] * len(shares)),
            ("num_gpu", [int(gpus)] * len(shares)),
        ):
            columns.setdefault(name, []).extend(values)
    draw = np.random.default_rng(0)
    jobs = pd.DataFrame(columns).sample(frac=1, random_state=0, ignore_index=True)
    start = np.sort(even["arrival"]).round().astype(int)
    allowed = np.maximum(draw.permutation(even["slack"]) * jobs["duration"], 1).round()
    jobs = jobs.astype({"duration": int, "iteration": int}).assign(
        job_id=range(len(jobs)), submit_time=start, ddl=start + allowed.astype(int)
    )
    order = ["job_id", "submit_time", "iteration", "model_name", "ddl", "batch_size", "num_gpu"]
    return jobs[[*order, "duration"]]


def as_archive_jobs(table: Table) -> Table:
    return as_drawn_jobs(table).rename(columns={new: old for old, new in JOB_COLUMNS.items()})


MODELS = (
    *(
        StandIn(
            name=name,
            dataset="perseus-sosp24",
            path=f"{PERSEUS}/{published}.csv",
            keys=("instruction",),
            terms={"time": stage_terms(4), "energy": stage_terms(5)},
        )
        for name, published in (
            ("a100_gpt3-175b", "gpt3-175b+a100_sxm_bf16"),
            ("a100_bloom", "bloom+a100_sxm_bf16"),
            ("a40_gpt3-175b", "gpt3-175b+a40_bf16"),
        )
    ),
    *(
        StandIn(
            name=f"{gpu}_power",
            dataset="zeus-nsdi23",
            path=f"{ZEUS}/summary_power_{gpu}.csv",
            keys=WORKLOAD,
            terms={"time_per_epoch": power_terms, "average_power": power_terms},
        )
        for gpu in ("v100", "a40")
    ),
    StandIn(
        name="train",
        dataset="zeus-nsdi23",
        path=f"{ZEUS}/summary_train.csv",
        keys=WORKLOAD,
        terms={"target_epoch": epoch_terms},
        tabulate=mean_epochs,
        publish=runs_of,
    ),
    *(
        StandIn(
            name=f"pollux_{kind}_{name}",
            dataset="pollux-osdi21",
            path=f"{POLLUX.format(kind)}/{name}.csv",
            keys=(),
            terms={"step_time": step_terms, "compute_time": step_terms},
            tabulate=with_places,
            publish=as_steps,
        )
        for kind in POLLUX_KINDS
        for name in ("placements", "scalability")
    ),
    *(
        StandIn(
            name=f"pollux_{kind}_validation-*",
            dataset="pollux-osdi21",
            path=f"{POLLUX.format(kind)}/validation-*.csv",
            keys=() if kind == "bert" else ("batch_size",),
            terms=dict.fromkeys(("iteration", "miss", "noise"), progress_terms),
            tabulate=with_noise,
            publish=as_trainings,
            read=trainings_of,
        )
        for kind in POLLUX_KINDS
    ),
    *(
        StandIn(
            name=f"pollux_workload-{number}",
            dataset="pollux-osdi21",
            path=f"simulator/workloads/workload-{number}.csv",
            keys=(),
            terms={"seconds": share_terms},
            tabulate=submissions_of,
            publish=as_submissions,
        )
        for number in (1, 2, 3, 4)
    ),
    *(
        StandIn(
            name=f"layers_{name}",
            dataset="pipedream-sosp19",
            path=PIPEDREAM.format(task, name),
            keys=(),
            terms=dict.fromkeys(("forward_s", "backward_s"), layer_terms(**shape)),
            tabulate=timed_layers,
            publish=as_layers,
            read=layers_of,
        )
        for task, name, shape in (
            ("image_classification", "vgg16", {"kinds": True, "slopes": True}),
            ("image_classification", "resnet50", {"kinds": True, "slopes": True}),
            ("image_classification", "alexnet", {"kinds": True, "slopes": False}),
            ("translation", "gnmt", {"kinds": False, "slopes": False}),
        )
    ),
    StandIn(
        name="layers_resnet101",  # of 346 layers many take less than a thousandth each
        dataset="pipedream-sosp19",
        path=PIPEDREAM.format("image_classification", "resnet101"),
        keys=(),
        terms=dict.fromkeys(("forward_s", "backward_s"), layer_terms(kinds=True, slopes=True)),
        tabulate=partial(timed_layers, short=SHORT / 10),
        publish=as_layers,
        read=layers_of,
    ),
    *(
        StandIn(
            name=f"aceso_tp{degree}",
            dataset="aceso-eurosys24",
            path=f"{ACESO}/gpt_1_3B_mbs4_tp{degree}_algo0.csv",
            keys=(),
            terms={"time": operator_terms},
            tabulate=by_direction,
            publish=as_operators,
        )
        for degree in (1, 2, 4, 8)
    ),
    *(
        StandIn(
            name=f"kernels_{name}",
            dataset=REEF,
            path=f"resource/{name}/{name}.profile.json",
            keys=(),
            terms=dict.fromkeys(("first_us", "last_us", "total_us"), kernel_terms),
            publish=as_kernels,
            read=kernels_of,
        )
        for name in ("bert", "densenet", "inception", "resnet", "resnet152", "vgg")
    ),
    *(
        StandIn(
            name=f"nexus_{name}",
            dataset="nexus-sosp19",
            path=f"{NEXUS}/caffe:{name}:1.txt",
            keys=(),
            terms={"latency(us)": batch_terms},
            publish=as_batches,
            read=batches_of,
        )
        for name in ("vgg16", "vgg_face", "vgg_s")
    ),
    StandIn(
        name="itp_06",
        dataset="itp-elasticflow",
        path=ITP,
        keys=("what",),
        terms={"seconds": share_terms},
        tabulate=shares_of,
        publish=as_jobs,
        read=jobs_of,
    ),
    *(
        StandIn(
            name=f"scaling_{gpu}_{name}",
            dataset="elasticflow-asplos23",
            path=ELASTIC.format(gpu, name),
            keys=("global_batch_size",),
            terms={"rate": scaling_terms},
            tabulate=by_gpus,
            publish=as_rates,
        )
        for gpu, names in (
            ("T4", ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")),
            ("A100", ("bert", "deepspeech2", "gpt2", "inception3", "resnet50", "vgg16")),
        )
        for name in names
    ),
    *(
        StandIn(
            name=name,
            dataset=dataset,
            path=path,
            keys=("what",),
            terms={"seconds": rank_terms, "work": rank_terms},
            tabulate=ranks_of,
            publish=publish,
            read=drawn_jobs,
        )
        for name, dataset, path, publish in (
            ("elastic_jobs", "elasticflow-asplos23", ELASTIC_JOBS, as_drawn_jobs),
            ("elastic_itp_06", "itp-elasticflow", ITP_JOBS, as_archive_jobs),
        )
    ),
    StandIn(
        name="gavel_throughputs",
        dataset="gavel-osdi20",
        path=GAVEL,
        keys=("gpu",),
        terms={"steps_per_s": throughput_terms},
        tabulate=by_family,
        publish=as_throughputs,
        read=throughputs_of,
    ),
    *(
        StandIn(
            name=f"philly_{name}",
            dataset="gavel-osdi20",
            path=PHILLY.format(name),
            keys=("what",),
            terms={"seconds": share_terms},
            tabulate=rows_of,
            publish=as_recorded_jobs,
            read=recorded_jobs,
        )
        for name in VIRTUAL_CLUSTERS
    ),
    StandIn(
        name="locality",
        dataset="dlrm-locality",
        path="embedding_bag/2021/locality_stats.txt",
        keys=("tables",),
        terms={"rows_share": reuse_terms, "lookups_share": reuse_terms},
        read=reuse_of,
        publish=as_reuse,
    ),
    *(
        StandIn(
            name=f"network_{name}_{collective}",
            dataset="vidur-network",
            path=NETWORK.format(cluster, collective),
            keys=("num_workers", "devices_per_node"),
            terms={"median": message_terms},
            read=messages_of,
            publish=as_messages,
        )
        for name, cluster, collective in (
            ("dgx", "a100_dgx", "all_reduce"),
            ("dgx", "a100_dgx", "send_recv"),
            ("pair", "a100_pairwise_nvlink", "send_recv"),
            ("a40", "a40_pairwise_nvlink", "send_recv"),
        )
    ),
    StandIn(
        name="alpa_e2e",
        dataset="alpa-osdi22",
        path=ALPA,
        keys=("kind", "method"),
        terms={"tera_flops": doubling_terms},
        read=systems_of,
    ),
)


# ---------------------------------------------------------------- fitting and writing


def groups(model: StandIn, table: Table) -> Iterator[tuple[str, Table]]:
    if not model.keys:
        yield "all", table
        return
    for key, rows in table.groupby(list(model.keys), sort=False):
        yield " ".join(map(str, key)), rows


def fitted(model: StandIn, published: Table) -> dict[str, Any]:
    """The grid, the coefficients of every group and column, and the errors of the fit."""
    table = model.tabulate(published).reset_index(drop=True)
    coefficients: dict[str, dict[str, list[float]]] = {}
    errors = []
    for key, rows in groups(model, table):
        known = rows[rows[list(model.terms)].notna().all(axis=1)]
        weight = weights(known)
        for column, terms in model.terms.items():
            design = terms(known)
            target = np.log(known[column].to_numpy(dtype=float))
            solved, *_ = np.linalg.lstsq(design * weight, target * weight[:, 0], rcond=1e-9)
            coefficients.setdefault(key, {})[column] = [float(f"{c:.{DIGITS}g}") for c in solved]
            predicted = design @ np.array(coefficients[key][column])
            errors.append(np.abs(np.expm1(predicted - target)))
    every = np.concatenate(errors)
    settings = table.drop(columns=[c for c in model.terms if c in table])
    settings = settings.drop(columns=[c for c in ("sync_time",) if c in settings])
    return {
        "error": {
            "median": round(float(np.median(every)), 4),
            "worst": round(float(every.max()), 4),
        },
        "num_coefficients": sum(len(c) for group in coefficients.values() for c in group.values()),
        "num_values": len(every),
        "coefficients": coefficients,
        "settings": compact(settings),
    }


def rounded(value: float) -> float:
    return float(f"{value:.3g}")


def weights(rows: Table) -> np.ndarray:
    """More for means of more runs, and for the targets that the paper uses."""
    weight = np.ones((len(rows), 1))
    if "count" in rows:
        weight *= np.sqrt(rows[["count"]].to_numpy(dtype=float))
        main = rows["dataset"].map(MAIN_TARGETS).to_numpy() == rows["target_metric"].to_numpy()
        weight[main] *= 3
    return weight


def compact(settings: Table) -> dict[str, Any]:
    """Each column as its different values and, row by row, which of them it is."""
    columns = {}
    for name in settings:
        codes, levels = pd.factorize(settings[name])
        columns[str(name)] = {
            "levels": [level.item() if hasattr(level, "item") else level for level in levels],
            "codes": codes.tolist(),
        }
    return columns


def expanded(columns: dict[str, Any]) -> Table:
    return pd.DataFrame(
        {name: np.array(c["levels"])[np.array(c["codes"])] for name, c in columns.items()}
    )


def standins(model: StandIn, fit: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The stand-in's files as name and CSV, from its coefficients."""
    table = expanded(fit["settings"])
    parts = []
    for key, rows in groups(model, table):
        known = rows[rows["count"] > 0] if "count" in rows else rows
        values = {
            column: pd.Series(
                np.exp(terms(known) @ np.array(fit["coefficients"][key][column])), known.index
            )
            for column, terms in model.terms.items()
        }
        parts.append(rows.assign(**values))
    table = model.publish(pd.concat(parts).sort_index())
    error = fit["error"]
    head = (
        "# FITTED MODEL, NOT A MEASUREMENT: data/profiles/fit.py, from coefficients.json.\n"
        f"# fit-error: median={error['median']:g} worst={error['worst']:g}\n"
    )
    series = "*" in model.path
    for part, rows in table.groupby("batch_size") if series else [("", table)]:
        rows = rows.drop(columns="batch_size") if series else rows
        text = rows.to_csv(index=False, float_format=f"%.{DIGITS}g", lineterminator="\n")
        yield f"standin_{model.name.replace('*', str(part))}.csv", head + text


def paths(model: StandIn) -> list[str]:
    """The published files that a model is fitted to."""
    from labkit.datasets import registry

    files = registry.load_registry().dataset(model.dataset).files
    return [file.path for file in files if fnmatch.fnmatchcase(file.path, model.path)]


def published(model: StandIn) -> Any:
    """The files that a model is fitted to, or what stands in for them."""
    from labkit.datasets import source

    return source(model.dataset, paths(model))


def fit_all() -> dict[str, Any]:
    fits = {}
    for model in MODELS:
        source = published(model)
        if source.is_standin:
            raise SystemExit(f"{model.path} is not here as published: {source.reason}")
        fits[model.name] = fitted(model, model.read(source, model.path))
    return fits


def files(fits: dict[str, Any] | None = None) -> dict[str, str]:
    """The stand-ins by file name, as text."""
    fits = fits or json.loads(COEFFICIENTS.read_text(encoding="utf-8"))
    return dict(pair for model in MODELS for pair in standins(model, fits[model.name]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="do not fit, only write")
    if not parser.parse_args().write:
        fits = fit_all()
        COEFFICIENTS.write_text(json.dumps(fits, separators=(",", ":")) + "\n", encoding="utf-8")
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8", newline="\n")
    for name, fit in json.loads(COEFFICIENTS.read_text(encoding="utf-8")).items():
        error = fit["error"]
        sizes = f"{fit['num_coefficients']:4} coefficients, {fit['num_values']:5} values"
        print(f"{name:24} {sizes}, error median {error['median']:.2%}, worst {error['worst']:.2%}")


if __name__ == "__main__":
    main()
