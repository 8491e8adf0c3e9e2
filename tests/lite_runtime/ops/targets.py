"""Run a function of a test module with vectors of every other width this machine can run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from lite_runtime.native.target import host, runnable

_HOST = host()
_RUN = [t for t in runnable() if _HOST and t.lanes != _HOST.lanes]
OTHERS = sorted({t.lanes: t.name for t in _RUN}.values())
"""The simplest target of each width that this machine can run in addition to its own."""

on_other_targets = pytest.mark.parametrize("target", OTHERS)


def run_on(target: str, function: Callable[[], None]) -> None:
    """Call a module's function, which must need no arguments, in a process whose kernels are for `target`."""
    code = f"from {function.__module__} import {function.__name__} as f; f()"
    environment = {**os.environ, "MSEDGE_TARGET": target}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
