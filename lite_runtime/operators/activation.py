"""Activations: elementwise functions that networks apply after their layers."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import FLOATS, NUMBERS, SIGNED, Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="elementwise")

RECORDS: tuple[Operator, ...] = (
    _op("Celu", since=12, attrs="alpha:f=1.0", traits=("elementwise", "table"), types=FLOATS, f32=43),
    _op("Elu", since=1, attrs="alpha:f=1.0", traits=("elementwise", "table"), types=FLOATS, f32=42, epilogue=11),
    _op("Erf", since=9, traits=("elementwise", "table", "wide"), types=FLOATS, f32=17),
    _op(
        "Gelu",
        since=20,
        attrs="approximate:s(none|tanh)",
        traits=("elementwise", "table"),
        also=("com.microsoft",),
        f32=22,
        epilogue=9,
    ),
    _op(
        "HardSigmoid",
        since=1,
        attrs="alpha:f=0.2 beta:f=0.5",
        traits=("elementwise", "table"),
        types=FLOATS,
        f32=47,
        epilogue=7,
    ),
    _op("HardSwish", since=14, traits=("elementwise", "table"), types=FLOATS, f32=24, epilogue=6),
    _op(
        "LeakyRelu",
        since=1,
        attrs="alpha:f=0.01",
        traits=("elementwise", "exact", "table", "homogeneous"),
        types=FLOATS,
        f32=41,
        epilogue=3,
    ),
    _op("Mish", since=18, traits=("elementwise", "table"), types=FLOATS, f32=20),
    _op("PRelu", since=1, inputs=(2, 2), traits=("elementwise", "exact", "homogeneous"), f32=64),
    _op(
        "QuickGelu",
        since=1,
        attrs="alpha:f=1.702",
        traits=("elementwise", "table"),
        domain="com.microsoft",
        types=FLOATS,
        runs_as="Swish",
    ),
    _op(
        "Relu",
        since=1,
        traits=("elementwise", "exact", "homogeneous"),
        types=(*FLOATS, *SIGNED),
        f32=25,
        i64=4,
        epilogue=1,
    ),
    _op(
        "Selu",
        since=1,
        attrs="alpha:f=1.67326319217681884765625 gamma:f=1.05070102214813232421875",
        traits=("elementwise", "table"),
        types=FLOATS,
        f32=44,
    ),
    _op("Shrink", since=9, attrs="bias:f=0.0 lambd:f=0.5", traits=("elementwise", "exact", "table"), types=NUMBERS),
    _op("Sigmoid", since=1, traits=("elementwise", "table"), types=FLOATS, f32=15, epilogue=4),
    _op("Silu", since=1, traits=("elementwise", "table"), domain="msedge", types=FLOATS, f32=21, epilogue=8),
    _op("Softplus", since=1, traits=("elementwise", "table", "wide"), types=FLOATS, f32=18),
    _op("Softsign", since=1, traits=("elementwise", "table"), types=FLOATS, f32=19),
    _op("SwiGLU", since=28, inputs=(2, 2), attrs="alpha:f=1.0", traits=("elementwise",)),
    _op("Swish", since=24, attrs="alpha:f=1.0", traits=("elementwise", "table"), types=FLOATS, f32=46),
    _op("Tanh", since=1, traits=("elementwise", "table"), types=FLOATS, numpy="tanh", f32=16, epilogue=5),
    _op(
        "ThresholdedRelu",
        since=10,
        attrs="alpha:f=1.0",
        traits=("elementwise", "exact", "table"),
        types=FLOATS,
        f32=45,
    ),
)
