"""Agents, a hub that serves, and a signed repository: enrolment, a rollout, a version that fails on a device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from benchmarks.updates_faults.world import APP, FILES, World, bundle_of
from edge.agent.command.starting import hub_of, opened
from edge.agent.config import read
from edge.cli.app import app
from tests.cloud.hub.serving import running
from tests.conftest import ROOT
from tests.edge.agent.test_config import QUICK
from tests.waiting import until


def device(tmp_path: Path, url: str, token: str) -> Path:
    """The configuration of a device that is enrolled by the command line."""
    path = tmp_path / "agent.toml"
    path.write_text(f'[agent]\nfolder = "device"\nroot = "root.json"\nhub = "{url}"\n{QUICK}')
    (tmp_path / "token").write_text(token)
    found = CliRunner().invoke(app, ["agent", "enrol", str(path), str(tmp_path / "token"), "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["hub"] == url
    return path


def test_a_rollout_and_one_that_fails_here(tmp_path: Path) -> None:
    world = World(tmp_path / "source")
    (tmp_path / "root.json").write_bytes(world.root)
    wrong = tmp_path / "wrong"
    wrong.write_bytes(bundle_of(4.0, golden=5.0))
    world.releases.add(APP, "4", {FILES[0]: wrong})
    for version in ("1", "2", "4"):
        world.offer(version)
    repository = str(tmp_path / "source" / "repository")
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), repository=repository, interval=1.0, watch=1.0) as hub:
        operator = hub.token("ann", "operator")
        path = device(tmp_path, hub.url, hub.token("one"))
        ended = threading.Event()
        talk = hub_of(read(path))
        assert talk is not None
        with opened(read(path), hub=talk) as agent:
            agent.start()
            thread = threading.Thread(target=agent.run, args=(talk.check_in, ended))

            def rollout(version: str, patience: float) -> Any:
                plan = {"application": APP, "version": version, "steps": [100], "soak": 0, "patience": patience}
                found = hub.order("POST", "/v1/rollouts", {**plan, "channel": "stable"}, operator)
                assert found.status == 201, found.content
                return found.json["id"]

            def shown(identity: str) -> Any:
                return hub.order("GET", f"/v1/rollouts/{identity}", token=operator).json

            first = rollout("1", 1)
            thread.start()
            try:
                until(lambda: shown(first)["status"] == "completed", 0.1)
                assert agent.applications[APP].state.running.version == "1"  # type: ignore[union-attr]
                bad = rollout("4", 1e6)
                until(lambda: shown(bad)["bad"] == 1, 0.1)
                state = agent.applications[APP].state
                assert state.refused[0].kind == "self-test" and state.running is not None
                assert state.running.version == "1"
            finally:
                ended.set()
                thread.join()
            talk.close()


def test_the_example_of_a_program_with_an_agent_in_itself(tmp_path: Path) -> None:
    """It returns from a version that its own check does not take, and the release says where it comes from."""
    words = [sys.executable, str(ROOT / "examples" / "updates" / "inside.py"), str(tmp_path / "folder")]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert [line for line in lines if line.startswith("answers")] == ["answers 2", "answers 3", "answers 3"]
    assert any(
        line.startswith("rolled-back 2.0.0") and "expected less than 5 degrees, got 40" in line for line in lines
    )
    assert (
        any(line.startswith("of ModelProto: blake2b_256") for line in lines) and "signed by thermostat-1" in done.stdout
    )
