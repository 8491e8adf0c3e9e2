"""A repository in S3-compatible storage: s3://BUCKET/PREFIX.

Credentials, region and endpoint are those of the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
AWS_ENDPOINT_URL, a web identity, the instance). The storage must support conditional writes (If-None-Match).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloud.hub.errors import StorageError
from cloud.hub.storage.interface import CHUNK, Data
from lite_runtime.errors import MissingExtraError

__all__ = ["Bucket"]

_LOCK = "lock"
_WAIT, _STALE = 60.0, 600.0
"""Most seconds to wait for another process; seconds after which its lock is removed: it was killed. Should it go on all
the same, `create` lets only one of two write a version."""


class Bucket:
    """See `Storage`."""

    def __init__(self, address: str) -> None:
        """Raises StorageError for another address, MissingExtraError without obstore."""
        parts = urlsplit(address)
        if parts.scheme != "s3" or not parts.netloc or parts.query or "@" in parts.netloc or not address.isprintable():
            raise StorageError(f"expected s3://BUCKET/PREFIX, got {address!r}")
        self._where = f"s3://{parts.netloc}/{parts.path.strip('/')}".rstrip("/")
        try:
            import obstore
            from obstore.store import S3Store
        except ModuleNotFoundError:
            why = "repositories in S3-compatible storage are kept with it"
            raise MissingExtraError("obstore", "hub", why) from None
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        config: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        options: dict[str, Any] = {"timeout": "600s", "allow_http": endpoint.startswith("http://")}
        self._obstore: Any = obstore
        with self._failing(""):
            self._store: Any = S3Store(
                parts.netloc, prefix=parts.path.strip("/") or None, config=config or None,  # type: ignore[arg-type]
                client_options=options, retry_config={"max_retries": 3},  # type: ignore[arg-type]
            )  # fmt: skip

    @property
    def where(self) -> str:
        """See `Storage`."""
        return self._where

    def read(self, name: str) -> bytes:
        """See `Storage`."""
        with self._failing(name):
            return bytes(self._obstore.get(self._store, name).bytes())

    def open(self, name: str, start: int = 0) -> Iterator[bytes]:
        """See `Storage`."""
        with self._failing(name):
            size = self._obstore.head(self._store, name)["size"]
            for begin in range(start, size, CHUNK):
                yield bytes(self._obstore.get_range(self._store, name, start=begin, end=min(begin + CHUNK, size)))

    def size(self, name: str) -> int | None:
        """See `Storage`."""
        found = self._head(name)
        return None if found is None else int(found["size"])

    def age(self, name: str) -> float | None:
        """See `Storage`."""
        found = self._head(name)
        if found is None:
            return None
        written: datetime = found["last_modified"]
        return max(0.0, (datetime.now(UTC) - written).total_seconds())

    def write(self, name: str, data: Data) -> None:
        """See `Storage`."""
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        there = self.size(name)
        if there is not None and there != size:
            raise StorageError(f"{self.where}: {name!r} has {there} bytes, expected {size}; it was damaged: delete it")
        if there is None:
            with self._failing(name):
                self._obstore.put(self._store, name, bytes(data) if isinstance(data, memoryview) else data)

    def create(self, name: str, data: bytes) -> bool:
        """See `Storage`."""
        with self._failing(name):
            try:
                self._obstore.put(self._store, name, data, mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def replace(self, name: str, data: bytes) -> None:
        """See `Storage`."""
        with self._failing(name):
            self._obstore.put(self._store, name, data)

    def names(self, prefix: str = "") -> Iterator[str]:
        """See `Storage`."""
        folder = prefix.rpartition("/")[0]
        with self._failing(prefix):
            for some in self._obstore.list(self._store, prefix=folder or None):
                yield from (each["path"] for each in some if each["path"].startswith(prefix) and each["path"] != _LOCK)

    def delete(self, name: str) -> None:
        """See `Storage`."""
        with self._failing(name), contextlib.suppress(FileNotFoundError):
            self._obstore.delete(self._store, name)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """See `Storage`."""
        end = time.monotonic() + _WAIT
        while not self.create(_LOCK, os.urandom(16).hex().encode()):
            if (self.age(_LOCK) or 0.0) > _STALE:
                self.delete(_LOCK)
                continue
            if time.monotonic() > end:
                raise StorageError(f"{self.where}: another process changes it; try again, or delete its object lock")
            time.sleep(0.2)
        try:
            yield
        finally:
            self.delete(_LOCK)

    def _head(self, name: str) -> Any:
        with self._failing(name), contextlib.suppress(FileNotFoundError):
            return self._obstore.head(self._store, name)
        return None

    @contextlib.contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise StorageError(f"{self.where}: there is no {name!r}") from None
        except (self._obstore.exceptions.BaseError, OSError, ValueError) as error:
            line = re.sub(r": <\?xml.*", "", str(error).partition("\n")[0])[:300]
            raise StorageError(f"{self.where}: {name!r}: {line}") from None
