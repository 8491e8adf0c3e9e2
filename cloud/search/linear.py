"""The linear forecast: a matrix from differences from the last value to the next ones, the same for all channels.

Zeng et al. ("Are Transformers Effective for Time Series Forecasting?", AAAI 2023) find that it often wins. Their
DLinear and NLinear are such matrices, found by descent; this is the least squares solution with a penalty that the
validation part chooses.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cloud.search.data import Data
from cloud.search.goal import Forecast
from cloud.zoo.build import BATCH, Builder
from lite_runtime.graph import Array

__all__ = ["linear"]

_PENALTIES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Relative to the mean square of a column."""
_ROWS = 4096


def linear(data: Data) -> tuple[str, ir.Model]:
    """Its name, and the network: `x` [batch, channels, 1, window] -> `forecast` [batch, channels, horizon]."""
    goal = data.goal
    assert isinstance(goal, Forecast)
    x, y = data.train
    window = x.shape[-1]
    square, product = np.zeros((window, window)), np.zeros((window, goal.horizon))
    for i in range(0, len(x), _ROWS):
        seen, next_ = (_away(part[i : i + _ROWS], x[i : i + _ROWS], goal) for part in (x[:, :, 0], y))
        square += seen.T @ seen
        product += seen.T @ next_
    scale = np.trace(square) / window or 1.0
    held = _away(data.validation[0][:, :, 0], data.validation[0], goal)
    matrices = {p: np.linalg.solve(square + p * scale * np.eye(window), product) for p in _PENALTIES}
    best = max(_PENALTIES, key=lambda p: _figure(held @ matrices[p], data, goal))
    return f"linear forecast, penalty {best:g}", _graph(data, goal, matrices[best])


def _away(values: Array, x: Array, goal: Forecast) -> Array:
    """Differences of (n, channels, steps) from the last value of x, in spreads: float64 (n · channels, steps)."""
    away = (values.astype(np.float64) - x[:, :, 0, -1:]) / np.array(goal.spread)[:, None]
    return np.asarray(away.reshape(-1, values.shape[-1]))


def _figure(answers: Array, data: Data, goal: Forecast) -> float:
    x, y = data.validation
    made = answers.reshape(y.shape) * np.array(goal.spread)[:, None] + x[:, :, 0, -1:]
    return goal.value(made, data.validation)


def _graph(data: Data, goal: Forecast, matrix: Array) -> ir.Model:
    b = Builder("linear")
    x = b.input("x", (BATCH, *data.shape))
    channels, _, window = data.shape
    rows = b.reshape(goal.enter(b, x), (channels, window), name="rows")
    weight = b.weight("linear.weight", matrix.astype(np.float32))
    y = b.op("MatMul", rows, weight, name="linear", shape=(BATCH, channels, goal.horizon))
    return b.model(forecast=goal.leave(b, b.flatten(y, name="flat"), x))
