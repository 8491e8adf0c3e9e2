"""The verifier: what it accepts, and its errors for what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_runtime import BundleError
from lite_runtime.graph import Graph, Node, Value, verify
from lite_runtime.operators import OPERATORS, RANGES, attributes, family
from tests.fuzz.seeds import SEEDS

X = Value("x", "float32", ("N", 3))
Y = Value("y", "float32")


def graph(*nodes: Node, inputs: Any = (X,), outputs: Any = (Y,), constants: Mapping[str, Any] | None = None) -> Graph:
    return Graph(tuple(inputs), tuple(outputs), nodes, constants or {}, "g")


def relu(source: str = "x", result: str = "y", **attrs: Any) -> Node:
    return Node("Relu", (source,), (result,), attrs, "n")


def branch(name: str = "x", count: int = 1) -> Graph:
    return Graph((), (Value(name, "float32"),) * count, (), {}, "branch")


def chosen(then: Any, other: Any, outputs: tuple[str, ...] = ("y",)) -> Graph:
    node = Node("If", ("c",), outputs, {"then_branch": then, "else_branch": other}, "n")
    return graph(node, constants={"c": np.array(True)})


@pytest.mark.parametrize("make", SEEDS, ids=lambda f: f.__name__)
def test_valid_graphs_pass(make: Any) -> None:
    verify.verify_graph(make())


def nested(depth: int) -> Graph:
    inner = branch()
    for _ in range(depth):
        node = Node("If", ("c",), ("y",), {"then_branch": inner, "else_branch": branch()})
        inner = Graph((), (Y,), (node,), {}, "level")
    return graph(*inner.nodes, constants={"c": np.array(True)})


def test_depth_is_bounded() -> None:
    verify.verify_graph(nested(verify.MAX_DEPTH))
    with pytest.raises(BundleError, match=f"graphs nested at most {verify.MAX_DEPTH} deep"):
        verify.verify_graph(nested(verify.MAX_DEPTH + 1))


def conv(**attrs: Any) -> Graph:
    return graph(Node("Conv", ("x", "w"), ("y",), attrs, "n"), constants={"w": np.zeros((1, 1, 1, 1), np.float32)})


def loop(inputs: tuple[str, ...], body_inputs: int, body_outputs: int, outputs: int = 1) -> Graph:
    body = Graph(
        tuple(Value(f"i{k}", "float32") for k in range(body_inputs)),
        (Value("x", "float32"),) * body_outputs,
        (),
        {},
        "body",
    )
    names = tuple("yzuv"[:outputs])
    return graph(Node("Loop", inputs, names, {"body": body}, "n"), constants={"m": np.array(2), "c": np.array(True)})


def scan(count: int) -> Graph:
    body = Graph((Value("i", "float32"),), (Value("i", "float32"),), (), {}, "body")
    return graph(Node("Scan", ("x",), ("y",), {"body": body, "num_scan_inputs": count}, "n"))


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        # names and order
        (graph(relu("q")), "Relu 'n': inputs: expected names defined by earlier nodes.*got 'q'"),
        (graph(relu("z"), relu("x", "z")), "Relu 'n': inputs.*got 'z'"),
        (graph(relu("y")), "Relu 'n': inputs.*got 'y'"),
        (graph(relu("a", "b"), relu("b", "a"), relu()), "inputs.*got 'a'"),
        (graph(relu(), relu()), "outputs: expected every name defined once, got 'y' again"),
        (graph(relu(result="x")), "got 'x' again"),
        (graph(relu(), constants={"x": np.zeros(1)}), "constant: expected every name defined once, got 'x' again"),
        (graph(relu(), inputs=(X, X)), "input: expected every name defined once, got 'x' again"),
        (graph(relu(), outputs=(Y, Y)), "output 'y': expected every output once"),
        (graph(relu(), outputs=(Value("q", "float32"),)), "output 'q': expected a name defined by a node"),
        (graph(relu(), inputs=(Value("", "float32"),)), "names of 1 to"),
        (graph(relu(), inputs=(X, Value("n" * 2000, "float32"))), "names of 1 to"),
        # operands
        (graph(Node("Add", ("x",), ("y",))), "Add giving 'y': operands: expected 2 inputs, got 1"),
        (graph(Node("Add", ("x", "x", "x"), ("y",))), "expected 2 inputs, got 3"),
        (graph(Node("Add", ("x", ""), ("y",))), "expected the first 2 given, got input 1 missing"),
        (graph(Node("Concat", (), ("y",), {"axis": 0})), "expected 1 inputs or more, got 0"),
        (graph(Node("TopK", ("x", "x"), ("y",))), "expected 2 outputs, got 1"),
        (graph(Node("Relu", ("x",), ("y", "z"))), "expected 1 outputs, got 2"),
        (
            graph(Node("Frobnicate", ("x",), ("y",))),
            "operator: expected one that msedge knows, got 'Frobnicate'.*newer msedge",
        ),
        (graph(Node("\x1b[31m", ("x",), ("y",))), r"node '\\x1b\[31m': operator"),
        # attributes
        (graph(relu(shape=1)), "attribute 'shape': name: expected no attributes of Relu"),
        (conv(kernel=1), "attribute 'kernel': name: expected one of activation, "),
        (conv(group=1.0), "attribute 'group': value: expected an int, got a float"),
        (conv(group=0), "expected ints of 1 to"),
        (conv(group=True), "got bool"),
        (conv(group=None), "got NoneType"),
        (conv(group=np.int64(1)), "got int64"),
        (conv(strides=[1, 1]), "got list"),
        (conv(strides=(1, "a")), "ints, floats or texts only, got int, str"),
        (conv(strides=(1, 0)), r"expected ints of 1 to 2147483647, got \(1, 0\)"),
        (conv(strides=(1, 10**5000)), "64-bit ints"),
        (conv(strides=(1,) * 100), "at most 64 ints"),
        (conv(strides=(1.0, 1.0)), "expected a tuple of ints, got a tuple of floats"),
        (conv(layout="NCWH"), "expected one of 'NCHW', 'NHWC', got 'NCWH'"),
        (conv(activation="Cube"), "expected one of '', 'Relu'"),
        (graph(Node("Cast", ("x",), ("y",), {}, "n")), "Cast 'n': attributes: expected 'to', got no attribute of"),
        (graph(Node("Concat", ("x",), ("y",), {"axis": 2**63})), "ints of -64 to 63"),
        (graph(Node("Mod", ("x", "x"), ("y",), {"fmod": 2**63})), "a 64-bit int, got one of 64 bits"),
        (graph(Node("Transpose", ("x",), ("y",), {"perm": (0, 0)})), "each of 0 to 1 once"),
        # declared types
        (graph(relu(), inputs=(Value("x", "float33"),)), "input 'x': expected a dtype"),
        (graph(relu(), inputs=(Value("x", ""),)), "input 'x': expected a dtype"),
        (graph(relu(), inputs=(Value("x", "float32", None, "map"),)), "input 'x': expected a kind"),
        (graph(relu(), inputs=(Value("x", "float32", (-1,)),)), "dimensions of 0 or more"),
        (graph(relu(), inputs=(Value("x", "float32", (2**31, 2**31)),)), "at most"),
        (graph(relu(), inputs=(Value("x", "float32", (10**5000,)),)), "over 2"),
        (graph(relu(), inputs=(Value("x", "float32", (0, 2**60)),)), "at most"),
        (graph(relu(), inputs=(Value("x", "float32", (1,) * 33),)), "at most 32 dimensions"),
        (graph(relu(), inputs=(Value("x", "float32", ("",)),)), "symbolic sizes"),
        (graph(relu(), constants={"c": [1]}), "constant 'c': expected an array, got list"),
        (graph(outputs=(Value("x", "int8"),)), "output 'x': expected the tensor of float32 it is as an input"),
        (
            graph(inputs=(), constants={"y": np.zeros((2, 3), np.float32)}, outputs=(Value("y", "float32", (2,)),)),
            r"output 'y': expected shape \(2,\), got \(2, 3\)",
        ),
        (
            graph(inputs=(), constants={"y": np.zeros(2, np.float64)}, outputs=(Y,)),
            "output 'y': expected a tensor of float32, got a tensor of float64",
        ),
        # subgraphs
        (chosen(branch(), branch("q")), "If 'n': output 'q': expected a name"),
        (chosen(branch(), 1), "attribute 'else_branch': value: expected a graph, got an int"),
        (chosen(branch(), branch(), ("y", "z")), "then_branch: expected 2 outputs or more, got 1"),
        (chosen(branch(), Graph((X,), (X,), (), {})), "else_branch: expected 0 inputs, got 1"),
        (loop(("", "", "x"), 3, 2), "expected a trip count or a condition, got neither: the loop would never end"),
        (loop(("m", "c", "x"), 2, 2), "body: expected 3 inputs, got 2"),
        (loop(("m", "c", "x"), 3, 1), "body: expected 2 outputs or more, got 1"),
        (loop(("m", "", "x"), 3, 2, outputs=3), "body: expected 4 outputs or more, got 2"),
        (scan(2), "num_scan_inputs: expected at most 1, got 2"),
        (scan(0), "ints of 1 to"),
    ],
)
def test_unsound_graphs_are_refused(broken: Graph, text: str) -> None:
    with pytest.raises(BundleError, match=text) as caught:
        verify.verify_graph(broken)
    assert all(word in str(caught.value) for word in ("expected", "got", ";"))


def test_errors_inside_subgraphs_name_the_path_to_them() -> None:
    bad = Graph((), (Value("y", "float32"),), (relu("nowhere"),), {}, "inner")
    with pytest.raises(BundleError, match=r"If 'n': Relu 'n': inputs: .*got 'nowhere'"):
        verify.verify_graph(chosen(bad, branch()))


def test_a_subgraph_may_shadow_and_capture_but_not_leak() -> None:
    inner = Graph((), (Value("y", "float32"),), (relu("x", "y"),), {}, "inner")
    verify.verify_graph(chosen(inner, inner))
    leak = chosen(Graph((), (Value("h", "float32"),), (relu("x", "h"),), {}, "inner"), branch())
    leaking = Graph(leak.inputs, leak.outputs, (*leak.nodes, relu("h", "w")), leak.constants)
    with pytest.raises(BundleError, match="got 'h'"):
        verify.verify_graph(leaking)


def test_shared_attributes_are_judged_for_each_operator() -> None:
    shared: dict[str, Any] = {"axis": 1}
    verify.verify_graph(graph(Node("Softmax", ("x",), ("h",), shared), Node("Flatten", ("h",), ("y",), shared)))
    with pytest.raises(BundleError, match="no attributes of Relu"):
        verify.verify_graph(graph(Node("Softmax", ("x",), ("h",), shared), Node("Relu", ("h",), ("y",), shared)))


def test_operators_of_the_reference_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from lite_runtime.reference import DEFINITIONS

    monkeypatch.setattr(verify, "OPERATORS", {name: row for name, row in OPERATORS.items() if name != "Relu"})
    assert "Relu" in DEFINITIONS
    verify.verify_graph(graph(relu(anything=(1, 2))))


def test_every_operator_of_the_reference_has_its_row() -> None:
    from lite_runtime.reference import DEFINITIONS

    assert not set(DEFINITIONS) - set(OPERATORS)


def test_tables_agree() -> None:
    described = [(op, name, attribute) for op in OPERATORS for name, attribute in attributes(op).items()]
    assert set(RANGES) <= {name for _, name, _ in described}
    for op, name, attribute in described:
        assert len(set(attribute.choices)) == len(attribute.choices), (op, name)
        assert attribute.kind == "s" or not attribute.choices, (op, name)
    for row in OPERATORS.values():
        assert 0 <= row.inputs[0] <= row.inputs[1] and 0 <= row.outputs[0] <= row.outputs[1], row.name


def test_arity_follows_onnx() -> None:
    """What operators take beyond what ONNX says, or may leave out, is listed here."""
    defs = pytest.importorskip("onnx.defs")
    newest: dict[str, Any] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.name not in newest or schema.since_version > newest[schema.name].since_version:
            newest[schema.name] = schema
    wider, fewer = {}, {}
    for op, row in OPERATORS.items():
        (fewest, most), (fewest_out, most_out) = row.inputs, row.outputs
        if op not in newest:
            wider[op] = "ours"
            continue
        theirs = newest[op]
        assert fewest <= theirs.min_input and fewest_out == theirs.min_output, op
        if fewest < theirs.min_input:
            fewer[op] = theirs.min_input - fewest
        if more := most_out - min(theirs.max_output, 1 << 16):
            wider[op] = f"{more} more results"
        if more := most - min(theirs.max_input, 1 << 16):
            wider[op] = f"{more} more"
        assert set(theirs.attributes) - {"sparse_value"} <= set(attributes(op)), op
    assert fewer == {"QLinearConv": 2, "QLinearMatMul": 2}  # without y's scale and zero point y is real
    assert wider == {
        "QLinearMatMul": "1 more",
        **dict.fromkeys(("FixedPointSigmoid", "FixedPointTanh", "NonMaxSuppressionPadded", "Rescale"), "ours"),
        **dict.fromkeys(("FixedPointDiv", "FixedPointRsqrt", "InterpolatedTable"), "ours"),
        "LookupTable": "ours",
        "QuickGelu": "ours",
        "GroupedMatMul": "ours",
        "NarrowMatMul": "ours",
        "Unpack4": "ours",
        "QLinearResize": "ours",
        "QLinearReduceMean": "ours",
        "QLinearGlobalAveragePool": "ours",
        "QLinearConvTranspose": "ours",
        "QLinearAdd": "ours",
        "QLinearSub": "ours",
        "QLinearMul": "ours",
        "QLinearAveragePool": "ours",
        "QLinearSoftmax": "ours",
        "Conv": "1 more",
        "MatMul": "2 more",
        "LSTM": "1 more",
        "GRU": "1 more",
        "Silu": "ours",
        **dict.fromkeys(("Inverse", "Tokenizer"), "ours"),
        "BatchNormalization": "2 more results",
        **{row.name: "ours" for row in (*family("gradients"), *family("language"))},
    }


@given(st.sampled_from(["int8", "float32", "complex128"]), st.lists(st.integers(0, 2**70), max_size=6).map(tuple))
@settings(max_examples=300, deadline=None)
def test_sizes_never_overflow(dtype: str, shape: tuple[int, ...]) -> None:
    try:
        nbytes = verify.checked_nbytes(dtype, shape)
    except BundleError:
        return
    assert 0 <= nbytes <= verify.MAX_BYTES < 2**63
    if nbytes < 1 << 20:
        assert np.empty(shape, dtype).nbytes == nbytes
