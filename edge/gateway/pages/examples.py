"""Example requests for a model, made from its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

__all__ = ["MOST", "request_for"]

MOST = 4096
"""Most elements of an example's input; a larger example would fill the page."""
_ZEROS: Mapping[str, Any] = {"BOOL": False, "BYTES": ""}


def request_for(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """An inference request with zeros, dynamic sizes set to 1; None if it is too large or impossible in JSON."""
    inputs = []
    for port in metadata["inputs"]:
        shape = [1 if size < 0 else size for size in port["shape"]]
        count = prod(shape)
        if count > MOST or port["datatype"] == "BF16":
            return None
        data = [_ZEROS.get(port["datatype"], 0)] * count
        inputs.append({"name": port["name"], "datatype": port["datatype"], "shape": shape, "data": data})
    return {"inputs": inputs}
