"""Conversion of tensors' elements from bytes and JSON to arrays, and back.

Binary data is little-endian and row-major. Elements of type BYTES are <length: uint32><the bytes> one after another; in
JSON they are Unicode strings, which are not decoded further (no base64). Source: Triton's binary data extension, and
KServe's predict protocol, version 2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from math import prod
from struct import Struct
from typing import Any

import numpy as np
import orjson

from edge.gateway.errors import GatewayError
from edge.gateway.ports import Port
from lite_runtime.graph import Array

__all__ = ["from_bytes", "from_json", "from_numbers", "texts", "to_bytes", "to_json"]

_LENGTH = Struct("<I")
_COPIED = 1 << 16
"""Outputs up to so many bytes are copied: that is cheaper than a view, and they are joined with the header anyway."""
_EXACT = 2**53
"""Integers up to this one are exact in float64; larger ones may have been rounded."""
_WORDS: dict[type, str] = {
    bool: "true or false", str: "a string", bytes: "a string", type(None): "null", list: "a list",
    dict: "an object", int: "a number", float: "a number",
}  # fmt: skip
_NUMBERS = frozenset({int, float})
_JSON_KINDS: dict[str, frozenset[type]] = {"BOOL": frozenset({bool}), "BYTES": frozenset({str, bytes})}
"""The Python types of JSON values that a datatype other than a number accepts; bytes: decoded base64."""


def from_bytes(body: bytes | bytearray | memoryview, at: int, size: int, port: Port, shape: tuple[int, ...]) -> Array:
    """The tensor in body[at : at + size]: a read-only view if it is aligned, else a copy.

    The caller has checked that the body has `size` bytes there, and that the shape needs exactly `size` bytes, unless
    the port is BYTES. A BOOL is true if its byte is not 0. Raises GatewayError (400) for BYTES whose lengths do not add
    up to `size`.
    """
    if port.dtype.hasobject:
        return _strings(bytes(memoryview(body)[at : at + size]), port, shape)
    if port.dtype.kind == "b":
        truth: Array = np.ndarray(shape, np.uint8, body, at) != 0
        return truth
    array: Array = np.ndarray(shape, port.dtype, body, at)
    return array if array.flags.aligned else array.copy()


def _strings(raw: bytes, port: Port, shape: tuple[int, ...]) -> Array:
    count, at, end = prod(shape), 0, len(raw)
    values: list[bytes] = []
    for i in range(count):
        length = _LENGTH.unpack_from(raw, at)[0] if end - at >= 4 else end
        if length > end - at - 4:
            raise GatewayError(
                400, f"input {port.name!r}: element {i} of {count} does not fit in its {end} bytes (binary_data_size);"
                " expected <length: uint32, little-endian><the bytes> for each element"
            )  # fmt: skip
        values.append(raw[at + 4 : at + 4 + length])
        at += 4 + length
    if at != end:
        raise GatewayError(400, f"input {port.name!r}: {count} elements end at byte {at} of {end} (binary_data_size)")
    return _objects(values, shape)


def _objects(values: Sequence[str | bytes], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def from_json(data: Any, port: Port, shape: tuple[int, ...]) -> Array:
    """The tensor in an input's `data`: one flat list, or lists nested according to `shape`.

    data: the result of `orjson.loads`, or an array of its numbers, int64 or float64, flat or of this shape. Raises
    GatewayError (400) for missing or surplus elements, elements of the wrong kind, or out of the type's range.
    """
    if port.datatype == "BF16":
        raise GatewayError(400, f"input {port.name!r}: BF16 is not possible in JSON; send it as binary data")
    if isinstance(data, np.ndarray):
        if data.ndim == 1:
            _counted(data.size, shape, port)
        elif data.shape != shape:
            raise _misnested(shape, port)
        return from_numbers(data, port).reshape(shape)
    flat = _flat(data, shape, port)
    kinds = set(map(type, flat))
    wanted = _JSON_KINDS.get(port.datatype, _NUMBERS)
    if not kinds <= wanted:
        (wrong, *_), right = sorted(_WORDS[k] for k in kinds - wanted), sorted({_WORDS[k] for k in wanted})
        raise GatewayError(400, f"input {port.name!r} is {port.datatype}: expected {right[0]}, data hold {wrong}")
    if port.datatype == "BYTES":
        return _objects(flat, shape)
    return _numbers(flat, kinds, port).reshape(shape)


def _numbers(flat: list[Any], kinds: set[type], port: Port) -> Array:
    """Numbers of JSON as an array: integers exactly if the port's type can hold all of them, else as float64."""
    if port.datatype == "BOOL":
        return np.array(flat, np.bool_)
    for dtype in (port.dtype, np.int64, np.uint64) if kinds == {int} and port.dtype.kind in "iu" else ():
        try:
            return from_numbers(np.array(flat, dtype), port)
        except OverflowError:
            continue
    return from_numbers(np.array(flat, np.float64), port)


def _flat(data: Any, shape: tuple[int, ...], port: Port) -> list[Any]:
    if type(data) is not list:
        got = _WORDS[type(data)]
        raise GatewayError(400, f"input {port.name!r}: expected data to be a list of its elements, got {got}")
    if not data or type(data[0]) is not list:
        _counted(len(data), shape, port)
        return data
    level = [data]
    for size in shape:
        if any(type(x) is not list or len(x) != size for x in level):
            raise _misnested(shape, port)
        level = list(chain.from_iterable(level))
    return level


def _misnested(shape: tuple[int, ...], port: Port) -> GatewayError:
    return GatewayError(
        400, f"input {port.name!r}: expected data to be nested as its shape {list(shape)} says, or one flat list"
    )  # fmt: skip


def _counted(count: int, shape: tuple[int, ...], port: Port) -> None:
    wanted = prod(shape)
    if count != wanted:
        raise GatewayError(
            400, f"input {port.name!r}: expected {wanted} elements in data, as its shape {list(shape)} says,"
            f" got {count}"
        )  # fmt: skip


def from_numbers(array: Array, port: Port) -> Array:
    """Numbers of JSON as elements of the port's type, each of them checked.

    array: int64, uint64 or float64, any shape. An integer port accepts whole numbers in its range; written as reals
    (`3.0`) only up to 2^53. A real port accepts numbers that do not become infinite in its type, and rounds them to the
    nearest value. Raises GatewayError (400), naming the first number that does not fit, or if the port accepts no
    numbers (BOOL, BYTES).
    """
    kind = port.dtype.kind
    if kind not in "iuf":
        raise GatewayError(400, f"input {port.name!r} is {port.datatype}: data hold a number")
    if array.dtype == port.dtype or not array.size:
        return array.astype(port.dtype, copy=False)
    if kind != "f" and array.dtype.kind == "f":
        least, most = max(int(np.iinfo(port.dtype).min), -_EXACT), min(int(np.iinfo(port.dtype).max), _EXACT)
        fits = (array == np.trunc(array)) & (array >= least) & (array <= most)
        if not fits.all():
            raise _out_of_range(array, fits, port)
    with np.errstate(over="ignore"):
        elements = array.astype(port.dtype)
    fits = np.isfinite(elements) if kind == "f" else elements == array
    if not fits.all():
        raise _out_of_range(array, fits, port)
    return elements


def _out_of_range(array: Array, fits: Array, port: Port) -> GatewayError:
    at = int(np.argmin(fits.ravel()))
    value = array.ravel()[at].item()
    return GatewayError(400, f"input {port.name!r}: {port.datatype} does not hold {value!r}, element {at} of data")


def texts(array: Array, name: str) -> Array:
    """BYTES as `str` for the model: elements from binary data are `bytes`. Raises GatewayError (400) for bytes that are
    not UTF-8."""
    try:
        return _objects([x.decode() if isinstance(x, bytes) else x for x in array.flat], array.shape)
    except UnicodeDecodeError as error:
        raise GatewayError(400, f"input {name!r}: expected text in UTF-8, got other bytes: {error}") from None


def to_bytes(array: Array, port: Port) -> bytes | memoryview:
    """An output as binary data; large ones are views of the array."""
    if port.dtype.hasobject:
        raw = [x if isinstance(x, bytes) else str(x).encode() for x in array.flat]
        return b"".join(chain.from_iterable((_LENGTH.pack(len(x)), x) for x in raw))
    if array.nbytes <= _COPIED:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def to_json(array: Array, port: Port) -> Any:
    """An output's `data` for orjson with OPT_SERIALIZE_NUMPY: flat, each number with the fewest digits that give the
    same value when read.

    NaN and infinities do not exist in JSON. They are written as `NaN`, `Infinity` and `-Infinity`, as Triton does: its
    clients and Python's `json` accept these, and strict parsers reject the reply instead of reading a wrong number.
    Raises GatewayError (400) for BF16, and for BYTES that are not UTF-8: request these as binary data.
    """
    if port.dtype.hasobject:
        try:
            return [x.decode() if isinstance(x, bytes) else str(x) for x in array.flat]
        except UnicodeDecodeError:
            raise GatewayError(
                400, f"output {port.name!r} holds bytes that are not UTF-8; ask for it with binary_data: true"
            ) from None  # fmt: skip
    if port.datatype == "BF16":
        raise GatewayError(400, f"output {port.name!r}: BF16 is not possible in JSON; ask with binary_data: true")
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return orjson.Fragment(json.dumps(flat.tolist()))
    return flat
