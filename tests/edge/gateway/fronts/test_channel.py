"""Messages between two ends: all sizes, in order, and nothing that an end cannot prove is believed."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.gateway.fronts.channel import ASK, HEAD, RING, Channel, make_memory, map_memory
from edge.gateway.fronts.ring import Reader, Writer

MOST = 40 << 20


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 70), st.integers(0, 3)), max_size=80))
def test_a_ring_holds_what_was_put(steps: list[tuple[int, int]]) -> None:
    """Payloads come out as they went in, though the reader lags behind, and there is always room in an empty ring."""
    memory = memoryview(bytearray(64))
    writer, reader = Writer(memory), Reader(memory)
    there: list[tuple[int, bytes]] = []
    for number, (size, lag) in enumerate(steps):
        data = bytes([number % 251]) * size
        place = writer.put([data[:3], memoryview(data)[3:]], size)
        assert place >= 0 or there or size > 64
        if place >= 0:
            there.append((place, data))
        while len(there) > lag:
            place, data = there.pop(0)
            assert reader.get(place, len(data)) == data
            writer.freed(reader.done)


@pytest.mark.parametrize(("place", "size"), [(-5, 3), (0, 65), (60, 5), (1 << 60, 65), (0, -1)])
def test_places_outside_the_ring(place: int, size: int) -> None:
    with pytest.raises(ValueError):
        Reader(memoryview(bytearray(64))).get(place, size)


def test_more_read_than_written() -> None:
    writer = Writer(memoryview(bytearray(64)))
    writer.put([b"abc"], 3)
    with pytest.raises(ValueError):
        writer.freed(4)


def _run(scene: Callable[..., Any]) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        came: list[tuple[int, int, bytes, bytes]] = []
        lost = [asyncio.Event(), asyncio.Event()]
        one, other = map_memory(make_memory())
        here, there = socket.socketpair()
        a = Channel(one, other, lambda *m: None, lost[0].set, most=MOST)
        b = Channel(other, one, lambda *m: came.append(m), lost[1].set, most=MOST)
        await loop.create_unix_connection(lambda: a, sock=here)
        await loop.create_unix_connection(lambda: b, sock=there)
        await asyncio.wait_for(scene(a, b, came, lost), 300)
        a.close()
        b.close()
        await lost[0].wait()
        await lost[1].wait()

    asyncio.run(body())


def test_messages_of_all_sizes() -> None:
    async def scene(a: Channel, b: Channel, came: list[Any], lost: Any) -> None:
        rng, sent = random.Random(3), []
        for number in range(150):
            size = rng.choice([0, 1, 100, 5000, 70_000, 900_000]) + rng.randrange(50)
            data, text = rng.randbytes(size), rng.randbytes(rng.choice([0, 30, 3000]))
            a.send(ASK, number, text, [data[:7], memoryview(data)[7:]])
            sent.append((ASK, number, text, data))
            if rng.random() < 0.5:
                await asyncio.sleep(0)
                b.send(ASK, 0)  # which says how far it has read
        big = bytes(RING + 1)
        a.send(ASK, 200, b"", [big])
        while len(came) <= len(sent):
            await asyncio.sleep(0.001)
        assert came == [*sent, (ASK, 200, b"", big)]

    _run(scene)


@pytest.mark.parametrize(
    "head",
    [(ASK, 0, MOST, MOST, -1, 0), (ASK, 0, 0, -3, -1, 0), (ASK, 0, 0, 10, RING - 5, 0), (ASK, 0, 0, 1, 0, 1)],
)
def test_lies_end_the_channel(head: tuple[int, ...]) -> None:
    async def scene(a: Channel, b: Channel, came: list[Any], lost: Any) -> None:
        assert a._transport is not None
        a._transport.write(HEAD.pack(*head) + bytes(100))
        await lost[1].wait()
        assert not came

    _run(scene)
