"""Requests that are wrong: the right status, a sentence of bounded length, and no other exception."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.gateway.errors import GatewayError
from edge.gateway.protocol.request import Request, read
from tests.edge.gateway.protocol.support import body, port, ports, tensor

Y, T, H, B = (port(name, kind, ("n",)) for name, kind in (("y", "FP32"), ("t", "BYTES"), ("h", "BF16"), ("o", "BOOL")))
X = port("x", "FP32", ("n", 3))
FIND = ports([X], [Y, T])
GOOD = tensor("x", "FP32", (1, 3), [1, 2, 3])


def x(datatype: str = "FP32", shape: Any = (1, 3), data: Any = None, **parameters: Any) -> bytes:
    return body(tensor("x", datatype, shape, data, **parameters))


def raw(**fields: Any) -> bytes:
    """The good input with some fields put in, or, as None, left out."""
    return body({k: v for k, v in {**GOOD, **fields}.items() if v is not None})


def output(**parameters: Any) -> bytes:
    return body(GOOD, outputs=[{"name": "y", "parameters": parameters}])


JSON: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"hello",
    "cut JSON": x(data=[1, 2, 3])[:-2],
    "more behind": x(data=[1, 2, 3]) + b"x",
    "two documents": x(data=[1, 2, 3]) * 2,
    "not UTF-8": b'{"id": "\xff"}',
    "half a surrogate": b'{"id": "\\ud800"}',
    "byte order mark": b"\xef\xbb\xbf" + x(data=[1, 2, 3]),
    "UTF-16": x(data=[1, 2, 3]).decode().encode("utf-16"),
    "NaN": b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[NaN,1,2]}]}',
    "Infinity": b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,-Infinity,2]}]}',
    "number beyond float64": b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1e999,1,2]}]}',
    "leading zero": b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[01,1,2]}]}',
    "trailing comma": b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,1,2,]}]}',
    "deep": b'{"inputs":' + b"[" * 100_000,
    "deep and closed": b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "an array": b"[]",
    "null": b"null",
    "a number": b"1",
    "empty object": b"{}",
    "id no string": body(GOOD, id=1),
    "id null": body(GOOD, id=None),
    "parameters a list": body(GOOD, parameters=[]),
    "a parameter that is an object": body(GOOD, parameters={"a": {}}),
    "a parameter that is null": body(GOOD, parameters={"a": None}),
    "a list under a long name": body(GOOD, parameters={"a" * 100_000: []}),
    "priority negative": body(GOOD, parameters={"priority": -1}),
    "priority real": body(GOOD, parameters={"priority": 1.0}),
    "priority true": body(GOOD, parameters={"priority": True}),
    "timeout text": body(GOOD, parameters={"timeout": "1s"}),
    "timeout long text": body(GOOD, parameters={"timeout": "1" * 100_000}),
    "binary_data_output 1": body(GOOD, parameters={"binary_data_output": 1}),
    "signature 1": body(GOOD, parameters={"signature": 1}),
    "inputs an object": body(inputs={}),
    "inputs null": body(inputs=None),
    "no inputs": body(),
    "an input that is null": body(inputs=[None]),
    "twice": body(GOOD, GOOD),
    "unknown": body(GOOD, {**GOOD, "name": "u"}),
    "unknown, long": body({**GOOD, "name": "u" * 100_000}),
    "name missing": raw(name=None),
    "name 1": raw(name=1),
    "name a list": raw(name=["x"]),
    "datatype missing": raw(datatype=None),
    "datatype another": raw(datatype="INT32"),
    "datatype small": raw(datatype="fp32"),
    "datatype unknown": raw(datatype="F" * 100_000),
    "datatype a list": raw(datatype=["FP32"]),
    "shape missing": raw(shape=None),
    "shape 3": raw(shape=3),
    "shape text": raw(shape="1,3"),
    "shape real": raw(shape=[1.0, 3]),
    "shape true": raw(shape=[True, 3]),
    "shape of text": raw(shape=["1", 3]),
    "shape nested": raw(shape=[[1, 3]]),
    "shape negative": raw(shape=[-1, -3]),
    "shape -1": raw(shape=[-1, 3]),
    "shape NaN": b'{"inputs":[{"name":"x","shape":[NaN,3],"datatype":"FP32","data":[1,2,3]}]}',
    "shape huge": raw(shape=[2**63, 3]),
    "shape beyond int": b'{"inputs":[{"name":"x","shape":[1e300,3],"datatype":"FP32","data":[1,2,3]}]}',
    "shape many": raw(shape=[1] * 100_000),
    "rank less": raw(shape=[3]),
    "rank more": raw(shape=[1, 1, 3]),
    "another size": raw(shape=[3, 1]),
    "no rows": raw(shape=[0, 3], data=[]),
    "data missing": raw(data=None),
    "data short": raw(data=[1, 2]),
    "data long": raw(data=[1, 2, 3, 4]),
    "data long and large": raw(data=[1.5] * 5000),
    "data empty": raw(data=[]),
    "data text": raw(data="1,2,3"),
    "data an object": raw(data={"0": 1}),
    "data a number": raw(data=3),
    "data nested too deep": raw(data=[[[1, 2, 3]]]),
    "data nested the other way": raw(data=[[1], [2], [3]]),
    "data ragged": raw(data=[[1, 2], [3]]),
    "data half nested": raw(data=[1, [2], 3]),
    "data half nested, later": raw(data=[[1, 2, 3], 4]),
    "data true": raw(data=[1, True, 3]),
    "data null": raw(data=[1, None, 3]),
    "data of text": raw(data=["1", "2", "3"]),
    "data an object inside": raw(data=[1, {}, 3]),
    "data beyond FP32": raw(data=[1, 1e39, 3]),
    "both": raw(parameters={"binary_data_size": 12}),
    "tensor's parameters a list": raw(parameters=[]),
    "outputs an object": body(GOOD, outputs={}),
    "outputs of names": body(GOOD, outputs=["y"]),
    "output unknown": body(GOOD, outputs=[{"name": "u"}]),
    "output without a name": body(GOOD, outputs=[{}]),
    "output twice": body(GOOD, outputs=[{"name": "y"}, {"name": "y"}]),
    "binary_data 1": output(binary_data=1),
    "classification negative": output(classification=-1),
    "classification real": output(classification=1.5),
    "classification text": output(classification="2"),
    "classification of text": body(GOOD, outputs=[{"name": "t", "parameters": {"classification": 1}}]),
}  # fmt: skip

RANGES: list[tuple[str, Any]] = [
    ("INT32", 1.5), ("INT32", 2**31), ("INT32", -(2**31) - 1), ("INT32", True), ("UINT8", 300), ("UINT8", -1),
    ("INT64", 2**63), ("INT64", 1e19), ("INT64", 2.0**53 + 2), ("UINT64", -1), ("UINT64", 2**64), ("INT8", 128.0),
    ("FP16", 70000), ("FP32", -1e300), ("FP64", "1"), ("BOOL", 1), ("BOOL", 0.0), ("BOOL", "true"), ("BYTES", 1),
    ("BYTES", True), ("BYTES", None), ("BF16", 1),
]  # fmt: skip

BINARY: dict[str, tuple[bytes, int]] = {
    "size says less": (x(binary_data_size=8) + bytes(12), len(x(binary_data_size=8))),
    "size says more": (x(binary_data_size=16) + bytes(16), len(x(binary_data_size=16))),
    "size huge": (x(binary_data_size=2**64 - 1) + bytes(12), len(x(binary_data_size=2**64 - 1))),
    "size negative": (x(binary_data_size=-12) + bytes(12), len(x(binary_data_size=-12))),
    "size real": (x(binary_data_size=12.0) + bytes(12), len(x(binary_data_size=12.0))),
    "size true": (x(binary_data_size=True) + bytes(12), len(x(binary_data_size=True))),
    "size text": (x(binary_data_size="12") + bytes(12), len(x(binary_data_size="12"))),
    "body cut": (x(binary_data_size=12) + bytes(11), len(x(binary_data_size=12))),
    "bytes behind": (x(binary_data_size=12) + bytes(13), len(x(binary_data_size=12))),
    "bytes behind JSON": (x(data=[1, 2, 3]) + bytes(1), len(x(data=[1, 2, 3]))),
    "header short": (x(binary_data_size=12) + bytes(12), len(x(binary_data_size=12)) - 1),
    "header long": (x(binary_data_size=12) + bytes(12), len(x(binary_data_size=12)) + 1),
    "header longer than the body": (x(data=[1, 2, 3]), 10_000),
    "header huge": (x(data=[1, 2, 3]), 2**70),
    "header negative": (x(data=[1, 2, 3]), -1),
    "raw, not a whole row": (bytes(13), 0),
    "raw, nothing": (b"", 0),
}
"""Bodies, and what the header's length is said to be."""


def refused(status: int, *given: Any, find: Any = FIND) -> None:
    with pytest.raises(GatewayError) as caught:
        read(*given, find)
    assert caught.value.status == status and 10 < len(str(caught.value)) < 600


@pytest.mark.parametrize("name", JSON)
def test_wrong_json(name: str) -> None:
    refused(400, JSON[name], None)


@pytest.mark.parametrize("name", JSON)
def test_wrong_json_as_a_header(name: str) -> None:
    refused(400, JSON[name], len(JSON[name]) or -1)


@pytest.mark.parametrize("name", BINARY)
def test_wrong_binary(name: str) -> None:
    refused(400, *BINARY[name])


def test_binary_data_need_the_headers_length() -> None:
    refused(400, x(binary_data_size=12), None)
    refused(400, x(binary_data_size=12) + bytes(12), None)


@pytest.mark.parametrize(("datatype", "value"), RANGES)
@pytest.mark.parametrize("count", [1, 400])
def test_elements_outside_the_type(datatype: str, value: Any, count: int) -> None:
    text = body(tensor("x", datatype, (count,), [*[1] * (count - 1), value]))
    refused(400, text, None, find=ports([port("x", datatype, ("n",))]))


@pytest.mark.parametrize(
    "parameters",
    [
        {"sequence_id": True}, {"sequence_id": -1}, {"sequence_id": 1.5}, {"sequence_id": 1 << 64},
        {"sequence_id": "x" * 129}, {"sequence_start": 1}, {"sequence_end": "true"},
    ],
)  # fmt: skip
def test_wrong_sequences(parameters: dict[str, Any]) -> None:
    refused(400, body(GOOD, parameters=parameters), None)


@pytest.mark.parametrize(
    "place",
    [
        {"shared_memory_region": "a"}, {"shared_memory_byte_size": 12}, {"shared_memory_offset": 4},
        {"shared_memory_region": 5, "shared_memory_byte_size": 12},
        {"shared_memory_region": "a", "shared_memory_byte_size": "12"},
        {"shared_memory_region": "a", "shared_memory_byte_size": -12},
        {"shared_memory_region": "a", "shared_memory_byte_size": True},
        {"shared_memory_region": "a", "shared_memory_byte_size": 12, "shared_memory_offset": -1},
        {"shared_memory_region": "a", "shared_memory_byte_size": 12, "shared_memory_offset": 0.5},
    ],
)  # fmt: skip
def test_wrong_places_in_shared_memory(place: dict[str, Any]) -> None:
    refused(400, x(**place), None)
    refused(400, output(**place), None)


def test_a_tensor_is_in_one_place() -> None:
    place = {"shared_memory_region": "a", "shared_memory_byte_size": 12}
    one = {"name": "x", "datatype": "FP32", "shape": [1, 3]}
    refused(400, body({**one, "data": [1, 2, 3], "parameters": place}), None)
    refused(400, body({**one, "parameters": {**place, "binary_data_size": 12}}), None)
    refused(400, body({**one, "parameters": {**place, "shared_memory_byte_size": 8}}), None)  # FP32 [1, 3] takes 12
    refused(400, output(**place, classification=2), None)


@pytest.mark.parametrize(
    "raw",
    [b"", b"abc", b"\4\0\0\0abc", b"\3\0\0\0abc", b"\3\0\0\0abc\0\0\0", b"\xff\xff\xff\xffabc", b"\1\0\0\0a" * 3,
     b"\0\0\0\0\0\0\0\0\0\0\0\0\0"],
)  # fmt: skip
def test_bytes_with_wrong_lengths(raw: bytes) -> None:
    header = body(tensor("x", "BYTES", (2,), binary_data_size=len(raw)))
    refused(400, header + raw, len(header), find=ports([port("x", "BYTES", ("n",))]))


def test_sizes_of_one_name_are_one_size() -> None:
    find = ports([port("a", "INT8", ("n", "m")), port("b", "INT8", ("n", "m"))])
    one, two, three = (tensor(n, "INT8", s, [0] * 4) for n, s in (("a", (2, 2)), ("b", (1, 4)), ("b", (4, 1))))
    refused(400, body(one, two), None, find=find)
    refused(400, body(one, three), None, find=find)
    refused(400, body(one), None, find=find)
    assert read(body(one, {**one, "name": "b"}), None, find).rows == 2


def test_shapes_too_large_for_strides_are_refused_though_they_hold_nothing() -> None:
    find = ports([port("x", "INT8", (None, None, None))], batched=False)
    refused(400, body(tensor("x", "INT8", (0, 2**40, 2**40), [])), None, find=find)


def test_a_raw_body_needs_a_shape_that_follows() -> None:
    for shape in (None, ("n", "m"), (2, 2), ("n", 0)):
        refused(400, bytes(3), 0, find=ports([port("x", "INT8", shape)], batched=False))
    refused(400, bytes(4), 0, find=ports([port("x", "BYTES", (2,))], batched=False))
    refused(400, bytes(4), 0, find=ports([X, port("y", "INT8", ("n",))]))


def test_bf16_results_have_no_json() -> None:
    find = ports([X], [Y, T, H, B])
    refused(400, body(GOOD), None, find=find)
    refused(400, body(GOOD, outputs=[{"name": "h", "parameters": {"binary_data": False}}]), None, find=find)
    refused(400, body(GOOD, outputs=[{"name": "o", "parameters": {"classification": 1}}]), None, find=find)
    assert read(body(GOOD, parameters={"binary_data_output": True}), None, find).binary
    assert read(body(GOOD, outputs=[{"name": "h", "parameters": {"classification": 1}}]), None, find).wanted


SEEDS = [
    (body(GOOD, id="7", outputs=[{"name": "y", "parameters": {"binary_data": True}}]), None),
    (x(binary_data_size=12) + np.ones(3, np.float32).tobytes(), len(x(binary_data_size=12))),
    (body(tensor("x", "FP32", (100, 3), [0.5] * 300)), None),
]
PIECES = [b"", b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"-", b"1e400", b"null", b"true", b"\xff", b"9" * 30]


@given(st.data(), st.sampled_from(SEEDS))
def test_damaged_bodies_are_read_or_refused(data: st.DataObject, seed: tuple[bytes, int | None]) -> None:
    text, length = bytearray(seed[0]), seed[1]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        piece = data.draw(st.sampled_from(PIECES) | st.binary(max_size=3))
        text[at : at + data.draw(st.integers(0, 6))] = piece
    checked(bytes(text), data.draw(st.sampled_from([length, None, 0]) | st.integers(-3, len(text) + 3)))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_documents_with_anything_anywhere_are_read_or_refused(data: st.DataObject) -> None:
    document = json.loads(SEEDS[0][0])
    document["parameters"] = {"priority": 1}
    spots = [(document, k) for k in document]
    entry = document["inputs"][0]
    spots += [(entry, k) for k in [*entry, "parameters"]] + [(entry[k], i) for k in ("shape", "data") for i in (0, 1)]
    spots += [(document["outputs"][0], k) for k in ("name", "parameters")]
    for holder, key in data.draw(st.lists(st.sampled_from(spots), min_size=1, max_size=2)):
        holder[key] = data.draw(VALUES)
    checked(json.dumps(document).encode(), None)


def checked(text: bytes, length: int | None) -> Request | None:
    """What comes through is what the model was promised."""
    try:
        request = read(text, length, FIND)
    except GatewayError as error:
        assert error.status in (400, 404, 501) and str(error)
        return None
    got = request.inputs["x"]
    assert got.dtype == np.float32 and got.shape == (request.rows, 3) and request.rows > 0
    return request
