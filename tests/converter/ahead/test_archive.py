"""Static libraries: what binutils reads in them, and their layout."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from converter.ahead.archive import archive

MEMBERS = {"one.o": b"\1" * 7, "other.o": b"\2" * 10}
SYMBOLS = {"one.o": ["first", "second"], "other.o": ["third"]}


def test_the_index_names_the_member_of_every_symbol() -> None:
    made = archive(MEMBERS, SYMBOLS)
    (count,) = struct.unpack_from(">I", made, 68)
    offsets = struct.unpack_from(f">{count}I", made, 72)
    names = made[72 + 4 * count :].split(b"\0")[:count]
    assert names == [b"first", b"second", b"third"]
    for at, member in zip(offsets, ["one.o", "one.o", "other.o"], strict=True):
        assert at % 2 == 0 and made[at:].startswith(member.encode() + b"/")
        assert made[at + 60 :].startswith(MEMBERS[member])


@pytest.mark.skipif(shutil.which("ar") is None, reason="no binutils")
def test_binutils_finds_the_members(tmp_path: Path) -> None:
    path = tmp_path / "lib.a"
    path.write_bytes(archive(MEMBERS, SYMBOLS))
    listed = subprocess.run(["ar", "t", path], capture_output=True, text=True, check=True).stdout
    assert listed.split() == list(MEMBERS)
    found = subprocess.run(["ar", "p", path, "one.o"], capture_output=True, check=True).stdout
    assert found == MEMBERS["one.o"]


def test_a_long_name_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 15 characters, got a-name-that-is-long"):
        archive({"a-name-that-is-long": b""}, {"a-name-that-is-long": []})
