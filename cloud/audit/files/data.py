"""A file of examples, read as what it is: hostile until every array was checked against the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from cloud.audit.subject import Data, Kind
from cloud.audit.victim import BlackBox
from cloud.data.reading.sources import npz_arrays
from cloud.errors import AuditError, DataError
from lite_runtime.graph import Array

__all__ = ["guessed_kind", "guessed_span", "read_data"]

MOST_VALUES = 200
"""A column with more values than this, or one for nearly every example, says nothing of groups."""
LONG = 2000
"""One axis of this length is a waveform."""
PARTS = 4
"""Columns of real numbers are cut into so many parts of equal mass."""
_FIX = "write plain arrays with numpy.savez(FILE, x=…, y=…)"


def read_data(path: str | os.PathLike[str], model: BlackBox, x: str = "x", y: str = "y") -> tuple[Data, list[str]]:
    """Examples for a model, and notes on arrays that were not used.

    x: the name of the inputs (n, ...): stored integers if they have the dtype of the model's integer input, else real
    numbers. y: the name of the classes (n,), whole numbers from 0. Every other array (n,) is a column. Raises
    AuditError for everything that does not fit.
    """
    name = os.fspath(path)
    try:
        arrays = npz_arrays(name)
    except DataError as error:
        raise AuditError(f"{error}; {_FIX}") from None
    for wanted, option in ((x, "--x"), (y, "--y")):
        if wanted not in arrays:
            raise AuditError(
                f"{name}: expected an array {wanted!r}, got {', '.join(arrays) or 'none'}; "
                f"name it by {option}, or {_FIX}"
            )
    inputs = _inputs(f"{name}, {x}", arrays[x], model)
    labels = _labels(f"{name}, {y}", arrays[y], model.classes)
    if len(inputs) != len(labels):
        raise AuditError(
            f"{name}: expected as many examples in {x!r} as in {y!r}, got {len(inputs)} and {len(labels)}; write "
            "both of the same examples"
        )
    columns, notes = _columns({key: array for key, array in arrays.items() if key not in (x, y)}, len(labels))
    return Data(name, inputs, labels, columns), notes


def _inputs(where: str, given: Array, model: BlackBox) -> Array:
    """Inputs as (n, *shape) float32; sizes of 1 may be left out or added."""
    if given.dtype.kind not in "biuf":
        raise AuditError(f"{where}: expected numbers, got {given.dtype} of shape {given.shape}; {_FIX}")
    if given.ndim == 0 or not len(given):
        raise AuditError(f"{where}: expected at least one example, got shape {given.shape}")
    wanted = tuple(size for size in model.shape if size != 1)
    if tuple(size for size in given.shape[1:] if size != 1) != wanted:
        raise AuditError(
            f"{where}: expected shape (n, {', '.join(map(str, model.shape))}), which {model.name} takes, got "
            f"{given.shape}; arrange the axes as the model has them"
        )
    stored = model.stored
    with np.errstate(over="ignore"):  # becomes infinite, which is refused
        real = stored.real(given) if stored is not None and given.dtype == stored.dtype else given.astype(np.float32)
    bad = ~np.isfinite(real.reshape(len(real), -1)).all(axis=1)
    if bad.any():
        raise AuditError(
            f"{where}: expected finite numbers, got NaN or infinity in {int(bad.sum())} of {len(bad)} examples, the "
            f"first in row {int(bad.argmax())}; leave these rows out, or fill them as the device does"
        )
    return real.reshape(len(real), *model.shape)


def _labels(where: str, given: Array, classes: int) -> Array:
    """Labels as (n,) int64."""
    if given.ndim != 1 and given.size == len(given):
        given = given.reshape(-1)
    if given.ndim == 2 and given.shape[1] == classes:
        raise AuditError(f"{where}: expected one class an example, got shape {given.shape}; use y.argmax(axis=1)")
    if given.ndim != 1 or given.dtype.kind not in "biu":
        raise AuditError(
            f"{where}: expected whole numbers of shape (n,), got {given.dtype} of shape {given.shape}; give each class "
            f"its number, 0 to {classes - 1}"
        )
    labels = given.astype(np.int64)
    strange = np.unique(labels[(labels < 0) | (labels >= classes)])
    if len(strange):
        raise AuditError(
            f"{where}: expected classes 0 to {classes - 1}, as the model has {classes}, got "
            f"{', '.join(map(str, strange[:5]))}{' and others' if len(strange) > 5 else ''}; number them as in "
            "training, or leave these rows out"
        )
    return labels


def _columns(arrays: Mapping[str, Array], count: int) -> tuple[dict[str, Array], list[str]]:
    """What can divide the examples into groups, as texts, and why other arrays cannot."""
    columns: dict[str, Array] = {}
    notes = []
    for name, array in arrays.items():
        if array.shape != (count,) or array.dtype.kind not in "biufU":
            notes.append(f"array {name!r} is no column: {array.dtype} of shape {array.shape}, not one value an example")
            continue
        texts = _texts(array)
        values = len(np.unique(texts))
        if values < 2:
            notes.append(f"column {name!r} has one value alone, so it has no groups")
        elif values > min(MOST_VALUES, max(count // 2, 2)):
            notes.append(f"column {name!r} has {values} values for {count} examples, too many for groups")
        else:
            columns[name] = texts
    return columns, notes


def _texts(array: Array) -> Array:
    """Values as texts; real numbers by the part that they are in."""
    if array.dtype.kind != "f" or len(np.unique(array)) <= PARTS:
        return array.astype(str)
    known = np.isfinite(array)
    if not known.any():
        return np.full(len(array), "not a number")
    ends = np.unique(np.quantile(array[known].astype(np.float64), np.linspace(0, 1, PARTS + 1)))
    named = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(ends)] or [f"{ends[0]:.4g}"]
    names = np.array(named)
    place = np.clip(np.searchsorted(ends, np.where(known, array, ends[0]), "right") - 1, 0, len(names) - 1)
    return np.where(known, names[place], "not a number")


def guessed_kind(shape: tuple[int, ...]) -> Kind:
    """What inputs of this shape most likely are: tables or long sounds of one axis, series of two, images of three."""
    axes = [size for size in shape if size != 1]
    if len(axes) <= 1:
        return "sound" if axes and axes[0] >= LONG else "table"
    image = len(shape) == 3 and shape[1] > 1 and (shape[0] in (1, 3, 4) or shape[-1] in (1, 3, 4))
    return "image" if image else "series"


def guessed_span(x: Array, kind: Kind) -> tuple[float, float]:
    """The range that inputs are in: 0 to 1 or 0 to 255 of images that fit; else the least and greatest of x."""
    low, high = float(x.min()), float(x.max())
    if kind == "image" and low >= 0:
        for most in (1.0, 255.0):
            if high <= most:
                return 0.0, most
    return (low, high) if high > low else (low - 0.5, low + 0.5)
