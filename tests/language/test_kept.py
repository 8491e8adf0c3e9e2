"""Texts that stay in the caches: which one a prompt continues, and which one makes room."""

from __future__ import annotations

from random import Random

from lite_runtime.language.engine import Sequence
from lite_runtime.language.kept import Kept, common
from lite_runtime.language.pages import PAGE, Pages, needed


class Paper:
    """An engine without a model."""

    def __init__(self, count: int) -> None:
        self.pages = Pages(count)

    def fork(self, sequence: Sequence) -> Sequence:
        self.pages.share(sequence.pages)
        return Sequence(sequence.tokens, sequence.pages)

    def cut(self, sequence: Sequence, length: int) -> None:
        self.pages.give_back(sequence.pages[needed(length) :])
        del sequence.pages[needed(length) :], sequence.tokens[length:]

    def end(self, sequence: Sequence) -> None:
        self.cut(sequence, 0)


def test_kept_texts_by_random_steps() -> None:
    rng, paper = Random(1), Paper(60)
    kept = Kept(paper)
    history: list[list[int]] = []
    for _ in range(250):
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 12))]
        tokens = (rng.choice(history)[: rng.randrange(0, 60)] if history else []) + tokens * rng.randrange(1, 5)
        best = max((common(one.tokens, tokens) for one in kept._sequences), default=0)
        sequence = kept.take(tokens)
        assert sequence.tokens == tokens[: min(best, len(tokens) - 1)]
        assert len(sequence.pages) == needed(len(sequence))
        more = needed(len(tokens)) - len(sequence.pages)
        while paper.pages.free < more:
            assert kept.drop()
        sequence.pages += paper.pages.take(more)
        sequence.tokens = list(tokens)
        history.append(tokens)
        kept.add(sequence)
        assert len(kept) <= 64
        used = {page for one in kept._sequences for page in one.pages}
        assert paper.pages.free == 60 - len(used)
        for one in kept._sequences:  # no text begins another
            assert sum(common(one.tokens, other.tokens) == len(one) for other in kept._sequences) == 1
    while kept.drop():
        pass
    assert paper.pages.free == 60


def test_the_least_recently_used_text_is_given_back_first() -> None:
    paper = Paper(10)
    kept = Kept(paper)
    for first in range(3):
        kept.add(Sequence([first] * PAGE, paper.pages.take(1)))
    paper.end(kept.take([0, 0, 9]))
    kept.drop()
    assert [one.tokens[0] for one in kept._sequences] == [2, 0]


def test_common() -> None:
    rng = Random(2)
    for _ in range(500):
        a = [rng.randrange(3) for _ in range(rng.randrange(0, 3000))]
        b = a[: rng.randrange(0, 3000)] + [rng.randrange(3) for _ in range(rng.randrange(0, 5))]
        want = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        assert common(a, b) == want
