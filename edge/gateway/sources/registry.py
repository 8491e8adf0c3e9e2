"""Models from a registry: its rows are read at every scan, and their bundles downloaded into a cache.

What kind of registry it is, its catalogue knows: `index` (a list over HTTP), `oci`, `s3`. Rows are judged one by one: a
malformed row, or a bundle that cannot be downloaded, is a problem of its model. Downloads run on threads of their own;
a scan waits for them only for a moment. While the registry cannot be reached, its last rows are used.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, wait
from pathlib import Path

import msgspec

from edge.gateway.apart import Workers
from edge.gateway.errors import GatewayError
from edge.gateway.models.config import parse_config
from edge.gateway.sources.cache import Cache
from edge.gateway.sources.catalogue import Catalogue, Row, Rows
from edge.gateway.sources.listing import Candidate, Listing, joined
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError

__all__ = ["DOWNLOADS", "Registry"]

DOWNLOADS = 4
"""Bundles of a registry that are downloaded at once."""
_ROWS = msgspec.json.Decoder(list[Row])


class Registry:
    """A source of models in a registry.

    most: largest bundle in bytes. A download may take `patience` seconds, of which a scan waits `moment`.
    """

    remote, named = True, frozenset[str]()

    def __init__(
        self, catalogue: Catalogue, cache: Cache, *, most: int = 4 << 30, patience: float = 600.0, moment: float = 2.0
    ) -> None:
        self._catalogue, self._most, self._patience, self._moment = catalogue, most, patience, moment
        self._shelf = cache.shelf(catalogue.address)
        self.name, self.problem, self.read = catalogue.name, "", 0.0
        self._downloads = Workers("msedge-download", DOWNLOADS)
        self._coming: dict[tuple[str, str], Future[None]] = {}
        """Downloads that are queued or running, by key and address."""
        self._rows: dict[tuple[str, int], Row] = {}
        """The last valid row of every version."""

    @property
    def waiting(self) -> bool:
        """Whether bundles are being downloaded, so that another scan will find more."""
        return bool(self._coming)

    def scan(self) -> dict[str, Listing]:
        """The registry's models, with the bundles that are here already or arrive within `moment` seconds; the others
        are listed by a later scan.

        Raises GatewayError (503) if the registry cannot be reached and was not before.
        """
        known = self._known()
        self._rows = {(row.name, row.version): row for row in known.rows}
        self._shelf.hold(known.rows, self._patience)
        newest = sorted(known.rows, key=lambda row: -row.version)
        wait([self._begun(row) for row in newest if not self._shelf.has(row)], timeout=self._moment)
        found = {name: Listing({}, None, problem) for name, problem in known.problems.items() if name}
        for row in known.rows:
            found[row.name] = self._added(found.get(row.name, Listing({})), row)
        return found

    def _added(self, listing: Listing, row: Row) -> Listing:
        """A listing with one more version."""
        versions, problem, config = dict(listing.versions), listing.problem, listing.config
        try:
            if row.config is not None:
                config = parse_config(row.config, f"version {row.version}: config")
            versions[row.version] = self._candidate(row)
        except MsedgeError as error:
            problem = joined(problem, f"version {row.version}: {error}")
        return Listing(versions, config, problem)

    def _known(self) -> Rows:
        """The current rows, or the kept ones if the registry cannot be reached; sets `problem` and `read`."""
        kept = self._shelf.folder / "index.json"
        try:
            found = self._catalogue.read(self._rows)
        except GatewayError as error:
            try:
                found = Rows(_ROWS.decode(kept.read_bytes()), {})
                self.read = kept.stat().st_mtime
            except (OSError, msgspec.MsgspecError):
                again = self._catalogue.again
                raise GatewayError(503, f"registry {self.name}: {error}", retry_after=again) from None
            self.problem = f"{error}; its last index is used"
            return found
        self.read, self.problem = time.time(), joined(*found.problems.values(), self._keep(kept, found))
        return found

    def _keep(self, path: Path, found: Rows) -> str:
        """Save the rows for an outage; returns what is wrong if that fails."""
        try:
            self._shelf.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, msgspec.json.encode(found.rows))
        except OSError as error:
            return f"cannot make the folder {os.fspath(self._shelf.folder)!r}: {error.strerror}"
        except MsedgeError as error:
            return str(error)
        return ""

    def _begun(self, row: Row) -> Future[None]:
        """The download of a bundle, started if it is not yet."""
        key = row.key, row.where
        if key not in self._coming:
            self._coming[key] = self._downloads.submit(self._shelf.fill, row, self._catalogue.fetch, self._most)
        return self._coming[key]

    def _candidate(self, row: Row) -> Candidate:
        """The bundle as a local file. Raises GatewayError (503) if it is not there."""
        key = row.key, row.where
        coming = self._coming.get(key)
        if coming is not None:
            if not coming.done():
                raise GatewayError(503, "is being downloaded", retry_after=self._catalogue.again)
            del self._coming[key]
            error = coming.exception()
            if error is not None:
                raise error if isinstance(error, MsedgeError) else GatewayError(503, str(error))
        path = self._shelf.path(row)
        try:
            status = path.stat()
        except OSError as error:
            raise GatewayError(503, f"cannot read {path.name!r} in the cache: {error.strerror}") from None
        return Candidate(os.fspath(path), (status.st_size, status.st_mtime_ns, status.st_ino))
