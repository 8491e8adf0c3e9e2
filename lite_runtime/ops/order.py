"""ArgMax, ArgMin and TopK. Float32 and integers of up to 32 bits are native; other types use their references."""

from __future__ import annotations

from lite_runtime import steps
from lite_runtime.ops._axes import FLOATS, attr_int, axis_of, expect, fold
from lite_runtime.ops.reduce import known_ints
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer

__all__: list[str] = []

_NUMBERS = FLOATS | {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
_INTEGERS = frozenset({"int8", "uint8", "int16", "int32"})
"""Element types with native kernels."""


@infer("ArgMax", "ArgMin")
def _infer_arg(n: Inference) -> tuple[Spec]:
    spec = expect(n, 0, _NUMBERS)
    rank = len(spec.shape)
    if not rank:
        raise n.error("expected at least one axis, got a scalar")
    axis = axis_of(n, rank, 0)
    attr_int(n, "select_last_index", 0, (0, 1))
    if spec.shape[axis] == 0:
        raise n.error(f"expected elements along axis {axis}, got shape {list(spec.shape)}")
    kept = (1,) if attr_int(n, "keepdims", 1) else ()
    return (Spec("int64", (*spec.shape[:axis], *kept, *spec.shape[axis + 1 :])),)


@infer("TopK")
def _infer_top_k(n: Inference) -> tuple[Spec, ...]:
    spec, amount = expect(n, 0, _NUMBERS), expect(n, 1, {"int64"}, "K")
    if not spec.shape:
        raise n.error("expected at least one axis, got a scalar")
    axis = axis_of(n, len(spec.shape), -1)
    for name in ("largest", "sorted"):
        attr_int(n, name, 1)
    if amount.size != 1:
        raise n.error(f"expected K to be one number, got shape {list(amount.shape)}")
    (k,) = n.ints(1)
    if not 0 <= k <= spec.shape[axis]:
        raise n.error(f"expected K within [0, {spec.shape[axis]}], got {k}")
    shape = (*spec.shape[:axis], k, *spec.shape[axis + 1 :])
    return Spec(spec.dtype, shape), Spec("int64", shape)


def _operand(b: Binder) -> Operand:
    """Input 0, which must have a type with kernels."""
    x = b.inputs[0]
    assert x is not None
    if x.dtype != "float32" and x.dtype not in _INTEGERS:
        raise NoKernel(f"{b.node.op} of {x.dtype}")
    return x


@bind("ArgMax", "ArgMin")
def _bind_arg(b: Binder) -> None:
    x = _operand(b)
    sizes = fold(x.shape, b.attr("axis", 0) % len(x.shape))
    sign, last = (1 if b.node.op == "ArgMax" else -1), int(b.attr("select_last_index", 0))
    if x.dtype in _INTEGERS:
        kernel = f"order.{x.dtype}_arg__{'rows' if sizes.inner == 1 else 'strips'}"
    elif sizes.inner == 1 and sign > 0 and not last:
        kernel = "order.f32_arg_max__rows"
    else:
        kernel = "order.f32_arg__strips" if sizes.inner >= 4 and sizes.n < 1 << 24 else "order.f32_arg__columns"
    y = b.outputs[0]
    assert y is not None
    step = steps.Arg(x=x, y=y, outer=sizes.outer, n=sizes.n, inner=sizes.inner, sign=sign, last=last)
    b.emit(step, kernel=kernel)


@bind("TopK")
def _bind_top_k(b: Binder) -> None:
    x = _operand(b)
    known = known_ints(b, 1)
    if known is None:
        raise NoKernel("K is missing")
    axis = b.attr("axis", -1) % len(x.shape)
    shape = (*x.shape[:axis], known[0], *x.shape[axis + 1 :])
    values = b.outputs[0] or b.scratch(x.dtype, shape)
    places = (b.outputs[1] if len(b.outputs) > 1 else None) or b.scratch("int64", shape)
    sign = 1 if b.attr("largest", 1) else -1
    kind = "f32" if x.dtype == "float32" else x.dtype
    sizes = fold(x.shape, axis)
    b.emit(
        steps.TopK(
            x=x,
            values=values,
            places=places,
            outer=sizes.outer,
            n=sizes.n,
            inner=sizes.inner,
            k=known[0],
            sign=sign,
        ),
        kernel=f"order.{kind}_top_k",
    )
