"""Signed claims (JSON Web Tokens, RFC 7519) of an OpenID Connect issuer, as grants.

The issuer's keys come from its own documents: `ISSUER/.well-known/openid-configuration` names the address of its key
set (JWKS, RFC 7517). Only public-key signatures are accepted. Claims:

    sub                   the client's name
    scope                 text with spaces, or a list; `infer`, `manage` and `metrics` count, also after "msedge:"
    device, models        text or a list: the devices that the client is, the models that it may use (default: all)
    rate                  requests per second
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from edge.gateway.access.addresses import is_loopback
from edge.gateway.access.grants import Grant
from edge.gateway.access.tokens import SCOPES
from edge.gateway.access.verified import Verified
from edge.gateway.apart import Workers
from edge.gateway.errors import GatewayError

__all__ = ["Issuer"]

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by public keys: with a shared secret, or none, anybody who knows the key could sign."""
AGAIN, OLD = 30.0, 3600.0
"""Seconds between attempts to read the keys, and until they are read again."""
MOST = 1 << 20
"""Most bytes of a document of the issuer."""
LEEWAY = 30.0
"""Seconds that clocks may differ."""


class Issuer(Verified):
    """Grants of one issuer. `refresh` reads its keys on another thread, when they are old or one was missing; until
    they are there, nobody is admitted by claims.

    fetch: the content of an address; for tests.
    """

    def __init__(
        self,
        issuer: str,
        audience: str,
        *,
        clock: Callable[[], float] = time.time,
        fetch: Callable[[str], bytes] | None = None,
    ) -> None:
        """Raises GatewayError for an address that others could answer at."""
        super().__init__(clock)
        import jwt

        host = urlsplit(issuer).hostname or ""
        if not issuer.startswith("https://") and host != "localhost" and not is_loopback(host):
            raise GatewayError(500, f"access.issuer: expected https://…, got {issuer!r:.80}")
        self._jwt, self.name, self._audience = jwt, issuer.rstrip("/"), audience
        self._fetch = fetch or _fetched
        self._keys: Mapping[str, Any] = {}
        """By key id; replaced as a whole."""
        self._read, self._tried = -OLD, -AGAIN
        self._missing = True
        self.problem = "its keys were not read yet"
        """Why the keys are not up to date; "" if they are."""
        self._worker = Workers("msedge-issuer", 1)

    def refresh(self) -> bool:
        """Begin to read the keys if that is due; returns whether it is."""
        now = self._clock()
        due = (self._missing or now - self._read > OLD) and now - self._tried > AGAIN
        if due:
            self._tried = now
            self._worker.submit(self.read)
        return due

    def read(self) -> None:
        """Read the keys. Blocking; errors are in `problem`."""
        try:
            about = _object(self._fetch(f"{self.name}/.well-known/openid-configuration"))
            if str(about.get("issuer", "")).rstrip("/") != self.name:
                raise ValueError(f"expected a document of {self.name!r}, got one of {about.get('issuer')!r}")
            keys = self._jwt.PyJWKSet.from_dict(_object(self._fetch(str(about.get("jwks_uri", "")))))
        except (OSError, ValueError, self._jwt.PyJWTError) as error:
            self.problem = f"{type(error).__name__}: {str(error)[:200]}"
            return
        found = {key.key_id or "": key for key in keys.keys}
        if set(found) != set(self._keys):
            self._good.clear()  # a key that was withdrawn no longer admits anybody
        self._keys, self.problem = found, ""
        self._read, self._missing = self._clock(), False

    def _verified(self, authorization: str, now: float) -> Grant | None:
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        jwt = self._jwt
        try:
            head = jwt.get_unverified_header(text)
            key = self._keys.get(str(head["kid"])) if "kid" in head else self._only()
            if key is None:
                self._missing = True  # the issuer may have new keys: `refresh` looks
                return None
            claims = jwt.decode(
                text, key, algorithms=[one for one in ALGORITHMS if one == key.algorithm_name],
                audience=self._audience, issuer=self.name, leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"], "verify_iss": False},
            )  # fmt: skip
        except jwt.PyJWTError:
            return None
        return self._granted(claims) if str(claims["iss"]).rstrip("/") == self.name else None

    def _only(self) -> Any:
        """The key of tokens that name none: the only one."""
        return next(iter(self._keys.values())) if len(self._keys) == 1 else None

    def _granted(self, claims: Mapping[str, Any]) -> Grant | None:
        rate, end = claims.get("rate"), claims["exp"]
        if not isinstance(claims["sub"], str) or (rate is not None and not _is_rate(rate)):
            return None
        scopes = {word.removeprefix("msedge:") for word in _words(claims.get("scope"))}
        models, devices = _words(claims.get("models"), "*"), _words(claims.get("device"))
        return Grant(claims["sub"], frozenset(scopes & SCOPES.keys()), float(end), models, devices, rate)


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9


def _words(value: object, missing: str = "") -> tuple[str, ...]:
    """A claim's words: of a list, or of text with spaces."""
    if value is None:
        return tuple(missing.split())
    found = value.split() if isinstance(value, str) else value if isinstance(value, list) else ()
    return tuple(word for word in found if isinstance(word, str))


def _object(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, got {type(found).__name__}")
    return found


class _Stays(urllib.request.HTTPRedirectHandler):
    """Refuses redirections: the issuer's name is what its documents are trusted for."""

    def redirect_request(self, *given: Any, **words: Any) -> None:
        return None


def _fetched(url: str) -> bytes:
    """The content at an address, of at most MOST bytes. Raises OSError or ValueError."""
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"expected an address http(s)://…, got {url!r:.80}")
    with urllib.request.build_opener(_Stays).open(url, timeout=10) as reply:
        data = reply.read(MOST + 1)
    if len(data) > MOST:
        raise ValueError(f"expected at most {MOST} bytes at {url!r:.80}, got more")
    return bytes(data)
