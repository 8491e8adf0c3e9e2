"""Messages between hub and device: what is written is read, what is wrong is refused, other versions are understood."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.updates import enrolment
from lite_runtime.updates.checkin import (
    MAX_BYTES,
    OUTCOMES,
    Application,
    Assignment,
    Event,
    Measure,
    Outcome,
    Reply,
    Report,
    read_reply,
    read_report,
    written,
)
from lite_runtime.updates.fields import ProtocolError, record, text

KEYS = Application(
    "1.1", "1.2", Outcome("1.2", "r1", "trial", "since noon"), {"latency_ms": Measure(9, 1.5)}, {"inferences": 12}
)
REPORT = Report(
    {"region": "north"}, "x86-64-v3", "0.1.0", 1 << 30, 1 << 31, 80, True, False, True, {"keys": KEYS},
    (Event(3, 1.7e9, "trial", "keys", "1.2", "installed"),),
)  # fmt: skip
REPLY = Reply(300.0, 3600.0, 1.7e9, 3, True, {"keys": Assignment("1.2", "stable", "r1", True)})
BOTH = {"report": (REPORT, read_report), "reply": (REPLY, read_reply)}


@pytest.mark.parametrize("which", BOTH)
def test_what_is_written_is_read(which: str) -> None:
    message, read = BOTH[which]
    assert read(written(message)) == message
    assert written(read(written(message))) == written(message)


def test_a_report_may_be_empty() -> None:
    assert read_report(b'{"protocol":1}') == Report()


def test_keys_of_a_later_version_are_left_out() -> None:
    table = json.loads(written(REPORT))
    table["colour"] = "red"
    table["applications"]["keys"]["outcome"]["mood"] = {"deep": [1]}
    assert read_report(json.dumps(table).encode()) == REPORT


def changed(value: Any, *path: Any) -> bytes:
    """The report's JSON with one value replaced."""
    table = json.loads(written(REPORT))
    at = table
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(table).encode()


APP = ("applications", "keys")
WRONG = {
    "another protocol": (changed(2, "protocol"), "protocol: expected 1, got 2"),
    "no protocol": (b"{}", "protocol: expected 1, got None"),
    "a protocol that is a truth": (changed([], "protocol"), "expected 1"),
    "a path": (changed({"../x": {}}, "applications"), "expected a name"),
    "a version": (changed("a/b", *APP, "version"), "applications, keys, version: expected a name"),
    "an outcome": (changed("splendid", *APP, "outcome", "kind"), "expected one of waits"),
    "no version of an outcome": (changed({"rollout": "", "kind": "waits"}, *APP, "outcome"), "version: expected a"),
    "a count": (changed(-1, *APP, "measures", "latency_ms", "number"), "a whole number from 0"),
    "a truth for a count": (changed(True, *APP, "counters", "inferences"), "a whole number"),
    "an infinite mean": (changed(1e300, *APP, "measures", "latency_ms", "mean"), "expected a number"),
    "a battery": (changed(101, "battery"), "from -1 to 100"),
    "null": (changed(None, "metered"), "true or false"),
    "events": (changed({}, "events"), "a list of at most 256"),
    "many events": (changed([{}] * 257, "events"), "a list of at most 256"),
    "a serial": (changed(0, "events", 0, "serial"), "events, 0, serial"),
    "a long text": (changed("x" * 501, "events", 0, "text"), "at most 500 characters"),
    "a character": (changed("a\0b", "runtime"), "none of them U+0000"),
    "a list": (b"[]", "expected an object"),
    "nothing": (b"", "expected JSON"),
    "NaN": (b'{"protocol":1,"free":NaN}', "finite numbers"),
    "too much": (b" " * (MAX_BYTES + 1), "at most 262144 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_with_its_place(case: str) -> None:
    raw, message = WRONG[case]
    with pytest.raises(ProtocolError) as caught:
        read_report(raw)
    assert message in str(caught.value)


@given(st.binary(max_size=200), st.integers(0, len(written(REPORT))))
def test_no_bytes_fail_in_another_way(junk: bytes, at: int) -> None:
    raw = written(REPORT)
    for data in (junk, raw[:at] + junk + raw[at:], raw[:at] + raw[at + len(junk) :]):
        for read in (read_report, read_reply, enrolment.read_enrolment, enrolment.read_greeting):
            with contextlib.suppress(ProtocolError):
                read(data)


ENROLMENT = {
    "enrolment": (enrolment.Enrolment("t", "ab" * 32, "cd" * 64, {"a": "b"}), enrolment.read_enrolment),
    "enrolled": (enrolment.Enrolled("d1", "h1", "PEM", "CA"), enrolment.read_enrolled),
    "greeting": (enrolment.Greeting("d1", "c", "ab"), enrolment.read_greeting),
    "challenge": (enrolment.Challenge("c", 60.0), enrolment.read_challenge),
    "session": (enrolment.Session("t", 3600.0, 1.7e9, ""), enrolment.read_session),
}


@pytest.mark.parametrize("which", ENROLMENT)
def test_messages_of_enrolment_are_read(which: str) -> None:
    message, read = ENROLMENT[which]
    assert read(enrolment.written(message)) == message


def test_what_is_signed_differs_in_every_part() -> None:
    texts = {
        enrolment.session_text(*parts)
        for parts in [("h", "d", "c"), ("hd", "", "c"), ("h", "dc", ""), ("d", "h", "c"), ("h", "d", "c\0")]
    }
    texts |= {enrolment.enrolment_text("t", "ab" * 32), enrolment.enrolment_text("u", "ab" * 32)}
    assert len(texts) == 7


def test_every_outcome_counts_in_a_known_way() -> None:
    assert set(OUTCOMES.values()) == {"open", "good", "bad", "neutral"}


def test_a_record_has_a_reader_for_every_field() -> None:
    with pytest.raises(TypeError, match="Measure has the fields number, mean; got number"):
        record(Measure, number=text(1))
