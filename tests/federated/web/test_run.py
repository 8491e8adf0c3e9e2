"""Tabs of a browser and processes with Python in one run over HTTP learn what the simulator learns, to the bit."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import converter
from benchmarks.browser.chromium import Chromium, Page
from benchmarks.browser.chromium import found as chromium
from benchmarks.browser.site import serving
from federated.learner import Batch
from federated.messages.packed import pack, unpack
from federated.transport.checkin.server import Listening, listen
from federated.transport.checkin.tokens import add
from federated.web import modules
from lite_runtime.native.target import host
from tests.federated.fleets import written
from tests.waiting import until

ROOT = Path(__file__).parents[3]
BATCH = 8
TABS, PROCESSES, STOPPED, STOP = 10, 10, 2, 2
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
minimum = 18
quorum = 0.6
[evaluation]
every = 0
"""
SIMULATOR = """
import json, sys
from pathlib import Path
from federated.config import read
from federated.messages.packed import pack
from federated.run import fleet_of, simulate
config, stopped, stop = read(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
silent = lambda name, nth: float("inf") if name in stopped and nth >= stop else 0.0  # its first answer is a greeting
ended = simulate(config, fleet_of(config), delay=silent)
Path(sys.argv[4]).write_bytes(pack({"answered": [row["answered"] for row in ended.rows]}, dict(ended.model())))
"""
"""With the kernels of x86-64-v2, whose results WebAssembly's kernels have to the bit."""
V2 = {**os.environ, "PYTHONPATH": str(ROOT), "MSEDGE_TARGET": "x86-64-v2"}
pytestmark = [
    pytest.mark.skipif(not chromium(), reason="no Chromium"),
    pytest.mark.skipif(host() is None, reason="no native kernels on this processor"),
]


def prepared(folder: Path) -> Mapping[str, Batch]:
    """A bundle, what a page needs of it, and the examples of all devices."""
    shards = written(folder, TABS + PROCESSES)
    sizes = {"gradients": BATCH, "evaluate": 1}
    shapes = {f"{one}/x": (size, 6) for one, size in sizes.items()}
    shapes |= {f"{one}/labels": (size,) for one, size in sizes.items()}
    converter.build(folder / "model.mslite", folder / "web", signatures=tuple(sizes), shapes=shapes, more=modules())
    script = Path(__file__).with_name("page.mjs").read_bytes()
    page = b'<!doctype html><title>-</title><script type="module" src="page.mjs"></script>'
    for name, content in {"page.mjs": script, "page.html": page}.items():
        (folder / "web" / name).write_bytes(content)
    (folder / "run.toml").write_text(CONFIG)
    return shards


def process(folder: Path, name: str, url: str, token: str) -> subprocess.Popen[str]:
    (folder / f"{name}.token").write_text(token)
    words = [f"device={name}", f"bundle={folder / 'model.mslite'}", f"data={folder / 'devices.npz'}"]
    command = [sys.executable, "-m", "federated.transport.checkin.device", url, str(folder / f"{name}.token"), *words]
    return subprocess.Popen([*command, f"state={folder / name}.state"], env=V2, stderr=subprocess.PIPE, text=True)


def text(array: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def test_ten_tabs_and_ten_processes_learn_what_the_simulator_learns(tmp_path: Path) -> None:
    """Two tabs are closed while they work on the second round."""
    from federated.config import read
    from federated.run import opened, run

    shards = prepared(tmp_path)
    names = list(shards)
    tabs, stopped = names[:TABS], names[:STOPPED]
    tokens = {name: add(tmp_path / "tokens", name) for name in names}
    config = read(tmp_path / "run.toml")
    urls: list[str] = []
    with contextlib.ExitStack() as open_:
        origin = open_.enter_context(serving({"web": tmp_path / "web"}, {})).origin
        where = Listening("127.0.0.1:0", str(tmp_path / "tokens"), origins=(origin,), heartbeat=1.0)
        exchange = open_.enter_context(listen(where, urls.append))
        browser = open_.enter_context(Chromium())
        for name in tabs:
            data, stop = shards[name], STOP if name in stopped else None
            inputs = {key: text(values) for key, values in data.inputs.items()}
            about = {"url": urls[0], "token": tokens[name], "inputs": inputs, "labels": text(data.labels), "stop": stop}
            (tmp_path / "web" / f"{name}.json").write_text(json.dumps(about))
        pages: dict[str, Page] = {name: browser.page(f"{origin}/web/page.html?{name}") for name in tabs}

        def titles() -> list[str]:
            return [page.evaluate("document.title") for page in pages.values()]

        processes = [process(tmp_path, name, urls[0], tokens[name]) for name in names[TABS:]]
        until(lambda: len(exchange.nodes()) == len(names), every=0.2)
        pool = open_.enter_context(ThreadPoolExecutor(1))
        running = pool.submit(run, config, opened(config)[1], exchange)
        until(lambda: running.done() or titles().count("stopped") == STOPPED, every=0.2)
        for name in stopped:
            page = pages.pop(name)
            assert page.evaluate("document.title") == "stopped"
            page.close()
        ended = running.result()
    for each in processes:
        assert each.communicate(timeout=60)[1].count("answered") == 4
        assert each.returncode == 0

    words = [json.dumps(stopped), str(STOP), str(tmp_path / "simulated")]
    subprocess.run([sys.executable, "-c", SIMULATOR, str(tmp_path / "run.toml"), *words], env=V2, check=True)
    meta, simulated = unpack((tmp_path / "simulated").read_bytes())
    assert [row["answered"] for row in ended.rows] == meta["answered"] == [20, 18, 18]
    assert pack({}, ended.model()) == pack({}, simulated)
