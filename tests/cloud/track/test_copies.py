"""Runs copied to other trackers: rules with a tracker of our own, and MLflow and Weights & Biases where installed."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from cloud.errors import TrackError
from cloud.track import Artifact, Run, Series, Store
from cloud.track.copies import Copy, export
from cloud.track.tracked import Tracked
from cloud.train import Trainer
from cloud.zoo import mlp

X = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
Y = np.arange(60) % 3


class Kept:
    """A tracker in this process; it refuses what comes while `down`."""

    what = "Kept"

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[int, float]]] = {}
        self.calls: list[str] = []
        self.down = False

    def begin(self, run: Run) -> None:
        self.calls.append(f"begin {run.name}")

    def scalars(self, run: Run, series: Mapping[str, Series]) -> None:
        if self.down:
            raise TrackError("no answer")
        for name, found in series.items():
            self.points.setdefault(name, []).extend(zip(found.steps, found.values, strict=True))

    def file(self, made: Artifact) -> None:
        self.calls.append(f"file {made.kind}")

    def end(self, run: Run) -> None:
        self.calls.append(f"end {run.state}")

    def close(self) -> None:
        self.calls.append("close")


def trained(place: Path, *copies: Copy, fits: int = 1) -> Tracked:
    tracked = Tracked(place / "runs.sqlite", name="mine", config={"train": {"rate": 0.1}}, seed=7, copies=copies)
    trainer = Trainer(mlp(4, 3, (8,)), callbacks=[tracked])
    for _ in range(fits):
        trainer.fit((X, Y), epochs=2, batch_size=20, validation=(X, Y))
    (place / "m.onnx").write_bytes(b"model")
    tracked.left("onnx", place / "m.onnx")
    tracked.close()
    return tracked


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that holds one run."""
    place = tmp_path_factory.mktemp("copies")
    trained(place)
    return place


def test_every_point_is_copied_once_and_in_order(tmp_path: Path) -> None:
    kept = Kept()
    tracked = trained(tmp_path, kept, fits=2)
    with Store(tracked.path) as store:
        for name in store.names(tracked.run):
            series = store.scalars(tracked.run, name)
            assert kept.points[name] == list(zip(series.steps, series.values, strict=True)), name
    assert [step for step, _ in kept.points["step/loss"]] == list(range(1, 13))
    assert kept.calls == ["begin mine", "end finished", "begin mine", "end finished", "file onnx", "close"]


def test_a_tracker_that_does_not_answer_is_a_warning(tmp_path: Path) -> None:
    kept = Kept()
    kept.down = True
    tracked = Tracked(tmp_path / "runs.sqlite", copies=[kept])
    trainer = Trainer(mlp(4, 3, (8,)), callbacks=[tracked])
    with pytest.warns(RuntimeWarning, match="the copy of run .* is incomplete: no answer; send it later"):
        trainer.fit((X, Y), epochs=1, batch_size=20)
    assert kept.points == {} and kept.calls[-1] == "end finished"
    kept.down = False
    with Store(tracked.path) as store:
        export(store, store.run(tracked.run), kept)
    assert len(kept.points["step/loss"]) == 3


def test_an_export_has_the_files_that_are_there(stored: Path) -> None:
    kept = Kept()
    with Store(stored / "runs.sqlite") as store:
        export(store, store.run("latest"), kept)
        assert kept.calls == ["begin mine", "file onnx", "end finished", "close"]
        assert len(kept.points["step/loss"]) == 6


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_run_once(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of files, which MLflow asks to allow; a database takes it ten seconds to create."""
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    from cloud.track.copies.mlflow import MlflowCopy

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    uri = (tmp_path / "mlruns").as_uri()
    with Store(stored / "runs.sqlite") as store:
        run = store.run("latest")
        for _ in range(2):
            export(store, run, MlflowCopy(uri, "tests"))
        losses = store.scalars(run.id, "step/loss")
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("tests")
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "step/loss")
    assert {m.step: m.value for m in history} == dict(zip(losses.steps, losses.values, strict=True))
    assert found.data.params == {"train.rate": "0.1"} and found.info.status == "FINISHED"
    assert found.data.tags["msedge.run"] == run.id and found.info.run_name == "mine"
    assert [f.path for f in client.list_artifacts(found.info.run_id, "onnx")] == ["onnx/m.onnx"]
    with pytest.raises(TrackError, match="cannot write to MLflow at nothing://there"):
        MlflowCopy("nothing://there").begin(run)


@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_the_run_offline(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from cloud.track.copies.wandb import WandbCopy

    monkeypatch.setenv("WANDB_MODE", "offline")
    with Store(stored / "runs.sqlite") as store:
        run = store.run("latest")
        losses = store.scalars(run.id, "step/loss").values
        export(store, run, WandbCopy("tests", tmp_path))
    (file,) = tmp_path.rglob(f"run-{run.id}.wandb")
    rows = scanned(file)
    assert [row["step/loss"] for row in rows if "step/loss" in row] == pytest.approx(losses)
    assert any("validation/loss" in row for row in rows)
    (copied,) = tmp_path.rglob("m.onnx")
    assert os.path.getsize(copied) == 5
    with pytest.raises(TrackError, match=r"cannot write to Weights & Biases: .*project"):
        WandbCopy("a/b", tmp_path).begin(run)


def scanned(file: Path) -> list[dict[str, float]]:
    """The logged rows of W&B's file: LevelDB's log format after 7 bytes, blocks of 32 KiB of parts of records."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole, rows = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)  # kinds: 1 whole, 2 first, 3 middle, 4 last
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind not in (1, 4):
            continue
        record, whole = Record.FromString(whole), b""
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            rows.append({name: value for name, value in items.items() if isinstance(value, int | float)})
    return rows
