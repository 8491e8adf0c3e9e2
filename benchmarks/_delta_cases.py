"""Pairs of bundles for `benchmarks.deltas`: a model before and after a device learned, converted by the same settings.

Each base is a float ONNX model. `train_step` of a bundle trains it on real images, the trained state goes back into the
ONNX model, and both are quantised with the same samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

import lite_runtime
from converter import convert
from converter.training import Training
from converter.training.options import Lora
from lite_runtime import bundle
from lite_runtime.bundle.layout import KNOWN
from lite_runtime.graph import Array
from lite_runtime.language import LanguageModel, Learning
from lite_runtime.language.adapters import layout
from lite_runtime.reference.blocked import Blocks, from_panels, to_panels, weights

__all__ = ["Base", "Pair", "language", "mobilenet", "pairs", "resnet"]

BATCH = 16
CALIBRATION = 32
"""Images that ranges are measured with."""


class Base(NamedTuple):
    """A model in float32, its data and the parameters of its head (globs)."""

    name: str
    model: onnx.ModelProto
    images: Array
    labels: Array
    trained: Mapping[str, tuple[Sequence[str], float]]
    """What is trained: globs of parameters, and the learning rate."""


class Pair(NamedTuple):
    """Two bundles, and the accuracy on the images before and after training."""

    name: str
    old: bytes
    new: bytes
    before: float
    after: float


def pairs(base: Base) -> Iterator[Pair]:
    """The base and what one epoch makes of it: its head trained, and all layers."""
    old = _quantized(base, base.model)
    for what, (trainable, rate) in base.trained.items():
        tuned, before, after = _trained(base, trainable, rate)
        yield Pair(f"{base.name}, {what}", old, _quantized(base, tuned), before, after)


def _trained(base: Base, trainable: Sequence[str], rate: float) -> tuple[onnx.ModelProto, float, float]:
    """The model after one epoch, and accuracies before and after."""
    training = Training(tuple(trainable), optimizer="momentum", learning_rate=rate, clip_norm=1.0)
    device = lite_runtime.load(convert(base.model, trainable=training).bundle)
    name = base.model.graph.input[0].name
    order = np.random.default_rng(1).permutation(len(base.images))
    batches = [order[at : at + BATCH] for at in range(0, len(order) - BATCH + 1, BATCH)]
    feeds = [{name: base.images[rows], "labels": base.labels[rows].astype(np.int64)} for rows in batches]

    def accuracy() -> float:
        found = [device.run(fed, "evaluate") for fed in feeds]
        return float(sum(int(one["correct"]) for one in found) / sum(int(one["examples"]) for one in found))

    before = accuracy()
    for fed in feeds:
        device.run(fed, "train_step")
    state = device.state_dict()
    tuned = onnx.ModelProto()
    tuned.CopyFrom(base.model)
    for tensor in tuned.graph.initializer:
        if tensor.name in state:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(state[tensor.name], np.float32), tensor.name))
    return tuned, before, accuracy()


def _quantized(base: Base, model: onnx.ModelProto) -> bytes:
    samples = {base.model.graph.input[0].name: base.images[:CALIBRATION]}
    return convert(model, quantize="int8", calibration=samples).bundle


# -- models ------------------------------------------------------------------------------------------------------------


def resnet(models: Path, data: Path) -> Base:
    """MLPerf Tiny's ResNet-8 and 500 training images of CIFAR-10."""
    made = _onnx(models / "mlperftiny_ic_resnet8_fp32.tflite")
    images, labels = _cifar(data)
    trained = {"head": (["model/dense/*"], 3e-4), "all layers": (["*"], 1e-5), "all layers, fast": (["*"], 1e-4)}
    return Base("ResNet-8", made, images.astype(np.float32), labels, trained)


CLASSES = (405, 818, 16, 282, 353, 208, 31, 340, 511, 868)
"""Of ImageNet (with the background as 0), one for each of CIFAR-10's: airliner, sports car, robin, tabby, impala,
golden retriever, bullfrog, sorrel, container ship, trailer truck."""


def mobilenet(models: Path, data: Path, size: int = 96) -> Base:
    """Coral's MobileNetV2 with ten of its classes, as float32, and the same images, enlarged to `size` pixels.

    An epoch has adapted it to them, so that the next one is not its first.
    """
    made = _ten_classes(_floating(_onnx(models / "coral_mobilenet_v2_10_224_uint8.tflite")), size)
    images, labels = _cifar(data)
    enlarged = images.repeat(size // 32, 1).repeat(size // 32, 2)
    trained = {"head": (["head.*"], 1e-3), "all layers": (["*"], 1e-3)}
    base = Base("MobileNetV2", made, enlarged.astype(np.float32) / 128 - 1, labels, trained)
    return base._replace(model=_trained(base, ["*"], 3e-3)[0])


def _onnx(path: Path) -> onnx.ModelProto:
    return onnx.load_model_from_string(convert(path, to="onnx").bundle)


def _cifar(data: Path) -> tuple[Array, Array]:
    with np.load(data / "cifar10_calibration.npz") as held:
        return held["x"], held["y"].astype(np.int64)


def _floating(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without quantisation: constants as the numbers they stand for, everything between layers in float."""
    graph = model.graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    same: dict[str, str] = {}
    kept = []
    for node in graph.node:
        names = [same.get(name, name) for name in node.input]
        if node.op_type == "DequantizeLinear" and node.input[0] in arrays:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
            arrays[node.output[0]] = _numbers(*(arrays[name] for name in node.input), axis=axis)
        elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            same[node.output[0]] = names[0]
        else:
            del node.input[:]
            node.input.extend(names)
            kept.append(node)
    used = {name for node in kept for name in node.input}
    outputs = [same.get(value.name, value.name) for value in graph.output]
    tensors = [numpy_helper.from_array(value, name) for name, value in arrays.items() if name in used]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    made = helper.make_graph(kept, "floating", graph.input, values, tensors)
    return helper.make_model(made, opset_imports=model.opset_import, ir_version=model.ir_version)


def _numbers(stored: Array, scale: Array, zero: Array | int = 0, *, axis: int) -> Array:
    shape = [-1 if i == axis else 1 for i in range(stored.ndim)] if np.ndim(scale) else []
    scale, zero = np.reshape(scale, shape), np.reshape(zero, shape if np.ndim(zero) else [])
    made: Array = ((stored.astype(np.float64) - zero) * scale).astype(np.float32)
    return made


def _ten_classes(model: onnx.ModelProto, size: int) -> onnx.ModelProto:
    """The model for images of `size` pixels in float32, any number at once, with the classes in `CLASSES`."""
    graph = model.graph
    pool = next(i for i, node in enumerate(graph.node) if node.op_type == "AveragePool")
    weight, bias = next(node for node in list(graph.node)[pool:] if node.op_type == "Conv").input[1:]
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes = [
        *list(graph.node)[:pool],
        helper.make_node("GlobalAveragePool", [graph.node[pool].input[0]], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
        helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["logits"], transB=1),
    ]
    arrays["head.weight"] = arrays[weight][list(CLASSES), :, 0, 0]
    arrays["head.bias"] = arrays[bias].ravel()[list(CLASSES)]
    used = {name for node in nodes for name in node.input}
    tensors = [numpy_helper.from_array(value, name) for name, value in arrays.items() if name in used]
    kind = onnx.TensorProto.FLOAT
    entry = helper.make_tensor_value_info(graph.input[0].name, kind, ["batch", size, size, 3])
    result = helper.make_tensor_value_info("logits", kind, ["batch", len(CLASSES)])
    made = helper.make_graph(nodes, "mobilenet_v2", [entry], [result], tensors)
    return helper.make_model(made, opset_imports=model.opset_import, ir_version=model.ir_version)


# -- language models ---------------------------------------------------------------------------------------------------


def language(gguf: Path, text: Path, steps: int = 20) -> Iterator[Pair]:
    """A language model in blocks of 4 bits, and the same with an adapter that it learned from a text, merged into its
    matrices: beside queries and values with the blocks' scales kept; and beside all products, blocks rounded anew."""
    old = convert(gguf).bundle
    for what, targets, anew in (("queries and values", ("query", "value"), False), ("all products, anew", "*", True)):
        adapter, before, after = _taught(gguf, text, targets, steps)
        base = _merged(old, {}, anew) if anew else old
        yield Pair(f"SmolLM2 135M, {what}", base, _merged(old, adapter, anew), before, after)


def _taught(
    gguf: Path, text: Path, targets: str | Sequence[str], steps: int
) -> tuple[Mapping[str, Array], float, float]:
    """What is to be added to each product's matrix (outputs, inputs), and losses of the text before and after."""
    training = Training(adapters=Lora(8, targets=targets), optimizer="adam", learning_rate=0.001)
    learning = Learning(LanguageModel.load(convert(gguf, trainable=training).bundle, threads=2), length=128)
    rows = learning.rows([text.read_text()[: 4 * 128 * steps]])[:steps]
    before = learning.loss(rows[:4])
    for _ in learning.steps(rows):
        pass
    adapter, places = learning.adapter(), layout(learning.model.about)
    assert places is not None
    arrays = adapter.arrays
    added = {
        target.name: (arrays[f"{target.name}.lora_a"] @ arrays[f"{target.name}.lora_b"]).T * places.factor
        for target in places.targets
    }
    return added, before, learning.loss(rows[:4])


_PRODUCTS = {"query": "attn_q", "key": "attn_k", "value": "attn_v", "result": "attn_output"}


def _merged(data: bytes, added: Mapping[str, Array], anew: bool) -> bytes:
    """A bundle whose products have these matrices added. anew: all blocks are rounded anew, by least and greatest."""
    held = bundle.read(data)
    changes = {}
    for name, matrix in added.items():
        _, layer, role = name.split(".")
        changes[f"blk.{layer}.{_PRODUCTS.get(role, f'ffn_{role}')}.weight.q"] = matrix
    signatures = {}
    for signature, graph in held.signatures.items():
        constants = dict(graph.constants)
        for node in graph.nodes:
            if node.op == "MatMulNBits" and node.attrs["bits"] == 4 and (anew or node.inputs[1] in changes):
                names, n = node.inputs[1:4], node.attrs["N"]
                assert isinstance(n, int)
                blocks = Blocks(*(graph.constants[each] for each in names))
                wide = weights(blocks, n, 4, 0, "panels") + changes.get(names[0], np.float32(0))
                q, scales, offsets = _rounded(wide, None if anew else from_panels(blocks, n, 4))
                assert offsets is not None
                constants |= zip(names, (q, scales, offsets), strict=True)
        signatures[signature] = graph.replace(constants=constants)
    extra = {name: bytes(held.section(name)) for name in held.sections if name not in KNOWN}
    return bundle.write(None, signatures, provenance=held.provenance, metadata=held.metadata, extra=extra)


def _rounded(wide: Array, like: Blocks | None) -> Blocks:
    """A float32 matrix in blocks of 32 numbers of 4 bits, in panels; with the scales of `like`, or its own."""
    blocks = wide.reshape(len(wide), -1, 32)
    if like is None:
        least = blocks.min(2).astype(np.float16)
        scales = ((blocks.max(2) - least) / 15).astype(np.float16)
    else:
        assert like.offsets is not None
        least, scales = like.offsets, like.scales
    divisor = np.where(scales == 0, 1, scales).astype(np.float32)[..., None]
    q = np.clip(np.rint((blocks - least.astype(np.float32)[..., None]) / divisor), 0, 15).astype(np.uint8)
    packed = q[..., ::2] | q[..., 1::2] << 4
    return to_panels(Blocks(packed, scales, least), 4)
