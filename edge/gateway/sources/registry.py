"""Models from a registry: an index over HTTP, and bundles that are downloaded into a folder and verified.

The index is JSON: `{"models": [{"name": …, "version": 3, "digest": …, "url": …, "config": {…}}]}`. `digest` is the
bundle's own (`msedge inspect` shows it), 64 hex digits; `url` may be relative to the index; `config`, once per model,
has the keys of `config.toml`. The cache has a folder for each registry, named by a digest of its URL, with
`DIGEST.mslite` for each bundle and the last good `index.json`, which is used while the registry cannot be reached.

Rows are judged one by one: a malformed row, or a bundle that cannot be downloaded, is a problem of its model, or of the
registry if the row names none. Downloads run on threads of their own; a scan waits for them only for a moment.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import get_ident
from typing import IO, Annotated, Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from msgspec import Meta, Struct

from edge.gateway.apart import Workers
from edge.gateway.errors import GatewayError
from edge.gateway.models.config import ModelConfig, parse_config
from edge.gateway.models.names import check_name, is_name, shown, version_of
from edge.gateway.sources.listing import Candidate, Listing
from federated.tables import Reader
from lite_runtime import bundle
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError

__all__ = ["Registry"]

MOST_INDEX, MOST_MODELS = 8 << 20, 10_000
DOWNLOADS = 4
"""Bundles of a registry that are downloaded at once."""
_CHUNK = 1 << 20
_DIGEST = re.compile(r"\A[0-9a-f]{64}\Z")


class _Entry(Struct):
    """A version in the JSON of the index; unknown keys are ignored."""

    name: str
    version: Annotated[int, Meta(ge=1, lt=10**18)] | str
    digest: Annotated[str, Meta(pattern=_DIGEST.pattern, description="64 digits of 0-9 a-f")]
    url: str
    config: Mapping[str, Any] | None = None


class _Index(Struct):
    models: Annotated[tuple[Any, ...], Meta(max_length=MOST_MODELS, description=f"up to {MOST_MODELS} versions")]


_READ = Reader(partial(GatewayError, 503), "", shown)


class _Row(NamedTuple):
    """A version in the index."""

    name: str
    version: int
    digest: str
    url: str
    config: ModelConfig | None


class Registry:
    """A source of models behind a URL.

    cache: a folder of this gateway, which registries may share. most: largest bundle in bytes. timeout: seconds without
    data; a whole bundle may take `patience` seconds, of which a scan waits `moment`.
    """

    remote, named = True, frozenset[str]()

    def __init__(
        self,
        url: str,
        cache: str | os.PathLike[str],
        *,
        most: int = 4 << 30,
        timeout: float = 10.0,
        patience: float = 600.0,
        moment: float = 2.0,
    ) -> None:
        _check_url(url)
        self.url, self._most, self._timeout, self._patience = url, most, timeout, patience
        self.name, self.problem, self.read = _shown(url, plain=True), "", 0.0
        self._moment, self._downloads = moment, Workers("msedge-download", DOWNLOADS)
        self._coming: dict[tuple[str, str], Future[None]] = {}
        """Downloads that are queued or running, by digest and URL."""
        self._rows: dict[tuple[str, int], _Row] = {}
        """The last valid row of every version."""
        self._cache = Path(cache, blake2b(url.encode(), digest_size=8).hexdigest())
        self._good: set[str] = set()
        """Digests of cached files that were verified since the start."""
        self._opener = urllib.request.OpenerDirector()  # the default one would also open file: and ftp:
        for handler in (
            urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler,
            urllib.request.HTTPErrorProcessor, urllib.request.HTTPDefaultErrorHandler, _Redirects,
        ):  # fmt: skip
            self._opener.add_handler(handler())

    def scan(self) -> dict[str, Listing]:
        """The index's models, with the bundles that are here already or arrive within `moment` seconds; the others are
        listed by a later scan. A row that is malformed, or whose bundle cannot be downloaded, affects only its version.

        Raises GatewayError (503) if there is neither an index nor a cached one.
        """
        self._cache.mkdir(parents=True, exist_ok=True)
        index = self._index()
        self._rows = {(row.name, row.version): row for row in index.rows}
        missing = [row for row in index.rows if not self._here(row)]
        wait([self._begun(row) for row in missing], timeout=self._moment)
        found = {name: Listing({}, None, problem) for name, problem in index.problems.items() if name}
        for row in index.rows:
            listing = found.get(row.name, Listing({}))
            versions, problem = dict(listing.versions), listing.problem
            try:
                versions[row.version] = self._candidate(row)
            except MsedgeError as error:
                problem = _joined(problem, f"version {row.version}: {error}")
            found[row.name] = Listing(versions, row.config or listing.config, problem)
        self._prune({f"{row.digest}.mslite" for row in index.rows})
        return found

    def _index(self) -> _Rows:
        """The current index, or the cached one if the registry cannot be reached; sets `problem` and `read`."""
        kept = self._cache / "index.json"
        try:
            raw = b"".join(self._get(self.url, MOST_INDEX))
            index, why = _parse(raw, self.url, self._rows), ""
        except MsedgeError as error:
            try:
                index, why = _parse(kept.read_bytes(), self.url, self._rows), f"{error}; its last index is used"
                self.read = kept.stat().st_mtime
            except (OSError, MsedgeError):
                raise GatewayError(503, f"registry {_shown(self.url)}: {error}", retry_after=self._timeout) from None
        else:
            write_atomically(kept, raw)
            self.read = time.time()
        self.problem = _joined(why, *index.problems.values())
        return index

    def _here(self, row: _Row) -> bool:
        """Whether the bundle is in the cache, whole and valid."""
        path = self._path(row)
        if row.digest not in self._good or not path.exists():
            if not _holds(path, row.digest):
                return False
            self._good.add(row.digest)
        return True

    def _begun(self, row: _Row) -> Future[None]:
        """The download of a bundle, started if it is not yet."""
        key = row.digest, row.url
        if key not in self._coming:
            self._coming[key] = self._downloads.submit(self._fetch, row, self._path(row))
        return self._coming[key]

    def _candidate(self, row: _Row) -> Candidate:
        """The bundle as a local file. Raises GatewayError (503) if it is not there."""
        key = row.digest, row.url
        coming = self._coming.get(key)
        if coming is not None:
            if not coming.done():
                raise GatewayError(503, "is being downloaded", retry_after=self._timeout)
            del self._coming[key]
            error = coming.exception()
            if error is not None:
                raise error if isinstance(error, MsedgeError) else GatewayError(503, str(error))
            self._good.add(row.digest)
        path = self._path(row)
        try:
            status = path.stat()
        except OSError as error:
            raise GatewayError(503, f"cannot read {path.name!r} in the cache: {error.strerror}") from None
        return Candidate(os.fspath(path), (status.st_size, status.st_mtime_ns, status.st_ino))

    def _path(self, row: _Row) -> Path:
        return self._cache / f"{row.digest}.mslite"

    def _prune(self, names: set[str]) -> None:
        """Remove bundles that the index no longer has, and what killed downloads left."""
        old = time.time() - self._patience
        for path in (*self._cache.glob("*.mslite"), *self._cache.glob(".*.tmp")):
            with contextlib.suppress(OSError):
                unlisted = path.name not in names and _DIGEST.match(path.stem)
                if unlisted or (path.suffix == ".tmp" and path.stat().st_mtime < old):
                    path.unlink()

    def _fetch(self, row: _Row, path: Path) -> None:
        """Download to a temporary file, verify, rename to `path`: a file with that name is always whole and valid."""
        temporary = path.with_name(f".{row.digest[:16]}-{os.getpid()}-{get_ident()}.tmp")
        try:
            with open(temporary, "wb") as file:
                for part in self._get(row.url, self._most):
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            got = bundle.opened(os.fspath(temporary)).digest
            _need(got == row.digest, row.url, f"the bundle {row.digest[:16]}…", f"{got[:16]}…; publish it again")
            os.replace(temporary, path)
        except OSError as error:
            where = repr(os.fspath(self._cache))
            raise GatewayError(503, f"cannot save {_shown(row.url)} in {where}: {error.strerror or error}") from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _get(self, url: str, most: int) -> Iterator[bytes]:
        """A URL's contents, in pieces. Raises GatewayError for all errors, and for more than `most` bytes."""
        deadline, total = time.monotonic() + self._patience, 0
        try:
            request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "msedge"})
            with self._opener.open(request, timeout=self._timeout) as reply:
                promised = _length(reply)
                _need(promised is None or promised <= most, url, f"at most {most} bytes", f"{promised}")
                while part := reply.read1(_CHUNK):
                    total += len(part)
                    _need(total <= most, url, f"at most {most} bytes", "more")
                    _need(time.monotonic() < deadline, url, f"the whole reply within {self._patience:g} s", "a part")
                    yield part
            _need(promised is None or total == promised, url, f"{promised} bytes", f"{total}: the reply was cut short")
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise GatewayError(
                503, f"cannot fetch {_shown(url)}: {str(error)[:200]}", retry_after=self._timeout
            ) from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Allows redirections only to HTTP and HTTPS, and never from https to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            _check_url(newurl)
            if req.type == "https" and urlsplit(newurl).scheme != "https":
                raise GatewayError(503, f"{_shown(req.full_url)} redirects to {_shown(newurl)}, which is not encrypted")
        except GatewayError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_url(url: str, where: str = "") -> None:
    parts = urlsplit(url)
    if "@" in parts.netloc:  # it would appear in logs
        raise GatewayError(400, f"{where}{parts.scheme}://…@…: a registry's URL must not have a password; use a proxy")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise GatewayError(400, f"{where}expected a URL that begins with http:// or https://, got {shown(url)}")


def _holds(path: Path, digest: str) -> bool:
    """Whether a file is the undamaged bundle with this digest."""
    try:
        return bundle.opened(os.fspath(path)).digest == digest
    except MsedgeError:
        return False


def _need(truth: bool, url: str, expected: str, got: str) -> None:
    if not truth:
        raise GatewayError(503, f"{_shown(url)}: expected {expected}, got {got}")


def _shown(url: str, *, plain: bool = False) -> str:
    """A URL as logs and clients may see it: without the query, which often contains secrets; in quotes unless
    `plain`."""
    text = urlsplit(url)._replace(query="", fragment="").geturl()
    return text if plain else shown(text)


def _length(reply: Any) -> int | None:
    text = reply.headers.get("Content-Length")
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None


class _Rows(NamedTuple):
    """What an index holds. problems: of rows that cannot be used, by model; "" for rows that name none."""

    rows: list[_Row]
    problems: dict[str, str]


def _parse(raw: bytes, url: str, before: Mapping[tuple[str, int], _Row]) -> _Rows:
    """The index's rows; in the place of a malformed one, what `before` has of this version. Raises GatewayError for
    anything that is not an index."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise GatewayError(503, f"index: expected JSON, got other text: {str(error)[:120]}") from None
    found: dict[tuple[str, int], _Row] = {}
    problems: dict[str, str] = {}
    for i, given in enumerate(_READ.read(_Index, document, "index: ").models):
        where = f"index, models[{i}]"
        try:
            row = _row(_READ.read(_Entry, given, f"{where}: "), where, url)
            key = row.name, row.version
            _need(key not in found, url, f"version {row.version} of {row.name!r} once", f"it again in models[{i}]")
            found[key] = row
        except GatewayError as error:
            name, version = _named(given)
            problems[name] = _joined(problems.get(name, ""), str(error))
            if (name, version) in before:
                found.setdefault((name, version), before[name, version])
    return _Rows(list(found.values()), problems)


def _named(given: object) -> tuple[str, int]:
    """The model and version of a malformed row, as far as it names them; else "" and 0."""
    name, version = (given.get("name"), given.get("version")) if isinstance(given, Mapping) else (None, None)
    number = version_of(version) if isinstance(version, str) else version
    return name if isinstance(name, str) and is_name(name) else "", number if isinstance(number, int) else 0


def _joined(*problems: str) -> str:
    return "; ".join(p for p in problems if p)


def _row(row: _Entry, where: str, url: str) -> _Row:
    version = version_of(row.version) if isinstance(row.version, str) else row.version
    if version is None:
        raise _READ.wrong(f"{where}: version", "a whole number from 1", row.version)
    target = urljoin(url, row.url)
    _check_url(target, f"{where}: url: ")
    config = None if row.config is None else parse_config(row.config, f"{where}: config")
    return _Row(check_name(row.name, f"{where}: name"), version, row.digest, target, config)
