"""Requests to registries: who gets credentials, by what certificates servers and the gateway prove themselves."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.sources.credentials import Access, Credentials
from edge.gateway.sources.web import Web
from tests.edge.gateway.operate.test_tls import make as certificate
from tests.edge.gateway.sources.oci_servers import Quiet, running


class Heard:
    """Servers that tell what they heard: the path and the field Authorization of each request."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str | None]] = []
        self.redirects: dict[str, str] = {}

    def handler(self) -> type[Quiet]:
        heard = self

        class Handler(Quiet):
            def do_GET(self) -> None:
                heard.requests.append((self.path, self.headers.get("Authorization")))
                if self.path in heard.redirects:
                    return self.answer(302, Location=heard.redirects[self.path])
                self.answer(200, b"there")

        return Handler


@contextmanager
def encrypted(handler: type[Quiet], own: tuple[str, str], demands: str = "") -> Iterator[str]:
    """A server of HTTPS: HOST:PORT. demands: authority of clients' certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*own)
    if demands:
        context.load_verify_locations(demands)
        context.verify_mode = ssl.CERT_REQUIRED

    with running(handler, context) as address:
        yield address


def web(**tables: Access) -> Web:
    return Web(Credentials(dict(tables)), timeout=10)


def get(client: Web, url: str) -> bytes:
    return client.get(url, 1000)


def test_a_token_is_read_for_every_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, path = Heard(), tmp_path / "token"
    with running(heard.handler()) as host:
        from_file, from_variable = web(**{host: Access(token_file=str(path))}), web(**{host: Access(token_env="T_1")})
        for token in ("one", "two"):
            path.write_text(token + "\n")
            monkeypatch.setenv("T_1", token)
            for client in (from_file, from_variable):
                assert get(client, f"http://{host}/x") == b"there"
                assert heard.requests.pop() == ("/x", f"Bearer {token}")
        for wrong in ("", "two\nlines", "x\x00"):
            path.write_text(wrong)
            with pytest.raises(GatewayError, match="credentials") as caught:
                get(from_file, f"http://{host}/x")
            assert "lines" not in str(caught.value)
        path.unlink()
        with pytest.raises(GatewayError, match="cannot read"):
            get(from_file, f"http://{host}/x")
        monkeypatch.delenv("T_1")
        with pytest.raises(GatewayError, match="T_1 is not set"):
            get(from_variable, f"http://{host}/x")
        assert heard.requests == []


def test_a_redirection_to_another_host_loses_credentials(tmp_path: Path) -> None:
    here, there = Heard(), Heard()
    (tmp_path / "token").write_text("one")
    with running(here.handler()) as host, running(there.handler()) as other:
        token = Access(token_file=str(tmp_path / "token"))
        # The other host has credentials of its own: a registry may not have them used.
        client = web(**{host: token, other: token})
        here.redirects = {"/a": f"http://{host}/b", "/b": f"http://{other}/c"}
        there.redirects = {"/c": f"http://{host}/d"}
        assert get(client, f"http://{host}/a") == b"there"
        assert here.requests == [("/a", "Bearer one"), ("/b", "Bearer one"), ("/d", None)]
        assert there.requests == [("/c", None)]


def test_credentials_are_not_sent_in_the_clear(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one")
    token = {"token_file": str(tmp_path / "token")}
    with pytest.raises(GatewayError, match=r"unencrypted.*plain = true") as caught:
        get(web(**{"registry.invalid": Access(**token)}), "http://registry.invalid/x")
    assert "one" not in str(caught.value).replace("unencrypted", "")
    with pytest.raises(GatewayError, match="cannot fetch"):  # allowed, but there is no such host
        get(web(**{"registry.invalid": Access(plain=True, **token)}), "http://registry.invalid/x")


def test_the_registry_s_own_authority(tmp_path: Path) -> None:
    heard, own = Heard(), certificate(tmp_path, "server")
    with encrypted(heard.handler(), own) as host:
        with pytest.raises(GatewayError, match="certificate verify failed"):
            get(web(), f"https://{host}/x")
        assert get(web(**{host: Access(ca=own[0])}), f"https://{host}/x") == b"there"
        with pytest.raises(GatewayError, match="not encrypted"):
            heard.redirects = {"/x": "http://127.0.0.1:1/"}
            get(web(**{host: Access(ca=own[0])}), f"https://{host}/x")
        with pytest.raises(GatewayError, match="PEM"):
            get(web(**{host: Access(ca=__file__)}), f"https://{host}/x")


def test_a_client_certificate(tmp_path: Path) -> None:
    heard, own, mine = Heard(), certificate(tmp_path, "server"), certificate(tmp_path, "gateway")
    access = Access(ca=own[0], certificate=mine[0], key=mine[1])
    with encrypted(heard.handler(), own, demands=mine[0]) as host:
        assert get(web(**{host: access}), f"https://{host}/x") == b"there"
        with pytest.raises(GatewayError, match="cannot fetch"):
            get(web(**{host: Access(ca=own[0])}), f"https://{host}/x")
        # After a redirection from elsewhere it is not presented.
        with encrypted(heard.handler(), own) as other:
            heard.redirects = {"/y": f"https://{host}/x"}
            with pytest.raises(GatewayError, match="cannot fetch"):
                get(web(**{host: access, other: Access(ca=own[0])}), f"https://{other}/y")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "TOML"), ("x = 1", "expected a table"), ('["h"]\ntoken = "secret"', "no such key"),
        ('["h"]\ntoken_file = 5', "token_file"), ('["h"]\ntoken_file = "a"\ntoken_env = "B"', "got both"),
        ('["h"]\nuser = "a"', "password_file or password_env"), ('["h"]\npassword_env = "A"', "user and password_file"),
        ('["h"]\ncertificate = "a"', "certificate and key"), ('["h"]\ntoken_env = "A"\nuser = "b"', "got both"),
    ],
)  # fmt: skip
def test_a_file_of_credentials_that_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "registries.toml"
    path.write_text(text)
    with pytest.raises(GatewayError, match=problem) as caught:
        Credentials.of_file(path)
    assert "secret" not in str(caught.value) and "registries.toml" in str(caught.value)


def test_a_file_of_credentials(tmp_path: Path) -> None:
    path = tmp_path / "registries.toml"
    path.write_text('["Registry.example:5000"]\nuser = "me"\npassword_file = "secrets/p"\nca = "/etc/ca.pem"\n')
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "p").write_text("pass word:ü\n".replace("ü", "!"))
    found = Credentials.of_file(path).at("registry.example:5000")
    assert (found.user, found.password, found.ca) == ("me", "pass word:!", "/etc/ca.pem")
    assert found.basic == "Basic bWU6cGFzcyB3b3JkOiE="
    assert Credentials.of_file(path).at("registry.example") == Access() == Credentials.of_file("").at("x")
    with pytest.raises(GatewayError, match="cannot read"):
        Credentials.of_file(tmp_path / "nothing")
