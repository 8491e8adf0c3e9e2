"""Normalisers: what is done to a text before it is cut into words.

Names, settings and results are those of the components of `tokenizer.json`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from lite_runtime.bundle.refusal import refuse
from lite_runtime.errors import BundleError
from lite_runtime.frozen import NamedTuple
from lite_runtime.language.tokenizers.characters import class_of, lower_case
from lite_runtime.language.tokenizers.charsmap import CharsMap
from lite_runtime.language.tokenizers.components import Kind, built
from lite_runtime.language.tokenizers.description import SECTION
from lite_runtime.language.tokenizers.patterns import SPACES, Pattern, pattern_of

__all__ = ["NORMALIZERS", "normalizer"]

Text = Callable[[str], str]
GROWTH, LONGEST = 256, 256
"""The most characters that a normaliser makes of one, so that a few steps cannot fill the memory; of a replacement."""


class Growing(NamedTuple):
    """A step that may make many characters of one. run: of a text and the most characters that it may become; beyond
    these the result may be anything that is longer."""

    run: Callable[[str, int], str]


Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
_FORMS: tuple[Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")


def normalizer(rows: Sequence[Mapping[str, Any]], charsmap: bytes = b"") -> Text:
    """The function that these steps make, one after the other.

    charsmap: the table of a step `Precompiled`.
    """
    precompiled = Kind({"longest": bool}, lambda longest: Growing(CharsMap(charsmap, longest).normalized))
    steps: list[Text | Growing] = built(rows, NORMALIZERS | {"Precompiled": precompiled}, "normalizer")

    def normalized(text: str) -> str:
        most = GROWTH * (len(text) + 16)
        for step in steps:
            text = step.run(text, most) if isinstance(step, Growing) else step(text)
            if len(text) > most:
                refuse(
                    f"{SECTION}, normalizer", f"at most {GROWTH} characters for one", f"{len(text)} of {most // GROWTH}"
                )
        return text

    return normalized


def _form(form: Form) -> Text:
    """A normalisation form, in which characters newer than the table's Unicode version stay as they are."""

    def normalized(text: str) -> str:
        if text.isascii():
            return text
        inert = class_of("inert")
        if not inert.search(text):
            return unicodedata.normalize(form, text)
        cuts = [0, *(at for match in inert.finditer(text) for at in match.span()), len(text)]
        parts = [text[start:end] for start, end in pairwise(cuts)]
        parts[::2] = [unicodedata.normalize(form, part) for part in parts[::2]]
        return "".join(parts)

    return normalized


def _lower(text: str) -> str:
    """Character by character: a final sigma is a sigma."""
    if text.isascii():
        return text.lower()
    return text.replace("\u03a3", "\u03c3").translate(lower_case()).lower()


def _without(name: str) -> Text:
    return lambda text: text if text.isascii() else class_of(name).sub("", text)


def _bert(clean_text: bool, handle_chinese_chars: bool, strip_accents: bool, lowercase: bool) -> Text:
    steps: list[Text] = []
    if clean_text:
        steps.append(lambda text: class_of("bert_removed").sub("", text))
        steps.append(lambda text: class_of("bert_spaces").sub(" ", text))
    if handle_chinese_chars:
        steps.append(lambda text: text if text.isascii() else class_of("chinese").sub(r" \g<0> ", text))
    if strip_accents:
        steps += [_form("NFD"), _without("bert_marks")]
    if lowercase:
        steps.append(_lower)

    def normalized(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return normalized


def _replace(pattern: Mapping[str, Any], content: str) -> Growing:
    kind, wanted = pattern_of(pattern)
    _check_length(content)
    if kind == "String":
        # One more occurrence than the content may fill is enough to be refused.
        return Growing(lambda text, most: text.replace(wanted, content, most // max(len(content), 1) + 1))
    compiled = Pattern(wanted)

    def replaced(text: str, most: int) -> str:
        parts, at, size = list[str](), 0, 0
        for start, end in compiled.spans(text):
            parts += [text[at:start], content]
            at, size = end, size + len(content)
            if size > most:
                break
        return "".join([*parts, text[at:]])

    return Growing(replaced)


def _check_length(content: str) -> None:
    if len(content) > LONGEST:
        raise BundleError(f"expected a text of at most {LONGEST} characters, got {len(content)}")


def _prepend(prepend: str) -> Text:
    _check_length(prepend)
    return lambda text: prepend + text if text else text


def _strip(strip_left: bool, strip_right: bool) -> Text:
    def stripped(text: str) -> str:
        text = text.lstrip(SPACES) if strip_left else text
        return text.rstrip(SPACES) if strip_right else text

    return stripped


def _single_spaces() -> Text:
    """As SentencePiece: no space at the begin and end, one space between words."""
    return lambda text: " ".join(filter(None, text.split(" ")))


def _trim_end(content: str) -> Text:
    return lambda text: text.rstrip(content) if content else text


def _nmt() -> Text:
    return lambda text: class_of("nmt_spaces").sub(" ", class_of("nmt_removed").sub("", text))


NORMALIZERS: dict[str, Kind] = {
    **{form: Kind({}, partial(_form, form)) for form in _FORMS},
    "Lowercase": Kind({}, lambda: _lower),
    "StripAccents": Kind({}, lambda: _without("marks")),
    "BertNormalizer": Kind(
        dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), bool), _bert
    ),
    "Replace": Kind({"pattern": dict, "content": str}, _replace),
    "Prepend": Kind({"prepend": str}, _prepend),
    "Strip": Kind({"strip_left": bool, "strip_right": bool}, _strip),
    "Nmt": Kind({}, _nmt),
    "SingleSpaces": Kind({}, _single_spaces),
    "TrimEnd": Kind({"content": str}, _trim_end),
}
