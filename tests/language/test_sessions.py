"""Sessions: saved, restored, forked; damaged files, other models, a process that is killed while it saves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lite_runtime.bundle.layout import REQUIRED, SESSION
from lite_runtime.bundle.opening import opened
from lite_runtime.bundle.writing import assemble, dump
from lite_runtime.errors import BundleError, InputError
from lite_runtime.language import LanguageModel
from lite_runtime.language.pages import OutOfPages, needed
from lite_runtime.language.sessions import Session
from tests.language.talking import talking, talking_bundle
from tests.language.test_generation import text_of, tokens_of

ROOT = Path(__file__).parents[2]
TEXT = np.random.default_rng(3).integers(4, 260, 90).tolist()


def begun(model: LanguageModel, tokens: list[int] = TEXT) -> Session:
    session = model.session(messages=[{"role": "user", "content": "é"}])
    list(session.generate(tokens=tokens, max_tokens=5))
    return session


@pytest.mark.parametrize("cache", ["float16", "int8"])
def test_a_restored_session_continues_as_if_it_had_not_ended(cache: str, tmp_path: Path) -> None:
    first = begun(talking(cache))
    first.save(tmp_path / "a.mssession")
    tokens = [*first.sequence.tokens, 7, 8]
    want = list(first.generate(tokens=tokens, max_tokens=40))
    model = talking(cache)
    second = model.restore(tmp_path / "a.mssession")
    assert second.metadata == first.metadata and len(second) == len(TEXT) + 4
    got = list(second.generate(tokens=tokens, max_tokens=40))
    assert tokens_of(got) == tokens_of(want) and text_of(got) == text_of(want)
    assert got[-1].statistics is not None and got[-1].statistics.reused == len(TEXT) + 4
    second.close()
    while model._kept.drop():
        pass
    assert model.engine.pages.free == model.engine.pages.count


@pytest.mark.parametrize("cache", ["float16", "int8"])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_what_is_saved_is_what_is_restored(tmp_path: Path, count: int, cache: str) -> None:
    model = talking(cache)
    session = begun(model, TEXT[:count])
    session.save(tmp_path / "a")
    session.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again = model.restore(tmp_path / "a")
    assert again.sequence.tokens == session.sequence.tokens
    again.save(tmp_path / "c")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("cache", ["float16", "int8"])
def test_a_file_holds_nothing_of_earlier_texts(cache: str, tmp_path: Path) -> None:
    model = talking(cache, positions=48)
    list(model.generate(tokens=TEXT[:40], max_tokens=5))
    while model._kept.drop():
        pass
    begun(model, TEXT[50:53]).save(tmp_path / "used")
    begun(talking(cache), TEXT[50:53]).save(tmp_path / "fresh")
    assert (tmp_path / "used").read_bytes() == (tmp_path / "fresh").read_bytes()


def test_an_empty_session(tmp_path: Path) -> None:
    model = talking()
    model.session().save(tmp_path / "a")
    assert len(model.restore(tmp_path / "a")) == 0


def test_forks_share_their_pages() -> None:
    model = talking()
    session = begun(model)
    free = model.engine.pages.free
    other = session.fork()
    assert model.engine.pages.free == free
    a = list(session.generate(tokens=[*session.sequence.tokens, 9], max_tokens=20))
    b = list(other.generate(tokens=[*other.sequence.tokens, 200], max_tokens=20))
    for pieces, token in ((a, 9), (b, 200)):
        alone = talking()
        want = list(alone.generate(tokens=[*begun(alone).sequence.tokens, token], max_tokens=20))
        assert tokens_of(pieces) == tokens_of(want)


def test_a_text_that_goes_on_otherwise() -> None:
    model = talking()
    session = begun(model)
    pieces = list(session.generate(tokens=[*TEXT[:50], 5, 5], max_tokens=10))
    assert pieces[-1].statistics is not None and pieces[-1].statistics.reused == 50
    assert tokens_of(pieces) == tokens_of(list(talking().generate(tokens=[*TEXT[:50], 5, 5], max_tokens=10)))


def test_a_session_of_another_model(tmp_path: Path) -> None:
    begun(talking()).save(tmp_path / "a.mssession")
    other = LanguageModel.load(talking_bundle(seed=1))
    with pytest.raises(InputError, match=r"a.mssession'.*expected a session of this model"):
        other.restore(tmp_path / "a.mssession")


def test_files_that_are_no_sessions(tmp_path: Path) -> None:
    model = talking()
    with pytest.raises(BundleError, match="no file of that name"):
        model.restore(tmp_path / "none")
    (tmp_path / "bundle").write_bytes(talking_bundle())
    with pytest.raises(BundleError, match="not a session"):
        model.restore(tmp_path / "bundle")


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    model, rng = talking(), np.random.default_rng(0)
    begun(model, TEXT[:20]).save(tmp_path / "a")
    data, free = (tmp_path / "a").read_bytes(), model.engine.pages.free
    for at in rng.integers(0, len(data), 150).tolist():
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.integers(8)
        (tmp_path / "b").write_bytes(damaged)
        with pytest.raises(BundleError):
            model.restore(tmp_path / "b")
        (tmp_path / "b").write_bytes(data[:at])
        with pytest.raises(BundleError):
            model.restore(tmp_path / "b")
    assert model.engine.pages.free == free


def test_large_files_are_checked_by_several_threads(tmp_path: Path) -> None:
    model = talking()
    session = begun(model)
    session.metadata["long"] = np.random.default_rng(0).bytes(3 << 20).hex()
    session.save(tmp_path / "a")
    data = bytearray((tmp_path / "a").read_bytes())
    file = opened(bytes(data), SESSION)
    for section in file.sections.values():
        data[section.offset + section.size // 2] ^= 1
        with pytest.raises(BundleError, match=f"section '{section.name}'"):
            opened(bytes(data), SESSION)
        data[section.offset + section.size // 2] ^= 1


def test_without_room_nothing_is_restored(tmp_path: Path) -> None:
    begun(talking()).save(tmp_path / "a")
    small = talking(positions=64)
    with pytest.raises(OutOfPages):
        small.restore(tmp_path / "a")
    assert small.engine.pages.free == small.engine.pages.count


def test_one_answer_at_a_time() -> None:
    model = talking()
    session = begun(model)
    text = [*session.sequence.tokens, 9]
    first = session.generate(tokens=text, max_tokens=20)
    next(first)
    with pytest.raises(InputError, match="has not ended"):
        next(session.generate(tokens=[*text, 5], max_tokens=20))
    with pytest.raises(InputError, match="has not ended"):
        session.close()
    rest = list(first)
    alone = talking()
    want = list(alone.generate(tokens=[*begun(alone).sequence.tokens, 9], max_tokens=20))
    assert tokens_of(rest) == tokens_of(want)[1:]
    session.close()


@pytest.mark.parametrize("closed", [True, False])
def test_an_abandoned_answer_leaves_the_session_usable(closed: bool) -> None:
    model = talking()
    session = begun(model)
    tokens = [*session.sequence.tokens, 9]
    pieces = session.generate(tokens=tokens, max_tokens=20, response_format={"type": "regex", "regex": "[a-z]*"})
    next(pieces)
    if closed:
        pieces.close()
    else:
        del pieces
    again = list(session.generate(tokens=tokens, max_tokens=20))
    alone = talking()
    assert tokens_of(again) == tokens_of(list(alone.generate(tokens=[*begun(alone).sequence.tokens, 9], max_tokens=20)))
    session.generate(tokens=tokens)  # never read
    session.close()
    while model._kept.drop():
        pass
    assert model.engine.pages.free == model.engine.pages.count


def test_a_session_saved_while_it_is_answered(tmp_path: Path) -> None:
    model = talking()
    session = begun(model)
    pieces = session.generate(tokens=[*session.sequence.tokens, 9], max_tokens=30, speculate="lookup")
    for _ in range(8):
        next(pieces)
    session.save(tmp_path / "a")
    held = list(session.sequence.tokens)
    pieces.close()
    again = talking().restore(tmp_path / "a")
    assert again.sequence.tokens == held and len(held) > len(TEXT) + 5
    want = list(talking().generate(tokens=[*held, 7], max_tokens=10))
    assert tokens_of(list(again.generate(tokens=[*held, 7], max_tokens=10))) == tokens_of(want)


def test_a_session_saved_by_another_thread(tmp_path: Path) -> None:
    model, other = talking(), talking()
    session = begun(model)
    pieces = session.generate(tokens=[*session.sequence.tokens, 9], max_tokens=200, logit_bias={0: -100.0, 2: -100.0})
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(lambda: list(pieces))
        for _ in range(20):
            session.save(tmp_path / "a")
            other.restore(tmp_path / "a").close()
    assert len(written.result()) == 200


def test_a_session_of_another_loaded_model() -> None:
    session = begun(talking())
    with pytest.raises(InputError, match="expected a session of this model"):
        next(talking().generate(tokens=TEXT, session=session))


@pytest.mark.parametrize(
    ("tokens", "count"),
    [
        (TEXT[:3], 4), (TEXT[:3], True), (TEXT[:3], 3.0), (TEXT[:3], "3"), (TEXT[:3], -3), (TEXT[:3], None),
        ([300], 1), ([-1], 1), (TEXT * 10, 900), ([], 1),
    ],
)  # fmt: skip
def test_a_file_whose_tokens_are_wrong(tmp_path: Path, tokens: list[int], count: object) -> None:
    model = talking()
    free = model.engine.pages.free
    (tmp_path / "a").write_bytes(written(model, np.asarray(tokens, "<i4").tobytes(), count, len(tokens)))
    with pytest.raises(BundleError, match="section 'tokens'"):
        model.restore(tmp_path / "a")
    assert model.engine.pages.free == free


def test_a_file_whose_sections_are_of_another_size(tmp_path: Path) -> None:
    model = talking()
    (tmp_path / "a").write_bytes(written(model, b"12345", 1, 1))
    with pytest.raises(BundleError, match="4 bytes for each of"):
        model.restore(tmp_path / "a")
    (tmp_path / "a").write_bytes(written(model, b"1234" * 20, 20, 16))
    with pytest.raises(BundleError, match="section 'tokens': expected tokens below"):
        model.restore(tmp_path / "a")
    (tmp_path / "a").write_bytes(written(model, b"\4\0\0\0" * 20, 20, 16))
    with pytest.raises(BundleError, match=r"section 'key_cache\.0': expected"):
        model.restore(tmp_path / "a")


def test_many_tokens_take_no_memory_before_they_are_counted(tmp_path: Path) -> None:
    model, count = talking(), 4_000_000
    (tmp_path / "a").write_bytes(written(model, bytes(4 * count), count, 0))
    tracemalloc.start()
    try:
        with pytest.raises(BundleError, match="section 'tokens'"):
            model.restore(tmp_path / "a")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def written(model: LanguageModel, tokens: bytes, count: object, held: int) -> bytes:
    """A session's file with caches for `held` tokens, whatever else it says."""
    manifest = {"model": model.digest, "tokens": count, "metadata": {}}
    parts: list[Any] = [("manifest", dump(manifest), REQUIRED), ("tokens", tokens, 0)]
    parts += [(name, bytes(cache[0].nbytes * needed(held)), 0) for name, cache in model.engine.caches.items()]
    return bytes(assemble(parts, SESSION))


SAVING = """
import sys
from tests.language.test_sessions import begun, TEXT
from tests.language.talking import talking
model = talking()
sessions = [begun(model, TEXT[:20]), begun(model, TEXT[:60])]
for session in sessions:
    session.metadata["long"] = "x" * 300_000
print("ready", flush=True)
while True:
    for session in sessions:
        session.save(sys.argv[1])
"""


def test_a_process_that_is_killed_while_it_saves_loses_nothing(tmp_path: Path) -> None:
    killed_while_saving(tmp_path / "a.mssession", times=2)


def killed_while_saving(path: Path, times: int) -> None:
    """Kill a process that saves over and over; the file is always one of those it saved. Twenty times: see
    `python -m tests.language.test_sessions`."""
    rng, model = np.random.default_rng(times), talking()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    begun(model, TEXT[:20]).save(path)
    for _ in range(times):
        with subprocess.Popen([sys.executable, "-c", SAVING, path], stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            time.sleep(0.05 + 0.1 * rng.random())
            os.kill(process.pid, signal.SIGKILL)
        session = model.restore(path)
        assert len(session) in (24, 64)
        session.close()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        killed_while_saving(Path(folder) / "a.mssession", times=20)
    print("20 times killed, the session was complete each time")
