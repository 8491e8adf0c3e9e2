"""A trainer's run in a store, and the chain from its data to a bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cloud.errors import TrackError
from cloud.track import Store, digest_of_file, lineage
from cloud.track.lineage import identity
from cloud.track.runs import Artifact
from cloud.track.tracked import Tracked, spread
from cloud.train import Trainer
from cloud.zoo import mlp
from converter import convert

X = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tracked run of two calls of `fit`, exported and converted."""
    made = tmp_path_factory.mktemp("tracked")
    tracked = Tracked(
        made / "runs.sqlite", name="mine", config={"data": {"npz": "d.npz"}}, seed=3, data="d" * 64,
        rate=lambda step: 1 / (1 + step),
    )  # fmt: skip
    trainer = Trainer(mlp(4, 2, (8,)), seed=3)
    trainer.watch(tracked)
    trainer.fit((X, Y), 2, 8, validation=(X, Y))
    trainer.fit((X, Y), 1, 8, validation=(X, Y))
    ir.save(trainer.export(), made / "m.onnx")
    convert(made / "m.onnx", output=made / "m.mslite")
    for kind in ("onnx", "mslite"):
        tracked.left({"mslite": "bundle"}.get(kind, kind), made / f"m.{kind}")
    return made


def test_what_a_run_records(folder: Path) -> None:
    with Store(folder / "runs.sqlite") as store:
        (run,) = store.runs()
        assert (run.name, run.state, run.seed) == ("mine", "finished", 3)
        assert run.environment["devices"]["platform"] == "cpu"
        losses = store.scalars(run.id, "step/loss")
        assert losses.steps == tuple(range(1, 10)) and all(np.isfinite(losses.values))
        for name in ("train/loss", "validation/accuracy", "time/step", "time/data", "time/other", "epoch"):
            assert store.scalars(run.id, name).steps == (3, 6, 9), name
        np.testing.assert_allclose(store.scalars(run.id, "rate").values, [1 / (1 + n) for n in range(9)])
        weights = store.histograms(run.id)
        assert {"weights/layer0.weight", "weights/head.bias"} <= set(weights)
        assert [h.step for h in weights["weights/layer0.weight"]] == [3, 6, 9]
        assert sum(weights["weights/layer0.weight"][0].counts) == 32


def test_the_chain_from_data_to_the_bundle(folder: Path) -> None:
    with Store(folder / "runs.sqlite") as store:
        chain = lineage(store, folder / "m.mslite")
        assert [link.kind for link in chain] == ["data", "run", "onnx", "bundle"]
        assert [link.sources for link in chain] == [(), (0,), (1,), (2,)]
        assert chain[0].digest == "d" * 64 and "npz = d.npz" in chain[0].text
        assert chain[2].digest == digest_of_file(folder / "m.onnx") == identity(folder / "m.mslite")[1]
        assert lineage(store, store.runs()[0].id) == chain == lineage(store, chain[3].digest)
        assert lineage(store, folder / "m.onnx") == chain[:3]
        with pytest.raises(TrackError, match=r"there is no file 'gone\.onnx'"):
            lineage(store, "gone.onnx")


def test_a_run_that_uses_results_of_another_run(folder: Path, tmp_path: Path) -> None:
    with Store(folder / "runs.sqlite") as store:
        first = store.runs()[0].id
        second = store.start(name="finer", model=digest_of_file(folder / "m.onnx"), parent=first)
        try:
            chain = lineage(store, second)
            assert [link.kind for link in chain] == ["data", "run", "onnx", "run"]
            assert chain[3].sources == (2, 1)
            store.add_artifact(second, Artifact("bundle", "f.mslite", "e" * 64, 9, 0.0, "a" * 64))
            chain = lineage(store, "e" * 64)  # made from a file that was not recorded
            assert [link.kind for link in chain] == ["data", "run", "onnx", "run", "bundle"]
            assert chain[4].sources == (3,)
        finally:
            store.end(second, "finished")
    with Store(tmp_path / "other.sqlite", create=True) as other:  # which knows nothing of it
        chain = lineage(other, folder / "m.mslite")
        assert [(link.kind, link.text) for link in chain] == [("file", "not in this store"), ("file", "m.mslite")]
        with pytest.raises(TrackError, match="has no run"):
            lineage(other, "nothing")
        (tmp_path / "bad.mslite").write_bytes(b"no bundle")
        with pytest.raises(TrackError, match="expected a bundle"):
            lineage(other, tmp_path / "bad.mslite")


@pytest.mark.parametrize("error, state", [(ValueError("too hot"), "failed"), (KeyboardInterrupt(), "stopped")])
def test_how_runs_end(tmp_path: Path, error: BaseException, state: str) -> None:
    tracked = Tracked(tmp_path / "runs.sqlite")
    trainer = Trainer(mlp(4, 2))
    tracked.describe(plan={"mesh": [2]}, plan_digest="p")
    tracked.started(trainer)
    tracked.saved(tmp_path / "step-1")
    tracked.stepped(1, {"loss": 1.0})
    tracked.failed(error)
    with Store(tmp_path / "runs.sqlite") as store:
        run = store.run(tracked.run)
        assert (run.state, run.error, run.plan) == (state, str(error) or "KeyboardInterrupt", {"mesh": [2]})
        assert store.scalars(run.id, "step/loss").values == (1.0,)
        assert [event.kind for event in store.events(run.id)] == ["checkpoint"]


def test_a_requested_stop(tmp_path: Path) -> None:
    tracked, trainer = Tracked(tmp_path / "runs.sqlite"), Trainer(mlp(4, 2))
    tracked.started(trainer)
    tracked.stopping("SIGTERM")
    tracked.finished(trainer)
    with Store(tmp_path / "runs.sqlite") as store:
        assert (store.run("latest").state, store.run("latest").error) == ("stopped", "SIGTERM")


def test_an_unwritable_record_does_not_stop_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Store, *_: object) -> None:
        raise TrackError("the disk is full")

    tracked = Tracked(tmp_path / "runs.sqlite")
    trainer = Trainer(mlp(4, 2), callbacks=[tracked], checkpoints=tmp_path / "kept")
    monkeypatch.setattr(Store, "add_histogram", full)
    monkeypatch.setattr(Store, "add_event", full)
    with pytest.warns(RuntimeWarning, match="is incomplete: the disk is full"):
        trainer.fit((X, Y), 2, 8)
    with Store(tmp_path / "runs.sqlite") as store:
        assert store.run("latest").state == "finished" and len(store.scalars(tracked.run, "step/loss")) == 6


@pytest.mark.parametrize("size", [2, 50, 300_000])
def test_spreads(size: int) -> None:
    values = np.linspace(-1, 3, size)
    made = spread(5, values)
    assert made.edges[0] == -1 and made.edges[-1] == pytest.approx(3, abs=1e-3) and len(made.counts) <= 40
    assert made.norm == pytest.approx(np.linalg.norm(values)) and made.mean == pytest.approx(1, abs=1e-2)
    assert sum(spread(5, np.array([np.nan, np.inf, 1.0])).counts) == 1
