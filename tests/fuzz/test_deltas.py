"""The fuzzer of deltas, as part of the test suite: few cases, and it notices what it looks for."""

from __future__ import annotations

import hashlib
import lzma
import zlib
from pathlib import Path
from random import Random

import pytest

from lite_runtime import BundleError
from lite_runtime.updates.delta import rebuild, rebuilding
from lite_runtime.updates.delta.layout import FILTERS, MAGIC
from tests.fuzz import deltas
from tests.fuzz.deltas import Seed, _varint, damaged, main, run, seeds, try_delta


def test_seeds_are_rebuilt(tmp_path: Path) -> None:
    for seed in seeds():
        assert try_delta(tmp_path, seed, seed.delta) == "rebuilt"


def test_five_hundred_deltas() -> None:
    counts, findings = run(3, range(500))
    assert not findings, f"case {findings[0][0]}: {findings[0][1]}"
    assert counts["refused"] > 350
    assert counts["rebuilt"] > 15


def test_cases_are_the_same_everywhere() -> None:
    one, other = (damaged(Random(5), seeds()[1]) for _ in range(2))
    assert one == other


def test_findings_are_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(old: Path, delta: bytes, new: Path, *, size: int, sha256: str) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(deltas, "rebuild", broken)
    monkeypatch.setattr("resource.setrlimit", lambda *limits: None)
    assert main(["--cases", "3", "--seed", "1"]) == 1
    assert "on purpose" in capsys.readouterr().out


def test_every_cut_is_refused(tmp_path: Path) -> None:
    seed = seeds()[0]
    for end in range(len(seed.delta)):
        assert try_delta(tmp_path, seed, seed.delta[:end]) == "refused"


OLD, NEW = b"the old file, long enough to copy" * 20, b"n" * 900


def made(control: bytes, frames: bytes = b"", new: bytes = NEW, size: int | None = None) -> bytes:
    packed = lzma.compress(control, lzma.FORMAT_RAW, filters=FILTERS)
    digests = b"".join(hashlib.sha256(part).digest()[:16] for part in (OLD, new))
    sizes = map(_varint, (len(OLD), len(new) if size is None else size, len(packed)))
    return b"".join([MAGIC, *sizes, digests, packed, frames])


def copies(*operands: int) -> bytes:
    return b"\0" + b"".join(map(_varint, operands))


TENSOR = b"\3" + b"".join(map(_varint, (0, 1, 30, 30, 1, 0, 8, 0)))
REFUSED = {
    "another result": (made(copies(0, 660) + b"\1" + _varint(240) + b"x" * 240), "a result with SHA-256"),
    "too long a copy": (made(copies(0, 661)), "a place within 660 bytes"),
    "a place before the file": (made(copies(1, 5)), "a place within 660 bytes, got 5 bytes at -1"),
    "an empty copy": (made(copies(0, 0)), "at least one byte"),
    "more than the new file": (made(b"\1" + _varint(901)), "a number of bytes of at most 900"),
    "an unknown operation": (made(b"\4"), "an operation of at most 3"),
    "no operations": (made(b""), "operations that make the whole file"),
    "more operations": (made(b"\1" + _varint(900) + NEW + b"\1"), "and no more"),
    "bytes after the end": (made(b"\1" + _varint(900) + NEW, b"x"), "bytes follow its end"),
    "a number without end": (made(b"\xff" * 12), "a number of up to 63 bits"),
    "a tensor beyond the old": (made(b"\3" + b"".join(map(_varint, (0, 5, 15, 15, 1, 0, 8, 0)))), "a place within"),
    "a tensor beyond the new": (made(b"\3" + b"".join(map(_varint, (0, 1, 30, 31, 1, 0, 8, 0)))), "at most 900 whole"),
    "half a byte": (made(b"\3" + b"".join(map(_varint, (0, 0, 3, 5, 1, 0, 8, 0)))), "whole bytes, got 60 bits"),
    "no elements": (made(b"\3" + b"".join(map(_varint, (0, 1, 0, 5, 1, 0, 8, 0)))), "elements"),
    "too many elements": (made(b"\3" + b"".join(map(_varint, (0, 1, 1 << 30, 1 << 30, 1, 0, 8, 0)))), "elements"),
    "a kind": (made(b"\3" + b"".join(map(_varint, (0, 7, 3, 5, 1, 0, 8, 0)))), "a kind of at most 6"),
    "a tensor without a frame": (made(b"\3" + b"".join(map(_varint, (0, 1, 3, 5, 1, 0, 8, 0)))), "12 bytes, got 0"),
    "no lanes": (made(b"\3" + b"".join(map(_varint, (0, 1, 3, 5, 1, 0, 8, 0))), bytes(12)), "lanes"),
    "a small state": (
        made(b"\3" + b"".join(map(_varint, (0, 1, 3, 5, 1, 0, 8, 0))), b"\1\0\0\0\0\0\0\0\1\0\0\0\5\0\0\0"),
        "states of at least",
    ),
    "no zlib stream": (made(b"\2" + b"".join(map(_varint, (0, 60, 9, 5, 20))) + b"0000"), "a zlib stream in the old"),
    "another kind of file": (b"text", "a delta, got a file of another kind"),
    "sizes beyond all": (made(b"", size=1 << 50), "files of up to 1099511627776 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(tmp_path: Path, case: str) -> None:
    delta, text = REFUSED[case]
    (tmp_path / "old").write_bytes(OLD)
    with pytest.raises(BundleError, match=text):
        rebuild(tmp_path / "old", delta, tmp_path / "new", size=len(NEW), sha256=hashlib.sha256(NEW).hexdigest())
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("old", [b"", OLD[:-1], OLD[:-1] + b"x"])
def test_another_old_file(tmp_path: Path, old: bytes) -> None:
    (tmp_path / "old").write_bytes(old)
    delta = made(b"\1" + _varint(900) + NEW)
    with pytest.raises(BundleError, match=r"expected the file that the delta was made from.*download the pieces"):
        rebuild(tmp_path / "old", delta, tmp_path / "new", size=len(NEW), sha256=hashlib.sha256(NEW).hexdigest())


def test_a_delta_to_another_file(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(OLD)
    delta = made(b"\1" + _varint(900) + NEW)
    for size, sha256 in ((899, hashlib.sha256(NEW).hexdigest()), (900, "0" * 64)):
        with pytest.raises(BundleError, match="expected a delta to"):
            rebuild(tmp_path / "old", delta, tmp_path / "new", size=size, sha256=sha256)


def test_bombs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control stream of 32 MB of zeros is not expanded; operations and compressed sections are counted."""
    packed = zlib.compress(bytes(1000))
    seed = Seed(packed, bytes(100_000), b"")

    def delta(control: bytes) -> bytes:
        raw = lzma.compress(control, lzma.FORMAT_RAW, filters=[{**FILTERS[0], "preset": 0}])
        digests = b"".join(hashlib.sha256(part).digest()[:16] for part in (seed.old, seed.new))
        return MAGIC + b"".join(map(_varint, (len(seed.old), len(seed.new), len(raw)))) + digests + raw

    read = 0
    from lite_runtime.updates.delta.layout import Control

    plain = Control._decompressed

    def counted(self: Control) -> bytes:
        nonlocal read
        part = plain(self)
        read += len(part)
        return part

    monkeypatch.setattr(Control, "_decompressed", counted)
    bomb = delta(bytes(1 << 25))
    assert len(bomb) < 50_000
    assert try_delta(tmp_path, seed, bomb) == "refused"
    assert read < 1 << 18
    monkeypatch.setattr(rebuilding, "MAX_OPERATIONS", 50)
    assert try_delta(tmp_path, seed, delta(b"\1\1\0" * 51)) == "refused"
    one = (
        b"\2"
        + b"".join(map(_varint, (0, len(packed), 9, 0, 8)))
        + zlib.crc32(zlib.compress(b"", 9)).to_bytes(4, "little")
    )
    back = b"\2" + b"".join(map(_varint, (2 * len(packed) - 1, len(packed), 9, 0, 8))) + one[-4:]
    (tmp_path / "old").write_bytes(seed.old)
    with pytest.raises(BundleError, match="at most 16 compressed sections"):
        rebuild(
            tmp_path / "old",
            delta(one + back * 16),
            tmp_path / "new",
            size=len(seed.new),
            sha256=hashlib.sha256(seed.new).hexdigest(),
        )


def test_another_zlib_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose zlib makes other bytes of the same content says so, and has no file that is wrong."""
    seed = seeds()[1]
    (tmp_path / "old").write_bytes(seed.old)
    plain = zlib.compress
    monkeypatch.setattr(rebuilding.zlib, "compress", lambda data, level: plain(data, 1))
    with pytest.raises(BundleError, match="this machine's zlib compresses differently"):
        rebuild(
            tmp_path / "old",
            seed.delta,
            tmp_path / "new",
            size=len(seed.new),
            sha256=hashlib.sha256(seed.new).hexdigest(),
        )
    assert not (tmp_path / "new").exists()
