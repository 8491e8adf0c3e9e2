"""Threads, worker processes, devices, files of pipelines, profiles; and errors that say where they happened and what to
do."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud import data
from cloud.errors import DataError
from tests.cloud.data.functions import doubled, not_third
from tests.waiting import until


def numbers(size: int = 40) -> data.Pipeline:
    return data.arrays({"x": np.arange(2.0 * size).reshape(size, 2), "y": np.arange(size)})


def failing(element: dict[str, Any]) -> dict[str, Any]:
    if element["y"] == 7:
        raise ValueError("seven")
    return element


def same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        for name in other:
            np.testing.assert_array_equal(one[name], other[name])


def squares(element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "x": element["x"] ** 2}


def test_workers_and_threads_give_the_same_batches() -> None:
    square, odd = (lambda e: {**e, "x": e["x"] ** 2}), (lambda e: e["y"] % 2 == 1)
    pipelines = [numbers(200).shuffle().map(square).batch(16), numbers(200).shuffle().filter(odd).map(square).batch(8)]
    pipelines.append(numbers(200).augment("x", data.Policy("series", axes="t")).blend("x", 200, labels="y").batch(16))
    for pipeline in pipelines:
        expected = list(pipeline.prefetch(threads=0).batches(1, 2))
        same(pipeline.prefetch(threads=2, ahead=3).batches(1, 2), expected)
        same(pipeline.prefetch(workers=2).batches(1, 2), expected)
        same(pipeline.prefetch(workers=2).batches(1, 2, position=3), expected[3:])
    spoilt = numbers().map(lambda e: {**e, "x": 1 / 0}).batch(4).prefetch(workers=2)
    with pytest.raises(DataError, match="failed at element 0: ZeroDivisionError"):
        next(spoilt.batches())
    lock = threading.Lock()
    with pytest.raises(DataError, match="cannot be sent to worker processes"):
        next(numbers().map(lambda e: (lock, e)[1]).batch(4).prefetch(workers=2).batches())
    dying = numbers().map(lambda e: __import__("os")._exit(3)).batch(4).prefetch(workers=2)
    with pytest.raises(DataError, match="a worker process that reads data ended"):
        next(dying.batches())
    same(pipelines[0].prefetch(workers=2).batches(0), list(pipelines[0].batches(0)))  # others take their place


SCRIPT = """
import multiprocessing, numpy, time
from cloud import data
if __name__ == "__main__":
    batches = data.arrays({"x": numpy.zeros(100)}).map(dict).batch(2).prefetch(workers=2).batches()
    next(batches)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    root = str(Path(__file__).parents[3])
    command = [sys.executable, str(tmp_path / "script.py")]
    environment = {**os.environ, "PYTHONPATH": root, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(workers) == 2
    until(lambda: not any(_runs(pid) for pid in workers))


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # a zombie may stay if no process waits for it


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.map(failing), r"failing failed at element 7: ValueError: seven"),
        (lambda p: p.map(failing).filter(not_third, on="y"), r"failing failed at element 7: ValueError: seven"),
        (lambda p: p.map(doubled, on="z"), r"doubled works on 'z': expected elements with that name, got \['x', 'y'\]"),
        (lambda p: p.map(lambda x: x[:1], on="x", rows=True), r"expected 8 rows back, got 1"),
        (lambda p: p.filter(lambda e: False), r"no element is left for a batch after filtering by .*<lambda>"),
        (lambda p: p.filter(lambda e: False).shuffle(), r"no element is left for a batch"),
        (lambda p: p.filter(lambda y: y[:1], on="y", rows=True).shuffle(), r"40 truth values, got shape \(1,\)"),
        (lambda p: p.map(lambda e: e["x"]), r'last="pad" adds "mask" to a batch: elements must be dicts'),
        (lambda p: p.map(lambda e: {**e, "x": np.zeros(e["y"])}), r"value\['x'\] is float64\[0\] in row 0"),
        (lambda p: p.map(lambda e: e if e["y"] else {}), r"ragged elements: value is a dict of \[\] in row 0"),
        (lambda p: p.zip(p), r"zip merges dicts with different keys, got \['x', 'y'\] twice"),
        (lambda p: data.iterable(lambda: iter(())).shuffle(), r"can only be read in order: .* not shuffled"),
    ],
)  # fmt: skip
def test_a_failure_says_where(change: Callable[[data.Pipeline], data.Pipeline], message: str, threads: int) -> None:
    with pytest.raises(DataError, match=message):
        list(change(numbers()).batch(8).prefetch(threads=threads).batches())


def test_iterables_that_fail() -> None:
    def broken() -> Iterator[dict[str, int]]:
        yield {"x": 1}
        raise OSError("gone")

    with pytest.raises(DataError, match="broken failed after 1 elements: OSError: gone"):
        list(data.iterable(broken).batch(1).batches())


def test_invalid_arguments_are_refused() -> None:
    pipeline = numbers().batch(8)
    assert (pipeline.rows, numbers().rows, pipeline.batches().count) == (8, 0, 5)
    for wrong, message in (
        (lambda: numbers().batches(), r"end it with .batch\(size\)"),
        (lambda: pipeline.batches(process=(0, 3)), "8 rows does not divide among 3 processes: use 6 or 9"),
        (lambda: pipeline.batches(process=(2, 2)), "0 <= index < count"),
        (lambda: pipeline.batches(-1), "a seed and an epoch of at least 0"),
        (lambda: pipeline.batches(position=6), "5 batches: no position after 6"),
        (lambda: pipeline.batches(position=-1), "a position of at least 0"),
        (lambda: pipeline.batches(position={"batch": 1}), "expected a position with"),
        (lambda: pipeline.batches(1, position=pipeline.batches(0).position()), "from seed 0, the pipeline is read"),
        (lambda: numbers(41).batch(8).batches(position=pipeline.batches().position()), "from pipeline '"),
        (lambda: numbers(3).batch(8, "drop").batches(), "3 elements do not fill one batch of 8"),
        (lambda: list(numbers(3).filter(lambda e: True).batch(8, "drop").batches()), "3 elements do not fill"),
        (lambda: pipeline.filter(lambda e: True).batches(process=(0, 2)), "filters whole batches"),
        (lambda: numbers().batch(0), "a batch of at least 1"),
        (lambda: numbers().batch(2, "keep"), '"pad" or "drop"'),
        (lambda: numbers().shard(2, 2), "0 <= index < count"),
        (lambda: numbers().map(3), "expected a function"),
        (lambda: data.mix((numbers(), 0.0)), "share above 0"),
    ):
        with pytest.raises(DataError, match=message):
            wrong()


def test_pipelines_as_files(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(20.0), y=np.arange(20))
    made = data.npz(path).filter("tests.cloud.data.functions:not_third", on="y").shuffle(3)
    pipeline = data.mix((made.map(doubled, on="x"), 2), (data.npz(path, "x", "y"), 1)).batch(4).prefetch(threads=0)
    read = data.from_dict(json.loads(json.dumps(pipeline.to_dict())))
    same(read.batches(5), list(pipeline.batches(5)))
    assert read.fingerprint == pipeline.fingerprint and read.digest() == pipeline.digest()
    np.savez(path, x=np.arange(20.0), y=np.arange(20)[::-1])
    assert read.fingerprint == pipeline.fingerprint and read.digest() != data.npz(path).digest()
    with pytest.raises(DataError, match="<lambda> cannot be written to a file"):
        data.npz(path).map(lambda e: e).to_dict()
    with pytest.raises(DataError, match=r"arrays in memory \(x, y\) cannot be written to a file.*numpy.savez"):
        numbers().to_dict()


BATCH = {"node": "batch", "size": 2, "last": "pad", "then": [], "of": {"node": "npz", "path": "a", "keys": []}}


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (3, "pipeline: expected a node of .*npz.*, got 'int'"),
        ({"node": "eval"}, "got 'eval'"),
        ({**BATCH, "size": "2"}, r"pipeline.batch.size: expected int, got '2'"),
        ({**BATCH, "size": True}, r"expected int, got True"),
        ({**BATCH, "more": 1}, r"pipeline.batch: expected \['last', 'of', 'size', 'then'\], got .*'more'"),
        ({**BATCH, "of": {"node": "npz", "path": "a", "keys": [1]}}, r"npz.keys\[0\]: expected str, got 1"),
        ({**BATCH, "of": {"node": "arrays", "arrays": {}}}, "a node that files can contain, got arrays in memory"),
        ({**BATCH, "then": [3]}, r"batch.then\[0\]: expected \["),
        ({"node": "items", "make": "os"}, "expected a function as 'module:name', got 'os'"),
        ({"node": "items", "make": "no_such_module:f"}, "no function 'no_such_module:f'"),
        ({"node": "items", "make": "os:sep"}, "expected a function at 'os:sep', got str"),
        ({"node": "mix", "of": [], "weights": ["1"]}, r"mix.weights\[0\]: expected a number"),
    ],
)
def test_files_that_hold_no_pipeline(plain: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.from_dict(plain)


def test_fingerprints_tell_code_and_shapes_apart() -> None:
    def one(e: Any) -> Any:
        return e * 1

    first = numbers().map(one).batch(4)

    def one(e: Any) -> Any:
        return e * 2

    prints = {p.fingerprint for p in (first, numbers().map(one).batch(4), numbers(41).map(one).batch(4))}
    assert len(prints) == 3
    assert first.prefetch(workers=3).fingerprint == first.fingerprint


def test_batches_on_their_way_to_a_device() -> None:
    import jax

    pipeline = numbers(64).shuffle().batch(8)
    expected = list(pipeline.batches())
    with data.to_device(pipeline.batches()) as placed:
        found = [next(placed) for _ in range(3)]
        assert isinstance(found[0]["x"], jax.Array)
        same(found, [jax.tree.map(np.float32, b) for b in expected[:3]])
        position = placed.position()
    assert position["batch"] == 3
    same(data.to_device(pipeline.batches(position=position), place=lambda b: b), expected[3:])
    with pytest.raises(DataError, match="element 7: ValueError: seven"):
        list(data.to_device(numbers().map(failing).batch(8).batches()))
    with pytest.raises(DataError, match="a depth of at least 1"):
        data.to_device(pipeline.batches(), depth=0)


def test_no_thread_or_process_survives_closing() -> None:
    before = threading.active_count()
    for pipeline in (numbers(4000).batch(4), numbers(4000).map(squares).batch(4)):
        batches = data.to_device(pipeline.batches(), place=lambda b: b)
        next(batches)
        batches.close()
        with pytest.raises(StopIteration):
            next(batches)
    until(lambda: threading.active_count() <= before)


def test_a_profile_names_the_bottleneck() -> None:
    def slow(element: Any) -> Any:
        time.sleep(0.002)
        return element

    pipeline = numbers(64).map(slow).filter(not_third, on="y").batch(8)
    found = data.profile(pipeline, 0.1, step=1e-6)
    assert found.stages[0].name.endswith("slow") and found.stages[0].share > 0.5
    assert "The step waits" in found.bottleneck and "slow" in found.bottleneck
    others = {stage.name for stage in found.stages[1:]}
    assert others == {"tests.cloud.data.functions:not_third", "read arrays", "ordering, stacking, moving"}
    assert abs(sum(s.share for s in found.stages) - 1) < 1e-6 and found.rows == 8
    json.dumps(found.to_dict())
    assert "slow" in found.table()
    assert "keeps up" in data.profile(numbers().batch(8), 0.05, step=10.0).bottleneck
    counted = data.profile(data.iterable(lambda: ({"x": k} for k in range(9))).batch(4), 0.05)
    assert any("lambda" in s.name for s in counted.stages)


def test_tuning_uses_threads_only_if_they_help() -> None:
    def waits(element: Any) -> Any:
        time.sleep(0.002)
        return element

    tuned = data.tune(numbers(400).map(waits).batch(4), 0.15, cores=2, memory=1 << 20)
    assert max(tuned.trials, key=lambda t: t.rate).threads + max(t.workers for t in tuned.trials) > 0
    same(tuned.pipeline.batches(), list(numbers(400).batch(4).batches()))
    alone = data.tune(numbers(400).batch(4), 0.02, cores=2, memory=1)
    assert [(t.workers, t.threads) for t in alone.trials] == [(0, 0)]  # nothing else stays within the memory


def test_one_file_knows_grain_and_workers_need_neither_it_nor_jax() -> None:
    folder = Path(data.__file__).parent
    sources = {path.name: path.read_text() for path in folder.glob("*.py")}
    naming = [name for name, text in sources.items() if "import grain" in text or "from array_record" in text]
    assert naming == ["_grain.py"]
    code = "import sys, cloud.data; print(sorted({'grain', 'jax', 'array_record', 'PIL'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=folder.parents[1], text=True).strip() == "[]"


def test_the_example_trains_on_records(tmp_path: Path) -> None:
    found = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "data" / "digits.py"))["run"](tmp_path, 2)
    assert found["loss"] < 2.2  # from 2.3
    assert {"shifted", "flat"} <= {stage.name.rpartition(":")[2] for stage in found["profile"].stages}


def test_a_trainer_learns_the_same_from_a_pipeline_as_from_arrays() -> None:
    from cloud.train import Trainer
    from cloud.zoo import mlp

    rng = np.random.default_rng(0)
    x, y = rng.random((50, 4), np.float32), rng.integers(0, 3, 50)
    model = mlp(4, 3)
    trainers = Trainer(model, seed=1), Trainer(model, seed=1)
    trainers[0].fit((x, y), 2, 16)
    trainers[1].fit(data.arrays({model.graph.inputs[0].name: x, "labels": y}).shuffle().batch(16), 2)
    for name, weight in trainers[0].params.items():
        np.testing.assert_array_equal(weight, trainers[1].params[name])
