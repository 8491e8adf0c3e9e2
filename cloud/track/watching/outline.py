"""A model as a graph of its operators in JSON data, for pages to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import jax
import numpy as np

from cloud._jax import is_literal, written_at
from cloud.engine.lowering import Program
from cloud.train.tasks.task import Task

__all__ = ["MOST", "outline"]

MOST = 2000
"""The most operators of a graph that is kept; a larger one is cut off there."""

_HEAVY = {
    "dot_general": "dot", "conv_general_dilated": "conv", "reduce_sum": "sum", "reduce_max": "max", "argmax": "argmax",
    "reduce_window_max": "max pool", "reduce_window_sum": "sum pool", "reduce_window": "pool", "gather": "gather",
    "scatter-add": "scatter", "scatter": "scatter", "sort": "sort", "top_k": "top k", "cumsum": "cumsum",
    "scan": "scan", "while": "while", "cond": "cond", "concatenate": "concat", "tanh": "tanh", "logistic": "sigmoid",
    "exp": "exp", "erf": "erf", "shard_map": "shard map", "ragged_dot": "ragged dot",
}  # fmt: skip
"""Of a JAX function: the primitives that are drawn. Others, which move or combine, are part of the edges."""
_OPENED = ("pjit", "jit", "closed_call", "remat", "checkpoint", "custom_vjp_call", "custom_vjp_call_jaxpr")
"""Calls that are drawn as what is inside them."""
_CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def outline(task: Task, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    """{"nodes": [{"name", "operator", "weights" (numbers), "from" (positions of earlier nodes; below 0: an input)}],
    "inputs": names, "left_out": how many operators are not in it}.

    Of an ONNX model every operator; of a JAX function its products, reductions and loops, traced for `inputs` (arrays
    or shapes by name; without them nothing is known). {} if there is nothing.
    """
    program = getattr(getattr(task, "function", None), "program", None)
    if isinstance(program, Program):
        return _of_program(program, {**task.init()[0]}, task.inputs)
    return {} if inputs is None else _of_function(task, inputs)


def _made(nodes: list[dict[str, Any]], inputs: Sequence[str]) -> dict[str, Any]:
    if not nodes:
        return {}
    return {"nodes": nodes[:MOST], "inputs": list(inputs), "left_out": max(0, len(nodes) - MOST)}


def _of_program(program: Program, params: Mapping[str, Any], inputs: Sequence[str]) -> dict[str, Any]:
    makers: dict[str, int] = {name: -1 - i for i, name in enumerate(inputs)}
    nodes: list[dict[str, Any]] = []
    for step in program.steps:
        weights = sum(int(prod(np.shape(params[name]))) for name in step.inputs if name in params)
        sources = dict.fromkeys(makers[name] for name in step.inputs if name in makers)
        makers |= {name: len(nodes) for name in step.outputs if name}
        nodes.append({"name": step.where, "operator": step.op, "weights": weights, "from": list(sources)})
    return _made(nodes, inputs)


def _of_function(task: Task, inputs: Mapping[str, Any]) -> dict[str, Any]:
    params, state = task.init()
    traced = jax.make_jaxpr(lambda params, inputs: task.apply(params, state, inputs, None, False)[0])(params, inputs)
    variables, count = traced.jaxpr.invars, len(jax.tree.leaves(params))
    names = sorted(inputs)  # as JAX orders the keys of a dict
    makers: dict[Any, tuple[int, ...]] = {v: (-1 - i,) for i, v in enumerate(variables[count:])}
    sizes = {v: int(prod(v.aval.shape)) for v in variables[:count]}
    nodes: list[dict[str, Any]] = []
    _walk(traced.jaxpr, makers, sizes, nodes)
    return _made(nodes, names)


def _walk(jaxpr: Any, makers: dict[Any, tuple[int, ...]], sizes: dict[Any, int], nodes: list[dict[str, Any]]) -> None:
    """`makers`: which nodes a variable comes from; `sizes`: numbers of weights in it."""
    for equation in jaxpr.eqns:
        operands = [v for v in equation.invars if not is_literal(v)]
        kind = equation.primitive.name
        inner = next((equation.params[key] for key in _CALLED if key in equation.params), None)
        if kind in _OPENED and inner is not None:
            _open(getattr(inner, "jaxpr", inner), equation, makers, sizes, nodes)
            continue
        sources = tuple(dict.fromkeys(n for v in operands for n in makers.get(v, ())))
        weights = sum(sizes.get(v, 0) for v in operands)
        name = _HEAVY.get(kind) or (_called(equation) if kind.startswith("custom_jvp") else "")
        if name and sources:
            sources, weights = (len(nodes),), _append(nodes, name, equation, weights, sources)
        for result in equation.outvars:
            makers[result] = sources
            if weights:
                sizes[result] = weights


def _append(nodes: list[dict[str, Any]], name: str, equation: Any, weights: int, sources: tuple[int, ...]) -> int:
    """Add a node; what comes from it has no weights of its own: 0."""
    place = written_at(equation.source_info)
    nodes.append({"name": f"{name} {place}".strip(), "operator": name, "weights": weights, "from": list(sources)})
    return 0


def _open(inner: Any, equation: Any, makers: dict[Any, tuple[int, ...]], sizes: dict[Any, int], nodes: Any) -> None:
    """The body of a call, with the call's operands; a body that is called twice has the same variables again."""
    given = [(v, o) for v, o in zip(inner.invars, equation.invars, strict=False) if not is_literal(o)]
    _walk(
        inner, within := {v: makers.get(o, ()) for v, o in given}, held := {v: sizes.get(o, 0) for v, o in given}, nodes
    )
    for result, made in zip(equation.outvars, inner.outvars, strict=False):
        if not is_literal(made):
            makers[result] = within.get(made, ())
            sizes[result] = held.get(made, 0)


def _called(equation: Any) -> str:
    """The name of a function with derivatives of its own, such as relu or silu."""
    inner = equation.params.get("call_jaxpr")
    names = [e.params.get("name") for e in getattr(getattr(inner, "jaxpr", inner), "eqns", ())]
    return next((str(name) for name in names if name), "")
