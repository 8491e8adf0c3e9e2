"""Every setting as a row: its name, flag, environment variable and allowed values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from msgspec import Meta, structs

from edge.gateway.operate.settings import Settings
from federated.tables import Table, expected

__all__ = ["ENVIRONMENT", "Entry", "entries"]

ENVIRONMENT = "MSEDGE_SERVE_"
"""The prefix of environment variables."""


class Entry(NamedTuple):
    """One setting. `hint`: its annotation."""

    section: str
    key: str
    hint: Any
    default: Any

    @property
    def kind(self) -> type:
        """str, int, float, bool or tuple (of str)."""
        plain = get_args(self.hint)[0] if get_origin(self.hint) is Annotated else self.hint
        kind: type = str if get_origin(plain) is Literal else get_origin(plain) or plain
        return kind

    def has(self, trait: str) -> bool:
        """Whether its annotation has `size` or `path`."""
        metas = get_args(self.hint)[1:] if get_origin(self.hint) is Annotated else ()
        return any(isinstance(meta, Meta) and trait in (meta.extra or {}) for meta in metas)

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
        """Its environment variable."""
        return ENVIRONMENT + self.name.replace(".", "_").upper()

    @property
    def expected(self) -> str:
        """The allowed values, as text."""
        return expected(self.hint)


@cache
def entries() -> Mapping[str, Entry]:
    """All settings by name, in their order."""
    return {entry.name: entry for entry in (*_entries("", Settings), *_nested())}


def _nested() -> Iterator[Entry]:
    for section, kind in get_type_hints(Settings).items():
        if isinstance(kind, type) and issubclass(kind, Table):
            yield from _entries(section, kind)


def _entries(section: str, kind: Any) -> Iterator[Entry]:
    hints = get_type_hints(kind, include_extras=True)
    for entry in structs.fields(kind):
        if entry.name != "sources" and not isinstance(entry.default, Table):
            yield Entry(section, entry.name, hints[entry.name], entry.default)
