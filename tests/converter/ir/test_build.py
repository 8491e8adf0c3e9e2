"""Edits keep graphs valid."""

from __future__ import annotations

import numpy as np

from converter.ir import build, spec
from converter.ir.build import Edit
from converter.pass_lists import to_ir
from tests.converter.support import Builder


def two():
    b = Builder()
    x = b.input("x", [2])
    return to_ir(b.model(b("Relu", b("Abs", x))))


def test_a_replacement_takes_over_name_and_type_of_an_output():
    model = two()
    last = model.graph[1]
    name = last.outputs[0].name
    edit = Edit(last)
    edit.replace(edit.op("Neg", [last.inputs[0]]))
    assert [n.op_type for n in model.graph] == ["Abs", "Neg"]
    assert model.graph.outputs[0].name == name and build.dims(model.graph.outputs[0]) == (2,)
    assert not list(spec.violations(model))


def test_an_input_that_becomes_an_output_gets_an_identity():
    model = two()
    Edit(model.graph[1]).replace(model.graph.inputs[0])
    assert [n.op_type for n in model.graph] == ["Abs", "Identity"]
    assert not list(spec.violations(model))


def test_fresh_names_avoid_those_that_look_like_ours():
    model = two()
    model.graph[0].outputs[0].name = "a~41"
    model.graph.meta.clear()
    build.adopt(model)
    assert build.fresh(model.graph, "a~41") == "a~42"


def test_readers():
    model = two()
    edit = Edit(model.graph[0])
    scalar = edit.const(3.0, np.float32)
    assert build.scalar(scalar) == 3.0 and build.array(model.graph.inputs[0]) is None
    assert build.static_dims(scalar) == () and build.constant_dims(["n", 3]) == [-1, 3]
    assert build.constant_dims(["n", None]) is None
    assert build.sole_use(model.graph[0].outputs[0]) is model.graph[1]
    assert build.sole_use(model.graph[1].outputs[0]) is None
