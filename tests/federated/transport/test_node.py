"""A SuperNode that a SuperLink does not let in yet is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from federated.transport.node import keep

ROOT = Path(__file__).parents[3]
REFUSED_TWICE = """
import pathlib, sys
tries = pathlib.Path(sys.argv[1])
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
sys.exit(0 if len(tries.read_text()) == 3 else 1)
"""


def test_a_node_is_started_until_it_is_let_in(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    assert keep([sys.executable, "-c", REFUSED_TWICE, str(tries)], first=0.01) == 0
    assert tries.read_text() == "xxx"


def test_it_ends_with_its_supervisor(tmp_path: Path) -> None:
    program = (
        "import sys; from federated.transport.node import keep; "
        "keep([sys.executable, '-c', 'import time, pathlib, os, sys; "
        "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)', sys.argv[1]])"
    )
    written = tmp_path / "pid"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program, str(written)], env=environment) as supervisor:
        until = time.monotonic() + 60
        while not (written.exists() and written.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        node = int(written.read_text())
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait(60)
    assert not Path(f"/proc/{node}").exists()
