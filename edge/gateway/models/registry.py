"""Models from a registry: an index over HTTP, and bundles that are downloaded into a folder and verified.

The index is JSON: `{"models": [{"name": …, "version": 3, "digest": …, "url": …, "config": {…}}]}`. `digest` is the
bundle's own (`msedge inspect` shows it), 64 hex digits; `url` may be relative to the index; `config`, once per model,
has the keys of `config.toml`. The cache has a folder for each registry, named by a digest of its URL, with
`DIGEST.mslite` for each bundle and the last good `index.json`, which is used while the registry cannot be reached.
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
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from msgspec import Meta, Struct

from edge.gateway.errors import GatewayError
from edge.gateway.models.config import ModelConfig, parse_config
from edge.gateway.models.names import check_name, shown, version_of
from edge.gateway.models.sources import Candidate, Listing
from federated.tables import Reader
from lite_runtime import bundle
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError

__all__ = ["Registry"]

MOST_INDEX, MOST_MODELS = 8 << 20, 10_000
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
    models: Annotated[tuple[_Entry, ...], Meta(max_length=MOST_MODELS, description=f"up to {MOST_MODELS} versions")]


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
    data; a whole bundle may take `patience` seconds.
    """

    def __init__(
        self,
        url: str,
        cache: str | os.PathLike[str],
        *,
        most: int = 4 << 30,
        timeout: float = 10.0,
        patience: float = 600.0,
    ) -> None:
        _check_url(url)
        self.url, self._most, self._timeout, self._patience = url, most, timeout, patience
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
        """The index's models, with bundles downloaded. A bundle that cannot be downloaded affects only its model.

        Raises GatewayError (503) if there is neither an index nor a cached one.
        """
        self._cache.mkdir(parents=True, exist_ok=True)
        found: dict[str, Listing] = {}
        rows = self._rows()
        for row in rows:
            listing = found.get(row.name, Listing({}))
            versions, problem = dict(listing.versions), listing.problem
            try:
                versions[row.version] = self._candidate(row)
            except MsedgeError as error:
                problem = "; ".join(p for p in (problem, f"version {row.version}: {error}") if p)
            found[row.name] = Listing(versions, row.config or listing.config, problem)
        self._prune({f"{row.digest}.mslite" for row in rows})
        return found

    def _prune(self, names: set[str]) -> None:
        """Remove bundles that the index no longer has."""
        for path in self._cache.glob("*.mslite"):
            if path.name not in names and _DIGEST.match(path.stem):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _rows(self) -> list[_Row]:
        """The current index, or the cached one if the registry cannot be reached."""
        kept = self._cache / "index.json"
        try:
            raw = b"".join(self._get(self.url, MOST_INDEX))
            rows = _parse(raw, self.url)
        except MsedgeError as error:
            try:
                return _parse(kept.read_bytes(), self.url)
            except (OSError, MsedgeError):
                raise GatewayError(503, f"registry {_shown(self.url)}: {error}", retry_after=self._timeout) from None
        write_atomically(kept, raw)
        return rows

    def _candidate(self, row: _Row) -> Candidate:
        """The bundle as a local file, downloaded if necessary."""
        path = self._cache / f"{row.digest}.mslite"
        if row.digest not in self._good or not path.exists():
            if not _holds(path, row.digest):
                self._fetch(row, path)
            self._good.add(row.digest)
        status = path.stat()
        return Candidate(os.fspath(path), (status.st_size, status.st_mtime_ns, status.st_ino))

    def _fetch(self, row: _Row, path: Path) -> None:
        """Download to a temporary file, verify, rename to `path`: a file with that name is always whole and valid."""
        temporary = path.with_name(f".{row.digest[:16]}-{os.getpid()}.tmp")
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
        _check_url(newurl)
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise GatewayError(503, f"{_shown(req.full_url)} redirects to {_shown(newurl)}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if "@" in parts.netloc:  # it would appear in logs
        raise GatewayError(400, f"{parts.scheme}://…@…: a registry's URL must not have a password; use a proxy")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise GatewayError(400, f"expected a URL that begins with http:// or https://, got {shown(url)}")


def _holds(path: Path, digest: str) -> bool:
    """Whether a file is the undamaged bundle with this digest."""
    try:
        return bundle.opened(os.fspath(path)).digest == digest
    except MsedgeError:
        return False


def _need(truth: bool, url: str, expected: str, got: str) -> None:
    if not truth:
        raise GatewayError(503, f"{_shown(url)}: expected {expected}, got {got}")


def _shown(url: str) -> str:
    """A URL as logs and clients may see it: without the query, which often contains secrets."""
    return shown(urlsplit(url)._replace(query="", fragment="").geturl())


def _length(reply: Any) -> int | None:
    text = reply.headers.get("Content-Length")
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None


def _parse(raw: bytes, url: str) -> list[_Row]:
    """The index's rows. Raises GatewayError naming the row and key."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise GatewayError(503, f"index: expected JSON, got other text: {str(error)[:120]}") from None
    index = _READ.read(_Index, document, "index: ")
    rows = [_row(row, f"index, models[{i}]", url) for i, row in enumerate(index.models)]
    if len({(row.name, row.version) for row in rows}) < len(rows):
        raise GatewayError(503, "index: expected every version of a model once, got one twice")
    return rows


def _row(row: _Entry, where: str, url: str) -> _Row:
    version = version_of(row.version) if isinstance(row.version, str) else row.version
    if version is None:
        raise _READ.wrong(f"{where}: version", "a whole number from 1", row.version)
    target = urljoin(url, row.url)
    _check_url(target)
    config = None if row.config is None else parse_config(row.config, f"{where}: config")
    return _Row(check_name(row.name, f"{where}: name"), version, row.digest, target, config)
