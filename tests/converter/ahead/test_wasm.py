"""The linker of WebAssembly objects, and operations by WebAssembly's instructions: Node runs what it makes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.ahead.wasm_link import link
from converter.ahead.wasm_object import read_object, read_sleb, sleb, uleb
from lite_runtime.graph import Array
from lite_runtime.native.build import BuildError
from lite_runtime.native.codegen import retarget
from lite_runtime.native.codegen.bodies import bodies_of, body
from lite_runtime.targets import AHEAD, named
from tests.converter.ahead import node
from tests.lite_runtime.native import operations

WASM = named("wasm32", AHEAD)
RUN = {"run": "test.run"}
SCRIPT = Path(__file__).with_name("instance.mjs")
# Data with an address in it, a call, a call by address, and memory on the stack.
SOURCE = """
@numbers = internal constant [4 x i64] [i64 3, i64 5, i64 7, i64 11]
@where = internal constant [2 x ptr] [ptr @numbers, ptr getelementptr (i8, ptr @numbers, i64 16)]
@unused = constant [1000 x i8] zeroinitializer
define internal i64 @picked(i64 %half, i64 %i) noinline {
  %h = trunc i64 %half to i32
  %at = getelementptr ptr, ptr @where, i32 %h
  %list = load ptr, ptr %at
  %j = trunc i64 %i to i32
  %place = getelementptr i64, ptr %list, i32 %j
  %value = load volatile i64, ptr %place
  ret i64 %value
}
define void @left_out(ptr %out) {
  store i64 1, ptr %out
  ret void
}
define void @test.run(i64 %half, i64 %i, i64 %out) {
  %kept = alloca [64 x i64], align 64
  %slot = getelementptr i64, ptr %kept, i64 5
  %h = load i64, ptr %hp
  %f = select i1 true, ptr @picked, ptr null
  store volatile ptr %f, ptr %slot
  %g = load volatile ptr, ptr %slot
  %ip = inttoptr i64 %i to ptr
  %n = load i64, ptr %ip
  %one = call i64 %g(i64 %h, i64 %n)
  %two = call i64 @picked(i64 %h, i64 %n)
  %sum = add i64 %one, %two
  %op = inttoptr i64 %out to ptr
  store i64 %sum, ptr %op
  ret void
}
""".replace("  %h = load i64, ptr %hp\n", "  %hp = inttoptr i64 %half to ptr\n  %h = load i64, ptr %hp\n")


def object_of(source: str, features: str = WASM.features) -> bytes:
    retarget.llvm()
    module = llvm.parse_assembly(source)
    machine = llvm.Target.from_triple(WASM.triple).create_target_machine(features=features, reloc="static")
    module.triple, module.data_layout = WASM.triple, str(machine.target_data)
    made = machine.emit_object(module)
    assert isinstance(made, bytes)
    return made


def run(module: bytes, operands: list[Array], like: Array, scratch: Path, addresses: int = -1) -> list[Array]:
    """Operands and the result after a call of `run` for every row, with the rows' addresses. addresses: the number of
    an operand that holds addresses, namely of the table behind them all."""
    held = [np.ascontiguousarray(array) for array in (*operands, np.zeros_like(like))]
    starts = np.cumsum([0, *(-(-array.nbytes // 64) * 64 for array in held)]).tolist()
    if addresses >= 0:
        held[addresses] = np.full_like(held[addresses], starts[-1])
    memory = b"".join(a.tobytes().ljust(-(-a.nbytes // 64) * 64, b"\0") for a in held)
    (scratch / "module.wasm").write_bytes(module)
    (scratch / "memory").write_bytes(memory + operations.TABLE.tobytes())
    rows = [[begin + i * a.strides[0] for a, begin in zip(held, starts, strict=False)] for i in range(len(like))]
    moved = [starts[addresses] + 8 * i for i in range(held[addresses].size)] if addresses >= 0 else []
    assert node.NODE is not None
    command = [node.NODE, str(SCRIPT), str(scratch / "module.wasm"), str(scratch / "memory")]
    calls = json.dumps({"rows": rows, "addresses": moved})
    done = subprocess.run(command, input=calls, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    after = (scratch / "memory").read_bytes()
    return [np.frombuffer(after, a.dtype, a.size, at).reshape(a.shape) for a, at in zip(held, starts, strict=False)]


@node.needs_node
def test_references_are_resolved(tmp_path: Path) -> None:
    made = link({"test": object_of(SOURCE)}, [], RUN)
    half, i = np.array([[0], [0], [1], [1]]), np.array([[0], [3], [0], [1]])
    *_, found = run(made, [half, i], np.zeros((4, 1), np.int64), tmp_path)
    assert found.ravel().tolist() == [6, 22, 14, 22]


def test_what_nothing_reaches_is_left_out() -> None:
    obj = object_of(SOURCE)
    whole = read_object(obj, "test")
    assert len(whole.functions) == 3 and sum(len(s.body.content) for s in whole.segments) > 1000
    assert len(link({"test": obj}, [], RUN)) < 700


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("declare void @puts()\ndefine void @test.run() {\n call void @puts()\n ret void\n}", "needs puts"),
        ("@x = external global i32\ndefine i32 @test.run() {\n %v = load i32, ptr @x\n ret i32 %v\n}", "needs x"),
        (
            "define i32 @test.run(i32 %n) {\n %v = call i32 @test.run(i32 %n)\n %w = add i32 %v, 1\n ret i32 %w\n}",
            "calls itself",
        ),
        (
            "define i64 @test.run(i32 %n) {\n %m = alloca i64, i32 %n\n store volatile i64 1, ptr %m\n"
            " %v = load volatile i64, ptr %m\n ret i64 %v\n}",
            "not constant",
        ),
        ("define void @other() {\n ret void\n}", "the function test.run"),
    ],
    ids=["function", "data", "recursion", "stack", "kernel"],
)
def test_what_no_kernel_may_is_refused(source: str, told: str) -> None:
    with pytest.raises(BuildError, match=told):
        link({"test": object_of(source)}, [], RUN)


def test_files_that_are_no_objects_are_refused() -> None:
    whole = object_of(SOURCE)
    for content in (b"", b"\x7fELF", whole[:40], whole[:-7], b"\0asm\2\0\0\0"):
        with pytest.raises(BuildError, match="expected a WebAssembly object from LLVM"):
            read_object(content, "test")


@given(st.integers(0, 2**70), st.integers(-(2**70), 2**70))
def test_numbers_in_leb128(unsigned: int, signed: int) -> None:
    assert read_sleb(sleb(signed) + b"\xff") == signed
    assert len(uleb(unsigned)) == max(1, -(-unsigned.bit_length() // 7))
    assert read_sleb(uleb(unsigned)[:-1] + bytes([uleb(unsigned)[-1] | 0x80, 0])) == unsigned


RUNS = [
    (name, lanes) for name in operations.CASES for lanes in (WASM.lanes, 1) if (lanes > 1 or name in operations.SCALAR)
]


def operation(name: str, lanes: int, own: bool) -> bytes:
    kept = {key: emit for key, emit in bodies_of(WASM).items() if own or key[0] != name}
    obj, _ = retarget.object_of(operations.bitcode(name, lanes), WASM, "test", bodies=kept)
    return link({"test": obj}, [], RUN)


@node.needs_node
@pytest.mark.parametrize("own", [False, True], ids=["generic", "own"])
@pytest.mark.parametrize(("name", "lanes"), RUNS)
def test_an_operation_is_what_numpy_computes(name: str, lanes: int, own: bool, tmp_path: Path) -> None:
    if own and body(bodies_of(WASM), name, lanes) is None:
        return  # the generic form again
    operands, wanted = operations.rows(name, lanes)
    after = run(operation(name, lanes, own), operands, wanted, tmp_path, 1 if name == "look_up" else -1)
    assert operations.same(name, after[1] if name == "store_first" else after[-1], wanted)
