"""How good outputs are: (outputs by name, labels) -> a number, higher is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from cloud.train.metrics.detection import coco
from converter.quantize.accuracy.metrics import auc
from lite_runtime.graph import Array

__all__ = ["Figure", "figure_of"]


@dataclass(frozen=True)
class Figure:
    """A figure of merit and its name."""

    unit: str
    of: Callable[[Mapping[str, Array], Any], float]


def _top1(outputs: Mapping[str, Array], labels: Any) -> float:
    return float(np.mean(outputs["logits"].argmax(-1) == labels))


def _pixels(outputs: Mapping[str, Array], labels: Any) -> float:
    """The mean over images of the intersection over union of masks."""
    found, wanted, axes = outputs["logits"] > 0, labels > 0.5, (1, 2, 3)
    return float(np.mean((found & wanted).sum(axes) / np.maximum((found | wanted).sum(axes), 1)))


def _boxes(outputs: Mapping[str, Array], labels: Any) -> float:
    """COCO's average precision at an overlap of one half."""
    found = {f"found_{key}": outputs[key] for key in ("boxes", "scores", "classes")}
    return coco({**found, **labels}, thresholds=np.array([0.5]))


def _anomalies(outputs: Mapping[str, Array], labels: Any) -> float:
    """The area under the curve of recordings by their mean squared error."""
    clips, odd = labels["clip"].astype(int), labels["odd"] > 0
    error = np.square(outputs["reconstruction"] - labels["x"]).mean(1)
    scores = np.bincount(clips, error) / np.bincount(clips)
    return auc(scores, np.bincount(clips, odd) > 0)


def _people(outputs: Mapping[str, Array], labels: Any) -> float:
    """The share of queries whose own item is among the five that fit best, of all that there are."""
    names, first = np.unique(labels, return_index=True)
    scores = outputs["query_vector"] @ outputs["item_vector"][first].T
    best = names[np.argsort(-scores, axis=1, kind="stable")[:, :5]]
    return float(np.mean((best == labels[:, None]).any(1)))


_OTHERS: Mapping[str, Figure] = MappingProxyType(
    {
        "unet": Figure("IoU", _pixels), "yolo": Figure("AP at 0.5", _boxes), "yolos": Figure("AP at 0.5", _boxes),
        "autoencoder": Figure("AUC", _anomalies), "two_tower": Figure("recall at 5", _people),
    }
)  # fmt: skip
"""Of the recipes whose models do not classify."""


def figure_of(recipe: str) -> Figure:
    """The figure of a recipe: by default the share of right classes, of texts over all positions."""
    return _OTHERS.get(recipe, Figure("top-1", _top1))
