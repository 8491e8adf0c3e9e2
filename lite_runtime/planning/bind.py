"""Binds each unit of a stage to kernels and gives its values buffers; memory addresses are assigned later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lite_runtime import ops as _registers_all_rules  # noqa: F401
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Node, itemsize
from lite_runtime.ops import chain
from lite_runtime.ops.registry import BINDS, NoKernel, Operand, Spec
from lite_runtime.planning.control import CONTROL
from lite_runtime.planning.jumps import bind_control
from lite_runtime.planning.parts import Block, Stage
from lite_runtime.planning.program import ARENA
from lite_runtime.planning.stage import spec_of
from lite_runtime.planning.workspace import Record, Workspace
from lite_runtime.steps.declaration import Gaps, Step

__all__ = ["BoundUnit", "bind_stage"]


class BoundUnit(NamedTuple):
    """Records [begin, end) compute unit `unit`; an empty range means that its reference does."""

    unit: int
    begin: int
    end: int


def _makes_rows(step: Step, gaps: Gaps, operand: Operand) -> bool:
    """Whether the step writes all of `operand` in consecutive rows, between which it could leave gaps."""
    made = getattr(step, gaps.operand)
    alone = not gaps.absent or getattr(step, gaps.absent) is None
    whole = made.slot == operand.slot and made.size == operand.size and operand.offset == 0
    dense = getattr(step, gaps.batches) == 1 and operand.shape[-1] == getattr(step, gaps.row)
    return bool(whole and alone and dense)


class _NodeBinder:
    """The `Binder` of one unit: a node, or a chain of elementwise nodes."""

    def __init__(self, space: Workspace, nodes: tuple[Node, ...], specs: Mapping[str, Spec]) -> None:
        self._space = space
        self.node = nodes[-1]
        self.label = f"{'+'.join(node.op for node in nodes)} {self.node.name or self.node.outputs[0]}"
        self.target, self.lanes = space.target, space.target.lanes
        inner = {name for node in nodes[:-1] for name in node.outputs}
        names = (
            [name for node in nodes for name in node.inputs if name not in inner]
            if len(nodes) > 1
            else self.node.inputs
        )
        self.inputs = [self.operand(name) for name in names]
        self.results: list[Operand | None] = [
            Operand(specs[name], space.slot(specs[name].nbytes)) if name else None for name in self.node.outputs
        ]
        self.outputs: Sequence[Operand | None] = list(self.results)

    def operand(self, name: str) -> Operand | None:
        return self._space.operands[name] if name else None

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attrs.get(name, default)

    def constant(self, array: Array) -> Operand:
        return self._space.literal(np.asarray(array))

    def packed(self, source: Operand, layout: str, pack: Callable[[Array], Array]) -> Operand:
        return self._space.packed(source, layout, pack)

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Operand:
        spec = Spec(dtype, tuple(int(d) for d in shape))
        operand = Operand(spec, self._space.slot(spec.nbytes))
        self._space.slots[operand.slot].scratch = True
        return operand

    def emit(self, step: Step, *, kernel: str | None = None, parallel: bool = True) -> None:
        self._space.append(Record(step.kernel(kernel), step, parallel, self._space.unit))

    def view(self, output: int, of: Operand, offset: int = 0) -> None:
        result = self.results[output]
        assert result is not None
        if of.value is not None:
            raise NoKernel("a view of a constant")
        self.results[output] = Operand(result.spec, of.slot, of.offset + offset)

    def choose(self, key: str, options: Sequence[str]) -> str:
        return self._space.choose(self.label, key, options)

    def place(self, part: int, target: Operand, at: int, row: int) -> bool:
        space, name, operand = self._space, self.node.inputs[part], self.inputs[part]
        assert operand is not None
        at_record = space.only_record(operand.slot)
        once = space.uses.get(name, 0) == 1 == list(self.node.inputs).count(name)
        if at_record is None or not once or space.slots[operand.slot].base != ARENA:
            return False
        record = space.records[at_record]
        step, gaps = record.step, record.step.gaps
        if gaps is None or name not in space.units[record.unit][-1].outputs or not _makes_rows(step, gaps, operand):
            return False
        run = int(getattr(step, gaps.row))
        rows = operand.size // run
        spec = Spec(operand.dtype, ((rows - 1) * row + run,))
        into = Operand(spec, target.slot, target.offset + at * itemsize(operand.dtype))
        apart = step.replace(**{gaps.operand: into, gaps.row: row})
        space.redirect(at_record, record._replace(step=apart), operand.slot, target.slot)
        return True

    def reuse(self, output: int, of: Operand | None) -> None:
        result = self.outputs[output]
        if of is not None and result is not None and of.offset == 0 and of.value is None:
            self._space.reuse(result, of)


def bind_stage(space: Workspace, stage: Stage, native: bool) -> list[BoundUnit]:
    """Bind a stage's nodes in order, chains of elementwise nodes together; returns the bound units."""
    _define_known(space, stage)
    bound: list[BoundUnit] = []
    space.uses = _uses(stage)
    pending = _units(stage, space.uses)[::-1] if native else [(node,) for node in reversed(stage.ready)]
    while pending:
        nodes = pending.pop()
        space.settle()
        begin = len(space.records)
        if native and _bind(space, nodes, stage):
            if len(space.records) > begin:
                bound.append(BoundUnit(space.records[begin].unit, begin, len(space.records)))
        elif len(nodes) > 1:
            pending.extend((node,) for node in reversed(nodes))
        else:
            _bind_reference(space, nodes[0], stage.specs)
            bound.append(BoundUnit(space.unit, begin, begin))
    space.unit = len(space.units)
    return bound


def _bind_block(space: Workspace, block: Block) -> None:
    """Bind the nodes of a nested graph as units of the same program. Raises NoKernel if one has no kernel."""
    stage = block.stage
    _define_known(space, stage)
    outer, own = space.uses, Counter(_uses(stage))
    own.update(_captured(stage))
    space.uses = own
    pending = _units(stage, own)[::-1]
    while pending:
        nodes = pending.pop()
        if _bind(space, nodes, stage):
            continue
        if len(nodes) == 1:
            raise NoKernel(nodes[0].where)
        pending.extend((node,) for node in reversed(nodes))
    space.uses = outer


def _define_known(space: Workspace, stage: Stage) -> None:
    read = (n for node in stage.ready for n in (*node.inputs, *node.captures))
    for name in dict.fromkeys((*read, *sorted(stage.later), *stage.outputs)):  # in an order without hashes
        if name in stage.known and spec_of(stage.known[name]) is not None:
            space.define(name, space.fixed(stage.known[name]))


def _captured(stage: Stage) -> set[str]:
    """Values from outside: a kernel outside must not write them into a buffer inside, which exists in a turn only."""
    made = {name for node in stage.ready for name in node.outputs}
    return {name for node in stage.ready for name in (*node.inputs, *node.captures) if name not in made}


def _uses(stage: Stage) -> Mapping[str, int]:
    uses = Counter(name for node in stage.ready for name in dict.fromkeys((*node.inputs, *node.captures)))
    uses.update(stage.later.union(stage.outputs))
    return uses


def _units(stage: Stage, uses: Mapping[str, int]) -> list[tuple[Node, ...]]:
    """Nodes grouped into units that are bound together."""
    wanted = stage.later.union(stage.outputs)
    known = {name: array for name, array in stage.known.items() if spec_of(array) is not None}
    return chain.group(stage.ready, stage.specs, uses, wanted, known)


def _bind(space: Workspace, nodes: tuple[Node, ...], stage: Stage) -> bool:
    """Emit a unit's native steps; returns False and changes nothing if no kernel supports it."""
    mark, uses = space.mark(), space.uses
    try:
        if nodes[0].op in CONTROL:
            bind_control(space, nodes[0], stage, _bind_block)
        else:
            _bind_unit(space, nodes, stage.specs)
    except NoKernel:
        space.take_back(mark)
        space.uses = uses
        return False
    return True


def _bind_unit(space: Workspace, nodes: tuple[Node, ...], specs: Mapping[str, Spec]) -> None:
    """Emit the steps of a node, or of a chain of elementwise nodes. Raises NoKernel."""
    node = nodes[-1]
    rule = BINDS.get(node.op)
    if rule is None and len(nodes) == 1:
        raise NoKernel(node.where)
    space.enter(nodes)
    binder = _NodeBinder(space, nodes, specs)
    if all(r is None or r.size == 0 for r in binder.results):
        pass  # nothing to compute
    elif len(nodes) > 1:
        chain.bind_chain(binder, nodes)
    else:
        assert rule is not None
        rule(binder)
    for name, result in zip(node.outputs, binder.results, strict=True):
        if name:
            assert result is not None
            space.define(name, result)
            space.touch(result)
    for operand in binder.inputs:
        space.touch(operand)


def _bind_reference(space: Workspace, node: Node, specs: Mapping[str, Spec]) -> None:
    """Give the results of a node run by reference their slots; its operands must still be alive when it runs."""
    space.enter((node,))
    for name in node.outputs:
        if name:
            space.define(name, Operand(specs[name], space.slot(specs[name].nbytes)))
    for name in (*node.inputs, *node.captures, *node.outputs):
        if name and name in space.operands:
            space.touch(space.operands[name])
