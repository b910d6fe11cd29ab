"""``labkit tuning`` as a person meets it: tables, JSON, pages, errors and exit codes."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from labkit import tuning
from labkit.files import shipped
from labkit.tuning.commands import commands, trainings
from labkit.tuning.live import LiveJob
from labkit.tuning.recording.meters import RaplMeter, Reading
from labkit.tuning.simulation import runs as published
from labkit.tuning.traces import checks
from tests.cli.conftest import Ran, Refused, Told
from tests.published import Need

GROUP = "tuning"
DIGITS = ("--trace", "digits")


@pytest.fixture
def zeus(published_data: Need) -> None:
    files = ["summary_train.csv", "summary_power_v100.csv", "summary_power_a40.csv"]
    published_data("zeus-nsdi23", files)


@pytest.fixture
def pollux(published_data: Need) -> None:
    published_data("pollux-osdi21")


# ---------------------------------------------------------------- outcomes


def test_outcomes_says_what_python_says(told: Told) -> None:
    found = told("outcomes", "digits-cnn", *DIGITS, "--eta", 0.3)
    job = tuning.load("digits").job("digits-cnn")
    best = tuning.optimum(job, eta=0.3)
    assert found["optimum"] == {
        "batch_size": best.batch_size,
        "power_limit_w": best.power_limit_w,
    }
    rows = found["configurations"]
    assert len(rows) == len(job.batch_sizes) * len(job.power_limits_w)
    assert min(row["cost_j"] for row in rows) == pytest.approx(best.cost_j)
    assert found["energy_source"] == "modelled"


def test_outcomes_shows_the_front_and_says_what_is_modelled(ran: Ran, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    table = tmp_path / "rows.csv"
    out, _ = ran("outcomes", "digits-mlp", *DIGITS, "--html", page, "--csv", table)
    for text in (
        "Pareto front",
        "; energy modelled",
        "default     64 @ 80 W",
        "are modelled",
        "at full clock are meas",
    ):
        assert text in out
    text = page.read_text()
    assert "Energy to accuracy of every configuration" in text
    assert "are modelled" in text
    assert len(table.read_text().splitlines()) == 1 + 7 * 6


def test_outcomes_takes_every_selector_and_override(told: Told) -> None:
    job = tuning.load("digits").job("digits-mlp")
    for more, selector, slack in (
        (("--selector", "energy"), "energy", None),
        (("--selector", "max-slowdown", "--max-slowdown", 0.1), "max-slowdown", 0.1),
    ):
        found = told("outcomes", "digits-mlp", *DIGITS, *more)
        limits = tuning.best_power_limits(job, selector=selector, max_slowdown=slack)
        expected = [job.power_limits_w[limit] for limit in limits]
        assert list(found["selected_limits_w"].values()) == expected
    harder = told("outcomes", "digits-mlp", *DIGITS, "--target", 0.98, "--b0", 16)
    default = next(row for row in harder["configurations"] if row["is_default"])
    assert default["batch_size"] == 16
    idle = told("outcomes", "digits-mlp", *DIGITS, "--host-power", 100)
    assert min(row["average_power_w"] for row in idle["configurations"]) > 100


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A sweep of one's own: two tables, no meta.json."""
    folder = tmp_path / "own"
    folder.mkdir()
    for name in ("train.csv", "power.csv"):
        (folder / name).write_bytes((shipped("data/measured/digits") / name).read_bytes())
    return folder


def test_outcomes_reads_a_sweep_of_ones_own(told: Told, ran: Ran, own: Path) -> None:
    arguments = ("digits/mlp/sgd", "--trace", own, "--gpu", "RTX 3090")
    given = ("--b0", 64, "--target", 0.97, "--max-epochs", 50)
    slack = ("--selector", "max-slowdown", "--max-slowdown", 0.1)
    found = told("outcomes", *arguments, *given, *slack)
    same = told("outcomes", "digits-mlp", *DIGITS, *slack)
    for key in ("configurations", "selected_limits_w", "selected_average_power_w", "optimum"):
        assert found[key] == same[key]
    assert found["gpu"] == "RTX 3090"
    drawn = {
        str(row["batch_size"]): row["average_power_w"]
        for row in found["configurations"]
        if row["power_limit_w"] == found["selected_limits_w"][str(row["batch_size"])]
    }
    assert found["selected_average_power_w"] == drawn
    out, _ = ran("outcomes", *arguments)
    assert "Derived from the sweep: batch size 512" in " ".join(out.split())
    out, _ = ran("simulate", *arguments, "--seeds", 2, "--recurrences", 6)
    assert "Derived from the sweep" in out


def test_the_columns_of_a_sweep_stand_in_the_help(ran: Ran) -> None:
    out, _ = ran("outcomes", "--help")
    shown = re.findall(r"\w+", out)
    for name in (*checks.TRAIN_COLUMNS, *checks.POWER_COLUMNS, "energy_source"):
        assert name in shown


def test_gaps_of_a_published_trace_are_told(ran: Ran, zeus: None) -> None:
    out, _ = ran("outcomes", "imagenet", "--gpu", "a40")
    assert "batch sizes trained, never profiled" in out
    assert "rows above their power limit by more than 5%" in out
    out, _ = ran("outcomes", "cifar100")
    assert "1 workload profiled, never trained" not in out  # of another optimizer


# ---------------------------------------------------------------- simulate and savings


def test_simulate_says_what_python_says(told: Told) -> None:
    arguments = (*DIGITS, "-p", "zeus,default,oracle", "--seeds", 5, "--recurrences", 20)
    found = told("simulate", "digits-mlp", *arguments, "--eta", 0.7)
    job = tuning.load("digits").job("digits-mlp")
    for row in found["policies"]:
        same = tuning.simulate(
            job, policy=row["policy"], eta=0.7, recurrences=20, seeds=range(5)
        ).summary()
        for name in ("energy_reduction", "energy_reduction_low", "regret_j", "batch_size"):
            assert row[name] == pytest.approx(same[name])
    assert [row["policy"] for row in found["policies"]] == ["zeus", "default", "oracle"]
    assert (found["num_seeds"], found["num_recurrences"], found["eta"]) == (5, 20, 0.7)


def test_simulate_takes_a_selector_and_concurrent_submissions(told: Told) -> None:
    arguments = (*DIGITS, "--seeds", 4, "--recurrences", 15, "--concurrency", 3)
    slack = ("--selector", "max-slowdown", "--max-slowdown", 0.05)
    found = told("simulate", "digits-cnn", *arguments, *slack)
    same = tuning.simulate(
        tuning.load("digits").job("digits-cnn"),
        recurrences=15,
        seeds=range(4),
        concurrency=3,
        selector="max-slowdown",
        max_slowdown=0.05,
    ).summary()
    assert found["policies"][0]["regret_j"] == pytest.approx(same["regret_j"])


def test_simulate_shows_intervals_and_draws_paths(ran: Ran, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ("--seeds", 3, "--recurrences", 12, "--html", page)
    out, _ = ran("simulate", "digits-mlp", *DIGITS, "-p", "zeus,oracle", *arguments)
    assert "% ± " in out
    assert "intervals are of the mean over seeds" in out.lower()
    text = page.read_text()
    assert "Where zeus went" in text
    assert "Where oracle went" not in text
    out, _ = ran("simulate", "digits-mlp", *DIGITS, "--seeds", 1, "--recurrences", 12)
    assert "One seed has no interval" in out
    assert "±" not in out.split("% interval")[1]


def test_savings_stand_beside_the_published_figures(told: Told, zeus: None) -> None:
    """Each workload's saving on each GPU, and the simulator's figure where somebody has one."""
    found = told("savings", "--seeds", 3)
    rows = {(row["gpu"], row["workload"], row["policy"]): row for row in found["rows"]}
    assert rows.keys() == published.SIMULATOR_ENERGY_REDUCTION.keys()
    assert len(rows) == 2 * 6
    for place, figure in published.SIMULATOR_ENERGY_REDUCTION.items():
        assert rows[place]["published_energy_reduction"] == figure
        # both are the same policy on the same trace: a few points of noise apart
        assert rows[place]["energy_reduction"] == pytest.approx(figure, abs=0.08)
    assert found["paper_range"] == [0.153, 0.758]


def test_savings_of_a_recorded_trace_have_nothing_published_beside(told: Told, ran: Ran) -> None:
    found = told("savings", *DIGITS, "--seeds", 2, "--policies", "oracle,tuned-power")
    places = [(row["workload"], row["policy"]) for row in found["rows"]]
    assert places == [
        (name, policy)
        for name in ("MLP, digits", "CNN, digits")
        for policy in ("oracle", "tuned-power")
    ]
    assert {row["published_energy_reduction"] for row in found["rows"]} == {None}
    out, _ = ran("savings", *DIGITS, "--seeds", 2)
    assert "are modelled" in out


# ---------------------------------------------------------------- goodput and choose


def test_goodput_says_what_python_says(told: Told, pollux: None) -> None:
    found = told("goodput", "cifar10", "--nodes", 2, "--gpus-used", 8)
    tables = tuning.goodput.load("pollux-osdi21", "cifar10")
    model = tuning.goodput.fit(
        tables.steps,
        init_batch_size=tables.init_batch_size,
        noise_scale=tables.noise_scale(0.5),
    )
    best = model.optimize(
        2, 8, max_batch_size=tables.max_batch_size, atomic_bsz_range=tables.atomic_bsz_range
    )
    last = found["allocations"][-1]
    assert (last["num_nodes"], last["num_gpus"]) == (2, 8)
    assert last["goodput"] == pytest.approx(best.goodput)
    assert last["atomic_bsz"] == best.atomic_bsz
    assert 0 < found["median_left_out_error_fraction"] < 0.1


def test_choose_keeps_the_deadline_and_prints_what_it_assumes(
    told: Told, ran: Ran, pollux: None, zeus: None, tmp_path: Path
) -> None:
    free = told("choose", "cifar10")
    soon = told("choose", "cifar10", "--deadline", 1000)
    assert soon["best"]["time_s"] <= 1000 < free["best"]["time_s"]
    assert free["best"]["energy_j"] <= soon["best"]["energy_j"]
    assert free["best"]["energy_j"] == pytest.approx(
        min(row["energy_j"] for row in free["frontier"])
    )
    table = tmp_path / "front.csv"
    page = tmp_path / "page.html"
    out, _ = ran("choose", "cifar10", "--csv", table, "--html", page)
    assert "grey: other points evaluated" in page.read_text()
    assert "no run was made at the" in " ".join(out.split())
    assert len(table.read_text().splitlines()) == 1 + len(free["frontier"])


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LABKIT_DATA_MIRROR", raising=False)
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("outcomes", "cifar100"),
        ("simulate", "cifar100", "--seeds", 2, "--recurrences", 6),
        ("savings", "--gpus", "v100", "--seeds", 2),
        ("goodput", "bert"),
        ("choose", "cifar10"),
    ],
)
def test_offline_a_stand_in_is_named_first(
    ran: Ran, offline: None, arguments: tuple[object, ...]
) -> None:
    out, _ = ran(*arguments)
    assert "STAND-IN DATA" in out[:300]
    assert "measured by Pollux" not in out


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("outcomes", "cifar100", "--gpu", "h100"), "no power trace of zeus-nsdi23 for 'h100'"),
        (("choose", "cifar10", "--idle-gpu-w", 9), "give --gpus-per-node"),
        (("choose", "cifar10", "--trace", "digits"), "--power-of: digits-mlp, digits-cnn"),
        (("simulate", "cifar100", "-p", ""), "--policies names none"),
        (("savings", "-p", ","), "--policies names none"),
    ],
)
def test_offline_what_is_missing_is_said(
    refused: Refused, offline: None, arguments: tuple[object, ...], rule: str
) -> None:
    assert rule in refused(*arguments)


def test_choose_scales_power_and_counts_hosts(told: Told, offline: None) -> None:
    """A T4 has 70 W; a host adds its draw for as long as the job runs."""
    bare = told("choose", "cifar10")
    host = told("choose", "cifar10", "--host-w", 100)
    assert bare["is_standin"]
    assert max(row["power_limit_w"] for row in bare["frontier"]) <= 70
    assert any("from 250 W to 70 W" in line for line in bare["assumptions"])
    assert "Each node draws 100 W besides its GPUs." in host["assumptions"]
    assert host["best"]["energy_j"] > bare["best"]["energy_j"]


# ---------------------------------------------------------------- record


def test_record_writes_a_trace_that_the_other_commands_read(ran: Ran, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    folder = tmp_path / "mine"
    grid = ("--networks", "mlp", "--batch-sizes", "64,256", "--seeds", "1", "--targets", "0.8")
    more = ("--default-target", 0.8, "--max-epochs", 6)
    out, err = ran("record", folder, *grid, *more)
    assert "Recorded 2 runs" in out
    assert "mlp, batch 64, seed 1" in err  # progress is not part of the result
    told = json.loads((folder / "meta.json").read_text())
    assert told["command"].startswith("labkit tuning record mine --networks mlp")
    out, _ = ran("outcomes", "--trace", folder)
    assert "MLP, digits: 12 configurations" in out


def test_record_says_how_far_off_its_counter_may_be(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two counts a step of 1 ms apart at most, over a window of 50 ms: 2 % at most."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")

    class Counter(Device):
        period_s = RaplMeter.period_s
        documented = RaplMeter.documented

        def end(self) -> Reading:
            return Reading(time_s=0.05, energy_j=2.0)

        def limit_w(self) -> float:
            return 50.0

    monkeypatch.setattr(trainings.recording, "find_meter", lambda _: Counter())
    grid = ("--networks", "mlp", "--batch-sizes", "256", "--seeds", "1", "--targets", "0.3")
    more = ("--b0", 256, "--default-target", 0.3, "--max-epochs", 2)
    out, _ = ran("record", tmp_path / "mine", *grid, *more)
    text = " ".join(out.split())
    assert "energy and power off by at most 2.00 %: the shortest window had" in text
    assert "Intel's Software Developer's Manual" in text


# ---------------------------------------------------------------- live


class Device:
    """A device injected for a GPU: a second and a limit's joules for every run."""

    source = "a made-up device"
    power_limits_w = (100.0, 200.0)

    def __init__(self) -> None:
        self.limit = 200.0
        self.begun = False

    def set_limit(self, power_limit_w: float) -> None:
        self.limit = power_limit_w

    def reset(self) -> None:
        self.limit = 200.0

    def begin(self) -> None:
        self.begun = True

    def end(self) -> Reading:
        assert self.begun
        return Reading(time_s=1.0, energy_j=self.limit)


def live_job(*command: str) -> LiveJob:
    return LiveJob(command=command, beta=9.0)


def test_live_reports_the_run_and_what_comes_next(tmp_path: Path) -> None:
    state = tmp_path / "job.json"
    job = live_job(sys.executable, "-c", "pass")
    report = trainings.run_live(state, job, Device(), tries=1)
    assert report.exit_code == 0
    assert report.data["runs"][0]["power_limit_w"] == 200
    assert report.data["next"] == {"batch_size": 1, "power_limit_w": 100, "why": "tries limits"}
    keys = {"batch_size", "power_limit_w", "time_s", "energy_j", "cost_j", "ended"}
    assert set(report.data["runs"][0]) == keys
    assert set(report.data) == {"command", "device", "ended", "next", "runs"}
    assert json.loads(state.read_text())["device"] == "a made-up device"
    assert any("tells no steps" in note for note in report.notes)


def test_live_tries_again_until_it_succeeds_or_may_not(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    fails_once = (
        f"import pathlib, sys; p = pathlib.Path({str(mark)!r}); there = p.exists(); p.touch();"
        "sys.exit(not there)"
    )
    job = live_job(sys.executable, "-c", fails_once)
    report = trainings.run_live(tmp_path / "a.json", job, Device(), tries=3)
    assert report.exit_code == 0
    assert [run["ended"] for run in report.data["runs"]] == ["failed", "reached"]
    never = live_job(sys.executable, "-c", "raise SystemExit(3)")
    report = trainings.run_live(tmp_path / "b.json", never, Device(), tries=2)
    assert report.exit_code == 1
    assert [run["ended"] for run in report.data["runs"]] == ["failed", "failed"]


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU here")
def test_live_without_a_gpu_is_refused_and_runs_and_writes_nothing(
    refused: Refused, tmp_path: Path
) -> None:
    state = tmp_path / "job.json"
    mark = tmp_path / "mark"
    said = refused("live", "--state", state, "--", "touch", mark)
    assert "live runs need a GPU" in said
    assert "live runs need a GPU" in refused("live", "--", "touch", mark)  # a state by default
    assert "labkit tuning record" in said
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("outcomes", *DIGITS), "name a workload of this trace: digits-mlp, digits-cnn"),
        (("outcomes", "digits-mpl", *DIGITS), "did you mean 'digits-mlp'"),
        (("outcomes", "digits-mlp", *DIGITS, "--gpu", "a40"), "recorded on one machine"),
        (
            ("outcomes", "digits-mlp", *DIGITS, "--eta", 2),
            "at least 0, at most 1; got 2",
        ),
        (("outcomes", "digits-mlp", *DIGITS, "--b0", 9), "default_batch_size 9 is not in the tr"),
        (("outcomes", "digits-mlp", *DIGITS, "--target", 0.5), "0.5 was not recorded; there are"),
        (("outcomes", "digits-mlp", *DIGITS, "--selector", "best"), "selector must be one of"),
        (("outcomes", "digits-mlp", *DIGITS, "--selector", "max-slowdown"), "needs max_slowdown"),
        (
            ("outcomes", "digits-mlp", *DIGITS, "--host-power", -1),
            "host_power_w must be a finite",
        ),
        (("outcomes", "x", "--trace", "digitz"), "digitz"),
        (("simulate", "digits-mlp", *DIGITS, "-p", "zeuss"), "no policy 'zeuss'; did you mean"),
        (
            ("simulate", "digits-mlp", *DIGITS, "--beta", 1),
            "a finite number, above 1; got 1",
        ),
        (("simulate", "digits-mlp", *DIGITS, "--seeds", 0), "seeds"),
        (("goodput", "cifar11"), "cifar11"),
        (("goodput", "cifar10", "--nodes", 9, "--gpus-used", 8), "8 is fewer than --nodes 9"),
        (("record", "x", "--networks", "mpl"), "no network 'mpl'; did you mean 'mlp'"),
        (("record", "x", "--batch-sizes", "8;16"), "--batch-sizes: '8;16' is no number"),
        (("record", "x", "--default-target", 0.5), "default_target 0.5 must be among targets"),
        (("record", "x", "--resume"), "nothing to resume"),
        (("record", "x", "--device", "tpu"), "no device 'tpu'"),
    ],
)
def test_wrong_use_names_the_rule(
    refused: Refused,
    arguments: tuple[object, ...],
    rule: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LABKIT_ROOT", str(Path(tuning.__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    assert rule in refused(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_missing_values_are_null(told: Told) -> None:
    """A batch size that never reaches the target has no finite time, and JSON has no infinity."""
    found = told("outcomes", "digits-cnn", *DIGITS, "--target", 0.98, "--max-epochs", 4)
    never = [row for row in found["configurations"] if row["reach_probability"] == 0]
    assert never
    assert all(row["time_to_accuracy_s"] is None for row in never)
    assert all(math.isfinite(row["reach_probability"]) for row in found["configurations"])


# ---------------------------------------------------------------- what stays

PINS = Path(__file__).with_name("pins")
PINNED = {
    "outcomes": (
        "digits-mlp", *DIGITS, "--eta", 0.3, "--selector", "max-slowdown", "--max-slowdown", 0.1,
    ),
    "simulate": (
        "digits-mlp", *DIGITS, "-p", "zeus,grid,oracle", "--seeds", 5, "--recurrences", 12,
    ),
    "savings": (*DIGITS, "-p", "zeus,oracle", "--seeds", 4),
    "goodput": ("cifar10", "--nodes", 2, "--gpus-used", 8),
    "choose": (
        "cifar10", *DIGITS, "--nodes", 1, "--gpus-used", 4, "--power-of", "digits-mlp",
        "--deadline", 1e5, "--host-w", 50,
    ),
    "record": (
        "mine", "--networks", "mlp", "--batch-sizes", "64,512", "--seeds", 1, "--targets", 0.5,
        "--default-target", 0.5, "--max-epochs", 2,
    ),
}  # fmt: skip
RECORDED_HERE = ("outcomes", "simulate", "savings")
"""Commands that read only the committed trace: their numbers stay as well as their keys."""


def assert_kept(pinned: Any, answer: Any, *, numbers: bool) -> None:
    """Every key of ``pinned`` is in ``answer``; where ``numbers`` says so, with its value."""
    if isinstance(pinned, dict):
        assert pinned.keys() <= answer.keys()
        for key, value in pinned.items():
            assert_kept(value, answer[key], numbers=numbers)
    elif isinstance(pinned, list):
        for value, same in zip(pinned, answer, strict=False):
            assert_kept(value, same, numbers=numbers)
    elif numbers:
        assert answer == (pytest.approx(pinned) if isinstance(pinned, float) else pinned)


@pytest.mark.parametrize("command", PINNED)
def test_json_keeps_its_keys_and_the_numbers_of_committed_data(
    told: Told, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command == "record":
        pytest.importorskip("torch")
        pytest.importorskip("sklearn")
        monkeypatch.setenv("LABKIT_ROOT", str(Path(tuning.__file__).parents[2]))
        monkeypatch.chdir(tmp_path)
    pinned = json.loads((PINS / f"tuning_{command}.json").read_text(encoding="utf-8"))
    assert_kept(pinned, told(command, *PINNED[command]), numbers=command in RECORDED_HERE)


@pytest.mark.parametrize("line", [e for e in commands.examples if "tuning live" not in e])
def test_examples_of_the_help_work_as_they_stand(
    ran: Ran, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_ROOT", str(Path(tuning.__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    if "record" in line:
        pytest.importorskip("torch")
        pytest.importorskip("sklearn")
    ran(*line.split()[2:])
