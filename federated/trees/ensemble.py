"""Trees as arrays: growing, scores, and XGBoost's JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from federated.errors import FederatedError
from federated.tree import Array
from federated.trees.objectives import OBJECTIVES

__all__ = ["Tree", "from_arrays", "reach", "scores", "to_arrays", "xgboost_json"]


@dataclass
class Tree:
    """A tree of one target. Per node: the feature (-1: a leaf), the threshold (smaller values go left), where missing
    values go, the left child (the right one follows it; -1: none), the value of a leaf, and for the record the split's
    gain and the sum of second derivatives."""

    target: int
    feature: list[int] = field(default_factory=lambda: [-1])
    threshold: list[float] = field(default_factory=lambda: [0.0])
    missing_left: list[bool] = field(default_factory=lambda: [False])
    left: list[int] = field(default_factory=lambda: [-1])
    value: list[float] = field(default_factory=lambda: [0.0])
    gain: list[float] = field(default_factory=lambda: [0.0])
    weight: list[float] = field(default_factory=lambda: [0.0])

    def split(self, node: int, feature: int, threshold: float, missing_left: bool, gain: float) -> tuple[int, int]:
        """Turn a leaf into a branch; returns its children, which are leaves."""
        left = len(self.feature)
        self.feature[node], self.threshold[node], self.missing_left[node] = feature, threshold, missing_left
        self.left[node], self.gain[node], self.value[node] = left, gain, 0.0
        leaf = Tree(self.target)
        for name in ("feature", "threshold", "missing_left", "left", "value", "gain", "weight"):
            getattr(self, name).extend(2 * getattr(leaf, name))
        return left, left + 1


_COLUMNS: Mapping[str, Any] = {
    "feature": np.int32, "threshold": np.float32, "missing_left": np.bool_, "left": np.int32, "value": np.float32,
}  # fmt: skip


def to_arrays(trees: Sequence[Tree]) -> dict[str, Array]:
    """What a message holds of trees: `target` int32 [trees], the others [trees, nodes], filled up with leaves."""
    nodes = max((len(tree.feature) for tree in trees), default=1)
    made: dict[str, Array] = {"target": np.array([tree.target for tree in trees], np.int32)}
    for name, kind in _COLUMNS.items():
        table = np.zeros((len(trees), nodes), kind)
        for row, tree in zip(table, trees, strict=True):
            column = getattr(tree, name)
            row[: len(column)] = column
            row[len(column) :] = -1 if name in ("feature", "left") else 0
        made[name] = table
    return made


def from_arrays(arrays: Mapping[str, Array], features: int, targets: int) -> dict[str, Array]:
    """The arrays of a message, checked: no branch leads out of its tree or back. Raises FederatedError."""
    wanted = {"target": np.int32, **_COLUMNS}
    shape: tuple[int, ...] = arrays["feature"].shape if "feature" in arrays else ()
    fits = len(shape) == 2 and all(
        name in arrays
        and arrays[name].dtype == kind
        and arrays[name].shape == (shape if name != "target" else shape[:1])
        for name, kind in wanted.items()
    )
    if fits:
        feature, left, target = arrays["feature"], arrays["left"], arrays["target"]
        inner, at = feature >= 0, np.arange(shape[1])
        fits = bool(
            (feature < features).all()
            and ((target >= 0) & (target < targets)).all()
            and (((left > at) & (left + 1 < shape[1])) | ~inner).all()
            and np.isfinite(arrays["value"]).all()
            and np.isfinite(arrays["threshold"]).all()
        )
    if not fits:
        raise FederatedError("trees: expected trees whose branches lead to nodes behind them, got others")
    return {name: arrays[name] for name in wanted}


def reach(trees: Mapping[str, Array], x: Array) -> Array:
    """The leaf of each tree that each row of x (float32 [n, features]) reaches: int64 [n, trees]."""
    count, nodes = trees["feature"].shape
    flat = {name: trees[name].reshape(-1) for name in _COLUMNS}
    start = np.arange(count, dtype=np.int64) * nodes
    at = np.broadcast_to(start, (len(x), count)).copy()
    rows = np.arange(len(x))[:, None]
    while True:
        feature = flat["feature"][at]
        inner = feature >= 0
        if not inner.any():
            return at - start
        value = x[rows, np.where(inner, feature, 0)]
        right = np.where(np.isnan(value), ~flat["missing_left"][at], value >= flat["threshold"][at])
        at = np.where(inner, start + flat["left"][at] + right, at)


def scores(trees: Mapping[str, Array], x: Array, base: float, targets: int) -> Array:
    """The scores of the rows of x: float64 [n, targets]; `base` and leaves are added in the order of trees."""
    found = np.full((len(x), targets), base, np.float64)
    if len(trees["target"]):
        leaves = reach(trees, x)
        values = np.take_along_axis(trees["value"][None], leaves[:, :, None], axis=2)[:, :, 0].astype(np.float64)
        for at, target in enumerate(trees["target"].tolist()):
            found[:, target] += values[:, at]
    return found


def xgboost_json(
    trees: Sequence[Tree], objective: str, features: int, classes: int, base_score: float, parallel: int = 1
) -> str:
    """The model in XGBoost's JSON, which `msedge convert` and XGBoost read. `classes`: 0 unless multi-class."""
    group, key, value = OBJECTIVES[objective].parameters
    per_round = max(1, classes)
    return json.dumps({
        "learner": {
            "attributes": {},
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": {
                "model": {
                    "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
                    "gbtree_model_param": {"num_parallel_tree": str(parallel), "num_trees": str(len(trees))},
                    "iteration_indptr": list(range(0, len(trees) + 1, per_round)),
                    "tree_info": [tree.target for tree in trees],
                    "trees": [_described(at, tree, features) for at, tree in enumerate(trees)],
                },
                "name": "gbtree",
            },
            "learner_model_param": {
                "base_score": f"{base_score:.9g}", "boost_from_average": "1", "num_class": str(classes),
                "num_feature": str(features), "num_target": "1",
            },
            "objective": {"name": objective, group: {key: value or str(classes)}},
        },
        "version": [2, 1, 0],
    })  # fmt: skip


def _described(number: int, tree: Tree, features: int) -> dict[str, Any]:
    count = len(tree.feature)
    inner = [feature >= 0 for feature in tree.feature]
    parents = [2**31 - 1] * count
    for node in range(count):
        if inner[node]:
            parents[tree.left[node]] = parents[tree.left[node] + 1] = node
    return {
        "base_weights": [float(np.float32(value)) for value in tree.value],
        "categories": [], "categories_nodes": [], "categories_segments": [], "categories_sizes": [],
        "default_left": [int(goes) for goes in tree.missing_left],
        "id": number,
        "left_children": list(tree.left),
        "loss_changes": [float(np.float32(gain)) for gain in tree.gain],
        "parents": parents,
        "right_children": [left + 1 if left >= 0 else -1 for left in tree.left],
        "split_conditions": [
            float(np.float32(tree.threshold[node] if inner[node] else tree.value[node])) for node in range(count)
        ],
        "split_indices": [max(0, feature) for feature in tree.feature],
        "split_type": [0] * count,
        "sum_hessian": [float(np.float32(weight)) for weight in tree.weight],
        "tree_param": {
            "num_deleted": "0", "num_feature": str(features), "num_nodes": str(count), "size_leaf_vector": "1",
        },
    }  # fmt: skip
