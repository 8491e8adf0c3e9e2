"""A golden sample of a language model: the tokens of a short text as an engine gives them to the graph, and the logits
behind the last of them, which depend on all others. Its caches are empty pages, in another order than the text's.
"""

from __future__ import annotations

import numpy as np

from converter.frontends.decoders import LanguageModel
from lite_runtime.graph import Array, Graph, numpy_dtype
from lite_runtime.language.engine import KEYS, VALUES
from lite_runtime.language.pages import PAGE, needed
from lite_runtime.language.tokenizers import Tokenizer, pack

__all__ = ["MOST_WEIGHTS", "TEXT", "inputs", "refusal"]

TEXT = (
    "The river rises in the hills to the north, and by the time it reaches the sea it has passed three towns, two "
    "lakes and a great many mills. People have lived beside it for longer than anyone has written things down, and "
    "they count the years by its floods: the one that took the old bridge, the one that came in June, and the one "
    "that nobody saw because it was the night of the wedding. In summer the water is so low that children walk "
    "across it."
)
"""Plain prose, for models of any language that write with these letters."""
MOST_WEIGHTS = 1 << 30
"""The reference widens every matrix: about 10 ns for each weight, so at most some ten seconds."""
_TOKENS = PAGE + PAGE // 2
"""Tokens of the sample: a page and a half."""


def refusal(graph: Graph) -> str:
    """Why no sample is made of such a model; "" if one is."""
    count = sum(array.size for array in graph.constants.values())
    return f"skipped: a reference run reads {count / 1e9:.1f} G numbers" if count > MOST_WEIGHTS else ""


def inputs(graph: Graph, model: LanguageModel, context: int) -> dict[str, Array]:
    """The sample's inputs by name, for the signature "predict". context: the most tokens of a text."""
    ids = _tokens(model)[: min(context, _TOKENS)]
    count, pages = len(ids), needed(len(ids))
    given = {
        "input_ids": ids, "cumulative_sequence_length": np.array([0, count], np.int32),
        "past_seqlens": np.zeros(1, np.int32), "block_table": np.arange(pages, dtype=np.int32)[None, ::-1].copy(),
        "logits_rows": np.array([count - 1], np.int32),
    }  # fmt: skip
    for value in graph.inputs:
        if value.name.startswith((KEYS, VALUES)):
            sizes = (pages, *(value.shape or ())[1:])
            given[value.name] = np.zeros(tuple(n for n in sizes if isinstance(n, int)), numpy_dtype(value.dtype))
    return given


def _tokens(model: LanguageModel) -> Array:
    """Of TEXT; without a tokenizer the same random ones each time."""
    if model.tokenizer is not None:
        found = Tokenizer.from_bytes(pack(model.tokenizer)).encode(TEXT)
        if found and max(found) < model.decoder.vocabulary:
            return np.array(found, np.int32)
    return np.random.default_rng(0).integers(0, model.decoder.vocabulary, _TOKENS).astype(np.int32)
