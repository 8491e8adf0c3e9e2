"""ONNX Runtime's own files, made by ONNX Runtime here: results are those that it computes from the same file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import lite_runtime
from converter import ConvertError, UnsupportedOpError, convert
from converter.frontends import ort
from tests.converter.passes.test_contrib_files import network
from tests.converter.support import Builder
from tests.fuzz.converting import raw_bytes, seeds
from tests.fuzz.converting.ort_files import pack, saved, spoil
from tests.oracles import CPU

RNG = np.random.default_rng(11)
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# ------------------------------------------------------------------------------------------------------ whole models


def quantised() -> onnx.ModelProto:
    """int8 between QuantizeLinear and DequantizeLinear, which become QLinearConv and others. Its sums fit into the 16
    bits in which some processors add two products."""
    b = Builder(opset=17)
    s, z = b.const(0.04, "f"), b.const(128, "u1")

    def around(y: str) -> str:
        return str(b("DequantizeLinear", b("QuantizeLinear", y, s, z), s, z))

    def weights(*shape: int) -> str:
        w, scales = b.const(RNG.integers(-60, 60, shape), "i1"), b.const(RNG.uniform(0.005, 0.01, shape[0]), "f")
        return str(b("DequantizeLinear", w, scales, b.const(np.zeros(shape[0]), "i1"), axis=0))

    x = around(b.input("x", [24, 4, 8, 8]))
    y = around(b("Relu", b("Conv", x, weights(8, 4, 3, 3), pads=[1] * 4)))
    y = around(b("Add", around(b("Conv", y, weights(8, 8, 1, 1))), y))
    y = around(b("Flatten", b("GlobalAveragePool", y)))
    return b.model(around(b("MatMul", y, b("Transpose", weights(5, 8), perm=[1, 0]))))


def recurrent() -> onnx.ModelProto:
    b = Builder(opset=17)
    steps = b.input("x", ["T", "N", 5])
    y, last, _ = b("LSTM", steps, b.weight(2, 16, 5), b.weight(2, 16, 4), b.weight(2, 32), hidden_size=4,
                   direction="bidirectional", outputs=3)  # fmt: skip
    h, _ = b("GRU", b("Reshape", b("Transpose", y, perm=[0, 2, 1, 3]), b.const([0, 0, -1])), b.weight(1, 9, 8),
             b.weight(1, 9, 3), hidden_size=3, linear_before_reset=1, outputs=2)  # fmt: skip
    return b.model(h, last)


def transformer() -> onnx.ModelProto:
    """A block as exporters write it: normalisations and Gelu in parts, which ONNX Runtime puts together."""
    b = Builder(opset=17)
    x, size, heads = b.input("x", ["N", 6, 16]), 16, 4

    def number(value: float) -> str:
        return str(b.const(value, "f"))

    def norm(y: str) -> str:
        d = b("Sub", y, b("ReduceMean", y, axes=[-1]))
        root = b("Sqrt", b("Add", b("ReduceMean", b("Pow", d, number(2)), axes=[-1]), number(1e-5)))
        return str(b("Add", b("Mul", b("Div", d, root), b.weight(size)), b.weight(size)))

    def dense(y: str, inputs: int, outputs: int) -> str:
        return str(b("Add", b("MatMul", y, b.weight(inputs, outputs)), b.weight(outputs)))

    def split(y: str, perm: list[int]) -> str:
        return str(b("Transpose", b("Reshape", dense(y, size, size), b.const([0, 0, heads, size // heads])), perm=perm))

    y = norm(x)
    q, k, v = split(y, [0, 2, 1, 3]), split(y, [0, 2, 3, 1]), split(y, [0, 2, 1, 3])
    scores = b("Softmax", b("Div", b("MatMul", q, k), number(2)), axis=-1)
    mixed = b("Reshape", b("Transpose", b("MatMul", scores, v), perm=[0, 2, 1, 3]), b.const([0, 0, size]))
    x = b("Add", x, dense(mixed, size, size))
    u = dense(norm(x), size, 32)
    gelu = b("Mul", b("Mul", u, b("Add", b("Erf", b("Div", u, number(2**0.5))), number(1))), number(0.5))
    return b.model(norm(b("Add", x, dense(gelu, 32, size))))


def flow() -> onnx.ModelProto:
    """Loop, Scan and If whose graphs read names from around them, two levels up too."""
    n, value = helper.make_node, helper.make_tensor_value_info

    def graph(nodes: list[Any], name: str, inputs: list[Any], outputs: list[Any]) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, inputs, outputs)

    inner = graph([n("Mul", ["carried", "w"], ["a"])], "then", [], [value("a", 1, [3])])
    other = graph([n("Sub", ["carried", "x"], ["b"])], "else", [], [value("b", 1, [3])])
    body = graph(
        [
            n("ReduceSum", ["carried"], ["total"], keepdims=0),
            n("Greater", ["total", "limit"], ["large"]),
            n("If", ["large"], ["next"], then_branch=other, else_branch=inner),
            n("Identity", ["go"], ["on"]),
        ],
        "body",
        [value("i", 7, []), value("go", 9, []), value("carried", 1, [3])],
        [value("on", 9, []), value("next", 1, [3]), value("next", 1, [3])],
    )
    step = graph(
        [n("Add", ["sum", "row"], ["sum out"]), n("Mul", ["sum out", "w"], ["each"])],
        "step", [value("sum", 1, [3]), value("row", 1, [3])], [value("sum out", 1, [3]), value("each", 1, [3])],
    )  # fmt: skip
    nodes = [
        n("Loop", ["count", "", "x"], ["last", "all"], body=body),
        n("Scan", ["x", "all"], ["y", "z"], body=step, num_scan_inputs=1),
    ]
    weights = {"w": np.float32([1.5, -2, 3]), "count": np.int64(4), "limit": np.float32(2)}
    main = helper.make_graph(
        nodes, "g", [value("x", 1, [3])], [value("y", 1, [3]), value("z", 1, [4, 3])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()],
    )  # fmt: skip
    return helper.make_model(main, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def strings() -> onnx.ModelProto:
    """Text in initializers and attributes."""
    b = Builder(opset=17)
    x = b.input("x", ["N"], np.int64)
    words = b.const(np.array(["", "süß", "bread", "パン"], object))
    codes = b("LabelEncoder", b("Gather", words, x), domain="ai.onnx.ml", keys_strings=["süß", "bread"],
              values_floats=[1.0, 2.0], default_float=-1.0)  # fmt: skip
    return b.model(codes, ml=True)


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "convolutions": (network, "FusedConv"),
    "quantised": (quantised, "QLinearAdd"),
    "recurrent": (recurrent, ""),
    "transformer": (transformer, "SkipLayerNormalization"),
    "flow": (flow, ""),
    "strings": (strings, ""),
}
"""What builds a model, and an operator of ONNX Runtime that its optimiser writes."""


def feeds(session: onnxruntime.InferenceSession) -> dict[str, np.ndarray]:
    made = {}
    for value in session.get_inputs():
        shape = [d if isinstance(d, int) else 3 for d in value.shape]
        kinds = {"tensor(float)": "f", "tensor(int64)": np.int64, "tensor(bool)": bool}
        made[value.name] = RNG.integers(0, 4, shape) if "int" in value.type else f(*shape)
        made[value.name] = np.asarray(made[value.name]).astype(kinds[value.type])
    return made


def compare(path: Path, step: float = 0.0) -> None:
    """msedge's results against ONNX Runtime's with the same file: relative to an output's range, or, of multiples of
    `step`, one in ten may be the next one: what lies on the border of two is rounded to either, in each of five
    layers."""
    session = onnxruntime.InferenceSession(str(path), providers=CPU)
    given = feeds(session)
    made = convert(path)
    assert made.report.source_format == "ORT format"
    got = lite_runtime.load(made.bundle).run(given)
    for value, want in zip(session.get_outputs(), session.run(None, given), strict=True):
        assert got[value.name].dtype == want.dtype and got[value.name].shape == want.shape
        apart = np.abs(got[value.name].astype(float) - want.astype(float))
        limit = 1e-5 * (float(np.ptp(want)) or 1.0)
        assert apart.max() <= max(limit, 1.01 * step) and np.mean(apart > limit) <= (0.1 if step else 0), value.name


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", MODELS)
def test_results_are_onnx_runtime_s(name: str, level: str, tmp_path: Path) -> None:
    make, fused = MODELS[name]
    path = tmp_path / "model.ort"
    path.write_bytes(saved(make().SerializeToString(), level))
    written = {node.op_type for node in ort.read(path.read_bytes()).graph.node if node.domain == "com.microsoft"}
    assert not written or level in LEVELS[2:]
    if level == "ORT_ENABLE_EXTENDED" and fused:
        assert fused in written, written
    compare(path, step=0.04 if name == "quantised" else 0.0)


@pytest.mark.parametrize("name", ["convolutions", "quantised"])
def test_optimisations_kept_for_later(name: str, tmp_path: Path) -> None:
    """A file may list optimisations that ONNX Runtime makes when it loads it; the graph is whole without them."""
    path, model = tmp_path / "model.ort", MODELS[name][0]().SerializeToString()
    path.write_bytes(saved(model, settings={"optimization.minimal_build_optimizations": "save"}))
    assert path.read_bytes() != saved(model)
    compare(path, step=0.04 if name == "quantised" else 0.0)


@pytest.mark.parametrize("level", LEVELS[2:])
def test_real_models(level: str, shared_models: Path, tmp_path: Path) -> None:
    for stem in ("onnxzoo_mnist_8", "dtln_model_1", "ultraface_RFB_320_nopost"):
        path = tmp_path / f"{stem}.ort"
        path.write_bytes(saved(shared_models / f"{stem}.onnx", level))
        compare(path)


# ------------------------------------------------------------------------------------------------------ parts of a file


def test_what_a_model_says_of_itself_is_kept() -> None:
    model = network()
    model.producer_name, model.producer_version, model.doc_string = "somebody", "1.2", "what it does"
    model.graph.doc_string, model.model_version, model.domain = "how", 7, "org.example"
    helper.set_model_props(model, {"labels": "a,b"})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    read = ort.read(saved(model.SerializeToString(), "ORT_DISABLE_ALL"))
    for field in ("producer_name", "producer_version", "doc_string", "model_version", "domain", "ir_version"):
        assert getattr(read, field) == getattr(model, field)
    assert read.graph.doc_string == "how" and read.graph.input == model.graph.input
    assert {p.key: p.value for p in read.metadata_props} == {"labels": "a,b"}
    assert next(o.version for o in read.opset_import if not o.domain) == 17
    onnx.checker.check_model(read)
    assert [n.op_type for n in read.graph.node] == [n.op_type for n in model.graph.node]


def test_every_type_of_element_is_read() -> None:
    """Initializers as they are stored, through an operator that takes all of them."""
    types = "FLOAT16 FLOAT DOUBLE BFLOAT16 INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL INT4 UINT4 STRING"
    for name in types.split():
        kind = getattr(TensorProto, name)
        values = np.array(["a", "ß", ""], object) if name == "STRING" else np.array([1, 0, 1])
        if name != "STRING":
            values = values.astype(helper.tensor_dtype_to_np_dtype(kind))
        tensor = numpy_helper.from_array(values, "w")
        packed = name.endswith("INT4")
        node = helper.make_node(*(("DequantizeLinear", ["w", "s"]) if packed else ("Shape", ["w"])), ["y"])
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT if packed else TensorProto.INT64, None)
        scale = [numpy_helper.from_array(np.float32(1), "s")] if packed else []
        graph = helper.make_graph([node], "g", [], [output], [tensor, *scale])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        found = ort.read(saved(model.SerializeToString(), "ORT_DISABLE_ALL")).graph.initializer
        (read,) = (tensor for tensor in found if tensor.name == "w")
        assert read.data_type == kind and numpy_helper.to_array(read).tolist() == values.tolist()


def sparse_model(coordinates: bool) -> onnx.ModelProto:
    values = numpy_helper.from_array(np.float32([1.5, -2, 4]), "w")
    places = [[0, 1], [2, 0], [4, 3]] if coordinates else [1, 8, 19]
    indices = numpy_helper.from_array(np.int64(places), "indices of w")
    sparse = onnx.SparseTensorProto(values=values, indices=indices, dims=[5, 4])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [helper.make_tensor_value_info("x", 1, [2, 5])],
        [helper.make_tensor_value_info("y", 1, [2, 4])], sparse_initializer=[sparse],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("coordinates", [False, True])
def test_sparse_initializers(coordinates: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.ort"
    path.write_bytes(saved(sparse_model(coordinates).SerializeToString(), "ORT_DISABLE_ALL"))
    assert len(ort.read(path.read_bytes()).graph.sparse_initializer) == 1
    compare(path)


def test_types_within_types_are_read(tmp_path: Path) -> None:
    """A sequence of tensors between operators, and a ZipMap's sequence of maps as an output."""
    n, value = helper.make_node, helper.make_tensor_value_info
    nodes = [
        n("SplitToSequence", ["x"], ["parts"], axis=1, keepdims=1),
        n("ConcatFromSequence", ["parts"], ["scores"], axis=1),
        n("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
    ]
    maps = onnx.ValueInfoProto(name="maps")
    inner = maps.type.sequence_type.elem_type.map_type
    inner.key_type, inner.value_type.tensor_type.elem_type = TensorProto.INT64, TensorProto.FLOAT
    graph = helper.make_graph(nodes, "g", [value("x", 1, ["N", 3])], [value("scores", 1, ["N", 3]), maps])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    data = saved(model.SerializeToString(), "ORT_DISABLE_ALL")
    read = ort.read(data)
    assert read.graph.output[1].type.sequence_type.elem_type.map_type == inner
    assert read.graph.value_info[0].type.sequence_type.elem_type.tensor_type.elem_type == TensorProto.FLOAT
    got = lite_runtime.load(convert(data).bundle).run({"x": np.eye(3, dtype=np.float32)})
    np.testing.assert_array_equal(got["maps"], np.eye(3))


# ------------------------------------------------------------------------------------------------------ damaged files


def info(name: str, *shape: int) -> dict[str, Any]:
    dims = [{"value": {"dim_type": 1, "dim_value": d}} for d in shape]
    return {"name": name, "type": {"value_type": 1, "value": {"elem_type": 1, "shape": {"dim": dims}}}}


def graph(**changes: Any) -> dict[str, Any]:
    """y = x + w."""
    weight = {"name": "w", "dims": [2], "data_type": 1, "raw_data": list(np.float32([1, 2]).tobytes())}
    node = {"name": "n", "op_type": "Add", "since_version": 14, "inputs": ["x", "w"], "outputs": ["y"]}
    node |= {"input_arg_counts": [1, 1], "implicit_inputs": [], "attributes": [], **changes.pop("node", {})}
    made = {"initializers": [weight | changes.pop("weight", {})], "node_args": [info(name, 2) for name in "xyw"]}
    return {**made, "nodes": [node], "inputs": ["x"], "outputs": ["y"], "max_node_index": 1, **changes}


def file(version: str = "6", opset: int = 17, **changes: Any) -> bytes:
    opsets = [{"domain": "", "version": opset}, {"domain": "com.ms.internal.nhwc", "version": 19}]
    model = {"ir_version": 8, "opset_import": opsets, "graph": graph(**changes)}
    return pack({"ort_version": version, "model": model})


def nested(depth: int) -> dict[str, Any]:
    """If in If in If."""
    inner: Any = graph()
    for _ in range(depth):
        branches = [{"name": name, "type": 5, "g": inner} for name in ("then_branch", "else_branch")][:1]
        node = {"name": "i", "op_type": "If", "inputs": ["x"], "outputs": ["y"], "input_arg_counts": [1]}
        inner = graph(node={**node, "since_version": 16, "attributes": branches})
    return dict(inner)


def deep_type(depth: int) -> dict[str, Any]:
    found = info("x", 2)["type"]
    for _ in range(depth):
        found = {"value_type": 2, "value": {"elem_type": found}}
    return {"name": "x", "type": found}


def test_a_file_written_by_hand_is_read_by_both(tmp_path: Path) -> None:
    """The builder of these tests writes what ONNX Runtime reads; the files below differ from it in one place."""
    path = tmp_path / "m.ort"
    path.write_bytes(file())
    got = lite_runtime.load(convert(path).bundle).run({"x": np.float32([3, 4])})
    np.testing.assert_array_equal(got["y"], [4, 6])
    session = onnxruntime.InferenceSession(file(version="4"), providers=CPU)
    np.testing.assert_array_equal(session.run(None, {"x": np.float32([3, 4])})[0], [4, 6])


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "version": (lambda: file(version="7"), "ORT format version 1 to 6, got '7'; convert the ONNX model"),
    "no version": (lambda: pack({"model": {}}), "ORT format version 1 to 6, got ''"),
    "no model": (lambda: pack({"ort_version": "6"}), "expected a model, got none"),
    "no graph": (lambda: pack({"ort_version": "6", "model": {}}), "expected a graph, got none"),
    "compiled": (
        lambda: file(node={"type": 1, "execution_provider_type": "QNNExecutionProvider"}),
        "node 0 'n' .Add.: expected an operator, got a part of the model compiled for QNNExecutionProvider; conv",
    ),
    "context": (
        lambda: file(node={"op_type": "EPContext", "domain": "com.microsoft"}), "compiled for an accelerator; convert",
    ),
    "kind of node": (lambda: file(node={"type": 2}), "expected type of 0 to 1, got 2"),
    "another version": (
        lambda: file(node={"since_version": 7}), "expected version 14 of the operator, which opset 17 .* got 7",
    ),
    "newer than the opset": (
        lambda: file(node={"op_type": "Mine", "since_version": 18}), "expected version 17 of the operator",
    ),
    "node numbers": (lambda: file(node={"index": 1}), r"different numbers below 1 for nodes, got \[1\]"),
    "counts": (lambda: file(node={"input_arg_counts": [1]}), r"input_arg_counts \[1\] are not those of 2 inputs"),
    "negative counts": (lambda: file(node={"input_arg_counts": [3, -1]}), "input_arg_counts"),
    "unknown name": (lambda: file(node={"inputs": ["x", "v"]}), "reads 'v', which no input"),
    "output without type": (lambda: file(outputs=["z"]), "'z' is an input or output without a type"),
    "attribute": (
        lambda: file(node={"attributes": [{"name": "a", "type": 11}]}), "attribute's type of 1 to 10, got 11",
    ),
    "no subgraph": (lambda: file(node={"attributes": [{"name": "a", "type": 5}]}), "expected a g, got none"),
    "element type": (lambda: file(weight={"data_type": 99}), "initializer 0: expected an element type .* got 99"),
    "no element type": (lambda: file(weight={"data_type": 0}), "expected an element type"),
    "short weights": (lambda: file(weight={"dims": [3]}), "its shape needs 12 bytes, the file holds 8"),
    "external": (
        lambda: file(weight={"external_data_offset": 64}), "'w': expected its data in the file, got byte 64 of another",
    ),
    "dimension": (
        lambda: file(node_args=[info("y", 2), {"name": "x", "type": {"value_type": 1, "value": {
            "elem_type": 1, "shape": {"dim": [{"value": {"dim_type": 3}}]}}}}]),
        "expected dim_type of 0 to 2, got 3",
    ),
    "deep types": (lambda: file(node_args=[deep_type(9), info("y", 2)]), "at most 8 types within one another"),
    "deep graphs": (
        lambda: pack({"ort_version": "6", "model": {"graph": nested(33)}}), "at most 32 graphs within one another",
    ),
    "sparse": (
        lambda: file(sparse_initializers=[{"values": {"name": "s", "dims": [1], "data_type": 1, "raw_data": [0] * 4},
                                           "indices": {"dims": [1], "data_type": 7, "raw_data": [9] + [0] * 7},
                                           "dims": [2, 3]}]),
        r"'s': expected indices inside \[2, 3\]",
    ),
    "opset": (lambda: file(opset=2**40), "expected a version of 31 bits"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(ConvertError, match=words):
        convert(make())


def test_layouts_of_accelerators_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedOpError, match=r"com\.ms\.internal\.nhwc::Conv .* channels last, .* CPU's execution"):
        convert(file(node={"domain": "com.ms.internal.nhwc", "op_type": "Conv", "since_version": 11}))


def test_damaged_files_are_refused_or_read() -> None:
    """Nothing but ConvertError comes of a file, whatever is changed in it."""
    sound, ends = seeds.few("ort"), {"read": 0, "refused": 0}
    for number in range(2000):
        rng = Random(number)
        data = min(rng.choice(sound), rng.choice(sound), key=len)
        for _ in range(rng.choice((1, 1, 2, 4))):
            data = raw_bytes.spoil(rng, data, sound) if rng.random() < 0.3 else spoil(rng, data, sound)
        try:
            ort.load(data)
            ends["read"] += 1
        except ConvertError as error:
            assert 0 < len(str(error)) < 5000
            ends["refused"] += 1
    assert min(ends.values()) > 200, ends


def test_every_prefix_of_a_file_is_refused() -> None:
    data = file()
    for size in range(len(data) - 4):  # the last bytes only fill a word
        with pytest.raises(ConvertError):
            ort.read(data[:size])
