"""Slices of the data where something goes wrong more often than elsewhere, and more often than by chance.

A slice is one value of a feature, or values of two; features are the data's columns, classes, and statistics of inputs
cut into parts of equal mass. The search is a beam over slices of one, as in Chung et al. 2019, "Slice Finder: Automated
Data Slicing for Model Validation", ICDE. A slice is reported if a hypergeometric test, corrected for all slices that
there are (Bonferroni), says that chance would make it seldom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from scipy import stats

from cloud.audit.corruptions.runs import arranged
from cloud.audit.subject import Kind
from lite_runtime.graph import Array

__all__ = ["Slice", "statistics_of", "worst_slices"]

BEAM = 24
SURE = 0.01
"""How seldom chance may report any slice at all."""
PARTS = 5
_ALIKE = 0.8
"""Slices that share so much of their union are the same finding."""


@dataclass(frozen=True)
class Slice:
    """rows: (n,) bool. rate, elsewhere: how often it goes wrong inside and outside. chance: of so many, corrected."""

    where: tuple[tuple[str, str], ...]
    rows: Array
    examples: int
    rate: float
    elsewhere: float
    chance: float

    @property
    def name(self) -> str:
        """Such as "device = b and brightness = 0.1 to 0.2"."""
        return " and ".join(f"{feature} = {value}" for feature, value in self.where)


def worst_slices(
    wrong: Array, features: Mapping[str, Array], least: int = 0, most: int = 10
) -> tuple[list[Slice], int]:
    """At most `most` slices where `wrong` (n,) bool is more frequent than elsewhere, the surest first, and how many
    slices were there to be tested.

    features: values (n,) as texts. least: the fewest examples of a slice, by default the greater of 20 and a
    hundredth. A slice of two must be worse than each of its parts, by the same test inside the part.
    """
    wrong = np.asarray(wrong, np.bool_)
    least = least or max(20, len(wrong) // 100)
    single = {(name, str(value)): values == value for name, values in features.items() for value in np.unique(values)}
    single = {key: rows for key, rows in single.items() if least <= rows.sum() < len(wrong)}
    pairs = sum(one[0] != other[0] for one, other in combinations(single, 2))
    tests = max(1, len(single) + pairs)
    found = [_tested((key,), rows, wrong, tests) for key, rows in single.items()]
    beam = sorted(found, key=lambda one: one.chance)[:BEAM]
    seen: set[frozenset[tuple[str, str]]] = set()
    for parent in beam:
        for key, rows in single.items():
            where = frozenset((*parent.where, key))
            both = parent.rows & rows
            if key[0] == parent.where[0][0] or where in seen or both.sum() < least:
                continue
            seen.add(where)
            other = single[key]
            if all(_chance(both[part], wrong[part], tests) < SURE for part in (parent.rows, other)):
                found.append(_tested((parent.where[0], key), both, wrong, tests))
    sure = sorted((one for one in found if one.chance < SURE and one.rate > one.elsewhere), key=lambda one: one.chance)
    return _different(sure)[:most], tests


def _tested(where: tuple[tuple[str, str], ...], rows: Array, wrong: Array, tests: int) -> Slice:
    rest = wrong[~rows]
    elsewhere = float(rest.mean()) if len(rest) else 0.0
    return Slice(where, rows, int(rows.sum()), float(wrong[rows].mean()), elsewhere, _chance(rows, wrong, tests))


def _chance(rows: Array, wrong: Array, tests: int) -> float:
    """The probability that so many of these rows or more are wrong, if which are wrong had nothing to do with it."""
    hits = int((rows & wrong).sum())
    return min(1.0, tests * float(stats.hypergeom.sf(hits - 1, len(wrong), int(wrong.sum()), int(rows.sum()))))


def _different(slices: list[Slice]) -> list[Slice]:
    """Without those that say again what a surer one says."""
    kept: list[Slice] = []
    for one in slices:
        overlap = ((one.rows & other.rows).sum() / (one.rows | other.rows).sum() for other in kept)
        if all(share < _ALIKE for share in overlap):
            kept.append(one)
    return kept


def statistics_of(x: Array, kind: Kind) -> dict[str, Array]:
    """Simple statistics of inputs (n, ...), each cut into five parts of equal mass, as texts (n,) of the ranges."""
    order, sizes = arranged(x.shape[1:], kind)
    given = np.transpose(x, (0, *(axis + 1 for axis in order))).reshape(len(x), *sizes).astype(np.float32)
    flat = given.reshape(len(x), -1)
    found: dict[str, Array] = {}
    if kind == "table":
        width = min(flat.shape[1], 64)
        found = {f"feature {i}": flat[:, i] for i in range(width)}
    else:
        level, spread = ("brightness", "contrast") if kind == "image" else ("mean", "spread")
        found = {level: flat.mean(1), spread: flat.std(1)}
        if kind == "image":
            found["sharpness"] = np.abs(np.diff(given, axis=2)).mean((1, 2, 3))
        else:
            along = np.diff(given, axis=1 if kind == "spectrogram" else 2)
            found["change over time"] = np.abs(along).reshape(len(x), -1).mean(1)
            found["greatest value"] = np.abs(flat).max(1)
    parted = {name: _parts(values.astype(np.float64)) for name, values in found.items()}
    return {name: values for name, values in parted.items() if len(np.unique(values)) > 1}


def _parts(values: Array) -> Array:
    ends = np.unique(np.quantile(values, np.linspace(0, 1, PARTS + 1)))
    if len(ends) < 2:
        return np.full(len(values), "all")
    digits = max(3, 1 + math.ceil(math.log10(max(np.abs(ends).max() / np.diff(ends).min(), 1))))
    names = np.array([f"{low:.{min(digits, 6)}g} to {high:.{min(digits, 6)}g}" for low, high in pairwise(ends)])
    return np.asarray(names[np.clip(np.searchsorted(ends, values, "right") - 1, 0, len(names) - 1)])
