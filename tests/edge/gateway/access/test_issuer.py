"""Signed tokens of an OpenID Connect issuer that runs beside the tests; forged and expired ones admit nobody."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener, urlopen

import numpy as np
import pytest

from edge.gateway.access import issuer as module
from edge.gateway.access.gate import Gate
from edge.gateway.access.issuer import Issuer
from edge.gateway.errors import GatewayError
from edge.gateway.operate.settings import Access
from tests.edge.gateway.http.raw import Raw, request, scaled_request
from tests.edge.gateway.live import live, scaled
from tests.waiting import until

jwt = pytest.importorskip("jwt")
rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")

USERS = (
    {"sub": "camera", "scope": "openid msedge:infer", "device": "cam-1", "models": ["m"]},
    {"sub": "operator", "scope": ["infer", "manage", "metrics"], "device": ["cam-*"]},
    {"sub": "nobody"},
)


class _Stays(HTTPRedirectHandler):
    def redirect_request(self, *given: Any, **words: Any) -> None:
        return None


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    """The issuer's address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    claims = [word for user in USERS for word in ("--user-claims", json.dumps(user))]
    program = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), *claims]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        url = f"http://127.0.0.1:{port}"

        def there() -> bool:
            with suppress(URLError, ConnectionError):
                urlopen(f"{url}/.well-known/openid-configuration", timeout=5).close()
                return True
            return False

        try:
            until(there)
            yield url
        finally:
            running.terminate()


def token(provider: str, user: str, audience: str = "gateway") -> str:
    """What the issuer signs for a user, by the authorization code flow."""
    asked = {"client_id": audience, "redirect_uri": "http://localhost/back", "response_type": "code", "scope": "openid"}
    form = urlencode({"sub": user}).encode()
    try:
        build_opener(_Stays).open(f"{provider}/oauth2/authorize?{urlencode(asked)}", form).close()
        raise AssertionError("expected a redirection")
    except HTTPError as error:
        code = parse_qs(urlsplit(error.headers["Location"]).query)["code"][0]
        error.close()
    words = {"grant_type": "authorization_code", "code": code, "redirect_uri": asked["redirect_uri"],
             "client_id": audience, "client_secret": "x"}  # fmt: skip
    with urlopen(Request(f"{provider}/oauth2/token", urlencode(words).encode())) as reply:
        return str(json.loads(reply.read())["id_token"])


def status_of(gate: Gate, scope: str, shown: str) -> int:
    try:
        gate.check(scope, "10.0.0.1", f"Bearer {shown}")
    except GatewayError as error:
        return error.status
    return 200


def test_a_real_issuer(provider: str, tmp_path: Path) -> None:
    told = {"access__issuer": provider, "access__audience": "gateway", "access__management": "token"}
    x = np.ones((1, 4), np.float32)
    with live({"m": scaled(tmp_path / "m.mslite", 1.0), "n": scaled(tmp_path / "n.mslite", 1.0)}, **told) as there:
        gate = there.gateway.gate
        assert gate.issuer is not None
        until(lambda: not gate.issuer.problem)
        shown = {user["sub"]: {"Authorization": f"Bearer {token(provider, user['sub'])}"} for user in USERS}

        def asked(user: str, model: str = "m", **parameters: Any) -> int:
            with Raw(there.port) as raw:
                return raw.ask(scaled_request(x, model=model, fields=shown[user], **parameters)).status

        assert [asked(user) for user in ("camera", "operator", "nobody")] == [200, 200, 403]
        assert [asked("camera", model) for model in ("n", "none")] == [403, 403]
        assert [asked("operator", model) for model in ("n", "none")] == [200, 404]
        assert [asked("camera", device=device) for device in ("cam-1", "cam-2", "other")] == [200, 403, 403]
        assert asked("operator", device="cam-2") == 200
        with Raw(there.port) as raw:
            assert raw.ask(request("/v2/repository/models/n/unload", b"{}", shown["camera"])).status == 403
            assert raw.ask(request("/v2/repository/models/n/unload", b"{}", shown["operator"])).status == 200
            rows = json.loads(raw.ask(request("/v2/repository/index", b"{}", shown["camera"])).body)
            assert {row["name"] for row in rows} == {"m"}
            assert raw.ask(scaled_request(x, model="m")).status == 401
        there.gateway.log.close()
        told_of = there.log.getvalue()
        assert "unload model=n who=operator peer=127.0.0.1 outcome=done" in told_of
        assert "access refused" in told_of


def test_tokens_of_others(provider: str) -> None:
    gate = Gate(Access(issuer=provider, audience="gateway"))
    assert gate.issuer is not None
    good = token(provider, "camera")
    assert status_of(gate, "infer", good) == 401  # its keys were not read yet
    gate.issuer.read()
    assert not gate.issuer.problem and status_of(gate, "infer", good) == 200
    assert status_of(gate, "infer", token(provider, "camera", audience="somebody")) == 401
    head, body, signature = good.split(".")
    assert status_of(gate, "infer", f"{head}.{body}.{signature[:-4]}AAAA") == 401
    assert status_of(gate, "infer", "a.b.c") == 401


class Signed:
    """An issuer in this process, for tokens that no real one would sign."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.time()
        self.renew("one")
        self.issuer = Issuer("https://issuer.example", "gateway", clock=lambda: self.now, fetch=self.fetch)
        self.issuer.read()

    def renew(self, kid: str) -> None:
        self.key, self.kid = rsa.generate_private_key(public_exponent=65537, key_size=2048), kid

    def fetch(self, url: str) -> bytes:
        if url.endswith("openid-configuration"):
            return json.dumps({"issuer": "https://issuer.example", "jwks_uri": "https://issuer.example/keys"}).encode()
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return json.dumps({"keys": [{**public, "kid": self.kid, "alg": "RS256", "use": "sig"}]}).encode()

    def token(self, algorithm: str = "RS256", key: Any = None, **changed: Any) -> str:
        claims = {"iss": "https://issuer.example", "aud": "gateway", "sub": "a", "scope": "infer",
                  "exp": self.now + 60, "iat": self.now - 1} | changed  # fmt: skip
        kept = {name: value for name, value in claims.items() if value is not None}
        return str(jwt.encode(kept, self.key if key is None else key, algorithm, headers={"kid": self.kid}))

    def status(self, text: str, peer: str = "10.0.0.1") -> int:
        try:
            self.issuer.grant(f"Bearer {text}", peer)
        except GatewayError as error:
            return error.status
        return 200


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> Signed:
    return Signed(monkeypatch)


def test_claims_that_admit_nobody(signed: Signed) -> None:
    assert signed.status(signed.token()) == 200
    now = signed.now
    wrong: tuple[dict[str, Any], ...] = (
        {"exp": now - 60}, {"exp": None}, {"nbf": now + 90}, {"iss": "https://other.example"}, {"iss": None},
        {"aud": "other"}, {"aud": None}, {"sub": None}, {"rate": -1}, {"rate": "many"}, {"rate": True},
    )  # fmt: skip
    for number, changed in enumerate(wrong):
        assert signed.status(signed.token(**changed), peer=f"10.0.1.{number}") == 401, changed


def test_only_public_keys_sign(signed: Signed) -> None:
    """Neither "none" nor a shared secret: a verifier that lets the token choose can be given the public key as one."""
    assert signed.status(signed.token("none", "")) == 401
    assert signed.status(signed.token("HS256", "x" * 64)) == 401
    assert not any(name.startswith(("HS", "none")) for name in module.ALGORITHMS)


def test_keys_are_exchanged(signed: Signed) -> None:
    old = signed.token()
    assert signed.status(old) == 200
    signed.renew("two")
    assert signed.status(signed.token()) == 401
    signed.now += module.AGAIN + 1
    assert signed.issuer.refresh()
    until(lambda: signed.status(signed.token()) == 200)
    assert signed.status(old) == 401  # the key was withdrawn
    assert not signed.issuer.refresh()


def test_an_issuer_that_fails_keeps_its_keys(signed: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in (b"", b"[]", b"{}", b'{"issuer": "https://other.example"}'):
        signed.issuer._fetch = lambda url, broken=broken: broken
        signed.issuer.read()
        assert signed.issuer.problem and signed.status(signed.token()) == 200


def test_an_issuer_that_anybody_could_be_is_refused() -> None:
    with pytest.raises(GatewayError, match="expected https"):
        Issuer("http://issuer.example", "gateway")
