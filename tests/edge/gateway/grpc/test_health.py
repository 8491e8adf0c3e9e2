"""gRPC's health service, asked with grpcio-health-checking's own messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.edge.gateway.grpc.serving import channel, listening
from tests.edge.gateway.live import live, scaled
from tests.waiting import until

SERVING, NOT_SERVING, UNKNOWN = (
    health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING,
    health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
)  # fmt: skip


def asked(name: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=name)


@pytest.fixture
def stub(address: str) -> Iterator[health_pb2_grpc.HealthStub]:
    with channel(address) as made:
        yield health_pb2_grpc.HealthStub(made)


@pytest.mark.parametrize("name", ["", "inference.GRPCInferenceService", "grpc.health.v1.Health", "simple", "scaled"])
def test_what_is_served(stub: health_pb2_grpc.HealthStub, name: str) -> None:
    assert stub.Check(asked(name), timeout=60).status == SERVING
    watch = stub.Watch(asked(name), timeout=60)
    assert next(watch).status == SERVING
    watch.cancel()


def test_what_is_unknown(stub: health_pb2_grpc.HealthStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(asked("nobody"), timeout=60)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(asked("nobody"), timeout=60)
    assert next(watch).status == UNKNOWN
    watch.cancel()


def test_watching_a_model_and_the_end(tmp_path: Path) -> None:
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}) as there, listening(there) as to, channel(to) as made:
        stub = health_pb2_grpc.HealthStub(made)
        model, server = stub.Watch(asked("m"), timeout=60), stub.Watch(asked(""), timeout=60)
        assert next(model).status == next(server).status == SERVING
        there.call(there.gateway.unload("m", {}))
        assert next(model).status == NOT_SERVING
        assert stub.Check(asked("m"), timeout=60).status == NOT_SERVING
        there.call(there.gateway.load("m", {}))
        assert next(model).status == SERVING
        there.gateway.leaving = True
        assert [one.status for one in (next(model), next(server))] == [NOT_SERVING] * 2
        model.cancel()
        server.cancel()
        until(lambda: model.done() and server.done())


def test_garbage(address: str) -> None:
    with channel(address) as made:
        for name in ("Check", "Watch"):
            with pytest.raises(grpc.RpcError) as caught:
                list(made.unary_stream(f"/grpc.health.v1.Health/{name}")(b"\x0a\xff", timeout=60))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
