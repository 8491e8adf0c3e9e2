"""A SuperLink and SuperNodes on this machine, with TLS and node keys: `python local.py FOLDER fleet.toml --nodes 3`.

All parts of a deployment in one place; docs/federated.md explains each. Keys, logs and device states are written to
FOLDER. Devices are `device-00`, `device-01` … of the configuration's shards; every process is ended at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

sys.path.insert(0, str(Path(__file__).parent))
from certificates import certificates, node_key

BIN = Path(sys.executable).parent
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05"}


class Deployment:
    """The processes. `environment`: variables of the nodes, in addition to those of this process."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self.keys = folder / "keys"
        self.superlink: subprocess.Popen[bytes] | None = None
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.environment = environment or {}
        certificates(self.keys, ["127.0.0.1", "localhost"])

    def __enter__(self) -> Deployment:
        host, _, port = self.address.partition(":")
        tls = ["--ssl-ca-certfile", self.keys / "ca.crt", "--ssl-certfile", self.keys / "server.crt"]
        tls += ["--ssl-keyfile", self.keys / "server.key", "--enable-supernode-auth"]
        where = ["--host", host, "--port", port, "--database", self.folder / "superlink.db"]
        program = [BIN / "flower-superlink", *tls, *where, "--disable-runtime-dependency-installation"]
        self.superlink = self._start("superlink", program, {})
        wait_for(lambda: answers(host, int(port)), 60, "the SuperLink")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = [*self.nodes, *([self.superlink] if self.superlink else [])]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            until = time.monotonic() + 5
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))

    def flwr(self, *words: str | Path) -> str:
        """Run a Flower command for this SuperLink; returns its stdout."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "fleet"\n\n[superlink.fleet]\naddress = "{self.address}"\n'
            f'root-certificates = "{self.keys / "ca.crt"}"\n'
        )
        environment = {**os.environ, **QUIET, "FLWR_HOME": str(home)}
        done = subprocess.run([BIN / "flwr", *words], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(map(str, words))}: {done.stdout}{done.stderr}")
        return done.stdout

    def add_node(self, device: str, bundle: Path | str, data: Path) -> subprocess.Popen[bytes]:
        """Register a key and start its node. `bundle` "": a device that answers questions and grows trees only."""
        return self.start_node(self._registered(), device, bundle, data)

    def add_aggregator(self, socket: Path) -> subprocess.Popen[bytes]:
        """Register a key, and start the node that passes orders to the aggregator at this socket."""
        return self._start_node(self._registered(), socket.stem, {"aggregator": socket})

    def start_node(self, at: int, device: str, bundle: Path | str, data: Path) -> subprocess.Popen[bytes]:
        """Start node number `at`, or start it again."""
        words = {"device": device, "bundle": bundle, "data": data, "state": self.folder / f"{device}.state"}
        return self._start_node(at, device, words)

    def _registered(self) -> int:
        """Make and register the next node's key; returns the node's number."""
        at = len(self.nodes)
        key = node_key(self.keys, f"node-{at}")
        self.flwr("supernode", "register", key.with_suffix(".pub"), "fleet")
        return at

    def _start_node(self, at: int, name: str, words: Mapping[str, Path | str]) -> subprocess.Popen[bytes]:
        # Started again when it ends: a SuperLink refuses a node that was killed for a minute.
        program: list[str | Path] = [sys.executable, "-m", "federated.transport.node"]
        program += ["--superlink", self.address, "--port", str(free_port())]
        program += ["--root-certificates", self.keys / "ca.crt"]
        program += ["--auth-supernode-private-key", self.keys / f"node-{at}"]
        program += ["--node-config", " ".join(f"{key}='{value}'" for key, value in words.items())]
        process = self._start(name, program, self.environment)
        self.nodes[at:] = [process, *self.nodes[at + 1 :]]
        return process

    def _start(self, name: str, program: list[str | Path], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        home = self.folder / f"home-{name}"
        home.mkdir(exist_ok=True)
        path = {"FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}
        with (self.folder / f"{name}.log").open("ab") as log:
            # A separate process group: its children, one for every message, end with it.
            words = {**os.environ, **QUIET, **path, **environment}
            return subprocess.Popen(program, env=words, stdout=log, stderr=log, start_new_session=True)


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def answers(host: str, port: int) -> bool:
    """Whether a process listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False


def wait_for(truth: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until `truth()`; raises RuntimeError after this many seconds."""
    until = time.monotonic() + seconds
    while not truth():
        if time.monotonic() > until:
            raise RuntimeError(f"expected {what} within {seconds:.0f} s; see the logs in FOLDER")
        time.sleep(0.1)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("config", type=Path)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--resume", action="store_true")
    words = parser.parse_args()
    words.folder.mkdir(parents=True, exist_ok=True)
    sections = tomllib.loads(words.config.read_text())
    at = words.config.resolve().parent
    bundle, data = at / sections["model"]["bundle"], at / sections["data"]["shards"]
    with Deployment(words.folder.resolve()) as deployment:
        for number in range(words.nodes):
            deployment.add_node(f"device-{number:02d}", bundle, data)
        command = [BIN / "msedge", "federate", words.config, "--superlink", deployment.address]
        command += ["--certificates", deployment.keys / "ca.crt", *(["--resume"] if words.resume else [])]
        raise SystemExit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
