"""The file that configures an agent, and the commands that read it, on a signed repository."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.updates_faults.world import APP, FILES, World
from edge.agent.agent import Agent
from edge.agent.checking.health import Address, Fresh, Program
from edge.agent.conditions import Window
from edge.agent.config import TEMPLATE, read
from edge.agent.errors import AgentError
from edge.cli.app import app

HEAD = '[agent]\nfolder = "device"\nrepository = "hub/repository"\nroot = "root.json"\n'
QUICK = """
[conditions]
free = 0
[trial]
seconds = 0
successes = 1
every = 0.01
[checks]
reference = false
[applications.keywords]
"""


def wrote(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return path


def test_the_template_is_a_configuration(tmp_path: Path) -> None:
    assert read(wrote(tmp_path, TEMPLATE)).settings()["keywords"].channel == "stable"
    lines = [
        line[2:] if line.startswith("# ") and not line.startswith("# An") else line for line in TEMPLATE.split("\n")
    ]
    found = read(wrote(tmp_path, "\n".join(lines)))
    one = found.settings()["keywords"]
    assert [type(check) for check in one.health] == [Program, Fresh, Address]
    assert one.restart == ("/usr/bin/systemctl", "restart", "keywords")
    assert one.conditions.window == Window(120, 300) and one.conditions.battery == 30
    assert one.personal.names == ("head.*",) and one.personal.epochs == 2
    assert one.limits.keys == (str(tmp_path / "release.pub"),)
    assert found.agent.hub == "https://hub.example.org" and found.agent.attributes == {"site": "lab"}


def test_an_application_has_its_own_rules(tmp_path: Path) -> None:
    text = f"{HEAD}[trial]\nseconds = 5\n[applications.a]\n[applications.b]\ntrial = {{ seconds = 7 }}\n"
    found = read(wrote(tmp_path, text)).settings()
    assert (found["a"].rules.seconds, found["b"].rules.seconds) == (5, 7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "x: no such key"),
        ("[agent]\nfolder = 'a'\nroot = 'c'\n[applications.a]", "expected a repository, or a hub that has one"),
        (HEAD + "[applications]", "applications: expected at least one"),
        (HEAD + "[applications.A]", "names of 1 to 64 of a-z 0-9"),
        (HEAD + "[applications.a]\nchanel = 'x'", "did you mean 'channel'"),
        (HEAD + "[applications.a]\nchannel = '../x'", "applications.a.channel: expected a name"),
        (HEAD + "[applications.a]\nhealth = [{}]", "health[0]: expected one of program, file and address"),
        (HEAD + "[applications.a]\nhealth = [{ file = 'x' }]", "health[0].file: expected an absolute path"),
        (HEAD + "[applications.a]\nhealth = [{ address = 'http://10.0.0.1/' }]", "an address of this machine"),
        (HEAD + "[applications.a]\nrestart = ['systemctl']", "applications.a.restart: expected an absolute path"),
        (HEAD + "[conditions]\nbattery = 101\n[applications.a]", "a percentage from 0 to 100"),
        (HEAD + "[conditions]\nwindow = '2-5'\n[applications.a]", "expected times such as 22:00-06:00"),
        (HEAD + "[trial]\nsuccesses = 0\n[applications.a]", "trial.successes"),
    ],
)
def test_wrong_configurations(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(AgentError) as caught:
        read(wrote(tmp_path, text))
    assert words in str(caught.value)


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "hub")
    (tmp_path / "root.json").write_bytes(made.root)
    wrote(tmp_path, HEAD + QUICK)
    return made


def msedge(tmp_path: Path, command: str, *words: str, code: int = 0) -> Any:
    found = CliRunner().invoke(app, ["agent", command, str(tmp_path / "agent.toml"), *words, "--json"])
    assert found.exit_code == code, found.output
    return json.loads(found.stdout)


def test_commands(tmp_path: Path, world: World) -> None:
    world.offer("1")
    first = msedge(tmp_path, "once", "--wait", "30")["applications"][APP]
    assert first["running"]["version"] == "1" and first["outcome"]["kind"] == "committed"
    assert Path(first["folder"], FILES[0]).read_bytes() == (tmp_path / "hub/bundles/1").read_bytes()
    world.offer("2")
    shutil.copytree(tmp_path / "hub/repository", tmp_path / "stick")
    (tmp_path / "hub/repository").rename(tmp_path / "gone")
    assert "repository" in msedge(tmp_path, "once", code=1)["trouble"]
    found = msedge(tmp_path, "import", str(tmp_path / "stick"), "--wait", "30")
    assert found["applications"][APP]["running"]["version"] == "2" and not found["trouble"]
    with Agent(tmp_path / "device", {}):
        shown = msedge(tmp_path, "status")["applications"][APP]  # while an agent has the folder
        assert (shown["running"]["version"], shown["previous"]["version"]) == ("2", "1")
        said = msedge(tmp_path, "rollback", APP, code=3)
        assert "expected no other agent" in said["error"]["message"]
    back = msedge(tmp_path, "rollback", APP, "--reason", "it is loud")["applications"][APP]
    assert back["running"]["version"] == "1" and back["refused"][0]["reason"] == "it is loud"
    assert not msedge(tmp_path, "again", APP, "2")["applications"][APP]["refused"]


def test_an_import_needs_the_same_signatures(tmp_path: Path, world: World) -> None:
    world.offer("1")
    other = World(tmp_path / "other")
    other.offer("2")
    found = msedge(tmp_path, "import", str(tmp_path / "other/repository"), code=1)
    assert found["applications"][APP]["running"] is None and "signatures" in found["trouble"]
    assert "expected a folder" in msedge(tmp_path, "import", str(tmp_path / "none"), code=3)["error"]["message"]
    (tmp_path / "root.json").unlink()
    assert "agent.root: cannot read" in msedge(tmp_path, "once", code=3)["error"]["message"]
    found = msedge(tmp_path, "enrol", str(tmp_path / "token"), code=3)
    assert "agent.hub: expected the address of a hub" in found["error"]["message"]


def test_what_people_read(tmp_path: Path, world: World) -> None:
    world.offer("1")
    found = CliRunner().invoke(app, ["agent", "once", str(tmp_path / "agent.toml"), "--wait", "30"])
    assert found.exit_code == 0 and "keywords" in found.stdout and "1 committed" in found.stdout
    assert "committed: keywords 1" in found.output
    assert CliRunner().invoke(app, ["agent", "init"]).stdout == TEMPLATE
