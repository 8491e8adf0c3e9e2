"""The hub's pages in a real browser: logging in, approving by a click and by keys, watching progress, on a phone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.browser.chromium import Chromium
from benchmarks.browser.chromium import found as chromium
from cloud.hub.database.opening import opened
from cloud.hub.server.hub import Refused
from edge.agent.conversation import Conversation
from lite_runtime.updates.checkin import Application, Event, Outcome, Report
from tests.cloud.hub.pages import Reader
from tests.cloud.hub.serving import Running, running
from tests.cloud.hub.test_people import enrolled
from tests.cloud.hub.world import World, bundle_at
from tests.waiting import until

pytestmark = pytest.mark.skipif(not chromium(), reason="needs Chromium")
HOSTILE = "<img src=x onerror=alert(1)>"
PLAN: dict[str, Any] = {"application": "keys", "version": "2", "steps": [60, 100], "soak": 0, "patience": 1e6}
PAGES = {
    "fleet": "Fleet", "devices": "Devices", "approvals": "Approvals", "rollouts": "Rollouts", "models": "Models",
    "audit": "Audit log",
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as made:
        yield made


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Running]:
    """With a repository of two versions."""
    world = World(tmp_path)
    for version in ("1", "2"):
        bundle = bundle_at(tmp_path / f"{version}.mslite", int(version), source=version * 64)
        lineage = {"data": "d" * 64, "model.mslite.source": version * 64, "model.mslite.run": f"run-{version}"}
        world.releases.add("keys", version, {"model.mslite": bundle}, lineage=lineage)
        world.releases.promote("keys", version, "stable")
    repository = str(tmp_path / "repository")
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), repository=repository) as made:
        yield made


def told(version: str, outcome: Outcome | None = None) -> Report:
    applications = {"keys": Application(version, outcome=outcome)}
    return Report({"region": "north"}, "x86-64-v3", "0.1.0", applications=applications)


def devices(hub: Running, count: int) -> list[Conversation]:
    made = [hub.device(f"d{number}") for number in range(count)]
    for device in made:
        device.check_in(told("1"))
    return made


def updated(device: Conversation, kind: str = "committed") -> bool:
    """Check in and, if there is a new version, say how it ended."""
    assigned = device.check_in(told("1")).applications.get("keys")
    if assigned is None:
        return False
    version = "2" if kind == "committed" else "1"
    device.check_in(told(version, Outcome("2", assigned.rollout, kind, "because")))
    return True


def test_a_click_approves_and_progress_is_seen_without_loading_again(browser: Chromium, hub: Running) -> None:
    fleet, operator = devices(hub, 80), hub.token("ann", "operator")
    identity = hub.order("POST", "/v1/rollouts", PLAN, operator).json["id"]
    hub.order("POST", f"/v1/rollouts/{identity}/pause", {"why": "lunch"}, operator)
    reader = Reader(browser, hub.url)
    reader.login(operator)
    reader.go("approvals", "Approvals")
    reader.reads("Waiting for a decision", "keys 2", "paused", "lunch")
    reader.get("globalThis.same = true")
    reader.click("button", "Approve")
    reader.reads("Let it go on?")
    reader.click("#field-why")
    reader.write("looks well")
    reader.click("#confirm")
    reader.reads("approve was carried out", "Nothing waits.", "running")
    assert hub.hub.fleet.rollouts[identity].status == "running"
    assert not reader.there("dialog")
    reader.click("a", "keys 2")
    reader.reads(f"Rollout {identity}", "step 1 of 2")
    first = [device for device in fleet if updated(device)]
    assert 0 < len(first) < 80
    reader.reads(f"{len(first)} devices", f"{len(first)}\ndid well")
    until(lambda: [updated(one) for one in fleet] and hub.hub.fleet.rollouts[identity].status == "completed", 0.1)
    reader.reads("completed", "80 devices", "looks well", "devices did well")
    assert reader.get("document.querySelectorAll('svg polyline').length") == 3
    assert reader.get("globalThis.same")
    assert reader.problems() == []
    log = hub.order("GET", "/v1/audit", token=operator).json["entries"]
    (resumed,) = (one for one in log if one["what"] == "rollout resumed")
    assert (resumed["who"], resumed["data"]["why"]) == ("ann", "looks well")
    reader.page.close()


def looping(hub: Running, *steps: str) -> str:
    """A loop whose program has done these steps; a person is asked before `promote`. Returns the program's token."""
    program = hub.token("loop", "operator")
    cause = {"text": f"what devices tell of 1 has changed {HOSTILE}", "data": {"gates": ["promote"]}}
    for number, (kind, step) in enumerate([("began", ""), *(("done", step) for step in steps)], 1):
        more = cause if kind == "began" else {"data": {"value": 0.9123456, "before": None}}
        body = {"number": number, "kind": kind, "step": step, **more}
        assert hub.order("POST", "/v1/loops/keys/events", body, program).status == 200
    return program


STEPS = ("learn", "judge", "convert", "sign", "canary")


def test_a_click_lets_a_loop_go_on_but_not_its_own_program(browser: Chromium, hub: Running) -> None:
    program, operator = looping(hub, *STEPS), hub.token("ann", "operator")
    reader = Reader(browser, hub.url)
    reader.login(program)
    reader.go("approvals", "Approvals")
    reader.reads("Waiting for a decision", "keys, cycle 1", "waits before promote", HOSTILE, "0.9123")
    reader.click("button", "Approve")
    reader.click("#confirm")
    reader.reads("expected a person's token")
    reader.key("Escape")
    reader.click("#logout")
    reader.login(operator)
    reader.go("approvals", "Approvals")
    reader.click("button", "Approve")
    reader.reads('The step "promote" begins.')
    reader.click("#field-why")
    reader.write("looks well")
    reader.click("#confirm")
    reader.reads("approve was carried out", "Nothing waits.", "Loops")
    found = hub.order("GET", "/v1/loops/keys", token=operator).json
    assert (found["status"], found["step"], found["approvals"]) == ("running", "promote", {"promote": "ann"})
    assert found["log"][-1]["text"] == "looks well"
    assert reader.problems() == []
    reader.page.close()


def test_a_click_ends_a_cycle(browser: Chromium, hub: Running) -> None:
    looping(hub, *STEPS)
    operator = hub.token("ann", "operator")
    reader = Reader(browser, hub.url)
    reader.login(operator)
    reader.go("approvals", "Approvals")
    reader.click("button", "Reject")
    reader.reads("The cycle ends as failed")
    reader.click("#confirm")
    reader.reads("reject was carried out", "Nothing waits.", "Loops", "rejected by ann")
    found = hub.order("GET", "/v1/loops/keys", token=operator).json
    assert (found["status"], found["outcome"]) == ("idle", "failed")
    assert reader.problems() == []
    reader.page.close()


def test_keys_alone_abort_a_rollout(browser: Chromium, hub: Running) -> None:
    operator = hub.token("ann", "operator")
    identity = hub.order("POST", "/v1/rollouts", PLAN, operator).json["id"]
    reader = Reader(browser, hub.url)
    reader.login(operator)
    reader.tab_to("Approvals")
    reader.key("Enter")
    reader.reads("Under way", "keys 2")
    assert reader.get("document.activeElement.innerText") == "Approvals"
    assert reader.get("document.activeElement.tagName") == "H1"
    reader.tab_to("Abort")
    reader.key("Enter")
    reader.reads("Abort it?", "This cannot be undone")
    reader.key("Escape")
    until(lambda: not reader.there("dialog"), 0.05)
    assert hub.hub.fleet.rollouts[identity].status == "running"
    assert reader.get("document.activeElement.innerText") == "Abort"
    reader.key("Enter")
    reader.reads("Abort it?")
    reader.key("Tab")
    reader.write("complaints")
    reader.key("Enter")
    reader.reads("abort was carried out", "No rollout is under way.")
    found = hub.hub.fleet.rollouts[identity]
    assert (found.status, found.reason, found.back) == ("aborted", "complaints", True)
    reader.page.close()


def test_what_has_the_focus_keeps_it_while_figures_change(browser: Chromium, hub: Running) -> None:
    fleet, operator = devices(hub, 8), hub.token("ann", "operator")
    identity = hub.order("POST", "/v1/rollouts", {**PLAN, "steps": [100]}, operator).json["id"]
    reader = Reader(browser, hub.url)
    reader.login(operator)
    reader.go("approvals", "Approvals")
    reader.tab_to("Pause")
    reader.reads("0 devices")
    for device in fleet:
        updated(device)
    reader.reads("8 good")
    assert reader.get("document.activeElement.id") == f"pause-{identity}"
    reader.page.close()


def test_a_version_is_rolled_out_from_its_page(browser: Chromium, hub: Running) -> None:
    devices(hub, 2)
    reader = Reader(browser, hub.url)
    reader.login(hub.token("ann", "operator"))
    reader.go("approvals", "Approvals")
    reader.click("a", "keys 2")
    kinds = ("data", "training run", "model", "bundle", "release", "devices")
    reader.reads("Lineage", "run-2", "0 run it", *(f"{number} · {kind}" for number, kind in enumerate(kinds, 1)))
    reader.click("button", "Roll out…")
    reader.reads("Roll out keys 2")
    reader.get("document.getElementById('field-steps').value = '100, 5'")
    reader.click("#confirm")
    reader.reads("steps: expected growing percents")
    assert not hub.hub.fleet.rollouts
    reader.get("document.getElementById('field-steps').value = '10, 100'")
    reader.get("document.getElementById('field-cohort').value = 'region=north*|south, ring=0'")
    reader.click("#confirm")
    reader.reads("Rollout keys-2-", "region=north*|south, ring=0")
    (made,) = hub.hub.fleet.rollouts.values()
    assert (made.plan.version, made.plan.steps, made.plan.soak, made.plan.channel) == ("2", (10, 100), 3600, "stable")
    assert made.plan.cohort == {"region": ("north*", "south"), "ring": ("0",)}
    assert reader.problems() == []
    reader.page.close()


def test_a_viewer_sees_everything_and_has_nothing_to_press(browser: Chromium, hub: Running) -> None:
    devices(hub, 1)
    looping(hub, *STEPS)
    identity = hub.order("POST", "/v1/rollouts", PLAN, hub.token("ann", "operator")).json["id"]
    reader = Reader(browser, hub.url)
    reader.login(hub.viewer)
    (device,) = hub.hub.fleet.devices
    shown = {**PAGES, f"rollouts/{identity}": f"Rollout {identity}", f"devices/{device}": f"Device {device}",
             "models/keys/2": "keys 2"}  # fmt: skip
    for address, title in shown.items():
        reader.go(address, title)
        found = reader.get("[...document.querySelectorAll('button')].map((one) => one.innerText)")
        assert set(found) <= {"Log out", "Search"}
    assert reader.problems() == []
    reader.page.close()


def test_a_login_is_not_for_scripts_and_ends(browser: Chromium, hub: Running) -> None:
    reader = Reader(browser, hub.url)
    until(lambda: reader.there("#field-token"), 0.05)
    reader.click("#field-token")
    reader.write("hub_wrong")
    reader.key("Enter")
    reader.reads("expected a token of an operator or a viewer")
    reader.get("document.getElementById('field-token').value = ''")
    reader.click("#field-token")
    reader.login(hub.viewer)
    reader.reads("Rollouts under way", "a-viewer, viewer")
    assert reader.get("[document.cookie, localStorage.length, sessionStorage.length]") == ["", 0, 0]
    cookies = reader.page.ask("Network.getCookies")["cookies"]
    assert [(one["name"], one["httpOnly"], one["sameSite"]) for one in cookies] == [("msedge-hub", True, "Strict")]
    reader.page.ask("Page.reload")
    reader.reads("Rollouts under way")
    reader.click("#logout")
    reader.reads("Log in")
    assert reader.page.ask("Network.getCookies")["cookies"] == []
    reader.page.close()


@contextmanager
def elsewhere() -> Iterator[str]:
    """A server with a page of its own, on another port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><p>another page")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_another_page_of_this_machine_cannot_use_the_login(
    browser: Chromium, hub: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another port is the same site, so that the browser sends the cookie, and says who asks."""
    from cloud.hub.server.people import gate

    came: list[tuple[str, bool]] = []
    check = gate._of_own_page

    def look(request: Any) -> None:
        came.append((request.headers.get("Sec-Fetch-Site", ""), "msedge-hub" in request.cookies))
        check(request)

    monkeypatch.setattr(gate, "_of_own_page", look)
    operator = hub.token("ann", "operator")
    identity = hub.order("POST", "/v1/rollouts", PLAN, operator).json["id"]
    reader = Reader(browser, hub.url)
    reader.login(operator)
    with elsewhere() as other:
        reader.page.ask("Page.navigate", url=other)
        reader.reads("another page")
        about = "{ method: 'POST', mode: 'no-cors', credentials: 'include', body: '{}' }"
        reader.get(f"fetch('{hub.url}/v1/rollouts/{identity}/abort', {about}).then(() => true)")
    assert ("same-site", True) in came
    assert hub.hub.fleet.rollouts[identity].status == "running"
    reader.page.close()


def test_text_of_a_device_stays_text(browser: Chromium, hub: Running) -> None:
    device = hub.device("one", {"note": HOSTILE})
    report = told("1", Outcome("2", "r", "broken", HOSTILE))
    events = (Event(1, 1.0, "trial", "keys", "2", HOSTILE),)
    device.check_in(report._replace(attributes={"region": HOSTILE}, events=events))
    reader = Reader(browser, hub.url)
    reader.login(hub.token("ann", "operator"))
    (identity,) = hub.hub.fleet.devices
    reader.go(f"devices/{identity}", f"Device {identity}")
    reader.reads(HOSTILE, "Events")
    reader.click("button", "Block")
    reader.click("#confirm")
    reader.reads("the device is blocked", "Let it come again")
    assert hub.hub.fleet.devices[identity].state == "blocked"
    reader.go("devices", "Devices")
    reader.reads(f"region={HOSTILE}", "blocked")
    reader.go("devices?search=%3Cimg", "Devices")
    reader.reads("1 device")
    assert not reader.there("img")
    assert reader.problems() == []
    reader.page.close()


def test_a_hub_that_is_away_is_said_and_found_again(
    browser: Chromium, hub: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloud.hub.server import operators

    reader = Reader(browser, hub.url)
    reader.login(hub.viewer)
    reader.reads("Rollouts under way")

    def broken(*_: object) -> Any:
        raise Refused(503, "the hub is busy")

    with monkeypatch.context() as patch:
        patch.setattr(operators, "health", broken)
        reader.reads("the hub is busy")
        assert reader.there("main.stale")
    until(lambda: not reader.there("main.stale"), 0.05)
    assert "the hub is busy" not in reader.text()
    reader.page.close()


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Running]:
    """Ten thousand devices, as their last reports were."""
    database = opened(str(tmp_path / "hub.sqlite"))
    with database.transaction() as cursor:
        for number in range(10_000):
            report = told("2" if number % 7 == 0 else "1")
            report = report._replace(attributes={"region": f"region-{number % 100}"})
            enrolled(cursor, number, report, ring=str(number % 3))
    database.close()
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite")) as made:
        yield made


def test_ten_thousand_devices_are_searched_and_paged(browser: Chromium, large: Running) -> None:
    reader = Reader(browser, large.url)
    reader.login(large.viewer)
    reader.reads("10,000\ndevices")
    reader.go("devices", "Devices")
    reader.reads("10,000 devices")
    rows = "document.querySelectorAll('tbody tr').length"
    assert reader.get(rows) == 50
    reader.click("#search")
    reader.write("region=region-4? ring=1 keys=1")
    reader.key("Enter")
    wanted = [n for n in range(10_000) if 40 <= n % 100 < 50 and n % 3 == 1 and n % 7]
    reader.reads(f"{len(wanted)} devices", f"d{wanted[0]:020x}")
    reader.click("a", "Next")
    reader.reads(f"d{wanted[50]:020x}", "First")
    assert f"d{wanted[0]:020x}" not in reader.text()
    reader.get("history.back()")
    reader.reads(f"d{wanted[0]:020x}")
    reader.click("a", f"d{wanted[1]:020x}")
    reader.reads(f"Device d{wanted[1]:020x}", "What is known")
    assert reader.problems() == []
    reader.page.close()


@pytest.mark.parametrize("width", [320, 390])
def test_nothing_is_wider_than_a_phone(width: int, browser: Chromium, hub: Running) -> None:
    fleet, operator = devices(hub, 3), hub.token("ann", "operator")
    identity = hub.order("POST", "/v1/rollouts", {**PLAN, "steps": [100]}, operator).json["id"]
    looping(hub, *STEPS)
    for device in fleet:
        updated(device)
    reader = Reader(browser, hub.url)
    reader.size(width, 844)
    until(lambda: reader.there("#field-token"), 0.05)
    assert reader.get("document.documentElement.scrollWidth") <= width
    reader.login(operator)
    one = next(iter(hub.hub.fleet.devices))
    shown = {**PAGES, f"rollouts/{identity}": f"Rollout {identity}", f"devices/{one}": f"Device {one}",
             "models/keys/2": "keys 2"}  # fmt: skip
    for address, title in shown.items():
        reader.go(address, title)
        assert reader.get("document.documentElement.scrollWidth") <= width, address
        pressed = "[...document.querySelectorAll('button, input:not([type=checkbox])')]"
        small = f"{pressed}.filter((one) => one.offsetHeight < 40).map((one) => one.outerHTML)"
        assert reader.get(small) == [], address
    reader.go("approvals", "Approvals")
    reader.click("button", "Pause")
    reader.reads("Pause it?")
    assert reader.get("document.querySelector('dialog').getBoundingClientRect().right") <= width
    reader.click("#confirm")
    reader.reads("Waiting for a decision", "Approve")
    assert hub.hub.fleet.rollouts[identity].status == "paused"
    reader.page.close()


def test_the_audit_log_is_shown_searched_and_exported(browser: Chromium, hub: Running, tmp_path: Path) -> None:
    from cloud.hub.database import audit
    from edge.cli.hub_serve import _read_log

    operator = hub.token("ann", "operator")
    hub.order("POST", "/v1/rollouts", PLAN, operator)
    reader = Reader(browser, hub.url)
    reader.login(operator)
    reader.go("audit", "Audit log")
    reader.reads("rollout started", "login")
    reader.click("#search")
    reader.write("started")
    reader.key("Enter")
    until(lambda: reader.get("document.querySelectorAll('tbody tr').length") == 1, 0.05)
    folder = tmp_path / "downloads"
    folder.mkdir()
    reader.page.ask("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    reader.click("#export")
    until(lambda: (folder / "audit.jsonl").is_file(), 0.05)
    number, head = audit.verified(_read_log(folder / "audit.jsonl"))
    reader.reads(f"{number} entries", head)
    reader.page.close()
