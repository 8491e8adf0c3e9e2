"""Cache of results per node, kept as long as the node: opened files, listed folders, results of filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["once"]

_KEPT: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()


def once(node: Any, make: Callable[[], Any], about: Any = None) -> Any:
    """`make()`, or its cached result for the same node and the same `about`."""
    kept = _KEPT.get(node)
    if kept is None or kept[0] != about:
        kept = _KEPT[node] = about, make()
    return kept[1]
