"""The scheduler by random events, over the page tables of an engine without its model."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edge.gateway.language.forecast import LEAST, STALL, Load, Pace, wait
from edge.gateway.language.scheduler import Scheduler, Text, Work
from lite_runtime.language.adapters import Adapter
from lite_runtime.language.engine import CHUNK, Sequence
from lite_runtime.language.pages import PAGE, Pages, needed


class Caches:
    """What an engine does with pages and slots, without memory."""

    def __init__(self, pages: int, slots: int = 0) -> None:
        self.pages = Pages(pages)
        self.held: list[Adapter | None] = [None] * slots

    @property
    def free_slots(self) -> int:
        return self.held.count(None)

    def attach(self, adapter: Adapter) -> int:
        slot = self.held.index(None)
        self.held[slot] = adapter
        return slot

    def detach(self, slot: int) -> None:
        assert self.held[slot] is not None
        self.held[slot] = None

    def fork(self, sequence: Sequence) -> Sequence:
        self.pages.share(sequence.pages)
        return Sequence(sequence.tokens, sequence.pages, sequence.adapter)

    def cut(self, sequence: Sequence, length: int) -> None:
        kept = needed(length)
        self.pages.give_back(sequence.pages[kept:])
        del sequence.pages[kept:], sequence.tokens[length:]

    def end(self, sequence: Sequence) -> None:
        self.cut(sequence, 0)

    def run(self, work: list[Work]) -> None:
        """Take the pages of a run; OutOfPages would be the scheduler's fault."""
        for text, count in work:
            sequence = text.sequence
            full = len(sequence) // PAGE
            if len(sequence) % PAGE and self.pages.shared(sequence.pages[full]):
                (new,) = self.pages.take(1)
                self.pages.give_back([sequence.pages[full]])
                sequence.pages[full] = new
            sequence.pages += self.pages.take(needed(len(sequence) + count) - len(sequence.pages))
            sequence.tokens += text.tokens[len(sequence) :][:count]


PEOPLE = [Adapter({"x": np.full(1, i, np.float32)}, "") for i in range(6)]


@pytest.mark.parametrize("slots", [0, 1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_every_text_ends_and_no_page_is_lost(seed: int, slots: int) -> None:
    rng = random.Random(seed)
    pages, most = rng.choice([(8, 4), (20, 8), (64, 16)])
    caches, people = Caches(pages, slots), [None, *PEOPLE] if slots else [None]
    scheduler = Scheduler(caches, most)
    wanted: dict[Text, int] = {}
    ended = 0
    for step in range(100_000):
        if step > 600 and not wanted:
            break
        if step <= 600 and rng.random() < 0.15:
            length = rng.randint(1, pages * PAGE // 2)
            prompt = [rng.randint(0, 1) for _ in range(length)] if rng.random() < 0.5 else [7] * length
            text = Text(prompt, forks=rng.choice([0, 0, 0, 1, 3]), owner=rng.choice("ab"), adapter=rng.choice(people))
            wanted[text] = length + rng.randint(1, pages * PAGE - length)
            scheduler.add(text)
        if wanted and step <= 600 and rng.random() < 0.02:
            rng.choice([*wanted]).ended = True
        for text in [text for text in wanted if text.ended]:
            del wanted[text]
            ended += 1
        scheduler.sweep()
        work = scheduler.step(rng.choice([1, 16, 64, CHUNK]))
        assert bool(work) == bool(wanted), "as long as a text is unfinished, something runs"
        assert sum(one.tokens for one in work) <= CHUNK and all(one.tokens > 0 for one in work)
        assert len({id(one.text) for one in work}) == len(work)
        before = {one.text: one.text.missing for one in work}
        oldest = scheduler.running[0] if scheduler.running else None
        assert oldest is None or any(one.text is oldest for one in work), "the oldest is never held up"
        for text in scheduler.running:
            assert text.adapter == (caches.held[text.sequence.adapter] if text.sequence.adapter >= 0 else None)
        last = [one.text for one in work if one.last]
        caches.run(work)
        assert all(one.text.missing == before[one.text] - one.tokens for one in work)
        for text in last:
            others = scheduler.fork(text) if text.forks else []
            wanted |= {other: wanted[text] for other in others}
            for each in (text, *others):
                each.tokens.append(rng.randint(0, 9))
                each.ended = len(each.tokens) >= wanted[each]
        used = {page for text in scheduler.running for page in text.sequence.pages}
        assert len(used) + caches.pages.free <= pages
    assert not wanted and not scheduler.running and not scheduler.waiting and ended > 50
    scheduler.clear()
    assert caches.pages.free == pages
    assert scheduler.interrupted
    assert all(not held.texts for held in scheduler.slots._used.values()) and (not slots or len(scheduler.slots))


def test_texts_wait_for_slots_in_their_order() -> None:
    caches = Caches(64, 1)
    scheduler = Scheduler(caches, 8)
    first, other, same, plain = (Text([5] * 20, adapter=a) for a in (PEOPLE[0], PEOPLE[1], PEOPLE[0], None))
    for text in (first, other, same, plain):
        scheduler.add(text)
    caches.run(scheduler.step())
    assert scheduler.running == [first] and [*scheduler.waiting] == [other, same, plain]
    first.ended = True
    scheduler.sweep()
    caches.run(scheduler.step())
    assert scheduler.running == [other] and other.reused == 0  # the kept text of another adapter is of no use, and gone
    other.ended = True
    scheduler.sweep()
    caches.run(scheduler.step())
    assert scheduler.running == [same, plain] and (same.reused, plain.reused) == (0, 0)
    assert caches.held == [PEOPLE[0]]


def test_prompts_are_cut_while_others_write() -> None:
    writing, long = Text([1]), Text([2] * 1000)
    scheduler = Scheduler(caches := Caches(200), 8)
    scheduler.add(writing)
    caches.run(scheduler.step())
    writing.tokens.append(5)
    scheduler.add(long)
    assert [(one.text, one.tokens) for one in scheduler.step(32)] == [(writing, 1), (long, 32)]


def test_texts_of_an_owner_share_prefixes() -> None:
    caches = Caches(64)
    scheduler = Scheduler(caches, 8)
    first = Text([3] * 100, owner="a")
    scheduler.add(first)
    caches.run(scheduler.step())
    first.ended = True
    scheduler.sweep()
    mine, theirs = Text([3] * 120, owner="a"), Text([3] * 120, owner="b")
    scheduler.add(mine)
    scheduler.add(theirs)
    scheduler.step()
    assert (mine.reused, theirs.reused) == (100, 0)


def test_the_forecast_counts_what_is_ahead() -> None:
    pace = Pace()
    for _ in range(5):
        pace.ran(0, 100, 1.0)
        pace.ran(4, 0, 0.05)
    idle = Load(0, 10, 4, (), (0, 0))
    assert wait(idle, 50, 4, 1, pace) == pytest.approx(0.5)
    full = Load(200, 0, 4, [(30.0, 3, 1), (10.0, 2, 1)], (0, 0))
    assert wait(full, 50, 4, 1, pace) == pytest.approx(30 * 0.05 + 250 * 0.01)
    crowded = Load(0, 10, 0, [(20.0, 1, 1)], (0, 0))
    assert wait(crowded, 50, 4, 1, pace) == pytest.approx(20 * 0.05 + 0.5)
    assert pace.beside() == LEAST and (STALL - pace.run) / pace.token < LEAST
