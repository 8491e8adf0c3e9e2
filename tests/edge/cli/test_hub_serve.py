"""`msedge hub serve`, rollout, devices, token and audit, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.agent.conversation import Conversation
from edge.agent.identity import Identity
from lite_runtime.updates.checkin import Application, Outcome, Report

ROOT = Path(__file__).parents[3]


class Desk:
    """A folder in which a hub serves, and commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url, self.token = folder, "", ""

    def type(self, *words: str, code: int = 0) -> str:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "MSEDGE_HUB": self.url, "MSEDGE_HUB_TOKEN": self.token}
        done = subprocess.run(
            [sys.executable, "-m", "edge.cli", "hub", *words], cwd=self.folder, env=environment, capture_output=True,
            text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout if code in (0, 1) else done.stderr

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.type(*words, "--json", code=code))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    made.token = made.type("token", "add", "ann", "--scope", "operator").strip()
    words = ["hub", "serve", "--address", "127.0.0.1:0", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "edge.cli", *words], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(5)]
            made.url = json.loads("".join(lines))["address"]
            yield made
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def test_a_rollout_from_the_command_line(desk: Desk) -> None:
    token = desk.type("token", "add", "dev", "--label", "ring=0").strip()
    device = Conversation(desk.url, Identity(desk.folder / "device"))
    device.enrol(token, {})
    device.check_in(Report(applications={"keys": Application("1")}))
    (desk.folder / "plan.toml").write_text('application = "keys"\nversion = "2"\nsoak = 0\n')
    started = desk.json("rollout", "start", "plan.toml", "--steps", "100", "--cohort", "ring=[0-4]")
    assert started["plan"]["cohort"] == {"ring": ["[0-4]"]}
    identity = started["id"]
    told = device.check_in(Report(applications={"keys": Application("1")})).applications["keys"]
    assert told.version == "2"
    device.check_in(Report(applications={"keys": Application("2", outcome=Outcome("2", identity, "committed"))}))
    assert "1 good" in desk.type("rollout", "show", identity[:8])
    assert desk.json("rollout", "pause", identity, "--why", "lunch")["status"] == "paused"
    assert desk.json("rollout", "resume", identity)["status"] == "running"
    assert desk.json("rollout", "abort", identity, "--why", "a complaint")["returning"] == 1
    assert identity in desk.type("rollout", "list")
    shown = desk.json("rollout", "show", identity, code=1)
    assert [one["kind"] for one in shown["decisions"]] == ["started", "paused", "resumed", "aborted"]
    name = device.identity.enrolled.device  # type: ignore[union-attr]
    assert name in desk.type("devices")
    assert "keys: 2" in desk.type("devices", name)
    assert desk.json("devices", name, "--block")["state"] == "blocked"
    assert desk.json("devices", name, "--unblock", "--label", "ring=1")["labels"] == {"ring": "1"}
    device.close()
    desk.type("audit", "--export", "log.jsonl")
    verified = desk.json("audit", "--from", "log.jsonl", "--verify")
    assert verified["problem"] is None
    lines = (desk.folder / "log.jsonl").read_text().splitlines(keepends=True)
    (desk.folder / "log.jsonl").write_text("".join(lines[:3] + lines[4:]))
    broken = desk.json("audit", "--from", "log.jsonl", "--verify", code=1)
    assert "entry 4" in broken["problem"]
    (desk.folder / "log.jsonl").write_text("".join(lines[:-1]))
    cut = desk.json("audit", "--from", "log.jsonl", "--verify", "--head", verified["head"], code=1)
    assert "its end was removed" in cut["problem"]


def test_tokens_from_the_command_line(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    made = desk.json("token", "add", "bob", "--scope", "viewer", "--days", "7")
    assert made["token"].startswith("hub_")
    listed = desk.type("token", "list")
    assert "bob" in listed
    assert made["token"].rpartition("_")[2] not in listed
    desk.type("token", "revoke", "bob")
    assert desk.json("token", "list")["tokens"] == []
    assert "no such token" in desk.type("token", "revoke", "bob", code=3)
    assert "expected one of operator" in desk.type("token", "add", "x", "--scope", "root", code=3)
    assert "KEY=VALUE" in desk.type("token", "add", "x", "--label", "ring", code=2)


WRONG = {
    "no hub": (("rollout", "list"), 3, "is `msedge hub serve` running there"),
    "http to others": (("rollout", "list", "--hub", "http://example.org"), 3, "expected https"),
    "no plan": (("rollout", "start", "none.toml"), 3, "expected a plan in TOML"),
    "steps": (("rollout", "start", "--steps", "a,b"), 2, "expected numbers"),
    "an address": (("serve", "--address", "here"), 3, "expected HOST:PORT"),
    "others could listen": (("serve", "--address", "0.0.0.0:0"), 3, "expected a certificate and a key"),
    "no settings": (("serve", "--config", "none.toml"), 3, "cannot read 'none.toml'"),
    "no device": (("devices", "--block"), 2, "expected a device to change"),
    "no log": (("audit", "--from", "none.jsonl"), 3, "expected an exported audit log"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_explained(case: str, tmp_path: Path) -> None:
    words, code, message = WRONG[case]
    desk = Desk(tmp_path)
    desk.url, desk.token = "http://127.0.0.1:9", "hub_x"
    assert message in desk.type(*words, code=code)
