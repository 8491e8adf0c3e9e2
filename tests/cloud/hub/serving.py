"""A hub in a thread of a test, and devices that talk to it by the agent's own code."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloud.hub.client import Client
from cloud.hub.database import tokens
from cloud.hub.server.hub import Hub
from cloud.hub.server.running import serving
from cloud.hub.server.settings import Settings
from edge.agent.conversation import Conversation
from edge.agent.identity import Identity

__all__ = ["Answer", "Running", "running"]


class Answer:
    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.status, self.headers, self.content = status, headers, content

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> str:
        return str(self.json["error"])


class Running:
    """A hub that serves. `hub` may be read, and changed by `call`."""

    def __init__(self, hub: Hub, url: str, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self.hub, self.url, self._loop, self._folder = hub, url, loop, folder
        self.conversations: list[Conversation | Client] = []
        """Are closed at the end."""
        self._viewer = ""

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def token(self, name: str, scope: str = "device", labels: Mapping[str, str] | None = None) -> str:
        now = self.hub.clock()
        return str(self.call(self.hub._run(lambda cursor: tokens.add(cursor, name, scope, now, None, labels or {}))))

    def conversation(self, name: str, authority: str = "") -> Conversation:
        made = Conversation(self.url, Identity(self._folder / name), authority, timeout=60)
        self.conversations.append(made)
        return made

    def client(self, name: str, scope: str = "operator") -> Client:
        """A person or a program with a token of their own."""
        made = Client(self.url, self.token(name, scope))
        self.conversations.append(made)
        return made

    def device(self, name: str, labels: Mapping[str, str] | None = None, authority: str = "") -> Conversation:
        """A device that is enrolled."""
        made = self.conversation(name, authority)
        made.enrol(self.token(f"for-{name}", labels=labels), {})
        return made

    def ask(
        self, method: str, path: str, body: bytes | None = None, token: str = "", context: Any = None, **headers: str
    ) -> Answer:
        """One request as any program could make it."""
        parts = urlsplit(self.url)
        connection = (
            http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=60, context=context)
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        )
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        fields |= {"Authorization": f"Bearer {token}"} if token else {}
        with contextlib.closing(connection):
            connection.request(method, path, body, fields)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers.items()), answer.read())

    @property
    def viewer(self) -> str:
        """The token of a viewer."""
        if not self._viewer:
            self._viewer = self.token("a-viewer", "viewer")
        return self._viewer

    def order(self, method: str, path: str, table: Any = None, token: str = "") -> Answer:
        return self.ask(method, path, None if table is None else json.dumps(table).encode(), token)


@contextlib.contextmanager
def running(folder: Path, database: str, **told: Any) -> Iterator[Running]:
    """A hub that serves until the end of the block; it is stopped as by SIGTERM."""
    folder.mkdir(exist_ok=True)
    told = {"address": "127.0.0.1:0", "rate": 1000.0, "visitors": 1e5, "interval": 60.0, "watch": 1.0, **told}
    ready, over = threading.Event(), None
    found: dict[str, Any] = {}

    async def main() -> None:
        nonlocal over
        over = asyncio.Event()
        try:
            async with serving(Settings(database=database, **told), folder) as (hub, url):
                found["made"] = Running(hub, url, asyncio.get_running_loop(), folder)
                ready.set()
                await over.wait()
        except BaseException as problem:
            found["problem"] = problem
            raise
        finally:
            ready.set()

    def run() -> None:
        with contextlib.suppress(BaseException):
            asyncio.run(main())

    thread = threading.Thread(target=run, name="hub")
    thread.start()
    ready.wait()
    try:
        if "problem" in found:
            raise found["problem"]
        yield found["made"]
    finally:
        for each in found["made"].conversations if "made" in found else ():
            each.close()
        if "made" in found and over is not None:
            found["made"]._loop.call_soon_threadsafe(over.set)
        thread.join()
    if "problem" in found:
        raise found["problem"]
