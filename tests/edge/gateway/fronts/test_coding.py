"""A request in binary is the same request, and its reply the same reply, byte for byte."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.gateway.errors import GatewayError
from edge.gateway.fronts.coding import coded, decoded
from edge.gateway.ports import DATATYPES, Port, Ports
from edge.gateway.protocol.request import Request, read
from edge.gateway.protocol.response import write
from lite_runtime.graph import numpy_dtype

PIECES = [b"", b"0", b'"', b"[", b"]", b"{", b"null", b"-1", b"1e999", b","]
KINDS = [name for name in DATATYPES if name not in ("BYTES", "BF16")]


def _ports(kinds: list[str]) -> Ports:
    made = {f"t{i}": numpy_dtype(DATATYPES[kind]) for i, kind in enumerate(kinds)}
    ports = {name: Port(name, kind, dtype, dtype.itemsize, ("n", None))
             for (name, dtype), kind in zip(made.items(), kinds, strict=True)}  # fmt: skip
    return Ports(ports, ports, True)


def _data(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng, dtype = np.random.default_rng(seed), numpy_dtype(DATATYPES[kind])
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    return rng.integers(least, most, shape, dtype=dtype, endpoint=True)


def _both(body: bytes, ports: Ports) -> tuple[Request, Request, Any]:
    way = coded(body)
    assert way is not None
    return read(body, None, lambda _: ports), read(b"".join(way.parts), way.length, lambda _: ports), way


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    rows=st.integers(1, 4),
    width=st.integers(0, 90),
    nested=st.booleans(),
    named=st.booleans(),
    wanted=st.lists(st.sampled_from([None, True, False]), max_size=4),
    default=st.sampled_from([None, True, False]),
    seed=st.integers(0, 99),
)
def test_there_and_back(
    kinds: list[str], rows: int, width: int, nested: bool, named: bool, wanted: list[Any], default: Any, seed: int
) -> None:
    ports = _ports(kinds)
    pairs = enumerate(zip(ports.inputs, kinds, strict=True))
    arrays = {name: _data(kind, (rows, width), seed + i) for i, (name, kind) in pairs}
    document: dict[str, Any] = {"inputs": [
        {"name": name, "shape": [rows, width], "datatype": ports.inputs[name].datatype,
         "data": (array if nested else array.ravel()).tolist()} for name, array in arrays.items()
    ]}  # fmt: skip
    if named:
        document |= {"id": "seven \u00e4", "parameters": {"priority": 1, "note": "x"}}
    if default is not None:
        document.setdefault("parameters", {})["binary_data_output"] = default
    if wanted:
        document["outputs"] = [
            {"name": name, "parameters": {} if binary is None else {"binary_data": binary}}
            for name, binary in zip(ports.outputs, wanted, strict=False)
        ]
    plain, binary, way = _both(json.dumps(document).encode(), ports)
    assert plain.inputs.keys() == binary.inputs.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(binary.inputs[name], array)
        assert binary.inputs[name].dtype == plain.inputs[name].dtype == array.dtype
    assert (plain.id, plain.rows) == (binary.id, binary.rows)
    notes = {"personal": "global"} if named else {}
    alone = write("m", "1", plain, arrays, ports, notes, None)
    coming = write("m", "1", binary, arrays, ports, notes, None)
    assert coming.header_length is not None
    made = decoded(way, b"".join(coming.parts), coming.header_length)
    assert b"".join(made.parts) == b"".join(alone.parts)
    assert made.header_length == alone.header_length


def test_classes() -> None:
    ports = _ports(["FP32"])
    array = _data("FP32", (2, 30), 0)
    body = json.dumps({
        "inputs": [{"name": "t0", "shape": [2, 30], "datatype": "FP32", "data": array.tolist()}],
        "outputs": [{"name": "t0", "parameters": {"classification": 2}}],
    }).encode()  # fmt: skip
    plain, binary, way = _both(body, ports)
    labels = ["a", "b", "ç"]
    alone = write("m", "1", plain, {"t0": array}, ports, {}, labels)
    coming = write("m", "1", binary, {"t0": array}, ports, {}, labels)
    assert coming.header_length is not None
    assert b"".join(decoded(way, b"".join(coming.parts), coming.header_length).parts) == b"".join(alone.parts)


def _valid() -> bytes:
    data = _data("FP32", (2, 20), 0).tolist()
    return orjson.dumps({
        "id": "a", "parameters": {"timeout": 5},
        "inputs": [{"name": "t0", "shape": [2, 20], "datatype": "FP32", "data": data},
                   {"name": "t1", "shape": [2, 3], "datatype": "INT8", "parameters": {"x": 1}, "data": [1] * 6}],
        "outputs": [{"name": "t0", "parameters": {"binary_data": False}}],
    })  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9))
def test_what_is_wrong_stays_wrong(seed: int) -> None:
    """Whatever a body is: it goes as it came, or its binary form is read as it would be, refused as it would be."""
    rng = random.Random(seed)
    body = bytearray(_valid())
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(body))
        body[at : at + rng.randrange(3)] = rng.choice(PIECES)
    ports = _ports(["FP32", "INT8"])
    way = coded(bytes(body))
    if way is None:
        return

    def found(*given: Any) -> Any:
        try:
            request = read(*given, lambda _: ports)
        except GatewayError as error:
            return error.status
        return request.id, request.rows, {name: array.tolist() for name, array in request.inputs.items()}

    assert found(bytes(body), None) == found(b"".join(way.parts), way.length)


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": []}, {"inputs": {}}, {"inputs": [3]}, {"id": 3}, {"parameters": []}, {"outputs": 3},
        {"outputs": [{"name": 3}]}, {"outputs": [{"name": "t0", "parameters": {"binary_data": 1}}]},
        {"parameters": {"binary_data_output": 1}}, {"parameters": {"a": json.loads("[" * 400 + "]" * 400)}},
        *({"inputs": [{"name": "t0", "shape": [1], "datatype": "FP32", "data": [1], **entry}]} for entry in (
            {"shape": [-1]}, {"shape": [1.0]}, {"shape": [1 << 70]}, {"shape": [1] * 40}, {"shape": "x"},
            {"shape": [2]}, {"datatype": "BYTES"}, {"datatype": "BF16"}, {"datatype": []}, {"data": "0"},
            {"data": None}, {"data": {}}, {"data": [None]}, {"data": ["x"]}, {"name": None},
            {"parameters": {"binary_data_size": 4}},
            {"parameters": 3},
        )),
    ],
)  # fmt: skip
def test_what_goes_as_it_came(change: dict[str, Any]) -> None:
    good = {"inputs": [{"name": "t0", "shape": [1], "datatype": "FP32", "data": [1]}]}
    assert coded(orjson.dumps(good)) is not None
    assert coded(json.dumps({**good, **change}).encode()) is None


def test_what_json_cannot_hold() -> None:
    way = coded(_valid())
    assert way is not None
    head = orjson.dumps({"model_name": "m", "model_version": "1", "outputs": [
        {"name": "y", "datatype": "BF16", "shape": [1], "parameters": {"binary_data_size": 2}}]})  # fmt: skip
    with pytest.raises(GatewayError):
        decoded(way, head + b"\0\0", len(head))
