"""NVIDIA's client against us: what its `simple_http_*` examples show, and every other call it has; shared memory has
tests of its own."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.edge.gateway.live import Live, scaled

http = pytest.importorskip("tritonclient.http")
aio = pytest.importorskip("tritonclient.http.aio")
utils = pytest.importorskip("tritonclient.utils")


@pytest.fixture
def client(gateway: Live) -> Iterator[Any]:
    made = http.InferenceServerClient(gateway.address.removeprefix("http://"), concurrency=4)
    yield made
    made.close()


def _inputs(a: np.ndarray, b: np.ndarray, kind: str = "INT32", binary: bool = True, module: Any = http) -> list[Any]:
    made = [module.InferInput(f"INPUT{i}", list(x.shape), kind) for i, x in enumerate((a, b))]
    for one, x in zip(made, (a, b), strict=True):
        one.set_data_from_numpy(x, binary_data=binary)
    return made


def _pair() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng()
    a, b = rng.integers(-1000, 1000, (2, 1, 16), dtype=np.int32)
    return a, b


class TestInfer:
    @pytest.mark.parametrize("binary_in", [True, False])
    @pytest.mark.parametrize("binary_out", [True, False])
    def test_sum_and_difference(self, client: Any, binary_in: bool, binary_out: bool) -> None:
        a, b = _pair()
        outputs = [http.InferRequestedOutput(f"OUTPUT{i}", binary_data=binary_out) for i in (0, 1)]
        found = client.infer("simple", _inputs(a, b, binary=binary_in), outputs=outputs, request_id="seven")
        np.testing.assert_array_equal(found.as_numpy("OUTPUT0"), a + b)
        np.testing.assert_array_equal(found.as_numpy("OUTPUT1"), a - b)
        assert found.get_response()["id"] == "seven"
        assert found.get_response()["model_name"] == "simple"
        assert found.get_output("OUTPUT0")["datatype"] == "INT32"

    def test_outputs_not_named_in_the_request_are_binary(self, client: Any) -> None:
        a, b = _pair()
        found = client.infer("simple", _inputs(a, b))
        np.testing.assert_array_equal(found.as_numpy("OUTPUT1"), a - b)
        assert "binary_data_size" in found.get_output("OUTPUT0")["parameters"]

    def test_one_output_alone(self, client: Any) -> None:
        a, b = _pair()
        found = client.infer("simple", _inputs(a, b), outputs=[http.InferRequestedOutput("OUTPUT1")])
        assert found.as_numpy("OUTPUT0") is None
        np.testing.assert_array_equal(found.as_numpy("OUTPUT1"), a - b)

    @pytest.mark.parametrize("there", ["gzip", "deflate", None])
    @pytest.mark.parametrize("back", ["gzip", "deflate", None])
    def test_compressed(self, client: Any, there: str | None, back: str | None) -> None:
        a, b = _pair()
        found = client.infer(
            "simple", _inputs(a, b), request_compression_algorithm=there, response_compression_algorithm=back
        )
        np.testing.assert_array_equal(found.as_numpy("OUTPUT0"), a + b)

    def test_asynchronously(self, client: Any) -> None:
        pairs = [_pair() for _ in range(20)]
        waiting = [client.async_infer("simple", _inputs(a, b)) for a, b in pairs]
        for (a, b), one in zip(pairs, waiting, strict=True):
            np.testing.assert_array_equal(one.get_result().as_numpy("OUTPUT0"), a + b)

    @pytest.mark.parametrize("binary", [True, False])
    def test_strings(self, client: Any, binary: bool) -> None:
        a, b = _pair()
        texts = [np.array([str(v).encode() for v in x.ravel()], object).reshape(x.shape) for x in (a, b)]
        outputs = [http.InferRequestedOutput(f"OUTPUT{i}", binary_data=binary) for i in (0, 1)]
        found = client.infer("simple_string", _inputs(*texts, kind="BYTES", binary=binary), outputs=outputs)
        total = [int(v) for v in found.as_numpy("OUTPUT0").ravel()]
        assert total == (a + b).ravel().tolist()
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
            inputs.append(http.InferInput(name, [2, 3], kinds[name]))
            inputs[-1].set_data_from_numpy(x)
        found = client.infer("numbers", inputs)
        for name, x in given.items():
            np.testing.assert_array_equal(found.as_numpy(f"{name}_out"), x)

    def test_classes(self, client: Any) -> None:
        x = np.array([[0.1, 3.0, -1.0, 2.0]], np.float32)
        given = http.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(x)
        found = client.infer("scaled", [given], outputs=[http.InferRequestedOutput("y", class_count=2)])
        assert [t.decode() for t in found.as_numpy("y").ravel()] == ["3.000000:1", "2.000000:3"]

    def test_versions_and_labels(self, client: Any) -> None:
        given = http.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(np.ones((1, 4), np.float32))
        for version, factor in (("", 1), ("1", 1), ("2", 2), ("canary", 2), ("stable", 1)):
            found = client.infer("scaled", [given], model_version=version)
            assert found.as_numpy("y")[0, 0] == factor
            assert found.get_response()["model_version"] == str(factor)

    def test_parameters(self, client: Any) -> None:
        a, b = _pair()
        found = client.infer("simple", _inputs(a, b), priority=1, timeout=5_000_000, parameters={"anything": "else"})
        np.testing.assert_array_equal(found.as_numpy("OUTPUT0"), a + b)

    def test_body_made_and_read_by_hand(self, client: Any, gateway: Live) -> None:
        import http.client as plain

        a, b = _pair()
        body, size = http.InferenceServerClient.generate_request_body(_inputs(a, b))
        connection = plain.HTTPConnection("127.0.0.1", gateway.port, timeout=300)
        connection.request("POST", "/v2/models/simple/infer", body, {"Inference-Header-Content-Length": str(size)})
        reply = connection.getresponse()
        length = int(reply.headers["Inference-Header-Content-Length"])
        found = http.InferenceServerClient.parse_response_body(reply.read(), header_length=length)
        np.testing.assert_array_equal(found.as_numpy("OUTPUT0"), a + b)
        connection.close()


class TestServer:
    def test_health_and_metadata(self, client: Any) -> None:
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("simple") and not client.is_model_ready("nobody")
        assert client.is_model_ready("scaled", "2") and not client.is_model_ready("scaled", "7")
        about = client.get_server_metadata()
        assert about["name"] == "msedge" and "binary_tensor_data" in about["extensions"]
        model = client.get_model_metadata("simple")
        assert [one["name"] for one in model["inputs"]] == ["INPUT0", "INPUT1"]
        assert model["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
        assert client.get_model_metadata("scaled")["versions"] == ["1", "2"]
        config = client.get_model_config("simple")
        assert config["max_batch_size"] > 1 and config["input"][0]["data_type"] == "TYPE_INT32"

    def test_unknown_model(self, client: Any) -> None:
        for call in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
            with pytest.raises(utils.InferenceServerException, match="nobody"):
                call("nobody")

    def test_statistics(self, client: Any) -> None:
        before = client.get_inference_statistics("simple")["model_stats"]
        count = before[0]["inference_count"] if before else 0
        a, b = _pair()
        client.infer("simple", _inputs(a, b))
        (after,) = client.get_inference_statistics("simple", "1")["model_stats"]
        assert after["inference_count"] == count + 1
        assert after["inference_stats"]["success"]["count"] >= after["execution_count"] > 0
        assert {one["name"] for one in client.get_inference_statistics()["model_stats"]} >= {"simple"}

    def test_repository(self, client: Any, gateway: Live, tmp_path: Path) -> None:
        names = {row["name"]: row["state"] for row in client.get_model_repository_index()}
        assert names["simple"] == "READY"
        client.unload_model("numbers")
        assert not client.is_model_ready("numbers")
        state = {row["name"]: row for row in client.get_model_repository_index()}["numbers"]
        assert state["state"] == "UNAVAILABLE" and state["reason"] == "unloaded"
        client.load_model("numbers")
        assert client.is_model_ready("numbers")
        with pytest.raises(utils.InferenceServerException, match="nobody"):
            client.load_model("nobody")

    def test_a_model_in_the_request(self, client: Any, tmp_path: Path) -> None:
        content = scaled(tmp_path / "m.mslite", 5.0).read_bytes()
        config = '{"parameters": {}, "max_batch_size": 8}'
        client.load_model("sent", config=config, files={"file:1/model.mslite": content})
        given = http.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(np.ones((1, 4), np.float32))
        assert client.infer("sent", [given]).as_numpy("y")[0, 0] == 5
        assert client.get_model_config("sent")["max_batch_size"] == 8
        with pytest.raises(utils.InferenceServerException, match="mslite"):
            client.load_model("sent", files={"file:1/model.mslite": b"not a bundle"})
        assert client.infer("sent", [given]).as_numpy("y")[0, 0] == 5
        client.unload_model("sent")
        assert base64.b64encode(content)

    def test_errors_show_the_servers_message(self, client: Any) -> None:
        a, b = _pair()
        with pytest.raises(utils.InferenceServerException, match="INPUT0") as caught:
            client.infer("simple", _inputs(a.astype(np.float32), b.astype(np.float32), kind="FP32"))
        assert caught.value.status() == "400"

    def test_shared_memory_is_off_by_default(self, client: Any) -> None:
        with pytest.raises(utils.InferenceServerException, match=r"access\.shared_memory") as caught:
            client.get_system_shared_memory_status()
        assert caught.value.status() == "403"


def test_asyncio_client(gateway: Live) -> None:
    async def run() -> None:
        async with aio.InferenceServerClient(gateway.address.removeprefix("http://")) as client:
            assert await client.is_server_live() and await client.is_server_ready()
            assert await client.is_model_ready("simple")
            assert (await client.get_server_metadata())["name"] == "msedge"
            assert (await client.get_model_metadata("simple"))["name"] == "simple"
            assert (await client.get_model_config("simple"))["name"] == "simple"
            assert [row["name"] for row in await client.get_model_repository_index()]
            pairs = [_pair() for _ in range(30)]
            found = await asyncio.gather(*(client.infer("simple", _inputs(a, b, module=aio)) for a, b in pairs))
            for (a, b), one in zip(pairs, found, strict=True):
                np.testing.assert_array_equal(one.as_numpy("OUTPUT0"), a + b)
            a, b = _pair()
            one = await client.infer(
                "simple", _inputs(a, b, module=aio), request_compression_algorithm="gzip",
                response_compression_algorithm="deflate",
            )  # fmt: skip
            np.testing.assert_array_equal(one.as_numpy("OUTPUT1"), a - b)
            assert (await client.get_inference_statistics("simple"))["model_stats"]
            await client.unload_model("simple_string")
            await client.load_model("simple_string")

    asyncio.run(run())
