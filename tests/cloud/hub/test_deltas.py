"""Deltas: any two files give one that makes the second of the first; changed tensors are few bytes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloud.hub.deltas import Deltas, make, matching
from cloud.hub.deltas.coding import Encoder
from cloud.hub.deltas.tensors import coded, symbols_in
from lite_runtime import bundle
from lite_runtime.errors import BundleError
from lite_runtime.graph import Array, Graph, Value, dtype_name
from lite_runtime.updates.delta import rebuild
from lite_runtime.updates.delta.coding import Decoder, Model
from lite_runtime.updates.delta.elements import KINDS, Layout, decoded, integers, model, predicted, stored, symbols_of
from tests.fuzz.seeds import seed_bundles
from tests.fuzz.training_seeds import training_bundles


def rebuilt(folder: Path, old: bytes, new: bytes) -> int:
    """The size of the delta, which was found to make `new`."""
    paths = folder / "old", folder / "new", folder / "made"
    paths[0].write_bytes(old)
    paths[1].write_bytes(new)
    delta = make(paths[0], paths[1])
    rebuild(paths[0], delta, paths[2], size=len(new), sha256=hashlib.sha256(new).hexdigest())
    assert paths[2].read_bytes() == new
    return len(delta)


def constants(**arrays: Array) -> Graph:
    outputs = tuple(Value(name, dtype_name(a.dtype), a.shape) for name, a in arrays.items())
    return Graph((), outputs, (), arrays, "constants")


def weights(seed: int, *shape: int, spread: float = 30) -> Array:
    return np.clip(np.random.default_rng(seed).normal(0, spread, shape), -127, 127).astype(np.int8)


# -- any two files -----------------------------------------------------------------------------------------------------

BYTES = st.one_of(
    st.binary(max_size=200),
    st.lists(st.sampled_from([b"abcdefgh" * 3, b"\0" * 40, b"12345678", b"x"]), max_size=30).map(b"".join),
)


@given(BYTES, BYTES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_two_byte_strings(tmp_path: Path, old: bytes, new: bytes) -> None:
    rebuilt(tmp_path, old, new)


@given(st.integers(0, 2**32), st.integers(0, 12))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_edited_files_cost_their_edits(tmp_path: Path, seed: int, edits: int) -> None:
    rng = np.random.default_rng(seed)
    old = new = rng.bytes(20_000)
    for _ in range(edits):
        at, gone = (int(n) for n in rng.integers(0, [len(new), 300]))
        new = new[:at] + rng.bytes(int(rng.integers(0, 40))) + new[at + gone :]
    assert rebuilt(tmp_path, old, new) < 120 + 80 * edits


def test_bundles_of_all_kinds(tmp_path: Path) -> None:
    found = [*seed_bundles()[:6], *training_bundles()[:2]]
    for old in found[:4]:
        for new in found:
            rebuilt(tmp_path, old, new)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "float16", "int32", "float32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(300,), (40, 30), (16, 5, 3, 3), (7, 1, 33)])
def test_every_dtype_and_rank(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """Also of bits that are no numbers, and of differences as large as they can be."""
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 256, (2, int(np.prod(shape)) * np.dtype(dtype).itemsize), np.uint8)
    if dtype == "bool":
        raw &= 1
    old, far = (part.tobytes() for part in raw)
    near = bytes(
        (np.frombuffer(old, np.uint8) + (np.arange(len(old)) % 11 == 0)).astype(np.uint8)
        & (255 - 254 * (dtype == "bool"))
    )
    for new in (far, near):
        files = [bundle.write(None, {"s": constants(a=np.frombuffer(b, dtype).reshape(shape))}) for b in (old, new)]
        rebuilt(tmp_path, *files)


# -- what changed tensors cost -----------------------------------------------------------------------------------------


def test_small_changes_are_few_bytes(tmp_path: Path) -> None:
    """A weight in ten moves by one: entropy is 0.57 bits each, where a byte patch needs more."""
    old = weights(1, 128, 64, 3, 3)
    rng = np.random.default_rng(2)
    step = np.where(rng.random(old.shape) < 0.1, rng.choice([-1, 1], old.shape), 0)
    new = (old + step).clip(-127, 127).astype(np.int8)
    size = rebuilt(tmp_path, *(bundle.write(None, {"s": constants(w=w)}) for w in (old, new)))
    assert size < 0.57 / 8 * old.size * 1.05 + 400


def test_factors_of_rows_and_columns_are_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    wide = rng.normal(0, 25, (64, 48, 9))
    factors = rng.uniform(0.7, 1.4, (64, 1, 1)) * rng.uniform(0.7, 1.4, (1, 48, 1))
    old, new = (np.clip(np.rint(w), -127, 127).astype(np.int8) for w in (wide, wide * factors))
    size = rebuilt(tmp_path, *(bundle.write(None, {"s": constants(w=w)}) for w in (old, new)))
    assert size < 0.22 * old.size


def test_names_that_only_count_do_not_matter(tmp_path: Path) -> None:
    old = {f"conv{i}.int8~{i * 7}": weights(i, 32, 32, 3, 3) for i in range(4)}
    new = {f"conv{i}.int8~{9 + i * 8}": weights(i, 32, 32, 3, 3) + np.int8(i == 2) for i in range(4)}
    size = rebuilt(tmp_path, *(bundle.write(None, {"s": constants(**arrays)}) for arrays in (old, new)))
    assert size < 900


def test_half_bytes_are_coded_as_such(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    old = rng.integers(0, 256, (16, 72, 16, 4), np.uint8)
    low = np.where(rng.random(old.shape) < 0.1, (old & 15) ^ 1, old & 15)
    new = (old & 0xF0 | low).astype(np.uint8)
    size = rebuilt(tmp_path, *(bundle.write(None, {"s": constants(w=w)}) for w in (old, new)))
    assert size < 0.09 * old.size


def test_equal_bundles_cost_nothing(tmp_path: Path) -> None:
    for data in seed_bundles():
        assert rebuilt(tmp_path, data, data) < 80


# -- the coder ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.sampled_from(sorted(KINDS)), st.integers(1, 3000), st.integers(0, 40))
@settings(max_examples=80, deadline=None)
def test_the_coder_gives_back(seed: int, number: int, count: int, lanes: int) -> None:
    """Any differences, in any contexts, by any number of lanes, in several chunks of a frame."""
    rng = np.random.default_rng(seed)
    kind = KINDS[number]
    count += count % 2
    raw = rng.integers(0, 256, (2, count * kind.bits // 8), np.uint8)
    layout = Layout(kind, (1, count, 1), 3, base=int(rng.integers(16)))
    if kind.bits == 8:
        layout = layout._replace(
            rows=np.array([900]), columns=rng.integers(-2000, 2000, count), classes=rng.integers(0, 16, count)
        )
    old, new = (integers(part.tobytes(), kind) for part in raw)
    encoder, own = Encoder(), model(kind)
    encoder.open(256.0 * lanes, count)
    cuts = [0, count // 3, count]
    for first, end in pairwise(cuts):
        symbols, contexts, rests = symbols_in(old[first:end], new[first:end], layout, first)
        encoder.chunk(own, contexts, symbols, rests)
    encoder.close()
    data, at = encoder.frames[0], 0

    def read(count: int) -> bytes:
        nonlocal at
        at += count
        return data[at - count : at]

    decoder, own, parts = Decoder(read), model(kind), []
    for first, end in pairwise(cuts):
        predictions, contexts = predicted(old[first:end], layout, first)
        decoder.begin()
        parts.append(predictions + decoded(decoder, own, contexts))
        decoder.end()
    assert at == len(data)
    assert stored(np.concatenate(parts), kind) == raw[1].tobytes()


def test_models_are_exact_at_their_ends() -> None:
    """However often a symbol occurred: every symbol keeps a frequency, and they add up."""
    learned = Model(np.ones((3, 5), np.int64))
    for _ in range(40):
        learned.learn(np.full(70_000, 7))
    ends = learned.starts + learned.frequencies
    assert (learned.frequencies > 0).all()
    assert ends[4::5].tolist() == [1 << 14, 2 << 14, 3 << 14]
    assert (learned.starts[1:] == ends[:-1]).all()


@pytest.mark.parametrize("number", sorted(KINDS))
def test_elements_are_the_bytes(number: int) -> None:
    kind = KINDS[number]
    raw = np.arange(1 << 16, dtype="<u2").tobytes()
    values = integers(raw, kind)
    assert stored(values, kind) == raw
    assert stored(values + (5 << kind.bits), kind) == raw
    if kind.ordered and kind.bits == 16:
        numbers = np.frombuffer(raw, np.float16)
        finite = np.isfinite(numbers)
        order = np.argsort(values[finite], kind="stable")
        assert (np.diff(numbers[finite][order]) >= 0).all()


@pytest.mark.parametrize("number", sorted(KINDS))
def test_every_difference_has_a_symbol(number: int) -> None:
    kind = KINDS[number]
    ends = [0, 1, 8, 9, (1 << kind.bits - 1) - 1, 1 << kind.bits - 1]
    values = np.array([sign * end for end in ends for sign in (1, -1)], np.int64)
    symbols, _ = symbols_of(values, np.zeros(len(values), np.int64), kind)
    assert symbols.min() == 0
    assert symbols.max() < kind.symbols


def test_dtypes_without_a_kind_are_left_to_copies() -> None:
    assert coded(bytes(80), bytes(80), "int64", (10,)) is None


# -- copies ------------------------------------------------------------------------------------------------------------


def test_matching_reaches_back_and_forth(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an index of every third place, too, and in several blocks."""
    rng = np.random.default_rng(6)
    old = rng.bytes(5000)
    new = rng.bytes(100) + old[1000:3000] + b"abc" + old[3003:4001] + old[:50] + rng.bytes(10)

    def parts() -> Iterator[bytes]:
        for one in matching.matched(memoryview(new), memoryview(old)):
            yield one.content if isinstance(one, matching.Literal) else old[one.place : one.place + one.size]

    for keys, block in ((1 << 22, 1 << 20), (1700, 64)):
        monkeypatch.setattr(matching, "_KEYS", keys)
        monkeypatch.setattr(matching, "_BLOCK", block)
        assert b"".join(parts()) == new
        found = list(matching.matched(memoryview(new), memoryview(old)))
        assert sum(len(one.content) for one in found if isinstance(one, matching.Literal)) == 113
        assert len(found) == 6


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "old", tmp_path / "new"
    step = np.where(np.random.default_rng(8).random((64, 64, 3, 3)) < 0.05, 1, 0).astype(np.int8)
    for path, more in zip(paths, (0, step), strict=True):
        bundle.write(path, {"s": constants(w=weights(7, 64, 64, 3, 3, spread=20) + more)})
    return paths


def test_deltas_are_made_once(tmp_path: Path, two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    deltas = Deltas(tmp_path / "deltas")
    path = deltas.get(*two)
    assert path is not None
    assert path.read_bytes() == make(*two)
    digests = [hashlib.sha256(each.read_bytes()).hexdigest() for each in two]
    assert path == tmp_path / "deltas" / digests[0] / digests[1]
    monkeypatch.setattr("cloud.hub.deltas.make", None)
    assert Deltas(tmp_path / "deltas").get(*two) == path


def test_no_delta_that_is_no_smaller_than_the_pieces(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(bytes(1000))
    new.write_bytes(np.random.default_rng(9).bytes(1000))
    deltas = Deltas(tmp_path / "deltas")
    assert deltas.get(old, new) is None
    assert deltas.get(old, new) is None
    assert deltas.get(old, old) is None


def test_files_that_cannot_be_read(tmp_path: Path, two: tuple[Path, Path]) -> None:
    with pytest.raises(BundleError, match="cannot read"):
        make(tmp_path / "none", two[1])
    with pytest.raises(BundleError, match="Is a directory"):
        make(two[0], tmp_path)


PROGRAM = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cloud", "converter", "zstandard", "numba", "onnx", "scipy"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from lite_runtime.updates.delta import rebuild
old, delta, new, size, sha256 = sys.argv[1:]
rebuild(old, delta, new, size=int(size), sha256=sha256)
with open("/proc/self/status") as lines:
    print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_a_device_needs_little_memory(tmp_path: Path) -> None:
    """8 MB, of which each half byte may have changed, and NumPy and the standard library alone: less than 64 MB."""
    rng = np.random.default_rng(10)
    old = rng.integers(0, 256, (256, 512, 16, 4), np.uint8)
    new = old ^ (rng.random(old.shape, np.float32) < 0.05)
    for name, array in (("old", old), ("new", new)):
        bundle.write(tmp_path / name, {"s": constants(w=array.astype(np.uint8))})
    (tmp_path / "delta").write_bytes(make(tmp_path / "old", tmp_path / "new"))
    data = (tmp_path / "new").read_bytes()
    arguments: list[Any] = [
        *(tmp_path / name for name in ("old", "delta", "made")),
        len(data),
        hashlib.sha256(data).hexdigest(),
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    assert (tmp_path / "made").read_bytes() == data
    assert int(done.stdout) * 1024 <= 64_000_000


def test_few_lanes_keep_no_device_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile delta may code each symbol alone: that is bounded by its own size and that of the file."""
    from cloud.hub.deltas import coding
    from lite_runtime.updates.delta import rebuilding

    rng = np.random.default_rng(0)
    old = rng.integers(-99, 99, 30_000, np.int8)
    for name, array in (("old", old), ("new", old + (rng.random(len(old)) < 0.1).astype(np.int8))):
        bundle.write(
            tmp_path / name, {"run": Graph((), (Value("w", "int8", old.shape),), (), {"w": array}, "constants")}
        )
    size, sha256 = (tmp_path / "new").stat().st_size, hashlib.sha256((tmp_path / "new").read_bytes()).hexdigest()
    usual = make(tmp_path / "old", tmp_path / "new")
    monkeypatch.setattr(coding, "_LANE", 1 << 60)
    monkeypatch.setattr(coding, "_SLOW", 1 << 60)
    hostile = make(tmp_path / "old", tmp_path / "new")
    monkeypatch.setattr(rebuilding, "STEPS", 1 << 13)
    rebuild(tmp_path / "old", usual, tmp_path / "made", size=size, sha256=sha256)
    with pytest.raises(BundleError, match="it would keep this device busy"):
        rebuild(tmp_path / "old", hostile, tmp_path / "other", size=size, sha256=sha256)
    assert not (tmp_path / "other").exists()
