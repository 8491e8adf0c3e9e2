"""The driver: what a conversion yields, how it fails."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import converter
from converter import ConvertError, UnsupportedOpError
from converter.pass_lists import PASSES, Pass, optimize, to_ir
from lite_runtime import bundle, errors, reference
from tests.converter.support import Builder, assert_close, random_inputs


def small() -> onnx.ModelProto:
    b = Builder(12)
    x = b.input("x", ["n", 3, 8, 8])
    y = b("Relu", b("Conv", x, b.weight(4, 3, 3, 3), b.weight(4)))
    return b.model(b("Softmax", b("Flatten", b("GlobalAveragePool", y))))


def test_a_conversion(tmp_path):
    path = tmp_path / "m.mslite"
    made = converter.convert(small(), output=path)
    assert path.read_bytes() == made.bundle
    read = bundle.read(made.bundle)
    assert read.provenance["source_opset"] == 12 and read.provenance["source_digest"] == made.report.source_digest
    inputs, outputs = read.golden["predict"]
    assert_close(reference.run(read.signatures["predict"], inputs), outputs)
    assert read.signatures["predict"].inputs[0].shape == ("n", 3, 8, 8)


def test_the_report_is_json_and_honest():
    report = converter.convert(small()).report
    facts = json.loads(report.as_json())
    assert facts["ops_before"] == {"Conv": 1, "Flatten": 1, "GlobalAveragePool": 1, "Relu": 1, "Softmax": 1}
    assert facts["native"] + facts["reference"] == sum(facts["ops_after"].values())
    assert [p["name"] for p in facts["passes"]] == [p.name for p in PASSES]
    assert facts["bundle_bytes"] > 0 and facts["golden"] == "stored" and 0 <= facts["coverage"] <= 1
    assert report.rewrites()["fuse activation early"] == 1


def test_half_precision():
    b = Builder()
    big = b.const(np.full((16, 8), 1e6, np.float32))
    model = b.model(b("MatMul", b("MatMul", b.input("x", [2, 4]), b.weight(4, 16)), big))
    made = converter.convert(model, quantize="fp16")
    assert (made.report.halved, made.report.kept_float32) == (1, 1)
    graph = bundle.read(made.bundle).signatures["predict"]
    assert [n.op for n in graph.nodes] == ["NarrowMatMul", "MatMul"]
    inputs = random_inputs(graph)
    assert_close(reference.run(graph, inputs), reference.run(converter.lower(to_ir(model)), inputs), 2e-3)


def test_unknown_options():
    with pytest.raises(ConvertError, match="none, fp16"):
        converter.convert(small(), quantize="int3")


def test_all_unsupported_operators_are_listed():
    b = Builder()
    x = b.input("x", [2])
    y = b("Relu", b("Foo", x, domain="com.microsoft"))
    z = b("Bar", y, domain="my.domain")
    model = b.model(z)
    model.graph.node[2].metadata_props.add(key="pkg.torch.onnx.stack_trace", value="File a.py\nFile net.py, line 7")
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(UnsupportedOpError) as caught:
        converter.convert(model)
    text = str(caught.value)
    assert isinstance(caught.value, ConvertError) and isinstance(caught.value, errors.UnsupportedOpError)
    assert [n.op for n in caught.value.nodes] == ["Foo", "Bar"]
    for word in ("com.microsoft::Foo (opset 1)", "node_Foo", "net.py, line 7", "no opset imported", "contrib operator"):
        assert word in text


def test_nothing_is_left_behind_when_it_fails(tmp_path):
    b = Builder()
    with pytest.raises(UnsupportedOpError):
        converter.convert(b.model(b("Foo", b.input("x", [2]), domain="d")), output=tmp_path / "m.mslite")
    assert list(tmp_path.iterdir()) == []


def test_a_pass_that_breaks_the_model_is_named():
    def breaks(model: ir.Model) -> int:
        model.graph.remove(model.graph[0])
        return 1

    with pytest.raises(ConvertError, match=r"after pass 'wrecker'.*\n.*is not defined anywhere"):
        optimize(to_ir(small()), [Pass("wrecker", breaks)])


def test_a_pass_that_raises_is_named():
    def fails(model: ir.Model) -> int:
        raise ConvertError("no")

    with pytest.raises(ConvertError, match="pass 'quitter': no"):
        optimize(to_ir(small()), [Pass("quitter", fails)])


def test_a_foreign_error_in_a_pass_is_one_of_ours():
    def trips(model: ir.Model) -> int:
        return [][1]

    with pytest.raises(ConvertError, match=r"pass 'tripper' cannot handle this model .IndexError"):
        optimize(to_ir(small()), [Pass("tripper", trips)])


def test_huge_results_are_not_computed_at_conversion():
    b = Builder()
    shape = b.const([1 << 14, 1 << 14], np.int64)
    made = converter.convert(b.model(b("ReduceSum", b("Expand", b.const(1.0, np.float32), shape), keepdims=0)))
    assert made.report.ops_after["Expand"] == 1 and made.report.bundle_bytes < 1 << 16


def test_optimising_twice_changes_nothing():
    model = to_ir(small())
    optimize(model)
    assert not sum(r.rewrites for r in optimize(model) if r.name not in ("share constants",))


def test_importing_the_package_is_cheap():
    code = "import sys, converter; sys.exit(any(m in sys.modules for m in ('onnx', 'onnx_ir', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_face():
    assert callable(converter.lower) and callable(converter.convert)
    assert set(converter.__all__) <= set(dir(converter))
    with pytest.raises(AttributeError):
        _ = converter.nonsense


def test_the_report_says_what_runs_by_reference_and_where_it_was_written():
    b = Builder()
    model = b.model(b("Det", b.input("x", [2, 2])))
    model.graph.node[0].metadata_props.add(key="source_location", value="net.py:7")
    report = converter.convert(model).report
    assert [(op, source) for _, op, source in report.by_reference] == [("Det", "net.py:7")]
    assert report.reference_ops == {"Det": 1}
