"""Privacy accounting by privacy loss distributions: tighter than Rényi divergences, above all at small sampling rates.

The loss of a mechanism is log P(x)/Q(x) for x drawn from P, where P and Q are its outputs with and without a device.
Losses of rounds add up, so the distribution of a run's loss is the convolution of its rounds' (Koskela, Jälkö &
Honkela, "Computing Tight Differential Privacy Guarantees Using FFT", AISTATS 2020; Sommer, Meiser & Mohammadi, PoPETs
2019). Here a round is the Gaussian mechanism on a Poisson sample: with probability `rate`, the device's update of norm
1 is in a sum with noise of standard deviation `noise`.

Losses are put on a grid so that the guarantee never becomes stronger: the mass between two points is divided between
them such that the probabilities of P and of Q both stay (Doroshenko, Ghazi, Kamath, Kumar & Manurangsi, "Connect the
Dots", PoPETs 2022). What lies beyond the grid counts as certain loss. So the result is an upper bound, and close:
`REFINED` points per standard deviation of a round's loss keep it within a tenth of a percent.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import ceil, erfc, exp, floor, inf, log, sqrt
from typing import NamedTuple

import numpy as np

from federated.tree import Array

__all__ = ["epsilon"]

REFINED = 20
"""Points of the grid per standard deviation of one round's loss."""
REACH = 9.5
"""How many deviations of the noise are on the grid: beyond is a probability of 1e-21."""
MOST = 1 << 19
"""Most points of the grid; with more, they are further apart."""
LEFT_OUT = 1e-3
"""The share of delta that the run's losses outside the window may have."""
LARGEST = 700.0
"""Exponents are cut off here, where e^x is still a float64; with a smaller one, losses count as larger."""
_erfc = np.frompyfunc(erfc, 1, 1)


class Losses(NamedTuple):
    """A distribution on a grid: `mass[k]` is the probability of the loss (first + k) * step; `certain`: of an infinite
    one."""

    first: int
    mass: Array
    certain: float


def epsilon(spent: Iterable[tuple[float, float, int]], delta: float) -> float:
    """The smallest epsilon at this delta for (noise, rate, rounds), as in `accountant.Spent`; infinity without noise.

    An upper bound for both neighbours: a device's data removed from a run, and added to it.
    """
    each = [(noise, rate, rounds) for noise, rate, rounds in spent if rounds]
    if any(not noise for noise, _, _ in each):
        return inf
    if not each:
        return 0.0
    return max(_one_way(each, delta, added=added) for added in (False, True))


def _one_way(spent: list[tuple[float, float, int]], delta: float, *, added: bool) -> float:
    step = _step(spent)
    rounds = [(_round(noise, rate, step, added), count) for noise, rate, count in spent]
    low, high, beyond = _window(rounds, step, LEFT_OUT * delta)
    size = 1 << max(1, high - low).bit_length()
    spectrum = np.ones(size // 2 + 1, np.complex128)
    certain, first = 0.0, 0
    for losses, count in rounds:
        folded = np.zeros(size)
        np.add.at(folded, np.arange(len(losses.mass)) % size, losses.mass)
        spectrum *= np.fft.rfft(folded) ** count
        certain = 1 - (1 - certain) * (1 - losses.certain) ** count
        first += losses.first * count
    mass = np.maximum(np.fft.irfft(spectrum, size), 0.0)
    mass = np.roll(mass, (first - low) % size)  # the circle now begins at the window's lower end
    return _smallest(low * step, step, mass, certain + beyond, delta)


def _smallest(lowest: float, step: float, mass: Array, certain: float, delta: float) -> float:
    """The epsilon at which the hockey-stick divergence is delta. Between points, it is linear in e^epsilon."""
    if certain >= delta:
        return inf
    losses = lowest + step * np.arange(len(mass))

    def above(at: int) -> tuple[float, float]:
        """Of the losses from a point on: their probability, and that of Q, relative to e^-loss at the point."""
        return float(mass[at:].sum()), float(mass[at:] @ np.exp(losses[at] - losses[at:]))

    low, high = 0, len(mass) - 1  # the divergence at `high` is at most delta: no loss is larger
    while low < high:
        middle = (low + high) // 2
        p, q = above(middle)
        low, high = (low, middle) if certain + p - q <= delta else (middle + 1, high)
    p, q = above(low)
    if not low or certain + p <= delta:
        return max(0.0, float(losses[low]))
    return max(0.0, float(losses[low]) + log((certain + p - delta) / q))


def _step(spent: list[tuple[float, float, int]]) -> float:
    """The distance of points: a part of the deviation of a round's loss, but no more than MOST points altogether."""
    variances = [_variance(noise, rate) for noise, rate, _ in spent]
    fine = sqrt(min(variances)) / REFINED
    run = sqrt(sum(variance * rounds for variance, (_, _, rounds) in zip(variances, spent, strict=True)))
    widest = max(_reach(noise, rate) for noise, rate, _ in spent)
    return max(fine, (4 * REACH * run + 2 * widest) / MOST)


@lru_cache(maxsize=256)
def _variance(noise: float, rate: float) -> float:
    """Of one round's loss, by the trapezium rule."""
    x = np.linspace(-REACH * noise, 1 + REACH * noise, 4001)
    density = np.exp(-0.5 * (x / noise) ** 2)
    loss = _loss(x, noise, rate)
    weights = density / density.sum()
    mean = float(weights @ loss)
    return max(float(weights @ (loss - mean) ** 2), 1e-300)


def _loss(x: Array, noise: float, rate: float) -> Array:
    """log (1 - q + q exp((2 x - 1) / 2 s²)): of the outputs with the device against those without it."""
    exponent = (2 * x - 1) / (2 * noise * noise)
    if rate == 1:
        return exponent
    return np.logaddexp(log(1 - rate), log(rate) + exponent)


def _reach(noise: float, rate: float) -> float:
    ends = _loss(np.array([-REACH * noise, 1 + REACH * noise]), noise, rate)
    return float(np.abs(ends).max())


@lru_cache(maxsize=64)
def _round(noise: float, rate: float, step: float, added: bool) -> Losses:
    """One round's losses. `added`: P is without the device and Q with it, and the loss has the other sign."""
    ends = _loss(np.array([-REACH * noise, 1 + REACH * noise]), noise, rate)
    low, high = floor(ends[0] / step), ceil(ends[1] / step)
    points = step * np.arange(low, high + 1)
    without, present = _cells(points, noise, rate)
    if added:  # the same cells, in the other order
        p, q, points, first = without[::-1], present[::-1], -points[::-1], -high
    else:
        p, q, first = present, without, low
    # p[k], q[k]: the probabilities of losses between points[k] and points[k + 1]; the ends are open.
    inner_p, inner_q = p[1:-1], q[1:-1]
    lower = np.exp(np.minimum(points[:-1], LARGEST)) * inner_q
    upper = np.clip((inner_p - lower) / -np.expm1(-step), 0.0, inner_p)
    mass = np.zeros(len(points))
    mass[1:] += upper
    mass[:-1] += inner_p - upper
    mass[0] += p[0]  # of smaller losses: counted as larger ones
    return Losses(first, mass, float(p[-1]))


def _cells(points: Array, noise: float, rate: float) -> tuple[Array, Array]:
    """The probabilities, without the device and with it, of losses below the first point, between points, and above the
    last."""
    if rate == 1:
        x = noise * noise * points + 0.5
    else:
        rest = (1 - rate) * np.exp(np.minimum(-points, LARGEST))  # of e^loss = 1 - q + q exp(…), by e^loss
        logs = points + np.log1p(-np.minimum(rest, 1 - 1e-16)) - log(rate)
        x = np.where(rest < 1, noise * noise * logs + 0.5, -inf)
    without = _between(x / noise)
    if rate == 1:
        return without, _between((x - 1) / noise)
    return without, (1 - rate) * without + rate * _between((x - 1) / noise)


def _between(z: Array) -> Array:
    """Probabilities of a standard normal number below z[0], between neighbours, and above z[-1]; precise in both
    tails."""
    upper = 0.5 * _erfc(z / sqrt(2)).astype(np.float64)
    lower = 0.5 * _erfc(-z / sqrt(2)).astype(np.float64)
    cells = np.where(z[1:] > 0, upper[:-1] - upper[1:], lower[1:] - lower[:-1])
    return np.concatenate([[lower[0]], np.maximum(cells, 0.0), [upper[-1]]])


def _window(rounds: list[tuple[Losses, int]], step: float, most: float) -> tuple[int, int, float]:
    """Between which points the run's loss lies, and a bound on the probability that it does not, at most twice `most`:
    Chernoff's, with moments of each side."""
    low, high = sum(r.first * n for r, n in rounds), sum((r.first + len(r.mass) - 1) * n for r, n in rounds)
    upper = min((_bound(rounds, step, order, most) for order in _ORDERS), default=inf)
    lower = max((-_bound(rounds, step, -order, most) for order in _ORDERS), default=-inf)
    cut_low, cut_high = max(low, floor(lower / step)), min(high, ceil(upper / step))
    return cut_low, max(cut_high, cut_low + 1), most * ((cut_low > low) + (cut_high < high))


_ORDERS = tuple(4.0**power for power in range(-6, 7))


def _bound(rounds: list[tuple[Losses, int]], step: float, order: float, most: float) -> float:
    """The loss L with E[exp(order * loss)] exp(-order * L) = most, which bounds P(loss > L) (of -loss, P(-loss > L),
    for a negative order)."""
    total = 0.0
    for losses, count in rounds:
        exponents = order * step * (losses.first + np.arange(len(losses.mass)))
        top = float(exponents.max())
        total += count * (top + log(max(float(losses.mass @ np.exp(exponents - top)), exp(-700.0))))
    return (total - log(most)) / abs(order)
