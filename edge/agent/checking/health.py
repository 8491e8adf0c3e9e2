"""The application's own word for its health in a trial: a program, a file, an address of this machine, a function."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple

__all__ = ["Address", "Check", "Context", "Fresh", "Function", "Program", "is_loopback", "judged", "run"]

MOST_SAID = 300
_LAST = 2.0
"""Seconds for the last words of a program that has ended."""


class Context(NamedTuple):
    """What a check is about. folder: of the running files. since: when the application was told of this version, in
    seconds since 1970."""

    application: str
    version: str
    folder: Path
    since: float = 0.0


class Check(Protocol):
    """Says why an application is not well, "" if it is."""

    def problem(self, context: Context) -> str:
        """May raise whatever it likes, which is a problem too."""
        ...


class Program(NamedTuple):
    """A program that exits with 0 if all is well. words: its path and arguments, which no shell reads. seconds: within
    which it must end."""

    words: tuple[str, ...]
    seconds: float = 30.0

    def problem(self, context: Context) -> str:
        """See `Check`."""
        code, said = run(self.words, context, self.seconds)
        if code is None:
            return f"{self.words[0]} did not end within {self.seconds:g} s"
        return f"{self.words[0]} exited with {code}{': ' + said if said else ''}" if code else ""


class Fresh(NamedTuple):
    """A file that the application writes again and again. seconds: the most since its last change, which must also be
    later than the switch."""

    path: str
    seconds: float = 60.0

    def problem(self, context: Context) -> str:
        """See `Check`."""
        try:
            changed = os.stat(self.path).st_mtime
        except OSError as error:
            return f"{self.path}: {error.strerror}"
        now = time.time()
        if now - changed > self.seconds:
            return f"{self.path} was changed {now - changed:.0f} s ago, expected at most {self.seconds:g} s"
        if changed >= context.since or now < context.since:  # then the clock was set back
            return ""
        return f"{self.path} was not changed since the switch"


class Address(NamedTuple):
    """An address of this machine that answers 200 over HTTP if all is well."""

    url: str
    seconds: float = 5.0

    def problem(self, context: Context) -> str:
        """See `Check`."""
        parts = urlsplit(self.url)
        if not is_loopback(self.url):
            return f"{self.url}: expected an address of this machine, such as http://127.0.0.1:8000/health"
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=self.seconds)
        try:
            connection.request("GET", f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}")
            reply = connection.getresponse()
            said = reply.read(MOST_SAID).decode("utf-8", "replace").strip()
        except (OSError, http.client.HTTPException) as error:
            return f"{self.url}: {str(error) or type(error).__name__}"
        finally:
            connection.close()
        return "" if reply.status == 200 else f"{self.url} answered {reply.status}{': ' + said if said else ''}"


class Function(NamedTuple):
    """A function of a program that uses the agent as a library: it says what is wrong, and nothing, "" or True if
    nothing is."""

    function: Callable[[Context], object]

    def problem(self, context: Context) -> str:
        """See `Check`."""
        found = self.function(context)
        return "" if found is None or found is True or found == "" else str(found)[:MOST_SAID] or "it said False"


def judged(checks: Sequence[Check], context: Context) -> str:
    """What is wrong according to the first check that finds something, "" if none does. Never raises."""
    for check in checks:
        try:
            if found := check.problem(context):
                return found
        except (MsedgeError, OSError) as error:
            return str(error)
        except Exception as error:  # user code: a check
            return f"{type(error).__name__}: {str(error)[:MOST_SAID]}"
    return ""


def run(words: Sequence[str], context: Context, seconds: float) -> tuple[int | None, str]:
    """Run a program without a shell: its exit code, None if it did not end in time, and the end of what it said.

    It finds MSEDGE_APPLICATION, MSEDGE_VERSION and MSEDGE_FOLDER in its environment; what it started ends with it.
    Raises OSError if it cannot be started.
    """
    given: Mapping[str, str] = {
        "MSEDGE_APPLICATION": context.application, "MSEDGE_VERSION": context.version,
        "MSEDGE_FOLDER": os.fspath(context.folder),
    }  # fmt: skip
    child = subprocess.Popen(
        list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, **given}, start_new_session=True,
    )  # fmt: skip
    end = _End(child)
    try:
        code = child.wait(seconds)
        end.join(_LAST)  # a program that goes on in the background may keep the pipe open
        return code, end.said
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if child.poll() is None:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except (OSError, AttributeError):
                child.kill()
            child.wait()


class _End(threading.Thread):
    """Reads what a program says, however much it is, and keeps the end."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        super().__init__(name="msedge-said", daemon=True)
        assert child.stdout is not None
        self._pipe, self._held = child.stdout, b""
        self.start()

    def run(self) -> None:
        """Until all who have the pipe are gone."""
        with self._pipe:
            while part := os.read(self._pipe.fileno(), 1 << 16):
                self._held = (self._held + part)[-MOST_SAID:]

    @property
    def said(self) -> str:
        """The end of it as text, so far."""
        return self._held.decode("utf-8", "replace").strip()


def is_loopback(url: str) -> bool:
    """Whether a URL is of HTTP on this machine."""
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1") and parts.port != 0
    except ValueError:
        return False
