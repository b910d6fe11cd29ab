"""Stages that vLLM served on H100s, which others measured, beside ours at the defaults."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from labkit import serving

ROOT = Path(__file__).parents[2]
STAGES = pd.read_csv(ROOT / "data/measured/serving_vllm.csv", comment="#")
SERVER = serving.Batcher(max_batch=128, memory="paged", chunk_tokens=2048)
MOST_REQUESTS = 2000
AT_HALF_THE_PEAK = ("llama-2-70b", 20.0)
"""Served by a machine that computes faster, or less: prompts begin alike and were cached."""


@pytest.fixture(scope="module")
def beside() -> pd.DataFrame:
    """One row a stage: ours over measured, less 1, and the load that we say was offered."""
    rows = []
    for stage in STAGES.itertuples():
        profile = serving.TokenProfile.roofline(stage.model, "H100-80GB", tensor=stage.tensor)
        prompt = round(stage.prompt_tokens)
        requests = serving.generate(
            stage.rate_per_s,
            MOST_REQUESTS,
            cv=0,
            prompt_tokens=(prompt, prompt),
            output_tokens=(stage.output_tokens, stage.output_tokens),
        )
        summary = serving.simulate(requests, profile, SERVER).summary()
        measured_s = (stage.latency_s - stage.first_s) / (stage.output_tokens - 1)
        rows.append(
            {
                "model": stage.model,
                "rate_per_s": stage.rate_per_s,
                "failed": stage.failed,
                "offered_load": summary["offered_load"],
                "error": summary["mean_next_s"] / measured_s - 1,
            }
        )
    return pd.DataFrame(rows)


def test_seconds_of_an_output_are_those_measured(beside: pd.DataFrame) -> None:
    served = beside[beside["failed"] == 0]
    assert len(served) == 16
    error = served["error"].abs()
    assert error.median() <= 0.1, served.to_string()
    assert (error <= 0.3).sum() >= 12, served.to_string()


def test_what_a_machine_served_is_not_called_impossible(beside: pd.DataFrame) -> None:
    """But for one stage, which half of the peak rate does not serve without cached prompts."""
    served = beside[beside["failed"] == 0].set_index(["model", "rate_per_s"])
    others = served.drop(index=[AT_HALF_THE_PEAK])
    assert (others["offered_load"] < 1).all(), served.to_string()


def test_what_a_machine_did_not_serve_is_too_much(beside: pd.DataFrame) -> None:
    overloaded = beside[beside["failed"] > 0]
    assert len(overloaded) == 4
    assert (overloaded["offered_load"] > 1).all(), overloaded.to_string()
