"""Profiles as chains: what crosses a cut, what is merged, and files that are none."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import datasets, planner
from labkit.errors import BadFile, BadValue
from labkit.planner.chain import DATASET, linear_order, short_names
from tests.planner.conftest import chains, published
from tests.published import Need

TIMES = "forward_compute_time=1.000, backward_compute_time=2.000"
DIAMOND = "\n".join(
    [f"node1 -- Input -- {TIMES}, activation_size=9.0, parameter_size=0.000"]
    + [
        f"node{n} -- Conv2d(3, {n}) -- {TIMES}, activation_size={size}, parameter_size={10 * n}.0"
        for n, size in ((2, "100.0"), (3, "[30.0; 3.0]"), (4, "40.0"), (5, "5.0"))
    ]
    + [f"\tnode{a} -- node{b}" for a, b in ((1, 2), (2, 3), (2, 4), (3, 5), (4, 5))]
)


def test_a_branch_crosses_every_cut_until_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(DIAMOND)
    chain = planner.Chain.read(path)
    assert chain.cut_bytes == (100, 100 + 33, 33 + 40, 0)
    assert chain.tensors == (1, 2, 2, 0)
    assert chain.time_s == pytest.approx(4 * 0.003)
    assert chain.coarse().cut_bytes == (100, 0)
    assert chain.coarse().parameter_bytes == (20, 120)
    chain.frame().to_csv(tmp_path / "chain.csv", index=False)
    assert planner.Chain.read(tmp_path / "chain.csv") == chain


@given(st.data())
def test_order_respects_every_edge(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    names = data.draw(st.permutations([f"node{n}" for n in range(count)]))
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    order = linear_order(names, edges)
    assert sorted(order) == sorted(names)
    assert all(order.index(a) < order.index(b) for a, b in edges)
    if edges:
        with pytest.raises(BadValue, match="form a cycle"):
            linear_order(names, [*edges, edges[0][::-1]])


@given(chains(), st.floats(0.1, 10))
def test_scaling_and_sums(chain: planner.Chain, batch: float) -> None:
    other = chain.scaled(batch=batch)
    assert other.time_s == pytest.approx(chain.time_s * batch)
    assert other.parameter_bytes == chain.parameter_bytes
    whole = [chain.compute_s[i, i + 1] for i in range(len(chain))]
    assert chain.compute_s[0, -1] == pytest.approx(sum(whole))


@pytest.mark.parametrize("name", ["resnet50", "gnmt", "densenet121", "squeezenet1_0"])
def test_cuts_of_published_graphs_separate_them(name: str) -> None:
    """networkx, which knows nothing of our order: what crosses a cut is what later layers take."""
    chain = published(name)
    path = datasets.source(DATASET, [short_names()[name]]).path(short_names()[name])
    graph = nx.DiGraph()
    for line in path.read_text().splitlines():
        if line.startswith("\t"):
            graph.add_edge(*line.strip().split(" -- "))
    names = [layer.split()[0] for layer in chain.layers]
    graph = graph.subgraph(names)
    assert nx.is_directed_acyclic_graph(graph)
    rng = np.random.default_rng(0)
    for cut in rng.integers(1, len(chain), 12):
        before = set(names[:cut])
        sources = {a for a, b in graph.edges if a in before and b not in before}
        assert not {a for a, b in graph.edges if a not in before and b in before}
        assert chain.tensors[cut - 1] == len(sources)
        sizes = dict(zip(names, chain.activation_bytes, strict=True))
        assert chain.cut_bytes[cut - 1] == pytest.approx(sum(sizes[n] for n in sources))


def test_vgg16_was_profiled_with_128_examples() -> None:
    """Its first layer's output is 64 channels of 224 × 224 numbers of 4 bytes an example."""
    assert published("vgg16").activation_bytes[0] == 128 * 64 * 224 * 224 * 4


def test_every_published_profile_is_read() -> None:
    for name in short_names():
        chain = published(name)
        assert len(chain) > 20
        assert chain.time_s > 0
        assert all(a.split()[0] != b.split()[0] for a, b in pairwise(chain.layers))


def test_shipped_configurations_are_those_of_the_tests(published_data: Need) -> None:
    """Replicas of each stage in the authors' files; ResNet-50's best plan is data parallel."""
    found: dict[str, str] = {}
    for network, devices in (("vgg16", 4), ("vgg16", 16), ("alexnet", 4)):
        file = f"models/{network}/gpus={devices}/hybrid_conf.json"
        source = published_data(DATASET, [f"runtime/image_classification/{file}"])
        ranks = json.loads(source.path(file).read_text())["stage_to_rank_map"]
        found[f"{network}-{devices}"] = "-".join(str(len(r)) for r in ranks.values())
    assert found == {"vgg16-4": "3-1", "vgg16-16": "15-1", "alexnet-4": "3-1"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not a table"),
        ("layer,forward_s\na,1\n", "lacks the columns backward_s"),
        (DIAMOND.replace("backward_compute_time", "backward"), "no layer of a profile"),
        (DIAMOND + "\n\tnode9 -- node5", "edges name layers that are missing: node9"),
        (
            "layer,forward_s,backward_s,activation_bytes,cut_bytes,parameter_bytes\na,-1,0,0,0,0\n",
            "forward_s must be",
        ),
    ],
)
def test_files_that_are_no_profile(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "profile.txt"
    path.write_text(text)
    with pytest.raises(BadFile, match=r"profile\.txt") as caught:
        planner.Chain.read(path)
    assert problem in str(caught.value)
    assert "valid:" in str(caught.value)


def test_chains_that_do_not_add_up() -> None:
    right: dict[str, Any] = {
        "forward_s": (1.0, 1.0), "backward_s": (1.0, 1.0), "activation_bytes": (0, 0),
        "cut_bytes": (0, 0), "parameter_bytes": (0, 0),
    }  # fmt: skip
    with pytest.raises(BadValue, match=r"Chain.cut_bytes has 1 values, forward_s 2"):
        planner.Chain(**right | {"cut_bytes": (0,)})
    with pytest.raises(BadValue, match="at least one layer that takes time"):
        planner.Chain(**right | {"forward_s": (0, 0), "backward_s": (0, 0)})
