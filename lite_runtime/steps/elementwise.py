"""Chains of elementwise operations; `kernels/_opcodes.py` defines opcodes, kinds and modes."""

from __future__ import annotations

from lite_runtime.steps.declaration import Ins, Out, Row, Step, step

__all__ = ["Chain", "Instruction", "Load", "Store"]


class Load(Row):
    """A register that is loaded from an operand or, with mode OUTPUT, uses the output's memory."""

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
    """A result computed from any number of operands, one block of elements at a time."""

    sources: Ins  # distinct inputs
    y: Out
    total: int  # elements
    block: int  # elements that all instructions process before the next block
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
