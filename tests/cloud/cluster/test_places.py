"""Blocks of units: aligned, inside one switch, apart from each other, and as few broken as possible."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from cloud.cluster.places import Board, Place
from tests.cloud.cluster.world import cluster, pool


def test_sizes_of_slices() -> None:
    assert pool("a", 6, 8, switch=4).sizes == (1, 2, 4, 8, 16, 32)
    assert pool("a", 1, 6).sizes == (1, 2, 3, 6)
    shared = pool("a", 2, 4, parts=4)
    assert [shared.words(size) for size in shared.sizes] == ["0.25", "0.5", "1", "2", "4", "8"]


def test_a_slice_as_a_topology() -> None:
    one = pool("a", 4, 8, parts=2, device="h100")
    assert [level.size for level in one.topology(32).levels] == [2, 8]
    assert [level.size for level in one.topology(8).levels] == [4]
    half = one.topology(1)
    assert half.size == 1 and half.memory == 40e9
    assert half.device.flops["float32"] == one.device.flops["float32"] / 2


SWITCH, MACHINES, UNITS = 3, 7, 4


@given(st.lists(st.tuples(st.sampled_from((1, 2, 4, 8)), st.integers(0, 9)), max_size=40))
def test_blocks_are_aligned_and_apart(wishes: list[tuple[int, int]]) -> None:
    board = Board(cluster(pool("a", MACHINES, UNITS, switch=SWITCH)))
    there: dict[int, Place] = {}
    for number, (size, leaves) in enumerate(wishes):
        place = board.find(0, size)
        free = board.free(0)
        if place is None:
            assert free < size or size > 1
        else:
            board.take(place, number)
            there[number] = place
            first, last = place.first // UNITS, (place.first + size - 1) // UNITS
            assert first // SWITCH == last // SWITCH
            assert place.first % min(size, UNITS) == 0
            assert board.free(0) == free - size
        if there and leaves < 3:
            board.leave(there.pop(min(there)))
    held = [unit for place in there.values() for unit in range(place.first, place.first + place.size)]
    assert len(held) == len({*held}) == MACHINES * UNITS - board.free(0)


def test_small_slices_leave_large_blocks_whole() -> None:
    board = Board(cluster(pool("a", 4, 8)))
    for number in range(9):
        place = board.find(0, 1)
        assert place is not None
        board.take(place, number)
    assert board.find(0, 16) == Place(0, 16, 16)


def test_the_cheapest_block_and_claims() -> None:
    board = Board(cluster(pool("a", 2, 4)))
    board.take(Place(0, 0, 2), 0)
    board.take(Place(0, 4, 4), 1)
    assert board.cheapest(0, 4, lambda number: (5.0, 1.0)[number]) == Place(0, 4, 4)
    assert board.cheapest(0, 4, lambda number: (5.0, math.inf)[number]) == Place(0, 0, 4)
    board.claim(Place(0, 0, 4), 7)
    assert board.find(0, 2) is None and board.free(0) == 0
    assert board.cheapest(0, 4, lambda number: math.inf) is None


def test_machines_that_are_lost() -> None:
    board = Board(cluster(pool("a", 2, 4)))
    board.take(Place(0, 0, 4), 3)
    board.take(Place(0, 4, 2), 4)
    assert board.lose(0, 0) == {3}
    board.leave(Place(0, 0, 4))
    assert board.up(0) == 4 and board.find(0, 4) is None and board.find(0, 2) == Place(0, 6, 2)
    board.restore(0, 0)
    assert board.find(0, 4) == Place(0, 0, 4)
