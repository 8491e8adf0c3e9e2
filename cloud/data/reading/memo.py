"""What is found out about a node once and kept as long as the node: opened files, listed folders, survivors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["once"]

_KEPT: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()


def once(node: Any, make: Callable[[], Any], about: Any = None) -> Any:
    """`make()`, or what it gave the last time for the same node and the same `about`."""
    kept = _KEPT.get(node)
    if kept is None or kept[0] != about:
        kept = _KEPT[node] = about, make()
    return kept[1]
