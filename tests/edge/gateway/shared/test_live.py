"""Clients on the same machine whose tensors are in shared memory: NVIDIA's, and others."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from edge.gateway.access import tokens
from edge.gateway.infer import COPIED
from edge.gateway.shared.region import FOLDER
from tests.edge.gateway.ensembles.parts import document, put, scaled, step, wide
from tests.edge.gateway.grpc.serving import listening
from tests.edge.gateway.live import Live, live, numbers, simple, simple_string
from tests.waiting import until

http = pytest.importorskip("tritonclient.http")
aio = pytest.importorskip("tritonclient.http.aio")
grpc = pytest.importorskip("tritonclient.grpc")
shm = pytest.importorskip("tritonclient.utils.shared_memory")
utils = pytest.importorskip("tritonclient.utils")
Array = np.ndarray
Refused = utils.InferenceServerException


@contextmanager
def serving(models: Path, **flags: Any) -> Iterator[tuple[Live, Any, Any]]:
    """A gateway with shared memory, and NVIDIA's clients of it over HTTP and gRPC."""
    with live(models, access__shared_memory="loopback", **flags) as there, listening(there) as address, \
            grpc.InferenceServerClient(address) as remote:  # fmt: skip
        client = http.InferenceServerClient(there.address.removeprefix("http://"), network_timeout=300)
        yield there, client, remote
        client.close()


class Memory:
    """Objects of shared memory, removed at the end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def make(self, size: int, content: bytes = b"") -> Any:
        """A handle of NVIDIA's, and its key as `_shm_key`."""
        key = f"/msedge-{secrets.token_hex(8)}"
        handle = shm.create_shared_memory_region(key, key, size)
        self._stack.callback(shm.destroy_shared_memory_region, handle)
        handle._mpsm_handle.buf[: len(content)] = content
        return handle


@pytest.fixture
def memory() -> Iterator[Memory]:
    with ExitStack() as stack:
        yield Memory(stack)


def bytes_of(handle: Any, size: int, offset: int = 0) -> bytes:
    return bytes(handle._mpsm_handle.buf[offset : offset + size])


def call(
    there: Live, method: str, path: str, body: Any = None, fields: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", there.port, timeout=300)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), dict(fields or {}))
        reply = connection.getresponse()
        content = reply.read()
        return reply.status, json.loads(content) if content else None
    finally:
        connection.close()


def one(module: Any, name: str, x: Array, kind: str, region: str, offset: int = 0) -> Any:
    made = module.InferInput(name, list(x.shape), kind)
    made.set_shared_memory(region, x.nbytes, offset=offset)
    return made


def out(module: Any, name: str, region: str, size: int, offset: int = 0) -> Any:
    made = module.InferRequestedOutput(name)
    made.set_shared_memory(region, size, offset=offset)
    return made


# -- tensors -----------------------------------------------------------------------------------------------------------


def test_inputs_and_outputs_in_one_region_each(tmp_path: Path, memory: Memory) -> None:
    """As in NVIDIA's example, over HTTP and gRPC; offsets within the region, and of the region within the object."""
    simple(tmp_path / "simple.mslite")
    rng = np.random.default_rng()
    with serving(tmp_path) as (there, client, remote):
        assert "system_shared_memory" in client.get_server_metadata()["extensions"]
        for module, who in ((http, client), (grpc, remote)):
            a, b = rng.integers(-1000, 1000, (2, 3, 16), dtype=np.int32)
            given = memory.make(1000)
            shm.set_shared_memory_region(given, [a, b], offset=100 + 20)
            found = memory.make(1000, b"\xee" * 1000)
            who.unregister_system_shared_memory()
            who.unregister_cuda_shared_memory()
            who.register_system_shared_memory("in", given._shm_key, 800, offset=100)
            who.register_system_shared_memory("out", found._shm_key, 900)
            inputs = [
                one(module, "INPUT0", a, "INT32", "in", 20),
                one(module, "INPUT1", b, "INT32", "in", 20 + a.nbytes),
            ]
            outputs = [out(module, "OUTPUT1", "out", 250, 400), out(module, "OUTPUT0", "out", a.nbytes, 4)]
            reply = who.infer("simple", inputs, outputs=outputs, request_id="seven")
            assert bytes_of(found, 1000) == (
                b"\xee" * 4
                + (a + b).tobytes()
                + b"\xee" * (396 - a.nbytes)
                + (a - b).tobytes()
                + b"\xee" * (600 - a.nbytes)
            )
            told = reply.get_output("OUTPUT0")
            shape = told["shape"] if module is http else list(told.shape)
            assert shape == [3, 16] and (module is grpc or not {"data", "parameters"} & set(told))
            (status,) = [who.get_system_shared_memory_status("in")]
            listed = status[0] if module is http else status.regions["in"]
            seen = (
                listed
                if module is http
                else {name: getattr(listed, name) for name in ("name", "key", "offset", "byte_size")}
            )
            assert seen == {"name": "in", "key": given._shm_key, "offset": 100, "byte_size": 800}
            who.unregister_system_shared_memory("in")
            with pytest.raises(Refused, match="no shared memory region 'in'"):
                who.infer("simple", inputs)
            who.unregister_system_shared_memory()
        assert not len(there.gateway.regions) and not there.gateway.regions.nbytes
        assert not there.gateway.room.taken and not there.gateway.under_way


def test_some_tensors_in_shared_memory_and_others_in_the_message(tmp_path: Path, memory: Memory) -> None:
    simple(tmp_path / "simple.mslite")
    a, b = np.random.default_rng().integers(-1000, 1000, (2, 1, 16), dtype=np.int32)
    given, found = memory.make(a.nbytes, a.tobytes()), memory.make(a.nbytes)
    with serving(tmp_path) as (_, client, remote):
        client.register_system_shared_memory("in", given._shm_key, a.nbytes)
        client.register_system_shared_memory("out", found._shm_key, a.nbytes)
        for module, who, kinds in ((http, client, (True, False)), (grpc, remote, (True,))):
            for binary in kinds:
                other = module.InferInput("INPUT1", [1, 16], "INT32")
                other.set_data_from_numpy(b, **({"binary_data": binary} if module is http else {}))
                outputs = [out(module, "OUTPUT0", "out", a.nbytes), module.InferRequestedOutput("OUTPUT1")]
                for first in (0, 1):  # the order of inputs and outputs is the client's
                    inputs = [one(module, "INPUT0", a, "INT32", "in"), other]
                    reply = who.infer("simple", inputs[:: 1 - 2 * first], outputs=outputs[:: 1 - 2 * first])
                    np.testing.assert_array_equal(reply.as_numpy("OUTPUT1"), a - b)
                    assert bytes_of(found, a.nbytes) == (a + b).tobytes()


def test_every_datatype(tmp_path: Path, memory: Memory) -> None:
    numbers(tmp_path / "numbers.mslite")
    rng = np.random.default_rng()
    arrays = {
        "BOOL": rng.random((2, 3)) < 0.5, "UINT8": rng.integers(0, 256, (2, 3), np.uint8),
        "INT8": rng.integers(-128, 128, (2, 3), np.int8), "INT64": rng.integers(-(2**63), 2**63 - 1, (2, 3)),
        "FLOAT16": rng.random((2, 3)).astype(np.float16), "FLOAT": rng.random((2, 3), np.float32),
        "DOUBLE": rng.random((2, 3)), "BFLOAT16": np.array([[1, -2, 0.5]] * 2, ml_dtypes.bfloat16),
        "STRING": np.array([[b"a", b"", "é".encode()]] * 2, object),
    }  # fmt: skip
    kinds = dict(zip(arrays, "BOOL UINT8 INT8 INT64 FP16 FP32 FP64 BF16 BYTES".split(), strict=True))
    raws = {
        name: utils.serialize_byte_tensor(x).item() if x.dtype.hasobject else x.tobytes() for name, x in arrays.items()
    }
    given, found = memory.make(4096), memory.make(4096)
    with serving(tmp_path) as (_, client, remote):
        client.register_system_shared_memory("in", given._shm_key, 4096)
        client.register_system_shared_memory("out", found._shm_key, 4096)
        for module, who in ((http, client), (grpc, remote)):
            inputs, outputs, at = [], [], 3
            for name, raw in raws.items():
                given._mpsm_handle.buf[at : at + len(raw)] = raw
                inputs.append(module.InferInput(name, [2, 3], kinds[name]))
                inputs[-1].set_shared_memory("in", len(raw), offset=at)
                outputs.append(out(module, f"{name}_out", "out", len(raw), at))
                at += len(raw) + 1
            found._mpsm_handle.buf[:] = bytes(4096)
            who.infer("numbers", inputs, outputs=outputs)
            assert bytes_of(found, at) == bytes_of(given, at)


def test_texts(tmp_path: Path, memory: Memory) -> None:
    """BYTES, with room for longer ones; and lengths that do not add up."""
    simple_string(tmp_path / "simple_string.mslite")
    x = utils.serialize_byte_tensor(np.array([str(i).encode() for i in range(16)], object)).item()
    given, found = memory.make(len(x), x), memory.make(500)
    with serving(tmp_path) as (_, client, remote):
        client.register_system_shared_memory("in", given._shm_key, len(x))
        client.register_system_shared_memory("out", found._shm_key, 500)
        for module, who in ((http, client), (grpc, remote)):
            inputs = [module.InferInput(f"INPUT{i}", [1, 16], "BYTES") for i in (0, 1)]
            for each in inputs:
                each.set_shared_memory("in", len(x))
            who.infer("simple_string", inputs, outputs=[out(module, "OUTPUT0", "out", 500)])
            texts = shm.get_contents_as_numpy(found, np.object_, [1, 16])
            assert [int(text) for text in texts.ravel()] == [2 * i for i in range(16)]
            inputs[1].set_shared_memory("in", len(x) - 1)
            with pytest.raises(Refused, match="input 'INPUT1'"):
                who.infer("simple_string", inputs)


def test_large_tensors(tmp_path: Path, memory: Memory) -> None:
    """They are copied by another thread; many clients at the same time, each with regions of its own."""
    width = COPIED // 4 + 1000
    put(tmp_path / "wide.mslite", wide(2, width))
    rng = np.random.default_rng()
    xs = [rng.random((1, width), np.float32) for _ in range(4)]
    handles = [(memory.make(x.nbytes, x.tobytes()), memory.make(2 * x.nbytes)) for x in xs]
    with serving(tmp_path) as (there, client, _), ThreadPoolExecutor(4) as clients:
        for i, (given, found) in enumerate(handles):
            client.register_system_shared_memory(f"in{i}", given._shm_key, xs[i].nbytes)
            client.register_system_shared_memory(f"out{i}", found._shm_key, 2 * xs[i].nbytes)

        def go(i: int) -> None:
            own = http.InferenceServerClient(there.address.removeprefix("http://"), network_timeout=300)
            for _ in range(3):
                handles[i][1]._mpsm_handle.buf[:] = bytes(2 * xs[i].nbytes)
                own.infer("wide", [one(http, "x", xs[i], "FP32", f"in{i}")],
                          outputs=[out(http, "y", f"out{i}", 2 * xs[i].nbytes)])  # fmt: skip
                assert bytes_of(handles[i][1], 2 * xs[i].nbytes) == xs[i].tobytes() * 2
            own.close()

        list(clients.map(go, range(4)))
        assert not there.gateway.room.taken


def test_ensembles_kept_answers_and_asyncio(tmp_path: Path, memory: Memory) -> None:
    for name, factor in (("a", 2.0), ("b", 3.0)):
        put(tmp_path / f"{name}.mslite", scaled(factor))
    steps = step("a", {"x": "A"}, {"y": "t"}), step("b", {"x": "t"}, {"y": "Z"})
    put(tmp_path / "e" / "ensemble.json", document(["A"], ["Z"], *steps))
    put(tmp_path / "e" / "config.toml", "response_cache = {enable = true}")
    x = np.random.default_rng().random((2, 4), np.float32)
    given, found = memory.make(x.nbytes, x.tobytes()), memory.make(x.nbytes)
    with serving(tmp_path, cache__bytes="1MiB") as (there, client, _):

        async def twice() -> None:
            async with aio.InferenceServerClient(there.address.removeprefix("http://")) as waiting:
                await waiting.register_system_shared_memory("in", given._shm_key, x.nbytes)
                await waiting.register_system_shared_memory("out", found._shm_key, x.nbytes)
                for hits in (0, 1):
                    found._mpsm_handle.buf[:] = bytes(len(found._mpsm_handle.buf))
                    await waiting.infer("e", [one(aio, "A", x, "FP32", "in")], outputs=[out(aio, "Z", "out", x.nbytes)])
                    assert bytes_of(found, x.nbytes) == (x * np.float32(6)).tobytes()
                    assert there.gateway.statistics.of("e", "1").hits == hits

        asyncio.run(twice())
        assert client.get_system_shared_memory_status()


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_refused(tmp_path: Path, memory: Memory) -> None:
    simple(tmp_path / "simple.mslite")
    a = np.ones((1, 16), np.int32)
    given, found = memory.make(128, a.tobytes() * 2), memory.make(128, b"\xee" * 128)
    with serving(tmp_path) as (there, client, remote):
        client.register_system_shared_memory("in", given._shm_key, 128)
        client.register_system_shared_memory("out", found._shm_key, 128)

        def both(module: Any, who: Any, match: str, inputs: Any, outputs: Any = None, code: str = "400") -> None:
            with pytest.raises(Refused, match=match) as caught:
                who.infer("simple", inputs(module), outputs=outputs(module) if outputs else None)
            codes = {"400": "INVALID_ARGUMENT", "404": "NOT_FOUND", "413": "RESOURCE_EXHAUSTED"}
            assert caught.value.status() == (code if module is http else f"StatusCode.{codes[code]}")

        def good(module: Any) -> Any:
            return [one(module, "INPUT0", a, "INT32", "in"), one(module, "INPUT1", a, "INT32", "in", 64)]

        def instead(region: str, size: int, offset: int = 0, shape: Any = (1, 16)) -> Any:
            """The good inputs, the second one at another place."""

            def inputs(module: Any) -> Any:
                other = module.InferInput("INPUT1", list(shape), "INT32")
                other.set_shared_memory(region, size, offset=offset)
                return [good(module)[0], other]

            return inputs

        def outs(*places: tuple[str, int, int]) -> Any:
            return lambda module: [out(module, name, "out", size, offset) for name, size, offset in places]

        for module, who in ((http, client), (grpc, remote)):
            both(module, who, "no shared memory region 'none'", instead("none", 64), code="404")
            end = "shared_memory_offset 65 and shared_memory_byte_size 64 end at 129"
            both(module, who, end, instead("in", 64, 65))
            both(module, who, "shared_memory_byte_size says 64", instead("in", 64, shape=(2, 16)))
            small = outs(("OUTPUT0", 63, 0), ("OUTPUT1", 64, 64))
            both(module, who, "output 'OUTPUT0' takes 64 bytes, shared_memory_byte_size is 63", good, small)
            far = outs(("OUTPUT1", 64, 100))
            both(module, who, "output 'OUTPUT1': shared_memory_region 'out' has 128 bytes", good, far)
        assert bytes_of(found, 128) == b"\xee" * 128  # nothing is written if not everything fits
        for name in ("in", "out"):
            with pytest.raises(Refused, match="registered already; unregister it first") as caught:
                client.register_system_shared_memory(name, given._shm_key, 128)
            assert caught.value.status() == "409"
        wrong = [
            (given._shm_key, 129, "the object has 128 bytes"),
            ("/a/b", 1, "expected a shared memory"),
            ("/msedge-nothing", 1, "does not exist"),
            (given._shm_key, 0, "byte_size from 1 on"),
        ]
        for key, size, match in wrong:
            for who in (client, remote):
                with pytest.raises(Refused, match=match):
                    who.register_system_shared_memory("more", key, size)
        for body in ({}, {"key": 5, "byte_size": 8}, {"key": "/x"}, {"key": "/x", "byte_size": "8"},
                     {"key": "/x", "byte_size": 8, "offset": -1}, {"key": "/x", "byte_size": 8, "offset": 1.5},
                     {"key": "/x", "byte_size": True}):  # fmt: skip
            status, reply = call(there, "POST", "/v2/systemsharedmemory/region/r/register", body)
            assert status == 400 and "expected" in reply["error"]
        assert call(there, "GET", "/v2/systemsharedmemory/region/none/status")[0] == 404
        assert call(there, "POST", "/v2/systemsharedmemory/region/none/unregister")[0] == 200
        place = {"shared_memory_region": "in", "shared_memory_byte_size": 64}
        body = {"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "parameters": place}] * 2}
        assert call(there, "POST", "/v2/models/simple/infer", body)[0] == 400
        assert len(there.gateway.regions) == 2 and not there.gateway.room.taken


def test_cuda_shared_memory_is_not_there(tmp_path: Path) -> None:
    simple(tmp_path / "simple.mslite")
    with serving(tmp_path) as (there, client, remote):
        assert client.get_cuda_shared_memory_status() == [] and not remote.get_cuda_shared_memory_status().regions
        for who in (client, remote):
            who.unregister_cuda_shared_memory()
            with pytest.raises(Refused, match="models run on the processor; use system shared memory") as caught:
                who.register_cuda_shared_memory("r", base64.b64encode(b"handle"), 0, 64)
            assert caught.value.status() in ("501", "StatusCode.UNIMPLEMENTED")
        assert call(there, "GET", "/v2/cudasharedmemory/region/r/status")[0] == 404


def test_limits(tmp_path: Path, memory: Memory) -> None:
    """Of regions, of their bytes, and of the memory for copies of what is in them."""
    put(tmp_path / "m.mslite", scaled(2.0, ("n", 1000)))
    made = memory.make(400_000)
    with serving(tmp_path, limits__regions=2, limits__region_bytes=500_000, limits__bodies=200_000) as (
        there,
        client,
        _,
    ):
        client.register_system_shared_memory("a", made._shm_key, 400_000)
        with pytest.raises(Refused, match=r"limits\.region_bytes 500000") as caught:
            client.register_system_shared_memory("b", made._shm_key, 100_001)
        assert caught.value.status() == "429"
        client.register_system_shared_memory("b", made._shm_key, 100_000)
        with pytest.raises(Refused, match=r"limits\.regions allows 2"):
            client.register_system_shared_memory("c", made._shm_key, 1)
        client.unregister_system_shared_memory("b")
        client.register_system_shared_memory("c", made._shm_key, 1)
        x = np.zeros((100, 1000), np.float32)
        with pytest.raises(Refused, match=r"400000 bytes of memory are needed.*limits\.bodies") as caught:
            client.infer("m", [one(http, "x", x, "FP32", "a")])
        assert caught.value.status() == "413"
        client.infer("m", [one(http, "x", x[:40], "FP32", "a")])
        assert not there.gateway.room.taken


# -- who may -----------------------------------------------------------------------------------------------------------


def test_off_by_default(tmp_path: Path, memory: Memory) -> None:
    simple(tmp_path / "simple.mslite")
    made = memory.make(128)
    with live(tmp_path) as there:
        for method, path in (("GET", "status"), ("POST", "unregister"), ("POST", "region/r/register")):
            for kind in ("system", "cuda"):
                status, reply = call(there, method, f"/v2/{kind}sharedmemory/{path}",
                                     {"key": made._shm_key, "byte_size": 8} if method == "POST" else None)  # fmt: skip
                assert status == 403 and "disabled in this server's settings (access.shared_memory)" in reply["error"]
        place = {"shared_memory_region": "r", "shared_memory_byte_size": 64}
        tensor = {"shape": [1, 16], "datatype": "INT32", "parameters": place}
        body = {"inputs": [{"name": f"INPUT{i}", **tensor} for i in (0, 1)]}
        assert call(there, "POST", "/v2/models/simple/infer", body)[0] == 403
        assert "system_shared_memory" not in there.gateway.metadata()["extensions"]


def test_only_for_clients_on_this_machine(tmp_path: Path, memory: Memory) -> None:
    """Not for others that a proxy names, nor for web pages in a browser on it."""
    simple(tmp_path / "simple.mslite")
    made = memory.make(128)
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 64}
    infer = {
        "inputs": [{"name": f"INPUT{i}", "shape": [1, 16], "datatype": "INT32", "parameters": place} for i in (0, 1)]
    }
    with live(tmp_path, access__shared_memory="loopback", access__proxies="127.0.0.1") as there:
        register = "/v2/systemsharedmemory/region/r/register", {"key": made._shm_key, "byte_size": 128}
        assert call(there, "POST", *register)[0] == 200
        assert call(there, "POST", "/v2/models/simple/infer", infer)[0] == 200
        for fields in (
            {"X-Forwarded-For": "10.1.2.3"}, {"X-Forwarded-For": "127.0.0.1"}, {"Forwarded": "for=10.1.2.3"},
            {"Origin": "https://evil.example"}, {"Host": "evil.example"},
        ):  # fmt: skip
            for path, body in (register, ("/v2/models/simple/infer", infer), ("/v2/systemsharedmemory/unregister", {})):
                status, reply = call(there, "POST", path, body, fields)
                assert status == 403 and "memory: " in reply["error"], (fields, path)
        assert call(there, "POST", "/v2/models/simple/infer", infer)[0] == 200


def test_a_proxys_own_machine_is_not_this_one(tmp_path: Path) -> None:
    """A trusted proxy elsewhere says 127.0.0.1 for clients on its own machine."""
    simple(tmp_path / "simple.mslite")
    told = {"access__shared_memory": "loopback", "access__proxies": "10.0.0.0/8"}
    with live(tmp_path, **told) as there:

        async def refused(scope: str) -> int:
            try:
                there.gateway.admit({"X-Forwarded-For": "127.0.0.1"}, "10.0.0.9", scope)
            except Exception as error:
                return error.status  # type: ignore[attr-defined, no-any-return]
            return 200

        assert there.call(refused("memory")) == 403 == there.call(refused("manage"))


def test_regions_belong_to_tokens(tmp_path: Path, memory: Memory) -> None:
    simple(tmp_path / "simple.mslite")
    file = tmp_path / "tokens.json"
    scopes = {"one": ["infer", "memory"], "other": ["infer", "memory"], "poor": ["infer"], "mute": ["memory"]}
    shown = {name: {"Authorization": f"Bearer {tokens.add(file, name, of)}"} for name, of in scopes.items()}
    a = np.arange(16, dtype=np.int32).reshape(1, 16)
    given, found = memory.make(64, a.tobytes()), memory.make(64)
    models = tmp_path / "models"
    models.mkdir()
    (tmp_path / "simple.mslite").rename(models / "simple.mslite")
    with serving(models, access__tokens=str(file)) as (there, client, remote):

        def infer(who: str) -> Any:
            inputs = [one(http, f"INPUT{i}", a, "INT32", "in") for i in (0, 1)]
            return client.infer("simple", inputs, outputs=[out(http, "OUTPUT0", "out", 64)], headers=shown[who])

        for name, handle in (("in", given), ("out", found)):
            client.register_system_shared_memory(name, handle._shm_key, 64, headers=shown["one"])
        infer("one")
        assert bytes_of(found, 64) == (2 * a).tobytes()
        with pytest.raises(Refused, match="no shared memory region 'in'"):
            infer("other")
        for who in ("poor", "mute"):
            with pytest.raises(Refused, match="the token of") as caught:
                infer(who)
            assert caught.value.status() == "403"
        assert client.get_system_shared_memory_status(headers=shown["other"]) == []
        metadata = {key.lower(): value for key, value in shown["other"].items()}
        assert not remote.get_system_shared_memory_status(headers=metadata).regions
        for who in (client, remote):
            with pytest.raises(Refused, match="token"):
                who.get_system_shared_memory_status(headers={k.lower(): v for k, v in shown["poor"].items()})
            with pytest.raises(Refused):
                who.get_system_shared_memory_status()
        remote.register_system_shared_memory("in", found._shm_key, 64, headers=metadata)  # a name of its own
        client.unregister_system_shared_memory(headers=shown["other"])
        assert [r["name"] for r in client.get_system_shared_memory_status(headers=shown["one"])] == ["in", "out"]
        infer("one")
        there.gateway.log.close()
        told = there.log.getvalue()
        assert "registerSharedMemory region=in who=one peer=127.0.0.1 outcome=done" in told
        assert "SystemSharedMemoryRegister region=in who=other" in told


# -- clients that change or remove what they have registered -----------------------------------------------------------


def test_a_region_that_is_unregistered_while_it_is_used(tmp_path: Path, memory: Memory) -> None:
    put(tmp_path / "m.mslite", scaled(2.0))
    x = np.ones((1, 4), np.float32)
    given, found = memory.make(16, x.tobytes()), memory.make(16)
    with serving(tmp_path) as (there, client, _), ThreadPoolExecutor(1) as clients:
        entered, leave = threading.Event(), threading.Event()
        runner = there.gateway.repository.route("m").usual_runner("predict")  # type: ignore[attr-defined]
        run = runner.run
        runner.run = lambda jobs: (entered.set(), leave.wait(60), run(jobs))
        there.gateway.scheduler._inline = 0  # type: ignore[misc]
        client.register_system_shared_memory("in", given._shm_key, 16)
        client.register_system_shared_memory("out", found._shm_key, 16)
        own = http.InferenceServerClient(there.address.removeprefix("http://"), network_timeout=300)
        asked = clients.submit(own.infer, "m", [one(http, "x", x, "FP32", "in")], outputs=[out(http, "y", "out", 16)])
        assert entered.wait(60)
        client.unregister_system_shared_memory()
        assert client.get_system_shared_memory_status() == []
        leave.set()
        asked.result(60)
        assert bytes_of(found, 16) == (2 * x).tobytes()
        own.close()


def test_a_client_that_leaves_while_its_tensors_are_copied(tmp_path: Path, memory: Memory) -> None:
    width = COPIED // 4 + 1
    put(tmp_path / "m.mslite", scaled(2.0, ("n", width)))
    x = np.ones((1, width), np.float32)
    given = memory.make(x.nbytes, x.tobytes())
    with serving(tmp_path) as (there, client, _):
        client.register_system_shared_memory("in", given._shm_key, x.nbytes)
        place = {"shared_memory_region": "in", "shared_memory_byte_size": x.nbytes}
        body = json.dumps({"inputs": [{"name": "x", "shape": [1, width], "datatype": "FP32", "parameters": place}]})
        for _ in range(10):
            connection = HTTPConnection("127.0.0.1", there.port, timeout=300)
            connection.request("POST", "/v2/models/m/infer", body)
            connection.close()
        until(lambda: not there.gateway.under_way)
        assert not there.gateway.room.taken
        assert client.infer("m", [one(http, "x", x, "FP32", "in")]).as_numpy("y")[0, 0] == 2


def test_no_client_can_end_the_server_by_cutting_its_memory_short(tmp_path: Path, memory: Memory) -> None:
    """A mapped file would end the process with SIGBUS. A real server, whose clients truncate all the time."""
    width = 30_000
    put(tmp_path / "m.mslite", scaled(2.0, ("n", width)))
    x = np.random.default_rng().random((1, width), np.float32)
    given, found = memory.make(x.nbytes, x.tobytes()), memory.make(x.nbytes)
    paths = [Path(FOLDER, handle._shm_key.lstrip("/")) for handle in (given, found)]
    command = [sys.executable, "-m", "edge.cli", "serve", str(tmp_path), "--port", "0", "--threads", "1", "--json",
               "--access-shared-memory", "loopback"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            told = "".join(iter(server.stdout.readline, "}\n"))
            address = json.loads(told + "}")["address"].removeprefix("http://")
            client = http.InferenceServerClient(address, network_timeout=300)
            client.register_system_shared_memory("in", given._shm_key, x.nbytes)
            client.register_system_shared_memory("out", found._shm_key, x.nbytes)
            stop, outcomes = threading.Event(), list[str]()

            def cut() -> None:
                rng = np.random.default_rng()
                while not stop.is_set():
                    for path in paths:
                        os.truncate(path, int(rng.integers(0, x.nbytes)))
                    for path in paths:
                        os.truncate(path, x.nbytes)

            cutter = threading.Thread(target=cut)
            cutter.start()
            inputs, outputs = [one(http, "x", x, "FP32", "in")], [out(http, "y", "out", x.nbytes)]
            while len(outcomes) < 400 or len(set(outcomes)) < 2:
                try:
                    client.infer("m", inputs, outputs=outputs)
                    outcomes.append("200")
                except Refused as error:
                    assert "has become shorter" in str(error)
                    outcomes.append(error.status())
            stop.set()
            cutter.join()
            assert set(outcomes) == {"200", "400"} and server.poll() is None
            given._mpsm_handle.buf[: x.nbytes] = x.tobytes()
            client.infer("m", inputs, outputs=outputs)
            assert bytes_of(found, x.nbytes) == (2 * x).tobytes()
            client.close()
        finally:
            server.send_signal(signal.SIGTERM)
    assert server.returncode == 0
