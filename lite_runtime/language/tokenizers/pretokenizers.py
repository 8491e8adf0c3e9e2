"""Pre-tokenisers: a text is cut into words, which the model then sees one by one.

Names, settings and results are those of the components of `tokenizer.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lite_runtime.errors import MsedgeError
from lite_runtime.language.tokenizers.characters import class_of
from lite_runtime.language.tokenizers.components import Kind, built
from lite_runtime.language.tokenizers.patterns import KNOWN, Pattern, pattern_of

__all__ = ["PRE_TOKENIZERS", "pre_tokenizer"]

Words = Callable[[str, bool], Sequence[str]]
"""The words of a text; the flag says whether the text is the beginning of what the user gave."""
Span = tuple[int, int]
_BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
_SPACES = r"\s+"


def pre_tokenizer(rows: Sequence[Mapping[str, Any]]) -> Words:
    """The pre-tokeniser that these steps make, one after the other."""
    steps: list[Words] = built(rows, PRE_TOKENIZERS, "pre_tokenizer")
    if len(steps) == 1:
        return steps[0]

    def words(text: str, first: bool) -> Sequence[str]:
        found: Sequence[str] = [text]
        for step in steps:
            found = [word for i, piece in enumerate(found) for word in step(piece, first and not i)]
        return found

    return words


def _split(pattern: Mapping[str, Any], behavior: str, invert: bool) -> Words:
    kind, text = pattern_of(pattern)
    if kind == "Regex":
        compiled = Pattern(text)
        if behavior == "Isolated":
            return lambda text, first: compiled.isolated(text)
        return lambda text, first: _cut(text, compiled.spans(text), behavior, invert)

    def literal(word: str, first: bool) -> Sequence[str]:
        return _cut(word, _occurrences(word, text), behavior, invert)

    return literal


def _occurrences(text: str, wanted: str) -> Iterable[Span]:
    at = text.find(wanted)
    while at >= 0:
        yield at, at + len(wanted)
        at = text.find(wanted, at + len(wanted))


def _cut(text: str, spans: Iterable[Span], behavior: str, invert: bool) -> list[str]:
    """The text cut at its matches; what becomes of a match is the behaviour's."""
    parts: list[tuple[int, int, bool]] = []
    at = 0
    for start, end in spans:
        if start > at:
            parts.append((at, start, invert))
        parts.append((start, end, not invert))
        at = end
    if at < len(text):
        parts.append((at, len(text), invert))
    if behavior == "Removed":
        return [text[start:end] for start, end, match in parts if not match]
    if behavior == "Isolated":
        return [text[start:end] for start, end, _ in parts]
    backwards = behavior == "MergedWithNext"
    found: list[Span] = []
    before: bool | None = None
    for start, end, match in reversed(parts) if backwards else parts:
        joins = match == before if behavior == "Contiguous" else match and not before
        if joins and found:
            first, last = found[-1]
            found[-1] = (start, last) if backwards else (first, end)
        else:
            found.append((start, end))
        before = match
    return [text[start:end] for start, end in (found[::-1] if backwards else found)]


def _byte_level(add_prefix_space: bool, use_regex: bool) -> Words:
    pattern = Pattern(KNOWN["gpt-2"])

    def words(text: str, first: bool) -> Sequence[str]:
        if add_prefix_space and not text.startswith(" "):
            text = f" {text}"
        return pattern.isolated(text) if use_regex else [text]

    return words


def _words() -> Words:
    pattern = Pattern(KNOWN["words"])
    return lambda text, first: [text[start:end] for start, end in pattern.spans(text)]


def _between_spaces() -> Words:
    pattern = Pattern(_SPACES)
    return lambda text, first: _cut(text, pattern.spans(text), "Removed", False)


def _bert() -> Words:
    spaces, marks = _between_spaces(), _punctuation("Isolated")
    return lambda text, first: [part for word in spaces(text, False) for part in marks(word, False)]


def _metaspace(replacement: str, prepend_scheme: str, split: bool) -> Words:
    if len(replacement) != 1:
        raise MsedgeError(f"expected one character as replacement, got {replacement[:20]!r}")

    def words(text: str, first: bool) -> Sequence[str]:
        text = text.replace(" ", replacement)
        if not text.startswith(replacement) and (prepend_scheme == "always" or (prepend_scheme == "first" and first)):
            text = replacement + text
        return _cut(text, _occurrences(text, replacement), "MergedWithNext", False) if split else [text]

    return words


def _digits(individual_digits: bool) -> Words:
    return _by_set("numeric", "Isolated" if individual_digits else "Contiguous")


def _punctuation(behavior: str) -> Words:
    return _by_set("punctuation", behavior)


def _by_set(name: str, behavior: str) -> Words:
    found = class_of(name).finditer

    def words(text: str, first: bool) -> Sequence[str]:
        return _cut(text, (match.span() for match in found(text)), behavior, False)

    return words


def _delimiter(delimiter: str) -> Words:
    return _split({"String": delimiter}, "Removed", False)


PRE_TOKENIZERS: dict[str, Kind] = {
    "Split": Kind({"pattern": dict, "behavior": _BEHAVIORS, "invert": bool}, _split),
    "ByteLevel": Kind({"add_prefix_space": bool, "use_regex": bool}, _byte_level),
    "Whitespace": Kind({}, _words),
    "WhitespaceSplit": Kind({}, _between_spaces),
    "BertPreTokenizer": Kind({}, _bert),
    "Metaspace": Kind({"replacement": str, "prepend_scheme": ("always", "first", "never"), "split": bool}, _metaspace),
    "Digits": Kind({"individual_digits": bool}, _digits),
    "Punctuation": Kind({"behavior": _BEHAVIORS}, _punctuation),
    "CharDelimiterSplit": Kind({"delimiter": str}, _delimiter),
}
