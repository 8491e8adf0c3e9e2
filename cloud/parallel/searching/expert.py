"""The plans that experts write by hand, as constraints; what they do not fix is searched as usual.

The rules use the graph, not names: *examples* are the dimensions that follow from the batch's first dimension; a
*weight* is state of two or more dimensions that a product, convolution or lookup reads.

| name | examples | weights |
|---|---|---|
| dp | split over the axis | whole |
| zero1 | split | whole; other state (moments) split along its largest dimension that divides |
| fsdp | split | every state split along its largest dimension that divides |
| megatron | whole | columns, then rows of what reads those columns; rows' results whole |
| tp_sp | whole | as megatron; activations between may be split along the sequence |
| dp_tp | split over the first axis | as megatron over the others |
| ep | split, but not inside the experts | stacks of matrices (experts, in, out) by their first dimension |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping

from cloud.parallel.graph import Graph, Op, Split
from cloud.parallel.plan import Mesh
from cloud.parallel.searching.demands import Demands, Partial
from cloud.parallel.searching.options import degree
from cloud.parallel.searching.walk import early, parameters

__all__ = ["EXPERTS", "rows", "weights"]

Expert = Callable[[Graph, Mesh], Demands | None]
Loops = dict[int, dict[int, tuple[int, ...]]]
"""Operator to the split of its loops."""
_HEAVY = ("dot_general", "conv_general_dilated", "gather")


def _dp(graph: Graph, mesh: Mesh) -> Demands | None:
    return _examples(graph, mesh, _every(mesh)) | _state(graph, lambda shape: ((),) * len(shape))


def _zero1(graph: Graph, mesh: Mesh) -> Demands | None:
    whole = {v: ((),) * len(graph.values[v].shape) for v in parameters(graph)}
    return _examples(graph, mesh, _every(mesh)) | _state(graph, _widest(mesh)) | Demands(entering=whole)


def _fsdp(graph: Graph, mesh: Mesh) -> Demands | None:
    return _examples(graph, mesh, _every(mesh)) | _state(graph, _widest(mesh))


def _widest(mesh: Mesh) -> Callable[[tuple[int, ...]], Split]:
    """The largest dimension that divides, split over all axes."""
    axes = _every(mesh)

    def spread(shape: tuple[int, ...]) -> Split:
        best = max((size for size in shape if size % degree(axes, mesh) == 0), default=0)
        at = shape.index(best) if best else -1
        return tuple(axes if d == at else () for d in range(len(shape)))

    return spread


def _megatron(graph: Graph, mesh: Mesh) -> Demands | None:
    return _examples(graph, mesh, ()) | _positions(graph) | _columns_and_rows(graph, mesh, _every(mesh), whole=True)


def _tp_sp(graph: Graph, mesh: Mesh) -> Demands | None:
    return _examples(graph, mesh, ()) | _columns_and_rows(graph, mesh, _every(mesh), whole=False)


def _dp_tp(graph: Graph, mesh: Mesh) -> Demands | None:
    if len(mesh.sizes) < 2:
        return None
    split = _columns_and_rows(graph, mesh, _every(mesh)[1:], whole=True)
    return _examples(graph, mesh, (0,)) | _positions(graph) | split


def _ep(graph: Graph, mesh: Mesh) -> Demands | None:
    axes = _every(mesh)
    stacked = _stacks(graph, degree(axes, mesh))
    if not stacked:
        return None
    shapes = {graph.values[v].shape for v in stacked}  # also the shapes of their slots
    alike = [v for v in graph.entering if graph.values[v].kind == "state" and graph.values[v].shape in shapes]
    split: dict[int, Partial] = {v: (axes, (), ()) for v in alike}
    inside = _with_gradients(graph, _as_the_weights(graph, split), axes)
    whole = _state(graph, lambda shape: ((),) * len(shape))
    return _examples(graph, mesh, axes, inside) | whole | Demands(entering=split, loops=inside)


EXPERTS: Mapping[str, Expert] = {
    "dp": _dp, "zero1": _zero1, "fsdp": _fsdp, "megatron": _megatron, "tp_sp": _tp_sp, "dp_tp": _dp_tp, "ep": _ep,
}  # fmt: skip
"""Name to the function that gives its constraints on a mesh; None if the strategy does not apply to the graph or
mesh."""


def rows(graph: Graph, dim: int = 0, without: Container[int] = ()) -> dict[int, int]:
    """Value to its dimension of examples, if it has one; `dim` 1: of positions in a sequence or image. Results of the
    operators `without` are ignored."""
    batch = [v for v in graph.entering if graph.values[v].kind == "batch" and len(graph.values[v].shape) > dim]
    sizes = Counter(graph.values[v].shape[dim] for v in batch)
    found = {v: dim for v in batch if graph.values[v].shape[dim] == sizes.most_common(1)[0][0]}
    for k, op in enumerate(graph.ops):
        loop = _row_loop(op, found)
        if loop is not None and k not in without:
            found.update(_walking(op, loop))
    return found


def weights(graph: Graph) -> Iterator[tuple[int, int, int]]:
    """(operator, operand, value) of every product, convolution or lookup of state itself, in order."""
    known = early(graph)
    for k, op in enumerate(graph.ops):
        if op.primitive in _HEAVY:
            yield from ((k, i, v) for i, v in enumerate(op.inputs) if v in known and len(graph.values[v].shape) >= 2)


def _every(mesh: Mesh) -> tuple[int, ...]:
    return tuple(range(len(mesh.sizes)))


def _walking(op: Op, loop: int) -> dict[int, int]:
    """Results to the dimension that belongs to the loop."""
    return {v: walked.index(loop) for v, walked in zip(op.outputs, op.writes, strict=True) if loop in walked}


def _row_loop(op: Op, found: Mapping[int, int]) -> int | None:
    walks = (op.reads[i][found[v]] for i, v in enumerate(op.inputs) if v in found)
    return next((loop for loop in walks if loop is not None), None)


def _examples(graph: Graph, mesh: Mesh, axes: tuple[int, ...], without: Container[int] = ()) -> Demands:
    """Every loop over examples split over `axes`, except in operators `without`."""
    found = rows(graph, without=without)
    entering: dict[int, Partial] = {}
    loops: dict[int, dict[int, tuple[int, ...]]] = {}
    for v in graph.entering:
        if v in found and graph.values[v].shape[0] % degree(axes, mesh) == 0:
            entering[v] = (axes, *((None,) * (len(graph.values[v].shape) - 1)))
    for k, op in enumerate(graph.ops):
        loop = _row_loop(op, found)
        if loop is not None and k not in without and op.loops[loop].size % degree(axes, mesh) == 0:
            loops[k] = {loop: axes}
    return Demands(entering=entering, loops=loops)


def _positions(graph: Graph) -> Demands:
    """No loop over positions split."""
    found = rows(graph, 1)
    loops = ((k, _row_loop(op, found)) for k, op in enumerate(graph.ops))
    return Demands(loops={k: {loop: ()} for k, loop in loops if loop is not None})


def _state(graph: Graph, lies: Callable[[tuple[int, ...]], Split]) -> Demands:
    return Demands(entering={v: lies(graph.values[v].shape) for v in graph.entering if graph.values[v].kind == "state"})


def _stacks(graph: Graph, parts: int) -> set[int]:
    """Weights of three dimensions whose first is a batch dimension of a matrix product."""
    found, origin = set[int](), _origins(graph)
    for k, i, v in weights(graph):
        op, rank = graph.ops[k], len(graph.values[v].shape)
        loop, others = op.reads[i][0], [walked for n, walked in enumerate(op.reads) if n != i]
        matrix_by_matrix = loop is not None and loop in op.writes[0] and any(loop in walked for walked in others)
        if rank == 3 and matrix_by_matrix and graph.values[origin[v]].shape[0] % parts == 0:
            found.add(origin[v])
    return found


def _with_gradients(graph: Graph, inside: Loops, axes: tuple[int, ...]) -> Loops:
    """Includes the products that make the gradients of stacks: of values with an expert dimension, summed over
    examples."""
    found, along, more = rows(graph, without=inside), dict[int, int](), dict(inside)
    for k, op in enumerate(graph.ops):
        loop = _stacked(inside.get(k, {})) if k in inside else _row_loop(op, along)
        row = _row_loop(op, found)
        if loop is None or op.loops[loop].reduces:
            continue
        if k not in inside and row is not None and op.loops[row].reduces and op.primitive == "dot_general":
            more[k] = {loop: axes}
        along.update(_walking(op, loop))
    return more


def _stacked(loops: Mapping[int, tuple[int, ...]]) -> int | None:
    return next((loop for loop, axes in loops.items() if axes), None)


def _columns_and_rows(graph: Graph, mesh: Mesh, axes: tuple[int, ...], whole: bool) -> Demands:
    """Tracks through the step which dimension of each value is split: a weight that meets a split dimension is split by
    rows, and its result is whole again; any other weight by columns. `whole`: results of row-split weights are summed
    to whole values."""
    split: dict[int, int] = {}
    entering: dict[int, Partial] = {}
    results: dict[int, Partial] = {}
    origin, batch = _origins(graph), rows(graph)
    read = {(k, i): v for k, i, v in weights(graph)}
    for k, op in enumerate(graph.ops):
        carried = next((op.reads[i][split[v]] for i, v in enumerate(op.inputs) if v in split), None)
        operand = next((i for i in range(len(op.inputs)) if (k, i) in read), None)
        if operand is not None and origin[op.inputs[operand]] not in entering:
            walked, examples = op.reads[operand], {_row_loop(op, batch)}
            by_rows = carried is not None and bool(op.loops[carried].reduces)
            if op.primitive == "gather":
                by_rows, carried = True, _looked_up(op, operand)
            loop = carried if by_rows else _column(op, operand, axes, mesh)
            if loop is not None and loop in walked:
                value = origin[op.inputs[operand]]
                place = _traced_dim(graph, value, op.inputs[operand], walked.index(loop))
                if place is not None:
                    rank = len(graph.values[value].shape)
                    entering[value] = tuple(axes if d == place else () for d in range(rank))
                if by_rows and whole:
                    results[k] = tuple(None if each in examples else () for each in op.writes[0])
                carried = None if by_rows else loop
        if carried is not None:
            split.update(_walking(op, carried))
    return Demands(entering, results, _as_the_weights(graph, entering))


def _as_the_weights(graph: Graph, entering: Mapping[int, Partial]) -> dict[int, dict[int, tuple[int, ...]]]:
    """Loops of all operators that read these weights, forward and backward: split as the weights are, so that no weight
    is moved."""
    origin, loops = _origins(graph), dict[int, dict[int, tuple[int, ...]]]()
    for k, i, v in weights(graph):
        lies = entering.get(origin[v])
        for d, loop in enumerate(graph.ops[k].reads[i]):
            place = None if lies is None else _traced_dim(graph, origin[v], v, d)
            if lies is not None and loop is not None and place is not None:
                loops.setdefault(k, {})[loop] = lies[place] or ()
    return loops


def _looked_up(op: Op, operand: int) -> int | None:
    """The loop over the entries of a table."""
    return next((loop for loop in op.reads[operand] if loop is not None and op.loops[loop].reduces), None)


def _column(op: Op, operand: int, axes: tuple[int, ...], mesh: Mesh) -> int | None:
    """The weight's first loop that its result has and that divides: heads before the dimensions inside a head."""
    kept = [loop for loop in op.reads[operand] if loop is not None and loop in op.writes[0]]
    fitting = [loop for loop in kept if op.loops[loop].size % degree(axes, mesh) == 0]
    return fitting[0] if fitting else None


def _origins(graph: Graph) -> dict[int, int]:
    """For values computed from state alone, that state (the largest, if several)."""
    known = early(graph)
    found = {v: v for v in graph.entering if graph.values[v].kind == "state"}
    for op in graph.ops:
        sources = [v for v in op.inputs if v in found]
        if sources and all(v in known for v in op.outputs):
            main = max(sources, key=lambda v: graph.values[v].bytes)
            found.update({v: found[main] for v in op.outputs})
    return found


def _traced_dim(graph: Graph, origin: int, value: int, dim: int) -> int | None:
    """The dimension of `origin` that corresponds to dimension `dim` of a value computed from it."""
    makers = {v: op for op in graph.ops for v in op.outputs}
    while value != origin:
        op = makers[value]
        loop = op.writes[op.outputs.index(value)][dim]
        at = max((i for i, v in enumerate(op.inputs) if v >= 0), key=lambda i: graph.values[op.inputs[i]].bytes)
        if loop is None or loop not in op.reads[at]:
            return None
        value, dim = op.inputs[at], op.reads[at].index(loop)
    return dim
