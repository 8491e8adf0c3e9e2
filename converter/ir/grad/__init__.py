"""Reverse-mode differentiation of graphs: `differentiate` appends the nodes that compute the gradients of a scalar.

Rules are rows of a table (`rules.py`), with one file per family of operators. They emit ONNX's operators, and for
convolutions, pools, normalisations and recurrences our own of `lite_runtime/reference/gradients.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module

import numpy as np
import onnx_ir as ir

from converter.errors import TrainingError
from converter.ir import build, shapes
from converter.ir.grad.rules import REFUSALS, RULES, moved_by, path, pull_back
from converter.ir.grad.tape import Tape, Term

__all__ = ["FAMILIES", "RULES", "differentiate", "undifferentiable"]

FAMILIES = (
    *("activation", "attention", "convolution", "elementwise", "indexing", "linear", "loss", "movement", "normalize"),
    *("pooling", "quantize", "recurrent", "reduce", "resize"),
)
"""The modules that fill the table."""
for _name in FAMILIES:
    import_module(f"{__name__}.{_name}")


def differentiate(model: ir.Model, of: ir.Value, wrt: Sequence[ir.Value]) -> dict[str, ir.Value]:
    """Append to the model's graph the nodes that compute the gradients of `of`, a float of one element, with respect to
    the values `wrt` (inputs, initialisers or results of the main graph). Returns a new value for each, by its name.

    Existing nodes stay and their results are used. Some get more outputs (the statistics of a normalisation), and
    BatchNormalization in training form becomes our operator. Nothing is computed for operands that do not depend on a
    value of `wrt`; the gradient with respect to a value that `of` does not depend on is zero. Subgradients at kinks are
    JAX's, where JAX has one.

    Raises TrainingError that lists every operator in between without a rule.
    """
    shapes.infer(model)
    build.adopt(model)
    tape, nodes, asked = Tape(model.graph), list(model.graph), frozenset(wrt)
    if build.static_dims(of) not in ((), (1,)):
        raise TrainingError(f"expected a scalar to differentiate, got {of.name!r} of shape {of.shape}")
    _check(nodes, of, asked)
    loss = tape.term(of)
    seed = tape.const(np.ones(loss.shape, loss.dtype.numpy()))
    found = pull_back(tape, nodes, {of: seed}, asked)
    tape.hint = "grad"
    results: dict[str, ir.Value] = {}
    for value in wrt:
        own = _own(tape, found.get(value), tape.term(value), set(results.values()))
        results[value.name or ""] = own.value
    tape.sweep(results.values())
    return results


def _own(tape: Tape, found: Term | None, of: Term, taken: set[ir.Value]) -> Term:
    """The gradient as a value with the shape of `of` and exactly one name."""
    if found is None:
        return tape.zeros_like(of).op("Identity")
    fresh = found.value.producer() in tape.nodes and found.value not in taken
    return found if fresh else found.op("Identity")


def undifferentiable(nodes: Sequence[ir.Node], of: ir.Value, wrt: frozenset[ir.Value]) -> Iterator[tuple[ir.Node, str]]:
    """The nodes between `wrt` and `of` that no rule differentiates, each with the reason."""
    for node in reversed(path(nodes, frozenset((of,)), moved_by(nodes, wrt))):
        reason = _reason(node)
        if reason:
            yield node, reason


def _reason(node: ir.Node) -> str:
    if node.domain not in ("", "ai.onnx", build.DOMAIN) or node.op_type not in RULES:
        return "no rule"
    if build.attr(node, "activation", "") or build.attr(node, "layout", "NCHW") == "NHWC":
        return "fused for inference: differentiate before the passes that fuse operators into kernels"
    return REFUSALS[node.op_type](node) if node.op_type in REFUSALS else ""


_SHOWN = 20


def _check(nodes: Sequence[ir.Node], of: ir.Value, wrt: frozenset[ir.Value]) -> None:
    missing = list(undifferentiable(nodes, of, wrt))
    if missing:
        rows = [f"\n  {n.domain or 'ai.onnx'}::{n.op_type} {n.name!r}: {reason}" for n, reason in missing[:_SHOWN]]
        more = f"\n  and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise TrainingError(
            f"{len(missing)} operators between the parameters and the loss cannot be differentiated:{''.join(rows)}"
            f"{more}\ntrain only what comes after them, or replace them"
        )
