"""The processing of a bundle in a program: training data as the gateway makes a model's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edge.gateway.errors import GatewayError
from edge.gateway.ports import ports_of
from edge.gateway.processing.processing import Processing
from lite_runtime import Model
from lite_runtime.graph import Array

__all__ = ["prepared"]


def prepared(model: Model, inputs: Mapping[str, Sequence[bytes] | Array]) -> dict[str, Array]:
    """Inputs for `predict`, of what clients of a gateway send: by the processing that the model's bundle declares.

    inputs: by the names that clients use; files as a sequence of bytes, at most 1024, and other inputs as arrays.
    Raises GatewayError: 400 for a bundle without processing, for other names and for files that cannot be read, 413 for
    those that are too large; MissingExtraError for images without Pillow.
    """
    processing = Processing.of(model.bundle.metadata, ports_of(model))
    if processing is None:
        raise GatewayError(400, "expected a bundle that declares processing; convert it with --processing")
    if inputs.keys() != processing.ports.inputs.keys():
        expected = ", ".join(processing.ports.inputs)
        raise GatewayError(400, f"expected the inputs {expected}, got {', '.join(inputs) or 'none'}")
    return processing.before({name: _array(given) for name, given in inputs.items()})


def _array(given: Sequence[bytes] | Array) -> Array:
    if isinstance(given, np.ndarray):
        return given
    files = np.empty(len(given), object)
    files[:] = given
    return files
