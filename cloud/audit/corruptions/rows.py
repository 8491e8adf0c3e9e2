"""What a corruption is: a name, five levels, and a function of examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from lite_runtime.graph import Array

__all__ = ["SEVERITIES", "Change", "Corruption", "Scales"]

SEVERITIES = 5


class Scales(NamedTuple):
    """Of each channel, band or feature over all examples, in a shape that broadcasts against a batch."""

    mean: Array
    deviation: Array
    low: Array
    high: Array


Change: TypeAlias = Callable[[Array, float, Scales, np.random.Generator], Array]
"""Examples, a level, scales, and random numbers -> changed examples of the same shape. Images are (n, height, width,
channels) from 0 to 1; sound and series (n, channels, time); spectrograms (n, frames, bands); tables (n, features)."""


def _always(_: tuple[int, ...]) -> bool:
    """It applies to every shape."""
    return True


@dataclass(frozen=True)
class Corruption:
    """levels: one a severity, 1 to 5, from slight to strong. unit: what a level is. large: the levels of images with
    sides of 64 pixels or more. fits: whether it applies to a batch of this shape."""

    name: str
    change: Change
    levels: tuple[float, ...]
    unit: str
    large: tuple[float, ...] = ()
    fits: Callable[[tuple[int, ...]], bool] = _always
