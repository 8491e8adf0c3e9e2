"""Tables of characters as the library `tokenizers` knows them: lite_runtime/language/tokenizers/_tables.py.

    python -m tests.language.tables            prints what differs from the file
    python -m tests.language.tables --update   writes it

Everything but `inert` is asked of `tokenizers` itself, character by character. `inert` also needs the newest Unicode
tables (`pip install unicodedata2`), because Python's own may be older than what a later Python brings.
"""

from __future__ import annotations

import base64
import sys
import textwrap
import zlib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

ROOT = Path(__file__).parents[2]
FILE = ROOT / "lite_runtime/language/tokenizers/_tables.py"
CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
"""A cell of the table is the place of a category here, plus 32 for characters of Oniguruma's \\w."""
CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, CHARACTERS))
HEAD = '''"""Written by `python -m tests.language.tables --update`; do not edit.

Each value is base 85 of zlib's compressed varints: see `characters.ranges` and `characters.cells`.
"""

from __future__ import annotations

__all__ = ["TABLES"]

TABLES = {
'''


def matched(pattern: str) -> set[int]:
    """The code points that a pattern of one character matches."""
    found = pre_tokenizers.Split(Regex(pattern), "removed", invert=True).pre_tokenize_str(TEXT)
    return {CHARACTERS[at] for _, (start, end) in found for at in range(start, end)}


def alone(split: pre_tokenizers.PreTokenizer) -> set[int]:
    """The code points that a pre-tokeniser takes out from between letters."""
    return {ord(piece) for piece, _ in split.pre_tokenize_str("aa".join(TEXT)) if len(piece) == 1}


def removed(normalizer: normalizers.Normalizer) -> set[int]:
    return {c for c in CHARACTERS if normalizer.normalize_str(chr(c)) == ""}


def changed(normalizer: normalizers.Normalizer) -> set[int]:
    return {c for c in CHARACTERS if normalizer.normalize_str(chr(c)) != chr(c)}


def single_words() -> set[int]:
    """Characters beside which a token that is a whole word is none."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.add_tokens([AddedToken("zz", single_word=True)])
    return {c for c in CHARACTERS if "zz" not in tokenizer.encode(chr(c) + "zz").tokens}


def lowered() -> list[int]:
    """Pairs (upper, lower) that Python 3.11, which has Unicode 14, lacks; run it with that version."""
    lower = normalizers.Lowercase()
    return [
        code for c in CHARACTERS if (small := lower.normalize_str(chr(c))) != chr(c).lower() for code in (c, ord(small))
    ]


def inert() -> set[int]:
    """Characters that have a decomposition or a combining class in Unicode, and none in `tokenizers`."""
    import unicodedata2

    forms = [(name, getattr(normalizers, name)()) for name in ("NFC", "NFD", "NFKC", "NFKD")]
    around = ("{}", "a\u0301{}", "a{}\u0316", "a{}\u0301", "\u05b0{}")
    candidates = [chr(c) for c in CHARACTERS if unicodedata2.combining(chr(c)) or unicodedata2.decomposition(chr(c))]
    return {
        ord(c)
        for c in candidates
        for name, form in forms
        for text in around
        if form.normalize_str(text.format(c)) != unicodedata2.normalize(name, text.format(c))
    }


def one_key() -> normalizers.Normalizer:
    """A precompiled table that makes X of a, and of every grapheme that begins with a."""
    units = [0] * 512
    units[0], units[256 ^ 0x61], units[256 ^ 0x61 ^ 1] = 256 << 10, 1 << 10 | 1 << 8 | 0x61, 1 << 31
    table = b"".join(unit.to_bytes(4, "little") for unit in units)
    return normalizers.Precompiled(len(table).to_bytes(4, "little") + table + b"X\0")


def extending() -> set[int]:
    """Characters that extend the one before them."""
    found = one_key()
    return {c for c in CHARACTERS if found.normalize_str(f"a{chr(c)}") == "X"}


def prepended() -> set[int]:
    """Characters that are one grapheme with what follows them."""
    found = one_key()
    return {c for c in CHARACTERS if found.normalize_str(f"{chr(c)}a\u0301").endswith("\u0301")}


def varints(numbers: Iterable[int]) -> bytes:
    """Each number in groups of seven bits, the lowest first; the highest bit says that more follow."""
    out = bytearray()
    for number in numbers:
        while number > 127:
            out.append(number & 127 | 128)
            number >>= 7
        out.append(number)
    return bytes(out)


def packed_cells() -> bytes:
    """Runs of characters of one cell: length of the run, cell."""
    of = [0] * 0x110000
    for number, name in enumerate(CATEGORIES):
        for c in matched(rf"\p{{{name}}}"):
            of[c] = number
    for c in matched(r"\w"):
        of[c] += 32
    ends = [at for at in range(1, 0x110000) if of[at] != of[at - 1]]
    return varints(x for start, end in pairwise([0, *ends, 0x110000]) for x in (end - start, of[start]))


def packed_ranges(found: set[int]) -> bytes:
    """Gaps and lengths of ranges, in order."""
    borders = sorted(c for c in found if c - 1 not in found) + sorted(c + 1 for c in found if c + 1 not in found)
    return varints(after - before for before, after in pairwise([0, *sorted(borders)]))


def tables() -> dict[str, bytes]:
    """All of them."""
    bert = dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), False)

    def of_bert(**used: bool) -> normalizers.Normalizer:
        return normalizers.BertNormalizer(**{**bert, **used})

    return {
        "cells": packed_cells(),
        "numeric": packed_ranges(alone(pre_tokenizers.Digits(individual_digits=True))),
        "punctuation": packed_ranges(alone(pre_tokenizers.Punctuation("isolated"))),
        "marks": packed_ranges(removed(normalizers.StripAccents())),
        "bert_marks": packed_ranges(removed(of_bert(strip_accents=True))),
        "bert_removed": packed_ranges(removed(of_bert(clean_text=True))),
        "bert_spaces": packed_ranges(changed(of_bert(clean_text=True)) - removed(of_bert(clean_text=True))),
        "chinese": packed_ranges(changed(of_bert(handle_chinese_chars=True))),
        "nmt_removed": packed_ranges(removed(normalizers.Nmt())),
        "nmt_spaces": packed_ranges(changed(normalizers.Nmt()) - removed(normalizers.Nmt())),
        "words": packed_ranges(single_words()),
        "inert": packed_ranges(inert()),
        "extends": packed_ranges(extending()),
        "prepended": packed_ranges(prepended()),
        "lower": varints(lowered()),
    }


def page() -> str:
    """The file."""
    rows = []
    for name, data in tables().items():
        text = base64.b85encode(zlib.compress(data, 9)).decode("ascii")
        lines = "\n".join(f'        "{line}"' for line in textwrap.wrap(text, 108))
        rows.append(f'    "{name}": (\n{lines}\n    ),\n')
    return f"{HEAD}{''.join(rows)}}}\n"


def main(arguments: list[str]) -> int:
    """Write the file, or say whether it is up to date."""
    made = page()
    if "--update" in arguments:
        FILE.write_text(made, encoding="utf-8")
        return 0
    same = FILE.read_text(encoding="utf-8") == made
    print("up to date" if same else "not up to date")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
