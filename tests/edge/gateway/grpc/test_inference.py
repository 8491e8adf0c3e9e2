"""Requests as messages, hostile ones among them: each is answered correctly or refused with a reason, and the gateway
goes on."""

from __future__ import annotations

import random
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest

from edge.gateway.exchange import Ask
from edge.gateway.grpc.inference import MOST_TYPED
from edge.gateway.grpc.messages import message
from edge.gateway.grpc.wire import MOST_FIELDS
from tests.edge.gateway.grpc.serving import call, caller, channel, simple_request
from tests.edge.gateway.live import Live

A = np.arange(16, dtype=np.int32)[None]
KINDS = {
    "BOOL": ("BOOL", "bool_contents", [True, False, True]),
    "UINT8": ("UINT8", "uint_contents", [0, 255, 7]),
    "INT8": ("INT8", "int_contents", [-128, 127, 0]),
    "INT64": ("INT64", "int64_contents", [-(2**63), 2**63 - 1, 0]),
    "FLOAT": ("FP32", "fp32_contents", [0.5, float("inf"), float("nan")]),
    "DOUBLE": ("FP64", "fp64_contents", [1e300, -0.0, 2.0]),
    "STRING": ("BYTES", "bytes_contents", [b"", b"\xc3\xa9", b"abc"]),
}


def numbers(**changed: Any) -> Any:
    """A request to `numbers` with typed contents, FP16 and BF16 left out."""
    made = message("ModelInferRequest")(model_name="numbers")
    for name, (datatype, field, values) in KINDS.items():
        one = made.inputs.add(name=name, datatype=datatype, shape=[1, 3])
        field, values = changed.get(name, (field, values))
        getattr(one.contents, field).extend(values)
    return made


def scaled(shape: list[int], raw: bytes | None = None, **fields: Any) -> Any:
    made = message("ModelInferRequest")(model_name="scaled", **fields)
    made.inputs.add(name="x", datatype="FP32", shape=shape)
    if raw is not None:
        made.raw_input_contents.append(raw)
    return made


def answer(address: str, request: Any) -> str:
    """The code and text of a refusal, "OK" for an answer."""
    try:
        call(address, "ModelInfer", request)
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    return "OK"


class TestContents:
    def test_typed_contents(self, address: str) -> None:
        """FP16 and BF16 have none, so the model's other inputs are asked in a request of raw contents."""
        made = message("ModelInferRequest")(model_name="simple")
        for name, x in (("INPUT0", A), ("INPUT1", 2 * A)):
            one = made.inputs.add(name=name, datatype="INT32", shape=x.shape)
            one.contents.int_contents.extend(x.ravel().tolist())
        reply = call(address, "ModelInfer", made)
        np.testing.assert_array_equal(np.frombuffer(reply.raw_output_contents[0], np.int32), 3 * A[0])
        assert [(one.name, one.datatype, list(one.shape)) for one in reply.outputs] == [
            ("OUTPUT0", "INT32", [1, 16]), ("OUTPUT1", "INT32", [1, 16])
        ]  # fmt: skip

    @pytest.mark.parametrize("name", KINDS)
    def test_each_type_of_contents(self, name: str, address: str, gateway: Live) -> None:
        """As arrays, by the same ports that the gateway checks with."""
        from edge.gateway.grpc.inference import _typed

        datatype, field, values = KINDS[name]
        port = gateway.gateway.repository.route("numbers").ports_for("predict").inputs[name]
        contents = message("InferTensorContents")()
        getattr(contents, field).extend(values)
        array = _typed(contents, port, (1, 3))
        assert array.dtype == port.dtype and array.shape == (1, 3) and port.datatype == datatype
        np.testing.assert_array_equal(array[0], np.array(values, port.dtype))

    def test_raw_contents_are_views(self, gateway: Live) -> None:
        """Aligned tensors are not copied."""
        from edge.gateway.grpc.inference import open_request, parted

        ports = gateway.gateway.repository.route("scaled").ports_for
        shared = 0
        for k in range(8):
            data = scaled([4096, 4], bytes(65536), id="x" * k).SerializeToString()
            ask = open_request(data, parted(data), to=Ask("", "", {}, memoryview(b""), ""))
            array = ask.form.read(ask.fields, ask.body, ports).inputs["x"]
            shared += np.shares_memory(array, np.frombuffer(data, np.uint8))
            assert array.flags.aligned and not array.any()
        assert 0 < shared < 8

    def test_half_precision_needs_raw_contents(self, address: str) -> None:
        made = numbers()
        for name, datatype in (("FLOAT16", "FP16"), ("BFLOAT16", "BF16")):
            made.inputs.add(name=name, datatype=datatype, shape=[1, 3]).contents.fp32_contents.extend([1, 2, 3])
        assert "FP16 has no field in contents" in answer(address, made)

    def test_all_datatypes_raw(self, address: str) -> None:
        made = message("ModelInferRequest")(model_name="numbers")
        kinds = "BOOL UINT8 INT8 INT64 FP16 FP32 FP64 BYTES BF16".split()
        names = "BOOL UINT8 INT8 INT64 FLOAT16 FLOAT DOUBLE STRING BFLOAT16".split()
        dtypes = [np.bool_, np.uint8, np.int8, np.int64, np.float16, np.float32, np.float64, None, ml_dtypes.bfloat16]
        for name, kind, dtype in zip(names, kinds, dtypes, strict=True):
            made.inputs.add(name=name, datatype=kind, shape=[1, 3])
            raw = b"\1\0\0\0a\0\0\0\0\2\0\0\0bc" if dtype is None else np.array([1, 0, 1], dtype).tobytes()
            made.raw_input_contents.append(raw)
        reply = call(address, "ModelInfer", made)
        found = dict(zip((one.name for one in reply.outputs), reply.raw_output_contents, strict=True))
        for name, raw in zip(names, made.raw_input_contents, strict=True):
            assert found[f"{name}_out"] == raw


HOSTILE = {
    "nothing": (b"", "NOT_FOUND"),
    "no message": (b"\xff" * 50, "INVALID_ARGUMENT: expected a protobuf message"),
    "a truncated message": (simple_request(A, A).SerializeToString()[:-5], "INVALID_ARGUMENT: expected a protobuf"),
    "a group": (b"\x3b\x3c", "INVALID_ARGUMENT: expected a protobuf message"),
    "text that is not UTF-8": (b"\x0a\x02\xff\xfe", "INVALID_ARGUMENT: expected a message ModelInferRequest"),
    "no inputs": (message("ModelInferRequest")(model_name="simple"), "INVALID_ARGUMENT: inputs: missing"),
    "a negative size": (scaled([-1, 4], bytes(16)), "INVALID_ARGUMENT: input 'x': expected shape"),
    "a huge size": (scaled([2**62, 4], bytes(16)), "INVALID_ARGUMENT: input 'x': its shape"),
    "sizes whose product overflows": (scaled([2**32, 2**32, 4], bytes(16)), "INVALID_ARGUMENT: input 'x'"),
    "a large size": (scaled([2**30, 4], bytes(16)), "INVALID_ARGUMENT: input 'x': FP32 [1073741824, 4] takes"),
    "a large size, typed": (scaled([2**30, 4]), "INVALID_ARGUMENT: input 'x': expected 4294967296 elements"),
    "too many axes": (scaled([1] * 1000, bytes(4)), "INVALID_ARGUMENT: input 'x': expected shape"),
    "no rows": (scaled([0, 4], b""), "INVALID_ARGUMENT: input 'x': expected at least one row"),
    "too few bytes": (scaled([1, 4], bytes(15)), "INVALID_ARGUMENT: input 'x': FP32 [1, 4] takes 16 bytes"),
    "too many bytes": (scaled([1, 4], bytes(17)), "INVALID_ARGUMENT: input 'x': FP32 [1, 4] takes 16 bytes"),
    "another datatype": (
        message("ModelInferRequest")(model_name="scaled", inputs=[{"name": "x", "datatype": "INT32", "shape": [1, 4]}]),
        "INVALID_ARGUMENT: input 'x' is FP32, got datatype 'INT32'",
    ),
    "a version": (scaled([1, 4], bytes(16), model_version="99"), "NOT_FOUND"),
    "another field": (numbers(INT8=("fp32_contents", [1, 2, 3])), "INVALID_ARGUMENT"),
    "too many fields": (b"\x3a\x00" * (MOST_FIELDS + 1), "RESOURCE_EXHAUSTED: expected at most"),
    "many inputs": (b"\x2a\x00" * (MOST_FIELDS + 1), "RESOURCE_EXHAUSTED: expected at most"),
    "large typed contents": (b"\x2a" + b"\x80\x80\x80\x09" + bytes(9 << 21), "RESOURCE_EXHAUSTED: expected at most"),
}


class TestHostile:
    @pytest.mark.parametrize(("request_", "told"), HOSTILE.values(), ids=HOSTILE)
    def test_refused_with_a_reason(self, address: str, request_: Any, told: str) -> None:
        assert answer(address, request_).startswith(told)
        assert answer(address, simple_request(A, A)) == "OK"

    def test_both_kinds_of_contents(self, address: str) -> None:
        request = scaled([1, 4], bytes(16))
        request.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
        assert "expected either contents or raw_input_contents, got both" in answer(address, request)

    @pytest.mark.parametrize("count", [1, 3])
    def test_another_number_of_raw_contents(self, address: str, count: int) -> None:
        request = simple_request(A, A)
        del request.raw_input_contents[:]
        request.raw_input_contents.extend([A.tobytes()] * count)
        assert f"raw_input_contents for each of 2 inputs, got {count}" in answer(address, request)

    @pytest.mark.parametrize(
        ("field", "values", "told"),
        [
            ("int_contents", [128, 0, 0], "INT8 does not hold 128"),
            ("int_contents", [1, 2], "expected 3 elements in contents.int_contents"),
            ("int_contents", [1] * 4, "expected 3 elements in contents.int_contents"),
            ("int64_contents", [1, 2, 3], "expected contents.int_contents, got int64_contents"),
        ],
    )
    def test_typed_contents_that_do_not_fit(self, gateway: Live, field: str, values: list[int], told: str) -> None:
        from edge.gateway.errors import GatewayError
        from edge.gateway.grpc.inference import _typed

        port = gateway.gateway.repository.route("numbers").ports_for("predict").inputs["INT8"]
        contents = message("InferTensorContents")()
        getattr(contents, field).extend(values)
        with pytest.raises(GatewayError, match=told):
            _typed(contents, port, (1, 3))

    def test_strings_whose_lengths_lie(self, address: str) -> None:
        for raw in (b"\xff\xff\xff\xff", b"\1\0\0\0", b"", b"\0\0\0\0" * 17):
            request = message("ModelInferRequest")(model_name="simple_string")
            for i in (0, 1):
                request.inputs.add(name=f"INPUT{i}", datatype="BYTES", shape=[1, 16])
                request.raw_input_contents.append(raw)
            assert answer(address, request).startswith("INVALID_ARGUMENT: input 'INPUT0'")

    @pytest.mark.parametrize(
        ("name", "kind", "value"),
        [("priority", "int64_param", -1), ("timeout", "double_param", 1.5), ("sequence_id", "double_param", 1.0),
         ("sequence_start", "string_param", "yes"), ("signature", "int64_param", 3), ("sequence_id", "int64_param", 4)],
    )  # fmt: skip
    def test_parameters_that_are_wrong(self, address: str, name: str, kind: str, value: Any) -> None:
        request = scaled([1, 4], bytes(16))
        setattr(request.parameters[name], kind, value)
        assert answer(address, request).startswith("INVALID_ARGUMENT") and name in answer(address, request)

    def test_a_parameter_without_a_value(self, address: str) -> None:
        request = scaled([1, 4], bytes(16))
        request.parameters["empty"].SetInParent()
        assert "expected 'empty' to have a value" in answer(address, request)

    def test_parameters_that_only_json_needs_are_ignored(self, address: str) -> None:
        request = scaled([1, 4], bytes(16))
        request.parameters["binary_data_output"].bool_param = False
        request.inputs[0].parameters["binary_data_size"].int64_param = 7
        request.outputs.add(name="y").parameters["binary_data"].bool_param = False
        assert answer(address, request) == "OK"

    def test_damaged_requests(self, address: str, gateway: Live) -> None:
        """Thousands of changed bytes: no internal error, and the gateway answers in between."""
        rng = random.Random(7)
        right = [simple_request(A, A, id="x").SerializeToString(), numbers().SerializeToString(),
                 scaled([1, 4], bytes(16)).SerializeToString()]  # fmt: skip
        before = gateway.gateway.statistics.refused["infer", 500]
        seen = set()
        with channel(address) as made:
            ask = caller(made, "ModelInfer")
            for _ in range(3000):
                data = bytearray(rng.choice(right))
                for _ in range(rng.randint(1, 4)):
                    data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
                if rng.random() < 0.2:
                    del data[rng.randrange(len(data)) :]
                try:
                    ask(bytes(data), timeout=60)
                    seen.add("OK")
                except grpc.RpcError as error:
                    seen.add(error.code().name)
        assert gateway.gateway.statistics.refused["infer", 500] == before
        assert {"OK", "INVALID_ARGUMENT"} <= seen and not seen & {"INTERNAL", "UNKNOWN"}
        assert answer(address, simple_request(A, A)) == "OK" and gateway.gateway.under_way == 0

    def test_other_methods_refuse_garbage(self, address: str) -> None:
        for method in ("ModelReady", "ModelMetadata", "RepositoryIndex", "RepositoryModelLoad", "ModelStatistics"):
            with pytest.raises(grpc.RpcError) as caught:
                call(address, method, b"\x0a\xff\xff")
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        request = message("RepositoryIndexRequest")(repository_name="another")
        with pytest.raises(grpc.RpcError) as caught:
            call(address, "RepositoryIndex", request)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_large_typed_contents_are_parsed_aside(address: str) -> None:
    """Below the limit, on another thread."""
    x = np.random.default_rng().random((4096, 64), np.float32)
    request = message("ModelInferRequest")(model_name="scaled")
    one = request.inputs.add(name="x", datatype="FP32", shape=[4096, 4])
    one.contents.fp32_contents.extend(x[:, :4].ravel().tolist())
    one.parameters["pad"].string_param = "p" * (1 << 20)
    assert request.ByteSize() < MOST_TYPED
    reply = call(address, "ModelInfer", request)
    np.testing.assert_array_equal(np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(-1, 4), x[:, :4])
