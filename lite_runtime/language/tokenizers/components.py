"""Rows of a description to the functions they stand for: names and settings are checked against a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lite_runtime.bundle.refusal import named, object_of, refuse, show
from lite_runtime.frozen import NamedTuple
from lite_runtime.language.tokenizers.description import SECTION

__all__ = ["MAX_STEPS", "Field", "Kind", "built", "settings"]

MAX_STEPS = 64
"""The most rows of one component."""
Field = type | tuple[str, ...]


class Kind(NamedTuple):
    """A kind of step: its settings, each a type or a choice of texts, and what makes its function of them."""

    fields: Mapping[str, Field]
    make: Callable[..., Any]


def built(rows: Sequence[Mapping[str, Any]], table: Mapping[str, Kind], component: str) -> list[Any]:
    """The functions of the rows, in order; raises BundleError for a row that the table does not have."""
    if len(rows) > MAX_STEPS:
        refuse(f"{SECTION}, {component}", f"at most {MAX_STEPS} steps", str(len(rows)))
    made = []
    for i, row in enumerate(rows):
        where = f"{SECTION}, {component} {i}"
        name = row.get("type")
        if type(name) is not str or name not in table:
            refuse(where, f"one of {', '.join(table)}", show(name))
        kind = table[name]
        held = settings(row, kind.fields, f"{where}, {name}")
        made.append(named(f"{where}, {name}", partial(kind.make, **held)))
    return made


def settings(row: Mapping[str, Any], fields: Mapping[str, Field], where: str) -> dict[str, Any]:
    """The checked settings of a row, without its type."""
    held = object_of(dict(row), where, ["type", *fields])
    for name, field in fields.items():
        value = held[name]
        if isinstance(field, tuple):
            if type(value) is not str or value not in field:
                refuse(f"{where}, {name}", f"one of {', '.join(field)}", show(value))
        elif type(value) is not field:
            refuse(f"{where}, {name}", field.__name__, show(value))
    del held["type"]
    return held
