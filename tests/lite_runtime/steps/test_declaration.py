"""Declarations of steps: what they refuse, how they become words, and that every kernel has one."""

from __future__ import annotations

import ast
import math
import os
import re
import struct
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lite_runtime
from lite_runtime import steps, targets
from lite_runtime.graph import Graph, Node, Spec, Value
from lite_runtime.planning.plan import plan
from lite_runtime.steps import declaration
from lite_runtime.steps.declaration import HEAD, Gaps, In, Out, Picks, Row, Step, Three, declared, named, row
from lite_runtime.steps.operand import Operand
from lite_runtime.steps.reading import read

FOLDER = Path(steps.__file__).parent
KERNELS = Path(lite_runtime.__file__).parent / "kernels"
OTHERS = ("declaration", "operand", "reading")
"""Files of the folder that declare no family."""
X, Y = Operand(Spec("float32", (2, 3)), 5), Operand(Spec("float32", (3, 2)), 6, 64)


def families() -> list[str]:
    return sorted(p.stem for p in FOLDER.glob("*.py") if p.stem not in (*OTHERS, "__init__"))


def turned(**changes: Any) -> steps.F32Transpose:
    return steps.F32Transpose(**{"a": X, "out": Y, "batches": 1, "rows": 2, "columns": 3, **changes})


# -- all of them ------------------------------------------------------------------------------------------------------


def test_every_class_of_the_folder_is_offered() -> None:
    """By the table that loads them at run time and by the imports that a type checker reads."""
    there = {}
    for family in families():
        module = import_module(f"lite_runtime.steps.{family}")
        there[family] = sorted(module.__all__)
        own = (n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__)
        assert there[family] == sorted(n for n in own if not n.startswith("_"))
        assert all(getattr(steps, name) is getattr(module, name) for name in module.__all__)
    assert {family: sorted(names.split()) for family, names in steps._FAMILIES.items()} == there
    typed: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse((FOLDER / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lite_runtime.steps."):
            typed.setdefault(str(node.module).rpartition(".")[2], []).extend(alias.name for alias in node.names)
    assert {family: sorted(names) for family, names in typed.items()} == there
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = steps.Nothing  # type: ignore[attr-defined]


def test_every_kernel_reads_the_step_that_names_it_and_no_step_names_another() -> None:
    """Importing a family checks what its kernels read (`native/checking.py`)."""
    marked: dict[str, type[Step]] = {}
    for family in sorted(p.stem for p in KERNELS.glob("*.py") if not p.stem.startswith("_")):
        module = import_module(f"lite_runtime.kernels.{family}")
        for name, function in vars(module).items():
            facts = getattr(function, "msedge_kernel", {})
            if "step" in facts and function.__module__ == module.__name__:
                marked[f"{family}.{name}"] = facts["step"]
    for family in families():
        import_module(f"lite_runtime.steps.{family}")
    marked["control.go_to"] = steps.GoTo  # the walker's own
    assert marked == declaration._BY_KERNEL
    assert all(declared(kernel) is owner for kernel, owner in marked.items())


@pytest.mark.parametrize("family", families())
def test_every_layout_is_whole(family: str) -> None:
    module = import_module(f"lite_runtime.steps.{family}")
    for owner in (getattr(module, name) for name in module.__all__):
        if issubclass(owner, Row):
            assert owner.names()
            continue
        words = [f.word for f in owner.layout.operands]
        assert words == list(range(HEAD, HEAD + 2 * len(words), 2))
        at = HEAD + 2 * len(words) if owner.layout.fixed else 0
        for field in (f for f in owner.layout.numbers if f.word >= 0):
            assert field.word == at
            at += field.length
        if owner.kernels:
            assert len(owner.layout.by_name) >= 1 and owner.__doc__


# -- making one -------------------------------------------------------------------------------------------------------


def test_a_step_is_made_by_names_alone() -> None:
    step = turned()
    assert (step.rows, step.a, step.operands, step.numbers()) == (2, X, (X, Y), [1, 2, 3])
    assert step.kernel() == "gemm.f32_transpose"
    assert repr(step).startswith("F32Transpose(a=Operand(") and repr(step).endswith("columns=3)")
    with pytest.raises(TypeError, match=re.escape("F32Transpose was made without rows and with row")):
        steps.F32Transpose(a=X, out=Y, batches=1, row=2, columns=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="with depth"):
        turned(depth=4)
    with pytest.raises(TypeError, match="without a, out, batches, rows, columns"):
        steps.F32Transpose()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        steps.F32Transpose(X, Y, 1, 2, 3)  # type: ignore[misc]


def test_a_step_never_changes() -> None:
    step = turned()
    with pytest.raises(AttributeError, match="cannot be changed"):
        step.rows = 3  # type: ignore[misc]
    assert not hasattr(step, "__dict__")
    with pytest.raises(AttributeError, match="F32Transpose has no field depth; it has a, out, batches"):
        _ = step.depth  # type: ignore[attr-defined]
    assert step.replace(rows=4).numbers() == [1, 4, 3] and step.rows == 2


def test_a_step_of_several_kernels_says_which() -> None:
    step = steps.Lookup(x=X, table=X, y=Y, total=6)
    assert step.kernel("lookup.x8_lookup__2") == "lookup.x8_lookup__2"
    for name in (None, "lookup.x8_lookup__3", "gemm.f32_pack"):
        with pytest.raises(TypeError, match=r"expected one of the kernels lookup\.x8_lookup__1"):
            step.kernel(name)
    with pytest.raises(TypeError, match=r"gemm\.f32_transpose, got gemm\.f32_pack"):
        turned().kernel("gemm.f32_pack")


def pack(factor: float) -> int:
    sizes = {"depth": 1, "columns": 1, "vectors": 1, "row_step": 4, "column_step": 4}
    step = steps.F32Pack(b=X, packed=Y, batches=1, batch_b=0, batch_packed=0, factor=factor, **sizes)
    return step.numbers()[-1]


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1, 2.5, 0.1, 3.4028235e38, 3.5e38, -1e300, math.inf, -math.inf, 1e-45, 1e-60]
)
def test_a_float_is_the_nearest_float32(value: float) -> None:
    with np.errstate(over="ignore"):
        assert pack(value) == int(np.array(value, np.float32).view(np.uint32))
        assert pack(np.float32(value)) == pack(value)


def test_nan_stays_nan() -> None:
    assert math.isnan(struct.unpack("<f", struct.pack("<I", pack(math.nan)))[0])


def test_integers_must_be_integers() -> None:
    assert turned(rows=np.int64(7), columns=True).numbers() == [1, 7, 1]
    with pytest.raises(TypeError, match="integer"):
        turned(rows=2.0).numbers()


def test_tails_are_as_long_as_the_step_says() -> None:
    def nd(depth: int, *pairs: steps.Pair) -> Step:
        return steps.GatherND(
            data=X, indices=X, target=Y, rows=1, batch_rows=1, batch_bytes=24, run=4, depth=depth, pairs=pairs
        )

    assert nd(2, steps.Pair(2, 12), steps.Pair(3, 4)).numbers() == [1, 1, 24, 4, 2, 2, 12, 3, 4]
    with pytest.raises(TypeError, match="expected depth to be the number of pairs"):
        nd(2, steps.Pair(2, 12)).numbers()


# -- declaring one ----------------------------------------------------------------------------------------------------


def test_a_kernel_has_one_declaration() -> None:
    with pytest.raises(TypeError, match=r"gemm\.f32_gemm is declared by F32Gemm and by Other"):
        declared("gemm.f32_gemm")

        @declaration.step("gemm.f32_gemm")
        class Other(Step):
            pass


class _Wrong(Step):
    a: In
    size: set


class _NoRow(Step):
    a: In
    c: Out
    rows: int
    gaps = Gaps("c", row="c_row", batches="rows")


class _NoTable(Step):
    a: In
    rows: int
    picks = Picks("table")


class _Uncounted(Step):
    a: In
    dims: tuple[int, ...]


class _Taken(Step):
    a: In
    operands: int  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("owner", "says"),
    [
        (_Wrong, "size: set is not a valid annotation"),
        (_NoRow, "name no fields: c_row"),
        (_NoTable, "name no fields: table"),
        (_Uncounted, "expected counts to name the integer for dims"),
        (_Taken, "operands cannot be a field's name"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(owner: type[Step], says: str) -> None:
    with pytest.raises(TypeError, match=re.escape(says)):
        _ = owner.layout.by_name


class _Base(Step):
    x: In
    size: Three


class _Longer(_Base):
    y: Out | None
    low: float


def test_fields_of_a_base_come_first_and_operands_before_numbers() -> None:
    places = named(_Longer)
    assert (places.x, places.y, places.size, places.low) == (3, 5, 7, 10)
    with pytest.raises(AttributeError, match="_Longer declares no high; its words are x, y, size, low"):
        _ = places.high
    step = _Longer(x=X, y=None, size=(1, 2, 3), low=0.5)
    assert step.operands == (X, None) and step.numbers() == [1, 2, 3, 0x3F000000]
    assert row(steps.Group).b_step == 2
    with pytest.raises(TypeError, match="Group: expected extent, a_step, b_step, got 2 values"):
        steps.Group(1, 2)  # type: ignore[call-arg]


# -- reading one back -------------------------------------------------------------------------------------------------


def _pack(source: Operand, _: str, make: Any) -> Any:
    return make(source.value)


def _program(node: Node, *shapes: tuple[int, ...], **constants: Any) -> tuple[str, list[int]]:
    inputs = tuple(Value(f"i{i}", "float32", shape) for i, shape in enumerate(shapes))
    graph = Graph(inputs, (Value("y", "float32"),), (node,), constants)
    given = {v.name: Spec(v.dtype, tuple(v.shape or ())) for v in inputs}
    made = plan(graph, given, pack=_pack, target=targets.named("x86-64-v3"))
    assert len(made.records) == 1
    record = made.records[0]
    return record.name, [int(word) for word in made.program[record.begin : record.end]]


def test_words_are_read_back_by_name() -> None:
    w = np.ones((3, 4), np.float32)
    found = read(*_program(Node("MatMul", ("i0", "w"), ("y",)), (2, 3), w=w))
    assert found.kernel == "gemm.f32_gemm"
    assert [o.name for o in found.operands] == ["a", "w", "taps_at", "bias", "residual", "c"]
    assert [o.base == 0 for o in found.operands] == [False, False, False, False, True, False]
    numbers = found.numbers
    assert (numbers["rows"], numbers["columns"], numbers["depth"], numbers["c_row"]) == (2, 4, 3, 4)
    assert (numbers["low"], numbers["high"]) == (-math.inf, math.inf)


def test_tails_are_read_back_by_row() -> None:
    node = Node("Transpose", ("i0",), ("y",), {"perm": [2, 0, 3, 1]})
    found = read(*_program(node, (3, 5, 7, 11)))
    assert found.numbers["outer"] == len(found.numbers["dims"]) > 0
    assert set(found.numbers["dims"][0]) == {"extent", "source", "target"}


def test_chains_have_any_number_of_operands() -> None:
    found = read(*_program(Node("Where", ("c", "i0", "i1"), ("y",)), (4, 1), (1, 5), c=np.array([True] * 5)))
    assert [o.name for o in found.operands] == ["sources"] * 3 + ["y"]
    numbers = found.numbers
    assert numbers["extents"] == (4, 5) and numbers["operand_count"] == 4 and numbers["total"] == 20
    assert len(numbers["loads"]) == numbers["load_count"]
    assert all(len(load["strides"]) == 2 for load in numbers["loads"])
    assert len(numbers["instructions"]) == numbers["instruction_count"] > 0
    assert [store["register"] for store in numbers["stores"]]


def test_a_record_of_another_length_is_refused() -> None:
    kernel, words = _program(Node("MatMul", ("i0", "w"), ("y",)), (2, 3), w=np.ones((3, 4), np.float32))
    with pytest.raises(ValueError, match="expected the 38 words that the record says, got 37"):
        read(kernel, words[:-1])
    words[1] += 1
    with pytest.raises(ValueError, match="expected a record of 38 words, got 39"):
        read(kernel, [*words, 0])
    with pytest.raises(KeyError):
        read("gemm.f32_nothing", words)


def test_windows_have_three_numbers_for_each_axis() -> None:
    node = Node("MaxPool", ("i0",), ("y",), {"kernel_shape": [2, 3], "layout": "NHWC"})
    found = read(*_program(node, (1, 4, 6, 8)))
    assert (found.numbers["size"], found.numbers["window"]) == ((1, 4, 6), (1, 2, 3))


def test_a_start_loads_only_the_families_it_needs() -> None:
    """A start that plans pays for the declarations its model needs."""
    import subprocess
    import sys

    code = (
        "import sys\nfrom lite_runtime.ops import registry\n"
        "print(sorted(n for n in sys.modules if n.startswith('lite_runtime.steps.')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['lite_runtime.steps.declaration', 'lite_runtime.steps.operand']"
