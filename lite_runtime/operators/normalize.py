"""Normalisations and the softmax family."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import LAYOUT, Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="normalize")

RECORDS: tuple[Operator, ...] = (
    _op(
        "BatchNormalization",
        since=1,
        inputs=(5, 5),
        outputs=(1, 5),
        attrs=f"epsilon:f {LAYOUT} momentum:f training_mode:i",
        traits=("wide",),
    ),
    _op(
        "GroupNormalization",
        since=18,
        inputs=(3, 3),
        attrs="epsilon:f num_groups:i! stash_type:i",
        traits=("normalizes", "wide"),
    ),
    _op("Hardmax", since=1, attrs="axis:i", traits=("flat", "along_axis")),
    _op("InstanceNormalization", since=1, inputs=(3, 3), attrs=f"epsilon:f {LAYOUT}", traits=("normalizes", "wide")),
    _op("LRN", since=1, attrs="alpha:f beta:f bias:f size:i!", traits=("normalizes", "wide")),
    _op(
        "LayerNormalization",
        since=17,
        inputs=(2, 3),
        outputs=(1, 3),
        attrs="axis:i epsilon:f stash_type:i",
        traits=("normalizes", "wide"),
    ),
    _op("LogSoftmax", since=1, attrs="axis:i", traits=("along_axis", "wide")),
    _op("LpNormalization", since=1, attrs="axis:i p:i", traits=("along_axis", "normalizes", "wide")),
    _op("MeanVarianceNormalization", since=9, attrs="axes:I", traits=("normalizes", "wide")),
    _op(
        "RMSNormalization",
        since=23,
        inputs=(2, 2),
        attrs="axis:i epsilon:f stash_type:i",
        traits=("normalizes", "wide"),
    ),
    _op("Softmax", since=1, attrs="axis:i", traits=("along_axis", "wide")),
)
