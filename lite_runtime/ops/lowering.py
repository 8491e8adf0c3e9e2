"""Elementwise nodes as instructions of the machines in kernels/elementwise.py: one rule per operator."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Node
from lite_runtime.kernels import _opcodes as codes
from lite_runtime.operators import OPERATORS, Operator, attributes, family
from lite_runtime.ops.registry import NoKernel, Spec

__all__ = ["RULES", "Affine", "Instruction", "Machine", "Outer", "Program", "lower", "machine_of", "may_pass"]


class Affine(NamedTuple):
    """How integers represent numbers: (x - zero) * scale."""

    zero: float = 0.0
    scale: float = 1.0


AS_IT_IS = Affine()


class Outer(NamedTuple):
    """A value from outside the chain: its name or contents, its type, its shape aligned to the output's last axes, and
    how its integers represent numbers."""

    source: str | Array
    dtype: str
    shape: tuple[int, ...]
    affine: Affine = AS_IT_IS

    def __hash__(self) -> int:
        return hash((self.source if isinstance(self.source, str) else id(self.source), self.shape, self.affine))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Outer) or self.shape != other.shape or self.affine != other.affine:
            return False
        return self.source is other.source or (isinstance(self.source, str) and self.source == other.source)


class Instruction(NamedTuple):
    """value = op(sources, parameters)."""

    value: int
    op: str
    sources: tuple[int, ...]
    parameters: tuple[float, ...] = ()


class Machine(NamedTuple):
    """A machine of the kernels. `native`: its registers' type; `inner`: types of values between a chain's nodes."""

    kernel: str
    native: str
    inner: frozenset[str]
    codes: Mapping[str, int]

    def word(self, value: float) -> int:
        """A constant as a word of a step record."""
        return _float_words(value) if self.native == "float32" else int(value)

    def parameters(self, values: Sequence[float]) -> int:
        """An instruction's second word."""
        return _float_words(*values) if self.native == "float32" else int(values[0]) if values else 0


def _float_words(*values: float) -> int:
    first, second = [*values, 0.0, 0.0][:2]
    return int(struct.unpack("<q", np.array([first, second], np.float32).tobytes())[0])


_OTHER_FLOATS = ("float16", "float64")
_INTS = frozenset("uint8 int8 uint16 int16 uint32 int32 int64".split())
FLOATS = Machine(
    "elementwise.f32_chain",
    "float32",
    frozenset({"float32", "bool"}),
    {name: code for code, name in enumerate(codes.FLOAT_OPS)},
)
INTS = Machine(
    "elementwise.i64_chain", "int64", _INTS | {"bool"}, {name: code for code, name in enumerate(codes.INT_OPS)}
)


def machine_of(node: Node, specs: Mapping[str, Spec]) -> Machine | None:
    """The machine that computes a node of these types; None if no machine does."""
    if node.op not in RULES or not node.outputs[0] or any(node.outputs[1:]):
        return None
    result = specs[node.outputs[0]].dtype
    inputs = [specs[name].dtype for name in node.inputs if name]
    if node.op in ("Cast", "CastLike"):
        types = {inputs[0], result}
        if not types <= set(codes.KINDS):
            return None
        if "float32" in types or types == {"bool"} or (inputs[0] in codes.QUANTISED and result in _OTHER_FLOATS):
            return FLOATS
        return INTS if types <= INTS.inner else None
    if node.op in _SCALING:
        return FLOATS if _scales(node, inputs, result) else None
    types = {*inputs, result}
    if node.op == "Pow" and result == "float32":
        types = {result}
    if types <= FLOATS.inner:
        return FLOATS
    return INTS if types <= INTS.inner else None


_SCALING = frozenset({"QuantizeLinear", "DequantizeLinear"})
_PLAIN = (0, 1, "float32")
"""Values of type attributes that mean float32, or that leave the type to the operands."""


def _scales(node: Node, inputs: Sequence[str], result: str) -> bool:
    """Whether FLOATS quantises or dequantises these types: float32, with one scale or one per index of an axis."""
    if node.attrs.get("block_size", 0) or node.attrs.get("precision", 0) not in _PLAIN or inputs[1] != "float32":
        return False
    if node.op == "QuantizeLinear":
        return inputs[0] == "float32" and result in codes.QUANTISED
    return inputs[0] in (*codes.QUANTISED, "int32") and result == "float32"


def may_pass(node: Node, specs: Mapping[str, Spec], machine: Machine) -> bool:
    """Whether a machine's registers can pass this node's result to its readers."""
    return node.op == "QuantizeLinear" or specs[node.outputs[0]].dtype in machine.inner


# -- a chain being lowered --------------------------------------------------------------------------------------------


class Program:
    """A chain as instructions over numbered values. `sources`: values from outside, or constants."""

    def __init__(
        self,
        machine: Machine,
        specs: Mapping[str, Spec],
        known: Mapping[str, Array],
        shape: tuple[int, ...],
        dtype: str,
    ) -> None:
        self.machine, self.specs, self.known = machine, specs, known
        self.shape, self.dtype = shape, dtype
        self.sources: dict[int, Outer | float] = {}
        self.instructions: list[Instruction] = []
        self.result = -1
        self.store: Affine | None = None
        """The parameters that quantise the result when it is stored; None: it is converted."""
        self.named: dict[str, int] = {}
        self._numbers: dict[Outer | tuple[str, float], int] = {}
        self._next = 0

    def _number(self, key: Outer | tuple[str, float], source: Outer | float) -> int:
        if key not in self._numbers:
            self._numbers[key] = self._fresh()
            self.sources[self._numbers[key]] = source
        return self._numbers[key]

    def _fresh(self) -> int:
        self._next += 1
        return self._next

    def arg(self, node: Node, i: int) -> int:
        """Input `i` of a node, broadcast as NumPy does."""
        name = node.inputs[i]
        if name in self.named:
            return self.named[name]
        value = self.scalar(node, i)
        if value is not None:
            return self.constant(value)
        return self.outer(name, self.specs[name].dtype, self.specs[name].shape)

    def outer(self, source: str | Array, dtype: str, shape: tuple[int, ...], affine: Affine = AS_IT_IS) -> int:
        """A value from outside; its shape is aligned to the output's last axes."""
        outer = Outer(source, dtype, shape, affine)
        return self._number(outer, outer)

    def constant(self, value: float) -> int:
        """The same value for all elements."""
        key = value.hex() if isinstance(value, float) else repr(value)
        return self._number((key, 0.0), value)

    def has(self, node: Node, i: int) -> bool:
        """Whether the node has its optional input `i`."""
        return i < len(node.inputs) and node.inputs[i] != ""

    def scalar(self, node: Node, i: int) -> float | None:
        """The only element of input `i` if it is known now and has the machine's type."""
        array = self.known.get(node.inputs[i])
        if array is None or array.size != 1 or node.inputs[i] in self.named:
            return None
        if array.dtype.name not in self.machine.inner:
            return None
        value = array.reshape(()).item()
        return float(value) if self.machine is FLOATS else int(value)

    def emit(self, op: str, *sources: int, parameters: tuple[float, ...] = ()) -> int:
        """Append an instruction; returns the number of its value."""
        if op not in self.machine.codes:
            raise NoKernel(f"{op} in {self.machine.kernel}")
        value = self._fresh()
        self.instructions.append(Instruction(value, op, sources, parameters))
        return value


def lower(nodes: Sequence[Node], specs: Mapping[str, Spec], known: Mapping[str, Array]) -> Program:
    """A chain's program. known: contents of constant outer values; the more are known, the shorter the program."""
    end = nodes[-1]
    machine = machine_of(end, specs)
    if machine is None:
        raise NoKernel(f"{end.op} on these types")
    spec = specs[end.outputs[0]]
    program = Program(machine, specs, known, spec.shape, spec.dtype)
    for node in nodes:
        value = RULES[node.op](program, node)
        program.named[node.outputs[0]] = _wrapped(program, node, value)
    program.result = program.named[end.outputs[0]]
    _finish(program)
    return program


def _finish(p: Program) -> None:
    """Let the store convert the result if it can; otherwise make sure that the last instruction writes it."""
    last = p.instructions[-1] if p.instructions else None
    if last is not None and last.value == p.result and last.op == _QUANTIZE.get(p.dtype):
        p.store = AS_IT_IS
        if codes.MODERATE[0] <= last.parameters[1] <= codes.MODERATE[1]:
            p.instructions.pop()
            p.store = Affine(*last.parameters)
            (p.result,) = last.sources
    elif p.dtype == p.machine.native and (last is None or last.value != p.result):
        p.result = p.emit("Copy", p.result)


_QUANTIZE = {name: f"Quantize{name.capitalize()}" for name in codes.QUANTISED}


_WRAPS = {f"{sign}int{bits}": f"Wrap{sign.upper()}{bits}" for sign in ("", "u") for bits in (8, 16, 32)}


def _wrapped(p: Program, node: Node, value: int) -> int:
    """Wrap a result of fewer than 64 bits to its type."""
    wrap = _WRAPS.get(p.specs[node.outputs[0]].dtype)
    return p.emit(wrap, value) if wrap and p.machine is INTS and "wraps" in OPERATORS[node.op].traits else value


# -- rules ------------------------------------------------------------------------------------------------------------

Rule: TypeAlias = Callable[[Program, Node], int]
RULES: dict[str, Rule] = {}
"""By operator: emits a node's instructions and returns the number of its result."""


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


@_rule("Greater", "GreaterOrEqual")
def _greater(p: Program, node: Node) -> int:
    """a > b is b < a."""
    op = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}[node.op]
    return p.emit(op, p.arg(node, 1), p.arg(node, 0))


@_rule("IsInf")
def _is_inf(p: Program, node: Node) -> int:
    signs = (float(bool(node.attrs.get(f"detect_{sign}", 1))) for sign in ("negative", "positive"))
    return p.emit("IsInf", p.arg(node, 0), parameters=tuple(signs))


@_rule("Shrink")
def _shrink(p: Program, node: Node) -> int:
    lambd, bias = float(node.attrs.get("lambd", 0.5)), float(node.attrs.get("bias", 0.0))  # type: ignore[arg-type]
    return p.emit("ShrinkBias" if bias else "ShrinkFlat", p.arg(node, 0), parameters=(lambd, bias))


@_rule("Gelu")
def _gelu(p: Program, node: Node) -> int:
    return p.emit("GeluTanh" if node.attrs.get("approximate", "none") == "tanh" else "Gelu", p.arg(node, 0))


@_rule("SwiGLU")
def _swiglu(p: Program, node: Node) -> int:
    alpha = float(node.attrs.get("alpha", 1.0))  # type: ignore[arg-type]
    return p.emit("Mul", p.emit("Swish", p.arg(node, 0), parameters=(alpha,)), p.arg(node, 1))


def _scalars(p: Program, node: Node) -> tuple[float | None, float | None]:
    """Both operands, if they are constants that the machine takes as parameters."""
    if p.machine is INTS:
        return None, None
    return p.scalar(node, 0), p.scalar(node, 1)


@_rule("Add", "Mul")
def _add_mul(p: Program, node: Node) -> int:
    a, b = _scalars(p, node)
    if b is not None:
        return p.emit(f"{node.op}By", p.arg(node, 0), parameters=(b,))
    if a is not None:
        return p.emit(f"{node.op}By", p.arg(node, 1), parameters=(a,))
    return p.emit(node.op, p.arg(node, 0), p.arg(node, 1))


@_rule("Sub")
def _sub(p: Program, node: Node) -> int:
    a, b = _scalars(p, node)
    if b is not None:
        return p.emit("AddBy", p.arg(node, 0), parameters=(-b,))
    if a is not None:
        return p.emit("SubFrom", p.arg(node, 1), parameters=(a,))
    return p.emit("Sub", p.arg(node, 0), p.arg(node, 1))


@_rule("Div")
def _div(p: Program, node: Node) -> int:
    """Division by a power of two becomes a multiplication by its reciprocal, which is equally exact."""
    a, b = _scalars(p, node)
    if b is not None and abs(np.frexp(b)[0]) == 0.5 and 2.0**-126 <= abs(b) <= 2.0**126:
        return p.emit("MulBy", p.arg(node, 0), parameters=(1 / b,))
    if a is not None:
        return p.emit("DivInto", p.arg(node, 1), parameters=(a,))
    return p.emit("Div", p.arg(node, 0), p.arg(node, 1))


@_rule("Mod")
def _mod(p: Program, node: Node) -> int:
    return p.emit("FMod" if node.attrs.get("fmod", 0) else "Mod", p.arg(node, 0), p.arg(node, 1))


_POWERS = {0.5: "PowHalf", 1.0: "Copy", 2.0: "Square", 3.0: "Cube", -1.0: "Reciprocal"}


@_rule("Pow")
def _pow(p: Program, node: Node) -> int:
    exponent = p.known.get(node.inputs[1])
    if exponent is not None and exponent.size == 1 and node.inputs[1] not in p.named:
        value = float(exponent.reshape(()).item())
        if value in _POWERS:
            return p.emit(_POWERS[value], p.arg(node, 0))
        if p.machine is FLOATS:
            return p.emit("Pow", p.arg(node, 0), p.constant(value))
    if p.specs[node.inputs[1]].dtype != "float32":
        raise NoKernel("Pow by integers that are not known when planning")
    return p.emit("Pow", p.arg(node, 0), p.arg(node, 1))


@_rule("BitShift")
def _bit_shift(p: Program, node: Node) -> int:
    op = "ShiftLeft" if node.attrs.get("direction") == "LEFT" else "ShiftRight"
    return p.emit(op, p.arg(node, 0), p.arg(node, 1))


@_rule("FixedPointSigmoid", "FixedPointTanh")
def _fixed_point(p: Program, node: Node) -> int:
    if node.attrs.get("interpolated", 0):
        return p.emit(node.op.replace("FixedPoint", "Table"), p.arg(node, 0))
    bits = node.attrs.get("integer_bits", 3)
    return p.emit(node.op, p.arg(node, 0), parameters=(float(bits),))  # type: ignore[arg-type]


@_rule("FixedPointRsqrt")
def _fixed_point_root(p: Program, node: Node) -> int:
    return p.emit("InverseRoot" if node.attrs.get("part") == "MULTIPLIER" else "InverseRootShift", p.arg(node, 0))


@_rule("FixedPointDiv")
def _fixed_point_div(p: Program, node: Node) -> int:
    multiplier, shift = (int(node.attrs[name]) for name in ("multiplier", "shift"))  # type: ignore[arg-type]
    return p.emit("FixedPointDiv", p.arg(node, 0), p.arg(node, 1), parameters=(float(64 * multiplier + shift),))


@_rule("Rescale")
def _rescale(p: Program, node: Node) -> int:
    """Saturated to the result's type."""
    value = p.arg(node, 0)
    if p.has(node, 4) and p.scalar(node, 4) != 0:
        value = p.emit("Sub", value, p.arg(node, 4))
    rounding = str(node.attrs.get("rounding")).capitalize()
    value = p.emit(f"Rescale{rounding}", value, p.arg(node, 1), p.arg(node, 2))
    if p.scalar(node, 3) != 0:
        value = p.emit("Add", value, p.arg(node, 3))
    ends = np.iinfo(p.specs[node.outputs[0]].dtype)
    return p.emit("Min", p.emit("Max", value, p.constant(int(ends.min))), p.constant(int(ends.max)))


_FOLDS = {"Max": "Max", "Min": "Min", "Sum": "Add", "Mean": "Add"}


@_rule(*_FOLDS)
def _fold(p: Program, node: Node) -> int:
    value = p.arg(node, 0)
    for i in range(1, len(node.inputs)):
        value = p.emit(_FOLDS[node.op], value, p.arg(node, i))
    if node.op == "Mean" and len(node.inputs) > 1:
        value = p.emit("Div", value, p.constant(float(len(node.inputs))))
    return value


@_rule("Clip")
def _clip(p: Program, node: Node) -> int:
    bounds = [p.has(node, i) for i in (1, 2)]
    if p.machine is FLOATS:
        low = p.scalar(node, 1) if bounds[0] else -np.inf
        high = p.scalar(node, 2) if bounds[1] else np.inf
        if low is not None and high is not None and low == low and high == high:
            return p.emit("Clip", p.arg(node, 0), parameters=(low, high))
    value = p.arg(node, 0)
    for i, op in ((1, "Max"), (2, "Min")):
        if bounds[i - 1]:
            shape = p.specs[node.inputs[i]].shape
            if shape != () and node.inputs[i] not in p.named and p.scalar(node, i) is None:
                value = p.emit(op, value, p.outer(node.inputs[i], p.specs[node.inputs[i]].dtype, ()))
            else:
                value = p.emit(op, value, p.arg(node, i))
    return value


@_rule("Cast", "CastLike")
def _cast(p: Program, node: Node) -> int:
    """Loads and stores convert; within a chain only a conversion to boolean needs an instruction."""
    source, target = p.specs[node.inputs[0]].dtype, p.specs[node.outputs[0]].dtype
    name = node.inputs[0]
    if name in p.named or source in p.machine.inner:
        value = p.arg(node, 0)
    else:
        value = p.outer(name, source, p.specs[name].shape)
    if target == "bool" and source != "bool":
        if p.machine is FLOATS and source not in ("float32", "float16"):
            raise NoKernel("a float64 that is not 0 may round to it")
        return p.emit("Bool", value)
    return value


def _scaling_operand(p: Program, node: Node, i: int, axis: int) -> int | float:
    """A scale or zero point: a float if it is known and the same for all elements, otherwise the number of a value."""
    name = node.inputs[i]
    array, spec = p.known.get(name), p.specs[name]
    if name in p.named:
        return p.named[name]
    if array is not None and array.size and np.all(array == array.flat[0]):
        return float(array.flat[0])
    shape = () if spec.size == 1 else (*spec.shape, *(1,) * (len(p.shape) - 1 - axis))
    return p.outer(name, spec.dtype, shape)


def _scaling(p: Program, node: Node) -> tuple[int | float, int | float]:
    """(zero point, scale): floats if both are known numbers, otherwise numbers of values."""
    axis = int(node.attrs.get("axis", 1))  # type: ignore[arg-type]
    axis += len(p.shape) if axis < 0 else 0
    zero = _scaling_operand(p, node, 2, axis) if p.has(node, 2) else 0.0
    return zero, _scaling_operand(p, node, 1, axis)


@_rule("DequantizeLinear")
def _dequantize(p: Program, node: Node) -> int:
    """(x - zero point) * scale, computed while x is loaded if both are numbers."""
    name = node.inputs[0]
    spec = p.specs[name]
    zero, scale = _scaling(p, node)
    if spec.dtype == "int32" and zero != 0.0:
        raise NoKernel("differences of more than 24 bits")
    if name not in p.named and isinstance(zero, float) and isinstance(scale, float):
        return p.outer(name, spec.dtype, spec.shape, Affine(zero, scale))
    value = p.named[name] if name in p.named else p.outer(name, spec.dtype, spec.shape)
    if isinstance(zero, int):
        value = p.emit("Sub", value, zero)
    elif zero:
        value = p.emit("AddBy", value, parameters=(-zero,))
    return p.emit("Mul", value, scale) if isinstance(scale, int) else p.emit("MulBy", value, parameters=(scale,))


@_rule("QuantizeLinear")
def _quantize(p: Program, node: Node) -> int:
    """x / scale rounded, plus the zero point, saturated: one instruction if both are numbers."""
    quantize = _QUANTIZE[p.specs[node.outputs[0]].dtype]
    value = p.arg(node, 0)
    zero, scale = _scaling(p, node)
    if isinstance(zero, float) and isinstance(scale, float):
        return p.emit(quantize, value, parameters=(zero, scale))
    quotient = p.emit("Div", value, scale if isinstance(scale, int) else p.constant(scale))
    if isinstance(zero, float):
        return p.emit(quantize, quotient, parameters=(zero, 1.0))
    return p.emit(quantize, p.emit("Add", p.emit("Round", quotient), zero), parameters=(0.0, 1.0))


@_rule("BatchNormalization")
def _batch_normalization(p: Program, node: Node) -> int:
    """(x - mean) * scale / sqrt(variance + epsilon) + shift; all but x have one value per channel."""
    if node.attrs.get("training_mode", 0):
        raise NoKernel("training mode")
    rank = len(p.shape)
    after = 0 if node.attrs.get("layout", "NCHW") == "NHWC" or rank < 2 else rank - 2
    epsilon = float(node.attrs.get("epsilon", 1e-5))  # type: ignore[arg-type]
    x = p.arg(node, 0)
    shape = (*p.specs[node.inputs[1]].shape, *(1,) * after)
    contents = [p.known.get(name) for name in node.inputs[1:]]
    if all(a is not None for a in contents):
        scale, shift, mean, variance = (np.asarray(a, np.float64) for a in contents)
        factor = scale / np.sqrt(variance + epsilon)
        rows = [np.ascontiguousarray(a, np.float32) for a in (factor, shift - mean * factor)]
        return p.emit("MulAdd", x, *(p.outer(row, "float32", shape) for row in rows))
    scale_, shift_, mean_, variance_ = (p.outer(name, "float32", shape) for name in node.inputs[1:])
    centred = p.emit("Sub", x, mean_)
    spread = p.emit("AddBy", variance_, parameters=(epsilon,))
    return p.emit("Add", p.emit("Normalize", centred, scale_, spread), shift_)


# -- operators that are one instruction -------------------------------------------------------------------------------


def _one_instruction(record: Operator) -> Rule:
    """The operator's own instruction, or that of the operator it runs as; attributes become instruction parameters."""
    op = record.runs_as or record.name

    def rule(p: Program, node: Node) -> int:
        values: tuple[float, ...] = ()
        if record.attrs:
            found = attributes(record.name).items()
            values = tuple(float(node.attrs.get(name, a.default)) for name, a in found)  # type: ignore[arg-type]
        return p.emit(op, *(p.arg(node, i) for i in range(len(node.inputs))), parameters=values)

    return rule


for _record in (*family("elementwise"), *family("activation")):
    if _record.name not in RULES and (_record.f32 >= 0 or _record.i64 >= 0 or _record.runs_as):
        RULES[_record.name] = _one_instruction(_record)
