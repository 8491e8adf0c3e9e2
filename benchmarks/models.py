"""Well-known networks with random weights: real shapes for the speed table, without downloads.

`python -m benchmarks.models DIR [--int8]` writes them as ONNX; --int8 adds a quantised version of each in QDQ form.
Three are from the light set in onnx's own tests, with their constant weights replaced; three are built here. A manifest
in the same folder says that their weights are random, and every table of figures repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from onnx import TensorProto, helper, numpy_helper

from benchmarks.comparison import MANIFEST
from lite_runtime._files import write_atomically
from lite_runtime.graph import Array

__all__ = ["MODELS", "write"]

SEED = 20
LIGHT = {"resnet50": "light_resnet50", "squeezenet": "light_squeezenet", "densenet121": "light_densenet121"}


class _Graph:
    """Nodes and weights of a model that is being built; every method returns the name of a result."""

    def __init__(self, seed: int = SEED) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, array: Array | np.generic) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def normal(self, *shape: int, fan_in: int) -> str:
        return self.weight((self.rng.standard_normal(shape) * math.sqrt(2 / fan_in)).astype(np.float32))

    def zeros(self, *shape: int) -> str:
        return self.weight((self.rng.standard_normal(shape) * 0.01).astype(np.float32))

    def ones(self, *shape: int) -> str:
        return self.weight(np.ones(shape, np.float32))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def conv(self, x: str, inside: int, outside: int, size: int, stride: int = 1, group: int = 1) -> str:
        kernel = self.normal(outside, inside // group, size, size, fan_in=inside // group * size * size)
        pads = [size // 2] * 4
        return self.add(
            "Conv", x, kernel, self.zeros(outside),
            kernel_shape=[size, size], strides=[stride] * 2, pads=pads, group=group,
        )

    def dense(self, x: str, inside: int, outside: int) -> str:
        return self.add("Add", self.add("MatMul", x, self.normal(inside, outside, fan_in=inside)), self.zeros(outside))

    def model(self, inputs: Mapping[str, tuple[int, ...]], output: str, shape: tuple[int, ...]) -> onnx.ModelProto:
        given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
        made = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self.nodes, "bench", given, made, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mobilenet_v2() -> onnx.ModelProto:
    """MobileNetV2 1.0 for 224 x 224 images (Sandler et al. 2018, table 2), with folded batch normalisation."""
    g = _Graph()

    def relu6(x: str) -> str:
        return g.add("Clip", x, low, high)

    low, high = g.weight(np.float32(0)), g.weight(np.float32(6))
    x, channels = relu6(g.conv("x", 3, 32, 3, 2)), 32
    for expand, width, count, first in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                        (6, 160, 3, 2), (6, 320, 1, 1)):  # fmt: skip
        for i in range(count):
            stride, inside = first if i == 0 else 1, channels * expand
            y = relu6(g.conv(x, channels, inside, 1)) if expand > 1 else x
            y = relu6(g.conv(y, inside, inside, 3, stride, inside))
            y = g.conv(y, inside, width, 1)
            x, channels = (g.add("Add", x, y) if stride == 1 and channels == width else y), width
    x = g.add("Flatten", g.add("GlobalAveragePool", relu6(g.conv(x, 320, 1280, 1))))
    return g.model({"x": (1, 3, 224, 224)}, g.dense(x, 1280, 1000), (1, 1000))


def bert4() -> onnx.ModelProto:
    """A BERT-like encoder: 4 layers of 256 with 4 heads, on 128 embedded tokens (Devlin et al. 2018, "mini")."""
    g, length, width, heads = _Graph(), 128, 256, 4
    split, merge = (g.weight(np.array(s, np.int64)) for s in ([1, length, heads, width // heads], [1, length, width]))
    scale = g.weight(np.float32(1 / math.sqrt(width // heads)))

    def head(x: str, *order: int) -> str:
        return g.add("Transpose", g.add("Reshape", g.dense(x, width, width), split), perm=order)

    def norm(x: str) -> str:
        return g.add("LayerNormalization", x, g.ones(width), g.zeros(width), axis=-1, epsilon=1e-12)

    def gelu(x: str) -> str:
        bend = g.add("Erf", g.add("Div", x, g.weight(np.float32(math.sqrt(2)))))
        return g.add("Mul", g.add("Mul", x, g.add("Add", bend, g.weight(np.float32(1)))), g.weight(np.float32(0.5)))

    x = "x"
    for _ in range(4):
        q, k, v = head(x, 0, 2, 1, 3), head(x, 0, 2, 3, 1), head(x, 0, 2, 1, 3)
        scores = g.add("Softmax", g.add("Mul", g.add("MatMul", q, k), scale), axis=-1)
        mixed = g.add("Reshape", g.add("Transpose", g.add("MatMul", scores, v), perm=[0, 2, 1, 3]), merge)
        x = norm(g.add("Add", x, g.dense(mixed, width, width)))
        x = norm(g.add("Add", x, g.dense(gelu(g.dense(x, width, 4 * width)), 4 * width, width)))
    return g.model({"x": (1, length, width)}, x, (1, length, width))


def lstm2() -> onnx.ModelProto:
    """Two LSTM layers of 128 over 100 frames of 40 features, and a classifier on the last frame, as in keyword
    spotting."""
    g, steps, width, hidden = _Graph(), 100, 40, 128
    x = g.add("Transpose", "x", perm=[1, 0, 2])
    for inside in (width, hidden):
        w = g.normal(1, 4 * hidden, inside, fan_in=2 * hidden)
        y = g.add("LSTM", x, w, g.normal(1, 4 * hidden, hidden, fan_in=2 * hidden), g.zeros(1, 8 * hidden),
                  hidden_size=hidden)  # fmt: skip
        x = g.add("Squeeze", y, g.weight(np.array([1], np.int64)))
    last = g.add("Gather", x, g.weight(np.array(-1, np.int64)), axis=0)
    return g.model({"x": (1, steps, width)}, g.dense(last, hidden, 12), (1, 12))


def light(name: str) -> onnx.ModelProto:
    """A model of onnx's light set, with random weights instead of its ConstantOfShape ones."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(folder / f"{LIGHT[name]}.onnx")
    graph, rng = model.graph, np.random.default_rng(SEED)
    shapes = {t.name: tuple(numpy_helper.to_array(t)) for t in graph.initializer}
    made = {n.output[0]: shapes[n.input[0]] for n in graph.node if n.op_type == "ConstantOfShape"}
    roles = {name: _role(node, i) for node in graph.node for i, name in enumerate(node.input) if name in made}
    kept = [n for n in graph.node if n.op_type != "ConstantOfShape"]
    used = {i for n in kept for i in n.input}
    weights = [t for t in graph.initializer if t.name in used]
    for name, shape in made.items():
        weights.append(numpy_helper.from_array(_draw(rng, roles.get(name, "bias"), shape), name))
    held = {w.name for w in weights}
    inputs = [i for i in graph.input if i.name in used and i.name not in held]
    rebuilt = helper.make_graph(kept, graph.name, inputs, graph.output, weights)
    return helper.make_model(rebuilt, opset_imports=model.opset_import, ir_version=4)


def _role(node: onnx.NodeProto, i: int) -> str:
    """The use of an input, which decides how it is drawn: kernels keep the scale of activations, gains are near one,
    variances are positive."""
    if node.op_type in ("Conv", "Gemm", "MatMul"):
        return "kernel" if i == 1 else "bias"
    if node.op_type == "BatchNormalization":
        return {1: "gain", 4: "variance"}.get(i, "bias")
    return "gain" if node.op_type in ("Unsqueeze", "Mul") else "bias"


def _draw(rng: np.random.Generator, role: str, shape: tuple[int, ...]) -> Array:
    if role == "kernel":
        fan_in = math.prod(shape[1:])
        return (rng.standard_normal(shape) * math.sqrt(1.5 / fan_in)).astype(np.float32)
    if role in ("gain", "variance"):
        return rng.uniform(0.7, 1.0, shape).astype(np.float32)
    return (rng.standard_normal(shape) * 0.02).astype(np.float32)


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "mobilenet_v2": mobilenet_v2,
    **{name: partial(light, name) for name in LIGHT},
    "bert4_128": bert4,
    "lstm2_100": lstm2,
}


def write(folder: Path, *, int8: bool = False) -> list[Path]:
    """Write every model that is not in `folder` yet, and a manifest; returns the paths of all models.

    int8: also write each model's quantised version, and the form that ONNX Runtime's own tool makes from the same
    network and the same rows, for peers (`edge.measuring.contest.forms_of`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, make in MODELS.items():
        path, small = folder / f"{name}.onnx", folder / f"{name}_int8.onnx"
        if not path.exists():
            onnx.save(make(), path)
        paths.append(path)
        if int8:
            _quantise(path, small)
            paths.append(small)
    names = (f"{name}{kind}.onnx" for name in MODELS for kind in ("", "_int8"))
    lines = ["filename\tweights", *(f"{name}\trandom" for name in names)]
    write_atomically(folder / MANIFEST, ("\n".join(lines) + "\n").encode())
    return paths


def _quantise(path: Path, small: Path) -> None:
    from converter import convert

    entry = onnx.load(path).graph.input[0]
    shape = [d.dim_value for d in entry.type.tensor_type.shape.dim]
    rows = np.random.default_rng(SEED).standard_normal((4, *shape[1:])).astype(np.float32)
    theirs = small.with_suffix(".peers.onnx")
    if not small.exists():
        convert(path, output=small, to="onnx", quantize="int8", calibration={entry.name: rows})
    if not theirs.exists():
        quantise_for_peers(path, theirs, {entry.name: rows})


def quantise_for_peers(path: Path, output: Path, rows: Mapping[str, Array]) -> None:
    """int8 in the form that is fastest in ONNX Runtime on x86 with VNNI: unsigned activations, signed weights per
    channel, quantised around every operator; recurrent networks with dynamic quantisation, the only one that its tool
    supports for them."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(range(min(map(len, rows.values()))))

        def get_next(self) -> dict[str, Array] | None:
            i = next(self.left, None)
            return None if i is None else {name: array[i : i + 1] for name, array in rows.items()}

    with _hushed(), tempfile.TemporaryDirectory() as folder:
        modern, ready = Path(folder) / "modern.onnx", Path(folder) / "ready.onnx"
        model = _modern(onnx.load(path))
        onnx.save(model, modern)
        quant_pre_process(modern, ready, skip_symbolic_shape=True)
        if any(node.op_type == "LSTM" for node in model.graph.node):
            quantize_dynamic(ready, output, per_channel=True, weight_type=QuantType.QInt8)
        else:
            quantize_static(
                ready, output, Reader(), per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8
            )


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Suppress its warnings, of which there is one for every bias."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _modern(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model at an opset with quantisation per channel, and with Sums of two operands as Adds, which its tool can
    quantise."""
    if model.opset_import[0].version < 13:
        model = onnx.version_converter.convert_version(model, 13)
    for node in model.graph.node:
        if node.op_type == "Sum" and len(node.input) == 2:
            node.op_type = "Add"
    model.ir_version = 8
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.models", description="Write the benchmark networks as ONNX.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--int8", action="store_true", help="also write an int8 version of each")
    args = parser.parse_args()
    for written in write(args.folder, int8=args.int8):
        print(written)
    sys.exit(0)
