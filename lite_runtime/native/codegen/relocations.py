"""How references inside an object are written into its code: one row for each kind of relocation and processor.

All are relative to the place that refers, so that the code runs anywhere. Numbers and formulas are those of the
processors' ELF supplements: System V ABI for AMD64 (4.4.1), ELF for the Arm 64-bit architecture (5.7), ELF for the Arm
architecture (5.6), RISC-V ELF psABI (8.5). S: address of the symbol, A: addend, P: place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

__all__ = ["PROCESSORS", "Processor", "Reference"]


class Reference(NamedTuple):
    """A relocation of the code: `place` is where it is, `symbol` the address that it refers to, `addend` what is added.

    pairs: of RISC-V, the distance S + A - P at each place of a PCREL_HI20, to whose address the lower halves refer.
    """

    code: bytearray
    place: int
    symbol: int
    addend: int
    pairs: dict[int, int]

    @property
    def target(self) -> int:
        """S + A."""
        return self.symbol + self.addend

    @property
    def distance(self) -> int:
        """S + A - P."""
        return self.target - self.place

    def word(self, at: int = 0) -> int:
        """The 32-bit instruction at the place, or `at` bytes after it."""
        return int.from_bytes(self.code[self.place + at : self.place + at + 4], "little")

    def put(self, word: int, at: int = 0) -> None:
        """Write an instruction or an unsigned number."""
        struct.pack_into("<I", self.code, self.place + at, word)


Resolve = Callable[[Reference], None]


class Processor(NamedTuple):
    """name: LLVM's. bits: of addresses. addends: whether relocations hold them, or the code does. rows: number of a
    relocation -> its name, and what resolves it; `late` ones refer to others, which must come first."""

    name: str
    bits: int
    addends: bool
    rows: Mapping[int, tuple[str, Resolve]]
    late: frozenset[int] = frozenset()


def _signed(value: int, bits: int) -> int:
    """A number in the lowest bits, two's complement. Raises ValueError if it does not fit."""
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"a distance of {value} in {bits} bits")
    return value & (1 << bits) - 1


def _aligned(value: int, by: int) -> int:
    """A distance in units of `by` bytes."""
    if value % by:
        raise ValueError(f"a distance of {value} that is no multiple of {by}")
    return value // by


def _relative(r: Reference) -> None:
    """A signed number of 32 bits."""
    r.put(_signed(r.distance, 32))


def _ignored(_: Reference) -> None:
    """A permission to shorten code, which is not used."""


# -- aarch64 -----------------------------------------------------------------------------------------------------------


def _near(r: Reference, distance: int) -> None:
    """adr: a distance of less than 1 MiB."""
    distance = _signed(distance, 21)
    r.put(r.word() & ~0xE0FFFFE0 | (distance & 3) << 29 | distance >> 2 << 5)


def _adr(r: Reference) -> None:
    _near(r, r.distance)


def _adrp(r: Reference) -> None:
    """Replaced by adr, with the address that is 4 KiB or less before the target: adrp needs code at a multiple of
    4 KiB, because it counts from there."""
    _near(r, (r.target & ~0xFFF) - r.place)


def _low_12(size: int) -> Resolve:
    """What is left of the distance from the code's start in units of 4 KiB; for what is added (size 1), or loaded or
    stored."""
    return lambda r: r.put(r.word() & ~0x3FFC00 | _aligned(r.target & 0xFFF, size) << 10)


def _branch_26(r: Reference) -> None:
    r.put(r.word() & ~0x3FFFFFF | _signed(_aligned(r.distance, 4), 26))


# -- RISC-V ------------------------------------------------------------------------------------------------------------


def _high_20(distance: int) -> int:
    """The upper 20 bits, rounded so that a signed lower half of 12 bits completes them."""
    _signed(distance + 0x800, 32)
    return distance + 0x800 & 0xFFFFF000


def _call(r: Reference) -> None:
    """auipc, jalr."""
    r.put(r.word() & 0xFFF | _high_20(r.distance))
    r.put(r.word(4) & 0xFFFFF | (r.distance & 0xFFF) << 20, 4)


def _pcrel_high(r: Reference) -> None:
    r.pairs[r.place] = r.distance
    r.put(r.word() & 0xFFF | _high_20(r.distance))


def _pcrel_low_i(r: Reference) -> None:
    r.put(r.word() & 0xFFFFF | (r.pairs[r.symbol] & 0xFFF) << 20)


def _pcrel_low_s(r: Reference) -> None:
    low = r.pairs[r.symbol] & 0xFFF
    r.put(r.word() & 0x1FFF07F | low >> 5 << 25 | (low & 31) << 7)


def _add_32(r: Reference) -> None:
    r.put(r.word() + r.target & 0xFFFFFFFF)


def _subtract_32(r: Reference) -> None:
    r.put(r.word() - r.target & 0xFFFFFFFF)


# -- Arm, 32 bits: addends are in the code -----------------------------------------------------------------------------


def _extended(value: int, bits: int) -> int:
    return value - (value >> bits - 1 << bits)


def _arm_relative(r: Reference) -> None:
    r.put(_signed(r.distance + _extended(r.word(), 32), 32))


def _arm_branch(r: Reference) -> None:
    distance = r.distance + 4 * _extended(r.word() & 0xFFFFFF, 24)
    r.put(r.word() & 0xFF000000 | _signed(_aligned(distance, 4), 24))


def _arm_move(half: int) -> Resolve:
    def resolve(r: Reference) -> None:
        word = r.word()
        distance = r.distance + _extended(word >> 4 & 0xF000 | word & 0xFFF, 16)
        value = distance >> 16 * half & 0xFFFF
        r.put(word & 0xFFF0F000 | (value & 0xF000) << 4 | value & 0xFFF)

    return resolve


PROCESSORS: Mapping[int, Processor] = {
    62: Processor("x86-64", 64, True, {2: ("R_X86_64_PC32", _relative), 4: ("R_X86_64_PLT32", _relative)}),
    183: Processor(
        "aarch64",
        64,
        True,
        {
            261: ("R_AARCH64_PREL32", _relative),
            274: ("R_AARCH64_ADR_PREL_LO21", _adr),
            275: ("R_AARCH64_ADR_PREL_PG_HI21", _adrp),
            277: ("R_AARCH64_ADD_ABS_LO12_NC", _low_12(1)),
            278: ("R_AARCH64_LDST8_ABS_LO12_NC", _low_12(1)),
            282: ("R_AARCH64_JUMP26", _branch_26),
            283: ("R_AARCH64_CALL26", _branch_26),
            284: ("R_AARCH64_LDST16_ABS_LO12_NC", _low_12(2)),
            285: ("R_AARCH64_LDST32_ABS_LO12_NC", _low_12(4)),
            286: ("R_AARCH64_LDST64_ABS_LO12_NC", _low_12(8)),
            299: ("R_AARCH64_LDST128_ABS_LO12_NC", _low_12(16)),
        },
    ),
    243: Processor(
        "riscv64",
        64,
        True,
        {
            18: ("R_RISCV_CALL", _call),
            19: ("R_RISCV_CALL_PLT", _call),
            23: ("R_RISCV_PCREL_HI20", _pcrel_high),
            24: ("R_RISCV_PCREL_LO12_I", _pcrel_low_i),
            25: ("R_RISCV_PCREL_LO12_S", _pcrel_low_s),
            35: ("R_RISCV_ADD32", _add_32),
            39: ("R_RISCV_SUB32", _subtract_32),
            51: ("R_RISCV_RELAX", _ignored),
            57: ("R_RISCV_32_PCREL", _relative),
        },
        frozenset({24, 25}),
    ),
    40: Processor(
        "armv7",
        32,
        False,
        {
            3: ("R_ARM_REL32", _arm_relative),
            28: ("R_ARM_CALL", _arm_branch),
            29: ("R_ARM_JUMP24", _arm_branch),
            45: ("R_ARM_MOVW_PREL_NC", _arm_move(0)),
            46: ("R_ARM_MOVT_PREL", _arm_move(1)),
        },
    ),
}
"""By ELF's number of the machine."""
