"""Chromium without a window, asked through its DevTools protocol over a pipe: no driver, no port, no other package.

    with Chromium() as browser, browser.page("http://127.0.0.1:8000/") as page:
        title = page.evaluate("document.title")

Protocol: https://chromedevtools.github.io/devtools-protocol/ (domains Target, Page and Runtime). Messages are JSON,
each ended by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from lite_runtime.errors import MsedgeError

__all__ = ["Chromium", "Page", "found"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OFF = ("background-networking", "component-update", "default-apps", "gpu", "quic", "sync")
_FLAGS = ("--headless", "--no-first-run", "--remote-debugging-pipe", *(f"--disable-{name}" for name in _OFF))
_SECONDS = 60.0
"""For an answer, unless a call says otherwise."""


def found() -> str:
    """The path of Chromium or Chrome; "" if there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name))), "")


class Chromium:
    """A browser with a profile of its own, which is removed at the end. Raises MsedgeError if it does not start.

    flags: more flags of its command line.
    """

    def __init__(self, path: str = "", flags: tuple[str, ...] = ()) -> None:
        self._path, self._flags = path or found(), flags
        if not self._path or shutil.which(self._path) is None:
            raise MsedgeError(f"expected Chromium ({', '.join(_NAMES)}), found none; install it, or name its path")
        self._count, self._rest = 0, b""

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(prefix="msedge-chromium-", ignore_cleanup_errors=True)
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        # The sandbox needs rights that root in a container lacks; pages are ours.
        flags = [
            *_FLAGS,
            *self._flags,
            f"--user-data-dir={self._profile.name}",
            *(["--no-sandbox"] * (os.getuid() == 0)),
        ]
        actions = [
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            *((os.POSIX_SPAWN_DUP2, fd, 100 + i) for i, fd in enumerate((read, write))),
            *((os.POSIX_SPAWN_DUP2, 100 + i, 3 + i) for i in range(2)),
        ]
        self._process = os.posix_spawn(self._path, [self._path, *flags], os.environ, file_actions=actions, setpgroup=0)
        os.close(read)
        os.close(write)
        try:
            self.version = str(self.ask("Browser.getVersion")["product"]).partition("/")[2]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and all its processes."""
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def page(self, url: str) -> Page:
        """A new page, in a context with caches and storage of its own."""
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        target = self.ask("Target.createTarget", url=url, browserContextId=context)["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, context, session)
        end = time.monotonic() + _SECONDS
        while not page.loaded():
            if time.monotonic() > end:
                raise MsedgeError(f"{url} was not loaded in {_SECONDS:.0f} seconds")
            time.sleep(0.01)
        return page

    def ask(self, method: str, session: str = "", seconds: float = _SECONDS, **parameters: Any) -> Mapping[str, Any]:
        """The result of one of the protocol's methods. Raises MsedgeError for an error, and after `seconds`."""
        self._count += 1
        message = {
            "id": self._count,
            "method": method,
            "params": parameters,
            **({"sessionId": session} if session else {}),
        }
        end = time.monotonic() + seconds
        try:
            os.write(self._to, json.dumps(message).encode() + b"\0")
            while (answer := self._next(end, method)).get("id") != self._count:
                pass
        except BrokenPipeError:
            raise MsedgeError(f"{self._path} ended before it answered {method}") from None
        if "error" in answer:
            raise MsedgeError(f"{method}: {answer['error'].get('message')}")
        return dict(answer["result"])

    def _next(self, end: float, method: str) -> Mapping[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            more = os.read(self._from, 1 << 20) if ready else b""
            if not more:
                raise MsedgeError(
                    f"{self._path} did not answer {method} in time" if not ready else f"{self._path} ended"
                )
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(text))


class Page:
    """A page of a browser."""

    def __init__(self, browser: Chromium, context: str, session: str) -> None:
        self._browser, self._context, self._session = browser, context, session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close it, with its caches and storage."""
        self._browser.ask("Target.disposeBrowserContext", browserContextId=self._context)

    def ask(self, method: str, **parameters: Any) -> Mapping[str, Any]:
        """The result of one of the protocol's methods, for this page. Raises MsedgeError."""
        return self._browser.ask(method, self._session, **parameters)

    def loaded(self) -> bool:
        """Whether the page's address is loaded, with its modules."""
        try:
            return bool(self.evaluate("document.readyState === 'complete' && location.href !== 'about:blank'"))
        except MsedgeError:  # between two addresses there is nothing that could be asked
            return False

    def evaluate(self, expression: str, seconds: float = _SECONDS) -> Any:
        """The value of an expression of JavaScript in JSON's types, awaited if it is a promise. Raises MsedgeError with
        the text of what it throws."""
        how = {"awaitPromise": True, "returnByValue": True, "allowUnsafeEvalBlockedByCSP": False}
        answer = self._browser.ask("Runtime.evaluate", self._session, seconds, expression=expression, **how)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise MsedgeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def call(self, name: str, *arguments: Any, seconds: float = _SECONDS) -> Any:
        """The result of a global function, which the page's modules may still be about to define."""
        given, called = ", ".join(map(json.dumps, arguments)), json.dumps(name)
        look = f"const look = () => ({called} in globalThis ? done() : setTimeout(look, 5)); look();"
        return self.evaluate(f"new Promise((done) => {{ {look} }}).then(() => globalThis[{called}]({given}))", seconds)

    def screenshot(self, width: int, height: int, scale: float = 1.0) -> bytes:
        """A picture of the page's top as PNG; width and height in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])
