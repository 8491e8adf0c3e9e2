"""Several processes: who asks is who asked, large things, clients and processes that leave, the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.fronts.fronts import Counter, Fronts
from edge.gateway.operate import tokens
from tests.edge.gateway.http.raw import Raw, answer, request, scaled_request
from tests.edge.gateway.live import Live, bundle_of, scaled
from tests.waiting import until

Fronted = Callable[..., AbstractContextManager[Live]]


def _binary(model: str, x: np.ndarray) -> bytes:
    """Bytes there and bytes back."""
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    fields = {"Inference-Header-Content-Length": str(len(head))}
    return request(f"/v2/models/{model}/infer", head + x.tobytes(), fields)


def test_many_clients_at_once(gateway: Live) -> None:
    """Each answer is its own request's, in both forms, from both fronts."""

    def client(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with Raw(gateway.port) as raw:
            for _ in range(30):
                x = rng.random((int(rng.choice([1, 2, 60, 700])), 4), np.float32)
                np.testing.assert_array_equal(answer(raw.ask(scaled_request(x, binary=bool(rng.integers(2))))), x)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(client, range(8)))
    assert not gateway.gateway.under_way
    assert len(set(gateway.server.processes)) == 2
    assert "a front ended" not in gateway.log.getvalue()


def test_larger_than_the_ring(fronted: Fronted, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((1, 3_000_000), np.float32)
    asks = _binary("m", x)
    with fronted({"m": scaled(tmp_path / "m.mslite", 2.0, 3_000_000)}, workers=2) as there, Raw(there.port) as raw:
        for _ in range(3):
            got = raw.ask(asks)
            found = np.frombuffer(got.body[int(got.fields["inference-header-content-length"]) :], np.float32)
            np.testing.assert_array_equal(found, 2 * x[0])
        many = np.round(x[:, :300_000], 3)
        wrong = raw.ask(scaled_request(many, model="m", binary=False))
        assert wrong.status == 400 and "shape" in wrong.error


def test_replies_beyond_the_limit(fronted: Fronted, tmp_path: Path) -> None:
    """What is within the limit in binary and beyond it in JSON is refused, in the words of the one who refuses."""
    x = np.random.default_rng(0).random((100, 4), np.float32)
    with fronted({"m": scaled(tmp_path / "m.mslite", 2.0)}, limits__reply=3000) as there, Raw(there.port) as raw:
        got = raw.ask(scaled_request(x, model="m", binary=False))
        assert got.status == 413 and "3000 bytes" in got.error


def test_clients_that_leave(gateway: Live) -> None:
    """Nothing stays behind of those who left in the middle of a request, or before its answer."""
    data = scaled_request(np.ones((3000, 4), np.float32))
    for end in (10, len(data) // 2, len(data)):
        for _ in range(5):
            raw = Raw(gateway.port)
            raw.send(data[:end])
            raw.socket.close()
    until(lambda: not gateway.gateway.under_way)
    with Raw(gateway.port) as raw:
        assert raw.ask(scaled_request(np.ones((1, 4), np.float32))).status == 200


def test_who_asks(fronted: Fronted, tmp_path: Path) -> None:
    """Tokens, guesses by address and management by machine see the client, not the front."""
    bundle, file = scaled(tmp_path / "m.mslite", 1.0), tmp_path / "tokens.json"
    token = tokens.add(file, "asks", ["infer"])
    x = np.ones((100, 4), np.float32)
    with fronted({"m": bundle}, host="0.0.0.0", access__tokens=str(file)) as there, Raw(there.port) as raw:
        seen: list[str] = []
        check = there.gateway.gate.check

        def noting(scope: str, peer: str, *rest: Any) -> str:
            seen.append(peer)
            return check(scope, peer, *rest)

        there.gateway.gate.check = noting  # type: ignore[method-assign]
        assert raw.ask(scaled_request(x, model="m")).status == 401
        assert raw.ask(scaled_request(x, model="m", binary=False)).status == 401
        bearing = {"Authorization": f"Bearer {token}"}
        np.testing.assert_array_equal(answer(raw.ask(scaled_request(x, model="m", fields=bearing))), x)
        assert raw.ask(request("/v2/repository/models/m/load", b"{}")).status == 200
        assert seen == ["127.0.0.1"] * 4
        path = there.server._path
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as passed:
            passed.connect(path)
            passed.sendall(b"\x0b203.0.113.9" + request("/v2/repository/models/m/load", b"{}"))
            assert b" 403 " in passed.recv(1000)
        assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
        assert seen[4:] == ["203.0.113.9"]


def test_over_tls(fronted: Fronted, tmp_path: Path) -> None:
    """The front speaks TLS, for its own requests and for those that it passes on."""
    pytest.importorskip("cryptography.x509")
    from tests.edge.gateway.operate.test_tls import client, make

    certificate, key = make(tmp_path, "server")
    models = {"m": scaled(tmp_path / "m.mslite", 2.0)}
    x = np.random.default_rng(0).random((500, 4), np.float32)
    with fronted(models, tls__certificate=certificate, tls__key=key) as there, Raw(there.port) as raw:
        raw.socket = client(certificate).wrap_socket(raw.socket, server_hostname="127.0.0.1")
        for _ in range(2):
            for binary in (True, False):
                np.testing.assert_array_equal(answer(raw.ask(scaled_request(x, model="m", binary=binary))), 2 * x)
            assert raw.ask(request("/v2/health/ready", method="GET")).status == 200
        assert raw.ask(request("/v2/repository/index", b"{}")).status == 200


def _slow(path: Path) -> Path:
    """Takes about half a second, in one piece."""
    from onnx import TensorProto, helper, numpy_helper

    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1200, 1200]) for n in ("x", "y")]
    weight = numpy_helper.from_array(np.eye(1200, dtype=np.float32), "w")
    names = ["x", *(f"t{i}" for i in range(11)), "y"]
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in pairwise(names)]
    return bundle_of(path, helper.make_graph(nodes, "slow", ends[:1], ends[1:], [weight]))


def _slow_request() -> bytes:
    return _binary("slow", np.zeros((1, 1200, 1200), np.float32))


def _shared() -> int:
    """Pieces of memory that are shared with fronts."""
    return Path("/proc/self/maps").read_text().count("msedge-front")


def test_a_front_that_is_killed(fronted: Fronted, tmp_path: Path) -> None:
    """Its requests are dropped, the others' answered, and there is a new one; connections find it at the same port."""
    x = np.ones((1, 4), np.float32)
    models = {"m": scaled(tmp_path / "m.mslite", 3.0), "slow": _slow(tmp_path / "slow.mslite")}
    with fronted(models) as there, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Raw(there.port)) for _ in range(3)]
        for raw in clients:
            assert raw.ask(scaled_request(x, model="m")).status == 200
        for raw in clients:  # one after the other, before the first is answered
            raw.send(_slow_request())
        until(lambda: there.gateway.under_way == 3, every=0.001)
        before, shared = there.server.processes, _shared()
        for process in before:
            os.kill(process, signal.SIGKILL)
        for raw in clients:
            with pytest.raises((EOFError, ConnectionError)):
                raw.read()
        until(lambda: not there.gateway.under_way)
        with Raw(there.port) as raw:
            np.testing.assert_array_equal(answer(raw.ask(scaled_request(x, model="m"))), 3 * x)
        until(lambda: len(there.server.processes) == 2)
        assert not set(before) & set(there.server.processes)
        assert there.log.getvalue().count("a front ended") == 2
        assert _shared() == shared


def test_drained(fronted: Fronted, tmp_path: Path) -> None:
    """What is under way is answered, what comes later is told to go elsewhere, connections are closed."""
    x = np.ones((1, 4), np.float32)
    models = {"m": scaled(tmp_path / "m.mslite", 3.0), "slow": _slow(tmp_path / "slow.mslite")}
    with fronted(models) as there, Raw(there.port) as idle, Raw(there.port) as busy, Raw(there.port) as late:
        assert idle.ask(scaled_request(x, model="m")).status == 200
        busy.send(_slow_request())
        until(lambda: there.gateway.under_way)
        data = scaled_request(x, model="m")
        late.send(data[:-1])
        done: list[Any] = []

        async def leave() -> None:
            done.append(await asyncio.gather(there.gateway.drain(20), there.server.drain(20)))

        thread = threading.Thread(target=lambda: there.call(leave()))
        thread.start()
        got = busy.read()
        assert got.status == 200 and got.fields["connection"] == "close"
        thread.join(300)
        assert done == [[True, True]]
        assert idle.closed()
        late.send(data[-1:])
        refused = late.read()
        assert refused.status == 503 and refused.fields["connection"] == "close"
        with pytest.raises(OSError):
            Raw(there.port)


def _gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_all(tmp_path: Path, end: signal.Signals) -> None:
    """Told to go, or killed: no front and, told to go, no file stays."""
    bundle = scaled(tmp_path / "m.mslite", 2.0)
    command = [sys.executable, "-m", "edge.cli", "serve", f"m={bundle}", "--port", "0", "--workers", "2", "--json"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment))
        stack.callback(server.kill)
        assert server.stdout is not None
        address = json.loads(b"".join([*iter(server.stdout.readline, b"}\n"), b"}"]))["address"]
        x = np.ones((1, 4), np.float32)
        with Raw(int(address.rpartition(":")[2])) as raw:
            np.testing.assert_array_equal(answer(raw.ask(scaled_request(x, model="m"))), 2 * x)
        fronts = [int(word) for word in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]
        assert len(fronts) == 2
        server.send_signal(end)
        assert server.wait(20) == (0 if end == signal.SIGTERM else -end)
        until(lambda: all(map(_gone, fronts)))
    if end == signal.SIGTERM:
        assert not list(tmp_path.glob("msedge-*"))


def test_an_address_that_is_taken(tmp_path: Path, fronted: Fronted) -> None:
    bundle = scaled(tmp_path / "m.mslite", 2.0)
    with fronted({"m": bundle}) as there, pytest.raises(GatewayError, match="cannot listen"):  # noqa: SIM117
        with fronted({"m": bundle}, port=there.port):
            pass


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'["m","",{},1]', b'["m","",{"a":1},""]', b'[1,"",{},""]'])
def test_a_front_that_lies(gateway: Live, text: bytes) -> None:
    """A message that cannot be is ValueError, which ends its channel."""
    with pytest.raises(ValueError):
        Counter(gateway.gateway).take(0, 1, text, b"")
    with pytest.raises(ValueError):
        Counter(gateway.gateway).take(9, 1, b"", b"")
    assert isinstance(gateway.server, Fronts) and not gateway.gateway.under_way
