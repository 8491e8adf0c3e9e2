r"""Regular expressions that split text: the patterns of public tokenizers, and a small grammar; nothing else.

A pattern comes from a file, and a regular expression of an unknown form can take exponential time. Accepted are

- the texts in `KNOWN`, each of which was looked at: it takes linear time;
- `[lead] atom [count]`: lead is ` ?` or `\s?`; an atom is a character, an escape (`\p{L}`, `\s`, `\n`) or a class of
  these; count is `+`, `{n}`, `{m,}` or `{m,n}`. At every place such a pattern is tried once and never goes back by more
  than one character.

Python's `re` has no `\p{…}`. A pattern therefore runs on the *shape* of a text, a text of the same length in which
every character outside ASCII is replaced by one character that stands for its category: `\p{L}` becomes a class of a
dozen characters. Patterns that name ranges outside ASCII, and no categories, run on the text itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from lite_runtime.errors import MsedgeError
from lite_runtime.language.tokenizers.characters import CATEGORIES, WORD, cell

__all__ = ["KNOWN", "SPACES", "Pattern", "pattern_of"]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

KNOWN: dict[str, str] = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "gpt-2, gaps": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    "llama-3": rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}",
    "qwen-2": rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}",
    "qwen-3.5": rf"{_CONTRACTIONS}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}",
    "cl100k": rf"'(?i:[sdmt]|ll|ve|re)|{_LEAD}+\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*|\s*[\r\n]"
    r"|\s+(?!\S)|\s+",
    "olmo-2": rf"{_CONTRACTIONS}|{_LEAD}+\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*|{_BLANKS}",
    "tekken": rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}",
    "o200k": rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}",
    "deepseek-3": rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}",
    "three digits": r"[0-9][0-9][0-9]",
    "split words": r"\w+|[^\w\s]+",
    "words": "[\\w\u200c\u200d]+|[^\\w\\s\u200c\u200d]+",
}
"""By name, in the syntax of `tokenizer.json`, which is Oniguruma's. "gpt-2, gaps" leaves spaces at the end of a text
between matches, which splits in the same way. "words" is the pre-tokeniser Whitespace."""

_ITEM = r"\\[pP]\{[A-Z][a-z]?\}|\\[sSdDwWrnt]|\\[^\w\s]"
_CLASS = rf"\[\^?(?:{_ITEM}|[^\\\[\]&^])(?:{_ITEM}|[^\\\[\]&])*\]"
_CHARACTER = r"[^\\[\](){}.*+?^$|\s]|[ \n\t\r]"
_COUNT = r"\+|\{\d{1,2}(?:,(?:\d{1,2})?)?\}"
_GRAMMAR = re.compile(rf"(?:(?: |\\s)\?)?(?:{_ITEM}|{_CLASS}|{_CHARACTER})(?:{_COUNT})?")
_MOST = 512
"""Characters of a pattern that is not a known one."""
_CONTROL = {"r": "\r", "n": "\n", "t": "\t"}
_KEPT = frozenset([*map(chr, range(128)), "\x85", "\u017f", "\u212a"])
"""Characters that stand for themselves: the last two are s and k where case does not count."""
_FIRST = 0xE000
_STANDING = {chr(_FIRST + number + word): number + word for word in (0, WORD) for number in range(len(CATEGORIES))}
SPACES = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""All white space of Unicode."""
_LONGEST = 1 << 16
"""Characters outside ASCII whose place a shape remembers."""


class _Shape(dict[int, str]):
    """What stands for a character, for `str.translate`."""

    def __init__(self, own: frozenset[str]) -> None:
        super().__init__((ord(c), c) for c in _KEPT | own)
        self._own = dict(self)

    def __missing__(self, code: int) -> str:
        if len(self) > _LONGEST:
            self.clear()
            self.update(self._own)
        self[code] = found = chr(_FIRST + cell(chr(code)))
        return found


@lru_cache(maxsize=64)
def _shape(own: frozenset[str]) -> _Shape:
    return _Shape(own)


class Pattern:
    """A pattern of the accepted forms, compiled.

    text: in Oniguruma's syntax. Raises MsedgeError for any other form.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if text not in KNOWN.values() and not (len(text) <= _MOST and _GRAMMAR.fullmatch(text)):
            raise MsedgeError(
                f"pattern {text[:200]!r}: expected one of {len(KNOWN)} known patterns, or one class of characters that "
                "repeats; a pattern of another form could take exponential time, and is not read"
            )
        self._on_text = bool(re.search(r"[^\x00-\x7f]-|-[^\x00-\x7f]", re.sub(r"\\.", "", text)))
        own = frozenset(c for c in text if ord(c) > 127)
        self._shape = _shape(own)
        try:
            alphabet = frozenset(SPACES) if self._on_text else _KEPT | own | _STANDING.keys()
            self._pattern = re.compile(_translated(text, alphabet))
        except (re.error, OverflowError, MsedgeError) as error:
            raise MsedgeError(f"pattern {text[:200]!r}: {error}; correct it in the tokenizer's file") from None

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of every match, from the left."""
        seen = text if self._on_text or text.isascii() else text.translate(self._shape)
        return (match.span() for match in self._pattern.finditer(seen))

    def isolated(self, text: str) -> list[str]:
        """The text cut before and after every match."""
        found, at = [], 0
        for start, end in self.spans(text):
            if start > at:
                found.append(text[at:start])
            found.append(text[start:end])
            at = end
        if at < len(text):
            found.append(text[at:])
        return found


def pattern_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """The kind and text of a component's {"Regex": text} or {"String": text}; raises MsedgeError for anything else."""
    if len(row) == 1:
        ((kind, text),) = row.items()
        if kind in ("Regex", "String") and type(text) is str and text:
            return kind, text
    raise MsedgeError('expected a pattern as {"Regex": text} or {"String": text}')


def _translated(text: str, alphabet: frozenset[str]) -> str:
    """The pattern in the syntax of `re`, for texts of this alphabet."""
    out, inside = [], False
    for sign, other, name, escaped in _TOKEN.findall(text):
        if sign:
            inside = (inside or sign == "[") and sign != "]"
            out.append(sign)
        elif other or escaped in _SETS:
            members = _members(name or escaped.lower(), alphabet)
            if inside and not other and escaped in "wW":
                members -= _POWERS
            listed = "".join(map(re.escape, sorted(alphabet - members if (other or escaped).isupper() else members)))
            out.append(listed if inside else f"[{listed}]")
        else:
            out.append(re.escape(_CONTROL.get(escaped, escaped)))
    return "".join(out)


_TOKEN = re.compile(r"([^\\])|\\([pP])\{(\w+)\}|\\(.)", re.DOTALL)
_SETS = "sSdDwW"
_POWERS = frozenset({chr(_FIRST + CATEGORIES.index("No") + WORD)})
"""² ³ ¹ ¼ ½ ¾: Oniguruma's \\w matches them, unless it stands in a class."""
_SPACES = frozenset("\t\n\v\f\r \x85")


def _members(name: str, alphabet: frozenset[str]) -> frozenset[str]:
    """The characters of an alphabet in a category (or the categories of one letter), or in \\s, \\d or \\w."""
    cells = {c: _STANDING[c] if c in _STANDING else cell(c) for c in alphabet}
    if name == "w":
        return frozenset(c for c, number in cells.items() if number & WORD)
    wanted = {"s": "Z", "d": "Nd"}.get(name, name)
    if not any(one.startswith(wanted) for one in CATEGORIES):
        raise MsedgeError(f"expected a general category of Unicode, got {name!r}")
    found = {c for c, number in cells.items() if CATEGORIES[number % WORD].startswith(wanted)}
    return frozenset(found | (_SPACES & alphabet) if name == "s" else found)
