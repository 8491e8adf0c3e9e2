"""The example for browsers: made, served with its own headers, and used in Chromium as somebody uses it."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lite_runtime
from benchmarks.browser.chromium import Chromium, Page, found
from cloud.train.many.processes import free_port
from edge import prepared
from federated.config import read
from federated.run import opened, run
from federated.transport.checkin.server import Listening, listen
from federated.transport.checkin.tokens import add
from lite_runtime.native.target import host
from tests.edge.gateway.processing.files import wav
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(host() is None, reason="no native kernels on this processor"),
    pytest.mark.skipif(not found(), reason="no Chromium"),
]
EXAMPLE = Path(__file__).parents[3] / "examples" / "browser"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("example")
    subprocess.run([sys.executable, str(EXAMPLE / "make.py"), str(made)], check=True, capture_output=True)
    return made


@contextlib.contextmanager
def served(folder: Path, *options: str) -> Iterator[str]:
    command = [sys.executable, str(EXAMPLE / "serve.py"), str(folder), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder) as origin:
        yield origin


def texts(page: Page, *names: str) -> list[str]:
    asked = ", ".join(f"document.getElementById('{name}').textContent" for name in names)
    found_ = page.evaluate(f"[{asked}]")
    assert isinstance(found_, list)
    return found_


def ready(page: Page) -> None:
    """Wait until the page can be used."""
    page.evaluate(
        """new Promise((done, failed) => { const look = () => {
            const text = document.getElementById("status")?.textContent ?? "";
            if (text.startsWith("This page cannot")) failed(new Error(text));
            else if (document.getElementById("learn")?.disabled !== false) setTimeout(look, 20);
            else done();
        }; look(); })"""
    )


def share(text: str) -> int:
    return int(text.removesuffix(" %"))


def test_the_page_reads_learns_and_remembers(address: str) -> None:
    with Chromium() as browser, browser.page(address) as page:
        ready(page)
        assert texts(page, "status")[0].startswith("Ready: two networks after ")
        before, now = map(share, texts(page, "before", "now"))
        assert before == now < 60
        page.evaluate("document.getElementById('learn').click()")
        ready(page)
        before, now = map(share, texts(page, "before", "now"))
        assert now >= before + 20 and texts(page, "steps", "kept") == ["96", "kept in this browser"]
        page.evaluate("globalThis.stale = true; location.reload()")
        while not (page.loaded() and page.evaluate("!globalThis.stale")):
            time.sleep(0.02)
        ready(page)
        assert share(texts(page, "now")[0]) == now and texts(page, "kept")[0].startswith("continued")
        page.evaluate("document.getElementById('forget').click()")
        assert share(texts(page, "now")[0]) == before


def test_a_digit_that_is_taught_is_read(address: str) -> None:
    """A field full of ink is no digit; after clicks on 4 it is one."""
    with Chromium() as browser, browser.page(address) as page:
        ready(page)
        page.evaluate(
            """(() => {
                const pad = document.getElementById("pad"), pen = pad.getContext("2d");
                pen.fillStyle = "#111";
                pen.fillRect(40, 40, 240, 240);
                pad.dispatchEvent(new PointerEvent("pointerup"));
            })()"""
        )
        taught(page, "scores", "teach")


MOST = "document.querySelector('#{} .most span')?.textContent ?? ''"
FAKE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


def taught(page: Page, scores: str, buttons: str) -> None:
    """What is shown has an answer; teach another class until it is the answer."""
    until(lambda: page.evaluate(MOST.format(scores)))
    before = page.evaluate(MOST.format(scores))
    names = page.evaluate(f"[...document.querySelectorAll('#{buttons} button')].map((each) => each.textContent)")
    wanted = next(name for name in names if name != before)
    for _ in range(6):
        page.evaluate(f"document.querySelectorAll('#{buttons} button')[{names.index(wanted)}].click()")
    until(lambda: page.evaluate(MOST.format(scores)) == wanted)


def test_what_the_camera_sees_is_read_and_taught(address: str) -> None:
    """Chromium's own camera shows a moving picture of two colours."""
    with Chromium(flags=FAKE) as browser, browser.page(address) as page:
        ready(page)
        assert page.evaluate("document.getElementById('take').disabled")
        page.evaluate("document.getElementById('switch').click()")
        until(lambda: page.evaluate("!document.getElementById('take').disabled"))
        page.evaluate("document.getElementById('take').click()")
        taught(page, "scores", "teach")
        greys = page.evaluate(
            """(() => {
                const pen = document.getElementById("pad").getContext("2d"), seen = {};
                const { data } = pen.getImageData(0, 0, 320, 320);
                for (let i = 0; i < data.length; i += 4) seen[data[i]] = (seen[data[i]] ?? 0) + 1;
                return seen;
            })()"""
        )
        assert set(greys) == {"0", "255"} and min(greys.values()) > 100
        page.evaluate("document.getElementById('switch').click()")
        until(lambda: page.evaluate("document.getElementById('video').srcObject === null"))
        assert texts(page, "camera-said") == [""]


def test_what_the_microphone_hears_is_named_and_taught(folder: Path, address: str) -> None:
    """And the page makes of it the numbers that the gateway makes of the same samples."""
    sound = f"--use-file-for-fake-audio-capture={folder}/samples/hum.wav"
    with (
        Chromium(flags=(*FAKE, sound, "--autoplay-policy=no-user-gesture-required")) as browser,
        browser.page(address) as page,
    ):
        ready(page)
        page.evaluate("document.getElementById('record').click()")
        until(lambda: page.evaluate(MOST.format("sound-scores")))
        assert page.evaluate(MOST.format("sound-scores")) == "hum"
        assert " samples at " in texts(page, "microphone-said")[0]
        taught(page, "sound-scores", "sound-teach")
        page.evaluate(
            "(() => { const list = document.getElementById('sample'); list.value = 'knocks';"
            " list.dispatchEvent(new Event('change')); })()"
        )
        until(lambda: texts(page, "microphone-said") == ["a sample: knocks"])
        told = page.evaluate(
            """(async () => {
                const { load } = await import("./digits/msedge.mjs");
                const { record } = await import("./digits/msedge-media.mjs");
                const model = await load(new URL("sounds/", location)), levels = [];
                const sound = await record({ seconds: 0.7, onLevel: (level) => levels.push(level) });
                const { x } = await model.prepare({ file: sound });
                const text = (array) => new Uint8Array(array.buffer).toBase64?.() ??
                    btoa(Array.from(new Uint8Array(array.buffer), (byte) => String.fromCharCode(byte)).join(""));
                const stopping = new AbortController(), stopped = record({ seconds: 60, signal: stopping.signal });
                setTimeout(() => stopping.abort(new Error("enough")), 50);
                const why = await stopped.then(() => "", (error) => error.message);
                return { x: text(x), samples: text(sound.samples), rate: sound.rate, levels, why };
            })()"""
        )
    assert told["why"] == "enough"
    samples = np.frombuffer(base64.b64decode(told["samples"]), np.float32)
    assert len(samples) == round(0.7 * told["rate"]) and len(told["levels"]) >= 10
    assert max(told["levels"]) == np.abs(samples).max() > 0.01
    model = lite_runtime.load(folder / "sounds.mslite")
    wanted = prepared(model, {"file": [wav(samples.tobytes(), rate=told["rate"], bits=32, form=3)]})
    found_ = np.frombuffer(base64.b64decode(told["x"]), np.float32).reshape(wanted["x"].shape)
    np.testing.assert_allclose(found_, wanted["x"], atol=1e-5 * np.abs(wanted["x"]).max())


def says(page: Page, button: str, said: str) -> str:
    """What the page says after a click on a button: not nothing, and not that it is at work."""
    page.evaluate(f"document.getElementById('{button}').click()")
    until(lambda: texts(page, said)[0] not in ("", "Listening…"))
    return texts(page, said)[0]


def test_a_page_says_why_it_sees_and_hears_nothing(address: str) -> None:
    refused = "permission was refused; allow it for this page in the browser's settings"
    with Chromium(flags=(FAKE[0], "--deny-permission-prompts")) as browser, browser.page(address) as page:
        ready(page)
        assert says(page, "switch", "camera-said") == f"camera: {refused}"
        assert says(page, "record", "microphone-said") == f"microphone: {refused}"
        assert page.evaluate("document.getElementById('take').disabled && !document.getElementById('record').disabled")
        assert page.evaluate("document.getElementById('video').hidden")
    with Chromium(flags=(f"{FAKE[0]}=device-count=0", FAKE[1])) as browser, browser.page(address) as page:
        ready(page)
        assert says(page, "switch", "camera-said") == "camera: there is none; connect one"


def test_two_pages_take_part_in_a_federated_run(folder: Path, tmp_path: Path) -> None:
    """By the run.toml of the example; one of them was taught a digit before."""
    (folder / "two.toml").write_text((folder / "run.toml").read_text().replace("minimum = 1", "minimum = 2"))
    config = read(folder / "two.toml")
    tokens = {name: add(tmp_path / "tokens", name) for name in ("one", "two")}
    urls: list[str] = []
    port = free_port()
    with served(folder, "--connect", f"http://127.0.0.1:{port}") as origin, Chromium() as browser:
        where = Listening(f"127.0.0.1:{port}", str(tmp_path / "tokens"), origins=(origin.rstrip("/"),), heartbeat=1.0)
        with listen(where, urls.append) as exchange:
            pages = {name: browser.page(origin) for name in tokens}
            for name, page in pages.items():
                ready(page)
                for key, value in {"server": urls[0], "device": name, "token": tokens[name]}.items():
                    page.evaluate(f"void (document.getElementById('{key}').value = {json.dumps(value)})")
                if name == "two":
                    page.evaluate("document.getElementById('pad').dispatchEvent(new PointerEvent('pointerup'))")
                    taught(page, "scores", "teach")
                page.evaluate("document.getElementById('join').click()")
            until(lambda: len(exchange.nodes()) == len(tokens))
            ended = run(config, opened(config)[1], exchange)
        for page in pages.values():
            until(lambda: texts(page, "round-said")[0].startswith("The run is over"))  # noqa: B023
            assert texts(page, "round-said") == ["The run is over; this page answered 4 times."]
    assert [row["answered"] for row in ended.rows] == [2, 2, 2]
