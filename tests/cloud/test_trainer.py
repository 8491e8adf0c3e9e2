"""`Trainer`: learning, determinism, the last batch, reports, export and errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import optax
import pytest

from cloud.errors import TrainError
from cloud.train import (
    EpochReport,
    Trainer,
    cosine_schedule,
    decay_mask,
    load_digits_split,
    momentum_sgd,
    random_affine,
    train_digits,
)
from cloud.train.inputs.batches import Dataset, batches, epoch_order
from tests.cloud.models import parsed, run_onnx, tiny_net

DIGITS = load_digits_split(seed=0, size=8)
X, Y = DIGITS.x[:330], DIGITS.y[:330]


def trained(seed: int = 0, epochs: int = 2, **more: Any) -> Trainer:
    trainer = Trainer(tiny_net(dropout=0.2), seed=seed, optimizer=optax.adam(0.01), **more)
    trainer.fit((X, Y), epochs=epochs, batch_size=64)
    return trainer


def weights(trainer: Trainer) -> bytes:
    return b"".join(np.asarray(v).tobytes() for v in jax.tree.leaves((trainer.params, trainer.state)))


def test_fit_learns_reports_and_exports_what_it_learned() -> None:
    seen: list[EpochReport] = []
    trainer = Trainer(tiny_net(), optimizer=optax.adam(0.02))
    before = trainer.evaluate((DIGITS.held_out_x, DIGITS.held_out_y))
    held_out = (DIGITS.held_out_x, DIGITS.held_out_y)
    reports = trainer.fit((DIGITS.x, DIGITS.y), epochs=6, batch_size=64, validation=held_out, progress=seen.append)
    assert reports == seen
    assert [r.epoch for r in reports] == [1, 2, 3, 4, 5, 6]
    assert reports[-1].loss < reports[0].loss / 3
    assert all(r.seconds > 0 for r in reports)
    after = trainer.evaluate((DIGITS.held_out_x, DIGITS.held_out_y))
    assert before.accuracy is not None
    assert after.accuracy is not None
    assert reports[-1].validation is not None
    assert before.accuracy < 0.3
    assert after.accuracy > 0.9
    assert after.loss == pytest.approx(reports[-1].validation.loss, rel=1e-4)
    assert after.examples == len(DIGITS.held_out_x) == 360
    logits = trainer.predict(DIGITS.held_out_x, batch_size=100)
    assert np.mean(logits.argmax(1) == DIGITS.held_out_y) == pytest.approx(after.accuracy)
    np.testing.assert_allclose(run_onnx(trainer.export(), x=DIGITS.held_out_x)[0], logits, atol=1e-4)


def test_same_seed_same_weights() -> None:
    more = {"augment": random_affine(fill=-1.0)}
    first, second, other = trained(**more), trained(**more), trained(seed=1, **more)
    assert weights(first) == weights(second) != weights(other)
    assert ir.to_proto(first.export()).SerializeToString() == ir.to_proto(second.export()).SerializeToString()


def test_fit_goes_on_where_it_ended() -> None:
    whole, parts = trained(epochs=2), trained(epochs=1)
    parts.fit((X, Y), epochs=1, batch_size=64)
    assert weights(whole) == weights(parts)


def test_the_last_batch_is_filled_and_masked_or_dropped() -> None:
    data = Dataset.of(np.arange(10), np.arange(10), ("x",))
    order = epoch_order(10, 0, 0)
    padded = list(batches(data, order, 4, "pad"))
    assert [batch.mask.tolist() for batch in padded] == [[1] * 4, [1] * 4, [1, 1, 0, 0]]
    assert padded[2].labels is not None
    assert padded[2].labels.tolist() == [order[8], order[9], order[0], order[1]]
    assert len(list(batches(data, order, 4, "drop"))) == 2
    assert [len(batch.mask) for batch in batches(data, order, 64, "drop")] == [10]
    assert Trainer(tiny_net()).fit((X, Y), batch_size=64)[0].training.examples == 330
    assert Trainer(tiny_net(), last="drop").fit((X, Y), batch_size=64)[0].training.examples == 320


def test_masked_rows_do_not_move_the_weights() -> None:
    linear = parsed("net (float[n, 2] x) => (float[n, 1] y) <float[2, 1] w = {1.0, -1.0}> { y = MatMul(x, w) }")
    x = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    y = np.ones((3, 1), np.float32)
    trainer = Trainer(linear, loss="mean_squared_error", optimizer=optax.sgd(0.1))
    trainer.fit((x, y), batch_size=2)
    w = np.array([[1.0], [-1.0]])
    order = epoch_order(3, 0, 0)
    for rows in (order[:2], order[2:]):
        w = w - 0.1 * 2 * x[rows].T @ (x[rows] @ w - y[rows]) / len(rows)
    np.testing.assert_allclose(trainer.params["w"], w, rtol=1e-5)


def test_losses_metrics_and_several_outputs() -> None:
    model = parsed("""net (float[n, 2] x, float[n, 2] z) => (float[n, 1] a, float[n, 2] b)
        <float[2, 1] w = {0.5, 0.5}> { b = Add(x, z)  a = MatMul(b, w) }""")

    def loss(outputs: Any, labels: Any) -> Any:
        return jnp.abs(outputs["a"][:, 0] - labels)

    trainer = Trainer(model, loss=loss, metrics={"half": lambda outputs, labels: labels / 2}, optimizer=optax.sgd(0.1))
    inputs = {"x": np.ones((4, 2), np.float32), "z": np.zeros((4, 2), np.float32)}
    (report,) = trainer.fit((inputs, np.full(4, 3.0, np.float32)), batch_size=4)
    assert report.loss == pytest.approx(2.0)
    assert report.accuracy is None
    assert report.training.metrics == {"half": 1.5}
    assert {name: value.shape for name, value in trainer.predict(inputs).items()} == {"a": (4, 1), "b": (4, 2)}


def test_weight_decay_spares_biases_and_norms() -> None:
    params = {"w": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    assert decay_mask(params) == {"w": True, "bias": False}
    optimizer = momentum_sgd(1.0, weight_decay=0.5, momentum=0.0, nesterov=False)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    assert np.array_equal(updates["w"], np.full((2, 2), -0.5))
    assert np.array_equal(updates["bias"], np.zeros(2))


def test_cosine_schedule() -> None:
    schedule = cosine_schedule(2.0, 100, warmup=10)
    assert [round(float(schedule(s)), 3) for s in (0, 5, 10, 55, 100)] == [0, 1, 2, 1, 0]
    assert float(cosine_schedule(2.0, 10, end=0.5)(10)) == pytest.approx(0.5)


def test_augmentation_with_nothing_to_do_is_the_identity() -> None:
    same = random_affine(shift=0, zoom=0, shear=0, fill=-1.0)(jax.random.key(0), {"x": jnp.asarray(X[:3])})["x"]
    np.testing.assert_allclose(same, X[:3], atol=1e-5)
    moved = random_affine(fill=-1.0)(jax.random.key(0), {"x": jnp.asarray(X[:3])})["x"]
    assert moved.shape == (3, 1, 8, 8)
    assert float(moved.min()) >= -1.001
    assert not np.allclose(moved, X[:3])


def test_the_digits_recipe_runs() -> None:
    run = train_digits(seed=1, epochs=1, batch_size=512)
    assert run.held_out.examples == 360
    assert [r.training.examples for r in run.reports] == [1437]
    assert run.seconds > run.reports[0].seconds


def test_digits_split_is_stratified_and_seeded() -> None:
    assert DIGITS.x.shape == (1437, 1, 8, 8)
    assert np.bincount(DIGITS.held_out_y).min() >= 34
    again, other = load_digits_split(seed=0, size=8), load_digits_split(seed=1, size=8)
    assert np.array_equal(again.x, DIGITS.x)
    assert not np.array_equal(other.x, DIGITS.x)
    framed = load_digits_split(seed=0, size=19).x
    assert framed.shape == (1437, 1, 19, 19)
    assert np.array_equal(framed[:, :, 1:17:2, 1:17:2], DIGITS.x)
    with pytest.raises(TrainError, match="at least 8, got 4"):
        load_digits_split(size=4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X[:0], Y[:0]), "the data is empty"),
        ((X, Y[:5]), r"same number of examples in every array, got \{'x': 330, 'labels': 5\}"),
        (X, r"data as \(inputs, labels\) or \(inputs, labels, weights\), got ndarray"),
    ],
)
def test_bad_data(data: Any, message: str) -> None:
    with pytest.raises(TrainError, match=message):
        Trainer(tiny_net()).fit(data)


def test_bad_options() -> None:
    with pytest.raises(TrainError, match=r"a loss of softmax_cross_entropy, .*, or a function, got 'hinge'"):
        Trainer(tiny_net(), loss="hinge")
    with pytest.raises(TrainError, match="a metric of accuracy"):
        Trainer(tiny_net(), metrics=["f2"])
    with pytest.raises(TrainError, match='"pad" or "drop"'):
        Trainer(tiny_net(), last="keep")
    with pytest.raises(TrainError, match="no float initialisers"):
        Trainer(parsed("net (float[2] x) => (float[2] y) { y = Abs(x) }"))
    with pytest.raises(TrainError, match="expected epochs of at least 1, got 0"):
        Trainer(tiny_net()).fit((X, Y), epochs=0)
    with pytest.raises(TrainError, match="one value per example"):
        Trainer(tiny_net(), loss=lambda output, labels: jnp.mean(output), metrics=()).fit((X, Y))


def test_a_loss_that_is_not_finite_stops_with_its_step() -> None:
    poisoned = X.copy()
    poisoned[epoch_order(len(X), 0, 0)[70]] = np.nan
    with pytest.raises(TrainError, match=r"the loss is nan at step 2 .*learning rate"):
        Trainer(tiny_net()).fit((poisoned, Y), batch_size=64)
