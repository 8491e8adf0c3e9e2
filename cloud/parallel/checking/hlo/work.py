"""The work of an instruction of a compiled program: FLOPs of contractions, bytes read and written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np

from cloud.parallel.checking.hlo.text import Array, Computation, Instruction, Module, Shape, arrays, shape_bytes

__all__ = ["NO_KERNEL", "contraction", "moved"]

NO_KERNEL = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
    "opt-barrier", "while", "conditional", "call", "domain", "add-dependency", "async-start", "async-update",
    "async-done", "copy-start", "copy-done",
})  # fmt: skip
"""Opcodes that are not kernels: names for values, and control."""

Operands = Sequence[Instruction]


def contraction(one: Instruction, inside: Computation, module: Module) -> tuple[float, str]:
    """FLOPs of the matrix products and convolutions in an instruction (2 per multiply-add, without those on
    padding and dilation gaps), and the type of their operands; (0, "") if there are none."""
    found = [_flops(part, within) for part, within in _fused(one, inside, module)]
    return sum(flops for flops, _ in found), next((dtype for flops, dtype in found if flops), "")


def _fused(one: Instruction, inside: Computation, module: Module) -> Iterator[tuple[Instruction, Computation]]:
    """The instruction, or the instructions inside a fusion, each with its computation."""
    if one.opcode != "fusion":
        yield one, inside
        return
    for name in one.called("calls"):
        called = module.computations[name]
        for part in called.instructions.values():
            yield from _fused(part, called, module)


def _flops(one: Instruction, inside: Computation) -> tuple[float, str]:
    rule = _CONTRACTIONS.get(_kind(one))
    if rule is None:
        return 0.0, ""
    operands = [inside.instructions[name] for name in one.operands]
    return rule(one, operands), _first(operands[0].shape).dtype


def _kind(one: Instruction) -> str:
    """The opcode, or the name of a library call."""
    if one.opcode != "custom-call":
        return one.opcode
    target = (one.attribute("custom_call_target") or "").strip('"')
    return "matmul" if target.startswith(_MATMULS) else target


_MATMULS = ("__cublas$gemm", "__cublas$lt$matmul", "__onednn$matmul")


def _first(shape: Shape) -> Array:
    """The computed results of a library call, without the workspace that follows them."""
    return next(arrays(shape))


def _dot(one: Instruction, operands: Operands) -> float:
    left = _first(operands[0].shape).dims
    return 2.0 * _first(one.shape).size * math.prod(left[dim] for dim in one.numbers("lhs_contracting_dims"))


def _library_dot(one: Instruction, operands: Operands) -> float:
    left = _first(operands[0].shape).dims
    numbers = one.config.get("gemm_backend_config", {}).get("dot_dimension_numbers", {})
    dims = [int(dim) for dim in numbers.get("lhs_contracting_dimensions", ())] or [len(left) - 1]
    return 2.0 * _first(one.shape).size * math.prod(left[dim] for dim in dims)


def _convolution(source: int, kernel: int, result: int) -> Callable[[Instruction, Operands], float]:
    """A rule for convolutions whose input, kernel and output are these operands, -1 being the call's own result:
    gradients are calls that name their convolution."""

    def rule(one: Instruction, operands: Operands) -> float:
        shapes = [_first(shape).dims for shape in (*(operand.shape for operand in operands), one.shape)]
        return _positions(one, shapes[source], shapes[kernel], shapes[result])

    return rule


def _positions(one: Instruction, source: Sequence[int], kernel: Sequence[int], result: Sequence[int]) -> float:
    names = re.fullmatch(r"(\w+)_(\w+)->(\w+)", one.attribute("dim_labels") or "")
    if names is None:
        return 0.0
    window = _window(one.attribute("window") or "{}")
    pairs = 1.0
    for index, dim in enumerate(sorted(label for label in names[3] if label.isdigit())):
        size = kernel[names[2].index(dim)]
        pairs *= _pairs(source[names[1].index(dim)], size, result[names[3].index(dim)],
                        *(window[key][index] if key in window else default for key, default in _WINDOW))  # fmt: skip
    rows, features = result[names[3].index("b")], result[names[3].index("f")]
    return 2.0 * pairs * rows * features * kernel[names[2].index("i")]


_WINDOW = (("stride", 1), ("pad", 0), ("lhs_dilate", 1), ("rhs_dilate", 1))


def _window(text: str) -> Mapping[str, list[int]]:
    """Parse `{size=3x3 pad=1_1x1_1}`; of padding, only the amount before."""
    found = re.findall(r"(\w+)=([\dx_\-]+)", text)
    return {key: [int(part.split("_")[0]) for part in value.split("x")] for key, value in found}


@lru_cache(maxsize=4096)
def _pairs(source: int, kernel: int, result: int, stride: int, pad: int, holes: int, spread: int) -> int:
    """The number of pairs (output position, kernel position) of one dimension that read an element of the input."""
    at = np.arange(result)[:, None] * stride + np.arange(kernel)[None, :] * spread - pad
    return int(np.count_nonzero((at >= 0) & (at <= (source - 1) * holes) & (at % holes == 0)))


_CONTRACTIONS: Mapping[str, Callable[[Instruction, Operands], float]] = {
    "dot": _dot,
    "matmul": _library_dot,
    "convolution": _convolution(0, 1, -1),
    "__cudnn$convForward": _convolution(0, 1, -1),
    "__cudnn$convBiasActivationForward": _convolution(0, 1, -1),
    "__cudnn$convBackwardInput": _convolution(-1, 1, 0),
    "__cudnn$convBackwardFilter": _convolution(0, -1, 1),
}


# Opcodes that read a part of their first operand, and those that update a part of it in place (with the operand that
# holds the part).
_PIECES = ("dynamic-slice", "slice", "gather")
_PATCHES: Mapping[str, int] = {"dynamic-update-slice": 1, "scatter": 2}
_NAMES = ("bitcast", "tuple", "get-tuple-element")


def moved(one: Instruction, inside: Computation, module: Module) -> float:
    """Bytes of memory that a kernel reads and writes: its operands and results; only the part where it reads or updates
    a part."""
    operands = [inside.instructions[name] for name in one.operands]
    if one.opcode != "fusion":
        return _written(one, inside) + sum(_read(operand, [one]) for operand in operands)
    called = module.computations[one.called("calls")[0]]
    read = sum(_read(parameter, _users(parameter, called)) for parameter in called.parameters)
    return read + sum(_written(root, called) for root in _roots(called.result, called))


def _read(value: Instruction, users: Sequence[Instruction]) -> float:
    whole = shape_bytes(value.shape)
    pieces = 0.0
    for user in users:
        first = user.operands[:1] == (value.name,) or user.opcode not in (*_PIECES, *_PATCHES)
        if first and user.opcode in _PIECES:
            pieces += shape_bytes(user.shape)
        elif not (first and user.opcode in _PATCHES):
            return whole
    return min(pieces, whole)


def _users(value: Instruction, inside: Computation) -> list[Instruction]:
    """The instructions that read a value, also under another name."""
    found = []
    for user in inside.instructions.values():
        if value.name in user.operands:
            if user.opcode == "bitcast":
                found += [_renamed(again, user, value) for again in _users(user, inside)]
            else:
                found.append(user)
    return found


def _renamed(user: Instruction, name: Instruction, value: Instruction) -> Instruction:
    inside = ", ".join(value.name if operand == name.name else operand for operand in user.operands)
    return Instruction(user.name, user.shape, user.opcode, inside, user.tail)


def _roots(root: Instruction, inside: Computation) -> list[Instruction]:
    """The instructions that compute a fusion's results."""
    if root.opcode not in _NAMES:
        return [root]
    return [part for name in root.operands for part in _roots(inside.instructions[name], inside)]


def _written(one: Instruction, inside: Computation) -> float:
    if one.opcode in _PATCHES:
        return shape_bytes(inside.instructions[one.operands[_PATCHES[one.opcode]]].shape)
    if one.opcode == "parameter":
        return 0.0
    if _kind(one) in _CONTRACTIONS:
        return _first(one.shape).bytes
    return shape_bytes(one.shape)
