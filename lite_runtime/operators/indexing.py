"""Look-ups, scatters and searches."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="indexing")

RECORDS: tuple[Operator, ...] = (
    _op("ArrayFeatureExtractor", since=1, inputs=(2, 2), domain="ai.onnx.ml"),
    _op("Compress", since=9, inputs=(2, 2), attrs="axis:i"),
    _op("Gather", since=1, inputs=(2, 2), attrs="axis:i", traits=("movement", "idle")),
    _op("GatherElements", since=11, inputs=(2, 2), attrs="axis:i", traits=("movement", "idle")),
    _op("GatherND", since=11, inputs=(2, 2), attrs="batch_dims:i", traits=("movement", "idle")),
    _op("NonZero", since=9, traits=("flat",)),
    _op("OneHot", since=9, inputs=(3, 3), attrs="axis:i", traits=("flat", "idle", "grows"), settings=(1, 2)),
    _op("ScatterElements", since=11, inputs=(3, 3), attrs="axis:i reduction:s(none|add|mul|max|min)", traits=("idle",)),
    _op("ScatterND", since=11, inputs=(3, 3), attrs="reduction:s(none|add|mul|max|min)", traits=("idle",)),
    _op("TensorScatter", since=24, inputs=(2, 3), attrs="axis:i mode:s", traits=("idle",)),
    _op("TopK", since=1, inputs=(2, 2), outputs=(2, 2), attrs="axis:i largest:i sorted:i"),
    _op("Unique", since=11, outputs=(1, 4), attrs="axis:i sorted:i"),
)
