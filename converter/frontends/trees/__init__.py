"""Gradient-boosted trees: model files and boosters of XGBoost and LightGBM as one TreeEnsemble operator.

    xgboost.load(bytes)      JSON or UBJSON       lightgbm.load(bytes)     text

The result of a model file or booster is that of the library's `predict`; classifiers of the scikit-learn interface give
a label and probabilities. Neither library is needed to read a file.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from converter.frontends.trees import lightgbm, xgboost

__all__ = ["boosted", "lightgbm", "xgboost"]

_LIBRARIES = {"xgboost": xgboost.of_object, "lightgbm": lightgbm.of_object}


def boosted(source: Any) -> ir.Model | None:
    """The graph of an object of XGBoost or LightGBM; None for those of other libraries."""
    names = (kind.__module__.partition(".")[0] for kind in type(source).__mro__)
    library = next((name for name in names if name in _LIBRARIES), None)
    return None if library is None else _LIBRARIES[library](source)
