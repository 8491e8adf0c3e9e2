"""Requests of a person or a program to a hub that serves, with a token of theirs. The standard library alone."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloud.hub.errors import HubError
from federated.transport.addresses import is_here

__all__ = ["Client", "GoneError", "LostError", "checked_token", "token_in"]

TIMEOUT = 90.0
_SOME = 500


class LostError(HubError):
    """The hub does not answer, or asks to come again."""


class GoneError(HubError):
    """The hub has no such thing (status 404 or 410)."""


class Client:
    """A hub at a URL such as https://hub.example.org.

    token: of scope operator or viewer. authority: a PEM file of the authority that signed the hub's certificate; None:
    the system's. One connection, opened again when it breaks; not for several threads at once. Raises HubError for
    another URL, and for one without TLS that is not of this machine.
    """

    def __init__(self, url: str, token: str, authority: str | os.PathLike[str] | None = None) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise HubError(f"expected a hub's URL such as https://hub.example.org, got {url!r}")
        if parts.scheme == "http" and not is_here(parts.hostname):
            raise HubError(f"{url}: expected https; without it others could read your token on the way")
        self.url, self._host, self._port, self._path = url, parts.hostname, port, parts.path.rstrip("/")
        self._token, self._secure, self._authority = token, parts.scheme == "https", authority
        self._open: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and content of an answer that is none of an error. Raises LostError, GoneError, and HubError
        where the hub refuses."""
        answer, content = self._answer(method, path, body)
        if answer.status < 400:
            return answer.status, dict(answer.headers.items()), content
        why = f"{self.url}: status {answer.status}: {_reason(content)}"
        if answer.status in (404, 410):
            raise GoneError(why)
        raise (LostError if answer.status in (408, 429) or answer.status >= 500 else HubError)(why)

    def json(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The object that the hub answers with; body: in JSON's types, None: none. Raises as `ask`."""
        content = self.ask(method, path, None if body is None else json.dumps(body).encode())[2]
        try:
            found = json.loads(content or b"{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise HubError(f"{self.url}: expected a hub, got a server with other answers; check the URL")
        return found

    def close(self) -> None:
        """End the connection."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _answer(self, method: str, path: str, body: bytes | None) -> tuple[http.client.HTTPResponse, bytes]:
        """The answer, once more on a new connection if the hub had closed the one of before."""
        headers = {"Authorization": f"Bearer {self._token}"}
        for first in (True, False):
            used = self._open is not None
            try:
                if self._open is None:
                    self._open = self._connection()
                self._open.request(method, self._path + path, body, headers)
                answer = self._open.getresponse()
                return answer, answer.read()
            except (OSError, http.client.HTTPException) as problem:
                self.close()
                if not (used and first and isinstance(problem, ConnectionError | http.client.RemoteDisconnected)):
                    raise LostError(
                        f"{self.url}: no answer: {problem or type(problem).__name__}; is `msedge hub serve` running "
                        "there?"
                    ) from None
        raise LostError(f"{self.url}: no answer")

    def _connection(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
        try:
            context = ssl.create_default_context(cafile=self._authority)
        except (OSError, ssl.SSLError) as problem:
            raise HubError(f"TLS: expected a PEM file of an authority, got {self._authority!s}: {problem}") from None
        return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT, context=context)


def token_in(path: Path) -> str:
    """The token in a file. Raises HubError."""
    try:
        found = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise HubError(f"cannot read the token in {str(path)!r}: {problem}; msedge hub token add makes one") from None
    return checked_token(found, repr(str(path)))


def checked_token(found: str, where: str) -> str:
    """A text that may be a token. Raises HubError, naming `where` it is from."""
    if not found or not found.isascii() or not found.isprintable() or " " in found:
        got = "other text" if found else "none"
        raise HubError(f"{where}: expected one token, as msedge hub token add prints it, got {got}")
    return found


def _reason(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"])[:_SOME]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "no reason"
