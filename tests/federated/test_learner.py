"""`LiteLearner` on converted bundles gives what JAX gives; `sgd` moves what it should."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
import pytest

import lite_runtime
from cloud.federated import JaxLearner
from cloud.zoo import mlp, resnet8
from cloud.zoo.build import Builder
from converter import convert
from converter.training.options import USUAL, Training
from federated.algorithms import algorithm_from
from federated.algorithms.steps import descend, look_ahead
from federated.client.lite import LiteLearner, stacked
from federated.data import draw
from federated.errors import FederatedError
from federated.learner import Batch, Gradient, Indexed, sgd
from lite_runtime import bundle

RNG = np.random.default_rng(0)
DATA = Batch({"x": RNG.standard_normal((40, 7)).astype(np.float32)}, RNG.integers(0, 3, 40))


@pytest.fixture(scope="module")
def converted() -> bytes:
    return bytes(convert(mlp(7, 3, hidden=(5,)), trainable="*").bundle)


@pytest.fixture(scope="module")
def lite(converted: bytes) -> LiteLearner:
    return LiteLearner(converted, backend="reference")


@pytest.fixture(scope="module")
def oracle() -> JaxLearner:
    return JaxLearner(mlp(7, 3, hidden=(5,)))


def close(a: Mapping[str, Any], b: Mapping[str, Any], tolerance: float = 1e-5) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_parameters_are_the_models(lite: LiteLearner, oracle: JaxLearner) -> None:
    close(lite.params, oracle.params, 0)


@pytest.mark.parametrize("n", [1, 40])
def test_gradients_at_any_parameters(lite: LiteLearner, oracle: JaxLearner, n: int) -> None:
    asked = jax.jit(oracle.gradient)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        params = {k: v + rng.standard_normal(v.shape).astype(np.float32) / 4 for k, v in lite.params.items()}
        batch = draw(DATA, rng, 1, n)
        batch = Batch({"x": batch.inputs["x"][0]}, batch.labels[0])
        mine, theirs = lite.gradient(params, batch), asked(params, batch)
        np.testing.assert_allclose(mine.loss, theirs.loss, rtol=1e-5)
        close(mine.grads, theirs.grads)
        assert not mine.statistics


def test_local_steps_are_those_of_the_bundles_own_train_step() -> None:
    """Momentum, clipping and decay as `--optimizer momentum --clip-norm --weight-decay` make them."""
    settings = {"learning_rate": 0.1, "clip_norm": 0.3, "weight_decay": 0.05, "momentum": 0.8}
    made = convert(mlp(7, 3, hidden=(5,)), trainable=Training("*", **settings)).bundle  # type: ignore[arg-type]
    model, learner = lite_runtime.load(made, backend="reference"), LiteLearner(made, backend="reference")
    drawn = draw(DATA, np.random.default_rng(1), 4, 8)
    fields = {key: settings[key] for key in ("clip_norm", "weight_decay", "momentum")}
    algorithm = algorithm_from({"name": "fedavg", "rate": 0.1, **fields})
    update, _ = algorithm.local(algorithm.shaped(learner), {"params": learner.params}, {}, drawn)
    for i in range(4):
        model.run({"x": drawn.inputs["x"][i], "labels": drawn.labels[i]}, "train_step")
    state = model.state_dict()
    close({name: learner.params[name] + leaf for name, leaf in update.payload["params"].items()},
          {name: state[name] for name in learner.params})  # fmt: skip


def test_labels_of_a_narrow_type_will_do(lite: LiteLearner) -> None:
    narrow = Batch(DATA.inputs, DATA.labels.astype(np.uint8))
    close(lite.gradient(lite.params, narrow).grads, lite.gradient(lite.params, DATA).grads, 0)


def test_evaluation_sums_over_chunks(lite: LiteLearner, oracle: JaxLearner) -> None:
    many = draw(DATA, np.random.default_rng(0), 1, 601)
    many = Batch({"x": many.inputs["x"][0]}, many.labels[0])
    mine, theirs = lite.evaluate(lite.params, many), jax.jit(oracle.evaluate)(oracle.params, many)
    assert (mine.correct, mine.examples) == (int(theirs.correct), 601)
    np.testing.assert_allclose(mine.loss, theirs.loss, rtol=1e-5)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "meta_head"])
def test_a_device_does_what_the_simulator_does(lite: LiteLearner, oracle: JaxLearner, name: str) -> None:
    algorithm = algorithm_from({"name": name})
    drawn = draw(DATA, np.random.default_rng(1), 4, 8)
    broadcast = algorithm.broadcast(algorithm.init(lite.params))
    personal = algorithm.enrol(broadcast)
    mine, kept = algorithm.local(lite, broadcast, personal, drawn)
    theirs, other = jax.jit(lambda b, p, d: algorithm.local(oracle, b, p, d))(broadcast, personal, drawn)
    np.testing.assert_allclose(mine.loss, theirs.loss, rtol=1e-5)
    for entry in mine.payload:
        close(mine.payload[entry], theirs.payload[entry])
    close(kept.get("params", {}), other.get("params", {}))


@pytest.mark.parametrize("name", ["fedavg", "qfedavg", "scaffold", "fedrep", "fomaml", "perfedavg"])
def test_batches_of_row_numbers_give_the_same_bits(lite: LiteLearner, name: str) -> None:
    algorithm = algorithm_from({"name": name})
    pool = Batch({"x": np.random.default_rng(1).normal(size=(11, 7)).astype(np.float32)}, np.arange(11) % 3)
    broadcast = algorithm.broadcast(algorithm.init(lite.params))
    personal = algorithm.enrol(broadcast)
    steps = 2 * algorithm.batches_a_step
    copied = draw(pool, np.random.default_rng(2), steps, 4)
    numbers = draw(Batch({}, np.arange(11)), np.random.default_rng(2), steps, 4)
    expected = algorithm.local(lite, broadcast, personal, copied)
    got = algorithm.local(Indexed(lite, pool), broadcast, personal, numbers)
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        np.testing.assert_array_equal(one, other)
    assert Indexed(lite, pool).evaluate(lite.params, Batch({}, np.arange(11))) == lite.evaluate(lite.params, pool)


def test_a_frozen_body_leaves_the_head_to_learn(converted: bytes) -> None:
    learner = LiteLearner(convert(mlp(7, 3, hidden=(5,)), trainable="head*").bundle, backend="reference")
    whole = LiteLearner(converted, backend="reference")
    assert list(learner.params) == ["head.weight", "head.bias"]
    grads = whole.gradient(whole.params, DATA).grads
    close(learner.gradient(learner.params, DATA).grads, {name: grads[name] for name in learner.params})


def test_running_statistics_move_as_in_jax() -> None:
    b = Builder("normed", 0)
    y = b.relu(b.batch_norm(b.conv(b.input("x", ("N", 2, 4, 4)), 3, (3, 3), bias=False, name="conv"), name="norm"))
    model = b.model(logits=b.dense(b.global_average_pool(y), 3, name="head"))
    learner = LiteLearner(convert(model, trainable=Training(("*",), batch_norm="train")).bundle, backend="reference")
    oracle = JaxLearner(model)
    batch = Batch({"x": RNG.standard_normal((6, 2, 4, 4)).astype(np.float32)}, RNG.integers(0, 3, 6))
    assert set(learner.params) == set(oracle.params)
    mine, theirs = learner.gradient(learner.params, batch), jax.jit(oracle.gradient)(oracle.params, batch)
    assert len(mine.statistics) == 2
    close(mine.grads, theirs.grads)
    close(mine.statistics, theirs.statistics)
    close(learner.params, learner.params | {n: v for n, v in oracle.params.items() if n in mine.statistics}, 0)


def test_regression_counts_nothing_as_correct() -> None:
    learner = LiteLearner(
        convert(mlp(7, 1), trainable=Training(("*",), loss="mse")).bundle, backend="reference"
    )
    y = np.ones((40, 1), np.float32)
    out = DATA.inputs["x"] @ learner.params["head.weight"].T + learner.params["head.bias"]
    found = learner.evaluate(learner.params, Batch(DATA.inputs, y))
    np.testing.assert_allclose(found.loss, ((out - y) ** 2).sum(), rtol=1e-5)
    assert found.correct == 0


def test_a_bundle_that_cannot_learn_is_refused(converted: bytes) -> None:
    held = bundle.read(converted)
    plain = bundle.write(None, {"predict": held.signatures["predict"]}, state=held.state, uses={
        "predict": held.uses["predict"]})  # fmt: skip
    with pytest.raises(FederatedError, match=r"lacks gradients, evaluate: convert it with trainable"):
        LiteLearner(plain)


def curved(model: ir.Model, **settings: Any) -> LiteLearner:
    training = Training(("*",), signatures=(*USUAL, "curvature"), **settings)
    return LiteLearner(convert(model, trainable=training).bundle, backend="reference")


def meta_gradients_agree(model: ir.Model, learner: LiteLearner, x: np.ndarray, classes: int) -> None:
    """Two steps on a support and a query: exact, as JAX differentiates through them."""
    oracle = JaxLearner(model)
    labels = RNG.integers(0, classes, x.shape[:2])
    support, query = Batch({"x": x[:2]}, labels[:2]), Batch({"x": x[2]}, labels[2])
    rates = {name: np.abs(RNG.standard_normal(v.shape)).astype(np.float32) / 10 for name, v in learner.params.items()}
    mine, slopes = learner.meta_gradient(learner.params, rates, support, query)
    theirs, others = jax.jit(oracle.meta_gradient)(oracle.params, rates, support, query)
    np.testing.assert_allclose(mine.loss, theirs.loss, rtol=1e-4)
    near_all(mine.grads, theirs.grads)
    near_all(slopes, others)
    near_all(mine.statistics, theirs.statistics)
    first, _ = look_ahead(learner, learner.params, rates, support, query)
    name = max(mine.grads, key=lambda name: np.abs(mine.grads[name]).max())
    assert np.abs(first.grads[name] - mine.grads[name]).max() > 1e-3 * np.abs(mine.grads[name]).max()


def near_all(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Within 1e-4 of the largest element."""
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=0, atol=1e-4 * np.abs(b[name]).max() + 1e-7, err_msg=name)


def test_second_order_gradients_are_exact() -> None:
    model = mlp(7, 3, hidden=(5, 4))
    learner = curved(model)
    assert learner.second_order
    meta_gradients_agree(model, learner, RNG.standard_normal((3, 8, 7)).astype(np.float32), 3)


def test_second_order_gradients_of_convolutions_and_normalisations() -> None:
    model = resnet8((1, 8, 8), 4, filters=(4, 4, 6))
    x = RNG.standard_normal((3, 6, 1, 8, 8)).astype(np.float32)
    meta_gradients_agree(model, curved(model, batch_norm="train"), x, 4)


@pytest.mark.parametrize("name", ["maml", "meta_sgd_exact"])
def test_exact_meta_learners_run_on_devices(name: str) -> None:
    model = mlp(7, 3, hidden=(5,))
    learner, oracle = curved(model), JaxLearner(model)
    algorithm = algorithm_from({"name": name, "inner_steps": 2, "rate": 0.5})
    broadcast = algorithm.broadcast(algorithm.init(learner.params))
    drawn = draw(DATA, np.random.default_rng(1), 4, 8)
    mine, _ = algorithm.local(learner, broadcast, {}, drawn)
    theirs, _ = jax.jit(lambda b, d: algorithm.local(oracle, b, {}, d))(broadcast, drawn)
    for entry in mine.payload:
        near_all(mine.payload[entry], theirs.payload[entry])


def test_second_derivatives_are_refused(lite: LiteLearner) -> None:
    assert not lite.second_order
    with pytest.raises(FederatedError, match="convert the model with --second-order"):
        lite.meta_gradient(lite.params, {}, DATA, DATA)


def test_no_batches_are_refused(lite: LiteLearner) -> None:
    empty = Batch({"x": np.zeros((0, 4, 7), np.float32)}, np.zeros((0, 4), np.int64))
    with pytest.raises(FederatedError, match="at least one batch"):
        algorithm_from({"name": "fedavg"}).local(lite, {"params": lite.params}, {}, empty)


def test_sgd_moves_what_has_a_gradient() -> None:
    params = {"a": np.float32([1, 2]), "b": np.float32([3]), "s": np.float32([4])}
    gradient = Gradient(np.float32(0), {"a": np.float32([10, 20])}, {"s": np.float32([5])})
    close(sgd(params, gradient, 0.1), {"a": [0, 0], "b": [3], "s": [5]}, 1e-6)
    close(sgd(params, gradient, {"a": np.float32([0, 0.1]), "b": 7}), {"a": [1, 0], "b": [3], "s": [5]}, 1e-6)


def test_stacking_keeps_trees() -> None:
    out = stacked([{"loss": np.float32(i), "s": {"m": np.float32([i, 2 * i])}} for i in range(3)])
    assert out["loss"].tolist() == [0, 1, 2] and out["s"]["m"].tolist() == [[0, 0], [1, 2], [2, 4]]


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("trainable", ["*", "head.*"])
def test_a_whole_descent_has_the_bits_of_its_steps(backend: str, trainable: str) -> None:
    learner = LiteLearner(bytes(convert(mlp(7, 3, hidden=(5,)), trainable=trainable).bundle), backend=backend)
    rng = np.random.default_rng()
    for steps, n in ((1, 1), (4, 6), (3, 40), (4, 6)):
        rows = draw(Batch({}, np.arange(40)), rng, steps, n)
        start = {name: value + rng.standard_normal(value.shape).astype("f4") for name, value in learner.params.items()}
        params, losses = start, []
        for at in rows.labels:
            found = learner.gradient(params, Batch({"x": DATA.inputs["x"][at]}, DATA.labels[at]))
            params, losses = sgd(params, found, 0.3), [*losses, found.loss]
        batches = Batch({"x": DATA.inputs["x"][rows.labels]}, DATA.labels[rows.labels])
        for found in (Indexed(learner, DATA).descend(start, rows, 0.3), learner.descend(start, batches, 0.3)):
            if backend == "reference":
                assert found is None, "it makes new arrays in each run"
                continue
            assert found is not None and {name: x.tobytes() for name, x in found[0].items()} == {
                name: x.tobytes() for name, x in params.items()
            }
            assert found[1].tobytes() == np.asarray(losses).mean().tobytes()
            there = descend(learner, start, batches, 0.3)
            assert all(np.array_equal(there.params[name], params[name]) for name in params) and there.loss == found[1]


def test_what_no_descent_is_made_for(converted: bytes) -> None:
    """Then the steps are taken one by one."""
    learner = LiteLearner(converted)
    rows, params = draw(Batch({}, np.arange(40)), np.random.default_rng(0), 2, 5), learner.params
    assert learner.descend(params, rows, np.float32(0.1), DATA) is None
    assert learner.descend({"head.weight": params["head.weight"]}, rows, 0.1, DATA) is None
    wide = Batch({"x": DATA.inputs["x"].astype(np.float64)}, DATA.labels)
    assert learner.descend(params, rows, 0.1, wide) is None
    assert learner.descend(params, rows, 0.1, DATA._replace(labels=DATA.labels.astype(np.int32))) is None
    with learner._lock:
        assert learner.descend(params, rows, 0.1, DATA) is None, "another thread has the arrays"
    assert learner.descend(params, rows, 0.1, DATA) is not None
    normed = LiteLearner(bytes(convert(resnet8(), trainable=Training("*", batch_norm="train")).bundle))
    image = Batch({"x": np.zeros((2, 1, 3, 32, 32), np.float32)}, np.zeros((2, 1), np.int64))
    assert normed.descend(normed.params, image, 0.1) is None, "it has running statistics"
