"""``labkit memory`` as a person meets it: tables, JSON, pages, errors and exit codes."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit import memory
from labkit.cli import main
from labkit.memory.commands import commands, sheets, words
from labkit.memory.commands.options import Spread
from labkit.memory.jobs.recipe import PRESETS
from labkit.memory.plans import search
from labkit.memory.plans.estimate import COMPONENTS
from labkit.memory.plans.plan import FIELDS

GROUP = "memory"
MODEL = "tiny-gpt"


Ran = Callable[..., tuple[str, str]]
Told = Callable[..., dict[str, Any]]
Refused = Callable[..., str]


def plan(**parallel: Any) -> memory.Plan:
    return memory.Plan(
        model=memory.Model.preset(MODEL),
        parallel=memory.Parallel(**parallel),
        recipe=memory.Recipe.bf16_mixed(),
        batch=memory.Batch(seq=32),
    )


def test_plan_says_what_python_says(told: Told) -> None:
    found = told("plan", MODEL, "--dp", 4, "--zero", 3, "--seq", 32)
    same = plan(dp=4, zero=3)
    assert found["peak_bytes"] == same.peak_bytes
    assert found["peak_moment"] == same.peak_moment
    assert sum(one["num_bytes"] for one in found["components"]) == same.peak_bytes
    assert [one["moment"] for one in found["moments"]] == same.moments().index.tolist()
    assert found["assumptions"] == list(same.assumptions)
    assert found["traffic"]
    assert found["fits"]


def test_plan_shows_tables_and_writes_files(ran: Ran, tmp_path: Path) -> None:
    page, data, rows = (tmp_path / name for name in ("plan.html", "plan.json", "plan.csv"))
    out, _ = ran(
        "plan", MODEL, "--dp", 4, "--seq", 32, "--html", page, "--json", data, "--csv", rows
    )
    for text in ("At the peak", "Moments of a step", "optimizer step", "all-reduce of gradients"):
        assert text in out
    assert "Moments of a step" in page.read_text()
    assert json.loads(data.read_text())["command"] == "plan"
    table = list(csv.DictReader(rows.open()))
    assert [one["moment"] for one in table] == plan(dp=4).moments().index.tolist()


def test_plan_takes_every_other_field_and_explains(ran: Ran, told: Told) -> None:
    away = ("offload_optimizer=cpu", "offload_gradients=cpu", "attention=eager")
    sets = [item for one in away for item in ("--set", one)]
    found = told("plan", MODEL, "--dp", 2, "--zero", 2, "--seq", 32, *sets)
    assert {one["place"] for one in found["elsewhere"]} == {"cpu"}
    papers = told("plan", MODEL, "--seq", 32, "--set", "formula=zero-paper")
    assert [row["moment"] for row in papers["moments"]] == ["all at once"]
    text, _ = ran("plan", MODEL, "--seq", 32, "--explain", "activation.mlp")
    assert "activation.mlp.up: 2·(2·b·s·f), l = 2" in text
    uneven = told("plan", "small-gpt", "--pp", 2, "--seq", 32, "--set", "layers=1,1")
    assert uneven["peak_bytes"] == told("plan", "small-gpt", "--pp", 2, "--seq", 32)["peak_bytes"]
    bare = told("plan", MODEL, "--seq", 32, "--set", "master=none", "--set", "amsgrad=true")
    assert bare["peak_bytes"] < told("plan", MODEL, "--seq", 32)["peak_bytes"]


def test_a_world_size_leaves_the_rest_to_dp(told: Told, refused: Refused) -> None:
    filled = told("plan", "small-gpt", "-w", 12, "--tp", 3, "--pp", 2, "--zero", 1, "--seq", 32)
    given = ("--dp", 2, "--tp", 3, "--pp", 2, "--zero", 1, "--seq", 32)
    assert filled["components"] == told("plan", "small-gpt", *given)["components"]
    assert told("plan", "small-gpt", *given, "-w", 12)["components"] == filled["components"]
    axes = ("-a", "tp=1,2,3", "-a", "pp=1,2")
    rows = told("sweep", "small-gpt", "-w", 8, "--seq", 32, *axes)["rows"]
    assert [row["dp"] for row in rows] == [8, 4, 4, 2, None, None]
    assert all("world size (8) must divide by tp · cp · pp" in row["problem"] for row in rows[4:])
    held = told("sweep", "small-gpt", "-w", 8, "--seq", 32, "-a", "dp=4,8", "-a", "tp=1,2")["rows"]
    assert [row["problem"] == "" for row in held] == [False, True, True, False]
    text = refused("fit", MODEL, "-w", 8, "--vary", "dp")
    assert "--world-size must be left out where dp varies" in text


def test_allowances_are_named_and_taken_off_what_may_be_filled(ran: Ran, told: Told) -> None:
    given = ("plan", MODEL, "--seq", 32, "--device", "2GB", "--headroom", 0.5)
    less = (*given, "--context", "100MB", "--fragmentation", 0.25)
    assert told(*given)["usable_bytes"] == 1e9
    assert told(*less)["usable_bytes"] == 0.75e9 - 1e8
    assert told(*less)["peak_bytes"] == told(*given)["peak_bytes"]
    out, _ = ran(*less)
    assert "less 25% fragmentation and 100 MB of CUDA context (allowances)" in " ".join(out.split())


@pytest.mark.parametrize("where", ["file", "folder"])
def test_models_come_from_configurations(told: Told, tmp_path: Path, where: str) -> None:
    sizes = {"n_layer": 2, "n_embd": 50, "n_head": 5, "vocab_size": 257, "n_positions": 33}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", **sizes}))
    found = told("plan", path if where == "file" else tmp_path, "--seq", 32)
    assert found["peak_bytes"] == plan().peak_bytes


def test_a_configuration_runs_the_operators_of_a_version(
    told: Told, refused: Refused, tmp_path: Path
) -> None:
    """Before 4.54 keys and values are copied for all query heads."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 8}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 64, "intermediate_size": 96}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    peaks = {
        version: told("plan", tmp_path, "--seq", 512, "--transformers-version", version)
        for version in ("4.53.3", "4.54", "5.23")
    }
    assert peaks["4.53.3"]["peak_bytes"] > peaks["4.54"]["peak_bytes"]
    assert peaks["4.54"]["peak_bytes"] == peaks["5.23"]["peak_bytes"]
    assert any("transformers 4.53" in note for note in peaks["4.53.3"]["assumptions"])
    assert "4.28 to 4.37, 4.40 to 5.23" in refused(
        "plan", tmp_path, "--transformers-version", "4.1"
    )
    assert "left out for the preset" in refused("plan", MODEL, "--transformers-version", "5.0")


@pytest.mark.parametrize("vary", ["micro_batch", "seq", "layers", "dp", "zero"])
def test_fit_says_what_python_says(told: Told, vary: str) -> None:
    given = ("--seq", 32, "--headroom", 0.5, "--vary", vary)
    found = told("fit", MODEL, *given)
    same = memory.fit(plan(), vary=vary, device="H100-80GB", headroom=0.5)
    assert (found["value"], found["vary"]) == (same.value, vary)
    assert same.plan is not None
    assert found["peak_bytes"] == same.plan.peak_bytes <= found["usable_bytes"]


def test_nothing_fits_is_an_answer(ran: Ran, told: Told) -> None:
    found = told("fit", MODEL, "--device", "1kB", "--vary", "seq")
    assert found["value"] is found["peak_bytes"] is None
    assert "nothing" in ran("fit", MODEL, "--device", "1kB", "--vary", "micro-batch")[0]


def test_sweep_has_a_row_for_every_combination(told: Told, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    page = tmp_path / "page.html"
    axes = ("-a", "dp=1,8", "-a", "zero=0,3", "-a", "tp=1,3", "-a", "recompute=none,full")
    found = told("sweep", MODEL, "--seq", 32, *axes, "--csv", table, "--html", page)
    assert len(found["rows"]) == 16
    bad = [row for row in found["rows"] if row["tp"] == 3]
    assert all(row["peak_bytes"] is None and not row["fits"] for row in bad)
    assert all("must divide by tp (3)" in row["problem"] for row in bad)
    assert len(table.read_text().splitlines()) == 17
    assert "zero 3, tp 1, recompute full" in page.read_text()


def test_a_papers_arithmetic_is_swept_too(told: Told) -> None:
    """Everything is held at once, so twice the samples hold twice the activations."""
    given = ("--seq", 32, "--set", "formula=zero-paper", "-a", "micro_batch=1,2")
    few, many = told("sweep", MODEL, *given)["rows"]
    assert many["activations_bytes"] == 2 * few["activations_bytes"]
    assert few["peak_moment"] == "all at once"
    assert few["fits"]


def test_sweep_takes_models_and_recipes_and_draws_lines(told: Told, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    axes = ("-a", "model=tiny-gpt,small-gpt", "-a", "recipe=bf16-mixed,fp32-adam")
    found = told("sweep", MODEL, "--seq", 32, *axes)
    assert found["axes"]["model"] == ["tiny-gpt", "small-gpt"]
    alone = told("plan", "small-gpt", "--seq", 32, "--recipe", "fp32-adam")
    assert found["rows"][-1]["peak_bytes"] == alone["peak_bytes"]
    numbers = ",".join(map(str, range(1, 41)))
    told("sweep", MODEL, "--seq", 32, "-a", f"dp={numbers}", "-a", "zero=0,3", "--html", page)
    assert "what may be filled" in page.read_text()


@pytest.mark.parametrize("framework", ["hf-trainer", "deepspeed", "torchtune"])
def test_a_framework_swept_is_its_plans(told: Told, framework: str) -> None:
    """Buckets of replicas and what stage 3 wraps are a framework's by dp and stage, row by row."""
    spoken = ("llama-2-7b", "-f", framework, "--lora-rank", 8, "--seq", 512)
    axes = ("-a", "dp=1,8", "-a", "zero=0,3", "-a", "micro_batch=1,2")
    rows = told("sweep", *spoken, *axes)["rows"]
    assert len(rows) == 8
    for row in rows:
        own = ("--dp", row["dp"], "--zero", row["zero"], "-b", row["micro_batch"])
        assert row["peak_bytes"] == told("plan", *spoken, *own)["peak_bytes"]


def test_a_sweep_starts_where_there_is_a_plan(told: Told) -> None:
    """What FSDP gathers cannot be said of one rank, where no option names more: an axis does."""
    spoken = ("llama-2-7b", "--recipe", "qlora-fsdp", "--seq", 512)
    (row,) = told("sweep", *spoken, "-a", "dp=8", "-a", "zero=3")["rows"]
    assert row["peak_bytes"] == told("plan", *spoken, "--dp", 8, "--zero", 3)["peak_bytes"]


def test_frontier_says_what_python_says(told: Told, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    given = ("--seq", 32, "--dp", 2, "--device", "4MB", "--headroom", 1)
    found = told("frontier", "tiny-gpt", "small-gpt", *given, "--html", page)
    assert [row["model"] for row in found["rows"]] == ["tiny-gpt"] * 4 + ["small-gpt"] * 4
    for row, zero in zip(found["rows"], [0, 1, 2, 3] * 2, strict=True):
        model = memory.Model.preset(row["model"])
        here = replace(plan(dp=2, zero=zero), model=model)
        assert row["peak_bytes"] == here.peak_bytes
        assert row["dp"] == memory.fit(here, vary="dp", device=4_000_000).value
    assert {row["dp"] is None for row in found["rows"]} == {True, False}
    assert "What fits" in page.read_text()


def test_check_compare_and_accuracy(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from labkit.memory.oracles import cases

    page = tmp_path / "page.html"
    given = ("--seq", 32, "--recipe", "fp32-adam", "--html", page)
    found = told("check", MODEL, *given)
    assert {one["difference_bytes"] for one in found["components"]} == {0}
    assert "Predicted and measured" in page.read_text()
    counts = told("compare", MODEL, "--seq", 32, "--dp", 8, "--html", page)
    assert "deepspeed" in counts["refused"]
    assert any(row["megatron"] for row in counts["components"])
    assert "by convention" in page.read_text()
    tiny = replace(plan(), recipe=memory.Recipe.fp32_adam())
    monkeypatch.setattr(cases, "on_one_rank", lambda *, every: (tiny,))
    found = told("accuracy", "--part", "models", "--part", "gpu", "--html", page)
    (row,) = found["rows"]
    assert row["predicted_bytes"] == row["tracked_bytes"]
    assert row["predicted_moment"] == row["tracked_moment"]
    assert found["gpu"] or "not yet measured" in page.read_text()


LEFT = "config.json"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{}", "has no 'model_type'; known types: gpt2"),
        ('{"model_type": "gpt3"}', "no model_type 'gpt3'; did you mean 'gptj' or 'gpt2'"),
        ('{"model_type": "llama", "hidden_size": 64}', "needs 'num_hidden_layers'"),
        (
            '{"model_type": "gpt2", "n_layer": 2, "n_embd": "wide"}',
            "'n_embd' of a gpt2 configuration must be",
        ),
        (
            '{"model_type": "gpt2", "n_embd": 50, "n_layer": -2, "n_head": 5, "vocab_size": 9,'
            ' "n_positions": 8}',
            "num_layers must be >= 1, got -2",
        ),
        ("model_type: gpt2", "config.json: must be JSON"),
        ("[1, 2]", "config.json: not a configuration; found [1, 2]; valid: a JSON object"),
    ],
)
def test_a_bad_configuration_is_named(
    refused: Refused, tmp_path: Path, text: str, rule: str
) -> None:
    path = tmp_path / LEFT
    path.write_text(text)
    assert rule in refused("plan", path)


def test_unreadable_configurations_are_named(refused: Refused, tmp_path: Path) -> None:
    missing = tmp_path / "none" / LEFT
    assert f"no configuration at {missing}: No such file" in refused("plan", missing)
    assert "no configuration at" in refused("plan", tmp_path)  # a folder without one
    (tmp_path / LEFT).write_bytes(b"\xff\xfe\x00")
    assert "config.json: not UTF-8 text" in refused("plan", tmp_path)


def test_files_that_cannot_be_written_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not wrong use but a failure: exit code 1, one paragraph."""
    (tmp_path / "file").write_text("")
    for option in ("--json", "--csv", "--html"):
        assert main(["memory", "plan", MODEL, option, str(tmp_path / "file" / "x")]) == 1
        assert f"error: cannot write {tmp_path / 'file'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("plan", "lama-2-7b"), "did you mean 'llama-2-7b'"),
        (("plan", "llama-2-7b", "--tp", 3), "heads (32) must divide by tp (3)"),
        (("plan", "llama-2-7b", "--pp", 3), "num_layers (32) must divide by the stages (3)"),
        (("plan", "mixtral-8x7b", "--dp", 3, "--set", "ep=3"), "experts (8) must divide by ep (3)"),
        (("plan", MODEL, "--dp", 4, "--set", "ep=2"), "has no experts: ep must be 1, got 2"),
        (("plan", MODEL, "--dp", 4, "--set", "ep=3"), "dp × cp (4) must divide by ep (3)"),
        (("plan", MODEL, "--dp", 2, "--world-size", 9), "= 2, got 9"),
        (("plan", MODEL, "--tp", 5, "-w", 9), "world size (9) must divide by tp · cp · pp"),
        (("plan", MODEL, "-w", -9), "world_size must be a whole number, at least 1"),
        (("plan", MODEL, "--seq", 34), "seq must be <= 33, the positions that tiny-gpt has learnt"),
        (("plan", MODEL, "--seq", -4), "Batch.seq must be a whole number, at least 1"),
        (
            ("plan", MODEL, "--micro-batch", -1),
            "Batch.micro_batch must be a whole number",
        ),
        (("plan", MODEL, "--dp", 0), "Parallel.dp must be a whole number, at least 1"),
        (("plan", MODEL, "--tp", -2), "Parallel.tp must be a whole number, at least 1"),
        (("plan", MODEL, "--pp", -2), "Parallel.pp must be a whole number, at least 1"),
        (("plan", MODEL, "--zero", -1), "got -1"),
        (("plan", MODEL, "--zero", 4), "got 4"),
        (
            ("plan", MODEL, "--recompute", -3),
            "Batch.recompute must be one of 'none', 'selective'",
        ),
        (("plan", MODEL, "--recompute", "some"), "got 'some'"),
        (
            ("plan", MODEL, "--headroom", -0.5),
            "above 0, at most 1; got -0.5",
        ),
        (
            ("plan", MODEL, "--headroom", 1.5),
            "above 0, at most 1; got 1.5",
        ),
        (
            ("plan", MODEL, "--context", "-1GB"),
            "Plan.context_bytes must be a finite number",
        ),
        (("plan", MODEL, "--context", "much"), "--context: 'much' is no number of bytes"),
        (
            ("plan", MODEL, "--fragmentation", 1),
            "Plan.fragmentation must be a finite number",
        ),
        (("plan", MODEL, "--recipe", "bf16"), "no recipe 'bf16'"),
        (("plan", MODEL, "--device", "H300"), "no accelerator 'H300'"),
        (("plan", MODEL, "--device", "V10"), "or a number of bytes, such as 24GiB"),
        (("plan", MODEL, "--device", "24 gigs"), "--device: '24 gigs' is no number of bytes"),
        (("plan", MODEL, "--device", "24GB,2GB"), "--device must be one number of bytes"),
        (("plan", MODEL, "--context", "1gb,2gb"), "--context must be one number of bytes"),
        (("plan", MODEL, "--device", "A100"), "did you mean"),
        (("plan", MODEL, "--device", "24"), "--device must have a unit below 1,048,576 bytes"),
        (("plan", MODEL, "--device", "0GB"), "--device must be at least one byte"),
        (("plan", MODEL, "--set", "colour=red"), "no field (--set) 'colour'"),
        (("plan", MODEL, "--set", "ep=some"), "--set ep must be a whole number, at least 1"),
        (("plan", MODEL, "--set", "sp=3"), "--set sp must be true or false; got 3"),
        (("plan", MODEL, "--set", "attention=magic"), "--set attention must be one of 'eager'"),
        (("plan", MODEL, "--set", "layers=x"), "--set layers must be a list of"),
        (
            ("plan", MODEL, "--set", "accumulation=-1"),
            "--set accumulation must be a whole number",
        ),
        (("plan", MODEL, "--set", "offload_optimizer=cpu"), "zero must be >= 1"),
        (("plan", MODEL, "--explain", "feelings"), "no component 'feelings'"),
        (("fit", MODEL, "--vary", "colour"), "no quantity to vary 'colour'"),
        (("fit", "llama-2-7b", "--tp", 3), "heads (32) must divide by tp (3)"),
        (("sweep", MODEL), "--axis must be given"),
        (("sweep", MODEL, "-a", "dp"), "--axis must be NAME=V,V"),
        (("sweep", MODEL, "-a", "dp=1,"), "--axis must be NAME=V,V"),
        (("sweep", MODEL, "-a", "dp=1", "-a", "dp=2"), "--axis dp must be given once"),
        (
            ("sweep", MODEL, "-a", "dp=0,1"),
            "dp must be whole numbers >= 1, at most",
        ),
        (
            ("sweep", MODEL, "-a", "dp=one"),
            "dp must be whole numbers >= 1, at most",
        ),
        (("sweep", MODEL, "-a", "dpp=1"), "no axis 'dpp'; did you mean"),
        (("sweep", MODEL, "-a", "model=tiny"), "no model 'tiny'"),
        (("frontier", "tiny"), "no model 'tiny'"),
        (("frontier", "llama-2-7b", "--tp", 3), "heads (32) must divide by tp (3)"),
        (("check", MODEL), "no master copy"),
        (("check", MODEL, "--oracle", "magic"), "no oracle 'magic'"),
    ],
)
def test_wrong_use_names_the_rule(
    refused: Refused, arguments: tuple[object, ...], rule: str
) -> None:
    assert rule in refused(*arguments)


def test_a_sweep_says_of_each_row_which_rule_it_breaks(told: Told) -> None:
    rows = told("sweep", "small-gpt", "--seq", 32, "-a", "tp=-1,x,4,1", "-a", "ep=1")["rows"]
    told_of = [row["problem"] for row in rows]
    assert "Parallel.tp must be a whole number, at least 1" in told_of[0]
    assert "Parallel.tp must be a whole number, at least 1" in told_of[1]
    assert "heads (6) must divide by tp (4)" in told_of[2]
    assert told_of[3] == ""


# ---------------------------------------------------------------- examples


@pytest.mark.parametrize("example", commands.examples)
def test_examples_work_as_they_stand(example: str, ran: Ran) -> None:
    if " check " in example:
        pytest.importorskip("torch")
    program, group, *arguments = shlex.split(example)
    assert (program, group) == ("labkit", GROUP)
    assert ran(*arguments)[0]


def test_a_framework_says_its_defaults_and_keeps_its_allowances_apart(ran: Ran) -> None:
    said = ("--dp", 8, "--seq", 8192)
    text, _ = ran("plan", "llama-3-8b", "--framework", "torchtitan", *said)
    for there in ("Defaults of torchtitan", "allowance for the allocator", "margin"):
        assert there in text
    bundle, _ = ran("plan", "llama-3-8b", "-f", "torchtitan", *said, "--json", "-")
    plan = memory.FRAMEWORKS["torchtitan"].plan(
        memory.Model.preset("llama-3-8b"), dp=8, seq=8192, card="H100-80GB"
    )
    assert json.loads(bundle)["peak_bytes"] == plan.peak_bytes
    bare, _ = ran("plan", "llama-3-8b", "--zero", 3, "--recipe", "fsdp-bf16", *said, "--json", "-")
    assert json.loads(bare)["peak_bytes"] > plan.peak_bytes


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("--framework", "megatronn"), "did you mean 'megatron'"),
        (("--set", "dp=3", "--dp", 4), "--set dp must be left out where --dp is given"),
        (("--recompute", 50), "recompute must be a word, or at most the 12 layers"),
        (("--set", "logits_held=fp32", "--set", "loss=fused"), "logits_held must be none"),
        (("--set", "wrap=blocks"), "wrap must be parts unless zero is 3"),
    ],
)
def test_options_that_contradict_are_refused(
    refused: Refused, arguments: tuple[object, ...], rule: str
) -> None:
    assert rule in refused("plan", "gpt2-124m", *arguments)


def test_adapters_from_options_are_those_of_python(told: Told, tmp_path: Path) -> None:
    options = ("--lora-rank", 8, "--lora-targets", "q_proj,o", "--seq", 64)
    found = told("plan", "mistral-7b", *options)
    adapter = memory.Adapter(rank=8, targets=("q", "o"))
    model = memory.Model.preset("mistral-7b")
    batch = memory.Batch(seq=64)
    same = memory.Plan(
        model=model, recipe=memory.Recipe.preset("lora", adapter=adapter), batch=batch
    )
    assert found["peak_bytes"] == same.peak_bytes
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"r": 8, "target_modules": ["q_proj", "o_proj"]}))
    assert told("plan", "mistral-7b", "--lora-config", file, "--seq", 64) == found
    packed = told("plan", "mistral-7b", *options, "--recipe", "qlora")
    base = memory.Adapter(rank=8, targets=("q", "o"), base="nf4")
    recipe = memory.Recipe.preset("qlora", adapter=base)
    same = memory.Plan(model=model, recipe=recipe, batch=batch)
    assert packed["peak_bytes"] == same.peak_bytes
    prepared = ("--recipe", "qlora-prepared", "--recompute", "full")
    wide = told("plan", "mistral-7b", *options, *prepared)
    read = told("plan", "mistral-7b", "--lora-config", file, "--seq", 64, *prepared)
    assert read == wide


def test_a_trained_part_from_an_option_is_that_of_python(told: Told, refused: Refused) -> None:
    options = ("--train", "layers.30-31, head", "--recipe", "fp32-adam", "--seq", 64)
    found = told("plan", "mistral-7b", *options)
    same = memory.Plan(
        model=memory.Model.preset("mistral-7b"),
        recipe=memory.Recipe.fp32_adam(trained=("layers.30-31", "head")),
        batch=memory.Batch(seq=64),
    )
    assert found["peak_bytes"] == same.peak_bytes
    assert any("layers from 30 on have a backward pass" in note for note in found["assumptions"])
    assert "trained must name layers from 0 to 1" in refused("plan", MODEL, "--train", "layers.12")
    said = refused("plan", MODEL, "--train", "head", "--set", "trained=norm")
    assert "--set trained must be left out" in said
    assert "trained must be empty" in refused("plan", MODEL, "--train", "head", "--lora-rank", 4)


def test_options_of_adapters_that_cannot_be_name_themselves(
    refused: Refused, tmp_path: Path
) -> None:
    assert "--lora-rank must be at least 1, got 0" in refused("plan", MODEL, "--lora-rank", 0)
    said = refused("plan", "mistral-7b", "--lora-targets", "q,w1")
    assert "no target of mistral-7b (--lora-targets) 'w1'" in said
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"target_modules": ["q_proj"]}))
    said = refused("plan", "mistral-7b", "--lora-config", file)
    assert "lacks a field 'r'" in said
    assert "adapter_config.json" in said
    said = refused("plan", "mistral-7b", "--lora-config", file, "--lora-rank", 4)
    assert "--lora-config must be given without" in said
    assert "must be a readable" in refused("plan", "mistral-7b", "--lora-config", tmp_path / "no")
    assert "tp must be 1" in refused("plan", "mistral-7b", "--lora-rank", 4, "--tp", 2)


def test_each_rank_of_a_pipeline_stands_in_a_table(ran: Ran, told: Told, refused: Refused) -> None:
    given = ("plan", "small-gpt", "--pp", 2, "--seq", 32)
    out, _ = ran(*given)
    assert "Ranks of the pipeline, each at its own peak" in out
    found = told(*given)
    assert [row["rank"] for row in found["ranks"]] == [0, 1]
    assert max(row["peak_bytes"] for row in found["ranks"]) == found["peak_bytes"]
    for row in found["ranks"]:
        one = told(*given, "--rank", row["rank"])
        assert (one["peak_bytes"], one["peak_moment"]) == (row["peak_bytes"], row["peak_moment"])
        assert one["rank"] == row["rank"]
    assert "rank must be in 0..1" in refused(*given, "--rank", 2)
    assert "Ranks of the pipeline" not in ran("plan", MODEL, "--seq", 32)[0]


@pytest.mark.parametrize(
    ("said", "room"),
    [
        ("RTX 4090", "RTX-4090"),
        ("rtx4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 5090", "RTX-5090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("h100", "H100-80GB"),
        ("A100 80GB", "A100-80GB"),
        ("24 GiB", 24 * 2**30),
        ("24gib", 24 * 2**30),
        ("80 gb", 80 * 10**9),
        ("25769803776", 24 * 2**30),
    ],
)
def test_devices_are_known_as_people_write_them(told: Told, said: str, room: int | str) -> None:
    found = told("plan", MODEL, "--seq", 32, "--device", said, "--headroom", 1)
    assert found["usable_bytes"] == plan().usable_bytes(room)


def test_fit_answers_three_questions_in_one_table(ran: Ran, told: Told) -> None:
    given = ("fit", MODEL, "--seq", 32, "--device", "4MB", "--headroom", 1)
    found = told(*given)
    assert [row["vary"] for row in found["limits"]] == ["micro_batch", "seq", "dp"]
    same = memory.limits(plan(), device=4_000_000)
    assert [row["value"] for row in found["limits"]] == same["value"].tolist()
    assert found["value"] == told(*given, "--vary", "micro-batch")["value"]
    out, _ = ran(*given)
    for text in ("largest micro-batch", "longest sequence", "fewest GPUs", "what binds"):
        assert text in " ".join(out.split())
    filled = told("fit", MODEL, "--seq", 32, "-w", 4)["limits"]
    assert filled[2]["value"] == 1


def test_each_question_of_fit_is_searched_once(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest micro-batch was looked for twice, seconds each where a network is traced."""
    asked: list[str] = []
    fit = search.fit

    def counted(plan: memory.Plan, *, vary: str, **given: Any) -> search.Fit:
        asked.append(vary)
        return fit(plan, vary=vary, **given)

    for place in (search, memory):
        monkeypatch.setattr(place, "fit", counted)
    found = told("fit", MODEL, "--seq", 32, "--device", "4MB", "--headroom", 1)
    assert asked == ["micro_batch", "seq", "dp"]
    same = fit(plan(), vary="micro_batch", device=4_000_000)
    assert same.plan is not None
    assert found["vary"] == "micro_batch"
    assert found["value"] == same.value
    assert found["usable_bytes"] == same.usable_bytes
    assert (found["peak_bytes"], found["peak_moment"]) == (
        same.plan.peak_bytes,
        same.plan.peak_moment,
    )
    nothing = told("fit", MODEL, "--seq", 32, "--device", "1kB")
    assert nothing["value"] is nothing["peak_bytes"] is nothing["peak_moment"] is None


def test_an_answer_says_how_sure_it_is(ran: Ran, told: Told) -> None:
    """On the measured peaks that are most like it; also where nothing like it was measured."""
    given = ("llama-3-8b", "--framework", "torchtitan", "--dp", 8, "--set", "cp=2", "--seq", 8192)
    out = " ".join(ran("plan", *given)[0].split())
    assert "how sure within" in out
    assert "measured peaks of torchtitan" in out
    assert "with other frameworks only: context parallelism" in out
    assert "Measured peaks most like it" in out
    found = told("plan", *given)["measured"]
    assert (found["framework"], found["elsewhere"]) == ("torchtitan", ["context parallelism"])
    assert found["num_peaks"] == len(memory.published.peak_errors("torchtitan"))
    assert len(found["nearest"]) >= 3
    for command in (("fit",), ("fit", "--vary", "dp"), ("sweep", "-a", "zero=3")):
        name, *rest = command
        assert told(name, *given, *rest)["measured"]["verdict"].startswith("within")
    spread = ("--dp", 8, "--seq", 2048, "--recipe", "fsdp-bf16")
    rows = told("frontier", "llama-3-8b", *spread)["measured"]
    every = [told("plan", "llama-3-8b", *spread, "--zero", stage)["measured"] for stage in range(4)]
    assert rows == every
    assert len({row["verdict"] for row in rows}) > 1, "each stage has its own neighbours"
    frontier = " ".join(ran("frontier", "llama-3-8b", *spread)[0].split())
    assert "how sure" in frontier
    assert all(row["verdict"] in frontier for row in rows)
    papers = told("plan", MODEL, "--seq", 32, "--set", "formula=zero-paper")["measured"]
    assert (papers["verdict"], papers["nearest"]) == ("not measured", [])


@pytest.mark.parametrize(
    "given",
    [
        ("llama-3-8b", "-f", "hf-trainer", "--lora-rank", 16, "--seq", 2048, "-d", "24GiB"),
        ("llama-2-7b", "-f", "deepspeed", "--dp", 2, "--zero", 1, "-d", "24GiB"),
        ("llama-2-7b", "-f", "hf-trainer", "--dp", 8, "-b", 2, "-d", "24GiB"),
        ("llama-3-8b", "-f", "hf-trainer", "--dp", 8, "-b", 2, "-d", "H100-80GB"),
    ],
)
def test_a_plan_that_does_not_fit_says_what_helps(told: Told, given: tuple[Any, ...]) -> None:
    """One change at a time, each what the command answers to it; nothing where all fits."""
    found = told("plan", *given)["helps"]
    assert found
    assert [one["fits"] for one in found] == sorted((one["fits"] for one in found), reverse=True)
    for one in found:
        again = told("plan", *given, *shlex.split(one["say"]))
        assert (again["peak_bytes"], again["fits"]) == (one["peak_bytes"], one["fits"])
    assert "helps" not in told("plan", *given, "--device", "8TB")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("-f", "axolotl"), "say --framework hf-trainer"),
        (("-f", "NeMo"), "say --framework megatron"),
        (("--recipe", "dpo"), "say twice the --micro-batch"),
        (("--recipe", "paged_adamw_8bit"), "say adam-8bit-paged"),
        (("--set", "load_in_4bit=true"), "say --recipe qlora"),
        (("--set", "gradient_checkpointing=true"), "say --recompute full"),
        (("--set", "per_device_train_batch_size=4"), "say --micro-batch"),
    ],
)
def test_words_of_other_tools_name_ours(
    refused: Refused, given: tuple[str, ...], message: str
) -> None:
    assert message in " ".join(refused("plan", "llama-2-7b", *given).split())


def test_every_word_that_is_named_instead_is_known() -> None:
    """Recipes, frameworks, options and fields that the hints tell people to say."""
    options = {*Spread.__dataclass_fields__, "set"}
    for hints in words.WORDS.values():
        for hint in hints.values():
            for name in re.findall(r"--recipe ([a-z0-9-]+)", hint):
                assert name in PRESETS
            for name in re.findall(r"--framework ([a-z0-9-]+)", hint):
                assert name in memory.FRAMEWORKS
            for name in re.findall(r"--set ([a-z_]+)=", hint):
                assert name in FIELDS
            for name in re.findall(r"--([a-z-]+)", hint):
                assert name.replace("-", "_") in options


def test_other_spellings_of_options(told: Told) -> None:
    ours = told("plan", MODEL, "--micro-batch", 2, "--seq", 32, "--world-size", 2)
    theirs = told("plan", MODEL, "--batch-size", 2, "--seq-len", 32, "--gpus", 2)
    assert ours["peak_bytes"] == theirs["peak_bytes"]


def test_every_component_has_a_column_in_the_table_of_moments() -> None:
    """Columns add up to the total, also on a card, where cuBLAS keeps workspaces."""
    model = memory.Model.preset("llama-3-8b")
    plan = memory.FRAMEWORKS["megatron"].plan(model, dp=2, tp=2, seq=512, card="H100-80GB")
    shown = sheets.moments(plan.moments()).table
    columns = [f"{group}_bytes" for group in sheets.GROUPS]
    assert shown[columns].sum(axis=1).tolist() == shown["total_bytes"].tolist()
    grouped = [name for names in sheets.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMPONENTS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--adapter", "dora"), "DoRA: fp32 adapters"),
        (("--adapter", "ia3"), "IA3: fp32 adapters"),
        (("--prompt-tokens", 20), "prompt tuning: fp32 adapters"),
        (("--recipe", "qlora"), "QLoRA: fp32 adapters"),
    ],
)
def test_adapters_are_called_what_they_are(
    ran: Ran, options: tuple[object, ...], words: str
) -> None:
    out, _ = ran("plan", "llama-2-7b", *options)
    assert words in out


def test_a_margin_below_the_error_is_no_promise(ran: Ran) -> None:
    given = ("plan", "llama-3-8b", "--recipe", "qlora", "--framework", "hf-trainer", "--seq", 512)
    model = memory.Model.preset("llama-3-8b")
    plan = memory.FRAMEWORKS["hf-trainer"].plan(model, recipe="qlora", seq=512)
    worst = memory.certainty.of(plan, "hf-trainer").worst
    assert worst is not None
    room = ("--context", "1B", "--headroom", 1)
    near, _ = ran(*given, *room, "--device", f"{round((1 + worst / 2) * plan.peak_bytes)}")
    far, _ = ran(*given, *room, "--device", f"{round((1 + worst * 2) * plan.peak_bytes)}")
    assert "less than the error below" in near
    assert "less than the error below" not in far


def test_a_frameworks_plan_counts_the_workspaces_of_the_card(told: Told) -> None:
    given = ("plan", "llama-2-7b", "--framework", "hf-trainer", "--seq", 512)
    plain = told(*given, "--device", "80GiB")["peak_bytes"]
    for device, size in (("H100", 2**25), ("A100 80GB", 8_519_680)):
        found = told(*given, "--device", device)
        assert found["peak_bytes"] - plain == 2 * size
        (row,) = [one for one in found["components"] if one["component"] == "workspaces"]
        assert row["num_bytes"] == 2 * size
