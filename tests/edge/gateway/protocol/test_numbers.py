"""Numbers cut out of a body are those that `json.loads` reads there; and invalid JSON stays invalid."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.gateway.protocol import numbers
from edge.gateway.protocol.numbers import cut
from lite_runtime.graph import Array
from lite_runtime.native import build

pytestmark = pytest.mark.skipif(not build.available(), reason="no native kernels on this machine")
REFUSED = object()


@pytest.fixture(autouse=True, scope="module")
def small_bodies_too() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbers, "WORTH", 0)
        patch.setattr(numbers, "FEWEST", 1)
        yield


def loads(text: bytes) -> Any:
    """What strict JSON says, or REFUSED."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        return json.loads(text.decode("utf-8"), parse_constant=refuse)
    except ValueError:
        return REFUSED


def same(ours: Any, theirs: Any, arrays: dict[str, Array]) -> bool:
    """Whether a value read from the header is the body's, with numbers where its placeholders stand."""
    if isinstance(ours, str) and ours in arrays:
        want = np.array(theirs)
        array = arrays[ours]
        if array.dtype == np.int64:
            return array.tolist() == theirs and want.dtype == np.int64
        return array.shape == want.shape and array.tobytes() == want.astype(np.float64).tobytes()
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[k], theirs[k], arrays) for k in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(same(a, b, arrays) for a, b in zip(ours, theirs, strict=True))
    return type(ours) is type(theirs) and bool(ours == theirs)


def check(body: bytes) -> int:
    """That nothing is lost by cutting; how many arrays were cut out."""
    found = cut(body)
    if found is None:
        return 0
    ours, theirs = loads(found.header), loads(body)
    assert (ours is REFUSED) == (theirs is REFUSED), found.header
    assert ours is REFUSED or same(ours, theirs, dict(found.arrays)), found.header
    return len(found.arrays)


def request(*data: Any) -> bytes:
    inputs = [{"name": f"x{i}", "shape": [1, -1], "datatype": "FP32", "data": d} for i, d in enumerate(data)]
    return json.dumps({"id": "1", "inputs": inputs, "outputs": [{"name": "y"}]}).encode()


def test_a_request() -> None:
    assert numbers.prepare()
    x = np.random.default_rng(0).standard_normal((2, 3, 50)).astype(np.float32)
    found = cut(request(x.tolist(), list(range(100)), ["a"], [True] * 30))
    assert found is not None and len(found.header) < 600
    first, second = found.arrays.values()
    assert first.dtype == np.float64 and np.array_equal(first.astype(np.float32), x)
    assert second.dtype == np.int64 and second.tolist() == list(range(100))
    inputs = json.loads(found.header)["inputs"]
    assert [i["data"] for i in inputs] == [*found.arrays, ["a"], [True] * 30]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_like_body(kind: Any) -> None:
    found = cut(kind(request([0.5] * 50)))
    assert found is not None and [a.tolist() for a in found.arrays.values()] == [[0.5] * 50]


def test_numbers_beyond_128_bits_are_read_by_python() -> None:
    digits = [f"0.{i:030d}1" for i in range(1, 60)]
    body = request("@").replace(b'"@"', f"[{','.join(digits)}]".encode())
    found = cut(body)
    assert found is not None and [a.tolist() for a in found.arrays.values()] == [[float(d) for d in digits]]
    assert cut(body.replace(digits[7].encode(), b"1e999")) is None


@pytest.mark.parametrize(
    "text",
    [
        r'{"a\"data":[1.5,2]}',
        r'{"a\\":1,"data":[1.5,2]}',
        r'{"x":"\"data\":[1,2]","data":[1,2]}',
        r'{"x":"\\","data":[1,2]}',
        r'{"x":"\\\"data":[1,2]}',
        r'["data":[1,2]]',
        r'{"data":[1,2]',
        r'{"data":[1,2]]}',
        r'{"data":[1,2] "data":[1]}',
        r'{"data":[1,2],"data":[3.5]}',
        r'{"data" : [1,2]}',
        r'{"data"',
        r'{"data":',
        r'{"data":[',
        r'{"data":[1',
        r'"data":[1,2]',
        r'x"data":[1,2]',
        r'\"data":[1,2]',
        r'{"d\u0061ta":[1,2]}',
        r'{"Data":[1,2],"data ":[1],"data":{"data":[4,5]}}',
        r'{"data":[[1,2],"data",[3]]}',
        r'{"data":[1,"data",{"data":[2,3]}]}',
        "{'data':[1,2]}",
        '{"a":\'"data":[1,2]}',
        '\ufeff{"data":[1,2]}',
    ],
)
def test_traps(text: str) -> None:
    check(text.encode())


def test_a_placeholder_cannot_be_guessed() -> None:
    """What a client sends in one's place is never one of the request's arrays."""
    found = cut(request([0.5] * 50))
    assert found is not None
    (mark,) = found.arrays
    assert len(mark) >= 24 and mark.encode() not in request([0.5] * 50)


def test_many_keys_do_not_take_long() -> None:
    """The search ends after a number of keys."""
    found = cut(b"[" + b",".join([b'{"data":[1,2]}'] * 5000) + b"]")
    assert found is not None and len(found.arrays) == numbers.KEYS


def test_short_bodies_and_arrays_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "FEWEST", 16)
    assert check(request([1.5] * 15, [1.5] * 16)) == 1
    monkeypatch.setattr(numbers, "WORTH", 1024)
    assert cut(request([1.5] * 100)) is None


def no_compiler(*arguments: object) -> None:
    raise build.BuildError("compiling jsontext failed")


@pytest.mark.parametrize("lack", [("available", lambda: False), ("function", no_compiler)])
def test_without_native_code_nothing_is_cut(lack: tuple[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    numbers._KEPT.clear()
    monkeypatch.setattr(build, *lack)
    try:
        assert not numbers.prepare() and cut(request([1.5] * 1000)) is None
    finally:
        numbers._KEPT.clear()


def test_threads_do_not_disturb_each_other() -> None:
    """The native code runs in parallel to Python code."""
    rows = [np.random.default_rng(i).standard_normal(2000).tolist() for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(cut, [request(row) for row in rows * 10]))
    assert [array.tolist() for each in found if each for array in each.arrays.values()] == rows * 10


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
_ROW = st.lists(st.integers(-9, 9) | st.floats(-1e3, 1e3) | st.floats(width=32), max_size=8)
_NUMBERS = _ROW | st.lists(st.integers())
_KEYS = st.sampled_from(("data", "data", 'a"data', "inputs", "\\", 'x\\"data":[1]', "data\\"))
_DOCUMENTS = st.recursive(
    _LEAVES | _NUMBERS | st.lists(st.lists(st.floats(-1, 1), min_size=2, max_size=2), max_size=4),
    lambda inner: st.dictionaries(_KEYS, inner, max_size=4) | st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(_DOCUMENTS, st.booleans())
def test_any_document(document: Any, dense: bool) -> None:
    check(json.dumps({"data": [1.5, 2], "x": document}, separators=(",", ":") if dense else None).encode())


@given(_DOCUMENTS, st.integers(0, 1 << 32))
def test_any_damaged_document(document: Any, seed: int) -> None:
    """Bytes changed, doubled, left out or put in, mostly such as mean something in JSON."""
    body = bytearray(json.dumps({"data": [1.5, -2e3, 7], "x": document, "y": {"data": [1, 2, 3]}}).encode())
    rng = random.Random(seed)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(body))
        new = bytes([rng.choice(b'"\\[]{},:.-+eE0123 \n\xff') for _ in range(rng.randrange(3))])
        body[at : at + rng.randrange(3)] = new
    check(bytes(body))


def test_some_documents_are_cut() -> None:
    assert check(b'{"data":[1.5, 2],"x":{"data":[[1,2],[3,4]]}}') == 2
