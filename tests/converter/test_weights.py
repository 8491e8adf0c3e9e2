"""Weights in safetensors files: into graphs and back, of CNNs and of families of language models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from cloud.engine import lower
from cloud.zoo import resnet8
from converter.errors import ConvertError
from converter.frontends.safetensors import load_language_model
from converter.frontends.safetensors.reader import read
from converter.frontends.safetensors.writer import write
from converter.weights import load_weights, save_weights
from tests.converter.frontends.decoders.by_transformers import EXPECTED, KEPT, tokens
from tests.converter.frontends.decoders.checkpoints import config, folder, tensors


def contents(path: Path) -> dict[str, Any]:
    return {name: tensor.array for name, tensor in read(path).items()}


def weights(model: ir.Model) -> dict[str, Any]:
    return {name: value.const_value.numpy() for name, value in model.graph.initializers.items() if value.const_value}


@pytest.fixture
def net() -> ir.Model:
    return resnet8((1, 8, 8), seed=0)


def drawn(net: ir.Model, prefix: str = "", dtype: Any = np.float32) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    held = {name: a for name, a in weights(net).items() if a.dtype.kind == "f"}
    return {prefix + name: rng.normal(size=array.shape).astype(dtype) for name, array in held.items()}


@pytest.mark.parametrize(("prefix", "dtype"), [("", np.float32), ("model.", np.float16), ("", ml_dtypes.bfloat16)])
def test_weights_come_and_go_under_their_names(tmp_path: Path, net: ir.Model, prefix: str, dtype: Any) -> None:
    given = drawn(net, prefix, dtype)
    first = next(name for name in given if name.endswith("running_mean"))
    given[first.replace("running_mean", "num_batches_tracked")] = np.array(7)
    write(tmp_path / "in.safetensors", given)
    before = weights(net)
    model = load_weights(net, tmp_path / "in.safetensors")
    for name, array in weights(model).items():
        if array.dtype == np.float32:
            np.testing.assert_array_equal(array, given[prefix + name].astype(np.float32))
    assert all((weights(net)[name] == array).all() for name, array in before.items())
    save_weights(model, tmp_path / "like.safetensors", like=tmp_path / "in.safetensors")
    again = contents(tmp_path / "like.safetensors")
    assert {n: (a.dtype, a.tobytes()) for n, a in again.items()} == {
        n: (a.dtype, a.tobytes()) for n, a in given.items()
    }
    names = save_weights(model, tmp_path / "out.safetensors")
    assert set(names) == {name.removeprefix(prefix) for name in given} - {first.removeprefix(prefix).replace(
        "running_mean", "num_batches_tracked")}  # fmt: skip


def test_names_may_lack_a_prefix_of_the_models(tmp_path: Path, net: ir.Model) -> None:
    write(tmp_path / "in.safetensors", drawn(net))
    wrapped = net.clone()
    for name, value in list(wrapped.graph.initializers.items()):
        wrapped.graph.initializers.pop(name)
        value.name = f"backbone.{name}"
        wrapped.graph.register_initializer(value)
    found = weights(load_weights(wrapped, tmp_path / "in.safetensors"))
    np.testing.assert_array_equal(found["backbone.head.bias"], drawn(net)["head.bias"])


def test_files_of_other_models_are_refused_and_heads_may_stay(tmp_path: Path, net: ir.Model) -> None:
    path, given = tmp_path / "in.safetensors", drawn(net)
    for change, message in (
        ({"head.bias": None}, "expected a tensor 'head.bias', got none; of .* it lacks 1"),
        ({"other.weight": np.zeros(2, np.float32)}, "this model alone, got other.weight too"),
        ({"head.bias": np.zeros(1000, np.float32)}, r"'head.bias': expected shape \[10\], .* got \[1000\]"),
        ({"head.bias": np.zeros(10, np.int32)}, "'head.bias': expected float32, got I32"),
    ):
        write(path, {name: array for name, array in {**given, **change}.items() if array is not None})
        with pytest.raises(ConvertError, match=message):
            load_weights(net, path)
    write(path, {**given, "head.bias": np.zeros(1000, np.float32)})
    found = weights(load_weights(net, path, keep=["head.*"]))
    np.testing.assert_array_equal(found["head.bias"], weights(net)["head.bias"])
    np.testing.assert_array_equal(found["head.weight"], weights(net)["head.weight"])
    with pytest.raises(ConvertError, match=r"expected a dtype of .* got complex64"):
        write(path, {"a": np.zeros(2, np.complex64)})


@pytest.mark.parametrize("case", ["llama, tied, with biases", "mistral", "qwen3", "smollm3", "gemma2", "gemma3"])
def test_every_family_trains_from_its_folder_and_goes_back(tmp_path: Path, case: str) -> None:
    """Logits by the library transformers, gradients of every weight, and a file that replaces the folder's."""
    settings = config(case)
    held = tensors(settings)
    path = folder(tmp_path / "model", settings, held)
    model = load_language_model(path)
    function = lower(model, training=True)
    assert set(function.params) == set(held)
    ids = np.array([tokens()], np.int32)

    def loss(params: Any) -> Any:
        (logits,) = function.apply(params, function.state, {"input_ids": ids})[0].values()
        return jnp.square(logits).sum(), logits

    (_, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(function.params)
    expected = json.loads(EXPECTED.read_text())["cases"][case]
    apart = np.abs(np.asarray(logits)[0, 4::5][:, KEPT] - np.array(expected["logits"])).max()
    assert apart / expected["range"] < 1e-5
    assert min(float(jnp.abs(g).max()) for g in gradient.values()) > 0
    save_weights(model, tmp_path / "out.safetensors", like=path)
    again, before = contents(tmp_path / "out.safetensors"), contents(path / "model.safetensors")
    assert {name: a.tobytes() for name, a in again.items()} == {name: a.tobytes() for name, a in before.items()}
