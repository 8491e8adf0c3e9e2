"""A headless Chromium whose tabs are opened, asked for their titles and closed, by HTTP (the DevTools protocol's)."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.waiting import until

__all__ = ["CHROMIUM", "Browser", "browser"]

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage")
"""Without its sandbox: tests may run as root, and open no page but their own."""


class Browser:
    def __init__(self, port: int) -> None:
        self._root = f"http://127.0.0.1:{port}/json"

    def _ask(self, path: str, method: str = "GET") -> Any:
        with urlopen(Request(f"{self._root}/{path}", method=method), timeout=60) as answer:
            content = answer.read()
        return json.loads(content) if content[:1] in b"{[" else content

    def open(self, url: str) -> str:
        """The new tab's id."""
        return str(self._ask(f"new?{url}", "PUT")["id"])

    def titles(self) -> dict[str, str]:
        """By id."""
        return {tab["id"]: tab["title"] for tab in self._ask("list") if tab["type"] == "page"}

    def close(self, tab: str) -> None:
        self._ask(f"close/{tab}")


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A new one, with its profile in this folder."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            told = profile / "DevToolsActivePort"
            until(lambda: running.poll() is not None or (told.exists() and told.read_text().count("\n")))
            assert running.poll() is None, "Chromium ended"
            yield Browser(int(told.read_text().split()[0]))
        finally:
            running.terminate()
