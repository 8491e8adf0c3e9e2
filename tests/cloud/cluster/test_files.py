"""Cluster and jobs files: what they mean, and what is wrong with those that contradict themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloud.cluster.cluster import TEMPLATE, Cluster, read_cluster
from cloud.cluster.jobs import JOBS_TEMPLATE, Serving, Training, read_jobs
from cloud.cluster.speeds import Speeds, jobs_of
from cloud.errors import ClusterError, PlanError
from cloud.parallel.solving.solve import Infeasible

SMALL = '[[pools]]\nname = "a"\ndevice = "cpu"\nmachines = 2\ndevices = 4\n'
TABLE = "{ flops = { float32 = 1e12 }, bandwidth = 1e11, launch = 0 }"


def written(folder: Path, text: str, name: str = "file.toml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def small(folder: Path, text: str = SMALL) -> Cluster:
    return read_cluster(written(folder, text, "cluster.toml"))


def test_templates_are_valid(tmp_path: Path) -> None:
    """Also with the lines that show defaults."""
    there = read_cluster(written(tmp_path, TEMPLATE))
    assert there.devices == 64 and [pool.name for pool in there.pools] == ["new", "small"]
    file = read_jobs(written(tmp_path, JOBS_TEMPLATE), there)
    assert (file.training[0].name, file.serving[0].name) == ("words", "answers")
    shown = [
        line.removeprefix("# ") for line in TEMPLATE.splitlines() if "# A cluster" not in line and "{ flops" not in line
    ]
    whole = read_cluster(written(tmp_path, "\n".join(shown).replace('name = ""', 'name = "x"', 1)))
    assert whole.rules == there.rules and whole.pools[0] == there.pools[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected at least one"),
        (SMALL + SMALL, "pools[1].name: expected a name that no other pool has, got 'a'"),
        (SMALL.replace('"a"', '"A b"'), "pools[0].name: expected a name of a-z"),
        (SMALL.replace("cpu", "tpu"), "pools[0].device: expected one of h100, a100, l4, cpu or a table, got 'tpu'"),
        (
            SMALL.replace("machines = 2", "machines = 0"),
            "pools[0].machines: expected a whole number of at least 1, got 0",
        ),
        (SMALL + "switch = 3", "pools[0].switch: expected at most machines, 2, got 3"),
        (SMALL + "down = [2]", "pools[0].down: expected machines from 0 to 1, got [2]"),
        (SMALL + "down = [1, 1]", "pools[0].down: expected each machine once"),
        (SMALL + "down = [0, 1]", "pools: expected a machine that is not down"),
        (
            SMALL + "between = { latency = 1e-5, bandwidth = 1e12 }",
            "between.bandwidth: expected at most that of inside",
        ),
        (SMALL + "speed = 3", "pools[0].speed: no such key"),
        (SMALL.replace('"cpu"', TABLE), "pools[0].memory: expected a value, as the device is a table"),
        (SMALL.replace('"cpu"', TABLE.replace("float32", "int8")), "device.flops: expected float32 among"),
        (SMALL.replace("machines = 2", "machines = 20000"), "at most 65536 devices in total, got 80000"),
        ("[rules]\nquantum = 10\n" + SMALL, "rules.quantum: expected at least round = 300, got 10"),
        ("[rules]\npatience = 600\n" + SMALL, "rules.patience: expected at least quantum = 900, got 600"),
        ("[rules]\npolicy = 'fair'\n" + SMALL, "rules.policy: expected 'makespan' or 'speed', got 'fair'"),
    ],
)
def test_clusters_that_contradict_themselves(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ClusterError) as error:
        small(tmp_path, text)
    assert words in str(error.value) and str(tmp_path) in str(error.value)


TRAINS = '[[training]]\nname = "t"\nsteps = 100\n'
SPEEDS = "[training.speeds.a]\n1 = 2.0\n4 = 6.0\n"
SERVES = '[[serving]]\nname = "s"\nlatency = 0.5\nseconds = { a = 0.1 }\nrequests = [[0, 5]]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "training: expected 1 to 100000 jobs, got 0"),
        (TRAINS, "training[0]: expected config, model or speeds, got 'none of them'"),
        (TRAINS + 'model = "gpt"\nconfig = "x"', "training[0].model: expected none beside config"),
        (TRAINS.replace("100", "0") + SPEEDS, "training[0].steps: expected at least 1 without config"),
        (TRAINS + SPEEDS + TRAINS + SPEEDS, "training[1].name: expected a name that no other job has, got 't'"),
        (TRAINS + SPEEDS.replace(".a", ".b"), "training[0]: no pool 'b'"),
        (
            TRAINS + SPEEDS.replace("4 =", "3 ="),
            "training[0].speeds.a: expected devices of a slice of a: one of 1, 2, 4, 8",
        ),
        (
            TRAINS + "devices = [16]\n" + SPEEDS,
            "training[0].devices: expected sizes that slices of its pools have, got 16",
        ),
        (
            TRAINS + "arrives = 9\ndeadline = 5\n" + SPEEDS,
            "training[0].deadline: expected 0, or after arrives = 9, got 5",
        ),
        (TRAINS + "weight = 0\n" + SPEEDS, "training[0].weight: expected a number above 0, got 0"),
        (SERVES.replace("0.1", "0.6"), "serving[0].seconds.a: expected at most latency = 0.5, got 0.6"),
        (SERVES.replace("[[0, 5]]", "[[0, 5], [0, 6]]"), "serving[0].requests: expected ascending seconds"),
        (SERVES.replace("[[0, 5]]", "[[1, 5]]"), "serving[0].requests[0]: expected second 0 first, got 1"),
        (SERVES + "period = 10\n" + SERVES, "serving[1].name: expected a name"),
        (
            SERVES.replace("[[0, 5]]", "[[0, 5], [20, 6]]") + "period = 10",
            "serving[0].period: expected 0, or more than",
        ),
        (SERVES.replace("[0, 5]", "[0, 1e9]"), "serving[0].requests: expected rates that replicas on a can answer"),
        (SERVES + "devices = 3", "serving[0].devices: expected devices of a slice"),
    ],
)
def test_jobs_that_contradict_themselves(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ClusterError) as error:
        read_jobs(written(tmp_path, text), small(tmp_path))
    assert words in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SERVES.replace("[0, 5]", "[0, 200]"), "s: expected room for all of its replicas at the peak"),
        (
            SERVES.replace("[0, 5]", "[0, 40]") + TRAINS + SPEEDS.replace("1 = 2.0\n", ""),
            "t: expected a slice for it beside",
        ),
    ],
)
def test_jobs_that_do_not_fit_together(tmp_path: Path, text: str, words: str) -> None:
    there = small(tmp_path)
    with pytest.raises(ClusterError, match=words):
        jobs_of(read_jobs(written(tmp_path, text), there), there, Speeds())


def test_jobs_with_measured_speeds(tmp_path: Path) -> None:
    there = small(tmp_path, SMALL + "parts = 2\n")
    text = TRAINS + SPEEDS.replace("1 = 2.0", '"0.5" = 1.5\n1 = 2.0\n2 = 1.9') + SERVES + "period = 100\nleast = 2\n"
    trains, serves = jobs_of(read_jobs(written(tmp_path, text), there), there, Speeds())
    assert isinstance(trains, Training) and isinstance(serves, Serving)
    assert [(option.size, option.speed) for option in trains.options] == [(1, 1.5), (2, 2.0), (8, 6.0)]
    assert [(option.size, option.speed) for option in serves.options] == [(2, 10.0)]


def test_requests_that_repeat() -> None:
    job = Serving("s", (), ((0.0, 1.0), (10.0, 5.0), (20.0, 2.0)), 1.0, period=30.0, arrives=100.0)
    assert [job.rate(time) for time in (100.0, 109.0, 110.0, 125.0, 130.0, 141.0)] == [1, 1, 5, 2, 1, 5]
    assert job.changes(100.0, 140.0) == [110.0, 120.0, 130.0, 140.0]
    assert job.peak(121.0, 139.0) == 2 and job.peak(121.0, 140.0) == 5


def test_speeds_come_from_the_planner_and_are_kept(tmp_path: Path) -> None:
    """The built-in MLP: what `msedge plan` foretells for each slice."""
    from cloud.parallel.explaining.examples import EXAMPLES
    from cloud.parallel.searching.predict import predict
    from cloud.parallel.searching.search import search
    from cloud.parallel.tracing.trace import trace

    there = small(tmp_path, SMALL.replace("cpu", "h100").replace("machines = 2", "machines = 1"))
    file = read_jobs(written(tmp_path, TRAINS + 'model = "mlp"\ndevices = [1, 2]\n'), there)
    kept = tmp_path / "speeds.json"
    (made,) = jobs_of(file, there, Speeds(kept))
    example = EXAMPLES["mlp"]()
    graph, topology = trace(example.step, example.state, example.batch), there.pools[0].topology(2)
    plan = search(graph, topology)
    seconds = predict(graph, plan, topology).step_seconds
    assert made.options[-1].size == 2 and 1 / made.options[-1].speed <= seconds * 1.0001
    words = json.loads(kept.read_text())
    (row,) = words["seconds"].values()
    row[topology.digest] = 0.5
    kept.write_text(json.dumps(words))
    (again,) = jobs_of(file, there, Speeds(kept))
    assert [option.size for option in again.options] == [1]  # the larger slice is slower now
    row[topology.digest] = -1.0
    kept.write_text(json.dumps(words))
    with pytest.raises(ClusterError, match="expected seconds of a step, got -1"):
        Speeds(kept)
    kept.write_text('{"version": 1, "seconds": {"a": {"b": "c"}}}')
    with pytest.raises(ClusterError, match="seconds"):
        Speeds(kept)


def test_a_step_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where the planner proves that nothing fits; too few seconds are an error."""
    there = small(tmp_path, SMALL)
    file = read_jobs(written(tmp_path, TRAINS + 'model = "mlp"\ndevices = [1]\n'), there)
    for error, words in (
        (Infeasible("too large", 1.0, ()), "t: expected a slice of the cluster that it fits in"),
        (PlanError("too few seconds"), "1 x a: too few seconds; allow more with --seconds"),
    ):

        def fails(*_: object, error: PlanError = error) -> None:
            raise error

        monkeypatch.setattr("cloud.parallel.explaining.inquiry.inquire", fails)
        with pytest.raises((ClusterError, PlanError), match=words):
            jobs_of(file, there, Speeds())
