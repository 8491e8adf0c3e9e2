"""Sections of bundles that are not what `pack` makes: refused, with what was expected."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lite_runtime import bundle
from lite_runtime.errors import BundleError
from lite_runtime.language.tokenizers import SECTION, AddedToken, Description, Tokenizer, pack, unpack
from tests.fuzz.seeds import seed_bundles
from tests.fuzz.tokenizer_files import descriptions

BYTES, PIECES, UNIGRAM, WORDS = descriptions()


def test_descriptions_survive() -> None:
    for held in descriptions():
        again = unpack(pack(held))
        assert (again.tokens, again.kinds, again.added, again.charsmap) == (
            held.tokens,
            held.kinds,
            held.added,
            held.charsmap,
        )
        assert again.model == held.model and again.normalizer == tuple(map(dict, held.normalizer))
        np.testing.assert_array_equal(again.merges, held.merges)
        np.testing.assert_array_equal(again.scores, held.scores)


def test_a_bundle_holds_a_tokenizer() -> None:
    held = bundle.read(seed_bundles()[0])
    data = bundle.write(None, held.signatures, extra={SECTION: pack(BYTES)})
    tokenizer = Tokenizer.from_bytes(bundle.read(data).section(SECTION))
    assert tokenizer.decode(tokenizer.encode("abab 12")) == "abab 12"


@pytest.mark.parametrize(
    ("held", "changes", "says"),
    [
        (BYTES, {"tokens": ()}, "1 to"),
        (BYTES, {"kinds": b"\1"}, "a kind for each"),
        (BYTES, {"kinds": bytes([7] * 11)}, "numbers up to 6"),
        (BYTES, {"tokens": (b"a", b"a", *BYTES.tokens[2:])}, "different tokens"),
        (BYTES, {"tokens": (b"", *BYTES.tokens[1:])}, "one byte or more"),
        (BYTES, {"tokens": (b"a" * 1025, *BYTES.tokens[1:])}, "at most 1024 bytes"),
        (BYTES, {"merges": np.array([[0, 1, 11]], np.int32)}, "ids below 11"),
        (BYTES, {"merges": np.array([[-1, 1, 2]], np.int32)}, "ids below 11"),
        (BYTES, {"scores": np.zeros(3)}, "11 finite numbers"),
        (BYTES, {"scores": np.full(11, np.nan)}, "11 finite numbers"),
        (PIECES, {"tokens": (b"\xff", *PIECES.tokens[1:])}, "UTF-8"),
        (PIECES, {"tokens": (*PIECES.tokens[:2], b"", *PIECES.tokens[3:])}, "tokens of bytes as"),
        (BYTES, {"added": (AddedToken(11, "x"),)}, "an id below 11"),
        (BYTES, {"added": (AddedToken(1, ""),)}, "no other added token has"),
        (BYTES, {"added": (AddedToken(1, "x"), AddedToken(2, "x"))}, "it twice"),
        (BYTES, {"ids": {"bos": 11}}, "an id below 11"),
        (BYTES, {"template": {"single": ["B"], "pair": ["A", "B"], "types": [0, 1]}}, "ids around A"),
        (BYTES, {"template": {"single": ["A", 11], "pair": ["A", "B"], "types": [0, 1]}}, "an id below 11"),
        (BYTES, {"template": {"single": ["A"], "pair": ["A", "B"], "types": [0]}}, "a small number for each"),
        (BYTES, {"chat_template": "\ud800"}, "valid Unicode"),
    ],
)
def test_what_cannot_be_packed(held: Description, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BundleError, match=says):
        pack(held._replace(**changes))


@pytest.mark.parametrize(
    ("held", "changes", "says"),
    [
        (WORDS, {"model": {"type": "Markov"}}, "one of BPE"),
        (PIECES, {"model": PIECES.model | {"units": "words"}}, "one of bytes, characters"),
        (BYTES, {"model": BYTES.model | {"unk": 11}}, "an id below 11"),
        (BYTES, {"model": BYTES.model | {"unk": True}}, "int"),
        (BYTES, {"model": BYTES.model | {"more": 1}}, "the keys"),
        (UNIGRAM, {"scores": np.zeros(0)}, "a number for each token"),
        (BYTES, {"normalizer": ({"type": "Magic"},)}, "one of NFC"),
        (BYTES, {"normalizer": ({"type": "NFC"},) * 65}, "at most 64 steps"),
        (BYTES, {"pre_tokenizer": ({"type": "Digits"},)}, "the keys"),
        (BYTES, {"decoder": {"type": "Magic"}}, "one of ByteLevel"),
        (
            BYTES,
            {"decoder": {"type": "Pieces", "replacement": "", "strip": "space", "byte_fallback": True}},
            "one character",
        ),
        (PIECES, {"charsmap": b""}, "a trie"),
    ],
)
def test_what_cannot_be_built(held: Description, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BundleError, match=says):
        Tokenizer.from_bytes(pack(held._replace(**changes)))


SECTION_BYTES = pack(BYTES)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda raw: b"", "a description"),
        (lambda raw: b"X" + raw[1:], "a description of format 1"),
        (lambda raw: raw[:-1], "bytes"),
        (lambda raw: raw[:8] + (1 << 62).to_bytes(8, "little") + raw[16:], "bytes"),
        (lambda raw: raw.replace(b'"tokens":11', b'"tokens":12'), "body"),
        (lambda raw: raw.replace(b'"tokens":11', b'"tokens":-1'), "whole numbers"),
        (lambda raw: raw.replace(b'"added":[[10', b'"added":[[-1'), "an id below"),
        (lambda raw: raw.replace(b'"ids":', b'"sdi":'), "the keys"),
    ],
)
def test_damaged_sections(change: Callable[[bytes], bytes], says: str) -> None:
    changed = change(zlib.decompress(SECTION_BYTES))
    assert changed != zlib.decompress(SECTION_BYTES)
    with pytest.raises(BundleError, match=says):
        Tokenizer.from_bytes(zlib.compress(changed))


def test_a_section_expands_within_bounds() -> None:
    with pytest.raises(BundleError, match="zlib stream"):
        unpack(zlib.compress(bytes(1 << 26)))
    with pytest.raises(BundleError, match="zlib stream"):
        unpack(b"no stream")
