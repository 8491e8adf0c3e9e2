"""The messages are those of inference.proto, and of the protocol: every field has the name, number and type that
NVIDIA's client has for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from edge.gateway.errors import GatewayError
from edge.gateway.grpc.messages import DESCRIPTORS, message, parsed
from edge.gateway.grpc.service import METHODS
from tests import descriptors

service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")
model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")

OURS = {file.package: file for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file}


def _theirs(module: Any) -> descriptor_pb2.FileDescriptorProto:
    found = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(found)
    return found


def _fields(messages: Any, above: str = "") -> Iterator[tuple[str, tuple[int, int, int, str]]]:
    for one in messages:
        name = f"{above}{one.name}"
        for field in one.field:
            group = one.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            kind = (field.number, field.type, field.label, field.type_name + group)
            yield f"{name}.{field.name}", kind
        yield from _fields(one.nested_type, f"{name}.")


def _enums(file: Any) -> Iterator[tuple[str, int]]:
    nested = [one for message_ in file.message_type for one in message_.enum_type]
    yield from ((f"{one.name}.{value.name}", value.number) for one in (*file.enum_type, *nested) for value in one.value)


def test_the_descriptors_are_those_of_the_proto_files() -> None:
    made = descriptor_pb2.FileDescriptorSet.FromString(descriptors.made())
    assert list(made.file) == list(descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file)


def test_fields_are_those_of_the_protocol() -> None:
    files = [_theirs(service_pb2), _theirs(model_config_pb2)]
    theirs = {name: kind for file in files for name, kind in _fields(file.message_type)}
    ours = dict(_fields(OURS["inference"].message_type))
    assert len(ours) > 100
    assert {name: kind for name, kind in ours.items() if theirs.get(name) != kind} == {}
    values = {name: number for file in files for name, number in _enums(file)}
    mine = dict(_enums(OURS["inference"]))
    assert mine and mine.items() <= values.items()


def test_methods_are_those_of_the_protocol() -> None:
    (service,) = OURS["inference"].service
    (theirs,) = _theirs(service_pb2).service
    known = {one.name: (one.input_type, one.output_type, one.client_streaming, one.server_streaming)
             for one in theirs.method}  # fmt: skip
    for one in service.method:
        assert known[one.name] == (one.input_type, one.output_type, one.client_streaming, one.server_streaming)
    assert {one.name for one in service.method} == {m.name for m in METHODS} | {"ModelInfer", "ModelStreamInfer"}


def test_messages_are_apart_from_those_of_a_client_in_the_process() -> None:
    assert message("ModelInferRequest") is not service_pb2.ModelInferRequest
    data = service_pb2.ModelReadyRequest(name="a", version="2").SerializeToString()
    assert parsed("ModelReadyRequest", data).version == "2"


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(GatewayError, match="expected a message ModelReadyRequest") as caught:
        parsed("ModelReadyRequest", b"\x0a\xff\xff")
    assert caught.value.status == 400
