"""The library `tokenizers`' files (`tokenizer.json`)."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from converter.errors import ConvertError
from converter.frontends.language.alphabet import bytes_of
from lite_runtime.errors import MsedgeError
from lite_runtime.language.tokenizers import AddedToken, Description, Tokenizer
from lite_runtime.language.tokenizers.description import ABSENT, BYTE, CONTROL, MAX_TOKENS, NORMAL, UNUSED, USER

__all__ = ["from_tokenizer_json"]

Row = Mapping[str, Any]
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_IDS = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")


def from_tokenizer_json(
    source: str | os.PathLike[str] | bytes | Mapping[str, Any], config: Mapping[str, Any] | None = None
) -> Description:
    """The description of the tokenizer in a `tokenizer.json`: a path, its bytes or its parsed JSON.

    config: the JSON of `tokenizer_config.json`, which names bos, eos and others and may hold the chat's template.
    Raises ConvertError for a file that is malformed, and for components that are not supported, by name.
    """
    try:
        held = source if isinstance(source, Mapping) else json.loads(_read(source))
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"tokenizer.json: expected JSON, got {str(error)[:200]}") from None
    if not isinstance(held, Mapping):
        raise ConvertError(f"tokenizer.json: expected an object, got {type(held).__name__}")
    try:
        made = _described(held, config or {})
        Tokenizer(made)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConvertError(f"tokenizer.json: a part is missing or of another type: {error!r}"[:300]) from None
    except ConvertError:
        raise
    except MsedgeError as error:
        raise ConvertError(f"tokenizer.json: {error}") from None
    return made


def _read(source: str | os.PathLike[str] | bytes) -> bytes:
    return source if isinstance(source, bytes) else Path(source).read_bytes()


def _described(held: Mapping[str, Any], config: Mapping[str, Any]) -> Description:
    normalizers = [_row("normalizer", one, NORMALIZERS) for one in _flat(held.get("normalizer"), "normalizers")]
    pre = [_row("pre_tokenizer", one, PRE_TOKENIZERS) for one in _flat(held.get("pre_tokenizer"), "pretokenizers")]
    in_bytes = bool(pre) and pre[-1]["type"] == "ByteLevel"
    if any(row["type"] == "ByteLevel" for row in pre[:-1]):
        raise ConvertError("pre_tokenizer: expected ByteLevel to be the last step, got steps after it")
    model = held["model"]
    kind = model.get("type") or ("BPE" if "merges" in model else "Unigram" if "unk_id" in model else "WordPiece")
    if kind not in MODELS or (in_bytes and kind != "BPE"):
        raise ConvertError(f"model: expected one of {', '.join(MODELS)}, got {kind!r}{' with ByteLevel' * in_bytes}")
    decoder = _decoder(held.get("decoder"))
    tokens, scores = _vocabulary(model["vocab"])
    added = [_added(row) for row in held.get("added_tokens") or ()]
    size = max([len(tokens), *(token.id + 1 for token in added)])
    if size > MAX_TOKENS:
        raise ConvertError(f"added_tokens: expected ids below {MAX_TOKENS}, got {size - 1}")
    tokens += [None] * (size - len(tokens))
    fallback = bool(model.get("byte_fallback")) or bool(decoder.get("byte_fallback"))
    stored, kinds = _stored(tokens, {token.id: token for token in added}, in_bytes, fallback)
    charsmaps = [row.pop("charsmap") for row in normalizers if row["type"] == "Precompiled"]
    if len(charsmaps) > 1:
        raise ConvertError("normalizer: expected one Precompiled table at most")
    numbers = {token: i for i, token in enumerate(tokens) if token is not None}
    row, merges = MODELS[kind](model, numbers, in_bytes)
    return Description(
        tokens=stored,
        kinds=kinds,
        model=row,
        scores=np.array([*scores, *[0.0] * (size - len(scores))] if scores else [], np.float64),
        merges=merges,
        charsmap=charsmaps[0] if charsmaps else b"",
        normalizer=tuple(normalizers),
        pre_tokenizer=tuple(pre),
        decoder=decoder,
        template=_template(held.get("post_processor")),
        added=tuple(added),
        ids=_ids(config, numbers | {token.content: token.id for token in added}, row["unk"]),
        chat_template=config["chat_template"] if isinstance(config.get("chat_template"), str) else "",
    )


def _vocabulary(vocab: Any) -> tuple[list[str | None], list[float]]:
    """Tokens by id, None where there is none, and scores if the vocabulary has them."""
    if isinstance(vocab, Mapping):
        size = max(vocab.values(), default=-1) + 1
        if size > MAX_TOKENS or min(vocab.values(), default=0) < 0:
            raise ConvertError(f"model, vocab: expected ids from 0 to {MAX_TOKENS - 1}")
        tokens: list[str | None] = [None] * size
        for token, number in vocab.items():
            if tokens[number] is not None:
                raise ConvertError(f"model, vocab: expected one token an id, got two with {number}")
            tokens[number] = token
        return tokens, []
    return [token for token, _ in vocab], [float(score) for _, score in vocab]


def _stored(
    tokens: Sequence[str | None], added: Mapping[int, AddedToken], in_bytes: bool, fallback: bool
) -> tuple[tuple[bytes, ...], bytes]:
    """The bytes and kinds of all tokens."""
    stored, kinds = [], bytearray()
    for i, token in enumerate(tokens):
        outside = token is None
        text = added[i].content if token is None and i in added else token or ""
        data = bytes_of(text) if in_bytes else None
        stored.append(text.encode("utf-8") if data is None else data)
        if outside:
            kinds.append(ABSENT if i not in added else CONTROL if added[i].special else USER)
        elif fallback and _BYTE_TOKEN.fullmatch(text):
            kinds.append(BYTE)
        else:
            kinds.append(UNUSED if (in_bytes and data is None) or not text else NORMAL)
    return tuple(stored), bytes(kinds)


def _added(row: Mapping[str, Any]) -> AddedToken:
    flags = {name: bool(row.get(name, False)) for name in ("special", "normalized", "lstrip", "rstrip", "single_word")}
    return AddedToken(row["id"], row["content"], **flags)


def _ids(config: Mapping[str, Any], numbers: Mapping[str, int], unk: int) -> dict[str, int]:
    found = {"unk": unk} if unk >= 0 else {}
    for name in _IDS:
        token = config.get(f"{name}_token")
        content = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(content, str) and content in numbers:
            found[name] = numbers[content]
    return found


# ---------------------------------------------------------------------------------------------------------- components


def _flat(component: Row | None, key: str) -> Iterator[Row]:
    """The steps of a component; sequences, nested or not, are dissolved."""
    if component is None:
        return
    if component["type"] == "Sequence":
        for inner in component[key]:
            yield from _flat(inner, key)
    else:
        yield component


def _row(component: str, row: Row, table: Mapping[str, Callable[[Row], dict[str, Any]]]) -> dict[str, Any]:
    name = row["type"]
    if name not in table:
        raise ConvertError(f"{component}: expected one of {', '.join(table)}, got {name!r}, which is not supported")
    return {"type": name, **table[name](row)}


def _take(**defaults: Any) -> Callable[[Row], dict[str, Any]]:
    """Settings as they are, with what stands for those left out."""
    return lambda row: {name: row.get(name, default) for name, default in defaults.items()}


def _bert_normalizer(row: Row) -> dict[str, Any]:
    lower = row.get("lowercase", True)
    accents = row.get("strip_accents")
    return {"clean_text": row.get("clean_text", True), "handle_chinese_chars": row.get("handle_chinese_chars", True),
            "strip_accents": lower if accents is None else accents, "lowercase": lower}  # fmt: skip


def _precompiled(row: Row) -> dict[str, Any]:
    try:
        return {"longest": False, "charsmap": base64.b64decode(row["precompiled_charsmap"], validate=True)}
    except (binascii.Error, ValueError) as error:
        raise ConvertError(f"normalizer, Precompiled: expected base64: {error}") from None


def _metaspace(row: Row) -> dict[str, Any]:
    scheme = row.get("prepend_scheme") or ("always" if row.get("add_prefix_space", True) else "never")
    return {"replacement": row["replacement"], "prepend_scheme": scheme, "split": row.get("split", True)}


NORMALIZERS: dict[str, Callable[[Row], dict[str, Any]]] = {
    **dict.fromkeys(("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"), _take()),
    "BertNormalizer": _bert_normalizer,
    "Precompiled": _precompiled,
    "Prepend": _take(prepend=""),
    "Replace": _take(pattern=None, content=""),
    "Strip": _take(strip_left=True, strip_right=True),
}
PRE_TOKENIZERS: dict[str, Callable[[Row], dict[str, Any]]] = {
    **dict.fromkeys(("Whitespace", "WhitespaceSplit", "BertPreTokenizer"), _take()),
    "ByteLevel": _take(add_prefix_space=True, use_regex=True),
    "CharDelimiterSplit": _take(delimiter=""),
    "Digits": _take(individual_digits=False),
    "Metaspace": _metaspace,
    "Punctuation": _take(behavior="Isolated"),
    "Split": _take(pattern=None, behavior="", invert=False),
}


def _decoder(row: Row | None) -> dict[str, Any]:
    """One of the runtime's decoders, for the decoder of a file."""
    if row is None:
        return {"type": "Joined"}
    steps = list(_flat(row, "decoders"))
    names = [step["type"] for step in steps]
    if names == ["ByteLevel"]:
        return {"type": "ByteLevel"}
    if names == ["WordPiece"]:
        return {"type": "WordPiece", "prefix": steps[0]["prefix"], "cleanup": steps[0]["cleanup"]}
    if names in (["Metaspace"], ["ByteFallback", "Metaspace"]):
        strip = "nothing" if _metaspace(steps[-1])["prepend_scheme"] == "never" else "token"
        return _pieces(steps[-1]["replacement"], strip, len(names) == 2)
    if names[:2] == ["Replace", "ByteFallback"] and names[2:] in (["Fuse"], ["Fuse", "Strip"]):
        first, last = steps[0], steps[-1]
        strips = (last["content"], last["start"], last["stop"]) if names[-1] == "Strip" else (" ", 0, 0)
        if first["content"] == " " and strips in ((" ", 1, 0), (" ", 0, 0)) and set(first["pattern"]) == {"String"}:
            return _pieces(first["pattern"]["String"], "space" if strips[1] else "nothing", True)
    raise ConvertError(f"decoder: expected one of tokenizers' usual ones, got {', '.join(names)[:200]}")


def _pieces(replacement: str, strip: str, byte_fallback: bool) -> dict[str, Any]:
    return {"type": "Pieces", "replacement": replacement, "strip": strip, "byte_fallback": byte_fallback}


def _template(row: Row | None) -> dict[str, list[Any]]:
    """What a post-processor puts around texts."""
    steps = [step for step in _flat(row, "processors") if step["type"] != "ByteLevel"]
    if len(steps) > 1 or (steps and steps[0]["type"] not in PROCESSORS):
        names = ", ".join(step["type"] for step in steps)
        raise ConvertError(f"post_processor: expected one of {', '.join(PROCESSORS)}, got {names[:200]}")
    if not steps:
        return {"single": ["A"], "pair": ["A", "B"], "types": [0, 1]}
    return PROCESSORS[steps[0]["type"]](steps[0])


def _template_processing(row: Row) -> dict[str, list[Any]]:
    def items(parts: Sequence[Row]) -> list[tuple[int | str, int]]:
        found: list[tuple[int | str, int]] = []
        for part in parts:
            ((kind, value),) = part.items()
            if kind == "SpecialToken":
                found += [(number, value["type_id"]) for number in row["special_tokens"][value["id"]]["ids"]]
            else:
                found.append((value["id"], value["type_id"]))
        return found

    pair = items(row["pair"])
    single = [item for item, _ in items(row["single"])]
    return {"single": single, "pair": [item for item, _ in pair], "types": [kind for _, kind in pair]}


def _bert_processing(row: Row) -> dict[str, list[Any]]:
    cls, sep = row["cls"][1], row["sep"][1]
    return {"single": [cls, "A", sep], "pair": [cls, "A", sep, "B", sep], "types": [0, 0, 0, 1, 1]}


def _roberta_processing(row: Row) -> dict[str, list[Any]]:
    cls, sep = row["cls"][1], row["sep"][1]
    return {"single": [cls, "A", sep], "pair": [cls, "A", sep, sep, "B", sep], "types": [0] * 6}


PROCESSORS = {
    "BertProcessing": _bert_processing,
    "RobertaProcessing": _roberta_processing,
    "TemplateProcessing": _template_processing,
}


# -------------------------------------------------------------------------------------------------------------- models


def _bpe(model: Row, numbers: Mapping[str, int], in_bytes: bool) -> tuple[dict[str, Any], Any]:
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(name):
            raise ConvertError(f"model, BPE: {name} is {str(model[name])[:40]!r}, which is not supported")
    rows = []
    for i, merge in enumerate(model["merges"]):
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        row = [numbers.get(left), numbers.get(right), numbers.get(left + right)]
        if None in row:
            raise ConvertError(f"model, merge {i}: expected two tokens that make a third, got {str(merge)[:60]!r}")
        rows.append(row)
    settings = {
        "type": "BPE",
        "units": "bytes" if in_bytes else "characters",
        "merging": "pairs",
        "byte_fallback": bool(model.get("byte_fallback")),
        "ignore_merges": bool(model.get("ignore_merges")),
        "fuse_unk": bool(model.get("fuse_unk")),
        "unk": _unknown(model, numbers),
    }
    return settings, np.array(rows, np.int32).reshape(-1, 3)


def _unknown(model: Row, numbers: Mapping[str, int]) -> int:
    token = model.get("unk_token")
    if token is not None and token not in numbers:
        raise ConvertError(f"model, unk_token: expected a token, got {str(token)[:60]!r}")
    return -1 if token is None else numbers[token]


_NO_MERGES = np.zeros((0, 3), np.int32)


def _unigram(model: Row, numbers: Mapping[str, int], in_bytes: bool) -> tuple[dict[str, Any], Any]:
    unk = model.get("unk_id")
    return {"type": "Unigram", "byte_fallback": bool(model.get("byte_fallback")), "whole_vocabulary": True,
            "unk": -1 if unk is None else unk}, _NO_MERGES  # fmt: skip


def _word_piece(model: Row, numbers: Mapping[str, int], in_bytes: bool) -> tuple[dict[str, Any], Any]:
    prefix, longest = model.get("continuing_subword_prefix", "##"), model.get("max_input_chars_per_word", 100)
    row = {"type": "WordPiece", "prefix": prefix, "longest_word": longest, "unk": _unknown(model, numbers)}
    return row, _NO_MERGES


MODELS = {"BPE": _bpe, "Unigram": _unigram, "WordPiece": _word_piece}
