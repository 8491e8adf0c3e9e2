"""The hub's pages in a browser, used as a person does: by the mouse, by keys, by what is to be read."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.browser.chromium import Chromium, Page
from tests.waiting import until

__all__ = ["Reader"]

_PROBLEMS = """
globalThis.problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("unhandledrejection", (event) => problems.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => problems.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), " ": (32, " ")}


class Reader:
    """A page of a hub in a browser. Everything waits until it is there."""

    def __init__(self, browser: Chromium, url: str) -> None:
        self.page: Page = browser.page(f"{url}/pages/hub.css")
        self.page.ask("Page.enable")
        self.page.ask("Page.addScriptToEvaluateOnNewDocument", source=_PROBLEMS)
        self.size(1280, 900)
        self.page.ask("Page.navigate", url=f"{url}/")
        self.url = url

    def size(self, width: int, height: int) -> None:
        self.page.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def get(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def text(self) -> str:
        return str(self.get("document.body?.innerText ?? ''"))

    def reads(self, *words: str) -> None:
        """Wait until all of these are to be read."""
        until(lambda: all(word in self.text() for word in words), 0.05)

    def there(self, selector: str, words: str = "") -> bool:
        return bool(self.get(f"Boolean({self._found(selector, words)})"))

    @staticmethod
    def _found(selector: str, words: str) -> str:
        has = f"one.innerText.includes({json.dumps(words)})"
        return f"[...document.querySelectorAll({json.dumps(selector)})].find((one) => {has})"

    def click(self, selector: str, words: str = "") -> None:
        """Press the mouse on the middle of an element, which has to be the uppermost there."""
        until(lambda: self.there(selector, words), 0.05)
        look = f"""(() => {{ const one = {self._found(selector, words)}; one.scrollIntoView({{ block: "center" }});
            const box = one.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
            const top = document.elementFromPoint(x, y);
            return one.contains(top) ? [x, y] : null; }})()"""
        at = self.get(look)
        assert at is not None, f"{selector} {words!r} is covered, or not on the screen"
        for kind in ("mousePressed", "mouseReleased"):
            self.page.ask("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def key(self, name: str) -> None:
        code, text = _KEYS[name]
        about = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        self.page.ask("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {}))
        self.page.ask("Input.dispatchKeyEvent", type="keyUp", **about)

    def tab_to(self, words: str, most: int = 40) -> None:
        """Press Tab until what has the focus reads so."""
        for _ in range(most):
            self.key("Tab")
            here = "document.activeElement.matches('a, button') && document.activeElement.innerText"
            if words in str(self.get(here)):
                return
        raise AssertionError(f"{most} times Tab do not lead to {words!r}")

    def write(self, text: str) -> None:
        """Type into what has the focus."""
        self.page.ask("Input.insertText", text=text)

    def login(self, token: str) -> None:
        until(lambda: self.get("document.activeElement?.id") == "field-token", 0.05)
        self.write(token)
        self.key("Enter")
        until(lambda: self.there("#logout"), 0.05)

    def go(self, address: str, title: str) -> None:
        """To another page of the hub, which is drawn when this returns."""
        self.get(f"void (location.hash = {json.dumps(f'#/{address}')})")
        drawn = "document.querySelectorAll('main section:not(:empty)').length"
        until(lambda: self.get("document.querySelector('h1')?.innerText") == title and self.get(drawn), 0.05)

    def problems(self) -> list[str]:
        """Errors of scripts, and what the policy has refused."""
        found: list[str] = self.get("problems")
        return found
