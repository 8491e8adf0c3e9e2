"""Operators that share one decision: one choice per group instead of one per operator.

A group has a leader: an input of the step, or an operator with substantial work (a product, a convolution, a lookup).
The others follow it in one of two directions:

1. *followers* adopt the split of their main operand: elementwise operators, those that move dimensions, and reductions
   to a small result;
2. *growers* produce the split that their reader needs: broadcasts and everything computed from them alone. So a bias is
   split like the activations it is added to, not the other way round.

A follower's main operand is its largest; among equals an operator's result before an input, then the one made last. So
an optimiser's chain of (gradient, moments, parameter) follows the gradient's product, a residual sum follows the branch
that ends there, and a backward operator follows the gradient rather than a value kept from the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from cloud.parallel.graph import Graph, Loop, Op, Split, remembered
from cloud.parallel.plan import Assignment, Mesh
from cloud.parallel.searching.options import degree, made, wanted
from cloud.parallel.searching.walk import late
from cloud.parallel.tracing.bodies import CLOSE

__all__ = ["SMALL", "Derived", "Group", "Member", "derive", "grouped"]

SMALL = 1 / 64
"""A reduction follows its operand if its result has at most this share of the operand's elements: combining so little
is cheap over any axes. Larger ones (a gradient summed over the batch) are decided separately."""


@dataclass(frozen=True, slots=True)
class Member:
    """Operator `op` of a group. `operand` >= 0: it adopts the split of that operand, which an earlier member (or the
    leader) made. -1: it produces the split that an earlier member needs, `reader` = (operator, operand)."""

    op: int
    operand: int
    reader: tuple[int, int] = (-1, -1)


@dataclass(frozen=True, slots=True)
class Group:
    """The leader is operator `leader` or, if that is -1, the input `value`. `members` are without the leader, each
    after the one that it follows."""

    leader: int
    value: int
    members: tuple[Member, ...]

    @property
    def ops(self) -> tuple[int, ...]:
        """The operators of the group, the leader first."""
        return (() if self.leader < 0 else (self.leader,)) + tuple(member.op for member in self.members)


Derived = dict[int, Assignment]
"""Assignments of a group's operators by number."""


@remembered
def grouped(graph: Graph) -> tuple[Group, ...]:
    """Every operator and every input in exactly one group; the groups of inputs first."""
    homes = _Homes(graph)
    for k, op in enumerate(graph.ops):
        homes.put(k, op)
    homes.settle()
    return tuple(Group(leader, value, tuple(members)) for leader, value, members in homes.groups)


class _Homes:
    """The group of each operator and input; written once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.groups: list[tuple[int, int, list[Member]]] = [(-1, value, []) for value in graph.entering]
        self.of_value = {value: g for g, value in enumerate(graph.entering)}
        self.made_at = {value: -1 for value in graph.entering}
        self.pending: list[int] = []
        self.elements = [prod(value.shape) for value in graph.values]
        self.readers: dict[int, list[int]] = {}
        for k, op in enumerate(graph.ops):
            for value in op.inputs:
                self.readers.setdefault(value, []).append(k)

    def put(self, k: int, op: Op) -> None:
        """Assign operators in order; growers wait for their readers. A carry leaves a trip split as it entered it."""
        if op.primitive == CLOSE:
            self._join(self.of_value[op.inputs[1]], Member(k, 1))
            return
        main = self._main(op)
        if op.follows and self._known(op, main) < self._results(op):
            self.pending.append(k)
        elif main >= 0 and self._follows(op, main):
            self._join(self.of_value[op.inputs[main]], Member(k, main))
        else:
            self._lead(k)

    def settle(self) -> None:
        """Assign growers, last first, so that a grower's reader already has its group."""
        readers: dict[int, list[tuple[int, int]]] = {}
        for k, op in enumerate(self.graph.ops):
            for i, value in enumerate(op.inputs):
                readers.setdefault(value, []).append((k, i))
        homes = {k: self.of_value.get(op.outputs[0], -1) for k, op in enumerate(self.graph.ops)}
        for k in reversed(self.pending):
            read = (at for v in self.graph.ops[k].outputs for at in readers.get(v, ()))
            reader = next((at for at in read if homes[at[0]] >= 0), None)
            homes[k] = len(self.groups) if reader is None else homes[reader[0]]
            if reader is None:
                self._lead(k)
            else:
                self._join(homes[k], Member(k, -1, reader))

    def _main(self, op: Op) -> int:
        """The operand to follow, -1 if none is in a group yet."""

        def rank(i: int) -> tuple[int, bool, int]:
            value = op.inputs[i]
            return self.elements[value], self.groups[self.of_value[value]][0] >= 0, self.made_at[value]

        return max((i for i, value in enumerate(op.inputs) if value in self.of_value), key=rank, default=-1)

    def _known(self, op: Op, main: int) -> int:
        return self.elements[op.inputs[main]] if main >= 0 else 0

    def _results(self, op: Op) -> int:
        return max(self.elements[value] for value in op.outputs)

    def _follows(self, op: Op, main: int) -> bool:
        if op.follows or not op.primitive.startswith(("reduce_", "arg")):
            return op.follows
        if not any(loop.reduces for loop in op.loops):
            return True
        return self._results(op) <= SMALL * self._known(op, main) and not self._is_gradient(op)

    def _is_gradient(self, op: Op) -> bool:
        """Whether only the optimiser reads the results, whose sums may then end scattered as its slots are."""
        read = [r for v in op.outputs if self.graph.values[v].shape for r in self.readers.get(v, ())]
        return bool(read) and all(late(self.graph)[r] for r in read)

    def _lead(self, k: int) -> None:
        self.groups.append((k, -1, []))
        self._claim(k, len(self.groups) - 1)

    def _join(self, group: int, member: Member) -> None:
        self.groups[group][2].append(member)
        self._claim(member.op, group)

    def _claim(self, k: int, group: int) -> None:
        for value in self.graph.ops[k].outputs:
            self.of_value[value], self.made_at[value] = group, k


def derive(graph: Graph, group: Group, lead: Assignment | Split, mesh: Mesh) -> Derived:
    """The assignments of all members that follow from the leader's choice (an Assignment, or the Split of an input)."""
    lies: dict[int, Split] = {}
    derived: Derived = {}
    if isinstance(lead, Assignment):
        derived[group.leader] = lead
        lies.update(zip(graph.ops[group.leader].outputs, lead.results, strict=True))
    else:
        lies[group.value] = lead
    for member in group.members:
        op = graph.ops[member.op]
        if member.operand >= 0:
            loops = _carried(op.loops, op.reads[member.operand], lies[op.inputs[member.operand]], mesh)
        else:
            k, i = member.reader
            result = op.outputs.index(graph.ops[k].inputs[i])
            loops = _carried(op.loops, op.writes[result], wanted(graph.ops[k], i, derived[k].loops), mesh)
        results = tuple(made(op, j, loops) for j in range(len(op.outputs)))
        derived[member.op] = Assignment(loops, results)
        lies.update(zip(op.outputs, results, strict=True))
    return derived


def _carried(loops: Sequence[Loop], walked: Iterable[int | None], split: Split, mesh: Mesh) -> Split:
    """The split of the loops that follows from the split of the dimensions, as far as their trips divide: if (rows x
    columns) are merged into one dimension, its loop is that of the rows, with only as many axes as divide the rows."""
    taken: list[tuple[int, ...]] = [()] * len(loops)
    for loop, axes in zip(walked, split, strict=True):
        if loop is not None and not taken[loop]:
            taken[loop] = next(
                (axes[:n] for n in range(len(axes), 0, -1) if loops[loop].size % degree(axes[:n], mesh) == 0), ()
            )
    return tuple(taken)
