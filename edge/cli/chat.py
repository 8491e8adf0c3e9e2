"""`msedge chat`: talk to a language model."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.options import Bundle, Threads
from edge.cli.output import plain, say, visible

if TYPE_CHECKING:
    from lite_runtime.language import Adapter, LanguageModel, Piece, Statistics
    from lite_runtime.language.sessions import Session

__all__ = ["chat"]

_INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended."""
_MOST = 1 << 26
"""Characters of standard input, at most."""


def chat(
    bundle: Bundle,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="One message; print the answer and exit.")
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="What the model is told before the first message.")
    ] = None,
    session: Annotated[
        Path | None,
        typer.Option("--session", metavar="FILE", help="Continue this conversation if the file exists; save it there."),
    ] = None,
    adapter: Annotated[
        Path | None,
        typer.Option("--adapter", metavar="FILE", help="What was learned beside the model's weights (.msstate)."),
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="T", help="0: always the most probable token; more: more varied.")
    ] = 0.7,
    top_p: Annotated[
        float, typer.Option("--top-p", metavar="P", help="Only the most probable tokens that reach this share.")
    ] = 0.95,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the random numbers; a new one by default.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, metavar="N", help="The most tokens of an answer.")
    ] = 512,
    lookup: Annotated[
        bool, typer.Option("--lookup", help="Faster where answers repeat parts of the conversation; the same text.")
    ] = False,
    threads: Threads = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a line: pieces of text, then why the answer ended.")
    ] = False,
) -> None:
    """Talk to a language model in the terminal.

    A message ends with the Enter key; Ctrl-D ends the conversation. Ctrl-C stops an answer, and the second time the
    program. Without a terminal, all of standard input is one message.
    """
    from secrets import randbits

    from lite_runtime.language import Adapter, LanguageModel

    options: dict[str, Any] = {
        "temperature": temperature,
        "top_p": top_p,
        "seed": randbits(63) if seed is None else seed,
        "max_tokens": max_tokens,
        "speculate": "lookup" if lookup else None,
    }
    model = LanguageModel.load(bundle, threads=threads)
    model.request([0], **options)
    learned = None if adapter is None else Adapter.load(adapter)
    talk = _Talk(model, session, system, learned, options, as_json)
    try:
        if prompt is None and sys.stdin.isatty():
            talk.all()
        else:
            talk.one(_piped() if prompt is None else prompt)
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    finally:
        talk.save()
    if talk.interrupted and (prompt is not None or not sys.stdin.isatty()):
        raise typer.Exit(_INTERRUPTED)


class _Talk:
    """A conversation: its messages, and the session that holds its tokens."""

    def __init__(
        self,
        model: LanguageModel,
        path: Path | None,
        system: str | None,
        adapter: Adapter | None,
        options: dict[str, Any],
        as_json: bool,
    ) -> None:
        self._path, self._options, self._as_json = path, options, as_json
        self._session = _begun(model, path, system, adapter)
        self._messages: list[dict[str, str]] = self._session.metadata["messages"]
        self._known = len(self._messages)
        self.interrupted = False

    def all(self) -> None:
        """Messages from the terminal, until its end."""
        from lite_runtime.errors import MsedgeError

        with suppress(ImportError):
            import readline  # noqa: F401 - `input` edits lines with it
        while True:
            try:
                text = _text(lambda: input("> "))
                if text.strip():
                    self.one(text)
            except EOFError:
                print()
                return
            except MsedgeError as error:
                say(f"error: {error}")

    def one(self, text: str) -> None:
        """A message and its answer."""
        messages = [*self._messages, {"role": "user", "content": text}]
        answer: list[str] = []
        statistics = None
        pieces = self._session.generate(messages=messages, **self._options)
        with _stoppable() as stopped:
            for piece in pieces:
                answer.append(piece.text)
                self._show(piece)
                statistics = piece.statistics
                if stopped:
                    self.interrupted = True
                    break
        pieces.close()
        self._messages[:] = [*messages, {"role": "assistant", "content": "".join(answer)}]
        if not self._as_json:
            print(flush=True)
        if statistics is not None and not self._as_json:
            say(_figures(statistics))

    def save(self) -> None:
        """Write the session to its file if it has changed."""
        if self._path is not None and len(self._messages) != self._known:
            self._session.save(self._path)
            self._known = len(self._messages)

    def _show(self, piece: Piece) -> None:
        if self._as_json:
            print(_line(piece), flush=True)
        else:
            text = visible(piece.text) if sys.stdout.isatty() else piece.text
            print(text, end="", flush=True)


def _piped() -> str:
    """All of standard input. Raises MsedgeError unless it is text of at most `_MOST` characters."""
    from lite_runtime.errors import MsedgeError

    text = _text(lambda: sys.stdin.read(_MOST + 1))
    if len(text) > _MOST:
        raise MsedgeError(f"standard input: expected at most {_MOST} characters, got more; shorten it")
    return text


def _text(read: Callable[[], str]) -> str:
    """What is read from standard input. Raises MsedgeError for bytes that are no text."""
    from lite_runtime.errors import MsedgeError

    try:
        text = read()
        text.encode("utf-8")  # in a locale without an encoding, wrong bytes become halves of surrogate pairs
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        what = f"expected text in UTF-8, got other bytes at {error.start}"
        raise MsedgeError(f"standard input: {what}; convert it, for example with iconv") from None
    return text


def _begun(model: LanguageModel, path: Path | None, system: str | None, adapter: Adapter | None) -> Session:
    """The session in a file, or a new one. Its metadata hold the messages."""
    from lite_runtime.errors import BundleError, InputError

    first = [] if system is None else [{"role": "system", "content": system}]
    if path is None or not path.exists():
        return model.session(messages=first, adapter=adapter)
    session = model.restore(path, adapter=adapter)
    held = session.metadata.get("messages")
    if not isinstance(held, list) or not all(_is_message(message) for message in held):
        raise BundleError(f"'{path}': expected the session of a conversation, got another; choose another file")
    if first and held[:1] != first:
        raise InputError(f"'{path}' is a conversation with another --system; leave it out, or choose another file")
    return session


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"role", "content"} and set(map(type, value.values())) == {str}


@contextmanager
def _stoppable() -> Iterator[list[int]]:
    """Ctrl-C is noted in the list, so that a piece is complete; the second one is raised."""
    noted: list[int] = []

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        if len(noted) > 1:
            raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # another thread than the first one gets no signals
        yield noted
        return
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _line(piece: Piece) -> str:
    made: dict[str, Any] = {"text": piece.text, "tokens": piece.tokens}
    if piece.finish_reason is not None and piece.statistics is not None:
        made["finish_reason"] = piece.finish_reason
        made["statistics"] = {**piece.statistics._asdict(), "tokens_per_second": piece.statistics.tokens_per_second}
    return json.dumps(plain(made), ensure_ascii=sys.stdout.isatty())


def _figures(statistics: Statistics) -> str:
    cached = f", {statistics.reused} of them in the cache" * bool(statistics.reused)
    guessed = f", {statistics.accepted} of them looked up" * bool(statistics.accepted)
    return (
        f"{statistics.tokens} tokens{guessed}, {statistics.tokens_per_second:.1f} tokens/s;"
        f" prompt of {statistics.prompt_tokens} tokens{cached}, {statistics.first:.2f} s to the first token"
    )
