"""Fetching the files of a repository: over HTTPS by the standard library, or from a folder such as a USB stick.

Nothing here decides what is believed: callers bound the size and check digests and signatures.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, Protocol
from urllib.parse import quote, urlsplit

from edge.agent.errors import FetchError, MissingError

__all__ = ["CHUNK", "Fetch", "Folder", "Https"]

CHUNK = 1 << 16
"""Most bytes of one part of a file."""


class Fetch(Protocol):
    """The files of a repository by name, such as `metadata/timestamp.json`."""

    def open(self, name: str, start: int = 0) -> Iterator[bytes]:
        """The content of a file from byte `start` on, in parts of at most CHUNK bytes, as they arrive.

        Raises MissingError if there is none, FetchError if it cannot be read now.
        """
        ...


class Folder:
    """A repository in a folder. Links that lead out of it are not followed."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def open(self, name: str, start: int = 0) -> Iterator[bytes]:
        """See `Fetch`. Raises FetchError, and MissingError for a file that is not there."""
        try:
            root = self.folder.resolve(strict=True)
            path = (root / name).resolve(strict=True)
            if not path.is_relative_to(root) or not path.is_file():
                raise MissingError(f"{self.folder}: no file {name!r}")
            with path.open("rb") as file:
                file.seek(start)
                while part := file.read(CHUNK):
                    yield part
        except (FileNotFoundError, NotADirectoryError):
            raise MissingError(f"{self.folder}: no file {name!r}") from None
        except (OSError, ValueError) as error:
            raise FetchError(f"cannot read {name!r} in {str(self.folder)!r}: {_reason(error)}") from None


class Https:
    """A repository behind an address: https://…, or http://… (what is fetched is signed, but others see what it is).

    context: the authorities that are trusted and the device's certificate; default: the system's authorities. fields:
    of each request. timeout: seconds without a byte. No redirection is followed; the proxy is that of the environment
    (`https_proxy`).
    """

    def __init__(
        self,
        url: str,
        context: ssl.SSLContext | None = None,
        fields: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Raises FetchError for another address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            raise FetchError(f"expected an address https://HOST/PATH of a repository, got {url!r}")
        self.url, self._fields, self._timeout = url.rstrip("/"), dict(fields or {}), timeout
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context or ssl.create_default_context()), _Stay()
        )

    def open(self, name: str, start: int = 0) -> Iterator[bytes]:
        """See `Fetch`. Raises FetchError, and MissingError for a file that is not there."""
        fields = self._fields | ({"Range": f"bytes={start}-"} if start else {})
        request = urllib.request.Request(f"{self.url}/{quote(name, safe='/%')}", headers=fields)
        try:
            with self._opener.open(request, timeout=self._timeout) as reply:
                skip = _skipped(reply, start)
                yield from _parts(reply, skip)
        except urllib.error.HTTPError as error:
            with contextlib.closing(error):
                self._refuse(name, error.code)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise FetchError(f"cannot fetch {self.url}/{name}: {_reason(error)}") from None

    def _refuse(self, name: str, status: int) -> NoReturn:
        if status in (403, 404, 410):
            raise MissingError(f"{self.url} has no {name} for this device (HTTP {status})")
        raise FetchError(f"cannot fetch {self.url}/{name}: the server answered HTTP {status}")


class _Stay(urllib.request.HTTPRedirectHandler):
    """Redirections are errors: a repository is where the device was told that it is."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _skipped(reply: http.client.HTTPResponse, start: int) -> int:
    """Bytes to leave out: a server may send the whole file instead of its end."""
    if reply.status != 206:
        return start
    found = re.fullmatch(r"bytes (\d+)-\d+/(?:\d+|\*)", reply.headers.get("Content-Range", ""))
    if not found or int(found[1]) > start:
        raise FetchError(f"expected the bytes from {start} on, got {reply.headers.get('Content-Range')!r}")
    return start - int(found[1])


def _parts(reply: http.client.HTTPResponse, skip: int) -> Iterator[bytes]:
    """What arrives, as it arrives: `read` would wait for a slow server to fill the buffer."""
    while part := reply.read1(CHUNK):
        if skip < len(part):
            yield part[skip:]
        skip = max(0, skip - len(part))
    if getattr(reply, "length", None):
        raise FetchError(f"the connection ended {reply.length} bytes early")


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", None)
    return str(getattr(error, "strerror", None) or inner or error or type(error).__name__)[:300]
