"""Tokenizers that are made to take time or memory: bounded work for each character of a text."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import BundleError, MsedgeError
from lite_runtime.language.tokenizers import AddedToken, Tokenizer, pack
from lite_runtime.language.tokenizers.added import Finder
from lite_runtime.language.tokenizers.charsmap import CharsMap
from lite_runtime.language.tokenizers.patterns import Pattern
from tests.language.talking import description


def made(**changes: Any) -> Tokenizer:
    return Tokenizer.from_bytes(pack(description()._replace(**changes)))


def naive(text: str, tokens: dict[str, AddedToken]) -> list[tuple[int, str]]:
    found, at = [], 0
    while at < len(text):
        best = max((token for token in tokens if text.startswith(token, at)), key=len, default="")
        if best:
            found.append((at, best))
        at += max(len(best), 1)
    return found


def test_added_tokens_are_the_longest_at_each_place() -> None:
    rng = Random(0)
    for _ in range(2000):
        words = {"".join(rng.choices("ab<\xe9", k=rng.randrange(1, 6))) for _ in range(rng.randrange(0, 12))}
        tokens = {word: AddedToken(i, word) for i, word in enumerate(words)}
        text = "".join(rng.choices("ab<\xe9 ", k=rng.randrange(0, 30)))
        finder = Finder((token.content, token) for token in tokens.values())
        assert [(start, text[start:end]) for start, end, _ in finder._matches(text)] == naive(text, tokens)
        broken = finder.broken(text, "\ufdd0")
        assert broken.replace("\ufdd0", "") == text
        assert not any(word in broken for word in words if len(word) > 1)


def test_many_added_tokens_that_begin_alike() -> None:
    """As slices of each length at each place it takes minutes."""
    tokens = [AddedToken(i, "a" * (i + 1) + "b") for i in range(1000)]
    finder = Finder((token.content, token) for token in tokens)
    assert finder.parts("a" * 300_000, True) == ["a" * 300_000]
    assert finder.parts("a" * 5000 + "b", True) == ["a" * 4000, tokens[-1]]


def test_spaces_beside_added_tokens_are_looked_at_once() -> None:
    token = AddedToken(0, " ", lstrip=True, rstrip=True)
    found = Finder([(" ", token)]).parts("a" + " " * 100_000 + "b", True)
    assert found == ["a", *[token] * 100_000, "b"]


def units(*rows: tuple[int, int]) -> bytes:
    """A charsmap of 256 units, of which some are given."""
    table = np.zeros(256, "<u4")
    for place, unit in rows:
        table[place] = unit
    return (4 * 256).to_bytes(4, "little") + table.tobytes() + b"b" * 255 + b"\0"


def test_a_table_of_characters_with_a_circle() -> None:
    """Its keys are as long as the text, so that every place looks at the rest of it."""
    circle = CharsMap(units((0, 1 << 10), (0x60, 0x61 | 0x61 << 10)), True)
    circle._units = looked = Counted(circle._units)
    assert circle.normalized("a" * 3000, 1 << 20) == "a" * 3000
    assert looked.looks < 3000 * 3 * 256


class Counted(list[int]):
    """A list that counts how often one of its items is looked at."""

    looks = 0

    def __getitem__(self, key: Any) -> Any:
        self.looks += 1
        return super().__getitem__(key)


_LONG = "a" * 256
_REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": _LONG}
_CLASS = {"type": "Replace", "pattern": {"Regex": "[a]"}, "content": _LONG}


@pytest.mark.parametrize("second", [_REPLACE, _CLASS, {"type": "Precompiled", "longest": True}])
@pytest.mark.parametrize("first", [_REPLACE, _CLASS])
def test_steps_that_multiply_one_another(first: dict[str, Any], second: dict[str, Any]) -> None:
    """What a step would make is bounded before it is made."""
    table = units((0, 1 << 10), (0x60, 0x61 | 1 << 8 | 0x40 << 10), (0x20, 1 << 31))
    tokenizer = made(normalizer=(first, second), charsmap=table)
    tracemalloc.start()
    try:
        with pytest.raises(BundleError, match="at most 256 characters for one"):
            tokenizer.encode("a" * 2000)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20  # and not 131 MB, or all that there is
    finally:
        tracemalloc.stop()


def test_a_class_of_characters_has_a_bounded_length() -> None:
    Pattern("[" + r"\p{L}" * 80 + "]+")
    with pytest.raises(MsedgeError, match="expected one of"):
        Pattern("[" + r"\p{L}" * 100_000 + "]+")
