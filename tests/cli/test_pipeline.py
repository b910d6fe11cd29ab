"""``labkit pipeline`` as a person meets it: tables, JSON, files, errors and exit codes."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from labkit import pipeline
from labkit.cli import main
from labkit.pipeline.commands import commands
from labkit.pipeline.profiles.published import short_names
from tests.published import Need

GROUP = "pipeline"
CLOCKS = (1400, 1200, 1000, 800)


def rows(num_stages: int = 3) -> list[tuple[Any, ...]]:
    """Measurements of a made-up GPU: time a + b / f, power rising with the clock's cube."""
    made = []
    for stage in range(num_stages):
        for kind, work in (("forward", 1.0), ("backward", 2.0)):
            for clock in CLOCKS:
                time_s = work * (1 + 0.2 * stage) * (0.02 + 100 / clock)
                power_w = 90 + 250 * (clock / 1400) ** 3
                made.append((stage, kind, clock, time_s, time_s * power_w))
    return made


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write(tmp_path / "profile.csv", rows())


def write(path: Path, table: list[tuple[Any, ...]]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("stage", "instruction", "frequency", "time", "energy"))
        writer.writerows(table)
    return path


Ran = Callable[..., tuple[str, str]]
Told = Callable[..., dict[str, Any]]
Refused = Callable[..., str]


@pytest.mark.parametrize("line", commands.examples)
def test_every_example_runs(ran: Ran, line: str) -> None:
    out, err = ran(*shlex.split(line)[2:])
    assert out
    assert not err


# ---------------------------------------------------------------- schedules and simulate


def test_schedules_lists_every_name(ran: Ran, told: Told) -> None:
    names = set(pipeline.schedules()["name"])
    out, _ = ran("schedules")
    assert names <= set(out.split())
    assert {one["name"] for one in told("schedules")["schedules"]} == names


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 8), (8, 12), (8, 3)])
def test_simulate_gives_the_closed_form(told: Told, stages: int, microbatches: int) -> None:
    found = told("simulate", "1f1b", "-s", stages, "-m", microbatches)
    assert found["makespan_s"] == 3 * (microbatches + stages - 1)
    expected = (stages - 1) / (microbatches + stages - 1)
    assert found["bubble_ratio"] == pytest.approx(expected)
    assert found["closed_form_bubble_ratio"] == pytest.approx(expected)
    assert [d["peak_in_flight"] for d in found["devices"]] == [
        min(microbatches, stages - d) for d in range(stages)
    ]
    for device in found["devices"]:
        parts = [x for key, x in device.items() if key.endswith("_s") and key != "makespan_s"]
        assert sum(parts) == pytest.approx(found["makespan_s"])


def test_simulate_takes_uneven_stages_chunks_and_sizes(told: Told) -> None:
    uneven = told(
        "simulate", "gpipe", "-s", 2, "-m", 3, "--forward", "1,2", "--backward", "0", "--weight", 3
    )
    assert uneven["makespan_s"] == 1 + 3 * 2 + 3 * 3 + 3  # the slow stage, then the last backward
    assert uneven["closed_form_bubble_ratio"] is None  # stages differ
    chunked = told("simulate", "interleaved-1f1b", "-s", 4, "-m", 8, "--chunks", 2)
    assert chunked["schedule"]["num_stages"] == 8
    assert chunked["makespan_s"] == 57  # torch's own order takes as long
    held = told("simulate", "gpipe", "-s", 2, "-m", 3, "--activation-bytes", "2GB,1GB")
    assert [d["peak_activation_bytes"] for d in held["devices"]] == [6e9, 3e9]


def test_simulate_counts_communication(told: Told) -> None:
    one_way = ("simulate", "gpipe", "-s", 2, "-m", 1)
    assert told(*one_way, "--latency", 0.25)["makespan_s"] == 6.5
    sized = ("--bandwidth", "4GB", "--message-bytes", "1GB")
    assert told(*one_way, *sized)["makespan_s"] == 6.5
    idle = told(*one_way, *sized, "--no-overlap")["devices"][1]["communication_s"]
    assert idle == 0.0  # between its first and last instruction it waits for nothing


def test_jitter_follows_its_seed(told: Told) -> None:
    run = ("simulate", "1f1b", "-s", 4, "-m", 8, "--jitter", 0.1)
    first, again, other = (told(*run, "--seed", seed)["makespan_s"] for seed in (1, 1, 2))
    assert first == again != other
    assert first != 33


def test_an_order_makes_the_round_trip(tmp_path: Path, ran: Ran, told: Told) -> None:
    path = tmp_path / "order.csv"
    ran("simulate", "zb-v", "-s", 4, "-m", 8, "--save-order", path)
    direct = told("simulate", "zb-v", "-s", 4, "-m", 8)
    read = told("simulate", "--order", path)
    assert read["makespan_s"] == direct["makespan_s"]
    assert read["devices"] == direct["devices"]


def test_list_schedulers_make_their_order_for_the_durations_given(told: Told) -> None:
    work = ("--forward", 1, "--backward", 2, "--weight", 1)
    ours = told("simulate", "zb-v", "-s", 4, "-m", 8, *work)["makespan_s"]
    schedule = pipeline.build("zb-v", 4, 8, durations_s=(1.0, 2.0, 1.0))
    costs = pipeline.Costs(forward_s=1.0, backward_s=2.0, weight_s=1.0)
    assert ours == pipeline.simulate(schedule, costs).makespan_s


def test_simulate_writes_its_files(tmp_path: Path, ran: Ran) -> None:
    paths = {name: tmp_path / f"run.{name}" for name in ("json", "html", "csv")}
    trace = tmp_path / "deep" / "trace.json"
    flags = [part for name, path in paths.items() for part in (f"--{name}", path)]
    out, err = ran("simulate", "zb-h1", "-s", 3, "-m", 4, *flags, "--trace", trace)
    assert "makespan" in out
    assert not err
    for path in (*paths.values(), trace):
        assert path.name in out
    assert json.loads(paths["json"].read_text())["schedule"]["name"] == "zb-h1"
    table = list(csv.DictReader(paths["csv"].open()))
    assert len(table) == 3 * 4 * 3
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(one["ph"] == "X" for one in events) == len(table)
    check_page(paths["html"], 3)


def check_page(path: Path, num_figures: int) -> None:
    """One file that fetches nothing, each figure with data."""
    page = path.read_text()
    assert page.count('<figure class="plot"') == num_figures
    assert "default-src 'none'; script-src 'sha256-" in unescape(page[:1000])
    assert "Plotly.newPlot" in page
    assert "src=" not in page.split("<script>")[0]
    for part in page.split('<script type="application/json">')[1:]:
        assert json.loads(part.split("</script>")[0])["data"]


# ---------------------------------------------------------------- plan


def test_plan_is_the_engines(profile: Path, told: Told) -> None:
    found = told("plan", "1f1b", "-p", profile, "--blocking-power", 70, "-m", 4)
    read = pipeline.EnergyProfile.from_csv(profile, blocking_power_w=70)
    schedule = pipeline.build("1f1b", 3, 4)
    fast = pipeline.plan(schedule, read, "max-clock")
    made = pipeline.plan(schedule, read, "optimal")
    assert found["energy_j"] == pytest.approx(made.energy_j)
    assert found["bound_j"] <= found["energy_j"]
    assert found["deadline_s"] == fast.makespan_s
    assert found["max_clock"] == {"makespan_s": fast.makespan_s, "energy_j": fast.energy_j}
    assert found["saving_fraction"] == pytest.approx(1 - made.energy_j / fast.energy_j)
    counted = [sum(one["instructions_by_clock_mhz"].values()) for one in found["stages"]]
    assert counted == [4] * 6
    working_j = sum(one["energy_j"] for one in found["stages"])
    busy_s = sum(one["time_s"] for one in found["stages"])
    waiting_j = 70 * (3 * found["makespan_s"] - busy_s)
    assert found["energy_j"] == pytest.approx(working_j + waiting_j)


def test_plan_writes_the_clock_of_every_instruction(
    tmp_path: Path, profile: Path, ran: Ran, told: Told
) -> None:
    path = tmp_path / "clocks.csv"
    trace = tmp_path / "t.json"
    page = tmp_path / "p.html"
    asked = ("plan", "zb-h1", "-p", profile, "--blocking-power", 70, "-m", 4)
    out, _ = ran(*asked, "--csv", path, "--trace", trace, "--html", page)
    table = list(csv.DictReader(path.open()))
    found = told(*asked)
    assert len(table) == found["schedule"]["num_instructions"]
    assert {float(one["clock_mhz"]) for one in table} <= set(CLOCKS)
    assert max(float(one["end_s"]) for one in table) == pytest.approx(found["makespan_s"])
    assert any(
        one["ph"] == "C" and "power" in one["name"].lower()
        for one in json.loads(trace.read_text())["traceEvents"]
    )
    check_page(page, 2)
    assert "0.5 of a full backward" in " ".join(out.split())


def test_deadline_as_seconds_or_as_slowdown(profile: Path, told: Told) -> None:
    asked = ("plan", "1f1b", "-p", profile, "--blocking-power", 70, "-m", 4)
    fast = told(*asked, "--method", "max-clock")
    share = told(*asked, "--slowdown", 0.1)
    seconds = told(*asked, "--deadline", share["deadline_s"])
    assert share["deadline_s"] == pytest.approx(1.1 * fast["makespan_s"])
    assert seconds["energy_j"] == share["energy_j"] <= told(*asked)["energy_j"]
    assert share["makespan_s"] <= share["deadline_s"] * (1 + 1e-9)


def test_frontier_falls_and_keeps_its_bound(tmp_path: Path, profile: Path, told: Told) -> None:
    page = tmp_path / "front.html"
    found = told(
        "plan",
        "1f1b",
        "-p",
        profile,
        "--blocking-power",
        70,
        "-m",
        4,
        "--frontier",
        6,
        "--html",
        page,
    )
    front = found["frontier"]
    assert len(front) == 6
    bounds = [one["bound_j"] for one in front]
    assert bounds == sorted(bounds, reverse=True)
    assert all(one["energy_j"] >= one["bound_j"] * (1 - 1e-9) for one in front)
    check_page(page, 3)


def test_a_planners_settings_and_methods(profile: Path, told: Told) -> None:
    asked = ("plan", "1f1b", "-p", profile, "--blocking-power", 70, "-m", 4)
    greedy = told(*asked, "--method", "envpipe", "--planner-set", "reconfigure=greedy")
    assert greedy["method"] == "envpipe"
    assert greedy["deadline_s"] is None


def test_json_on_standard_output_stands_alone(profile: Path, ran: Ran) -> None:
    out, err = ran("plan", "1f1b", "-p", profile, "--blocking-power", 70, "-m", 4, "--json", "-")
    assert json.loads(out)["command"] == "plan"
    assert "saving" in err


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal(
    profile: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    common = ("-p", profile, "--blocking-power", 70, "-m", 4)
    for asked in (
        ("schedules",),
        ("simulate", "interleaved-1f1b", "-s", 4, "-m", 8, "--latency", 0.1),
        ("plan", "zb-h1", *common),
        ("compare", *common, "--schedules", "1f1b,zb-h1", "--methods", "optimal,envpipe"),
        ("choose", *common, "--schedules", "1f1b,zb-h1", "--memory-limit", 3),
    ):
        out, _ = ran(*asked)
        assert max(map(len, out.splitlines())) <= width, asked


# ---------------------------------------------------------------- compare and choose


def test_compare_puts_plans_side_by_side(
    tmp_path: Path, profile: Path, ran: Ran, told: Told
) -> None:
    page = tmp_path / "c.html"
    found = told(
        "compare",
        "-p",
        profile,
        "--blocking-power",
        70,
        "-m",
        4,
        "--schedules",
        "1f1b,gpipe",
        "--methods",
        "envpipe,optimal",
        "--html",
        page,
    )
    plans = {one["plan"]: one for one in found["plans"]}
    assert list(plans) == [
        "1f1b, max-clock",
        "1f1b, envpipe",
        "1f1b, optimal",
        "gpipe, envpipe",
        "gpipe, optimal",
    ]
    base = plans["1f1b, max-clock"]
    assert base["saving_fraction"] == base["slowdown_fraction"] == 0
    for one in plans.values():
        assert one["saving_fraction"] == pytest.approx(1 - one["energy_j"] / base["energy_j"])
        assert one["bound_j"] <= one["energy_j"] * (1 + 1e-9)
    assert plans["1f1b, optimal"]["makespan_s"] <= base["makespan_s"] * (1 + 1e-9)
    assert found["failed"] == {}
    check_page(page, 6)


def test_compare_goes_on_past_a_plan_that_cannot_be(profile: Path, told: Told) -> None:
    found = told(
        "compare",
        "-p",
        profile,
        "--blocking-power",
        70,
        "-m",
        4,
        "--methods",
        "uniform,optimal",
        "--slowdown",
        0,
    )
    assert [one["plan"] for one in found["plans"]] == ["1f1b, max-clock", "1f1b, optimal"]
    assert "cannot be met" in found["failed"]["1f1b, uniform"]


def test_choose_is_the_engines(tmp_path: Path, profile: Path, told: Told) -> None:
    page = tmp_path / "c.html"
    found = told(
        "choose",
        "-p",
        profile,
        "--blocking-power",
        70,
        "-m",
        4,
        "--memory-limit",
        3,
        "--schedules",
        "1f1b,zb-h1",
        "--html",
        page,
    )
    read = pipeline.EnergyProfile.from_csv(profile, blocking_power_w=70)
    from labkit.pipeline.choice.joint import choose

    choice = choose(read, 4, memory_limit_bytes=3, schedules=("1f1b", "zb-h1"))
    assert found["best"]["energy_j"] == choice.best.energy_j
    assert found["best"]["bound_j"] == choice.bound_j
    assert found["best"]["schedule"]["name"] == choice.chosen.name
    assert len(found["candidates"]) == len(choice.frame())
    assert found["candidates"][0]["dropped"] == ""
    assert found["assumptions"]
    check_page(page, 2)


def test_choose_over_several_limits(tmp_path: Path, profile: Path, told: Told) -> None:
    page = tmp_path / "t.html"
    rows = tmp_path / "t.csv"
    found = told(
        "choose",
        "-p",
        profile,
        "--blocking-power",
        70,
        "-m",
        4,
        "--memory-limit",
        "1,2,3",
        "--slowdown",
        "0,0.5",
        "--schedules",
        "1f1b,zb-h1",
        "--html",
        page,
        "--csv",
        rows,
    )
    table = found["tradeoff"]
    assert len(table) == len(list(csv.DictReader(rows.open()))) == 6
    assert [one["memory_limit_bytes"] for one in table] == [1, 2, 3] * 2
    for one in table:
        assert (one["energy_j"] is None) == bool(one["problem"])
    check_page(page, 1)


def test_choose_counts_bytes(profile: Path, told: Told) -> None:
    found = told(
        "choose",
        "-p",
        profile,
        "--blocking-power",
        70,
        "-m",
        4,
        "--memory-limit",
        "20GiB",
        "--activation-bytes",
        "2GiB,3GiB,4GiB",
        "--parameter-bytes",
        "9GiB",
        "--schedules",
        "1f1b",
    )
    held = [
        a + p
        for a, p in zip(
            found["best"]["activation_bytes"], found["best"]["parameter_bytes"], strict=True
        )
    ]
    assert max(held) <= 20 * 2**30
    assert found["memory_limit_bytes"] == 20 * 2**30


# ---------------------------------------------------------------- profiles


def test_short_names_name_published_profiles() -> None:
    assert set(short_names()) == {"a100/bloom", "a100/gpt3-175b", "a40/gpt3-175b"}


def test_a_stand_in_is_said_aloud(
    ran: Ran, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LABKIT_OFFLINE", "1"), ("LABKIT_CACHE", str(tmp_path))):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LABKIT_DATA_MIRROR", raising=False)
    asked = ("plan", "1f1b", "-p", "a100/bloom", "-m", 2, "--method", "max-clock")
    out, _ = ran(*asked)
    assert out.index("STAND-IN DATA") < out.index("energy")
    assert told(*asked)["profile"]["is_standin"] is True


def test_published_profiles_know_their_power(told: Told, published_data: Need) -> None:
    name = "sosp24_data/emulation/stage_profile/bloom+a100_sxm_bf16.csv"
    published_data("perseus-sosp24", [name])
    for asked in ("a100/bloom", "perseus-sosp24/bloom+a100_sxm_bf16.csv"):
        found = told("plan", "1f1b", "-p", asked, "-m", 2, "--method", "max-clock")
        assert found["profile"] == {
            "origin": asked,
            "is_standin": False,
            "num_stages": 8,
            "blocking_power_w": 83.64,
            "num_measurements": 608,
            "num_dropped": found["profile"]["num_dropped"],
        }


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("simulate", "1f1", "-s", 2, "-m", 2), "no schedule '1f1'; did you mean '1f1b'?"),
        (("simulate",), "name a schedule"),
        (("simulate", "1f1b", "--order", "x.csv"), "name a schedule"),
        (("simulate", "1f1b", "-s", 2), "1f1b needs --stages and --microbatches"),
        (
            ("simulate", "1f1b", "-s", 0, "-m", 2),
            "num_stages must be a whole number, at least 1; got 0",
        ),
        (("simulate", "1f1b", "-s", 2, "-m", 2, "--chunks", 2), "has no option 'num_chunks'"),
        (
            ("simulate", "1f1b", "-s", 2, "-m", 2, "--forward", "-1"),
            "Costs.forward_s must be a finite number, at least 0",
        ),
        (
            ("simulate", "1f1b", "-s", 2, "-m", 2, "--forward", "nan"),
            "Costs.forward_s must be a finite number",
        ),
        (("simulate", "1f1b", "-s", 2, "-m", 2, "--forward", "1,x"), "--forward: 'x' is no number"),
        (("simulate", "1f1b", "-s", 2, "-m", 2, "--weight", "1,2,3"), "weight_s has 3 values"),
        (
            ("simulate", "1f1b", "-s", 2, "-m", 2, "--jitter", "-1"),
            "jitter must be a finite number, at least 0",
        ),
        (("simulate", "1f1b", "-s", 2, "-m", 2, "--bandwidth", "1GB"), "needs --message-bytes"),
        (("simulate", "1f1b", "-s", 2, "-m", 2, "--message-bytes", 1), "needs --bandwidth"),
        (("simulate", "1f1b", "-s", 2, "-m", 2, "--no-overlap"), "--no-overlap needs a network"),
        (("simulate", "1f1b", "-s", 2, "-m", 2, "--set", "a"), "'a' is not NAME=VALUE"),
        (("simulate", "--order", "x.csv", "-s", 2), "leave out --stages"),
        (("simulate", "--order", "no.csv"), "no.csv"),
        (("plan", "1f1b", "-p", "no.csv", "-m", 2), "profile no.csv: there is no such file"),
        (("plan", "1f1b", "-p", "a100/blom", "-m", 2), "did you mean 'a100/bloom'"),
    ],
)
def test_bad_requests(refused: Refused, wrong: tuple[object, ...], message: str) -> None:
    assert message in refused(*wrong)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("1f1b",), "--microbatches is needed"),
        (("1f1b", "-m", 4, "--method", "optimum"), "no planner 'optimum'"),
        (("1f1b", "-m", 4, "--deadline", 0.1), "cannot be met"),
        (("1f1b", "-m", 4, "--deadline", -3), "-3"),
        (("1f1b", "-m", 4, "--slowdown", 0.1, "--deadline", 3), "not both"),
        (("1f1b", "-m", 4, "--deadline", "3,4"), "only one deadline here"),
        (("1f1b", "-m", 4, "--planner-set", "x=1"), "has no setting 'x'"),
        (
            ("zb-h1", "-m", 4, "--weight-fraction", 1.5),
            "weight_fraction must be a finite number, above 0, below 1",
        ),
    ],
)
def test_bad_plans(
    profile: Path, refused: Refused, flags: tuple[object, ...], message: str
) -> None:
    assert message in refused("plan", *flags, "-p", profile, "--blocking-power", 70)


def test_a_profile_of_ones_own_needs_its_blocking_power(profile: Path, refused: Refused) -> None:
    assert "--blocking-power is needed" in refused("plan", "1f1b", "-p", profile, "-m", 2)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda t: [
                (s, k, f, -x, e) if i == 3 else (s, k, f, x, e)
                for i, (s, k, f, x, e) in enumerate(t)
            ],
            "5: time out of range",
        ),
        (
            lambda t: [
                (s, k, f, x, "nan") if i == 0 else (s, k, f, x, e)
                for i, (s, k, f, x, e) in enumerate(t)
            ],
            "2: energy out of range",
        ),
        (lambda t: [row for row in t if row[0] != 1], "stage 1 has no forward measurement"),
    ],
)
def test_bad_profiles_name_the_line(
    tmp_path: Path, refused: Refused, spoil: Callable[[Any], Any], message: str
) -> None:
    path = write(tmp_path / "bad.csv", spoil(rows()))
    told = refused("plan", "1f1b", "-p", path, "--blocking-power", 70, "-m", 2)
    assert "bad.csv" in told
    assert message in told


def test_a_circle_of_waits_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "circle.csv"
    path.write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    assert main(["pipeline", "simulate", "--order", str(path)]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "the order deadlocks" in told
    assert "waits for" in told


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--memory-limit", "2XB"), "'2XB' is no number of bytes"),
        (("--memory-limit", "0.5"), "the least that any needs is 1 bytes"),
        (("--memory-limit", "1", "--deadline", 0.1), "the earliest possible is"),
        (("--memory-limit", "1,2", "--trace", "x.json"), "--trace needs one plan"),
        (("--chunks", "two"), "'two' is no number; valid: a whole number"),
        (("--schedules", "1f1b,zbv"), "no schedule 'zbv'; did you mean 'zb-v'"),
    ],
)
def test_bad_choices(
    profile: Path, refused: Refused, flags: tuple[object, ...], message: str
) -> None:
    given = () if "--schedules" in flags else ("--schedules", "1f1b")
    common = ("-p", profile, "--blocking-power", 70, "-m", 4)
    assert message in refused("choose", *common, *given, *flags)
