"""The hub over HTTP, with the agent's own conversation: enrolment, sessions, check-ins, rollouts, files, people."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud.hub.database import audit, devices
from cloud.hub.errors import DatabaseError, HubError, StorageError
from cloud.hub.server.limits import Buckets
from cloud.hub.server.pacing import again, spread
from cloud.hub.server.settings import Settings, read_settings
from edge.agent.conversation import Backoff, Conversation, LaterError, RefusedError
from edge.agent.errors import AgentError, MissingError
from edge.agent.identity import Identity
from lite_runtime.updates import checkin
from lite_runtime.updates.checkin import Application, Event, Outcome, Report
from tests.cloud.hub.serving import Running, running
from tests.waiting import until

PLAN: dict[str, Any] = {"application": "keys", "version": "2", "steps": [100], "soak": 0, "patience": 1e6}
ONE = Report({"region": "north"}, "x86-64-v3", "0.1.0", applications={"keys": Application("1")})


@pytest.fixture
def hub(tmp_path: Path, address: str) -> Iterator[Running]:
    with running(tmp_path / "hub", address) as made:
        yield made


def report(version: str = "1", outcome: Outcome | None = None, **more: Any) -> Report:
    return ONE._replace(applications={"keys": Application(version, outcome=outcome)}, **more)


def test_a_device_enrols_and_checks_in(hub: Running) -> None:
    device = hub.device("one", {"ring": "0"})
    reply = device.check_in(ONE)
    assert reply.applications == {}
    assert reply.received == 0
    assert 30 <= reply.again <= 93
    assert abs(reply.time - time.time()) < 60
    assert 3000 < reply.session <= 3601
    known = hub.hub.fleet.devices[device.identity.enrolled.device]  # type: ignore[union-attr]
    assert known.attributes == {
        "region": "north", "target": "x86-64-v3", "runtime": "0.1.0", "ring": "0", "device": known.id
    }  # fmt: skip
    mode = os.stat(device.identity.folder / "key.pem").st_mode
    assert stat.S_IMODE(mode) == 0o600
    device.close()


def test_a_lost_answer_of_an_enrolment_is_asked_for_again(hub: Running) -> None:
    device, token = hub.conversation("one"), hub.token("t")
    first = device.enrol(token, {})
    assert device.enrol(token, {})._replace(certificate="") == first._replace(certificate="")
    device.close()


def test_what_people_say_of_a_device_is_above_what_it_says(hub: Running) -> None:
    """A device cannot choose its ring."""
    device = hub.device("one", {"region": "south"})
    operator = hub.token("ann", "operator")
    hub.order("POST", "/v1/rollouts", {**PLAN, "cohort": {"region": ["north"]}}, operator)
    assert device.check_in(ONE).applications == {}
    device.close()


def test_events_are_stored_once_and_acknowledged(hub: Running) -> None:
    device = hub.device("one")
    events = tuple(Event(n, 1.0, "trial", "keys", "2", f"number {n}") for n in (1, 2, 3))
    assert device.check_in(ONE._replace(events=events[:2])).received == 2
    assert device.check_in(ONE._replace(events=events)).received == 3
    assert device.check_in(ONE._replace(events=events)).received == 3
    identity = device.identity.enrolled.device  # type: ignore[union-attr]
    stored = hub.call(hub.hub.read(lambda cursor: devices.events(cursor, identity)))
    assert sorted(stored) == list(events)
    device.close()


def test_a_rollout_by_http(hub: Running) -> None:
    operator, viewer = hub.token("ann", "operator"), hub.token("bob", "viewer")
    some = [hub.device(f"d{n}") for n in range(20)]
    for device in some:
        device.check_in(ONE)
    started = hub.order("POST", "/v1/rollouts", PLAN, operator)
    assert started.status == 201
    identity = started.json["id"]
    assert hub.order("POST", "/v1/rollouts", PLAN, operator).status == 409
    for device in some:
        reply = device.check_in(ONE)
        assert reply.applications["keys"].version == "2"
        assert reply.again < 2
        done = Outcome("2", reply.applications["keys"].rollout, "committed")
        device.check_in(report("2", done))
    until(lambda: hub.order("GET", f"/v1/rollouts/{identity}", token=viewer).json["status"] == "completed")
    shown = hub.order("GET", f"/v1/rollouts/{identity[:9]}", token=viewer).json
    assert (shown["good"], shown["bad"], shown["members"]) == (20, 0, 20)
    assert [one["kind"] for one in shown["decisions"]] == ["started", "completed"]
    assert hub.order("GET", "/v1/fleet", token=viewer).json["versions"] == {"keys": {"2": 20}}
    taken = hub.order("POST", f"/v1/rollouts/{identity}/abort", {"why": "no"}, operator)
    assert taken.json["returning"] == 20
    reply = some[0].check_in(report("2"))
    assert (reply.applications["keys"].version, reply.applications["keys"].urgent) == ("1", True)
    assert some[0].check_in(report("1")).applications == {}
    log = [audit.Entry(**row) for row in hub.order("GET", "/v1/audit", token=viewer).json["entries"]]
    assert audit.verified(log)[0] == len(log)
    assert [(one.who, one.what) for one in log if one.what.startswith("rollout")] == [
        ("ann", "rollout started"), ("the hub", "rollout completed"), ("ann", "rollout aborted")
    ]  # fmt: skip
    for device in some:
        device.close()


def test_a_check_in_waits_for_news(hub: Running) -> None:
    device, operator = hub.device("one"), hub.token("ann", "operator")
    device.check_in(ONE)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(device.check_in(ONE, wait=55)))
    thread.start()
    until(lambda: hub.hub._waiting == 1)
    assert hub.order("POST", "/v1/rollouts", PLAN, operator).status == 201
    thread.join()
    assert found[0].applications["keys"].version == "2"
    began = time.monotonic()
    assert device.check_in(ONE, wait=55).applications["keys"].version == "2"
    assert time.monotonic() - began < 30
    device.close()


def test_a_stop_answers_those_who_wait(tmp_path: Path) -> None:
    found: list[Any] = []
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite")) as hub:
        device = hub.device("one")
        thread = threading.Thread(target=lambda: found.append(device.check_in(ONE, wait=59)))
        thread.start()
        until(lambda: hub.hub._waiting == 1)
    thread.join()
    assert found[0].applications == {}
    device.close()


def test_a_restart_loses_nothing(tmp_path: Path, address: str) -> None:
    with running(tmp_path / "hub", address) as hub:
        device, operator = hub.device("one"), hub.token("ann", "operator")
        hub.order("POST", "/v1/rollouts", PLAN, operator)
        first = device.check_in(ONE._replace(events=(Event(1, 1.0, "x"),)))
        device.close()
    with running(tmp_path / "hub", address) as hub:
        again_ = Conversation(hub.url, device.identity, timeout=60)
        again_._token = device._token  # sessions go on as well
        second = again_.check_in(report())
        assert again_._token == device._token
        assert (second.received, second.applications) == (1, first.applications)
        assert hub.order("GET", "/v1/fleet", token=operator).json["devices"] == 1
        again_.close()


def test_what_could_not_be_stored_is_not_told(hub: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full for a while: devices come again, and the fleet is as the database has it."""
    device, operator = hub.device("one"), hub.token("ann", "operator")
    hub.order("POST", "/v1/rollouts", PLAN, operator)
    before = hub.hub.fleet

    def full(*_: Any) -> None:
        raise HubError("disk full")

    monkeypatch.setattr(hub.hub.writer, "_stored", full)
    with pytest.raises(LaterError, match="disk full") as caught:
        device.check_in(ONE)
    assert caught.value.seconds == 5
    monkeypatch.undo()
    until(lambda: not hub.hub._stale)
    assert hub.hub.fleet is not before
    (rollout,) = hub.hub.fleet.rollouts.values()
    assert rollout.members == {}
    assert device.check_in(ONE).applications["keys"].version == "2"
    assert set(rollout.members) == {device.identity.enrolled.device}  # type: ignore[union-attr]
    device.close()


def test_a_database_that_fails_is_for_later(hub: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for who enrols: the device is not refused, and its token still works."""
    device, token = hub.conversation("one"), hub.token("t")

    def full(*_: Any) -> None:
        raise DatabaseError("disk full")

    monkeypatch.setattr(hub.hub.writer, "_stored", full)
    with pytest.raises(LaterError, match="disk full") as caught:
        device.enrol(token, {})
    assert caught.value.seconds == 5
    monkeypatch.undo()
    device.enrol(token, {})
    assert device.check_in(ONE).received == 0
    device.close()


def test_a_hub_without_its_database_is_not_well(hub: Running) -> None:
    assert hub.ask("GET", "/v1/health").status == 200
    hub.hub._stale = True
    found = hub.ask("GET", "/v1/health")
    assert (found.status, found.headers["Retry-After"]) == (503, "5")
    hub.hub._stale = False


def test_a_device_that_was_blocked_while_it_waited_gets_no_answer(hub: Running) -> None:
    device, operator = hub.device("one"), hub.token("ann", "operator")
    device.check_in(ONE)
    found: list[Any] = []

    def wait() -> None:
        try:
            found.append(device.check_in(ONE, wait=55))
        except RefusedError as problem:
            found.append(str(problem))

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: hub.hub._waiting == 1)
    path = f"/v1/fleet/devices/{device.identity.enrolled.device}"  # type: ignore[union-attr]
    assert hub.order("POST", path, {"state": "blocked"}, operator).status == 200
    assert hub.order("POST", "/v1/rollouts", PLAN, operator).status == 201
    thread.join()
    assert "was blocked" in found[0]
    device.close()


def test_a_block_outlives_a_fleet_that_is_read_again_meanwhile(hub: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fleet was read before the block was stored, and takes its place after."""
    from cloud.hub.server.fleet import Fleet

    device, operator = hub.device("one"), hub.token("ann", "operator")
    identity = device.identity.enrolled.device  # type: ignore[union-attr]
    real = hub.hub._run

    async def late(call: Any) -> Any:
        hub.hub.fleet = await real(Fleet)
        return await real(call)

    monkeypatch.setattr(hub.hub, "_run", late)
    assert hub.order("POST", f"/v1/fleet/devices/{identity}", {"state": "blocked"}, operator).json["state"] == "blocked"
    monkeypatch.undo()
    with pytest.raises(RefusedError, match="was blocked"):
        device.check_in(ONE)
    device.close()


def test_more_events_than_an_hour_may_have_come_in_parts(tmp_path: Path) -> None:
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), events=50.0) as hub:
        device = hub.device("one")
        many = ONE._replace(events=tuple(Event(n, 1.0, "x") for n in range(1, 201)))
        assert device.check_in(many).received == 50
        assert device.check_in(many).received == 50
        device.close()


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[tuple[Running, Conversation]]:
    top = tmp_path / "repository"
    for name, content in {"pieces/abc": b"0123456789" * 10_000, "metadata/timestamp.json": b"{}"}.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(content)
    (top / "pieces" / ".hidden").write_bytes(b"x")
    (tmp_path / "secret").write_bytes(b"x")
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), repository=str(top)) as hub:
        device = hub.device("one")
        yield hub, device
        device.close()


def test_files_are_read_whole_and_from_a_byte_on(shelf: tuple[Running, Conversation]) -> None:
    _, device = shelf
    whole = b"".join(device.open("pieces/abc"))
    assert whole == b"0123456789" * 10_000
    assert b"".join(device.open("pieces/abc", 99_995)) == b"56789"
    assert b"".join(device.open("metadata/timestamp.json")) == b"{}"


@pytest.mark.parametrize("name", ["pieces/none", "pieces/../../secret", "../secret", "pieces/.hidden", "etc/passwd",
                                  "pieces", "pieces/%2e%2e/%2e%2e/secret", "pieces/..%2f..%2fsecret"])  # fmt: skip
def test_no_other_file_is_read(name: str, shelf: tuple[Running, Conversation]) -> None:
    with pytest.raises(MissingError):
        b"".join(shelf[1].open(name))


def test_files_are_for_devices_alone(shelf: tuple[Running, Conversation]) -> None:
    hub, device = shelf
    assert hub.ask("GET", "/repository/pieces/abc").status == 401
    assert hub.ask("GET", "/repository/pieces/abc", token=hub.token("ann", "operator")).status == 401
    list(device.open("pieces/abc"))
    found = hub.ask("GET", "/repository/pieces/abc", token=device._token, Range="bytes=0-3")
    assert (found.status, found.content, found.headers["Content-Range"]) == (206, b"0123", "bytes 0-3/100000")
    assert "immutable" in found.headers["Cache-Control"]
    with pytest.raises(MissingError, match="no byte"):
        list(device.open("pieces/abc", 100_001))


def test_files_of_a_storage_that_is_no_folder_come_in_parts(
    shelf: tuple[Running, Conversation], tmp_path: Path
) -> None:
    """As from S3: the storage gives parts."""
    from cloud.hub.storage.folder import Folder

    class Other:
        def __init__(self, inner: Folder) -> None:
            self.size, self.open = inner.size, inner.open

    hub, device = shelf
    (files,) = _handlers(hub)
    files._storage = Other(files._storage)
    assert b"".join(device.open("pieces/abc", 3)) == (b"0123456789" * 10_000)[3:]
    found = hub.ask("GET", "/repository/pieces/abc", token=device._token, Range="bytes=5-6")
    assert (found.status, found.content, found.headers["Content-Range"]) == (206, b"56", "bytes 5-6/100000")
    assert hub.ask("GET", "/repository/pieces/abc", token=device._token, Range="bytes=100000-").status == 416
    assert hub.ask("HEAD", "/repository/pieces/abc", token=device._token).headers["Content-Length"] == "100000"


def test_a_storage_that_fails_in_the_middle_gives_no_other_bytes(shelf: tuple[Running, Conversation]) -> None:
    """The error is no part of the file."""

    class Broken:
        def size(self, name: str) -> int:
            return 100_000

        def open(self, name: str, start: int) -> Iterator[bytes]:
            yield b"0" * 1000
            raise StorageError("the disk is broken")

    hub, device = shelf
    (files,) = _handlers(hub)
    files._storage = Broken()
    got: list[bytes] = []
    with pytest.raises(LaterError):
        got.extend(device.open("pieces/abc"))
    assert set(b"".join(got)) <= {ord("0")}


def _handlers(hub: Running) -> list[Any]:
    import gc

    from cloud.hub.server.files import Files

    return [one for one in gc.get_objects() if type(one) is Files and one._devices.hub is hub.hub]


# -- pure parts --------------------------------------------------------------------------------------------------------


def test_a_herd_is_spread_and_stays_spread() -> None:
    """Ten thousand devices that start in the same second come back evenly, and do so ever after."""
    import random

    draw, interval = random.Random(1), 300.0
    times = [again(f"d{n}", interval, 1000.0, draw.random()) for n in range(10_000)]
    assert 0.5 * interval <= min(times)
    assert max(times) < 1.56 * interval
    later = [1000 + one + again(f"d{n}", interval, 1000 + one, draw.random()) for n, one in enumerate(times)]
    counts = [0] * 30
    for one in later:
        counts[int(one % interval / 10)] += 1
    assert max(counts) < 1.3 * 10_000 / 30
    assert min(counts) > 0.7 * 10_000 / 30


def test_a_large_fleet_comes_less_often() -> None:
    assert spread(300, 100, 200) == 300
    assert spread(300, 120_000, 200) == 600


def test_buckets() -> None:
    now = 0.0
    buckets = Buckets(2.0, 4.0, lambda: now, names=3)
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert buckets.take("b") == 0
    now = 1.0
    assert [buckets.take("a") for _ in range(3)] == [0, 0, 0.5]
    assert buckets.take("a", 3.0) == 1.5
    for name in "cdefg":
        buckets.take(name)
    assert len(buckets) == 3


def test_a_clock_that_is_set_back_empties_no_bucket() -> None:
    now = 1e9
    buckets = Buckets(1.0, 2.0, lambda: now)
    assert buckets.take("a") == 0
    now = 0.0
    assert [buckets.take("a"), buckets.take("a")] == [0, 1.0]
    now = 1.0
    assert buckets.take("a") == 0


def test_backoff_doubles_and_forgets() -> None:
    backoff = Backoff(2.0, 60.0, lambda: 1.0)
    assert [backoff.failed() for _ in range(7)] == [2, 4, 8, 16, 32, 60, 60]
    assert backoff.failed(30.0) == 90
    assert backoff.failed(1e9) == 120
    backoff.succeeded()
    assert backoff.failed() == 2
    assert Backoff(chance=lambda: 0.0).failed() == 0


def test_settings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "hub.toml"
    path.write_text('[hub]\naddress = "127.0.0.1:1"\ninterval = 5\n')
    assert read_settings(path) == Settings(address="127.0.0.1:1", interval=5.0)
    path.write_text("[hub]\nintervall = 5\n")
    with pytest.raises(HubError, match="did you mean 'interval'"):
        read_settings(path)


WRONG = {
    "an address": ({"address": "here"}, "expected HOST:PORT"),
    "others could listen": ({"address": "0.0.0.0:0"}, "expected a certificate and a key"),
    "a certificate alone": ({"certificate": "x"}, "give both"),
    "certificates of clients without TLS": ({"clients": True}, "over TLS"),
    "no such certificate": ({"certificate": "/none", "key": "/none"}, "expected PEM files"),
    "a port that is taken": ({"address": "127.0.0.1:PORT"}, "cannot listen there"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_hub_that_cannot_serve_says_why(case: str, tmp_path: Path) -> None:
    told, message = WRONG[case]
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = {k: v.replace("PORT", str(taken.getsockname()[1])) if isinstance(v, str) else v for k, v in told.items()}
        with pytest.raises(HubError, match=message), running(tmp_path / "hub", str(tmp_path / "h.sqlite"), **told):
            pass


def test_two_hubs_do_not_serve_from_one_database(hub: Running, tmp_path: Path, address: str) -> None:
    with pytest.raises(HubError, match="another hub serves"), running(tmp_path / "other", address):
        pass


# -- the agent's side --------------------------------------------------------------------------------------------------


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    Identity(tmp_path)
    os.chmod(tmp_path / "key.pem", 0o640)
    with pytest.raises(AgentError, match="chmod 600"):
        Identity(tmp_path)
    os.chmod(tmp_path / "key.pem", 0o600)
    (tmp_path / "key.pem").write_bytes(b"junk")
    with pytest.raises(AgentError, match="expected an Ed25519 private key"):
        Identity(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"device": 1, "hub": "x"}', b"\xff"])
def test_a_damaged_identity_is_refused(content: bytes, tmp_path: Path) -> None:
    Identity(tmp_path)
    (tmp_path / "hub.json").write_bytes(content)
    with pytest.raises(AgentError, match="enrol again"):
        Identity(tmp_path)


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://example.org", "https://", "https://a:b", "https://a@b", "https://a?b"]
)
def test_urls_that_are_none(url: str, tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="expected"):
        Conversation(url, Identity(tmp_path))


def test_a_device_that_is_not_enrolled_says_so(hub: Running) -> None:
    with pytest.raises(AgentError, match="enrol it with a token"):
        hub.conversation("new").check_in(ONE)


def test_a_hub_that_is_away_is_for_later(tmp_path: Path) -> None:
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite")) as hub:
        device = hub.device("one")
        device.check_in(ONE)
    with pytest.raises(LaterError):
        device.check_in(ONE)
    device.close()


def test_a_session_that_ended_is_opened_again(tmp_path: Path) -> None:
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), session=1.0) as hub:
        device = hub.device("one")
        device.check_in(ONE)
        first = device._token
        until(lambda: hub.hub.sessions.device(first) is None)
        device.check_in(ONE)
        assert device._token != first
        device.close()


def test_a_reply_that_is_none_is_refused(hub: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    device = hub.device("one")
    monkeypatch.setattr(checkin, "written", lambda message: b"{}" if isinstance(message, Report) else b"[]")
    with pytest.raises(RefusedError, match="protocol: expected 1"):
        device.check_in(ONE)
    device.close()
