"""Elements are trees of dicts, tuples and lists of arrays; columns are many elements stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.errors import DataError

__all__ = ["length", "one", "rows", "stack", "tree_map"]


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """`function` of every leaf."""
    if isinstance(tree, dict):
        return {name: tree_map(function, part) for name, part in tree.items()}
    if isinstance(tree, tuple | list):
        return _like(tree, [tree_map(function, part) for part in tree])
    return function(tree)


def stack(elements: Sequence[Any], where: str = "elements") -> Any:
    """Columns [len(elements), …] of elements of one structure, shape and dtype; DataError if they differ."""
    return _stack(elements, where, "")


def rows(columns: Any, chosen: slice | npt.NDArray[np.intp]) -> Any:
    """The given rows of columns."""
    return tree_map(lambda a: a[chosen], columns)


def one(columns: Any, row: int) -> Any:
    """One row of columns: an element."""
    return tree_map(lambda a: a[row], columns)


def length(columns: Any) -> int:
    """The number of rows of columns; DataError if there is no leaf or leaves disagree."""
    sizes: set[int] = set()
    tree_map(lambda a: sizes.add(len(a) if np.ndim(a) else -1), columns)
    if len(sizes) != 1 or -1 in sizes:
        raise DataError(f"expected arrays with the same leading dimension, got leading sizes {sorted(sizes)}")
    return sizes.pop()


def _stack(elements: Sequence[Any], where: str, path: str) -> Any:
    first = elements[0]
    if isinstance(first, dict):
        _alike(elements, where, path, dict, set(first))
        return {name: _stack([e[name] for e in elements], where, f"{path}[{name!r}]") for name in first}
    if isinstance(first, tuple | list):
        _alike(elements, where, path, type(first), len(first))
        return _like(first, [_stack([e[k] for e in elements], where, f"{path}[{k}]") for k in range(len(first))])
    arrays = [_array(e, where, path) for e in elements]
    numbers = arrays[0].dtype.kind not in "US"
    for number, array in enumerate(arrays):
        texts = array.dtype.kind in "US" and array.dtype.kind == arrays[0].dtype.kind  # the widest holds them all
        if array.shape != arrays[0].shape or (array.dtype != arrays[0].dtype and not texts):
            raise DataError(
                f"ragged {where}: value{path or ''} is {_shown(arrays[0])} in row 0 and {_shown(array)} in row "
                f"{number}; .pad(...), resize or crop it before .batch(...)"
            )
    return np.stack(arrays) if arrays[0].ndim else np.array(elements, arrays[0].dtype if numbers else None)


def _like(tree: Any, parts: list[Any]) -> Any:
    """A tuple or list of the tree's type; named tuples take their parts as arguments."""
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def _array(value: Any, where: str, path: str) -> npt.NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise DataError(
            f"{where}: expected value{path} to be an array, a number or a text, got {type(value).__name__}; does the "
            "function of a .map(...) return nothing?"
        )
    return array


def _alike(elements: Sequence[Any], where: str, path: str, kind: type, shape: Any) -> None:
    for number, element in enumerate(elements):
        got = _shape(element) if isinstance(element, kind) else None
        if got != shape:
            expected, found = (f"{kind.__name__} of {_names(s)}" for s in (shape, got))
            raise DataError(f"ragged {where}: value{path} is a {expected} in row 0 and in row {number} {found}")


def _shape(element: Any) -> Any:
    return set(element) if isinstance(element, dict) else len(element)


def _names(shape: Any) -> Any:
    return sorted(map(str, shape)) if isinstance(shape, set) else shape


def _shown(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype}{list(array.shape)}"
