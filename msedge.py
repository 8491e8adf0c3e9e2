"""The public face of msedge: every name a user needs, each imported when it is first asked for.

    import msedge

    msedge.convert("model.onnx", output="model.mslite")
    model = msedge.load("model.mslite", threads=2)
    model.run({"x": x})

`import msedge` costs next to nothing. A name whose packages are not installed raises `MissingExtraError`, which says
what to install. docs/api.md lists all public names; whatever else modules hold may change without notice.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloud import Callback, CheckpointError, Checkpoints, PlanError, Trainer, TrainError, data, zoo
    from converter import (
        Accuracy,
        Conversion,
        ConvertError,
        Embedding,
        Lora,
        Options,
        QuantizeError,
        Training,
        convert,
    )
    from edge import Client, GatewayError
    from federated import FederatedError, simulate
    from lite_runtime import (
        BundleError,
        CustomOperator,
        InputError,
        Interpreter,
        MissingExtraError,
        Model,
        MsedgeError,
        ShapeError,
        Spec,
        UnsupportedOpError,
        load,
        register,
    )

_FRONTS = {
    "lite_runtime": "BundleError CustomOperator InputError Interpreter MissingExtraError Model MsedgeError "
    "ShapeError Spec UnsupportedOpError load register",
    "converter": "Accuracy Conversion ConvertError Embedding Lora Options QuantizeError Training convert",
    "federated": "FederatedError simulate",
    "cloud": "Callback CheckpointError Checkpoints PlanError TrainError Trainer data zoo",
    "edge": "Client GatewayError",
}
"""The packages that define the names, each through its own front."""
_HOME = {name: front for front, names in _FRONTS.items() for name in names.split()}

__all__ = [
    "Accuracy",
    "BundleError",
    "Callback",
    "CheckpointError",
    "Checkpoints",
    "Client",
    "Conversion",
    "ConvertError",
    "CustomOperator",
    "Embedding",
    "FederatedError",
    "GatewayError",
    "InputError",
    "Interpreter",
    "Lora",
    "MissingExtraError",
    "Model",
    "MsedgeError",
    "Options",
    "PlanError",
    "QuantizeError",
    "ShapeError",
    "Spec",
    "TrainError",
    "Trainer",
    "Training",
    "UnsupportedOpError",
    "convert",
    "data",
    "load",
    "register",
    "simulate",
    "zoo",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'msedge' has no attribute {name!r}; it offers {', '.join(__all__)}")
    try:
        value = getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        from edge.extras import explain_missing

        raise explain_missing(error) or error from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *(n for n in globals() if n.startswith("__"))]
