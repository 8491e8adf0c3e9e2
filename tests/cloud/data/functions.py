"""Functions that data pipelines in tests refer to by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cloud.data.draws import Draws


def doubled(x: Any) -> Any:
    return x * 2


def plus_one(x: Any) -> Any:
    return x + np.float32(1)


def noisy(x: Any, generator: np.random.Generator) -> Any:
    return x + np.float32(generator.normal())


def noisy_rows(x: Any, draws: Draws) -> Any:
    return (x + draws.uniform(x.shape[1]) - draws.integers(5, 1) + draws.part(3).normal(1)).astype(np.float32)


def between(columns: dict[str, Any], others: dict[str, Any], draws: Draws) -> dict[str, Any]:
    share = draws.uniform(1)
    return {**columns, "x": (share * columns["x"] + (1 - share) * others["x"]).astype(np.float32)}


def not_third(y: Any) -> Any:
    return y % 3 != 0


def small(x: Any) -> Any:
    return x.sum(-1) < 60


def lucky(x: Any) -> Any:
    return x[0] * 100 % 2 < 1


def moved(element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "x": element["x"] - np.float32(element["y"])}


def twelve() -> Iterator[dict[str, Any]]:
    for i in range(12):
        yield {"x": np.full(2, i, np.float32), "y": np.int64(i)}
