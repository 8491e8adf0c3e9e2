"""The agent on a disk: updates, trials, returns, what goes wrong in between, and what is left over."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lite_runtime
from edge.agent.agent import Agent, installed
from edge.agent.application import Settings
from edge.agent.checking.health import Function
from edge.agent.checking.trying import Limits
from edge.agent.conditions import Conditions
from edge.agent.errors import AgentError, FetchError
from edge.agent.update import Phase, Rules
from lite_runtime.updates import checkin
from lite_runtime.updates.checkin import Assignment, Reply
from lite_runtime.updates.release import Requirements
from tests.edge.agent.shelf import APP, Here, Shelf, model

FILE = "keywords.mslite"
AT_ONCE = Rules(seconds=0, successes=1, failures=1)
QUICK = Settings(rules=AT_ONCE, every=0.0, limits=Limits(reference=False), conditions=Conditions(free=0))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed may be tried again at once."""
    monkeypatch.setattr("edge.agent.application.FIRST", 0.0)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles are not run before the switch, which takes a process each."""
    from edge.agent.checking.trying import Trial

    monkeypatch.setattr("edge.agent.application.tried", lambda *_: Trial(1, 1.0, 0, True))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    made = Shelf(tmp_path / "shelf")
    made.add("1", {FILE: model(2.0)})
    return made


def agent(tmp_path: Path, shelf: Shelf | None, settings: Settings = QUICK, **facts: Any) -> Agent:
    made = Agent(tmp_path / "device", {APP: settings}, shelf, machine=Here(**facts), every=0.0)
    made.start()
    return made


def factor(made: Agent | Path) -> float:
    """What the running bundle multiplies by."""
    path = made.current(APP, FILE) if isinstance(made, Agent) else installed(made, APP, FILE)
    assert path is not None
    return float(lite_runtime.load(path).run({"x": np.ones((1, 4), np.float32)})["y"][0, 0])


def settle(made: Agent, times: int = 4) -> None:
    for _ in range(times):
        made.once()


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() or path.is_symlink())


KEPT = ["applications/keywords/current", "applications/keywords/state.json", "events.json", "lock"]


def expected(*slots: str) -> list[str]:
    rows = [f"applications/keywords/{slot}/{name}" for slot in slots for name in (f"files/{FILE}", "release.json")]
    return sorted([*rows, *KEPT])


# -- the way of an update ----------------------------------------------------------------------------------------------


def test_an_update_is_tested_here_tried_and_committed(tmp_path: Path, shelf: Shelf) -> None:
    told: list[Path] = []
    with agent(tmp_path, shelf, QUICK._replace(limits=Limits())) as one:
        assert one.current(APP) is None
        one.on_switch(APP, told.append)
        settle(one)
        assert factor(one) == 2.0 and told == [one.current(APP)]
        shelf.add("2", {FILE: model(3.0)})
        given = shelf.given
        settle(one)
        assert factor(one) == 3.0 and len(told) == 2
        assert shelf.given - given < 20_000 < os.path.getsize(shelf.folder / f"2-{FILE}")  # the table is copied
        status = one.status()["applications"][APP]
        assert status["checks"][FILE]["samples"] == 1 and status["checks"][FILE]["latency_ms"] > 0
        assert status["outcome"]["kind"] == "committed" and status["previous"]["version"] == "1"
        json.dumps(one.status())
    assert factor(tmp_path / "device") == 3.0
    assert tree(tmp_path / "device") == expected("a", "b")
    link = tmp_path / "device/applications/keywords/current" / FILE
    assert link.read_bytes() == (shelf.folder / f"2-{FILE}").read_bytes()


def test_a_bundle_that_computes_something_else_here_is_refused(tmp_path: Path, shelf: Shelf) -> None:
    with agent(tmp_path, shelf) as one:
        settle(one)
        shelf.add("2", {FILE: model(3.0, golden=4.0)})
        settle(one)
        assert factor(one) == 2.0
        outcome = one.report().applications[APP].outcome
        assert outcome is not None and outcome.kind == "self-test" and "golden sample" in outcome.reason
        given = shelf.given
        settle(one)
        assert shelf.given == given  # it is not tried again
        one.again(APP, "2")
        settle(one)
        assert shelf.given > given
        assert tree(tmp_path / "device") == expected("a")


@pytest.mark.parametrize(
    ("needs", "kind", "reason"),
    [
        (Requirements(latency_ms=1e-9), "too-slow", r"at most 1e-09 ms .* got"),
        (Requirements(memory=1), "too-large", "at most 1 bytes of memory"),
        (Requirements(targets=("cortex-m4",)), "refused", "target: expected one of cortex-m4, got x86-64-v2"),
        (Requirements(runtime="9.0.0"), "refused", "runtime: expected msedge 9.0.0 or newer, got 1.0.0"),
        (Requirements(memory=1 << 39), "refused", "memory: expected 549755813888 bytes, got 1000"),
    ],
)
def test_what_a_release_needs(tmp_path: Path, shelf: Shelf, needs: Requirements, kind: str, reason: str) -> None:
    total = {"total": 1000} if needs.memory > 1 else {}
    with agent(tmp_path, shelf, targets=("x86-64-v2",), **total) as one:
        settle(one)
        shelf.add("2", {FILE: model(3.0)}, needs)
        settle(one)
        outcome = one.report().applications[APP].outcome
        assert outcome is not None and outcome.kind == kind
        assert re.search(reason, outcome.reason), outcome.reason
        assert factor(one) == 2.0


@pytest.mark.usefixtures("unchecked")
def test_a_trial_that_fails_returns(tmp_path: Path, shelf: Shelf) -> None:
    told: list[str] = []
    health = Function(lambda context: "it hears nothing" if context.version == "2" else "")
    with agent(tmp_path, shelf, QUICK._replace(health=(health,))) as one:
        one.on_switch(APP, lambda folder: told.append(folder.parent.name))
        settle(one)
        shelf.add("2", {FILE: model(3.0)})
        settle(one)
        assert factor(one) == 2.0 and told == ["a", "b", "a"]
        outcome = one.report().applications[APP].outcome
        assert outcome is not None and (outcome.kind, outcome.version) == ("rolled-back", "2")
        assert "it hears nothing" in outcome.reason
        shelf.add("3", {FILE: model(5.0)})
        settle(one)
        assert factor(one) == 5.0


@pytest.mark.usefixtures("unchecked")
def test_an_application_that_cannot_be_told_fails_its_trial(tmp_path: Path, shelf: Shelf) -> None:
    def call(folder: Path) -> None:
        if folder.parent.name == "b":
            raise RuntimeError("cannot load")

    with agent(tmp_path, shelf) as one:
        one.on_switch(APP, call)
        settle(one)
        shelf.add("2", {FILE: model(3.0)})
        settle(one)
        assert factor(one) == 2.0
        outcome = one.report().applications[APP].outcome
        assert outcome is not None and "on_switch: RuntimeError: cannot load" in outcome.reason


@pytest.mark.usefixtures("unchecked")
@pytest.mark.usefixtures("unchecked")
def test_a_program_that_is_never_told_fails_its_trial(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.agent.application.RESTART", 0.2)
    with agent(tmp_path, shelf) as one:
        settle(one)
    shelf.add("2", {FILE: model(3.0)})
    with agent(tmp_path, shelf, QUICK._replace(restart=("/bin/sleep", "60"))) as one:
        settle(one)
        outcome = one.report().applications[APP].outcome
        assert outcome is not None and "/bin/sleep did not end within 0.2 s" in outcome.reason


def test_somebody_returns(tmp_path: Path, shelf: Shelf) -> None:
    with agent(tmp_path, shelf) as one:
        settle(one)
        with pytest.raises(AgentError, match="expected a version before the running one, got none"):
            one.rollback(APP)
        shelf.add("2", {FILE: model(3.0)})
        settle(one)
        one.rollback(APP, "it is loud")
        settle(one)
        assert factor(one) == 2.0
        with pytest.raises(AgentError, match="no application 'other'; this agent has keywords"):
            one.rollback("other")


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
def test_a_download_goes_on_where_it_was(tmp_path: Path, shelf: Shelf) -> None:
    size = len(model(2.0))

    def breaks(what: str, at: int, part: bytes) -> bytes:
        if at >= size // 2:
            raise FetchError("the connection ended")
        return part

    shelf.fault = breaks
    with agent(tmp_path, shelf) as one:
        one.once()
        assert one.applications[APP].state.phase is Phase.FETCHING
        outcome = one.report().applications[APP].outcome
        assert outcome is not None and outcome[2:] == ("waits", "the connection ended")
    given, shelf.fault = shelf.given, lambda what, at, part: part
    with agent(tmp_path, shelf) as one:
        settle(one)
        assert factor(one) == 2.0
    assert given > 0 and size - 200 < shelf.given <= size  # no byte twice


@pytest.mark.usefixtures("unchecked")
def test_wrong_bytes_are_not_used(tmp_path: Path, shelf: Shelf) -> None:
    shelf.fault = lambda what, at, part: bytes(len(part)) if at == 0 else part
    with agent(tmp_path, shelf) as one:
        one.once()
        assert one.current(APP) is None
        outcome = one.report().applications[APP].outcome
        assert outcome is not None and outcome.kind == "failed" and "got others 2 times" in outcome.reason
        shelf.fault = lambda what, at, part: part
        settle(one)
        assert factor(one) == 2.0


@pytest.mark.usefixtures("unchecked")
def test_a_piece_without_end_is_cut_off(tmp_path: Path, shelf: Shelf) -> None:
    shelf.fault = lambda what, at, part: part * 50
    with agent(tmp_path, shelf) as one:
        one.once()
        assert one.current(APP) is None
        assert sum(path.stat().st_size for path in (tmp_path / "device").rglob("*")) < 3 * len(model(2.0))


def damaged(tmp_path: Path, slot: str) -> None:
    path = tmp_path / f"device/applications/keywords/{slot}/files/{FILE}"
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)


@pytest.mark.usefixtures("unchecked")
def test_damaged_slots(tmp_path: Path, shelf: Shelf) -> None:
    with agent(tmp_path, shelf) as one:
        settle(one)
        shelf.add("2", {FILE: model(3.0)})
        settle(one)
    damaged(tmp_path, "b")
    with agent(tmp_path, None) as one:
        assert factor(one) == 2.0
        assert [event.kind for event in one.report().events][-2:] == ["damaged", "broken"]
    damaged(tmp_path, "a")
    with agent(tmp_path, shelf) as one:
        assert one.current(APP) is None
        shelf.channels[APP, "stable"] = ["1"]
        given = shelf.given
        settle(one)
        assert factor(one) == 2.0
        assert 0 < shelf.given - given <= 80_064  # the pieces that are sound are not fetched again


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 500, b"[" * 9999])
def test_a_damaged_state_is_made_again_from_the_slots(tmp_path: Path, shelf: Shelf, content: bytes) -> None:
    with agent(tmp_path, shelf) as one:
        settle(one)
        shelf.add("2", {FILE: model(3.0)})
        settle(one)
    path = tmp_path / "device/applications/keywords/state.json"
    held = path.read_bytes()
    path.write_bytes(content)
    with agent(tmp_path, shelf) as one:
        assert factor(one) == 2.0  # the one that has been there longer
        assert one.report().events[-1].kind == "recovered"
        settle(one)
        assert factor(one) == 3.0
    path.write_bytes(held.replace(b'"version": "2"', b'"version": "7"'))
    with agent(tmp_path, None) as one:
        assert one.report().events[-1].kind == "recovered"
    path.unlink()
    with agent(tmp_path, None) as one:
        assert one.current(APP) is not None


@pytest.mark.usefixtures("unchecked")
def test_what_is_left_over_is_removed(tmp_path: Path, shelf: Shelf) -> None:
    with agent(tmp_path, shelf) as one:
        settle(one)
    folder = tmp_path / "device/applications/keywords"
    for name in ("b/files/x", "spare/files/y", "a/parts/z", "a/files/other", ".msedge-0123456789abcdef.tmp", "new"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"left")
    (folder / "c").symlink_to(tmp_path / "shelf")
    with agent(tmp_path, None) as one:
        assert factor(one) == 2.0
    assert tree(tmp_path / "device") == expected("a") and (tmp_path / "shelf").exists()


def test_one_agent_has_a_folder(tmp_path: Path) -> None:
    with agent(tmp_path, None), pytest.raises(AgentError, match="expected no other agent, but one runs"):
        agent(tmp_path, None)
    with pytest.raises(AgentError, match="expected the name of an application"):
        installed(tmp_path, "../../etc")


# -- the disk ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
def test_a_full_disk_is_noticed_before_anything_is_given_up(tmp_path: Path, shelf: Shelf) -> None:
    with agent(tmp_path, shelf) as one:
        settle(one)
        shelf.add("2", {FILE: model(3.0)})
        settle(one)
        shelf.add("3", {FILE: model(4.0, size=400_000, seed=1)})
        one._machine.said["free"] = 100_000  # type: ignore[attr-defined]
        settle(one)
        assert factor(one) == 3.0 and one.applications[APP].state.previous is not None
        outcome = one.report().applications[APP].outcome
        assert outcome is not None and outcome.kind == "waits" and outcome.reason.startswith("disk: expected")


@pytest.mark.usefixtures("unchecked")
def test_a_disk_that_fills_up_gets_back_what_the_update_took(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agent(tmp_path, shelf) as one:
        settle(one)
        shelf.add("2", {FILE: model(3.0, seed=1)})
        write, left = os.write, [60_000]

        def full(handle: int, data: bytes) -> int:
            if left[0] < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left[0] -= len(data)
            return write(handle, data)

        monkeypatch.setattr("edge.agent.gathering.os.write", full)
        one.once()
        monkeypatch.setattr("edge.agent.gathering.os.write", write)
        assert factor(one) == 2.0
        outcome = one.report().applications[APP].outcome
        assert outcome is not None and outcome.kind == "failed" and "No space left" in outcome.reason
        assert tree(tmp_path / "device") == expected("a")
        settle(one)
        assert factor(one) == 3.0


@pytest.mark.usefixtures("unchecked")
def test_a_disk_that_cannot_be_written_keeps_what_runs(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agent(tmp_path, shelf) as one:
        settle(one)
    shelf.add("2", {FILE: model(3.0)})

    def refuse(*_: Any, **__: Any) -> Any:
        raise AgentError("cannot write: Read-only file system; that file system is read-only")

    for name in ("slots", "agent"):
        monkeypatch.setattr(f"edge.agent.{name}.write_atomically", refuse)
    with agent(tmp_path, shelf) as one:
        settle(one)
        assert factor(one) == 2.0
        assert "read-only" in one.status()["applications"][APP]["trouble"]


# -- conditions, hub ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"battery": 10, "charging": False}, "battery: expected 50 % or a charger, got 10 %"),
        ({"metered": True}, "network: expected one whose traffic does not cost"),
        ({"minute": 600}, "time: expected 22:00-06:00, got 10:00"),
    ],
)
def test_an_update_waits(tmp_path: Path, shelf: Shelf, facts: dict[str, Any], words: str) -> None:
    from edge.agent.conditions import Window

    settings = QUICK._replace(conditions=Conditions(0, 50, False, Window(22 * 60, 6 * 60)))
    with agent(tmp_path, shelf, settings, **facts) as one:
        settle(one)
        outcome = one.report().applications[APP].outcome
        assert outcome is not None and outcome.kind == "waits" and words in outcome.reason
        assert one.current(APP) is None
        one._machine.said = {"minute": 0}  # type: ignore[attr-defined]
        settle(one)
        assert factor(one) == 2.0


def assigned(version: str, **more: Any) -> Reply:
    return Reply(60.0, 3600.0, 0.0, applications={APP: Assignment(version, "stable", "r1", **more)})


@pytest.mark.usefixtures("unchecked")
def test_a_hub_says_what_runs(tmp_path: Path, shelf: Shelf) -> None:
    shelf.add("2", {FILE: model(3.0)})
    said: list[checkin.Report] = []
    replies: list[Callable[[], Reply]] = [lambda: assigned("1")]
    with agent(tmp_path, shelf) as one:

        def ask(report: checkin.Report) -> Reply:
            said.append(checkin.read_report(checkin.written(report)))
            return replies[-1]()

        one.check_in(ask)
        for _ in range(3):
            one.advance(shelf)
        assert factor(one) == 2.0
        replies.append(lambda: assigned("2"))
        one.check_in(ask)
        one.advance(shelf)
        one.advance(shelf)
        one.check_in(ask)
        assert said[-1].applications[APP].version == "2"
        outcome = said[-1].applications[APP].outcome
        assert outcome is not None and outcome[:3] == ("2", "r1", "committed")
        replies.append(lambda: Reply(60, 60, 0.0, received=said[-1].events[-1].serial))
        one.check_in(ask)
        assert not one.report().events
        replies.append(lambda: assigned("9"))
        one.check_in(ask)
        outcome = one.report().applications[APP].outcome
        assert outcome is not None and outcome.kind == "refused" and factor(one) == 3.0
        assert "which its owners do not let run" in outcome.reason
        replies.append(lambda: assigned("1", urgent=True))  # taken back
        one.check_in(ask)
        for _ in range(3):
            one.advance(shelf)
        assert factor(one) == 2.0


@pytest.mark.usefixtures("unchecked")
def test_a_repository_that_does_not_answer(tmp_path: Path, shelf: Shelf) -> None:
    with agent(tmp_path, shelf) as one:
        settle(one)
        shelf.add("2", {FILE: model(3.0)})
        shelf.down = True
        settle(one)
        assert "does not answer" in one.trouble and factor(one) == 2.0
        shelf.down = False
        settle(one)
        assert factor(one) == 3.0 and not one.trouble


@pytest.mark.usefixtures("unchecked")
def test_figures_of_the_running_version_are_reported(tmp_path: Path, shelf: Shelf) -> None:
    with agent(tmp_path, shelf) as one:
        settle(one)
        for value in (1.0, 2.0, 6.0):
            one.measured(APP, "latency_ms", value)
        assert one.report().applications[APP].measures["latency_ms"] == checkin.Measure(3, 3.0)
        shelf.add("2", {FILE: model(3.0)})
        settle(one)
        assert not one.report().applications[APP].measures


@pytest.mark.usefixtures("unchecked")
def test_an_agent_sleeps_as_long_as_there_is_nothing_to_do(tmp_path: Path, shelf: Shelf) -> None:
    from edge.agent.conditions import Window

    settings = QUICK._replace(
        every=7.0, rules=AT_ONCE._replace(seconds=100), conditions=Conditions(0, 0, True, Window(0, 60))
    )
    with Agent(tmp_path / "device", {APP: settings}, shelf, machine=Here(minute=90), every=3600.0) as one:
        one.start()
        assert one.pause == 3600
        one.once()
        assert one.applications[APP].state.phase is Phase.STAGED and 29 < one.pause <= 30
        one._machine.said["minute"] = 30  # type: ignore[attr-defined]
        one.advance()
        assert one.applications[APP].state.phase is Phase.TRIAL and 6 < one.pause <= 7


@pytest.mark.usefixtures("unchecked")
def test_a_download_stops_where_a_condition_ends(tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.agent.application._seldom", lambda call: call)
    with agent(tmp_path, shelf) as one:

        def moves(what: str, at: int, part: bytes) -> bytes:
            if at > 30_000:
                one._machine.said["metered"] = True  # type: ignore[attr-defined]
            return part

        shelf.fault = moves
        one.once()
        outcome = one.report().applications[APP].outcome
        assert outcome is not None and outcome.reason.startswith("network: expected one whose traffic does not cost")
        assert 30_000 < shelf.given < 50_000
        shelf.fault = lambda what, at, part: part
        settle(one)
        assert one.current(APP) is None
        one._machine.said["metered"] = False  # type: ignore[attr-defined]
        settle(one)
        assert factor(one) == 2.0 and shelf.given <= len(model(2.0))


# -- what a hub can be told --------------------------------------------------------------------------------------------


def sent(one: Agent) -> checkin.Report:
    """A report as a hub reads it."""
    return checkin.read_report(checkin.written(one.report()))


@pytest.mark.usefixtures("unchecked")
def test_no_figure_keeps_a_device_from_its_hub(tmp_path: Path, shelf: Shelf) -> None:
    with agent(tmp_path, shelf) as one:
        settle(one)
        for value in (float("nan"), float("inf"), 4.0, -float("inf"), 6.0):
            one.measured(APP, "latency_ms", value)
        one.measured(APP, "huge", 1e300)
        assert sent(one).applications[APP].measures == {
            "latency_ms": checkin.Measure(2, 5.0), "huge": checkin.Measure(1, 1e15)
        }  # fmt: skip
        for name in ("Latency", "", "a b"):
            with pytest.raises(AgentError, match="expected the name of a measure"):
                one.measured(APP, name, 1.0)
        for number in range(62):
            one.measured(APP, f"m{number}", 1.0)
        with pytest.raises(AgentError, match="64 at most"):
            one.measured(APP, "one-more", 1.0)
        assert len(sent(one).applications[APP].measures) == 64


@pytest.mark.usefixtures("unchecked")
def test_no_text_keeps_a_device_from_its_hub(tmp_path: Path, shelf: Shelf) -> None:
    """What a program prints may hold anything: zero bytes, halves of characters, too much."""
    with agent(tmp_path, shelf) as one:
        settle(one)
    shelf.add("2", {FILE: model(3.0)})
    says = f"a\0b\udcff{'x' * 1000}"
    with agent(tmp_path, shelf, QUICK._replace(health=(Function(lambda context: says),))) as one:
        settle(one)
        outcome = sent(one).applications[APP].outcome
        assert outcome is not None and outcome.kind == "rolled-back" and "a\ufffdb?xxx" in outcome.reason
        assert "a\ufffdb?xxx" in sent(one).events[-1].text
    with agent(tmp_path, shelf) as one:  # and after a restart
        assert "a\ufffdb?xxx" in sent(one).events[-1].text and sent(one).applications[APP].outcome == outcome


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("left", [None, b"{}", b'{"serial": 9, "events": [{"serial": "x", "time": 1, "kind": "a"}]}'])
def test_events_of_a_device_that_lost_its_count_are_new(tmp_path: Path, shelf: Shelf, left: bytes | None) -> None:
    with agent(tmp_path, shelf) as one:
        settle(one)
    path = tmp_path / "device" / "events.json"
    path.unlink() if left is None else path.write_bytes(left)
    shelf.add("2", {FILE: model(3.0)})
    with agent(tmp_path, shelf) as one:
        settle(one)
        texts = [(event.kind, event.version) for event in one.report().events]
        assert texts[-1] == ("committed", "2")
        one.apply(Reply(60, 60, 0.0, received=500))
        held = sent(one).events
        assert [(event.kind, event.version) for event in held] == texts and held[0].serial > 500
        one.apply(Reply(60, 60, 0.0, received=held[-1].serial))
        assert not one.report().events


@pytest.mark.usefixtures("unchecked")
def test_another_version_does_not_wait_for_the_pause_of_the_last(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.agent.application.FIRST", 3600.0)
    with agent(tmp_path, shelf) as one:

        def breaks(what: str, at: int, part: bytes) -> bytes:
            raise FetchError("broken")

        shelf.fault = breaks
        settle(one)
        assert one.current(APP) is None and one.applications[APP].pause > 1800
        shelf.fault = lambda what, at, part: part
        settle(one)
        assert one.current(APP) is None  # it waits
        shelf.add("2", {FILE: model(3.0)})
        settle(one)
        assert factor(one) == 3.0


@pytest.mark.usefixtures("unchecked")
def test_a_repository_that_was_away_is_asked_again_soon(tmp_path: Path, shelf: Shelf) -> None:
    with Agent(tmp_path / "device", {APP: QUICK}, shelf, machine=Here(), every=3600.0) as one:
        one.start()
        shelf.down = True
        one.once()
        assert one.trouble and one.pause <= 2.0
        one._look_at = 0.0
        shelf.down = False
        one.once()
        assert factor(one) == 2.0 and not one.trouble and 2600 < one._look_at - time.monotonic() < 4600
