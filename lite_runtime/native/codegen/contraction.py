"""Which products and sums are rounded together, decided once for all targets of a shape.

Instructions with LLVM's flag `contract` may be fused. LLVM's back ends do this by rules of their own: one fuses
products that have several uses, another no vectors, and none across blocks, which depend on processors' costs. Results
would differ. So the flag ends here, in code that no back end has seen: a product that only one sum or difference uses,
both with the flag, becomes `llvm.fma` with it; all other instructions round for themselves. Without a fused
instruction, `llvm.fmuladd`, by which kernels ask for one where there is one, becomes a product and a sum.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["contracted"]

_NAME = r'%(?:[-\w.$]+|"[^"]+")'
_KIND = r"(?:<\d+ x )?(?:float|double)>?"
_ARITHMETIC = re.compile(rf"^  ({_NAME}) = (fadd|fsub|fmul) ((?:\w+ )*?)({_KIND}) (.+)$")
_MULTIPLY_ADD = re.compile(rf"^  ({_NAME}) = (?:tail )?call (?:\w+ )*?({_KIND}) @llvm\.fmuladd\.\w+\((.+)\)")
_FLAG = re.compile(r"(?<= )contract (?=\S)")


class _Arithmetic(NamedTuple):
    name: str
    operation: str
    flags: str
    kind: str
    a: str
    b: str


def contracted(text: str, fused: bool) -> str:
    """A module's text without the flag. Its functions must be inlined and in registers, or nothing is found to fuse."""
    lines, functions, kinds = list[str](), re.split(r"(?m)^(?=define )", text), set[str]()
    for function in functions:
        products = {}
        if fused and function.startswith("define "):
            products = {one.name: one for one in map(_read, function.split("\n")) if one and one.operation == "fmul"}
        uses = Counter(re.findall(_NAME, function))
        once = {name: one for name, one in products.items() if uses[name] == 2}  # itself and its use
        for line in function.split("\n"):
            one = _read(line)
            if one is not None and one.operation != "fmul" and (one.a in once or one.b in once):
                lines.extend(_fused(one, once))
                kinds.add(one.kind)
            else:
                lines.extend([line] if fused else _apart(line))
    declared = [f"declare {kind} {_intrinsic(kind)}({kind}, {kind}, {kind})" for kind in sorted(kinds)]
    lines += [line for line in declared if line.partition("(")[0] not in text]
    return _FLAG.sub("", "\n".join(lines)) + "\n"


def _read(line: str) -> _Arithmetic | None:
    """A product, sum or difference with the flag."""
    found = _ARITHMETIC.match(line)
    if found is None or "contract" not in found[3]:
        return None
    a, b, *_ = _operands(found[5])
    return _Arithmetic(found[1], found[2], found[3], found[4], a, b)


def _operands(text: str) -> Iterator[str]:
    """What commas separate, outside all brackets."""
    begin, depth = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == "," and depth == 0:
            yield text[begin:at].strip()
            begin = at + 1
    yield text[begin:].strip()


def _intrinsic(kind: str) -> str:
    count, _, element = kind.strip("<>").rpartition(" x ")
    return f"@llvm.fma.{'v' * bool(count)}{count}{'f32' if element == 'float' else 'f64'}"


def _fused(one: _Arithmetic, once: dict[str, _Arithmetic]) -> Iterator[str]:
    """a * b + c, a * b - c or c - a * b as one instruction; two products: the first is fused."""
    name, operation, _, kind, a, b = one
    product, other = (once[a], b) if a in once else (once[b], a)
    left, right = product.a, product.b
    negated = f'%"{name.strip(chr(34) + "%")}.negated"'
    if operation == "fsub":
        yield f"  {negated} = fneg {kind} {other if a in once else left}"
        left, other = (left, negated) if a in once else (negated, other)
    yield f"  {name} = call {kind} {_intrinsic(kind)}({kind} {left}, {kind} {right}, {kind} {other})"


def _apart(line: str) -> Iterator[str]:
    """llvm.fmuladd as two instructions."""
    found = _MULTIPLY_ADD.match(line)
    if found is None:
        yield line
        return
    name, kind = found[1], found[2]
    a, b, c = (operand.removeprefix(kind).strip() for operand in _operands(found[3]))
    product = f'%"{name.strip(chr(34) + "%")}.product"'
    yield f"  {product} = fmul {kind} {a}, {b}"
    yield f"  {name} = fadd {kind} {product}, {c}"
