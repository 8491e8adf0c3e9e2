"""The gateway under load for seconds; `benchmarks.serving.overload` and `.soak` do the same for any time."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

import pytest

from benchmarks.serving import overload
from benchmarks.serving.client import Connection, outputs, request
from benchmarks.serving.ledger import Ledger
from benchmarks.serving.soak import soak
from lite_runtime.errors import MsedgeError

DEADLINE = 0.25


def _small() -> Any:
    from cloud.zoo import mlp

    return mlp(64, 10, (2048, 2048))


def test_everything_at_once_and_every_answer_right() -> None:
    found = soak(3000, every=0.25, clients=16, seed=3)
    assert not found.problems
    assert found.swaps > 1 and found.outcomes["right"] > 2500 and found.outcomes["left"] > 30
    assert found.outcomes["503 while draining"] or found.outcomes["closed while draining, sent after SIGTERM"]
    assert found.outcomes["refused once it had ended"]


def test_too_much_work_is_refused_and_the_rest_answered_right() -> None:
    """Hundreds of requests at once, which take any machine longer than their deadline: how many are refused depends on
    the machine, that some are answered and some refused does not."""
    subject = overload.Subject(_small, 32, 4, DEADLINE)

    async def burst(port: int, questions: overload.Questions) -> overload.Flood:
        flood = overload.Flood(port, questions, DEADLINE)
        await overload.closed(port, questions, 2, subject.rows, 0.2)  # the gateway learns how long a batch takes
        await flood.open(overload.CONNECTIONS)
        for which in range(overload.CONNECTIONS):
            flood._send(which % overload.SAMPLES)
        await flood.run(1e-9, 0.0)  # until all are answered
        flood.close()
        return flood

    with overload.served("small", subject, 1) as (server, questions):
        found = asyncio.run(burst(server.port, questions))
    assert not (found.wrong or found.lost or found.untold)
    assert set(found.statuses) <= {200, 429, 504}
    assert found.statuses[200] > 0 and found.statuses[429] > 0


def test_figures_of_overload() -> None:
    """What the benchmark measures, for a moment; its figures depend on the machine, and that answers are right not."""
    found = overload.measure("small", overload.Subject(_small, 32, 4, 10.0), overload.Plan(seconds=0.3, capacity=0.3))
    assert not (found.wrong or found.lost or found.untold)
    assert set(found.statuses) <= {200, 429} and found.statuses[200] > 0
    assert found.memory["end"] < 2 * found.memory["start"]
    assert "goodput" in overload.table([found])


def test_wrong_answers_are_noticed() -> None:
    class Liar(asyncio.Protocol):
        """Says that everything is 7."""

        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            body = b'{"outputs":[{"name":"y","shape":[1,1],"datatype":"FP32","data":[7.0]}]}'
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    class Questions:
        patient = [b"?"] * overload.SAMPLES

        def right(self, which: int, reply: Any) -> bool:
            return bool(outputs(reply.body, None)[1].item() == 8.0)

    async def scenario() -> None:
        server = await asyncio.get_running_loop().create_server(Liar, "127.0.0.1", 0)
        try:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(MsedgeError, match="wrong answer"):
                await overload.closed(port, Questions(), 1, 1, 1.0)  # type: ignore[arg-type]
        finally:
            server.close()
            await asyncio.sleep(0.05)  # for both ends to close

    asyncio.run(scenario())


def test_a_connection_reads_replies_in_pieces_and_notices_their_end() -> None:
    class Slow(asyncio.Protocol):
        """A reply in three pieces, then none."""

        def connection_made(self, transport: Any) -> None:
            self.transport, self.asked = transport, 0

        def data_received(self, data: bytes) -> None:
            self.asked += 1
            if self.asked == 2:
                self.transport.close()
                return
            text = b"HTTP/1.1 429 Too Many\r\nretry-after: 3\r\ncontent-length: 5\r\n\r\nhello"
            loop = asyncio.get_running_loop()
            for i, (begin, end) in enumerate(((0, 30), (30, len(text) - 2), (len(text) - 2, len(text)))):
                loop.call_later(0.01 * i, self.transport.write, text[begin:end])

    async def scenario() -> None:
        server = await asyncio.get_running_loop().create_server(Slow, "127.0.0.1", 0)
        try:
            connection = await Connection.open(server.sockets[0].getsockname()[1])
            reply = await connection.answer(request("/", b"x"))
            assert reply is not None and (reply.status, reply.body) == (429, b"hello")
            assert reply.field("Retry-After") == "3" and reply.field("x") is None
            assert await connection.answer(b"again") is None and connection.lost
            assert await connection.answer(b"and again") is None
        finally:
            server.close()

    asyncio.run(scenario())


def test_which_version_may_have_answered() -> None:
    ledger = Ledger()
    ledger.written = {1: 0.0, 2: 10.0, 3: 20.0}
    ledger.loaded = {1: 1.0, 2: 11.0, 3: 21.0}
    assert ledger.newest == 3
    assert not ledger.may(4, "", 30, 31) and not ledger.may(2, "3", 15, 16)
    assert not ledger.may(2, "", 8, 9) and ledger.may(2, "", 8, 10) and ledger.may(2, "", 25, inf)
    assert ledger.may(1, "1", 20.5, 22) and not ledger.may(1, "1", 21.5, 22)
    assert ledger.may(2, "canary", 15, 16) and ledger.may(2, "canary", 21, 22) and not ledger.may(2, "canary", 21.5, 22)
    assert not ledger.may(2, "stable", 15, 16) and ledger.may(2, "stable", 19, 20) and ledger.may(1, "stable", 15, 16)
    assert not ledger.must(2, 10.5, 12) and ledger.must(2, 12, 30) and not ledger.must(1, 19, 20.5)
    assert ledger.settled(12, 13) == 2 and ledger.settled(19, 20.5) is None and ledger.settled(10.5, 12) is None
