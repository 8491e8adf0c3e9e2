"""Parameter trees: nested dicts of arrays, and their arithmetic.

Only operators and methods common to NumPy's and JAX's arrays are used, so that code written with these functions runs
unchanged on a device and under `jax.jit` and `jax.vmap` in the simulator.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

__all__ = [
    "Array", "Tree", "add", "dot", "is_on", "leaves", "map_leaves", "merge", "mul", "scale", "split", "sub", "take",
    "total", "weighted_mean", "zeros",
]  # fmt: skip

Array: TypeAlias = Any
"""`numpy.ndarray` on a device, `jax.Array` (perhaps traced) in the simulator."""

Tree: TypeAlias = Mapping[str, Any]
"""Names to arrays, or to further trees. Two trees combine if they have the same names."""


def is_on(number: Any) -> bool:
    """Whether a hyperparameter that 0 switches off is on. One that is traced by JAX is on: see `Algorithm.switches`."""
    return not isinstance(number, int | float) or bool(number)


def map_leaves(function: Callable[..., Array], tree: Tree, *others: Tree) -> dict[str, Any]:
    """`function` of every leaf, and of the leaves of the same name in the other trees. KeyError if one lacks it."""
    return {
        name: map_leaves(function, leaf, *(other[name] for other in others))
        if isinstance(leaf, Mapping)
        else function(leaf, *(other[name] for other in others))
        for name, leaf in tree.items()
    }


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Array]]:
    """Every (path, array) in order of insertion; a path's parts are joined by "/"."""
    for name, leaf in tree.items():
        if isinstance(leaf, Mapping):
            yield from leaves(leaf, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", leaf


def add(a: Tree, b: Tree, factor: Any = 1.0) -> dict[str, Any]:
    """a + factor * b."""
    return map_leaves(lambda x, y: x + factor * y, a, b)


def sub(a: Tree, b: Tree) -> dict[str, Any]:
    """a - b."""
    return map_leaves(lambda x, y: x - y, a, b)


def mul(a: Tree, b: Tree) -> dict[str, Any]:
    """a * b, element by element."""
    return map_leaves(lambda x, y: x * y, a, b)


def scale(a: Tree, factor: Any) -> dict[str, Any]:
    """factor * a."""
    return map_leaves(lambda x: factor * x, a)


def zeros(a: Tree) -> dict[str, Any]:
    """Zeros of the same shapes and dtypes."""
    return map_leaves(lambda x: x * 0, a)


def total(tree: Tree) -> Any:
    """The sum of all elements."""
    return sum(leaf.sum() for _, leaf in leaves(tree))


def dot(a: Tree, b: Tree) -> Any:
    """The inner product over all elements; `dot(a, a) ** 0.5` is the Euclidean norm."""
    return total(mul(a, b))


def weighted_mean(trees: Sequence[Tree], weights: Sequence[Any]) -> dict[str, Any]:
    """The sum of weight * tree over the sum of weights, in the order given, on which floating-point sums depend."""
    whole = sum(weights)
    result = scale(trees[0], weights[0] / whole)
    for tree, weight in zip(trees[1:], weights[1:], strict=True):
        result = add(result, tree, weight / whole)
    return result


def split(tree: Tree, patterns: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The top-level entries whose names match one of the glob patterns, and the rest."""
    chosen = {name for name in tree if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    return take(tree, chosen), {name: leaf for name, leaf in tree.items() if name not in chosen}


def take(tree: Tree, names: Any) -> dict[str, Any]:
    """The entries with these names that exist, in the tree's order."""
    return {name: leaf for name, leaf in tree.items() if name in names}


def merge(tree: Tree, changes: Tree) -> dict[str, Any]:
    """The tree with some top-level entries replaced, its order kept. KeyError for a name it does not have."""
    if not changes.keys() <= tree.keys():
        raise KeyError(", ".join(sorted(changes.keys() - tree.keys())))
    return {**tree, **changes}
