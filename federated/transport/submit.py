"""Starting a run on a SuperLink: the app, and the command that submits it.

The app only names our ServerApp and ClientApp; the code itself, the bundle and the data are where msedge is
installed, not in the app, so that a SuperLink cannot run other code on devices that accept only trusted apps.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from federated.errors import FederatedError
from lite_runtime.errors import MissingExtraError

__all__ = ["APP", "submit", "write_app"]

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
STARTED = re.compile(r"Successfully started run (\d+)")
_ENDS = (0, 1)
"""Exit codes of Flower's command when a run has ended, in whichever way: 1 if its log ended first."""
UNTOLD = "see its log above; the SuperLink does not tell more, or has ended"
ASKS = 20
"""How often the status of a run is asked for after its log ended."""

APP: Mapping[str, str] = {
    "pyproject.toml": """\
# The app that a SuperLink runs: it names msedge's ServerApp and ClientApp.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "msedge-fleet"
version = "1.0.0"
description = "Federated learning with msedge"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "msedge"

[tool.flwr.app.components]
serverapp = "msedge_fleet.server:app"
clientapp = "msedge_fleet.client:app"

[tool.flwr.app.config]
config = ""
resume = false
aggregator = ""
""",
    "msedge_fleet/__init__.py": '"""The Flower app."""\n',
    "msedge_fleet/server.py": '''\
"""The ServerApp that the SuperLink runs."""

from federated import server_app as app

__all__ = ["app"]
''',
    "msedge_fleet/client.py": '''\
"""The ClientApp that a SuperNode runs."""

from federated import client_app as app

__all__ = ["app"]
''',
}


def write_app(folder: Path) -> None:
    """The app's files."""
    for name, text in APP.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def submit(
    config: str | os.PathLike[str], superlink: str, *, certificates: str | os.PathLike[str] | None = None,
    resume: bool = False, aggregator: str | os.PathLike[str] = "", log: TextIO | None = None,
) -> None:
    """Let the SuperLink at `superlink` (host:port) run a configuration, and show its log until it ends.

    `certificates`: the PEM file that authenticates the SuperLink; None: no TLS. The configuration must be on the
    machine of the ServerApp: the SuperLink's. `aggregator`: the socket of an aggregator, which this is then
    (`federated.run.aggregate`). `log`: where the log is written; None: standard output. Flower's
    telemetry is off unless the environment turns it on. Raises FederatedError, with the ServerApp's error, if the run
    does not complete: Flower's own command ends with exit code 0 then.
    """
    flwr = shutil.which("flwr", path=os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", ""))))
    if flwr is None:
        raise MissingExtraError("flwr", "federated", "runs on real devices use Flower")
    path = Path(config).resolve()
    socket = os.path.abspath(aggregator) if aggregator else ""
    for text in (str(path), superlink, str(certificates or ""), socket):
        if any(mark in text for mark in "\"'\\\n"):
            raise FederatedError(f"expected a path or address without quotes and backslashes, got {text!r}")
    with tempfile.TemporaryDirectory(prefix="msedge-run-") as made:
        folder = Path(made)
        write_app(folder / "app")
        trust = f'root-certificates = "{Path(certificates).resolve()}"' if certificates else "insecure = true"
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "fleet"\n\n[superlink.fleet]\naddress = "{superlink}"\n{trust}\n'
        )
        words = f"config='{path}' resume={'true' if resume else 'false'} aggregator='{socket}'"
        environment = {**QUIET, **os.environ, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1"}
        command = [flwr, "run", str(folder / "app"), "fleet", "--stream", "--run-config", words]
        code, run = _streamed(command, environment, log or sys.stdout)
        if run is None or code not in _ENDS:
            raise FederatedError(f"flwr run: expected exit code 0, got {code}; its messages are above")
        _completed([flwr, "list", "fleet", "--run-id", run, "--format", "json"], environment, run)


def _streamed(command: Sequence[str], environment: Mapping[str, str], log: TextIO) -> tuple[int, str | None]:
    """Run a command and copy its output line by line; returns its exit code and the run that it started."""
    run = None
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        for line in process.stdout or ():
            log.write(line)
            log.flush()
            if run is None and (started := STARTED.match(line)):
                run = started[1]
    return process.returncode, run


def _completed(command: Sequence[str], environment: Mapping[str, str], run: str) -> None:
    """Raises FederatedError unless Flower says that the run completed."""
    found: dict[str, Any] = {}
    for _ in range(ASKS):  # the log ends a moment before the status changes
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        found = _status(done.stdout)
        if str(found.get("status", "")).startswith("finished"):
            break
        time.sleep(0.5)
    status, why = str(found.get("status", "unknown")), str(found.get("status-details", ""))
    if status != "finished:completed":
        why = " ".join(why.removeprefix("ServerApp failed with exception: ").split())
        raise FederatedError(f"run {run} ended as {status}, not finished:completed: {why or UNTOLD}")


def _status(text: str) -> dict[str, Any]:
    """The run that `flwr list` printed as JSON; {} for anything else."""
    try:
        return dict(json.loads(text[text.index("{") :])["runs"][0])
    except (ValueError, KeyError, IndexError, TypeError):
        return {}
