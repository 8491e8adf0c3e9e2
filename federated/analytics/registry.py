"""All questions by name; a message holds the name and the fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from federated.analytics.base import READ, Question
from federated.analytics.counts import Counts, Moments
from federated.analytics.prefixes import Prefixes
from federated.errors import FederatedError
from federated.trees.questions import Gradients, Grids, Spans

__all__ = ["QUESTIONS", "question_from", "words_of"]

QUESTIONS: Mapping[str, type[Question]] = {
    "counts": Counts,
    "moments": Moments,
    "prefixes": Prefixes,
    "spans": Spans,
    "grids": Grids,
    "gradients": Gradients,
}


def question_from(words: Mapping[str, Any]) -> Question:
    """The question that a message describes. Raises FederatedError, naming the field."""
    fields = dict(words)
    name = fields.pop("name", None)
    if not isinstance(name, str) or name not in QUESTIONS:
        raise FederatedError(f"question: expected one of {', '.join(QUESTIONS)}, got {str(name)[:80]!r}")
    return READ.read(QUESTIONS[name], fields, "question")


def words_of(question: Question) -> dict[str, Any]:
    """The inverse of `question_from`."""
    name = next(name for name, kind in QUESTIONS.items() if type(question) is kind)
    return {"name": name, **structs.asdict(question)}
