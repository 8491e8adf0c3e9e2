"""Mean average precision of detections, by COCO's definition (Lin et al., 2014, and its reference program,
pycocotools).

Output {"boxes": [batch, n, 4] as x1, y1, x2, y2, "scores": [batch, n], "classes": [batch, n]}, labels {"boxes": [batch,
m, 4], "classes": [batch, m]}, perhaps with "crowd" [batch, m] (regions that hold several objects) and "area" [batch, m]
(by default the boxes'). Classes below 0 are padding. In each image and class the 100 most certain detections take,
the most certain first, the object of most overlap that is not taken yet, if the overlap (intersection over union) is at
least a threshold. Precision is averaged over 101 levels of recall, then over thresholds 0.5 to 0.95, and classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.train.metrics.whole import SetMetric

__all__ = ["coco", "detected"]

Numbers = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]

THRESHOLDS: Numbers = np.linspace(0.5, 0.95, 10)
_RECALLS: Numbers = np.linspace(0, 1, 101)
_MOST = 100
"""Detections that count in an image and class."""

_ALL = (0.0, 1e10)
_ROWS: Mapping[str, tuple[Sequence[int], tuple[float, float]]] = MappingProxyType(
    {
        "coco_map": (range(10), _ALL), "coco_map_50": ([0], _ALL), "coco_map_75": ([5], _ALL),
        "coco_map_small": (range(10), (0.0, 32.0**2)), "coco_map_medium": (range(10), (32.0**2, 96.0**2)),
        "coco_map_large": (range(10), (96.0**2, 1e10)),
    }
)  # fmt: skip
"""By name: which thresholds, and the areas of objects, in square pixels."""


def detected(name: str, separate: bool) -> SetMetric | None:
    """coco_map, coco_map_50, coco_map_75 (at one threshold), coco_map_small, _medium, _large (objects by size); -1
    without any object, as COCO has it. None for another name."""
    del separate
    if name not in _ROWS:
        return None
    chosen, areas = _ROWS[name]
    return SetMetric(_fields, lambda kept: coco(kept, areas, THRESHOLDS[list(chosen)]))


def _fields(output: Any, labels: Any) -> Any:
    found = {f"found_{key}": output[key] for key in ("boxes", "scores", "classes")}
    return found | {key: labels[key] for key in ("boxes", "classes", "crowd", "area") if key in labels}


def coco(kept: Mapping[str, Any], areas: tuple[float, float] = _ALL, thresholds: Numbers = THRESHOLDS) -> float:
    """The mean average precision of what `detected` keeps, for objects with these `areas`."""
    classes = [int(c) for c in np.unique(kept["classes"]) if c >= 0]
    values = [found for c in classes if (found := _of_class(kept, c, areas, thresholds)) is not None]
    return float(np.mean(values)) if values else -1.0


def _of_class(kept: Mapping[str, Any], kind: int, areas: tuple[float, float], thresholds: Numbers) -> Numbers | None:
    """Precision at every level of recall, [thresholds, 101]; None if there is nothing to find."""
    scores: list[Numbers] = []
    right: list[Truths] = []
    left_out: list[Truths] = []
    there = 0
    for image in range(len(kept["classes"])):
        objects, crowd, ignored = _objects(kept, image, kind, areas)
        there += int((~ignored).sum())
        mine = np.flatnonzero(kept["found_classes"][image] == kind)
        certain = kept["found_scores"][image][mine].astype(np.float64)
        order = np.argsort(-certain, kind="stable")[:_MOST]
        boxes = kept["found_boxes"][image][mine][order].astype(np.float64)
        hit, none = _matched(boxes, objects, crowd, ignored, thresholds)
        outside = ~_within(_area(boxes), areas)
        scores.append(certain[order])
        right.append(hit)
        left_out.append(none | (~hit & outside))
    if not there:
        return None
    order = np.argsort(-np.concatenate(scores), kind="stable")
    found, out = (np.concatenate(parts, axis=1)[:, order] for parts in (right, left_out))
    true, false = (np.cumsum(each & ~out, axis=1).astype(np.float64) for each in (found, ~found))
    return np.stack([_curve(t, f, there) for t, f in zip(true, false, strict=True)])


def _objects(kept: Mapping[str, Any], image: int, kind: int, areas: tuple[float, float]) -> Any:
    """Boxes of an image's objects, whether each is a crowd, and whether it is ignored; those that count come first."""
    mine = np.flatnonzero(kept["classes"][image] == kind)
    boxes = kept["boxes"][image][mine].astype(np.float64)
    crowd = kept["crowd"][image][mine] > 0 if "crowd" in kept else np.zeros(len(mine), bool)
    area = kept["area"][image][mine].astype(np.float64) if "area" in kept else _area(boxes)
    ignored = crowd | ~_within(area, areas)
    order = np.argsort(ignored, kind="stable")
    return boxes[order], crowd[order], ignored[order]


def _within(area: Numbers, areas: tuple[float, float]) -> Truths:
    return (area >= areas[0]) & (area <= areas[1])


def _area(boxes: Numbers) -> Numbers:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _overlap(found: Numbers, objects: Numbers, crowd: Truths) -> Numbers:
    """Intersection over union, [found, objects]; of crowds over the area of what was found."""
    corner: Callable[..., Numbers] = lambda a, b, i: a(found[:, None, i], b[None, :, i])  # noqa: E731
    width = corner(np.minimum, objects, 2) - corner(np.maximum, objects, 0)
    height = corner(np.minimum, objects, 3) - corner(np.maximum, objects, 1)
    shared = np.clip(width, 0, None) * np.clip(height, 0, None)
    own = _area(found)[:, None]
    union = np.where(crowd[None], own, own + _area(objects)[None] - shared)
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def _matched(
    found: Numbers, objects: Numbers, crowd: Truths, ignored: Truths, thresholds: Numbers
) -> tuple[Truths, Truths]:
    """For every threshold and detection, most certain first: whether it takes an object, and whether that is
    ignored."""
    overlap = _overlap(found, objects, crowd)
    taken = np.zeros((len(thresholds), len(objects)), bool)
    hit, left_out = np.zeros((2, len(thresholds), len(found)), bool)
    levels, every = np.minimum(thresholds, 1 - 1e-10)[:, None], np.arange(len(thresholds))
    for d in range(len(found) if len(objects) else 0):
        free = (~taken | crowd) & (overlap[d] >= levels)
        counting = free & ~ignored
        able = np.where(counting.any(1, keepdims=True), counting, free)
        # Among equal overlaps the last object is taken, as in the reference program.
        best = len(objects) - 1 - np.argmax(np.where(able, overlap[d], -1.0)[:, ::-1], axis=1)
        some = able.any(1)
        hit[:, d], left_out[:, d] = some, some & ignored[best]
        taken[every[some], best[some]] = True
    return hit, left_out


def _curve(true: Numbers, false: Numbers, there: int) -> Numbers:
    """Precision at the levels of recall: at each the highest of that recall or more."""
    precision = true / np.maximum(true + false, np.spacing(1.0))
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(true / there, _RECALLS, side="left")
    return np.append(envelope, 0.0)[np.minimum(places, len(envelope))]
