"""Objects become code only if every reference in them is known and internal."""

from __future__ import annotations

import ctypes
import mmap
import struct

import llvmlite.binding as llvm
import numpy as np
import pytest

from lite_runtime.native import compile, link
from lite_runtime.native.build import BuildError
from lite_runtime.native.target import TARGETS, host

pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")

# A function, a constant it reads and another function it calls: PC32 and PLT32.
SOURCE = """
@table = internal constant [4 x i64] [i64 3, i64 5, i64 7, i64 11]
define void @picked(ptr %out, i64 %i) noinline {
  %at = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %value = load i64, ptr %at
  store i64 %value, ptr %out
  ret void
}
define void @f(ptr %out, i64 %i) noinline {
  call void @picked(ptr %out, i64 %i)
  %before = load i64, ptr %out
  %after = add i64 %before, 1
  store i64 %after, ptr %out
  ret void
}
"""


def object_of(source: str, triple: str = TARGETS[0].triple, reloc: str = "pic") -> bytes:
    compile._llvm()
    module = llvm.parse_assembly(source)
    machine = llvm.Target.from_triple(triple).create_target_machine(reloc=reloc, codemodel="small")
    made = machine.emit_object(module)
    assert isinstance(made, bytes)
    return made


def test_references_inside_are_resolved() -> None:
    code, kernels = link.link(object_of(SOURCE), ["f", "picked"])
    assert kernels.keys() == {"f", "picked"} and all(at % 16 == 0 for at in kernels.values())
    memory = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    base = np.frombuffer(memory, np.uint8).ctypes.data
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(base + kernels["f"])
    out = ctypes.c_int64()
    found = []
    for i in range(4):
        function(ctypes.addressof(out), i)
        found.append(out.value)
    assert found == [4, 6, 8, 12]


def test_a_kernel_that_is_not_there_is_named() -> None:
    with pytest.raises(BuildError, match="none called g"):
        link.link(object_of(SOURCE), ["f", "g"])


def test_an_unknown_relocation_is_refused() -> None:
    """Code that is not position-independent names absolute addresses."""
    with pytest.raises(BuildError, match=r"relocation type \d+ against .*expected one of R_X86_64_PC32, R_X86_64_P"):
        link.link(object_of(SOURCE, reloc="static"), ["f"])


def test_memory_that_code_could_write_is_refused() -> None:
    source = SOURCE.replace("internal constant", "internal global").replace(
        "  ret void\n}\ndefine void @f", "  store i64 0, ptr %at\n  ret void\n}\ndefine void @f"
    )
    with pytest.raises(BuildError, match="no memory of their own"):
        link.link(object_of(source), ["f"])


def test_another_processors_object_is_refused() -> None:
    with pytest.raises(BuildError, match="machine 183"):
        link.link(object_of(SOURCE, "aarch64-unknown-linux-gnu"), ["f"])


def test_an_object_that_is_not_whole_is_an_error() -> None:
    whole = object_of(SOURCE)
    _, names = link.link(whole, ["f"])
    assert names
    for damaged in (b"", whole[:10], b"\x7fELG" + whole[4:], whole[:-64], whole[: len(whole) // 2], bytes(len(whole))):
        with pytest.raises(BuildError, match="expected"):
            link.link(damaged, ["f"])


def test_a_relocation_that_does_not_fit_is_an_error() -> None:
    whole = bytearray(object_of(SOURCE))
    at = whole.index(struct.pack("<q", -4))  # an addend
    whole[at : at + 8] = struct.pack("<q", 1 << 40)
    with pytest.raises(BuildError, match="expected a whole ELF object"):
        link.link(bytes(whole), ["f"])
