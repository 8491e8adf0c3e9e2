"""Processes that check in over TLS learn what the simulator learns, with one of them killed on the way."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import PIPE, Popen

import numpy as np
import pytest
from msgspec import structs

from federated.config import Report, State, read
from federated.messages.packed import unpack
from federated.run import fleet_of, simulate
from federated.transport.checkin.tokens import add
from tests.federated.fleets import written

ROOT = Path(__file__).parents[4]
NAMES = ["device-00", "device-01", "device-02"]
LOST = "device-01"
CONFIG = """
[model]
bundle = "model.mslite"
[data]
shards = "devices.npz"
[algorithm]
name = "fedavg"
[local]
steps = 4
batch = 8
[rounds]
count = 3
minimum = 3
quorum = 0.6
[evaluation]
every = 0
[state]
checkpoint = "run.state"
[report]
json = "run.json"
"""
SLOW = """
import sys, time
from federated.client import device
train = device.Device.train
def waiting(self, message):
    if device.unpack(message)[0]["round"] == 3:
        print("round 3", file=sys.stderr, flush=True)
        time.sleep(300)
    return train(self, message)
device._KINDS = {**device._KINDS, "train": waiting}
from federated.transport.checkin.device import main
sys.exit(main(sys.argv[1:]))
"""
"""A device that is busy in round 3, so that it can be killed there."""

BLOCKED = "flwr aiohttp grpc jax jaxlib onnx onnx_ir onnxscript converter cloud edge".split()
BLOCKER = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"{{name}} is not for devices", name=name)
sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle, three devices' examples, certificates, tokens."""
    written(tmp_path, 3)
    (tmp_path / "run.toml").write_text(CONFIG)
    subprocess.run(
        [sys.executable, ROOT / "examples" / "federated" / "certificates.py", tmp_path / "keys", "--nodes", "0"],
        check=True,
    )
    (tmp_path / "blocker").mkdir()
    (tmp_path / "blocker" / "sitecustomize.py").write_text(BLOCKER)
    for name in NAMES:
        (tmp_path / f"{name}.token").write_text(add(tmp_path / "tokens", name))
    return tmp_path


@contextlib.contextmanager
def process(*words: str | Path, blocker: Path | None = None) -> Iterator[Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, filter(None, (blocker, ROOT))))}
    with Popen([sys.executable, *words], env=environment, stdout=PIPE, stderr=PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def line_with(running: Popen[str], pattern: str) -> str:
    """What a pattern finds in the next line of stderr that has it."""
    assert running.stderr is not None
    said = []
    for line in running.stderr:
        if found := re.search(pattern, line):
            return found[1]
        said.append(line)
    raise AssertionError(f"the process ended without {pattern!r}: {''.join(said)}")


def device(folder: Path, name: str, url: str) -> Sequence[str | Path]:
    words = [f"device={name}", f"bundle={folder / 'model.mslite'}", f"data={folder / 'devices.npz'}"]
    return [
        url,
        folder / f"{name}.token",
        *words,
        f"state={folder / name}.state",
        "--authority",
        folder / "keys/ca.crt",
    ]


def test_processes_that_check_in_learn_what_the_simulator_learns(folder: Path) -> None:
    keys = ["--tls", folder / "keys/server.crt", folder / "keys/server.key"]
    listen = ["-m", "edge.cli", "listen", folder / "run.toml", "--tokens", folder / "tokens", *keys]
    with contextlib.ExitStack() as running:
        server = running.enter_context(process(*listen, "--address", "127.0.0.1:0", "--json", "--heartbeat", "1"))
        url = line_with(server, r"check in at (https://\S+)")
        module = "federated.transport.checkin.device"
        ways = {name: ["-c", SLOW] if name == LOST else ["-m", module] for name in NAMES}
        nodes = {
            name: running.enter_context(process(*ways[name], *device(folder, name, url), blocker=folder / "blocker"))
            for name in NAMES
        }
        line_with(nodes[LOST], r"(round 3)")
        nodes[LOST].kill()
        output, errors = server.communicate()
        assert server.returncode == 0, errors
        for name, node in nodes.items():
            said = node.communicate()[1]
            assert name == LOST or (node.returncode == 0 and f"checked in as {name}" in said), said

    rows = json.loads(output)["rows"]
    assert [(row["round"], row["answered"]) for row in rows] == [(1, 3), (2, 3), (3, 2)]
    learned = unpack((folder / "run.state").read_bytes())[1]["state"]["params"]

    words = structs.replace(read(folder / "run.toml"), state=State(), report=Report())
    silent = (LOST, 3)
    ended = simulate(words, fleet_of(words), delay=lambda *nth: float("inf") if nth == silent else 0.0)
    simulated = ended.model()
    assert learned.keys() == simulated.keys()
    for name in learned:
        np.testing.assert_array_equal(learned[name], simulated[name])


def test_the_command_adds_devices_and_says_what_is_missing(tmp_path: Path) -> None:
    def said(*words: str | Path) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "edge.cli", "listen", *words], capture_output=True, text=True, cwd=tmp_path
        )
        return done.returncode, done.stdout, done.stderr

    tokens = tmp_path / "tokens"
    code, token, error = said("--tokens", tokens, "--add-device", "phone")
    assert (code, tokens.read_text().split()[0]) == (0, "phone"), error
    assert len(token.strip()) == 32
    code, text, _ = said("--tokens", tokens, "--add-device", "page", "--json")
    assert json.loads(text)["device"] == "page"
    assert said("--tokens", tokens, "--add-device", "page")[0] != 0
    code, _, error = said("--tokens", tokens)
    assert code == 2
    assert "expected a configuration" in error
    code, _, error = said("none.toml", "--tokens", tokens)
    assert code != 0
    assert "Traceback" not in error
