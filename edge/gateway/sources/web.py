"""Requests to registries over HTTP: limits on time and size, credentials, certificates, redirections.

Credentials go to the host that they are configured for, and nowhere else: a redirection to another host, port or
scheme loses them, and so do client certificates. Errors and logs never show them, nor an address's query, which may be
a signature.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

from edge.gateway.access.addresses import is_loopback
from edge.gateway.errors import GatewayError
from edge.gateway.models.names import shown
from edge.gateway.sources.catalogue import Fetched
from edge.gateway.sources.credentials import Access, Credentials

__all__ = ["Web", "address", "check_url", "fetching", "need", "origin", "shown_url"]

_CHUNK = 1 << 20
_AGENT = "msedge"
MOST = 1 << 50
"""Bytes of a bundle; what receives them has a limit of its own."""
_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)")


class Web:
    """Sends requests. timeout: seconds without data; a whole reply may take `patience` seconds."""

    def __init__(self, credentials: Credentials, *, timeout: float = 10.0, patience: float = 600.0) -> None:
        self.credentials, self.timeout, self.patience = credentials, timeout, patience
        self._opener = urllib.request.OpenerDirector()  # the default one would also open file: and ftp:
        for handler in (
            urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), _Secure(), _Redirects(credentials),
            urllib.request.HTTPErrorProcessor(), urllib.request.HTTPDefaultErrorHandler(),
        ):  # fmt: skip
            self._opener.add_handler(handler)

    def access(self, url: str) -> Access:
        """The credentials for an address."""
        return self.credentials.at(urlsplit(url).netloc)

    def authorization(self, url: str) -> str:
        """The header field with which the gateway begins at an address; "" if there is none."""
        access = self.access(url)
        return f"Bearer {access.token}" if access.token else access.basic

    @contextlib.contextmanager
    def open(
        self,
        url: str,
        *,
        method: str = "GET",
        fields: Mapping[str, str] | None = None,
        data: bytes | IO[bytes] | None = None,
        authorization: str | None = None,
        expect: Collection[int] = (200,),
    ) -> Iterator[Any]:
        """A reply with one of the statuses in `expect`: an `http.client.HTTPResponse`, or an HTTPError, which has the
        same attributes. authorization: None for what the credentials say.

        Raises GatewayError (503) for everything else.
        """
        check_url(url)
        said = self.authorization(url) if authorization is None else authorization
        access = self.access(url)
        _check_plain(url, access, said)
        request = _Request(url, data=data, method=method, headers={"Accept-Encoding": "identity", **(fields or {})})
        request.access = access
        request.add_header("User-Agent", _AGENT)
        if said:
            request.add_unredirected_header("Authorization", said)
        with _failing(url, self.timeout):
            try:
                reply = self._opener.open(request, timeout=self.timeout)
            except urllib.error.HTTPError as error:
                reply = error
        with contextlib.closing(reply):
            if reply.status not in expect:
                raise GatewayError(503, f"cannot fetch {shown_url(url)}: {_status(reply)}", retry_after=self.timeout)
            yield reply

    def parts(self, reply: Any, url: str, most: int) -> Iterator[bytes]:
        """A reply's content, in pieces. Raises GatewayError for more than `most` bytes, or fewer than promised."""
        deadline, total = time.monotonic() + self.patience, 0
        promised = length(reply)
        need(promised is None or promised <= most, url, f"at most {most} bytes", f"{promised}")
        with _failing(url, self.timeout):
            while part := reply.read1(_CHUNK):
                total += len(part)
                need(total <= most, url, f"at most {most} bytes", "more")
                need(time.monotonic() < deadline, url, f"the whole reply within {self.patience:g} s", "a part")
                yield part
        need(promised is None or total == promised, url, f"{promised} bytes", f"{total}: the reply was cut short")

    def get(self, url: str, most: int, **given: Any) -> bytes:
        """The whole content at an address; see `open`."""
        with self.open(url, **given) as reply:
            return b"".join(self.parts(reply, url, most))


class Opens(Protocol):
    """What opens addresses: a `Web`, or one that does more before."""

    def open(
        self, url: str, *, fields: Mapping[str, str] | None = None, expect: Collection[int] = (200,)
    ) -> contextlib.AbstractContextManager[Any]:
        """See `Web.open`."""
        ...

    def parts(self, reply: Any, url: str, most: int) -> Iterator[bytes]:
        """See `Web.parts`."""
        ...


@contextlib.contextmanager
def fetching(web: Opens, url: str, start: int) -> Iterator[Fetched]:
    """The content at an address from a byte on (RFC 9110, section 14), or from its beginning if the server sends no
    ranges; see `Web.open`."""
    asked = {"Range": f"bytes={start}-"} if start else {}
    with web.open(url, fields=asked, expect=(200, 206, 416)) as reply:
        if reply.status != 416:
            begun, total = _range(reply) if reply.status == 206 else (0, length(reply))
            need(begun <= start, url, f"bytes from {start} on", f"bytes from {begun}")
            yield Fetched(begun, total, web.parts(reply, url, MOST))
            return
    with web.open(url) as reply:  # there is nothing from that byte on: what is here is of something else
        yield Fetched(0, length(reply), web.parts(reply, url, MOST))


def _range(reply: Any) -> tuple[int, int | None]:
    """The first byte of a part, and the bytes of the whole if they are known."""
    found = _RANGE.fullmatch(reply.headers.get("Content-Range", ""))
    if found is None:
        raise GatewayError(503, "expected a Content-Range such as bytes 5-9/10 in the reply, got another one")
    return int(found[1]), None if found[2] == "*" else int(found[2])


class _Request(urllib.request.Request):
    """A request that knows what its host may see."""

    access = Access()


class _Secure(urllib.request.HTTPSHandler):
    """HTTPS with the authority and the client certificate of the request's host."""

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Called by urllib."""
        context = _context(req.access if isinstance(req, _Request) else Access())
        return self.do_open(http.client.HTTPSConnection, req, context=context)


def _context(access: Access) -> ssl.SSLContext:
    """The files are read for every connection, so that they can be replaced."""
    try:
        context = ssl.create_default_context(cafile=access.ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if access.certificate:
            context.load_cert_chain(access.certificate, access.key, password=_no_password)
    except (OSError, ValueError) as error:
        files = ", ".join(filter(None, (access.ca, access.certificate, access.key)))
        raise GatewayError(503, f"credentials: expected certificates and a key in PEM in {files}: {error}") from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password, which cannot be entered; store it without one (openssl pkey)")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Allows redirections only to HTTP and HTTPS, and never from https to http; another host gets no credentials."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Called by urllib."""
        try:
            check_url(newurl)
            if req.type == "https" and urlsplit(newurl).scheme != "https":
                where = f"{shown_url(req.full_url)} redirects to {shown_url(newurl)}"
                raise GatewayError(503, f"{where}, which is not encrypted")
        except GatewayError:
            fp.close()
            raise
        if super().redirect_request(req, fp, code, msg, headers, newurl) is None:
            return None
        made = _Request(newurl, headers=dict(req.headers), origin_req_host=req.origin_req_host, unverifiable=True)
        if isinstance(req, _Request) and origin(newurl) == origin(req.full_url):
            made.access = req.access
            if said := req.unredirected_hdrs.get("Authorization"):
                made.add_unredirected_header("Authorization", said)
        else:
            made.access = Access(ca=self._credentials.at(urlsplit(newurl).netloc).ca)
        return made


def origin(url: str) -> tuple[str, str, int | None]:
    """What credentials belong to: scheme, host and port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def check_url(url: str, where: str = "") -> None:
    """Raise GatewayError (400) for an address that is not one of HTTP, or holds a password."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise GatewayError(400, f"{where}expected a URL, got {shown(url)}: {error}") from None
    if "@" in parts.netloc:  # it would appear in logs
        text = f"{where}{parts.scheme}://…@…: a registry's URL must not have a password; use repository.credentials"
        raise GatewayError(400, text)
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        raise GatewayError(400, f"{where}expected a URL that begins with http:// or https://, got {shown(url)}")


def _check_plain(url: str, access: Access, said: str) -> None:
    parts = urlsplit(url)
    near = parts.hostname == "localhost" or is_loopback(parts.hostname or "")
    if said and parts.scheme == "http" and not near and not access.plain:
        raise GatewayError(503, f"cannot fetch {shown_url(url)}: credentials would be sent unencrypted; use https, or"
                           " `plain = true` in its table of repository.credentials")  # fmt: skip


@contextlib.contextmanager
def _failing(url: str, again: float) -> Iterator[None]:
    """Raise GatewayError for what a connection can do."""
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise GatewayError(503, f"cannot fetch {shown_url(url)}: {_reason(error)}", retry_after=again) from None


def _reason(error: Exception) -> str:
    """What went wrong, without what a header field or a query holds."""
    if isinstance(error, http.client.HTTPException | ValueError) and not isinstance(error, OSError):
        return type(error).__name__
    return str(error)[:200]


def _status(reply: Any) -> str:
    fix = {401: "; check its table of repository.credentials", 403: "; check what its credentials allow"}
    return f"HTTP Error {reply.status}: {shown(reply.reason)[1:-1]}{fix.get(reply.status, '')}"


def need(truth: bool, url: str, expected: str, got: str) -> None:
    """Raise GatewayError (503) about what is at an address, unless `truth`."""
    if not truth:
        raise GatewayError(503, f"{shown_url(url)}: expected {expected}, got {got}")


def address(url: str) -> str:
    """A URL as logs and clients may see it: without the query, which often contains secrets."""
    return urlsplit(url)._replace(query="", fragment="").geturl()


def shown_url(url: str) -> str:
    """The same in quotes, shortened."""
    return shown(address(url))


def length(reply: Any) -> int | None:
    """The length that a reply promises."""
    text = reply.headers.get("Content-Length")
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
