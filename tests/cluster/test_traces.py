"""Every bad trace is one sentence that names the file, the row, the field, the value."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from labkit import cluster, datasets
from labkit.cluster.inputs.published import GAVEL, PARTS, PHILLY, STEPS_PER_S, in_seconds
from labkit.datasets import CorruptDownload, DatasetUnavailable
from labkit.errors import BadFile, BadValue, UsageError
from labkit.files import project_root
from labkit.kit.arrivals import from_table
from tests.published import Need

GOOD = "job_id,arrival_s,duration_s,gpus,deadline_s\na,0,10,1,20\nb,5,2.5,4,\n"


def read(tmp_path: Path, text: str, **more: object) -> cluster.Trace:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    return cluster.from_csv(path, **more)


def test_a_good_file(tmp_path: Path) -> None:
    trace = read(tmp_path, GOOD)
    assert trace.ids == ("a", "b")
    assert trace.column("gpus").tolist() == [1, 4]
    assert trace.column("deadline_s").tolist() == [20, np.inf]
    assert trace.name == "jobs"
    assert read(tmp_path, trace.frame().to_csv(index=False)).ids == trace.ids


def test_rows_need_not_be_sorted_and_columns_may_be_spelt_otherwise(tmp_path: Path) -> None:
    text = "Submit,num_gpu,duration,user\n9,2,5,x\n3,1,4,y\n"
    trace = read(tmp_path, text, columns={"arrival_s": "Submit"}, name="ours")
    assert trace.column("arrival_s").tolist() == [3, 9]
    assert (trace.ids, trace.tenant, trace.name) == (("1", "0"), ("y", "x"), "ours")


@pytest.mark.parametrize(
    ("bad", "line", "field", "value", "valid"),
    [
        ("b,-5,2,4,", 3, "arrival_s", "-5.0", "at least 0"),
        ("b,nan,2,4,", 3, "arrival_s", "'nan'", "a finite number"),
        ("b,inf,2,4,", 3, "arrival_s", "inf", "a finite number"),
        ("b,5,0,4,", 3, "duration_s", "0.0", "above 0"),
        ("b,5,two,4,", 3, "duration_s", "'two'", "a finite number"),
        ("b,5,,4,", 3, "duration_s", "''", "a finite number"),
        ("b,5,2,0,", 3, "gpus", "0.0", "a whole number, at least 1"),
        ("b,5,2,1.5,", 3, "gpus", "1.5", "a whole number, at least 1"),
        ("b,5,2,4,3", 3, "deadline_s", "3.0", "after the job's arrival"),
        ("b,5,2,4,soon", 3, "deadline_s", "'soon'", "after the job's arrival"),
        ("a,5,2,4,", 3, "job_id", "'a'", "every id once"),
    ],
)
def test_a_bad_value_is_named(
    tmp_path: Path, bad: str, line: int, field: str, value: str, valid: str
) -> None:
    lines = GOOD.splitlines()
    with pytest.raises(BadFile) as error:
        read(tmp_path, "\n".join([*lines[:2], bad, *lines[3:]]))
    text = str(error.value)
    assert f"jobs.csv:{line}: " in text
    assert f"field {field!r}" in text
    assert f"found {value}" in text
    assert valid in text


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"nowhere\.csv: the file is missing"):
        cluster.from_csv(tmp_path / "nowhere.csv")
    with pytest.raises(BadFile, match="holds no jobs"):
        read(tmp_path, GOOD.splitlines()[0])
    with pytest.raises(BadFile, match="a column is missing; field 'gpus'"):
        read(tmp_path, "arrival_s,duration_s\n0,1\n")
    with pytest.raises(BadFile, match="a column is missing; field 'Submit'"):
        read(tmp_path, GOOD, columns={"arrival_s": "Submit"})
    with pytest.raises(BadFile, match="not a table"):
        read(tmp_path, "")
    with pytest.raises(BadValue, match="columns names 'Submit' twice"):
        read(tmp_path, GOOD, columns={"arrival_s": "Submit", "duration_s": "Submit"})
    with pytest.raises(BadValue, match="columns names 'arrive'"):
        read(tmp_path, GOOD, columns={"arrive": "x"})


def test_what_the_cluster_lacks_is_named() -> None:
    machines = cluster.Cluster.nodes(2, gpus=8, gpu="v100")
    wide = cluster.Trace(arrival_s=[0], duration_s=[1], gpus=[17], ids=["big"])
    with pytest.raises(BadValue, match=r"job big: gpus 17 is more .*; valid: 1 to 16"):
        cluster.simulate(wide, machines, cluster.fifo())
    typed = cluster.Trace(arrival_s=[0], duration_s=[1], gpus=[1], gpu=["v10"])
    with pytest.raises(BadValue, match=r"job 0: gpu 'v10' .*did you mean 'v100'\? valid: v100"):
        cluster.simulate(typed, machines, cluster.fifo())


def test_arrays_are_checked_too() -> None:
    with pytest.raises(
        BadValue, match=re.escape("Trace.arrival_s[1]: the value is not allowed; found -1")
    ):
        cluster.Trace(arrival_s=[0, -1], duration_s=[1, 1], gpus=[1, 1])
    with pytest.raises(BadValue, match=r"Trace\.gpus must have one entry a job; got 1"):
        cluster.Trace(arrival_s=[0, 1], duration_s=[1, 1], gpus=[1])
    with pytest.raises(BadValue, match=re.escape("Trace.ids[1]: an id stands twice; found 'a'")):
        cluster.Trace(arrival_s=[0, 1], duration_s=[1, 1], gpus=[1, 1], ids=["a", "a"])


def test_a_trace_cannot_be_written_to() -> None:
    trace = cluster.Trace(arrival_s=[0.0], duration_s=[1.0], gpus=[1])
    with pytest.raises(ValueError, match="read-only"):
        trace.column("gpus")[0] = 2


def test_names_that_are_not_there() -> None:
    with pytest.raises(UsageError, match="no trace 'itp'"):
        cluster.load("itp")
    with pytest.raises(UsageError, match="no part of itp-elasticflow '6'"):
        cluster.load("itp-elasticflow", part="6")
    with pytest.raises(UsageError, match="no policy 'laas'; did you mean 'las'"):
        cluster.named("laas")
    with pytest.raises(UsageError, match="only las and las2d take thresholds"):
        cluster.named("fifo:3")
    with pytest.raises(UsageError, match="thresholds are numbers"):
        cluster.named("las:many")
    with pytest.raises(BadValue, match="thresholds must rise"):
        cluster.las2d(7200, 3250)
    trace = cluster.Trace(arrival_s=[0.0], duration_s=[1.0], gpus=[1], ids=["x"])
    run = cluster.simulate(trace, cluster.Cluster.nodes(1), cluster.fifo())
    with pytest.raises(BadValue, match="has no job 'y'; valid: an id such as 'x'"):
        run.why("y")


@pytest.mark.parametrize("key", [lambda t: 1.0, lambda t: [np.nan], lambda t: t.nothing])
def test_a_key_that_is_no_number_a_job_is_refused(key: object) -> None:
    trace = cluster.Trace(arrival_s=[0.0], duration_s=[1.0], gpus=[1])
    with pytest.raises(BadValue, match="key of policy 'mine'"):
        cluster.simulate(trace, cluster.Cluster.nodes(1), cluster.priority_policy("mine", key))


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """From its call on no published file can be had."""

    def hide() -> None:
        monkeypatch.setenv("LABKIT_OFFLINE", "1")
        monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
        monkeypatch.setenv("LABKIT_DATA_MIRROR", str(tmp_path))

    return hide


def test_the_stand_in_of_cluster_06_says_so(nowhere: Callable[[], None]) -> None:
    nowhere()
    assert cluster.load("itp-elasticflow", part="06").name == "itp-elasticflow/06, stand-in"
    with pytest.raises(DatasetUnavailable):
        cluster.load("itp-elasticflow", part="07")


def test_the_stand_in_of_cluster_06_is_as_crowded(
    published_data: Need, nowhere: Callable[[], None]
) -> None:
    published_data("itp-elasticflow", ["data/raw-traces.tar.gz"])
    recorded = cluster.load("itp-elasticflow", part="06")
    nowhere()
    ours = cluster.load("itp-elasticflow", part="06")
    assert np.array_equal(np.sort(ours.column("gpus")), np.sort(recorded.column("gpus")))
    gpus = cluster.Cluster.nodes(12)
    for policy in (cluster.fifo(), cluster.las2d(), cluster.srsf()):
        both = [cluster.simulate(t, gpus, policy).jct_s.mean() for t in (ours, recorded)]
        assert 0.5 < both[0] / both[1] < 1.5, policy.name


VIRTUAL_CLUSTERS = PARTS[GAVEL][1:]
needs_philly = pytest.mark.usefixtures("philly")


@pytest.fixture
def philly(published_data: Need) -> datasets.Source:
    return published_data(GAVEL, [PHILLY.format(part) for part in VIRTUAL_CLUSTERS])


def rows_of_files() -> dict[str, pd.DataFrame]:
    return {
        part: in_seconds(datasets.open(f"{GAVEL}/{PHILLY.format(part)}"))
        for part in VIRTUAL_CLUSTERS
    }


@needs_philly
def test_philly_is_eleven_virtual_clusters_each_on_its_own_clock() -> None:
    """Counts are the files' lines; the registry's hashes hold the rest."""
    trace = cluster.load(GAVEL)
    jobs = trace.frame()
    assert trace.name == "gavel-osdi20/philly"
    assert jobs.groupby("tenant").size().to_dict() == {
        "0e4a51": 1181,
        "103959": 986,
        "11cb48": 2000,
        "2869ce": 533,
        "6214e9": 2000,
        "6c71a0": 2000,
        "7f04ca": 972,
        "b436b2": 2000,
        "e13805": 607,
        "ed69ec": 951,
        "ee9e8c": 2000,
    }
    assert (jobs.groupby("tenant")["arrival_s"].min() == 0).all()
    assert jobs["duration_s"].min() >= 1200, "its authors left out jobs below twenty minutes"
    assert (jobs["duration_s"] % 1 == 0).all()
    for part, rows in rows_of_files().items():
        assert rows["arrival_s"].astype(float).is_monotonic_increasing
        own = cluster.load(GAVEL, part=part)
        assert set(own.tenant) == {part}
        assert own.column("gpus").tolist() == rows["gpus"].astype(int).tolist()


@needs_philly
def test_the_rates_of_their_day_make_steps_whole_seconds(published_data: Need) -> None:
    """Seconds times a rate, cut to whole steps: what is missing to a second is less than a step."""
    published_data(f"{GAVEL}/scheduler/simulation_throughputs.json")
    rates = pd.read_csv(project_root() / STEPS_PER_S, index_col="kind")["steps_per_s"]
    later = cluster.load_throughputs()
    rows = pd.concat(rows_of_files().values())
    steps = rows["steps"].astype(float)
    shares = []
    for table in (rates, pd.Series(later.alone[:, 0], later.kinds)):
        per_s = rows["kind"].map(table)
        seconds = steps / per_s
        shares.append(float(((np.ceil(seconds) - seconds) * per_s < 1).mean()))
    assert shares[0] == 1
    assert shares[1] < 0.5, "the rates that were published later"


@needs_philly
def test_kinds_were_drawn_and_say_nothing_of_durations() -> None:
    longest = max(rows_of_files().values(), key=len)["kind"].tolist()
    assert all(rows["kind"].tolist() == longest[: len(rows)] for rows in rows_of_files().values())
    jobs = cluster.load(GAVEL).frame()
    logs = np.log(jobs["duration_s"])

    def explained(by: pd.Series) -> float:
        return 1 - float((logs - logs.groupby(by).transform("mean")).var() / logs.var())

    assert explained(jobs["kind"]) < 0.01 < 0.1 < explained(jobs["tenant"])


@needs_philly
def test_long_jobs_stand_to_the_second_in_another_reading_of_phillys_log(
    published_data: Need,
) -> None:
    """A job that was tried again has another run time there, so not every one; few by chance."""
    name = "cluster-trace-gpu-v2020/analysis/philly_runtime.csv"
    table = published_data("alibaba-pai2020-minibatch", [name]).frame(name)
    seconds = cluster.load(GAVEL).column("duration_s")
    days = seconds[seconds > 86_400]
    shares = [float(np.isin(days + shift, table["runtime"]).mean()) for shift in (0, 60, 600)]
    assert shares[0] > 0.3
    assert max(shares[1:]) < 0.02


STEPS = "A3C\tpython3 a3c.py\t--max-steps\t0\t{}\t{}\t{}\n"


@pytest.mark.parametrize(
    ("bad", "field", "value", "valid"),
    [
        (STEPS.replace("A3C\t", "A4C\t").format(9000, 5, 1), "kind", "'A4C'", "a kind of"),
        (STEPS.format("many", 5, 1), "steps", "'many'", "steps from 1"),
        (STEPS.format(0, 5, 1), "steps", "'0'", "steps from 1"),
        (STEPS.format(9000, -5, 1), "arrival_s", "-5.0", "at least 0"),
        (STEPS.format(9000, 5, 1.5), "gpus", "1.5", "a whole number, at least 1"),
        ("A3C\tpython3 a3c.py\n", "steps", "", "steps from 1"),
    ],
)
def test_a_bad_row_of_steps_is_named(
    tmp_path: Path, bad: str, field: str, value: str, valid: str
) -> None:
    path = tmp_path / "vc.trace"
    path.write_text(STEPS.format(9000, 0, 1) + bad)
    with pytest.raises(BadFile) as error:
        from_table(cluster.Trace, in_seconds(path), path, {}, "vc")
    assert "vc.trace:2: " in str(error.value)
    assert f"field {field!r}; found {value}" in str(error.value)
    assert valid in str(error.value)


@needs_philly
def test_an_altered_virtual_cluster_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = PHILLY.format("e13805")
    copy = tmp_path / GAVEL / name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(datasets.open(f"{GAVEL}/{name}").read_bytes().replace(b"1", b"2", 1))
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LABKIT_DATA_MIRROR", str(tmp_path))
    with pytest.raises(CorruptDownload, match=r"e13805\.trace"):
        cluster.load(GAVEL, part="e13805")


def test_the_stand_in_of_philly_says_so(nowhere: Callable[[], None]) -> None:
    nowhere()
    assert cluster.load(GAVEL).name == "gavel-osdi20/philly, stand-in"
    assert len(cluster.load(GAVEL, part="2869ce")) == 533


@needs_philly
def test_the_stand_in_of_philly_is_as_crowded(nowhere: Callable[[], None]) -> None:
    recorded = cluster.load(GAVEL)
    nowhere()
    ours = cluster.load(GAVEL)
    assert sorted(ours.tenant) == sorted(recorded.tenant)
    gpus = cluster.Cluster.nodes(100)
    for policy in (cluster.fifo(), cluster.sjf()):
        both = [cluster.simulate(t, gpus, policy).jct_s.mean() for t in (ours, recorded)]
        assert 0.5 < both[0] / both[1] < 2, policy.name
