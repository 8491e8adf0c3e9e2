"""Fields of messages, checked by their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from federated.errors import FederatedError

__all__ = ["check"]


def check(kind: str, words: Mapping[str, Any], wanted: Mapping[str, tuple[type, ...]]) -> None:
    """Raises FederatedError, naming the message's `kind`, unless `words` has all fields, each of one of its types; True
    and False are numbers only where bool is wanted."""
    for key, types in wanted.items():
        got = words.get(key)
        if not isinstance(got, types) or (isinstance(got, bool) and bool not in types):
            raise FederatedError(f"{kind}: expected a field {key!r} of {types[0].__name__}, got {got!r:.80}")
