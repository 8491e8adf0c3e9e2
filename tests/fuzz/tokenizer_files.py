"""Does any tokenizer's file crash the reader, hang it, or make it fail in a way it did not mean to?

    python -m tests.fuzz.tokenizer_files --cases 1000000 --seed 1 --workers 2

Cases are damaged sections of bundles, GGUF metadata, `tokenizer.json`, SentencePiece files and templates of chats. Each
is read; what can be read encodes and decodes texts. Anything but success or an MsedgeError is a finding, as is a case
of more than ten seconds; memory is limited. Case i of a seed is the same everywhere. Exit status: 0 nothing found, 1
something found.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import signal
import sys
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from random import Random
from types import FrameType
from typing import Any

import numpy as np

from converter.frontends.language import from_gguf, from_sentencepiece, from_tokenizer_json
from converter.frontends.language.alphabet import ALPHABET
from lite_runtime import MsedgeError
from lite_runtime.language import ChatTemplate, Tokenizer
from lite_runtime.language.tokenizers import AddedToken, Description, pack
from lite_runtime.language.tokenizers.description import BYTE, CONTROL, NORMAL, UNKNOWN
from lite_runtime.language.tokenizers.patterns import KNOWN

__all__ = ["case", "fuzz", "main"]

PATIENCE = 10
"""Seconds that a case may take."""
MEMORY = 4 << 30
TEXTS = ("", " ab  ba\u2581<s>12 \xe9\U0001f600", "ab" * 300, "\u0301\x85\ufb01 \u3000[CLS]", "'S don't 1234 !!\r\n x")
NUMBERS = (0, -1, 1, 2, 255, 65535, 1 << 20, 1 << 31, 1 << 32, 1 << 62, 1 << 64, -(1 << 31), 0.5, 1e300)
VALUES = (
    None,
    True,
    "",
    "x",
    "\u2581",
    [],
    {},
    [0],
    ["x"],
    {"type": "NFC"},
    {"Regex": "(a+)+"},
    {"String": "a"},
    "\ud800",
)


@cache
def descriptions() -> tuple[Description, ...]:
    """One of every kind."""
    letters = [b"a", b"b", b" ", b"1", b"2", b"\xc3", b"\xa9", b"ab", b"ba", b"abab", b"<s>"]
    normal = bytes([NORMAL] * (len(letters) - 1) + [CONTROL])
    merges = np.array([[0, 1, 7], [1, 0, 8], [7, 7, 9]], np.int32)
    bpe = {"type": "BPE", "byte_fallback": True, "ignore_merges": True, "fuse_unk": True}
    split = {"type": "Split", "pattern": {"Regex": KNOWN["llama-3"]}, "behavior": "Isolated", "invert": False}
    fallback = [b"<0x%02X>" % byte for byte in range(256)]
    pieces = [b"<unk>", b"<s>", *fallback, "\u2581".encode(), b"a", b"b", "\u2581a".encode(), b"ab", b"ba"]
    kinds = bytes([UNKNOWN, CONTROL] + [BYTE] * 256 + [NORMAL] * 6)
    scores = np.array([0.0] * 258 + [-float(i) for i in range(6)])
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    unigram = {"type": "Unigram", "byte_fallback": True, "whole_vocabulary": False, "unk": 0}
    word_piece = {"type": "WordPiece", "prefix": "##", "longest_word": 9, "unk": 0}
    words = [b"[UNK]", b"[CLS]", b"a", b"##b", b"ab", b"##ab", b"1"]
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": True,
            "lowercase": True}  # fmt: skip
    start = AddedToken(1, "<s>", lstrip=True, rstrip=True)
    decoder = {"type": "Pieces", "replacement": "\u2581", "strip": "space", "byte_fallback": True}
    table = _one_key()
    return (
        Description(tuple(letters), normal, bpe | {"units": "bytes", "merging": "pairs", "unk": -1}, merges=merges,
                    normalizer=({"type": "NFKC"},), pre_tokenizer=(split,), decoder={"type": "ByteLevel"},
                    added=(start._replace(id=10),), ids={"bos": 10}, chat_template="{{ messages }}"),
        Description(tuple(pieces), kinds, bpe | {"units": "characters", "merging": "scores", "unk": 0}, scores,
                    charsmap=table, normalizer=({"type": "Precompiled", "longest": True}, replace), decoder=decoder,
                    added=(start,)),
        Description(tuple(pieces), kinds, unigram, scores, charsmap=table,
                    normalizer=({"type": "Precompiled", "longest": False}, replace),
                    decoder=decoder, added=(start._replace(normalized=True, single_word=True),)),
        Description(tuple(words), bytes([NORMAL] * 7), word_piece,
                    normalizer=(bert,), pre_tokenizer=({"type": "BertPreTokenizer"},),
                    decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
                    template={"single": [1, "A"], "pair": [1, "A", "B"], "types": [0, 0, 1]},
                    added=(AddedToken(1, "[CLS]"),)),
    )  # fmt: skip


def _one_key() -> bytes:
    """A table of characters with the key a."""
    units = [0] * 512
    units[0], units[256 ^ 0x61], units[256 ^ 0x61 ^ 1] = 256 << 10, 1 << 10 | 1 << 8 | 0x61, 1 << 31
    trie = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(trie).to_bytes(4, "little") + trie + b"b\0"


@cache
def metadata() -> tuple[dict[str, Any], ...]:
    """GGUF's four kinds."""
    written = {byte: c for c, byte in ALPHABET.items()}
    of_bytes = ["".join(written[byte] for byte in token) for token in descriptions()[0].tokens]
    pieces = descriptions()[1]
    ids = {f"tokenizer.ggml.{name}_token_id": i for i, name in enumerate(("unknown", "bos", "eos", "cls", "seperator"))}
    shared: dict[str, Any] = {
        **ids,
        "tokenizer.ggml.tokens": [token.decode() for token in pieces.tokens],
        "tokenizer.ggml.scores": pieces.scores.tolist(),
        "tokenizer.ggml.token_type": list(pieces.kinds),
        "tokenizer.ggml.precompiled_charsmap": list(pieces.charsmap),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
    }
    merges = ["a b", "b a", "ab ab"]
    level = ids | {"tokenizer.ggml.tokens": of_bytes, "tokenizer.ggml.merges": merges, "tokenizer.ggml.pre": "smollm"}
    kinds = {"llama": shared, "t5": shared, "bert": shared, "gpt2": level}
    return tuple({"tokenizer.ggml.model": name, **held} for name, held in kinds.items())


@cache
def documents() -> tuple[dict[str, Any], ...]:
    """`tokenizer.json` of three kinds."""
    vocabulary = {token: i for i, token in enumerate(("[UNK]", "a", "b", "ab", "\u2581", "##a", "\u0120"))}
    added = [
        {"id": 7, "content": "<s>", "special": True, "lstrip": True},
        {"id": 0, "content": "[UNK]", "normalized": True},
    ]
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}},
    }
    level = [{"type": "Split", "pattern": {"Regex": KNOWN["o200k"]}, "behavior": "Isolated", "invert": False},
             {"type": "ByteLevel", "add_prefix_space": True, "use_regex": False}]  # fmt: skip
    models: tuple[dict[str, Any], ...] = (
        {"type": "BPE", "vocab": vocabulary, "merges": ["a b"], "unk_token": "[UNK]", "fuse_unk": True},
        {"type": "Unigram", "vocab": [[token, -1.0] for token in vocabulary], "unk_id": 0, "byte_fallback": True},
        {"type": "WordPiece", "vocab": vocabulary, "unk_token": "[UNK]", "max_input_chars_per_word": 9},
    )
    pre: tuple[Any, ...] = (
        {"type": "Sequence", "pretokenizers": level},
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"},
        {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "Digits"}, {"type": "Punctuation"}]},
    )
    decoders = ({"type": "ByteLevel"}, {"type": "Metaspace", "replacement": "\u2581"}, None)
    steps = [
        {"type": "Nmt"},
        {"type": "NFKD"},
        {"type": "StripAccents"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}},
    ]
    rows = zip(models, pre, decoders, strict=True)
    return tuple(
        {"normalizer": {"type": "Sequence", "normalizers": steps}, "added_tokens": added, "post_processor": template,
         "model": model, "pre_tokenizer": split, "decoder": decoder}
        for model, split, decoder in rows
    )  # fmt: skip


@cache
def sentencepiece_file() -> bytes:
    """A file of SentencePiece with a dozen pieces."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data) & 127 | 128, len(data) >> 7]) + data

    pieces = ("<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581a")
    kinds = (2, 3, 3, *[1] * 5)
    rows = [
        field(1, piece.encode()) + b"\x15\0\0\x80\xbf\x18" + bytes([k]) for piece, k in zip(pieces, kinds, strict=True)
    ]
    return b"".join(field(1, row) for row in rows) + field(2, b"\x18\1") + field(3, field(2, _one_key()))


TEMPLATES = (
    "{% set ns = namespace(x='a') %}{% for m in messages if m.role != 'x' %}{{ loop.index ~ m['content'] | trim }}"
    "{% set ns.x = ns.x + m.role * 2 %}{% endfor %}{{ ns.x | tojson }}{{ range(9) | list | length }}",
    "{% macro f(n) %}{{ n.upper().replace('A', 'b') }}{% endmacro %}{{ f(messages[0].role) }}"
    "{% if a is defined %}x{% endif %}"
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}{{ 2 ** 3 % 5 }}",
)
WORDS = (
    "{{", "}}", "{%", "%}", "for", "in", "range(99999)", "*", "~", "**", "|", "list", "map", ".", "[", "]", "(", ")",
    "9999", "'a'", "messages", "if", "endfor", "set x =", "macro", "x", "+", "'x' * 99999", "| join(", "recursive",
)  # fmt: skip
"""Words that are put into templates."""


def case(seed: int, number: int) -> Callable[[], Any]:
    """The case of a number: what reads the damaged file and uses it."""
    rng = Random(f"{seed}:{number}")
    kind = rng.randrange(6)
    if kind == 0:
        return partial(use, spoiled_bytes(rng, pack(rng.choice(descriptions()))))
    if kind == 1:
        return partial(use, spoiled_section(rng, pack(rng.choice(descriptions()))))
    if kind == 2:
        held = spoiled(rng, rng.choice(metadata()))
        return lambda: use(pack(from_gguf(held)))
    if kind == 3:
        document = spoiled(rng, rng.choice(documents()))
        return lambda: use(pack(from_tokenizer_json(document, {"bos_token": "<s>"})))
    if kind == 4:
        data = spoiled_bytes(rng, sentencepiece_file())
        return lambda: use(pack(from_sentencepiece(data)))
    words = rng.choice(TEMPLATES).split(" ")
    for _ in range(rng.randrange(1, 5)):
        words[rng.randrange(len(words))] = rng.choice(WORDS)
    return lambda: ChatTemplate(" ".join(words)).render(
        [{"role": "user", "content": "a"}, {"role": "x", "content": "b"}]
    )


def use(*files: bytes) -> None:
    """Read sections, and encode, decode and look up with what they hold."""
    for data in files:
        tokenizer = Tokenizer.from_bytes(data)
        for text in TEXTS:
            ids = tokenizer.encode(text)
            tokenizer.decode(ids)
            tokenizer.encode_pair(text, text, special=False)
        for number in range(min(len(tokenizer), 20)):
            if tokenizer.description.kinds[number]:
                tokenizer.id_to_bytes(number)
                tokenizer.token_to_id(tokenizer.id_to_token(number))


def spoiled_bytes(rng: Random, data: bytes) -> bytes:
    """Bytes changed, taken out or put in."""
    made = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(made) + 1)
        made[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return bytes(made)


def spoiled_section(rng: Random, data: bytes) -> bytes:
    """A section whose head or body is damaged, with sizes that fit it."""
    raw = zlib.decompress(data)
    size = int.from_bytes(raw[8:16], "little")
    head, body = raw[24 : 24 + size], raw[24 + size :]
    if rng.random() < 0.7:
        head = json.dumps(spoiled(rng, json.loads(head))).encode()
    else:
        body = spoiled_bytes(rng, body)
    sizes = len(head).to_bytes(8, "little") + len(body).to_bytes(8, "little")
    return zlib.compress(raw[:8] + sizes + head + body)


def spoiled(rng: Random, document: Any) -> Any:
    """A JSON value of which some parts are others, missing, twice or exchanged."""
    made = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = [(holder, key) for holder, key in _places(made) if len(holder)]
        holder, key = rng.choice(places)
        kind = rng.randrange(4)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            holder[key] = rng.choice(NUMBERS)
        elif kind == 2:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
        else:
            other, place = rng.choice(places)
            holder[key] = copy.deepcopy(other[place])
    return made


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    rest = [value]
    while rest:
        inner = rest.pop()
        pairs = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
        for key, item in pairs:
            found.append((inner, key))
            rest.append(item)
    return found


# ------------------------------------------------------------------------------------------------------------- running


class _Late(BaseException):
    """A case took too long."""


def _ring(number: int, frame: FrameType | None) -> None:
    raise _Late


def try_case(seed: int, number: int) -> str:
    """What became of a case: "read", "refused", or what must not be, with its place."""
    try:
        case(seed, number)()
    except MsedgeError as error:
        return "refused" if len(str(error)) < 4000 else "an error too long to read"
    except _Late:
        return f"hang\n{traceback.format_exc()}"
    except Exception:  # the point of a fuzzer
        return traceback.format_exc()
    return "read"


def _run(seed: int, numbers: range) -> tuple[Counter[str], list[tuple[int, str]]]:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    return run(seed, numbers)


def run(seed: int, numbers: range) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Run these cases here: how many were read and refused, and the findings."""
    counts: Counter[str] = Counter()
    findings = []
    before = signal.signal(signal.SIGALRM, _ring)
    try:
        for number in numbers:
            signal.alarm(PATIENCE)
            outcome = try_case(seed, number)
            signal.alarm(0)
            counts[outcome if outcome in ("read", "refused") else "found"] += 1
            if outcome not in ("read", "refused"):
                findings.append((number, outcome))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return counts, findings


def fuzz(cases: int, seed: int, workers: int) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Run all cases in processes of their own."""
    counts: Counter[str] = Counter()
    findings: list[tuple[int, str]] = []
    parts = [range(at, min(at + 2000, cases)) for at in range(0, cases, 2000)]
    with ProcessPoolExecutor(workers) as pool:
        for found, more in pool.map(partial(_run, seed), parts):
            counts += found
            findings += more
    return counts, findings


def main(arguments: list[str]) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    counts, findings = fuzz(options.cases, options.seed, options.workers)
    for number, text in findings[:20]:
        print(f"case {number}: {text}", file=sys.stderr)
    print(f"cases {options.cases}, read {counts['read']}, refused {counts['refused']}, findings {len(findings)}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
