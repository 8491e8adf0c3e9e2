"""Frozen parameters: splits a tree into trained and frozen parameters."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from cloud.errors import TrainError

__all__ = ["merge", "names", "parts", "which_frozen"]


def names(tree: Any) -> list[str]:
    """The path of every array: keys and indices joined by slashes (`block/0/w`)."""
    return [
        jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def which_frozen(params: Any, patterns: Sequence[str]) -> tuple[bool, ...]:
    """For every array of `params`: whether a glob pattern matches it. Raises TrainError for a pattern that matches
    none, if nothing is left to train, and for trained parameters that have no gradient (integers)."""
    there = names(params)
    if idle := [pattern for pattern in patterns if not fnmatch.filter(there, pattern)]:
        raise TrainError(f"expected patterns of parameters to freeze, got {idle}, which match none of {there}")
    frozen = tuple(any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) for name in there)
    if all(frozen):
        raise TrainError(f"freezing {list(patterns)} leaves nothing to train of {there}")
    kinds = [jax.dtypes.result_type(leaf) for leaf in jax.tree.leaves(params)]
    still = zip(there, kinds, frozen, strict=True)
    if odd := {name: str(kind) for name, kind, f in still if not (f or jnp.issubdtype(kind, jnp.inexact))}:
        raise TrainError(
            f"expected parameters of floating-point types to train, got {odd}: freeze them (freeze={[*odd]}), or keep "
            "them out of the parameters"
        )
    return frozen


def parts(params: Any, frozen: Sequence[bool]) -> tuple[Any, Any]:
    """(trained, frozen): trees like `params` with None for arrays of the other tree."""
    leaves, structure = jax.tree.flatten(params)
    halves = ([None if f is side else a for a, f in zip(leaves, frozen, strict=True)] for side in (True, False))
    trained, kept = (jax.tree.unflatten(structure, half) for half in halves)
    return trained, kept


def merge(trained: Any, frozen: Any) -> Any:
    """The inverse of `parts`."""
    return jax.tree.map(lambda a, b: b if a is None else a, trained, frozen, is_leaf=lambda leaf: leaf is None)
