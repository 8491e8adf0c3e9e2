"""The server of check-in, asked by a client of the standard library, as a hostile one would."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from federated.errors import FederatedError
from federated.server.replies import Failure
from federated.transport.checkin.desk import node_of
from federated.transport.checkin.device import Lost, Server, work
from federated.transport.checkin.server import CheckInExchange, Listening, listen
from federated.transport.checkin.tokens import add
from tests.waiting import until

ORIGIN = "https://fleet.example"


class Site:
    """A server with two devices that may check in."""

    def __init__(self, url: str, exchange: CheckInExchange, tokens: dict[str, str]) -> None:
        self.url, self.exchange, self.tokens = url, exchange, tokens

    def ask(
        self, method: str, path: str, body: bytes = b"", token: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        token = self.tokens["one"] if token is None else token
        connection.request(method, path, body, {"Authorization": f"Bearer {token}", **headers} if token else headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content

    def give(self, device: str, message: bytes) -> str:
        (ticket,) = self.exchange.send("train", {node_of(device): message})
        return ticket


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    tokens = {name: add(tmp_path / "tokens", name) for name in ("one", "two")}
    urls: list[str] = []
    where = Listening("127.0.0.1:0", str(tmp_path / "tokens"), origins=(ORIGIN,), most=1 << 16, linger=0.0)
    with listen(where, urls.append) as exchange:
        yield Site(urls[0], exchange, tokens)


def test_a_message_and_its_reply(site: Site) -> None:
    status, _, content = site.ask("POST", "/v1/check-in")
    assert (status, json.loads(content)["device"], json.loads(content)["protocol"]) == (200, "one", 1)
    assert site.exchange.nodes() == {node_of("one")}
    assert site.ask("GET", "/v1/work?wait=0")[0] == 204
    ticket = site.give("one", b"\0train")
    status, headers, message = site.ask("GET", "/v1/work?wait=10")
    assert (status, headers["msedge-ticket"], message) == (200, ticket, b"\0train")
    assert headers["cache-control"] == "no-store"
    assert site.ask("POST", f"/v1/work/{ticket}", b"\0update")[0] == 204
    assert list(site.exchange.poll([ticket])) == [(ticket, b"\0update")]


def test_a_device_that_waits_gets_its_work_at_once(site: Site) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(site.ask, "GET", "/v1/work?wait=30")
        until(lambda: site.exchange.nodes())
        ticket = site.give("one", b"late")
        assert waiting.result(25)[1]["msedge-ticket"] == ticket


def test_a_failure_is_told_with_its_reason(site: Site) -> None:
    ticket = site.give("one", b"train")
    path = f"/v1/work/{ticket}/failure"
    for wrong in (b"", b"[]", b"{}", b"{" * 5000, b'{"why": '):
        assert site.ask("POST", path, wrong)[0] == 400
    assert site.ask("POST", path, json.dumps({"why": "no memory"}).encode())[0] == 204
    assert list(site.exchange.poll([ticket])) == [(ticket, Failure("no memory"))]


def test_who_is_refused(site: Site) -> None:
    ticket = site.give("one", b"secret model")
    for token in ("", "wrong", site.tokens["one"][:-1]):
        for method, path in (("GET", "/v1/work"), ("POST", "/v1/check-in"), ("POST", f"/v1/work/{ticket}")):
            status, _, content = site.ask(method, path, token=token)
            assert status == 401
            assert b"secret" not in content
    assert not site.exchange.nodes()
    assert site.ask("GET", "/v1/work?wait=0", token=site.tokens["two"])[0] == 204
    assert site.ask("POST", f"/v1/work/{ticket}", b"mine", token=site.tokens["two"])[0] == 409
    assert site.ask("POST", f"/v1/work/{ticket}", bytes(1 << 17))[0] == 413
    assert site.ask("POST", "/v1/work/unknown", b"late")[0] == 409
    assert site.ask("GET", "/v1/work?wait=soon")[0] == 400
    assert site.ask("GET", "/other")[0] == 404
    assert site.ask("DELETE", "/v1/work")[0] == 405
    assert list(site.exchange.poll([ticket])) == []


def test_pages_may_ask_from_the_named_origins_alone(site: Site) -> None:
    preflight = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    status, headers, _ = site.ask("OPTIONS", "/v1/check-in", token="", **preflight)
    assert status == 204
    assert headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in headers["access-control-allow-headers"]
    status, headers, _ = site.ask("POST", "/v1/check-in", Origin=ORIGIN)
    assert (status, headers["access-control-allow-origin"]) == (200, ORIGIN)
    assert "msedge-ticket" in headers["access-control-expose-headers"]
    for origin in ("https://evil.example", "null", f"{ORIGIN}.evil"):
        status, headers, _ = site.ask("POST", "/v1/check-in", Origin=origin)
        assert status == 403
        assert "access-control-allow-origin" not in headers


def test_a_second_request_for_work_ends_the_first(site: Site) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(site.ask, "GET", "/v1/work?wait=30")
        until(lambda: site.exchange.nodes())
        while not first.done():
            assert site.ask("GET", "/v1/work?wait=0.1")[0] == 204
        assert first.result()[0] == 204


def test_nonsense_on_the_socket_does_not_stop_the_server(site: Site) -> None:
    host, _, port = site.url.removeprefix("http://").rpartition(":")
    for nonsense in (
        b"\x16\x03\x01\0\0",
        b"GET\r\n\r\n",
        b"POST /v1/work/x HTTP/1.1\r\nContent-Length: 99\r\n\r\nshort",
    ):
        with socket.create_connection((host, int(port)), 10) as raw:
            raw.sendall(nonsense)
    assert site.ask("POST", "/v1/heartbeat")[0] == 204


class Echo:
    """A device that replies with what it was sent, and fails for `fail`."""

    def answer(self, message: bytes) -> bytes:
        if message == b"fail":
            raise FederatedError("cannot do that")
        return message * 2


def in_thread(call: Callable[[], None]) -> threading.Thread:
    made = threading.Thread(target=call)
    made.start()
    return made


def test_a_device_works_until_the_run_is_over(tmp_path: Path) -> None:
    token = add(tmp_path / "tokens", "one")
    urls: list[str] = []
    lines: list[str] = []
    with (
        listen(Listening("127.0.0.1:0", str(tmp_path / "tokens")), urls.append) as exchange,
        Server(urls[0], token) as server,
    ):
        thread = in_thread(lambda: work(server, Echo(), watch=lines.append))
        until(lambda: exchange.nodes())
        found = {}
        for message in (b"a", b"fail", b"b"):
            (ticket,) = exchange.send("train", {node_of("one"): message})
            while not (taken := list(exchange.poll([ticket]))):
                exchange.wait(0.01)
            found[message] = taken[0][1]
        assert found == {b"a": b"aa", b"fail": Failure("cannot do that"), b"b": b"bb"}
        assert isinstance(found[b"fail"], Failure)
    thread.join()
    assert lines == ["checked in as one", "answered", "answered", "answered"]


def test_a_device_waits_for_a_server_that_was_restarted(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    token = add(tokens, "one")
    urls: list[str] = []
    with listen(Listening("127.0.0.1:0", str(tokens)), urls.append) as exchange:
        pass
    address = urls[0].removeprefix("http://")
    lines: list[str] = []
    with Server(urls[0], token) as server:
        thread = in_thread(lambda: work(server, Echo(), watch=lines.append))
        until(lambda: lines)
        assert "no answer" in lines[0]
        with listen(Listening(address, str(tokens))) as exchange:
            until(lambda: exchange.nodes())
        thread.join()
    assert "checked in as one" in lines


def test_what_a_device_refuses(tmp_path: Path, site: Site) -> None:
    for url in ("ftp://x", "https://", "http://example.org:80", "http://localhost:99999", "https://x/path"):
        with pytest.raises(FederatedError, match=r"expected (a server's URL|https)"):
            Server(url, "token")
    with Server(site.url, "wrong") as server, pytest.raises(FederatedError, match="the token of a device"):
        work(server, Echo())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        closing = in_thread(lambda: silent.accept()[0].close())
        with Server(url, "token") as server, pytest.raises(Lost, match="no answer"):
            work(server, Echo(), patience=0.1)
        closing.join()
    with pytest.raises(FederatedError, match="PEM file of an authority"):
        Server("https://localhost:1", "token", str(tmp_path / "none.crt"))


def test_where_a_server_does_not_listen(tmp_path: Path, site: Site) -> None:
    tokens = str(tmp_path / "tokens")
    taken = site.url.removeprefix("http://")
    for where, said in (
        (Listening("127.0.0.1", tokens), "expected HOST:PORT"),
        (Listening("127.0.0.1:70000", tokens), "expected HOST:PORT"),
        (Listening("0.0.0.0:0", tokens), "expected a certificate and a key"),
        (Listening("127.0.0.1:0", tokens, certificate="a.crt"), "give both"),
        (Listening("127.0.0.1:0", tokens, "a.crt", "a.key"), "expected PEM files"),
        (Listening(taken, tokens), "cannot listen there"),
        (Listening("127.0.0.1:0", str(tmp_path / "none")), "cannot read"),
    ):
        with pytest.raises(FederatedError, match=said), listen(where):
            pass
