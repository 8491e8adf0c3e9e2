"""What a served language model has done, and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edge.gateway.operate.exposition import Family
from edge.gateway.operate.histograms import Histogram

if TYPE_CHECKING:
    from edge.gateway.language.embedder import Embedder

__all__ = ["Figures", "embedding_families", "families"]


class Figures:
    """Of one version. prompt, reused, generated: tokens. first: seconds until first tokens; each: seconds between the
    further ones."""

    def __init__(self) -> None:
        self.prompt = self.reused = self.generated = 0
        self.first, self.each = Histogram(), Histogram()


_COUNTERS = (
    ("prompt_tokens_total", "Tokens of prompts", "prompt"),
    ("prefix_hit_tokens_total", "Tokens of prompts that were in the caches already", "reused"),
    ("generated_tokens_total", "Tokens of answers", "generated"),
)
_SECONDS = (
    ("first_token_seconds", "Seconds from the receipt of a request to the first token of an answer", "first"),
    ("token_seconds", "Seconds between two tokens of an answer", "each"),
)
_GAUGES = (
    ("running", "gauge", "Texts that are computed"),
    ("waiting", "gauge", "Texts that wait for room"),
    ("pages", "gauge", "Pages of the caches, of 16 tokens"),
    ("free_pages", "gauge", "Pages that no text uses"),
    ("adapters", "gauge", "Adapters that are in memory"),
    ("interrupted_total", "counter", "Texts that gave way to older ones, and began again"),
)


def families(found: Mapping[tuple[str, str], tuple[Figures, Mapping[str, int]]]) -> list[Family]:
    """The metrics, by model and version: its figures, and the present ones of its host."""
    if not found:
        return []
    rows: list[tuple[dict[str, str], Figures, Mapping[str, int]]] = [
        ({"model": name, "version": version}, *of) for (name, version), of in sorted(found.items())
    ]

    def family(name: str, kind: Any, about: str, values: list[Any], every: int = 1) -> Family:
        samples = [(labels, value) for (labels, _, _), value in zip(rows, values, strict=True)]
        return Family(f"msedge_language_{name}", kind, about, samples, every)

    def done(key: str) -> list[Any]:
        return [getattr(of, key) for _, of, _ in rows]

    return [
        *(family(name, "counter", about, done(key)) for name, about, key in _COUNTERS),
        *(family(name, "histogram", about, done(key), 4) for name, about, key in _SECONDS),
        *(family(name, kind, about, [now[name] for _, _, now in rows]) for name, kind, about in _GAUGES),
    ]


def embedding_families(found: Mapping[tuple[str, str], Embedder]) -> list[Family]:
    """The metric of embedding models, by model and version; requests and rows, which are texts, are counted as of other
    models."""
    samples = [({"model": name, "version": version}, of.tokens) for (name, version), of in sorted(found.items())]
    about = "Tokens of texts that became vectors"
    return [Family("msedge_embedding_tokens_total", "counter", about, samples)] if samples else []
