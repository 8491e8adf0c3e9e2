"""ModelStreamInfer: order, errors inside the stream, its bound, its end."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edge.gateway.exchange import Answer, Ask
from edge.gateway.grpc.messages import message
from edge.gateway.grpc.server import GrpcServer
from tests.edge.gateway.grpc.models import triton_examples
from tests.edge.gateway.grpc.serving import channel, listening, simple_request
from tests.edge.gateway.live import Live, live, scaled
from tests.waiting import until

A = np.arange(16, dtype=np.int32)[None]


class Stream:
    """One stream: `send` messages, `read` replies."""

    def __init__(self, made: grpc.Channel, metadata: list[tuple[str, str]]) -> None:
        self._sent: queue.Queue[bytes | None] = queue.Queue()
        method = made.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        self.call = method(iter(self._sent.get, None), timeout=300, metadata=metadata)

    def send(self, request: Any) -> None:
        self._sent.put(request if isinstance(request, bytes) else request.SerializeToString())

    def read(self) -> Any:
        return message("ModelStreamInferResponse").FromString(next(self.call))

    def end(self) -> None:
        self._sent.put(None)


@contextmanager
def stream(address: str, *metadata: tuple[str, str]) -> Iterator[Stream]:
    with channel(address) as made:
        one = Stream(made, list(metadata))
        try:
            yield one
        finally:
            one.end()
            one.call.cancel()


class Held:
    """Takes inferences in place of a gateway; `answer` answers one of them."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.replies: list[Callable[[Answer], None]] = []
        self.cancelled: list[int] = []

    def infer(self, ask: Ask, reply: Callable[[Answer], None]) -> Callable[[], None]:
        self.asks.append(ask)
        self.replies.append(reply)
        index = len(self.asks) - 1
        return lambda: self.cancelled.append(index)

    def answer(self, there: Live, index: int, status: int = 200) -> None:
        name = self.asks[index].model
        body = message("ModelStreamInferResponse")()
        body.infer_response.id = name
        data = body.SerializeToString() if status == 200 else b"failed"
        there.loop.call_soon_threadsafe(self.replies[index], Answer(status, [data], None, ()))


@pytest.fixture
def held(gateway: Live, monkeypatch: pytest.MonkeyPatch) -> Held:
    made = Held()
    monkeypatch.setattr(gateway.gateway, "infer", made.infer)
    return made


def named(name: str, sequence: int | str = 0) -> Any:
    made = message("ModelInferRequest")(model_name=name, id=name)
    if isinstance(sequence, str):
        made.parameters["sequence_id"].string_param = sequence
    elif sequence:
        made.parameters["sequence_id"].int64_param = sequence
    return made


def test_replies_come_in_the_order_of_requests(gateway: Live, address: str, held: Held) -> None:
    with stream(address) as one:
        for name in "abc":
            one.send(named(name))
        until(lambda: len(held.asks) == 3)
        for k in (2, 1, 0):
            held.answer(gateway, k)
        assert [one.read().infer_response.id for _ in range(3)] == ["a", "b", "c"]
        one.end()
        assert list(one.call) == [] and one.call.code() == grpc.StatusCode.OK


def test_requests_of_a_sequence_begin_one_after_the_other(gateway: Live, address: str, held: Held) -> None:
    with stream(address) as one:
        for request in (named("m", 5), named("m", 5), named("m", "5"), named("other", 5), named("m", 5), named("m")):
            one.send(request)
        # The second and the fifth wait for the first.
        until(lambda: [ask.model for ask in held.asks] == ["m", "m", "other", "m"])
        assert held.asks[1].form.sequence == "5"  # type: ignore[attr-defined]
        held.answer(gateway, 0)
        until(lambda: len(held.asks) == 5)
        held.answer(gateway, 4, status=500)  # a failure does not stop the sequence's others
        until(lambda: len(held.asks) == 6)
        for k in (1, 2, 3, 5):
            held.answer(gateway, k)
        texts = [one.read().error_message for _ in range(6)]
        assert texts == ["", "failed", "", "", "", ""]


def test_errors_stay_inside_the_stream(address: str) -> None:
    with stream(address) as one:
        one.send(simple_request(A, A, id="1"))
        one.send(message("ModelInferRequest")(model_name="nobody", id="2"))
        one.send(b"\x0a\xff")
        one.send(simple_request(A, A, id="4"))
        found = [one.read() for _ in range(4)]
        assert [reply.infer_response.id for reply in found] == ["1", "2", "", "4"]
        assert [bool(reply.error_message) for reply in found] == [False, True, True, False]
        assert "nobody" in found[1].error_message and "protobuf" in found[2].error_message
        last = found[3].infer_response
        np.testing.assert_array_equal(np.frombuffer(last.raw_output_contents[0], np.int32), 2 * A[0])
        assert last.parameters["triton_final_response"].bool_param


def test_errors_end_the_stream_if_asked_to(address: str) -> None:
    with stream(address, ("triton_grpc_error", "true")) as one:
        one.send(simple_request(A, A, id="1"))
        assert one.read().infer_response.id == "1"
        one.send(message("ModelInferRequest")(model_name="nobody"))
        with pytest.raises(grpc.RpcError) as caught:
            one.read()
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND and "nobody" in caught.value.details()


def test_no_more_is_read_than_may_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}, grpc__stream_requests=3) as there:
        held = Held()
        monkeypatch.setattr(there.gateway, "infer", held.infer)
        with listening(there) as address, stream(address) as one:
            for k in range(10):
                one.send(named(str(k)))
            for k in range(10):
                until(lambda: len(held.asks) == min(10, k + 3))  # noqa: B023 # called before k changes
                held.answer(there, k)
                assert one.read().infer_response.id == str(k)


def test_a_client_that_leaves_cancels_what_it_asked(held: Held, address: str, gateway: Live) -> None:
    with stream(address) as one:
        for k in range(4):
            one.send(named("m", 7 if k > 1 else 0))
        until(lambda: len(held.asks) == 3)
    until(lambda: sorted(held.cancelled) == [0, 1, 2])
    held.answer(gateway, 2)
    assert len(held.asks) == 3  # the one that waited for it never begins


def test_a_request_being_parsed_when_the_server_stops(gateway: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, and the stream ends: nothing waits for it."""
    parsing: list[object] = []

    async def aside(what: object, given: object) -> object:
        parsing.append(given)
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(gateway.gateway, "aside", aside)
    server = gateway.call(started(gateway))
    with stream(server[1]) as one:
        request = named("m")
        request.parameters["large"].string_param = "x" * (1 << 20)
        one.send(request)
        until(lambda: parsing)
        gateway.loop.call_soon_threadsafe(server[0]._service.leave)
        assert "shutting down" in one.read().error_message
        assert list(one.call) == []
    gateway.call(server[0].stop())


async def started(there: Live) -> tuple[GrpcServer, str]:
    server = GrpcServer(there.gateway)
    host, port = await server.start("127.0.0.1", 0)
    return server, f"{host}:{port}"


def test_a_sequence_with_state(tmp_path: Path) -> None:
    """The end of one begins the next of the same name, in one stream."""
    with live(triton_examples(tmp_path)) as there, listening(there) as address, stream(address) as one:
        for k in range(30):
            request = named("simple_sequence", 9)
            request.inputs.add(name="INPUT", datatype="INT32", shape=[1, 1])
            request.raw_input_contents.append(np.int32(k).tobytes())
            request.parameters["sequence_start"].bool_param = k % 3 == 0
            request.parameters["sequence_end"].bool_param = k % 3 == 2
            one.send(request)
        for k in range(30):
            reply = one.read()
            assert not reply.error_message
            assert np.frombuffer(reply.infer_response.raw_output_contents[0], np.int32)[0] == k + (k % 3 == 0)
        assert len(there.gateway.sequences) == 0
