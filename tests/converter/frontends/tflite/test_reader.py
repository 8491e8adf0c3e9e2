"""Files as bytes: the contents of a valid one; a damaged one is refused with one clear error and no other."""

from __future__ import annotations

import random
import struct
from math import prod
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import flatbuffers
import flatbuffers.flexbuffers as flexbuffers
import numpy as np
import onnx_ir as ir
import pytest

from converter.errors import ConvertError
from converter.frontends import tflite
from converter.frontends.tflite import flexbuffer
from converter.frontends.tflite.reader import read
from tests.converter.frontends.tflite.builder import Builder, Quant
from tests.converter.frontends.tflite.support import floats


def everything() -> bytes:
    """A small model with a bit of everything a file can hold."""
    model = Builder()
    x = model.input("x", (None, 6, 6, 2), "int8", quant=Quant(0.1, 3))
    w = model.const(np.arange(-18, 18).reshape(2, 3, 3, 2), "int8", quant=Quant([0.5, 0.25], 0, 0))
    b = model.const([1, -2], "int32", quant=Quant([0.05, 0.025]))
    y = model.op(
        "CONV_2D", [x, w, b], (None, 6, 6, 2), quant=Quant(0.2, -5), padding="SAME", stride_h=1, stride_w=1, version=3
    )
    pooled = model.op(
        "MAX_POOL_2D",
        [y],
        (None, 3, 3, 2),
        quant=Quant(0.2, -5),
        filter_width=2,
        filter_height=2,
        stride_w=2,
        stride_h=2,
    )
    flat = model.op("RESHAPE", [pooled, model.const([-1, 18], "int32")], (None, 18), quant=Quant(0.2, -5))
    real = model.op("DEQUANTIZE", [flat], (None, 18), "float32")
    small = model.const(np.arange(-8, 28).reshape(2, 18) % 8, "int4", quant=Quant([0.1, 0.2]))
    dense = model.op("FULLY_CONNECTED", [real, small, None], (None, 2), asymmetric_quantize_inputs=True)
    kept = model.op("SOFTMAX", [dense], (None, 2), beta=1.0)
    model.output(kept)
    model.signature("serve", {"image": x}, {"scores": kept})
    model.metadata("min_runtime_version", b"1.5.0\0\0\0")
    return model.build()


def test_a_valid_file() -> None:
    model = read(everything())
    (graph,) = model.subgraphs
    assert [o.name for o in graph.operators][:3] == ["CONV_2D", "MAX_POOL_2D", "RESHAPE"]
    conv = graph.operators[0]
    assert conv.version == 3
    assert conv.options["padding"] == 0 and conv.options["dilation_w_factor"] == 1
    x, w, b = (graph.tensors[i] for i in conv.inputs)
    assert x.shape == (1, 6, 6, 2) and x.shape_signature == (-1, 6, 6, 2) and not x.const
    assert w.quant is not None and w.quant.axis == 0 and w.quant.scale.tolist() == [0.5, 0.25]
    assert w.array is not None and w.array.dtype == np.int8 and w.array[0, 0, 0].tolist() == [-18, -17]
    assert b.array is not None and b.array.tolist() == [1, -2]
    (signature,) = model.signatures
    assert signature.key == "serve" and signature.inputs == (("image", graph.inputs[0]),)
    assert model.metadata[0].name == "min_runtime_version"


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (np.float32, ir.DataType.FLOAT),
        (np.float16, ir.DataType.FLOAT16),
        (np.float64, ir.DataType.DOUBLE),
        (np.int16, ir.DataType.INT16),
        (np.int64, ir.DataType.INT64),
        (np.uint16, ir.DataType.UINT16),
        (np.uint32, ir.DataType.UINT32),
        (np.uint64, ir.DataType.UINT64),
        (np.bool_, ir.DataType.BOOL),
        (np.complex64, ir.DataType.COMPLEX64),
    ],
)
def test_element_types(dtype: Any, kind: ir.DataType) -> None:
    model = Builder()
    values = (np.arange(6).reshape(2, 3) % 2).astype(dtype)
    tensor = model.const(values)
    found = read(model.build()).subgraphs[0].tensors[tensor.index]
    assert found.dtype == kind
    np.testing.assert_array_equal(found.array, values)


@pytest.mark.parametrize("shape", [(3, 5), (1,), (4,), (0, 3), ()])
def test_values_of_4_bits(shape: tuple[int, ...]) -> None:
    model = Builder()
    values = (np.arange(prod(shape)).reshape(shape) % 16 - 8).astype(np.int8)
    tensor = model.const(values, "int4")
    found = read(model.build()).subgraphs[0].tensors[tensor.index]
    assert found.dtype == ir.DataType.INT4
    np.testing.assert_array_equal(found.array, values)


def strings(texts: list[bytes]) -> bytes:
    """How TFLite stores them."""
    ends = np.cumsum([4 * (len(texts) + 2)] + [len(t) for t in texts])
    return struct.pack(f"<{len(texts) + 2}i", len(texts), *ends) + b"".join(texts)


def test_strings() -> None:
    model = Builder()
    tensor = model.tensor("s", (2, 2), "string", data=strings([b"a", b"", "é".encode(), b"\xff"]))
    found = read(model.build()).subgraphs[0].tensors[tensor.index].array
    assert found is not None and found.tolist() == [[b"a", b""], ["é".encode(), b"\xff"]]


@pytest.mark.parametrize("data", [b"", b"\2\0\0\0", struct.pack("<5i", 2, 99, 100, 101, 0), strings([b"a"])])
def test_damaged_strings(data: bytes) -> None:
    model = Builder()
    tensor = model.tensor("s", (2,), "string", data=data or b"\0")
    found = read(model.build()).subgraphs[0].tensors[tensor.index]
    with pytest.raises(ConvertError, match="strings"):
        _ = found.array


def test_buffers_behind_the_flatbuffer() -> None:
    """Files above 2 GB keep contents at an offset from the file's start."""
    values = floats(2, 3)

    def build(offset: int) -> bytes:
        model = Builder()
        tensor = model.const(values)
        buffer = model.model.buffers[model.table.tensors[tensor.index].buffer]
        buffer.data, buffer.offset, buffer.size = None, offset, values.nbytes
        return model.build()

    offset = len(build(12345)) + 8
    data = build(offset).ljust(offset, b"\0") + values.tobytes()
    np.testing.assert_array_equal(read(data).subgraphs[0].tensors[0].array, values)
    with pytest.raises(ConvertError, match="24 bytes at byte"):
        read(data[:-1])


def test_bias_keeps_its_integers() -> None:
    """LiteRT adds the integers as they are: their step is x_scale * w_scale, whatever the file says."""
    graph = tflite.load(everything()).models["predict"].graph
    bias = next(n for n in graph if n.op_type == "Conv").inputs[2]
    assert bias is not None
    made = bias.producer()
    assert made is not None and made.op_type == "DequantizeLinear"
    stored, scale = (v.const_value.numpy() for v in made.inputs)
    np.testing.assert_array_equal(stored, [1, -2])
    np.testing.assert_array_equal(scale, np.float32(0.1) * np.array([0.5, 0.25], np.float32))


# damaged files


@pytest.mark.parametrize("data", [b"", b"TFL3", b"\0" * 100, b"\x08\0\0\0TFL3", b"\xff\xff\xff\xffTFL3" + b"\0" * 64])
def test_not_a_model_file(data: bytes) -> None:
    with pytest.raises(ConvertError):
        tflite.load(data)


def test_every_truncation() -> None:
    data = everything()
    for size in range(0, len(data), 7):
        with pytest.raises(ConvertError):
            tflite.load(data[:size])


def changed(change: Any) -> bytes:
    """The model with its tables edited."""
    table = schema.ModelT.InitFromPackedBuf(everything(), 0)
    change(table)
    packer = flatbuffers.Builder(1024)
    packer.Finish(table.Pack(packer), b"TFL3")
    return bytes(packer.Output())


def _set(path: str, value: Any) -> Any:
    def change(model: Any) -> None:
        target = model
        *steps, last = path.split(".")
        for step in steps:
            target = target[int(step)] if step.isdigit() else getattr(target, step)
        setattr(target, last, value)

    return change


DAMAGE = [
    ("version", 4, "schema version 3"),
    ("subgraphs", [], "no subgraphs"),
    ("subgraphs.0.inputs", [99], "inputs refer to tensors"),
    ("subgraphs.0.inputs", [-1], "inputs refer to tensors"),
    ("subgraphs.0.operators.0.inputs", [0, 400, 2], "inputs refer to tensors"),
    ("subgraphs.0.operators.0.outputs", [-2], "outputs refer to tensors"),
    ("subgraphs.0.operators.0.opcodeIndex", 77, "operator code 77"),
    ("subgraphs.0.operators.0.inputs", [], "expected an input"),
    ("subgraphs.0.operators.0.inputs", [-1, 1, 2], "expected an input 0"),
    ("subgraphs.0.operators.1.inputs", [5], "expected images of 4 dimensions"),
    ("subgraphs.0.operators.1.inputs", [6], "before any operator computes it"),
    ("operatorCodes.0.builtinCode", 5000, "builtin code"),
    ("subgraphs.0.tensors.0.type", 120, "element type"),
    ("subgraphs.0.tensors.1.buffer", 99, "buffer 99"),
    ("subgraphs.0.tensors.1.shape", [2, 3, 3, 3], "needs 54 bytes, the file holds 36"),
    ("subgraphs.0.tensors.1.shape", [1 << 30] * 8, "larger than any memory"),
    ("subgraphs.0.tensors.0.shape", [1], "differ in rank"),
    ("subgraphs.0.tensors.1.quantization.quantizedDimension", 1, "scales along dimension"),
    ("subgraphs.0.tensors.1.quantization.quantizedDimension", 9, "scales along dimension"),
    ("subgraphs.0.tensors.1.quantization.scale", [0.5, float("nan")], "finite scales"),
    ("subgraphs.0.tensors.0.quantization.zeroPoint", [300], "zero points of -128 to 127"),
    ("subgraphs.0.tensors.0.quantization.zeroPoint", [1, 2, 3], "1 scales but 3 zero points"),
    ("subgraphs.0.tensors.0.externalBuffer", 1, "another file"),
    ("signatureDefs.0.subgraphIndex", 3, "subgraph 3"),
    ("signatureDefs.0.inputs.0.tensorIndex", 99, "refers to tensors"),
]


@pytest.mark.parametrize(("path", "value", "text"), DAMAGE, ids=[f"{p}-{i}" for i, (p, _, _) in enumerate(DAMAGE)])
def test_damaged_tables(path: str, value: Any, text: str) -> None:
    with pytest.raises(ConvertError, match=text):
        tflite.load(changed(_set(path, value)))


def test_a_name_that_is_no_text() -> None:
    with pytest.raises(ConvertError, match="UTF-8"):
        tflite.load(changed(_set("subgraphs.0.tensors.0.name", b"\xff\xfe")))


def test_many_offsets_to_one_place_take_bounded_work() -> None:
    """Tensors that all share one table with a long name would decode that name thousands of times."""
    count, packer = 50_000, flatbuffers.Builder(1024)
    name = packer.CreateString("n" * 100_000)
    schema.TensorStart(packer)
    schema.TensorAddName(packer, name)
    tensor = schema.TensorEnd(packer)
    schema.SubGraphStartTensorsVector(packer, count)
    for _ in range(count):
        packer.PrependUOffsetTRelative(tensor)
    tensors = packer.EndVector()
    schema.SubGraphStart(packer)
    schema.SubGraphAddTensors(packer, tensors)
    graph = schema.SubGraphEnd(packer)
    schema.ModelStartSubgraphsVector(packer, 1)
    packer.PrependUOffsetTRelative(graph)
    graphs = packer.EndVector()
    schema.ModelStart(packer)
    schema.ModelAddVersion(packer, 3)
    schema.ModelAddSubgraphs(packer, graphs)
    packer.Finish(schema.ModelEnd(packer), b"TFL3")
    with pytest.raises(ConvertError, match="the same bytes too often"):
        read(bytes(packer.Output()))


EXTREMES = [0, 1, 2, 4, 127, 128, 255, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE, 0x10000]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A few bits, bytes or 32-bit numbers changed, or the end cut off."""
    if rng.random() < 0.05:
        return data[: rng.randrange(len(data))]
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        at, kind = rng.randrange(len(found) - 4), rng.random()
        if kind < 0.4:
            found[at] ^= 1 << rng.randrange(8)
        elif kind < 0.6:
            found[at] = rng.randrange(256)
        else:
            struct.pack_into("<I", found, at & ~3, rng.choice(EXTREMES))
    return bytes(found)


def test_mutated_files_raise_nothing_but_convert_error() -> None:
    rng, data, refused = random.Random(20), everything(), 0
    for _ in range(2500):
        try:
            tflite.load(mutated(data, rng))
        except ConvertError:
            refused += 1
    assert 500 < refused < 2500, "mutations must reach both ends"


# custom options


def test_flexbuffer_maps() -> None:
    wanted = {
        "a": 1,
        "big": 1 << 40,
        "f": 0.1,
        "flag": True,
        "list": [1, "two", 3.5, None],
        "map": {"x": -7, "y": [1, 2, 3]},
        "text": "é" * 300,
        "bytes": b"\0\1",
    }
    found = flexbuffer.mapping(bytes(flexbuffers.Dumps(wanted)))
    assert found == wanted


def test_other_custom_options_are_not_read_as_a_map() -> None:
    for data in (b"", b"\1", b"abcdefgh", bytes(flexbuffers.Dumps([1, 2]))):
        assert flexbuffer.mapping(data) == {}


def test_mutated_flexbuffers_give_a_map_or_none() -> None:
    rng = random.Random(4)
    data = bytes(flexbuffers.Dumps({"a": [1, [2, [3]]], "b": {"c": "text", "d": 2.5}, "e": [1.0, 2.0, 3.0]}))
    for _ in range(5000):
        assert isinstance(flexbuffer.mapping(mutated(data, rng)), dict)
