"""A whole loop against a hub that serves, a signed repository and devices that learn; its program is killed in between.

Devices here install what they are told at once; the agent that really does is tested elsewhere, and in the demo.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.hub.errors import HubError
from cloud.hub.loop.cycle import STEPS
from cloud.hub.loop.doing import releases_of
from cloud.hub.loop.lineage import DOCUMENT, of_version
from cloud.hub.loop.plan import Plan, read_plan
from cloud.hub.loop.runner import Runner, client_of, cycle_of
from cloud.hub.repository import Keys, Repository
from cloud.hub.storage import storage_at
from edge.agent.conversation import Conversation
from edge.agent.learning.populations import Settings, population_of
from edge.agent.learning.tasks import Learning, Now
from lite_runtime import bundle
from lite_runtime.updates.checkin import Application, Outcome, Report
from lite_runtime.updates.telemetry import Batch, Part, written
from tests.cloud.hub.killed_loop import MOMENTS
from tests.cloud.hub.serving import Running, running
from tests.conftest import ROOT
from tests.federated.fleets import fleet
from tests.waiting import until

APP, FILE, DEVICES = "keys", "model.mslite", 4


class Simulated:
    """A device that does as it is told, at once. wrong: the self-test of other versions fails here."""

    def __init__(self, talk: Conversation, folder: Path, source: Path, data: Any) -> None:
        self._talk, self._tells, self._folder, self._source = talk, talk.another(), folder, source
        folder.mkdir()
        np.savez(folder / "own.npz", x=data.inputs["x"], labels=data.labels)
        assert talk.identity.enrolled is not None
        self.id = talk.identity.enrolled.device
        self.there, self.wrong, self._serial = Application("1.0"), False, 0
        self._learns = talk.another()
        self._learning = Learning(self._learns, lambda: Now(True, True, False), self._populations, every=0.2)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._live, lambda: self._learning.run(self._stop))]

    def _populations(self) -> Mapping[str, Any]:
        path = self._source if self.there.version == "1.0" else None
        if path is None:
            return {}
        return {APP: population_of(self.id, path, self._folder / "state", Settings(str(self._folder / "own.npz")))}

    def _live(self) -> None:
        while not self._stop.wait(0.1):
            reply = self._talk.check_in(Report(applications={APP: self.there}))
            for told in reply.applications.values():
                if self.wrong and told.version != "1.0":
                    self.there = self.there._replace(outcome=Outcome(told.version, told.rollout, "self-test"))
                elif told.version != self.there.version:
                    self.there = Application(told.version, outcome=Outcome(told.version, told.rollout, "committed"))

    def tell(self, yes: float, count: int = 100) -> None:
        """One batch: so many answers, of which this share is "yes"."""
        self._serial += 1
        classes = {"answer": {"yes": yes * count, "no": (1 - yes) * count}}
        self._tells.telemetry(written(Batch(self._serial, (Part(APP, "1.0", 0.0, 1.0, classes=classes),))))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._tells.close()
        self._learns.close()


class World:
    """Everything: the repository with version 1.0, the hub, devices, the plan, a person."""

    def __init__(self, folder: Path, hub: Running) -> None:
        self.folder, self.hub = folder, hub
        (folder / "loop.token").write_text(hub.token("loop", "operator"))
        self.client = hub.client("a-reader", "viewer")
        self.person = hub.token("ann", "operator")
        self.devices = [
            Simulated(hub.device(name), folder / name, folder / FILE, data)
            for name, data in fleet(DEVICES, classes=3).shards.items()
        ]

    def plan(self, **changes: Any) -> Plan:
        self.write_plan(**changes)
        return read_plan(self.folder / "loop.toml")

    def write_plan(self, **changes: Any) -> None:
        values = {"least": 0.0, "approve": ["promote"], "attempts": 3, **changes}
        (self.folder / "round.toml").write_text(
            '[model]\nbundle = "model.mslite"\n[algorithm]\nname = "fedavg"\nrate = 0.2\n[local]\nsteps = 4\n'
            f"[rounds]\ncount = 4\nminimum = {DEVICES}\n[evaluation]\nevery = 4\nsteps = 0\n"
        )
        (self.folder / "loop.toml").write_text(
            f'[loop]\nname = "keys"\napplication = "keys"\nevery = 0.1\napprove = {json.dumps(values["approve"])}\n'
            f"attempts = {values['attempts']}\n"
            f'[hub]\nurl = "{self.hub.url}"\ntoken = "loop.token"\n'
            '[repository]\nat = "repository"\nkeys = ["keys"]\nversion = "2.{cycle}"\n'
            "[drift]\nexamples = 400\nevery = 0.01\nreference = 1200\nmonth = 1.0\n[schedule]\nrest = 0.0\n"
            '[learn]\nconfig = "round.toml"\nheartbeat = 1.0\n'
            f"[budget]\nloss = 0.0\nleast = {values['least']}\n"
            '[convert]\nsource = "model.onnx"\ntrainable = ["*"]\n'
            "[canary]\nsteps = [100.0]\nsoak = 0\npatience = 1\n[rollout]\nsteps = [100.0]\nsoak = 0\npatience = 1\n"
        )

    def drift(self) -> None:
        """Tell of every day until the reference is there, and then of something else until that is noticed."""
        for _ in range(4):
            self._tell(0.5)
        for _ in range(30):
            if self.shown()["number"]:
                return
            self._tell(0.9)
        raise AssertionError("nothing was noticed")

    def _tell(self, yes: float) -> None:
        for device in self.devices:
            device.tell(yes)
        time.sleep(0.5)

    def shown(self) -> dict[str, Any]:
        return self.hub.order("GET", "/v1/loops/keys", token=self.person).json

    def approve(self, decision: str = "approve") -> int:
        return self.hub.order("POST", f"/v1/loops/keys/{decision}", {"step": self.shown()["step"]}, self.person).status


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first version, its repository and keys: made once, copied for each test."""
    import onnx_ir as ir

    from cloud.hub.repository.releases import Releases
    from cloud.zoo import mlp
    from converter import convert

    folder = tmp_path_factory.mktemp("made")
    ir.save(mlp(6, 3), folder / "model.onnx")
    convert(folder / "model.onnx", output=folder / FILE, trainable="*")
    repository = Repository(storage_at(str(folder / "repository")), Keys([folder / "keys"]))
    repository.init(applications=[APP])
    releases = Releases(repository)
    releases.add(APP, "1.0", {FILE: folder / FILE})
    releases.promote(APP, "1.0", "stable")
    return folder


@pytest.fixture
def world(tmp_path: Path, made: Path) -> Iterator[World]:
    import shutil

    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), telemetry=True, interval=0.2, watch=0.2) as hub:
        found = World(tmp_path, hub)
        for device in found.devices:
            device.start()
        try:
            yield found
        finally:
            for device in found.devices:
                device.close()


@contextmanager
def looping(plan: Plan, world: World) -> Iterator[threading.Event]:
    """The loop's program in a thread."""
    stop, client = threading.Event(), client_of(plan)
    runner = Runner(plan, client, print, stop)
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join()
        runner.close()
        client.close()


def test_a_change_is_noticed_learned_signed_and_rolled_out_though_killed(world: World) -> None:
    """The loop's program is a process that gets SIGKILL again and again, at moments that chance chooses."""
    plan, chance = world.plan(), random.Random(7)
    words = [sys.executable, "-m", "edge.cli", "hub", "loop", "run", str(world.folder / "loop.toml")]
    kills = 0

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(ROOT)})

    process = begin()
    try:
        until(lambda: (world.folder / "loop" / "watching.json").exists())
        world.drift()
        while not world.shown()["outcome"]:
            time.sleep(chance.uniform(0.2, 3.0))
            if world.shown()["status"] == "waits":
                assert world.approve() == 200
            if kills < 12:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills, process = kills + 1, begin()
    finally:
        process.kill()
        process.wait()
    found = world.shown()
    assert (found["outcome"], found["number"]) == ("finished", 1), found
    assert kills >= 3
    assert list(found["results"]) == list(STEPS)
    assert [one["step"] for one in found["log"] if one["kind"] == "done"] == list(STEPS), "each counts once"
    assert found["approvals"] == {"promote": "ann"}
    assert found["cause"]["streams"] == ["classes:answer"]
    until(lambda: all(device.there.version == "2.1" for device in world.devices))
    _check_release(plan, world, found)


@pytest.mark.slow
def test_a_kill_between_any_two_steps_loses_nothing(world: World) -> None:
    """SIGKILL before and after each event is stored: what was done and not stored is done again, to the same end."""
    plan, moments = world.plan(), world.folder / "moments"
    moments.mkdir()
    words = [sys.executable, "-m", "tests.cloud.hub.killed_loop", str(world.folder / "loop.toml"), str(moments)]
    told = threading.Event()

    def tell() -> None:
        until(lambda: (world.folder / "loop" / "watching.json").exists())
        world.drift()
        until(lambda: told.is_set() or world.shown()["status"] == "waits", 0.1)
        assert told.is_set() or world.approve() == 200

    with ThreadPoolExecutor(1) as pool:
        person = pool.submit(tell)
        try:
            codes = []
            while not world.shown()["outcome"]:
                done = subprocess.run(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=120)
                codes.append(done.returncode)
        finally:
            told.set()
        person.result()
    assert {one.name for one in moments.iterdir()} == MOMENTS
    assert codes == [-signal.SIGKILL] * len(MOMENTS)
    found = world.shown()
    assert (found["outcome"], found["number"]) == ("finished", 1), found
    assert [one["step"] for one in found["log"] if one["kind"] == "done"] == list(STEPS), "each counts once"
    until(lambda: all(device.there.version == "2.1" for device in world.devices))
    _check_release(plan, world, found)


def _check_release(plan: Plan, world: World, found: Mapping[str, Any]) -> None:
    """What was signed is what was learned, and says from whom."""
    releases = releases_of(plan)
    assert {name: one.versions for name, one in releases.channels(APP).items()} == {
        "stable": ("1.0", "2.1"), "candidate": ("2.1",)
    }  # fmt: skip
    release = releases.release(APP, "2.1")
    path = releases.write_file(release.files[FILE], world.folder / "new.mslite")
    held = bundle.read(path)
    assert held.golden, "a device can test it"
    learned = bundle.read(world.folder / "loop" / "1" / "learned.mslite")
    for name, value in learned.state.items():
        assert np.array_equal(held.state[name], value), name
    lineage = of_version(plan, releases, world.client, "2.1")
    assert lineage["document"]["devices"].keys() == {device.id for device in world.devices}
    assert all(len(one["data"]) == 64 and one["examples"] == 40 for one in lineage["document"]["devices"].values())
    assert lineage["document"]["base"]["version"] == "1.0"
    assert sorted(lineage["runs"]) == sorted(device.id for device in world.devices)
    assert found["results"]["judge"]["value"] >= found["results"]["judge"]["before"]
    document = world.folder / "loop" / "1" / DOCUMENT
    document.write_bytes(document.read_bytes().replace(b'"examples": 40', b'"examples": 41', 1))
    with pytest.raises(HubError, match="SHA-256"):
        of_version(plan, releases, world.client, "2.1")


def test_a_canary_that_fails_takes_the_version_back(world: World) -> None:
    plan = world.plan(approve=[])
    for device in world.devices:
        device.wrong = True
    with looping(plan, world):
        until(lambda: (world.folder / "loop" / "watching.json").exists())
        world.drift()
        until(lambda: world.shown()["outcome"] == "failed" or world.shown()["number"] > 1, 0.1)
        until(lambda: "2.1" not in releases_of(plan).channels(APP)["candidate"].versions, 0.1)
    failed = next(one for one in world.shown()["log"] if one["kind"] == "failed")
    assert failed["step"] == "canary"
    assert "2.1" not in releases_of(plan).channels(APP)["stable"].versions
    assert all(device.there.version == "1.0" for device in world.devices)


def test_a_model_below_the_budget_is_not_signed(world: World) -> None:
    plan = world.plan(least=1.0)
    with looping(plan, world):
        until(lambda: (world.folder / "loop" / "watching.json").exists())
        world.drift()
        until(lambda: any(one["kind"] == "failed" for one in world.shown()["log"]), 0.1)
    failed = next(one for one in world.shown()["log"] if one["kind"] == "failed")
    assert failed["step"] == "judge" and "budget.least" in failed["text"]
    assert releases_of(plan).versions(APP) == ["1.0"]


def test_a_person_may_say_no(world: World) -> None:
    plan = world.plan(approve=["sign"])
    with looping(plan, world):
        until(lambda: (world.folder / "loop" / "watching.json").exists())
        world.drift()
        until(lambda: world.shown()["status"] == "waits", 0.1)
        assert world.hub.order("POST", "/v1/loops/keys/approve", {"step": "sign"}, world.hub.viewer).status == 403
        own = (world.folder / "loop.token").read_text()
        assert world.hub.order("POST", "/v1/loops/keys/approve", {"step": "sign"}, own).status == 409
        assert world.hub.order("POST", "/v1/loops/keys/approve", {"step": "judge"}, world.person).status == 409
        assert world.approve("reject") == 200
    assert releases_of(plan).versions(APP) == ["1.0"]
    said = world.hub.order("GET", "/v1/audit", token=world.person).json["entries"]
    assert [one["who"] for one in said if one["what"] == "loop rejected"] == ["ann"]


def test_keys_may_be_elsewhere(world: World) -> None:
    """The application's key is not on the loop's machine: its team signs what waits, and the loop goes on."""
    plan, elsewhere = world.plan(approve=[]), world.folder / "team"
    (world.folder / "keys" / "applications").rename(elsewhere)
    team = Repository(storage_at(str(world.folder / "repository")), Keys([elsewhere, world.folder / "keys"]))
    with looping(plan, world):
        until(lambda: (world.folder / "loop" / "watching.json").exists())
        world.drift()
        until(lambda: world.shown()["step"] == "sign" and world.shown()["troubles"], 0.1)
        assert "signatures of keys are missing" in world.shown()["troubles"][-1]
        assert releases_of(plan).versions(APP) == ["1.0"]
        while not world.shown()["outcome"]:
            time.sleep(0.5)
            with contextlib.suppress(HubError):  # nothing waits at the moment
                team.sign()
    assert world.shown()["outcome"] == "finished", world.shown()
    assert {name: one.versions[-1] for name, one in releases_of(plan).channels(APP).items()} == {
        "stable": "2.1", "candidate": "2.1"
    }  # fmt: skip


def test_two_programs_do_not_run_one_loop(world: World) -> None:
    plan = world.plan()
    with looping(plan, world), pytest.raises(HubError, match="another process"):
        Runner(plan, world.client, print)


def test_events_of_two_programs_do_not_mix(world: World) -> None:
    body = {"number": 1, "kind": "began", "text": "one"}
    own = (world.folder / "loop.token").read_text()
    assert world.hub.order("POST", "/v1/loops/keys/events", body, own).status == 200
    found = world.hub.order("POST", "/v1/loops/keys/events", body, own)
    assert (found.status, "expected event 2" in found.error) == (409, True)
    assert cycle_of(world.client, "keys").data()["events"] == 1
    assert [one["name"] for one in world.hub.order("GET", "/v1/loops", token=own).json["loops"]] == ["keys"]


@pytest.mark.parametrize(
    ("path", "table", "status"),
    [
        ("/v1/loops/keys/events", {"number": 1, "kind": "approved", "step": "learn"}, 400),
        ("/v1/loops/keys/events", {"number": 0, "kind": "began"}, 400),
        ("/v1/loops/keys/events", {"number": 1, "kind": "done", "step": "learn"}, 409),
        ("/v1/loops/keys/events", {"number": 1, "kind": "began", "data": []}, 400),
        ("/v1/loops/keys/events", {"number": 1, "kind": "began", "data": {"gates": ["lunch"]}}, 409),
        ("/v1/loops/K/events", {"number": 1, "kind": "began"}, 400),
        ("/v1/loops/keys/approve", {"step": "learn"}, 409),
        ("/v1/loops/keys/lunch", {}, 404),
    ],
)
def test_wrong_orders_are_refused(path: str, table: Any, status: int, tmp_path: Path) -> None:
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite")) as hub:
        assert hub.order("POST", path, table, hub.token("ann", "operator")).status == status
