"""Objects become code only if every reference in them is known and internal."""

from __future__ import annotations

import ctypes
import mmap
import struct

import llvmlite.binding as llvm
import numpy as np
import pytest

from lite_runtime.native.build import BuildError
from lite_runtime.native.codegen import link, retarget
from lite_runtime.native.codegen.relocations import PROCESSORS, Processor, Reference
from lite_runtime.native.target import host
from lite_runtime.targets import TARGETS, Target

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
    retarget.llvm()
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
    with pytest.raises(BuildError, match=r"expected .* for x86-64, aarch64, riscv64, armv7, got .*machine 21;"):
        link.link(object_of(SOURCE, "powerpc64le-unknown-linux-gnu"), ["f"])


@pytest.mark.parametrize("target", [t for t in TARGETS if not t.library], ids=lambda t: t.name)
def test_objects_of_every_linux_target_are_linked(target: Target) -> None:
    """That the code runs is shown by tests/emulated."""
    module = retarget.llvm().parse_assembly(SOURCE.replace("@f(", "@test.f("))
    module.triple = "x86_64-unknown-linux-gnu"
    obj, names = retarget.object_of(module.as_bitcode(), target, "test")
    code, offsets = link.link(obj, names)
    assert set(offsets) == {"test.f", "picked"} and len(code) > 64
    assert link.outside(obj) <= {"__aeabi_unwind_cpp_pr0"}  # named by Arm's tables for exceptions, which are left out


# -- relocations, one by one -------------------------------------------------------------------------------------------


def extended(value: int, bits: int) -> int:
    return value - (value >> bits - 1 << bits)


def immediate(word: int) -> int:
    """Of adr."""
    return extended(word >> 29 & 3 | (word >> 5 & 0x7FFFF) << 2, 21)


def row(processor: str, name: str) -> tuple[Processor, int]:
    found = next(one for one in PROCESSORS.values() if one.name == processor)
    return found, next(number for number, (known, _) in found.rows.items() if known == name)


def resolved(
    processor: str, name: str, word: int, place: int, symbol: int, addend: int = 0, pairs: dict[int, int] | None = None
) -> list[int]:
    """The words at the place and after it."""
    of, number = row(processor, name)
    code = bytearray(place + 8)
    struct.pack_into("<II", code, place, word, word)
    of.rows[number][1](Reference(code, place, symbol, addend, {} if pairs is None else pairs))
    return list(struct.unpack_from("<II", code, place))


PLACES = [(0x40, 0x12340), (0x12340, 0x40), (0x1000, 0x1FFC), (0xFFC, 0x1000), (0x80, 0x80), (0x10010, 0x20FF0)]


@pytest.mark.parametrize(("place", "symbol"), PLACES)
def test_aarch64(place: int, symbol: int) -> None:
    adr = resolved("aarch64", "R_AARCH64_ADR_PREL_PG_HI21", 0x90000000, place, symbol, 8)[0]
    add = resolved("aarch64", "R_AARCH64_ADD_ABS_LO12_NC", 0x91000000, place, symbol, 8)[0]
    assert adr & ~0x60FFFFE0 == 0x10000000 and add & ~0x3FFC00 == 0x91000000
    assert place + immediate(adr) + (add >> 10 & 0xFFF) == symbol + 8
    for size, bits in enumerate((8, 16, 32, 64, 128)):
        load = resolved("aarch64", f"R_AARCH64_LDST{bits}_ABS_LO12_NC", 0x3D400000, place, symbol & ~15)[0]
        assert (load >> 10 & 0xFFF) << size == symbol & 0xFF0
    assert immediate(resolved("aarch64", "R_AARCH64_ADR_PREL_LO21", 0x10000000, place, symbol)[0]) == symbol - place
    for name in ("R_AARCH64_CALL26", "R_AARCH64_JUMP26"):
        branch = resolved("aarch64", name, 0x94000000, place, symbol & ~3)[0]
        assert 4 * extended(branch & 0x3FFFFFF, 26) == (symbol & ~3) - place and branch >> 26 == 0x25


@pytest.mark.parametrize(("place", "symbol"), PLACES)
def test_riscv64(place: int, symbol: int) -> None:
    pairs: dict[int, int] = {}
    high = resolved("riscv64", "R_RISCV_PCREL_HI20", 0x517, place, symbol, 4, pairs)[0]
    add = resolved("riscv64", "R_RISCV_PCREL_LO12_I", 0x50513, place + 16, place, 0, pairs)[0]
    store = resolved("riscv64", "R_RISCV_PCREL_LO12_S", 0xA52023, place + 16, place, 0, pairs)[0]
    assert pairs == {place: symbol + 4 - place}
    upper = extended(high & 0xFFFFF000, 32)
    assert upper + extended(add >> 20, 12) == symbol + 4 - place and add & 0xFFFFF == 0x50513
    assert (
        extended(store >> 25 << 5 | store >> 7 & 31, 12) == extended(add >> 20, 12)
        and store & 0x1FFF07F == 0xA52023 & 0x1FFF07F
    )
    auipc, jalr = resolved("riscv64", "R_RISCV_CALL_PLT", 0x97, place, symbol)
    assert extended(auipc & 0xFFFFF000, 32) + extended(jalr >> 20, 12) == symbol - place
    assert resolved("riscv64", "R_RISCV_ADD32", 5, place, symbol)[0] == 5 + symbol
    assert resolved("riscv64", "R_RISCV_SUB32", 5, place, symbol)[0] == 5 - symbol & 0xFFFFFFFF


@pytest.mark.parametrize(("place", "symbol"), PLACES)
def test_armv7(place: int, symbol: int) -> None:
    """Addends are in the instructions: -8 in a call, whose processor counts from two instructions later."""
    branch = resolved("armv7", "R_ARM_CALL", 0xEBFFFFFE, place, symbol & ~3)[0]
    assert 4 * extended(branch & 0xFFFFFF, 24) == (symbol & ~3) - place - 8 and branch >> 24 == 0xEB
    halves = [
        resolved("armv7", name, 0xE3000000 | 0x400FF8, place, symbol)[0]
        for name in ("R_ARM_MOVW_PREL_NC", "R_ARM_MOVT_PREL")
    ]
    low, high = (word >> 4 & 0xF000 | word & 0xFFF for word in halves)
    assert low | high << 16 == symbol - place + 0xFF8 & 0xFFFFFFFF
    assert resolved("armv7", "R_ARM_REL32", 12, place, symbol)[0] == symbol - place + 12 & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("processor", "name", "symbol"),
    [
        ("x86-64", "R_X86_64_PC32", 1 << 31),
        ("aarch64", "R_AARCH64_ADR_PREL_PG_HI21", 1 << 32),
        ("aarch64", "R_AARCH64_ADR_PREL_LO21", 1 << 20),
        ("aarch64", "R_AARCH64_CALL26", 1 << 27),
        ("aarch64", "R_AARCH64_CALL26", 2),
        ("aarch64", "R_AARCH64_LDST64_ABS_LO12_NC", 4),
        ("riscv64", "R_RISCV_PCREL_HI20", 1 << 31),
        ("riscv64", "R_RISCV_CALL", 1 << 31),
        ("armv7", "R_ARM_CALL", 1 << 25),
        ("armv7", "R_ARM_JUMP24", 1),
    ],
)
def test_a_distance_that_an_instruction_cannot_hold_is_an_error(processor: str, name: str, symbol: int) -> None:
    with pytest.raises(ValueError, match=r"distance of -?\d+"):
        resolved(processor, name, 0, 0, symbol)


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
