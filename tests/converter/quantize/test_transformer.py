"""Four bits on a transformer exported from torch: size, noise with and without GPTQ, and the runtime's result."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from converter.conversion import convert
from converter.quantize import Options, Runner, calibration_data, quantize
from converter.quantize.accuracy import metrics
from converter.quantize.accuracy.budget import stored_bytes
from tests.converter.quantize.support import prepared, run

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

WIDTH, HEADS, LAYERS, LENGTH, WORDS = 96, 4, 2, 12, 200


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.reshape(*x.shape[:2], HEADS, -1).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, dim=-1))
        scores = (q @ k.transpose(-1, -2) / (WIDTH / HEADS) ** 0.5).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(x.shape))
        return x + self.down(torch.nn.functional.gelu(self.up(self.second(x))))


class Transformer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.words(tokens))))


@pytest.fixture(scope="module")
def exported() -> onnx.ModelProto:
    """Weights as trained ones look: correlated inputs by a low-rank embedding, a few loud LayerNorm channels."""
    torch.manual_seed(0)
    model = Transformer().eval()
    with torch.no_grad():
        basis = torch.randn(24, WIDTH)
        model.words.weight.copy_(torch.randn(WORDS, 24) @ basis / 5 + 0.1 * torch.randn(WORDS, WIDTH))
        for block in model.blocks:
            for norm in (block.first, block.second):
                norm.weight.copy_(torch.exp(0.5 * torch.randn(WIDTH)))
                norm.weight[:3] *= 8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, (torch.zeros(1, LENGTH, dtype=torch.int64),), dynamo=True, input_names=["tokens"], verbose=False
        )
    held = io.BytesIO()
    program.save(held)
    return onnx.load_from_string(held.getvalue())


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, WORDS, (96, LENGTH))


def outputs(model: ir.Model, rows: np.ndarray) -> np.ndarray:
    runner = Runner(model, ())
    return np.concatenate([next(iter(runner.run({"tokens": row[None]}).values())) for row in rows])


def test_four_bits(exported, tokens):
    model = prepared(exported)
    calibration = calibration_data({"tokens": tokens[:64]}, model)
    wanted, snr = outputs(model, tokens[64:]), {}
    for gptq in (False, True):
        copy = model.clone()
        quantize(copy, Options(mode="w4", gptq=gptq), calibration)
        snr[gptq] = metrics.snr(wanted, outputs(copy, tokens[64:]))
        # five bits for each of 32 (four, and a share in a float32 scale), and the embedding's eight
        assert stored_bytes(copy) < 0.19 * stored_bytes(model)
    assert snr[True] > snr[False] + 5 and snr[True] > 25


def test_the_runtime_computes_with_exactly_the_dequantised_weights(exported, tokens):
    model = prepared(exported)
    copy = model.clone()
    quantize(copy, Options(mode="w4"), calibration_data({"tokens": tokens[:16]}, model))
    plain = copy.clone()
    for node in list(plain.graph):
        if node.op_type == "DequantizeLinear":
            stored, scales = (v.const_value.numpy() for v in node.inputs[:2])
            axis, block = node.attributes["axis"].as_int(), node.attributes.get("block_size")
            if block is not None:
                scales = np.repeat(scales, block.as_int(), axis).take(np.arange(stored.shape[axis]), axis)
            else:
                scales = scales.reshape([-1 if i == axis else 1 for i in range(stored.ndim)])
            value = node.outputs[0]
            floats = ir.Value(
                name=f"{value.name}.plain", const_value=ir.tensor(stored.astype(np.float32) * scales), type=value.type,
                shape=value.shape,
            )  # fmt: skip
            plain.graph.register_initializer(floats)
            value.replace_all_uses_with(floats)
            plain.graph.remove(node)
    ours = outputs(copy, tokens[:8])
    assert np.array_equal(ours, outputs(plain, tokens[:8]))
    theirs = np.concatenate([run(copy, {"tokens": row[None]})[0] for row in tokens[:8]])
    assert metrics.snr(theirs, ours) > 90


def test_the_file_is_as_small_as_its_bits(exported, tokens):
    floats = len(convert(exported).bundle)
    small = len(convert(exported, quantize="w4", calibration={"tokens": tokens[:16]}).bundle)
    assert small < 0.25 * floats
