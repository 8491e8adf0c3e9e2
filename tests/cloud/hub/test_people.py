"""What people ask over HTTP: logins, searches, rollouts over time, the audit log, releases and where they come from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import pytest

from cloud.hub.database import audit, devices
from cloud.hub.database.engine import Cursor
from cloud.hub.pages import pages
from cloud.hub.rollouts.progress import curves
from cloud.hub.server.people.health import health
from cloud.hub.server.people.logins import LASTS, Logins
from lite_runtime.updates import checkin
from lite_runtime.updates.checkin import Application, Outcome, Report
from tests.cloud.hub.serving import Answer, Running, running
from tests.cloud.hub.world import World, bundle_at
from tests.waiting import until

OWN: dict[str, Any] = {"Sec_Fetch_Site": "same-origin"}
PLAN: dict[str, Any] = {"application": "keys", "version": "2", "steps": [100], "soak": 0, "patience": 1e6}


@pytest.fixture
def hub(tmp_path: Path, address: str) -> Iterator[Running]:
    with running(tmp_path / "hub", address) as made:
        yield made


def enrolled(cursor: Cursor, number: int, told: Report | None = None, state: str = "active", **labels: str) -> str:
    """A device, as if it had enrolled and checked in."""
    identity = f"d{number:020x}"
    words = checkin.written(told).decode() if told is not None else ""
    seen = 1.0 if told is not None else 0.0
    devices.add(cursor, devices.Device(identity, f"{number:064x}", state, 1.0, seen, labels, words, 0, 0, 2e9, "t"))
    return identity


def login(hub: Running, token: str, **headers: Any) -> Answer:
    return hub.ask("POST", "/v1/login", json.dumps({"token": token}).encode(), **{**OWN, **headers})


def cookie_of(answer: Answer) -> str:
    (found,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
    return f"{found.key}={found.value}"


# -- logins ------------------------------------------------------------------------------------------------------------


def test_a_login_is_a_cookie_that_scripts_cannot_read_and_other_sites_do_not_send(hub: Running) -> None:
    token = hub.token("ann", "operator")
    answer = login(hub, token)
    assert (answer.status, answer.json) == (200, {"name": "ann", "scope": "operator"})
    (found,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
    assert (found["httponly"], found["samesite"], found["path"]) == (True, "Strict", "/")
    assert int(found["max-age"]) == LASTS
    assert token not in answer.headers["Set-Cookie"]
    assert token.rpartition("_")[2] not in found.value
    shown = hub.ask("GET", "/v1/login", Cookie=cookie_of(answer), **OWN)
    assert shown.json == {"name": "ann", "scope": "operator"}
    assert hub.ask("GET", "/v1/login", **OWN).json == {"name": "", "scope": ""}
    log = hub.order("GET", "/v1/audit", token=token).json["entries"]
    assert [(one["who"], one["data"]) for one in log if one["what"] == "login"] == [("ann", {"address": "127.0.0.1"})]


def test_over_tls_the_cookie_is_for_this_host_over_tls_alone(hub: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that is trusted says how the browser came; anybody else's word counts for nothing."""
    token = hub.token("ann", "operator")
    assert login(hub, token, X_Forwarded_Proto="https").headers["Set-Cookie"].startswith("msedge-hub=")
    monkeypatch.setattr(hub.hub, "settings", _proxied(hub))
    found = login(hub, token, X_Forwarded_Proto="https").headers["Set-Cookie"]
    assert found.startswith("__Host-msedge-hub=")
    assert "; Secure" in found
    assert "Domain" not in found


def _proxied(hub: Running) -> Any:
    import msgspec

    return msgspec.structs.replace(hub.hub.settings, proxies=("127.0.0.1",))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": 1}', b'{"token": "x", "more": 1}', b"{" * 2000])
def test_a_login_that_is_none(body: bytes, hub: Running) -> None:
    assert hub.ask("POST", "/v1/login", body, **OWN).status in (400, 413)


def test_tokens_of_devices_and_other_texts_log_nobody_in(hub: Running) -> None:
    for token in ("", "x", hub.token("new"), hub.token("ann", "operator")[:-1]):
        assert login(hub, token).status == 401


def test_guessing_tokens_by_logging_in_is_slow(hub: Running) -> None:
    found = [login(hub, "x").status for _ in range(12)]
    assert (found[0], found[-1]) == (401, 429)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", ""])
def test_what_another_site_makes_a_browser_ask_changes_nothing(site: str, hub: Running) -> None:
    cookie = cookie_of(login(hub, hub.token("ann", "operator")))
    headers: dict[str, Any] = {"Cookie": cookie, **({"Sec_Fetch_Site": site} if site else {})}
    found = hub.ask("POST", "/v1/rollouts", json.dumps(PLAN).encode(), **headers)
    assert (found.status, "expected a request of the hub's own pages" in found.error) == (403, True)
    assert not hub.hub.fleet.rollouts
    assert hub.ask("DELETE", "/v1/login", **headers).status == 403
    assert hub.ask("GET", "/v1/fleet", **headers).status == (200 if site == "none" else 403)
    assert hub.ask("POST", "/v1/rollouts", json.dumps(PLAN).encode(), Cookie=cookie, **OWN).status == 201


def test_nobody_is_logged_in_by_another_site(hub: Running) -> None:
    """Whoever is logged in as somebody else may tell them what they do."""
    assert login(hub, hub.token("mallory", "viewer"), Sec_Fetch_Site="cross-site").status == 403


def test_a_viewer_who_is_logged_in_changes_nothing(hub: Running) -> None:
    cookie = cookie_of(login(hub, hub.viewer))
    assert hub.ask("GET", "/v1/fleet", Cookie=cookie, **OWN).status == 200
    assert hub.ask("POST", "/v1/rollouts", json.dumps(PLAN).encode(), Cookie=cookie, **OWN).status == 403


def test_a_login_ends_with_its_token(hub: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloud.hub.database import tokens
    from cloud.hub.server import hub as module

    monkeypatch.setattr(module, "_KNOWN", 0.0)
    cookie = cookie_of(login(hub, hub.token("ann", "operator")))
    assert hub.ask("GET", "/v1/fleet", Cookie=cookie, **OWN).status == 200
    hub.call(hub.hub._run(lambda cursor: tokens.revoke(cursor, "ann")))
    assert hub.ask("GET", "/v1/fleet", Cookie=cookie, **OWN).status == 401


def test_a_copy_of_the_cookie_is_worth_nothing_after_logging_out(hub: Running) -> None:
    cookie = cookie_of(login(hub, hub.token("ann", "operator")))
    out = hub.ask("DELETE", "/v1/login", Cookie=cookie, **OWN)
    assert (out.status, "Max-Age=0" in out.headers["Set-Cookie"]) == (204, True)
    assert hub.ask("GET", "/v1/fleet", Cookie=cookie, **OWN).status == 401


def test_logins_end_and_are_bounded() -> None:
    now = 0.0
    logins = Logins(lambda: now)
    first = logins.begin("a")
    others = [logins.begin("b") for _ in range(40)]
    assert [logins.token(one) for one in others] == [""] * 24 + ["b"] * 16
    assert logins.token(first) == "a"
    now = LASTS - 1
    assert logins.token(first) == "a"
    now = LASTS
    assert logins.token(first) == ""
    logins.begin("c")
    assert len(logins._open) == 1


# -- the pages' files --------------------------------------------------------------------------------------------------


def test_the_pages_files_say_what_may_run(hub: Running) -> None:
    document = hub.ask("GET", "/")
    policy = dict(part.split(" ", 1) for part in document.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    for name in re.findall(r'(?:src|href)="(pages/[^"]+)"', document.content.decode()):
        found = hub.ask("GET", f"/{name}")
        assert (found.status, found.headers["X-Content-Type-Options"]) == (200, "nosniff")
        again = hub.ask("GET", f"/{name}", If_None_Match=found.headers["ETag"])
        assert (again.status, again.content) == (304, b"")
    for name in ("none.js", "__init__.py", "..%2f__init__.py", "%2e%2e/__init__.py"):
        assert hub.ask("GET", f"/pages/{name}").status == 404


def test_the_pages_bring_everything_and_make_no_markup_of_text() -> None:
    for name, page in pages().items():
        text = page.body.decode()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        for never in (r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function",
                      r"localStorage|sessionStorage|indexedDB|document\.cookie"):  # fmt: skip
            assert not re.search(never, text), name
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bon\w+=", pages()[""].body.decode())


def test_answers_are_kept_by_no_browser(hub: Running) -> None:
    found = hub.order("GET", "/v1/fleet", token=hub.viewer)
    assert (found.headers["Cache-Control"], found.headers["X-Content-Type-Options"]) == ("no-store", "nosniff")


# -- devices -----------------------------------------------------------------------------------------------------------


def found(hub: Running, search: str = "", **query: Any) -> Any:
    from urllib.parse import urlencode

    return hub.order("GET", f"/v1/fleet/devices?{urlencode({'search': search, **query})}", token=hub.viewer).json


@pytest.fixture
def many(tmp_path: Path, address: str) -> Iterator[Running]:
    """Two hundred devices; every fourth is in the north, every fifth has version 2, one is blocked."""
    from cloud.hub.database.opening import opened

    database = opened(address)
    with database.transaction() as cursor:
        for number in range(200):
            region = "north-1" if number % 4 == 0 else "south"
            applications = {"keys": Application("2" if number % 5 == 0 else "1")}
            told = Report({"region": region}, "x86-64-v3", "0.1.0", applications=applications)
            enrolled(cursor, number, told, "blocked" if number == 7 else "active", ring=str(number % 2))
    database.close()
    with running(tmp_path / "hub", address) as made:
        yield made


def test_devices_are_searched_by_the_hub(many: Running) -> None:
    assert found(many)["total"] == 200
    assert found(many, "region=north*")["total"] == 50
    assert found(many, "region=north* keys=2")["total"] == 10
    assert found(many, "north-1 RING=0")["total"] == 0
    assert found(many, "NORTH ring=0")["total"] == 50
    assert [one["id"] for one in found(many, "state=blocked")["devices"]] == [f"d{7:020x}"]
    assert found(many, "seen=late")["total"] == 200
    assert found(many, "seen=current")["total"] == found(many, "update=failed")["total"] == 0
    assert found(many, f"d{9:020x}")["total"] == 1
    assert found(many, "region=east")["total"] == found(many, "nothing%_")["total"] == 0
    assert many.order("GET", f"/v1/fleet/devices?search={'x' * 300}", token=many.viewer).status == 400


def test_devices_come_a_page_at_a_time(many: Running) -> None:
    seen: list[str] = []
    page = found(many, "ring=1", most=30)
    while True:
        seen += [one["id"] for one in page["devices"]]
        assert page["total"] == 100
        if not page["more"]:
            break
        page = found(many, "ring=1", most=30, after=seen[-1])
    assert seen == [f"d{number:020x}" for number in range(1, 200, 2)]


def test_devices_of_a_rollout(many: Running) -> None:
    operator = many.token("ann", "operator")
    identity = many.order("POST", "/v1/rollouts", {**PLAN, "version": "3"}, operator).json["id"]
    one = many.device("one")
    told = Report(applications={"keys": Application("1")})
    assert one.check_in(told).applications["keys"].version == "3"
    assert found(many, f"rollout={identity}")["total"] == 1
    assert found(many, f"rollout={identity} verdict=open")["total"] == 1
    bad = Application("1", outcome=Outcome("3", identity, "self-test"))
    one.check_in(told._replace(applications={"keys": bad}))
    assert found(many, f"rollout={identity} verdict=bad")["total"] == 1
    assert found(many, "update=failed seen=current")["total"] == 1
    assert found(many, "rollout=other")["total"] == 0


def test_how_a_fleet_does(hub: Running) -> None:
    def device(seen: float, state: str = "active", **applications: Application) -> Any:
        from cloud.hub.server.fleet import Known

        words = checkin.written(Report(applications=applications)).decode()
        return Known(devices.Device("d", "k", state, 0.0, seen, {}, words, 0, 0, 0.0, "t"))

    bad = Application("1", outcome=Outcome("2", "r", "rolled-back"))
    fleet = [
        device(1000.0, a=Application("1", "2")), device(900.0, a=bad, b=bad), device(100.0), device(0.0),
        device(1000.0, "blocked", a=bad),
    ]  # fmt: skip
    said = health(fleet, 1000.0, 60.0)
    assert (said["current"], said["late"], said["never"], said["failed"]) == (2, 1, 1, 1)
    assert said["trial"] == {"a": 1}
    assert said["outcomes"] == {"a": {"rolled-back": 1}, "b": {"rolled-back": 1}}
    assert hub.order("GET", "/v1/fleet", token=hub.viewer).json["health"]["never"] == 0


# -- rollouts over time ------------------------------------------------------------------------------------------------


def test_curves_of_a_rollout() -> None:
    events = [(1.0, "a", ""), (2.0, "b", ""), (4.0, "a", "good"), (6.0, "b", "neutral"), (8.0, "a", "bad")]
    made = curves(events, 0.0, 10.0, 6)
    assert made.times == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert made.members == (0, 2, 2, 2, 2, 2)
    assert made.good == (0, 0, 1, 1, 0, 0)
    assert made.bad == (0, 0, 0, 0, 1, 1)
    assert curves([], 5.0, 5.0, 3).members == (0, 0, 0)


def test_the_progress_of_a_rollout(hub: Running) -> None:
    identity = hub.order("POST", "/v1/rollouts", PLAN, hub.token("ann", "operator")).json["id"]
    device = hub.device("one")
    told = Report(applications={"keys": Application("1")})
    device.check_in(told)
    device.check_in(told._replace(applications={"keys": Application("2", outcome=Outcome("2", identity, "committed"))}))
    said = hub.order("GET", f"/v1/rollouts/{identity}/progress", token=hub.viewer).json
    assert (said["members"][-1], said["good"][-1], said["bad"][-1]) == (1, 1, 0)
    assert said["members"][0] == 0
    assert hub.order("GET", "/v1/rollouts/none/progress", token=hub.viewer).status == 409


def test_rollouts_by_status(hub: Running) -> None:
    operator = hub.token("ann", "operator")
    for version in ("2", "3", "4"):
        identity = hub.order("POST", "/v1/rollouts", {**PLAN, "version": version}, operator).json["id"]
    hub.order("POST", f"/v1/rollouts/{identity}/pause", {"why": "lunch"}, operator)
    paused = hub.order("GET", "/v1/rollouts?status=paused", token=operator).json
    assert [(one["id"], one["reason"]) for one in paused["rollouts"]] == [(identity, "lunch")]
    some = hub.order("GET", "/v1/rollouts?most=2", token=operator).json
    assert (len(some["rollouts"]), some["total"]) == (2, 3)


# -- the audit log -----------------------------------------------------------------------------------------------------


def test_the_audit_log_backwards(hub: Running) -> None:
    operator = hub.token("ann", "operator")
    identity = hub.order("POST", "/v1/rollouts", PLAN, operator).json["id"]
    hub.order("POST", f"/v1/rollouts/{identity}/pause", {"why": "100% of_them"}, operator)

    def latest(query: str) -> Any:
        return hub.order("GET", f"/v1/audit/latest?{query}", token=operator).json

    page = latest("most=1")
    (entry,) = page["entries"]
    assert (entry["what"], page["more"], entry["chain"]) == ("rollout paused", True, page["head"])
    assert latest(f"most=1&before={page['number']}")["entries"][0]["what"] == "rollout started"
    assert [one["what"] for one in latest(f"search={identity}")["entries"]] == ["rollout paused", "rollout started"]
    assert [one["what"] for one in latest("search=100%25+OF_")["entries"]] == ["rollout paused"]
    assert latest("search=100%25+ofx")["entries"] == latest("search=1%250")["entries"] == []
    assert hub.order("GET", "/v1/audit/latest?search=%00", token=operator).status == 400


def test_the_exported_audit_log_is_whole(hub: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In parts, and as `msedge hub audit --from` reads it."""
    from cloud.hub.server import operators
    from edge.cli.hub_serve import _read_log

    monkeypatch.setattr(operators, "_PAGE", 7)
    for number in range(20):
        hub.call(hub.hub.noted("ann", f"thing {number}", {"number": number}))
    answer = hub.order("GET", "/v1/audit/export", token=hub.viewer)
    assert answer.headers["Content-Disposition"] == 'attachment; filename="audit.jsonl"'
    (tmp_path / "audit.jsonl").write_bytes(answer.content)
    number, head = audit.verified(_read_log(tmp_path / "audit.jsonl"))
    shown = hub.order("GET", "/v1/audit/latest", token=hub.viewer).json
    assert (number, head) == (shown["number"], shown["head"])
    assert hub.order("GET", "/v1/audit/export").status == 401


def test_reading_keeps_nobody_from_writing(hub: Running) -> None:
    """A page that takes long must not make devices wait."""

    def look(cursor: Cursor) -> int:
        before = len(audit.entries(cursor))
        hub.hub.writer.run(lambda other: audit.add(other, 1.0, "x", "y", {})).result(30)
        assert len(audit.entries(cursor)) == before
        return before

    before = hub.call(hub.hub.read(look))
    assert len(hub.call(hub.hub.read(audit.entries))) == before + 1


# -- releases ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def released(tmp_path: Path) -> Iterator[tuple[World, Running]]:
    world = World(tmp_path)
    world.releases.add("keys", "1", {"model.mslite": bundle_at(tmp_path / "one.mslite", 1)}, lineage={"data": "d" * 64})
    digest = world.releases.release("keys", "1").files["model.mslite"].digest
    own = {"source": "5" * 64, "run": "run-7", "parent": digest}
    lineage = {**{f"model.mslite.{name}": value for name, value in own.items()}, "data": "e" * 64}
    world.releases.add("keys", "2", {"model.mslite": bundle_at(tmp_path / "two.mslite", 2)}, lineage=lineage)
    world.releases.promote("keys", "1", "stable")
    repository = str(tmp_path / "repository")
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), repository=repository) as made:
        yield world, made


def test_what_the_repository_has(released: tuple[World, Running]) -> None:
    _, hub = released
    operator = hub.token("ann", "operator")
    said = hub.order("GET", "/v1/releases", token=hub.viewer).json["applications"]
    assert said["keys"] == {"versions": ["1", "2"], "channels": {"stable": ["1"]}, "rolled": []}
    hub.order("POST", "/v1/rollouts", PLAN, operator)
    until(lambda: hub.order("GET", "/v1/releases", token=hub.viewer).json["applications"]["keys"]["rolled"] == ["2"])


def test_where_a_version_comes_from(released: tuple[World, Running]) -> None:
    world, hub = released
    said = hub.order("GET", "/v1/releases/keys/2", token=hub.viewer).json
    file = world.releases.release("keys", "2").files["model.mslite"]
    parent = world.releases.release("keys", "1").files["model.mslite"]
    assert said["files"]["model.mslite"]["digest"] == file.digest
    assert [(one["kind"], one["digest"], one["sources"]) for one in said["chain"]] == [
        ("data", "e" * 64, []), ("training run", "run-7", [0]), ("model", "5" * 64, [1]), ("bundle", parent.digest, []),
        ("bundle", file.digest, [2, 3]), ("release", "keys 2", [4]),
    ]  # fmt: skip
    assert said["chain"][3]["text"] == "version 1"
    assert (said["channels"], said["rollouts"], said["devices"]) == ([], [], 0)


def test_devices_that_run_a_version(released: tuple[World, Running]) -> None:
    _, hub = released
    hub.device("one").check_in(Report(applications={"keys": Application("2")}))
    identity = hub.order("POST", "/v1/rollouts", PLAN, hub.token("ann", "operator")).json["id"]
    said = hub.order("GET", "/v1/releases/keys/2", token=hub.viewer).json
    assert (said["devices"], [one["id"] for one in said["rollouts"]]) == (1, [identity])


@pytest.mark.parametrize("path", ["keys/9", "none/1", "keys/..%2f..", "keys/channels"])
def test_a_version_that_is_none(path: str, released: tuple[World, Running]) -> None:
    _, hub = released
    assert hub.order("GET", f"/v1/releases/{path}", token=hub.viewer).status in (404, 409)


def test_a_hub_without_a_repository_has_no_releases(hub: Running) -> None:
    assert hub.order("GET", "/v1/releases", token=hub.viewer).json == {"applications": {}}
    assert hub.order("GET", "/v1/releases/keys/1", token=hub.viewer).status == 404
    assert hub.order("GET", "/v1/releases").status == 401
