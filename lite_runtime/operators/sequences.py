"""Sequences and optional values."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import MANY, Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="sequences")

RECORDS: tuple[Operator, ...] = (
    _op("ConcatFromSequence", since=11, attrs="axis:i! new_axis:i"),
    _op("Optional", since=15, inputs=(0, 1), attrs="type:*"),
    _op("OptionalGetElement", since=15),
    _op("OptionalHasElement", since=15, inputs=(0, 1)),
    _op("SequenceAt", since=11, inputs=(2, 2)),
    _op("SequenceConstruct", since=11, inputs=(1, MANY)),
    _op("SequenceEmpty", since=11, inputs=(0, 0), attrs="dtype:i"),
    _op("SequenceErase", since=11, inputs=(1, 2)),
    _op("SequenceInsert", since=11, inputs=(2, 3)),
    _op("SequenceLength", since=11),
    _op("SplitToSequence", since=11, inputs=(1, 2), attrs="axis:i keepdims:i"),
)
