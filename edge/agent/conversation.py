"""What an agent says to its hub, over HTTPS by the standard library: enrolment, sessions, check-ins, telemetry, files.

One connection, opened again when it breaks. A session is opened when there is none, or the hub says that it ended.
Nothing here waits for a second try: `Backoff` says when that should be, and the agent decides.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import random
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn
from urllib.parse import quote, urlsplit

from edge.agent.errors import AgentError, FetchError, MissingError
from edge.agent.identity import Identity
from federated.transport.addresses import is_here
from lite_runtime.updates import checkin, enrolment, joining
from lite_runtime.updates.checkin import Reply, Report
from lite_runtime.updates.enrolment import Enrolled, Greeting
from lite_runtime.updates.joining import Answer, Offer

__all__ = ["CHUNK", "Backoff", "Conversation", "LaterError", "RefusedError"]

CHUNK = 1 << 16
"""Most bytes of one part of a file."""
MOST = 1 << 20
"""Most bytes of an answer that is no file."""
MOST_MESSAGE = 1 << 30
"""Most bytes of a message of a federated task."""
_AGAIN = re.compile(r"\d{1,7}")


class LaterError(FetchError):
    """The hub does not answer, or asks to come again. seconds: when it says so, else 0."""

    def __init__(self, text: str, seconds: float = 0.0) -> None:
        super().__init__(text)
        self.seconds = seconds


class RefusedError(AgentError):
    """The hub refuses this device or its message; to say the same again does not help. status: of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Backoff:
    """Seconds until the next try after failures in a row: a random part of a time that doubles each time, from `first`
    to `longest` ("full jitter": M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015), and never
    less than the hub asked for."""

    def __init__(
        self, first: float = 2.0, longest: float = 3600.0, chance: Callable[[], float] = random.random
    ) -> None:
        self._first, self._longest, self._chance = first, longest, chance
        self._failures = 0

    def failed(self, least: float = 0.0) -> float:
        """Count a failure; returns the seconds. least: what the hub asked for."""
        bound = min(self._longest, self._first * 2.0 ** min(self._failures, 60))
        self._failures += 1
        return min(least, self._longest) + bound * self._chance()

    def succeeded(self) -> None:
        """Forget failures."""
        self._failures = 0


class Conversation:
    """A device's conversation with the hub at `url`; also what files are fetched with (`edge.agent.fetching.Fetch`).

    authority: a PEM file of the authority that signed the hub's certificate; "": the system's. timeout: seconds without
    a byte; a check-in that waits for news has as much more. Raises AgentError for another URL, and for one without TLS
    that is not of this machine.
    """

    def __init__(self, url: str, identity: Identity, authority: str = "", timeout: float = 30.0) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query or "@" in url:
            raise AgentError(f"expected a hub's URL, such as https://hub.example.org, got {url!r}")
        if parts.scheme == "http" and not is_here(parts.hostname):
            raise AgentError(f"{url}: expected https; without it others could read the session's token on the way")
        self.url = url
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")
        self.identity, self._authority, self._timeout = identity, authority, timeout
        self._secure = parts.scheme == "https"
        self._open: http.client.HTTPConnection | None = None
        self._token = ""
        self._bare = False
        """Whether the device's certificate is not shown: it may have expired, and a session then gives a new one."""

    # -- what is said

    def enrol(self, token: str, attributes: Mapping[str, str]) -> Enrolled:
        """Make this device known to the hub, and keep its answer. Saying it again after a lost answer does no harm.
        Raises RefusedError, LaterError."""
        asked = self.identity.enrolment(token, dict(attributes))
        found = enrolment.read_enrolled(self._said("POST", "/v1/enrol", enrolment.written(asked)))
        self.identity.keep(found)
        self.close()  # the next connection shows the certificate
        return found

    def check_in(self, told: Report, wait: float = 0.0) -> Reply:
        """What the hub says to a report. wait: seconds that it may wait for news. Raises RefusedError, LaterError."""
        path = f"/v1/check-in?wait={wait:g}" if wait else "/v1/check-in"
        return checkin.read_reply(self._in_session("POST", path, checkin.written(told), wait))

    def telemetry(self, batch: bytes) -> None:
        """Hand a batch in. Raises RefusedError, LaterError."""
        self._in_session("POST", "/v1/telemetry", gzip.compress(batch, 6), coding="gzip")

    def join(self, offer: Offer) -> Answer:
        """Offer to work on a federated task. Raises RefusedError, LaterError."""
        return joining.read_answer(self._in_session("POST", "/v1/tasks", joining.written(offer)))

    def task(
        self, method: str, path: str, body: bytes | None, wait: float = 0.0
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One request of a federated task: status, headers and content of the answer, whatever the status is. Raises
        LaterError without one, or where the hub asks to come again."""
        for first in (True, False):
            self._session()
            fields = {"Content-Type": "application/octet-stream", "Authorization": f"Bearer {self._token}"}
            answer = self._request(method, path, body, fields, wait)
            content = self._content(answer, MOST_MESSAGE)
            if first and self._ended(answer.status, False):
                self._token = ""
                continue
            break
        if answer.status in (408, 429) or answer.status >= 500:
            raise LaterError(f"{self._host}: status {answer.status}: {_reason(content)}", _seconds(answer))
        return answer.status, dict(answer.headers.items()), content

    def another(self) -> Conversation:
        """The same for another thread, over a connection and in a session of its own."""
        return type(self)(self.url, self.identity, self._authority, self._timeout)

    def open(self, name: str, start: int = 0) -> Iterator[bytes]:
        """A file of the repository from byte `start` on, in parts as they arrive. Raises MissingError, LaterError."""
        path = f"/repository/{quote(name, safe='/%')}"
        fields = {"Range": f"bytes={start}-"} if start else {}
        for first in (True, False):
            self._session()
            answer = self._request("GET", path, None, {**fields, "Authorization": f"Bearer {self._token}"})
            if first and self._ended(answer.status, False):
                self._token = ""
                self._content(answer)
                continue
            break
        if answer.status not in (200, 206):
            self._refuse_file(name, start, answer)
        skip = _skipped(answer, start)
        try:
            while part := answer.read1(CHUNK):
                if skip < len(part):
                    yield part[skip:]
                skip = max(0, skip - len(part))
            if answer.length:
                raise LaterError(f"{name}: the connection ended {answer.length} bytes early")
        except (OSError, http.client.HTTPException) as problem:
            raise LaterError(f"{name}: {_words(problem)}") from None
        finally:
            if not answer.isclosed() or answer.length:
                self.close()

    def close(self) -> None:
        """End the connection; the next request opens another."""
        if self._open is not None:
            self._open.close()
            self._open = None

    # -- how

    def _session(self) -> None:
        """Open a session if there is none."""
        if self._token:
            return
        if self.identity.enrolled is None:
            raise AgentError("expected an enrolled device, got a new one; enrol it with a token of the hub")
        hello = enrolment.written(Greeting(self.identity.enrolled.device))
        try:
            asked = enrolment.read_challenge(self._said("POST", "/v1/session", hello))
            answer = enrolment.written(self.identity.answer(asked.challenge))
            found = enrolment.read_session(self._said("POST", "/v1/session", answer))
        except RefusedError:
            self._dress()
            raise
        self._token = found.token
        if found.certificate:
            self.identity.certify(found.certificate)
        if found.certificate or self._bare:
            self._dress()

    def _dress(self) -> None:
        """Show the certificate again from the next connection on."""
        self._bare = False
        self.close()

    def _ended(self, status: int, fresh: bool) -> bool:
        """Whether a refusal says that the session has ended, or that the certificate is missing that was left out after
        a connection broke: then a new session helps."""
        return (status == 401 and not fresh) or (status == 403 and self._bare)

    def _in_session(self, method: str, path: str, body: bytes, wait: float = 0.0, coding: str = "") -> bytes:
        """The answer to a request; once more in a new session if the one before has ended."""
        fresh = not self._token
        self._session()
        try:
            return self._said(method, path, body, wait, coding)
        except RefusedError as problem:
            if not self._ended(problem.status, fresh):
                raise
        self._token = ""
        self._session()
        return self._said(method, path, body, wait, coding)

    def _said(self, method: str, path: str, body: bytes, wait: float = 0.0, coding: str = "") -> bytes:
        fields = {"Content-Type": "application/json"}
        fields |= {"Content-Encoding": coding} if coding else {}
        fields |= {"Authorization": f"Bearer {self._token}"} if self._token else {}
        answer = self._request(method, path, body, fields, wait)
        content = self._content(answer)
        if answer.status in (200, 201, 204):
            return content
        why = f"{self._host}: status {answer.status}: {_reason(content)}"
        if answer.status == 429 or answer.status >= 500 or answer.status == 408:
            raise LaterError(why, _seconds(answer))
        raise RefusedError(answer.status, why)

    def _request(
        self, method: str, path: str, body: bytes | None, fields: dict[str, str], wait: float = 0.0
    ) -> http.client.HTTPResponse:
        """An answer whose content is still to be read. A connection that the hub had closed meanwhile is opened again
        once: all requests may be repeated."""
        for _ in range(3):
            used = self._open is not None
            try:
                if self._open is None:
                    self._open = self._connection()
                if self._open.sock is not None:
                    self._open.sock.settimeout(self._timeout + wait)
                else:
                    self._open.timeout = self._timeout + wait
                self._open.request(method, self._path + path, body, fields)
                return self._open.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError, ssl.SSLError) as problem:
                self.close()
                if not used and not self._undressed(problem):
                    raise LaterError(f"{self._host}: {_words(problem)}") from None
            except (OSError, http.client.HTTPException) as problem:
                self.close()
                raise LaterError(f"{self._host}: {_words(problem)}") from None
        raise LaterError(f"{self._host}: no answer")

    def _undressed(self, problem: Exception) -> bool:
        """Whether to try again without the device's certificate: a hub that finds it expired ends the connection, often
        without a word. The hub's own certificate is checked all the same."""
        again = self._secure and self.identity.certificate is not None and not self._bare
        self._bare = again = again and not isinstance(problem, ssl.SSLCertVerificationError)
        return again

    def _content(self, answer: http.client.HTTPResponse, most: int = MOST) -> bytes:
        try:
            content = answer.read(most + 1)
        except (OSError, http.client.HTTPException) as problem:
            self.close()
            raise LaterError(f"{self._host}: {_words(problem)}") from None
        if len(content) > most:
            self.close()
            raise RefusedError(answer.status, f"{self._host}: expected an answer of at most {most} bytes, got more")
        return content

    def _refuse_file(self, name: str, start: int, answer: http.client.HTTPResponse) -> NoReturn:
        why = _reason(self._content(answer))
        if answer.status in (403, 404, 410):
            raise MissingError(f"{self._host} has no {name} for this device (status {answer.status}: {why})")
        if answer.status == 416:
            raise MissingError(f"{self._host}: {name} has no byte {start}")
        raise LaterError(f"{self._host}: {name}: status {answer.status}: {why}", _seconds(answer))

    def _connection(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        try:
            context = ssl.create_default_context(cafile=self._authority or None)
            if (own := self.identity.certificate) is not None and not self._bare:
                context.load_cert_chain(own)
        except (OSError, ssl.SSLError) as problem:
            raise AgentError(f"TLS: expected PEM files of an authority and of this device: {problem}") from None
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=context)


def _skipped(answer: http.client.HTTPResponse, start: int) -> int:
    """Bytes to leave out: a server may send the whole file instead of its end."""
    if answer.status != 206:
        return start
    found = re.fullmatch(r"bytes (\d{1,15})-\d{1,15}/(?:\d{1,15}|\*)", answer.headers.get("Content-Range", ""))
    if not found or int(found[1]) > start:
        raise LaterError(f"expected the bytes from {start} on, got {answer.headers.get('Content-Range')!r}")
    return start - int(found[1])


def _seconds(answer: http.client.HTTPResponse) -> float:
    """What the hub asks to wait; 0 if it says nothing of that."""
    words = answer.headers.get("Retry-After", "")
    return float(words) if _AGAIN.fullmatch(words) else 0.0


def _reason(content: bytes) -> str:
    """The text of an error, of any server."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        return str(json.loads(content)["error"])[:500]
    return content[:200].decode("utf-8", "replace") or "no reason"


def _words(problem: Exception) -> str:
    return str(getattr(problem, "strerror", None) or problem or type(problem).__name__)[:300]
