"""Requests that a model would answer, made from its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

__all__ = ["MOST", "request_for"]

MOST = 4096
"""Elements of an input; of larger ones an example would be all there is to see."""
_ZEROS: Mapping[str, Any] = {"BOOL": False, "BYTES": ""}


def request_for(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """An inference request of zeros, open sizes being 1; None where it would be too large, or have no form in JSON."""
    inputs = []
    for port in metadata["inputs"]:
        shape = [1 if size < 0 else size for size in port["shape"]]
        count = prod(shape)
        if count > MOST or port["datatype"] == "BF16":
            return None
        data = [_ZEROS.get(port["datatype"], 0)] * count
        inputs.append({"name": port["name"], "datatype": port["datatype"], "shape": shape, "data": data})
    return {"inputs": inputs}
