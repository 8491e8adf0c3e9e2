"""The layers of a model from the front to the back, as groups of its parameters' names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from cloud.errors import TrainError
from cloud.train.stepping.freeze import names
from cloud.train.tasks.flax import NnxTask
from cloud.train.tasks.task import Task

__all__ = ["layers_of"]


def layers_of(task: Task, patterns: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """The names of each layer's parameters. `patterns`: one glob pattern per layer, from the front; parameters that
    none matches belong to no layer.

    Without patterns: neighbours whose names are the same up to the first part with a digit ("block3",
    "encoder.layer.0") or, without any digit, in their first part ("stem"). Neighbours by the order in which an ONNX
    graph uses them, else by the order of the parameters' dict. Raises TrainError for patterns that match nothing, and
    for Flax NNX modules, whose parameters are in the order of the alphabet, without patterns.
    """
    params = task.init()[0]
    there = names(params)
    if not patterns:
        return [tuple(found) for _, found in groupby(_in_order(task, params), _block)]
    if idle := [pattern for pattern in patterns if not fnmatch.filter(there, pattern)]:
        raise TrainError(f"expected patterns of layers, got {idle}, which match none of {there}")
    first = {name: next((i for i, p in enumerate(patterns) if fnmatch.fnmatchcase(name, p)), -1) for name in there}
    return [tuple(name for name in there if first[name] == i) for i in range(len(patterns))]


def _block(name: str) -> str:
    parts = re.split(r"[./]", name)
    numbered = next((i for i, part in enumerate(parts) if re.search(r"\d", part)), 0)
    return ".".join(parts[: numbered + 1])


def _in_order(task: Task, params: Any) -> list[str]:
    model = getattr(task, "model", None)
    if model is not None:
        used = (value.name for node in model.graph.all_nodes() for value in node.inputs if value is not None)
        order = {name: place for place, name in reversed(list(enumerate(used)))}
        return sorted(params, key=lambda name: order.get(name, len(order)))
    if isinstance(task, NnxTask):
        raise TrainError(
            "the order of a Flax NNX module's layers is not known: name them from the front, layers=[pattern, …]"
        )
    return list(_walked(params, ""))


def _walked(tree: Any, before: str) -> Iterator[str]:
    """Paths of arrays as `names` has them, dicts in their own order."""
    if isinstance(tree, Mapping):
        for key, inner in tree.items():
            yield from _walked(inner, f"{before}{key}/")
    elif isinstance(tree, list | tuple) and not hasattr(tree, "_fields"):
        for key, inner in enumerate(tree):
            yield from _walked(inner, f"{before}{key}/")
    else:
        yield from (f"{before}{name}".rstrip("/") for name in names(tree))
