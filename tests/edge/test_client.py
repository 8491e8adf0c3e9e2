"""The client with a server whose answers the test decides."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

import msedge
from edge.client import Client
from edge.gateway.errors import GatewayError
from edge.gateway.ports import DATATYPES, Port, Ports
from edge.gateway.protocol import request, response
from lite_runtime.graph import Array, numpy_dtype
from tests.waiting import PATIENCE

LENGTH = "Inference-Header-Content-Length"


class Server(ThreadingHTTPServer):
    """Gives back an inference's inputs as its outputs; what `answers` holds for a path, else."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections = 0
        self.drop = 0
        """Requests to come that are answered by closing the connection."""
        self.hold: threading.Event | None = None
        self.closing = False
        """Close each connection after its first answer, without saying so."""

    @property
    def asked(self) -> dict[str, Any]:
        """The JSON of the latest request."""
        *_, headers, body = self.requests[-1]
        found: dict[str, Any] = json.loads(body[: int(headers.get(LENGTH, len(body)))])
        return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, dict(self.headers), body))
        if self.server.hold:
            self.server.hold.wait(PATIENCE)
        if self.server.drop:
            self.server.drop -= 1
            self.close_connection = True
            return
        status, headers, content = self.server.answers.get(self.path) or self.echo(body)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.close_connection |= self.server.closing

    do_POST = do_GET

    def echo(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if not self.path.endswith("/infer"):
            return 200, {}, b"{}"
        length = int(self.headers[LENGTH])
        asked = json.loads(body[:length])
        given = {"model_name": "m", "outputs": asked["inputs"], "parameters": {"personal": "global"}}
        reply = json.dumps(given).encode()
        return 200, {LENGTH: str(len(reply))}, reply + body[length:]

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, wait=5) as found:
        yield found


def test_msedge_offers_it() -> None:
    assert msedge.Client is Client and msedge.GatewayError is GatewayError


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("shape", [(1,), (2, 3), (0, 4), ()])
def test_every_datatype_there_and_back(server: Server, client: Client, datatype: str, shape: tuple[int, ...]) -> None:
    dtype = numpy_dtype(DATATYPES[datatype])
    bits = np.random.default_rng(0).integers(0, 2, (*shape, dtype.itemsize or 1)).astype(np.uint8)
    if dtype.hasobject:
        x = np.vectorize(lambda b: bytes(range(100 * b)), [object])(bits[..., 0])
    else:
        x = np.ascontiguousarray(bits).view(dtype).reshape(shape)
    y = client.infer("m", {"x": x})["x"]
    assert (y.shape, y.dtype) == (x.shape, x.dtype) and np.array_equal(x, y)
    assert server.asked["inputs"][0]["datatype"] == datatype and y.flags.writeable


def test_arrays_of_any_layout(client: Client) -> None:
    x = np.arange(24, dtype=">i4").reshape(4, 6).T[::2]
    found = client.infer("m", {"x": x, "words": np.array([["ä", "b"]]), "n": np.float32(3)})
    assert np.array_equal(found["x"], x) and found["x"].dtype == np.int32
    assert found["words"].tolist() == [["ä".encode(), b"b"]]
    assert found["n"].shape == () and found["n"] == 3


def test_what_an_inference_asks_for(server: Server, client: Client) -> None:
    client.infer("a b/c", {"x": np.ones(2)}, version="3", device="d1", outputs=["x"], timeout=0.25, priority=2)
    assert server.requests[-1][:2] == ("POST", "/v2/models/a%20b%2Fc/versions/3/infer")
    assert server.asked["parameters"] == {"device": "d1", "timeout": 250000, "priority": 2}
    assert server.asked["outputs"] == [{"name": "x", "parameters": {"binary_data": True}}]
    assert client.notes == {"personal": "global"}
    client.infer("m", {"x": np.ones(2)})
    assert server.asked["parameters"] == {"binary_data_output": True} and "outputs" not in server.asked


def test_it_speaks_as_tritons_client_does(server: Server, client: Client) -> None:
    triton = pytest.importorskip("tritonclient.http")
    inputs = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "s": np.array([b"a", b"bcd"], object)}
    client.infer("m", inputs)
    theirs = []
    for name, array in inputs.items():
        tensor = triton.InferInput(name, list(array.shape), "BYTES" if name == "s" else "FP32")
        tensor.set_data_from_numpy(array)
        theirs.append(tensor)
    body, length = triton.InferenceServerClient.generate_request_body(theirs)
    *_, headers, ours = server.requests[-1]
    assert ours[int(headers[LENGTH]) :] == body[length:]
    assert server.asked == json.loads(body[:length])


def test_the_gateway_understands_it(server: Server, client: Client) -> None:
    """What is sent is what the gateway's own reader finds, and what its writer gives is what comes back."""
    tensors = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([[True], [False]]),
        "s": np.array([["a"], ["bcd"]], object),
    }
    ports = {
        name: Port(name, datatype, tensors[name].dtype, size, ("n", tensors[name].shape[1]))
        for name, datatype, size in (("x", "FP32", 4), ("b", "BOOL", 1), ("s", "BYTES", 0))
    }
    both = Ports(ports, ports, True)
    client.infer("m", tensors, device="d", priority=1, outputs=["s", "x"])
    *_, headers, body = server.requests[-1]
    read = request.read(body, int(headers[LENGTH]), lambda signature: both)
    assert (read.rows, read.parameters["device"], read.parameters["priority"]) == (2, "d", 1)
    assert np.array_equal(read.inputs["x"], tensors["x"]) and np.array_equal(read.inputs["b"], tensors["b"])
    written = response.write("m", "1", read, read.inputs, both, {"personal": "version 3"}, None)
    server.answers["/v2/models/m/infer"] = 200, {LENGTH: str(written.header_length)}, b"".join(written.parts)
    found = client.infer("m", tensors, outputs=["s", "x"])
    assert list(found) == ["s", "x"] and np.array_equal(found["x"], tensors["x"])
    assert found["s"].tolist() == [[b"a"], [b"bcd"]] and client.notes == {"personal": "version 3"}


def test_outputs_as_json(server: Server, client: Client) -> None:
    outputs = [
        {"name": "y", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4.5]},
        {"name": "s", "shape": [1, 2], "datatype": "BYTES", "data": [["ä", "b"]]},
    ]
    server.answers["/v2/models/m/infer"] = 200, {}, json.dumps({"outputs": outputs}).encode()
    found = client.infer("m", {"x": np.ones(1)})
    assert found["y"].dtype == np.float32 and found["y"].tolist() == [[1, 2], [3, 4.5]]
    assert found["s"].tolist() == [["ä".encode(), b"b"]] and client.notes == {}


def test_a_connection_is_kept(server: Server, client: Client) -> None:
    for _ in range(3):
        client.infer("m", {"x": np.ones(3)})
        assert client.ready()
    assert server.connections == 1


def test_a_connection_that_was_dropped_is_opened_again(server: Server, client: Client) -> None:
    server.closing = True
    for i in range(3):
        assert client.infer("m", {"x": np.full(3, i)})["x"].tolist() == [i] * 3
    assert server.connections == len(server.requests) == 3


def test_it_tries_once_more_and_not_more_often(server: Server, client: Client) -> None:
    client.infer("m", {"x": np.ones(3)})
    server.drop = 3
    with pytest.raises(GatewayError, match="is the server running") as error:
        client.infer("m", {"x": np.ones(3)})
    assert (error.value.status, server.drop) == (503, 1)
    with pytest.raises(GatewayError):  # a new connection: no second attempt
        client.infer("m", {"x": np.ones(3)})
    assert server.drop == 0
    assert client.infer("m", {"x": np.ones(3)})["x"].sum() == 3


def test_refusals_are_the_servers_words(server: Server, client: Client) -> None:
    path = "/v2/models/m/infer"
    for status, headers, content, text, after in (
        (429, {"Retry-After": "2"}, b'{"error":"the queue is full"}', "the queue is full", 2.0),
        (400, {}, b'{"error":"expected [1], got [2]"}', "expected [1], got [2]", None),
        (500, {"Retry-After": "Mon, 1 Jan"}, b"<html>oops", "500 Internal Server Error: <html>oops", None),
        (503, {}, b"", "503 Service Unavailable", None),
        (404, {}, b"[1]", "404 Not Found: [1]", None),
    ):
        server.answers[path] = status, headers, content
        with pytest.raises(GatewayError) as error:
            client.infer("m", {"x": np.ones(1)})
        assert (error.value.status, str(error.value), error.value.retry_after) == (status, text, after)
    assert server.connections == 1


def test_no_server() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        client = Client(f"http://127.0.0.1:{held.getsockname()[1]}", wait=1)
        with pytest.raises(GatewayError, match="is the server running") as error:
            client.metadata("m")
        assert error.value.status == 503 and not client.ready() and not client.ready("m")


def test_it_waits_no_longer_than_its_timeout(server: Server) -> None:
    server.hold = threading.Event()
    with Client(server.url, wait=0.05) as client:
        with pytest.raises(GatewayError, match="no answer") as error:
            client.metadata()
        server.hold.set()
        assert error.value.status == 504 and client.metadata() == {}


def test_whether_something_is_ready(server: Server, client: Client) -> None:
    for status, ready in ((200, True), (400, False), (404, False), (503, False)):
        server.answers["/v2/models/m/ready"] = server.answers["/v2/health/ready"] = status, {}, b"{}"
        assert client.ready("m") is client.ready() is ready
    server.answers["/v2/health/ready"] = 401, {}, b'{"error":"a token, please"}'
    with pytest.raises(GatewayError, match="a token, please"):
        client.ready()


def test_models_are_listed_loaded_and_unloaded(server: Server) -> None:
    index = [{"name": "m", "version": "1", "state": "READY", "reason": ""}]
    server.answers["/v2/repository/index"] = 200, {}, json.dumps(index).encode()
    server.answers["/v2/models/m"] = 200, {}, b'{"name":"m"}'
    with Client(server.url + "/", token="secret") as client:
        assert client.models() == index and client.metadata("m") == {"name": "m"}
        assert server.requests[-1][2]["Authorization"] == "Bearer secret"
        client.load("m", {"limit": 3}, {"1/model.mslite": b"\0\1"})
        assert server.requests[-1][:2] == ("POST", "/v2/repository/models/m/load")
        config, files = json.dumps({"limit": 3}), base64.b64encode(b"\0\1").decode()
        assert server.asked == {"parameters": {"config": config, "file:1/model.mslite": files}}
        client.unload("../m")
        assert server.requests[-1][:2] == ("POST", "/v2/repository/models/..%2Fm/unload")


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 100_000])
def test_an_answer_that_is_not_json(server: Server, client: Client, answer: bytes) -> None:
    server.answers["/v2/models/m"] = 200, {}, answer
    with pytest.raises(GatewayError) as error:
        client.metadata("m")
    assert error.value.status == 502


def reply(outputs: Any, raw: bytes = b"", length: str | None = None) -> tuple[int, dict[str, str], bytes]:
    header = json.dumps({"outputs": outputs}).encode()
    return 200, {LENGTH: str(len(header)) if length is None else length}, header + raw


def tensor(size: Any = 8, shape: Any = (2,), datatype: Any = "FP32", name: Any = "y") -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}


@pytest.mark.parametrize(
    "answer",
    [
        reply([tensor()], bytes(7)),
        reply([tensor()], bytes(9)),
        reply([tensor(shape=[3])], bytes(8)),
        reply([tensor(shape=[-2])], bytes(8)),
        reply([tensor(shape=[-1, -2])], bytes(8)),
        reply([tensor(shape=[1 << 40, 1 << 40])], bytes(8)),
        reply([tensor(shape=2)], bytes(8)),
        reply([tensor(size=-8)], bytes(8)),
        reply([tensor(size="8")], bytes(8)),
        reply([tensor(size=8.0)], bytes(8)),
        reply([tensor(size=1 << 62)], bytes(8)),
        reply([tensor(datatype="FP31")], bytes(8)),
        reply([tensor(datatype=["FP32"])], bytes(8)),
        reply([tensor(name=["y"])], bytes(8)),
        reply([tensor(), tensor()], bytes(8)),
        reply([tensor(datatype="BYTES")], b"\1\0\0\0a\2\0\0\0b"[:8]),
        reply([tensor(datatype="BYTES", shape=[1])], b"\xff\xff\xff\xffabcd"),
        reply([tensor(name="z")], bytes(8)),
        reply([{"name": "y", "shape": [2], "datatype": "FP32"}]),
        reply([{"name": "y", "shape": [2], "datatype": "FP32", "data": [1]}]),
        reply([{"name": "y", "shape": [2], "datatype": "FP32", "data": ["a", "b"]}]),
        reply([{"name": "y", "shape": [2], "datatype": "BYTES", "data": [1, 2]}]),
        reply({"y": 1}),
        reply(None),
        reply([None]),
        reply([tensor()], bytes(8), "-1"),
        reply([tensor()], bytes(8), "1e9"),
        reply([tensor()], bytes(8), "99999999999"),
        reply([tensor()], bytes(8), "3"),
        (200, {}, b"[]"),
        (200, {}, b"{}"),
        (200, {}, b'{"outputs":[{"name":"y","shape":[1],"datatype":"FP32","data":[1]}],"parameters":1}'),
    ],
)
def test_an_inconsistent_answer(server: Server, client: Client, answer: tuple[int, dict[str, str], bytes]) -> None:
    server.answers["/v2/models/m/infer"] = answer
    with pytest.raises(GatewayError) as error:
        client.infer("m", {"x": np.ones(1)}, outputs=["y"])
    assert error.value.status == 502
    del server.answers["/v2/models/m/infer"]
    assert client.infer("m", {"x": np.ones(1)})["x"] == 1


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8000", "ftp://a", "http://", "http://a:b", "http://a:99999", "http://a/?x=1", "http://[::1"]
)
def test_an_invalid_address(url: str) -> None:
    with pytest.raises(GatewayError, match=r"like http://127\.0\.0\.1:8000"):
        Client(url)


@pytest.mark.parametrize("x", [np.array([1, "a", None], object), np.ones(1, np.complex64), np.array([{}], object)])
def test_an_input_without_a_datatype(client: Client, x: Array) -> None:
    with pytest.raises(GatewayError, match="input 'x'"):
        client.infer("m", {"x": x})
