"""The arena: buffers alive together never overlap, and little is wasted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.planning.memory import ALIGNMENT, Lifetime, arrange

buffers = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 20), st.integers(0, 8)).map(
        lambda t: Lifetime(t[0], t[1], t[1] + t[2])
    ),
    max_size=40,
)


def _end(offset: int, buffer: Lifetime) -> int:
    return offset + -(-max(buffer.nbytes, 1) // ALIGNMENT) * ALIGNMENT


@given(buffers)
def test_buffers_alive_together_never_overlap(items: list[Lifetime]) -> None:
    offsets, total = arrange(items)
    for i, a in enumerate(items):
        assert offsets[i] % ALIGNMENT == 0
        assert _end(offsets[i], a) <= total
        for j in range(i):
            b = items[j]
            if a.first <= b.last and b.first <= a.last:
                assert _end(offsets[i], a) <= offsets[j] or _end(offsets[j], b) <= offsets[i]


@given(buffers)
def test_the_arena_is_no_larger_than_everything_side_by_side(items: list[Lifetime]) -> None:
    _, total = arrange(items)
    assert total <= sum(_end(0, b) for b in items)


def test_a_chain_takes_two_buffers() -> None:
    """Each step reads the one before: two live at a time."""
    _, total = arrange([Lifetime(1024, i, i + 1) for i in range(50)])
    assert total == 2048


def test_no_buffers_need_no_memory() -> None:
    assert arrange([]) == ([], 0)


@given(buffers)
def test_other_orders_never_take_more(items: list[Lifetime]) -> None:
    offsets, total = arrange(items, orders=20)
    assert total <= arrange(items)[1]
    for i, a in enumerate(items):
        assert _end(offsets[i], a) <= total
        for j in range(i):
            if a.first <= items[j].last and items[j].first <= a.last:
                assert _end(offsets[i], a) <= offsets[j] or _end(offsets[j], items[j]) <= offsets[i]


def test_other_orders_find_room_that_the_largest_first_do_not() -> None:
    """Three buffers of 2 KiB and two of 3 KiB, of which at most 7 KiB are alive at one step."""
    items = [
        Lifetime(2048, 1, 6),
        Lifetime(3072, 2, 3),
        Lifetime(2048, 3, 4),
        Lifetime(3072, 4, 5),
        Lifetime(2048, 5, 6),
        Lifetime(2048, 6, 7),
        Lifetime(3072, 7, 8),
    ]
    assert arrange(items)[1] > arrange(items, orders=50)[1] == 7168
