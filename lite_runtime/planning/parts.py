"""The data of a graph that is cut into parts for planning."""

from __future__ import annotations

from collections.abc import Mapping

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Graph, Node, Spec

__all__ = ["Block", "Stage"]


class Stage(NamedTuple):
    """A graph for inputs of known types, cut where a type depends on a value.

    `ready` nodes have known types and are needed; result types of the `frontier` are known only after it ran; `rest` is
    the graph that remains after it, None if nothing does. `specs` and `known` hold types and values by name; `later`
    names the values that the frontier and the rest read, `outputs` the graph's outputs that this stage provides.
    `blocks` holds the nested graphs of ready If, Loop and Scan nodes, by the node's first output.
    """

    ready: tuple[Node, ...]
    frontier: tuple[Node, ...]
    rest: Graph | None
    specs: Mapping[str, Spec]
    known: Mapping[str, Array]
    later: frozenset[str]
    outputs: tuple[str, ...]
    blocks: Mapping[str, tuple[Block, ...]]


class Block(NamedTuple):
    """A nested graph whose types are all known: a branch, or the body of a loop. Its names are unique.

    `refusal`: why a branch cannot run on operands of these types; a run that takes it fails with this message.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stage: Stage
    refusal: str = ""
