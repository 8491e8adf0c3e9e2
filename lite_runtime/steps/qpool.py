"""Windowed maxima of 8-bit integers and means of quantised ones, channels last."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, step
from lite_runtime.steps.pool import Window

__all__ = ["ByteMax", "QuantisedMean"]


@step("qpool.int8_max__nhwc", "qpool.uint8_max__nhwc")
class ByteMax(Window):
    """Maxima of bytes."""

    x: In
    y: Out


@step(
    *(
        f"qpool.{stored}_{held}_{what}__nhwc"
        for stored in ("int8", "uint8", "int16")
        for held in ("int32", "int64")
        for what in ("mean", "average")
    )
)
class QuantisedMean(Window):
    """Means as `kernels/qpool.py` defines them; `…_average` is for equal parameters of x and y."""

    x: In
    y: Out
    x_zero: int  # zero points
    y_zero: int
    factor: float  # x's scale divided by y's
    low: float
    high: float
