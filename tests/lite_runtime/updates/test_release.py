"""Documents of releases and channels: what is written is read, and what is wrong is refused with its place."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.errors import BundleError
from lite_runtime.updates.release import (
    MAX_BYTES,
    Channel,
    File,
    Piece,
    Release,
    Requirements,
    read_channel,
    read_release,
    written,
)

A, B = "a" * 64, "b" * 64
FILE = File(7, A, B, (Piece(3, A), Piece(4, B)))
RELEASE = Release("keys", "1.2", {"spotter": FILE}, Requirements(1 << 20, 2.5, ("x86-64-v3",), "0.1.0"), {"data": "x"})
CHANNEL = Channel("keys", "stable", 3, ("1.1", "1.2"))


def test_what_is_written_is_read() -> None:
    assert read_release(written(RELEASE)) == RELEASE
    assert read_channel(written(CHANNEL)) == CHANNEL
    assert written(read_release(written(RELEASE))) == written(RELEASE)


def changed(value: Any, *path: Any) -> bytes:
    """The release's JSON with one value replaced."""
    table = json.loads(written(RELEASE))
    at = table
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(table).encode()


WRONG = {
    "another kind": (changed("channel", "msedge"), "msedge: expected 'release'"),
    "a path": (changed("../../etc", "application"), "application: expected a name"),
    "a name with dots": (changed("a..b", "version"), "version: expected a name"),
    "no files": (changed({}, "files"), "expected at least one file"),
    "a file's path": (changed({"a/b": {}}, "files"), "files: expected a name"),
    "pieces that are too short": (changed([], "files", "spotter", "pieces"), "expected 7 bytes together, got 0"),
    "an empty piece": (changed(0, "files", "spotter", "pieces", 0, "size"), "a whole number from 1"),
    "a fraction": (changed(7.0, "files", "spotter", "size"), "expected a whole number"),
    "a truth": (changed(True, "requirements", "memory"), "expected a whole number"),
    "a short digest": (changed("ab", "files", "spotter", "sha256"), "64 hexadecimal digits"),
    "time that is infinite": (changed(1e12, "requirements", "latency_ms"), "expected milliseconds"),
    "a runtime": (changed("new", "requirements", "runtime"), "a version such as"),
    "targets": (changed("x86", "requirements", "targets"), "expected a list"),
    "a number in the lineage": (changed(1, "lineage", "data"), "expected text"),
    "a long text": (changed("x" * 5000, "lineage", "data"), "at most 4096 characters"),
    "a key too many": (changed(1, "more"), "expected the keys"),
    "nothing": (b"", "expected JSON"),
    "too much": (b" " * (MAX_BYTES + 1), "at most 1048576 bytes"),
    "a list": (b"[]", "expected an object"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_with_its_place(case: str) -> None:
    raw, message = WRONG[case]
    with pytest.raises(BundleError) as caught:
        read_release(raw)
    assert message in str(caught.value)


@given(st.binary(max_size=200), st.integers(0, len(written(RELEASE))))
def test_no_bytes_fail_in_another_way(junk: bytes, at: int) -> None:
    raw = written(RELEASE)
    for read in (read_release, read_channel):
        with contextlib.suppress(BundleError):
            assert read(raw[:at] + junk + raw[at + len(junk) :]) is not None
