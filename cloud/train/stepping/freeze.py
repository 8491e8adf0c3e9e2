"""Parameters that keep still: a tree in two, what is trained and what is frozen."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

import jax

from cloud.errors import TrainError

__all__ = ["merge", "names", "parts", "which_frozen"]


def names(tree: Any) -> list[str]:
    """Of every array: keys and indices on the way to it, with slashes between (`block/0/w`)."""
    return [
        jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def which_frozen(params: Any, patterns: Sequence[str]) -> tuple[bool, ...]:
    """Of every array of `params`: does a glob pattern name it? Raises TrainError for a pattern that names none, and
    where nothing is left to train."""
    there = names(params)
    if idle := [pattern for pattern in patterns if not fnmatch.filter(there, pattern)]:
        raise TrainError(f"expected patterns of parameters to freeze, got {idle}, which match none of {there}")
    frozen = tuple(any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) for name in there)
    if all(frozen):
        raise TrainError(f"freezing {list(patterns)} leaves nothing to train of {there}")
    return frozen


def parts(params: Any, frozen: Sequence[bool]) -> tuple[Any, Any]:
    """(trained, frozen): trees like `params` with None where an array went to the other."""
    leaves, structure = jax.tree.flatten(params)
    halves = ([None if f is side else a for a, f in zip(leaves, frozen, strict=True)] for side in (True, False))
    trained, kept = (jax.tree.unflatten(structure, half) for half in halves)
    return trained, kept


def merge(trained: Any, frozen: Any) -> Any:
    """The tree that `parts` took apart."""
    return jax.tree.map(lambda a, b: b if a is None else a, trained, frozen, is_leaf=lambda leaf: leaf is None)
