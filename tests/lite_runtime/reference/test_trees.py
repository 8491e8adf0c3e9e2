"""ai.onnx.ml operators against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import InputError, ShapeError, UnsupportedOpError
from tests.lite_runtime.reference.oracle import agree, floats, i64, ours, texts

# Two trees: x0 <= 0 ? (x1 <= 0.5 ? A : B) : C   and   x2 <= -0.3 ? D : E.
# Rows: (tree, node, mode, feature, value, yes, no).
NODES = [
    (0, 0, "BRANCH_LEQ", 0, 0.0, 1, 2),
    (0, 1, "BRANCH_LEQ", 1, 0.5, 3, 4),
    (0, 2, "LEAF", 0, 0.0, 0, 0),
    (0, 3, "LEAF", 0, 0.0, 0, 0),
    (0, 4, "LEAF", 0, 0.0, 0, 0),
    (1, 0, "BRANCH_LEQ", 2, -0.3, 1, 2),
    (1, 1, "LEAF", 0, 0.0, 0, 0),
    (1, 2, "LEAF", 0, 0.0, 0, 0),
]
LEAVES = [(0, 2), (0, 3), (0, 4), (1, 1), (1, 2)]
FIELDS = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")
FOREST = {f"nodes_{f}": tuple(row[i] for row in NODES) for i, f in enumerate(FIELDS)}


def leaf_weights(kind: str, targets: tuple[int, ...], low: float = -1.0) -> dict[str, tuple[object, ...]]:
    rows = [(t, n, c, float(w)) for t, n in LEAVES for c, w in zip(targets, floats(len(targets), low=low), strict=True)]
    names = (f"{kind}_treeids", f"{kind}_nodeids", f"{kind}_ids", f"{kind}_weights")
    return {name: tuple(row[i] for row in rows) for i, name in enumerate(names)}


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_regressor(how: str) -> None:
    attrs = {**FOREST, **leaf_weights("target", (0, 1)), "n_targets": 2, "aggregate_function": how}
    agree("TreeEnsembleRegressor", [floats(20, 3)], {**attrs, "base_values": (0.5, -0.25)})


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("labels", [{"classlabels_int64s": (4, 7, 9)}, {"classlabels_strings": ("a", "b", "c")}])
def test_classifier(post: str, labels: dict[str, tuple[object, ...]]) -> None:
    attrs = {**FOREST, **leaf_weights("class", (0, 1, 2)), **labels, "post_transform": post}
    agree("TreeEnsembleClassifier", [floats(20, 3)], attrs, outputs=2, rtol=1e-4)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_two_classes_with_one_score(post: str, low: float) -> None:
    attrs = {**FOREST, **leaf_weights("class", (0,), low), "classlabels_int64s": (0, 1), "post_transform": post}
    agree("TreeEnsembleClassifier", [floats(20, 3)], attrs, outputs=2, rtol=1e-4)


def test_new_form_equals_the_old() -> None:
    weights = leaf_weights("target", (0,))
    old = ours("TreeEnsembleRegressor", [x := floats(20, 3)], {**FOREST, **weights})[0]
    new = {
        **{"tree_roots": (0, 2), "nodes_featureids": (0, 1, 2), "nodes_modes": np.zeros(3, np.uint8)},
        **{"nodes_splits": np.array([0, 0.5, -0.3], np.float32), "n_targets": 1},
        **{"nodes_truenodeids": (1, 1, 3), "nodes_trueleafs": (0, 1, 1)},
        **{"nodes_falsenodeids": (0, 2, 4), "nodes_falseleafs": (1, 1, 1)},
        **{"leaf_targetids": (0,) * 5, "leaf_weights": np.array(weights["target_weights"], np.float32)},
    }
    np.testing.assert_allclose(ours("TreeEnsemble", [x], new)[0], old, rtol=1e-6)


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_linear(post: str) -> None:
    x, weights = floats(6, 3), tuple(floats(9).tolist())
    attrs = {"coefficients": weights, "intercepts": (0.1, 0.2, 0.3), "post_transform": post}
    agree("LinearClassifier", [x], {**attrs, "classlabels_ints": (0, 1, 2)}, outputs=2, rtol=1e-4)
    regress = {"coefficients": weights, "intercepts": (0.1, 0.2, 0.3), "targets": 3}
    agree("LinearRegressor", [x], regress, rtol=1e-4)


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "SOFTMAX_ZERO", "LOGISTIC"])
def test_two_classes_from_one_score(post: str) -> None:
    attrs = {"coefficients": tuple(floats(3).tolist()), "intercepts": (0.1,), "post_transform": post}
    agree("LinearClassifier", [floats(9, 3)], {**attrs, "classlabels_ints": (3, 5)}, outputs=2, rtol=1e-4, atol=1e-6)
    machine = {
        "coefficients": tuple(floats(5).tolist()), "support_vectors": tuple(floats(15).tolist()), "rho": (0.3,),
        "vectors_per_class": (2, 3), "classlabels_ints": (3, 5), "post_transform": post, "kernel_type": "LINEAR",
        "kernel_params": (0.0, 0.0, 0.0),
    }  # fmt: skip
    agree("SVMClassifier", [floats(9, 3)], machine, outputs=2, rtol=1e-4, atol=1e-5)


KERNELS = ["LINEAR", "POLY", "RBF", "SIGMOID"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_support_vector_regressor(kernel: str) -> None:
    attrs = {
        **{"coefficients": tuple(floats(4).tolist()), "support_vectors": tuple(floats(12).tolist())},
        **{"kernel_type": kernel, "kernel_params": (0.4, 0.2, 2.0), "n_supports": 4, "rho": (0.3,)},
    }
    agree("SVMRegressor", [floats(7, 3)], attrs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("odds", [False, True])
def test_support_vector_classifier(kernel: str, odds: bool) -> None:
    attrs = {
        **{"coefficients": tuple(floats(12).tolist()), "support_vectors": tuple(floats(18).tolist())},
        **{"kernel_type": kernel, "kernel_params": (0.4, 0.2, 2.0), "rho": (0.3, -0.1, 0.2)},
        **{"vectors_per_class": (2, 3, 1), "classlabels_ints": (0, 1, 2)},
        **({"prob_a": (-1.0, -0.8, -1.2), "prob_b": (0.1, 0.0, -0.1)} if odds else {}),
    }
    agree("SVMClassifier", [floats(9, 3)], attrs, outputs=2, rtol=1e-4, atol=1e-5)


ROWS = [
    ("Binarizer", [floats(3, 4)], {"threshold": 0.3}),
    ("Scaler", [floats(3, 2)], {"offset": (0.5, 1.0), "scale": (2.0, 3.0)}),
    ("Normalizer", [floats(3, 4)], {"norm": "L1"}),
    ("Normalizer", [floats(3, 4)], {"norm": "L2"}),
    ("Normalizer", [floats(3, 4, low=0.1)], {"norm": "MAX"}),
    (
        "Imputer",
        [np.array([[1, np.nan]], np.float32)],
        {"imputed_value_floats": (5.0, 6.0), "replaced_value_float": np.nan},
    ),
    ("FeatureVectorizer", [floats(3, 2), floats(3, 1)], {"inputdimensions": (2, 1)}),
    ("OneHotEncoder", [i64(2, 9, 3)], {"cats_int64s": (3, 2)}),
    ("OneHotEncoder", [texts("a", "c")], {"cats_strings": ("c", "b", "a")}),
    ("LabelEncoder", [texts("a", "z")], {"keys_strings": ("a", "b"), "values_int64s": (4, 5), "default_int64": -9}),
    ("LabelEncoder", [i64(1, 2, 8)], {"keys_int64s": (1, 2), "values_floats": (0.5, 1.5)}),
    (
        "LabelEncoder",
        [np.array([1, np.nan], np.float32)],
        {"keys_floats": (1.0, float("nan")), "values_strings": ("x", "y")},
    ),
    ("CategoryMapper", [texts("a", "q")], {"cats_strings": ("a", "b"), "cats_int64s": (1, 2)}),
    ("CategoryMapper", [i64(1, 5)], {"cats_strings": ("a", "b"), "cats_int64s": (1, 2)}),
    ("ZipMap", [floats(2, 3)], {"classlabels_strings": ("a", "b", "c")}),
]


@pytest.mark.parametrize(("op", "inputs", "attrs"), ROWS, ids=[f"{r[0]}-{i}" for i, r in enumerate(ROWS)])
def test_features(op: str, inputs: list[np.ndarray], attrs: dict[str, object]) -> None:
    agree(op, inputs, attrs)


def test_maps() -> None:
    assert ours("DictVectorizer", [{"a": 4, "c": 8}], {"string_vocabulary": ("a", "c", "b")})[0].tolist() == [[4, 8, 0]]
    assert ours("CastMap", [{2: 0.5, 0: 1.5}])[0].tolist() == [[1.5, 0.5]]
    sparse = ours("CastMap", [{2: 0.5}], {"map_form": "SPARSE", "max_map": 4, "cast_to": "TO_STRING"})[0]
    assert sparse.tolist() == [["", "", "0.5", ""]]


def test_misfits_are_refused() -> None:
    with pytest.raises(InputError, match="categories"):
        ours("OneHotEncoder", [i64(7)], {"cats_int64s": (3,), "zeros": 0})
    with pytest.raises(UnsupportedOpError, match="BRANCH_ODD"):
        modes = tuple("BRANCH_ODD" if row[2] != "LEAF" else "LEAF" for row in NODES)
        ours("TreeEnsembleRegressor", [floats(2, 3)], {**FOREST, "nodes_modes": modes, **leaf_weights("target", (0,))})
    weights = leaf_weights("target", (0,))
    with pytest.raises(InputError, match="cycles"):
        loop = {**FOREST, "nodes_truenodeids": (1, 1, *FOREST["nodes_truenodeids"][2:])}
        ours("TreeEnsembleRegressor", [np.full((1, 3), -1, np.float32)], {**loop, **weights})
    with pytest.raises(ShapeError, match="got none for nodes_modes"):
        ours("TreeEnsembleRegressor", [floats(1, 3)], {k: v for k, v in FOREST.items() if k != "nodes_modes"} | weights)
    with pytest.raises(ShapeError, match="a root in every tree"):
        circle = {**{k: v[:1] for k, v in FOREST.items()}, "nodes_truenodeids": (0,), "nodes_falsenodeids": (0,)}
        ours("TreeEnsembleRegressor", [floats(1, 3)], {**circle, **weights})
