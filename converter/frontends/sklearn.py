"""The scikit-learn frontend: fitted estimators and pipelines, by skl2onnx; steps of XGBoost and LightGBM included.

A classifier gives `label` and `probabilities`, without the map from label to probability that skl2onnx adds by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto, compose

from converter.errors import ConvertError
from converter.frontends import onnx
from converter.frontends.loaded import Loaded
from converter.frontends.trees import boosted
from lite_runtime.errors import MissingExtraError

__all__ = ["of_estimator"]

_OPSETS = {"": 18, "ai.onnx.ml": 3}


def of_estimator(estimator: Any, examples: Any) -> Loaded:
    """A fitted estimator. `examples`: rows as an array, or a data frame, which gives one input for each column; by
    default one input `x` of float32 features. float64 columns become float32. Raises ConvertError where skl2onnx has
    no rule or the estimator is not fitted, MissingExtraError without skl2onnx."""
    try:
        import skl2onnx
        from sklearn.base import is_classifier
    except ImportError:
        raise MissingExtraError("skl2onnx", "sklearn", "it converts scikit-learn models to ONNX") from None
    types = _types(estimator, examples)
    steps, last = _split(estimator)

    def converted(options: dict[str, bool] | None) -> Any:
        return skl2onnx.convert_sklearn(steps, initial_types=types, options=options, target_opset=_OPSETS)

    try:
        try:
            proto = converted({"zipmap": False} if last is None and is_classifier(estimator) else None)
        except NameError:  # skl2onnx: a classifier without that option
            proto = converted(None)
    except Exception as error:  # library: skl2onnx promises no type for estimators without a rule, or not fitted
        raise ConvertError(
            f"skl2onnx cannot convert {type(estimator).__name__}: {error}; it must be fitted, and every step needs a "
            "rule of skl2onnx (models of XGBoost and LightGBM: on their own, or as the last step of a pipeline)"
        ) from error
    return Loaded({"predict": onnx.load(proto if last is None else _joined(proto, last))}, format="scikit-learn")


def _split(estimator: Any) -> tuple[Any, ir.Model | None]:
    """(what skl2onnx converts, the graph of a last step of XGBoost or LightGBM that it does not)."""
    steps = getattr(estimator, "steps", None)
    if not isinstance(steps, list) or len(steps) < 2:
        return estimator, None
    last = boosted(steps[-1][1])
    return (estimator, None) if last is None else (estimator[:-1], last)


def _joined(features: ModelProto, last: ir.Model) -> ModelProto:
    """One model: the rows that `features` computes are the input of `last`."""
    features = compose.add_prefix(features, "features.", rename_inputs=False)
    features.opset_import.clear()
    features.opset_import.extend(ir.to_proto(last).opset_import)
    features.ir_version = last.ir_version
    return compose.merge_models(features, ir.to_proto(last), [(features.graph.output[0].name, "x")])


def _types(estimator: Any, examples: Any) -> list[tuple[str, Any]]:
    """skl2onnx's types of the inputs."""
    from skl2onnx.common.data_types import FloatTensorType

    if examples is None:
        features = getattr(estimator, "n_features_in_", None)
        if features is None:
            raise ConvertError(
                f"{type(estimator).__name__} does not say how many features it has: fit it, or give examples, some rows"
            )
        return [("x", FloatTensorType([None, int(features)]))]
    if hasattr(examples, "columns") and hasattr(examples, "dtypes"):
        return [(str(name), _type(np.asarray(examples[name]), 1)) for name in examples.columns]
    if isinstance(examples, Mapping):
        return [(str(name), _type(np.asarray(rows), np.asarray(rows).reshape(len(rows), -1).shape[1]))
                for name, rows in examples.items()]  # fmt: skip
    rows = np.asarray(examples)
    if rows.ndim != 2:
        raise ConvertError(f"expected examples of shape (rows, features), got {rows.shape}")
    return [("x", _type(rows, rows.shape[1]))]


def _type(values: np.ndarray, width: int) -> Any:
    from skl2onnx.common import data_types

    kinds = {"f": "Float", "i": "Int64", "u": "Int64", "b": "Boolean", "O": "String", "U": "String", "T": "String"}
    if values.dtype.kind not in kinds:
        raise ConvertError(f"expected examples of numbers or texts, got {values.dtype}")
    return getattr(data_types, f"{kinds[values.dtype.kind]}TensorType")([None, width])
