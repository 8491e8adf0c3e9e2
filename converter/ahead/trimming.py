"""The loops that a model's elementwise chains use, by the names of `native/objects.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lite_runtime.kernels._opcodes import CONSTANT, DENSE, KINDS, OUTPUT
from lite_runtime.steps.reading import read

__all__ = ["loops_of"]

_ELEMENTS = {"elementwise.f32_chain": "float32", "elementwise.i64_chain": "int64"}
"""Elements of registers, by kernel. Blocks that are not whole are always loaded and stored as these."""
_OPCODE = 255


def loops_of(records: Iterable[tuple[str, Sequence[int]]]) -> list[str]:
    """The loops of all chains among these records (kernel, words), sorted."""
    found = set[str]()
    for kernel, words in records:
        if kernel in _ELEMENTS:
            element, numbers = _ELEMENTS[kernel], read(kernel, words).numbers
            loads = {load["kind"] for load in numbers["loads"] if load["mode"] not in (CONSTANT, DENSE, OUTPUT)}
            parts = {"op": {row["code"] & _OPCODE for row in numbers["instructions"]}}
            parts["load"] = {KINDS[element], *loads}
            parts["store"] = {KINDS[element], *(row["kind"] for row in numbers["stores"])}
            found |= {f"{element}.{part}{number}" for part, some in parts.items() for number in some}
    return sorted(found)
