"""Checkpoints: resumed runs are bit-identical; damaged checkpoints are skipped; those of other runs are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from cloud import data
from cloud.errors import CheckpointError, TrainError
from cloud.train import Callback, JaxTask, Trainer
from cloud.train.keeping.about import About
from cloud.train.keeping.checkpoint import Checkpoints
from cloud.train.keeping.keeper import Keeper
from cloud.train.keeping.manifest import problem_of, seal
from cloud.train.keeping.rewind import Place

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 4)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32)
PARAMS = {"a": RNG.normal(size=(4, 8)).astype(np.float32), "b": RNG.normal(size=(8, 2)).astype(np.float32)}
MOVING = {"seen": np.zeros((), np.float32), "none": np.zeros((0, 3), np.float32)}


def noisy(params: Any, state: Any, x: Any, *, rng: Any, train: bool) -> Any:
    """Dropout and state, so that random numbers and state must be restored too."""
    hidden = jax.nn.relu(x @ params["a"])
    if train:
        hidden = hidden * jax.random.bernoulli(rng, 0.8, hidden.shape)
        state = {**state, "seen": state["seen"] + x.sum()}
    return hidden @ params["b"], state


def trainer(folder: Any = None, params: Any = PARAMS, **options: Any) -> Trainer:
    options = {"optimizer": optax.adam(0.01), "seed": 3, "average": 0.9, "precision": "float16", **options}
    return Trainer(JaxTask(noisy, params, MOVING), checkpoints=folder, **options)


class StopAt(Callback):
    """Stops a run from inside its data, after a number of steps."""

    def __init__(self, run: Trainer, step: int) -> None:
        self.run, self.step = run, step

    def __call__(self, batch: Any) -> Any:
        if self.run.steps_done == self.step - 1:
            self.run.stop()
        return batch


class Fed:
    """The arrays as a pipeline that something watches."""

    def __init__(self, before: Any) -> None:
        self.pipeline, self.before = data.arrays({"x": X, "labels": Y}).shuffle().batch(16, "drop"), before
        self.fingerprint = self.pipeline.fingerprint

    def batches(self, *where: Any) -> Any:
        return map(self.before, self.pipeline.batches(*where))


def same(a: Any, b: Any) -> bool:
    """All that a step moves, bit by bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


@pytest.fixture(scope="module")
def uninterrupted() -> Trainer:
    run = trainer()
    run.fit(Fed(lambda batch: batch), 3)
    return run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of a run that was stopped in the middle of its second epoch, after step 6."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    run = trainer(Checkpoints(folder, steps=2, keep=2, facts={"plan": "none"}))
    run.fit(Fed(StopAt(run, 6)), 3)
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    """A copy of these checkpoints, which a test may damage."""
    return Path(shutil.copytree(stopped, tmp_path / "copy"))


def test_resuming_gives_the_same_bits(folder: Path, uninterrupted: Trainer) -> None:
    assert [path.name for path in Checkpoints(folder).there()] == ["step-000000000004", "step-000000000006"]
    run = trainer(folder)
    assert run.resume().name == "step-000000000006"
    assert (run.epochs_done, run.steps_of_epoch, run.steps_done) == (1, 2, 6)
    run.fit(Fed(lambda batch: batch), 2)
    assert run.steps_done == uninterrupted.steps_done == 12
    assert same(run.whole_state(), uninterrupted.whole_state())


def test_a_checkpoint_describes_its_contents(stopped: Path) -> None:
    said = json.loads((stopped / "step-000000000006" / "about.json").read_text())
    assert said["place"] == {"epochs": 1, "of_epoch": 2, "steps": 6}
    assert said["facts"] == {"plan": "none"} and set(said["versions"]) >= {"jax", "optax", "orbax-checkpoint"}
    assert ["params.a", [4, 8], "float32"] in said["arrays"]


def test_onto_other_devices(folder: Path, uninterrupted: Trainer) -> None:
    """Arrays saved by one device are restored with the sharding of this trainer, on eight devices."""
    run = trainer(folder, parallel="data")
    run.resume()
    run.fit(Fed(lambda batch: batch), 1)
    shutil.rmtree(Checkpoints(folder).there()[-1])
    run.resume()
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(run.whole_state())} == {8}
    run.fit(Fed(lambda batch: batch), 2)
    assert np.allclose(run.params["a"], uninterrupted.params["a"], atol=1e-3)


def newest(folder: Path) -> Path:
    return folder / "step-000000000006"


def spoil_array(folder: Path) -> None:
    path = max((newest(folder) / "arrays").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    found = bytearray(path.read_bytes())
    found[len(found) // 2] ^= 1
    path.write_bytes(found)


def lose_part(folder: Path) -> None:
    shutil.rmtree(next((newest(folder) / "arrays").glob("ocdbt.process_*")))


def other_version(folder: Path) -> None:
    path = newest(folder) / "about.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 7'))
    (newest(folder) / "manifest.json").unlink()
    seal(newest(folder))


SPOILT = {
    "an array": (spoil_array, "differs from what was written"),
    "a part": (lose_part, "files are missing, such as 'arrays/ocdbt.process_0"),
    "a short file": (lambda folder: (newest(folder) / "about.json").write_bytes(b"{"), "has 1 bytes, expected"),
    "the manifest": (lambda folder: (newest(folder) / "manifest.json").write_text('{"files": 3}'), "is damaged"),
    "no manifest": (lambda folder: (newest(folder) / "manifest.json").unlink(), "cannot read 'manifest.json'"),
    "another version": (other_version, "version 7; expected version 1"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_damaged_checkpoint_is_skipped(folder: Path, kind: str) -> None:
    spoil, words = SPOILT[kind]
    spoil(folder)
    run = trainer(folder)
    with pytest.warns(RuntimeWarning, match=f"skipped checkpoint step-000000000006: .*{words}"):
        assert run.resume().name == "step-000000000004"
    assert run.steps_done == 4


def test_no_checkpoint_at_all(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected a checkpoint in .* none there can be read"):
        trainer(tmp_path / "nowhere").resume()
    with pytest.raises(CheckpointError, match=r"Trainer\(checkpoints=folder\)"):
        trainer().resume()
    for path in folder.iterdir():
        (path / "manifest.json").unlink()
    with pytest.warns(RuntimeWarning), pytest.raises(CheckpointError, match="none there can be read"):
        trainer(folder).resume()


def test_a_checkpoint_of_another_run_is_refused(stopped: Path) -> None:
    wide = {**PARAMS, "a": np.ones((4, 9), np.float32), "b": np.ones((9, 2), np.float32)}
    with pytest.raises(CheckpointError, match=r"'params\.a' is float32\[4, 8\] in it, float32\[4, 9\] in the trainer"):
        trainer(stopped, wide).resume()
    with pytest.raises(CheckpointError, match=r"'slots\.0\.mu\.a' is not in the trainer"):
        trainer(stopped, optimizer=optax.sgd(0.1)).resume()
    with pytest.raises(CheckpointError, match="a run with seed 3, this one has 4"):
        trainer(stopped, seed=4).resume()


def test_the_middle_of_an_epoch_wants_the_same_batches(folder: Path) -> None:
    run = trainer(folder)
    run.resume()
    with pytest.raises(CheckpointError, match="middle of an epoch"):
        run.fit((X, Y), 1, 8)
    run.resume()
    run.steps_of_epoch = 0
    assert run.fit((X, Y), 1, 32)[0].steps == 2


class Heard(Callback):
    def __init__(self) -> None:
        self.paths: list[str] = []

    def saved(self, path: Path) -> None:
        assert problem_of(path) == ""
        self.paths.append(path.name)


def test_every_epoch_and_the_best(tmp_path: Path) -> None:
    """Rates that rise: the first epoch stays the best, and stays."""
    heard, kept = Heard(), Checkpoints(tmp_path, keep=1, best="loss")
    rates = optax.piecewise_constant_schedule(0.01, {2: 1e3})
    run = trainer(kept, optimizer=optax.sgd(rates), precision="float32", average=None, callbacks=[heard])
    losses = [report.validation.loss for report in run.fit((X, Y), 3, 32, validation=(X, Y)) if report.validation]
    assert min(losses) == losses[0]
    assert heard.paths == [f"step-{step:012d}" for step in (2, 4, 6)]
    assert [path.name for path in kept.there()] == ["step-000000000002", "step-000000000006"]
    assert run.resume(best=True).name == "step-000000000002"
    assert run.evaluate((X, Y)).loss == pytest.approx(losses[0])
    kept.best = "f1"
    with pytest.raises(CheckpointError, match="chosen by one of loss, accuracy; got 'f1'"):
        run.fit((X, Y), 1, 32, validation=(X, Y))


def test_saving_while_training_continues(tmp_path: Path) -> None:
    """Steps use up the buffers of what is still being written."""

    def sums(params: Any, x: Any) -> Any:
        return x @ params["w"] + params["big"].sum()

    start = {"w": PARAMS["a"][:, :2], "big": np.arange(500_000, dtype=np.float32)}
    run = Trainer(JaxTask(sums, start), optimizer=optax.sgd(1e-3), checkpoints=Checkpoints(tmp_path, steps=1, keep=8))
    seen: list[Any] = []

    def look(batch: Any) -> Any:
        seen.append(jax.tree.map(np.array, run.whole_state()))
        return batch

    run.fit(Fed(look), 1)
    for before in reversed([*seen[1:], run.whole_state()]):
        other = Trainer(JaxTask(sums, start), optimizer=optax.sgd(1e-3), checkpoints=tmp_path)
        newest = other.resume()
        assert same(before, other.whole_state())
        shutil.rmtree(newest)


def test_a_loss_that_is_not_finite_keeps_the_last_good_one(tmp_path: Path) -> None:
    def spoilt(batch: Mapping[str, Any]) -> Any:
        return {**batch, "x": batch["x"] * np.nan} if run.steps_done == 3 else batch

    run = trainer(Checkpoints(tmp_path, steps=1), precision="float32")
    with pytest.raises(TrainError, match="at step 4"):
        run.fit(Fed(spoilt), 1)
    assert Checkpoints(tmp_path).there()[-1].name == "step-000000000003"
    other = trainer(tmp_path, precision="float32")
    other.resume()
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(other.whole_state()))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = trainer(tmp_path / "file" / "below")
    with pytest.raises(CheckpointError, match="cannot write checkpoints to"):
        run.fit((X, Y), 1, 64)
    for options in ({"keep": 0}, {"steps": 0}, {"seconds": -1.0}):
        with pytest.raises(CheckpointError, match=r"expected .* of at least"):
            Checkpoints(tmp_path, **options)
    kept = Checkpoints(tmp_path / "facts", facts={"what": object()})
    with pytest.raises(CheckpointError, match="expected metadata that JSON can hold"):
        kept.save(run.whole_state(), About(Place(0, 0, 1), 0, {}, None, kept.facts))


def test_when_one_is_due(tmp_path: Path) -> None:
    """Whether to save after steps 1 to 4."""
    for options, due in (
        ({"seconds": 0.0}, [True] * 4),
        ({"seconds": 1e9}, [False] * 4),
        ({"steps": 3}, [False, False, True, True]),
        ({"steps": 9, "seconds": 0.0}, [True] * 4),
        ({}, [False] * 4),
    ):
        keeper = Keeper(Checkpoints(tmp_path, **options), 0)
        assert [keeper.after_step(step, False) for step in (1, 2, 3, 4)] == [(save, False) for save in due]
        assert keeper.after_epoch(True, None) == (not options, True)
    assert Keeper(None, 0).after_step(1, True) == Keeper(None, 0).after_epoch(True, None) == (False, True)


def test_files_of_a_killed_process_are_not_a_checkpoint(folder: Path) -> None:
    left = folder / ".step-000000000099.part"
    shutil.copytree(newest(folder), left)
    (newest(folder).rename(folder / "step-of-something"))
    run = trainer(folder)
    assert run.resume().name == "step-000000000004"
    run.fit(Fed(lambda batch: batch), 1)
    assert not left.exists()
