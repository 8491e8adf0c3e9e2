"""Structured log lines on stderr, written by a separate thread, so that a blocked pipe delays no request.

The loop's thread appends a tuple; the writer thread formats and writes it. The writer polls every 0.2 s, as waking it
for each line costs the loop more than the rest. Dropped lines are counted and reported.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from edge.gateway.operate.settings import Logs

__all__ = ["LEVELS", "Forward", "Log", "RequestIds"]

LEVELS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_CAPACITY = 10_000
_PERIOD = 0.2
_AT_ONCE = 32

Entry = tuple[float, str, str, Mapping[str, Any]]
"""Seconds since 1970, level, text, fields."""


class _Sink(Protocol):
    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class RequestIds:
    """Ids of requests: the client's, from the header X-Request-ID, if its characters are allowed in a log; else a new
    one, of 16 random hex digits for the process and a count."""

    __slots__ = ("_count", "_fits", "_prefix")

    def __init__(self) -> None:
        self._prefix, self._count = secrets.token_hex(8), itertools.count(1)
        self._fits = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}").fullmatch

    def of(self, given: str | None) -> str:
        """The request's id."""
        if given is not None and self._fits(given) is not None:
            return given
        return f"{self._prefix}-{next(self._count):x}"


class Log:
    """Logs events, and requests for which `wants_request` is true. `dropped`: lines dropped so far as the queue was
    full. `close` writes the remaining lines; nothing is written after it."""

    def __init__(self, settings: Logs, sink: _Sink | None = None, capacity: int = _CAPACITY) -> None:
        self._sink: _Sink = sys.stderr if sink is None else sink
        self.change(settings.level, settings.requests)
        self._format = _FORMATS[settings.format]
        self._entries: deque[Entry] = deque()
        self._capacity, self.dropped, self._told = capacity, 0, 0
        self._owed = 0.0
        self._wake, self._closing = threading.Event(), False
        self._writer = threading.Thread(target=self._write, name="msedge-log", daemon=True)
        self._writer.start()

    def change(self, level: str, share: float) -> None:
        """Log events from this level on, and this share of requests."""
        self.level, self.share = level, share
        self._level = LEVELS[level]

    def enabled(self, level: str) -> bool:
        """Whether events of that level are written; to be checked before computing costly fields."""
        return LEVELS[level] >= self._level

    def event(self, level: str, text: str, **fields: Any) -> None:
        """Log an event. Fields: strings, numbers, booleans, None."""
        if LEVELS[level] >= self._level:
            self._put((time.time(), level, text, fields))
            if LEVELS[level] >= LEVELS["error"]:
                self._wake.set()

    def wants_request(self, status: int) -> bool:
        """Whether to log a request with this status: internal errors always, the others by their `share`,
        evenly."""
        if self.share:
            self._owed += self.share
            if self._owed >= 1:
                self._owed -= 1
                return True
        return status == 500

    def request(
        self, identity: str, method: str, path: str, status: int, seconds: float, peer: str, **more: Any
    ) -> None:
        """Log a finished request."""
        level = "error" if status == 500 else "info"
        fields = {"id": identity, "method": method, "path": path, "status": status,
                  "ms": round(seconds * 1000, 3), "peer": peer, **more}  # fmt: skip
        self._put((time.time(), level, "request", fields))

    def close(self) -> None:
        """Write the remaining lines, for at most two seconds, and stop."""
        self._closing = True
        self._wake.set()
        self._writer.join(2.0)

    def _put(self, entry: Entry) -> None:
        if len(self._entries) < self._capacity and not self._closing:
            self._entries.append(entry)
        else:
            self.dropped += 1

    def _write(self) -> None:
        closing = False
        while not closing:
            self._wake.wait(_PERIOD)
            self._wake.clear()
            closing = self._closing
            while entries := self._taken():
                self._write_out("".join(f"{self._format(entry)}\n" for entry in entries), len(entries))

    def _taken(self) -> list[Entry]:
        """Take a few lines: writing lets other threads run, and they should not wait while many lines are formatted."""
        taken = [self._entries.popleft() for _ in range(min(len(self._entries), _AT_ONCE))]
        if self.dropped > self._told:
            lost, self._told = self.dropped - self._told, self.dropped
            taken.append((time.time(), "warning", "log lines dropped", {"count": lost}))
        return taken

    def _write_out(self, text: str, lines: int) -> None:
        try:
            self._sink.write(text)
            self._sink.flush()
        except (OSError, ValueError):  # closed, or the reader has gone: serving continues
            self.dropped, self._told = self.dropped + lines, self._told + lines


class Forward(logging.Handler):
    """Writes what libraries log, and Python's warnings, into the gateway's log, so that all lines have one form."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        level = "error" if record.levelno >= logging.ERROR else "warning"
        text = record.getMessage().strip()[:2000]
        self._log.event(level, "message of a library", library=record.name, message=text)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


def _as_json(entry: Entry) -> str:
    """One line of ASCII; text from clients cannot break out of its string."""
    seconds, level, text, fields = entry
    words = {"time": _time(seconds), "level": level, "event": text, "pid": os.getpid(), **fields}
    return _encode(words)


def _as_text(entry: Entry) -> str:
    seconds, level, text, fields = entry
    return " ".join([_time(seconds), f"{level:<7}", text, *(f"{key}={_word(value)}" for key, value in fields.items())])


_PLAIN = re.compile(r"[!#-<>-\[\]-~]+").fullmatch
"""Values that need no quotes: ASCII without space, quotes, = and backslash."""


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value if _PLAIN(value) else json.dumps(value)
    return str(value) if isinstance(value, int | float) or value is None else json.dumps(str(value))


_FORMATS: Mapping[str, Callable[[Entry], str]] = {"json": _as_json, "text": _as_text}
