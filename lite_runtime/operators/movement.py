"""Operators that move, repeat, join or fill elements."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import LAYOUT, MANY, Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="movement")

RECORDS: tuple[Operator, ...] = (
    _op("BitCast", since=26, attrs="to:i!", traits=("idle",), reference="casting"),
    _op("CenterCropPad", since=18, inputs=(2, 2), attrs="axes:I", traits=("idle",)),
    _op("Concat", since=1, inputs=(1, MANY), attrs="axis:i!", traits=("idle",)),
    _op(
        "Constant",
        since=1,
        inputs=(0, 0),
        attrs="value:T value_float:f value_floats:F value_int:i value_ints:I value_string:s value_strings:S",
        traits=("flat", "idle"),
    ),
    _op("ConstantOfShape", since=9, attrs="value:T", traits=("flat", "idle", "grows"), settings=(0,)),
    _op("DepthToSpace", since=1, attrs=f"blocksize:i! {LAYOUT} mode:s(DCR|CRD)", traits=("movement", "idle")),
    _op("Expand", since=8, inputs=(2, 2), traits=("movement", "idle", "grows")),
    _op("EyeLike", since=9, attrs="dtype:i k:i", traits=("flat", "idle", "grows")),
    _op("Flatten", since=1, attrs="axis:i", traits=("movement", "view", "idle")),
    _op("Identity", since=1, traits=("elementwise", "exact", "homogeneous", "movement", "idle")),
    _op(
        "Pad",
        since=1,
        inputs=(2, 4),
        attrs="mode:s(constant|reflect|edge|wrap)",
        traits=("idle", "grows"),
        settings=(2,),
    ),
    _op("Range", since=11, inputs=(3, 3), attrs="stash_type:i", traits=("flat", "idle", "grows"), settings=(0, 1, 2)),
    _op("Reshape", since=1, inputs=(2, 2), attrs="allowzero:i", traits=("movement", "view", "idle")),
    _op("ReverseSequence", since=10, inputs=(2, 2), attrs="batch_axis:i time_axis:i", traits=("movement", "idle")),
    _op("Shape", since=1, attrs="end:i start:i", traits=("flat", "idle", "shape_only")),
    _op("Size", since=1, traits=("flat", "idle", "shape_only")),
    _op("Slice", since=1, inputs=(3, 5), traits=("movement", "idle")),
    _op("SpaceToDepth", since=1, attrs=f"blocksize:i! {LAYOUT} mode:s", traits=("movement", "idle")),
    _op("Split", since=1, inputs=(1, 2), outputs=(1, MANY), attrs="axis:i num_outputs:i", traits=("movement", "idle")),
    _op("Squeeze", since=1, inputs=(1, 2), traits=("movement", "view", "idle")),
    _op("Tile", since=1, inputs=(2, 2), traits=("movement", "idle", "grows")),
    _op("Transpose", since=1, attrs="perm:I", traits=("movement", "idle")),
    _op("Trilu", since=14, inputs=(1, 2), attrs="upper:i", traits=("idle",)),
    _op("Unsqueeze", since=1, inputs=(2, 2), traits=("movement", "view", "idle")),
)
