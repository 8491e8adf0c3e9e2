"""Local rewrites as data: rows of (name, pattern, builder).

A pattern is nested tuples: `("Mul", "x", ("Sigmoid", "x"))`. A string binds a value (the same string, the same
value), a number matches a constant of one element, `Constant("c")` binds any constant, a tuple is an operator with
its operands and, last, optionally a dict of attributes it must have (or that bind, when the value is a string).
Operands of commutative operators match in either order. Every matched node except the last must have no other reader
and must not be a graph output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.ir import build
from converter.ir.build import Edit
from lite_runtime.operators import having

__all__ = [
    "Constant", "Entry", "Match", "MissingOperand", "Optional", "Row", "apply", "by_operator", "leading", "matches",
]  # fmt: skip


class MissingOperand(IndexError):
    """A node lacks an operand without which its operator has no meaning."""


def leading(node: ir.Node, count: int) -> Sequence[ir.Value | None]:
    """The first operands, which must be so many; optional ones among them may be None. Raises MissingOperand."""
    if len(node.inputs) < count:
        raise MissingOperand
    return node.inputs[:count]


Entry = Callable[[ir.Node], bool]
"""Rewrites a node, and returns whether it did."""

_ROUNDS = 8
"""The most sweeps: the result of one row may be part of another row's pattern."""
_CLOSE = 1e-4
"""Relative tolerance of numbers in patterns: exporters write sqrt(2) with four to nine digits."""


def by_operator(model: ir.Model, table: Mapping[tuple[str, str], Entry]) -> int:
    """The number of nodes that the entries of a table, by domain and operator, rewrote.

    Raises ConvertError for a node with fewer operands than its entry reads: onnx has no schema for other domains.
    """
    count = 0
    for node in build.nodes(model):
        entry = table.get((node.domain, node.op_type))
        if entry is not None and node.graph is not None:
            try:
                count += entry(node)
            except IndexError:
                given = f"{len(node.inputs)} operands and {len(node.outputs)} results"
                raise ConvertError(
                    f"{node.domain}::{node.op_type} {build.title(node)!r} has {given}, fewer than the operator needs; "
                    "export the model again"
                ) from None
    return count


@dataclass(frozen=True)
class Constant:
    """Matches any constant and binds its value under `name`."""

    name: str


@dataclass(frozen=True)
class Optional:
    """Matches `pattern` or an omitted operand."""

    pattern: Any


@dataclass
class Match:
    """The bindings of a match: values by name, attributes by name, and the matched nodes, the last one first."""

    values: dict[str, ir.Value] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)
    nodes: list[ir.Node] = field(default_factory=list)

    def __getitem__(self, name: str) -> ir.Value:
        return self.values[name]

    def array(self, name: str) -> np.ndarray:
        """The contents of a bound constant."""
        found = build.array(self.values[name])
        assert found is not None, f"{name} was not matched as a constant"
        return found

    @property
    def output(self) -> ir.Value:
        """The value that the rewrite must replace."""
        return self.nodes[0].outputs[0]

    def copy(self) -> Match:
        """An independent copy to continue matching from."""
        return Match(dict(self.values), dict(self.attrs), list(self.nodes))


class Row(NamedTuple):
    """A rule. `build` returns the value that replaces the pattern's, or None to decline."""

    name: str
    pattern: tuple[Any, ...]
    build: Callable[[Edit, Match], ir.Value | None]


def apply(model: ir.Model, rows: Sequence[Row]) -> int:
    """Apply the first row that matches at each node until none does; last nodes first, so that the largest match
    wins."""
    by_op: dict[str, list[Row]] = {}
    for row in rows:
        by_op.setdefault(row.pattern[0], []).append(row)
    total = 0
    for _ in range(_ROUNDS):
        count = 0
        for graph in list(build.graphs(model)):
            for node in reversed(list(graph)):
                if node.graph is graph and node.domain in ("", build.DOMAIN):
                    count += _apply_at(node, by_op.get(node.op_type, ()))
        total += count
        if not count:
            break
    return total


def _apply_at(node: ir.Node, rows: Sequence[Row]) -> int:
    for row in rows:
        for match in matches(node, row.pattern):
            edit = Edit(node)
            value = row.build(edit, match)
            if value is not None:
                edit.replace(value)
                _remove_dead(match.nodes[1:])
                return 1
    return 0


def _remove_dead(nodes: Sequence[ir.Node]) -> None:
    for node in nodes:
        if node.graph is not None and not any(v.uses() or v.is_graph_output() for v in node.outputs):
            node.graph.remove(node, safe=True)


def matches(node: ir.Node, pattern: tuple[Any, ...]) -> Iterator[Match]:
    """Every way `pattern` matches with `node` as its last operator."""
    yield from _match_node(node, pattern, Match())


def _match_node(node: ir.Node, pattern: tuple[Any, ...], match: Match) -> Iterator[Match]:
    op, *operands = pattern
    if node.op_type != op or node.domain not in ("", build.DOMAIN):
        return
    wanted: dict[str, Any] = operands.pop() if operands and isinstance(operands[-1], dict) else {}
    match = match.copy()
    if not _match_attrs(node, wanted, match):
        return
    match.nodes.append(node)
    values = list(node.inputs)
    while values and values[-1] is None:
        values.pop()
    values += [None] * (len(operands) - len(values))
    if len(values) != len(operands):
        return
    yield from _match_all(values, operands, match)
    if op in having("commutes") and len(operands) == 2:
        yield from _match_all(values[::-1], operands, match)


def _match_attrs(node: ir.Node, wanted: dict[str, Any], match: Match) -> bool:
    for name, value in wanted.items():
        got = build.get_attr(node, name)
        if isinstance(value, str) and value.startswith("$"):
            match.attrs[value[1:]] = got
        elif isinstance(value, float):
            if got is None or not math.isclose(got, value, rel_tol=_CLOSE):
                return False
        elif got != value and tuple(got or ()) != value if isinstance(value, tuple) else got != value:
            return False
    return True


def _match_all(values: Sequence[ir.Value | None], patterns: Sequence[Any], match: Match) -> Iterator[Match]:
    if not patterns:
        yield match
        return
    for first in _match_value(values[0], patterns[0], match):
        yield from _match_all(values[1:], patterns[1:], first)


def _match_value(value: ir.Value | None, pattern: Any, match: Match) -> Iterator[Match]:
    if isinstance(pattern, Optional):
        if value is None:
            yield match
            return
        pattern = pattern.pattern
    if value is None:
        return
    if isinstance(pattern, str):
        yield from _bind(value, pattern, match)
    elif isinstance(pattern, Constant):
        if build.array(value) is not None:
            yield from _bind(value, pattern.name, match)
    elif isinstance(pattern, tuple):
        node = value.producer()
        if node is not None and build.sole_reader(value):
            yield from _match_node(node, pattern, match)
    else:
        number = build.scalar(value)
        if number is not None and math.isclose(number, pattern, rel_tol=_CLOSE, abs_tol=1e-9):
            yield match


def _bind(value: ir.Value, name: str, match: Match) -> Iterator[Match]:
    bound = match.values.get(name)
    if bound is value:
        yield match
    elif bound is None:
        extended = match.copy()
        extended.values[name] = value
        yield extended
