"""Boxes that say the same are one: non-maximum suppression, class by class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from edge.gateway.processing.scores import best, labelled
from edge.gateway.processing.steps import Kind, Step, need
from lite_runtime.graph import Array

__all__ = ["Nms"]

_BLOCK = 128
"""Candidates that are compared with each other at once."""


@dataclass(frozen=True)
class Nms(Step):
    """Boxes [n, 4] and scores [n, classes] (`classes_first`: [classes, n]) of each row to four arrays of `detections`
    places: boxes as they came, float32 [detections, 4]; scores, float32; classes, int64 or labels; and how many of the
    places are filled, int64 []. What is not filled is 0, or the empty text.

    Of a class, boxes are taken by score, of equals the first; one that overlaps a box taken before by more than `iou`
    of their union is dropped. Scores must be above `score`; only the `candidates` best of a class are looked at; of
    all classes' the best `detections` are kept. Class `background` is no answer.
    """

    boxes: str
    iou: float
    score: float
    detections: int
    candidates: int
    background: int | None
    classes_first: bool
    labels: list[str] | None

    def typed(self, *kinds: Kind) -> tuple[Kind, ...]:
        """See `Step`."""
        need(len(kinds) == 2, f"nms takes two arrays, boxes and scores, got {len(kinds)}")
        boxes, scores = kinds
        need(len(boxes.shape) == 2 and boxes.shape[1] == 4 and boxes.dtype.startswith("float"),
             f"nms: expected boxes as floats [n, 4], got {boxes}")  # fmt: skip
        need(len(scores.shape) == 2 and scores.dtype.startswith("float"),
             f"nms: expected scores as floats [n, classes], got {scores}")  # fmt: skip
        classes, count = scores.shape if self.classes_first else scores.shape[::-1]
        need(None in (count, boxes.shape[0]) or count == boxes.shape[0],
             f"nms: expected a score for each of {boxes.shape[0]} boxes, got {count}; see classes_first")  # fmt: skip
        need(self.labels is None or classes in (None, len(self.labels)),
             f"nms: expected a label for each of {classes} classes, got {len(self.labels or ())}")  # fmt: skip
        places, words = (self.detections,), "int64" if self.labels is None else "string"
        return Kind("float32", (*places, 4)), Kind("float32", places), Kind(words, places), Kind("int64", ())

    def run(self, *arrays: Array) -> tuple[Array, ...]:
        """See `Step`."""
        boxes, scores = arrays
        if self.classes_first:
            scores = scores.swapaxes(1, 2)
        rows, places = len(boxes), self.detections
        found = np.zeros((rows, places, 4), np.float32), np.zeros((rows, places), np.float32)
        classes, counts = np.zeros((rows, places), np.int64), np.zeros(rows, np.int64)
        for row in range(rows):
            box, score, index = self._row(boxes[row].astype(np.float32), scores[row].astype(np.float32))
            counts[row] = count = len(index)
            found[0][row, :count], found[1][row, :count], classes[row, :count] = box, score, index
        named = labelled(classes, self.labels)
        if self.labels is not None:
            named[np.arange(places) >= counts[:, None]] = ""
        return *found, named, counts

    def _row(self, boxes: Array, scores: Array) -> tuple[Array, Array, Array]:
        corners = _CORNERS[self.boxes](boxes.astype(np.float64))
        taken = [
            (np.array(self._class(corners, scores[:, c]), np.int64), c)
            for c in np.flatnonzero((scores > self.score).any(0)).tolist()
            if c != self.background
        ]
        if not taken:
            return boxes[:0], scores[:0, 0], np.zeros(0, np.int64)
        index = np.concatenate([kept for kept, _ in taken])
        classes = np.concatenate([np.full(len(kept), c) for kept, c in taken])
        order = best(scores[index, classes])[: self.detections]
        index, classes = index[order], classes[order]
        return boxes[index], scores[index, classes], classes

    def _class(self, corners: Array, scores: Array) -> list[int]:
        """Boxes of one class that stand, best first."""
        above = np.flatnonzero(scores > self.score)
        order = above[best(scores[above])][: self.candidates]
        kept: list[int] = []
        for begin in range(0, len(order), _BLOCK):
            block = order[begin : begin + _BLOCK]
            block = block[~(_overlap(corners[kept], corners[block]) > self.iou).any(0)]
            over = _overlap(corners[block], corners[block]) > self.iou
            stands = np.ones(len(block), bool)
            for i, box in enumerate(block.tolist()):
                if stands[i]:
                    kept.append(box)
                    stands &= ~over[i]
            if len(kept) >= self.detections:
                break
        return kept[: self.detections]


def _overlap(boxes: Array, others: Array) -> Array:
    """Intersection over union of [n, 4] with [m, 4], corners (x0, y0, x1, y1): [n, m]; 0 where both are empty."""
    boxes = boxes[:, None]
    wide = np.minimum(boxes[..., 2], others[:, 2]) - np.maximum(boxes[..., 0], others[:, 0])
    high = np.minimum(boxes[..., 3], others[:, 3]) - np.maximum(boxes[..., 1], others[:, 1])
    both = np.maximum(wide, 0.0) * np.maximum(high, 0.0)
    union = _area(boxes) + _area(others) - both
    return np.asarray(np.divide(both, union, out=np.zeros(both.shape), where=union > 0))


def _area(boxes: Array) -> Array:
    return np.asarray(np.maximum(boxes[..., 2:] - boxes[..., :2], 0.0).prod(-1))


def _sorted(boxes: Array) -> Array:
    """Any two opposite corners will do."""
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], 1)


def _from_centre(boxes: Array) -> Array:
    half: Array = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1)


_CORNERS: Mapping[str, Callable[[Array], Array]] = {
    "xyxy": _sorted,
    "yxyx": _sorted,  # a box on its side overlaps as it stands
    "cxcywh": _from_centre,
}
