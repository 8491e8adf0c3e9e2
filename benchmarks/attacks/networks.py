"""Float networks that are attacked, their bundles and examples, in a folder; trained if the folder lacks them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import optax
from onnx import numpy_helper

import msedge
from benchmarks.accuracy.examples import motion
from cloud.zoo import Builder, window_cnn
from lite_runtime.graph import Array

__all__ = ["TASKS", "Network", "layers_of", "made"]

_EXAMPLES = 1000


@dataclass(frozen=True)
class Network:
    """Files of one network. `clip`: the range of inputs."""

    name: str
    onnx: Path
    bundle: Path
    integers: Path
    examples: Path
    """.npz: `x` and `y`, test examples that the network has right, and `layers`, see `layers_of`, with their arrays."""
    clip: tuple[float, float]


@dataclass(frozen=True)
class _Task:
    data: Callable[[Path], tuple[Array, Array, Array, Array]]
    build: Callable[[], ir.Model]
    epochs: int
    clip: tuple[float, float]


def _digits(data: Path) -> tuple[Array, Array, Array, Array]:
    with np.load(data / "mnist.npz") as found:
        x, held = (found[f"x_{part}"][:, None].astype(np.float32) / 255 for part in ("train", "test"))
        return x, found["y_train"].astype(np.int32), held, found["y_test"].astype(np.int32)


def _motion(data: Path) -> tuple[Array, Array, Array, Array]:
    (x, y), (held, labels) = motion(data)
    return x, y, held, labels


def _small_cnn() -> ir.Model:
    """Two convolutions of 5 by 5 with steps of 2, two dense layers: 1 x 28 x 28 to 10 classes."""
    b = Builder("small_cnn", 0)
    y = b.input("x", ("batch", 1, 28, 28))
    for i, width in enumerate((16, 32)):
        y = b.relu(b.conv(y, width, 5, stride=2, bias=True, name=f"conv{i}"))
    y = b.op("Flatten", y, name="flat", shape=("batch", 32 * 7 * 7), axis=1)
    return b.model(logits=b.dense(b.relu(b.dense(y, 64, name="dense")), 10, name="head"))


TASKS: Mapping[str, _Task] = {
    "mnist": _Task(_digits, _small_cnn, 3, (0.0, 1.0)),
    "har": _Task(_motion, window_cnn, 8, (-6.0, 6.0)),
}


def made(name: str, data: Path, folder: Path) -> Network:
    """The network's files. Those that are in the folder are used as they are."""
    task = TASKS[name]
    ends = (".onnx", ".mslite", "-int8.mslite", ".npz")
    source, bundle, integers, examples = (folder / f"{name}{end}" for end in ends)
    found = Network(name, source, bundle, integers, examples, task.clip)
    if found.examples.exists():
        return found
    x, y, held, labels = task.data(data)
    trainer = msedge.Trainer(task.build(), optimizer=optax.adam(2e-3), metrics=["accuracy"], seed=0)
    trainer.fit((x, y), task.epochs, 128)
    model = ir.to_proto(trainer.export())
    onnx.save(model, found.onnx)
    msedge.convert(model, output=found.bundle)
    msedge.convert(model, output=found.integers, quantize="int8", calibration={"x": x[:: len(x) // 512]})
    right = np.flatnonzero(np.asarray(trainer.predict(held)).argmax(1) == labels)
    print(f"{name}: {len(right) / len(labels):.2%} of {len(labels)} test examples right", flush=True)
    chosen = np.random.default_rng(0).permutation(right)[:_EXAMPLES]
    layers, arrays = layers_of(model)
    with open(found.examples, "wb") as file:
        told = {"x": held[chosen], "y": labels[chosen], "layers": np.array(json.dumps(layers)), **arrays}
        np.savez(file, **told)
    return found


def layers_of(model: onnx.ModelProto) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """A chain of layers for a program without ONNX: operators with attributes, and the names of their arrays."""
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    layers: list[dict[str, Any]] = []
    last = model.graph.input[0].name
    for node in model.graph.node:
        assert node.input[0] == last and node.op_type in ("Conv", "Relu", "GlobalAveragePool", "Flatten", "Gemm"), node
        last = node.output[0]
        told = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        layers.append({"op": node.op_type, "arrays": list(node.input[1:]),
                       **{key: told[key] for key in ("strides", "pads", "group") if key in told}})  # fmt: skip
    return layers, {name: held[name] for layer in layers for name in layer["arrays"]}
