"""Chains of elementwise nodes: which nodes may run as one pass, and their programs for `kernels.elementwise`.

    group        nodes of a graph -> chains (a pure function)
    bind_chain   one chain -> one native step

A chain has one result; every node in it has that result's shape, and every value between nodes has one reader. The
exception is DequantizeLinear: because integers are cheaper to read, the chain of each of its readers gets a copy of it.
Two machines exist: `f32_chain` for float32 and booleans, `i64_chain` for integers up to int64 and booleans (not
uint64). Values of other types enter and leave the first machine by Cast or quantised; quantised values may also occur
between two of its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import lcm, prod
from types import MappingProxyType
from typing import Protocol

from lite_runtime import steps
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Node, itemsize
from lite_runtime.kernels import _opcodes as codes
from lite_runtime.ops import lowering
from lite_runtime.ops.registry import BINDS, INFERS, Binder, Inference, NoKernel, Operand, Spec

__all__ = ["ChainBinder", "bind_chain", "group"]

LONGEST = 64
"""Greatest number of nodes in a chain."""
PARALLEL_FROM = 8192
"""Elements from which it is worth sharing a chain between workers."""
BLOCK = 512
"""Elements that a register usually holds: enough to hide an instruction's overhead of 5 ns, few enough for a dozen
registers in a 32 KiB cache."""


class ChainBinder(Binder, Protocol):
    """A Binder that also resolves the chain's outer values by name."""

    def operand(self, name: str) -> Operand | None:
        """The operand of a value that enters or leaves the chain."""


# -- grouping ---------------------------------------------------------------------------------------------------------


def group(
    nodes: Sequence[Node],
    specs: Mapping[str, Spec],
    uses: Mapping[str, int],
    outputs: frozenset[str],
    known: Mapping[str, Array] = MappingProxyType({}),
) -> list[tuple[Node, ...]]:
    """The nodes grouped into chains, including single nodes, in an order that computes every value before its readers.

    nodes: in topological order. specs: the types of all their values. uses: number of readers of each value, including
    those outside `nodes`. outputs: values that must be kept. known: contents of some values; a value that is one number
    needs no register. A chain takes the position of its last node.
    """
    numbers = {name: array for name, array in known.items() if array.size == 1}
    chains: dict[str, list[int]] = {}
    copied: dict[str, int] = {}
    last: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        members = [i]
        if lowering.machine_of(node, specs) is None:
            last[i] = members
            continue
        result = node.outputs[0]
        if node.op == "DequantizeLinear" and uses.get(result, 0) > 1 and result not in outputs:
            copied[result], last[i] = i, members
            continue
        for name in dict.fromkeys(node.inputs):
            whole = name in chains and uses.get(name, 0) == 1 and name not in outputs
            if not whole and name not in copied:
                continue
            inner = chains[name] if whole else [copied[name]]
            wider = sorted({*inner, *members})
            if _fits([nodes[j] for j in wider], specs, numbers):
                if whole:
                    del last[inner[-1]], chains[name]
                members = wider
        chains[result] = last[i] = members
    _drop_unread(nodes, uses, copied, last)
    return [tuple(nodes[j] for j in members) for _, members in sorted(last.items())]


def _drop_unread(
    nodes: Sequence[Node], uses: Mapping[str, int], copied: Mapping[str, int], last: dict[int, list[int]]
) -> None:
    """Remove the chains of `copied` nodes that are included in the chains of all their readers."""
    for name, i in copied.items():
        readers = [members for members in last.values() if i in members and members != [i]]
        if sum(name in nodes[j].inputs for members in readers for j in members) == uses[name]:
            del last[i]


def _fits(nodes: Sequence[Node], specs: Mapping[str, Spec], numbers: Mapping[str, Array]) -> bool:
    """Whether these nodes, in order, form one chain that fits a machine's limits."""
    end = nodes[-1]
    shape, machine = specs[end.outputs[0]].shape, lowering.machine_of(end, specs)
    if len(nodes) > LONGEST or machine is None:
        return False
    for node in nodes[:-1]:
        passes = lowering.may_pass(node, specs, machine) and lowering.machine_of(node, specs) is machine
        if specs[node.outputs[0]].shape != shape or not passes:
            return False
    try:
        _Registers(lowering.lower(nodes, specs, numbers), shape, machine, codes.LARGEST_BLOCK)
    except NoKernel:
        return False
    return True


# -- registers --------------------------------------------------------------------------------------------------------


class _Load(NamedTuple):
    """How a register's block is loaded; `strides` in elements along the output's axes."""

    value: int
    mode: int
    register: int
    strides: tuple[int, ...]


class _Registers:
    """A lowered chain with a register for every value. Raises NoKernel if the machine has too few.

    Not a dataclass: creating one takes longer at every start than the records of all elementwise operators.
    """

    def __init__(
        self, program: lowering.Program, shape: tuple[int, ...], machine: lowering.Machine, largest: int
    ) -> None:
        """largest: elements that a register has room for."""
        self.program, self.shape, self.machine = program, shape, machine
        self.loads: list[_Load] = []
        self.instructions: list[tuple[int, lowering.Instruction]] = []
        self.block = self._largest = largest
        where: dict[int, int] = {}
        pointers = iter(range(codes.SLOTS, codes.SLOTS + codes.POINTERS))
        slots = list(range(codes.SLOTS))[::-1]
        self._place_sources(where, pointers, slots)
        last: dict[int, int] = {}
        for at, instruction in enumerate(program.instructions):
            last.update((source, at) for source in instruction.sources)
        temporaries = {i.value for i in program.instructions}
        for at, instruction in enumerate(program.instructions):
            sources = tuple(where[s] for s in instruction.sources)
            for source in dict.fromkeys(instruction.sources):
                if source in temporaries and last[source] == at:
                    slots.append(where[source])
            final = instruction.value == program.result
            register = _next(pointers) if final and program.dtype == self.machine.native else _pop(slots)
            where[instruction.value] = register
            self.instructions.append((register, instruction._replace(sources=sources)))
        self.result = where[program.result]
        """The register of the result."""

    def _place_sources(self, where: dict[int, int], pointers: Iterator[int], slots: list[int]) -> None:
        """Assign registers to the sources, and choose a block size that suits their broadcast patterns."""
        periods: dict[int, int] = {}
        for value, source in self.program.sources.items():
            if isinstance(source, lowering.Outer):
                periods[value] = _period(source.shape, self.shape)
        self.block, fitting = _block(set(periods.values()), prod(self.shape), self._largest)
        for value, source in self.program.sources.items():
            if not isinstance(source, lowering.Outer):
                where[value] = _pop(slots)
                self.loads.append(_Load(value, codes.CONSTANT, where[value], ()))
                continue
            strides = _strides(source.shape, self.shape)
            if source.dtype == self.machine.native and prod(source.shape) == prod(self.shape):
                where[value] = _next(pointers)
                self.loads.append(_Load(value, codes.DENSE, where[value], strides))
            else:
                where[value] = _pop(slots)
                mode = codes.ONCE if periods[value] in fitting else codes.EXPAND
                self.loads.append(_Load(value, mode, where[value], strides))


def _next(pointers: Iterator[int]) -> int:
    register = next(pointers, None)
    if register is None:
        raise NoKernel("a chain of more operands than the machine has registers for")
    return register


def _pop(slots: list[int]) -> int:
    if not slots:
        raise NoKernel("a chain of more values at a time than the machine has registers for")
    return slots.pop()


def _strides(shape: Sequence[int], whole: Sequence[int]) -> tuple[int, ...]:
    """Element distances of an operand of `shape` along each axis of `whole`, 0 where it is broadcast."""
    aligned = (1,) * (len(whole) - len(shape)) + tuple(shape)
    return tuple(0 if size == 1 else prod(aligned[k + 1 :]) for k, size in enumerate(aligned))


def _period(shape: Sequence[int], whole: Sequence[int]) -> int:
    """Number of output elements after which an operand's pattern repeats: those inside its first axis greater than
    1."""
    aligned = (1,) * (len(whole) - len(shape)) + tuple(shape)
    for k, size in enumerate(aligned):
        if size != 1:
            return prod(whole[k:])
    return 1


def _block(periods: set[int], total: int, largest: int) -> tuple[int, set[int]]:
    """The elements of a block, and the periods that divide it, shortest first."""
    if total <= largest:
        return max(-(-total // codes.LANE_GROUP) * codes.LANE_GROUP, codes.LANE_GROUP), periods
    unit, fitting = codes.LANE_GROUP, set[int]()
    for period in sorted(periods):
        common = lcm(unit, period)
        if common <= largest:
            unit = common
            fitting.add(period)
    return max(min(BLOCK, largest) // unit, 1) * unit, fitting


# -- binding ----------------------------------------------------------------------------------------------------------


def bind_chain(b: ChainBinder, nodes: tuple[Node, ...]) -> None:
    """Emit one step for a chain whose result is output 0 of `b`."""
    output = b.outputs[0]
    if output is None or any(o is not None for o in b.outputs[1:]):
        raise NoKernel("more than one result")
    inner = {node.outputs[0] for node in nodes}
    outer = {name: b.operand(name) for node in nodes for name in node.inputs if name and name not in inner}
    operands = {name: operand for name, operand in outer.items() if operand is not None}
    specs = _inner_specs(nodes, operands)
    machine = lowering.machine_of(nodes[-1], specs)
    if machine is None:
        raise NoKernel(f"{nodes[-1].op} on these types")
    known = {name: operand.value for name, operand in operands.items() if operand.value is not None}
    largest = codes.SMALL_BLOCK if b.target.shape.small else codes.LARGEST_BLOCK
    registers = _Registers(lowering.lower(nodes, specs, known), output.shape, machine, largest)
    _emit(b, registers, operands, output)


def _inner_specs(nodes: Sequence[Node], operands: Mapping[str, Operand]) -> dict[str, Spec]:
    specs = {name: operand.spec for name, operand in operands.items()}
    for node in nodes:
        inputs = [specs[name] if name else None for name in node.inputs]
        values = [operands[name].value if name in operands else None for name in node.inputs]
        specs[node.outputs[0]] = INFERS[node.op](Inference(node, inputs, values))[0]
    return specs


def _emit(b: Binder, registers: _Registers, named: Mapping[str, Operand], output: Operand) -> None:
    """Append the chain's step."""
    machine, program = registers.machine, registers.program
    operands: list[Operand] = []
    places: dict[tuple[int, int, Spec], int] = {}

    def index(operand: Operand) -> int:
        place = places.setdefault(_place(operand), len(operands))
        if place == len(operands):
            operands.append(operand)
        return place

    outers = {
        value: named[source.source] if isinstance(source.source, str) else b.constant(source.source)
        for value, source in program.sources.items()
        if isinstance(source, lowering.Outer)
    }
    dims, strides = _collapse(output.shape, [load.strides for load in registers.loads if load.strides])
    patterns = iter(strides)
    rank = len(dims)
    loads: list[steps.Load] = []
    for load in registers.loads:
        source = program.sources[load.value]
        if isinstance(source, lowering.Outer):
            pattern = next(patterns) if load.strides else ()
            kind = codes.KINDS[source.dtype]
            where, parameters = index(outers[load.value]), machine.parameters(source.affine)
            loads.append(steps.Load(kind, load.mode, load.register, where, parameters, _padded(pattern, rank)))
        else:
            loads.append(steps.Load(0, codes.CONSTANT, load.register, machine.word(source), 0, _padded((), rank)))
    _offer_memory(b, outers, output)
    last = len(operands)
    if program.dtype == machine.native:
        loads.append(steps.Load(0, codes.OUTPUT, registers.result, last, 0, _padded((), rank)))
    kinds = codes.KINDS if program.store is None else codes.QUANTISED
    store = steps.Store(kinds[program.dtype], registers.result, last, machine.parameters(program.store or ()))
    b.emit(
        steps.Chain(
            sources=tuple(operands),
            y=output,
            total=output.size,
            block=registers.block,
            rank=rank,
            load_count=len(loads),
            instruction_count=len(registers.instructions),
            store_count=1,
            extents=tuple(dims),
            loads=tuple(loads),
            instructions=tuple(_instruction(machine, *row) for row in registers.instructions),
            stores=(store,),
            operand_count=last + 1,
        ),
        kernel=machine.kernel,
        parallel=output.size >= PARALLEL_FROM,
    )


def _offer_memory(b: Binder, outers: Mapping[int, Operand], output: Operand) -> None:
    """Let the result reuse the memory of an operand with its shape and element size that no other load reads in another
    order."""
    for value, operand in outers.items():
        others = [o for v, o in outers.items() if v != value and o.slot == operand.slot]
        same = operand.size == output.size and itemsize(operand.dtype) == itemsize(output.dtype)
        if same and operand.value is None and all(_place(o) == _place(operand) for o in others):
            b.reuse(0, operand)


def _place(operand: Operand) -> tuple[int, int, Spec]:
    """Identifies an operand's memory."""
    return operand.slot, operand.offset, operand.spec


def _padded(pattern: Sequence[int], rank: int) -> tuple[int, ...]:
    return (*pattern, *(0,) * (rank - len(pattern)))


def _instruction(machine: lowering.Machine, register: int, instruction: lowering.Instruction) -> steps.Instruction:
    word = machine.codes[instruction.op] | register << 8
    for k, source in enumerate(instruction.sources):
        word |= source << (16 + 8 * k)
    return steps.Instruction(word, machine.parameters(instruction.parameters))


def _collapse(shape: Sequence[int], patterns: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """The output's extents without axes of size 1, neighbours merged if every operand is contiguous across them, and
    the operands' strides along the merged axes."""
    dims: list[int] = []
    strides: list[list[int]] = [[] for _ in patterns]
    for k, size in enumerate(shape):
        if size == 1:
            continue
        if dims and all(s[-1] == p[k] * size for s, p in zip(strides, patterns, strict=True)):
            dims[-1] *= size
            for s, p in zip(strides, patterns, strict=True):
                s[-1] = p[k]
        else:
            dims.append(size)
            for s, p in zip(strides, patterns, strict=True):
                s.append(p[k])
    if len(dims) > codes.MAX_RANK:
        raise NoKernel(f"more than {codes.MAX_RANK} axes that do not merge")
    return (dims, strides) if dims else ([1], [[0] for _ in patterns])


def _bind_single(b: Binder) -> None:
    bind_chain(b, (b.node,))  # type: ignore[arg-type]


for _op in lowering.RULES:
    BINDS[_op] = _bind_single
