"""Which texts the next run of a language model continues: a pure state machine over the pages of its caches.

Texts that are being written get one token a run; what is left of the run is for prompts, the oldest first. A text is
admitted when its prompt fits the free pages. When a text that is being written finds no page, kept prefixes are given
back, and then the youngest running text gives way: it begins again later, with what it has written as its prompt
(Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4.5).
The oldest running text is never interrupted, and fits alone, so every text ends. A text with an adapter also needs a
slot that has it: one whose adapter no running text uses is taken from the adapter that was used least recently. Texts
are admitted in their order, so that one that waits for a slot is not overtaken.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol

from lite_runtime.language.adapters import Adapter, Slots
from lite_runtime.language.engine import CHUNK, Sequence
from lite_runtime.language.kept import Kept
from lite_runtime.language.pages import PAGE, Pages, needed

__all__ = ["Caches", "Scheduler", "Text", "Work"]


class Caches(Protocol):
    """Where sequences are: an `Engine`, of which only the book-keeping is used."""

    pages: Pages

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence that begins like this one."""

    def cut(self, sequence: Sequence, length: int) -> None:
        """Forget all tokens after the first `length`."""

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence."""

    @property
    def free_slots(self) -> int:
        """Slots without an adapter."""

    def attach(self, adapter: Adapter) -> int:
        """Put an adapter into a free slot; its number."""

    def detach(self, slot: int) -> None:
        """Free a slot."""


class Text:
    """A text that is being continued: a prompt, and what was written after it."""

    __slots__ = ("adapter", "arrived", "ended", "forks", "owner", "reused", "sequence", "started", "tokens")

    def __init__(
        self,
        prompt: Items[int],
        *,
        forks: int = 0,
        owner: str = "",
        arrived: float = 0.0,
        adapter: Adapter | None = None,
    ) -> None:
        """forks: further texts with the same prompt, which begin when it is computed. owner: prefixes are shared
        between texts of one owner only. adapter: it must fit the model."""
        self.tokens, self.forks, self.owner, self.arrived = list(prompt), forks, owner, arrived
        self.adapter = adapter
        self.sequence = Sequence()
        """The tokens that are in the caches: the first ones of `tokens`."""
        self.reused = 0
        """Tokens of the prompt that were in the caches already."""
        self.started = self.ended = False
        """Whether it was admitted before; whether nothing more of it is wanted."""

    @property
    def missing(self) -> int:
        """Tokens that are not in the caches yet; with 1 it is being written."""
        return len(self.tokens) - len(self.sequence)


class Work(NamedTuple):
    """A text's part of a run: its next `tokens` tokens."""

    text: Text
    tokens: int

    @property
    def last(self) -> bool:
        """Whether all its tokens will be in the caches, so that the next one can be chosen."""
        return self.tokens == self.text.missing


class Scheduler:
    """The texts of one model.

    most: texts that may run at once. Texts must fit alone: prompt and answer together have at most `capacity` tokens.
    """

    def __init__(self, caches: Caches, most: int) -> None:
        self._caches, self.most = caches, most
        self.waiting: deque[Text] = deque()
        """In order of arrival; all of them came after those that run."""
        self.running: list[Text] = []
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        """Ended texts by owner, the owner whose text was used least recently first."""
        self.slots = Slots(caches, self._forget)
        """Adapters; each running text uses its own."""
        self.interrupted = 0
        """How often a text gave way so far."""

    @property
    def capacity(self) -> int:
        """Tokens that a single text may have."""
        return self._caches.pages.count * PAGE

    def add(self, text: Text) -> None:
        """A new text."""
        self.waiting.append(text)

    def sweep(self) -> None:
        """Drop texts that have ended. Their prefix is kept for later ones, until its pages are needed."""
        for text in [text for text in self.running if text.ended]:
            self.running.remove(text)
            self.slots.give_back(text.sequence.adapter)
            self._keep(text)
        if any(text.ended for text in self.waiting):
            self.waiting = deque(text for text in self.waiting if not text.ended)

    def fork(self, text: Text) -> list[Text]:
        """The further texts with the prompt of one whose prompt is in the caches; they run from now on."""
        made = []
        for _ in range(text.forks):
            other = Text(text.tokens, owner=text.owner, arrived=text.arrived, adapter=text.adapter)
            other.sequence, other.started = self._caches.fork(text.sequence), True
            self.slots.take(text.adapter)
            made.append(other)
        at = self.running.index(text) + 1
        self.running[at:at] = made
        text.forks = 0
        return made

    def step(self, beside: int = CHUNK) -> list[Work]:
        """The next run, at most `CHUNK` tokens; empty if there is nothing to do. beside: tokens of prompts that may be
        computed in it while other texts are being written."""
        work: list[Work] = []
        room = CHUNK
        for text in self._while_running(writing=True):
            if room and self._find(1, text, work):
                work.append(Work(text, 1))
                room -= 1
        room = min(room, max(1, beside)) if work else room
        for text in self._while_running(writing=False):
            room -= self._advance(text, room, work)
        while room and self.waiting and self._admit(work):
            room -= self._advance(self.running[-1], room, work)
        return work

    def clear(self) -> list[Text]:
        """Forget everything; the texts that were not finished."""
        left = [*self.running, *self.waiting]
        for text in self.running:
            self._leave(text)
        self.running, self.waiting = [], deque()
        while self._drop_kept():
            pass
        return left

    # -- how -----------------------------------------------------------------------------------------------------------

    def _while_running(self, *, writing: bool) -> Iterator[Text]:
        """The running texts of one kind, the oldest first; without those that give way meanwhile."""
        for text in [text for text in self.running if (text.missing == 1) == writing]:
            if text in self.running:
                yield text

    def _advance(self, text: Text, room: int, work: list[Work]) -> int:
        """Let a prompt have up to `room` tokens of the run; how many it gets."""
        count = min(text.missing, room)
        while count and not self._find(count, text, work):
            count = min(count - 1, (count - 1) // PAGE * PAGE)  # with fewer pages
        if count:
            work.append(Work(text, count))
        return count

    def _admit(self, work: list[Work]) -> bool:
        """Begin the oldest waiting text if there is room for its prompt, and for a page of each running one."""
        text = self.waiting[0]
        if self.running and len(self.running) + 1 + text.forks > self.most:
            return False
        if not self.slots.room(text.adapter):
            return False
        slot = self.slots.take(text.adapter)
        kept = self._kept.get(text.owner)
        text.sequence = kept.take(text.tokens, slot) if kept is not None else Sequence(adapter=slot)
        if kept is not None:
            self._kept.move_to_end(text.owner)
        wanted = _pages(text, text.missing, self._caches.pages) + len(self.running)
        if self.running and not self._free_for(wanted, work):
            self._leave(text)
            return False
        if not text.started:
            text.started, text.reused = True, len(text.sequence)
        self.running.append(self.waiting.popleft())
        return True

    def _find(self, count: int, text: Text, work: list[Work]) -> bool:
        """Make room for `count` more tokens of a text; False if only older texts could give way."""
        pages = self._caches.pages
        while not self._free_for(_pages(text, count, pages), work):
            youngest = self.running[-1]
            if youngest is text:
                return False
            self.running.pop()
            work[:] = [one for one in work if one.text is not youngest]
            self._leave(youngest)
            self.waiting.appendleft(youngest)
            self.interrupted += 1
        return True

    def _free_for(self, count: int, work: list[Work]) -> bool:
        """Whether so many pages are free beside those that the run needs; kept texts give theirs back for it."""
        pages = self._caches.pages
        wanted = count + sum(_pages(one.text, one.tokens, pages) for one in work)
        while wanted > pages.free:
            if not self._drop_kept():
                return False
        return True

    def _leave(self, text: Text) -> None:
        """Give back what a text has in the caches, and its adapter."""
        self.slots.give_back(text.sequence.adapter)
        self._caches.end(text.sequence)

    def _forget(self, slot: int) -> None:
        """The adapter in this slot makes way: prefixes that were computed with it are of no use."""
        for kept in self._kept.values():
            kept.forget(slot)

    def _keep(self, text: Text) -> None:
        kept = self._kept.get(text.owner)
        if kept is None:
            kept = self._kept[text.owner] = Kept(self._caches)
        self._kept.move_to_end(text.owner)
        kept.add(text.sequence)

    def _drop_kept(self) -> bool:
        """Give back the pages of one ended text; False if none is kept."""
        while self._kept:
            owner, kept = next(iter(self._kept.items()))
            if kept.drop():
                return True
            del self._kept[owner]
        return False


def _pages(text: Text, count: int, pages: Pages) -> int:
    """New pages for `count` more tokens of a text, among them the copy of a page that others share."""
    sequence = text.sequence
    full = len(sequence) // PAGE
    copied = len(sequence) % PAGE and pages.shared(sequence.pages[full])
    return needed(len(sequence) + count) - len(sequence.pages) + bool(copied)
