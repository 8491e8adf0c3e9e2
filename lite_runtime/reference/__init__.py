"""The NumPy reference defines the result of every operator. Slow and simple; native kernels are compared with it.

    evaluate(node, inputs)          one operator
    run(graph, {"x": x})            a whole graph, node by node

Families of operators are imported on first use, so that importing this package is cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

import numpy as np

from lite_runtime.errors import InputError, MsedgeError, ShapeError, UnsupportedOpError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Graph, Node, Value, dtype_name, numpy_dtype
from lite_runtime.operators import OPERATORS
from lite_runtime.reference.registry import REGISTERED, Context, RunGraph, define

__all__ = ["DEFINITIONS", "Context", "define", "evaluate", "run"]


_MISFITS = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""Errors that NumPy and Python raise for operands that a definition does not expect."""


class _Definitions(Mapping[str, Callable[..., Any]]):
    """Operator -> function. The file named in an operator's record is imported on first use."""

    def __getitem__(self, op: str) -> Callable[..., Any]:
        if op not in REGISTERED and op in OPERATORS:
            import_module(f"{__name__}.{OPERATORS[op].reference}")
        return REGISTERED[op]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*OPERATORS, *REGISTERED)))

    def __len__(self) -> int:
        return len({*OPERATORS, *REGISTERED})

    def __contains__(self, op: object) -> bool:
        return op in REGISTERED or op in OPERATORS


DEFINITIONS: Mapping[str, Callable[..., Any]] = _Definitions()
"""Every operator that the reference knows, and the function that defines it."""


class _Form(NamedTuple):
    """The signature of a definition. Inputs are its positional-only parameters, attributes all others."""

    inputs: tuple[str, ...]
    required: int
    variadic: bool
    attributes: frozenset[str]
    open_ended: bool


@cache
def _form(op: str) -> _Form:
    parameters = signature(DEFINITIONS[op]).parameters.values()
    kinds = {p.kind for p in parameters}
    inputs = [p for p in parameters if p.kind is Parameter.POSITIONAL_ONLY]
    return _Form(
        tuple(p.name for p in inputs),
        sum(p.default is Parameter.empty for p in inputs),
        Parameter.VAR_POSITIONAL in kinds,
        frozenset(p.name for p in parameters if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)),
        Parameter.VAR_KEYWORD in kinds,
    )


def _check_call(node: Node, inputs: Sequence[Any], form: _Form) -> None:
    known = form.attributes - {"context", "op"}
    strange = [] if form.open_ended else sorted(set(node.attrs) - known)
    if strange:
        raise UnsupportedOpError(
            f"{node.where}: expected attributes of {sorted(known)}, got {', '.join(strange)}; "
            "models of older opsets are upgraded by the converter"
        )
    absent = [name for i, name in enumerate(form.inputs[: form.required]) if i >= len(inputs) or inputs[i] is None]
    if absent:
        raise ShapeError(f"{node.where}: expected at least {form.required} inputs, got none for {', '.join(absent)}")
    if len(inputs) > len(form.inputs) and not form.variadic:
        raise ShapeError(f"{node.where}: expected at most {len(form.inputs)} inputs, got {len(inputs)}")


def evaluate(node: Node, inputs: Sequence[Any], run_graph: RunGraph | None = None) -> list[Any]:
    """The node's outputs in order. `inputs[i]` is None for an optional input that is left out.

    `run_graph` evaluates subgraphs; without it they may not capture names.
    Raises UnsupportedOpError for an unknown operator or attribute, ShapeError or InputError for invalid operands.
    """
    if node.op not in DEFINITIONS:
        raise UnsupportedOpError(f"{node.where}: the reference defines no operator {node.op!r}")
    fn = DEFINITIONS[node.op]
    attrs: dict[str, Any] = dict(node.attrs)
    form = _form(node.op)
    _check_call(node, inputs, form)
    if "op" in form.attributes:
        attrs["op"] = node.op
    if "context" in form.attributes:
        attrs["context"] = Context(node.outputs, run_graph or (lambda graph, values: _run(graph, values, {})))
    try:
        with np.errstate(all="ignore"):
            results = fn(*inputs, **attrs)
    except MsedgeError as error:
        raise type(error)(f"{node.where}: {error}") from error
    except _MISFITS as error:
        raise ShapeError(f"{node.where}: operands {_describe(inputs)} do not fit: {error}") from error
    outputs = [_tidy(y) for y in (results if isinstance(results, tuple) else (results,))]
    if len(outputs) < len(node.outputs):
        raise ShapeError(f"{node.where}: expected at most {len(outputs)} outputs, got {len(node.outputs)} names")
    return outputs[: len(node.outputs)]


def _tidy(y: Any) -> Any:
    """NumPy scalars become arrays; strings become object arrays."""
    if isinstance(y, np.generic):
        y = np.asarray(y)
    return y.astype(object) if isinstance(y, np.ndarray) and y.dtype.kind in "UT" else y


def _describe(inputs: Sequence[Any]) -> str:
    def one(x: Any) -> str:
        if isinstance(x, np.ndarray):
            return f"{x.dtype}{list(x.shape)}"
        return "none" if x is None else f"a {type(x).__name__}"

    return ", ".join(map(one, inputs)) or "(none)"


def run(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Every output of the graph by name. Inputs that are also constants may be left out.

    Raises InputError for missing or unknown inputs and for inputs of a wrong type.
    """
    known = {value.name for value in graph.inputs}
    strange = sorted(set(inputs) - known)
    if strange:
        raise InputError(f"expected inputs {sorted(known)}, got also {strange}")
    for value in graph.inputs:
        if value.name in inputs:
            _check_input(value, inputs[value.name])
        elif value.name not in graph.constants:
            raise InputError(f"expected inputs {sorted(known)}, got {sorted(inputs)}: {value.name!r} is missing")
    values = [_tidy(inputs.get(value.name, graph.constants.get(value.name))) for value in graph.inputs]
    return dict(zip((value.name for value in graph.outputs), _run(graph, values, {}), strict=True))


def _check_input(value: Value, given: Any) -> None:
    if value.kind != "tensor":
        return
    if not isinstance(given, np.ndarray | np.generic):
        raise InputError(f"input {value.name!r}: expected a NumPy array, got {type(given).__name__}")
    if dtype_name(given.dtype) != value.dtype:
        expected = numpy_dtype(value.dtype)
        raise InputError(
            f"input {value.name!r}: expected {value.dtype}, got {given.dtype}; convert it with .astype({expected})"
        )
    if value.shape is None:
        return
    fits = len(value.shape) == given.ndim and all(
        n == m for n, m in zip(value.shape, given.shape, strict=True) if isinstance(n, int)
    )
    if not fits:
        raise InputError(f"input {value.name!r}: expected shape {value.shape}, got {given.shape}")


def _run(graph: Graph, inputs: Sequence[Any], outer: Mapping[str, Any]) -> list[Any]:
    """The graph's outputs in order; `outer` resolves captured names. Values are released after their last use."""
    if len(inputs) != len(graph.inputs):
        raise ShapeError(f"graph {graph.name!r}: expected {len(graph.inputs)} inputs, got {len(inputs)}")
    values = {**outer, **graph.constants, **{v.name: x for v, x in zip(graph.inputs, inputs, strict=True)}}
    last = {name: i for i, node in enumerate(graph.nodes) for name in (*node.inputs, *node.captures)}
    kept = {value.name for value in graph.outputs}

    def run_graph(subgraph: Graph, given: Sequence[Any]) -> list[Any]:
        return _run(subgraph, given, values)

    for i, node in enumerate(graph.nodes):
        operands = [_look_up(values, name, node) if name else None for name in node.inputs]
        results = evaluate(node, operands, run_graph)
        values.update((name, y) for name, y in zip(node.outputs, results, strict=True) if name)
        for name in (*node.inputs, *node.captures):
            if last[name] == i and name not in kept:
                values.pop(name, None)
    missing = [v.name for v in graph.outputs if v.name not in values]
    if missing:
        raise ShapeError(f"graph {graph.name!r}: expected nodes that compute its outputs, got none for {missing}")
    return [values[v.name] for v in graph.outputs]


def _look_up(values: Mapping[str, Any], name: str, node: Node) -> Any:
    try:
        return values[name]
    except KeyError:
        raise ShapeError(f"{node.where}: expected a value named {name!r} before this node, got none") from None
