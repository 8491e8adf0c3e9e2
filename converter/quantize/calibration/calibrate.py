"""From observed values to a range, and from a range to scale and zero point. Pure functions.

A histogram is `(counts [n] int64, low, high)`: n equal bins over [low, high]. Every method returns a range (minimum,
maximum); `affine` and `symmetric` convert it to parameters, in which zero is always exactly representable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from converter.quantize.calibration.observe import Statistics
from converter.quantize.options import Method, Options
from lite_runtime.graph import Array

__all__ = ["LIMITS", "Function", "Histogram", "Params", "Range", "affine", "choose", "fake", "saturated", "symmetric"]

LIMITS: Mapping[str, tuple[int, int]] = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
}
_HEADROOM = 2.0
"""Sixteen bits can spare one for values beyond those observed, and gain nothing from clipping."""
_LEAST_SCALE = float(np.float32(2.0**-100))
"""The smallest scale: below it, products of scales would be subnormal in float32."""


@dataclass(frozen=True)
class Params:
    """real = (stored - zero_point) * scale, one pair for a whole tensor. `scale` is a float32 number."""

    scale: float
    zero_point: int
    dtype: str = "int8"

    @property
    def low(self) -> float:
        """The smallest real value."""
        return (LIMITS[self.dtype][0] - self.zero_point) * self.scale

    @property
    def high(self) -> float:
        """The largest real value."""
        return (LIMITS[self.dtype][1] - self.zero_point) * self.scale


class Range(NamedTuple):
    """The range that a tensor's integers must cover."""

    low: float
    high: float


class Histogram(NamedTuple):
    """Counts over equal bins from `low` to `high`."""

    counts: Array
    low: float
    high: float

    @property
    def width(self) -> float:
        """The width of one bin."""
        return (self.high - self.low) / len(self.counts)

    @property
    def centres(self) -> Array:
        """The centres of the bins, float64."""
        return self.low + (np.arange(len(self.counts)) + 0.5) * self.width


def affine(low: float, high: float, dtype: str = "int8") -> Params:
    """Parameters whose integers span [low, high], widened to hold zero. Equal or extreme bounds get a usable scale.

    The zero point is rounded to the nearest integer, so the range shifts by at most half a step.
    """
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    first, last = LIMITS[dtype]
    scale = np.float32((high - low) / (last - first))
    if not np.isfinite(scale):
        scale = np.float32(np.finfo(np.float32).max / (last - first))
    if high == low:
        return Params(1.0 / (last - first), first, dtype)
    scale = max(scale, np.float32(_LEAST_SCALE))
    zero = int(np.clip(np.rint(first - low / float(scale)), first, last))
    return Params(float(scale), zero, dtype)


def symmetric(low: float, high: float, dtype: str = "int16") -> Params:
    """Parameters with zero point 0 whose integers span [-m, m], with m the larger magnitude."""
    most, last = max(abs(float(low)), abs(float(high))), LIMITS[dtype][1]
    scale = np.float32(most / last)
    if most == 0.0:
        return Params(float(np.float32(1.0 / last)), 0, dtype)
    return Params(float(max(scale, np.float32(_LEAST_SCALE))), 0, dtype)


def fake(values: Array, params: Params) -> Array:
    """Values after quantising and dequantising as ONNX defines it: float32 throughout, halves to even."""
    scale = np.float32(params.scale)
    with np.errstate(over="ignore"):
        steps = np.rint(values.astype(np.float32) / scale) + params.zero_point
    return np.asarray((np.clip(steps, *LIMITS[params.dtype]) - params.zero_point) * scale, np.float32)


def saturated(histogram: Histogram, params: Params) -> float:
    """The share of values outside the integers' range by more than half a step."""
    total = int(histogram.counts.sum())
    centres, half = histogram.centres, params.scale / 2
    outside = (centres < params.low - half) | (centres > params.high + half)
    return float(histogram.counts[outside].sum() / total) if total else 0.0


Function = Callable[[Array], Array]
"""An elementwise function, float to float."""


def choose(statistics: Statistics, options: Options, dtype: str = "int8", behind: Function | None = None) -> Range:
    """The range by the options' method (auto: mse) for the observed values; a constant stays inside its range.

    `behind`: the function that alone reads the tensor; mse is then that of its results.
    """
    observed = Range(min(statistics.low, statistics.high), max(statistics.low, statistics.high))
    if not statistics.elements:
        return Range(0.0, 0.0)
    if statistics.constant:
        return observed
    if dtype == "int16":
        return Range(_HEADROOM * observed.low, _HEADROOM * observed.high)
    histogram = Histogram(statistics.counts, observed.low, observed.high)
    if behind is not None and _METHODS[options.method] is _mse:
        return _mse(histogram, options, behind)
    return _METHODS[options.method](histogram, options)


def _minmax(histogram: Histogram, options: Options) -> Range:
    return Range(histogram.low, histogram.high)


def _percentile(histogram: Histogram, options: Options) -> Range:
    """The narrowest bounds that contain zero and leave (100 - percentile) / 2 percent outside on each side."""
    share = (1.0 - options.percentile / 100.0) / 2
    cumulative = np.cumsum(histogram.counts)
    total = cumulative[-1]
    # one-sided data (after a Relu) has nothing to clip on its other side
    sides = 2 - (histogram.low >= 0) - (histogram.high <= 0)
    cut = share * total * (2 / max(sides, 1))
    first = int(np.searchsorted(cumulative, cut, side="right")) if histogram.low < 0 else 0
    last = int(np.searchsorted(cumulative, total - cut, side="left")) if histogram.high > 0 else len(cumulative) - 1
    low, width = histogram.low, histogram.width
    return Range(low + first * width, low + (min(last, len(cumulative) - 1) + 1) * width)


_STEPS = 40
_LEAST_SHARE = 0.02


def _mse(histogram: Histogram, options: Options, behind: Function | None = None) -> Range:
    """The range with the least mean squared error of rounding and clipping: each bound in turn is reduced by
    geometrically spaced factors, until neither changes. `behind`: the error of this function's results counts, for
    example none where a HardSwish is 0."""
    used = histogram.counts > 0
    centres, weights = histogram.centres[used], histogram.counts[used].astype(np.float64)
    inside = histogram.width**2 / 12
    result, slope = centres, np.ones(1)
    if behind is not None:
        result, reach = behind(centres), histogram.width / 2
        slope = np.square((behind(centres + reach) - behind(centres - reach)) / histogram.width)

    @cache  # a bound that did not change makes the next round ask for the same ranges
    def cost(low: float, high: float) -> float:
        params = affine(low, high)
        step = params.scale
        codes = np.clip(np.rint(centres / step) + params.zero_point, *LIMITS[params.dtype])
        rounded = (codes - params.zero_point) * step
        error = np.square((rounded if behind is None else behind(rounded)) - result)
        # values in bins narrower than a step spread over the step; in wider bins they are rounded within the bin
        return float((weights * np.maximum(error, slope * min(inside, step**2 / 12))).sum())

    best = Range(min(histogram.low, 0.0), max(histogram.high, 0.0))
    least = cost(*best)
    ladder = np.geomspace(1.0, _LEAST_SHARE, _STEPS)
    full = best
    for _ in range(3):
        before = best
        joint = [Range(best.low * f, best.high * f) for f in ladder[1:]]
        lower = [Range(full.low * f, best.high) for f in ladder] if full.low < 0 else []
        upper = [Range(best.low, full.high * f) for f in ladder] if full.high > 0 else []
        for candidate in (*(joint if best == full else ()), *lower, *upper):
            found = cost(*candidate)
            if found < least:
                least, best = found, candidate
        if best == before:
            break
    return best


_LEVELS = 256


def _entropy(histogram: Histogram, options: Options) -> Range:
    """The range whose clipped, rounded distribution diverges least (Kullback-Leibler) from the observed one.

    As in TensorRT, but over a range that keeps the histogram's asymmetry: candidates grow from 256 bins around the bin
    of zero, outliers are counted in the outermost bins, and each of the 256 levels spreads its count over its nonempty
    bins. The bin of zero is left out: zero is exact in any range, and after a Relu this bin holds most of the values,
    so that a level that spreads it would dominate the result.
    """
    counts = histogram.counts.astype(np.float64)
    bins = len(counts)
    place = -histogram.low / histogram.width
    zero = int(np.clip(place, 0, bins))
    if 0 <= place < bins:
        counts[zero] = 0
    best, least = Range(histogram.low, histogram.high), np.inf
    for share in np.linspace(1.0, _LEVELS / bins, 64):
        first, last = round(zero * (1 - share)), round(zero + (bins - zero) * share)
        if last - first < _LEVELS:
            continue
        divergence = _divergence(counts, first, last)
        if divergence < least:
            low, width = histogram.low, histogram.width
            best, least = Range(low + first * width, low + last * width), divergence
    return best


def _divergence(counts: Array, first: int, last: int) -> float:
    window = counts[first:last]
    reference = window.copy()
    reference[0] += counts[:first].sum()
    reference[-1] += counts[last:].sum()
    levels = np.arange(last - first) * _LEVELS // (last - first)
    filled = window > 0
    total = np.bincount(levels, weights=window, minlength=_LEVELS)
    spread = np.bincount(levels, weights=filled, minlength=_LEVELS)
    model = np.where(filled, total[levels] / np.maximum(spread[levels], 1), 0.0)
    return _kullback_leibler(reference, model)


def _kullback_leibler(reference: Array, model: Array) -> float:
    if not model.sum() or not reference.sum():
        return float("inf")
    p, q = reference / reference.sum(), model / model.sum()
    q = np.where(q > 0, q, 1e-9)
    seen = p > 0
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


_METHODS: Mapping[Method, Callable[[Histogram, Options], Range]] = {
    "minmax": _minmax,
    "percentile": _percentile,
    "entropy": _entropy,
    "mse": _mse,
    "auto": _mse,
}
