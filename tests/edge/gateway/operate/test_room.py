"""One memory budget: what is reserved is given back, nobody has more than a share, the slowest give way."""

from __future__ import annotations

import random

import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.operate.room import GRACE, Held, Room, memory_limit


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def refusal(held: Held, size: int) -> int:
    with pytest.raises(GatewayError) as caught:
        held.reach(size)
    return caught.value.status


def test_what_is_reserved_is_given_back() -> None:
    room = Room(100)
    with room.enter("a", 60) as one, room.enter("b", 60) as two:
        one.reach(60)
        one.reach(40)
        two.reach(50)
        assert room.taken == 90 and refusal(two, 61) == 503 and room.taken == 90
    two.release()
    assert room.taken == 0
    assert refusal(room.enter("a", 60), 101) == 413


def test_a_peer_has_half_or_one_body() -> None:
    room = Room(100, exempt=lambda peer: peer == "proxy")
    with room.enter("a", 60) as one, room.enter("a", 60) as two:
        one.reach(80)
        assert refusal(two, 1) == 503
    with room.enter("proxy", 60) as one, room.enter("proxy", 60) as two:
        one.reach(50)
        two.reach(50)


def test_what_a_request_needs_beside_its_body_is_a_part_of_it() -> None:
    """So that its body does not count against it; but a peer with half of all gets no more."""
    room = Room(100)
    with room.enter("a", 60) as body, room.inner("a") as tensors, room.inner("a") as others:
        body.reach(10)
        tensors.reach(70)
        assert refusal(tensors, 91) == 503 and refusal(tensors, 101) == 413
        assert refusal(others, 1) == 503
        tensors.reach(30)
        others.reach(60)
        assert room.taken == 100
    assert not room.taken


def test_the_slowest_give_way() -> None:
    clock, gone = Clock(), list[str]()
    room = Room(1 << 20, exempt=lambda peer: True, clock=clock)
    for name in ("stalled", "steady", "computing"):
        held = room.enter("a", 60, lambda name=name: gone.append(name))
        held.reach(300 << 10)
        held.wait()
        if name == "steady":
            held.done = 250 << 10
        held.waits = name != "computing"
    new = room.enter("b", 60)
    assert refusal(new, 400 << 10) == 503 and not gone
    clock.now += GRACE * 1.5
    new.reach(400 << 10)
    assert gone == ["stalled"] and room.evicted == 1
    assert refusal(new, 800 << 10) == 503 and gone == ["stalled"]


def test_any_order_adds_up() -> None:
    rng, clock = random.Random(1), Clock()
    room, alive = Room(10_000, clock=clock), list[Held]()
    for _ in range(3000):
        clock.now += rng.random()
        action = rng.randrange(3)
        if action == 0:
            held = room.enter(rng.choice("abc"), 10)
            held._evict = lambda held=held: alive.remove(held)
            alive.append(held)
            held.wait()
        elif alive and action == 1:
            try:
                rng.choice(alive).reach(rng.randrange(6000))
            except GatewayError as error:
                assert error.status == 503
        elif alive:
            alive.pop(rng.randrange(len(alive))).release()
        assert room.taken == sum(held.size for held in alive) <= 10_000
        assert sum(room._peers.values()) == room.taken


def test_the_limit_of_the_memory_is_known() -> None:
    assert 1 << 20 < memory_limit() < 1 << 60
