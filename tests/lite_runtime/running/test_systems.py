"""The runtime where Linux's own functions are missing: it imports, runs with several threads, and keeps programs.

They are removed from this system's Python. What macOS and Windows do in their place is run by Wine (tests/emulated), or
not at all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lite_runtime
from lite_runtime import bundle
from lite_runtime.graph import Graph, Node, Value
from lite_runtime.native import build

ROOT = Path(__file__).parents[3]
MISSING = {
    "macos": ["os.sched_getaffinity", "os.sched_setaffinity", "os.memfd_create", "mmap.MAP_POPULATE"],
    "windows": [
        *("os.sched_getaffinity", "os.sched_setaffinity", "os.memfd_create", "os.register_at_fork", "os.setpriority"),
        *("os.geteuid", "os.O_DIRECTORY", "os.O_NOFOLLOW", "os.O_NONBLOCK", "os.O_CLOEXEC", "os.fchmod"),
        *("mmap.MAP_POPULATE", "fcntl", "grp", "pwd", "resource"),
    ],
}
"""Modules, and what modules lack, by system."""
RUN = """
import importlib, json, os, sys
import numpy.random  # Python's own modules may use what is removed
for name in json.loads(sys.argv[2]):
    module, _, attribute = name.partition(".")
    if attribute:
        delattr(importlib.import_module(module), attribute)
    else:
        sys.modules[module] = None
import numpy as np, lite_runtime
from lite_runtime.native import build
from lite_runtime.running import kept, threads
build.identity = lambda: "0" * 32  # as in a wheel: programs are kept, in a folder of this test
named = kept._path
kept._path = lambda *facts: os.path.join(sys.argv[3], os.path.basename(named(*facts)))
x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
found = []
for start in range(2):
    model = lite_runtime.load(sys.argv[1], backend="native", threads=2)
    for _ in range(20):
        found.append(model.run({"x": x})["y"].tobytes().hex()[:64])
print(json.dumps([sorted(set(found)), threads.cores(), threads._MOVES]))
"""


@pytest.mark.skipif(not build.available(), reason="no native kernels on this machine")
@pytest.mark.parametrize("system", MISSING)
def test_the_runtime_needs_nothing_of_linux(system: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    graph = Graph(
        (Value("x", "float32", (64, 256)),),
        (Value("y", "float32", (64, 256)),),
        (Node("MatMul", ("x", "w"), ("z",)), Node("Relu", ("z",), ("y",))),
        {"w": rng.standard_normal((256, 256)).astype(np.float32)},
    )
    path = tmp_path / "model.mslite"
    bundle.write(path, {"predict": graph})
    build.prepare(["gemm", "walker"])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN, str(path), json.dumps(MISSING[system]), str(tmp_path / "kept")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, cores, moves = json.loads(done.stdout)
    x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    assert found == [lite_runtime.load(path).run({"x": x})["y"].tobytes().hex()[:64]]
    assert cores == os.cpu_count() and not moves
    assert len(list((tmp_path / "kept").iterdir())) == 2  # the signatures, and one program
