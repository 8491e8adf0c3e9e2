"""Softmax, LogSoftmax, Hardmax and all normalisations except BatchNormalization."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from lite_runtime import steps
from lite_runtime.ops._axes import (
    FLOATS,
    Fold,
    attr_float,
    attr_int,
    axis_of,
    expect,
    float_operand,
    fold,
    groups,
    unique_axes,
)
from lite_runtime.ops.pool import channels_at
from lite_runtime.ops.reduce import operands, result
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer

__all__: list[str] = []

_STASH = {1: "float32", "float32": "float32", 16: "bfloat16", "bfloat16": "bfloat16"}
_STASH_WIDE = {**_STASH, 10: "float16", "float16": "float16", 11: "float64", "float64": "float64"}


# -- what comes out ---------------------------------------------------------------------------------------------------


@infer("Softmax", "LogSoftmax", "Hardmax")
def _infer_softmax(n: Inference) -> tuple[Spec]:
    spec = float_operand(n)
    if spec.shape:
        axis_of(n, len(spec.shape), -1)
    return (spec,)


@infer("LpNormalization")
def _infer_lp(n: Inference) -> tuple[Spec]:
    spec = float_operand(n)
    axis_of(n, len(spec.shape), -1)
    attr_int(n, "p", 2, (1, 2))
    return (spec,)


def _stash(n: Inference) -> str:
    code = n.attr("stash_type", 1)
    if code not in _STASH_WIDE:
        raise n.error(f"expected stash_type to be a floating type, got {code!r}")
    return _STASH_WIDE[code]


def _broadcasts(n: Inference, i: int, name: str, to: tuple[int, ...]) -> None:
    """Input `i` must broadcast to `to` without enlarging it."""
    shape = n.spec(i).shape
    lead = len(to) - len(shape)
    if lead < 0 or any(d not in (1, t) for d, t in zip(shape, to[max(lead, 0) :], strict=False)):
        raise n.error(f"expected {name} to broadcast to {list(to)}, got shape {list(shape)}")


@infer("LayerNormalization")
def _infer_layer(n: Inference) -> tuple[Spec, ...]:
    spec = float_operand(n)
    axis = axis_of(n, len(spec.shape), -1)
    attr_float(n, "epsilon", 1e-5)
    for i, name in ((1, "Scale"), (2, "B")):
        if i == 1 or n.has(i):
            expect(n, i, {spec.dtype}, name)
            _broadcasts(n, i, name, spec.shape)
    rest = Spec(_stash(n), tuple(d if i < axis else 1 for i, d in enumerate(spec.shape)))
    return spec, rest, rest


@infer("RMSNormalization")
def _infer_rms(n: Inference) -> tuple[Spec]:
    spec = float_operand(n)
    axis_of(n, len(spec.shape), -1)
    attr_float(n, "epsilon", 1e-5)
    _stash(n)
    scale = expect(n, 1, FLOATS, "scale")
    _broadcasts(n, 1, "scale", spec.shape)
    return (Spec(scale.dtype, spec.shape),)


def _per_channel(n: Inference, channels: int, dtype: str) -> None:
    for i, name in ((1, "scale"), (2, "bias")):
        spec = expect(n, i, {dtype}, name)
        if spec.shape != (channels,):
            raise n.error(f"expected {name} of shape [{channels}], got {list(spec.shape)}")


def _with_channels(n: Inference, least: int) -> Spec:
    spec = float_operand(n)
    if len(spec.shape) < least:
        raise n.error(f"expected at least {least} axes, got shape {list(spec.shape)}")
    return spec


@infer("InstanceNormalization")
def _infer_instance(n: Inference) -> tuple[Spec]:
    spec = _with_channels(n, 3)
    attr_float(n, "epsilon", 1e-5)
    _per_channel(n, spec.shape[1 if channels_at(n) == "NCHW" else -1], spec.dtype)
    return (spec,)


@infer("GroupNormalization")
def _infer_group(n: Inference) -> tuple[Spec]:
    spec = _with_channels(n, 2)
    attr_float(n, "epsilon", 1e-5)
    _stash(n)
    number = attr_int(n, "num_groups", 0)
    if number < 1 or spec.shape[1] % number:
        raise n.error(f"expected num_groups to divide the {spec.shape[1]} channels, got {number}")
    _per_channel(n, spec.shape[1], spec.dtype)
    return (spec,)


@infer("MeanVarianceNormalization")
def _infer_mvn(n: Inference) -> tuple[Spec]:
    spec = float_operand(n)
    unique_axes(n, _mvn_axes(n), len(spec.shape))
    return (spec,)


def _mvn_axes(n: Inference | Binder) -> Sequence[int]:
    axes = n.attr("axes")
    return (0, 2, 3) if axes is None else axes


@infer("LRN")
def _infer_lrn(n: Inference) -> tuple[Spec]:
    spec = _with_channels(n, 2)
    for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)):
        attr_float(n, name, default)
    if attr_int(n, "size", 0) < 1:
        raise n.error(f"expected size of at least 1, got {n.attr('size')}")
    return (spec,)


# -- which kernels compute it -----------------------------------------------------------------------------------------


def _tile(sizes: Fold) -> str:
    return "rows" if sizes.inner == 1 else "columns"


@bind("Softmax", "LogSoftmax")
def _bind_softmax(b: Binder) -> None:
    (x,) = operands(b, 0)
    shape = x.shape or (1,)
    sizes = fold(shape, b.attr("axis", -1) % len(shape))
    log = b.node.op == "LogSoftmax"
    name = "log_softmax" if log and sizes.inner == 1 else "softmax"
    b.emit(
        steps.Softmax(x=x, y=result(b), outer=sizes.outer, n=sizes.n, inner=sizes.inner, log=int(log)),
        kernel=f"normalize.f32_{name}__{_tile(sizes)}",
    )
    b.reuse(0, x)


@bind("LpNormalization")
def _bind_lp(b: Binder) -> None:
    (x,) = operands(b, 0)
    sizes = fold(x.shape, b.attr("axis", -1) % len(x.shape))
    b.emit(
        steps.LpNormalize(x=x, y=result(b), outer=sizes.outer, n=sizes.n, inner=sizes.inner, p=b.attr("p", 2)),
        kernel=f"normalize.f32_lp_normalize__{_tile(sizes)}",
    )
    b.reuse(0, x)


def _standardize(
    b: Binder,
    sizes: Fold,
    scale: Operand | None,
    bias: Operand | None,
    *,
    centre: bool = True,
    channels: int = 0,
    depth: int = 0,
    epsilon: float = 0.0,
    floor: float = 0.0,
) -> None:
    """One step over input 0; see `steps.Standardize`."""
    (x,) = operands(b, 0)
    means, inverses = (b.outputs[i] if i < len(b.outputs) else None for i in (1, 2))
    b.emit(
        steps.Standardize(
            x=x,
            y=b.outputs[0] or b.scratch("float32", x.shape),
            scales=scale,
            biases=bias,
            means=means,
            inverses=inverses,
            outer=sizes.outer,
            n=sizes.n,
            inner=sizes.inner,
            centre=int(centre),
            channels=channels,
            depth=depth,
            epsilon=epsilon,
            floor=floor,
        ),
        kernel=f"normalize.f32_standardize__{_tile(sizes)}",
    )
    if b.outputs[0] is not None:
        b.reuse(0, x)


def _per_element(b: Binder, i: int, shape: tuple[int, ...], axis: int) -> Operand | None:
    """Scale or bias `i` as one number for every element after `axis`; NoKernel if it also varies before `axis`."""
    operand = b.inputs[i] if i < len(b.inputs) else None
    if operand is None:
        return None
    if operand.dtype != "float32":
        raise NoKernel("a scale of another type")
    full = (1,) * (len(shape) - len(operand.shape)) + operand.shape
    if prod(full[:axis]) != 1:
        raise NoKernel("a scale that varies between rows")
    wanted = shape[axis:]
    if full[axis:] == wanted:
        return operand
    if operand.value is None:
        raise NoKernel("a computed scale to be broadcast")
    return b.packed(
        operand,
        f"broadcast to {wanted}",
        lambda value: np.ascontiguousarray(np.broadcast_to(value.reshape(full[axis:]), wanted)),
    )


@bind("LayerNormalization", "RMSNormalization")
def _bind_layer(b: Binder) -> None:
    (x,) = operands(b, 0)
    if b.attr("stash_type", 1) not in (1, "float32"):
        raise NoKernel("statistics of another type")
    axis = b.attr("axis", -1) % len(x.shape)
    scale, bias = _per_element(b, 1, x.shape, axis), _per_element(b, 2, x.shape, axis)
    sizes = Fold(prod(x.shape[:axis]), prod(x.shape[axis:]), 1)
    _standardize(b, sizes, scale, bias, centre=b.node.op == "LayerNormalization", epsilon=b.attr("epsilon", 1e-5))


@bind("InstanceNormalization")
def _bind_instance(b: Binder) -> None:
    x, scale, bias = operands(b, 0, 1, 2)
    epsilon = b.attr("epsilon", 1e-5)
    if channels_at(b) == "NHWC":
        sizes = Fold(x.shape[0], prod(x.shape[1:-1]), x.shape[-1])
        if sizes.inner > 1:
            _standardize(b, sizes, scale, bias, epsilon=epsilon)
            return
        channels, area = 1, sizes.n
    else:
        channels, area = x.shape[1], prod(x.shape[2:])
    _standardize(b, Fold(x.shape[0] * channels, area, 1), scale, bias, channels=channels, depth=area, epsilon=epsilon)


@bind("GroupNormalization")
def _bind_group(b: Binder) -> None:
    x, scale, bias = operands(b, 0, 1, 2)
    if b.attr("stash_type", 1) not in (1, "float32"):
        raise NoKernel("statistics of another type")
    channels, number, area = x.shape[1], b.attr("num_groups"), prod(x.shape[2:])
    sizes = Fold(x.shape[0] * number, channels // number * area, 1)
    _standardize(b, sizes, scale, bias, channels=channels, depth=area, epsilon=b.attr("epsilon", 1e-5))


@bind("MeanVarianceNormalization")
def _bind_mvn(b: Binder) -> None:
    (x,) = operands(b, 0)
    runs = groups(x.shape, {a % len(x.shape) for a in _mvn_axes(b)})
    reduced = [i for i, (_, over) in enumerate(runs) if over]
    if len(reduced) > 1:
        raise NoKernel("axes that are not adjacent")
    at = reduced[0] if reduced else len(runs)
    sizes = Fold(
        prod(size for size, _ in runs[:at]),
        runs[at][0] if reduced else 1,
        prod(size for size, _ in runs[at + 1 :]),
    )
    _standardize(b, sizes, None, None, floor=1e-9)


@bind("LRN")
def _bind_lrn(b: Binder) -> None:
    (x,) = operands(b, 0)
    size, alpha, bias = b.attr("size"), float(b.attr("alpha", 1e-4)), float(b.attr("bias", 1.0))
    if not (alpha >= 0 and bias > 0):
        raise NoKernel("a power of a possibly negative value")
    before = min((size - 1) // 2, x.shape[1])
    after = min(size - 1 - (size - 1) // 2, x.shape[1])
    sizes = fold(x.shape, 1)
    b.emit(
        steps.LocalResponse(
            x=x,
            y=result(b),
            outer=sizes.outer,
            n=sizes.n,
            inner=sizes.inner,
            before=before,
            after=after,
            alpha=alpha / size,
            beta=float(b.attr("beta", 0.75)),
            bias=bias,
        )
    )
