"""What a refusal says of a name that there is not."""

from __future__ import annotations

import pytest

from labkit.errors import MOST_LISTED, did_you_mean, nearest, not_among

POLICIES = ["fifo", "srtf", "las", "best-effort"]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("FIFO", ["fifo"]),
        ("fiof", ["fifo"]),
        ("besteffort", ["best-effort"]),
        ("wfq", []),
        ("best", ["best-effort"]),
        ("be", []),
    ],
)
def test_the_nearest_name_is_found_in_any_case(said: str, meant: list[str]) -> None:
    assert nearest(said, POLICIES) == meant


def test_a_name_of_parts_is_found_by_its_last() -> None:
    names = ["run.slug", "metric.saved_j", "claim.saving"]
    assert nearest("saved", names) == ["metric.saved_j"]
    assert nearest("5b", ["gpt2-1.5b"]) == []  # a version's digits are no part


def test_what_shares_half_its_letters_is_not_meant() -> None:
    assert did_you_mean("nosuch", ["nsight", "zeus"]) == ""


def test_a_few_names_are_listed_after_the_near_ones() -> None:
    said = str(not_among("policy", "srft", POLICIES))
    assert said == "no policy 'srft'; did you mean 'srtf'? There are: fifo, srtf, las, best-effort"


def test_of_many_names_the_nearest_three_are_named() -> None:
    names = [f"metric.{number}_s" for number in range(500)]
    assert len(names) > MOST_LISTED
    for said in ("metric.27", "foo"):
        text = str(not_among("column", said, names, more="`labkit results` lists them"))
        assert text.count("metric.") - text.count(f"'{said}'") * ("metric." in said) == 3
        assert "500" in text
        assert text.endswith("; `labkit results` lists them")
