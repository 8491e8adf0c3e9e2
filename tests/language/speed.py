"""Tokens a second of public tokenizers on a corpus, beside the library `tokenizers`, in process time.

    python -m tests.language.speed ../shared/data/tinyshakespeare.txt

Both take turns, three times, the best counts; the first run of each fills its cache.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lite_runtime.language import Tokenizer
from tests.language.test_real import FILES, pair


def seconds(call: Callable[[], Any]) -> float:
    """Process time of a call."""
    before = time.process_time()
    call()
    return time.process_time() - before


def main(arguments: list[str]) -> int:
    """Print a row for each tokenizer: its first run, later ones, `tokenizers`, and decoding."""
    text = Path(arguments[0]).read_text(encoding="utf-8")
    for name in ("smollm2", *FILES):
        description, theirs = pair(name)
        mine = Tokenizer(description)
        first = seconds(partial(mine.encode, text))
        ids = mine.encode(text)
        turns = [(seconds(partial(mine.encode, text)), seconds(partial(theirs.encode, text))) for _ in range(3)]
        again, other = (min(each) for each in zip(*turns, strict=True))
        rates = (len(ids) / spent for spent in (first, again, other, seconds(partial(mine.decode, ids))))
        print(name, *(f"{rate:,.0f}" for rate in rates), sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
