"""Low-rank adapters: predictions are the original's at first, gradients are JAX's, frozen weights stay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest

from cloud.zoo.build import BATCH, Builder
from converter import convert
from converter.errors import TrainingError
from converter.quantize import Mode
from converter.training import Lora, Training
from lite_runtime import load
from tests.converter.training.models import batches, cross_entropy, mlp


def _mixed() -> ir.Model:
    """A 1x1 convolution of stride 2, a product over the last axis of three, and a dense layer."""
    b = Builder("mixed", 0)
    y = b.relu(b.conv(b.input("x", (BATCH, 3, 6, 8)), 4, 1, stride=2, name="mix", bias=True), name="relu")
    matrix = b.weight("last", np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32))
    y = b.op("MatMul", y, matrix, shape=(BATCH, 4, 3, 5))
    return b.model(logits=b.dense(b.global_average_pool(y), 3, name="head"))


@pytest.mark.parametrize("targets", ["*", "mix.weight", "last", "head.*"])
def test_nothing_changes_until_the_first_step_and_then_it_learns(targets: str) -> None:
    source = _mixed()
    plain, training = load(convert(source).bundle), Training(adapters=Lora(2, alpha=4.0, targets=(targets,)))
    model = load(convert(source, trainable=training).bundle)
    x, labels = batches(source, 3, 16, 1)[0]
    feed = {"x": x, "labels": labels}
    np.testing.assert_allclose(model.run({"x": x})["logits"], plain.run({"x": x})["logits"], rtol=1e-5, atol=1e-6)
    before = model.state_dict()
    assert all("lora" in name for name in before if "/" not in name)
    losses = [float(model.run(feed, "train_step")["loss"]) for _ in range(60)]
    assert losses[-1] < losses[0]
    assert all(not np.array_equal(value, before[name]) for name, value in model.state_dict().items() if "lora" in name)


def test_only_b_is_trained() -> None:
    source = _mixed()
    training = Training(adapters=Lora(2, only_b=True, targets=("mix.weight", "last")), optimizer="adam")
    model = load(convert(source, trainable=training).bundle)
    x, labels = batches(source, 3, 16, 1)[0]
    before, feed = model.state_dict(), {"x": x, "labels": labels}
    assert {n for n in before if ".lora_" in n and "/" not in n} == {
        f"{name}.lora_{part}" for name in ("mix.weight", "last") for part in "ab"
    }
    assert not [name for name in before if "lora_a" in name and "/" in name]
    assert set(model.run(feed, "gradients")) == {"loss", "grad/mix.weight.lora_b", "grad/last.lora_b"}
    losses = [float(model.run(feed, "train_step")["loss"]) for _ in range(30)]
    assert losses[-1] < losses[0]
    for name, value in model.state_dict().items():
        if ".lora_" in name and "/" not in name:
            assert np.array_equal(value, before[name]) is name.endswith("lora_a")


def test_gradients_are_those_of_the_low_rank_product() -> None:
    source = mlp((6, 5, 3))
    lora = Lora(2, alpha=3.0)
    model = load(convert(source, trainable=Training(("head.bias",), adapters=lora)).bundle)
    rng = np.random.default_rng(0)
    state: dict[str, Any] = model.state_dict()
    state |= {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in state.items() if "lora_b" in n}
    model.load_state_dict(state)
    frozen = {name: v.const_value.numpy() for name, v in source.graph.initializers.items()}  # type: ignore[union-attr]
    x, labels = batches(source, 3, 7, 1)[0]

    def dense(params: Any, y: Any, name: str) -> Any:
        low = params[f"{name}.weight.lora_a"] @ params[f"{name}.weight.lora_b"]
        bias = params.get(f"{name}.bias", frozen[f"{name}.bias"])
        return y @ (frozen[f"{name}.weight"].T + lora.factor * low) + bias

    def loss(params: Any) -> Any:
        return cross_entropy(dense(params, jax.nn.relu(dense(params, x, "body0")), "head"), jnp.asarray(labels))

    params = {name: value for name, value in state.items() if "/" not in name}
    got = model.run({"x": x, "labels": labels}, "gradients")
    wanted = jax.jit(jax.grad(loss))(params)
    assert set(got) == {"loss", *(f"grad/{name}" for name in wanted)}
    for name, value in wanted.items():
        np.testing.assert_allclose(got[f"grad/{name}"], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("mode", ["w8", "w4", "fp16"])
def test_adapters_beside_weights_in_fewer_bits(mode: Mode) -> None:
    source = mlp((64, 64, 3))
    narrow = load(convert(source, quantize=mode).bundle)
    conversion = convert(source, quantize=mode, trainable=Training(adapters=Lora(2, targets=("body0.weight",))))
    model = load(conversion.bundle)
    stored = {str(a.dtype) for a in model.bundle.signatures["train_step"].constants.values() if a.size >= 64 * 32}
    assert stored == {{"w8": "int8", "w4": "uint8", "fp16": "float16"}[mode]}
    x, labels = batches(source, 3, 9, 1)[0]
    np.testing.assert_allclose(model.run({"x": x})["logits"], narrow.run({"x": x})["logits"], rtol=1e-4, atol=1e-5)
    losses = [float(model.run({"x": x, "labels": labels}, "train_step")["loss"]) for _ in range(30)]
    assert losses[-1] < 0.8 * losses[0]


def test_adapters_that_fit_nothing_are_refused() -> None:
    with pytest.raises(TrainingError, match=r"no weight matches 'tail'; there are 'body0\.weight', 'head\.weight'"):
        convert(mlp(), trainable=Training(adapters=Lora(2, targets=("tail",))))
    with pytest.raises(TrainingError, match="itself trained"):
        convert(mlp(), trainable=Training("*", adapters=Lora(2)))
