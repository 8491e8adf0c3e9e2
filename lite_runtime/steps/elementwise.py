"""Chains of elementwise operations; `kernels/_opcodes.py` says what opcodes, kinds and modes there are."""

from __future__ import annotations

from lite_runtime.steps.declaration import Ins, Out, Row, Step, step

__all__ = ["Chain", "Instruction", "Load", "Store"]


class Load(Row):
    """A register that is filled from outside, or written to."""

    kind: int
    mode: int
    register: int
    operand: int  # its number; of a constant, its bits
    parameters: int  # two float32 or one int64
    strides: tuple[int, ...]  # elements, one for each extent; 0 where the operand is broadcast


class Instruction(Row):
    """An operation on registers."""

    code: int  # opcode | destination << 8 | sources << 16, 24, 32
    parameters: int


class Store(Row):
    """An output that is converted."""

    kind: int
    register: int
    operand: int  # its number
    parameters: int


@step("elementwise.f32_chain", "elementwise.i64_chain")
class Chain(Step):
    """A result computed from any number of operands, block by block of its elements."""

    sources: Ins  # distinct inputs
    y: Out
    total: int  # elements
    block: int  # elements that every instruction passes over before the next block
    rank: int
    load_count: int
    instruction_count: int
    store_count: int
    extents: tuple[int, ...]
    loads: tuple[Load, ...]
    instructions: tuple[Instruction, ...]
    stores: tuple[Store, ...]
    operand_count: int

    counts = (
        ("extents", "rank"),
        ("loads", "load_count"),
        ("strides", "rank"),
        ("instructions", "instruction_count"),
        ("stores", "store_count"),
    )
