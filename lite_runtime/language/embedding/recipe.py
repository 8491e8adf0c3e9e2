"""How the texts of an embedding model become vectors: `metadata["embedding"]` of its bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from types import MappingProxyType
from typing import Any

import numpy as np

from lite_runtime.bundle.refusal import refuse, show
from lite_runtime.errors import InputError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Value

__all__ = ["KEY", "MOST", "POOLINGS", "ROLES", "Recipe", "recipe_of"]

KEY = "embedding"
"""The recipe's place in a bundle's metadata."""
ROLES = ("ids", "mask", "types", "positions")
"""What inputs are for, each [texts, tokens]: token ids; 1 for a token and 0 behind a text's end; zeros; 0, 1, 2, …"""
NEEDED = ("ids", "mask")
MOST = 1 << 16
"""The most tokens and dimensions that a recipe may name."""
POOLINGS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "mean": lambda states: np.asarray(states.mean(axis=0)),
        "cls": lambda states: states[0],
        "last": lambda states: states[-1],
        "none": lambda vector: vector,
    }
)
"""By name: a vector of the states of one text's tokens, float32 [tokens, dimensions]; none: the graph makes it."""


class Recipe(NamedTuple):
    """pooling: one of `POOLINGS`. normalize: whether vectors have length 1. tokens: the most of a text. dimensions: of
    a vector. inputs: the graph's, by role. output: the graph's. prompt: what stands before every text."""

    pooling: str
    normalize: bool
    tokens: int
    dimensions: int
    inputs: Mapping[str, str]
    output: str
    prompt: str = ""


_TYPES = {"pooling": str, "normalize": bool, "tokens": int, "dimensions": int, "inputs": Mapping, "output": str,
          "prompt": str}  # fmt: skip


def recipe_of(about: Any, inputs: Items[Value], outputs: Items[Value]) -> Recipe:
    """What metadata say, checked against a graph. Raises InputError if they say nothing, BundleError if they do not fit
    the graph."""
    if about is None:
        raise InputError("this bundle holds no embedding model; convert an encoder with its tokenizer.json")
    if not isinstance(about, Mapping) or about.keys() != _TYPES.keys():
        refuse(KEY, f"an object with the keys {', '.join(_TYPES)}", show(about))
    for name, kind in _TYPES.items():
        if not isinstance(about[name], kind) or (kind is int and isinstance(about[name], bool)):
            refuse(f"{KEY}, {name}", "another type", show(about[name]))
    found = Recipe(**about)
    if found.pooling not in POOLINGS:
        refuse(f"{KEY}, pooling", f"one of {', '.join(POOLINGS)}", show(found.pooling))
    for name in ("tokens", "dimensions"):
        if not 0 < about[name] <= MOST:
            refuse(f"{KEY}, {name}", f"a number from 1 to {MOST}", show(about[name]))
    _check_inputs(found, {value.name: value for value in inputs})
    _check_output(found, {value.name: value for value in outputs})
    return found


def _check_inputs(recipe: Recipe, inputs: Mapping[str, Value]) -> None:
    roles = recipe.inputs
    names = [name for name in roles.values() if type(name) is str]
    if not set(NEEDED) <= roles.keys() <= set(ROLES) or sorted(names) != sorted(inputs) or len(names) < len(roles):
        refuse(f"{KEY}, inputs", f"the inputs {', '.join(inputs)}, by {', '.join(ROLES)}", show(dict(roles)))
    for name, value in inputs.items():
        if value.kind != "tensor" or value.dtype not in ("int64", "int32") or len(value.shape or ()) != 2:
            refuse(f"{KEY}, input {show(name)}", "int64 or int32 [texts, tokens]", f"{value.dtype} {value.shape}")


def _check_output(recipe: Recipe, outputs: Mapping[str, Value]) -> None:
    value, rank = outputs.get(recipe.output), 2 if recipe.pooling == "none" else 3
    if value is None:
        refuse(f"{KEY}, output", f"one of {', '.join(outputs)}", show(recipe.output))
    shape = value.shape or ()
    if value.kind != "tensor" or value.dtype != "float32" or len(shape) != rank or shape[-1] != recipe.dimensions:
        wanted = f"float32 of rank {rank} with {recipe.dimensions} dimensions"
        refuse(f"{KEY}, output {show(recipe.output)}", wanted, f"{value.dtype} {value.shape}")
