"""Linear models and features of ai.onnx.ml become ONNX's own operators, which have kernels and gradients.

1. LinearRegressor, SVMRegressor:        x W + b, and for one class its sign as 1 or -1
2. LinearClassifier:                     x W + b, the label of the largest score, and the scores' transform
3. SVMClassifier without probabilities:  a score for every pair of classes, the label with the most votes
4. Scaler, Normalizer, Binarizer, Imputer of floats, ArrayFeatureExtractor of known columns

The operands are rows [rows, features] of numbers. Support vectors of kernel LINEAR are summed into one column of W;
those of POLY and SIGMOID are a product of their own. RBF, whose distances need differences row by row, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr
from lite_runtime.graph import Array

__all__ = ["run"]

_DOMAIN = "ai.onnx.ml"
_FLOAT, _INT64, _STRING = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.STRING
_CAST = frozenset((ir.DataType.INT64, ir.DataType.INT32, ir.DataType.DOUBLE))
_KERNELS = ("LINEAR", "POLY", "SIGMOID")


def run(model: ir.Model) -> int:
    """The number of operators replaced; types of new values are to be inferred after it."""
    found = [node for node in build.nodes(model) if node.domain == _DOMAIN and node.op_type in _RULES]
    return sum(_RULES[node.op_type](node) for node in found)


def _rows(edit: Edit, node: ir.Node) -> ir.Value | None:
    """The operand as rows of float32; None if it is not known to be rows of numbers."""
    x = node.inputs[0]
    if x is None or build.rank(x) != 2:
        return None
    if x.dtype == _FLOAT:
        return x
    return edit.op("Cast", [x], {"to": _FLOAT.value}, shape=build.dims(x)) if x.dtype in _CAST else None


def _width(node: ir.Node) -> int | None:
    shape = build.dims(node.inputs[0])
    return shape[1] if shape is not None and len(shape) == 2 and isinstance(shape[1], int) else None


def _reals(node: ir.Node, name: str) -> Array:
    return np.asarray(attr(node, name, ()), np.float64).ravel()


def _name(node: ir.Node, name: str, default: str) -> str:
    return str(attr(node, name, default))


def _linear(edit: Edit, x: ir.Value, weights: Array, bias: Array) -> ir.Value:
    """x (rows, features), weights (features, columns), bias (columns,) or nothing."""
    product = edit.op("MatMul", [x, edit.const(weights, np.float32)])
    return edit.op("Add", [product, edit.const(bias, np.float32)]) if bias.any() else product


def _transformed(edit: Edit, scores: ir.Value, transform: str) -> ir.Value:
    if transform == "NONE":
        return scores
    return edit.op("Sigmoid", [scores]) if transform == "LOGISTIC" else edit.op("Softmax", [scores], {"axis": -1})


_TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX")


def _finish(edit: Edit, *results: tuple[ir.Value, ir.DataType]) -> bool:
    for value, dtype in results:
        value.type = ir.TensorType(dtype)
    edit.replace(*(value for value, _ in results))
    return True


def _linear_regressor(node: ir.Node) -> bool:
    targets, width = attr(node, "targets", 1), _width(node)
    weights, bias = _reals(node, "coefficients"), _reals(node, "intercepts")
    if width is None or weights.size != targets * width or bias.size not in (0, 1, targets):
        return False
    edit = Edit(node)
    if _name(node, "post_transform", "NONE") != "NONE" or (x := _rows(edit, node)) is None:
        return False
    return _finish(edit, (_linear(edit, x, weights.reshape(targets, width).T, bias), _FLOAT))


def _labels(node: ir.Node) -> tuple[Sequence[int] | Sequence[str], ir.DataType]:
    names = attr(node, "classlabels_strings", None)
    return (names, _STRING) if names else (attr(node, "classlabels_ints", None) or (0, 1), _INT64)


def _chosen(edit: Edit, node: ir.Node, index: ir.Value) -> tuple[ir.Value, ir.DataType]:
    """The labels by their index, and their type."""
    labels, dtype = _labels(node)
    if dtype == _INT64:
        return edit.op("Gather", [edit.const(labels, np.int64), index]), dtype
    name = build.fresh(edit.graph, "labels")
    tensor = ir.StringTensor([str(label).encode() for label in labels], shape=ir.Shape([len(labels)]), name=name)
    value = ir.Value(name=name, type=ir.TensorType(_STRING), shape=ir.Shape([len(labels)]), const_value=tensor)
    edit.graph.register_initializer(value)
    return edit.op("Gather", [value, index]), dtype


def _largest(edit: Edit, scores: ir.Value) -> ir.Value:
    return edit.op("ArgMax", [scores], {"axis": 1, "keepdims": 0})


def _linear_classifier(node: ir.Node) -> bool:
    width, transform, (labels, _) = _width(node), _name(node, "post_transform", "NONE"), _labels(node)
    weights, bias = _reals(node, "coefficients"), _reals(node, "intercepts")
    if not width or transform not in _TRANSFORMS or not weights.size or weights.size % width:
        return False
    columns = weights.size // width
    if bias.size not in (0, 1, columns) or columns not in (len(labels), 1 if len(labels) == 2 else len(labels)):
        return False
    edit = Edit(node)
    if (x := _rows(edit, node)) is None:
        return False
    scores = _linear(edit, x, weights.reshape(columns, width).T, bias)
    if columns == len(labels):
        index = _largest(edit, scores)
        return _finish(edit, _chosen(edit, node, index), (_transformed(edit, scores, transform), _FLOAT))
    positive = edit.op("Cast", [edit.op("Greater", [scores, edit.const(0, np.float32)])], {"to": _INT64.value})
    index = edit.op("Squeeze", [positive, edit.ints([1])])
    second = edit.op("Sigmoid", [scores]) if transform == "LOGISTIC" else scores
    return _finish(edit, _chosen(edit, node, index), (_with_rest(edit, second), _FLOAT))


def _with_rest(edit: Edit, second: ir.Value) -> ir.Value:
    """A column and 1 minus it: ONNX Runtime's scores of two classes from one, also where a softmax is asked for."""
    return edit.op("Concat", [edit.op("Sub", [edit.const(1, np.float32), second]), second], {"axis": 1})


def _machine(node: ir.Node, vectors: int) -> Array | None:
    """The support vectors (vectors, features); None for kernels that stay and numbers that do not fit."""
    width, support = _width(node), _reals(node, "support_vectors")
    if not width or _name(node, "kernel_type", "LINEAR") not in _KERNELS or support.size != vectors * width:
        return None
    return support.reshape(vectors, width)


def _decisions(edit: Edit, node: ir.Node, x: ir.Value, support: Array, weights: Array, rho: Array) -> ir.Value:
    """K(x, support) weights + rho; weights (vectors, columns)."""
    kind = _name(node, "kernel_type", "LINEAR")
    if kind == "LINEAR":
        return _linear(edit, x, support.T @ weights, rho)
    gamma, shift, degree = (*_reals(node, "kernel_params"), 0.0, 0.0, 0.0)[:3]
    inner = _linear(edit, x, gamma * support.T, np.full(len(support), shift))
    shaped = edit.op("Tanh", [inner]) if kind == "SIGMOID" else edit.op("Pow", [inner, edit.const(degree, np.float32)])
    return _linear(edit, shaped, weights, rho)


def _svm_regressor(node: ir.Node) -> bool:
    count, weights, rho = attr(node, "n_supports", 0), _reals(node, "coefficients"), _reals(node, "rho")
    if not count:  # the coefficients are one support vector
        support, weights = (None, weights) if weights.size != _width(node) else (weights[None], np.ones(1))
        support = support if _name(node, "kernel_type", "LINEAR") in _KERNELS else None
    else:
        support = _machine(node, count)
    if support is None or weights.size != len(support) or not rho.size:
        return False
    edit = Edit(node)
    if _name(node, "post_transform", "NONE") != "NONE" or (x := _rows(edit, node)) is None:
        return False
    found = _decisions(edit, node, x, support, weights[:, None], rho[:1])
    if attr(node, "one_class", 0):
        ends = [edit.const(end, np.float32) for end in (0, 1, -1)]
        found = edit.op("Where", [edit.op("Greater", [found, ends[0]]), *ends[1:]])
    return _finish(edit, (found, _FLOAT))


def _pair_weights(coefficients: Array, per_class: Sequence[int]) -> Array:
    """(vectors, pairs): each pair's weights of all support vectors. libsvm stores (classes - 1, vectors)."""
    ends, columns = np.cumsum([0, *per_class]), []
    for i in range(len(per_class)):
        for j in range(i + 1, len(per_class)):
            column = np.zeros(ends[-1])
            column[ends[i] : ends[i + 1]] = coefficients[j - 1, ends[i] : ends[i + 1]]
            column[ends[j] : ends[j + 1]] = coefficients[i, ends[j] : ends[j + 1]]
            columns.append(column)
    return np.stack(columns, 1)


def _svm_classifier(node: ir.Node) -> bool:
    per_class, transform = list(attr(node, "vectors_per_class", ())), _name(node, "post_transform", "NONE")
    count, total = len(per_class), int(sum(per_class))
    weights, rho = _reals(node, "coefficients"), _reals(node, "rho")
    pairs = count * (count - 1) // 2
    if count < 2 or min(per_class) < 0 or len(attr(node, "prob_a", ())) or transform not in _TRANSFORMS:
        return False
    support = _machine(node, total)
    fitting = weights.size == (count - 1) * total and rho.size == pairs and len(_labels(node)[0]) == count
    if support is None or not fitting:
        return False
    edit = Edit(node)
    if (x := _rows(edit, node)) is None:
        return False
    pair_weights = _pair_weights(weights.reshape(count - 1, total), per_class)
    scores = _decisions(edit, node, x, support, pair_weights, rho)
    # A pair (i, j) votes for i where its score is positive, else for j: votes = [score > 0] (i - j) + j.
    duels = [(i, j) for i in range(count) for j in range(i + 1, count)]
    first, second = (np.eye(count)[[duel[side] for duel in duels]] for side in (0, 1))
    wins = edit.op("Cast", [edit.op("Greater", [scores, edit.const(0, np.float32)])], {"to": _FLOAT.value})
    label = _chosen(edit, node, _largest(edit, _linear(edit, wins, first - second, second.sum(0))))
    if count == 2 and transform == "SOFTMAX":
        return _finish(edit, label, (_with_rest(edit, scores), _FLOAT))
    if count == 2:
        scores = edit.op("Concat", [edit.op("Neg", [scores]), scores], {"axis": 1})
    return _finish(edit, label, (_transformed(edit, scores, transform), _FLOAT))


def _scaler(node: ir.Node) -> bool:
    offset, scale, width = _reals(node, "offset"), _reals(node, "scale"), _width(node)
    edit = Edit(node)
    if not {offset.size, scale.size} <= {1, width} or (x := _rows(edit, node)) is None:
        return False
    moved = edit.op("Sub", [x, edit.const(offset, np.float32)])
    return _finish(edit, (edit.op("Mul", [moved, edit.const(scale, np.float32)]), _FLOAT))


def _normalizer(node: ir.Node) -> bool:
    kind, edit = _name(node, "norm", "MAX"), Edit(node)
    op = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}.get(kind)
    if op is None or (x := _rows(edit, node)) is None:
        return False
    size = edit.op(op, [x, edit.ints([-1])], {"keepdims": 1})
    none = edit.op("Equal", [size, edit.const(0, np.float32)])
    divisor = edit.op("Where", [none, edit.const(1, np.float32), size])
    return _finish(edit, (edit.op("Div", [x, divisor]), _FLOAT))


def _binarizer(node: ir.Node) -> bool:
    edit, x = Edit(node), node.inputs[0]
    if x is None or x.dtype != _FLOAT:
        return False
    above = edit.op("Greater", [x, edit.const(attr(node, "threshold", 0.0), np.float32)])
    return _finish(edit, (edit.op("Cast", [above], {"to": _FLOAT.value}), _FLOAT))


def _imputer(node: ir.Node) -> bool:
    values, width, old = _reals(node, "imputed_value_floats"), _width(node), attr(node, "replaced_value_float", 0.0)
    x, edit = node.inputs[0], Edit(node)
    if x is None or x.dtype != _FLOAT or values.size not in (1, width) or not values.size:
        return False
    absent = edit.op("IsNaN", [x]) if np.isnan(old) else edit.op("Equal", [x, edit.const(old, np.float32)])
    return _finish(edit, (edit.op("Where", [absent, edit.const(values, np.float32), x]), _FLOAT))


def _extractor(node: ir.Node) -> bool:
    x, columns = node.inputs[0], build.array(node.inputs[1])
    if x is None or columns is None or (build.rank(x) or 0) < 2 or x.dtype is None:
        return False
    edit = Edit(node)
    return _finish(edit, (edit.op("Gather", [x, edit.ints(columns.ravel().tolist())], {"axis": -1}), x.dtype))


_RULES: Mapping[str, Callable[[ir.Node], bool]] = {
    "ArrayFeatureExtractor": _extractor,
    "Binarizer": _binarizer,
    "Imputer": _imputer,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "Normalizer": _normalizer,
    "SVMClassifier": _svm_classifier,
    "SVMRegressor": _svm_regressor,
    "Scaler": _scaler,
}
