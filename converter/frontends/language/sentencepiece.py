"""SentencePiece's files (`.model`): a protocol buffer with pieces, scores and the normaliser's table.

The message is ModelProto of sentencepiece_model.proto; only the fields used here are read, and every length is checked.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converter.errors import ConvertError
from converter.frontends.language.gguf import SCORED_BPE, only_once, sentencepiece_rows, template_of
from lite_runtime.language.tokenizers import AddedToken, Description
from lite_runtime.language.tokenizers.description import CONTROL, NORMAL, UNDERLINE, UNUSED, USER

__all__ = ["from_sentencepiece"]

_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3
_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
Field = int | bytes


def from_sentencepiece(source: str | os.PathLike[str] | bytes, *, begin: bool = True, end: bool = False) -> Description:
    """The description of the tokenizer in a SentencePiece file, or in its bytes.

    begin, end: whether `encode` puts the tokens of begin and end around a text, which the file does not say. Raises
    ConvertError for a file that is damaged, or of the types word and char.
    """
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    pieces: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    parts: dict[int, dict[int, Field]] = {_TRAINER: {}, _NORMALIZER: {}}
    for number, value in _fields(data):
        if number == _PIECE and isinstance(value, bytes):
            piece = dict(_fields(value))
            pieces.append(_text(piece.get(1, b""), f"piece {len(pieces)}"))
            scores.append(_float(piece.get(2, bytes(4))))
            kinds.append(_number(piece.get(3, NORMAL)))
        elif number in parts and isinstance(value, bytes):
            parts[number] = dict(_fields(value))
    if not pieces:
        raise ConvertError("expected a SentencePiece file with pieces, got none")
    if not all(NORMAL <= kind <= 6 for kind in kinds):
        raise ConvertError("expected types of pieces from 1 to 6")
    return _description(pieces, scores, kinds, parts[_TRAINER], parts[_NORMALIZER], begin, end)


def _description(
    pieces: list[str],
    scores: list[float],
    kinds: list[int],
    trainer: Mapping[int, Field],
    normalizer: Mapping[int, Field],
    begin: bool,
    end: bool,
) -> Description:
    kind = _TYPES.get(_number(trainer.get(3, 1)), "unknown")
    if kind not in ("unigram", "bpe"):
        raise ConvertError(f"expected a SentencePiece model of type unigram or bpe, got {kind}")
    if _number(trainer.get(24, 0)):
        raise ConvertError("expected spaces before words, got a model that treats white space as a suffix")
    if kind == "bpe" and UNUSED in kinds:
        raise ConvertError("expected no unused pieces in a model of type bpe, which are split again; none is supported")
    names = {"unk": _number(trainer.get(40, 0)), "bos": _number(trainer.get(41, 1)), "eos": _number(trainer.get(42, 2)),
             "pad": _number(trainer.get(43, -1))}  # fmt: skip
    ids = {name: number for name, number in names.items() if 0 <= number < len(pieces)}
    if not _number(normalizer.get(5, 1)):
        raise ConvertError("expected a model that writes spaces as a sign (escape_whitespaces), got one that does not")
    charsmap = normalizer.get(2, b"")
    prefix = bool(_number(normalizer.get(3, 1)))
    single = bool(_number(normalizer.get(4, 1)))
    fallback = bool(_number(trainer.get(35, 0)))
    unigram = {"type": "Unigram", "byte_fallback": fallback, "whole_vocabulary": False}
    model: Mapping[str, Any] = {**SCORED_BPE, "byte_fallback": fallback} if kind == "bpe" else unigram
    return Description(
        tokens=tuple(piece.encode("utf-8") for piece in pieces),
        kinds=only_once(pieces, kinds),
        model={**model, "unk": ids.get("unk", -1)},
        scores=np.array(scores, np.float64),
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        normalizer=sentencepiece_rows(bool(charsmap), single, prefix),
        decoder={"type": "Pieces", "replacement": UNDERLINE, "strip": "space" if prefix else "nothing",
                 "byte_fallback": fallback},
        template=template_of([ids["bos"]] if begin and "bos" in ids else [],
                             [ids["eos"]] if end and "eos" in ids else []),
        added=tuple(AddedToken(i, piece, special=kinds[i] == CONTROL) for i, piece in enumerate(pieces)
                    if kinds[i] in (CONTROL, USER) and piece),
        ids=ids,
    )  # fmt: skip


def _fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """Numbers and values of a message's fields; fixed 32- and 64-bit values as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire not in (1, 2, 5):
            raise ConvertError(f"byte {at}: expected a field of a protocol buffer, got wire type {wire}")
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, at = _varint(data, at)
        if size > len(data) - at:
            raise ConvertError(
                f"byte {at}: expected {size} bytes of a field, got {len(data) - at}; the file is damaged"
            )
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ConvertError(f"byte {at}: expected a number, got the end of the file; it is damaged")
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise ConvertError(f"byte {at}: expected a number of at most ten bytes; the file is damaged")


def _number(value: Field) -> int:
    """An int32, negative ones as ten bytes."""
    if not isinstance(value, int):
        raise ConvertError("expected a number in a field that holds bytes; the file is damaged")
    return value - (1 << 64) if value >> 63 else value


def _float(value: Field) -> float:
    if not isinstance(value, bytes) or len(value) != 4:
        raise ConvertError("expected a score of four bytes; the file is damaged")
    found: float = struct.unpack("<f", value)[0]
    return found


def _text(value: Field, where: str) -> str:
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else ""
    except UnicodeDecodeError as error:
        raise ConvertError(f"{where}: expected UTF-8, got {error.reason}; the file is damaged") from None
