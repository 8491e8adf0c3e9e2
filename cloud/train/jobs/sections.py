"""Reading a run's TOML file with `federated.tables` and this package's error, and changes from the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from cloud.errors import TrainError
from federated.tables import Reader, Table

__all__ = ["READ", "Section", "need", "overridden"]

READ = Reader(TrainError, "msedge train --template prints one")
need = READ.need


class Section(Table, frozen=True):
    """A table of a run's file."""

    reader: ClassVar[Reader] = READ


def overridden(words: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """`words` with "section.key=value" changes applied; a value is TOML, or otherwise a plain string."""
    made: dict[str, Any] = {name: dict(table) if isinstance(table, Mapping) else table for name, table in words.items()}
    for change in changes:
        path, equals, text = change.partition("=")
        *tables, key = (part.strip() for part in path.split("."))
        if not (equals and tables and key and all(tables)):
            raise TrainError(f"expected SECTION.KEY=VALUE, such as train.rate=0.1; got {change!r}")
        at, where = made, ""
        for name in tables:
            where = f"{where}.{name}" if where else name
            found = at.get(name, {})
            need(isinstance(found, Mapping), where, f"a table for {change!r} to change", found)
            at[name] = dict(found)
            at = at[name]
        at[key] = _toml(text.strip())
    return made


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text
