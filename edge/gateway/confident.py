"""The confidence in an answer, for requests that ask for it: `parameters.confidence`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import orjson

from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from edge.gateway.models.served import Served
from lite_runtime.calibration import Calibration, confidence
from lite_runtime.errors import InputError

if TYPE_CHECKING:
    from lite_runtime.graph import Array

__all__ = ["calibration_for", "told_of"]


def calibration_for(served: Served, job: Job) -> Calibration:
    """The calibration of what answers a job. Raises GatewayError (400) if there is none: for the model, for the
    signature, or for a device's personal version, which gives other outputs than those that were calibrated."""
    held = served.calibration
    if isinstance(held, str):
        raise GatewayError(400, f"confidence: model {served.name!r}: {held}")
    if job.signature != held.signature:
        text = f"expected the signature {held.signature!r}, which is calibrated, got {job.signature!r}"
        raise GatewayError(400, f"confidence: model {served.name!r}: {text}")
    if job.device:
        text = "personal versions are not calibrated; omit device or confidence"
        raise GatewayError(400, f"confidence: model {served.name!r}: {text}")
    return held


def told_of(calibration: Calibration, outputs: Mapping[str, Array]) -> dict[str, str]:
    """The reply's parameters, for outputs of the model before processing: lists as JSON texts, a value for each row,
    because the protocol's parameters are texts, numbers and booleans. A value that is not a number is null."""
    try:
        found = confidence(calibration, outputs)
    except InputError as error:
        raise GatewayError(400, f"confidence: {error}") from None
    told = {"confidence": found.probabilities.max(axis=1)}
    if found.out_of_distribution is not None:
        told["out_of_distribution"] = found.out_of_distribution
    for name, scores in (("energy", found.energy), ("distance", found.distance)):
        if scores is not None:
            told[name] = scores
    return {name: orjson.dumps(values.tolist()).decode() for name, values in told.items()}
