"""The load tool wrk, with its figures as data."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lite_runtime.errors import MsedgeError

__all__ = ["Load", "Request", "drive"]

_SCRIPT = Path(__file__).with_name("load.lua")


class Request(NamedTuple):
    """A POST request that is sent repeatedly."""

    path: str
    body: bytes
    fields: Mapping[str, str]


class Load(NamedTuple):
    """The result: successful requests per second, the median and 99th percentile of latency in seconds, and
    failures."""

    rate: float
    p50: float
    p99: float
    failures: int


def drive(port: int, request: Request, connections: int, seconds: float, core: int | None = None) -> Load:
    """Send the request over this many connections, each waiting for its reply before the next request. Raises
    MsedgeError if wrk is not installed or prints no result."""
    if shutil.which("wrk") is None:
        raise MsedgeError("wrk, the load tool, is not installed: apt install wrk")
    with tempfile.NamedTemporaryFile() as body:
        body.write(request.body)
        body.flush()
        fields = "\n".join(f"{name}: {value}" for name, value in request.fields.items())
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "30s", "-s", str(_SCRIPT)]
        pinned = ["taskset", "-c", str(core)] if core is not None else []
        found = subprocess.run(
            [*pinned, *command, f"http://127.0.0.1:{port}{request.path}"],
            env={**os.environ, "BODY": body.name, "FIELDS": fields}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    result = re.search(r"RESULT (\{.*\})", found.stdout)
    if result is None:
        raise MsedgeError(f"wrk gave no result: {found.stderr.strip() or found.stdout.strip()}")
    figures = json.loads(result[1])
    answered = figures["requests"] - figures["refused"]
    return Load(answered / figures["seconds"], figures["p50"], figures["p99"], figures["failures"])
