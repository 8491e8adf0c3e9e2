"""A SuperLink and three SuperNodes on this machine, with TLS and node keys, which have no JAX and no converter."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from federated.config import Report, State, read
from federated.errors import FederatedError
from federated.messages.packed import unpack
from federated.run import fleet_of, simulate
from tests.federated.fleets import written
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "examples" / "federated"))

NAMES = ["device-00", "device-01", "device-02"]
LOST = 1
BLOCKED = "jax jaxlib onnx onnx_ir onnxscript torch tensorflow optax converter cloud edge".split()
BLOCKER = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"{{name}} is not for devices", name=name)
sys.meta_path.insert(0, Blocker())
"""

CONFIG = """
[model]
bundle = "model.mslite"
[data]
shards = "devices.npz"
[algorithm]
name = "fedrep"
own = ["head.bias"]
momentum = 0.5
clip_norm = 2.0
weight_decay = 0.01
[schedule]
local = "step"
every = 1
factor = 0.8
server = "cosine"
rounds = 9
[local]
steps = 4
batch = 8
[rounds]
count = {count}
minimum = {minimum}
quorum = 0.6
deadline = {deadline}
[codec]
up = ["int8"]
down = ["difference", "topk:0.5", "int8"]
[evaluation]
every = 0
[state]
checkpoint = "run.state"
[report]
json = "run.json"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle, three devices' examples."""
    written(tmp_path, 3)
    blocker = tmp_path / "blocker"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text(BLOCKER)
    return tmp_path


def rounds_done(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return int(unpack((folder / "run.state").read_bytes())[0]["round"])
    return 0


def children(of: int) -> Iterator[tuple[int, str]]:
    """Processes below a process, with their command lines."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == of:
                yield int(path.name), (path / "cmdline").read_text()
                yield from children(int(path.name))


def kill_server_app(superlink: int) -> None:
    """SIGKILL to the ServerApp's process, and nothing else."""
    for number, line in children(superlink):
        if "flwr-serverapp" in line:
            os.kill(number, signal.SIGKILL)


def ends_in_failure(run: Callable[[], None]) -> None:
    """The run of a ServerApp that is killed. Flower notices in its own time, or the SuperLink ends before that."""
    with pytest.raises(FederatedError, match=r"ended as (finished:failed|unknown)"):
        run()


def asked(log: Path) -> list[str]:
    """The run of each message to train that a SuperNode has received in whole, from its log."""
    return re.findall(r"\[RUN (\d+).*\n.*Receiving: train message.*\n.*Received successfully", log.read_text())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_a_deployment_learns_what_the_simulator_learns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from local import QUIET, Deployment  # type: ignore[import-not-found]

    from federated.transport.submit import submit

    # Every process of Flower asks for work that often, busily: twenty times a second are for who looks on.
    monkeypatch.setitem(QUIET, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.5")
    config = folder / "run.toml"
    config.write_text(CONFIG.format(count=3, minimum=3, deadline=120.0))
    environment = {"PYTHONPATH": f"{folder / 'blocker'}:{ROOT}"}
    with Deployment(folder, environment) as deployment:
        for name in NAMES:
            deployment.add_node(name, folder / "model.mslite", folder / "devices.npz")
        run = partial(submit, config, deployment.address, certificates=deployment.keys / "ca.crt")

        nodes = json.loads(deployment.flwr("supernode", "list", "fleet", "--format", "json"))["nodes"]
        lost = nodes[LOST]["node-id"]  # in the order in which they were registered
        logs = [folder / f"{name}.log" for name in NAMES if name != NAMES[LOST]]

        # In round 3 a device is killed, and the server's process too, without waiting for Flower to notice. The other
        # devices have their messages by then: they would wait a minute for the rest of one that was cut short.
        first = threading.Thread(target=ends_in_failure, args=(run,))
        first.start()
        until(lambda: rounds_done(folder) >= 2)
        os.killpg(deployment.nodes[LOST].pid, signal.SIGKILL)
        deployment.nodes[LOST].wait()
        until(lambda: all(len(asked(log)) == 3 for log in logs))
        kill_server_app(deployment.superlink.pid)
        assert rounds_done(folder) == 2

        # The run goes on from its checkpoint, and round 3 ends without the device, long before its deadline: Flower
        # answers for nodes that have been silent for a minute, and at once for those that were unregistered.
        config.write_text(CONFIG.format(count=3, minimum=2, deadline=PATIENCE))
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(run, resume=True)
            until(lambda: second.done() or all(len(set(asked(log))) == 2 for log in logs))
            deployment.flwr("supernode", "unregister", lost, "fleet")
            second.result()
    first.join()

    report = json.loads((folder / "run.json").read_text())
    assert [(row["round"], row["answered"]) for row in report["rows"]] == [(1, 3), (2, 3), (3, 2)]
    learned = unpack((folder / "run.state").read_bytes())[1]["state"]["params"]

    # The simulator, where no process dies, but that device's third answer to a round never arrives.
    words = structs.replace(read(config), state=State(), report=Report())
    silent = (NAMES[LOST], 3)
    ended = simulate(words, fleet_of(words), delay=lambda *nth: float("inf") if nth == silent else 0.0)
    assert [row["answered"] for row in ended.rows] == [3, 3, 2]
    simulated = ended.model()
    assert learned.keys() == simulated.keys()
    for name in learned:
        np.testing.assert_allclose(learned[name], simulated[name], atol=1e-5)
