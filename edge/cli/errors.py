"""How errors are reported to the user: what went wrong and why, the next command, the exit code; no tracebacks."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import ParamSpec, TypeVar

import typer

from edge.cli.output import emit, say, visible

__all__ = ["CHECK_FAILED", "COULD_NOT_RUN", "guarded"]

CHECK_FAILED, COULD_NOT_RUN = 1, 3

P = ParamSpec("P")
R = TypeVar("R")

# Exceptions by which typer itself ends a command; they are not reported here.
_ENDS = (typer.Exit, typer.Abort, typer.BadParameter)


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """`command` with its errors reported; if the keyword `as_json` is set, they are also printed as a JSON object."""

    @functools.wraps(command)
    def guard(*args: P.args, **kwargs: P.kwargs) -> R:
        with _Border(as_json=bool(kwargs.get("as_json"))), _warnings_in_words():
            return command(*args, **kwargs)

    return guard


@contextlib.contextmanager
def _warnings_in_words() -> Iterator[None]:
    """Show warnings as one readable line; with MSEDGE_DEBUG=1, with their place in the source."""
    before = warnings.formatwarning
    if os.environ.get("MSEDGE_DEBUG") != "1":
        warnings.formatwarning = lambda message, *_, **__: f"warning: {visible(str(message))}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


class _Border:
    """Turns an exception that leaves the block into a report and an exit code."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, _ENDS) or _pipe_closed(error):
            return
        error = _foreseen(error)
        what, follow = _explain(error)
        say(f"error: {what}")
        if follow:
            say(f"next:  {follow}")
        if os.environ.get("MSEDGE_DEBUG") == "1":
            traceback.print_exception(error, file=sys.stderr)
        if self.as_json:
            emit({"error": {"kind": type(error).__name__, "message": what, "next": follow or None}})
        raise typer.Exit(COULD_NOT_RUN) from None


def _foreseen(error: Exception) -> Exception:
    if isinstance(error, ModuleNotFoundError):
        from edge.extras import explain_missing

        return explain_missing(error) or error
    return error


def _explain(error: Exception) -> tuple[str, str]:
    for kind, follow in _next_commands():
        if isinstance(error, kind):
            return _text(error), follow
    what = f"this is a bug in msedge: {type(error).__name__}: {error}"
    return what, "MSEDGE_DEBUG=1 shows the traceback; please report it with the command you ran"


def _next_commands() -> tuple[tuple[type[Exception], str], ...]:
    """Most specific first; "" for errors whose text already ends with the fix. Imported late, as it loads NumPy."""
    from lite_runtime.errors import BundleError, InputError, MsedgeError

    return (
        (BundleError, ""),
        (InputError, "msedge inspect shows a bundle's inputs"),
        (MsedgeError, ""),
        (OSError, "check the path, its permissions and the free space"),
    )


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _pipe_closed(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EPIPE
