"""Metrics of numbers: errors of a regression, as scikit-learn defines them (the mean over outputs), and perplexity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud.train.metrics.whole import SetMetric

__all__ = ["measured"]


def measured(name: str, separate: bool) -> SetMetric | None:
    """rmse, mae, r2, perplexity (the exponential of the mean surprise of a label; labels of sequences count one by
    one). None for another name."""
    del separate
    if name == "perplexity":
        return SetMetric(_surprise, _perplexity, lower=True)
    return SetMetric(_pairs, _OF_PAIRS[name], lower=name != "r2") if name in _OF_PAIRS else None


def _pairs(output: Any, target: Any) -> Any:
    """Outputs and targets, [batch, outputs] each."""
    rows = len(output)
    return output.reshape(rows, -1), target.reshape(output.shape).astype(output.dtype).reshape(rows, -1)


def _apart(kept: Any) -> Any:
    output, target = (part.astype(np.float64) for part in kept)
    return target - output, target


def _rmse(kept: Any) -> float:
    return float(np.sqrt(np.square(_apart(kept)[0]).mean(0)).mean())


def _mae(kept: Any) -> float:
    return float(np.abs(_apart(kept)[0]).mean(0).mean())


def _r2(kept: Any) -> float:
    """1 - error / variance; of a constant target 1 without any error, else 0."""
    error, target = _apart(kept)
    left, spread = np.square(error).sum(0), np.square(target - target.mean(0)).sum(0)
    whole = np.divide(left, spread, out=(left > 0).astype(np.float64), where=spread > 0)
    return float((1 - whole).mean())


_OF_PAIRS: dict[str, Callable[[Any], float]] = {"rmse": _rmse, "mae": _mae, "r2": _r2}


def _surprise(logits: Any, labels: Any) -> Any:
    """The sum of -log p(label) of a row, and the number of its labels."""
    chance = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    if labels.ndim == logits.ndim:
        each = -jnp.sum(labels * chance, axis=-1)
    else:
        each = -jnp.take_along_axis(chance, labels[..., None], axis=-1)[..., 0]
    each = each.reshape(len(each), -1)
    return each.sum(1), jnp.full(len(each), each.shape[1])


def _perplexity(kept: Any) -> float:
    total, count = (part.astype(np.float64).sum() for part in kept)
    return float(np.exp(total / count)) if count else float("nan")
