"""Types of what elementwise operators give: one table of element types, one rule for broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

from lite_runtime.ops._checks import broadcast, element_type, one_of
from lite_runtime.ops.registry import Inference, Spec, infer

__all__: list[str] = []

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_SIGNED = ("int8", "int16", "int32", "int64")
_INTS = (*_SIGNED, "uint8", "uint16", "uint32", "uint64")
_NUMBERS = (*_FLOATS, *_INTS)
_BOOL = ("bool",)
_ANY: tuple[str, ...] = ()
"""Every element type."""

_FLOAT_UNARY = (
    "Reciprocal Sqrt Ceil Floor Round Exp Log Sigmoid Tanh Erf Softplus Softsign Mish Silu HardSwish Sin Cos Tan Asin "
    "Acos Atan Sinh Cosh Asinh Acosh Atanh"
).split()
_UNARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_FLOAT_UNARY, _FLOATS),
    "Abs": _NUMBERS,
    "Neg": (*_FLOATS, *_SIGNED),
    "Sign": _NUMBERS,
    "Relu": (*_FLOATS, *_SIGNED),
    "Not": _BOOL,
    "BitwiseNot": _INTS,
}
_BINARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _NUMBERS),
    **dict.fromkeys(("And", "Or", "Xor"), _BOOL),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), _INTS),
}
_COMPARISONS: dict[str, tuple[str, ...]] = {
    "Equal": _ANY,
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), _NUMBERS),
}
_VARIADIC: dict[str, tuple[str, ...]] = {"Max": _NUMBERS, "Min": _NUMBERS, "Sum": _FLOATS, "Mean": _FLOATS}
# Activations with attributes that are numbers.
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "Celu": ("alpha",),
    "Selu": ("alpha", "gamma"),
    "ThresholdedRelu": ("alpha",),
    "Swish": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
}


def _expect(n: Inference, i: int, dtypes: Sequence[str]) -> Spec:
    return one_of(n, i, dtypes) if dtypes else n.spec(i)


def _arity(n: Inference, least: int, most: int) -> None:
    """How many inputs there are; those up to `least` are no optional ones."""
    if not least <= len(n.specs) <= most:
        counts = str(least) if least == most else f"{least} to {most}"
        raise n.error(f"expected {counts} inputs, got {len(n.specs)}")


def _same_type(n: Inference, dtypes: Sequence[str], first: int = 0) -> str:
    """The one element type of the inputs from `first` on."""
    dtype = _expect(n, first, dtypes).dtype
    for i in range(first + 1, len(n.specs)):
        if n.spec(i).dtype != dtype:
            raise n.error(f"expected inputs of one element type, got {dtype} and {n.spec(i).dtype}; cast one of them")
    return dtype


def _shape(n: Inference) -> tuple[int, ...]:
    return broadcast(n, *(n.spec(i).shape for i in range(len(n.specs))))


def _number(n: Inference, name: str) -> None:
    """An attribute that, where it is there, must be a number."""
    value = n.attr(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise n.error(f"expected attribute {name} to be a number, got {value!r}")


@infer(*_UNARY)
def _unary(n: Inference) -> list[Spec]:
    _arity(n, 1, 1)
    return [_expect(n, 0, _UNARY[n.node.op])]


@infer(*_BINARY)
def _binary(n: Inference) -> list[Spec]:
    _arity(n, 2, 2)
    return [Spec(_same_type(n, _BINARY[n.node.op]), _shape(n))]


@infer(*_COMPARISONS)
def _comparison(n: Inference) -> list[Spec]:
    _arity(n, 2, 2)
    _same_type(n, _COMPARISONS[n.node.op])
    return [Spec("bool", _shape(n))]


@infer(*_VARIADIC)
def _variadic(n: Inference) -> list[Spec]:
    _arity(n, 1, 1 << 16)
    return [Spec(_same_type(n, _VARIADIC[n.node.op]), _shape(n))]


@infer(*_ACTIVATIONS)
def _activation(n: Inference) -> list[Spec]:
    _arity(n, 1, 1)
    for name in _ACTIVATIONS[n.node.op]:
        _number(n, name)
    return [one_of(n, 0, _FLOATS)]


@infer("IsNaN", "IsInf")
def _is(n: Inference) -> list[Spec]:
    _arity(n, 1, 1)
    _number(n, "detect_negative")
    _number(n, "detect_positive")
    floats = (*_FLOATS, "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0", "float4e2m1")
    return [Spec("bool", one_of(n, 0, floats).shape)]


@infer("Shrink")
def _shrink(n: Inference) -> list[Spec]:
    _arity(n, 1, 1)
    _number(n, "lambd")
    _number(n, "bias")
    return [one_of(n, 0, _NUMBERS)]


@infer("Gelu")
def _gelu(n: Inference) -> list[Spec]:
    _arity(n, 1, 1)
    if n.attr("approximate", "none") not in ("none", "tanh"):
        raise n.error(f"expected approximate to be none or tanh, got {n.attr('approximate')!r}")
    return [one_of(n, 0, _FLOATS)]


@infer("SwiGLU")
def _swiglu(n: Inference) -> list[Spec]:
    _arity(n, 2, 2)
    _number(n, "alpha")
    if n.spec(0).shape != n.spec(1).shape:
        raise n.error(f"expected inputs of one shape, got {n.spec(0).shape} and {n.spec(1).shape}")
    return [Spec(_same_type(n, _FLOATS), n.spec(0).shape)]


@infer("PRelu")
def _prelu(n: Inference) -> list[Spec]:
    _arity(n, 2, 2)
    dtype = _same_type(n, _NUMBERS)
    if _shape(n) != n.spec(0).shape:
        raise n.error(f"expected a slope that broadcasts to {n.spec(0).shape}, got shape {n.spec(1).shape}")
    return [Spec(dtype, n.spec(0).shape)]


@infer("Clip")
def _clip(n: Inference) -> list[Spec]:
    _arity(n, 1, 3)
    data = one_of(n, 0, _NUMBERS)
    for i, what in ((1, "min"), (2, "max")):
        if n.has(i) and (n.spec(i).size != 1 or n.spec(i).dtype != data.dtype):
            raise n.error(f"expected {what} to be one {data.dtype}, got {n.spec(i).dtype}{list(n.spec(i).shape)}")
    return [data]


@infer("Mod")
def _mod(n: Inference) -> list[Spec]:
    _arity(n, 2, 2)
    dtype = _same_type(n, _NUMBERS)
    _number(n, "fmod")
    return [Spec(dtype, _shape(n))]


@infer("Pow")
def _pow(n: Inference) -> list[Spec]:
    """The result has the base's type."""
    _arity(n, 2, 2)
    one_of(n, 1, _NUMBERS)
    return [Spec(one_of(n, 0, (*_FLOATS, *_INTS)).dtype, _shape(n))]


@infer("BitShift")
def _bit_shift(n: Inference) -> list[Spec]:
    _arity(n, 2, 2)
    if n.attr("direction") not in ("LEFT", "RIGHT"):
        raise n.error(f"expected direction LEFT or RIGHT, got {n.attr('direction')!r}")
    return [Spec(_same_type(n, _INTS), _shape(n))]


@infer("Where")
def _where(n: Inference) -> list[Spec]:
    _arity(n, 3, 3)
    one_of(n, 0, _BOOL)
    return [Spec(_same_type(n, _ANY, 1), _shape(n))]


@infer("Cast")
def _cast(n: Inference) -> list[Spec]:
    _arity(n, 1, 1)
    to = n.attr("to")
    if isinstance(to, bool) or not isinstance(to, (int, str)):
        raise n.error(f"expected attribute to to name an element type, got {to!r}")
    return [Spec(element_type(n, to), n.spec(0).shape)]


@infer("CastLike")
def _cast_like(n: Inference) -> list[Spec]:
    _arity(n, 2, 2)
    return [Spec(n.spec(1).dtype, n.spec(0).shape)]


@infer("BatchNormalization")
def _batch_normalization(n: Inference) -> list[Spec]:
    """In training mode also the running mean and variance, and the batch's mean and reciprocal deviation."""
    _arity(n, 5, 5)
    data = one_of(n, 0, _FLOATS)
    layout = n.attr("layout", "NCHW")
    if layout not in ("NCHW", "NHWC"):
        raise n.error(f"expected layout NCHW or NHWC, got {layout!r}")
    for name in ("epsilon", "momentum", "training_mode"):
        _number(n, name)
    if len(data.shape) < 2:
        raise n.error(f"expected an input of rank 2 or more, got shape {data.shape}")
    channels = data.shape[-1] if layout == "NHWC" else data.shape[1]
    for i, what in enumerate(("scale", "B", "mean", "var"), 1):
        if one_of(n, i, _FLOATS).shape != (channels,):
            raise n.error(f"expected {what} of shape ({channels},), got {n.spec(i).shape}")
    saved = Spec("float32", (channels,))
    return [data, n.spec(3), n.spec(4), saved, saved] if n.attr("training_mode", 0) else [data]
