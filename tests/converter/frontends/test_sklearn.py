"""Estimators of scikit-learn against their own predictions. skl2onnx is optional."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import lite_runtime
from converter import ConvertError, convert
from lite_runtime.errors import MissingExtraError

pytest.importorskip("sklearn")
from sklearn import ensemble, linear_model, naive_bayes, neighbors, neural_network, svm, tree
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, PolynomialFeatures, StandardScaler

random = np.random.default_rng(0)
TRAIN, UNSEEN = (random.normal(size=(rows, 4)).astype(np.float32) for rows in (200, 50))
SCORES = TRAIN[:, 0] - TRAIN[:, 1] ** 2 + 0.5
CLASSES = np.digitize(SCORES, [-1, 0])


def test_text() -> None:
    """A vectoriser has an operator of ONNX Runtime; a classifier as exported by default ends in ZipMap."""
    skl2onnx = pytest.importorskip("skl2onnx")
    lines = np.array(["the quick brown fox", "lazy dogs sleep", "a fox and a dog", "numbers 12, ok", "foo_bar baz"])
    classes = np.arange(len(lines)) % 2
    model = make_pipeline(TfidfVectorizer(), linear_model.LogisticRegression()).fit(lines, classes)
    text = skl2onnx.common.data_types.StringTensorType([None, 1])
    proto = skl2onnx.to_onnx(model, initial_types=[("x", text)])
    got = lite_runtime.load(convert(proto).bundle).run({"x": lines.reshape(-1, 1).astype(object)})
    np.testing.assert_array_equal(got["output_label"], model.predict(lines))
    np.testing.assert_allclose(got["output_probability"], model.predict_proba(lines), atol=1e-6)


@pytest.fixture(autouse=True)
def without_warnings_of_training() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def results(estimator: Any, **options: Any) -> dict[str, Any]:
    pytest.importorskip("skl2onnx")
    return dict(lite_runtime.load(convert(estimator, **options).bundle).run({"x": UNSEEN}))


CLASSIFIERS = [
    linear_model.LogisticRegression(),
    make_pipeline(StandardScaler(), linear_model.LogisticRegression()),
    make_pipeline(SimpleImputer(), MinMaxScaler(), PCA(3), svm.SVC(kernel="linear")),
    svm.SVC(),
    svm.LinearSVC(),
    ensemble.RandomForestClassifier(10),
    ensemble.GradientBoostingClassifier(n_estimators=5),
    ensemble.HistGradientBoostingClassifier(max_iter=5),
    neural_network.MLPClassifier(max_iter=20),
    neighbors.KNeighborsClassifier(),
    naive_bayes.GaussianNB(),
    tree.DecisionTreeClassifier(),
]
REGRESSORS = [
    linear_model.LinearRegression(),
    make_pipeline(PolynomialFeatures(2), linear_model.Ridge()),
    ensemble.RandomForestRegressor(10),
    ensemble.GradientBoostingRegressor(n_estimators=5),
    svm.SVR(),
    svm.SVR(kernel="linear"),
]


def title(estimator: Any) -> str:
    return "-".join(type(part).__name__ for _, part in getattr(estimator, "steps", [("", estimator)]))


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=title)
def test_classifiers(estimator: Any) -> None:
    estimator.fit(TRAIN, CLASSES)
    found = results(estimator)
    assert found["label"].tolist() == estimator.predict(UNSEEN).tolist()
    if hasattr(estimator, "predict_proba"):
        np.testing.assert_allclose(found["probabilities"], estimator.predict_proba(UNSEEN), atol=1e-5)


@pytest.mark.parametrize("estimator", REGRESSORS, ids=title)
def test_regressors(estimator: Any) -> None:
    estimator.fit(TRAIN, SCORES)
    (found,) = results(estimator).values()
    np.testing.assert_allclose(found.ravel(), estimator.predict(UNSEEN), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("library", "kind"), [("xgboost", "XGBClassifier"), ("lightgbm", "LGBMClassifier")])
def test_the_last_step_may_be_a_boosted_forest(library: str, kind: str) -> None:
    forest = getattr(pytest.importorskip(library), kind)(n_estimators=5)
    estimator = make_pipeline(StandardScaler(), forest).fit(TRAIN, CLASSES)
    found = results(estimator)
    np.testing.assert_allclose(found["probabilities"], estimator.predict_proba(UNSEEN), atol=1e-5)
    assert found["label"].tolist() == estimator.predict(UNSEEN).tolist()


def test_examples_give_the_inputs_types() -> None:
    estimator = linear_model.LinearRegression().fit(TRAIN, SCORES)
    (found,) = results(estimator, examples=TRAIN[:2].astype(np.float64)).values()
    np.testing.assert_allclose(found.ravel(), estimator.predict(UNSEEN), rtol=1e-5, atol=1e-5)
    with pytest.raises(ConvertError, match=r"shape \(rows, features\), got \(4,\)"):
        convert(estimator, examples=TRAIN[0])


def test_estimators_that_are_not_fitted_or_have_no_rule_are_refused() -> None:
    pytest.importorskip("skl2onnx")
    with pytest.raises(ConvertError, match="does not say how many features"):
        convert(linear_model.LogisticRegression())
    with pytest.raises(ConvertError, match=r"cannot convert LogisticRegression: .*it must be fitted"):
        convert(linear_model.LogisticRegression(), examples=TRAIN)


def test_without_skl2onnx_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*skl2onnx"):
        convert(linear_model.LinearRegression().fit(TRAIN, SCORES))
