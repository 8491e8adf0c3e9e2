"""JaxLearner against formulas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cloud.engine import lower
from cloud.errors import EngineError, TrainError
from cloud.federated import JaxLearner
from cloud.federated.products import as_products
from cloud.zoo import Builder, mlp
from federated.data import pick
from federated.learner import Batch
from tests.cloud.models import parsed, tiny_net


def examples(n: int, features: int = 5, classes: int = 3, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, features)).astype(np.float32)
    return Batch({"x": x}, rng.integers(0, classes, n).astype(np.int32))


def test_gradient_of_softmax_regression() -> None:
    learner, batch = JaxLearner(mlp(5, 3)), examples(7)
    params = learner.params
    x, w = batch.inputs["x"], np.asarray(params["head.weight"])
    power = np.exp(x @ w.T)
    share = power / power.sum(1, keepdims=True)
    wrong = (share - np.eye(3)[batch.labels]) / 7
    found = learner.gradient(params, batch)
    np.testing.assert_allclose(found.loss, -np.log(share[np.arange(7), batch.labels]).mean(), rtol=1e-5)
    np.testing.assert_allclose(found.grads["head.weight"], wrong.T @ x, atol=1e-6)
    np.testing.assert_allclose(found.grads["head.bias"], wrong.sum(0), atol=1e-6)
    assert found.statistics == {}


def test_batches_of_numbers() -> None:
    """Counts of examples weight results: in gradients, over several steps, and in numbers of correct answers."""
    learner, pool = JaxLearner(mlp(5, 3)), examples(20)
    rows, steps = np.array([3, 17, 3, 0]), np.array([[1, 2], [5, 4], [19, 0]])

    def named(rows: np.ndarray) -> Batch:
        return Batch({"x": rows}, rows)

    over, params = learner.over(jax.tree.map(jnp.asarray, pool)), learner.params
    rates = jax.tree.map(lambda leaf: 0.1 + 0 * leaf, params)
    here, there = (over.meta_gradient(params, rates, named(steps), named(rows)),
                   learner.meta_gradient(params, rates, pick(pool, steps), pick(pool, rows)))  # fmt: skip
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), here, there)
    here, there = over.gradient(params, named(rows)), learner.gradient(params, pick(pool, rows))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), here, there)
    right, expected = over.evaluate(params, named(rows)), learner.evaluate(params, pick(pool, rows))
    np.testing.assert_allclose(right, expected, rtol=1e-6)


def test_meta_gradient_of_linear_regression() -> None:
    """With one step v = w - r * g, the slopes are (I - H r) * grad(v) and -g * grad(v), H the support's Hessian."""
    b = Builder("linear")
    weight = b.weight("w", np.array([[0.5], [-1.0], [2.0]], np.float32))
    model = b.model(y=b.op("MatMul", b.input("x", ("batch", 3)), weight, shape=("batch", 1)))
    learner = JaxLearner(model, "mean_squared_error")
    rng = np.random.default_rng(0)
    support, query = (
        Batch({"x": rng.standard_normal((*shape, 3)).astype(np.float32)}, rng.standard_normal((*shape, 1), np.float32))
        for shape in ((1, 6), (8,))
    )
    rates = np.array([[0.1], [0.05], [0.2]], np.float32)
    w = np.asarray(learner.params["w"])

    def slope(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return 2 * x.T @ (x @ w - y) / len(x)

    x = support.inputs["x"][0]
    g = slope(w, x, support.labels[0])
    asked = slope(w - rates * g, query.inputs["x"], query.labels)
    hessian = 2 * x.T @ x / len(x)
    gradient, slopes = learner.meta_gradient(learner.params, {"w": rates}, support, query)
    np.testing.assert_allclose(gradient.grads["w"], asked - hessian @ (rates * asked), rtol=1e-4)
    np.testing.assert_allclose(slopes["w"], -g * asked, rtol=1e-4)


def test_statistics_move_in_training_and_stay_in_evaluation() -> None:
    learner = JaxLearner(tiny_net())
    rng = np.random.default_rng(0)
    batch = Batch({"x": rng.standard_normal((6, 1, 8, 8), np.float32) + 3}, rng.integers(0, 10, 6).astype(np.int32))
    params = learner.params
    found = learner.gradient(params, batch)
    assert found.grads.keys() | found.statistics.keys() == params.keys()
    assert not found.grads.keys() & found.statistics.keys()
    assert np.abs(found.statistics["stem.bn.running_mean"]).max() > 0
    moved = {**params, **found.statistics}
    assert learner.evaluate(moved, batch).loss != learner.evaluate(params, batch).loss


def test_padding_does_not_count() -> None:
    learner, batch = JaxLearner(mlp(5, 3)), examples(6)
    few = Batch({"x": batch.inputs["x"][:4]}, batch.labels[:4])
    found = learner.measure(learner.params, batch, np.array([1, 1, 1, 1, 0, 0], np.float32))
    for a, b in zip(found, learner.evaluate(learner.params, few), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert found.examples == 4


def test_regression_counts_no_correct_answers() -> None:
    learner = JaxLearner(mlp(5, 1), "mean_squared_error")
    batch = Batch(examples(4).inputs, np.zeros((4, 1), np.float32))
    assert learner.evaluate(learner.params, batch).correct == 0


def test_invalid_learners_are_refused() -> None:
    with pytest.raises(TrainError, match=r"softmax_cross_entropy.*'hinge'"):
        JaxLearner(mlp(5, 3), "hinge")
    with pytest.raises(TrainError, match=r"one output.*\['y', 'z'\]"):
        JaxLearner(parsed("g (float[n, 2] x) => (float[n, 2] y, float[n, 2] z) { y = Relu(x) z = Abs(x) }"))
    with pytest.raises(EngineError, match="no float initialiser matches"):
        JaxLearner(mlp(5, 3), trainable=["body.*"])


@pytest.mark.parametrize(
    "attributes",
    [
        "pads = [1, 2, 0, 1], strides = [2, 1]",
        "dilations = [1, 2]",
        'auto_pad = "SAME_UPPER", strides = [2, 3]',
        "strides = [3, 3]",
    ],
)
def test_convolutions_as_products(attributes: str) -> None:
    rng = np.random.default_rng(0)
    model = parsed(f"g (float[2, 3, 7, 9] x, float[4, 3, 3, 2] w, float[4] b) => (float[2, 4, p, q] y) "
                   f"{{ y = Conv<{attributes}>(x, w, b) }}")  # fmt: skip
    plain = lower(model)
    feed = {spec.name: jnp.asarray(rng.standard_normal(spec.shape), jnp.float32) for spec in plain.inputs}
    products = as_products(plain)

    def both(function: object) -> tuple[object, object]:
        run = lambda feed: function.apply({}, {}, feed)[0]["y"]  # noqa: E731
        return run(feed), jax.grad(lambda feed: jnp.sum(jnp.sin(run(feed))))(feed)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), both(products), both(plain))


def test_grouped_convolutions_stay() -> None:
    model = parsed("g (float[2, 4, 5, 5] x, float[4, 1, 3, 3] w) => (float[2, 4, 3, 3] y) {y = Conv<group = 4>(x, w)}")
    plain = lower(model)
    assert as_products(plain).program.steps == plain.program.steps
