"""A registry that is a list over HTTP.

The list is JSON: `{"models": [{"name": …, "version": 3, "digest": …, "url": …, "config": {…}}]}`. `digest` is the
bundle's own (`msedge inspect` shows it), 64 hex digits; `sha256`, which may be left out, is that of the file: it also
changes when a bundle is signed again. `url` may be relative to the list; `config`, once per model, has the keys of
`config.toml`. A malformed row is a problem of its model, or of the registry if it names none.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any
from urllib.parse import urljoin

from msgspec import Meta, Struct

from edge.gateway.errors import GatewayError
from edge.gateway.models.config import parse_config
from edge.gateway.models.names import check_name, is_name, shown, version_of
from edge.gateway.sources.catalogue import Before, Fetched, Row, Rows
from edge.gateway.sources.listing import joined
from edge.gateway.sources.web import Web, address, check_url, fetching, need
from federated.tables import Reader

__all__ = ["Index"]

MOST_INDEX, MOST_MODELS = 8 << 20, 10_000
_DIGEST = re.compile(r"\A[0-9a-f]{64}\Z")
_Digest = Annotated[str, Meta(pattern=_DIGEST.pattern, description="64 digits of 0-9 a-f")]


class _Entry(Struct):
    """A version in the JSON of the index; unknown keys are ignored."""

    name: str
    version: Annotated[int, Meta(ge=1, lt=10**18)] | str
    digest: _Digest
    url: str
    sha256: _Digest = ""
    config: Mapping[str, Any] | None = None


class _Index(Struct):
    models: Annotated[tuple[Any, ...], Meta(max_length=MOST_MODELS, description=f"up to {MOST_MODELS} versions")]


_READ = Reader(partial(GatewayError, 503), "", shown)


class Index:
    """A catalogue behind a URL."""

    def __init__(self, url: str, web: Web) -> None:
        """Raises GatewayError for a URL that is not one of HTTP."""
        check_url(url)
        self.address, self.name, self.again, self._web = url, address(url), web.timeout, web

    def read(self, before: Before) -> Rows:
        """See `Catalogue`."""
        return _parse(self._web.get(self.address, MOST_INDEX), self.address, before)

    @contextlib.contextmanager
    def fetch(self, row: Row, start: int) -> Iterator[Fetched]:
        """See `Catalogue`."""
        with fetching(self._web, row.where, start) as got:
            yield got


def _parse(raw: bytes, url: str, before: Before) -> Rows:
    """The index's rows; in the place of a malformed one, what `before` has of this version. Raises GatewayError for
    anything that is not an index."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise GatewayError(503, f"index: expected JSON, got other text: {str(error)[:120]}") from None
    found: dict[tuple[str, int], Row] = {}
    problems: dict[str, str] = {}
    for i, given in enumerate(_READ.read(_Index, document, "index: ").models):
        where = f"index, models[{i}]"
        try:
            row = _row(_READ.read(_Entry, given, f"{where}: "), where, url)
            key = row.name, row.version
            need(key not in found, url, f"version {row.version} of {row.name!r} once", f"it again in models[{i}]")
            found[key] = row
        except GatewayError as error:
            name, version = _named(given)
            problems[name] = joined(problems.get(name, ""), str(error))
            if (name, version) in before:
                found.setdefault((name, version), before[name, version])
    return Rows(list(found.values()), problems)


def _named(given: object) -> tuple[str, int]:
    """The model and version of a malformed row, as far as it names them; else "" and 0."""
    name, version = (given.get("name"), given.get("version")) if isinstance(given, Mapping) else (None, None)
    number = version_of(version) if isinstance(version, str) else version
    return name if isinstance(name, str) and is_name(name) else "", number if isinstance(number, int) else 0


def _row(row: _Entry, where: str, url: str) -> Row:
    version = version_of(row.version) if isinstance(row.version, str) else row.version
    if version is None:
        raise _READ.wrong(f"{where}: version", "a whole number from 1", row.version)
    target = urljoin(url, row.url)
    check_url(target, f"{where}: url: ")
    if row.config is not None:
        parse_config(row.config, f"{where}: config")
    return Row(
        name=check_name(row.name, f"{where}: name"), version=version, key=row.sha256 or row.digest, where=target,
        digest=row.digest, sha256=row.sha256, config=row.config,
    )  # fmt: skip
