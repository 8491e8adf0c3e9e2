"""The live page: what its server answers, and what a browser makes of it."""

from __future__ import annotations

import http.client
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from benchmarks.browser.chromium import Chromium, Page, found
from cloud.track import Store
from edge.pages import live
from edge.pages.live import HOST, LivePage, serving
from edge.pages.model_graph import drawn
from edge.pages.runs_page import runs_page
from lite_runtime.errors import InputError
from tests.waiting import until

HOSTILE = "<img src=x onerror=alert(1)>"
GRAPH = {
    "inputs": ["x"], "left_out": 0,
    "nodes": [
        {"name": "Conv 'a'", "operator": "Conv", "weights": 72, "from": [-1]},
        {"name": f"Relu '{HOSTILE}'", "operator": "Relu", "weights": 0, "from": [0]},
        {"name": "Conv 'b'", "operator": "Conv", "weights": 9, "from": [1]},
        {"name": "Add 'c'", "operator": "Add", "weights": 0, "from": [2, 0]},
    ],
}  # fmt: skip
PROFILE = {
    "program": "step", "steps": 8, "seconds": 0.004,
    "rows": [
        {"phase": "forward", "node": "Conv 'a'", "operator": "conv", "seconds": 0.003, "share": 0.75},
        {"phase": "backward", "node": f"Relu '{HOSTILE}'", "operator": "mul", "seconds": 0.001, "share": 0.25},
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the last state of a page."""
    monkeypatch.setattr(live, "LINGER", 0.0)


def steps(store: Store, run: str, first: int, last: int) -> None:
    store.add_scalars(run, [(n, i, 0.0, v) for i in range(first, last) for n, v in
                            (("step/loss", 1 / (i + 1)), ("memory/process", 2.0**30 + i))])  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "runs.sqlite", create=True) as made:
        yield made


@pytest.fixture
def run(store: Store) -> str:
    made = store.start(name=HOSTILE, config={"train": {"rate": 0.1}})
    steps(store, made, 0, 20)
    for epoch in (1, 2):
        store.add_scalars(made, [(n, epoch * 10, 0.0, v) for n, v in
                                 (("epoch", float(epoch)), ("time/epoch", 4.0), ("time/data", 0.1), ("time/step", 0.2),
                                  ("time/other", 0.1))])  # fmt: skip
    store.add_document(made, "graph", GRAPH)
    store.add_document(made, "profile", PROFILE)
    return made


def ask(address: str, path: str, host: str | None = None) -> tuple[int, Any, bytes]:
    port = int(address.rstrip("/").rpartition(":")[2])
    line = http.client.HTTPConnection(HOST, port, timeout=30)
    line.request("GET", path, headers={} if host is None else {"Host": host})
    answer = line.getresponse()
    body = answer.read()
    line.close()
    return answer.status, answer.headers, body


def test_sections_change_when_the_run_does(store: Store, run: str) -> None:
    page = LivePage(store.path, lambda: ["latest"])
    with serving(page) as address:
        before = dict(json.loads(ask(address, "/state.json")[2])["sections"])
        assert b"Loss of each step" in ask(address, "/section/curves")[2]
        steps(store, run, 20, 40)
        page.expire()
        state = json.loads(ask(address, "/state.json")[2])
        after = dict(state["sections"])
        assert {name for name in after if after[name] != before[name]} >= {"curves", "memory"}
        assert after["graph"] == before["graph"] and state["state"] == "running"


def test_the_policy_is_the_pages_own(store: Store, run: str) -> None:
    page = LivePage(store.path, lambda: [run])
    with serving(page) as address:
        status, headers, body = ask(address, "/")
        assert status == 200
        for tag in ("style", "script"):
            inside = re.findall(f"<{tag}>(.*?)</{tag}>", body.decode(), re.DOTALL)
            assert inside
            for text in inside:
                assert b64encode(sha256(text.encode()).digest()).decode() in headers["Content-Security-Policy"]
        assert ask(address, "/nothing")[0] == 404
        assert ask(address, "/", "evil.example")[0] == 421
        with (
            pytest.raises(InputError, match="choose another port"),
            serving(page, int(address[:-1].rpartition(":")[2])),
        ):
            pass
    waiting = LivePage(store.path, lambda: [])
    with serving(waiting) as address:
        status, _, body = ask(address, "/state.json")
        assert status == 503 and b"not begun" in body


def test_a_graph_is_drawn_in_layers(store: Store, run: str) -> None:
    picture = drawn(GRAPH, {"Conv 'a'": 0.75})
    assert picture.count("<g>") == 5 and picture.count("<path") == 5 and "75%" in picture and "72 weights" in picture
    tops = [int(y) for y in re.findall(r'<rect class="" x="\d+" y="(\d+)"', picture)]
    assert tops == sorted(set(tops)) and len(tops) == 4
    assert HOSTILE not in picture
    assert drawn({}, {}) == "" == drawn({"nodes": 3}, {})
    assert drawn({"nodes": [{"name": "a", "from": [5, "x", -9]}], "inputs": []}, {}).count("<path") == 0


def test_the_written_page_has_the_new_sections(store: Store, run: str) -> None:
    page = runs_page(store, [store.run(run)])
    for words in ("Step by operator", "over 8 steps: 4 ms", "75.0%", "Memory", "MiB in use", "Time of epochs",
                  "epoch 2, 4 s", "4 operators", "<h2>Model"):  # fmt: skip
        assert words in page, words
    assert HOSTILE not in page
    store.add_document(run, "profile", {"rows": [{"phase": 1}, "x"]})
    assert "Step by operator" not in runs_page(store, [store.run(run)])


@pytest.mark.skipif(not found(), reason="needs Chromium")
def test_a_browser_shows_it_live_at_two_widths(store: Store, run: str) -> None:
    page = LivePage(store.path, lambda: [run])
    with Chromium() as browser, serving(page) as address, browser.page(address) as shown:
        until(lambda: shown.evaluate("document.querySelectorAll('#part-graph svg g').length") == 5, 0.05)
        for width in (390, 1280):
            shown.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                      mobile=width < 600)  # fmt: skip
            assert shown.evaluate("document.documentElement.scrollWidth") <= width
            assert shown.evaluate("getComputedStyle(document.querySelector('.spare')).display") == (
                "none" if width < 600 else "table-cell"
            )
        assert shown.evaluate("document.images.length") == 0 and HOSTILE in shown.evaluate("document.title")
        shown.evaluate("document.querySelector('.graph').focus()")
        steps(store, run, 20, 40)
        store.add_document(run, "graph", {**GRAPH, "nodes": GRAPH["nodes"][:3]})
        page.expire()
        until(lambda: shown.evaluate("document.querySelectorAll('#part-graph svg g').length") == 4, 0.05)
        assert shown.evaluate("document.activeElement.className") == "graph"
        store.end(run, "finished")
        page.expire()
        until(lambda: "finished" in shown.evaluate("document.getElementById('live').textContent"), 0.05)
        pause(shown)


def pause(shown: Page) -> None:
    """By the keyboard."""
    shown.evaluate("document.getElementById('pause').focus()")
    for kind in ("keyDown", "keyUp"):
        shown.ask("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13,
                  **({"text": "\r"} if kind == "keyDown" else {}))  # fmt: skip
    assert shown.evaluate("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
