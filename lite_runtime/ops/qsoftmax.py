"""QLinearSoftmax: its result type and its kernels."""

from __future__ import annotations

import numpy as np

from lite_runtime import steps
from lite_runtime.kernels import _opcodes as codes
from lite_runtime.ops._axes import axis_of, fold
from lite_runtime.ops._checks import one_of, one_or
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Spec, bind, infer
from lite_runtime.reference.qsoftmax import exponentials

__all__: list[str] = []

_BYTES = ("uint8", "int8")
PARALLEL_FROM = 2048


@infer("QLinearSoftmax")
def _infer_softmax(n: Inference) -> list[Spec]:
    data, result = one_of(n, 0, _BYTES), one_of(n, 4, _BYTES)
    axis_of(n, len(data.shape), -1)
    for i, name, dtype in ((1, "x_scale", "float32"), (2, "x_zero_point", data.dtype), (3, "y_scale", "float32")):
        one_or(n, i, name, (dtype,))
    one_or(n, 4, "y_zero_point", _BYTES)
    return [Spec(result.dtype, data.shape)]


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
    table = b.constant(exponentials(x_scale).astype(np.int32))
    flip = 128 if x.dtype == "int8" else 0
    b.emit(
        steps.ByteSoftmax(
            x=x,
            table=table,
            y=y,
            outer=outer,
            n=n,
            inner=inner,
            flip=flip,
            kind=codes.QUANTISED[y.dtype],
            zero=y_zero,
            scale=y_scale,
        ),
        kernel="qsoftmax.x8_softmax" if inner == 1 else "qsoftmax.x8_softmax__columns",
        parallel=x.size >= PARALLEL_FROM,
    )
