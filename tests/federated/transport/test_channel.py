"""Messages over real sockets of this machine: Unix and TCP, with TLS, hostile ends, ends that vanish."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.errors import FederatedError
from federated.transport import channel
from federated.transport.channel import HEAD, Channel, Tls, serve
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[3]


class Served:
    """A serving end in a thread."""

    def __init__(self, address: str, answer: Callable[[bytes], bytes] = bytes.upper, tls: Tls | None = None) -> None:
        self.asked = 0
        self.over = threading.Event()
        self.address = ""
        self.error: BaseException | None = None
        self._answer = answer
        self.thread = threading.Thread(target=self._run, args=(address, tls))

    def _run(self, address: str, tls: Tls | None) -> None:
        try:
            serve(address, self._counted, self.over.is_set, tls, listening=self._told)
        except BaseException as error:
            self.error = error

    def _counted(self, message: bytes) -> bytes:
        self.asked += 1
        return self._answer(message)

    def _told(self, address: str) -> None:
        self.address = address

    def __enter__(self) -> Served:
        self.thread.start()
        until(lambda: self.address or self.error)
        return self

    def __exit__(self, *what: Any) -> None:
        self.over.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@pytest.fixture(params=["unix", "tcp"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    with Served(str(tmp_path / "a.sock") if request.param == "unix" else "127.0.0.1:0") as made:
        yield made


def test_messages_of_all_sizes_over_one_connection(served: Served) -> None:
    with Channel(served.address) as there:
        for message in (b"", b"a", b"x" * 5_000_001, b"last"):
            assert there.ask(message) == message.upper()


def test_a_connection_that_ends_is_made_again(served: Served) -> None:
    with Channel(served.address) as there:
        assert there.ask(b"one") == b"ONE"
        assert there._open is not None
        there._open.close()
        with pytest.raises(FederatedError, match="expected an answer, got none"):
            there.ask(b"two")
        assert there.ask(b"three") == b"THREE"


def raw(address: str) -> socket.socket:
    if "/" in address:
        made = socket.socket(socket.AF_UNIX)
        made.connect(address)
        return made
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD.pack(1 << 60), HEAD.pack(10) + b"half", b"\xff" * 100])
def test_whoever_sends_something_else_is_left(served: Served, sent: bytes) -> None:
    with raw(served.address) as stranger:
        stranger.sendall(sent)
    with Channel(served.address) as there:
        assert there.ask(b"still here") == b"STILL HERE"
    assert served.asked == 1


def test_a_silent_end_is_not_waited_for(tmp_path: Path) -> None:
    pause = threading.Event()
    with Served(str(tmp_path / "a.sock"), lambda message: (pause.wait(PATIENCE) and b"") or b"") as made:
        with Channel(made.address) as there, pytest.raises(FederatedError, match="expected an answer, got none: timed"):
            there.ask(b"?", timeout=0.05)
        pause.set()


def test_nobody_listens(tmp_path: Path) -> None:
    with Channel(str(tmp_path / "none.sock"), wait=0.0) as there, pytest.raises(FederatedError, match="No such file"):
        there.ask(b"?")


def test_a_socket_is_this_user_s_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with Served(str(path)) as made:
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        with pytest.raises(FederatedError, match="another process listens there"):
            serve(str(path), bytes.upper, lambda: True)
        assert made.error is None
    assert not path.exists()


def test_the_socket_of_a_dead_process_is_replaced_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with Served(str(path)) as made, Channel(made.address) as there:
        assert there.ask(b"new") == b"NEW"
    path.write_text("precious")
    with pytest.raises(FederatedError, match="expected no file"):
        serve(str(path), bytes.upper, lambda: True)
    assert path.read_text() == "precious"


def test_what_an_answer_raises_is_passed_on(tmp_path: Path) -> None:
    def fails(message: bytes) -> bytes:
        raise ValueError("mine")

    with Served(str(tmp_path / "a.sock"), fails) as made:
        with Channel(made.address) as there, contextlib.suppress(FederatedError):
            there.ask(b"?")
        made.thread.join(PATIENCE)
    assert isinstance(made.error, ValueError)


@pytest.mark.parametrize(
    ("address", "tls", "why"),
    [
        ("192.0.2.1:80", None, "expected certificates for an address that is not this machine's"),
        ("0.0.0.0:0", None, "expected certificates"),
        ("nowhere", None, "expected HOST:PORT or the path of a socket"),
        ("127.0.0.1:123456", None, "expected HOST:PORT"),
        ("/tmp/a.sock", Tls("a", "b", "c"), "has no TLS"),
        ("127.0.0.1:0", Tls("/none/a", "/none/b", "/none/c"), "expected PEM files"),
    ],
)
def test_addresses_that_do_not_fit(address: str, tls: Tls | None, why: str) -> None:
    for make in (lambda: Channel(address, tls), lambda: serve(address, bytes.upper, lambda: True, tls)):
        with pytest.raises(FederatedError, match=why):
            make()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(ROOT / "examples" / "federated"))
    from certificates import certificates  # type: ignore[import-not-found]

    folder = tmp_path_factory.mktemp("keys")
    for name in ("one", "other", "stranger"):
        certificates(folder / name, ["127.0.0.1", "localhost"])
    return folder


def tls(keys: Path, own: str, trusted: str) -> Tls:
    return Tls(*(str(keys / name) for name in (f"{trusted}/ca.crt", f"{own}/server.crt", f"{own}/server.key")))


def test_two_organisations_trust_each_other_and_nobody_else(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "SHAKE", 5.0)
    message = np.random.default_rng().bytes(100_000)
    with Served("127.0.0.1:0", lambda asked: asked[::-1], tls(keys, "one", "other")) as made:
        with Channel(made.address, tls(keys, "other", "one")) as there:
            assert there.ask(message) == message[::-1]
        for wrong in (tls(keys, "stranger", "one"), tls(keys, "other", "stranger")):
            with Channel(made.address, wrong, wait=0.0) as there, pytest.raises(FederatedError):
                there.ask(b"secret")
        with Channel(made.address, wait=0.0) as there, pytest.raises(FederatedError):
            there.ask(b"plain")
        with Channel(made.address, tls(keys, "other", "one")) as there:
            assert there.ask(b"ab") == b"ba"
    assert made.asked == 2 and made.error is None
