"""Models of XGBoost and LightGBM against the libraries' own `predict`; damaged files. The libraries are optional."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import lite_runtime
from converter import ConvertError, convert
from converter.frontends.trees import lightgbm, ubjson, xgboost
from lite_runtime.graph import Array

ROWS, COLUMNS = 300, 5
CATEGORY = 4


def rows(seed: int, categories: int) -> Array:
    """Features with missing values, zeros and, in the last column, categories."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    x[:, CATEGORY] = random.integers(0, categories, ROWS)
    x[random.random(x.shape) < 0.1] = np.nan
    x[:30, :CATEGORY] = 0
    return x


def score(x: Array) -> Array:
    z = np.nan_to_num(x)
    return np.asarray(z[:, 0] - z[:, 1] ** 2 + 2 * (z[:, CATEGORY] % 3 == 0) + 0.5)


TRAIN, UNSEEN = rows(0, 30), rows(1, 60)
UNSEEN[:10] = np.nan
UNSEEN[10:20, :CATEGORY] = 1e30


def results(source: Any, x: Array = UNSEEN, **options: Any) -> dict[str, Array]:
    conversion = convert(source, **options)
    assert conversion.report.reference == 0, conversion.report.reference_ops
    return dict(lite_runtime.load(conversion.bundle).run({"x": x}))


def agrees(source: Any, wanted: Array, x: Array = UNSEEN) -> None:
    (found,) = results(source, x).values()
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


# -- XGBoost ----------------------------------------------------------------------------------------------------------

SCORES = "reg:squarederror reg:absoluteerror reg:pseudohubererror reg:squaredlogerror reg:gamma reg:tweedie"
REST = "count:poisson survival:cox multi:softprob multi:softmax reg:quantileerror"
CHANCES = "reg:logistic binary:logistic binary:logitraw binary:hinge rank:ndcg rank:pairwise"


def boosted(parameters: dict[str, Any], y: Array, rounds: int = 8, x: Array = TRAIN, **matrix: Any) -> Any:
    library = pytest.importorskip("xgboost")
    return library.train(parameters, library.DMatrix(x, y, **matrix), rounds)


CATEGORICAL: dict[str, Any] = {"feature_types": ["q"] * CATEGORY + ["c"], "enable_categorical": True}


@pytest.mark.parametrize("form", ("json", "ubj"))
@pytest.mark.parametrize("objective", f"{SCORES} {CHANCES} {REST}".split())
def test_xgboosts_objectives_with_categories_and_missing_values(objective: str, form: str) -> None:
    library, s = pytest.importorskip("xgboost"), score(TRAIN)
    y = np.digitize(s, [-1, 0]) if "multi" in objective else s > 0 if objective in CHANCES.split() else np.abs(s) + 0.1
    parameters: dict[str, Any] = {"objective": objective, "max_cat_to_onehot": 3}
    parameters |= {"num_class": 3} if "multi" in objective else {}
    parameters |= {"quantile_alpha": [0.1, 0.9]} if "quantile" in objective else {}
    groups = {"group": [100, 200]} if "rank" in objective else {}
    model = boosted(parameters, y, **CATEGORICAL, **groups)
    agrees(bytes(model.save_raw(form)), model.predict(library.DMatrix(UNSEEN, **CATEGORICAL)))


@pytest.mark.parametrize(
    "parameters",
    [
        {"booster": "dart", "rate_drop": 0.5},
        {"booster": "gblinear"},
        {"num_parallel_tree": 3, "subsample": 0.5},
        {"base_score": 3.0},
        {"gamma": 1e9},
        {"grow_policy": "lossguide", "max_leaves": 9},
    ],
    ids=str,
)
def test_xgboosts_boosters_and_shapes_of_trees(parameters: dict[str, Any]) -> None:
    library = pytest.importorskip("xgboost")
    model = boosted(parameters, np.abs(score(TRAIN)))
    agrees(model, model.predict(library.DMatrix(UNSEEN)))


@pytest.mark.parametrize("parameters", [{}, {"multi_strategy": "multi_output_tree", "tree_method": "hist"}], ids=str)
def test_xgboosts_several_targets(parameters: dict[str, Any]) -> None:
    library, s = pytest.importorskip("xgboost"), score(TRAIN)
    model = boosted(parameters, np.stack([s, -2 * s, s * s], 1))
    agrees(model, model.predict(library.DMatrix(UNSEEN)))


def test_xgboosts_estimators_stop_at_the_best_round_and_know_what_is_missing() -> None:
    library, s = pytest.importorskip("xgboost"), score(TRAIN)
    pytest.importorskip("sklearn")
    classes, filled, unseen = np.digitize(s, [-1, 0]), np.nan_to_num(TRAIN), np.nan_to_num(UNSEEN)
    model = library.XGBClassifier(n_estimators=40, early_stopping_rounds=2, missing=0.0)
    model.fit(filled, classes, eval_set=[(filled, np.roll(classes, 1))], verbose=False)
    assert model.best_iteration < 39
    found = results(model, unseen)
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(unseen), atol=1e-6)
    np.testing.assert_array_equal(found["label"], model.predict(unseen))


@pytest.mark.parametrize("kind", ("XGBClassifier", "XGBRFClassifier", "XGBRegressor", "XGBRanker"))
def test_xgboosts_estimators(kind: str) -> None:
    library, s = pytest.importorskip("xgboost"), score(TRAIN)
    pytest.importorskip("sklearn")
    ranks = {"qid": np.arange(ROWS) // 50} if "Ranker" in kind else {}
    model = getattr(library, kind)(n_estimators=5).fit(TRAIN, s if "Reg" in kind else s > 0, **ranks)
    found = results(model)
    if "Classifier" in kind:
        np.testing.assert_allclose(found["probabilities"], model.predict_proba(UNSEEN), atol=1e-6)
    one = found["label" if "Classifier" in kind else "prediction"]
    np.testing.assert_allclose(one, model.predict(UNSEEN), rtol=2e-6, atol=2e-6)


# -- LightGBM ---------------------------------------------------------------------------------------------------------

EXTRAS: tuple[dict[str, Any], ...] = (
    {},
    {"zero_as_missing": True},
    {"use_missing": False},
    {"boosting": "dart"},
    {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5},
    {"sigmoid": 2.5, "boost_from_average": False},
)
REGRESSIONS = "regression regression_l1 huber fair quantile mape poisson gamma tweedie"


OTHERS = "binary multiclass multiclassova cross_entropy cross_entropy_lambda lambdarank sqrt"
CASES = [
    (objective, extra)
    for objective in (*REGRESSIONS.split(), *OTHERS.split())
    for extra in EXTRAS
    if (objective, extra.get("boosting")) != ("lambdarank", "rf")  # LightGBM refuses it
]


@pytest.mark.parametrize(("objective", "extra"), CASES, ids=str)
def test_lightgbms_objectives_and_missing_values(objective: str, extra: dict[str, Any]) -> None:
    library, s = pytest.importorskip("lightgbm"), score(TRAIN)
    multi, ranks = "multi" in objective, objective == "lambdarank"
    y = np.digitize(s, [-1, 0]) if multi else np.abs(s) + 0.1 if objective in (*REGRESSIONS.split(), "sqrt") else s > 0
    parameters = {"objective": objective, "verbosity": -1, "cat_smooth": 1, "min_data_in_leaf": 5, **extra}
    parameters |= {"num_class": 3} if multi else {}
    parameters |= {"objective": "regression", "reg_sqrt": True} if objective == "sqrt" else {}
    data = library.Dataset(TRAIN, y, categorical_feature=[CATEGORY], group=[100, 200] if ranks else None)
    model = library.train(parameters, data, 8)
    agrees(model.model_to_string().encode(), model.predict(UNSEEN))


def test_lightgbms_classifiers_keep_their_labels() -> None:
    library, s = pytest.importorskip("lightgbm"), score(TRAIN)
    pytest.importorskip("sklearn")
    for labels in (np.array(["low", "middle", "high"])[np.digitize(s, [-1, 0])], np.where(s > 0, 7, 3)):
        model = library.LGBMClassifier(n_estimators=5, verbosity=-1, num_threads=1).fit(TRAIN, labels)
        conversion = convert(model)
        found = lite_runtime.load(conversion.bundle).run({"x": UNSEEN})
        assert found["label"].tolist() == model.predict(UNSEEN).tolist()
        np.testing.assert_allclose(found["probabilities"], model.predict_proba(UNSEEN), atol=1e-6)


def test_lightgbms_linear_leaves_are_refused() -> None:
    library = pytest.importorskip("lightgbm")
    data = library.Dataset(np.nan_to_num(TRAIN), score(TRAIN))
    model = library.train({"linear_tree": True, "verbosity": -1, "num_threads": 1}, data, 2)
    with pytest.raises(ConvertError, match="tree 0: leaves that are linear models"):
        convert(model)


def test_estimators_that_are_not_fitted_are_refused() -> None:
    pytest.importorskip("sklearn")
    for name, kind in (("xgboost", "XGBClassifier"), ("lightgbm", "LGBMRegressor")):
        library = pytest.importorskip(name)
        with pytest.raises(ConvertError, match=f"a fitted {kind}"):
            convert(getattr(library, kind)())


# -- files, without the libraries -------------------------------------------------------------------------------------


def tree(**changed: Any) -> dict[str, Any]:
    """x[1] < 0.5 ? 1 : (x[0] in {2, 3} ? 3 : 2); what is missing goes left, then right."""
    return {
        "left_children": [1, -1, 3, -1, -1], "right_children": [2, -1, 4, -1, -1],
        "split_conditions": [0.5, 1.0, 0.0, 2.0, 3.0], "split_indices": [1, 0, 0, 0, 0],
        "split_type": [0, 0, 1, 0, 0], "default_left": [1, 0, 0, 0, 0],
        "categories": [2, 3], "categories_nodes": [2], "categories_segments": [0], "categories_sizes": [2],
        "tree_param": {"size_leaf_vector": "1"},
    } | changed  # fmt: skip


def document(objective: str = "reg:squarederror", base: str = "5E-1", **changed: Any) -> dict[str, Any]:
    model = {"gbtree_model_param": {"num_parallel_tree": "1"}, "tree_info": [0], "trees": [tree(**changed)]}
    return {
        "learner": {
            "learner_model_param": {"num_feature": "2", "num_class": "0", "num_target": "1", "base_score": base},
            "objective": {"name": objective},
            "gradient_booster": {"name": "gbtree", "model": model},
        }
    }


def test_a_tree_written_by_hand() -> None:
    nan = np.nan
    x = np.array([[0, 0.4], [0, 0.5], [2, 0.5], [3, 9], [4, 9], [nan, 9], [2, nan]], np.float32)
    (found,) = results(json.dumps(document()).encode(), x).values()
    np.testing.assert_array_equal(found, [1.5, 2.5, 3.5, 3.5, 2.5, 3.5, 1.5])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"left_children": [1, -1, 9, -1, -1]}, "leads out of the tree"),
        ({"left_children": [1, -1, 0, -1, -1]}, "below one other node"),
        ({"right_children": [2, -1]}, "expected 5 values of right_children, got 2"),
        ({"split_indices": [7, 0, 0, 0, 0]}, "features of 0 to 1, got 7"),
        ({"split_conditions": "abc"}, "expected split_conditions"),
        ({"categories_sizes": [5]}, "expected 5 categories, got 2"),
        ({"categories_nodes": [1]}, "a set of categories for every"),
        ({"categories_nodes": [-7]}, "categories are damaged"),
        ({"tree_param": {"size_leaf_vector": "2"}}, "expected leaf_weights"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_damaged_trees_of_xgboost_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConvertError, match=message):
        convert(json.dumps(document(**changed)).encode())


def test_objectives_and_base_scores_that_are_not_known_are_refused() -> None:
    for made, message in (
        (document("reg:mystery"), "an objective of .*, got 'reg:mystery'"),
        (document("binary:logistic", "2"), "base_score 2 is not valid"),
        (document(base="[1,2]"), "expected 1 or 1 numbers as base_score, got 2"),
        (document(base="x"), "base_score of numbers"),
    ):
        with pytest.raises(ConvertError, match=message):
            convert(json.dumps(made).encode())


TEXT = """tree
version=v4
num_class=1
num_tree_per_iteration=1
max_feature_idx=1
objective=binary sigmoid:1

Tree=0
num_leaves=3
num_cat=1
split_feature=1 0
threshold=0.1 0
decision_type=10 1
left_child=-1 -2
right_child=1 -3
leaf_value=0.25 0.5 -0.75
cat_boundaries=0 1
cat_threshold=12
is_linear=0

end of trees
"""


def test_a_text_written_by_hand() -> None:
    # 0.1 is not a float32: the nearest one is above it, and so not left of it.
    nan = np.nan
    x = np.array([[0, 0.0999], [0, 0.1], [2, 1], [3, 1], [4, 1], [nan, 1], [2, nan]], np.float32)
    (found,) = results(TEXT.encode(), x).values()
    np.testing.assert_allclose(np.log(found / (1 - found)), [0.25, -0.75, 0.5, 0.5, -0.75, -0.75, 0.25], atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("left_child=-1 -2", "left_child=-1 -9", "leads out of the tree"),
        ("left_child=-1 -2", "left_child=-1 1", "below one other node"),
        ("left_child=-1 -2", "left_child=-1", "expected 2 values of left_child, got 1"),
        ("split_feature=1 0", "split_feature=1 5", "features of 0 to 1, got 5"),
        ("threshold=0.1 0", "threshold=0.1 4", "no set of categories"),
        ("cat_boundaries=0 1", "cat_boundaries=0 99999999999999999999", "cat_boundaries of numbers"),
        ("leaf_value=0.25", "leaf_value=x", "leaf_value of numbers"),
        ("objective=binary", "objective=mystery", "an objective of .*, got 'mystery'"),
        ("end of trees", "", "the file is truncated"),
        ("num_tree_per_iteration=1", "num_tree_per_iteration=0", "expected scores and features"),
    ],
)
def test_damaged_texts_of_lightgbm_are_refused(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(ConvertError, match=message):
        lightgbm.load(TEXT.replace(old, new).encode())


def test_any_change_of_bytes_gives_a_model_or_one_error() -> None:
    random = np.random.default_rng(5)
    for seed, read in ((TEXT.encode(), lightgbm.load), (json.dumps(document()).encode(), xgboost.load)):
        for _ in range(300):
            data = bytearray(seed)
            for place in random.integers(0, len(data), random.integers(1, 4)):
                data[place] = random.integers(0, 256)
            try:
                read(bytes(data))
            except ConvertError as error:
                assert str(error)


# -- Universal Binary JSON --------------------------------------------------------------------------------------------


def test_ubjson_values() -> None:
    data = (
        b"{i\x01a[$d#i\x02\x3f\x80\x00\x00\xc0\x00\x00\x00"
        b"L\x00\x00\x00\x00\x00\x00\x00\x01bSi\x03abcU\x01cTi\x01d[ZFI\x01\x00]}"
    )
    found = ubjson.parse(data)
    assert found["a"].tolist() == [1.0, -2.0] and found["a"].dtype == np.float32
    assert {key: found[key] for key in "bcd"} == {"b": "abc", "c": True, "d": [None, False, 256]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (b"[$d#i\x05\x00", "truncated"),
        (b"[$Z#l\x7f\xff\xff\xff", "an array of numbers"),
        (b"[" * 100, "at most 64 levels"),
        (b"{i\x01a", "truncated"),
        (b"{i\x01\xffT}", "UTF-8"),
        (b"?", "expected a value"),
        (b"TT", "expected the end"),
        (b"[$d]", "a number of elements"),
        (b"SS", "expected a size"),
        (b"Si\xff", "truncated"),
    ],
)
def test_damaged_ubjson_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ConvertError, match=message):
        ubjson.parse(data)
