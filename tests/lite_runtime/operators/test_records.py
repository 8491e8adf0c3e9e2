"""Records are true: facts about ONNX are checked against ONNX, traits as tests/traits.py shows them."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from lite_runtime import operators, reference
from lite_runtime.kernels import _opcodes
from lite_runtime.operators import FAMILIES, OPERATORS, Trait, attributes, epilogues, family, having
from lite_runtime.operators.record import Operator, parsed
from lite_runtime.reference import activation
from tests.traits import SHOWN, drawn, findings, made, operands

ROOT = Path(__file__).parents[3]
OURS = {"msedge", "com.microsoft"}
"""Domains whose operators ONNX does not describe."""


# -- facts ------------------------------------------------------------------------------------------------------------


def test_domains_and_versions_are_onnxs() -> None:
    defs = pytest.importorskip("onnx.defs")
    first: dict[tuple[str, str], int] = {}
    for schema in defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        first[key] = min(schema.since_version, first.get(key, schema.since_version))
    known = {name for domain, name in first if domain in ("", "ai.onnx.ml")}
    for op, record in OPERATORS.items():
        if record.domain in OURS:
            assert op not in known, op
        else:
            assert first[record.domain, op] == record.since, op


def test_threads_find_records_while_another_imports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(name: str) -> tuple[Operator, ...]:
        begun.set()
        assert go_on.wait(30)
        return family(name)

    monkeypatch.setattr(operators, "family", slow)
    fresh = operators._Operators(["elementwise", "reduce"])
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(fresh.__getitem__, "ReduceSum")
        assert begun.wait(30)
        other = pool.submit(fresh.__contains__, "ReduceSum")
        with pytest.raises(TimeoutError):
            other.result(0.2)  # it waits for the first, and does not say no
        go_on.set()
        assert one.result(30).name == "ReduceSum" and other.result(30)


def test_defaults_are_those_of_the_definitions() -> None:
    import inspect

    for op in OPERATORS:
        defaults = {name: a.default for name, a in attributes(op).items() if a.default is not None}
        if defaults:
            parameters = inspect.signature(reference.DEFINITIONS[op]).parameters
            assert defaults == {name: parameters[name].default for name in defaults}, op


def test_defaults_are_onnxs() -> None:
    onnx = pytest.importorskip("onnx")
    for op, record in OPERATORS.items():
        for name, attribute in attributes(op).items():
            if attribute.default is not None and record.domain not in OURS:
                theirs = onnx.helper.get_attribute_value(
                    onnx.defs.get_schema(op, domain=record.domain).attributes[name].default_value
                )
                assert np.float32(theirs) == np.float32(attribute.default), (op, name)


def test_families_are_the_files() -> None:
    files = {path.stem for path in (ROOT / "lite_runtime/operators").glob("*.py")}
    assert set(FAMILIES) == files - {"__init__", "record"}
    assert len(OPERATORS) == sum(len(family(name)) for name in FAMILIES)


def test_a_name_reads_no_more_families_than_it_needs() -> None:
    code = "import sys; from lite_runtime.operators import OPERATORS as o; o['Relu']; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    read = {name.rpartition(".")[2] for name in done.stdout.split() if name.startswith("lite_runtime.operators.")}
    assert read == {"record", "elementwise", "activation"}


@pytest.mark.parametrize("text", ["alpha", "alpha:x", "alpha:f!!", "alpha:f=1 :i", "2a:i", "mode:s(a|b)c"])
def test_attributes_that_follow_no_rule_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected an attribute as name:kind"):
        parsed(text)


def test_epilogues_are_the_references() -> None:
    wanted = {name: defaults for name, (_, defaults) in activation.ACTIVATIONS.items() if name}
    assert wanted == {n: {a: value for a, _, value in row.parameters} for n, row in epilogues().items()}
    assert [row.code for row in epilogues().values()] == list(range(1, 1 + len(wanted)))


def test_instructions_have_the_kernels_order() -> None:
    """The kernels' file says it again, because kept kernels are known by it."""
    tree = ast.parse((ROOT / "lite_runtime/kernels/elementwise.py").read_bytes())
    tables = {
        node.targets[0].id: [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict)
    }
    assert tables["_FLOAT_TABLE"] == list(_opcodes.FLOAT_OPS)
    assert tables["_INT_TABLE"] == list(_opcodes.INT_OPS)


def test_settings_are_operands_but_seldom_the_first() -> None:
    for op, record in OPERATORS.items():
        for operand in record.settings:
            assert operand < record.inputs[1], op
            assert operand or op in ("ConstantOfShape", "Loop", "Range"), op


def test_what_an_operator_runs_as_has_its_attributes() -> None:
    for op, record in OPERATORS.items():
        if record.runs_as:
            other = OPERATORS[record.runs_as]
            assert other.f32 >= 0 and other.inputs == record.inputs, op
            assert set(attributes(op)) == set(attributes(record.runs_as)), op


# -- traits -----------------------------------------------------------------------------------------------------------


def test_every_trait_is_shown() -> None:
    assert list(SHOWN) == list(get_args(Trait))


@pytest.mark.parametrize("trait", SHOWN)
def test_operators_have_the_traits_that_are_shown(trait: Trait) -> None:
    assert findings(trait) == []


@pytest.mark.parametrize("trait", SHOWN)
def test_a_trait_that_goes_is_missed_for_every_record(trait: Trait, monkeypatch: pytest.MonkeyPatch) -> None:
    records, having_it = vars(OPERATORS)["_known"], sorted(having(trait))
    for op in having_it:
        fewer = tuple(other for other in OPERATORS[op].traits if other != trait)
        monkeypatch.setitem(records, op, OPERATORS[op]._replace(traits=fewer))
    assert having_it and findings(trait) == [f"{op} lacks the trait {trait}" for op in having_it]


@pytest.mark.parametrize("op", sorted(having("elementwise")))
def test_elementwise_operators_treat_every_element_alike(op: str) -> None:
    types, attrs = operands(op)
    given = [drawn(dtype, 24, seed=i) for i, dtype in enumerate(types)]
    order = np.random.default_rng(1).permutation(24)
    np.testing.assert_array_equal(made(op, [x[order] for x in given], attrs), made(op, given, attrs)[order])
