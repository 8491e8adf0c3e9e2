"""Compiled programs as XLA prints them (HLO text): computations of instructions. Shapes, operands and
attributes are parsed on demand; layouts are skipped."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from cloud.errors import PlanError

__all__ = ["Array", "Computation", "Instruction", "Module", "Shape", "arrays", "items", "parse", "shape_bytes"]


@dataclass(frozen=True, slots=True)
class Array:
    """Element type by its HLO name ("f32", "bf16", "pred"), and dimensions."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Size; types narrower than a byte are packed."""
        return (self.size * _bits(self.dtype) + 7) // 8


Shape: TypeAlias = "Array | tuple[Shape, ...]"


def arrays(shape: Shape) -> Iterator[Array]:
    """The arrays of a shape, from left to right."""
    if isinstance(shape, Array):
        yield shape
    else:
        for part in shape:
            yield from arrays(part)


def shape_bytes(shape: Shape) -> int:
    """Bytes of all its arrays."""
    return sum(array.bytes for array in arrays(shape))


def _bits(dtype: str) -> int:
    if dtype == "pred":
        return 8
    width = re.match(r"[a-z]+(\d+)", dtype)
    return int(width[1]) if width else 0  # token and opaque take no memory


@dataclass(frozen=True, slots=True)
class Instruction:
    """`%name = shape opcode(operands), attributes`. `inside`: the text between the parentheses."""

    name: str
    shape: Shape
    opcode: str
    inside: str
    tail: str

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of its operand instructions."""
        if self.opcode in ("constant", "parameter"):
            return ()
        return tuple(item.split()[-1].lstrip("%") for item in items(self.inside))

    def attribute(self, key: str) -> str | None:
        """The text after `key=`, None if it is absent."""
        if f"{key}=" not in self.tail:
            return None
        prefix = f"{key}="
        parts = list(items(self.tail))
        at = next((at for at, part in enumerate(parts) if part.startswith(prefix)), None)
        if at is None:
            return None
        # For a mesh whose devices are in another order, the attribute continues after a comma.
        more = [f", {part}" for part in parts[at + 1 : at + 2] if part.startswith("device_ids=")]
        return "".join([parts[at][len(prefix) :], *more])

    def numbers(self, key: str) -> tuple[int, ...]:
        """The integers of the attribute `{1,2}`; empty if it is absent."""
        return tuple(int(number) for number in re.findall(r"\d+", self.attribute(key) or ""))

    def called(self, key: str) -> tuple[str, ...]:
        """Names of the computations in the attribute `key`: `%a`, or `{%a, %b}`."""
        return tuple(item.lstrip("%") for item in items((self.attribute(key) or "").strip("{}")))

    @property
    def config(self) -> Mapping[str, Any]:
        """The backend's configuration if it is JSON; else empty."""
        try:
            found = json.loads(self.attribute("backend_config") or "{}")
        except json.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def where(self) -> str:
        """JAX's name of the operation, such as `jit(step)/jvp()/dot_general`; else the instruction's."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.tail)
        return found[1] if found else self.name


@dataclass(frozen=True, slots=True)
class Computation:
    """Instructions by name, in printed order, which is the execution order of scheduled programs."""

    name: str
    instructions: Mapping[str, Instruction]
    root: str

    @property
    def result(self) -> Instruction:
        """The instruction that gives its result."""
        return self.instructions[self.root]

    @property
    def parameters(self) -> tuple[Instruction, ...]:
        """In the order of their numbers."""
        found = [one for one in self.instructions.values() if one.opcode == "parameter"]
        return tuple(sorted(found, key=lambda one: int(one.inside)))


@dataclass(frozen=True, slots=True)
class Module:
    """`entry` names the main computation."""

    computations: Mapping[str, Computation]
    entry: str


_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_LINE = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_COMMENT = re.compile(r"/\*.*?\*/")
_MARKS = re.compile(r'["(){}\[\]]|\\.')


def parse(text: str) -> Module:
    """Parse the result of `compiled.as_text()`. Raises `PlanError` for text that is not HLO."""
    computations: dict[str, Computation] = {}
    entry, name, root = "", "", ""
    body: dict[str, Instruction] = {}
    for line in text.splitlines():
        if line == "}" or line.startswith("}, "):
            computations[name] = Computation(name, body, root or next(reversed(body), ""))
        elif not line.startswith(" "):
            header = _HEADER.fullmatch(line.rstrip())
            if header and not line.startswith("HloModule"):
                name, body, root = header[2], {}, ""
                entry = name if header[1] else entry
        elif found := _LINE.match(line):
            body[found[2]] = _instruction(found[2], line, found.end())
            root = found[2] if found[1] else root
    if entry not in computations:
        raise PlanError(f"expected the HLO text of a compiled program, with an ENTRY computation; got {text[:80]!r}")
    return Module(computations, entry)


def _instruction(name: str, line: str, start: int) -> Instruction:
    text = _COMMENT.sub("", line[start:]) if "/*index=" in line else line[start:]
    shape, end = _shape(text, 0)
    opcode = _OPCODE.match(text, end)
    if not opcode:
        raise PlanError(f"expected an HLO instruction; got {line.strip()[:120]!r}")
    close = _closing(text, opcode.end() - 1)
    return Instruction(name, shape, opcode[1], text[opcode.end() : close], text[close + 1 :].lstrip(", "))


def _shape(text: str, at: int) -> tuple[Shape, int]:
    """The shape that starts at `at`, and where it ends."""
    while text[at] in " ,":
        at += 1
    if text[at] == "(":
        parts: list[Shape] = []
        at += 1
        while text[at] != ")":
            part, at = _shape(text, at)
            parts.append(part)
            while text[at] in " ,":
                at += 1
        return tuple(parts), at + 1
    bracket = text.index("[", at)
    close = text.index("]", bracket)
    dims = tuple(int(size.strip().removeprefix("<=")) for size in text[bracket + 1 : close].split(",") if size.strip())
    end = close + 1
    if text[end : end + 1] == "{":
        end = _closing(text, end) + 1
    return Array(text[at:bracket], dims), end


def _closing(text: str, start: int) -> int:
    """Where the bracket at `start` closes; brackets in quoted text do not count."""
    depth, quoted = 0, False
    for mark in _MARKS.finditer(text, start):
        sign = mark[0]
        if sign == '"':
            quoted = not quoted
        elif not quoted and sign in "({[":
            depth += 1
        elif not quoted and sign in ")}]":
            depth -= 1
            if depth == 0:
                return mark.start()
    raise PlanError(f"expected a closing bracket in the HLO text; got {text[start : start + 120]!r}")


def items(text: str) -> Iterator[str]:
    """The parts of a list that commas separate, brackets and quoted text kept together."""
    at = start = 0
    while at < len(text):
        if text[at] in "({[":
            at = _closing(text, at)
        elif text[at] == '"':
            at = re.compile(r'"(?:[^"\\]|\\.)*"').match(text, at).end() - 1  # type: ignore[union-attr]
        elif text[at] == ",":
            yield text[start:at].strip()
            start = at + 1
        at += 1
    if text[start:].strip():
        yield text[start:].strip()
