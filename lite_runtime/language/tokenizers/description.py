"""A tokenizer as data, and its bytes: the section `tokenizer` of a bundle.

    magic   MSTOK and the format's number, 8 bytes
    sizes   of the head and of the body, 8 bytes each, little-endian
    head    JSON: components, added tokens, names of ids, template of a chat, numbers of what follows
    body    lengths of tokens (uint16), their bytes, kinds (uint8), scores (float64), merges (int32 [n, 3]), charsmap

All of it is one zlib stream. Nothing is believed: lengths, ids, kinds and names are checked when it is read, a pattern
must be of a form that takes linear time, and no more memory is used than a fixed multiple of the file's size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from lite_runtime.bundle.refusal import list_of, mapping_of, object_of, refuse, show, string_of
from lite_runtime.bundle.strict import deflated, inflated, parsed
from lite_runtime.frozen import NamedTuple
from lite_runtime.language.tokenizers.vocabulary import Tokens

__all__ = [
    "ABSENT",
    "BYTE",
    "CONTROL",
    "NORMAL",
    "SECTION",
    "UNDERLINE",
    "UNKNOWN",
    "UNUSED",
    "USER",
    "AddedToken",
    "Description",
    "byte_tokens",
    "pack",
    "unknown_of",
    "unpack",
    "vocabulary_of",
]

SECTION = "tokenizer"
"""The name of the bundle's section."""
ABSENT, NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(7)
"""Kinds of tokens, with GGUF's numbers. Only NORMAL ones are found in text by the model; CONTROL and USER ones are
added tokens; BYTE ones are `<0x00>` to `<0xFF>`; an ABSENT one is a number without a token."""
UNDERLINE = "\u2581"
"""SentencePiece's sign for a space."""
MAX_TOKENS, MAX_TOKEN = 1 << 21, 1024
"""The most tokens, and the most bytes of one."""
_MAGIC = b"MSTOK\x00\x00\x01"
_BYTE_NAME = re.compile(rb"<0x[0-9A-Fa-f]{2}>")
_HEAD = ("model", "normalizer", "pre_tokenizer", "decoder", "template", "added", "ids", "chat_template", "counts")
_COUNTS = ("tokens", "bytes", "scores", "merges", "charsmap")


class AddedToken(NamedTuple):
    """A token that is found in the text before the model sees it.

    special: left out by `decode` on demand. normalized: looked for in the normalised text. lstrip, rstrip: takes the
    spaces beside it. single_word: not inside a word.
    """

    id: int
    content: str
    special: bool = True
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class Description(NamedTuple):
    """Everything that `Tokenizer` is made from.

    tokens: the bytes of each id as the model knows them: for a model of bytes what they stand for, else text in UTF-8.
    kinds: one number a token. scores: float64 [tokens], or none. merges: int32 [n, 3] by rank: left, right, result.
    charsmap: the normaliser's table of SentencePiece. Components are rows: a name as `type`, and its settings.
    template: `single` and `pair`, lists of ids and of "A" and "B"; `types`, one number for each
    item of `pair`. ids: bos, eos, unk, pad and others by name.
    """

    tokens: Sequence[bytes]
    kinds: bytes
    model: Mapping[str, Any]
    scores: Any = np.zeros(0)
    merges: Any = np.zeros((0, 3), np.int32)
    charsmap: bytes = b""
    normalizer: tuple[Mapping[str, Any], ...] = ()
    pre_tokenizer: tuple[Mapping[str, Any], ...] = ()
    decoder: Mapping[str, Any] = MappingProxyType({"type": "Joined"})
    template: Mapping[str, Any] = MappingProxyType({"single": ["A"], "pair": ["A", "B"], "types": [0, 1]})
    added: tuple[AddedToken, ...] = ()
    ids: Mapping[str, int] = MappingProxyType({})
    chat_template: str = ""


def vocabulary_of(description: Description) -> dict[bytes, int]:
    """The ids of the tokens that the model finds in text, by their bytes."""
    rows = enumerate(zip(description.tokens, description.kinds, strict=True))
    return {token: i for i, (token, kind) in rows if kind == NORMAL}


def byte_tokens(description: Description) -> list[int] | None:
    """The ids of the 256 tokens of bytes, by byte; None unless there are all of them."""
    found = {t: i for i, t in enumerate(description.tokens) if description.kinds[i] == BYTE}
    names = [b"<0x%02X>" % byte for byte in range(256)]
    return [found[name] for name in names] if all(name in found for name in names) else None


def unknown_of(number: int, description: Description) -> int | None:
    """The setting `unk` of a model: the id that stands for what has no token; -1 is none."""
    if not -1 <= number < len(description.tokens):
        refuse(f"{SECTION}, model, unk", f"an id below {len(description.tokens)}, or -1", str(number))
    return number if number >= 0 else None


def pack(description: Description) -> bytes:
    """The bytes of a description; raises BundleError for one that `unpack` would refuse."""
    check(description)
    text = b"".join(description.tokens)
    scores = np.asarray(description.scores, np.float64)
    merges = np.asarray(description.merges, np.int32)
    counts = (len(description.tokens), len(text), len(scores), len(merges), len(description.charsmap))
    head = {
        "model": dict(description.model),
        "normalizer": [dict(row) for row in description.normalizer],
        "pre_tokenizer": [dict(row) for row in description.pre_tokenizer],
        "decoder": dict(description.decoder),
        "template": dict(description.template),
        "added": [list(token) for token in description.added],
        "ids": dict(description.ids),
        "chat_template": description.chat_template,
        "counts": dict(zip(_COUNTS, counts, strict=True)),
    }
    try:
        packed_head = json.dumps(head, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except (UnicodeEncodeError, TypeError, ValueError) as error:
        refuse(SECTION, "plain values and valid Unicode", str(error)[:200])
    lengths = np.array([len(token) for token in description.tokens], "<u2")
    body = [lengths.tobytes(), text, description.kinds, scores.tobytes(), merges.tobytes(), description.charsmap]
    sizes = b"".join(size.to_bytes(8, "little") for size in (len(packed_head), sum(map(len, body))))
    return deflated(b"".join([_MAGIC, sizes, packed_head, *body]))


def unpack(data: bytes | memoryview) -> Description:
    """The description in these bytes; raises BundleError for anything that `pack` did not make."""
    raw = inflated(bytes(data), SECTION)
    if raw[:8] != _MAGIC:
        refuse(SECTION, f"a description of format {_MAGIC[-1]}", show(raw[:8].hex()))
    head_size, body_size = int.from_bytes(raw[8:16], "little"), int.from_bytes(raw[16:24], "little")
    if 24 + head_size + body_size != len(raw):
        refuse(SECTION, f"{24 + head_size + body_size} bytes", str(len(raw)))
    head = object_of(parsed(raw[24 : 24 + head_size], SECTION), SECTION, _HEAD)
    counts = object_of(head["counts"], f"{SECTION}, counts", _COUNTS)
    if not all(type(n) is int and 0 <= n <= len(raw) for n in counts.values()):
        refuse(f"{SECTION}, counts", f"whole numbers up to {len(raw)}", show(str(counts)))
    n, nbytes, n_scores, n_merges, n_charsmap = (counts[name] for name in _COUNTS)
    sizes = (2 * n, nbytes, n, 8 * n_scores, 12 * n_merges, n_charsmap)
    if sum(sizes) != body_size:
        refuse(f"{SECTION}, body", f"{sum(sizes)} bytes", str(body_size))
    at, parts = 24 + head_size, []
    for size in sizes:
        parts.append(raw[at : at + size])
        at += size
    lengths, text, kinds, scores, merges, charsmap = parts
    made = Description(
        tokens=_cut(text, np.frombuffer(lengths, "<u2")),
        kinds=kinds,
        model=mapping_of(head["model"], f"{SECTION}, model"),
        scores=np.frombuffer(scores, "<f8"),
        merges=np.frombuffer(merges, "<i4").reshape(-1, 3),
        charsmap=charsmap,
        normalizer=_rows(head, "normalizer"),
        pre_tokenizer=_rows(head, "pre_tokenizer"),
        decoder=mapping_of(head["decoder"], f"{SECTION}, decoder"),
        template=mapping_of(head["template"], f"{SECTION}, template"),
        added=tuple(_added(row, i) for i, row in enumerate(list_of(head["added"], f"{SECTION}, added"))),
        ids=mapping_of(head["ids"], f"{SECTION}, ids"),
        chat_template=string_of(head["chat_template"], f"{SECTION}, chat_template"),
    )
    check(made)
    return made


def _cut(text: bytes, lengths: Any) -> Tokens:
    total = int(lengths.sum(dtype=np.int64))
    if total != len(text):
        refuse(f"{SECTION}, tokens", f"{len(text)} bytes", str(total))
    return Tokens(text, lengths)


def _rows(head: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(mapping_of(row, f"{SECTION}, {name}") for row in list_of(head[name], f"{SECTION}, {name}"))


def _added(row: Any, i: int) -> AddedToken:
    where = f"{SECTION}, added token {i}"
    if type(row) is not list or [type(value) for value in row] != [int, str, bool, bool, bool, bool, bool]:
        refuse(where, "[id, content, special, normalized, lstrip, rstrip, single_word]", show(row))
    return AddedToken(*row)


def check(description: Description) -> None:
    """Raise BundleError unless numbers, kinds and ids of a description fit together. Components are checked by those
    who build them."""
    d = description
    n = len(d.tokens)
    if not 0 < n <= MAX_TOKENS or len(d.kinds) != n:
        refuse(f"{SECTION}, tokens", f"1 to {MAX_TOKENS} tokens and a kind for each", f"{n} and {len(d.kinds)}")
    if max(d.kinds) > BYTE:
        refuse(f"{SECTION}, kinds", f"numbers up to {BYTE}", str(max(d.kinds)))
    longest = max(map(len, d.tokens))
    if longest > MAX_TOKEN:
        refuse(f"{SECTION}, tokens", f"at most {MAX_TOKEN} bytes each", str(longest))
    if len(d.scores) not in (0, n) or not np.isfinite(d.scores).all():
        refuse(f"{SECTION}, scores", f"{n} finite numbers or none", str(len(d.scores)))
    if len(d.merges) and (int(d.merges.min()) < 0 or int(d.merges.max()) >= n):
        refuse(f"{SECTION}, merges", f"ids below {n}", f"{int(d.merges.min())} to {int(d.merges.max())}")
    _check_normal(d)
    seen: set[str] = set()
    for token in d.added:
        where = f"{SECTION}, added token {show(token.content)}"
        _check_id(where, token.id, n)
        if not token.content or token.content in seen:
            refuse(where, "text that no other added token has", "none" if not token.content else "it twice")
        if len(token.content) > MAX_TOKEN or "\ud800" <= max(token.content) <= "\udfff":
            refuse(where, f"at most {MAX_TOKEN} characters of valid Unicode", str(len(token.content)))
        seen.add(token.content)
    for name, number in d.ids.items():
        _check_id(f"{SECTION}, id of {show(name)}", number, n)
    _check_template(d.template, n)


def _check_normal(d: Description) -> None:
    """Tokens of the model differ, those of bytes have their names, and all are text unless the model's are bytes."""
    normal = [token for token, kind in zip(d.tokens, d.kinds, strict=True) if kind == NORMAL]
    if len(set(normal)) != len(normal):
        refuse(f"{SECTION}, tokens", "different tokens", f"{len(normal) - len(set(normal))} twice")
    strange = [t for t, kind in zip(d.tokens, d.kinds, strict=True) if kind == BYTE and not _BYTE_NAME.fullmatch(t)]
    if strange:
        refuse(f"{SECTION}, tokens", "tokens of bytes as <0x00> to <0xFF>", show(repr(strange[0])))
    if b"" in normal:
        refuse(f"{SECTION}, tokens", "tokens of one byte or more", "an empty one")
    if d.model.get("units") != "bytes":
        try:
            b"\0".join(d.tokens).decode("utf-8")
        except UnicodeDecodeError as error:
            refuse(f"{SECTION}, tokens", "UTF-8", str(error.reason))


def _check_id(where: str, number: Any, n: int) -> None:
    if type(number) is not int or not 0 <= number < n:
        refuse(where, f"an id below {n}", show(number))


def _check_template(template: Mapping[str, Any], n: int) -> None:
    where = f"{SECTION}, template"
    object_of(dict(template), where, ("single", "pair", "types"))
    for name, letters in (("single", ["A"]), ("pair", ["A", "B"])):
        items = list_of(template[name], where)
        if len(items) > 64 or [item for item in items if type(item) is str] != letters:
            refuse(f"{where}, {name}", f"ids around {' and '.join(letters)}, 64 items at most", show(items))
        for item in items:
            if type(item) is not str:
                _check_id(f"{where}, {name}", item, n)
    types = list_of(template["types"], where)
    if len(types) != len(template["pair"]) or not all(type(kind) is int and 0 <= kind < 256 for kind in types):
        refuse(f"{where}, types", "a small number for each item of the pair", show(template["types"]))
