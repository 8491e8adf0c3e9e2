"""The example for browsers: made, served with its own headers, and used in Chromium as somebody uses it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.browser.chromium import Chromium, Page, found
from lite_runtime.native.target import host

pytestmark = [
    pytest.mark.skipif(host() is None, reason="no native kernels on this processor"),
    pytest.mark.skipif(not found(), reason="no Chromium"),
]
EXAMPLE = Path(__file__).parents[3] / "examples" / "browser"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("example")
    subprocess.run([sys.executable, str(EXAMPLE / "make.py"), str(folder)], check=True, capture_output=True)
    command = [sys.executable, str(EXAMPLE / "serve.py"), str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


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
        assert texts(page, "status")[0].startswith("Ready after ")
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
    """A field full of ink is no digit; after a click on 4 it is one."""
    with Chromium() as browser, browser.page(address) as page:
        ready(page)
        found_ = page.evaluate(
            """(async () => {
                const pad = document.getElementById("pad"), pen = pad.getContext("2d");
                pen.fillRect(40, 40, 240, 240);
                pen.fillStyle = "#111";
                pen.fillRect(40, 40, 240, 240);
                const most = () => document.querySelector("#scores .most span").textContent;
                pad.dispatchEvent(new PointerEvent("pointerup"));
                const before = most();
                const button = document.querySelectorAll("#teach button")[before === "4" ? 5 : 4];
                for (let i = 0; i < 3; i += 1) button.click();
                await new Promise((done) => setTimeout(done, 50));
                return [before, most()];
            })()"""
        )
        assert found_[1] == ("5" if found_[0] == "4" else "4")
