"""Batchers against queueing theory, Ciw, a SimPy oracle, and what no batcher can beat."""

from __future__ import annotations

from dataclasses import replace
from heapq import heapreplace
from typing import Any

import ciw
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import serving
from labkit.errors import BadValue
from labkit.models import Model
from tests.serving import policies, reference

SECOND = serving.TokenProfile(weights_s=1.0)
SINGLE = serving.Batcher(max_batch=1)
GPT3 = serving.TokenProfile.roofline("gpt3-175b", "A100-40GB", tensor=8, stages=2)


def paper_trace(rate: float, count: int = 300, rng: int = 0) -> serving.Requests:
    return serving.generate(rate, count, prompt_tokens=(32, 512), output_tokens=(1, 128), rng=rng)


def test_one_by_one_is_the_m_d_1_queue() -> None:
    """Mean wait λs² / 2(1 − λs) at load 0.8, within half a percent."""
    waits = [
        (run.start_s - run.requests.column("arrival_s")).mean()
        for seed in range(40)
        for run in [serving.simulate(serving.generate(0.8, 250_000, rng=seed), SECOND, SINGLE)]
    ]
    assert np.mean(waits) == pytest.approx(0.8 / (2 * (1 - 0.8)), rel=0.005)


@pytest.mark.parametrize("max_batch", [2, 8])
def test_a_batch_is_the_queue_of_its_slots(max_batch: int) -> None:
    """Where an iteration costs the same however full, c slots serve like c servers.

    A request that arrives during an iteration waits for its end, so each ends within one iteration
    after the recursion of Kiefer and Wolfowitz says; with these lengths it is the M/M/c queue.
    """
    rng = np.random.default_rng(max_batch)
    count = 20_000
    output = rng.geometric(1 / 400, count)
    arrival = np.cumsum(rng.exponential(400 / (0.8 * max_batch), count))
    free = [0.0] * max_batch
    ends = np.zeros(count)
    for request, (at, work) in enumerate(zip(arrival, output, strict=True)):
        ends[request] = max(at, free[0]) + work
        heapreplace(free, ends[request])
    requests = serving.Requests(arrival_s=arrival, output_tokens=output)
    late = serving.simulate(requests, SECOND, serving.Batcher(max_batch=max_batch)).end_s - ends
    assert late.min() > -1e-6
    assert late.max() < 1 + 1e-6


def test_one_by_one_ends_when_ciw_says() -> None:
    arrival = serving.generate(0.8, 3000).column("arrival_s")
    gaps = np.diff(arrival, prepend=0.0).tolist()
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Sequential([*gaps, np.inf])],
        service_distributions=[ciw.dists.Deterministic(1.0)],
        number_of_servers=[1],
    )
    queue = ciw.Simulation(network)
    queue.simulate_until_max_customers(3000, method="Finish")
    ends = sorted(record.service_end_date for record in queue.get_all_records())
    run = serving.simulate(serving.Requests(arrival_s=arrival), SECOND, SINGLE)
    np.testing.assert_allclose(run.end_s[: len(ends)], ends, atol=1e-8)
    assert len(ends) == 3000


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(("max_batch", "slots"), [(1, 2**31), (8, 2**31), (8, 1500), (32, 5000)])
def test_iterations_are_those_of_algorithm_1(stages: int, max_batch: int, slots: int) -> None:
    """Every request ends at the oracle's moment, with and without a shortage of memory."""
    profile = replace(GPT3, stages=stages, slots=slots)
    batcher = serving.Batcher(max_batch=max_batch)
    for rate in (0.5, 4.0):
        requests = paper_trace(rate, 120, rng=max_batch)
        run = serving.simulate(requests, profile, batcher)
        ends = reference.by_iteration(requests, profile, batcher)
        np.testing.assert_allclose(run.end_s, ends, rtol=1e-9)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("chunk", [64, 200])
def test_chunks_are_those_of_the_oracle(stages: int, chunk: int) -> None:
    profile = replace(GPT3, stages=stages, slots=6000)
    requests = paper_trace(5, 120, rng=chunk)
    batcher = serving.Batcher(max_batch=16, chunk_tokens=chunk)
    run = serving.simulate(requests, profile, batcher)
    ends = reference.by_iteration(requests, profile, batcher)
    np.testing.assert_allclose(run.end_s, ends, rtol=1e-9)


@pytest.mark.parametrize("prompts", ["shortest", "longest"])
@pytest.mark.parametrize("max_batch", [1, 8])
def test_request_batches_are_the_steps_summed(prompts: str, max_batch: int) -> None:
    requests = paper_trace(0.5, 100)
    batcher = serving.Batcher(level="request", max_batch=max_batch, prompts=prompts)  # type: ignore[arg-type]
    run = serving.simulate(requests, GPT3, batcher)
    np.testing.assert_allclose(run.end_s, reference.by_request(requests, GPT3, batcher), rtol=1e-9)


@pytest.mark.parametrize("together", [1, 8])
def test_a_batch_of_equals_takes_what_the_formula_says(together: int) -> None:
    requests = serving.Requests(
        arrival_s=[0.0] * together, prompt_tokens=[128] * together, output_tokens=[32] * together
    )
    for level in ("iteration", "request"):
        run = serving.simulate(requests, GPT3, serving.Batcher(level=level, max_batch=together))  # type: ignore[arg-type]
        np.testing.assert_allclose(run.end_s, GPT3.alone_s(requests, batch=together))


def test_microbatches_fill_the_stages() -> None:
    """A batch of 16 in two parts of 8 on two stages: as long as 8 alone, and one stage more."""
    requests = serving.Requests(
        arrival_s=[0.0] * 16, prompt_tokens=[64] * 16, output_tokens=[9] * 16
    )
    whole, half = (
        serving.simulate(
            requests.head(count),
            GPT3,
            serving.Batcher(level="request", max_batch=16, microbatches=parts),
        ).end_s.max()
        for count, parts in ((16, 2), (8, 1))
    )
    last = GPT3.seconds(tokens=8, sequences=8, cached=8 * (64 + 8))
    assert whole == pytest.approx(half + last, rel=1e-3)


rates = st.floats(0.2, 30)
batchers = st.builds(
    serving.Batcher,
    max_batch=st.integers(1, 40),
    memory=st.sampled_from(["reserved", "paged"]),
    chunk_tokens=st.sampled_from([None, 17, 128]),
    block_tokens=st.sampled_from([1, 16]),
)


@settings(max_examples=60, deadline=None)
@given(rate=rates, batcher=batchers, slots=st.integers(660, 4000), rng=st.integers(0, 99))
def test_what_holds_of_every_run(
    rate: float, batcher: serving.Batcher, slots: int, rng: int
) -> None:
    profile = replace(GPT3, slots=slots)
    requests = paper_trace(rate, 150, rng)
    run = serving.simulate(requests, profile, batcher)
    arrival = requests.column("arrival_s")
    assert (arrival <= run.start_s).all()
    assert (run.start_s < run.first_s).all()
    assert (run.first_s <= run.end_s).all()
    assert run.most_slots <= slots
    assert run.sequences / run.iterations <= batcher.max_batch
    assert (run.latency_s >= profile.alone_s(requests) * (1 - 1e-9)).all()
    if not run.preemptions.any() and batcher.chunk_tokens is None:
        assert run.sequences == requests.column("output_tokens").sum()
        assert (np.diff(run.start_s) >= 0).all()  # first come, first served
    if batcher.memory == "reserved":
        assert not run.preemptions.any()
    limit = serving.bound(requests, profile, batcher)
    assert len(requests) / (run.end_s.max() - arrival[0]) <= limit.rate_per_s * (1 + 1e-9)


def test_with_memory_to_spare_pages_and_long_chunks_change_nothing() -> None:
    requests = paper_trace(8)
    ends = [
        serving.simulate(requests, replace(GPT3, slots=10**6), batcher).end_s
        for batcher in (
            serving.Batcher(),
            serving.Batcher(memory="paged"),
            serving.Batcher(chunk_tokens=10**6),
        )
    ]
    assert np.array_equal(ends[0], ends[1])
    assert np.array_equal(ends[0], ends[2])


def test_pages_hold_more_requests_than_reservations_that_guess() -> None:
    """Where every request reserves the model's longest, memory and not the batch is the limit."""
    requests = paper_trace(30)
    small = replace(GPT3, slots=8192)
    guess = serving.simulate(requests, small, serving.Batcher(reserve_tokens=2048))
    paged = serving.simulate(requests, small, serving.Batcher(memory="paged"))
    assert guess.sequences / guess.iterations <= 4
    assert paged.sequences / paged.iterations > 8
    assert "memory for its keys and values lacked" in guess.why(200)


def test_chunks_shorten_the_longest_gap_between_tokens() -> None:
    requests = paper_trace(8, 2000)
    whole, parts = (
        serving.simulate(requests, GPT3, serving.Batcher(chunk_tokens=chunk)).summary()
        for chunk in (None, 64)
    )
    assert parts["p99_stall_s"] < 0.6 * whole["p99_stall_s"]


def test_bad_combinations_are_refused() -> None:
    with pytest.raises(BadValue, match="paged memory and chunk_tokens need level 'iteration'"):
        serving.Batcher(level="request", memory="paged")
    with pytest.raises(BadValue, match="microbatches need level 'request'"):
        serving.Batcher(microbatches=2)
    with pytest.raises(BadValue, match=r"request 0 needs 2048 slots .* the profile's 1000"):
        serving.simulate(
            paper_trace(1), replace(GPT3, slots=1000), serving.Batcher(reserve_tokens=2048)
        )
    with pytest.raises(BadValue, match=r"valid: at most reserve_tokens, 100"):
        serving.simulate(paper_trace(1), GPT3, serving.Batcher(reserve_tokens=100))
    with pytest.raises(BadValue, match="leaves no memory for a token"):
        serving.TokenProfile.roofline("gpt3-175b", "A100-40GB", tensor=8)
    with pytest.raises(BadValue, match="tensor must divide the 32 heads of llama-3-8b, got 3"):
        serving.TokenProfile.roofline("llama-3-8b", "H100-80GB", tensor=3)
    with pytest.raises(BadValue, match="stages must be at most the 32 layers of llama-3-8b"):
        serving.TokenProfile.roofline("llama-3-8b", "H100-80GB", stages=33)


def test_a_token_is_computed_on_the_experts_that_it_is_sent_to() -> None:
    """Mixtral: 12.9 of 46.7 billion parameters, at half of an H100's peak, on two of them."""
    profile = serving.TokenProfile.roofline("mixtral-8x7b", "H100-80GB", tensor=2)
    assert profile.token_s == pytest.approx(2 * 12.88e9 / 2 / (0.5 * 989e12), rel=1e-3)


def test_seconds_until_the_first_output_and_between_the_next() -> None:
    profile = serving.TokenProfile(weights_s=0.02, token_s=0.001)
    requests = serving.Requests(arrival_s=[0.0, 10.0], prompt_tokens=[50, 50], output_tokens=[5, 5])
    summary = serving.simulate(requests, profile, serving.Batcher()).summary()
    assert summary["mean_first_s"] == pytest.approx(0.05)
    assert summary["mean_next_s"] == pytest.approx(0.02)


# ---------------------------------------------------------------- batchers of one's own

FIELDS = ("start_s", "first_s", "end_s", "stall_s", "causes", "wasted_steps", "preemptions")
COUNTS = ("iterations", "sequences", "busy_s", "most_slots")


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize(
    ("max_batch", "chunk", "slots"), [(8, None, 2**31), (8, None, 1500), (32, None, 5000),
                                      (16, 64, 6000), (4, 200, 1500)],
)  # fmt: skip
def test_the_plain_loop_is_the_compiled_one_to_the_bit(
    stages: int, max_batch: int, chunk: int | None, slots: int
) -> None:
    profile = replace(GPT3, stages=stages, slots=slots)
    requests = paper_trace(4, 150, rng=max_batch)
    batcher = serving.Batcher(max_batch=max_batch, chunk_tokens=chunk)
    compiled = serving.simulate(requests, profile, batcher)
    plain = serving.simulate(requests, profile, policies.Reserved(max_batch, chunk))
    for name in FIELDS:
        if name != "causes" or chunk is None:  # of one's own rules the loop knows no cause
            assert np.array_equal(getattr(plain, name), getattr(compiled, name)), name
    assert [getattr(plain, n) for n in COUNTS] == [getattr(compiled, n) for n in COUNTS]
    assert plain.summary() == compiled.summary()


def test_pages_of_ones_own_are_the_compiled_ones_while_memory_lasts() -> None:
    requests = paper_trace(8)
    compiled = serving.simulate(requests, GPT3, serving.Batcher(memory="paged"))
    plain = serving.simulate(requests, GPT3, policies.Paged(32, 16))
    for name in FIELDS:
        assert np.array_equal(getattr(plain, name), getattr(compiled, name)), name
    assert plain.most_slots == compiled.most_slots


@settings(max_examples=40, deadline=None)
@given(rate=rates, slots=st.integers(660, 2000), max_batch=st.integers(1, 40))
def test_who_gives_memory_back_starts_again(rate: float, slots: int, max_batch: int) -> None:
    profile = replace(GPT3, slots=slots, stages=1)
    requests = paper_trace(rate, 100)
    run = serving.simulate(requests, profile, policies.Paged(max_batch, 16))
    assert run.most_slots <= slots
    assert (run.latency_s >= profile.alone_s(requests) * (1 - 1e-9)).all()
    assert run.sequences == requests.column("output_tokens").sum()  # it keeps its outputs
    fewest = serving.simulate(requests, profile, policies.Reserved(max_batch))
    assert not fewest.preemptions.any()


def test_pages_run_out_where_prompts_are_long() -> None:
    run = serving.simulate(paper_trace(30), replace(GPT3, slots=1500), policies.Paged(32, 16))
    assert run.preemptions.sum() > 10


class Wrong(policies.Reserved):
    """Chooses what a test says."""

    def __init__(self, choose: Any) -> None:
        super().__init__(2)
        self.choose = choose

    def select(self, pool: Any, free_slots: int) -> Any:
        return self.choose(pool)


@pytest.mark.parametrize(
    ("choose", "problem"),
    [
        (lambda pool: [], "chose no request although nothing runs and 3 wait"),
        (lambda pool: [(pool[0], 1)] * 2, "chose the requests \\[0, 0\\]; valid: each .* once"),
        (lambda pool: [(pool[0], 0)], "chose 0 tokens of request 0; valid: from 1 to"),
        (lambda pool: [(pool[0], 99)], "chose 99 tokens of request 0; valid: from 1 to .* 4"),
        (lambda pool: [(r, 4) for r in pool], "chose 3 requests; valid: at most max_batch, 2"),
        (lambda pool: [(pool[0], 4), (pool[1], 4)], "need 2 slots more than are free"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(choose: Any, problem: str) -> None:
    requests = serving.Requests(arrival_s=[0.0] * 3, prompt_tokens=[4] * 3, output_tokens=[2] * 3)
    with pytest.raises(BadValue, match=problem):
        serving.simulate(requests, replace(SECOND, slots=10), Wrong(choose))


def test_a_sweep_takes_batchers_of_ones_own() -> None:
    ways = {"own": policies.Reserved(8), "ours": serving.Batcher(max_batch=8)}
    table = serving.sweep(paper_trace(1, 50), GPT3, ways, [1.0, 4.0]).set_index("batcher")
    assert table.loc["own"].reset_index(drop=True).equals(table.loc["ours"].reset_index(drop=True))


def test_a_profile_is_of_any_model_that_can_be_described() -> None:
    shape = Model.preset("llama-3-8b")
    named = serving.TokenProfile.roofline("llama-3-8b", "H100-80GB", tensor=2)
    assert serving.TokenProfile.roofline(shape, "H100-80GB", tensor=2) == named
    deep = replace(shape, num_layers=64)
    twice = serving.TokenProfile.roofline(deep, "H100-80GB", tensor=2)
    assert twice.cached_token_s == pytest.approx(2 * named.cached_token_s)


def test_all_reduces_send_bytes_around_a_ring() -> None:
    """A chunk of 2,048 tokens × 5,120 × 2 bytes is 21 MB; two GPUs send it once, 80 times."""
    how = {"tensor": 2, "all_reduce_s": 0.0}
    shape = Model.preset("llama-2-13b")
    free = serving.TokenProfile.roofline(shape, "H100-80GB", **how)
    linked = serving.TokenProfile.roofline(shape, "H100-80GB", **how, link_bytes_per_s=450e9)
    assert (shape.hidden, shape.num_layers) == (5120, 40)
    chunk_s = linked.seconds(tokens=2048) - free.seconds(tokens=2048)
    assert chunk_s == pytest.approx(2 * 40 * (2048 * 5120 * 2) / 450e9)
    alone = serving.TokenProfile.roofline(shape, "H100-80GB", link_bytes_per_s=450e9)
    assert alone.sent_token_s == 0


@pytest.mark.parametrize("level", ["iteration", "request"])
def test_a_request_and_an_iteration_have_costs_of_their_own(level: str) -> None:
    """A lone request of 3 outputs pays its own cost once and an iteration's three times."""
    one = serving.Requests(arrival_s=[5.0], prompt_tokens=[4], output_tokens=[3])
    profile = serving.TokenProfile(
        fixed_s=0.25, weights_s=1.0, sent_token_s=0.125, request_s=0.5, stages=2
    )
    run = serving.simulate(one, profile, serving.Batcher(level=level))
    assert run.latency_s.tolist() == [0.5 + 2 * (3 * 1.25 + 6 * 0.125)]
    assert profile.alone_s(one).tolist() == run.latency_s.tolist()


def test_a_batcher_of_ones_own_pays_the_same() -> None:
    stream = serving.generate(2, 40, prompt_tokens=(4, 40), output_tokens=(1, 9), rng=1)
    profile = serving.TokenProfile(weights_s=0.05, sent_token_s=1e-3, request_s=0.2)
    ours = serving.simulate(stream, profile, serving.Batcher(max_batch=4))
    own = serving.simulate(stream, profile, policies.Reserved(4))
    assert ours.end_s.tolist() == own.end_s.tolist()
    least = serving.bound(stream, profile, ours.batcher)
    assert ours.summary()["throughput_per_s"] <= least.rate_per_s
    assert (ours.latency_s >= profile.alone_s(stream) - 1e-9).all()


def test_a_prefix_in_the_cache_is_read_and_held_and_not_computed() -> None:
    """Of 10 prompt tokens 6 are in the cache: 4 are computed, and 6, then 10 are read."""
    one = serving.Requests(
        arrival_s=[0.0], prompt_tokens=[10], output_tokens=[2], prefix_tokens=[6]
    )
    profile = serving.TokenProfile(weights_s=0.5, token_s=1.0, cached_token_s=0.125)
    for memory in ("reserved", "paged"):
        run = serving.simulate(one, profile, serving.Batcher(memory=memory, block_tokens=1))
        assert run.first_s.tolist() == [4 + 6 * 0.125]
        assert run.end_s.tolist() == [4 + 6 * 0.125 + 1 + 10 * 0.125]
        assert profile.alone_s(one).tolist() == run.end_s.tolist()
    assert run.most_slots == 11
    whole = one.changed(prefix_tokens=[99])
    assert whole.reused_tokens.tolist() == [9], "the last token of a prompt is computed"


@pytest.mark.parametrize("memory", ["reserved", "paged"])
def test_prefixes_are_the_same_in_both_loops(memory: str) -> None:
    stream = serving.generate(3, 60, prompt_tokens=(4, 40), output_tokens=(1, 9), rng=2)
    prefix = np.arange(60) % 7 * 6
    stream = stream.changed(prefix_tokens=prefix)
    profile = serving.TokenProfile(
        weights_s=0.02, token_s=2e-3, cached_token_s=1e-4, sent_token_s=1e-4, slots=96
    )
    ours = serving.simulate(
        stream, profile, serving.Batcher(max_batch=4, memory=memory, block_tokens=8)
    )
    own = policies.Reserved(4) if memory == "reserved" else policies.Paged(4, 8)
    theirs = serving.simulate(stream, profile, own)
    assert ours.end_s.tolist() == theirs.end_s.tolist()
    assert (ours.latency_s >= profile.alone_s(stream) - 1e-9).all()
    assert (
        ours.summary()["throughput_per_s"]
        <= serving.bound(stream, profile, ours.batcher).rate_per_s
    )
    none = serving.simulate(stream.changed(prefix_tokens=()), profile, ours.batcher)
    assert none.summary()["median_latency_s"] > ours.summary()["median_latency_s"]


def test_heads_of_keys_are_kept_several_times_beyond_their_number() -> None:
    """Llama-3-8B has 8 heads of keys: 16 GPUs read an eighth of them each, as 8 GPUs do."""
    cached_s = {
        ways: serving.TokenProfile.roofline("llama-3-8b", "H100-80GB", tensor=ways).cached_token_s
        for ways in (1, 8, 16)
    }
    assert cached_s[16] == cached_s[8] == cached_s[1] / 8
