"""Access: rules by scope, expiry of tokens, reloads, guessing, pages of other origins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edge.gateway.access import tokens
from edge.gateway.access.gate import Gate
from edge.gateway.access.grants import ANYBODY, Quotas
from edge.gateway.access.keyring import Keyring
from edge.gateway.access.verified import Guesses
from edge.gateway.errors import GatewayError
from edge.gateway.operate.settings import Access


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def status_of(gate: Gate, scope: str, peer: str = "10.0.0.1", **more: str | None) -> int:
    try:
        gate.check(scope, peer, **more)
    except GatewayError as error:
        return error.status
    return 200


def test_without_tokens_only_this_machine_manages() -> None:
    gate = Gate(Access())
    assert gate.open
    assert status_of(gate, "infer") == status_of(gate, "metrics") == 200
    assert status_of(gate, "manage") == 403
    for peer in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", ""):
        assert status_of(gate, "manage", peer) == 200
    for peer in ("128.0.0.1", "::2", "::ffff:10.0.0.1", "localhost", "127.0.0.1.evil.example"):
        assert status_of(gate, "manage", peer) == 403


def test_a_request_through_a_proxy_is_not_local() -> None:
    gate = Gate(Access(metrics="loopback"))
    for scope in ("manage", "metrics"):
        assert status_of(gate, scope, "127.0.0.1", host="127.0.0.1:8000", forwarded="203.0.113.9") == 403
        assert status_of(gate, scope, "127.0.0.1", host="127.0.0.1:8000") == 200
    assert status_of(gate, "infer", "127.0.0.1", forwarded="203.0.113.9") == 200


def test_off_is_off_for_all_clients() -> None:
    gate = Gate(Access(management="off", metrics="off"))
    assert status_of(gate, "manage", "127.0.0.1") == status_of(gate, "metrics", "127.0.0.1") == 403


def test_pages_of_other_origins_cannot_manage() -> None:
    gate = Gate(Access())
    here = "127.0.0.1"
    assert status_of(gate, "manage", here, host="localhost:8000", origin="http://localhost:8000") == 200
    assert status_of(gate, "manage", here, host="[::1]:8000") == 200
    assert status_of(gate, "manage", here, host="localhost:8000", origin="https://evil.example") == 403
    assert status_of(gate, "manage", here, host="localhost:8000", origin="null") == 403
    assert status_of(gate, "manage", here, host="localhost:8000", origin="http://localhost:9000") == 403
    # A name that its owner points at 127.0.0.1: origin and host agree.
    assert status_of(gate, "manage", here, host="evil.example:8000", origin="http://evil.example:8000") == 403
    assert status_of(gate, "manage", here, host="[::1") == 403


def test_scopes(path: Path) -> None:
    shown = {scope: f"Bearer {tokens.add(path, scope, [scope])}" for scope in tokens.SCOPES}
    gate = Gate(Access(tokens=str(path), management="token", metrics="token", shared_memory="loopback"))
    assert not gate.open
    for has, authorization in shown.items():
        for wants in tokens.SCOPES:
            peer = "127.0.0.1" if wants == "memory" else "10.0.0.1"
            assert status_of(gate, wants, peer, authorization=authorization) == (200 if has == wants else 403)
    assert gate.check("infer", "10.0.0.1", shown["infer"]).name == "infer"
    assert status_of(gate, "infer") == 401


def test_shared_memory_needs_a_client_on_this_machine_and_a_token_where_others_need_one(path: Path) -> None:
    shown = f"Bearer {tokens.add(path, 'm', ['memory'])}"
    for gate, without in ((Gate(Access(shared_memory="loopback")), 200),
                          (Gate(Access(shared_memory="loopback", tokens=str(path))), 401)):  # fmt: skip
        assert status_of(gate, "memory", "127.0.0.1") == without
        assert status_of(gate, "memory", "127.0.0.1", authorization=shown) == 200
        assert status_of(gate, "memory", "10.0.0.1", authorization=shown) == 403
        assert status_of(gate, "memory", "127.0.0.1", authorization=shown, forwarded="203.0.113.9") == 403
        page = {"origin": "https://elsewhere.example", "host": "127.0.0.1:8000"}
        assert status_of(gate, "memory", "127.0.0.1", authorization=shown, **page) == 403
    assert status_of(Gate(Access(tokens=str(path))), "memory", "127.0.0.1", authorization=shown) == 403


@pytest.mark.parametrize(
    "text", ["{}", "Basic {}", "Bearer {}x", "Bearer ", "Bearer msedge__", "Bearer x_{}", "\udcff"]
)
def test_invalid_tokens(path: Path, text: str) -> None:
    shown = tokens.add(path, "a", ["infer"])
    keyring = Keyring(path)
    with pytest.raises(GatewayError) as caught:
        keyring.grant(text.format(shown), "1.2.3.4")
    assert caught.value.status == 401
    assert shown not in str(caught.value)
    assert keyring.grant(f"bearer  {shown}", "1.2.3.4").name == "a"


def test_tokens_expire(path: Path) -> None:
    clock = Clock()
    shown = f"Bearer {tokens.add(path, 'a', ['infer'], days=1)}"
    end = tokens.listed(path)[0].end
    clock.now = end - 1
    keyring = Keyring(path, clock)
    keyring.grant(shown, "p")
    clock.now = end
    with pytest.raises(GatewayError, match="it has expired"):
        keyring.grant(shown, "p")


def test_the_file_is_read_again_when_it_changes(path: Path) -> None:
    first = f"Bearer {tokens.add(path, 'a', ['infer'])}"
    keyring = Keyring(path)
    keyring.grant(first, "p")
    assert not keyring.refresh()
    second = f"Bearer {tokens.add(path, 'b', ['infer'])}"
    tokens.revoke(path, "a")
    assert keyring.refresh()
    assert keyring.grant(second, "p").name == "b"
    with pytest.raises(GatewayError, match="not valid"):
        keyring.grant(first, "p")


def test_a_damaged_file_changes_nothing_until_it_is_repaired(path: Path) -> None:
    shown = f"Bearer {tokens.add(path, 'a', ['infer'])}"
    keyring, whole = Keyring(path), path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(GatewayError, match="expected JSON"):
        keyring.refresh()
    assert not keyring.refresh()  # said once
    assert keyring.grant(shown, "p").name == "a"
    path.unlink()
    with pytest.raises(GatewayError, match="cannot read"):
        keyring.refresh()
    assert not keyring.refresh()
    path.write_bytes(whole)
    path.chmod(0o600)
    assert keyring.refresh()
    assert keyring.grant(shown, "p").name == "a"


def test_only_clients_that_guess_tokens_are_slowed(path: Path) -> None:
    clock = Clock()
    good = f"Bearer {tokens.add(path, 'a', ['infer'])}"
    keyring = Keyring(path, clock)
    keyring.grant(good, "1.1.1.1")

    def guess(peer: str) -> GatewayError:
        with pytest.raises(GatewayError) as caught:
            keyring.grant("Bearer msedge_000000000000_x", peer)
        return caught.value

    assert [guess("1.1.1.1").status for _ in range(10)] == [401] * 10
    slowed = guess("1.1.1.1")
    assert slowed.status == 429
    assert slowed.retry_after == pytest.approx(6.0)
    assert guess("2.2.2.2").status == 401
    assert keyring.grant(good, "1.1.1.1").name == "a"  # a known token: another client with the same address
    clock.now += 6.0
    assert [guess("1.1.1.1").status for _ in range(2)] == [401, 429]


def test_one_client_of_ipv6_is_its_network() -> None:
    guesses = Guesses(free=1)
    guesses.failed("2001:db8::1", 0.0)
    assert guesses.wait("2001:db8::ffff", 0.0) > 0
    assert guesses.wait("2001:db8:0:1::1", 0.0) == 0
    assert guesses.wait("::ffff:9.9.9.9", 0.0) == 0
    guesses.failed("9.9.9.9", 0.0)
    assert guesses.wait("::ffff:9.9.9.9", 0.0) > 0


def test_guesses_take_bounded_memory() -> None:
    guesses = Guesses(free=1)
    for peer in range(10_000):
        guesses.failed(f"10.0.{peer >> 8}.{peer & 255}", 0.0)
    assert len(guesses._peers) == 4096
    assert guesses.wait("10.0.39.15", 0.0) > 0


def test_wrong_tokens_lock_nobody_else_out(path: Path) -> None:
    """Ten wrong tokens once refused good ones of the same address, such as a proxy's."""
    shown = f"Bearer {tokens.add(path, 'camera', ['infer'])}"
    gate = Gate(Access(tokens=str(path)))
    found = [status_of(gate, "infer", authorization=f"Bearer msedge_{i:012d}_x") for i in range(20)]
    assert found[:10] == [401] * 10 and 429 in found
    assert status_of(gate, "infer", authorization=shown) == 200


def test_models_and_devices_of_a_token(path: Path) -> None:
    tokens.add(path, "any", ["infer"])
    shown = f"Bearer {tokens.add(path, 'cam', ['infer'], models=['digits', 'wake-*'], devices=['cam-?'])}"
    grant = Gate(Access(tokens=str(path))).check("infer", "10.0.0.1", shown)
    for model, status in (("digits", 200), ("wake-1", 200), ("other", 403), ("digits2", 403)):
        assert refused(lambda model=model: grant.demand_model(model)) == status
    for device, status in (("cam-1", 200), ("cam-10", 403), ("other", 403), ("", 403)):
        assert refused(lambda device=device: grant.demand_device(device)) == status
    (plain, _) = tokens.listed(path)
    assert (plain.models, plain.devices, plain.rate) == (("*",), (), None)


def refused(what: Callable[[], object]) -> int:
    try:
        what()
    except GatewayError as error:
        return error.status
    return 200


def test_requests_per_second() -> None:
    now = 0.0
    quotas = Quotas(lambda: now)
    grant = ANYBODY._replace(rate=2.0)
    assert [refused(lambda: quotas.take(grant)) for _ in range(4)] == [200, 200, 429, 429]
    with pytest.raises(GatewayError) as error:
        quotas.take(grant)
    assert error.value.retry_after == pytest.approx(0.5)
    now = 0.5
    assert [refused(lambda: quotas.take(grant)) for _ in range(2)] == [200, 429]
    now = 100.0
    assert [refused(lambda: quotas.take(grant)) for _ in range(3)] == [200, 200, 429]
    assert [refused(lambda: quotas.take(ANYBODY)) for _ in range(100)] == [200] * 100
