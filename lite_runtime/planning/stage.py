"""Divides a graph before a run: nodes that can be evaluated now, nodes with known types, nodes that must wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from lite_runtime.errors import MsedgeError, ShapeError
from lite_runtime.graph import Array, Attr, Graph, Node, Spec, Value, itemsize, spec_of
from lite_runtime.graph.verify import MAX_BYTES, MAX_RANK
from lite_runtime.operators import OPERATORS
from lite_runtime.operators.record import CUSTOM
from lite_runtime.ops.registry import INFERS, DataDependent, Inference
from lite_runtime.planning.control import CONTROL, blocks_of, branch_of
from lite_runtime.planning.inline import first_output, spliced
from lite_runtime.planning.parts import Block, Stage

__all__ = ["fold", "next_stage", "spec_of"]

SMALL = 1 << 16
"""Greatest number of elements of a value derived from shapes that is computed while planning."""
GROWTH = 8
"""Greatest ratio of a constant's bytes to its operands' for evaluation ahead: dequantised weights yes, tilings no."""
FILLS = frozenset({"ConstantOfShape", "Expand"})
"""Operators that are always evaluated ahead: kernels need their results packed as weights, and filling is cheap."""


def fold(graph: Graph, limit: int) -> Graph:
    """The graph with every node evaluated whose operands are constants: done once for all input shapes.

    Constants that only evaluated nodes read are released after the last of these, so that weights stored in a narrower
    type are not kept in addition to their converted form.
    """
    known = dict(graph.constants)
    rest = []
    readers = Counter(name for node in graph.nodes for name in _reads(node))
    readers.update(value.name for value in (*graph.inputs, *graph.outputs))
    for node in graph.nodes:
        if all(name in known for name in node.inputs if name):
            specs = {name: spec for name in node.inputs if name and (spec := spec_of(known[name])) is not None}
            results = _infer(node, specs, known) if len(specs) == len({name for name in node.inputs if name}) else None
            _check_sizes(node, results or (), limit)
            room = limit if node.op in FILLS else GROWTH * sum(spec.nbytes for spec in specs.values()) + SMALL
            if sum(spec.nbytes for spec in results or ()) <= room and _evaluate(node, known):
                _release(node, known, readers)
                continue
        rest.append(_folded_inside(node, known, limit))
    return Graph(graph.inputs, graph.outputs, tuple(rest), known, graph.name)


def _folded_inside(node: Node, known: Mapping[str, Array], limit: int) -> Node:
    """The node with its nested graphs folded; they have the constants that they captured."""
    if not any(isinstance(attr, Graph) for attr in node.attrs.values()):
        return node

    def folded(attr: Attr) -> Attr:
        if not isinstance(attr, Graph):
            return attr
        captured = {name: known[name] for name in attr.free_names if name in known}
        return fold(attr.replace(constants={**captured, **attr.constants}), limit)

    return node.replace(attrs={key: folded(attr) for key, attr in node.attrs.items()})


def _release(node: Node, known: dict[str, Array], readers: Counter[str]) -> None:
    """Release the operands of an evaluated node that have no other readers."""
    for name in _reads(node):
        readers[name] -= 1
        if not readers[name]:
            known.pop(name, None)


def _check_sizes(node: Node, results: Sequence[Spec], limit: int) -> None:
    """Refuse results above the memory limit before they are computed."""
    for spec in results:
        if spec.nbytes > limit:
            raise MsedgeError(
                f"{node.where}: its result {spec.dtype}{list(spec.shape)} exceeds the limit of {limit} bytes"
            )


def _never_ahead(node: Node) -> bool:
    """Whether a node must be evaluated at every run: because it draws random numbers, or because its behaviour depends
    on a subgraph or on the program that runs it."""
    if CUSTOM in node.op:
        return True
    record = OPERATORS.get(node.op)
    return record is not None and ("random" in record.traits or "control" in record.traits)


def _evaluate(node: Node, known: dict[str, Array]) -> bool:
    """Evaluate a node if all its operands are known; returns whether it was evaluated."""
    from lite_runtime import reference

    if _never_ahead(node) or any(name and name not in known for name in node.inputs):
        return False
    results = reference.evaluate(node, [known[name] if name else None for name in node.inputs])
    if not all(isinstance(result, np.ndarray) for result in results):
        return False
    known.update((name, result) for name, result in zip(node.outputs, results, strict=False) if name)
    return True


def next_stage(graph: Graph, given: Mapping[str, Spec], limit: int) -> Stage:
    """The first stage of a run of `graph` (its constants folded), given the types of its inputs.

    limit: greatest size in bytes of one value. Raises ShapeError for incompatible operands, MsedgeError above the
    limit.
    """
    known = dict(graph.constants)
    specs: dict[str, Spec] = dict(given)
    for name, array in known.items():
        spec = spec_of(array)
        if spec is not None:
            specs[name] = spec
    ready: list[Node] = []
    frontier: list[Node] = []
    waiting: list[Node] = []
    unknown: set[str] = {v.name for v in graph.inputs if v.name not in specs}
    late: set[str] = set()
    blocks: dict[str, tuple[Block, ...]] = {}
    pending = list(reversed(graph.nodes))
    while pending:
        node = pending.pop()
        reads = _reads(node)
        if any(n in late for n in reads):
            waiting.append(node)
            late.update(node.outputs)
            continue
        typed = not any(n in unknown or n not in specs for n in reads)
        branch = branch_of(node, known) if typed else ""
        if branch:
            nodes, constants = spliced(node, branch)
            pending.extend(reversed(nodes))
            known.update(constants)
            specs.update((name, spec) for name, array in constants.items() if (spec := spec_of(array)) is not None)
            continue
        results = None
        if typed:
            results = _nested(node, specs, known, blocks, limit) if node.op in CONTROL else _infer(node, specs, known)
        if results is None:
            frontier.append(node)
            late.update(node.outputs)
            continue
        _check_sizes(node, results, limit)
        specs.update(zip(node.outputs, results, strict=False))
        if node.op == "Shape" or node.op == "Size":
            shape = specs[node.inputs[0]].shape
            known[node.outputs[0]] = _shape_value(node, shape)
        elif all(n in known for n in reads) and all(s.size <= SMALL for s in results):
            _evaluate(node, known)
        if not all(n in known for n in node.outputs if n):
            ready.append(node)
    made_later = {name for node in (*frontier, *waiting) for name in node.outputs}
    later = frozenset(n for node in (*frontier, *waiting) for n in _reads(node))
    outputs = tuple(dict.fromkeys(v.name for v in graph.outputs if v.name not in made_later))
    rest = _rest(graph, waiting, known) if frontier else None
    return Stage(_prune(ready, later.union(outputs)), tuple(frontier), rest, specs, known, later, outputs, blocks)


def _nested(
    node: Node, specs: dict[str, Spec], known: Mapping[str, Array], blocks: dict[str, tuple[Block, ...]], limit: int
) -> Sequence[Spec] | None:
    """The result types of a node with nested graphs, if they are known. The types inside are added to `specs`."""
    try:
        found, results = blocks_of(node, specs, known, lambda graph, given: next_stage(graph, given, limit))
    except DataDependent:
        return None
    for block in found:
        specs.update(block.stage.specs)
    blocks[first_output(node)] = found
    return results


def _reads(node: Node) -> list[str]:
    """Names that a node reads, including those captured by its nested graphs."""
    return [name for name in (*node.inputs, *node.captures) if name]


def _shape_value(node: Node, shape: tuple[int, ...]) -> Array:
    """The result of Shape or Size, which depends on a type only."""
    if node.op == "Size":
        return np.array(int(np.prod(shape, dtype=np.int64)), np.int64)
    start: Any = node.attrs.get("start")
    end: Any = node.attrs.get("end")
    return np.array(shape[start:end], np.int64)


def _infer(node: Node, specs: Mapping[str, Spec], known: Mapping[str, Array]) -> Sequence[Spec] | None:
    """The node's result types; None if they are known only at run time."""
    rule = INFERS.get(node.op)
    if rule is None:
        return None
    operands = [specs[name] if name else None for name in node.inputs]
    try:
        results = rule(Inference(node, operands, [known.get(name) if name else None for name in node.inputs]))
    except DataDependent:
        return None
    if len(results) < len([n for n in node.outputs if n]):
        raise ShapeError(f"{node.where}: expected at most {len(results)} outputs, got {len(node.outputs)}")
    if any(spec.dtype == "string" for spec in results):
        return None
    for spec in results:
        _check_size(node, spec)
    return results


def _check_size(node: Node, spec: Spec) -> None:
    """Raise ShapeError for arrays that NumPy cannot hold: too many axes, or bytes that, without sizes of zero, exceed
    all memory."""
    if len(spec.shape) > MAX_RANK or prod(d or 1 for d in spec.shape) * itemsize(spec.dtype) > MAX_BYTES:
        shown = list(spec.shape) if len(spec.shape) <= MAX_RANK else f"{len(spec.shape)} axes"
        raise ShapeError(
            f"{node.where}: expected a result of at most {MAX_RANK} axes and {MAX_BYTES} bytes, got {shown}"
        )


def _prune(nodes: Sequence[Node], wanted: Iterable[str]) -> tuple[Node, ...]:
    """The nodes that the wanted values depend on, in order."""
    needed = set(wanted)
    kept: list[Node] = []
    for node in reversed(nodes):
        if needed.intersection(n for n in node.outputs if n):
            kept.append(node)
            needed.update(_reads(node))
    return tuple(kept[::-1])


def _rest(graph: Graph, waiting: Sequence[Node], known: Mapping[str, Array]) -> Graph:
    """The graph that remains after the frontier has run; its inputs are all values that it still needs."""
    made = {name for node in waiting for name in node.outputs}
    needs = {n for node in waiting for n in _reads(node)} | {v.name for v in graph.outputs}
    constants = {n: known[n] for n in needs if n in known}
    inputs = tuple(Value(n, "", None, "any") for n in sorted(needs - made - set(constants)))
    return Graph(inputs, graph.outputs, tuple(waiting), constants, graph.name)
