"""Predicting by columns; training by Ray's workers, where Ray is installed."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import converter
from cloud import zoo
from cloud.engine import lower
from cloud.errors import TrainError
from cloud.train.callbacks import Callback
from cloud.train.jobs.job import Job
from cloud.train.jobs.sources import Examples
from cloud.train.many.processes import free_port
from cloud.train.many.ray import Predictor, RayBatches, predict, ray_trainer
from cloud.train.reports import EpochReport
from cloud.train.trainer import Trainer
from tests.waiting import until

X = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same model as ONNX and as a bundle."""
    folder = tmp_path_factory.mktemp("models")
    model = zoo.mlp(64, 10)
    ir.save(model, folder / "m.onnx")
    converter.convert(model, output=folder / "m.mslite")
    return {kind: str(folder / f"m.{kind}") for kind in ("onnx", "mslite")}


@pytest.mark.parametrize("kind", ["onnx", "mslite"])
def test_columns_in_and_out(files: dict[str, str], kind: str) -> None:
    function = lower(zoo.mlp(64, 10))
    expected = function.apply(function.params, function.state, {"x": X}, train=False)[0]["logits"]
    found = Predictor(files[kind], keep=("row",))({"x": X, "row": np.arange(40), "other": X})
    assert sorted(found) == ["logits", "row"] and found["row"].tolist() == list(range(40))
    assert np.allclose(found["logits"], expected, atol=1e-5)
    with pytest.raises(TrainError, match=r"expected columns \['x', 'row'\], got \['x'\]: no \['row'\]"):
        Predictor(files[kind], keep=("row",))({"x": X})


class Columns:
    """What RayBatches asks of a dataset of Ray: its rows, in order."""

    def __init__(self, **columns: np.ndarray) -> None:
        self._columns = columns

    def iter_batches(self, *, batch_size: int, batch_format: str, drop_last: bool) -> Iterator[dict[str, np.ndarray]]:
        assert batch_format == "numpy"
        for at in range(0, len(X), batch_size):
            if not (drop_last and at + batch_size > len(X)):
                yield {name: column[at : at + batch_size] for name, column in self._columns.items()}


def test_a_dataset_as_batches() -> None:
    data = Columns(pixels=X, label=np.arange(40))
    batches = RayBatches(data, 16, columns={"x": "pixels", "labels": "label"})
    found = list(batches.batches(0, 0, 0, (0, 1)))
    assert [sorted(each) for each in found] == [["labels", "mask", "x"]] * 3
    assert [int(each["mask"].sum()) for each in found] == [16, 16, 8] and all(len(b["x"]) == 16 for b in found)
    assert found[2]["labels"].tolist() == [*range(32, 40), *range(32, 40)]
    assert np.array_equal(next(batches.batches(0, 3, 2, (0, 1)))["x"], found[2]["x"])
    with pytest.raises(TrainError, match="a batch of 16 rows does not divide among 3 processes"):
        next(batches.batches(0, 0, 0, (0, 3)))
    with pytest.raises(TrainError, match="several processes need shares"):
        next(batches.batches(0, 0, 0, (1, 2)))
    with pytest.raises(TrainError, match=r"expected columns \['y'\], got \['label', 'pixels'\]"):
        next(RayBatches(data, 16, columns={"x": "y"}).batches(0, 0, 0, (0, 1)))
    trainer = Trainer(zoo.mlp(64, 10), seed=1)
    whole = Trainer(zoo.mlp(64, 10), seed=1)
    labels = np.arange(40) % 10
    reports = trainer.fit(RayBatches(Columns(x=X, labels=labels), 40), 3)
    assert np.allclose([r.loss for r in reports], [r.loss for r in whole.fit((X, labels), 3, 40)], rtol=1e-4)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of this machine."""
    ray = pytest.importorskip("ray")
    before = {name: os.environ.get(name) for name in ("XLA_FLAGS", "PYTHONPATH")}
    os.environ.pop("XLA_FLAGS", None)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), before["PYTHONPATH"] or ""])
    ray.init(num_cpus=4, include_dashboard=False)
    yield ray
    ray.shutdown()
    os.environ.update({name: value for name, value in before.items() if value is not None})


RAY = pytest.mark.filterwarnings("ignore")
FILE = (
    '[model]\nonnx = "{onnx}"\n[data]\nnpz = "data.npz"\nvalidation = {held}\n[train]\nepochs = {epochs}\nbatch = 8\n'
    '[parallel]\nmode = "{mode}"\n[checkpoint]\nfolder = "kept"\n[export]\nonnx = "out.onnx"\n'
)


def write(folder: Path, files: dict[str, str], **facts: Any) -> Path:
    np.savez(folder / "data.npz", x=X, labels=(X.sum(1) > 0).astype(np.int32))
    said = {"onnx": files["onnx"], "held": 0.0, "epochs": 2, "mode": "data", **facts}
    (folder / "run.toml").write_text(FILE.format(**said))
    return folder / "run.toml"


@pytest.mark.slow
@RAY
def test_under_ray(files: dict[str, str], tmp_path: Path, cluster: Any) -> None:
    """Two workers train, and one predicts."""
    import ray.data
    from ray.train import RunConfig, ScalingConfig

    run = RunConfig(storage_path=str(tmp_path / "ray"))
    trainer = ray_trainer(write(tmp_path, files), scaling=ScalingConfig(num_workers=2), run=run)
    result = trainer.fit()
    assert result.error is None and result.metrics["epoch"] == 2 and np.isfinite(result.metrics["loss"])
    assert [path.name for path in sorted((tmp_path / "kept").iterdir())] == [f"step-{n:012d}" for n in (5, 10)]
    columns = ray.data.from_items([{"x": row} for row in X])
    rows = predict(columns, tmp_path / "out.onnx", batch_size=16, keep=["x"]).take_all()
    expected = Predictor(str(tmp_path / "out.onnx"))({"x": X})["logits"]
    found = {row["x"].tobytes(): row["logits"] for row in rows}
    assert len(rows) == 40 and np.allclose([found[x.tobytes()] for x in X], expected, atol=1e-5)


def _sharded(onnx: str, folder: str) -> Any:
    """A function that makes a job over shares of a dataset; its first start is killed after two epochs."""

    def made() -> Job:
        examples = Examples(RayBatches("train", 8, columns={"x": "pixels"}), None, 0, "", None)
        trainer = Trainer(onnx, parallel="data", checkpoints=f"{folder}/kept", callbacks=[_Dying(folder)])
        return Job(trainer, examples, 4, 8)

    return made


class _Dying(Callback):
    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def epoch_done(self, report: EpochReport) -> None:
        if report.epoch == 3 and not (self._folder / "died").exists():
            (self._folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@RAY
def test_shares_of_a_dataset_and_a_worker_that_is_killed(files: dict[str, str], tmp_path: Path, cluster: Any) -> None:
    import ray.data
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    data = ray.data.from_items([{"pixels": x, "labels": int(x.sum() > 0)} for x in X])
    run = RunConfig(storage_path=str(tmp_path / "ray"), failure_config=FailureConfig(max_failures=2))
    trainer = ray_trainer(
        _sharded(files["onnx"], str(tmp_path)), scaling=ScalingConfig(num_workers=2), run=run, datasets={"train": data}
    )  # fmt: skip
    result = trainer.fit()
    assert result.error is None and result.metrics["epoch"] == 4 and (tmp_path / "died").exists()


@pytest.mark.slow
@RAY
def test_trials_as_actors_one_of_which_is_killed(files: dict[str, str], tmp_path: Path, cluster: Any) -> None:
    pytest.importorskip("optuna")
    from cloud.train.many.ray.trials import Actors
    from cloud.train.tuning.study import tune

    path = write(tmp_path, files, held=0.2, mode="none")
    with open(path, "a") as file:
        file.write('[tune]\ntrials = 3\nprocesses = 2\nhalving = 0\n[tune.space]\n"train.rate" = [0.1, 0.01, 0.001]\n')
    pools: list[Actors] = []
    killed: list[int] = []

    def pool(size: int) -> Actors:
        pools.append(Actors(size))
        return pools[0]

    def progress(trial: Any) -> None:
        if trial.curve and not killed:
            killed.append(trial.number)
            for actor in pools[0]._there.values():
                cluster.kill(actor)

    found = tune(path, store=tmp_path / "runs.sqlite", pool=pool, progress=progress)
    assert killed and [trial.state for trial in found.trials] == ["finished"] * 3
    assert [len(trial.curve) for trial in found.trials] == [2, 2, 2] and (tmp_path / "out.onnx").exists()


@pytest.mark.slow
@RAY
def test_served_by_ray_while_a_replica_is_killed(files: dict[str, str], cluster: Any) -> None:
    serve = pytest.importorskip("ray.serve")
    from edge.ray_serve import serve_app

    port = free_port()
    serve.start(http_options={"port": port})
    app = serve_app(files["mslite"], name="digits", num_replicas=2, ray_actor_options={"num_cpus": 0.5})
    serve.run(app, name="digits", route_prefix="/")
    base = f"http://127.0.0.1:{port}/v2/models/digits"
    expected = Predictor(files["mslite"])({"x": X})["logits"]

    def ask(rows: slice, body: dict[str, Any] | None = None) -> Any:
        said = {"inputs": [{"name": "x", "datatype": "FP32", "shape": X[rows].shape, "data": X[rows].ravel().tolist()}]}
        sent = urllib.request.Request(f"{base}/infer", json.dumps(body or said).encode(), method="POST")
        with urllib.request.urlopen(sent, timeout=30) as answer:
            return json.load(answer)

    def answers() -> None:
        with ThreadPoolExecutor(8) as threads:
            rows = [slice(at, at + 1 + at % 3) for at in range(36)]
            for part, found in zip(rows, threads.map(ask, rows), strict=True):
                assert found["model_name"] == "digits" and found["outputs"][0]["shape"] == [part.stop - part.start, 10]
                made = np.reshape(found["outputs"][0]["data"], (-1, 10))
                assert np.allclose(made, expected[part], atol=1e-5)

    try:
        answers()
        with urllib.request.urlopen(base, timeout=30) as answer:
            assert json.load(answer)["inputs"][0]["shape"] == [-1, 64]
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(slice(0, 1), {"inputs": []})
        assert refused.value.code == 400 and "x" in json.loads(refused.value.read())["error"]
        names = [
            each["name"] for each in cluster.util.list_named_actors(all_namespaces=True) if "_Replica" in each["name"]
        ]
        assert len(names) == 2
        cluster.kill(cluster.get_actor(names[0], namespace="serve"))
        until(lambda: _answered(answers))
    finally:
        serve.shutdown()


def _answered(ask: Callable[[], None]) -> bool:
    """Requests that were with the killed replica may fail; later ones do not."""
    try:
        ask()
    except urllib.error.HTTPError:
        return False
    return True
