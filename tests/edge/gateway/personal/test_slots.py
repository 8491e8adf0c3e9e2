"""Slots of tables belong to the most recent devices, and do not change while a batch uses them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge.gateway.personal.slots import Slots


@given(count=st.integers(2, 6), asked=st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(1, 2)), max_size=40))
def test_a_batch_has_every_key_in_a_slot_of_its_own(count: int, asked: list[tuple[str, int]]) -> None:
    slots, written = Slots(count), dict[int, tuple[str, int]]()
    batches = list(slots.batches(list(enumerate(asked)), lambda what: what[1]))
    assert [i for batch in batches for i, _ in batch] == list(range(len(asked)))
    for batch in batches:
        where = {}
        for _, key in batch:
            slot, fresh = slots.take(key)
            assert 1 <= slot < count
            assert fresh == (written.get(slot) != key)
            written[slot] = key
            where[key] = slot
        assert all(written[slot] == key for key, slot in where.items())


def test_as_many_batches_as_needed_and_no_more() -> None:
    slots = Slots(4)
    assert [len(batch) for batch in slots.batches("abcabcdabdabc", lambda key: (key, 1))] == [6, 6, 1]


def test_a_key_that_was_not_written_leaves_its_slot() -> None:
    slots = Slots(2)
    assert slots.take(("a", 1, 0.0)) == (1, True)
    slots.drop(("a", 1, 0.0))
    assert len(slots) == 0
    assert slots.take(("a", 1, 0.0)) == (1, True)
    assert slots.take(("a", 1, 0.0)) == (1, False)
