"""Saying no to a file: where, what was expected, what was got, what to do; and the checks that most often do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from lite_runtime.bundle.layout import AGAIN
from lite_runtime.errors import BundleError, MsedgeError

__all__ = ["list_of", "mapping_of", "named", "object_of", "refuse", "show", "string_of"]


def refuse(where: str, expected: str, got: str, fix: str = AGAIN) -> NoReturn:
    """Raise BundleError: where, what was expected, what was got, what to do."""
    raise BundleError(f"{where}: expected {expected}, got {got}; {fix}")


def named(where: str, call: Any, *args: Any) -> Any:
    """`call(*args)`, its errors opened with `where`."""
    try:
        return call(*args)
    except MsedgeError as error:
        raise BundleError(f"{where}: {error}") from None


def show(value: Any) -> str:
    """A JSON value, short enough for an error; never the whole of a hostile one."""
    if isinstance(value, list | dict):
        kind = "a list" if isinstance(value, list) else "an object"
        return f"{kind} of {len(value)}"
    return repr(value) if not isinstance(value, str) or len(value) <= 60 else f"{value[:60]!r}…"


def object_of(value: Any, where: str, keys: Sequence[str]) -> dict[str, Any]:
    """`value`, an object of exactly these keys."""
    made = mapping_of(value, where)
    if made.keys() != set(keys):
        refuse(where, f"the keys {', '.join(keys)}", show(", ".join(made)))
    return made


def mapping_of(value: Any, where: str) -> dict[str, Any]:
    """`value`, a JSON object."""
    if type(value) is not dict:
        refuse(where, "an object", show(value))
    return value


def list_of(value: Any, where: str) -> list[Any]:
    """`value`, a JSON list."""
    if type(value) is not list:
        refuse(where, "a list", show(value))
    return value


def string_of(value: Any, where: str) -> str:
    """`value`, a text."""
    if type(value) is not str:
        refuse(where, "text", show(value))
    return value
