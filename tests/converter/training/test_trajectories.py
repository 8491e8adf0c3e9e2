"""Bundles that train follow JAX, step by step: the same losses, the same parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest

from cloud.zoo import ds_cnn, resnet8
from converter import convert
from converter.training import Training
from lite_runtime import Model, load
from tests.converter.training.models import Batch, batches, cnn, gradients, mlp, shaken, steps, trajectory

OPTIMIZERS = {
    "sgd": ({"optimizer": "sgd"}, optax.sgd(0.05)),
    "momentum": ({"optimizer": "momentum"}, optax.sgd(0.05, momentum=0.9)),
    "adam": ({"optimizer": "adam"}, optax.adam(0.05)),
    "clipped": (
        {"optimizer": "momentum", "clip_norm": 0.3},
        optax.chain(optax.clip_by_global_norm(0.3), optax.sgd(0.05, momentum=0.9)),
    ),
}


def _train(model: Model, data: list[Batch]) -> list[float]:
    return [float(model.run({"x": x, "labels": labels}, "train_step")["loss"]) for x, labels in data]


def _follows(model: Model, wanted: dict[str, Any], names: set[str], limit: float) -> None:
    """Every parameter within `limit` of the oracle's, relative to the largest of its numbers."""
    state = model.state_dict()
    for name in names:
        span = max(1.0, float(np.abs(wanted[name]).max()))
        assert np.abs(state[name] - wanted[name]).max() <= limit * span, name


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_hundred_steps_of_an_mlp(name: str, backend: str) -> None:
    settings, oracle = OPTIMIZERS[name]
    source = mlp((6, 16, 3))
    data = batches(source, 3, 8, 200 if backend == "auto" else 20)
    wanted, losses = trajectory(source, None, oracle, data)
    model = load(convert(source, trainable=Training("*", learning_rate=0.05, **settings)).bundle, backend=backend)
    np.testing.assert_allclose(_train(model, data), losses, rtol=1e-3, atol=1e-4)
    _follows(model, wanted, set(wanted), 1e-3 if name == "adam" else 1e-4)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("batch_norm", ["frozen", "train"])
def test_a_network_with_batch_norms_and_a_depthwise_convolution(batch_norm: Any) -> None:
    source, train = shaken(cnn()), batch_norm == "train"
    data = batches(source, 4, 5, 12)
    conversion = convert(source, trainable=Training("*", optimizer="sgd", learning_rate=0.1, batch_norm=batch_norm))
    model = load(conversion.bundle)
    got = model.run({"x": data[0][0], "labels": data[0][1]}, "gradients")
    for name, gradient in gradients(source, None, data[0], train=train).items():
        np.testing.assert_allclose(got[f"grad/{name}"], gradient, rtol=1e-4, atol=1e-6, err_msg=name)
    model.reset_state()
    wanted, losses = trajectory(source, None, optax.sgd(0.1), data, train=train)
    np.testing.assert_allclose(_train(model, data), losses, rtol=1e-4)
    _follows(model, wanted, set(model.state_dict()) & set(wanted), 1e-4)
    moving = {name for name in model.state_dict() if "running" in name}
    assert len(moving) == (6 if train else 0)


@pytest.mark.parametrize("batch_norm", ["frozen", "train"])
def test_steps_stay_in_their_buffers_and_do_not_depend_on_workers(batch_norm: Any) -> None:
    source = shaken(cnn())
    bundle = convert(source, trainable=Training("*", optimizer="adam", clip_norm=1.0, batch_norm=batch_norm)).bundle
    data = batches(source, 4, 9, 3)
    alone, together, guarded = load(bundle), load(bundle, threads=3), load(bundle, backend="guard")
    losses = [_train(model, data) for model in (alone, together, guarded)]
    assert losses[0] == losses[1] == losses[2]
    for name, value in alone.state_dict().items():
        for other in (together, guarded):
            np.testing.assert_array_equal(other.state_dict()[name], value, err_msg=name)


def _resnet8() -> Any:
    return resnet8((3, 16, 16), classes=4, filters=(8, 12, 16))


def _ds_cnn() -> Any:
    return ds_cnn((1, 20, 10), classes=4, filters=12, blocks=2, dropout=(0.0, 0.0))


ZOO = [
    pytest.param(_resnet8, "train", 6, id="resnet8"),
    pytest.param(_ds_cnn, "frozen", 6, id="ds_cnn"),
    pytest.param(_resnet8, "train", 200, id="resnet8, 200", marks=pytest.mark.slow),
    pytest.param(_ds_cnn, "train", 200, id="ds_cnn, 200", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("make", "batch_norm", "count"), ZOO)
def test_every_step_of_networks_of_the_zoo(make: Any, batch_norm: Any, count: int) -> None:
    """Each from where JAX stands: networks with kinks and batch norms magnify a last bit, so that two runs of JAX
    itself whose first inputs differ by 1e-7 have other parameters after 200 steps."""
    source, train = make(), batch_norm == "train"
    training = Training("*", optimizer="sgd", learning_rate=0.05, batch_norm=batch_norm)
    model = load(convert(source, trainable=training).bundle)
    held = set(model.state_dict())
    data = batches(source, 4, 6, count)
    for batch, (before, after, loss) in zip(data, steps(source, None, optax.sgd(0.05), data, train=train), strict=True):
        model.load_state_dict({name: value for name, value in before.items() if name in held}, strict=False)
        np.testing.assert_allclose(_train(model, [batch]), [loss], rtol=1e-4)
        moved = {name: after[name] - before[name] for name in held & set(after)}
        most = max(float(np.abs(change).max()) for change in moved.values())
        for name, value in model.state_dict().items():
            if name in moved:
                assert np.abs(value - after[name]).max() <= 1e-4 * most, name


def test_what_is_frozen_stays_bit_for_bit_and_the_rest_follows() -> None:
    source = shaken(cnn())
    globs = ("last.*", "head.*")
    data = batches(source, 4, 8, 10)
    wanted, losses = trajectory(source, globs, optax.sgd(0.1), data)
    bundle = convert(source, trainable=Training(globs, optimizer="sgd", learning_rate=0.1)).bundle
    model, untouched = load(bundle), load(convert(source).bundle)
    before = model.bundle.signatures["predict"].constants
    np.testing.assert_allclose(_train(model, data), losses, rtol=1e-4)
    trained = {"last.conv.weight", "last.bn.weight", "last.bn.bias", "head.weight", "head.bias"}
    assert {name for name in model.state_dict() if "/" not in name} == trained
    _follows(model, wanted, trained, 1e-4)
    for name, array in before.items():
        np.testing.assert_array_equal(model.bundle.signatures["predict"].constants[name], array)
    fresh = load(bundle).run({"x": data[0][0]})["logits"]
    np.testing.assert_allclose(fresh, untouched.run({"x": data[0][0]})["logits"], rtol=1e-4, atol=1e-5)
