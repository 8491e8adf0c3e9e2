"""Verifies that a graph from an untrusted file is well-formed, before shapes are inferred.

Checks names and order, operand counts, attributes, declared types and sizes, subgraphs. Shapes and values of operands
are checked where they are known, by the operators' own rules.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NoReturn

import numpy as np

from lite_runtime.errors import BundleError, MsedgeError
from lite_runtime.graph import DTYPES, Array, Graph, Node, StateUse, Value, dtype_name, itemsize
from lite_runtime.operators import OPERATORS, RANGES, Attribute, Operator, attributes
from lite_runtime.operators.record import CUSTOM, MANY

__all__ = [
    "FIX",
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_NAME",
    "MAX_RANK",
    "checked_nbytes",
    "verify_arrays",
    "verify_attributes",
    "verify_graph",
    "verify_state",
]

FIX = "convert the model again"
MAX_BYTES = min(1 << 48, sys.maxsize)
"""The largest size in bytes that a tensor may declare: far beyond any 64-bit machine, and 2**15 of them still fit an
int64; on 32-bit systems what NumPy can count."""
MAX_DEPTH = 32
"""The greatest nesting depth of graphs, and of provenance and metadata."""
MAX_RANK = 32
MAX_NAME = 1024
MAX_ATTR = 1 << 20
"""The greatest number of items in a tuple attribute; more belong in an array."""

_KINDS = ("tensor", "sequence", "optional")
_INT64 = 1 << 63
_NARROW = {"bool": 1, "uint4": 15, "uint2": 3}
"""Types that leave bits of their byte unused, and the greatest valid value of that byte."""


def verify_graph(graph: Graph) -> None:
    """Raise BundleError, saying where, unless `graph` is well-formed.

    Every name is defined once and before its use; nodes have as many operands as their operator takes and only
    attributes it knows, of the right kind and range; every declared type is known and its size bounded; the same
    applies to subgraphs, at most `MAX_DEPTH` deep, which may also use names of enclosing graphs.
    """
    _verify(graph, frozenset(), 0)


def checked_nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a dense tensor; raises BundleError for impossible sizes, even if another dimension is 0."""
    if len(shape) > MAX_RANK:
        _refuse("shape", f"at most {MAX_RANK} dimensions", str(len(shape)))
    if any(d < 0 for d in shape):
        _refuse("shape", "dimensions of 0 or more", _short(shape))
    claimed = math.prod(d or 1 for d in shape) * _itemsize(dtype)
    if claimed > MAX_BYTES:
        _refuse("shape", f"at most {MAX_BYTES} bytes", f"{_short(shape)} of {dtype}")
    return 0 if 0 in shape else claimed


def verify_arrays(values: Iterable[Value], arrays: Mapping[str, Array]) -> None:
    """Raise BundleError unless every array belongs to a value of its name and matches its type."""
    known = {value.name: value for value in values}
    for name, array in arrays.items():
        if name not in known:
            _refuse("arrays", f"names of {', '.join(map(repr, known))}", repr(name))
        _fits(known[name], array, f"array {name!r}")


def verify_state(signatures: Mapping[str, Graph], state: Mapping[str, Array], uses: Mapping[str, StateUse]) -> None:
    """Raise BundleError unless the state and the graphs that use it match.

    Every state is a numeric array; the state that a signature reads and writes corresponds to inputs and outputs of its
    graph, with exactly the state's dtype and shape; no state is written twice.
    """
    for name, array in state.items():
        where = f"state {_show(name)}" if isinstance(name, str) else "state"
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            _refuse(where, f"names of 1 to {MAX_NAME} characters", _show(str(name)))
        _verify_array(array, where)
        if _dtype_name(array.dtype) == "string":
            _refuse(where, "numbers", "strings")
    for name, use in uses.items():
        if name not in signatures:
            _refuse("state", f"uses by signatures of {', '.join(signatures)}", f"one by {_show(name)}")
        where = f"signature {_show(name)}"
        _verify_use(where, "input", signatures[name].inputs, use.reads, state)
        _verify_use(where, "output", signatures[name].outputs, use.writes, state)
        if len(set(use.writes.values())) < len(use.writes):
            _refuse(where, "every state written once", "one written twice")


def _verify_use(
    signature: str, side: str, values: Iterable[Value], used: Mapping[str, str], state: Mapping[str, Array]
) -> None:
    """Checks one side of a signature: the graph's inputs or outputs by name, and the state that each one is."""
    known = {value.name: value for value in values}
    for name, held in used.items():
        where = f"{signature}, state {_show(held)}"
        if held not in state:
            _refuse(where, "state that the bundle contains", "an unknown name")
        if name not in known:
            _refuse(where, f"an {side} of the graph", f"{_show(name)}, which is not one")
        value, array = known[name], state[held]
        want = (_dtype_name(array.dtype), array.shape)
        if (value.dtype, value.shape) != want or value.kind != "tensor":
            _refuse(f"{where}, {side} {_show(name)}", f"{want[0]}{list(want[1])}", f"{value.dtype}{_dims(value)}")


def _fits(value: Value, array: Array, where: str) -> None:
    """Raise BundleError unless `array` matches the declaration `value`."""
    dtype = dtype_name(np.asarray(array).dtype)
    if value.kind != "tensor" or value.dtype != dtype:
        _refuse(where, f"a {value.kind} of {value.dtype}", f"a tensor of {dtype}")
    if value.shape is None:
        return
    same = all(not isinstance(d, int) or d == got for d, got in zip(value.shape, array.shape, strict=False))
    if len(value.shape) != array.ndim or not same:
        _refuse(where, f"shape {value.shape}", str(array.shape))


# ------------------------------------------------------------------------------------------------------------- graphs


def _verify(graph: Graph, outer: frozenset[str], depth: int) -> None:
    if depth > MAX_DEPTH:
        _refuse("subgraph", f"graphs nested at most {MAX_DEPTH} deep", "deeper nesting")
    known: set[str] = set()
    for value in graph.inputs:
        _define(value.name, known, "input")
        _verify_value(value, "input")
    for name, array in graph.constants.items():
        _define(name, known, "constant")
        _verify_array(array, f"constant {name!r}")
    judged: set[tuple[str, int]] = set()
    for node in graph.nodes:
        _verify_node(node, known, outer, depth, judged)
    _verify_outputs(graph, known, outer, depth)


def _verify_node(node: Node, known: set[str], outer: frozenset[str], depth: int, judged: set[tuple[str, int]]) -> None:
    """`judged` holds pairs (operator, id of its attributes) already verified: nodes of a bundle share attributes."""
    try:
        operator = _custom_op(node) if CUSTOM in node.op else OPERATORS.get(node.op) or _own_op(node)
        for name in node.inputs:
            if name and name not in known and name not in outer:
                _refuse("inputs", "names defined by earlier nodes, inputs or constants", _show(name))
        _verify_arity(node, operator)
        pair = (node.op, id(node.attrs))
        if pair not in judged:
            verify_attributes(node)
            judged.add(pair)
        for inner in _subgraphs(node):
            _verify(inner, outer | known, depth + 1)
        if node.op in _BODIES:
            _BODIES[node.op](node)
        for name in node.outputs:
            if name:
                _define(name, known, "outputs")
    except MsedgeError as error:
        raise BundleError(f"{_where(node)}: {error}") from None


def _verify_outputs(graph: Graph, known: set[str], outer: frozenset[str], depth: int) -> None:
    """A subgraph may return a name twice, or one of an enclosing graph: its outputs are matched by position."""
    seen: set[str] = set()
    given = {value.name: value for value in graph.inputs}
    for value in graph.outputs:
        where = f"output {_show(value.name)}"
        if value.name not in known and (value.name not in outer or not depth):
            _refuse(where, "a name defined by a node, input or constant", "an undefined one")
        if value.name in seen and not depth:
            _refuse(where, "every output once", "this one twice")
        seen.add(value.name)
        _verify_value(value, "output")
        if value.name in graph.constants:
            _fits(value, graph.constants[value.name], where)
        source = given.get(value.name, value)
        if (source.kind, source.dtype) != (value.kind, value.dtype):
            _refuse(where, f"the {source.kind} of {source.dtype} it is as an input", f"{value.kind} of {value.dtype}")


def _define(name: str, known: set[str], where: str) -> None:
    if not name or len(name) > MAX_NAME:
        _refuse(where, f"names of 1 to {MAX_NAME} characters", _show(name))
    if name in known:
        _refuse(where, "every name defined once", f"{name!r} again")
    known.add(name)


def _verify_value(value: Value, what: str) -> None:
    where = f"{what} {_show(value.name)}"
    if value.kind not in _KINDS:
        _refuse(where, f"a kind of {', '.join(_KINDS)}", _show(value.kind))
    if value.dtype not in DTYPES:
        _refuse(where, f"a dtype of {', '.join(DTYPES)}", _show(value.dtype))
    for dim in value.shape or ():
        if isinstance(dim, str) and not 0 < len(dim) <= MAX_NAME:
            _refuse(where, f"symbolic sizes of 1 to {MAX_NAME} characters", _show(dim))
    if value.shape is not None:
        known = tuple(d if isinstance(d, int) else 1 for d in value.shape)
        _at(where, checked_nbytes, value.dtype, known)


def _verify_array(array: Any, where: str) -> None:
    if not isinstance(array, np.ndarray):
        _refuse(where, "an array", type(array).__name__)
    dtype = _at(where, _dtype_name, array.dtype)
    if array.ndim > MAX_RANK:
        _refuse(where, f"at most {MAX_RANK} dimensions", str(array.ndim))
    if dtype in _NARROW and array.size and int(array.view(np.uint8).max()) > _NARROW[dtype]:
        _refuse(where, f"bytes of 0 to {_NARROW[dtype]} in a tensor of {dtype}", str(int(array.view(np.uint8).max())))


# -------------------------------------------------------------------------------------------------------------- nodes


def _own_op(node: Node) -> Operator:
    """A substitute record for an operator that has none, if the reference defines it: any operands."""
    from lite_runtime.reference import DEFINITIONS  # here: loading every definition takes longer than reading a bundle

    if node.op not in DEFINITIONS:
        _refuse("operator", "one that msedge knows", _show(node.op), "install a newer msedge")
    return Operator(node.op, inputs=(0, MANY), outputs=(0, MANY))


def _custom_op(node: Node) -> Operator:
    """The record of an operator that the program has registered. Nothing else makes its code run."""
    from lite_runtime import custom

    found = custom.record(node.op)
    if found is None:
        fix = "import the module that registers it before loading the bundle (msedge: --custom MODULE)"
        _refuse("operator", "a custom operator that this program has registered", _show(node.op), fix)
    return found


def _schema(op: str) -> Mapping[str, Attribute] | None:
    """The attributes of an operator with a record."""
    if CUSTOM in op:
        from lite_runtime import custom

        return custom.attributes(op)
    return attributes(op) if op in OPERATORS else None


def _verify_arity(node: Node, operator: Operator) -> None:
    (fewest, most), (fewest_out, most_out) = operator.inputs, operator.outputs
    if not fewest <= len(node.inputs) <= most:
        _refuse("operands", _between(fewest, most, "inputs"), str(len(node.inputs)))
    if not fewest_out <= len(node.outputs) <= most_out:
        _refuse("operands", _between(fewest_out, most_out, "outputs"), str(len(node.outputs)))
    if "" in node.inputs[:fewest] and "optional_first" not in operator.traits:
        _refuse("inputs", f"the first {fewest} given", f"input {node.inputs.index('')} missing")


def verify_attributes(node: Node) -> None:
    """Raise BundleError unless the operator has all of the node's attributes, with values of their kinds and ranges."""
    schema = _schema(node.op)
    for name, value in node.attrs.items():
        try:
            kind = _SCALARS.get(type(value)) or _kind(value)
            if schema is not None:
                _verify_attr(node.op, name, value, kind, schema)
            if isinstance(value, int) and not -_INT64 <= value < _INT64:
                _refuse("value", "a 64-bit int", f"one of {value.bit_length()} bits")
        except MsedgeError as error:
            raise BundleError(f"attribute {_show(name)}: {error}") from None
    for name, attribute in (schema or {}).items():
        if attribute.required and name not in node.attrs:
            _refuse("attributes", repr(name), "no attribute of that name")


_KIND_NAMES = {
    "i": "an int",
    "f": "a float",
    "s": "text",
    "I": "a tuple of ints",
    "F": "a tuple of floats",
    "S": "a tuple of texts",
    "T": "an array",
    "G": "a graph",
    "*": "any attribute",
    "0": "an empty tuple",
}
_ACCEPTED = {"i": "i", "f": "fi", "s": "s", "I": "I0", "F": "FI0", "S": "S0", "T": "T", "G": "G", "*": "ifsIFSTG0"}
_SCALARS = {int: "i", float: "f", str: "s"}


def _verify_attr(op: str, name: str, value: Any, kind: str, schema: Mapping[str, Attribute]) -> None:
    """Check one attribute against its operator's record."""
    if name not in schema:
        _refuse("name", f"one of {', '.join(schema)}" if schema else f"no attributes of {op}", _show(name))
    wanted, choices = schema[name].kind, schema[name].choices
    if kind not in _ACCEPTED[wanted]:
        _refuse("value", _KIND_NAMES[wanted], _KIND_NAMES[kind])
    if kind in "iI" and name in RANGES:
        _verify_ints(name, (value,) if kind == "i" else value)
    elif kind == "s" and choices and value not in choices:
        _refuse("value", f"one of {', '.join(map(repr, choices))}", _show(value))


def _kind(value: Any) -> str:
    """The kind letter of an attribute's value; raises BundleError for values that a bundle cannot hold."""
    if type(value) is tuple:
        return _tuple_kind(value)
    if isinstance(value, Graph):
        return "G"
    if isinstance(value, np.ndarray):
        _verify_array(value, "array")
        return "T"
    _refuse("value", "an int, float, str, tuple of one of these, array or Graph", type(value).__name__)


def _tuple_kind(value: tuple[Any, ...]) -> str:
    if len(value) > MAX_ATTR:
        _refuse("value", f"at most {MAX_ATTR} items", str(len(value)), "make it an array")
    kinds = set(map(type, value))
    if not kinds:
        return "0"
    if len(kinds) > 1 or not kinds <= _SCALARS.keys():
        _refuse("value", "ints, floats or texts only", ", ".join(sorted(k.__name__ for k in kinds)))
    if int in kinds and max(map(int.bit_length, value)) > 63 and not all(-_INT64 <= v < _INT64 for v in value):
        _refuse("value", "64-bit ints", "greater ones")
    return _SCALARS[kinds.pop()].upper()


def _verify_ints(name: str, value: tuple[int, ...]) -> None:
    least, greatest = RANGES[name]
    if value and not (least <= min(value) and max(value) <= greatest):
        _refuse("value", f"ints of {least} to {greatest}", _short(value))
    if len(value) > 2 * MAX_RANK:
        _refuse("value", f"at most {2 * MAX_RANK} ints", str(len(value)))
    if name == "perm" and sorted(value) != list(range(len(value))):
        _refuse("value", f"each of 0 to {len(value) - 1} once", str(value))


# ---------------------------------------------------------------------------------------- operators that hold subgraphs


def _subgraphs(node: Node) -> Iterable[Graph]:
    return [value for value in node.attrs.values() if isinstance(value, Graph)] if node.attrs else ()


def _verify_if(node: Node) -> None:
    for name in ("then_branch", "else_branch"):
        _verify_body(node, name, 0, len(node.outputs))


def _verify_loop(node: Node) -> None:
    if not node.inputs[0] and not node.inputs[1]:
        _refuse("inputs", "a trip count or a condition", "neither: the loop would never end")
    carried = len(node.inputs) - 2
    _verify_body(node, "body", 2 + carried, 1 + max(carried, len(node.outputs)))


def _verify_scan(node: Node) -> None:
    scanned = node.attrs["num_scan_inputs"]
    if not isinstance(scanned, int):
        _refuse("num_scan_inputs", "an integer", type(scanned).__name__)
    if scanned > len(node.inputs):
        _refuse("num_scan_inputs", f"at most {len(node.inputs)}", str(scanned))
    _verify_body(node, "body", len(node.inputs), max(len(node.inputs) - scanned, len(node.outputs)))


def _verify_sequence_map(node: Node) -> None:
    _verify_body(node, "body", len(node.inputs), len(node.outputs))


_BODIES: dict[str, Callable[[Node], None]] = {
    "If": _verify_if,
    "Loop": _verify_loop,
    "Scan": _verify_scan,
    "SequenceMap": _verify_sequence_map,
}


def _verify_body(node: Node, name: str, inputs: int, outputs: int) -> None:
    """Check that the body takes `inputs` inputs and returns at least `outputs` outputs."""
    body = node.attrs[name]
    if not isinstance(body, Graph):
        _refuse(name, "a graph", type(body).__name__)
    if len(body.inputs) != inputs:
        _refuse(name, f"{inputs} inputs", str(len(body.inputs)))
    if len(body.outputs) < outputs:
        _refuse(name, f"{outputs} outputs or more", str(len(body.outputs)))


# ------------------------------------------------------------------------------------------------------- small helpers


_dtype_name = cache(dtype_name)
_itemsize = cache(itemsize)


def _refuse(where: str, expected: str, got: str, fix: str = FIX) -> NoReturn:
    raise BundleError(f"{where}: expected {expected}, got {got}; {fix}")


def _at(where: str, call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except MsedgeError as error:
        raise BundleError(f"{where}: {error}") from None


def _where(node: Node) -> str:
    """The name of an unverified node in errors: an unusual operator is quoted, long names are truncated."""
    where = node.where if node.op.isidentifier() else f"node {node.op[:60]!r}"
    return where if len(where) <= 200 else f"{where[:200]}…"


def _between(fewest: int, most: int, what: str) -> str:
    if fewest == most:
        return f"{fewest} {what}"
    return f"{fewest} {what} or more" if most >= 1 << 16 else f"{fewest} to {most} {what}"


def _show(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}…"


def _dims(value: Value) -> str:
    return " of any rank" if value.shape is None else f"[{', '.join(map(str, value.shape))}]"[:200]


def _short(shape: tuple[int, ...]) -> str:
    """A shape in printable form: numbers of thousands of digits are not printed."""
    return "(" + ", ".join(str(d) if abs(d) < _INT64 else "over 2**63" for d in shape) + ")"
