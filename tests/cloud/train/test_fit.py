"""`Trainer.fit`: callbacks, stopping and resuming, many devices, data pipelines, and errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cloud.errors import NotFiniteError, TrainError
from cloud.train import Callback, EpochReport, JaxTask, Trainer
from cloud.train.inputs.batches import Dataset, batches
from cloud.train.inputs.feed import ArrayFeed
from tests.cloud.models import tiny_net

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 4)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32)
PARAMS = {"a": RNG.normal(size=(4, 8)).astype(np.float32), "b": RNG.normal(size=(8, 2)).astype(np.float32)}


def mlp(params: Any, x: Any) -> Any:
    return jax.nn.relu(x @ params["a"]) @ params["b"]


def trainer(function: Any = mlp, params: Any = PARAMS, **options: Any) -> Trainer:
    return Trainer(JaxTask(function, params), **{"optimizer": optax.sgd(0.1), **options})


def apart(a: Any, b: Any) -> float:
    return max(float(jnp.abs(x - y).max()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


class Watching(Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def started(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.seen.append("started")

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        self.seen.append((step, sorted(metrics)))

    def epoch_done(self, report: EpochReport) -> None:
        self.seen.append(("epoch", report.steps))

    def finished(self, trainer: Trainer) -> None:
        self.seen.append("finished")

    def failed(self, error: BaseException) -> None:
        self.seen.append(type(error))


def test_callbacks_hear_of_every_step_in_order() -> None:
    watching = Watching()
    trained = trainer(callbacks=[watching])
    reports = trained.fit((X, Y), 2, 16)
    keys = ["accuracy", "examples", "loss"]
    first, second = [[(n, keys) for n in range(k, k + 4)] for k in (1, 5)]
    assert watching.seen == ["started", *first, ("epoch", 4), *second, ("epoch", 4), "finished"]
    assert sum(reports[0].times.values()) == pytest.approx(reports[0].seconds)
    assert set(reports[0].times) == {"data", "step", "other"}
    assert (trained.epochs_done, trained.steps_done, trained.steps_of_epoch) == (2, 8, 0)


def test_stopping_and_resuming_changes_nothing() -> None:
    class Stop(Callback):
        def epoch_done(self, report: EpochReport) -> None:
            order.append(report.steps)

    order: list[int] = []
    parted = trainer(callbacks=[Stop()])

    def feeding(batch: Any) -> Any:
        if parted.steps_done == 2:
            parted.stop()
        return batch

    whole = trainer()
    whole.fit((X, Y), 2, 16)
    parted.fit(Pipeline(before=feeding), 1)
    assert (parted.epochs_done, parted.steps_of_epoch) == (0, 3)
    parted.fit(Pipeline(), 2)
    assert order == [3, 1, 4]
    assert apart(whole.params, parted.params) == 0


def test_numbers_of_steps_are_exact_and_training_can_continue() -> None:
    whole, parted = trainer(), trainer()
    whole.fit((X, Y), 3, 16)
    first = parted.fit((X, Y), batch_size=16, steps=6)
    assert [(r.epoch, r.epochs, r.steps) for r in first] == [(1, 0, 4), (2, 0, 2)]
    assert (parted.epochs_done, parted.steps_of_epoch, parted.steps_done) == (1, 2, 6)
    assert [(r.epoch, r.epochs, r.steps) for r in parted.fit((X, Y), 1, 16, steps=9)] == [(2, 2, 2)]
    parted.fit((X, Y), batch_size=16, steps=4)  # to the very end of an epoch
    assert (parted.epochs_done, parted.steps_of_epoch, parted.steps_done) == (3, 0, 12)
    assert apart(whole.params, parted.params) == 0


def test_data_without_a_batch_is_refused_rather_than_waited_for() -> None:
    class Empty:
        def batches(self, *asked: Any) -> Iterator[Any]:
            return iter(())

    with pytest.raises(TrainError, match="has no batch"):
        trainer().fit(Empty(), steps=3)


def test_the_gradient_norm_is_reported() -> None:
    class Norms(Callback):
        def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
            norms.append(metrics["gradient_norm"])

    norms: list[float] = []
    sgd = optax.sgd(1.0)
    asked = trainer(callbacks=[Norms()], optimizer=sgd, gradient_norm=True)
    before = jax.tree.map(np.array, asked.params)
    asked.fit((X, Y), steps=1)
    moved = optax.tree.norm(jax.tree.map(np.subtract, before, asked.params))
    trainer(callbacks=[Norms()], optimizer=sgd, clip=1e-3).fit((X, Y), steps=1)
    assert norms == pytest.approx([float(moved)] * 2, rel=1e-5)


class Pipeline:
    """What `cloud.data` promises of a pipeline, over the arrays above."""

    def __init__(self, x: Any = X, before: Any = None) -> None:
        self.x, self.before = x, before

    def batches(self, seed: int, epoch: int, position: int, process: tuple[int, int]) -> Iterator[Mapping[str, Any]]:
        assert process == (0, 1)
        feed = ArrayFeed(Dataset.of(self.x, Y, ("x",)), 16, "drop", seed)
        for batch in feed.epoch(epoch, position):
            found = {**batch["inputs"], "labels": batch["labels"]}
            yield self.before(found) if self.before else found


def test_a_pipeline_trains_as_its_arrays_do() -> None:
    whole, piped = trainer(), trainer()
    assert whole.fit((X, Y), 2, 16)[1].loss == piped.fit(Pipeline(), 2)[1].loss
    assert piped.evaluate((X, Y)).loss == pytest.approx(piped.evaluate(Pipeline()).loss, rel=1e-6)
    with pytest.raises(TrainError, match=r"\['x', 'labels'\], got \['labels', 'y'\]: no \['x'\]"):
        trainer().fit(Pipeline(before=lambda found: {"labels": found["labels"], "y": found["x"]}))


@pytest.mark.parametrize("model", ["mlp", pytest.param("batch norm", marks=pytest.mark.slow)])
def test_many_devices_train_as_one_does(model: str) -> None:
    """20 steps; with batch norm too, whose statistics are those of the whole batch."""

    def run(parallel: str) -> tuple[list[float], Any]:
        if model == "mlp":
            trained, x = trainer(parallel=parallel, optimizer=optax.adam(0.01)), X
        else:
            trained = Trainer(tiny_net(), parallel=parallel, optimizer=optax.sgd(0.02))
            x = RNG.normal(size=(64, 1, 8, 8)).astype(np.float32)
            x[:] = np.arange(64 * 64, dtype=np.float32).reshape(x.shape) % 7 / 7
        reports = trained.fit((x, Y), 5, 16, validation=(x[:50], Y[:50]))
        found = [r.loss for r in reports] + [r.validation.loss for r in reports if r.validation]
        return found, trained.predict(x)

    (one, logits), (many, same) = run("none"), run("data")
    assert len(jax.devices()) == 8
    np.testing.assert_allclose(many, one, rtol=1e-5)
    np.testing.assert_allclose(same, logits, atol=1e-3)


def test_what_does_not_divide_among_devices_is_refused() -> None:
    with pytest.raises(TrainError, match="12 rows does not divide among 8 devices: use 8 or 16"):
        trainer(parallel="data").fit((X, Y), 1, 12)
    with pytest.raises(TrainError, match=r"one of none, data, auto, .*, got 'tensor'"):
        trainer(parallel="tensor")


@pytest.mark.parametrize("given, said", [(lambda inputs: 3, "got int"), (lambda inputs: {"y": inputs["x"]}, "'y'")])
def test_augment_must_give_the_inputs_back(given: Any, said: str) -> None:
    with pytest.raises(TrainError, match=rf"augment to return the inputs \['x'\], .*{said}"):
        trainer(augment=lambda key, inputs: given(inputs)).fit((X, Y), 1, 16)


@pytest.mark.parametrize(
    "labels, said",
    [
        (np.zeros((len(Y), 7), np.int32), r"labels int32\[16, 7\]"),
        (None, "labels of none"),
    ],
)
def test_labels_that_a_loss_does_not_take(labels: Any, said: str) -> None:
    with pytest.raises(TrainError, match=rf"(loss|accuracy) does not fit an output float32\[16, \d+\] and {said}: "):
        trainer().fit((X, labels), 1, 16)


def test_batches_that_many_devices_share_are_filled_up() -> None:
    data = Dataset.of(np.arange(5), np.arange(5), ("x",))
    (batch,) = batches(data, np.arange(5), 64, "pad", ways=8)
    assert batch.inputs["x"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert batch.mask.tolist() == [1] * 5 + [0] * 3


def test_the_moving_mean_is_what_is_evaluated_and_exported() -> None:
    averaged, plain = trainer(average=0.9, freeze=("a",)), trainer(freeze=("a",))
    for one in (averaged, plain):
        one.fit((X, Y), 1, 16)
    assert apart(averaged.params, plain.params) == 0
    params, _ = averaged.weights()
    assert apart(params["a"], PARAMS["a"]) == 0
    assert apart(params["b"], plain.params["b"]) > 1e-4
    expected = mlp(params, X)
    np.testing.assert_allclose(averaged.predict(X), expected, rtol=1e-5, atol=1e-5)


def poisoned() -> np.ndarray:
    x = X.copy()
    x[37, 2] = np.nan
    return x


def test_bad_data_is_named_and_the_weights_are_unchanged() -> None:
    watching = Watching()
    broken, good = trainer(callbacks=[watching]), trainer()
    with pytest.raises(TrainError, match=r"the loss is nan at step \d .*: batch 'inputs/x' already holds nan in row"):
        broken.fit((poisoned(), Y), 1, 16)
    assert watching.seen[-1] is NotFiniteError
    steps = broken.steps_done
    for batch in Pipeline().batches(0, 0, 0, (0, 1)):
        if steps:
            good._one_step({"inputs": {"x": batch["x"]}, "labels": batch["labels"], "mask": np.ones(16, np.float32)})
            steps -= 1
    assert apart(broken.params, good.params) == 0


def test_the_first_bad_operator_is_named_with_its_line() -> None:
    def logarithm(params: Any, x: Any) -> Any:
        return jnp.log(x @ params["a"] - 3) @ params["b"]

    with pytest.raises(TrainError, match=r"loss is nan at step 1 .*: nan in row 0 produced by log at test_fit\.py:\d"):
        trainer(logarithm).fit((np.abs(X), Y), 1, 16)


def test_a_gradient_that_is_not_finite_is_found_a_step_earlier() -> None:
    """The root's slope at 0 is infinite, times 0 it is NaN: the loss is fine, and the next one is not."""

    def rooted(params: Any, x: Any) -> Any:
        return jnp.sqrt(jnp.square(x) * 0) @ params["a"] @ params["b"] + (params["a"] ** 2 * 0).sum() ** 0.5

    broken = trainer(rooted)
    with pytest.raises(TrainError, match=r"the loss is nan at step 2 .*produced by \w+ at test_fit\.py:\d"):
        broken.fit((X, Y), 1, 16)
    assert broken.steps_done == 0
    assert apart(broken.params, PARAMS) == 0


def test_an_overflow_is_named_where_no_value_is_nan() -> None:
    far = trainer(lambda params, x: x @ params["a"] * 3e38, {"a": PARAMS["a"][:, :2]}, loss="mean_absolute_error")
    with pytest.raises(TrainError, match=r"loss is inf at step 1 .*: infinity in row \d+ produced by mul at test_fit"):
        far.fit((X, np.zeros((64, 2), np.float32)), 1, 16)
