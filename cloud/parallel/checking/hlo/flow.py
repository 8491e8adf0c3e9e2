"""Dependencies inside a compiled program, through tuples, loops and branches. They show which collectives could overlap
with computing: those that gather inputs of the step, and those that reduce its outputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from cloud.parallel.checking.hlo.text import Computation, Instruction, Module

__all__ = ["Flow", "Point", "branches_of"]

Point = tuple[str, str, int]
"""Computation, instruction, and the element of its tuple; -1 for instructions whose elements are not tracked
separately."""

_TOLD = ("tuple", "while", "conditional", "call")


class Flow:
    """`after[p]`: the points that use p."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.after: dict[Point, set[Point]] = defaultdict(set)
        self.before: dict[Point, set[Point]] = defaultdict(set)
        self._seen: set[str] = set()
        self._visit(module.computations[module.entry])

    def below(self, points: Iterable[Point]) -> set[Point]:
        """All points that depend on any of these."""
        return _closure(points, self.after)

    def above(self, points: Iterable[Point]) -> set[Point]:
        """All points that any of these depends on."""
        return _closure(points, self.before)

    def _visit(self, inside: Computation) -> None:
        if inside.name in self._seen:
            return
        self._seen.add(inside.name)
        for one in inside.instructions.values():
            self._connect(one, inside)

    def _connect(self, one: Instruction, inside: Computation) -> None:
        if one.opcode == "parameter":
            return
        operands = [inside.instructions[name] for name in one.operands]
        if one.opcode == "tuple":
            for index, operand in enumerate(operands):
                self._join(_points(operand, inside), [(inside.name, one.name, index)])
        elif one.opcode == "get-tuple-element":
            self._join([_element(operands[0], inside, int(one.attribute("index") or 0))], _points(one, inside))
        elif one.opcode == "while":
            body = self.module.computations[one.called("body")[0]]
            self._pass(operands[0], inside, body.parameters[0], body)
            self._pass(body.result, body, body.parameters[0], body)
            self._pass(body.result, body, one, inside)
            self._pass(operands[0], inside, one, inside)
            self._visit(body)
        elif called := [self.module.computations[name] for name in branches_of(one)]:
            given = operands[1:] if one.opcode == "conditional" else operands
            for index, branch in enumerate(called):
                taken = [given[index]] if one.opcode == "conditional" else given
                for operand, parameter in zip(taken, branch.parameters, strict=True):
                    self._pass(operand, inside, parameter, branch)
                self._pass(branch.result, branch, one, inside)
                self._visit(branch)
        else:
            for operand in operands:
                self._join(_points(operand, inside), _points(one, inside))

    def _pass(self, source: Instruction, at: Computation, target: Instruction, to: Computation) -> None:
        """Connect them, element by element if both are tuples."""
        count = len(target.shape) if isinstance(target.shape, tuple) and _told(target) else 0
        if count == 0:
            self._join(_points(source, at), _points(target, to))
        for index in range(count):
            self._join([_element(source, at, index)], [(to.name, target.name, index)])

    def _join(self, sources: Iterable[Point], targets: Iterable[Point]) -> None:
        targets = list(targets)
        for source in sources:
            for target in targets:
                self.after[source].add(target)
                self.before[target].add(source)


def branches_of(one: Instruction) -> tuple[str, ...]:
    """The computations of a conditional, call or asynchronous call."""
    if one.opcode == "conditional":
        return one.called("branch_computations") or (*one.called("true_computation"), *one.called("false_computation"))
    if one.opcode == "call":
        return one.called("to_apply")
    return one.called("calls") if one.opcode == "async-start" else ()


def _told(one: Instruction) -> bool:
    return isinstance(one.shape, tuple) and (one.opcode in _TOLD or one.opcode == "parameter")


def _points(one: Instruction, inside: Computation) -> Iterator[Point]:
    if isinstance(one.shape, tuple) and _told(one):
        yield from ((inside.name, one.name, index) for index in range(len(one.shape)))
    else:
        yield inside.name, one.name, -1


def _element(one: Instruction, inside: Computation, index: int) -> Point:
    return inside.name, one.name, index if _told(one) else -1


def _closure(points: Iterable[Point], edges: Mapping[Point, set[Point]]) -> set[Point]:
    found: set[Point] = set()
    todo = list(points)
    while todo:
        point = todo.pop()
        for following in edges.get(point, ()):
            if following not in found:
                found.add(following)
                todo.append(following)
    return found
