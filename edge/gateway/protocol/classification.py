"""The classification extension: an output's largest elements as text."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from edge.gateway.errors import GatewayError
from edge.gateway.ports import Port
from lite_runtime.graph import Array

__all__ = ["CLASSES", "MOST", "classified", "classify"]

CLASSES = Port("", "BYTES", np.dtype(object), 0, None)
"""The datatype of a classified output."""
MOST = 100_000
"""The largest number of strings for one output."""


def classified(port: Port) -> None:
    """Check that an output can be classified, that is, its values have an order. Raises GatewayError (400)."""
    if port.datatype in ("BOOL", "BYTES"):
        raise GatewayError(400, f"output {port.name!r} is {port.datatype}: classification needs numbers")


def classify(array: Array, count: int, batched: bool, labels: Sequence[str] | None, name: str) -> Array:
    """The `count` largest elements of every row (of the whole array, if rows are not batched) as `bytes` of the form
    "value:index" or "value:index:label": largest first, equal ones by index; NaN is sorted like minus infinity.

    array: numbers, any rank; count: at least 1; if larger than the number of elements, all are returned. Reals have six
    decimals, as in Triton. labels: by index; None or "": no label. Returns objects [rows, min(count, elements of a
    row)], without the first axis if rows are not batched. Raises GatewayError (400) for more than `MOST` strings.
    """
    rows = array.shape[0] if batched and array.ndim else 1
    width = prod(array.shape[1:] if batched and array.ndim else array.shape)
    count = min(count, width)
    if rows * count > MOST:
        raise GatewayError(
            400, f"output {name!r}: classification {count} of {rows} rows makes {rows * count} strings, at most {MOST}"
            " are allowed; ask for fewer classes"
        )  # fmt: skip
    table = array.reshape(rows, width)
    real = table.dtype.kind not in "iu"
    if real:
        table = np.asarray(table, np.float64)
    order = _descending(np.where(np.isnan(table), -np.inf, table) if real else table)[:, :count]
    texts = np.empty((rows, count), object)
    for row, places in enumerate(order.tolist()):
        for k, index in enumerate(places):
            value = f"{table[row, index]:f}" if real else str(table[row, index])
            label = labels[index] if labels is not None and index < len(labels) else ""
            texts[row, k] = (f"{value}:{index}:{label}" if label else f"{value}:{index}").encode()
    return texts if batched and array.ndim else texts.reshape(count)


def _descending(table: Array) -> Array:
    """Indices of every row's elements, largest first, equal ones in order: a stable sort of the reversed row."""
    order: Array = table.shape[1] - 1 - np.argsort(table[:, ::-1], axis=1, kind="stable")
    return order[:, ::-1]
