"""Hostile devices and strangers: stolen tokens, replays, another's identity, floods, bombs, false reports."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cloud.hub.server.sessions import ANSWER, Sessions
from edge.agent.conversation import Conversation, LaterError, RefusedError
from edge.agent.identity import Identity
from lite_runtime.updates import checkin, enrolment, fields
from lite_runtime.updates.checkin import Application, Event, Outcome, Report
from lite_runtime.updates.enrolment import Greeting
from tests.cloud.hub.serving import Running, running

ONE = Report(applications={"keys": Application("1")})
PLAN: dict[str, Any] = {"application": "keys", "version": "2", "steps": [100], "soak": 0, "patience": 1e6}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite")) as made:
        yield made


def name_of(device: Conversation) -> str:
    assert device.identity.enrolled is not None
    return device.identity.enrolled.device


# -- stolen tokens -----------------------------------------------------------------------------------------------------


def test_a_token_for_a_device_that_was_used_enrols_no_other(hub: Running) -> None:
    token = hub.token("t")
    hub.conversation("one").enrol(token, {})
    with pytest.raises(RefusedError, match="this token was used"):
        hub.conversation("thief").enrol(token, {})
    assert len(hub.hub.fleet.devices) == 1


@pytest.mark.parametrize("scope", ["operator", "viewer"])
def test_a_token_of_a_person_enrols_nothing(scope: str, hub: Running) -> None:
    with pytest.raises(RefusedError, match="expected a token for a new device"):
        hub.conversation("one").enrol(hub.token("t", scope), {})


def test_a_token_of_a_device_orders_nothing(hub: Running) -> None:
    device = hub.device("one")
    device.check_in(ONE)
    for token in ("", "x", hub.token("unused"), device._token):
        for method, path in (("GET", "/v1/fleet"), ("GET", "/v1/audit"), ("POST", "/v1/rollouts")):
            assert hub.order(method, path, PLAN, token).status == 401
    device.close()


def test_a_viewer_changes_nothing(hub: Running) -> None:
    viewer, operator = hub.token("bob", "viewer"), hub.token("ann", "operator")
    identity = hub.order("POST", "/v1/rollouts", PLAN, operator).json["id"]
    device = hub.device("one")
    for path in ("/v1/rollouts", f"/v1/rollouts/{identity}/abort", f"/v1/fleet/devices/{name_of(device)}"):
        assert hub.order("POST", path, PLAN, viewer).status == 403
    assert hub.order("GET", "/v1/rollouts", token=viewer).json["rollouts"][0]["status"] == "running"


def test_a_revoked_token_of_a_person_ends_soon(hub: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloud.hub.database import tokens
    from cloud.hub.server import hub as module

    monkeypatch.setattr(module, "_KNOWN", 0.0)
    operator = hub.token("ann", "operator")
    assert hub.order("GET", "/v1/fleet", token=operator).status == 200
    hub.call(hub.hub._run(lambda cursor: tokens.revoke(cursor, "ann")))
    assert hub.order("GET", "/v1/fleet", token=operator).status == 401


def test_a_blocked_device_is_refused_whatever_session_it_has(hub: Running) -> None:
    device, operator = hub.device("one"), hub.token("ann", "operator")
    device.check_in(ONE)
    path = f"/v1/fleet/devices/{name_of(device)}"
    assert hub.order("POST", path, {"state": "blocked"}, operator).json["state"] == "blocked"
    with pytest.raises(RefusedError, match="was blocked"):
        device.check_in(ONE)
    device._token = ""
    with pytest.raises(RefusedError, match="was blocked"):
        device.check_in(ONE)
    assert hub.order("POST", path, {"state": "active"}, operator).status == 200
    device.check_in(ONE)
    device.close()


def test_a_blocked_device_does_not_come_back_with_its_token(hub: Running) -> None:
    device, operator, token = hub.conversation("one"), hub.token("ann", "operator"), hub.token("t")
    device.enrol(token, {})
    hub.order("POST", f"/v1/fleet/devices/{name_of(device)}", {"state": "blocked"}, operator)
    for again in (token, hub.token("other")):
        with pytest.raises(RefusedError, match="enrolled before"):
            device.enrol(again, {})


# -- replays and identities --------------------------------------------------------------------------------------------


def test_a_recorded_answer_to_a_challenge_opens_nothing(hub: Running) -> None:
    device = hub.device("one")
    hello = enrolment.written(Greeting(name_of(device)))
    challenge = enrolment.read_challenge(hub.ask("POST", "/v1/session", hello).content).challenge
    answer = enrolment.written(device.identity.answer(challenge))
    assert hub.ask("POST", "/v1/session", answer).status == 200
    again = hub.ask("POST", "/v1/session", answer)
    assert (again.status, "was used" in again.error) == (401, True)


def test_a_recorded_enrolment_gives_the_thief_no_session(hub: Running) -> None:
    """The answer to it is the same again, which helps nobody without the key."""
    device, token = hub.conversation("one"), hub.token("t")
    asked = enrolment.written(device.identity.enrolment(token, {}))
    first, second = (hub.ask("POST", "/v1/enrol", asked) for _ in range(2))
    assert (first.status, second.status) == (201, 201)
    assert len(hub.hub.fleet.devices) == 1
    thief = hub.conversation("thief")
    thief.identity.enrolled = enrolment.read_enrolled(first.content)
    with pytest.raises(RefusedError, match="not that of the device's key"):
        thief.check_in(ONE)


def test_nobody_enrols_anothers_key(hub: Running) -> None:
    device, token = hub.device("one"), hub.token("t")
    other = Identity(hub._folder / "other")
    forged = other.enrolment(token, {})._replace(key=device.identity.public)
    found = hub.ask("POST", "/v1/enrol", enrolment.written(forged))
    assert (found.status, "not that of the key" in found.error) == (403, True)


def test_nobody_answers_for_another_device(hub: Running) -> None:
    one, two = hub.device("one"), hub.device("two")
    hello = enrolment.written(Greeting(name_of(one)))
    challenge = enrolment.read_challenge(hub.ask("POST", "/v1/session", hello).content).challenge
    for greeting in (
        two.identity.answer(challenge),  # another's challenge
        two.identity.answer(challenge)._replace(device=name_of(one)),  # another's signature
        Greeting(name_of(one), challenge, "00" * 64),
        Greeting(name_of(one), challenge, "no hex"),
        Greeting(name_of(one), challenge[:-1] + "x", "00" * 64),
        Greeting(name_of(one), "9999999999.ab.cd", "00" * 64),
    ):
        assert hub.ask("POST", "/v1/session", enrolment.written(greeting)).status == 401
    assert hub.ask("POST", "/v1/session", enrolment.written(one.identity.answer(challenge))).status == 200


def test_a_signature_for_one_hub_opens_nothing_at_another(hub: Running) -> None:
    """A hostile hub that passes on the challenge of this one."""
    device = hub.device("one")
    assert device.identity.enrolled is not None
    device.identity.enrolled = device.identity.enrolled._replace(hub="another")
    with pytest.raises(RefusedError, match="not that of the device's key"):
        device.check_in(ONE)


def test_challenges_and_sessions_end() -> None:
    now = 1000.0
    sessions = Sessions("h", b"k" * 32, 3600.0, lambda: now)
    challenge, token = sessions.challenge("d"), sessions.token("d")
    assert sessions.device(token) == ("d", 3600.0)
    now += ANSWER + 1
    assert "too old" in sessions.answered(Greeting("d", challenge, "00" * 64), "00" * 32)
    now += 3600
    assert sessions.device(token) is None


@pytest.mark.parametrize(
    "token", ["", ".", "..", "d1.9999999999.00", "d1", "d1.inf.", "\u0661.9999999999.x", "a" * 5000]
)
def test_forged_sessions_are_none(token: str) -> None:
    assert Sessions("h", b"k" * 32, 3600.0, time.time).device(token) is None


def test_a_changed_session_is_none() -> None:
    sessions = Sessions("h", b"k" * 32, 3600.0, time.time)
    token = sessions.token("d1")
    device, end, code = token.split(".")
    for forged in (f"d2.{end}.{code}", f"{device}.{int(end) + 1}.{code}", f"{token}0", token[:-1]):
        assert sessions.device(forged) is None
    assert Sessions("h", b"x" * 32, 3600.0, time.time).device(token) is None


# -- floods and bombs --------------------------------------------------------------------------------------------------


def test_a_device_that_floods_is_told_to_wait_and_others_are_not(tmp_path: Path) -> None:
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), rate=0.1, burst=50.0) as hub:
        one, two = hub.device("one"), hub.device("two")
        for _ in range(5):
            one.check_in(ONE)
        with pytest.raises(LaterError, match="too often") as caught:
            one.check_in(ONE)
        assert 0 < caught.value.seconds <= 11
        two.check_in(ONE)
        one.close()
        two.close()


def test_an_address_that_floods_is_told_to_wait(tmp_path: Path) -> None:
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), visitors=1.0, burst=5.0) as hub:
        found = [hub.ask("GET", "/v1/health") for _ in range(8)]
        assert [one.status for one in found][:5] == [200] * 5
        assert found[-1].status == 429
        assert int(found[-1].headers["Retry-After"]) >= 1


def test_an_address_behind_a_proxy_is_the_one_that_a_trusted_proxy_says(tmp_path: Path) -> None:
    database = str(tmp_path / "hub.sqlite")
    with running(tmp_path / "hub", database, visitors=1.0, burst=3.0, proxies=["127.0.0.1"]) as hub:
        for _ in range(6):
            hub.ask("GET", "/v1/health", X_Forwarded_For="1.1.1.1, 10.0.0.1")
        assert hub.ask("GET", "/v1/health", X_Forwarded_For="9.9.9.9, 10.0.0.1").status == 429
        assert hub.ask("GET", "/v1/health", X_Forwarded_For="10.0.0.1, 10.0.0.2").status == 200
    with running(tmp_path / "hub", database, visitors=1.0, burst=3.0) as hub:
        found = [hub.ask("GET", "/v1/health", X_Forwarded_For=f"10.0.0.{n}").status for n in range(6)]
        assert found[-1] == 429


def test_guessing_enrolment_tokens_is_slow(tmp_path: Path) -> None:
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), visitors=20.0) as hub:
        identity = Identity(tmp_path / "one")
        asked = enrolment.written(identity.enrolment("hub_000000000000_" + "x" * 43, {}))
        found = [hub.ask("POST", "/v1/enrol", asked).status for _ in range(40)]
        assert found[:20] == [401] * 20
        assert found[-1] == 429


def test_events_of_one_device_are_limited(tmp_path: Path) -> None:
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), events=300.0) as hub:
        device = hub.device("one")

        def some(first: int) -> Report:
            return ONE._replace(events=tuple(Event(n, 1.0, "x") for n in range(first, first + 200)))

        assert device.check_in(some(1)).received == 200
        assert device.check_in(some(201)).received == 200
        assert device.check_in(ONE._replace(events=(Event(201, 1.0, "x"),))).received == 201
        device.close()


BOMB = gzip.compress(b" " * (1 << 26), 9)


@pytest.mark.parametrize("path", ["/v1/enrol", "/v1/session", "/v1/check-in"])
def test_a_body_that_inflates_without_end_is_refused(path: str, hub: Running) -> None:
    device = hub.device("one")
    device.check_in(ONE)
    found = hub.ask("POST", path, BOMB, device._token, Content_Encoding="gzip")
    assert (found.status, "after inflating" in found.error) == (413, True)
    cut = hub.ask("POST", path, gzip.compress(b"{}")[:-3], device._token, Content_Encoding="gzip")
    assert (cut.status, "cut short" in cut.error) == (400, True)
    assert hub.ask("POST", path, b"x", device._token, Content_Encoding="br").status == 415
    device.close()


def test_a_body_that_is_too_large_is_refused_before_it_is_read(hub: Running) -> None:
    device = hub.device("one")
    device.check_in(ONE)
    assert hub.ask("POST", "/v1/check-in", b" " * (checkin.MAX_BYTES + 1), device._token).status == 413
    device.close()


JUNK = [b"", b"[]", b"{}", b'{"protocol":2}', b'{"protocol":1,"applications":[]}', b"\xff" * 9, b"[" * 60_000]


@pytest.mark.parametrize("body", JUNK)
def test_junk_is_refused_and_changes_nothing(body: bytes, hub: Running) -> None:
    device = hub.device("one")
    device.check_in(ONE)
    for path in ("/v1/check-in", "/v1/enrol", "/v1/session"):
        assert hub.ask("POST", path, body, device._token).status == 400
    assert device.check_in(ONE).received == 0
    device.close()


def test_what_waits_for_a_body_ends(hub: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that promises a body and sends none."""
    from cloud.hub.server import app

    monkeypatch.setattr(app, "BODY", 0.2)
    parts = urlsplit(hub.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as open_:
        open_.sendall(b"POST /v1/enrol HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in open_.recv(1000)


@pytest.mark.parametrize("words", ["nan", "inf", "-inf", "1e999", "x", ""])
def test_a_wait_that_is_no_time_is_refused(words: str, hub: Running) -> None:
    """A timer at "not a number" would put those of all others out of order."""
    device = hub.device("one")
    device._session()
    found = hub.ask("POST", f"/v1/check-in?wait={words}", checkin.written(ONE), device._token)
    assert (found.status, "expected wait=SECONDS" in found.error) == (400, True)
    device.close()


def test_a_flood_of_files_is_told_when_to_come_again(tmp_path: Path) -> None:
    (tmp_path / "repository" / "pieces").mkdir(parents=True)
    (tmp_path / "repository" / "pieces" / "abc").write_bytes(b"x")
    database = str(tmp_path / "hub.sqlite")
    with running(tmp_path / "hub", database, repository=str(tmp_path / "repository"), files=0.1, burst=20.0) as hub:
        device = hub.device("one")
        for _ in range(2):
            assert list(device.open("pieces/abc")) == [b"x"]
        with pytest.raises(LaterError) as caught:
            list(device.open("pieces/abc"))
        assert 5 < caught.value.seconds <= 10
        device.close()


@pytest.mark.parametrize(
    ("address", "name"),
    [("10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::/64"), ("2001:db8:0:0:ffff::9", "2001:db8::/64"),
     ("::ffff:10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::/64"), ("a:b", "a:b"), ("", "")],
)  # fmt: skip
def test_addresses_of_a_network_of_ipv6_are_one(address: str, name: str) -> None:
    from cloud.hub.server.app import address_of

    class Asked:
        remote, headers = address, dict[str, str]()

    assert address_of(Asked(), ()) == name  # type: ignore[arg-type]


def test_idle_connections_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloud.hub.server import running as module

    monkeypatch.setattr(module, "IDLE", 0.5)
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite")) as hub:
        parts = urlsplit(hub.url)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as open_:
            open_.sendall(b"POST /v1/enrol HTTP/1.1\r\nHost:")  # and never the rest
            assert open_.recv(1000) == b""


def test_more_connections_than_allowed_are_closed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloud.hub.server import running as module

    monkeypatch.setattr(module, "MOST", 3)
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite")) as hub:
        parts = urlsplit(hub.url)
        kept = [socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) for _ in range(3)]
        kept[0].sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in kept[0].recv(1000)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as late:
            assert late.recv(1000) == b""
        for one in kept:
            one.close()


def test_a_report_that_grows_when_it_is_stored_stops_no_hub(tmp_path: Path) -> None:
    """Within the limits as it is sent, beyond them as the database has it: letters of four bytes take twelve there."""
    letters = "\U0001f980" * 256
    wide = {f"a{n}": Application("1", outcome=Outcome("1", "r", "failed", letters)) for n in range(60)}
    told = ONE._replace(attributes={f"k{n}": letters for n in range(60)}, applications=wide)
    sent = json.dumps({"protocol": 1, **fields.plain(told)}, ensure_ascii=False).encode()
    assert len(sent) < checkin.MAX_BYTES < len(checkin.written(told))
    for turn in range(2):
        with running(tmp_path / "hub", str(tmp_path / "hub.sqlite")) as hub:
            if not hub.hub.fleet.devices:
                device = hub.device("one")
                device._session()
                assert hub.ask("POST", "/v1/check-in", sent, device._token).status == 200
                device.close()
            (known,) = hub.hub.fleet.devices.values()
            assert len(known.applications) == 60
            shown = hub.order("GET", f"/v1/fleet/devices/{known.id}", token=hub.token(f"v{turn}", "viewer")).json
            assert len(shown["report"]["applications"]) == 60
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite")) as hub:
        hub.call(hub.hub._run(lambda cursor: cursor.run("UPDATE devices SET report = 'damaged'")))
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite")) as hub:
        (known,) = hub.hub.fleet.devices.values()
        assert known.applications == {}
        assert hub.order("GET", f"/v1/fleet/devices/{known.id}", token=hub.viewer).json["report"] is None


# -- false reports -----------------------------------------------------------------------------------------------------


def test_one_liar_stops_no_rollout_and_passes_none(hub: Running) -> None:
    operator = hub.token("ann", "operator")
    identity = hub.order("POST", "/v1/rollouts", PLAN, operator).json["id"]
    liar = hub.device("liar")
    for kind in ("self-test", "rolled-back", "committed", "broken") * 10:
        outcome = Outcome("2", identity, kind)
        liar.check_in(Report(applications={"keys": Application("1", outcome=outcome)}))
    shown = hub.order("GET", f"/v1/rollouts/{identity}", token=operator).json
    assert (shown["status"], shown["bad"], shown["good"]) == ("running", 1, 0)
    liar.close()


def test_a_device_that_was_not_asked_has_no_say(hub: Running) -> None:
    """It reports the outcome of a rollout whose cohort it is not in."""
    operator = hub.token("ann", "operator")
    plan = {**PLAN, "cohort": {"ring": ["0"]}}
    identity = hub.order("POST", "/v1/rollouts", plan, operator).json["id"]
    liar = hub.device("liar", {"ring": "1"})
    outcome = Outcome("2", identity, "self-test")
    liar.check_in(Report({"ring": "0"}, applications={"keys": Application("1", outcome=outcome)}))
    shown = hub.order("GET", f"/v1/rollouts/{identity}", token=operator).json
    assert (shown["members"], shown["bad"]) == (0, 0)
    liar.close()


def test_text_of_a_device_stays_text(hub: Running) -> None:
    """Quotes, control characters and markup come back as they were sent, as JSON."""
    device, operator = hub.device("one"), hub.token("ann", "operator")
    words = "'; DROP TABLE devices; --\x1b[31m<script>\u202e"
    device.check_in(ONE._replace(attributes={"note": words}, events=(Event(1, 1.0, "x", text=words),)))
    shown = hub.order("GET", f"/v1/fleet/devices/{name_of(device)}", token=operator).json
    assert shown["events"][0]["text"] == words
    assert shown["report"]["attributes"]["note"] == words
    device.close()


# -- TLS ---------------------------------------------------------------------------------------------------------------


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Running, str]]:
    """A hub over TLS that asks for devices' certificates, and the authority of its own."""
    cert, key = certificate(tmp_path, "hub")
    (tmp_path / "repository" / "pieces").mkdir(parents=True)
    (tmp_path / "repository" / "pieces" / "abc").write_bytes(b"content")
    told = {"certificate": str(cert), "key": str(key), "clients": True, "repository": str(tmp_path / "repository")}
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), **told) as made:
        yield made, str(cert)


def test_a_device_shows_its_certificate(guarded: tuple[Running, str]) -> None:
    hub, authority = guarded
    device = hub.device("one", authority=authority)
    assert device.check_in(ONE).received == 0
    device.close()


def test_a_stolen_session_is_worth_nothing_without_the_certificate(guarded: tuple[Running, str]) -> None:
    hub, authority = guarded
    one, two = hub.device("one", authority=authority), hub.device("two", authority=authority)
    one.check_in(ONE)
    two.check_in(ONE)
    context = ssl.create_default_context(cafile=authority)
    body = checkin.written(ONE)
    found = hub.ask("POST", "/v1/check-in", body, one._token, context)
    assert (found.status, "expected the certificate of device" in found.error) == (403, True)
    assert two.identity.certificate is not None
    context.load_cert_chain(two.identity.certificate)
    assert hub.ask("POST", "/v1/check-in", body, one._token, context).status == 403
    assert hub.ask("POST", "/v1/check-in", body, two._token, context).status == 200
    one.close()
    two.close()


def test_a_certificate_that_somebody_else_signed_is_refused(guarded: tuple[Running, str], tmp_path: Path) -> None:
    hub, authority = guarded
    own, key = certificate(tmp_path, "thief")
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(own, key)
    with pytest.raises((ssl.SSLError, OSError)):
        hub.ask("GET", "/v1/health", context=context)


def test_a_hub_with_another_certificate_is_not_told_the_token(guarded: tuple[Running, str], tmp_path: Path) -> None:
    hub, _ = guarded
    other, _ = certificate(tmp_path, "other")
    with pytest.raises(LaterError, match="certificate"):
        hub.conversation("one", str(other)).enrol(hub.token("t"), {})
    assert hub.hub.fleet.devices == {}


def test_after_two_years_in_a_drawer_a_device_gets_a_new_certificate(guarded: tuple[Running, str]) -> None:
    """Its certificate has expired: the hub refuses it, and takes the signature of the key instead."""
    hub, authority = guarded
    device = hub.device("one", authority=authority)
    known = hub.hub.fleet.devices[name_of(device)]
    old = hub.hub.authority.certify(known.id, known.key, 60.0, time.time() - 1000)
    device.identity.certify(old)
    known.certified = time.time() - 940
    device.close()
    device.check_in(ONE)
    assert known.certified > time.time()
    assert device.identity.certificate is not None
    assert old not in device.identity.certificate.read_text()
    device.check_in(ONE)
    device.close()


def test_a_new_certificate_that_was_lost_on_the_way_locks_no_device_out(guarded: tuple[Running, str]) -> None:
    """The hub believes that the device has it; the one that the device has expires."""
    hub, authority = guarded
    device = hub.device("one", authority=authority)
    known = hub.hub.fleet.devices[name_of(device)]
    old = hub.hub.authority.certify(known.id, known.key, 60.0, time.time() - 1000)
    device.identity.certify(old)
    assert known.certified > time.time() + 80 * 86_400
    device.close()
    assert device.check_in(ONE).received == 0
    assert device.identity.certificate is not None and old not in device.identity.certificate.read_text()
    device.close()


def test_a_connection_that_breaks_once_locks_no_device_out(guarded: tuple[Running, str]) -> None:
    """The device tries without its certificate then, in case that was the reason, and with it again."""
    hub, authority = guarded
    device = hub.device("one", authority=authority)
    device.check_in(ONE)
    for fresh in (False, True):
        device.close()
        device._bare = True
        device._token = "" if fresh else device._token
        assert device.check_in(ONE).received == 0 and not device._bare
    device.close()
    device._bare = True
    assert list(device.open("pieces/abc")) == [b"content"] and not device._bare
    device.close()


def test_a_device_keeps_no_certificate_of_another_key(hub: Running, tmp_path: Path) -> None:
    from edge.agent.errors import AgentError

    one, two = hub.device("one"), hub.device("two")
    assert two.identity.certificate is not None
    before = one.identity.certificate.read_bytes() if one.identity.certificate else b""
    for words in (two.identity.certificate.read_text(), "junk", certificate(tmp_path, "x")[0].read_text()):
        with pytest.raises(AgentError, match="expected a certificate of this device's key"):
            one.identity.certify(words)
    assert one.identity.certificate is not None
    assert one.identity.certificate.read_bytes() == before


def test_the_authority_survives_a_restart_and_is_its_owners_alone(tmp_path: Path) -> None:
    database = str(tmp_path / "hub.sqlite")
    with running(tmp_path / "hub", database) as hub:
        first, identity = hub.hub.authority.pem, hub.hub.id
    assert (tmp_path / "hub" / "authority.pem").stat().st_mode & 0o077 == 0
    with running(tmp_path / "hub", database) as hub:
        assert (hub.hub.authority.pem, hub.hub.id) == (first, identity)
    (tmp_path / "hub" / "authority.pem").write_text("junk")
    from cloud.hub.errors import HubError

    with pytest.raises(HubError, match="expected the key and certificate"), running(tmp_path / "hub", database):
        pass


def test_an_authority_that_is_about_to_expire_is_renewed_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cryptography import x509

    from cloud.hub.server import authority as module
    from cloud.hub.server.authority import Authority

    with monkeypatch.context() as patch:
        patch.setattr(module, "_YEARS", timedelta(days=100))
        old = Authority(tmp_path / "authority.pem", "h")
    device = x509.load_pem_x509_certificate(
        old.certify("d", Identity(tmp_path / "d").public, 60.0, time.time()).encode()
    )
    new, again = (Authority(tmp_path / "authority.pem", "h") for _ in range(2))
    made = x509.load_pem_x509_certificate(new.pem.encode())
    assert made.not_valid_after_utc > datetime.now(UTC) + timedelta(days=3000) and again.pem == new.pem != old.pem
    device.verify_directly_issued_by(made)


def test_a_copied_identity_is_the_same_device(hub: Running, tmp_path: Path) -> None:
    """Who copies a device's key is the device, until it is blocked: the hub cannot tell, and says so nowhere else."""
    device, operator = hub.device("one"), hub.token("ann", "operator")
    shutil.copytree(device.identity.folder, tmp_path / "copy")
    copy = Conversation(hub.url, Identity(tmp_path / "copy"))
    copy.check_in(ONE)
    hub.order("POST", f"/v1/fleet/devices/{name_of(device)}", {"state": "blocked"}, operator)
    for each in (device, copy):
        with pytest.raises(RefusedError, match="blocked"):
            each.check_in(ONE)
        each.close()
    log = hub.order("GET", "/v1/audit", token=operator).json["entries"]
    assert json.dumps(log[-1]["data"], sort_keys=True) == json.dumps({"device": name_of(device), "state": "blocked"})
