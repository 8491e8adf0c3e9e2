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
