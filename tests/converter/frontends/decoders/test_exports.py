"""Exports of decoders to ONNX: the same logits as ONNX Runtime's, blocks that stay as they are, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from converter import ConvertError, convert
from converter.frontends import format_of
from converter.frontends.exported import load
from lite_runtime import bundle
from tests.converter.frontends.decoders.by_transformers import tokens
from tests.converter.frontends.decoders.checkpoints import config, tensors
from tests.converter.frontends.decoders.exports import Export, logits_by_runtime
from tests.converter.frontends.decoders.running import logits_of

LAYERS = {"num_hidden_layers": 3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "builder": ("llama", {}),
    "builder, tied, biases": ("llama, tied, with biases", {}),
    "builder, packed": ("qwen2", {"packed": True}),
    "builder, qwen3": ("qwen3", {}),
    "builder, qwen3, packed": ("qwen3", {"packed": True}),
    "builder, windows": ("mistral", {}),
    "builder, gemma2": ("gemma2", {}),
    "builder, 4 bits": ("llama", {"bits": 4}),
    "builder, 4 bits with zero points": ("llama", {"bits": 4, "zeros": True}),
    "builder, 8 bits, packed": ("llama", {"bits": 8, "zeros": True, "packed": True}),
    "builder, blocks of 16": ("llama", {"bits": 4, "block": 16}),
    "optimum": ("llama", {"style": "optimum"}),
    "optimum, biases": ("qwen2", {"style": "optimum"}),
    "optimum, qwen3": ("qwen3", {"style": "optimum"}),
    "plain": ("llama", {"style": "plain"}),
    "plain, biases": ("qwen2", {"style": "plain"}),
    "plain, window": ("mistral", {"style": "plain"}),
    "plain, tied, 4 bits": ("llama, tied, with biases", {"style": "plain", "bits": 4, "zeros": True}),
    "optimum, 4 bits": ("llama", {"style": "optimum", "bits": 4, "zeros": True}),
}


def made(name: str, **changes: Any) -> tuple[Export, dict[str, Any]]:
    case, options = CASES[name]
    settings = config(case, **LAYERS, **changes)
    return Export(settings, tensors(settings), **options), settings


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_onnx_runtime(name: str, tmp_path: Path) -> None:
    export, settings = made(name)
    path = export.folder(tmp_path / "m")
    wanted = logits_by_runtime(path, tokens(), settings)
    found = convert(path, activations="float32")
    assert found.report.source_format == "ONNX language model"
    assert np.abs(logits_of(found.bundle, tokens()) - wanted).max() < 2e-3 * np.ptp(wanted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"interleaved": True}, "rotary positions in halves of heads"),
        ({"future": True}, "attention of the last positions|causal attention"),
        ({"factor": -1.0}, "products of queries and keys"),
    ],
)
def test_plain_attention_of_another_kind(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    export, _ = made("plain")
    for name, value in change.items():
        setattr(export, name, value)
    with pytest.raises(ConvertError, match=words) as caught:
        convert(export.folder(tmp_path / "m"))
    assert "model.onnx" in str(caught.value)


def test_plain_attention_scales_as_it_does(tmp_path: Path) -> None:
    export, settings = made("plain")
    export.factor = 0.7
    path = export.folder(tmp_path / "m")
    wanted = logits_by_runtime(path, tokens(), settings)
    found = logits_of(convert(path, activations="float32").bundle, tokens())
    assert np.abs(found - wanted).max() < 2e-3 * np.ptp(wanted)


def test_plain_attention_in_half_precision(tmp_path: Path) -> None:
    settings = config("llama", num_hidden_layers=2)
    export = Export(settings, tensors(settings), style="plain", half=True)
    path = export.folder(tmp_path / "m")
    wanted = logits_by_runtime(path, tokens(), settings, half=True)
    found = logits_of(convert(path, activations="float32").bundle, tokens())
    assert np.abs(found - wanted).max() < 0.02 * np.ptp(wanted)


@pytest.mark.parametrize("zeros", [False, True])
def test_half_precision(zeros: bool, tmp_path: Path) -> None:
    """Scales of float16 stay such without zero points; with them, offsets are float32, so that nothing is rounded."""
    settings = config("llama", **LAYERS)
    export = Export(settings, tensors(settings), bits=4, zeros=zeros, half=True)
    path = export.folder(tmp_path / "m")
    found = convert(path, activations="float32")
    wanted = logits_by_runtime(path, tokens(), settings, half=True)
    assert np.abs(logits_of(found.bundle, tokens()) - wanted).max() < 0.02 * np.ptp(wanted)
    graph = bundle.read(found.bundle).signatures["predict"]
    node = next(node for node in graph.nodes if node.op == "MatMulNBits")
    assert graph.constants[node.inputs[2]].dtype == (np.float32 if zeros else np.float16)
    assert node.attrs["zero_point"] == (0 if zeros else 8)


def test_blocks_stand_for_the_files_numbers(tmp_path: Path) -> None:
    settings = config("llama", **LAYERS)
    export = Export(settings, tensors(settings), bits=4, zeros=True)
    model = load(export.folder(tmp_path / "m")).decoder
    node = next(n for n in export.nodes if n.op_type == "MatMulNBits")
    q, scales, zeros = (numpy_helper.to_array(export.constants[name]) for name in node.input[1:4])
    wide = np.stack([q & 15, q >> 4], -1).reshape(64, 2, 32).astype(np.float32)
    points = np.stack([zeros & 15, zeros >> 4], -1).reshape(64, 2, 1).astype(np.float32)
    held = model.tensors["layer.0.query.weight"]
    found = held.q(0, 64).reshape(64, 2, 32) * held.scales()[..., None] + held.offsets()[..., None]
    np.testing.assert_allclose(found, (wide - points) * scales.reshape(64, 2, 1), rtol=0, atol=1e-6)
    assert held.bits == 4 and held.block == 32


def test_tables_of_integers(tmp_path: Path) -> None:
    """An embedding in blocks, as the builder writes it, and the same one as logits."""
    settings = config("llama", **LAYERS, tie_word_embeddings=True)
    export = Export(settings, tensors(settings), bits=4)
    model = export.model()
    nodes = model.graph.node
    head = next(n for n in nodes if n.output[0] == "logits")
    product = next(n for n in nodes if n.output[0] == head.input[0])
    gather = next(n for n in nodes if n.op_type == "Gather" and n.input[1] == "input_ids")
    flat = helper.make_node("Reshape", [product.input[1], "flat"], ["table"], name="flatten")
    square = helper.make_node("Reshape", [product.input[2], "square"], ["steps"], name="squared")
    model.graph.initializer.extend([
        numpy_helper.from_array(np.array([199, -1]), "flat"), numpy_helper.from_array(np.array([199, -1]), "square"),
    ])  # fmt: skip
    blocked = helper.make_node(
        "GatherBlockQuantized", ["table", "input_ids", "steps"], list(gather.output), domain="com.microsoft", bits=4,
        block_size=32, gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    at = list(nodes).index(gather)
    nodes.remove(gather)
    for i, node in enumerate((flat, square, blocked)):
        nodes.insert(at + i, node)
    path = export.folder(tmp_path / "m", model)
    found = convert(path, activations="float32")
    assert found.report.ops_after["GatherBlockQuantized"] == 1
    wanted = logits_by_runtime(path, tokens(), settings)
    assert np.abs(logits_of(found.bundle, tokens()) - wanted).max() < 2e-3 * np.ptp(wanted)
    graph = bundle.read(found.bundle).signatures["predict"]
    tables = [n.inputs[0] for n in graph.nodes if n.op == "GatherBlockQuantized"]
    assert sum(name in tables for n in graph.nodes if n.op == "MatMulNBits" for name in n.inputs) == 1, "one table"


def test_settings_and_options(tmp_path: Path) -> None:
    export, _ = made("builder")
    path = export.folder(tmp_path / "m")
    assert format_of(path).name == "ONNX language model"  # type: ignore[union-attr]
    about = bundle.read(convert(path, quantize="w4", context=100).bundle).metadata["language"]
    assert about["context"] == 100 and about["stop"] == [2] and about["bos"] == 1 and about["layers"] == 3
    assert bundle.read(convert(path).bundle).metadata["language"]["context"] == 200
    found = convert(path, quantize="w8")
    assert found.report.ops_after["MatMulNBits"] == 16 and found.report.ops_after["GatedMatMulNBits"] == 3


def changed(op: str, **attrs: Any) -> Callable[[onnx.ModelProto], None]:
    """A change of the last node of a kind."""

    def change(model: onnx.ModelProto) -> None:
        node = [n for n in model.graph.node if n.op_type == op][-1]
        for name, value in attrs.items():
            if name == "op_type":
                node.op_type, node.domain = value, ""
                continue
            kept = [a for a in node.attribute if a.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return change


def _no_present(model: onnx.ModelProto) -> None:
    del model.graph.output[-1]


def _no_ids(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "scores"
    model.graph.node[-1].output[0] = "scores"


def _other_stream(model: onnx.ModelProto) -> None:
    """The last norm's sum takes the embedding instead of what comes before."""
    gather = next(n for n in model.graph.node if n.op_type == "Gather" and n.input[1] == "input_ids")
    last = [n for n in model.graph.node if n.op_type == "SkipSimplifiedLayerNormalization"][-1]
    last.input[0] = gather.output[0]


REFUSED: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "no logits": (_no_ids, "expected an output 'logits'"),
    "no caches": (_no_present, "past keys and values as inputs of the graph"),
    "another activation": (changed("Sigmoid", op_type="Tanh"), "Sigmoid times its input.*got Mul"),
    "another sum": (_other_stream, "a norm of what the feed-forward layer's result is added to"),
    "other heads": (changed("GroupQueryAttention", num_heads=2), "same sizes and settings, got different"),
    "other softmax": (changed("GroupQueryAttention", smooth_softmax=1), "expected smooth_softmax 0, got 1"),
    "other epsilons": (changed("SkipSimplifiedLayerNormalization", epsilon=0.1), "same sizes and settings"),
    "a damaged node": (changed("GroupQueryAttention", num_heads="x"), "other operands or attributes"),
    "other blocks": (changed("GroupQueryAttention", kv_num_heads=3), "share keys evenly|expected"),
    "another product": (changed("MatMul", op_type="Mul"), "expected a product, or a bound by tanh, got Mul"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_structures_are_refused(name: str, tmp_path: Path) -> None:
    change, match = REFUSED[name]
    export, _ = made("builder")
    model = export.model()
    change(model)
    with pytest.raises(ConvertError, match=match):
        convert(export.folder(tmp_path / "m", model))


@pytest.mark.parametrize("name", ["builder, 4 bits with zero points", "optimum, qwen3", "plain"])
def test_damaged_graphs_are_refused(name: str, tmp_path: Path) -> None:
    """Operands and attributes that are missing or others: read or refused, never another error."""
    case, options = CASES[name]
    settings = config(case, num_hidden_layers=1)
    export, rng, refused = Export(settings, tensors(settings), **options), np.random.default_rng(0), 0
    whole = export.model()
    constants = [tensor.name for tensor in whole.graph.initializer]
    for step in range(80):
        model = onnx.ModelProto()
        model.CopyFrom(whole)
        node = model.graph.node[rng.integers(len(model.graph.node))]
        if step % 4 == 0 and node.attribute:
            del node.attribute[rng.integers(len(node.attribute))]
        elif step % 4 == 1:
            del node.input[-1]
        else:
            node.input[rng.integers(len(node.input))] = "" if step % 4 == 2 else constants[rng.integers(len(constants))]
        try:
            convert(export.folder(tmp_path / "m", model))
        except ConvertError:
            refused += 1
    assert refused > 30


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    export, settings = made("optimum")
    path = export.folder(tmp_path / "m")
    (path / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 4}))
    with pytest.raises(ConvertError, match="num_hidden_layers: expected 3, as the graph has it, got 4"):
        convert(path)
    (path / "config.json").unlink()
    with pytest.raises(ConvertError, match=r"expected config\.json beside the weights"):
        convert(path)
    (path / "genai_config.json").write_text(json.dumps({"model": {"decoder": {"filename": "../model.onnx"}}}))
    with pytest.raises(ConvertError, match="a file in the same folder"):
        convert(path)
