"""Inputs for a model: random ones for its signature, or read from .npy and .npz files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.graph import Array, Graph, Value, numpy_dtype

__all__ = ["NO_SHAPES", "Ranges", "Shapes", "draw", "ranges_of", "read_arrays", "samples_in", "sized"]

Shapes = Mapping[str, Sequence[int]]
"""Sizes given by the user for inputs whose dimensions are not fixed, by input name."""

NO_SHAPES: Shapes = MappingProxyType({})

Ranges = Mapping[str, tuple[float, float]]
"""The smallest and largest value of inputs, by name."""

NO_RANGES: Ranges = MappingProxyType({})


def sized(values: Sequence[Value], shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Every input's concrete shape: the user's if given, else the model's with 1 for each open dimension.

    A symbolic dimension that one given shape fixes has that size in every other input.
    """
    names = {v.name for v in values}
    unknown = [name for name in shapes if name not in names]
    if unknown:
        raise InputError(f"--input-shape {unknown[0]}: expected an input of {', '.join(sorted(names))}")
    symbols: dict[str, int] = {}
    for value in values:
        if value.name in shapes:
            _match(value, tuple(shapes[value.name]), symbols)
    return {
        v.name: tuple(shapes[v.name])
        if v.name in shapes
        else tuple(d if isinstance(d, int) else symbols.get(d or "", 1) for d in _shape(v))
        for v in values
    }


def draw(
    values: Sequence[Value], rng: np.random.Generator, shapes: Shapes = NO_SHAPES, ranges: Ranges = NO_RANGES
) -> dict[str, Array]:
    """Random inputs: reals evenly over `ranges` or from a standard normal, bytes over their whole range, wider integers
    0 or 1.

    Wider integers are usually indices or masks, for which 0 and 1 are nearly always valid.
    """
    drawn = {v.name: _draw(v, shape, rng) for v, shape in zip(values, sized(values, shapes).values(), strict=True)}
    for name in drawn.keys() & ranges.keys():
        drawn[name] = rng.uniform(*ranges[name], drawn[name].shape).astype(drawn[name].dtype)
    return drawn


def ranges_of(graph: Graph) -> dict[str, tuple[float, float]]:
    """The range for which every quantised real input of a graph was calibrated."""
    found = {}
    for node in graph.nodes:
        if node.op == "QuantizeLinear" and len(node.inputs) > 2 and node.inputs[1] in graph.constants:
            scale, zero = graph.constants[node.inputs[1]], graph.constants.get(node.inputs[2])
            if zero is not None and scale.size == zero.size == 1 and zero.dtype.kind in "iu":
                limits = np.iinfo(zero.dtype)
                step, middle = scale.item(), int(zero.item())
                found[node.inputs[0]] = (limits.min - middle) * step, (limits.max - middle) * step
    return {v.name: found[v.name] for v in graph.inputs if v.name in found}


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz by name, or the single array of an .npy under "". Pickled objects are refused."""
    try:
        with open(path, "rb") as file:
            loaded = np.load(file, allow_pickle=False)
            return {"": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        raise InputError(f"{path}: expected a complete .npy or .npz file without pickled objects") from None


def samples_in(arrays: Mapping[str, Array], values: Sequence[Value]) -> Iterator[dict[str, Array]]:
    """Split `arrays` into runs of the model: one if their shapes are the model's, else N batches of its size.

    Raises InputError if they are not enough for one run.
    """
    missing = [v.name for v in values if v.name not in arrays]
    if missing:
        raise InputError(f"expected arrays {', '.join(v.name for v in values)}; missing {', '.join(missing)}")
    sizes = {v.name: _batch(v) for v in values}
    for name, size in sizes.items():
        rows = len(arrays[name]) if arrays[name].ndim else 0
        if size is not None and rows < size:
            raise InputError(f"input {name!r}: expected {size} rows or more, got shape {arrays[name].shape}")
    if any(size is None or len(arrays[name]) == size for name, size in sizes.items()):
        yield {v.name: arrays[v.name] for v in values}
        return
    count = min(len(arrays[name]) // size for name, size in sizes.items() if size)
    for i in range(count):
        yield {name: arrays[name][i * size : (i + 1) * size] for name, size in sizes.items() if size}


def _batch(value: Value) -> int | None:
    """The number of rows of one run; None if the model leaves it open or has no rows."""
    first = value.shape[0] if value.shape else None
    return first if isinstance(first, int) and first > 0 else None


def _shape(value: Value) -> tuple[int | str | None, ...]:
    if value.kind != "tensor" or value.shape is None:
        what = "its rank is not known" if value.kind == "tensor" else f"it is a {value.kind}"
        raise InputError(f"input {value.name!r} cannot be generated: {what}; give it in a file")
    return value.shape


def _match(value: Value, given: tuple[int, ...], symbols: dict[str, int]) -> None:
    declared = value.shape
    fits = declared is None or (
        len(declared) == len(given)
        and all(
            d == g if isinstance(d, int) else d is None or symbols.setdefault(d, g) == g
            for d, g in zip(declared, given, strict=True)
        )
    )
    if not fits:
        raise InputError(f"--input-shape {value.name}={','.join(map(str, given))}: the model declares {declared}")


def _draw(value: Value, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if value.dtype == "string":
        raise InputError(f"input {value.name!r} has strings, which cannot be generated; give them in a file")
    dtype = numpy_dtype(value.dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max + 1) if dtype.itemsize == 1 else (0, 2)
        return rng.integers(low, high, shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)
