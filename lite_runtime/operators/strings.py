"""Text."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="strings")

RECORDS: tuple[Operator, ...] = (
    _op("RegexFullMatch", since=20, attrs="pattern:s"),
    _op("StringConcat", since=20, inputs=(2, 2)),
    _op("StringNormalizer", since=10, attrs="case_change_action:s is_case_sensitive:i locale:s stopwords:S"),
    _op("StringSplit", since=20, outputs=(2, 2), attrs="delimiter:s maxsplit:i"),
    _op(
        "Tokenizer",
        since=1,
        domain="com.microsoft",
        attrs="mark:i mincharnum:i pad_value:s separators:S tokenexp:s",
    ),
    _op(
        "TfIdfVectorizer",
        since=9,
        attrs=(
            "max_gram_length:i! max_skip_count:i! min_gram_length:i! mode:s! ngram_counts:I! ngram_indexes:I! "
            "pool_int64s:I pool_strings:S weights:F"
        ),
    ),
)
