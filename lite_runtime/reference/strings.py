"""String operators: object arrays of str."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lite_runtime.errors import InputError, UnsupportedOpError
from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import require

__all__ = ["text"]


def text(value: object) -> str:
    """A string element, given as str or as UTF-8 bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _objects(values: Sequence[str], shape: tuple[int, ...]) -> Array:
    out = np.empty(len(values), object)
    out[:] = values
    return out.reshape(shape)


@define("StringConcat")
def _string_concat(x: Array, y: Array, /) -> Array:
    left, right = np.broadcast_arrays(x, y)
    return _objects([text(a) + text(b) for a, b in zip(left.ravel(), right.ravel(), strict=True)], left.shape)


@define("StringSplit")
def _string_split(x: Array, /, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Array, Array]:
    """(substrings, padded with "" to the longest row; their number per element). No delimiter: runs of whitespace."""
    rows = [text(v).split(delimiter or None, -1 if maxsplit is None else maxsplit) for v in x.ravel()]
    widest = max(map(len, rows), default=0)
    padded = [part for row in rows for part in (*row, *[""] * (widest - len(row)))]
    return _objects(padded, (*x.shape, widest)), np.array([len(r) for r in rows], np.int64).reshape(x.shape)


_CASES: dict[str, Callable[[str], str]] = {"NONE": lambda s: s, "LOWER": str.lower, "UPPER": str.upper}


@define("StringNormalizer")
def _string_normalizer(
    x: Array,
    /,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
) -> Array:
    """x [C] or [1, C] without its stop words, then in the requested case; one empty string if nothing is left."""
    require(x.ndim == 1 or (x.ndim == 2 and x.shape[0] == 1), f"expected shape [C] or [1, C], got {x.shape}")
    if case_change_action not in _CASES:
        raise UnsupportedOpError(f"expected case_change_action NONE, LOWER or UPPER, got {case_change_action!r}")
    fold: Callable[[str], str] = _CASES["NONE" if is_case_sensitive else "LOWER"]
    stops = {fold(text(s)) for s in stopwords}
    kept = [_CASES[case_change_action](text(v)) for v in x.ravel() if fold(text(v)) not in stops] or [""]
    return _objects(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


def _compiled(pattern: str) -> re.Pattern[str]:
    """ONNX means RE2's syntax, in which classes such as \\w are those of ASCII."""
    try:
        return re.compile(pattern, re.ASCII)
    except re.error as error:
        raise InputError(f"expected a regular expression, got {pattern!r}: {error}") from error


@define("RegexFullMatch")
def _regex_full_match(x: Array, /, pattern: str = "") -> Array:
    compiled = _compiled(pattern)
    return np.array([compiled.fullmatch(text(v)) is not None for v in x.ravel()], bool).reshape(x.shape)


_START, _END = "\x02", "\x03"


@define("Tokenizer")
def _tokenizer(
    x: Array,
    /,
    mark: int = 0,
    mincharnum: int = 1,
    pad_value: str = "",
    separators: Sequence[str] = (),
    tokenexp: str = "",
) -> Array:
    """x [C] or [N, C] -> x's shape and the most tokens of an element, padded.

    ONNX Runtime's operator, as scikit-learn's text vectorisers are exported. Tokens match `tokenexp`, or are what is
    left between `separators`, regular expressions applied one after the other. One empty separator: characters.
    """
    require(x.ndim in (1, 2), f"expected shape [C] or [N, C], got {x.shape}")
    require(mincharnum >= 1, f"expected mincharnum of at least 1, got {mincharnum}")
    require(bool(separators) != bool(tokenexp), "expected either separators or tokenexp")
    patterns = [_compiled(text(p)) for p in ([tokenexp] if tokenexp else separators) if p]

    def tokens(line: str) -> list[str]:
        if tokenexp:
            return [m.group() for m in patterns[0].finditer(line)]
        if not patterns:
            return list(line)
        parts = [line]
        for pattern in patterns:
            parts = [part for held in parts for part in _between(pattern, held)]
        return parts

    rows = [[t for t in tokens(text(v)) if len(t) >= mincharnum] for v in x.ravel()]
    if mark and any(map(text, x.ravel())):  # where all is empty, ONNX Runtime marks nothing
        rows = [[_START, *row, _END] for row in rows]
    widest = max(map(len, rows), default=0)
    padded = [token for row in rows for token in (*row, *[text(pad_value)] * (widest - len(row)))]
    return _objects(padded, (*x.shape, widest))


def _between(pattern: re.Pattern[str], line: str) -> Iterator[str]:
    """What is left between the matches of a pattern that are not empty."""
    start = 0
    for match in pattern.finditer(line):
        if match.end() > match.start():
            yield line[start : match.start()]
            start = match.end()
    yield line[start:]


@define("TfIdfVectorizer")
def _tf_idf_vectorizer(
    x: Array,
    /,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Array:
    """Counts of the pool's n-grams with up to `max_skip_count` elements skipped between their members."""
    if mode not in ("TF", "IDF", "TFIDF"):
        raise UnsupportedOpError(f"expected mode TF, IDF or TFIDF, got {mode!r}")
    require(x.ndim in (1, 2), f"expected shape [C] or [N, C], got {x.shape}")
    lengths = f"min_gram_length {min_gram_length}, max_gram_length {max_gram_length}, max_skip_count {max_skip_count}"
    require(1 <= min_gram_length <= max_gram_length and max_skip_count >= 0, f"expected 1 <= min <= max, got {lengths}")
    pool = [text(s) for s in pool_strings] if pool_strings else [int(v) for v in pool_int64s or ()]
    grams = _grams(pool, ngram_counts)
    require(len(grams) == len(ngram_indexes), f"expected {len(grams)} ngram_indexes, got {len(ngram_indexes)}")
    numbers = {gram: i for i, gram in enumerate(grams)}
    rows = [[text(v) if pool_strings else int(v) for v in row] for row in np.atleast_2d(x)]
    out = np.zeros((len(rows), max(ngram_indexes, default=-1) + 1), np.float32)
    share = np.ones(len(grams), np.float32) if weights is None or mode == "TF" else np.array(weights, np.float32)
    for row, counts in zip(rows, out, strict=True):
        longest = min(max_gram_length, len(ngram_counts), len(row))  # others are not in the pool, or not in the row
        for gram in _found(row, min_gram_length, longest, min(max_skip_count, len(row))):
            if gram in numbers:
                counts[ngram_indexes[numbers[gram]]] += 1
        if mode == "IDF":
            np.minimum(counts, 1, out=counts)
    scale = np.zeros(out.shape[1], np.float32)
    scale[list(ngram_indexes)] = share
    return out[0] * scale if x.ndim == 1 else out * scale


def _grams(pool: Sequence[object], starts: Sequence[int]) -> list[tuple[object, ...]]:
    """The pool split into 1-grams, 2-grams, …; `starts[n - 1]` is the start of the n-grams."""
    grams: list[tuple[object, ...]] = []
    for n, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        grams += [tuple(pool[i : i + n]) for i in range(start, end, n)]
    return grams


def _found(row: Sequence[object], shortest: int, longest: int, skips: int) -> list[tuple[object, ...]]:
    """Every n-gram of the row. A single element cannot be skipped over, so it counts once."""
    found: list[tuple[object, ...]] = []
    for n in range(shortest, longest + 1):
        for step in range(1, 2 if n == 1 else skips + 2):
            found += [tuple(row[i : i + (n - 1) * step + 1 : step]) for i in range(len(row) - (n - 1) * step)]
    return found
