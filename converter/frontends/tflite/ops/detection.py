"""Boxes: non-maximum suppression, and the custom operator at the end of detection models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import cast, counted, index, single, sizes
from converter.ir import build

__all__: list[str] = []

_F = np.float32
_BEFORE = -np.inf


@dataclass(frozen=True)
class _Settings:
    """Options of TFLite_Detection_PostProcess."""

    most: int
    per_detection: int
    per_class: int
    regular: bool
    score: float
    overlap: float
    classes: int
    scales: tuple[float, float, float, float]

    @staticmethod
    def of(op: Op) -> _Settings:
        """From the custom options, a flexbuffer map."""
        found = op.custom.options if op.custom is not None else {}
        missing = [name for name in ("max_detections", "num_classes", "y_scale") if name not in found]
        if missing:
            op.fail(f"expected options {', '.join(missing)} in its flexbuffer, got {', '.join(found) or 'none'}")
        return _Settings(
            int(found["max_detections"]),
            int(found.get("max_classes_per_detection", 1)),
            int(found.get("detections_per_class", 100)),
            bool(found.get("use_regular_nms", False)),
            float(found.get("nms_score_threshold", 0.0)),
            float(found.get("nms_iou_threshold", 0.5)),
            int(found["num_classes"]),
            (float(found["y_scale"]), float(found["x_scale"]), float(found["h_scale"]), float(found["w_scale"])),
        )


@translate("TFLite_Detection_PostProcess")
def detection_postprocess(op: Op) -> list[ir.Value]:
    """Boxes [1, n, 4], classes [1, n], scores [1, n] and how many of the n are meant [1]; the rest is zero.

    Fast form: boxes are suppressed by their best class, and each box kept gives its best classes. Regular form: each
    class is suppressed by itself, and the best of all are kept. Here a score equal to the threshold is enough, while
    ONNX's operator requires a larger one: so the next smaller number is used as its threshold.
    """
    settings = _Settings.of(op)
    boxes = _decoded(op, settings)
    scores = _scores(op, settings)
    return (_regular if settings.regular else _fast)(op, settings, boxes, scores)


def _decoded(op: Op, settings: _Settings) -> ir.Value:
    """Corners [1, n, 4] (y, x, y, x) from offsets relative to anchors (centre y, centre x, height, width)."""
    offsets, anchors = op.real(0), op.real(2)
    if (sizes(op, 0)[-1] or 4) > 4:
        offsets = op.emit("Slice", [offsets, op.constant([0]), op.constant([4]), op.constant([2])])
    scaled = op.emit("Div", [offsets, op.constant(np.asarray(settings.scales, _F))])
    moved, grown = op.emit("Split", [scaled], {"axis": 2, "num_outputs": 2}, outputs=2)
    centres, extents = op.emit("Split", [anchors], {"axis": 1, "num_outputs": 2}, outputs=2)
    centre = op.emit("Add", [op.emit("Mul", [moved, extents]), centres])
    half = op.emit("Mul", [op.emit("Mul", [op.emit("Exp", [grown]), extents]), op.constant(_F(0.5))])
    corners = [op.emit("Sub", [centre, half]), op.emit("Add", [centre, half])]
    return op.emit("Concat", corners, {"axis": 2})


def _scores(op: Op, settings: _Settings) -> ir.Value:
    """[1, n, classes], the background (leading classes beyond num_classes) left out."""
    scores = op.real(1)
    total = sizes(op, 1)[-1]
    if total is None:
        op.fail("expected class scores of known size")
    if total == settings.classes:
        return scores
    return op.emit("Slice", [scores, op.constant([total - settings.classes]), op.constant([total]), op.constant([2])])


def _suppressed(op: Op, settings: _Settings, boxes: ir.Value, scores: ir.Value, most: int) -> Sequence[ir.Value]:
    """Rows (batch, class, box) of what is kept, zeros behind them, and how many are meant; `scores` [1, classes, n]."""
    above = np.nextafter(_F(settings.score), _F(_BEFORE))
    operands = [boxes, scores, op.constant(most), op.constant(_F(settings.overlap)), op.constant(above)]
    return _padded(op, operands)


def _padded(op: Op, operands: Sequence[ir.Value]) -> Sequence[ir.Value]:
    rows, count = op.emit("NonMaxSuppressionPadded", operands, outputs=2, domain=build.DOMAIN)
    for value in (rows, count):
        value.type = ir.TensorType(ir.DataType.INT64)
    return rows, count


def _fast(op: Op, settings: _Settings, boxes: ir.Value, scores: ir.Value) -> list[ir.Value]:
    best = op.emit("ReduceMax", [scores, op.constant([2])], {"keepdims": 0})
    rows, count = _suppressed(op, settings, boxes, op.emit("Unsqueeze", [best, op.constant([1])]), settings.most)
    kept = op.emit("Gather", [rows, op.constant(2)], {"axis": 1})
    which = _filled(op, kept, settings.most)
    each = min(settings.per_detection, settings.classes)
    first = op.constant([0])
    of_kept = op.emit("Gather", [op.emit("Squeeze", [scores, first]), which], {"axis": 0})
    values, labels = op.emit("TopK", [of_kept, op.constant([each])], {"axis": 1}, outputs=2)
    places = op.emit("Gather", [op.emit("Squeeze", [boxes, first]), which], {"axis": 0})
    if each > 1:
        spread = op.emit("Unsqueeze", [places, op.constant([1])])
        places = op.emit("Expand", [spread, op.constant([settings.most, each, 4])])
    slots = settings.most * each
    return _results(op, each, slots, (places, labels, values, count))


def _regular(op: Op, settings: _Settings, boxes: ir.Value, scores: ir.Value) -> list[ir.Value]:
    by_class = op.emit("Transpose", [scores], {"perm": [0, 2, 1]})
    rows, kept = _suppressed(op, settings, boxes, by_class, settings.per_class)
    count = op.emit("Min", [kept, op.constant([settings.most])])
    least = op.constant(_F(np.finfo(_F).min))
    total = op.emit("Squeeze", [op.emit("Shape", [rows], {"end": 1})])
    places = op.emit("Range", [op.constant(0), total, op.constant(1)])
    found = op.emit("Where", [op.emit("Less", [places, kept]), op.emit("GatherND", [by_class, rows]), least])
    found = op.emit("Pad", [found, op.constant([0, settings.most]), least])
    values, order = op.emit("TopK", [found, op.constant([settings.most])], {"axis": 0}, outputs=2)
    rows = op.emit("Pad", [rows, op.constant([0, 0, settings.most, 0])])
    chosen = op.emit("Gather", [rows, order], {"axis": 0})
    labels, which = (op.emit("Gather", [chosen, op.constant(column)], {"axis": 1}) for column in (1, 2))
    places = op.emit("Gather", [op.emit("Squeeze", [boxes, op.constant([0])]), which], {"axis": 0})
    return _results(op, 1, settings.most, (places, labels, values, count))


def _filled(op: Op, kept: ir.Value, most: int) -> ir.Value:
    """`most` indices: those kept, then zeros."""
    padded = op.emit("Pad", [kept, op.constant([0, most])])
    return op.emit("Slice", [padded, op.constant([0]), op.constant([most])])


def _results(
    op: Op, each: int, slots: int, found: tuple[ir.Value, ir.Value, ir.Value, ir.Value]
) -> list[ir.Value]:
    """The four outputs, zero from place `count` on."""
    places, labels, values, count = found
    meant = op.emit("Less", [op.constant(counted(op, slots) // each), count])
    zero = op.constant(_F(0))
    flat = op.emit("Reshape", [places, op.constant([1, slots, 4])])
    boxes = op.emit("Where", [op.emit("Unsqueeze", [meant, op.constant([1])]), flat, zero])
    rows = []
    for value in (cast(op, labels, ir.DataType.FLOAT), values):
        rows.append(op.emit("Where", [meant, op.emit("Reshape", [value, op.constant([1, slots])]), zero]))
    return [boxes, *rows, cast(op, count, ir.DataType.FLOAT)]


@translate("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(op: Op) -> list[ir.Value]:
    """Indices of boxes kept, zeros behind them, and their number; V5 also their scores. Soft suppression is not
    supported."""
    soft = op.name.endswith("V5")
    if soft and (op.real_const(5) is None or np.any(op.real_const(5))):
        op.fail("expected soft_nms_sigma 0, got another or computed value; export the model with hard suppression")
    most = single(op, 2, "max_output_size")
    boxes, scores = (op.emit("Unsqueeze", [op.real(i), op.constant(axes)]) for i, axes in ((0, [0]), (1, [0, 1])))
    operands = [boxes, scores, index(op, 2), op.real(3), op.real(4)]
    rows, number = _padded(op, operands)
    kept = op.emit("Gather", [rows, op.constant(2)], {"axis": 1})
    count = op.emit("Reshape", [number, op.constant([], np.int64)])
    which = _filled(op, kept, most)
    number = cast(op, count, ir.DataType.INT32)
    if not soft:
        return [cast(op, which, ir.DataType.INT32), number]
    meant = op.emit("Less", [op.constant(counted(op, most)), count])
    found = op.emit("Where", [meant, op.emit("Gather", [op.real(1), which], {"axis": 0}), op.constant(_F(0))])
    return [cast(op, which, ir.DataType.INT32), found, number]
