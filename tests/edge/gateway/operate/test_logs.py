"""Log lines: one per event, complete, whatever they contain; requests never wait for the reader."""

from __future__ import annotations

import io
import json
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.gateway.operate.logs import Log, RequestIds
from edge.gateway.operate.settings import Logs
from tests.waiting import PATIENCE, until


def lines_of(sink: io.StringIO) -> list[str]:
    return sink.getvalue().splitlines()


def written(settings: Logs, *events: tuple[str, str, dict[str, Any]]) -> list[str]:
    sink = io.StringIO()
    log = Log(settings, sink)
    for level, text, fields in events:
        log.event(level, text, **fields)
    log.close()
    return lines_of(sink)


def test_json_lines_say_what_happened() -> None:
    (line,) = written(Logs(format="json"), ("info", "model loaded", {"model": "m", "seconds": 0.5, "of": None}))
    words = json.loads(line)
    assert words.pop("time").endswith("Z")
    assert words.pop("pid") > 0
    assert words == {"level": "info", "event": "model loaded", "model": "m", "seconds": 0.5, "of": None}


def test_text_lines_quote_what_needs_it() -> None:
    (line,) = written(Logs(), ("warning", "refused", {"path": "/v2", "why": 'a "b"\nc', "eq": "a=b", "none": ""}))
    assert line.endswith(r'warning refused path=/v2 why="a \"b\"\nc" eq="a=b" none=""')


def test_levels() -> None:
    found = written(Logs(level="warning"), *((level, level, {}) for level in ("debug", "info", "warning", "error")))
    assert [line.split()[1] for line in found] == ["warning", "error"]


@settings(max_examples=60)
@given(st.text(), st.dictionaries(st.sampled_from("abc"), st.text() | st.integers() | st.floats() | st.none()))
def test_an_event_is_one_line(text: str, fields: dict[str, Any]) -> None:
    (line,) = written(Logs(format="json"), ("info", text, fields))
    assert line.isascii()
    assert json.loads(line)["event"] == text
    (line,) = written(Logs(format="text"), ("info", "event", {**fields, "z": text}))
    assert line.isascii()
    assert line.isprintable()


def test_surrogates_of_headers_are_written() -> None:
    assert "udcff" in written(Logs(), ("info", "x", {"path": "/\udcff"}))[0]


def test_bugs_are_always_logged_and_other_requests_by_share() -> None:
    log = Log(Logs(requests=0.25), io.StringIO())
    assert sum(log.wants_request(200) for _ in range(100)) == 25
    none = Log(Logs(), io.StringIO())
    assert not any(none.wants_request(status) for status in (200, 400, 429, 503))
    assert none.wants_request(500)
    for made in (log, none):
        made.close()


def test_a_request_s_line() -> None:
    sink = io.StringIO()
    log = Log(Logs(format="json"), sink)
    log.request("r-1", "POST", "/v2/models/m/infer", 429, 0.0012345, "127.0.0.1", model="m")
    log.close()
    words = json.loads(sink.getvalue())
    assert (words["id"], words["status"], words["ms"], words["model"]) == ("r-1", 429, 1.234, "m")


class Stuck(io.StringIO):
    """A pipe that is not read until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go, self.reached = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        self.let_go.wait(PATIENCE)
        return super().write(text)


def test_an_unread_pipe_delays_no_request_and_lost_lines_are_counted() -> None:
    sink = Stuck()
    log = Log(Logs(format="json"), sink, capacity=10)
    log.event("error", "first")
    assert sink.reached.wait(PATIENCE)
    for _ in range(25):
        log.event("info", "more")
    assert log.dropped == 15
    sink.let_go.set()
    log.close()
    events = [json.loads(line) for line in lines_of(sink)]
    assert [e["event"] for e in events] == ["first"] + ["more"] * 10 + ["log lines dropped"]
    assert events[-1]["count"] == 15


def test_a_broken_pipe_is_survived() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    log = Log(Logs(), Broken())
    log.event("error", "lost")
    until(lambda: log.dropped)
    assert log.dropped == 1
    log.close()
    log.event("error", "after the end")
    assert log.dropped == 2


def test_ids() -> None:
    ids = RequestIds()
    assert ids.of("client-1:a/b+c=@D.E_") == "client-1:a/b+c=@D.E_"
    assert ids.of("x" * 128) == "x" * 128
    made = [ids.of(given) for given in (None, "", "a b", "a\n", "x" * 129, "é", "\x00", '"', "a,b", "٣")]
    assert len(set(made)) == len(made)
    assert all(ids.of(one) == one for one in made)
    assert not {one.split("-")[0] for one in made} & {RequestIds().of(None).split("-")[0]}


@pytest.mark.parametrize("level", ["debug", "info"])
def test_enabled(level: Any) -> None:
    log = Log(Logs(level=level), io.StringIO())
    assert log.enabled("debug") == (level == "debug")
    log.close()
