"""Matrix products and convolutions."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import ACTIVATION, LAYOUT, MANY, PADDING, Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="convolution")

RECORDS: tuple[Operator, ...] = (
    _op("CausalConvWithState", since=27, inputs=(2, 4), outputs=(2, 2), attrs="activation:s"),
    _op("Col2Im", since=18, inputs=(3, 3), attrs="dilations:I pads:I strides:I"),
    _op(
        "Conv",
        since=1,
        inputs=(2, 4),
        attrs=f"{ACTIVATION} {PADDING} dilations:I group:i kernel_shape:I {LAYOUT} pads:I strides:I",
        traits=("accumulates",),
    ),
    _op(
        "ConvTranspose",
        since=1,
        inputs=(2, 3),
        attrs=(
            f"{ACTIVATION} {PADDING} dilations:I group:i kernel_shape:I {LAYOUT} output_padding:I output_shape:I "
            "pads:I strides:I"
        ),
        traits=("accumulates",),
    ),
    _op(
        "DeformConv",
        since=19,
        inputs=(3, 5),
        attrs="dilations:I group:i kernel_shape:I offset_group:i pads:I strides:I",
    ),
    _op("Det", since=11, reference="linear"),
    _op("Einsum", since=12, inputs=(1, MANY), attrs="equation:s!", reference="linear"),
    _op(
        "Gemm",
        since=1,
        inputs=(2, 3),
        attrs="alpha:f beta:f transA:i transB:i",
        traits=("accumulates",),
        reference="linear",
    ),
    _op("GroupedMatMul", since=1, inputs=(3, 5), attrs=ACTIVATION, domain="msedge", reference="grouped"),
    _op("Inverse", since=1, domain="com.microsoft", reference="linear"),
    _op(
        "MatMul",
        since=1,
        inputs=(2, 4),
        attrs=f"{ACTIVATION} transA:i transB:i",
        traits=("accumulates",),
        reference="linear",
    ),
    _op(
        "NarrowMatMul",
        since=1,
        inputs=(2, 6),
        attrs=f"{ACTIVATION} block_size:i shape:I signed:i transB:i",
        domain="msedge",
        reference="narrow",
    ),
    _op("Unpack4", since=1, attrs="shape:I! signed:i!", traits=("idle",), domain="msedge", reference="narrow"),
)
