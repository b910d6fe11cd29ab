"""Streams of requests: every bad one is a sentence; synthetic ones have the moments asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labkit import serving
from labkit.errors import BadFile, BadValue, UsageError
from tests.published import Need

GOOD = "arrival_s,prompt_tokens,output_tokens,slo_s,model\n0,10,1,2.5,a\n5,2,4,,b\n"


def read(tmp_path: Path, text: str, **more: object) -> serving.Requests:
    path = tmp_path / "requests.csv"
    path.write_text(text)
    return serving.from_csv(path, **more)


def test_a_good_file(tmp_path: Path) -> None:
    requests = read(tmp_path, GOOD)
    assert requests.column("slo_s").tolist() == [2.5, np.inf]
    models = requests.models
    index = requests.model_index
    assert models == ("a", "b")
    assert index.tolist() == [0, 1]
    again = read(tmp_path, requests.frame().to_csv(index=False))
    assert again.frame().equals(requests.frame())


def test_dates_count_from_the_first_and_rows_need_not_be_sorted(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:50.5,396,109\n2023-11-16 18:15:46,374,44\n"
    )
    requests = read(tmp_path, text, name="ours")
    assert requests.column("arrival_s").tolist() == [0, 4.5]
    assert requests.column("output_tokens").tolist() == [44, 109]
    assert requests.name == "ours"


@pytest.mark.parametrize(
    ("bad", "field", "value", "valid"),
    [
        ("-5,2,4,,b", "arrival_s", "-5.0", "at least 0"),
        ("nan,2,4,,b", "arrival_s", "'nan'", "a finite number"),
        ("inf,2,4,,b", "arrival_s", "inf", "a finite number"),
        ("soon,2,4,,b", "arrival_s", "'soon'", "a finite number"),
        ("5,-1,4,,b", "prompt_tokens", "-1.0", "at least 0"),
        ("5,2.5,4,,b", "prompt_tokens", "2.5", "a whole number"),
        ("5,2,0,,b", "output_tokens", "0.0", "at least 1"),
        ("5,2,,,b", "output_tokens", "''", "at least 1"),
        ("5,2,4,0,b", "slo_s", "0.0", "above 0"),
        ("5,2,4,fast,b", "slo_s", "'fast'", "above 0"),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, bad: str, field: str, value: str, valid: str) -> None:
    with pytest.raises(BadFile) as error:
        read(tmp_path, "\n".join([*GOOD.splitlines()[:2], bad]))
    text = str(error.value)
    assert "requests.csv:3: " in text
    assert f"field {field!r}" in text
    assert f"found {value}" in text
    assert valid in text


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"nowhere\.csv: the file is missing"):
        serving.from_csv(tmp_path / "nowhere.csv")
    with pytest.raises(BadFile, match="holds no requests"):
        read(tmp_path, GOOD.splitlines()[0])
    with pytest.raises(BadFile, match="a column is missing; field 'arrival_s'"):
        read(tmp_path, "prompt_tokens\n1\n")
    with pytest.raises(BadFile, match="a column is missing; field 'Start'"):
        read(tmp_path, GOOD, columns={"arrival_s": "Start"})
    with pytest.raises(BadValue, match="columns names 'arrive'"):
        read(tmp_path, GOOD, columns={"arrive": "x"})
    with pytest.raises(UsageError, match="There are: azure-llm-2023"):
        serving.load("azure")


def test_a_bad_record_is_named() -> None:
    with pytest.raises(BadValue, match=r"Requests\.output_tokens\[1\]: .* found 0"):
        serving.Requests(arrival_s=[0, 1], output_tokens=[3, 0])
    with pytest.raises(BadValue, match=r"Requests\.model must have one entry a request; got 1"):
        serving.Requests(arrival_s=[0, 1], model=("a",))
    with pytest.raises(BadValue, match="only some parts name their model"):
        serving.merge_streams([serving.generate(1, 3), serving.generate(1, 3, model="a")])


@pytest.mark.parametrize("cv", [0, 0.5, 1, 4])
def test_generated_streams_have_the_rate_the_bursts_and_the_lengths_asked_for(cv: float) -> None:
    count = 200_000
    requests = serving.generate(5, count, cv=cv, prompt_tokens=(32, 512), output_tokens=(1, 128))
    assert requests.rate_per_s == pytest.approx(5, rel=5 * cv / count**0.5 + 1e-9)
    assert requests.gap_cv == pytest.approx(cv, rel=0.05, abs=1e-9)
    prompts = requests.column("prompt_tokens")
    assert (prompts.min(), prompts.max()) == (32, 512)
    assert prompts.mean() == pytest.approx(272, rel=0.01)
    assert requests.at_rate(2).rate_per_s == pytest.approx(2)


def test_streams_join_in_order_of_arrival_and_keep_their_columns() -> None:
    parts = [
        serving.generate(rate, 50, model=name, slo_s=slo, rng=seed)
        for seed, (rate, name, slo) in enumerate([(1, "a", 2), (3, "b", 5)])
    ]
    both = serving.merge_streams(parts)
    assert (np.diff(both.column("arrival_s")) >= 0).all()
    for part, name in zip(parts, "ab", strict=True):
        mine = np.array(both.model) == name
        assert np.array_equal(both.column("arrival_s")[mine], part.column("arrival_s"))
        assert np.array_equal(both.column("slo_s")[mine], part.column("slo_s"))


def test_the_published_trace(published_data: Need) -> None:
    published_data("azure-llm-2023")
    requests = serving.load("azure-llm-2023")
    assert len(requests) == 19_366
    assert requests.column("arrival_s")[-1] < 3600


def test_a_place_among_the_models_cannot_be_changed() -> None:
    """It is worked out once, also for the same requests at another rate."""
    requests = serving.merge_streams([serving.generate(5, 3, model=name) for name in "ab"])
    for asked in (requests, requests.at_rate(2.0)):
        with pytest.raises(ValueError, match="read-only"):
            asked.model_index[0] = 5
    assert requests.at_rate(2.0).model_index is requests.model_index


@pytest.mark.parametrize(
    ("headings", "refused"),
    [
        ("timestamp,input_length,output_length", "input_length"),  # Mooncake: milliseconds, too
        ("arrival_s,prompt_toks,generated_toks", "prompt_toks"),
        ("arrival_s,prompt_tokens,completion_tokens", "completion_tokens"),
    ],
)
def test_tokens_under_another_heading_are_not_left_out(
    tmp_path: Path, headings: str, refused: str
) -> None:
    path = tmp_path / "calls.csv"
    path.write_text(f"{headings}\n0,500,3\n0,9,2\n")
    with pytest.raises(BadFile, match=rf"{refused}.*columns=") as caught:
        serving.from_csv(path)
    assert "would be" in str(caught.value)
    ours = ("arrival_s", "prompt_tokens", "output_tokens")
    spelt = dict(zip(ours, headings.split(","), strict=True))
    read = serving.from_csv(path, columns=spelt)
    assert read.column("prompt_tokens").tolist() == [500, 9]
    assert read.column("output_tokens").tolist() == [3, 2]


def test_llmservingsims_headings_are_known(tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    path.write_text("arrival_s,input_toks,output_toks\n0,500,3\n")
    assert serving.from_csv(path).column("prompt_tokens").tolist() == [500]
