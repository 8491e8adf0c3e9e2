"""Entry points, names, open sizes, metadata, custom operators and calls between subgraphs."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

import flatbuffers
import flatbuffers.flexbuffers as flexbuffers
import numpy as np
import onnx_ir as ir
import pytest

from converter import frontends
from converter.errors import ConvertError, UnsupportedOpError
from converter.frontends import tflite
from converter.frontends.tflite.op import RULES, Op
from converter.ir import build
from tests.converter.frontends.tflite.builder import Builder, Quant, Subgraph
from tests.converter.frontends.tflite.support import floats, run, translated


def doubled(graph: Subgraph, name: str = "x") -> tuple[Any, Any]:
    x = graph.input(name, (None, 3))
    y = graph.op("ADD", [x, x], (None, 3))
    graph.output(y)
    return x, y


def names(model: ir.Model) -> tuple[list[str | None], list[str | None]]:
    return [v.name for v in model.graph.inputs], [v.name for v in model.graph.outputs]


# signatures


def test_no_signature_is_predict_with_the_tensors_names() -> None:
    model = Builder()
    _, y = doubled(model)
    found = tflite.load(model.build()).models
    assert list(found) == ["predict"]
    assert names(found["predict"]) == (["x"], [y.name])


def test_a_single_signature_is_predict_with_the_callers_names() -> None:
    model = Builder()
    x, y = doubled(model)
    model.signature("serving_default", {"image": x}, {"scores": y})
    found = tflite.load(model.build()).models
    assert list(found) == ["predict"]
    assert names(found["predict"]) == (["image"], ["scores"])


def test_several_signatures_keep_their_keys() -> None:
    model = Builder()
    x, y = doubled(model)
    other = model.subgraph("other")
    a = other.input("a", (2,))
    b = other.op("NEG", [a], (2,))
    other.output(b)
    model.signature("double", {"in": x}, {"out": y})
    model.signature("negate", {"in": a}, {"out": b}, other)
    found = tflite.load(model.build()).models
    assert list(found) == ["predict", "double", "negate"]
    given = floats(2)
    np.testing.assert_array_equal(run(found["negate"], [given])[0], -given)
    row = floats(1, 3)
    np.testing.assert_array_equal(run(found["predict"], [row])[0], 2 * row)
    assert found["predict"] is not found["double"], "each may be edited by itself"


def test_names_of_other_tensors_are_dropped() -> None:
    """Files patched by tools name tensors that are no inputs any more; LiteRT runs them."""
    model = Builder()
    x = model.input("x", (3,))
    y = model.op("MUL", [x, x], (3,))
    model.output(y)
    model.signature("serving_default", {"old": y, "image": x}, {"scores": x})
    found = tflite.load(model.build()).models["predict"].graph
    assert [v.name for v in found.inputs] == ["image"] and [v.name for v in found.outputs] == [y.name]
    model.model.signatureDefs[0].inputs[0].tensorIndex = 99
    with pytest.raises(ConvertError, match=r"refers to tensors \[99\]"):
        tflite.load(model.build())


def test_signatures_of_one_key_are_refused() -> None:
    model = Builder()
    x, y = doubled(model)
    model.signature("a", {"in": x}, {"out": y})
    model.signature("a", {"in": x}, {"out": y})
    with pytest.raises(ConvertError, match="same key"):
        tflite.load(model.build())


def test_a_model_file_is_recognised_by_its_first_bytes(tmp_path: Any) -> None:
    model = Builder()
    doubled(model)
    path = tmp_path / "model.bin"
    path.write_bytes(model.build())
    for source in (path, str(path), model.build()):
        found = frontends.load(source)
        assert found.format == "TensorFlow Lite" and list(found.models) == ["predict"]


# names


def test_colliding_names_are_made_distinct() -> None:
    """Inputs and outputs of one name, tensors of one name, tensors without any."""
    model = Builder()
    x = model.input("same", (2,))
    inner = model.tensor("same", (2,))
    model.node("NEG", [x], [inner])
    nameless = model.tensor("t", (2,))
    model.table.tensors[nameless.index].name = b""
    model.node("ABS", [inner], [nameless])
    model.output(nameless)
    model.signature("s", {"v": x}, {"v": nameless})
    found = translated(model.build())
    assert names(found) == (["v"], ["v_1"])
    given = floats(2)
    np.testing.assert_array_equal(run(found, [given])[0], np.abs(given))


def test_outputs_that_are_inputs_constants_or_twice_the_same() -> None:
    model = Builder()
    x = model.input("x", (2,))
    c = model.const(np.array([1.0, 2.0], np.float32), name="c")
    y = model.op("NEG", [x], (2,))
    model.output(x, c, y)
    model.signature("s", {"x": x}, {"a": x, "b": c, "first": y, "second": y})
    found = translated(model.build())
    given = floats(2)
    got = dict(zip(names(found)[1], run(found, [given]), strict=True))
    assert set(got) == {"a", "b", "first", "second"}
    for name, wanted in {"a": given, "b": [1, 2], "first": -given, "second": -given}.items():
        np.testing.assert_array_equal(got[name], wanted)


def test_nodes_say_where_they_come_from() -> None:
    model = Builder()
    doubled(model)
    (node,) = translated(model.build()).graph
    assert node.metadata_props["source_location"] == "subgraph 0, operator 0"


# sizes


def test_open_sizes_get_names() -> None:
    model = Builder()
    x = model.input("x", (None, 3))
    y = model.input("y", (None, 3))
    model.output(model.op("ADD", [x, y], (None, 3)))
    found = translated(model.build())
    assert [build.dims(v) for v in found.graph.inputs] == [("batch", 3)] * 2


def test_open_sizes_are_shared_only_when_all_inputs_have_a_batch() -> None:
    model = Builder()
    x = model.input("x", (None, 3))
    y = model.input("y", (3, None))
    model.output(model.op("NEG", [x], (None, 3)), model.op("NEG", [y], (3, None)))
    found = translated(model.build())
    assert [build.dims(v) for v in found.graph.inputs] == [("x.0", 3), (3, "y.1")]


# quantised entry points


def test_stored_types_of_inputs_and_outputs() -> None:
    """Integer inputs stay integers; the operator's real result is quantised where the file says so."""
    model = Builder()
    x = model.input("x", (1, 4), "int8", quant=Quant(0.5, 3))
    model.output(model.op("NEG", [x], (1, 4), "int8", quant=Quant(0.25, -7)))
    found = translated(model.build())
    kinds = [n.op_type for n in found.graph]
    assert kinds == ["DequantizeLinear", "Neg", "QuantizeLinear"]
    (got,) = run(found, [np.array([[3, 4, -128, 127]], np.int8)])
    np.testing.assert_array_equal(got, np.clip([[-7, -9, 255, -255]], -128, 127))


# custom operators and unknown ones


@pytest.fixture
def rules() -> Iterator[None]:
    """The table of rules as it was, afterwards."""
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


def test_operators_without_a_rule_are_listed_together() -> None:
    model = Builder()
    x = model.input("x", (2,))
    for name in ("FlexFoo", "MyOp", "MyOp"):
        x = model.op(name, [x], (2,))
    model.output(x)
    with pytest.raises(UnsupportedOpError) as error:
        tflite.load(model.build())
    text = str(error.value)
    assert text.count("tflite.custom::MyOp") >= 2 and "tflite.custom::FlexFoo" in text
    assert "converter.frontends.tflite.custom" in text and "TFLITE_BUILTINS" in text
    assert len(error.value.nodes) == 3


def test_a_custom_operator_with_a_meaning(rules: None) -> None:
    @tflite.custom("Scaled")
    def scaled(op: Op) -> ir.Value:
        assert op.custom is not None
        return op.emit("Mul", [op.real(0), op.constant(op.custom.options["factor"])])

    model = Builder()
    x = model.input("x", (2,))
    model.output(model.op("Scaled", [x], (2,), custom=bytes(flexbuffers.Dumps({"factor": 2.5}))))
    given = floats(2)
    np.testing.assert_array_equal(run(translated(model.build()), [given])[0], given * np.float32(2.5))


def test_builtin_operators_keep_their_meaning() -> None:
    with pytest.raises(ConvertError, match="builtin"):
        tflite.custom("ADD")


def test_a_rule_that_raises_gives_one_clear_error(rules: None) -> None:
    @tflite.custom("Trips")
    def trips(op: Op) -> ir.Value:
        return op.constant([1, 2][5])

    model = Builder()
    model.output(model.op("Trips", [model.input("x", (2,))], (2,)))
    with pytest.raises(ConvertError, match=r"operator 0 Trips .*IndexError"):
        tflite.load(model.build())


# subgraphs that call others


def test_subgraphs_that_call_themselves_are_refused() -> None:
    model = Builder()
    x = model.input("x", (2,))
    flag = model.input("flag", (1,), "bool")
    then = model.subgraph("then")
    inner, inner_flag = then.input("x", (2,)), then.input("flag", (1,), "bool")
    options = {"then_subgraph_index": 1, "else_subgraph_index": 1}
    result = then.tensor("again", (2,))
    then.node("IF", [inner_flag, inner_flag, inner], [result], **options)
    then.output(result)
    final = model.tensor("y", (2,))
    model.node("IF", [flag, x, flag], [final], **options)
    model.output(final)
    with pytest.raises(ConvertError, match="calls itself"):
        tflite.load(model.build())


# metadata


def metadata(*, damaged: bool = False) -> bytes:
    """A TFLITE_METADATA blob: an input normalised by (127.5, 64), an output with labels."""
    packer = flatbuffers.Builder(256)

    def table(*fields: Any) -> int:
        """Fields in slot order: an offset, (kind, number) or None."""
        packer.StartObject(len(fields))
        for slot, value in enumerate(fields):
            if isinstance(value, tuple):
                getattr(packer, f"Prepend{value[0]}Slot")(slot, value[1], 0)
            elif value is not None:
                packer.PrependUOffsetTRelativeSlot(slot, value, 0)
        return int(packer.EndObject())

    def vector(items: list[Any], kind: str = "UOffsetTRelative") -> int:
        packer.StartVector(4, len(items), 4)
        for item in reversed(items):
            getattr(packer, f"Prepend{kind}")(item)
        return int(packer.EndVector())

    mean, std = vector([127.5], "Float32"), vector([64.0], "Float32")
    unit = table(("Uint8", 1), table(mean, std))
    image = table(packer.CreateString("image"), packer.CreateString("An RGB image"), None, None, vector([unit]))
    labels = table(packer.CreateString("labels.txt"), None, ("Int8", 2))
    scores = table(packer.CreateString("scores"), None, None, None, None, None, vector([labels]))
    subgraph = table(None, None, vector([image]), vector([scores]))
    root = table(packer.CreateString("Classifier"), None, packer.CreateString("v1"), vector([subgraph]))
    packer.Finish(root, b"M001")
    found = bytes(packer.Output())
    return found[:-20] if damaged else found


def test_metadata_with_labels_behind_the_model() -> None:
    model = Builder()
    doubled(model)
    model.metadata("TFLITE_METADATA", metadata())
    model.metadata("min_runtime_version", b"2.3.0" + b"\0" * 11)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("labels.txt", "cat\ndog\n")
    found = tflite.load(model.build() + archive.getvalue()).metadata
    assert found["min_runtime_version"] == "2.3.0"
    assert found["name"] == "Classifier" and found["version"] == "v1"
    assert found["inputs"] == [{"name": "image", "description": "An RGB image", "mean": [127.5], "std": [64.0]}]
    assert found["outputs"][0]["files"] == [{"name": "labels.txt", "kind": "labels", "lines": ["cat", "dog"]}]


def test_damaged_metadata_does_not_stop_the_model() -> None:
    model = Builder()
    doubled(model)
    model.metadata("TFLITE_METADATA", metadata(damaged=True))
    found = tflite.load(model.build())
    assert "predict" in found.models
    assert "metadata_error" in found.metadata or "name" in found.metadata
