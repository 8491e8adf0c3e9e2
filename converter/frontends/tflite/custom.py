"""Custom operators. A caller registers rules that translate them:

    @custom("MyOp")
    def my_op(op: Op) -> ir.Value:
        return op.emit("Mul", [op.real(0), op.constant(op.custom.options["factor"])])

or operators of its own (`lite_runtime.custom`, domain "tflite.custom"), which stay as they are. Any other custom
operator is refused, all together in one UnsupportedOpError.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.tflite import schema
from converter.frontends.tflite.model import Operator
from converter.frontends.tflite.op import RULES, Op, Result, Rule
from lite_runtime.custom import TFLITE, attributes, key, record

__all__ = ["custom", "has_rule", "rule_of"]

BYTES = "custom_options"
"""The attribute for an operator's options as bytes, if its record has it; otherwise it gets the map that they hold."""


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


def has_rule(operator: Operator) -> bool:
    """Whether it has a rule of its own, or the program has registered it as an operator."""
    registered = operator.custom is not None and record(key(TFLITE, operator.name)) is not None
    return operator.name in RULES or registered


def rule_of(operator: Operator) -> Rule:
    """The rule of an operator that has one."""
    return RULES.get(operator.name, _registered)


def _registered(op: Op) -> Result:
    """The operator itself, on real numbers."""
    if op.custom is None:
        op.fail("expected a custom operator")
    known = attributes(key(TFLITE, op.name))
    attrs: dict[str, object] = dict(op.custom.options)
    if BYTES in known:
        attrs = {BYTES: np.frombuffer(op.custom.data, np.uint8)}
    values = {name: int(v) if isinstance(v, bool) else v for name, v in attrs.items()}
    strange = [name for name, v in values.items() if not isinstance(v, int | float | str | list | tuple | np.ndarray)]
    if strange:
        op.fail(f"expected options that are numbers, texts or lists, got {', '.join(strange)}; take {BYTES!r} instead")
    operands = [op.real(i) if op.has(i) else None for i in range(op.count_inputs)]
    made: object = op.emit(op.name, operands, values, outputs=op.count_outputs, domain=TFLITE)
    results = [v for v in (made if isinstance(made, tuple) else (made,)) if isinstance(v, ir.Value)]
    for i, value in enumerate(results):
        tensor = op.output(i)
        kind = ir.DataType.FLOAT if tensor.quant is not None else tensor.dtype
        value.type = value.type or (None if kind is None else ir.TensorType(kind))
    return results
