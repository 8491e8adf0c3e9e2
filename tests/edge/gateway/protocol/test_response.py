"""Replies, as tritonclient reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tritonclient.http import InferenceServerClient, InferResult

from edge.gateway.errors import GatewayError
from edge.gateway.ports import DATATYPES, Port, Ports
from edge.gateway.protocol.request import Request, Wanted
from edge.gateway.protocol.response import Reply, write
from lite_runtime.graph import Array, numpy_dtype
from tests.edge.gateway.protocol.support import NUMERIC, port


def asked(*wanted: Wanted, binary: bool = False, name: str = "") -> Request:
    return Request(name, {}, {}, 1, wanted or None, binary)


def reply_of(
    outputs: Mapping[str, tuple[str, Array]],
    request: Request,
    *,
    batched: bool = True,
    notes: Mapping[str, Any] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> Reply:
    gives: dict[str, Port] = {n: port(n, t, (None,) * a.ndim) for n, (t, a) in outputs.items()}
    values = {n: a for n, (_, a) in outputs.items()}
    return write("m", "3", request, values, Ports({}, gives, batched), notes or {}, labels or {})


def parsed(reply: Reply) -> InferResult:
    body = b"".join(reply.parts)
    assert reply.header_length is None or reply.header_length == len(reply.parts[0])
    return InferenceServerClient.parse_response_body(body, header_length=reply.header_length)


def elements(datatype: str) -> st.SearchStrategy[Array]:
    shape = arrays.array_shapes(max_dims=3, max_side=4)
    if datatype == "BYTES":
        return shape.flatmap(lambda s: arrays.arrays(object, s, elements=st.text(max_size=4).map(str.encode)))
    if datatype == "BF16":
        return shape.flatmap(lambda s: arrays.arrays(np.uint16, s)).map(lambda a: a.view(numpy_dtype("bfloat16")))
    return shape.flatmap(lambda s: arrays.arrays(DATATYPES[datatype], s))


def same(got: Array, sent: Array) -> bool:
    if sent.dtype.hasobject:
        return [x if isinstance(x, bytes) else x.encode() for x in got.flat] == sent.ravel().tolist()
    return got.dtype == sent.dtype and got.tobytes() == sent.tobytes()


@given(st.data(), st.sampled_from(sorted(DATATYPES)), st.booleans())
def test_tritonclient_reads_every_datatype_binary(data: st.DataObject, datatype: str, by_output: bool) -> None:
    array = data.draw(elements(datatype))
    request = asked(Wanted("y", True, 0)) if by_output else asked(binary=True)
    reply = reply_of({"y": (datatype, array)}, request)
    got = parsed(reply).as_numpy("y")
    assert reply.header_length and got.shape == array.shape and same(got, array)


@given(st.data(), st.sampled_from([*NUMERIC, "BOOL", "BYTES"]))
def test_tritonclient_reads_every_datatype_in_json(data: st.DataObject, datatype: str) -> None:
    array = data.draw(elements(datatype))
    reply = reply_of({"y": (datatype, array)}, asked())
    assert reply.header_length is None
    got = parsed(reply).as_numpy("y")
    assert got.shape == array.shape
    if array.dtype.kind == "f":
        assert np.array_equal(got, array, equal_nan=True) and (np.signbit(got) == np.signbit(array))[array == 0].all()
    else:
        assert same(got, array)


def test_a_reply_names_what_it_is() -> None:
    y = np.zeros((2, 3), np.float32)
    reply = reply_of({"y": ("FP32", y)}, asked(name="é7"), notes={"personal": "version 3"})
    assert json.loads(reply.parts[0]) == {
        "id": "é7", "model_name": "m", "model_version": "3", "parameters": {"personal": "version 3"},
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [0.0] * 6}],
    }  # fmt: skip
    assert set(json.loads(reply_of({"y": ("FP32", y)}, asked()).parts[0])) == {"model_name", "model_version", "outputs"}


def test_outputs_come_in_the_order_asked_for() -> None:
    outputs = {"a": ("INT8", np.ones(2, np.int8)), "b": ("INT16", np.zeros(2, np.int16)), "c": ("INT8", np.ones(2))}
    got = parsed(reply_of(outputs, asked(Wanted("b", None, 0), Wanted("a", False, 0), binary=True)))
    described = got.get_response()["outputs"]
    assert [e["name"] for e in described] == ["b", "a"]
    assert described[0]["parameters"] == {"binary_data_size": 4} and described[1]["data"] == [1, 1]
    both = parsed(reply_of({k: outputs[k] for k in "ab"}, asked(binary=True)))
    assert both.as_numpy("a").tolist() == [1, 1] and both.as_numpy("b").tolist() == [0, 0]


def test_large_outputs_are_views_and_odd_layouts_are_put_straight() -> None:
    large = np.arange(2**15, dtype=np.float32).reshape(128, 256)
    for array in (large, large.T, large[:, ::2], np.asfortranarray(large)):
        for binary in (True, False):
            got = parsed(reply_of({"y": ("FP32", array)}, asked(binary=binary))).as_numpy("y")
            assert (got == array).all()
    part = reply_of({"y": ("FP32", large)}, asked(binary=True)).parts[1]
    assert isinstance(part, memoryview) and np.shares_memory(np.frombuffer(part, np.uint8), large)
    half = np.ones((2**16,), numpy_dtype("bfloat16"))
    assert len(reply_of({"y": ("BF16", half)}, asked(binary=True)).parts[1]) == 2**17


def test_nothing_at_all_is_a_tensor_too() -> None:
    empty = np.zeros((2, 0), np.float32)
    for binary in (True, False):
        assert parsed(reply_of({"y": ("FP32", empty)}, asked(binary=binary))).as_numpy("y").shape == (2, 0)
    scalar = np.array(2.5, np.float32)
    for binary in (True, False):
        assert parsed(reply_of({"y": ("FP32", scalar)}, asked(binary=binary))).as_numpy("y") == 2.5


def test_values_outside_json_are_written_as_by_triton() -> None:
    y = np.array([np.nan, np.inf, -np.inf, 0.1], np.float32)
    reply = reply_of({"y": ("FP32", y)}, asked())
    assert b"[NaN, Infinity, -Infinity, 0.1" in reply.parts[0]
    assert parsed(reply).as_numpy("y").tobytes() == y.tobytes()
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(reply.parts[0])


def test_integers_beyond_2_to_53_stay_themselves() -> None:
    y = np.array([2**63 - 1, -(2**63), 2**53 + 1])
    assert json.loads(reply_of({"y": ("INT64", y)}, asked()).parts[0])["outputs"][0]["data"] == y.tolist()


def test_what_json_cannot_say_is_refused() -> None:
    raw = np.array([b"\xff"], object)
    for outputs in ({"y": ("BYTES", raw)}, {"y": ("BF16", np.ones(1, numpy_dtype("bfloat16")))}):
        with pytest.raises(GatewayError, match="binary_data: true") as caught:
            reply_of(outputs, asked())
        assert caught.value.status == 400
        assert parsed(reply_of(outputs, asked(binary=True))).as_numpy("y").size == 1


@pytest.mark.parametrize("binary", [False, True])
def test_classifications_are_text(binary: bool) -> None:
    y = np.array([[0.25, 0.5, 0.25, -1], [np.nan, 2, 3, np.inf]], np.float32)
    request = asked(Wanted("y", binary, 3))
    got = parsed(reply_of({"y": ("FP32", y)}, request, labels={"": ["cat", "dog", ""]}))
    assert got.get_output("y")["datatype"] == "BYTES"
    texts = [[x if isinstance(x, str) else x.decode() for x in row] for row in got.as_numpy("y")]
    assert texts == [
        ["0.500000:1:dog", "0.250000:0:cat", "0.250000:2"],
        ["inf:3", "3.000000:2", "2.000000:1:dog"],
    ]


def test_every_output_has_its_own_labels() -> None:
    scores = {name: ("FP32", np.array([[1, 2]], np.float32)) for name in ("animal", "colour", "size")}
    request = asked(*(Wanted(name, True, 1) for name in scores))
    labels = {"animal": ["cat", "dog"], "": ["red", "blue"], "size": []}
    got = parsed(reply_of(scores, request, labels=labels))
    assert [got.as_numpy(name)[0, 0] for name in scores] == [b"2.000000:1:dog", *[b"2.000000:1:blue"] * 2]
