"""Decision forests against their references and onnxruntime, and invalid forests, which are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check, onnxruntime_results

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
FEATURES = 6


def classic(
    kind: str,
    targets: int,
    trees: int = 9,
    depth: int = 4,
    modes: tuple[str, ...] = MODES[:1],
    seed: int = 0,
    lowest: float = -1.0,
    only: int | None = None,
) -> dict[str, Any]:
    """Attributes of a random forest; `only`: the one target voted for."""
    rng = np.random.default_rng(seed)
    nodes: list[tuple[int, int, int, float, str, int, int, int]] = []
    votes: list[tuple[int, int, int, float]] = []

    def grow(tree: int, level: int, free: list[int]) -> int:
        own = free[0]
        free[0] += 1
        at = len(nodes)
        nodes.append((tree, own, 0, 0.0, "LEAF", 0, 0, 0))
        if level == depth or (level and rng.random() < 0.2):
            count = 1 if only is not None else min(targets, int(rng.integers(1, 3)))
            for target in rng.permutation(targets)[:count].tolist() if only is None else [only]:
                votes.append((tree, own, target, float(np.float32(rng.uniform(lowest, 1)))))
            return own
        yes, no = grow(tree, level + 1, free), grow(tree, level + 1, free)
        split = float(np.round(np.float32(rng.normal()), 1))
        mode = modes[rng.integers(len(modes))]
        nodes[at] = (tree, own, int(rng.integers(FEATURES)), split, mode, yes, no, int(rng.integers(2)))
        return own

    for tree in range(trees):
        grow(tree, 0, [0])
    columns = list(zip(*nodes, strict=True))
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    attrs: dict[str, Any] = {f"nodes_{name}": column for name, column in zip(names, columns, strict=False)}
    attrs["nodes_missing_value_tracks_true"] = columns[7]
    for name, column in zip(("treeids", "nodeids", "ids", "weights"), zip(*votes, strict=True), strict=True):
        attrs[f"{kind}_{name}"] = column
    return attrs


def rows(count: int = 50, seed: int = 3) -> np.ndarray:
    x = np.round(np.random.default_rng(seed).normal(size=(count, FEATURES)), 1).astype(np.float32)
    x[::7, 2], x[3, 1], x[4, 4] = np.nan, np.inf, -np.inf
    return x


def agree(
    op: str, x: np.ndarray, attrs: dict[str, Any], outputs: int = 1, *, peer: bool = True, atol: float = 1e-5
) -> None:
    ours = check(op, [x], attrs, outputs=outputs, rtol=1e-5, atol=atol)
    if peer:
        theirs = onnxruntime_results(op, [x], attrs, outputs, domain="ai.onnx.ml")
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("modes", [(m,) for m in MODES] + [MODES])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressor_modes(modes: tuple[str, ...], targets: int) -> None:
    attrs = classic("target", targets, modes=modes) | {"n_targets": targets}
    agree("TreeEnsembleRegressor", rows(), attrs, peer=len(modes) == 1)


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("base", [(), (0.5, -1.0, 2.0)])
def test_regressor_aggregates(how: str, base: tuple[float, ...]) -> None:
    attrs = classic("target", 3, trees=5) | {"n_targets": 3, "aggregate_function": how}
    agree(
        "TreeEnsembleRegressor", rows(), attrs | ({"base_values": base} if base else {}), peer=how in ("SUM", "AVERAGE")
    )


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("classes", [3, 5])
def test_classifier_transforms(transform: str, classes: int) -> None:
    attrs = classic("class", classes) | {
        "classlabels_int64s": tuple(range(10, 10 + classes)),
        "post_transform": transform,
    }
    agree("TreeEnsembleClassifier", rows(), attrs, 2, peer=transform != "SOFTMAX_ZERO")


def test_probit() -> None:
    attrs = classic("target", 1, trees=1, lowest=0.05) | {"n_targets": 1, "post_transform": "PROBIT"}
    attrs["target_weights"] = tuple(min(0.4 * w + 0.05, 0.95) for w in attrs["target_weights"])
    agree("TreeEnsembleRegressor", rows(), attrs, peer=False, atol=1e-3)


@pytest.mark.parametrize("lowest", [-1.0, 0.0])
@pytest.mark.parametrize("only", [0, 1])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("base", [(), (0.25,)])
def test_two_classes_one_score(lowest: float, only: int, transform: str, base: tuple[float, ...]) -> None:
    attrs = classic("class", 2, trees=3, lowest=lowest, only=only)
    attrs |= {"classlabels_int64s": (4, 9), "post_transform": transform} | ({"base_values": base} if base else {})
    # Votes for the second label alone: onnxruntime scores the first 0 there, whatever the second's.
    agree("TreeEnsembleClassifier", rows(), attrs, 2, peer=only == 0)


def test_two_classes_two_scores() -> None:
    """As a random forest of two classes has them: shares that add up to 1."""
    attrs = classic("class", 2, trees=3, lowest=0.1) | {"classlabels_int64s": (4, 9)}
    agree("TreeEnsembleClassifier", rows(), attrs, 2, peer=False)


def test_string_labels_take_the_reference() -> None:
    """Their types are no arena's: nothing is native."""
    node = Node(
        "TreeEnsembleClassifier", ("x",), ("y", "z"), classic("class", 3) | {"classlabels_strings": ("a", "b", "c")}
    )
    specs = INFERS[node.op](Inference(node, [Spec("float32", (2, FEATURES))], [None]))
    assert list(specs) == [Spec("string", (2,)), Spec("float32", (2, 3))]


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_other_features_take_the_reference(dtype: str) -> None:
    x = np.nan_to_num(rows(), posinf=9, neginf=-9).astype(dtype)
    check("TreeEnsembleRegressor", [x], classic("target", 2) | {"n_targets": 2}, native=False)


def test_thresholds_beyond_float32_take_the_reference() -> None:
    attrs = classic("target", 1) | {"n_targets": 1}
    values = np.array(attrs.pop("nodes_values"), np.float64)
    check("TreeEnsembleRegressor", [rows()], attrs | {"nodes_values_as_tensor": values})
    check("TreeEnsembleRegressor", [rows()], attrs | {"nodes_values_as_tensor": values + 1e-12}, native=False)


def modern(**changes: Any) -> dict[str, Any]:
    """Two trees over two features, one node a set."""
    attrs: dict[str, Any] = {
        "n_targets": 2,
        "aggregate_function": 1,
        "post_transform": 0,
        "tree_roots": (0, 2),
        "nodes_modes": np.array([0, 6, 3], np.uint8),
        "nodes_featureids": (0, 1, 0),
        "nodes_splits": np.array([0.5, 0, -1.5], np.float32),
        "nodes_truenodeids": (1, 0, 3),
        "nodes_trueleafs": (0, 1, 1),
        "nodes_falsenodeids": (2, 1, 0),
        "nodes_falseleafs": (1, 1, 1),
        "leaf_targetids": (0, 1, 0, 1),
        "leaf_weights": np.array([1.5, -2.0, 3.25, 10.0], np.float32),
        "membership_values": np.array([1.0, 3.0, np.nan], np.float32),
    }
    return attrs | changes


@pytest.mark.parametrize("how", [0, 1, 2, 3])
@pytest.mark.parametrize("transform", [0, 1, 2])
def test_ensemble(how: int, transform: int) -> None:
    x = np.array([[0, 1], [0, 2], [1, 3], [-2, 3], [np.nan, 1], [0.5, np.nan]], np.float32)
    agree("TreeEnsemble", x, modern(aggregate_function=how, post_transform=transform), peer=False)


def infer(op: str, attrs: dict[str, Any], features: int = FEATURES) -> tuple[Spec, ...]:
    return tuple(INFERS[op](Inference(Node(op, ("x",), ("y",), attrs), [Spec("float32", (2, features))], [None])))


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes_truenodeids": (0, 0, 3)},
        {"nodes_truenodeids": (7, 0, 3)},
        {"nodes_truenodeids": (1, 9, 3)},
        {"nodes_truenodeids": (-1, 0, 3)},
        {"nodes_truenodeids": (1, 0)},
        {"nodes_truenodeids": (1, 0, 1 << 70)},
        {"nodes_featureids": (0, -1, 0)},
        {"nodes_featureids": (0, 2, 0)},
        {"nodes_featureids": (0, 1 << 40, 0)},
        {"nodes_modes": np.array([0, 9, 3], np.uint8)},
        {"tree_roots": (3,)},
        {"tree_roots": (-1,)},
        {"leaf_targetids": (0, 1, 2, 1)},
        {"leaf_targetids": (0, 1, -1, 1)},
        {"leaf_weights": np.zeros(3, np.float32)},
        {"membership_values": np.zeros(0, np.float32)},
        {"nodes_splits": np.zeros(2, np.float32)},
        {"nodes_splits": np.array(["a", "b", "c"], object)},
        {"nodes_modes": "BRANCH_LEQ"},
        {"leaf_weights": (1.0, 2.0, 3.0, 4.0)},
        {"n_targets": 0},
        {"n_targets": 1 << 60},
        {"post_transform": 7},
        {"aggregate_function": -1},
    ],
)
def test_hostile_ensembles_are_refused(changes: dict[str, Any]) -> None:
    infer("TreeEnsemble", modern(), 2)
    with pytest.raises(ShapeError):
        infer("TreeEnsemble", modern(**changes), 2)


def test_circles_are_refused() -> None:
    attrs = classic("target", 1) | {"n_targets": 1}
    inner = [i for i, m in enumerate(attrs["nodes_modes"]) if m != "LEAF"]
    links = list(attrs["nodes_truenodeids"])
    links[inner[1]] = attrs["nodes_nodeids"][inner[1]]
    with pytest.raises(ShapeError, match=r"root|cycle"):
        infer("TreeEnsembleRegressor", attrs | {"nodes_truenodeids": tuple(links)})


@pytest.mark.parametrize(
    "name", ["nodes_truenodeids", "nodes_featureids", "nodes_values", "target_ids", "target_nodeids", "nodes_modes"]
)
def test_columns_of_unequal_length_are_refused(name: str) -> None:
    attrs = classic("target", 1) | {"n_targets": 1}
    with pytest.raises(ShapeError):
        infer("TreeEnsembleRegressor", attrs | {name: attrs[name][:-1]})
