"""NVIDIA's gRPC client against us: every call it has; shared memory, traces and logs have tests of their own."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.edge.gateway.grpc.models import triton_examples
from tests.edge.gateway.grpc.serving import listening
from tests.edge.gateway.live import live, scaled

triton = pytest.importorskip("tritonclient.grpc")
utils = pytest.importorskip("tritonclient.utils")


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with triton.InferenceServerClient(address) as made:
        yield made


def _inputs(*arrays: np.ndarray, kind: str = "INT32") -> list[Any]:
    made = [triton.InferInput(f"INPUT{i}", list(x.shape), kind) for i, x in enumerate(arrays)]
    for one, x in zip(made, arrays, strict=True):
        one.set_data_from_numpy(x)
    return made


def _pair() -> tuple[np.ndarray, np.ndarray]:
    a, b = np.random.default_rng().integers(-1000, 1000, (2, 1, 16), dtype=np.int32)
    return a, b


def _one(value: float = 1.0) -> Any:
    given = triton.InferInput("x", [1, 4], "FP32")
    given.set_data_from_numpy(np.full((1, 4), value, np.float32))
    return given


def _put(answers: queue.Queue[Any], i: int, result: Any, error: Any) -> None:
    answers.put((i, result, error))


class TestInfer:
    def test_sum_and_difference(self, client: Any) -> None:
        a, b = _pair()
        found = client.infer("simple", _inputs(a, b), request_id="seven")
        np.testing.assert_array_equal(found.as_numpy("OUTPUT0"), a + b)
        np.testing.assert_array_equal(found.as_numpy("OUTPUT1"), a - b)
        reply = found.get_response()
        assert (reply.id, reply.model_name, reply.model_version) == ("seven", "simple", "1")
        assert not any(one.HasField("contents") for one in reply.outputs)

    def test_one_output_alone(self, client: Any) -> None:
        a, b = _pair()
        found = client.infer("simple", _inputs(a, b), outputs=[triton.InferRequestedOutput("OUTPUT1")])
        assert found.as_numpy("OUTPUT0") is None
        np.testing.assert_array_equal(found.as_numpy("OUTPUT1"), a - b)

    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    def test_compressed(self, client: Any, algorithm: str) -> None:
        a, b = _pair()
        found = client.infer("simple", _inputs(a, b), compression_algorithm=algorithm)
        np.testing.assert_array_equal(found.as_numpy("OUTPUT0"), a + b)

    def test_asynchronously(self, client: Any) -> None:
        pairs, answers = [_pair() for _ in range(20)], queue.Queue[Any]()
        for i, (a, b) in enumerate(pairs):
            client.async_infer("simple", _inputs(a, b), partial(_put, answers, i))
        for _ in pairs:
            i, result, error = answers.get(timeout=60)
            assert error is None
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), sum(pairs[i]))

    def test_strings(self, client: Any) -> None:
        a, b = _pair()
        texts = [np.array([str(v).encode() for v in x.ravel()], object).reshape(x.shape) for x in (a, b)]
        found = client.infer("simple_string", _inputs(*texts, kind="BYTES"))
        assert [int(v) for v in found.as_numpy("OUTPUT0").ravel()] == (a + b).ravel().tolist()
        assert [int(v) for v in found.as_numpy("OUTPUT1").ravel()] == (a - b).ravel().tolist()

    def test_every_datatype(self, client: Any) -> None:
        rng = np.random.default_rng()
        given = {
            "BOOL": rng.random((2, 3)) < 0.5, "UINT8": rng.integers(0, 256, (2, 3), np.uint8),
            "INT8": rng.integers(-128, 128, (2, 3), np.int8), "INT64": rng.integers(-(2**63), 2**63 - 1, (2, 3)),
            "FLOAT16": rng.random((2, 3)).astype(np.float16), "FLOAT": rng.random((2, 3), np.float32),
            "DOUBLE": rng.random((2, 3)), "STRING": np.array([[b"a", b"", b"\xc3\xa9"]] * 2, object),
            "BFLOAT16": np.array([[1, -2, 0.5]] * 2, ml_dtypes.bfloat16),
        }  # fmt: skip
        kinds = dict(zip(given, "BOOL UINT8 INT8 INT64 FP16 FP32 FP64 BYTES BF16".split(), strict=True))
        inputs = []
        for name, x in given.items():
            inputs.append(triton.InferInput(name, [2, 3], kinds[name]))
            inputs[-1].set_data_from_numpy(x)
        found = client.infer("numbers", inputs)
        for name, x in given.items():
            np.testing.assert_array_equal(found.as_numpy(f"{name}_out"), x)

    def test_classes(self, client: Any) -> None:
        given = triton.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(np.array([[0.1, 3.0, -1.0, 2.0]], np.float32))
        found = client.infer("scaled", [given], outputs=[triton.InferRequestedOutput("y", class_count=2)])
        assert [t.decode() for t in found.as_numpy("y").ravel()] == ["3.000000:1", "2.000000:3"]
        assert found.get_output("y").datatype == "BYTES"

    def test_versions_and_labels(self, client: Any) -> None:
        for version, factor in (("", 1), ("1", 1), ("2", 2), ("canary", 2), ("stable", 1)):
            found = client.infer("scaled", [_one()], model_version=version)
            assert found.as_numpy("y")[0, 0] == factor
            assert found.get_response().model_version == str(factor)
        found = client.infer("scaled", [_one()], headers={"x-msedge-label": "canary"})
        assert found.get_response().model_version == "2"

    def test_parameters(self, client: Any) -> None:
        a, b = _pair()
        found = client.infer("simple", _inputs(a, b), priority=1, timeout=5_000_000, parameters={"anything": "else"})
        np.testing.assert_array_equal(found.as_numpy("OUTPUT0"), a + b)

    def test_a_device_without_a_version_is_told_so(self, client: Any) -> None:
        found = client.infer("scaled", [_one()], parameters={"device": "phone-17"})
        assert found.get_response().parameters["personal"].string_param == "global"

    def test_many_rows(self, client: Any) -> None:
        x = np.random.default_rng().random((4096, 4), np.float32)
        given = triton.InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x)
        np.testing.assert_array_equal(client.infer("scaled", [given], model_version="2").as_numpy("y"), 2 * x)


class TestServer:
    def test_health_and_metadata(self, client: Any) -> None:
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("simple") and not client.is_model_ready("nobody")
        assert client.is_model_ready("scaled", "2") and not client.is_model_ready("scaled", "7")
        about = client.get_server_metadata()
        assert about.name == "msedge" and "sequence" in about.extensions
        model = client.get_model_metadata("simple")
        assert [one.name for one in model.inputs] == ["INPUT0", "INPUT1"]
        assert (model.inputs[0].datatype, list(model.inputs[0].shape)) == ("INT32", [-1, 16])
        assert client.get_model_metadata("scaled", as_json=True)["versions"] == ["1", "2"]

    def test_configuration(self, client: Any) -> None:
        config = client.get_model_config("simple").config
        assert config.max_batch_size > 1 and config.backend == "msedge"
        assert config.input[0].data_type == 8 and list(config.input[0].dims) == [16]  # TYPE_INT32
        assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
        settings = client.get_model_config("scaled").config.parameters
        assert settings["labels"].string_value == '{"canary":2,"stable":1}'

    def test_unknown_model(self, client: Any) -> None:
        for call in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
            with pytest.raises(utils.InferenceServerException, match="nobody") as caught:
                call("nobody")
            assert caught.value.status() == "StatusCode.NOT_FOUND"

    def test_statistics(self, client: Any) -> None:
        before = client.get_inference_statistics("simple").model_stats
        count = before[0].inference_count if before else 0
        client.infer("simple", _inputs(*_pair()))
        (after,) = client.get_inference_statistics("simple", "1").model_stats
        assert after.inference_count == count + 1
        assert after.inference_stats.success.count >= after.execution_count > 0
        assert after.inference_stats.compute_infer.ns > 0 and after.batch_stats[0].batch_size == 1
        assert {one.name for one in client.get_inference_statistics().model_stats} >= {"simple"}

    def test_repository(self, client: Any) -> None:
        assert {one.name: one.state for one in client.get_model_repository_index().models}["simple"] == "READY"
        client.unload_model("numbers")
        assert not client.is_model_ready("numbers")
        state = {one.name: one for one in client.get_model_repository_index().models}["numbers"]
        assert (state.state, state.reason) == ("UNAVAILABLE", "unloaded")
        client.load_model("numbers")
        assert client.is_model_ready("numbers")
        with pytest.raises(utils.InferenceServerException, match="nobody") as caught:
            client.load_model("nobody")
        assert caught.value.status() == "StatusCode.NOT_FOUND"

    def test_a_model_in_the_request(self, client: Any, tmp_path: Path) -> None:
        content = scaled(tmp_path / "m.mslite", 5.0).read_bytes()
        client.load_model("sent_grpc", config='{"max_batch_size": 8}', files={"file:1/model.mslite": content})
        assert client.infer("sent_grpc", [_one()]).as_numpy("y")[0, 0] == 5
        assert client.get_model_config("sent_grpc").config.max_batch_size == 8
        with pytest.raises(utils.InferenceServerException, match="mslite") as caught:
            client.load_model("sent_grpc", files={"file:1/model.mslite": b"not a bundle"})
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
        with pytest.raises(utils.InferenceServerException, match="expected file:"):
            client.load_model("sent_grpc", config="{}", files={"file:" + "A" * 256: b"a"})
        assert client.infer("sent_grpc", [_one()]).as_numpy("y")[0, 0] == 5
        client.unload_model("sent_grpc")

    def test_errors_have_code_and_text(self, client: Any) -> None:
        with pytest.raises(utils.InferenceServerException, match="INPUT0") as caught:
            client.infer("simple", _inputs(*(x.astype(np.float32) for x in _pair()), kind="FP32"))
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"

    @pytest.mark.parametrize("name", ["get_system_shared_memory_status", "get_cuda_shared_memory_status"])
    def test_shared_memory_is_off_by_default(self, client: Any, name: str) -> None:
        with pytest.raises(utils.InferenceServerException, match=r"access\.shared_memory") as caught:
            getattr(client, name)()
        assert caught.value.status() == "StatusCode.PERMISSION_DENIED"

    def test_tensors_in_shared_memory_are_declined(self, client: Any) -> None:
        one, other = _inputs(*_pair())
        one.set_shared_memory("region", 64)
        with pytest.raises(utils.InferenceServerException, match=r"access\.shared_memory") as caught:
            client.infer("simple", [one, other])
        assert caught.value.status() == "StatusCode.PERMISSION_DENIED"


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = triton_examples(tmp_path_factory.mktemp("triton"))
    with live(folder) as made, listening(made) as found:
        yield found


def test_sequences_in_single_calls(sequences: str) -> None:
    with triton.InferenceServerClient(sequences) as client:
        for identity in (1000, "text", 2**63 - 1):
            got = []
            for i, value in enumerate((11, 7, 5)):
                one = triton.InferInput("INPUT", [1, 1], "INT32")
                one.set_data_from_numpy(np.full((1, 1), value, np.int32))
                found = client.infer("simple_sequence", [one], sequence_id=identity, sequence_start=i == 0,
                                     sequence_end=i == 2)  # fmt: skip
                got.append(int(found.as_numpy("OUTPUT")[0, 0]))
            assert got == [12, 7, 5]
        with pytest.raises(utils.InferenceServerException, match="names the sequence"):
            client.infer("simple_sequence", [one])
        assert client.get_model_config("simple_sequence").config.WhichOneof("scheduling_choice") == "sequence_batching"


def test_sequences_in_one_stream(sequences: str) -> None:
    """Three sequences' requests, mixed: replies come in the order of all requests."""
    answers: queue.Queue[Any] = queue.Queue()
    values, names = [11, 7, 5, 3, 2, 0, 1], [1000, 1001, "a name"]
    with triton.InferenceServerClient(sequences) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for i, value in enumerate(values):
            for name in names:
                one = triton.InferInput("INPUT", [1, 1], "INT32")
                one.set_data_from_numpy(np.full((1, 1), value, np.int32))
                client.async_stream_infer("simple_sequence", [one], request_id=f"{name}/{i}", sequence_id=name,
                                          sequence_start=i == 0, sequence_end=i == len(values) - 1)  # fmt: skip
        for i, value in enumerate(values):
            for name in names:
                result, error = answers.get(timeout=60)
                assert error is None
                assert result.get_response().id == f"{name}/{i}"
                assert result.as_numpy("OUTPUT")[0, 0] == value + (i == 0)
        client.stop_stream()


def test_asyncio_client(sequences: str) -> None:
    """In a process of its own, as two event loops of one process share grpc.aio's wake-up socket."""
    words = [sys.executable, "-m", "tests.edge.gateway.grpc.aio_client", sequences]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.strip() == "passed", done.stderr
