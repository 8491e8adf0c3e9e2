"""QLinearSoftmax: its result type and its kernels."""

from __future__ import annotations

import numpy as np

from lite_runtime import steps
from lite_runtime.kernels import _opcodes as codes
from lite_runtime.ops._axes import axis_of, fold
from lite_runtime.ops._checks import choice, one_of, one_or
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer
from lite_runtime.reference.qsoftmax import exponentials, real_exponentials, short_scaling, short_tables

__all__: list[str] = []

_BYTES = ("uint8", "int8")
PARALLEL_FROM = 2048


@infer("QLinearSoftmax")
def _infer_softmax(n: Inference) -> list[Spec]:
    rounding = choice(n, "rounding", "", ("", "ORDERED"))
    data = one_of(n, 0, (*_BYTES, "int16"))
    short = data.dtype == "int16"
    results = ("int16",) if short else (*_BYTES, "int16") if rounding else _BYTES
    axis_of(n, len(data.shape), -1)
    for i, name, dtype in ((1, "x_scale", "float32"), (2, "x_zero_point", data.dtype), (3, "y_scale", "float32")):
        one_or(n, i, name, (dtype,))
    return [Spec(one_or(n, 4, "y_zero_point", results).dtype, data.shape)]


@bind("QLinearSoftmax")
def _bind_softmax(b: Binder) -> None:
    x, y = b.inputs[0], b.outputs[0]
    scales = [o.value for o in b.inputs[1:] if o is not None and o.value is not None]
    if len(scales) != 4:
        raise NoKernel("scales or zero points that are computed")
    assert x is not None and y is not None
    x_scale, _, y_scale, y_zero = (float(a.reshape(())) for a in scales)
    if not 0 < x_scale < np.inf:
        raise NoKernel("an x_scale that the reference refuses")
    outer, n, inner = fold(x.shape, int(b.attr("axis", -1)) % len(x.shape))
    ordered = x.dtype == "int16" or bool(b.attr("rounding", ""))
    if ordered and inner != 1:
        raise NoKernel("LiteRT's arithmetic along an axis that is not the last")
    if x.dtype == "int16":
        _bind_short(b, x, y, outer, n, x_scale)
        return
    if ordered:
        table, kernel = real_exponentials(x_scale), "qsoftmax.x8_softmax__ordered"
    else:
        table = exponentials(x_scale).astype(np.int32)
        kernel = "qsoftmax.x8_softmax" if inner == 1 else "qsoftmax.x8_softmax__columns"
    b.emit(
        steps.ByteSoftmax(
            x=x,
            table=b.constant(table),
            y=y,
            outer=outer,
            n=n,
            inner=inner,
            flip=128 if x.dtype == "int8" else 0,
            kind=codes.QUANTISED[y.dtype],
            zero=y_zero,
            scale=y_scale,
        ),
        kernel=kernel,
        parallel=x.size >= PARALLEL_FROM,
    )


def _bind_short(b: Binder, x: Operand, y: Operand, rows: int, n: int, x_scale: float) -> None:
    powers, reciprocals = (b.constant(table) for table in short_tables())
    multiplier, shift = short_scaling(x_scale)
    step = steps.ShortSoftmax(
        x=x, powers=powers, reciprocals=reciprocals, y=y, rows=rows, n=n, multiplier=multiplier, shift=shift
    )
    b.emit(step, parallel=x.size >= PARALLEL_FROM)
