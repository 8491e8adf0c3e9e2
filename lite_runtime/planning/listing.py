"""Lists a planned program step by step, with the declared name of every word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

from lite_runtime.errors import InputError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import DTYPES, Array, Graph, Node, Spec
from lite_runtime.ops.registry import Operand
from lite_runtime.planning.plan import fold, plan
from lite_runtime.planning.program import ARENA, NULL, Kernel, Plan
from lite_runtime.planning.workspace import Choose
from lite_runtime.steps.reading import Place, read
from lite_runtime.targets import Target

__all__ = ["Listed", "ListedOperand", "listed", "planned"]


class ListedOperand(NamedTuple):
    """An operand: its role, and its memory. `value`: the graph's name for its contents, if the step's node has one;
    `dtype` and `shape` (None if unknown): those of that value, otherwise of the constant."""

    name: str
    role: str
    memory: str
    """One of "arena", "constant", "input NAME", "output NAME", "buffer", or "" for an operand that is left out."""
    base: int
    offset: int
    value: str = ""
    dtype: str = ""
    shape: tuple[int, ...] | None = None


class Listed(NamedTuple):
    """A step: the kernel that runs it ("reference" if none does), and the nodes that it computes."""

    kernel: str
    node: str
    shared: bool
    meets: bool
    operands: tuple[ListedOperand, ...] = ()
    numbers: Mapping[str, Any] = {}
    """Integers, floats and tails by name."""

    def plain(self) -> dict[str, Any]:
        """The step as JSON values; floats that are not finite as strings."""
        operands = [operand._asdict() for operand in self.operands]
        return {**self._asdict(), "operands": operands, "numbers": {k: _plain(v) for k, v in self.numbers.items()}}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def planned(
    graph: Graph,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    target: Target,
    choose: Choose | None = None,
    orders: int = 0,
) -> Plan:
    """The plan of a graph for inputs of these shapes; inputs without one have their declared shape, with open sizes 1.
    Nothing is run.

    target: whose kernels would run it. orders: see `memory.arrange`. Raises InputError for a shape of an unknown input,
    ShapeError for incompatible operands.
    """
    names = [value.name for value in graph.inputs]
    if unknown := sorted(set(shapes) - set(names)):
        raise InputError(f"expected shapes of the inputs {', '.join(names)}, got one of {', '.join(unknown)}")
    given = {
        v.name: Spec(v.dtype, shapes.get(v.name) or tuple(d if isinstance(d, int) else 1 for d in v.shape or ()))
        for v in graph.inputs
        if v.kind == "tensor" and v.dtype in DTYPES
    }
    whole = fold(graph, _LIMIT)
    return plan(whole, given, pack=_pack, target=target, limit=_LIMIT, choose=choose, orders=orders)


_LIMIT = 4 << 30
"""Greatest size of a plan in bytes: the default limit for loading a model."""


def _pack(source: Operand, layout: str, make: Callable[[Array], Array]) -> Array:
    assert source.value is not None
    return make(source.value)


def listed(made: Plan) -> Iterator[Listed]:
    """Every step of a plan in order."""
    memory = {ARENA: "arena", **dict.fromkeys(made.constants, "constant")}
    memory |= {base: f"input {name}" for name, base in made.inputs.items()}
    memory |= {base: f"output {name}" for name, base in made.outputs.items()}
    records = iter(made.records)
    for step in made.steps:
        if not step.end:
            yield Listed("reference", _label(step.nodes), shared=False, meets=False)
            continue
        for record in records:
            yield _native(made, record, memory)
            if record.end == step.end:
                break


def _native(made: Plan, record: Kernel, memory: Mapping[int, str]) -> Listed:
    words = [int(word) for word in made.program[record.begin : record.end]]
    found = read(record.name, words)
    nodes = made.units[record.unit]
    names = [name for node in nodes for name in (*node.inputs, *node.outputs) if name in made.where]
    there = {made.where[name][:2]: (name, made.where[name][2]) for name in reversed(names)}
    operands = tuple(_operand(made, place, memory, there) for place in found.operands)
    return Listed(record.name, _label(nodes), record.shared, record.meets, operands, found.numbers)


def _operand(
    made: Plan, place: Place, memory: Mapping[int, str], there: Mapping[tuple[int, int], tuple[str, Spec]]
) -> ListedOperand:
    where = "" if place.base == NULL else memory.get(place.base, "buffer")
    value, spec = there.get((place.base, place.offset), ("", None))
    if spec is None and place.base in made.constants and place.offset == 0:
        held = made.constants[place.base]
        spec = Spec(held.dtype.name, held.shape)
    known = (spec.dtype, spec.shape) if spec is not None and where else ("", None)
    return ListedOperand(place.name, place.role, where, place.base, place.offset, value if where else "", *known)


def _label(nodes: tuple[Node, ...]) -> str:
    return f"{'+'.join(node.op for node in nodes)} {nodes[-1].name or nodes[-1].outputs[0]}"
