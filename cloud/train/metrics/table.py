"""Metrics by name: means over examples (`METRICS`), and those over the whole set."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import TypeAlias

from cloud.errors import TrainError
from cloud.train.metrics.classes import scored
from cloud.train.metrics.detection import detected
from cloud.train.metrics.numbers import measured
from cloud.train.metrics.ranking import ranked
from cloud.train.metrics.whole import SetMetric
from cloud.train.stepping.losses import METRICS, PerExample, are_decisions, top_accuracy

__all__ = ["SET_METRICS", "Metric", "is_lower_better", "metric_of"]

Metric: TypeAlias = PerExample | SetMetric

SET_METRICS = (
    "roc_auc", "pr_auc", "f1", "f1_micro", "f1_macro", "precision", "precision_micro", "precision_macro", "recall",
    "recall_micro", "recall_macro", "confusion", "perplexity", "rmse", "mae", "r2", "coco_map", "coco_map_50",
    "coco_map_75", "coco_map_small", "coco_map_medium", "coco_map_large", "retrieval_map", "retrieval_recall_1",
)  # fmt: skip
"""Names of metrics over the whole set; retrieval_recall_K has any K."""

_FAMILIES: tuple[Callable[[str, bool], SetMetric | None], ...] = (scored, ranked, measured, detected)


def metric_of(name: str, loss: PerExample) -> Metric:
    """The metric of that name: of `METRICS`, top_K_accuracy for any K, or one over the whole set. `loss` says whether
    outputs are classes or separate decisions. Raises TrainError for an unknown name."""
    if name in METRICS:
        return METRICS[name]
    if found := re.fullmatch(r"top_([1-9][0-9]{0,3})_accuracy", name):
        return top_accuracy(int(found[1]))
    made = next((made for family in _FAMILIES if (made := family(name, are_decisions(loss)))), None)
    if made is None:
        known = (*METRICS, "top_K_accuracy", *SET_METRICS)
        close = difflib.get_close_matches(name, known, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise TrainError(f"expected a metric of {', '.join(known)}, or a function, got {name!r}{meant}")
    return made


def is_lower_better(metric: Metric) -> bool:
    """Whether smaller values of the metric are better; of a function of the user's they are not."""
    return metric.lower if isinstance(metric, SetMetric) else metric is METRICS["mean_absolute_error"]
