"""Tensors are found in messages where protobuf finds them, and messages that are none are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.gateway.errors import GatewayError
from edge.gateway.grpc.messages import message
from edge.gateway.grpc.wire import MOST_FIELDS, nested, part, varint

RAW = 7


@given(st.lists(st.binary(max_size=300), max_size=6), st.text(max_size=200), st.lists(st.text(max_size=9), max_size=4))
def test_raw_contents_are_separated(raws: list[bytes], name: str, inputs: list[str]) -> None:
    request = message("ModelInferRequest")(model_name=name, id=name, raw_input_contents=raws)
    for one in inputs:
        request.inputs.add(name=one, shape=[-1, 2**40])
    request.parameters["x"].double_param = 0.5
    data = request.SerializeToString()
    found = part(data, RAW)
    assert [data[at : at + size] for at, size in found.raws] == raws
    request.ClearField("raw_input_contents")
    assert message("ModelInferRequest").FromString(found.rest) == request


def test_fields_may_be_in_any_order() -> None:
    """Raw contents first, fields that no message has, and a name in two parts: the last counts."""
    raw = b"".join(map(bytes, nested(RAW, [b"abc"])))
    unknown = varint(1000 << 3 | 1) + bytes(8) + varint(1001 << 3 | 5) + bytes(4) + varint(1002 << 3) + varint(2**63)
    named = [message("ModelInferRequest")(model_name=name).SerializeToString() for name in ("a", "b")]
    data = raw + named[0] + unknown + raw + named[1]
    found = part(data, RAW)
    assert [data[at : at + size] for at, size in found.raws] == [b"abc", b"abc"]
    assert message("ModelInferRequest").FromString(found.rest).model_name == "b"


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """What is read has the same raw contents as in protobuf, if that reads it too."""
    try:
        found = part(data, RAW)
    except GatewayError as error:
        assert error.status == 400
        return
    assert sum(size for _, size in found.raws) + len(found.rest) <= len(data)
    try:
        theirs = message("ModelInferRequest").FromString(data)
    except Exception:
        return
    assert [data[at : at + size] for at, size in found.raws] == list(theirs.raw_input_contents)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x3a", "does not end"),
        (b"\x3a\x05ab", "field 7 at byte 0 has 5 bytes, 2 are left"),
        (b"\x3b", "wire type 3"),
        (b"\x3c", "wire type 4"),
        (b"\x3f", "wire type 7"),
        (b"\x09\x01", "8 bytes"),
        (b"\xff" * 11, "does not end"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "are left"),
    ],
)
def test_damaged_messages_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(GatewayError, match=text) as caught:
        part(data, RAW)
    assert caught.value.status == 400


def test_many_fields_are_refused() -> None:
    assert len(part(b"\x3a\x00" * MOST_FIELDS, RAW).raws) == MOST_FIELDS
    with pytest.raises(GatewayError, match="at most") as caught:
        part(b"\x3a\x00" * (MOST_FIELDS + 1), RAW)
    assert caught.value.status == 413


@given(st.integers(0, 2**63 - 1))
def test_numbers_are_written_as_protobuf_writes_them(value: int) -> None:
    assert message("ModelRepositoryParameter")(int64_param=value).SerializeToString() == b"\x10" + varint(value)
