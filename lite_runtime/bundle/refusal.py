"""Refusing a file: where, what was expected, what was found, the fix; and the most frequent checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from lite_runtime.bundle.layout import AGAIN
from lite_runtime.errors import BundleError, MsedgeError

__all__ = ["list_of", "mapping_of", "named", "object_of", "refuse", "show", "string_of"]


def refuse(where: str, expected: str, got: str, fix: str = AGAIN) -> NoReturn:
    """Raise BundleError that says where, what was expected, what was found and the fix."""
    raise BundleError(f"{where}: expected {expected}, got {got}; {fix}")


def named(where: str, call: Any, *args: Any) -> Any:
    """`call(*args)`; errors are prefixed with `where`."""
    try:
        return call(*args)
    except MsedgeError as error:
        raise BundleError(f"{where}: {error}") from None


def show(value: Any) -> str:
    """A JSON value in a short form for errors; a hostile value is never printed in full."""
    if isinstance(value, list | dict):
        kind = "a list" if isinstance(value, list) else "an object"
        return f"{kind} of {len(value)}"
    return repr(value) if not isinstance(value, str) or len(value) <= 60 else f"{value[:60]!r}…"


def object_of(value: Any, where: str, keys: Sequence[str]) -> dict[str, Any]:
    """`value` as an object with exactly these keys; refuses anything else."""
    made = mapping_of(value, where)
    if made.keys() != set(keys):
        refuse(where, f"the keys {', '.join(keys)}", show(", ".join(made)))
    return made


def mapping_of(value: Any, where: str) -> dict[str, Any]:
    """`value` as a JSON object; refuses anything else."""
    if type(value) is not dict:
        refuse(where, "an object", show(value))
    return value


def list_of(value: Any, where: str) -> list[Any]:
    """`value` as a JSON list; refuses anything else."""
    if type(value) is not list:
        refuse(where, "a list", show(value))
    return value


def string_of(value: Any, where: str) -> str:
    """`value` as a string; refuses anything else."""
    if type(value) is not str:
        refuse(where, "text", show(value))
    return value
