"""LightGBM: model files (text), boosters and estimators of its scikit-learn interface.

Source: LightGBM's `src/io/tree.cpp` and `gbdt_model_text.cpp` (files of version v2 to v4). Thresholds are doubles; the
largest float32 that is not above one separates float32 features in the same way. Categories are integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.trees.forest import LEQ, MEMBER, Forest, Tree, check_links, to_ir
from lite_runtime.graph import Array

__all__ = ["load", "of_object"]

_NAMES = (
    "identity: regression regression_l1 huber fair quantile mape lambdarank rank_xendcg none; "
    "sigmoid: binary multiclassova cross_entropy; softmax: multiclass; exp: poisson gamma tweedie; "
    "log1p_exp: cross_entropy_lambda"
)
_LINKS = {name: link for part in _NAMES.split("; ") for link, names in [part.split(": ", 1)] for name in names.split()}
_CATEGORICAL, _LEFT, _ZERO, _NAN = 1, 2, 4, 8
"""Bits of a node's decision_type: a categorical split; missing values go left; zeros, or NaN, are missing values."""


def load(data: bytes) -> ir.Model:
    """A model file's contents as IR. Raises ConvertError."""
    return to_ir(_forest(data))


def of_object(source: Any) -> ir.Model:
    """A Booster, or an estimator of the scikit-learn interface: with the best iteration, if training found one."""
    booster = source
    if not hasattr(source, "model_to_string"):
        if not getattr(source, "fitted_", False):
            raise ConvertError(f"expected a fitted {type(source).__name__}; call its fit first")
        booster = source.booster_
    forest = _forest(booster.model_to_string().encode())
    labels = None if getattr(source, "classes_", None) is None else source.classes_.tolist()
    return to_ir(forest, labels if forest.link in ("sigmoid", "softmax") else None)


def _forest(data: bytes) -> Forest:
    try:
        lines = iter(data.decode().splitlines())
    except UnicodeDecodeError:
        raise ConvertError("LightGBM: expected a model file of UTF-8 text") from None
    head, _ = _section(lines)
    targets, columns = _int(head, "num_tree_per_iteration", "the model"), _int(head, "max_feature_idx", "the model") + 1
    if not (0 < targets <= 1 << 24 and 0 < columns <= 1 << 24):
        raise ConvertError(f"LightGBM: expected scores and features, got {targets} and {columns}")
    kinds: dict[int, int] = {}
    trees = []
    for number, tree in enumerate(_trees(lines)):
        trees.append(_tree(tree, number % targets, columns, kinds, f"LightGBM: tree {number}"))
    if len(trees) % targets:
        raise ConvertError(f"LightGBM: expected a multiple of {targets} trees, got {len(trees)}; the file is truncated")
    if "average_output" in head and trees:
        share = targets / len(trees)
        trees = [Tree(**{**vars(tree), "values": tree.values * share}) for tree in trees]
    link, scale = _link(head.get("objective", "none"))
    trees = [Tree(**{**vars(tree), "values": tree.values * scale}) for tree in trees] if scale != 1 else trees
    zeros = frozenset(column for column, kind in kinds.items() if kind == _ZERO)
    return Forest(trees, columns, targets, np.zeros(targets), link, zeros)


def _section(lines: Iterator[str]) -> tuple[dict[str, str], bool]:
    """The lines `name=value` up to an empty line, and whether trees may follow."""
    found: dict[str, str] = {}
    for line in lines:
        name, _, value = line.strip().partition("=")
        if not name:
            return found, True
        if name == "end of trees":
            return found, False
        found[name] = value
    raise ConvertError("LightGBM: expected the line 'end of trees', got the end; the file is truncated")


def _trees(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    more = True
    while more:
        tree, more = _section(lines)
        if tree:
            yield tree


def _link(text: str) -> tuple[str, float]:
    """The link of an objective such as `binary sigmoid:1`, and the factor of its scores."""
    name, *settings = text.split() or ["none"]
    if name not in _LINKS:
        raise ConvertError(f"LightGBM: expected an objective of {', '.join(_LINKS)}, got {name!r}")
    if name == "regression" and "sqrt" in settings:
        return "signed_square", 1.0
    steep = [setting.removeprefix("sigmoid:") for setting in settings if setting.startswith("sigmoid:")]
    return _LINKS[name], _number(steep[0]) if steep else 1.0


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConvertError(f"LightGBM: expected a number, got {text!r}") from None


def _tree(tree: Mapping[str, str], target: int, columns: int, kinds: dict[int, int], where: str) -> Tree:
    """One tree. `kinds`: what is missing in each feature, completed here."""
    leaves = _int(tree, "num_leaves", where)
    if tree.get("is_linear", "0").strip() == "1":
        raise ConvertError(f"{where}: leaves that are linear models are not supported; train with linear_tree=false")
    values = _array(tree, "leaf_value", leaves, np.float64, where)
    inner = leaves - 1
    feature, left, right, kind = (
        _array(tree, name, inner, np.int64, where)
        for name in ("split_feature", "left_child", "right_child", "decision_type")
    )
    thresholds = _array(tree, "threshold", inner, np.float64, where)
    check_links(left, right, leaves, where)
    if feature.min(initial=0) < 0 or feature.max(initial=0) >= columns:
        raise ConvertError(f"{where}: expected features of 0 to {columns - 1}, got {feature.max(initial=0)}")
    categorical = kind & _CATEGORICAL != 0
    absent = kind & (_ZERO | _NAN)
    for column, what in set(zip(feature[~categorical].tolist(), absent[~categorical].tolist(), strict=True)):
        if kinds.setdefault(column, what) != what and _ZERO in (what, kinds[column]):
            raise ConvertError(f"{where}: feature {column} has zeros as missing values in some trees only")
    # Where NaN is not a missing value it is read as 0. Where it is one, or zero is, it goes the default way.
    missing = np.where(absent == 0, thresholds >= 0, kind & _LEFT != 0) & ~categorical
    modes, splits = np.where(categorical, MEMBER, LEQ), _below(thresholds)
    sets = _sets(tree, thresholds, categorical, where) if categorical.any() else {}
    empty = np.array([node for node, found in sets.items() if not found.size], np.int64)
    modes[empty], splits[empty] = LEQ, -np.inf
    return Tree(
        feature, modes, splits, left, right, missing, values,
        {node: found for node, found in sets.items() if found.size}, target,
    )  # fmt: skip


def _below(thresholds: Array) -> Array:
    """The largest float32 that is not above each: x <= it exactly where x <= the threshold."""
    with np.errstate(over="ignore"):
        near = thresholds.astype(np.float32)
    return np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near)


def _sets(tree: Mapping[str, str], thresholds: Array, categorical: Array, where: str) -> dict[int, Array]:
    """Node -> the categories that go left: bits of 32-bit words."""
    count = _int(tree, "num_cat", where)
    bounds = _array(tree, "cat_boundaries", count + 1, np.int64, where)
    words = _array(tree, "cat_threshold", int(bounds[-1]), np.uint32, where)
    found = {}
    for node in np.flatnonzero(categorical).tolist():
        which = int(thresholds[node]) if 0 <= thresholds[node] < count else -1
        if which < 0 or not 0 <= bounds[which] <= bounds[which + 1] <= words.size:
            raise ConvertError(f"{where}: node {node} has no set of categories; the file is damaged")
        bits = np.unpackbits(words[bounds[which] : bounds[which + 1]].view(np.uint8), bitorder="little")
        found[node] = np.flatnonzero(bits)
    return found


def _int(fields: Mapping[str, str], name: str, where: str) -> int:
    return int(_array(fields, name, 1, np.int64, where)[0])


def _array(fields: Mapping[str, str], name: str, size: int, dtype: type, where: str) -> Array:
    words = fields.get(name, "").split()
    if len(words) != size:
        raise ConvertError(f"{where}: expected {size} values of {name}, got {len(words)}; the file is damaged")
    try:
        return np.array([float(word) if dtype is np.float64 else int(word) for word in words], dtype)
    except (ValueError, OverflowError):
        raise ConvertError(f"{where}: expected {name} of numbers, got {' '.join(words[:4])!r}") from None
