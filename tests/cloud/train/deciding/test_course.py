"""What a run decides as it goes on: the same after it was interrupted, and as defined."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from cloud import data
from cloud.errors import CheckpointError, TrainError
from cloud.train import (
    Callback,
    Checkpoints,
    EarlyStopping,
    EpochReport,
    Evaluation,
    GradualUnfreezing,
    JaxTask,
    Plateau,
    ProgressiveFreezing,
    Swa,
    Trainer,
)
from cloud.train.deciding.cadence import Cadence
from cloud.train.deciding.frost import Frost
from cloud.train.deciding.judge import Judge
from cloud.train.keeping.rewind import Place

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 4)).astype(np.float32)
Y = (X.sum(1) + RNG.normal(size=64) > 0).astype(np.int32)
HELD = X[:24], (X[:24].sum(1) + RNG.normal(size=24) > 0).astype(np.int32)
SIZES = {"front": (4, 8), "middle": (8, 8), "back": (8, 2)}
PARAMS = {name: {"w": RNG.normal(size=size).astype(np.float32)} for name, size in SIZES.items()}
MEANS = {"mean": np.zeros(8, np.float32)}


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of the same model share their programs."""
    options = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("programs")),
        "jax_persistent_cache_min_compile_time_secs": 0.0, "jax_persistent_cache_min_entry_size_bytes": -1,
    }  # fmt: skip
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def net(params: Any, state: Any, x: Any, *, rng: Any, train: bool) -> Any:
    """Three layers, a mean that is subtracted as batch normalisation does, and dropout."""
    hidden = x @ params["front"]["w"]
    mean = hidden.mean(0) if train else state["mean"]
    hidden = jax.nn.relu(hidden - mean.astype(hidden.dtype))
    if train:
        state = {"mean": 0.9 * state["mean"] + 0.1 * mean}
        hidden = hidden * jax.random.bernoulli(rng, 0.9, hidden.shape)
    return jax.nn.relu(hidden @ params["middle"]["w"]) @ params["back"]["w"], state


def trainer(**options: Any) -> Trainer:
    return Trainer(JaxTask(net, PARAMS, MEANS), **{"optimizer": optax.adam(0.1), "seed": 3, **options})


class Noted(Callback):
    """What was evaluated and decided, by step."""

    def __init__(self) -> None:
        self.evaluations: dict[int, Evaluation] = {}
        self.notes: list[tuple[int, str]] = []
        self.epochs: list[EpochReport] = []

    def evaluated(self, step: int, found: Evaluation) -> None:
        self.evaluations[step] = found

    def noted(self, step: int, text: str) -> None:
        self.notes.append((step, text))

    def epoch_done(self, report: EpochReport) -> None:
        self.epochs.append(report)


def all_bits(run: Trainer) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((run.whole_state(), run.weights()))]


def deciding(folder: Path) -> Trainer:
    """Everything at once, with mixed precision and microbatches."""
    return trainer(
        stopping=EarlyStopping(patience=2), plateau=Plateau(patience=1), evaluate_every=3, average=Swa(4, 2, 3),
        freezing=ProgressiveFreezing(0.5, every=4, batches=2), accumulate=2, precision="float16",
        checkpoints=Checkpoints(folder, steps=4, keep=99), optimizer=optax.adam(0.03),
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes], Noted]:
    """The checkpoints of a run of all steps, its end, and what it decided."""
    folder, noted = tmp_path_factory.mktemp("whole"), Noted()
    run = deciding(folder)
    run.watch(noted)
    run.fit((X, Y), 20, 16, validation=HELD)
    return folder, all_bits(run), noted


def test_a_run_decides_all_of_it(whole: tuple[Path, list[bytes], Noted]) -> None:
    """Otherwise the next test would show little."""
    _, _, noted = whole
    text = " ".join(f"{step}: {text}" for step, text in noted.notes)
    for part in ("learning rate multiplied by 0.5", "layers are frozen now", "stopped early", "the best"):
        assert part in text
    last = noted.notes[-1][0]
    assert 16 < last < 80 and set(noted.evaluations) == set(range(3, last + 1, 3))


@pytest.mark.parametrize("kept", [16, "last"])
def test_an_interrupted_run_decides_the_same(whole: tuple[Path, list[bytes], Noted], kept: Any, tmp_path: Path) -> None:
    """From the end of an epoch, before what is frozen was decided, and after the end of the run."""
    folder, expected, noted = whole
    steps = [path.name for path in Checkpoints(folder).there()]
    there = steps if kept == "last" else [name for name in steps if int(name[-3:]) <= kept]
    for name in there:
        shutil.copytree(folder / name, tmp_path / name)
    run = deciding(tmp_path)
    run.resume()
    assert run.steps_done == int(there[-1][-3:])
    again = Noted()
    run.watch(again)
    run.fit((X, Y), 20 - run.epochs_done, 16, validation=HELD)
    assert all_bits(run) == expected
    if kept != "last":  # at the step itself, only what is frozen was not decided yet
        assert again.notes == [(n, text) for n, text in noted.notes if n > kept or (n == kept and "frozen" in text)]


def test_a_stop_in_between_does_not_count_as_an_evaluation() -> None:
    decides = {"stopping": EarlyStopping(patience=9, restore=False), "plateau": Plateau(patience=1)}
    plain, parted, noted = trainer(**decides), trainer(**decides), Noted()

    class Stopping:
        """The arrays as a pipeline, which asks to stop in the second epoch."""

        def batches(self, *where: Any) -> Iterator[Any]:
            for batch in data.arrays({"x": X, "labels": Y}).shuffle().batch(16, "drop").batches(*where):
                yield batch
                if parted.steps_done == 6:
                    parted.stop()

    plain.fit((X, Y), 6, 16, validation=HELD)
    parted.watch(noted)
    parted.fit(Stopping(), 6, validation=HELD)
    assert parted.stopped and parted.steps_of_epoch == 3 and [*noted.evaluations] == [4, 7]
    parted.fit((X, Y), 6 - parted.epochs_done, 16, validation=HELD)
    assert all_bits(plain) == all_bits(parted) and plain.pace == parted.pace < 1


def test_the_best_weights_are_restored_and_exported() -> None:
    noted = Noted()
    run = trainer(stopping=EarlyStopping(patience=2, metric="accuracy"), callbacks=[noted], average=0.5)
    reports = run.fit((X, Y), 30, 16, validation=HELD)
    accuracy = {step: found.metrics["accuracy"] for step, found in noted.evaluations.items()}
    best = max(accuracy, key=accuracy.__getitem__)
    assert len(reports) < 30 and best == list(accuracy)[-3]
    assert run.evaluate(HELD).metrics["accuracy"] == accuracy[best]
    assert noted.notes[-1] == (run.steps_done, f"the weights are those of step {best}, the best")
    assert len(run.fit((X, Y), 1, 16, validation=HELD)) == 1  # further calls go on


def heard(judge: Judge, *losses: float) -> list[Any]:
    return [judge.hear(step, Evaluation(loss, {}, 1)) for step, loss in enumerate(losses, 1)]


def test_patience_and_the_least_difference() -> None:
    judge = Judge(EarlyStopping(patience=2, min_delta=0.1), None, lambda name: True)
    verdicts = heard(judge, 1.0, 0.95, 0.89, 0.85, float("nan"))
    assert [bool(v.stop) for v in verdicts] == [False, False, False, False, True]
    assert [v.best for v in verdicts] == [True, True, True, True, False] and judge.top_at == 4
    again = Judge(EarlyStopping(patience=2, min_delta=0.1), None, lambda name: True)
    again.resumed(judge.said())
    assert again.said() == judge.said() and again.ended
    with pytest.raises(CheckpointError, match="damaged"):
        again.resumed({"at": 3})
    largest = Judge(EarlyStopping(patience=1, mode="max"), None, lambda name: True)
    assert [bool(v.stop) for v in heard(largest, 1.0, 2.0, 1.5)] == [False, False, True]


def test_a_plateau_lowers_the_rate_down_to_the_least() -> None:
    judge = Judge(None, Plateau(factor=0.1, patience=2, cooldown=1, least=0.05), lambda name: True)
    rates = [verdict.rate for verdict in heard(judge, *[1.0] * 9)]
    assert rates == [None, None, 0.1, None, None, 0.05, None, None, None]


def test_the_lower_rate_is_that_of_the_steps() -> None:
    """With plain gradient descent, half the rate is half the way."""
    moves = []
    for plateau in (None, Plateau(patience=1, min_delta=9.0)):
        run = trainer(optimizer=optax.sgd(0.01), plateau=plateau)
        run.fit((X, Y), 2, 64, validation=HELD)
        before = np.array(run.params["back"]["w"])
        run.fit((X, Y), 1, 64, validation=HELD)
        moves.append(np.array(run.params["back"]["w"]) - before)
    np.testing.assert_allclose(moves[1], moves[0] / 2, atol=1e-6)


@pytest.mark.parametrize(
    "every, steps",
    [(3, [3, 6, 9, 12]), (5, [5, 10, 12]), (0.5, [2, 4, 6, 8, 10, 12]), (0.4, [2, 3, 4])],
)
def test_when_a_run_evaluates(every: Any, steps: list[int]) -> None:
    cadence = Cadence(every, 4)
    if every in (5, 0.5):
        noted = Noted()
        reports = trainer(evaluate_every=every, callbacks=[noted]).fit((X, Y), 3, 16, validation=HELD)
        assert list(noted.evaluations) == steps
        assert reports[-1].validation == noted.evaluations[12]
        assert all(r.validation is not None for r in reports) or every == 5
    else:
        assert [n for n in range(1, steps[-1] + 1) if cadence.due(Place(n // 4, n % 4, n))] == steps


def test_many_devices_decide_as_one(tmp_path: Path) -> None:
    """The front is frozen, the rate lowered and the best restored, on eight devices."""
    ends = []
    for parallel in ("none", "data"):
        noted = Noted()
        run = trainer(
            parallel=parallel, stopping=EarlyStopping(patience=3), plateau=Plateau(patience=1), callbacks=[noted],
            freezing=ProgressiveFreezing(0.5, batches=1), optimizer=optax.sgd(0.05),
        )  # fmt: skip
        run.fit((X, Y), 8, 16, validation=(HELD[0][:13], HELD[1][:13]))
        ends.append((noted.notes, run.evaluate(HELD).loss))
    assert ends[0][0] == ends[1][0] and len(ends[0][0]) >= 2
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-4)


def test_layers_thaw_from_the_back() -> None:
    run = trainer(freezing=GradualUnfreezing(first=1, every=2), average=0.5)
    start = {name: np.array(layer["w"]) for name, layer in PARAMS.items()}
    moved = []
    for _ in range(5):
        run.fit((X, Y), 1, 16)
        moved.append([name for name in SIZES if not np.array_equal(run.params[name]["w"], start[name])])
    assert moved == [["back"], ["back"], ["middle", "back"], ["middle", "back"], ["front", "middle", "back"]]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.weights()))


def test_the_front_freezes_by_its_gradients() -> None:
    """Equation 1 of PipeTransformer, on norms that are given."""
    layers = [(f"l{i}",) for i in range(9)]
    frost = Frost(ProgressiveFreezing(1 / 3), layers, ("bias*",))
    norms = [[9, 9, 9, 9, 1, 9, 9, 9, 0], [5, 1, 9, 9, 9, 9], [1, 2, 2, 2], [1, 1, 1]]
    counts = []
    for epoch, mine in enumerate(norms, 1):
        assert frost.due(epoch)
        frost.decide(epoch, lambda active, mine=mine: mine[: len(active)])
        counts.append(frost.count)
        assert not frost.due(epoch)
    assert counts == [3, 5, 6, 7]
    assert frost.patterns()[:2] == ("bias*", "l0")
    with pytest.raises(CheckpointError, match="frozen layers are damaged"):
        frost.resumed({"count": 12, "at": 1})


def test_frozen_layers_stay_as_they_were_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cached outputs of the frozen front are those of its trained weights, and change no result."""
    from cloud.train.inputs import prefix

    def run(worth: float) -> tuple[Any, list[float]]:
        monkeypatch.setattr(prefix, "WORTH", {"cpu": worth})
        made = trainer(freezing=ProgressiveFreezing(0.4, every=2, batches=1), optimizer=optax.sgd(0.1))
        losses = [report.loss for report in made.fit((X, Y), 6, 16)]
        return made.whole_state().params, losses

    (cut, short), (full, long) = run(0), run(1e99)
    np.testing.assert_allclose(short, long, rtol=1e-5)
    for name in SIZES:
        np.testing.assert_allclose(cut[name]["w"], full[name]["w"], atol=1e-5)


def test_the_mean_along_the_end_of_a_run() -> None:
    """Against its definition; its statistics are those of the mean weights over the training data."""
    seen: list[Any] = []

    class Keep(Callback):
        def epoch_done(self, report: EpochReport) -> None:
            seen.append(jax.device_get(run.params))

    run = trainer(average=Swa(start=8, every=4), callbacks=[Keep()])
    run.fit((X, Y), 4, 16)
    params, state = run.weights()
    for name in SIZES:
        np.testing.assert_allclose(params[name]["w"], np.mean([p[name]["w"] for p in seen[1:]], axis=0), atol=1e-6)
    batches = (X @ np.asarray(params["front"]["w"])).reshape(-1, 8)
    np.testing.assert_allclose(state["mean"], batches.mean(0), atol=1e-4)
    assert np.abs(np.asarray(run.state["mean"]) - state["mean"]).max() > 1e-2
    expected = net(params, state, X, rng=None, train=False)[0]
    np.testing.assert_allclose(run.predict(X), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"stopping": {"patience": 0}}, "a patience of at least 1 evaluation"),
        ({"stopping": {"metric": "f1"}}, r"a metric of validation, one of loss, accuracy; got 'f1'"),
        ({"plateau": {"factor": 1.0}}, "a factor between 0 and 1"),
        ({"evaluate_every": 1.5}, "a share of an epoch from above 0 to 1"),
        ({"average": {"start": 0}}, "start of at least 1"),
        ({"freezing": {"share": 1.0}}, "a share between 0 and 1"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], said: str) -> None:
    kinds: dict[str, Any] = {
        "stopping": EarlyStopping, "plateau": Plateau, "average": Swa, "freezing": ProgressiveFreezing
    }  # fmt: skip
    with pytest.raises(TrainError, match=said):
        made = {key: kinds[key](**value) if key in kinds else value for key, value in options.items()}
        trainer(**made).fit((X, Y), 1, 16, validation=HELD)


def test_what_needs_validation_data_or_another_metric(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="expected validation data for stopping, plateau and evaluate_every"):
        trainer(stopping=EarlyStopping()).fit((X, Y), 1, 16)
    with pytest.raises(TrainError, match="restores the best weights by 'loss', checkpoints keep the best by 'acc"):
        trainer(stopping=EarlyStopping(), checkpoints=Checkpoints(tmp_path, best="accuracy"))
    with pytest.raises(TrainError, match=r'expected parallel="auto", got one plan'):
        trainer(freezing=ProgressiveFreezing(), parallel="plan.json")
    with pytest.raises(TrainError, match="at least 2 layers"):
        Trainer(JaxTask(lambda p, x: x @ p["w"], {"w": np.ones((4, 2))}), freezing=ProgressiveFreezing())
