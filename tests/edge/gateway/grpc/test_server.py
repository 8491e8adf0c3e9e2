"""The listening socket: TLS, addresses, and `msedge serve --grpc-port` from its start to its end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.grpc.messages import message
from edge.gateway.http.serving import serve
from edge.gateway.operate.settings import Tls
from edge.gateway.operate.sources import resolve
from edge.gateway.operate.tls import Certificates
from tests.edge.gateway.grpc.serving import caller, channel, listening
from tests.edge.gateway.live import live, scaled
from tests.edge.gateway.operate.test_tls import make
from tests.waiting import until


def test_an_address_already_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = {"models": (str(scaled(tmp_path / "m.mslite", 1.0)),), "port": 0, "grpc.port": port}
        settings = resolve(told, environment={}, folder=Path("/"))
        with pytest.raises(GatewayError, match=f"cannot listen at 127.0.0.1:{port} for gRPC"):
            asyncio.run(serve(settings, lambda *_: None))


def test_two_gateways_do_not_share_a_port(tmp_path: Path) -> None:
    made = {"m": scaled(tmp_path / "m.mslite", 1.0)}
    with live(made) as one, listening(one) as address, live(made) as other:
        from edge.gateway.grpc.server import GrpcServer

        server = GrpcServer(other.gateway)
        with pytest.raises(GatewayError, match="in use"):
            other.call(server.start("127.0.0.1", int(address.rpartition(":")[2])))
        other.call(server.stop())


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What a client sends first: the preface of HTTP/2, and a frame of no settings."""


@pytest.mark.parametrize(
    ("first", "limit"), [(b"", "limits__header_seconds"), (PREFACE, "limits__idle_seconds")], ids=["silent", "idle"]
)
def test_clients_that_do_nothing_are_disconnected(tmp_path: Path, first: bytes, limit: str) -> None:
    with live({"m": scaled(tmp_path / "m.mslite", 1.0)}, **{limit: 0.5}) as there, listening(there) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=300) as raw:
            raw.sendall(first)
            while raw.recv(1000):
                pass


def test_clients_that_do_not_answer_pings_are_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream in use would otherwise be held for ever by a machine that has gone."""
    monkeypatch.setattr("edge.gateway.grpc.server.PONG", 0.5)
    with live({"m": scaled(tmp_path / "m.mslite", 1.0)}, grpc__keepalive=1.0) as there, listening(there) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=300) as raw:
            raw.sendall(PREFACE)
            while raw.recv(1000):
                pass


def meet(address: str, trusts: str, own: tuple[str, str] | None = None) -> grpc.StatusCode:
    """The code of one call over TLS."""
    pair = [Path(path).read_bytes() for path in own] if own else [None, None]
    credentials = grpc.ssl_channel_credentials(Path(trusts).read_bytes(), pair[1], pair[0])
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(address, credentials, options) as through:
        try:
            caller(through, "ServerLive")(b"", timeout=20)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


class TestTls:
    @pytest.fixture
    def pairs(self, tmp_path: Path) -> dict[str, tuple[str, str]]:
        return {name: make(tmp_path, name) for name in ("one", "other", "client")}

    def test_changed_certificates_are_used(self, tmp_path: Path, pairs: dict[str, tuple[str, str]]) -> None:
        used = str(tmp_path / "used.crt"), str(tmp_path / "used.key")

        def use(name: str) -> None:
            for source, target in zip(pairs[name], used, strict=True):
                shutil.copy(source, target)

        use("one")
        certificates = Certificates(Tls(certificate=used[0], key=used[1]))
        with live({"m": scaled(tmp_path / "m.mslite", 1.0)}) as there, listening(there, certificates) as to:
            ok, bad = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
            assert [meet(to, pairs[name][0]) for name in ("one", "other")] == [ok, bad]
            use("other")
            assert certificates.refresh()
            assert [meet(to, pairs[name][0]) for name in ("one", "other")] == [bad, ok]
            Path(used[1]).write_text("nothing")  # the earlier files stay in use
            with pytest.raises(GatewayError):
                certificates.refresh()
            assert meet(to, pairs["other"][0]) == ok

    def test_clients_present_certificates(self, tmp_path: Path, pairs: dict[str, tuple[str, str]]) -> None:
        one = pairs["one"]
        certificates = Certificates(Tls(certificate=one[0], key=one[1], client_ca=pairs["client"][0]))
        with live({"m": scaled(tmp_path / "m.mslite", 1.0)}) as there, listening(there, certificates) as to:
            assert meet(to, one[0], pairs["client"]) == grpc.StatusCode.OK
            assert meet(to, one[0], pairs["other"]) == grpc.StatusCode.UNAVAILABLE
            assert meet(to, one[0]) == grpc.StatusCode.UNAVAILABLE


@contextmanager
def process(*words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """`msedge serve` with gRPC, and what it prints when it is ready."""
    made = subprocess.Popen(
        [sys.executable, "-m", "edge.cli", "serve", *words, "--port", "0", "--grpc-port", "0", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONWARNINGS": "error"},
    )  # fmt: skip
    try:
        assert made.stdout is not None
        told = "".join(iter(lambda: made.stdout.readline() if made.stdout else "", "}\n"))
        yield made, json.loads(told + "}")
    finally:
        made.kill()
        made.communicate()


def request(model: str, x: np.ndarray) -> bytes:
    made = message("ModelInferRequest")(model_name=model, raw_input_contents=[x.tobytes()])
    made.inputs.add(name="x", datatype="FP32", shape=x.shape)
    data: bytes = made.SerializeToString()
    return data


def test_from_the_first_answer_to_the_end(tmp_path: Path) -> None:
    """SIGTERM: requests in streams are answered, streams and watches end, the exit code is 0."""
    model = scaled(tmp_path / "twice.mslite", 2.0)
    with process(str(model)) as (made, told), channel(told["grpc"]) as through:
        x = np.arange(4, dtype=np.float32)[None]
        data = caller(through, "ModelInfer")(request("twice", x), timeout=60)
        reply = message("ModelInferResponse").FromString(data)
        np.testing.assert_array_equal(np.frombuffer(reply.raw_output_contents[0], np.float32), 2 * x[0])
        go = threading.Event()

        def asks() -> Iterator[bytes]:
            yield request("twice", x)
            go.wait(300)

        stream = through.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(asks(), timeout=300)
        next(stream)
        watch = through.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=300)
        health = message("grpc.health.v1.HealthCheckResponse")
        assert health.FromString(next(watch)).status == 1
        made.send_signal(signal.SIGTERM)
        assert [health.FromString(one).status for one in watch] == [2]
        with pytest.raises(grpc.RpcError, match="shutting down") as caught:
            next(stream)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        go.set()
        _, errors = made.communicate(timeout=300)
        assert made.returncode == 0 and "Traceback" not in errors, errors
        assert f"gRPC at {told['grpc']}" in errors


def test_accepted_requests_are_answered_at_the_end(tmp_path: Path) -> None:
    """Of requests that are sent until the server has gone, each is answered, or refused because it is going. gRPC's
    library answers those with CANCELLED that arrive in the moment in which it stops, so a client ends with it."""
    model, x = scaled(tmp_path / "twice.mslite", 2.0), np.ones((1, 4), np.float32)
    codes: list[str] = []
    with process(str(model)) as (made, told), channel(told["grpc"], **{"grpc.enable_retries": 0}) as through:
        ask = caller(through, "ModelInfer")
        ask(request("twice", x), timeout=60)

        def load() -> None:
            while made.poll() is None:
                try:
                    ask(request("twice", x), timeout=60)
                    codes.append("OK")
                except grpc.RpcError as error:
                    codes.append(error.code().name)
                    if codes[-1] == "CANCELLED":
                        return

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: len(codes) >= 50)
        made.send_signal(signal.SIGTERM)
        _, errors = made.communicate(timeout=300)
        for thread in threads:
            thread.join()
    assert made.returncode == 0, errors
    assert {"OK", "UNAVAILABLE"} <= set(codes) <= {"OK", "UNAVAILABLE", "CANCELLED"}


@pytest.mark.parametrize(("module", "package"), [("grpc", "grpcio"), ("google.protobuf", "protobuf")])
def test_a_missing_package_is_named(module: str, package: str) -> None:
    program = f"import sys; sys.modules[{module!r}] = None; import edge.gateway.grpc.server"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    told = done.stderr.partition(f"{package} is not installed; grpc.port needs it. Install it with: pip install ")[2]
    assert "'grpcio<" in told and "'protobuf<" in told


def test_without_the_flag_there_is_no_grpc(tmp_path: Path) -> None:
    assert resolve({}, environment={}, folder=tmp_path).grpc.port == -1
    assert resolve({"grpc.port": "8001"}, environment={}, folder=tmp_path).grpc.port == 8001
    with pytest.raises(GatewayError, match=r"grpc\.port"):
        resolve({"grpc.port": "-2"}, environment={}, folder=tmp_path)
