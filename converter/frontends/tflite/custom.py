"""Custom operators: a caller registers rules for them.

    @custom("MyOp")
    def my_op(op: Op) -> ir.Value:
        return op.emit("Mul", [op.real(0), op.constant(op.custom.options["factor"])])

Custom operators without a rule are refused together, in one UnsupportedOpError.
"""

from __future__ import annotations

from collections.abc import Callable

from converter.errors import ConvertError
from converter.frontends.tflite import schema
from converter.frontends.tflite.op import RULES, Rule

__all__ = ["custom"]


def custom(name: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of custom operator `name`; it replaces an earlier one.

    Raises ConvertError when `name` is a builtin's.
    """
    if name in schema.BUILTINS:
        raise ConvertError(f"{name} is a builtin operator; only custom operators can be defined this way")

    def register(rule: Rule) -> Rule:
        RULES[name] = rule
        return rule

    return register
