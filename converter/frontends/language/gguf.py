"""The tokenizer in a GGUF file's metadata (`tokenizer.ggml.*`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from converter.errors import ConvertError
from converter.frontends.language.alphabet import bytes_of
from lite_runtime.language.tokenizers import AddedToken, Description
from lite_runtime.language.tokenizers.description import BYTE, CONTROL, NORMAL, UNDERLINE, UNUSED, USER
from lite_runtime.language.tokenizers.patterns import KNOWN

__all__ = ["PRE_TOKENIZERS", "from_gguf"]

Row = Mapping[str, Any]


def _regex(pattern: str) -> Row:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_GPT2: tuple[Row, ...] = (_regex(KNOWN["gpt-2"]),)
_DIGITS: tuple[Row, ...] = (_regex(r"\p{N}"), *_GPT2)
_LLAMA3: tuple[Row, ...] = (_regex(KNOWN["llama-3"]),)
_QWEN2: tuple[Row, ...] = (_regex(KNOWN["qwen-2"]),)
_DEFAULT: tuple[Row, ...] = (
    _regex(r"[\p{P}\$\+<=>\^~\|]+"), *_GPT2, _regex(r"\p{N}+"), _regex(KNOWN["three digits"]),
)  # fmt: skip

_NAMES: tuple[tuple[str, tuple[Row, ...]], ...] = (
    ("default", _DEFAULT),
    ("gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe mpt olmo jais trillion "
     "exaone4 granite-docling", _GPT2),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b", _DIGITS),
    ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 dbrx smaug-bpe", _LLAMA3),
    ("qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan", _QWEN2),
    ("qwen35", (_regex(KNOWN["qwen-3.5"]),)),
    ("gpt-4o llama4", (_regex(KNOWN["o200k"]),)),
    ("tekken", (_regex(KNOWN["tekken"]),)),
    ("falcon", (_regex(r"[\p{P}\$\+<=>\^~\|`]+"), *_GPT2, _regex(KNOWN["three digits"]))),
    ("deepseek-v3", (_regex(r"\p{N}{1,3}"), _regex("[一-龥\u3040-ゟ゠-ヿ]+"), _regex(KNOWN["deepseek-3"]))),
)  # fmt: skip
PRE_TOKENIZERS: dict[str, tuple[Row, ...]] = {name: rows for names, rows in _NAMES for name in names.split()}
"""By the name in `tokenizer.ggml.pre`."""
_WHOLE_WORDS = frozenset("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 tekken".split())
"""Names with which a word that is a token is that token, whatever the merges; all but tekken also begin with bos."""
_MODEL = "tokenizer.ggml.model"
_IDS = {"unknown": "unk", "padding": "pad", "seperator": "sep"} | {x: x for x in "bos eos cls mask eot eom".split()}
"""Names of ids in GGUF, as spelt there, and ours."""


def from_gguf(metadata: Mapping[str, Any]) -> Description:
    """The description of the tokenizer that a GGUF file's metadata hold.

    metadata: keys such as `tokenizer.ggml.tokens`, values as plain Python values and lists. Raises ConvertError for
    metadata that are incomplete or contradict themselves, and for a kind of tokenizer that is not supported, by name.
    """
    model = _held(metadata, _MODEL, str)
    if model not in MODELS:
        raise ConvertError(f"{_MODEL}: expected one of {', '.join(MODELS)}, got {model[:60]!r}")
    made: Description = MODELS[model](metadata)
    return made


def _held(metadata: Mapping[str, Any], key: str, kind: type, default: Any = None) -> Any:
    value = metadata.get(key, default)
    if value is None:
        raise ConvertError(f"the metadata have no {key}; the file holds no complete tokenizer")
    if not isinstance(value, kind):
        raise ConvertError(f"{key}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def _listed(
    metadata: Mapping[str, Any], name: str, kind: type, size: int | None = None, *, any_size: bool = False
) -> list[Any]:
    """The list `tokenizer.ggml.NAME`, each of whose items is of a type; empty if it is not there and may be so."""
    key = f"tokenizer.ggml.{name}"
    values: list[Any] = list(_held(metadata, key, Sequence, None if size is None else ()))
    if not all(isinstance(value, kind) for value in values):
        raise ConvertError(f"{key}: expected a list of {kind.__name__}")
    if size is not None and not any_size and len(values) not in (0, size):
        raise ConvertError(f"{key}: expected {size} items, one a token, got {len(values)}")
    return values


def _tokens(metadata: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """The tokens and their kinds."""
    tokens: list[str] = _listed(metadata, "tokens", str)
    kinds = [int(kind) for kind in _listed(metadata, "token_type", int, len(tokens))] or [NORMAL] * len(tokens)
    if not all(0 <= kind <= BYTE for kind in kinds):
        raise ConvertError(f"tokenizer.ggml.token_type: expected types up to {BYTE}")
    try:
        "".join(tokens).encode("utf-8")
    except UnicodeEncodeError:
        raise ConvertError("tokenizer.ggml.tokens: expected valid Unicode, got half of a surrogate pair") from None
    return tokens, kinds


def _ids(metadata: Mapping[str, Any], size: int) -> dict[str, int]:
    found = {}
    for name, ours in _IDS.items():
        key = f"tokenizer.ggml.{name}_token_id"
        if key in metadata:
            number = int(_held(metadata, key, int))
            if not 0 <= number < size:
                raise ConvertError(f"{key}: expected an id below {size}, got {number}")
            found[ours] = number
    return found


def _template(metadata: Mapping[str, Any], ids: Mapping[str, int], begin: bool, end: bool) -> dict[str, list[Any]]:
    """The ids around a text. begin, end: whether they are added where the file does not say so."""
    before = [ids["bos"]] if _flag(metadata, "add_bos_token", begin) and "bos" in ids else []
    after = [ids["eos"]] if _flag(metadata, "add_eos_token", end) and "eos" in ids else []
    return template_of(before, after)


def template_of(before: Sequence[int], after: Sequence[int]) -> dict[str, list[Any]]:
    """The template that puts ids before and after each text."""
    single = [*before, "A", *after]
    return {
        "single": single,
        "pair": [*single, *before, "B", *after],
        "types": [0] * len(single) + [1] * len(single),
    }


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    return bool(_held(metadata, f"tokenizer.ggml.{name}", bool, default))


def _added(tokens: Sequence[str], kinds: Sequence[int]) -> tuple[AddedToken, ...]:
    """Tokens for control, and those that users defined, as added tokens; of equal texts the last."""
    found = {t: i for i, (t, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind in (CONTROL, USER) and t}
    return tuple(
        AddedToken(i, t, special=kinds[i] == CONTROL) for t, i in sorted(found.items(), key=lambda row: row[1])
    )


def _byte_level(metadata: Mapping[str, Any]) -> Description:
    """`gpt2`: byte pair encoding of bytes."""
    tokens, kinds = _tokens(metadata)
    pre = _held(metadata, "tokenizer.ggml.pre", str, "default")
    if pre not in PRE_TOKENIZERS:
        raise ConvertError(
            f"tokenizer.ggml.pre: expected one of {', '.join(PRE_TOKENIZERS)}, got {pre[:60]!r}, "
            "whose pattern is not known here"
        )
    numbers = {token: i for i, token in enumerate(tokens)}
    stored, found = [], set()
    for i, token in enumerate(tokens):
        data = bytes_of(token) if kinds[i] == NORMAL else None
        if kinds[i] == NORMAL and (data is None or data in found or numbers[token] != i):
            kinds[i] = UNUSED  # merges make no such token
        stored.append(token.encode("utf-8") if data is None else data)
        found.add(data)
    ids = _ids(metadata, len(tokens))
    whole = pre in _WHOLE_WORDS
    return Description(
        tokens=tuple(stored),
        kinds=bytes(kinds),
        model={"type": "BPE", "units": "bytes", "merging": "pairs", "byte_fallback": False, "ignore_merges": whole,
               "fuse_unk": False, "unk": -1},
        merges=merges_of(_listed(metadata, "merges", str), numbers),
        pre_tokenizer=PRE_TOKENIZERS[pre],
        decoder={"type": "ByteLevel"},
        template=_template(metadata, ids, whole and pre != "tekken", False),
        added=_added(tokens, kinds),
        ids=ids,
        chat_template=_held(metadata, "tokenizer.chat_template", str, ""),
    )  # fmt: skip


def merges_of(lines: Sequence[str], numbers: Mapping[str, int]) -> Any:
    """The merges "left right" as ids: left, right, result; raises ConvertError for one of unknown tokens."""
    rows = []
    for i, line in enumerate(lines):
        left, space, right = line.partition(" ")
        row = [numbers.get(left), numbers.get(right), numbers.get(left + right)]
        if not space or None in row:
            raise ConvertError(f"merge {i}: expected two tokens that make a third, got {line[:60]!r}")
        rows.append(row)
    return np.array(rows, np.int32).reshape(-1, 3)


def _pieces(metadata: Mapping[str, Any], model: dict[str, Any], end: bool) -> Description:
    """What the models of SentencePiece share. end: whether eos is added where the file does not say so."""
    tokens, kinds = _tokens(metadata)
    scores = _listed(metadata, "scores", float, len(tokens))
    ids = _ids(metadata, len(tokens))
    prefix = _flag(metadata, "add_space_prefix", True)
    charsmap = bytes(byte & 255 for byte in _listed(metadata, "precompiled_charsmap", int, 0, any_size=True))
    return Description(
        tokens=tuple(token.encode("utf-8") for token in tokens),
        kinds=only_once(tokens, kinds),
        model=model | {"unk": ids.get("unk", -1)},
        scores=np.array(scores, np.float64),
        charsmap=charsmap,
        normalizer=sentencepiece_rows(bool(charsmap), _flag(metadata, "remove_extra_whitespaces", False), prefix),
        decoder={"type": "Pieces", "replacement": UNDERLINE, "strip": "space" if prefix else "nothing",
                 "byte_fallback": True},
        template=_template(metadata, ids, not end, end),
        added=_added(tokens, kinds),
        ids=ids,
        chat_template=_held(metadata, "tokenizer.chat_template", str, ""),
    )  # fmt: skip


def only_once(tokens: Sequence[str], kinds: Sequence[int]) -> bytes:
    """The kinds, with later tokens of a text that was there before as unused."""
    first: dict[str, int] = {}
    for i, token in enumerate(tokens):
        first.setdefault(token, i)
    rows = enumerate(zip(tokens, kinds, strict=True))
    return bytes(UNUSED if kind == NORMAL and (first[t] != i or not t) else kind for i, (t, kind) in rows)


def sentencepiece_rows(charsmap: bool, single_spaces: bool, prefix: bool) -> tuple[Row, ...]:
    """The normalisers of SentencePiece. Where spaces are kept, the prefix is there even if the table leaves nothing."""
    table: list[Row] = [{"type": "Precompiled", "longest": True}] if charsmap else []
    begin: list[Row] = [{"type": "Prepend", "prepend": UNDERLINE}] if prefix else []
    spaces: Row = {"type": "Replace", "pattern": {"String": " "}, "content": UNDERLINE}
    if not single_spaces:
        return (*begin, *table, spaces)
    return (*table, {"type": "SingleSpaces"}, *begin, spaces, {"type": "TrimEnd", "content": UNDERLINE})


def _scored(metadata: Mapping[str, Any]) -> Description:
    """`llama`: SentencePiece's byte pair encoding."""
    return _pieces(metadata, SCORED_BPE, False)


SCORED_BPE = {"type": "BPE", "units": "characters", "merging": "scores", "byte_fallback": True, "ignore_merges": False,
              "fuse_unk": True}  # fmt: skip


def _unigram(metadata: Mapping[str, Any]) -> Description:
    """`t5`: SentencePiece's unigram model."""
    return _pieces(metadata, {"type": "Unigram", "byte_fallback": True, "whole_vocabulary": False}, True)


def _word_pieces(metadata: Mapping[str, Any]) -> Description:
    """`bert`: WordPiece. A token that begins a word has SentencePiece's sign for a space before it, others have not."""
    tokens, kinds = _tokens(metadata)
    ids = _ids(metadata, len(tokens))
    begin, end = ids.get("cls", ids.get("bos")), ids.get("sep", ids.get("eos"))
    if begin is None or end is None or "unk" not in ids:
        raise ConvertError("expected the ids of cls (or bos), seperator (or eos) and unknown among the metadata")
    plain = [token if kind != NORMAL or _bracketed(token) else _word_piece(token)
             for token, kind in zip(tokens, kinds, strict=True)]  # fmt: skip
    return Description(
        tokens=tuple(token.encode("utf-8") for token in plain),
        kinds=only_once(plain, kinds),
        model={"type": "WordPiece", "prefix": "##", "longest_word": 100, "unk": ids["unk"]},
        normalizer=({"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": True,
                     "lowercase": True},),
        pre_tokenizer=({"type": "BertPreTokenizer"},),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        template={"single": [begin, "A", end], "pair": [begin, "A", end, "B", end], "types": [0, 0, 0, 1, 1]},
        added=_added(plain, [CONTROL if _bracketed(t) else kind for t, kind in zip(plain, kinds, strict=True)]),
        ids=ids,
    )  # fmt: skip


def _bracketed(token: str) -> bool:
    return token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def _word_piece(token: str) -> str:
    return token[1:] if token.startswith(UNDERLINE) else f"##{token}"


MODELS: dict[str, Callable[[Mapping[str, Any]], Description]] = {
    "gpt2": _byte_level,
    "llama": _scored,
    "t5": _unigram,
    "bert": _word_pieces,
}
"""By the name in `tokenizer.ggml.model`."""
