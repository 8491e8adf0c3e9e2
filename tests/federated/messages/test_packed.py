"""Packed messages: round trips; anything else is refused, always with the same kind of error."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from federated.errors import FederatedError
from federated.messages.packed import FRONT, MAGIC, pack, unpack

LEAVES = st.sampled_from(["float32", "int8", "uint32", "bool", "float64"]).flatmap(
    lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
TREES = st.recursive(
    st.dictionaries(st.text(max_size=4), LEAVES, min_size=1, max_size=3),
    lambda inner: st.dictionaries(st.text(max_size=4), inner | LEAVES, min_size=1, max_size=3),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@given(TREES, st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5) | st.none(), max_size=3))
def test_what_goes_in_comes_out(tree: dict[str, Any], meta: dict[str, Any]) -> None:
    data = pack(meta, tree)
    found, back = unpack(data)
    assert found == meta and same(tree, back)
    assert pack(meta, back) == data


def test_names_may_hold_slashes_and_arrays_strides() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    _, back = unpack(pack({}, {"a/b": {"c": array}, "a": {"b/c": array[::2]}}))
    np.testing.assert_array_equal(back["a/b"]["c"], array)
    np.testing.assert_array_equal(back["a"]["b/c"], array[::2])
    assert not back["a/b"]["c"].flags.writeable


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FederatedError):
        unpack(data)


@given(st.data())
def test_damage_is_found(data: st.DataObject) -> None:
    whole = bytearray(pack({"round": 1}, {"w": np.arange(5, dtype=np.float32)}))
    at = data.draw(st.integers(0, len(whole) - 1).filter(lambda at: not 40 <= at < 48))  # zeros that say nothing
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FederatedError):
        unpack(bytes(whole))


def hostile(head: Any, arrays: bytes = b"") -> bytes:
    """A message with a good digest around whatever head."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    text += b" " * (-len(text) % 16)
    body = text + arrays
    return FRONT.pack(MAGIC, len(text), hashlib.sha256(body).digest()) + body


@pytest.mark.parametrize(
    "head",
    [
        b"{",
        b"[" * 100_000,
        b'{"meta": {"a": NaN}, "arrays": []}',
        [],
        {"meta": {}},
        {"meta": [], "arrays": []},
        {"meta": {}, "arrays": [[["w"], "float32", [1 << 39]]]},
        {"meta": {}, "arrays": [[["w"], "float32", [0, 1 << 39, 1 << 39]]]},
        {"meta": {}, "arrays": [[["w"], "float32", [-1]]]},
        {"meta": {}, "arrays": [[["w"], "float32", [True]]]},
        {"meta": {}, "arrays": [[["w"], "object", [0]]]},
        {"meta": {}, "arrays": [[["w"], "float32", [0] * 9]]},
        {"meta": {}, "arrays": [[[], "float32", [0]]]},
        {"meta": {}, "arrays": [[["w"] * 17, "float32", [0]]]},
        {"meta": {}, "arrays": [[["w"], "float32", [0]], [["w"], "float32", [0]]]},
        {"meta": {}, "arrays": [[["w"], "float32", [0]], [["w", "v"], "float32", [0]]]},
        {"meta": {}, "arrays": [[["w", "v"], "float32", [0]], [["w"], "float32", [0]]]},
    ],
)
def test_hostile_heads_are_refused(head: Any) -> None:
    with pytest.raises(FederatedError, match="message"):
        unpack(hostile(head))


def test_heads_are_bounded() -> None:
    data = pack({"rows": "x" * (1 << 22)}, {})
    with pytest.raises(FederatedError, match="a head of"):
        unpack(data)
    assert len(unpack(data, most=len(data))[0]["rows"]) == 1 << 22


def test_bytes_left_over_are_refused() -> None:
    with pytest.raises(FederatedError, match="where the arrays take"):
        unpack(hostile({"meta": {}, "arrays": []}, bytes(16)))


def test_what_cannot_be_packed() -> None:
    with pytest.raises(ValueError, match="w: expected one of"):
        pack({}, {"w": np.array(["text"])})
    with pytest.raises(ValueError):
        pack({"loss": float("nan")}, {})
