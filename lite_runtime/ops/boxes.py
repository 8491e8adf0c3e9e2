"""NonMaxSuppressionPadded: non-maximum suppression whose result has a size that values do not change."""

from __future__ import annotations

from lite_runtime import steps
from lite_runtime.ops._axes import attr_int, expect
from lite_runtime.ops.reduce import known_ints
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Spec, bind, infer

__all__: list[str] = []


@infer("NonMaxSuppressionPadded")
def _infer(n: Inference) -> tuple[Spec, Spec]:
    boxes, scores = expect(n, 0, {"float32"}, "boxes"), expect(n, 1, {"float32"}, "scores")
    if len(boxes.shape) != 3 or boxes.shape[2] != 4:
        raise n.error(f"expected boxes of shape [batch, n, 4], got {list(boxes.shape)}")
    if len(scores.shape) != 3 or (scores.shape[0], scores.shape[2]) != boxes.shape[:2]:
        wanted = f"[{boxes.shape[0]}, classes, {boxes.shape[1]}]"
        raise n.error(f"expected scores of shape {wanted}, got {list(scores.shape)}")
    expect(n, 2, {"int64"}, "max_output_boxes_per_class")
    attr_int(n, "center_point_box", 0, (0, 1))
    for i, name in ((3, "iou_threshold"), (4, "score_threshold")):
        if n.has(i) and expect(n, i, {"float32"}, name).size != 1:
            raise n.error(f"expected {name} to be one number, got shape {list(n.spec(i).shape)}")
    if n.spec(2).size != 1:
        raise n.error(f"expected max_output_boxes_per_class to be one number, got shape {list(n.spec(2).shape)}")
    most = min(max(n.ints(2)[0], 0), boxes.shape[1])
    return Spec("int64", (scores.shape[0] * scores.shape[1] * most, 3)), Spec("int64", (1,))


@bind("NonMaxSuppressionPadded")
def _bind(b: Binder) -> None:
    boxes, scores = b.inputs[0], b.inputs[1]
    assert boxes is not None and scores is not None
    known = known_ints(b, 2)
    if known is None:
        raise NoKernel("max_output_boxes_per_class is missing")
    batches, classes, n = scores.shape
    most = min(max(known[0], 0), n)
    overlap, least = (b.inputs[i] if i < len(b.inputs) else None for i in (3, 4))
    chosen, counts = b.scratch("int64", (batches, classes, most)), b.scratch("int64", (batches, classes))
    b.emit(
        steps.Suppress(
            boxes=boxes,
            scores=scores,
            overlap=overlap,
            least=least,
            heap=b.scratch("int32", (batches, classes, n)),
            corners=b.scratch("float32", (batches, classes, most, 4)),
            chosen=chosen,
            kept=counts,
            batches=batches,
            classes=classes,
            most=most,
            n=n,
            centred=int(b.attr("center_point_box", 0)),
        )
    )
    b.emit(
        steps.GatherBoxes(
            chosen=chosen,
            kept=counts,
            rows=b.outputs[0] or b.scratch("int64", (batches * classes * most, 3)),
            count=(b.outputs[1] if len(b.outputs) > 1 else None) or b.scratch("int64", (1,)),
            batches=batches,
            classes=classes,
            most=most,
        ),
        parallel=False,
    )
