"""Sources of every kind are read; broken ones are refused with one clear ConvertError."""

from __future__ import annotations

import contextlib
import re

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import converter
import lite_runtime
from converter import ConvertError
from converter.frontends.onnx import load
from lite_runtime import reference
from tests.converter.support import Builder, assert_close, check, random_inputs


def small() -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", [2, 3])
    return b.model(b("Relu", b("MatMul", x, b.weight(3, 4))))


def refused(source, *words: str) -> None:
    with pytest.raises(ConvertError) as caught:
        load(source)
    for word in words:
        assert re.search(word, str(caught.value)), (word, str(caught.value))


def test_every_kind_of_source(tmp_path):
    proto = small()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    sources = (path, str(path), path.read_bytes(), proto, ir.from_proto(proto))
    bundles = {converter.convert(s).report.weight_bytes["float32"] for s in sources}
    assert bundles == {48}


def test_references_to_a_functions_attributes_outside_functions():
    """onnx_ir reads such a body as None and fails over it."""
    model = small()
    attribute = model.graph.node[1].attribute.add()
    attribute.name, attribute.ref_attr_name, attribute.type = "body", "shapes", onnx.AttributeProto.GRAPH
    attribute.g.name = "inner"
    refused(model, "'body' refers to a function's attribute 'shapes' outside any function")
    refused(model.SerializeToString(), "write its value there")


def test_the_callers_model_is_not_changed():
    model = ir.from_proto(small())
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    converter.convert(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_inputs_that_are_not_models(tmp_path):
    refused(tmp_path / "absent.onnx", "no file at .*absent.onnx")
    refused(tmp_path, "cannot read")
    refused(b"", "got 0 bytes")
    refused(b"ceci n'est pas un modele" * 9, "expected an ONNX model")
    refused(42, "expected a path, bytes")


def test_truncation():
    data = small().SerializeToString()
    for size in range(1, len(data)):
        try:
            load(data[:size])
        except ConvertError:
            continue


@settings(max_examples=150)
@given(st.data())
def test_bit_flips_raise_nothing_but_our_errors(data):
    raw = bytearray(small().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(ConvertError):
        converter.convert(bytes(raw))


def changed(edit) -> onnx.ModelProto:
    proto = small()
    edit(proto)
    return proto


def test_names():
    refused(changed(lambda m: m.graph.node[1].input.__setitem__(0, "ghost")), "'ghost'", "missing from the file")
    refused(changed(lambda m: m.graph.node[1].output.__setitem__(0, m.graph.node[0].output[0])), "defined twice")
    refused(changed(lambda m: m.graph.output[0].__setattr__("name", "ghost")), "output 'ghost'")
    refused(changed(lambda m: m.graph.initializer.pop()), "weights are missing")
    refused(changed(lambda m: m.graph.node[0].__setattr__("op_type", "")), "names no operator")
    refused(changed(lambda m: m.graph.initializer.add(name="x2", dims=[-1], data_type=1)), "at least 0")


def test_cycles():
    def ring(m):
        m.graph.node[0].input[0] = m.graph.node[1].output[0]

    refused(changed(ring), "cycle", "node_MatMul")


def test_nodes_out_of_order_are_sorted():
    proto = small()
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    assert [n.op_type for n in load(proto).graph] == ["MatMul", "Relu"]


def test_opsets_and_domains():
    refused(changed(lambda m: m.opset_import[0].__setattr__("version", 99)), "opset 1 to", "99")
    refused(changed(lambda m: m.opset_import[0].__setattr__("version", 0)), "got 0")
    refused(changed(lambda m: m.ClearField("opset_import")), "no operator set")
    refused(changed(lambda m: m.ClearField("graph")), "without a graph|no outputs")


def test_weights_that_do_not_fill_their_shape():
    refused(changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, 4)), "needs 64 bytes", "holds 48")
    refused(changed(lambda m: m.graph.initializer[0].__setattr__("data_type", 77)), "element type 77")
    tensor = helper.make_tensor("t", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    tensor.float_data.pop()
    refused(changed(lambda m: m.graph.initializer.append(tensor)), "needs 3 elements", "holds 2")


def test_wrong_ranks_are_named():
    b = Builder()
    model = b.model(b("Conv", b.input("x", [2, 3]), b.weight(4, 3, 1, 1)))
    with pytest.raises(ConvertError):
        converter.to_ir(model)


def test_declared_and_real_shapes_that_differ():
    proto = small()
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    with pytest.raises(ConvertError, match="declared with shape"):
        converter.to_ir(proto)


def test_inputs_that_are_initialisers_are_constants():
    proto = small()
    weight = proto.graph.initializer[0]
    proto.graph.input.append(helper.make_tensor_value_info(weight.name, TensorProto.FLOAT, weight.dims))
    assert [v.name for v in load(proto).graph.inputs] == ["x"]


def test_functions_are_inlined():
    twice = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 26)]
    )
    graph = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["y"], domain="own")],
        "g",
        [helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_tensor_value_info("y", 1, [2])],
    )
    opsets = [helper.make_opsetid("", 26), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=[twice])
    lite = converter.lower(converter.to_ir(model))
    assert [n.op for n in lite.nodes] == ["Add"]


def external(tmp_path, location: str, size: int | None = None) -> onnx.ModelProto:
    proto = small()
    tensor = proto.graph.initializer[0]
    data = tensor.raw_data
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    if size is None or size:
        (folder / "w.bin").write_bytes(data if size is None else data[:size])
        (tmp_path / "secret.bin").write_bytes(data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(len(data)))):
        tensor.external_data.add(key=key, value=value)
    onnx_path = folder / "m.onnx"
    onnx_path.write_bytes(proto.SerializeToString())
    return proto


def test_external_data(tmp_path):
    proto = external(tmp_path, "w.bin")
    model = load(tmp_path / "model" / "m.onnx")
    weight = next(iter(model.graph.initializers.values())).const_value.numpy()
    assert weight.tobytes() == numpy_helper.to_array(small().graph.initializer[0]).tobytes()
    conversion = converter.convert(tmp_path / "model" / "m.onnx")
    assert conversion.report.source_bytes > 48
    refused(proto, "external data", "path instead")


def test_external_data_outside_the_folder_is_refused(tmp_path):
    external(tmp_path, "../secret.bin")
    refused(tmp_path / "model" / "m.onnx", "outside the model's folder")
    external(tmp_path, str(tmp_path / "secret.bin"))
    refused(tmp_path / "model" / "m.onnx", "outside the model's folder")
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "secret.bin")
    external(tmp_path, "link.bin")
    refused(tmp_path / "model" / "m.onnx", "outside the model's folder")


def test_external_data_missing_or_short(tmp_path):
    external(tmp_path, "w.bin", size=0)
    refused(tmp_path / "model" / "m.onnx", "missing")
    external(tmp_path, "w.bin", size=12)
    refused(tmp_path / "model" / "m.onnx", "truncated")


def test_input_shapes():
    b = Builder()
    model = b.model(b("Relu", b.input("x", ["n", 3])))
    assert converter.lower(converter.to_ir(model, input_shapes={"x": (4, 3)})).outputs[0].shape == (4, 3)
    for shapes, word in (({"y": (1, 3)}, "'y'"), ({"x": (1, 2)}, "does not fit"), ({"x": (1,)}, "does not fit")):
        with pytest.raises(ConvertError, match=word):
            converter.to_ir(model, input_shapes=shapes)


def test_negative_sizes_are_unknown_sizes():
    b = Builder()
    y = b("Slice", b.input("x", ["n", 3]), *(b.const([n], np.int64) for n in (0, 2, 0, 1)))
    model = b.model(b("Relu", y))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert converter.lower(converter.to_ir(model)).inputs[0].shape == ("x.0", 3)


def test_deep_subgraphs_keep_their_captures():
    b = Builder()
    x = b.input("x", [3])
    outer = b("Abs", x)
    branch = helper.make_graph(
        [helper.make_node("Add", [outer, outer], ["t"])], "then", [], [helper.make_tensor_value_info("t", 1, [3])]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", [outer], ["e"])], "else", [], [helper.make_tensor_value_info("e", 1, [3])]
    )
    flag = b("Greater", b("ReduceSum", x, keepdims=0), b.const(0.0, np.float32))
    model = b.model(b("If", flag, then_branch=branch, else_branch=other))
    lite = converter.lower(converter.to_ir(model))
    inputs = random_inputs(lite)
    value = np.abs(inputs["x"]) * (2 if inputs["x"].sum() > 0 else -1)
    assert_close(reference.run(lite, inputs), {lite.outputs[0].name: value})


def test_trees_after_an_operator_whose_type_onnx_does_not_infer():
    # ONNX's own inference ends the process here, since it knows no type of Scaler's result.
    scaler = helper.make_node("Scaler", ["x"], ["scaled"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0])
    forest = helper.make_node(
        "TreeEnsemble", ["scaled"], ["y"], domain="ai.onnx.ml", n_targets=1, tree_roots=[0], nodes_featureids=[0],
        nodes_modes=helper.make_tensor("modes", TensorProto.UINT8, [1], [1]), leaf_targetids=[0, 0],
        nodes_splits=helper.make_tensor("splits", TensorProto.FLOAT, [1], [3.0]), nodes_truenodeids=[0],
        leaf_weights=helper.make_tensor("weights", TensorProto.FLOAT, [2], [5.0, 7.0]), nodes_trueleafs=[1],
        nodes_falsenodeids=[1], nodes_falseleafs=[1],
    )  # fmt: skip
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, ["n", 1])], [value("y", TensorProto.FLOAT, ["n", 1])]
    graph = helper.make_graph([scaler, forest], "g", *ends)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 5)]
    made = converter.convert(helper.make_model(graph, opset_imports=opsets))
    x = np.array([[2.4], [2.6]], np.float32)
    assert lite_runtime.load(made.bundle).run({"x": x})["y"].tolist() == [[5.0], [7.0]]


def not_converted(proto: onnx.ModelProto, *words: str, source=None) -> None:
    with pytest.raises(ConvertError) as caught:
        converter.convert(proto if source is None else source)
    for word in words:
        assert re.search(word, str(caught.value)), (word, str(caught.value))


def test_all_causes_are_in_one_error():
    b = Builder()
    x = b.input("x", [2, 3])
    y = b("Foo", b("Bar", x, domain="custom"), domain="custom")
    y = b("Baz", b("Gelu", y, approximate="erf"), domain="other")
    z = b("ScatterElements", x, b.const([[0, 1]], np.int64), b.weight(1, 2), reduction="linear")
    not_converted(b.model(y, z), "custom::Foo.*node_Foo", "custom::Bar", "other::Baz", "Gelu.*'erf'", "'linear'",
                  "Replace them")  # fmt: skip


def test_many_unknown_operators_are_grouped():
    b = Builder()
    x = b.input("x", [2, 3])
    for _ in range(40):
        x = b("Foo", x, domain="custom")
    x = b("Bar", x, domain="custom")
    with pytest.raises(ConvertError) as caught:
        converter.convert(b.model(x))
    text = str(caught.value)
    assert len(caught.value.nodes) == 41 and len(text.splitlines()) == 4
    assert "41 node(s) of 2 operator(s)" in text and "also at 'node_Foo_" in text and "37 more" in text


def test_operators_of_the_wrong_domain():
    b = Builder()
    x = b.input("x", [1, 3, 4])
    not_converted(b.model(b("LpPool", x, domain="ai.onnx.ml", kernel_shape=[2]), ml=True), "ai.onnx.ml::LpPool")


def test_names_cannot_steer_a_terminal():
    b = Builder()
    x = b.input("x", [2, 3])
    model = b.model(b("Foo\x1b[31m", x, domain="custom"))
    with pytest.raises(ConvertError) as caught:
        converter.convert(model)
    assert "\x1b" not in str(caught.value) and "\\x1b[31m" in str(caught.value)
    model.graph.node[0].name = "n" * 100_000
    with pytest.raises(ConvertError) as caught:
        converter.convert(model)
    assert len(str(caught.value)) < 3000


def test_long_names_inside_a_model():
    """TensorFlow's optimiser joins the names of all operators that it fuses."""
    model = small()
    middle, weight = model.graph.node[0].output[0], model.graph.initializer[0].name
    for node in model.graph.node:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                names[at] = {middle: "m" * 2000, weight: "w" * 1025}.get(name, name)
    model.graph.initializer[0].name = "w" * 1025
    check(model)
    model.graph.node[-1].output[0] = model.graph.output[0].name = "y" * 1025
    not_converted(model, "names of 1 to 1024 characters")


@pytest.mark.parametrize(("kind", "word"), [("sparse_tensor_type", "sparse"), ("opaque_type", "opaque")])
def test_types_that_no_operator_takes(kind: str, word: str):
    model = small()
    getattr(model.graph.input[0].type, kind).SetInParent()
    refused(model, f"'x' is an? {word}")


def test_declared_types_that_differ():
    model = small()
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    not_converted(model, "is declared as INT8, but its operator gives FLOAT")
    b = Builder(opset=21)
    groups = bare(b, b("GroupNormalization", b.input("x", [1, 4, 2]), b.weight(4), b.weight(4), num_groups=2))
    groups.graph.output[0].CopyFrom(helper.make_tensor_value_info(groups.graph.output[0].name, TensorProto.INT8, None))
    not_converted(groups, "is declared as INT8, but its operator gives FLOAT")  # a function that ONNX does not expand
    outputs = [("y", TensorProto.UINT8), ("scale", TensorProto.INT8), ("zero", TensorProto.UINT8)]
    node = helper.make_node("DynamicQuantizeLinear", ["x"], [name for name, _ in outputs], domain="msedge")
    own = helper.make_model(helper.make_graph(
        [node], "own", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info(name, kind, [3, 4] if name == "y" else []) for name, kind in outputs],
    ))  # fmt: skip
    not_converted(own, "'scale' is declared int8, but its operator gives float32")  # one that ONNX does not know
    hidden = model.graph.value_info.add()  # of a value inside the graph: ignored
    hidden.CopyFrom(helper.make_tensor_value_info(model.graph.node[0].output[0], TensorProto.INT8, [7]))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    assert converter.convert(model).report.weight_bytes == {"float32": 48}


def test_paths_that_are_none(tmp_path):
    model = external(tmp_path, "weights.bin")
    for location in ("a\0b", "x" * 300, "."):
        model.graph.initializer[0].external_data[0].value = location
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        refused(path, "external data")


def test_versions_that_are_none():
    model = small()
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2**40))
    refused(model, "version of 31 bits for operator set 'ai.onnx.ml'")


def test_attributes_that_are_no_text():
    model = small()
    model.graph.node[0].attribute.append(helper.make_attribute("mode", b"\xff\xfe"))
    refused(model, "attribute 'mode' is not UTF-8 text")


def test_too_many_dimensions():
    model = small()
    model.graph.initializer[0].dims.extend([1] * 70)
    refused(model, "at most 32 dimensions, got 72")


def test_operators_that_the_opset_does_not_have_yet():
    b = Builder(opset=1)
    not_converted(bare(b, b("Resize", b.input("x", [2, 3]))), "Resize")


def bare(b: Builder, *outputs: str) -> onnx.ModelProto:
    """The model, of which nothing is inferred."""
    graph = helper.make_graph(b.nodes, "g", b.inputs, [onnx.ValueInfoProto(name=o) for o in outputs], b.constants)
    opsets = [helper.make_opsetid("", b.opset), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_what_ends_the_process_in_onnx_s_inference():
    b = Builder(opset=18)
    x = b.input("x", [7])
    not_converted(bare(b, *b("Split", x, outputs=3, num_outputs=2)), "as many results as parts, 2, got 3")
    b = Builder()
    encoder = b("LabelEncoder", b("Foo", b.input("x", [2]), domain="custom"), domain="ai.onnx.ml",
                keys_tensor=numpy_helper.from_array(np.array([1, 2])),
                values_tensor=numpy_helper.from_array(np.array([3, 4])))  # fmt: skip
    not_converted(bare(b, encoder), "custom::Foo")
    b = Builder()
    size = b("Add", b.const([-3], np.int64), b.const([1], np.int64))
    wide = b("Expand", b.input("x", [1]), size)
    y = b("Slice", wide, b.const([0]), b.const([-3]), b.const([0]))
    not_converted(bare(b, y), "sizes that it computes for 'node_Expand_.*' are negative")


def test_constants_without_a_value():
    b = Builder()
    y = b("Add", b.input("x", [2]), b("Constant"))
    not_converted(bare(b, y), "Constant.*one attribute that holds its value, got none")


def test_no_report_fails_over_inputs_too_large_to_try():
    b = Builder()
    made = converter.convert(b.model(b("Relu", b.input("x", [4, 2**31 - 1, 4]))), explain=True)
    assert any("bytes" in text for text in made.report.left_out)


def test_what_random_damage_left():
    b = Builder()
    model = b.model(b("Einsum", b.input("x", [2, 3]), equation="ij->ji"))
    (attribute,) = model.graph.node[0].attribute
    attribute.type, attribute.f = attribute.FLOAT, 1.5
    not_converted(model, "Einsum")
    b = Builder()
    model = b.model(b("GatherND", b.input("x", [2, 3, 4]), b.input("i", [2, 1], np.int64), batch_dims=0))
    model.graph.node[0].attribute[0].i = -255
    not_converted(model, "batch_dims from 0 to the rank.*got -255")
    b = Builder()
    model = b.model(b("Identity", b.input("x", [2, 3])))
    model.graph.node[0].op_type = "SequenceConstruct"
    not_converted(model, "declared as a tensor, but its operator gives a sequence")
    b = Builder(23)
    model = b.model(b("RMSNormalization", b.input("x", [2, 3]), b.input("w", [3], ml_dtypes.bfloat16)))
    not_converted(model, "FLOAT, but its operator gives BFLOAT16")
