"""Models that are Python objects of other libraries, recognised by the names of their classes: nothing is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from converter.errors import ConvertError
from converter.frontends.loaded import Loaded

__all__ = ["OBJECTS", "reader_of"]

Reader = Callable[[Any, Any], Loaded]


def _trees(source: Any, examples: Any) -> Loaded:
    from converter.frontends.trees import boosted

    if examples is not None:
        raise ConvertError(f"{type(source).__name__} says how many features it has: omit examples")
    model = boosted(source)
    assert model is not None
    return Loaded({"predict": model}, format="XGBoost" if "xgboost" in str(_key(source)) else "LightGBM")


def _estimator(source: Any, examples: Any) -> Loaded:
    from converter.frontends.sklearn import of_estimator

    return of_estimator(source, examples)


def _module(source: Any, examples: Any) -> Loaded:
    from converter.frontends.torch import of_module

    return of_module(source, examples)


def _program(source: Any, examples: Any) -> Loaded:
    from converter.frontends.torch import of_program

    return of_program(source, examples)


def _keras(source: Any, examples: Any) -> Loaded:
    from converter.frontends.tensorflow import of_keras

    return of_keras(source, examples)


OBJECTS: Mapping[tuple[str, str], Reader] = {
    ("xgboost", "Booster"): _trees,
    ("xgboost", "XGBModel"): _trees,
    ("lightgbm", "Booster"): _trees,
    ("lightgbm", "LGBMModel"): _trees,
    ("sklearn", "BaseEstimator"): _estimator,
    ("torch", "Module"): _module,
    ("torch", "ExportedProgram"): _program,
    ("keras", "Model"): _keras,
    ("tf_keras", "Model"): _keras,
}
"""(library, class): what reads objects of the class and of its subclasses."""


def _key(source: Any) -> tuple[str, str] | None:
    keys = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(source).__mro__)
    return next((key for key in keys if key in OBJECTS), None)


def reader_of(source: Any) -> Reader | None:
    """What reads the object; None for objects that no frontend knows."""
    key = _key(source)
    return None if key is None else OBJECTS[key]
