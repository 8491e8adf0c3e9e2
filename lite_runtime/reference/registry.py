"""How operators are defined: a NumPy function registered under the operator's name, and context for some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lite_runtime.graph import Graph

__all__ = ["REGISTERED", "Context", "RunGraph", "define"]

Definition = TypeVar("Definition", bound=Callable[..., Any])
RunGraph = Callable[[Graph, Sequence[Any]], list[Any]]
"""Evaluates a subgraph on its inputs in order, with captured names resolved; returns its outputs in order."""

REGISTERED: dict[str, Callable[..., Any]] = {}
"""Definitions of the families imported so far."""


@dataclass(frozen=True)
class Context:
    """What a definition may know about its node."""

    outputs: tuple[str, ...]
    """The node's output names; "" for an unused output."""
    run_graph: RunGraph


def define(*ops: str) -> Callable[[Definition], Definition]:
    """Register a function as the definition of `ops`.

    It is called as `fn(*inputs, **attributes)`. Inputs are positional-only parameters (or `*inputs`); an optional input
    that is left out is None or missing at the end. Attributes have ONNX's names and defaults. It returns one array (a
    list for a sequence) or a tuple of them, one per output.
    A keyword-only parameter `context` receives a `Context`; one named `op` the operator's name.
    """

    def register(fn: Definition) -> Definition:
        for op in ops:
            if op in REGISTERED:
                raise ValueError(f"expected one definition of {op}, got two")
            REGISTERED[op] = fn
        return fn

    return register
