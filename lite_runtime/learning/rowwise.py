"""Finds the values of a graph whose rows are independent: row r of such a value depends on row r of the batch only.

A value with n independent rows has n * lines lines along axis 0: the first `lines` of them belong to row 0, and so on.
`lines` is usually 1, and more if a reshape merged another axis into the first. The rules are a table by operator; the
result of an operator without a rule, or of a node that mixes rows, is MIXED.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lite_runtime.graph import Array, Node, Spec
from lite_runtime.operators import Trait, having, require

__all__ = ["MIXED", "RULES", "View", "lines_of"]

MIXED = 0
"""Lines of a value whose rows are not independent."""


class View:
    """A node and what is known about its operands. `lines` names the values that depend on rows."""

    def __init__(
        self, node: Node, specs: Mapping[str, Spec], known: Mapping[str, Array], lines: Mapping[str, int], rows: int
    ) -> None:
        self.node, self.rows = node, rows
        self._specs, self._known, self._lines = specs, known, lines

    def attr(self, name: str, default: Any) -> Any:
        """The attribute's value, or `default`."""
        return self.node.attrs.get(name, default)

    def shape(self, i: int) -> tuple[int, ...]:
        """The shape of input `i`, which must be present."""
        return self._specs[self.node.inputs[i]].shape

    @property
    def made(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return self._specs[next(name for name in self.node.outputs if name)].shape

    def value(self, i: int) -> Array | None:
        """Input `i` if it is a constant."""
        return self._known.get(self.node.inputs[i]) if i < len(self.node.inputs) else None

    def lines(self, i: int) -> int | None:
        """Lines of input `i`; None if it does not depend on rows."""
        return self._lines.get(self.node.inputs[i])

    @property
    def with_rows(self) -> tuple[int, ...]:
        """Inputs that depend on rows."""
        return tuple(i for i, name in enumerate(self.node.inputs) if name in self._lines)

    def keeps(self) -> int:
        """Lines of the result, if each line depends only on the same line of the operands."""
        first = self.made[0] if self.made else MIXED
        alike = all(self.shape(i)[:1] == (first,) and len(self.shape(i)) == len(self.made) for i in self.with_rows)
        return first // self.rows if alike and first % self.rows == 0 else MIXED


Rule = Callable[[View], int]


def lines_of(
    node: Node, specs: Mapping[str, Spec], known: Mapping[str, Array], lines: Mapping[str, int], rows: int
) -> int:
    """Lines of the node's results, or MIXED. `lines`: those of all earlier values that depend on rows."""
    view = View(node, specs, known, lines, rows)
    rule = RULES.get(node.op)
    if rule is None or node.captures or any(lines[node.inputs[i]] == MIXED for i in view.with_rows):
        return MIXED
    return rule(view)


# -- rules ------------------------------------------------------------------------------------------------------------


def _only(*positions: int) -> Rule:
    """Line by line, if no other inputs depend on rows."""
    return lambda v: v.keeps() if set(v.with_rows) <= set(positions) else MIXED


def _quantized(*positions: int) -> Rule:
    """Line by line on integers at these positions, each followed by its scale and zero point, for all lines or per
    line."""

    def rule(v: View) -> int:
        first = v.made[0] if v.made else MIXED
        for i in v.with_rows:
            data = i in positions
            apart = v.shape(i)[:1] == (first,) and (not data or len(v.shape(i)) == len(v.made))
            if not apart or not (data or i - 1 in positions or i - 2 in positions):
                return MIXED
        return first // v.rows if first % v.rows == 0 else MIXED

    return rule


def _batches(*positions: int) -> Rule:
    """Axis 0 counts rows, in the results and in the operands at these positions, whatever their ranks."""

    def rule(v: View) -> int:
        apart = set(v.with_rows) <= set(positions) and all(v.shape(i)[:1] == v.made[:1] for i in v.with_rows)
        return v.made[0] // v.rows if apart and v.made and v.made[0] % v.rows == 0 else MIXED

    return rule


def _samples(v: View) -> int:
    """Models of ai.onnx.ml: an operand of one axis is one sample."""
    return _batches(0)(v) if len(v.shape(0)) > 1 else MIXED


def _equation(v: View) -> int:
    """Einsum whose results and operands with rows begin with the same label, which nothing sums over."""
    left, arrow, right = str(v.attr("equation", "")).replace(" ", "").partition("->")
    terms, label = left.split(","), right[:1]
    apart = bool(arrow) and label.isalpha() and all(terms[i].find(label) == 0 for i in v.with_rows)
    return _batches(*v.with_rows)(v) if apart and all(terms[i].count(label) == 1 for i in v.with_rows) else MIXED


def _along_operand(position: int, default: int) -> Rule:
    """Along the axis that an operand names, by default another."""

    def rule(v: View) -> int:
        left_out = position >= len(v.node.inputs) or not v.node.inputs[position]
        axis = np.array(default) if left_out else v.value(position)
        away = axis is not None and axis.size == 1 and int(axis.item()) % max(len(v.shape(0)), 1)
        return v.keeps() if v.with_rows == (0,) and away else MIXED

    return rule


def _one_hot(v: View) -> int:
    axis = v.attr("axis", -1) % max(len(v.made), 1)
    return _batches(0)(v) if axis else MIXED


def _triangle(v: View) -> int:
    return v.keeps() if v.with_rows == (0,) and len(v.made) > 2 else MIXED


def _centered(v: View) -> int:
    axes = v.attr("axes", None)
    away = axes is not None and all(a % max(len(v.made), 1) for a in axes)
    return v.keeps() if v.with_rows == (0,) and away else MIXED


def _reversed(v: View) -> int:
    return v.keeps() if v.with_rows == (0,) and v.attr("time_axis", 0) else MIXED


def _integer_product(v: View) -> int:
    return _product(v) if set(v.with_rows) <= {0, 1} else MIXED


def _quantized_product(v: View) -> int:
    """Rows of integers times a constant matrix, or batches of either operand."""
    for i in v.with_rows:
        if i not in (0, 1, 2) and len(v.made) < 3:
            return MIXED
    return _quantized(0, 3)(v) if len(v.made) > 1 else MIXED


def _axis(default: int) -> Rule:
    """Along an axis other than the first; with several lines per row or one."""

    def rule(v: View) -> int:
        rank = len(v.shape(0))
        return v.keeps() if v.with_rows == (0,) and v.attr("axis", default) % max(rank, 1) else MIXED

    return rule


def _joined(v: View) -> int:
    return v.keeps() if v.attr("axis", 0) % max(len(v.made), 1) else MIXED


def _split(v: View) -> int:
    return v.keeps() if v.with_rows == (0,) and v.attr("axis", 0) % max(len(v.made), 1) else MIXED


def _product(v: View) -> int:
    """Rows are matrix rows of the left operand, or batches of either operand."""
    for i in v.with_rows:
        rank = len(v.shape(i))
        if i == 2 or rank < 2 or (rank == 2 and (i == 1 or (i == 0 and v.attr("transA", 0)))):
            return MIXED
    return v.keeps()


def _gemm(v: View) -> int:
    return v.keeps() if v.with_rows == (0,) and not v.attr("transA", 0) else MIXED


def _reduced(v: View, position: int = 1) -> int:
    axes, rank = v.value(position), len(v.shape(0))
    if v.with_rows != (0,) or axes is None or any(int(a) % rank == 0 for a in np.ravel(axes)) or not axes.size:
        return MIXED
    first = v.shape(0)[0]
    return first // v.rows if v.made[:1] == (first,) else MIXED


def _picked(v: View) -> int:
    """ArgMax, ArgMin: along an axis that may be removed."""
    if v.attr("axis", 0) % max(len(v.shape(0)), 1) == 0:
        return MIXED
    return v.shape(0)[0] // v.rows


def _turned(v: View) -> int:
    perm = v.attr("perm", None)
    return v.keeps() if perm is not None and len(perm) and perm[0] == 0 else MIXED


def _reshaped(v: View) -> int:
    """The order in memory does not change, and every row's part of it is contiguous."""
    if v.with_rows != (0,) or not v.made or v.made[0] % v.rows or not v.made[0]:
        return MIXED
    return v.made[0] // v.rows


def _sliced(v: View) -> int:
    axes, rank = v.value(3), len(v.shape(0))
    away = axes is not None and all(int(a) % rank for a in np.ravel(axes))
    return v.keeps() if v.with_rows == (0,) and away else MIXED


def _gathered(v: View) -> int:
    axis = v.attr("axis", 0) % max(len(v.shape(0)), 1)
    if v.with_rows == (0,) and axis:
        return v.shape(0)[0] // v.rows
    if v.with_rows == (1,) and not axis and v.shape(1):
        return v.shape(1)[0] // v.rows
    return MIXED


def _padded(v: View) -> int:
    pads, rank = v.value(1), len(v.shape(0))
    if v.with_rows != (0,) or pads is None or len(v.node.inputs) > 3 or pads.size != 2 * rank:
        return MIXED
    return v.keeps() if not pads[0] and not pads[rank] else MIXED


def _normalized(v: View) -> int:
    return v.keeps() if v.with_rows == (0,) and v.attr("axis", -1) % max(len(v.shape(0)), 1) else MIXED


def _frozen_norm(v: View) -> int:
    return v.keeps() if v.with_rows == (0,) and not v.attr("training_mode", 0) else MIXED


def _attention(v: View) -> int:
    """Rows are batches; a mask that differs between rows has all four axes."""
    whole = all(len(v.shape(i)) == 4 for i in v.with_rows if i == 3)
    if not whole or len(v.made) < 3 or any(i > 5 for i in v.with_rows):
        return MIXED
    first = v.made[0]
    return first // v.rows if all(v.shape(i)[0] == first for i in v.with_rows) and first % v.rows == 0 else MIXED


_FAMILIES: tuple[tuple[str, Rule], ...] = (
    ("QuantizeLinear DequantizeLinear InterpolatedTable LookupTable", _only(0)),
    ("DynamicQuantizeLinear", lambda v: v.keeps() if v.attr("kept", 0) else MIXED),
    ("QLinearConv QLinearConvTranspose QLinearAveragePool QLinearGlobalAveragePool QLinearResize", _quantized(0)),
    ("QLinearAdd QLinearSub QLinearMul", _quantized(0, 3)),
    ("QLinearMatMul", _quantized_product),
    ("QLinearSoftmax", _axis(-1)),
    ("QLinearReduceMean", lambda v: _reduced(v, 5)),
    ("Conv", _only(0, 3)),
    ("NarrowMatMul", _only(0, 5)),
    ("ConvTranspose MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool LRN", _only(0)),
    ("InstanceNormalization GroupNormalization DepthToSpace SpaceToDepth Resize Expand Tile", _only(0)),
    ("BatchNormalization", _frozen_norm),
    ("LayerNormalization RMSNormalization", _normalized),
    ("TopK", _axis(-1)),
    ("MatMul", _product),
    ("Gemm", _gemm),
    ("ArgMax ArgMin", _picked),
    ("Transpose", _turned),
    ("Concat", _joined),
    ("Split", _split),
    ("Slice", _sliced),
    ("Gather", _gathered),
    ("Pad", _padded),
    ("Attention", _attention),
    ("BitCast ConvInteger", _only(0)),
    ("MatMulInteger", _integer_product),
    ("Einsum", _equation),
    ("CumSum CumProd", _along_operand(1, 0)),
    ("DFT", _along_operand(2, -2)),
    ("OneHot", _one_hot),
    ("Trilu", _triangle),
    ("CenterCropPad", _centered),
    ("ReverseSequence", _reversed),
    ("AffineGrid Col2Im Det Inverse STFT", _batches(0)),
    ("GridSample", _batches(0, 1)),
    ("CausalConvWithState RotaryEmbedding", _batches(0, 3)),
    ("DeformConv", _batches(0, 2, 4)),
    ("LinearAttention", _batches(*range(6))),
    ("Binarizer Imputer LabelEncoder LinearRegressor Normalizer Scaler", _samples),
    ("TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor", _samples),
)
_TRAITS: tuple[tuple[Trait, Rule], ...] = (
    ("elementwise", View.keeps),
    ("reduction", _reduced),
    ("along_axis", _axis(-1)),
    ("view", _reshaped),
)
RULES: Mapping[str, Rule] = {
    **{op: rule for trait, rule in _TRAITS for op in having(trait)},
    **{op: rule for ops, rule in _FAMILIES for op in ops.split()},
}
require(RULES, "rules for rows")
