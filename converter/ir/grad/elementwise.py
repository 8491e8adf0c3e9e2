"""Arithmetic and functions of single elements.

`UNARY` rows are derivatives in terms of g (the gradient of the result), x and y (operand and result). A rule
uses only the result where that is possible: x may then be overwritten, or the operator fused into its producer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import pi, sqrt

import onnx_ir as ir

from converter.ir import build
from converter.ir.grad.rules import At, Gradients, rule
from converter.ir.grad.tape import Term

__all__ = ["UNARY"]

UNARY: Mapping[str, Callable[[Term, Term, Term], Term]] = {
    "Identity": lambda g, x, y: g,
    "Neg": lambda g, x, y: -g,
    "Abs": lambda g, x, y: g * x.op("Sign"),
    "Exp": lambda g, x, y: g * y,
    "Log": lambda g, x, y: g / x,
    "Sqrt": lambda g, x, y: g * 0.5 / y,
    "Reciprocal": lambda g, x, y: -(g * y * y),
    "Erf": lambda g, x, y: g * ((-(x * x)).op("Exp") * (2 / sqrt(pi))),
    "Sin": lambda g, x, y: g * x.op("Cos"),
    "Cos": lambda g, x, y: -(g * x.op("Sin")),
    "Tan": lambda g, x, y: g * (y * y + 1),
    "Asin": lambda g, x, y: g / (1 - x * x).op("Sqrt"),
    "Acos": lambda g, x, y: -g / (1 - x * x).op("Sqrt"),
    "Atan": lambda g, x, y: g / (x * x + 1),
    "Sinh": lambda g, x, y: g * x.op("Cosh"),
    "Cosh": lambda g, x, y: g * x.op("Sinh"),
    "Asinh": lambda g, x, y: g / (x * x + 1).op("Sqrt"),
    "Acosh": lambda g, x, y: g / (x * x - 1).op("Sqrt"),
    "Atanh": lambda g, x, y: g / (1 - x * x),
    "Tanh": lambda g, x, y: g * (1 - y * y),
    "Sigmoid": lambda g, x, y: g * y * (1 - y),
    "Relu": lambda g, x, y: g.tape.where(y > 0, g, 0.0),
    "Softplus": lambda g, x, y: g * (1 - (-y).op("Exp")),
    "Softsign": lambda g, x, y: g * _squared(1 - y.op("Abs")),
}


def _squared(x: Term) -> Term:
    return x * x


@rule(*UNARY)
def _unary(n: At) -> Gradients:
    return [UNARY[n.node.op_type](n.g, n.x, n.y)]


@rule("Add")
def _add(n: At) -> Gradients:
    return [n.g.reduce_to(n.input(i)) for i in (0, 1)]


@rule("Sub")
def _sub(n: At) -> Gradients:
    return [n.g.reduce_to(n.input(0)), (-n.g).reduce_to(n.input(1)) if n.wants(1) else None]


@rule("Mul")
def _mul(n: At) -> Gradients:
    a, b = n.input(0), n.input(1)
    return [
        (n.g * b).reduce_to(a) if n.wants(0) else None,
        (n.g * a).reduce_to(b) if n.wants(1) else None,
    ]


@rule("Div")
def _div(n: At) -> Gradients:
    a, b = n.input(0), n.input(1)
    quotient = n.g / b
    return [quotient.reduce_to(a), (-(quotient * n.y)).reduce_to(b) if n.wants(1) else None]


@rule("Pow")
def _pow(n: At) -> Gradients:
    """x**p: p * x**(p - 1); y * log x, 0 where x is not above 0 (JAX's choice at 0)."""
    x, p = n.input(0), n.input(1)
    if build.scalar(p.value) == 2 and not n.wants(1):
        return [(n.g * (x * 2.0)).reduce_to(x), None]
    exponent = p.cast(x.dtype)
    dx = n.g * exponent * x.op("Pow", exponent - 1)
    dp = None
    if n.wants(1):
        above = x > 0
        logarithm = n.tape.where(above, x, 1.0).op("Log")
        dp = (n.g * n.y * logarithm).reduce_to(p).cast(p.dtype)
    return [dx.reduce_to(x), dp]


@rule("Mod")
def _mod(n: At) -> Gradients:
    """a - b * whole quotients of a by b."""
    a, b = n.input(0), n.input(1)
    return [n.g.reduce_to(a), (-(n.g * ((a - n.y) / b))).reduce_to(b) if n.wants(1) else None]


@rule("Sum")
def _sum(n: At) -> Gradients:
    return [None if x is None else n.g.reduce_to(x) for x in n.inputs]


@rule("Mean")
def _mean(n: At) -> Gradients:
    share = n.g * (1 / len(n.inputs))
    return [None if x is None else share.reduce_to(x) for x in n.inputs]


@rule("Max", "Min")
def _extreme(n: At) -> Gradients:
    """Operands that are equally extreme share the gradient."""
    operands = [n.input(i) for i in range(len(n.inputs))]
    if len(operands) == 1:
        return [n.g]
    winners = [x.equals(n.y) for x in operands]
    share = n.g / reduce(lambda a, b: a + b, (w.cast(n.g.dtype) for w in winners))
    return [n.tape.where(w, share, 0.0).reduce_to(x) for w, x in zip(winners, operands, strict=True)]


@rule("Where")
def _where(n: At) -> Gradients:
    condition = n.input(0)
    return [
        None,
        n.tape.where(condition, n.g, 0.0).reduce_to(n.input(1)) if n.wants(1) else None,
        n.tape.where(condition, 0.0, n.g).reduce_to(n.input(2)) if n.wants(2) else None,
    ]


@rule("Clip")
def _clip(n: At) -> Gradients:
    """Expressed by the result: strictly between the limits x gets the gradient, beyond them the limits get it."""
    inside, limits = n.g, list[Term | None]()
    for i in (1, 2):
        if not n.has(i):
            limits.append(None)
            continue
        limit = n.input(i)
        within = n.y > limit if i == 1 else n.y < limit
        inside = n.tape.where(within, inside, 0.0)
        limits.append(n.tape.where(within, 0.0, n.g).reduce_to(limit) if n.wants(i) else None)
    return [inside, *limits]


@rule("Cast", "CastLike")
def _cast(n: At) -> Gradients:
    return [n.g.cast(n.x.dtype), None]


@rule("Dropout")
def _dropout(n: At) -> Gradients:
    """Kept elements pass the gradient on with the same scale; in inference form all elements do. Which form applies may
    be known only at run time."""
    training = n.input(2).array() if n.has(2) else None
    if not n.has(2) or (training is not None and not training.any()):
        return [n.g, None, None]
    mask = n.output(1, ir.DataType.BOOL, n.x.shape)
    ratio = n.input(1) if n.has(1) else n.tape.const(0.5, n.x.dtype.numpy())
    kept = n.tape.where(mask, n.g / (1 - ratio.cast(n.x.dtype)), 0.0)
    return [kept if training is not None else n.tape.where(n.input(2), kept, n.g), None, None]
