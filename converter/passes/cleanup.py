"""Standard clean-ups, from onnx_ir and onnxscript; here only their settings and their errors."""

from __future__ import annotations

from math import prod

import onnx_ir as ir
from onnx_ir.passes import common

from converter.errors import ConvertError
from converter.ir import build
from converter.passes import fold_quantized
from lite_runtime.operators import having

__all__ = ["common_subexpressions", "fold_constants", "lift_constants", "share_constants", "unused"]

FOLD_UP_TO = 1 << 20
"""The most elements of a result for which a constant expression is evaluated (more if the result is smaller)."""


def _apply(model: ir.Model, *passes: ir.passes.PassBase) -> int:
    before = _size(model)
    changed = 0
    with build.quiet():
        for step in passes:
            try:
                changed += bool(step(model).modified)
            except (ir.passes.PassError, ir.passes.InvariantError, ValueError, TypeError, RuntimeError) as error:
                raise ConvertError(f"{type(step).__name__} failed: {error}") from error
    build.adopt(model)
    build.refresh_constants(model)
    return max(changed, before - _size(model))


def _size(model: ir.Model) -> int:
    return sum(len(g) + len(g.initializers) for g in build.graphs(model))


def fold_constants(model: ir.Model) -> int:
    """Evaluate expressions that depend only on constants and known shapes, once. Quantised constants stay quantised."""
    return _apply(model, _folder()) + fold_quantized.run(model)


_LEFT_ALONE = frozenset(("SplitToSequence", "SequenceConstruct", "ConcatFromSequence", "SequenceAt"))
"""Operators whose special cases in onnxscript 0.7 raise on valid models (a scalar `split`, negative positions)."""


_GROWING = having("grows") | {"Upsample"}  # which upgrading makes a Resize
"""Operators whose result may be far larger than their operands: evaluated only where its size is known beforehand."""


def _too_large(node: ir.Node, value: ir.Value) -> bool:
    shape = build.static_dims(value)
    return node.op_type in _GROWING if shape is None else prod(shape) > FOLD_UP_TO


def _folder() -> ir.passes.PassBase:
    from onnxscript.optimizer._constant_folding import FoldConstantsPass, Replacement

    class Folder(FoldConstantsPass):  # type: ignore[misc]  # onnxscript is not typed
        """onnxscript's pass, except for operators of `_LEFT_ALONE` and results that are too large."""

        def process_node(self, node: ir.Node, is_function: bool) -> Replacement | None:
            alone = node.op_type in _LEFT_ALONE or any(_too_large(node, v) for v in node.outputs)
            return None if alone else super().process_node(node, is_function)

        def _do_inference(self, node: ir.Node) -> None:
            """Nothing is left to learn if every result's type and sizes are known, and asking ONNX takes longer than
            the rest of this pass."""
            if any(value.type is None or build.static_dims(value) is None for value in node.outputs):
                super()._do_inference(node)

    return Folder(shape_inference=True, input_size_limit=FOLD_UP_TO, output_size_limit=FOLD_UP_TO)


def common_subexpressions(model: ir.Model) -> int:
    """Compute equal expressions once."""
    return _apply(model, common.CommonSubexpressionEliminationPass(size_limit=64))


def lift_constants(model: ir.Model) -> int:
    """Constant nodes become initialisers of the main graph."""
    return _apply(
        model,
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
    )


def share_constants(model: ir.Model) -> int:
    """Merge equal constants."""
    return _apply(model, common.DeduplicateInitializersPass(size_limit=1 << 16))


def unused(model: ir.Model) -> int:
    """Remove unused nodes and initialisers."""
    return _apply(model, common.RemoveUnusedNodesPass())
