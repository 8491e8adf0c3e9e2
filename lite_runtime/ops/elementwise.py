"""Result types of elementwise operators. Most are derived from their records: the element types they take, and one
rule for broadcasting; the others have rules here."""

from __future__ import annotations

from collections.abc import Sequence

from lite_runtime.operators import Operator, attributes, family
from lite_runtime.operators.record import ANY, BOOL, FLOATS, INTS, NUMBERS
from lite_runtime.ops._checks import broadcast, element_type, one_of
from lite_runtime.ops.registry import Inference, InferRule, Spec, infer

__all__: list[str] = []


def _expect(n: Inference, i: int, dtypes: Sequence[str]) -> Spec:
    return one_of(n, i, dtypes) if dtypes else n.spec(i)


def _arity(n: Inference, least: int, most: int) -> None:
    """Checks the number of inputs; the first `least` are required."""
    if not least <= len(n.specs) <= most:
        counts = str(least) if least == most else f"{least} to {most}"
        raise n.error(f"expected {counts} inputs, got {len(n.specs)}")


def _same_type(n: Inference, dtypes: Sequence[str], first: int = 0) -> str:
    """The common element type of the inputs from `first` on."""
    dtype = _expect(n, first, dtypes).dtype
    for i in range(first + 1, len(n.specs)):
        if n.spec(i).dtype != dtype:
            raise n.error(f"expected inputs of one element type, got {dtype} and {n.spec(i).dtype}; cast one of them")
    return dtype


def _shape(n: Inference) -> tuple[int, ...]:
    return broadcast(n, *(n.spec(i).shape for i in range(len(n.specs))))


def _number(n: Inference, name: str) -> None:
    """Check that an attribute, if present, is a number."""
    value = n.attr(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise n.error(f"expected attribute {name} to be a number, got {value!r}")


def _numbers(n: Inference, record: Operator) -> None:
    """Check that every numeric attribute is a number."""
    for name, attribute in attributes(record.name).items() if record.attrs else ():
        if attribute.kind in "if":
            _number(n, name)


def _of_one(record: Operator, types: Sequence[str]) -> InferRule:
    """The rule for a function of one operand."""

    def rule(n: Inference) -> list[Spec]:
        _arity(n, 1, 1)
        _numbers(n, record)
        spec = _expect(n, 0, types)
        return [Spec(record.result, spec.shape) if record.result else spec]

    return rule


def _of_several(record: Operator, types: Sequence[str]) -> InferRule:
    """The rule for a function of operands of one type, whose result has their broadcast shape."""

    def rule(n: Inference) -> list[Spec]:
        _arity(n, *record.inputs)
        _numbers(n, record)
        dtype = _same_type(n, types)
        return [Spec(record.result or dtype, _shape(n))]

    return rule


for _record in (*family("elementwise"), *family("activation")):
    if _record.types is not None:
        infer(_record.name)((_of_one if _record.unary else _of_several)(_record, _record.types))


@infer("Gelu")
def _gelu(n: Inference) -> list[Spec]:
    _arity(n, 1, 1)
    if n.attr("approximate", "none") not in ("none", "tanh"):
        raise n.error(f"expected approximate to be 'none' or 'tanh', got {n.attr('approximate')!r}")
    return [one_of(n, 0, FLOATS)]


@infer("SwiGLU")
def _swiglu(n: Inference) -> list[Spec]:
    _arity(n, 2, 2)
    _number(n, "alpha")
    if n.spec(0).shape != n.spec(1).shape:
        raise n.error(f"expected inputs of one shape, got {n.spec(0).shape} and {n.spec(1).shape}")
    return [Spec(_same_type(n, FLOATS), n.spec(0).shape)]


@infer("PRelu")
def _prelu(n: Inference) -> list[Spec]:
    _arity(n, 2, 2)
    dtype = _same_type(n, NUMBERS)
    if _shape(n) != n.spec(0).shape:
        raise n.error(f"expected a slope that broadcasts to {n.spec(0).shape}, got shape {n.spec(1).shape}")
    return [Spec(dtype, n.spec(0).shape)]


@infer("Clip")
def _clip(n: Inference) -> list[Spec]:
    _arity(n, 1, 3)
    data = one_of(n, 0, NUMBERS)
    for i, what in ((1, "min"), (2, "max")):
        if n.has(i) and (n.spec(i).size != 1 or n.spec(i).dtype != data.dtype):
            raise n.error(f"expected {what} to be one {data.dtype}, got {n.spec(i).dtype}{list(n.spec(i).shape)}")
    return [data]


@infer("Pow")
def _pow(n: Inference) -> list[Spec]:
    """The result has the base's type."""
    _arity(n, 2, 2)
    one_of(n, 1, NUMBERS)
    return [Spec(one_of(n, 0, (*FLOATS, *INTS)).dtype, _shape(n))]


@infer("BitShift")
def _bit_shift(n: Inference) -> list[Spec]:
    _arity(n, 2, 2)
    if n.attr("direction") not in ("LEFT", "RIGHT"):
        raise n.error(f"expected direction LEFT or RIGHT, got {n.attr('direction')!r}")
    return [Spec(_same_type(n, INTS), _shape(n))]


@infer("Where")
def _where(n: Inference) -> list[Spec]:
    _arity(n, 3, 3)
    one_of(n, 0, BOOL)
    return [Spec(_same_type(n, ANY, 1), _shape(n))]


@infer("Cast")
def _cast(n: Inference) -> list[Spec]:
    _arity(n, 1, 1)
    to = n.attr("to")
    if isinstance(to, bool) or not isinstance(to, (int, str)):
        raise n.error(f"expected attribute `to` to name an element type, got {to!r}")
    return [Spec(element_type(n, to), n.spec(0).shape)]


@infer("CastLike")
def _cast_like(n: Inference) -> list[Spec]:
    _arity(n, 2, 2)
    return [Spec(n.spec(1).dtype, n.spec(0).shape)]


@infer("BatchNormalization")
def _batch_normalization(n: Inference) -> list[Spec]:
    """In training mode there are also the running mean and variance, and the batch's mean and reciprocal deviation."""
    _arity(n, 5, 5)
    data = one_of(n, 0, FLOATS)
    layout = n.attr("layout", "NCHW")
    if layout not in ("NCHW", "NHWC"):
        raise n.error(f"expected layout NCHW or NHWC, got {layout!r}")
    for name in ("epsilon", "momentum", "training_mode"):
        _number(n, name)
    if len(data.shape) < 2:
        raise n.error(f"expected an input of rank 2 or more, got shape {data.shape}")
    channels = data.shape[-1] if layout == "NHWC" else data.shape[1]
    for i, what in enumerate(("scale", "B", "mean", "var"), 1):
        if one_of(n, i, FLOATS).shape != (channels,):
            raise n.error(f"expected {what} of shape ({channels},), got {n.spec(i).shape}")
    saved = Spec("float32", (channels,))
    return [data, n.spec(3), n.spec(4), saved, saved] if n.attr("training_mode", 0) else [data]
