"""Every setting as a row: its name, its flag, its variable, what it may be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from edge.gateway.operate.settings import Rule, Settings

__all__ = ["ENVIRONMENT", "Entry", "entries"]

ENVIRONMENT = "MSEDGE_SERVE_"
"""What the names of variables begin with."""
_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", tuple: "a list of texts"}


class Entry(NamedTuple):
    """One setting. `kind`: str, int, float, bool or tuple (of str)."""

    section: str
    key: str
    kind: type
    choices: tuple[str, ...]
    rule: Rule | None
    default: Any

    @property
    def name(self) -> str:
        """Its place in the tree."""
        return f"{self.section}.{self.key}" if self.section else self.key

    @property
    def flag(self) -> str:
        """Its flag."""
        return "--" + self.name.replace(".", "-").replace("_", "-")

    @property
    def variable(self) -> str:
        """Its variable of the environment."""
        return ENVIRONMENT + self.name.replace(".", "_").upper()

    @property
    def expected(self) -> str:
        """What it may be, in words."""
        return self.rule.expected if self.rule else " or ".join(map(repr, self.choices)) or _NAMES[self.kind]


@cache
def entries() -> Mapping[str, Entry]:
    """All settings by name, in their order."""
    return {entry.name: entry for entry in (*_entries("", Settings), *_nested())}


def _nested() -> Iterator[Entry]:
    for section, kind in get_type_hints(Settings).items():
        if dataclasses.is_dataclass(kind):
            yield from _entries(section, kind)


def _entries(section: str, kind: Any) -> Iterator[Entry]:
    hints = get_type_hints(kind, include_extras=True)
    for entry in dataclasses.fields(kind):
        if entry.default is dataclasses.MISSING:  # a section, or `sources`
            continue
        hint, rule = hints[entry.name], None
        if get_origin(hint) is Annotated:
            hint, rule = get_args(hint)
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        made = str if choices else get_origin(hint) or hint
        yield Entry(section, entry.name, made, choices, rule, entry.default)
