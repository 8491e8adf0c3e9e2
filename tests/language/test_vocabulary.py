"""Tokens in one string of bytes, and tables that find them: the same as tuples and dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.language.tokenizers.vocabulary import Index, Tokens, pairs_of

some_tokens = st.lists(st.binary(max_size=5), max_size=60)


def made(tokens: list[bytes]) -> Tokens:
    return Tokens(b"".join(tokens), np.array([len(token) for token in tokens], np.uint16))


@given(some_tokens)
def test_tokens_are_a_sequence(tokens: list[bytes]) -> None:
    found = made(tokens)
    assert len(found) == len(tokens) and list(found) == tokens and [found[i] for i in range(len(found))] == tokens
    assert found == tuple(tokens) and found == made(tokens) and found[1:-1] == tuple(tokens[1:-1])
    assert found != (*tokens, b"x") and found != made([*tokens, b""])
    with pytest.raises(IndexError, match=f"expected a place below {len(tokens)}"):
        found[len(tokens)]


@given(some_tokens, some_tokens)
def test_an_index_is_a_dictionary(tokens: list[bytes], others: list[bytes]) -> None:
    """Of some of the tokens: the rest are not found."""
    different = list(dict.fromkeys(tokens))
    half = np.arange(0, len(different), 2)
    index, expected = Index(made(different), half), {different[i]: i for i in half.tolist()}
    assert [index.get(token) for token in different + others] == [expected.get(token) for token in different + others]


pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=60)


@given(pairs)
def test_pairs_are_a_dictionary(rows: list[tuple[int, int]]) -> None:
    """Of equal pairs the last row counts."""
    row = pairs_of(np.array([(*pair, 9) for pair in rows], np.int32).reshape(-1, 3))
    expected = {pair: i for i, pair in enumerate(rows)}
    assert all(row(a, b) == expected.get((a, b), -1) for a in range(8) for b in range(8))


def test_a_large_table_is_found_whole() -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << 21, (100_000, 3), dtype=np.int32)
    row, expected = pairs_of(numbers), {(a, b): i for i, (a, b, _) in enumerate(numbers.tolist())}
    assert all(row(*pair) == i for pair, i in expected.items()) and row(1 << 21, 0) == -1
