"""`msedge chat`: one answer, a pipe, a terminal, sessions, interrupts."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest

from edge.cli.output import visible
from lite_runtime.bundle import read
from lite_runtime.errors import MsedgeError
from lite_runtime.language import Adapter
from tests.edge.test_cli import msedge
from tests.language.talking import TEMPLATE, talking_bundle
from tests.language.tiny import Sizes, Tiny

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
ENDLESS = ("--temperature", "0", "--max-tokens", "1000000")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chat") / "tiny.mslite"
    path.write_bytes(talking_bundle())
    return path


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers take minutes."""
    path = tmp_path_factory.mktemp("chat") / "endless.mslite"
    path.write_bytes(talking_bundle(Sizes(context=200_000), stop=[]))
    return path


def lines(stdout: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]


def test_one_answer(model: Path) -> None:
    stdout, stderr = msedge("chat", model, "--prompt", "Hello", "--seed", "1", "--max-tokens", "20")
    assert stdout.endswith("\n") and len(stdout) > 5
    assert "20 tokens, " in stderr and "tokens/s" in stderr
    assert msedge("chat", model, "--prompt", "Hello", "--seed", "1", "--max-tokens", "20")[0] == stdout
    assert msedge("chat", model, "--prompt", "Hello", "--seed", "2", "--max-tokens", "20")[0] != stdout
    greedy = ("chat", model, "--prompt", "Hello", "--temperature", "0", "--max-tokens", "90")
    assert msedge(*greedy)[0] == msedge(*greedy, "--lookup", "--threads", "2")[0]


def test_lines_for_machines(model: Path) -> None:
    stdout, _ = msedge("chat", model, "--prompt", "Hello", "--seed", "1", "--max-tokens", "20", "--json")
    pieces = lines(stdout)
    assert len(pieces) == 20 and all(set(piece) == {"text", "tokens"} for piece in pieces[:-1])
    assert pieces[-1]["finish_reason"] == "length" and pieces[-1]["statistics"]["tokens"] == 20
    text = msedge("chat", model, "--prompt", "Hello", "--seed", "1", "--max-tokens", "20")[0]
    assert "".join(piece["text"] for piece in pieces) + "\n" == text


def test_a_session_continues(model: Path, tmp_path: Path) -> None:
    common = ("--seed", "1", "--max-tokens", "10", "--json", "--session", tmp_path / "a.mssession")
    first = lines(msedge("chat", model, "--prompt", "One", "--system", "Be brief", *common)[0])
    second = lines(msedge("chat", model, "--prompt", "Two", *common)[0])
    assert first[-1]["statistics"]["reused"] == 0
    assert second[-1]["statistics"]["reused"] >= first[-1]["statistics"]["prompt_tokens"]
    _, stderr = msedge("chat", model, "--prompt", "Two", "--system", "Be long", *common, code=3)
    assert "another --system" in stderr
    other = tmp_path / "other.mslite"
    other.write_bytes(talking_bundle(seed=1))
    _, stderr = msedge("chat", other, "--prompt", "Two", *common, code=3)
    assert "expected a session of this model" in stderr


def test_an_adapter(model: Path, tmp_path: Path) -> None:
    for i, adapter in enumerate(Adapter(Tiny().adapter(i).arrays, read(model).digest) for i in range(2)):
        adapter.save(tmp_path / f"{i}.msstate")
    common = ("chat", model, "--prompt", "Hello", "--temperature", "0", "--max-tokens", "20")
    with_first = (*common, "--adapter", tmp_path / "0.msstate")
    with_second = (*common, "--adapter", tmp_path / "1.msstate")
    assert len({msedge(*arguments)[0] for arguments in (common, with_first, with_second)}) == 3
    assert msedge(*with_first, "--lookup", "--threads", "2")[0] == msedge(*with_first)[0]
    session = ("--session", tmp_path / "a.mssession", "--json")
    msedge(*with_first, *session)
    assert lines(msedge(*with_first, *session)[0])[-1]["statistics"]["reused"] > 0
    assert "computed with adapter" in msedge(*common, *session, code=3)[1]
    Adapter({}, read(model).digest).save(tmp_path / "empty.msstate")
    assert "got one that lacks layer.0" in msedge(*common, "--adapter", tmp_path / "empty.msstate", code=3)[1]
    assert "rank 3, factor 0.5, of 6 products (query, result, down)" in " ".join(msedge("inspect", model)[0].split())


def test_standard_input_is_one_message(model: Path) -> None:
    command = [sys.executable, "-m", "edge.cli", "chat", model, "--seed", "1", "--max-tokens", "10"]
    done = subprocess.run(command, input="Hello", env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == msedge("chat", model, "--prompt", "Hello", "--seed", "1", "--max-tokens", "10")[0]


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
@pytest.mark.parametrize("data", [b"caf\xe9", b"\xff\xfe\x00h", b"a" * 70_000 + b"\xc3"])
def test_standard_input_that_is_no_text(model: Path, data: bytes, locale: str) -> None:
    command = [sys.executable, "-m", "edge.cli", "chat", model, "--max-tokens", "3"]
    environment = {**ENVIRONMENT, "LC_ALL": locale}
    done = subprocess.run(command, input=data, env=environment, capture_output=True, timeout=60)
    assert done.returncode == 3 and done.stderr.startswith(b"error: standard input: expected text in UTF-8"), (
        done.stderr
    )
    assert b"Traceback" not in done.stderr and b"bug" not in done.stderr


def test_lines_of_a_terminal_that_are_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from edge.cli import chat

    def wrong(prompt: str) -> str:
        return b"caf\xe9".decode("utf-8")

    monkeypatch.setattr("builtins.input", wrong)
    with pytest.raises(MsedgeError, match="standard input: expected text in UTF-8, got other bytes at 3"):
        chat._text(lambda: input("> "))
    with pytest.raises(MsedgeError, match="standard input: expected text in UTF-8"):
        chat._text(lambda: "caf\udce9")


def test_standard_input_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    from edge.cli import chat

    monkeypatch.setattr(chat, "_MOST", 10)
    monkeypatch.setattr(sys, "stdin", io.StringIO("é" * 10))
    assert chat._piped() == "é" * 10
    monkeypatch.setattr(sys, "stdin", io.StringIO("é" * 11))
    with pytest.raises(MsedgeError, match="at most 10 characters"):
        chat._piped()


HOSTILE = "a\x1b]0;title\x07\x1b[2Jb\x9b31m\r\x7f\u202eevil\u2028\u2066"
SHOWN = r"a\x1b]0;title\x07\x1b[2Jb\x9b31m\r\x7f\u202eevil\u2028\u2066"


def test_text_that_a_terminal_would_obey() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("\ud800") == r"\ud800"
    kept = "a\tb\nc d\xa0e\u3000f\u202fé 漢字 👨\u200d👩\u200d👧 می\u200cخواهم e\u0301 \u2764\ufe0f"
    assert visible(kept) == kept


def test_a_model_that_writes_what_a_terminal_would_obey(tmp_path: Path) -> None:
    """Its first token is made certain; the error of its template has such text too."""
    (tmp_path / "a.mslite").write_bytes(talking_bundle(template=TEMPLATE))
    hostile, shown = HOSTILE.replace("\r", ""), SHOWN.replace(r"\r", "")  # a template has no such line ends
    (tmp_path / "b.mslite").write_bytes(talking_bundle(template="{{ raise_exception('" + hostile + "') }}"))
    session = tmp_path / "a.mssession"
    with Terminal(tmp_path / "a.mslite", "--temperature", "100", "--max-tokens", "400", "--session", session) as chat:
        chat.until(b"> ")
        chat.type(b"Hello\n")
        written = chat.until(b" tokens/s").decode()
    assert not any(category(c) in ("Cc", "Cf") for c in written if c not in "\r\n\t\u200c\u200d") and r"\x" in written
    _, stderr = msedge("chat", tmp_path / "b.mslite", "--prompt", "a", code=3)
    assert shown in stderr and "\x1b" not in stderr
    with Terminal(tmp_path / "b.mslite") as chat:
        chat.until(b"> ")
        chat.type(b"Hello\n")
        assert shown.encode() in (seen := chat.until(b"\n> ")) and b"\x1b]" not in seen
        assert chat.end(b"\x04") == 0


def test_lines_for_machines_in_a_terminal_are_ascii(model: Path) -> None:
    with Terminal(model, "--prompt", "a", "--json", "--temperature", "100", "--max-tokens", "200") as chat:
        seen = chat.until(b'"tokens_per_second"')
    assert seen.isascii() and b"\x1b" not in seen and b"\\u" in seen


def test_ctrl_c_stops_an_answer_and_keeps_it(endless: Path, tmp_path: Path) -> None:
    session = tmp_path / "a.mssession"
    command = [sys.executable, "-m", "edge.cli", "chat", endless, "--prompt", "Hi", "--json", *ENDLESS]
    with subprocess.Popen([*command, "--session", session], env=ENVIRONMENT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 130
    command[command.index("Hi")] = "More"
    done = subprocess.run(
        [*command[:-1], "3", "--session", session], env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout)[-1]["statistics"]["reused"] > len("<|im_start|>user\nHi") - 10


CONTROLLED = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("edge.cli", None, "__main__")
"""


class Terminal:
    """A chat in a terminal."""

    def __init__(self, *arguments: str | Path) -> None:
        self.ours, theirs = pty.openpty()
        # The program itself makes the terminal the one that Ctrl-C comes from: forking to do so is refused beside JAX.
        command = [sys.executable, "-c", CONTROLLED, "chat", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, env={**ENVIRONMENT, "TERM": "dumb"}, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.seen = b""

    def until(self, text: bytes) -> bytes:
        """What is printed up to a text."""
        end = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            self.seen += os.read(self.ours, 65536)
        before, _, self.seen = self.seen.partition(text)
        return before

    def more(self, count: int) -> None:
        """Wait for so many bytes."""
        while len(self.seen) < count:
            self.seen += os.read(self.ours, 65536)

    def type(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def end(self, key: bytes) -> int:
        """Type a key until the program ends: the first time it may not have begun to wait. Its exit code."""
        for _ in range(100):
            with suppress(OSError):
                self.type(key)
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(0.3)
        raise AssertionError("the program goes on")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


def test_a_conversation_in_a_terminal(model: Path, tmp_path: Path) -> None:
    with Terminal(model, "--seed", "1", "--max-tokens", "10", "--session", tmp_path / "a.mssession") as chat:
        chat.until(b"> ")
        chat.type(b"Hello\n")
        assert b"\x1b" not in chat.until(b"10 tokens, ")
        chat.until(b"> ")
        chat.type(b"x" * 600 + b"\n")
        assert b"shorten it" in chat.until(b"> ")
        chat.type(b"More\n")
        assert b"tokens/s" in chat.until(b" of them in the cache")
        chat.until(b"> ")
        assert chat.end(b"\x04") == 0 and (tmp_path / "a.mssession").exists()


def test_ctrl_c_in_a_terminal_stops_the_answer_then_the_program(endless: Path, tmp_path: Path) -> None:
    with Terminal(endless, *ENDLESS, "--session", tmp_path / "a.mssession") as chat:
        chat.until(b"> ")
        chat.type(b"Hello\n")
        chat.until(b"Hello\r\n")
        chat.more(20)
        chat.type(b"\x03")
        chat.until(b"\n> ")
        assert chat.end(b"\x03") == 130 and (tmp_path / "a.mssession").exists()


def test_run_says_to_use_chat(model: Path) -> None:
    for arguments in ((), ("--random", "0")):
        _, stderr = msedge("run", model, *arguments, code=3)
        assert "msedge chat" in stderr


@pytest.mark.parametrize("arguments", [("--temperature", "-1"), ("--top-p", "2"), ("--seed", "-4")])
def test_wrong_options(model: Path, arguments: tuple[str, str]) -> None:
    _, stderr = msedge("chat", model, "--prompt", "a", *arguments, code=3)
    assert "expected" in stderr and "Traceback" not in stderr


def test_a_model_without_a_template(tmp_path: Path) -> None:
    path = tmp_path / "base.mslite"
    path.write_bytes(talking_bundle(template=None, chat=False))
    _, stderr = msedge("chat", path, "--prompt", "a", code=3)
    assert "no chat template" in stderr
