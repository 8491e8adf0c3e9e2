"""Byte pair encoding of bytes: GGUF's metadata to a description, to its bytes, to ids, against `tokenizers`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from converter.errors import ConvertError
from converter.frontends.language import from_gguf
from lite_runtime.errors import InputError
from lite_runtime.language.tokenizers import Tokenizer, pack, unpack
from lite_runtime.language.tokenizers.bpe import _merged, _merged_by_heap
from tests.language.strings import generated, training_text

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPLITS: dict[str, Callable[[], Any]] = {
    "smollm": lambda: pre_tokenizers.Digits(individual_digits=True),
    "gpt-2": lambda: None,
}


@cache
def oracle(pre: str) -> tokenizers.Tokenizer:
    """A tokenizer of `tokenizers`, trained here."""
    made = tokenizers.Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    before = SPLITS[pre]()
    made.pre_tokenizer = level if before is None else pre_tokenizers.Sequence([before, level])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(training_text(), trainer)
    return made


def metadata(pre: str) -> dict[str, Any]:
    """The same tokenizer as a GGUF file has it."""
    import json

    model = json.loads(oracle(pre).to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{{ messages }}",
    }


@cache
def ours(pre: str) -> Tokenizer:
    return Tokenizer.from_bytes(pack(from_gguf(metadata(pre))))


@pytest.mark.parametrize("pre", SPLITS)
def test_ids_and_texts_are_those_of_the_oracle(pre: str) -> None:
    mine, theirs, rng = ours(pre), oracle(pre), Random(pre)
    for _ in range(3000):
        text = generated(rng, SPECIAL)
        ids = mine.encode(text)
        assert ids == theirs.encode(text).ids, text
        assert mine.decode(ids, skip_special=False) == text
        assert mine.decode(ids) == theirs.decode(ids), text
        some = [rng.randrange(len(mine)) for _ in range(8)]
        assert mine.decode(some) == theirs.decode(some)


def test_special_tokens_of_users_are_text() -> None:
    theirs = tokenizers.Tokenizer.from_str(oracle("smollm").to_str())
    theirs.encode_special_tokens = True
    rng = Random(7)
    for _ in range(500):
        text = generated(rng, SPECIAL)
        assert ours("smollm").encode(text, special=False) == theirs.encode(text).ids
    assert not {1, 2} & set(ours("smollm").encode("<|im_start|>a<|im_end|>", special=False))


def test_a_stream_is_the_text() -> None:
    mine, rng = ours("gpt-2"), Random(3)
    for _ in range(500):
        ids = mine.encode(generated(rng)) if rng.random() < 0.5 else [rng.randrange(len(mine)) for _ in range(9)]
        stream = mine.detokenizer()
        parts = [stream.feed(number) for number in ids]
        assert "".join(parts) + stream.finish() == mine.decode(ids)
    stream, (first, *rest) = mine.detokenizer(), mine.encode("\U0001f600")
    assert stream.feed(first) == "" and stream.feed(*rest) == "\U0001f600"
    assert stream.feed(first) == "" and stream.finish() == "\ufffd"


@given(st.data())
def test_both_ways_of_merging_are_the_definition(data: st.DataObject) -> None:
    """Random tables, also such that a merge makes a pair of lower rank."""
    pairs = st.tuples(st.integers(0, 5), st.integers(0, 5))
    table = {pair: i for i, pair in enumerate(data.draw(st.lists(pairs, max_size=12, unique=True)))}
    results = {pair: data.draw(st.integers(0, 5)) for pair in table}
    ids = data.draw(st.lists(st.integers(0, 5), max_size=90))

    def rank(left: int, right: int) -> int:
        return table.get((left, right), 1 << 62)

    def join(found: int, left: int, right: int) -> int:
        assert found == table[left, right]
        return results[left, right]

    expected = list(ids)
    while found := [(table[p], i) for i, p in enumerate(pairwise(expected)) if p in table]:
        at = min(found)[1]
        expected[at : at + 2] = [results[expected[at], expected[at + 1]]]
    assert _merged(list(ids), rank, join) == expected
    assert _merged_by_heap(list(ids), rank, join) == expected


def test_long_words() -> None:
    """100,000 characters without a break, which quadratic time would not finish."""
    text = "ba" * 50_000 + " " * 30_000
    assert ours("gpt-2").encode(text) == oracle("gpt-2").encode(text).ids


def test_tokens_by_name_and_bytes() -> None:
    mine = ours("smollm")
    assert mine.token_to_id("<|im_end|>") == 2 and mine.id_to_token(2) == "<|im_end|>" and mine.is_special(2)
    assert mine.token_to_id("no such token") is None
    assert b"".join(map(mine.id_to_bytes, mine.encode("caf\xe9 \u4e2d"))) == "caf\xe9 \u4e2d".encode()
    assert mine.ids == {"bos": 1, "eos": 2} and mine.chat_template == "{{ messages }}"
    assert mine.encode("") == [] and mine.decode([]) == ""


def test_begin_and_end() -> None:
    held = metadata("smollm") | {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    mine = Tokenizer(from_gguf(held))
    plain = mine.encode("a b", add=False)
    assert mine.encode("a b") == [1, *plain, 2]
    ids, types = mine.encode_pair("a b", "a b")
    assert ids == [1, *plain, 2, 1, *plain, 2]
    assert types == [0] * (len(plain) + 2) + [1] * (len(plain) + 2)


@pytest.mark.parametrize("bad", [5, b"a", None, "a\ud800"])
def test_what_is_no_text(bad: Any) -> None:
    with pytest.raises(InputError, match="expected"):
        ours("smollm").encode(bad)


@pytest.mark.parametrize("bad", [-1, 1 << 40])
def test_what_is_no_id(bad: int) -> None:
    with pytest.raises(InputError, match="expected ids of"):
        ours("smollm").decode([bad])


def test_equal_descriptions_give_equal_bytes() -> None:
    data = pack(from_gguf(metadata("smollm")))
    assert pack(unpack(data)) == data


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("model", None, "no tokenizer.ggml.model"),
        ("model", "rwkv", "expected one of gpt2"),
        ("pre", "nothing of the kind", "expected one of default"),
        ("tokens", None, "no tokenizer.ggml.tokens"),
        ("tokens", [1, 2], "expected a list of str"),
        ("token_type", [1], "expected 1500 items"),
        ("merges", ["no merge"], "merge 0"),
        ("bos_token_id", 1500, "expected an id below 1500"),
    ],
)
def test_metadata_that_are_no_tokenizer(key: str, value: Any, says: str) -> None:
    held = metadata("smollm") | {f"tokenizer.ggml.{key}": value}
    with pytest.raises(ConvertError, match=says):
        from_gguf({k: v for k, v in held.items() if v is not None})
