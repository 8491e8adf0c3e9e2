"""Every kind of tokenizer against the library that defines it, with small vocabularies learned here."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from converter.errors import ConvertError
from converter.frontends.language import from_gguf, from_sentencepiece, from_tokenizer_json
from lite_runtime.errors import BundleError
from lite_runtime.language.tokenizers import Description, Tokenizer, pack
from lite_runtime.language.tokenizers.charsmap import CharsMap
from lite_runtime.language.tokenizers.description import BYTE
from lite_runtime.language.tokenizers.patterns import KNOWN, Pattern
from tests.language.strings import generated, training_text

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@cache
def sentencepiece_model(kind: str, **options: Any) -> bytes:
    """A SentencePiece file with the usual normaliser."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(training_text()),
        model_writer=made,
        vocab_size=700,
        model_type=kind,
        character_coverage=0.999,
        minloglevel=2,
        hard_vocab_limit=False,
        **options,
    )
    return made.getvalue()


def bpe_of_pieces() -> tokenizers.Tokenizer:
    """As Llama 2."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=["<unk>", "<s>", "</s>", *BYTES], show_progress=False)
    made.train_from_iterator(training_text(), trainer)
    held = json.loads(made.to_str())
    held["added_tokens"] = held["added_tokens"][:3]
    held["pre_tokenizer"] = None
    again = tokenizers.Tokenizer.from_str(json.dumps(held))
    again.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    return again


def byte_level(pattern: str, **options: Any) -> tokenizers.Tokenizer:
    """As GPT-2 and its successors."""
    made = tokenizers.Tokenizer(models.BPE(**options))
    split = pre_tokenizers.Split(tokenizers.Regex(KNOWN[pattern]), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel()
    made.train_from_iterator(training_text(), trainers.BpeTrainer(vocab_size=1200, show_progress=False))
    made.add_special_tokens(["<|end|>", AddedToken("<|mask|>", lstrip=True, rstrip=True)])
    made.add_tokens([AddedToken("na\xefve", single_word=True), AddedToken("camel", normalized=True), "\u2581\u2581a"])
    return made


def word_piece() -> tokenizers.Tokenizer:
    """As BERT."""
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(
        training_text(), trainers.WordPieceTrainer(vocab_size=1200, special_tokens=special, show_progress=False)
    )
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def unigram(**fallback: bool) -> tokenizers.Tokenizer:
    """As T5, with SentencePiece's table of characters."""
    spm = from_sentencepiece(sentencepiece_model("unigram", byte_fallback=bool(fallback)))
    pieces = [(token.decode(), score) for token, score in zip(spm.tokens, spm.scores.tolist(), strict=True)]
    made = tokenizers.Tokenizer(models.Unigram(pieces, spm.ids["unk"], **fallback))
    made.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(spm.charsmap), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    )
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    made.decoder = (
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]) if fallback else decoders.Metaspace()
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 2)])
    return made


def odd() -> tokenizers.Tokenizer:
    """Components that models above do not have."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]"))
    made.normalizer = normalizers.Sequence(
        [
            normalizers.Nmt(),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Strip(),
        ]
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(False),
         pre_tokenizers.Split("b", "merged_with_previous"), pre_tokenizers.CharDelimiterSplit("q")]
    )  # fmt: skip
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["[UNK]"], show_progress=False)
    made.train_from_iterator(training_text(), trainer)
    return made


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "pieces": bpe_of_pieces,
    "llama-3": lambda: byte_level("llama-3", ignore_merges=True),
    "o200k": lambda: byte_level("o200k"),
    "deepseek-3": lambda: byte_level("deepseek-3"),
    "word pieces": word_piece,
    "unigram": unigram,
    "unigram of bytes": lambda: unigram(byte_fallback=True),
    "odd": odd,
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_are_those_of_tokenizers(kind: str) -> None:
    theirs = KINDS[kind]()
    description = from_tokenizer_json(theirs.to_str().encode())
    mine, rng = Tokenizer.from_bytes(pack(description)), Random(kind)
    special = [token.content for token in description.added]
    for i in range(1500):
        text = generated(rng, special)
        ids = mine.encode(text)
        assert ids == theirs.encode(text).ids, text
        for skip in (True, False):
            assert mine.decode(ids, skip_special=skip) == theirs.decode(ids, skip_special_tokens=skip), text
        if i % 10 == 0:
            both = theirs.encode(text, text[::2])
            assert mine.encode_pair(text, text[::2]) == (both.ids, both.type_ids), text
            stream = mine.detokenizer()
            assert "".join(stream.feed(number) for number in ids) + stream.finish() == mine.decode(ids)


@pytest.mark.parametrize("options", [{}, {"byte_fallback": True}, {"remove_extra_whitespaces": False}], ids=str)
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_ids_are_those_of_sentencepiece(kind: str, options: dict[str, Any]) -> None:
    data = sentencepiece_model(kind, **options)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    mine, rng = Tokenizer.from_bytes(pack(from_sentencepiece(data, begin=False))), Random(kind)
    for _ in range(1000):
        text = generated(rng)
        ids = theirs.encode(text)
        found = mine.encode(text, special=False)
        if found != ids:  # equally good: sums of scores differ by the rounding of float32
            scores = mine.description.scores
            assert kind == "unigram" and abs(sum(scores[i] for i in found) - sum(scores[i] for i in ids)) < 1e-4, text
        elif 0 not in ids:
            assert mine.decode(ids) == theirs.decode(ids)


def gguf(name: str, held: Description) -> dict[str, Any]:
    """A description as GGUF's metadata have it."""
    return {
        "tokenizer.ggml.model": name,
        "tokenizer.ggml.tokens": [token.decode() for token in held.tokens],
        "tokenizer.ggml.scores": held.scores.tolist(),
        "tokenizer.ggml.token_type": list(held.kinds),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **({"tokenizer.ggml.precompiled_charsmap": list(held.charsmap)} if name == "t5" else {}),
        "tokenizer.ggml.remove_extra_whitespaces": True,
    }


@pytest.mark.parametrize(("name", "kind"), [("llama", "bpe"), ("t5", "unigram")])
def test_pieces_in_gguf(name: str, kind: str) -> None:
    data = sentencepiece_model(
        kind, byte_fallback=True, normalization_rule_name="identity" if kind == "bpe" else "nmt_nfkc"
    )
    held = from_sentencepiece(data, begin=name == "llama", end=name == "t5")
    one, other = Tokenizer(held), Tokenizer(from_gguf(gguf(name, held)))
    assert BYTE in held.kinds
    rng = Random(name)
    for _ in range(300):
        text = generated(rng, ["<s>"])
        assert one.encode(text) == other.encode(text)
        assert one.decode(one.encode(text)) == other.decode(other.encode(text))


def test_word_pieces_in_gguf() -> None:
    theirs = word_piece()
    vocabulary = json.loads(theirs.to_str())["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    written = [t if t.startswith("[") and len(t) > 2 else t[2:] if t.startswith("##") else f"\u2581{t}" for t in tokens]
    mine = Tokenizer(
        from_gguf(
            {
                "tokenizer.ggml.model": "bert",
                "tokenizer.ggml.tokens": written,
                "tokenizer.ggml.cls_token_id": 2,
                "tokenizer.ggml.seperator_token_id": 3,
                "tokenizer.ggml.unknown_token_id": 1,
            }
        )
    )
    rng = Random(4)
    for _ in range(500):
        text = generated(rng, ["[MASK]"])
        if max(map(len, text.split()), default=0) < 20:
            assert mine.encode(text) == theirs.encode(text).ids, text


def test_long_texts_take_no_quadratic_time() -> None:
    for kind in ("pieces", "unigram", "word pieces", "odd"):
        theirs = KINDS[kind]()
        mine = Tokenizer(from_tokenizer_json(theirs.to_str().encode()))
        for text in ("ba" * 20_000, "a b" * 10_000, " " * 20_000, "1" * 100_000, "!" * 100_000):
            assert mine.encode(text) == theirs.encode(text).ids


def test_normalisers_cannot_fill_the_memory() -> None:
    """Sixty steps that double a text are stopped; so is a replacement of many characters."""
    twice = {"type": "Replace", "pattern": {"String": "q"}, "content": "qq"}
    mine = Tokenizer(from_tokenizer_json(changed(normalizer={"type": "Sequence", "normalizers": [twice] * 60})))
    with pytest.raises(BundleError, match="at most 256 characters for one"):
        mine.encode("q" * 100)
    with pytest.raises(ConvertError, match="at most 256 characters"):
        from_tokenizer_json(changed(normalizer=twice | {"content": "a" * 257}))


@pytest.mark.parametrize("name", KNOWN)
def test_known_patterns_take_linear_time(name: str) -> None:
    """Runs of 30,000 characters of every kind, ended by another: quadratic time would take hours."""
    for run in (
        " ",
        "\n",
        " \n",
        "A",
        "a",
        "Aa",
        "1",
        "'",
        "'s",
        "!",
        "\u3042",
        "\u3042A",
        "\u0301",
        "\u0301A",
        "\xb2",
    ):
        for end in ("", "x", "X", " ", "\n", "1", "!", "\u3042"):
            text = run * (30_000 // len(run)) + end
            assert "".join(Pattern(KNOWN[name]).isolated(text)) == text


def test_many_tokens_that_take_spaces() -> None:
    mine = Tokenizer(from_tokenizer_json(byte_level("llama-3").to_str().encode()))
    text = "<|mask|>  " * 20_000
    assert set(mine.encode(text)) == {mine.token_to_id("<|mask|>")}


def test_a_file_and_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(word_piece().to_str(), encoding="utf-8")
    config = {"cls_token": "[CLS]", "sep_token": {"content": "[SEP]"}, "eos_token": None, "chat_template": "{{ a }}"}
    made = Tokenizer(from_tokenizer_json(path, config))
    assert made.ids == {"unk": 1, "cls": 2, "sep": 3} and made.chat_template == "{{ a }}"


def changed(**parts: Any) -> bytes:
    return json.dumps(json.loads(byte_level("llama-3").to_str()) | parts).encode()


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"normalizer": {"type": "Unheard"}}, r"Unheard.*not supported"),
        ({"pre_tokenizer": {"type": "UnicodeScripts"}}, r"UnicodeScripts.*not supported"),
        ({"decoder": {"type": "CTC"}}, "CTC"),
        ({"post_processor": {"type": "Other"}}, "Other"),
        ({"model": {"type": "WordLevel", "vocab": {}}}, "WordLevel"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, "merge 0"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}}, "one token an id"),
        ({"model": {"type": "BPE", "vocab": {"a": 1 << 40}, "merges": []}}, "expected ids"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "</w>"}},
            "end_of_word_suffix",
        ),
        ({"model": None}, "missing or of another type"),
        ({"added_tokens": [{"id": 1 << 40, "content": "x"}]}, "expected ids below"),
        ({"added_tokens": [{"id": -1, "content": "x"}]}, "expected an id"),
        (
            {
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {"Regex": "(a+)+$"},
                    "behavior": "Isolated",
                    "invert": False,
                }
            },
            r"expected one of .* known patterns",
        ),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "%"}}, "base64"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "trie"),
    ],
    ids=str,
)
def test_files_that_are_refused(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(ConvertError, match=says):
        from_tokenizer_json(changed(**parts))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"a": 1}'])
def test_what_is_no_tokenizer_json(data: bytes) -> None:
    with pytest.raises(ConvertError, match=r"tokenizer.json"):
        from_tokenizer_json(data)


def test_damaged_sentencepiece_files() -> None:
    """Cut anywhere, or with any byte changed: a description, or ConvertError."""
    data, rng = sentencepiece_model("bpe"), Random(1)
    with pytest.raises(ConvertError, match="pieces"):
        from_sentencepiece(b"")
    for _ in range(200):
        at = rng.randrange(len(data))
        for bad in (data[:at], data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]):
            with suppress(ConvertError):
                from_sentencepiece(bad)


def test_a_table_of_characters_is_never_left() -> None:
    """Any bytes as a table: a normaliser, or an error, and never an index outside."""
    good = from_sentencepiece(sentencepiece_model("unigram")).charsmap
    rng = Random(2)
    for _ in range(60):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 200)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        with suppress(BundleError):
            for longest in (False, True):
                made = CharsMap(bytes(bad), longest)
                for _ in range(20):
                    made.normalized(generated(rng), 1 << 20)
