"""A walk over a graph's nodes that rewrites those with operands that belong to owners: see `learning/grouping.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Graph, Node, Spec, Value
from lite_runtime.learning.rowwise import MIXED, lines_of
from lite_runtime.planning.parts import Stage

__all__ = ["SLOTS", "Grouped", "Rule", "Table", "Ungrouped", "Walk"]

SLOTS = "personal/slots"
"""The input int64[rows] that gives, for each row, the slot of its owner's tensors."""


class Ungrouped(MsedgeError):
    """Rows of several owners cannot be computed together by this graph; the text says why."""


class Table(NamedTuple):
    """An input of the grouped graph that holds, for every slot, `form` of the value `source`."""

    name: str
    source: str
    form: str
    spec: Spec
    """Type of one slot."""

    def row(self, value: Array) -> Array:
        """The contents of a slot, computed from the owner's value of `source`."""
        return np.array(np.broadcast_to(_FORMS[self.form](value), self.spec.shape), order="C")


_FORMS: Mapping[str, Callable[[Array], Array]] = {
    "": lambda value: value,
    "turned": lambda value: value.T,
    "filters": lambda value: value.reshape(value.shape[:2]).T,
    "flat": lambda value: value.reshape(-1),
}
"""turned: a matrix's columns as rows; filters: [out, in, 1, ...] as a matrix [in, out]; flat: one axis."""


class Grouped(NamedTuple):
    """The two graphs: one to run when an owner's tensors arrive, one to run for rows."""

    graph: Graph
    """Inputs: the signature's, SLOTS, the tables."""
    prepare: Graph
    """Computes from owned tensors those table sources that are not owned tensors themselves; has no outputs if there
    are none. Its constants include the sources that are the same for all owners."""
    tables: tuple[Table, ...]


class Walk:
    """A walk over the nodes of a stage. `own`: values that depend on owned tensors and not on rows; `lines`: values
    that depend on rows."""

    def __init__(
        self,
        graph: Graph,
        stage: Stage,
        owned: Mapping[str, Spec],
        inputs: Mapping[str, Spec],
        rows: int,
        rules: Mapping[str, Rule],
    ) -> None:
        self.graph, self.rows, self.owned = graph, rows, owned
        self._rules = rules
        self.specs, self.known = dict(stage.specs), stage.known
        self.own: set[str] = set(owned)
        self.lines = dict.fromkeys(inputs, 1)
        self.makers: dict[str, Node] = {}
        """Nodes that do not depend on rows, by result."""
        self.constants: dict[str, Array] = {}
        """Constants that the walk adds."""
        self._nodes: list[Node] = []
        self._tables: dict[tuple[str, str], Table] = {}
        self._gathered: dict[tuple[str, tuple[int, ...]], str] = {}
        self._mixer: Node | None = None
        """The first node after which rows are no longer independent."""

    def take(self, node: Node) -> None:
        """Append the next node: unchanged, rewritten, or to the graph computed once per owner. Raises Ungrouped."""
        reads = [name for name in (*node.inputs, *node.captures) if name]
        if not any(name in self.lines for name in reads):
            self.makers.update((name, node) for name in node.outputs if name)
            if any(name in self.own for name in reads):
                self.own.update(name for name in node.outputs if name)
            else:
                self._nodes.append(node)
        elif not any(name in self.own for name in reads):
            self._nodes.append(node)
            lines = lines_of(node, self.specs, self.known, self.lines, self.rows)
            self._mixer = self._mixer or (node if lines == MIXED else None)
            self.lines.update((name, lines) for name in node.outputs if name)
        else:
            self._rewrite(node)

    def _rewrite(self, node: Node) -> None:
        rule = self._rules.get(node.op)
        if rule is None:
            raise Ungrouped(f"{node.where}: {node.op} cannot be computed with tensors that differ from row to row")
        for name in node.inputs:
            if self.lines.get(name) == MIXED and self._mixer is not None:
                raise Ungrouped(f"{self._mixer.where}: its result mixes rows, or may, before {node.where}")
        rule(self, node)
        (output,) = (name for name in node.outputs if name)
        self.lines[output] = self.specs[output].shape[0] // self.rows

    # -- interface of the rules ---------------------------------------------------------------------------------------

    def refusal(self, node: Node, what: str) -> Ungrouped:
        """The error that a rule raises if it cannot rewrite this node."""
        return Ungrouped(f"{node.where}: {what}, and one of its operands differs from row to row")

    def emit(
        self, op: str, inputs: Sequence[str], like: str, attrs: Mapping[str, Any] | None = None, last: bool = False
    ) -> str:
        """Append a node whose result has the type of the value `like`; the `last` one also takes its name."""
        name = like if last else f"{like}/personal{len(self._nodes)}"
        self._nodes.append(Node(op, tuple(inputs), (name,), dict(attrs or {}), name))
        self.specs[name] = self.specs[like]
        return name

    def table(self, source: str, form: str, shape: tuple[int, ...]) -> str:
        """The input that holds, for every slot, a value of this shape: `form` of `source`, broadcast if necessary."""
        key = (source, form)
        if key not in self._tables:
            name = f"personal/{len(self._tables)}/{source}"
            self._tables[key] = Table(name, source, form, Spec(self.specs[source].dtype, shape))
        if self._tables[key].spec.shape != shape:
            raise Ungrouped(f"{source!r} is read as {list(shape)} and as {list(self._tables[key].spec.shape)}")
        return self._tables[key].name

    def each(self, source: str, like: str, axis: int | None = None) -> str:
        """An owned value for every row, to be broadcast against the value `like`; axis: the position of its only
        axis."""
        shape, target = self.specs[source].shape, self.specs[like].shape
        if axis is not None:
            size = (prod(shape),)
            inner = (*size, *[1] * (len(target) - 1 - axis % len(target)))
            table = self.table(source, "flat", size)
        else:
            inner = shape[1:] if len(shape) == len(target) and shape[0] == 1 else shape
            table = self.table(source, "", shape)
        if len(inner) >= len(target):
            raise Ungrouped(f"{source!r} of shape {list(shape)} differs by row and does not fit {list(target)}")
        lines = target[0] // self.rows
        whole = (target[0], *[1] * (len(target) - 1 - len(inner)), *inner)
        key = table, whole
        if key not in self._gathered:
            name, form = f"{table}/rows{len(self._nodes)}", f"{table}/shape{len(self._nodes)}"
            self._nodes.append(Node("Gather", (table, self._slots(lines)), (name,), {"axis": 0}, name))
            self.constants[form] = np.array(whole, np.int64)
            self._gathered[key] = f"{name}/shaped"
            self._nodes.append(Node("Reshape", (name, form), (f"{name}/shaped",), {}, f"{name}/shaped"))
            self.specs[f"{name}/shaped"] = Spec(self.specs[source].dtype, whole)
        return self._gathered[key]

    def _slots(self, lines: int) -> str:
        """The slot of every line."""
        if lines == 1:
            return SLOTS
        name = f"{SLOTS}/{lines}"
        if name not in self.constants:
            self.constants[name] = np.repeat(np.arange(self.rows), lines)
            self._nodes.append(Node("Gather", (SLOTS, name), (f"{name}/each",), {"axis": 0}, f"{name}/each"))
        return f"{name}/each"

    def grouped(
        self, node: Node, x: str, matrix: tuple[str, str], bias: str, residual: str, attrs: Mapping[str, Any]
    ) -> None:
        """The node as a product of rows of `x` and owned matrices; matrix: value and form."""
        (output,) = node.outputs
        depth, columns = self.specs[x].shape[-1], self.specs[output].shape[-1]
        operands = [x, self.table(*matrix, (depth, columns)), SLOTS]
        operands.append(self.table(bias, "flat", (columns,)) if bias else "")
        operands.append(residual)
        while not operands[-1]:
            operands.pop()
        self.emit("GroupedMatMul", operands, output, attrs, last=True)

    # -- the result ---------------------------------------------------------------------------------------------------

    def finish(self) -> Grouped:
        """Raises Ungrouped if an output does not have one line for each row."""
        for value in self.graph.outputs:
            if value.name in self.lines and self.lines[value.name] != 1:
                what = f"{self._mixer.where}: its result mixes rows, or may" if self._mixer else "it holds several"
                raise Ungrouped(f"output {value.name!r} does not hold one line for each row; {what}")
            if value.name not in self.lines:
                raise Ungrouped(f"output {value.name!r} depends on no row")
        tables = tuple(self._tables.values())
        nodes = _needed(self._nodes, [value.name for value in self.graph.outputs])
        constants = {**self.known, **self.constants}
        reads = {name for node in nodes for name in (*node.inputs, *node.captures)}
        inputs = (
            *(value for value in self.graph.inputs if value.name not in self.owned),
            Value(SLOTS, "int64", (self.rows,)),
            *(Value(table.name, table.spec.dtype, (None, *table.spec.shape)) for table in tables),
        )
        held = {name: constants[name] for name in constants if name in reads}
        names = [*(value.name for value in inputs), *held, *(n for node in nodes for n in node.outputs if n)]
        if len(set(names)) != len(names):
            raise Ungrouped("the model has values whose names begin with 'personal/', which is reserved; rename them")
        return Grouped(Graph(inputs, self.graph.outputs, nodes, held, self.graph.name), self._preparation(), tables)

    def _preparation(self) -> Graph:
        wanted = dict.fromkeys(table.source for table in self._tables.values() if table.source in self.makers)
        makers = list({id(node): node for node in self.makers.values()}.values())
        nodes = _needed(makers, wanted)
        reads = {name for node in nodes for name in (*node.inputs, *node.captures)}
        inputs = tuple(Value(name, *spec) for name, spec in self.owned.items() if name in reads)
        outputs = tuple(Value(name, *self.specs[name]) for name in wanted)
        reads.update(table.source for table in self._tables.values())
        return Graph(inputs, outputs, nodes, {n: self.known[n] for n in reads if n in self.known}, "prepare")


Rule: TypeAlias = Callable[[Walk, Node], None]
"""Rewrites a node that has an operand belonging to an owner, using the methods of `Walk`."""


def _needed(nodes: Sequence[Node], wanted: Sequence[str] | Mapping[str, None]) -> tuple[Node, ...]:
    """The nodes that the wanted values depend on, in order."""
    needed, kept = set(wanted), []
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed.update(name for name in (*node.inputs, *node.captures) if name)
    return tuple(kept[::-1])
