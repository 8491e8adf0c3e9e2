"""Every rule of the spec finds its kind of error."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from converter import ConvertError, convert
from converter.ir import build, spec
from converter.pass_lists import to_ir
from tests.converter.support import Builder


def valid() -> ir.Model:
    b = Builder()
    x = b.input("x", [2, 3])
    return to_ir(b.model(b("Concat", b("MatMul", x, b.weight(3, 4)), b("MatMul", x, b.weight(3, 4)), axis=1)))


def attribute(model, name, value):
    model.graph[2].attributes[name] = value


def add(model, op, inputs, domain="", **attrs):
    node = ir.node(op, inputs, attrs, domain=domain, outputs=[ir.Value(name="new")])
    model.graph.append(node)


def reshape(model, given, made):
    model.graph.inputs[0].shape = ir.Shape(given)
    add(model, "Reshape", [model.graph.inputs[0], model.graph.inputs[0]])
    model.graph[-1].outputs[0].shape = ir.Shape(made)


BREAKS = {
    "opset pinned": lambda m: m.graph.opset_imports.__setitem__("", 20),
    "constants fill their shapes": lambda m: next(iter(m.graph.initializers.values())).__setattr__(
        "shape", ir.Shape([3, 5])
    ),
    "inputs are not constants": lambda m: m.graph.inputs.append(next(iter(m.graph.initializers.values()))),
    "operands defined before use": lambda m: m.graph.insert_before(m.graph[0], m.graph[2]),
    "every name defined once": lambda m: m.graph[0].outputs[0].__setattr__("name", m.graph[1].outputs[0].name),
    "operator known": lambda m: add(m, "Nonsense", [], build.DOMAIN),
    "numbers of operands": lambda m: m.graph[0].resize_inputs(1),
    "required operands present": lambda m: m.graph[0].replace_input_with(0, None),
    "attributes": lambda m: attribute(m, "axis", ir.AttrString("axis", "one")),
    "element types": lambda m: m.graph.inputs[0].__setattr__("type", ir.TensorType(ir.DataType.INT32)),
    "sizes": lambda m: add(m, "MaxPool", [m.graph.inputs[0]], kernel_shape=[0]),
    "quantised steps": lambda m: add(m, "QuantizeLinear", [m.graph.inputs[0], m.graph.inputs[0]]),
    "permutations": lambda m: add(m, "Transpose", [m.graph.inputs[0]], perm=[0, 2]),
    "value of a constant": lambda m: add(m, "Constant", []),
    "parts of a split": lambda m: add(m, "Split", [m.graph.inputs[0]], num_outputs=2),
    "equations": lambda m: add(m, "Einsum", [m.graph.inputs[0]], equation="i.j->i"),
    "batch axes": lambda m: add(m, "GatherND", [m.graph.inputs[0], m.graph.inputs[0]], batch_dims=-1),
    "elements kept": lambda m: reshape(m, [2, 3], [2, 4]),
    "axes in range": lambda m: attribute(m, "axis", ir.AttrInt64("axis", 2)),
    "graph outputs defined": lambda m: m.graph.outputs.append(ir.Value(name="ghost")),
}


def test_a_valid_model_passes():
    assert list(spec.violations(valid())) == []


@pytest.mark.parametrize("rule", BREAKS)
def test_a_broken_model_is_found(rule):
    model = valid()
    BREAKS[rule](model)
    found = list(spec.violations(model))
    assert any(text.startswith(f"{rule}:") for text in found), found


def test_the_breaks_cover_the_rules():
    assert {r.name for r in spec.RULES} - {"functions inlined"} == set(BREAKS)


def test_missing_and_unknown_attributes():
    model = valid()
    del model.graph[2].attributes["axis"]
    model.graph[0].attributes["axes"] = ir.AttrInt64s("axes", [1])
    with pytest.raises(ConvertError, match=r"(?s)invalid somewhere.*'axes' is unknown to MatMul.*'axis' is missing"):
        spec.check(model, "somewhere")


def test_our_domain_is_checked_like_onnx():
    model = valid()
    x = model.graph.inputs[0]
    weight = ir.Value(name="w", const_value=ir.tensor(np.ones((3, 4), np.float32)))
    weight.shape, weight.type = ir.Shape([3, 4]), ir.TensorType(ir.DataType.FLOAT)
    model.graph.register_initializer(weight)
    add(model, "MatMul", [x, weight], build.DOMAIN, activation=1)
    assert any("attribute 'activation': expected STRING" in text for text in spec.violations(model))


@pytest.mark.parametrize("axis", [2, -3, 2**63 - 1])
@pytest.mark.parametrize(
    ("op", "operands"), [("LayerNormalization", 2), ("RMSNormalization", 2), ("Hardmax", 1), ("ScatterElements", 3)]
)
def test_axes_beyond_the_rank(op, operands, axis):
    """LayerNormalization of axis 2**63 - 1 ends the process in onnx's inference."""
    model = valid()
    add(model, op, [model.graph.inputs[0]] * operands, axis=axis)
    assert any(f"axis {axis} is out of range" in text for text in spec.violations(model))


@pytest.mark.parametrize("domain", ["", "somebody.else"])
def test_an_operator_whose_definition_is_not_known_is_asked_nothing_about_its_meaning(domain):
    """A file may leave out a domain's opset, and a foreign operator may have the name of one of ONNX's."""
    node = onnx.helper.make_node("Transpose", ["x"], ["y"], perm=float("nan"), domain=domain)
    ports = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", ports[:1], ports[1:]),
                                   opset_imports=[onnx.helper.make_opsetid("others", 1)])  # fmt: skip
    assert list(spec.violations(ir.serde.deserialize_model(model), upgraded=False)) == []
    with pytest.raises(ConvertError):
        convert(model)


def test_a_kernel_has_a_size_for_every_axis_of_the_picture():
    model = valid()
    add(model, "AveragePool", [model.graph.inputs[0]], kernel_shape=[3, 3])
    assert any("expected 0 sizes for an input of rank 2, got [3, 3]" in text for text in spec.violations(model))


@pytest.mark.parametrize("size", [3, 2.5, "3"])
def test_a_kernel_of_another_type_is_named(size):
    model = valid()
    add(model, "AveragePool", [model.graph.inputs[0]], kernel_shape=size)
    assert any("attribute 'kernel_shape': expected INTS" in text for text in spec.violations(model))


def test_an_operator_newer_than_the_opset_has_its_operands():
    """ONNX's inference ends the process over a RegexFullMatch without one."""
    node = onnx.helper.make_node("RegexFullMatch", [""], ["y"], pattern="a")
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.BOOL, [2])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [y]),
                                   opset_imports=[onnx.helper.make_opsetid("", 14)])  # fmt: skip
    with pytest.raises(ConvertError, match="expected 1 inputs, got 0"):
        convert(model)
