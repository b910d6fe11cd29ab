"""``labkit serving`` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit import serving
from labkit.serving.commands import commands
from tests.cli.conftest import Ran, Refused, Told

GROUP = "serving"
PAPER = {"prompt_tokens": (32, 512), "output_tokens": (1, 128)}


@pytest.mark.parametrize("line", commands.examples)
def test_examples_work_as_they_stand(line: str, ran: Ran) -> None:
    out, _ = ran(*line.split()[2:])
    assert "generated" in out


def test_simulate_and_sweep_say_what_python_says(told: Told, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    rows = told("sweep", "--count", 300, "--rates", "1,4", "--seed", 3, "--html", page)["rows"]
    profile = serving.TokenProfile.roofline("gpt3-175b", "A100-40GB", tensor=8, stages=2)
    stream = serving.generate(1, 300, rng=3, **PAPER).at_rate(4)  # type: ignore[arg-type]
    run = serving.simulate(stream, profile, serving.Batcher(max_batch=32))
    assert rows[1]["batcher"] == "iteration"
    assert rows[1]["median_token_s"] == pytest.approx(run.summary()["median_token_s"])
    assert "Latency over throughput" in page.read_text()
    rows = told("simulate", "--count", 300, "--rate", 2)["rows"]
    assert [row["wasted_fraction"] > 0 for row in rows] == [False, False, True]


def test_the_bound_says_under_which_profile(ran: Ran) -> None:
    given = ("simulate", "--count", 50, "--compute-share", 0.7, "--sequence-us", 5)
    text, _ = ran(*given)
    assert "under this profile (70% of peak operations, 80% of bandwidth)" in " ".join(text.split())


def test_a_file_is_replayed_and_a_request_explained(ran: Ran, told: Told, tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,500,3\n0,9,2\n")
    answer = told("simulate", path, "--why", 1, "--max-batch", 1, "--stages", 4)
    assert "started at once" in answer["why"]
    answer = told("simulate", path, "--why", 1, "--max-batch", 1, "--tensor", 16, "--stages", 1)
    assert "the batch was full" in answer["why"]
    assert told("requests", path)["requests"] == 2
    path.write_text("begin,input_length,answer_length\n0,500,3\n0,9,2\n")
    spelt = "arrival_s=begin,prompt_tokens=input_length,output_tokens=answer_length"
    assert told("requests", path, "--columns", spelt)["requests"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("requests", "azure"), "did you mean 'azure-llm-2023'"),
        (("simulate", "--count", "1"), "must arrive at two moments or more; got 1 at one"),
        (("requests", "--prompts", "many"), "--prompts 'many' is no range"),
        (("requests", "--prompts", "9-3"), "prompt_tokens must be the least and the most"),
        (("simulate", "--rate", "0"), "rate_per_s"),
        (("simulate", "--tensor", "1", "--stages", "1"), "leaves no memory for a token"),
        (("simulate", "--count", "3", "--why", "3"), "valid: 0 to 2"),
        (("sweep", "--rates", "x"), "--rates"),
        (("sweep", "--model", "gpt9"), "gpt9"),
    ],
)
def test_wrong_use_is_explained(arguments: tuple[str, ...], words: str, refused: Refused) -> None:
    assert words in refused(*arguments)


def test_a_configuration_describes_the_model_and_costs_are_settable(
    told: Told, ran: Ran, tmp_path: Path
) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "vocab_size": 1000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = ("simulate", "--model", tmp_path, "--tensor", 2, "--stages", 1, "--count", 50)
    plain = told(*given, "--why", 3)
    dear = told(
        *given, "--why", 3, "--request-ms", 1000, "--iteration-us", 50, "--link-gb-per-s", 1
    )
    cached = told(*given, "--why", 3, "--prefix-share", 0.9, "--prompts", 4000, "--max-batch", 4)
    whole = told(*given, "--why", 3, "--prompts", 4000, "--max-batch", 4)
    assert cached["mean_first_s"] < whole["mean_first_s"]
    assert dear["mean_first_s"] > 1 + plain["mean_first_s"]
    assert "it is one replica" in " ".join(ran(*given)[0].split()).lower()
