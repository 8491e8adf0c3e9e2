"""Generated texts: every plane, mixed scripts, marks, sequences of emoji, kinds of white space, digits, controls."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

__all__ = ["generated", "training_text"]

_BLOCKS = (
    (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530), (0x590, 0x600), (0x600, 0x700),
    (0x900, 0x980), (0xE00, 0xE80), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x20D0, 0x2100),
    (0x2100, 0x2190), (0x2460, 0x2500), (0x3000, 0x3100), (0x3250, 0x3400), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4),
    (0xF900, 0xFB07), (0xFB50, 0xFDFF), (0xFE00, 0xFE10), (0xFF00, 0xFFF0), (0x10400, 0x10450), (0x10780, 0x107C0),
    (0x1D400, 0x1D800), (0x1F1E6, 0x1F200), (0x1F300, 0x1F700), (0x1F900, 0x1FA00), (0x20000, 0x20100),
    (0xE0020, 0xE0080),
)  # fmt: skip
_BITS = (
    "'s", "'T", "'re", "'LL", "don't", "I'm", "'\u017f", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\xa0",
    "\u2028", "\u3000", "\u200b", "\u200d", "\ufeff", "\0", "\1", "\x1f", "\x7f", "\x85", "1", "12", "123", "1234",
    "\u0663\u0664", "\xbd", "\xb2", "x\xb2", "\u212a", "\u0130", "\u03a3", "\u0391\u03a3", "\xdf", "\ufb01", "e\u0301",
    "\xe9", "e\u0301\u0323", "\uac00", "\u1100\u1161\u11a8", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f44d\U0001f3fd", "\U0001f1eb\U0001f1f7", "\u2764\ufe0f", "hello", "Hello", " World", "THE", "camelCase",
    "foo_bar", "http://a.b/c?d=e", "\u2026", "\u2014", "\xab", "!!!", "...", "$5.00", "a.b", "\u2581", "\u2581\u2581a",
    "\u0120", "##", "##ing", "<0x41>", "\u65e5\u672c\u8a9e", "\u4e2d\u6587", "\u0e44\u0e17\u0e22",
    "\u0939\u093f\u0928\u094d\u0926\u0940", "\u05e2\u05b4\u05d1\u05b0\u05e8\u05b4\u05d9\u05ea", "\ufffd",
)  # fmt: skip
_PLAIN = "abcdefghijklmnopqrstuvwxyz      ABCE.,0123"


def generated(rng: Random, tokens: Sequence[str] = ()) -> str:
    """One text of up to about 100 characters. tokens: texts that occur in it, such as special tokens."""
    return "".join(_part(rng, tokens) for _ in range(rng.randrange(1, 14)))


def _part(rng: Random, tokens: Sequence[str]) -> str:
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(_BITS)
    if kind < 0.45 and tokens:
        return rng.choice(tokens)
    if kind < 0.6:
        c = rng.randrange(0x110000 - 0x800)
        return chr(c if c < 0xD800 else c + 0x800)
    if kind < 0.75:
        start, end = rng.choice(_BLOCKS)
        return "".join(chr(rng.randrange(start, end)) for _ in range(rng.randrange(1, 8)))
    if kind < 0.9:
        return "".join(rng.choice(_PLAIN) for _ in range(rng.randrange(1, 20)))
    return rng.choice(" \n\t") * rng.randrange(1, 6)


def training_text(seed: int = 0, lines: int = 2000) -> list[str]:
    """Lines of made-up words with frequent syllables, from which small vocabularies are learned."""
    rng = Random(seed)
    syllables = [a + b for a in "bcdfghlmnprst" for b in ("a", "e", "i", "o", "u", "er", "in", "\xe9", "\u00fc")]
    words = ["".join(rng.choices(syllables, k=rng.randrange(1, 4))) for _ in range(600)]
    words += [
        "don't",
        "I'm",
        "it's",
        "2024",
        "123",
        "3.14",
        "\u4e2d\u6587",
        "\u0434\u0430",
        "foo_bar",
        "!",
        "...",
        "\n",
    ]
    return [" ".join(rng.choices(words, k=rng.randrange(3, 15))) + rng.choice(".?!") for _ in range(lines)]
