"""Sealed trees: what goes in comes out; anything else is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from federated.errors import FederatedError
from federated.sealed import read_sealed, seal, unseal, write_sealed

LEAVES = st.sampled_from(["float32", "int8", "uint32", "bool", "float64"]).flatmap(
    lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
TREES = st.recursive(
    st.dictionaries(st.text(max_size=4), LEAVES, max_size=3),
    lambda inner: st.dictionaries(st.text(max_size=4), inner | LEAVES, max_size=3),
    max_leaves=8,
)


def same(a: object, b: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@given(TREES, st.dictionaries(st.text(), st.integers() | st.text() | st.none(), max_size=3))
def test_what_goes_in_comes_out(tree: dict, facts: dict) -> None:
    back, told = unseal(seal(tree, facts))
    assert same(back, tree)
    assert told == facts


@given(st.binary(max_size=300), st.integers(0, 400))
def test_damage_is_refused(noise: bytes, at: int) -> None:
    whole = seal({"w": np.arange(6.0), "more": {"b": np.ones(3, np.int8)}}, {"round": 3})
    damaged = whole[: at % len(whole)] + noise
    if damaged != whole:
        with pytest.raises(FederatedError):
            unseal(damaged)


@pytest.mark.parametrize(
    "head",
    [
        b"[]",
        b"{}",
        b'{"facts":[],"tree":{}}',
        b'{"facts":{},"tree":{"w":["float32",[-1],0]}}',
        b'{"facts":{},"tree":{"w":["float32",[9999999999999],0]}}',
        b'{"facts":{},"tree":{"w":["float32",[1],64]}}',
        b'{"facts":{},"tree":{"w":["float32",[1],3]}}',
        b'{"facts":{},"tree":{"w":["object",[1],0]}}',
        b'{"facts":{},"tree":{"w":["float32",[true],0]}}',
        b'{"facts":{},"tree":{"w":3}}',
        b'{"facts":{},"tree":' + b'{"a":' * 40 + b"{}" + b"}" * 41,
        b"\xff",
    ],
)
def test_a_head_that_lies_is_refused(head: bytes) -> None:
    import hashlib

    body = b"\x89MSTREE\n" + len(head).to_bytes(8, "little") + head
    body += bytes(-len(body) % 64 + 64)
    with pytest.raises(FederatedError, match="malformed"):
        unseal(body + hashlib.blake2b(body, digest_size=32).digest())


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert read_sealed(path) is None
    write_sealed(path, {"w": np.ones(2)}, {"round": 1})
    write_sealed(path, {"w": np.ones(3)}, {"round": 2})
    found = read_sealed(path)
    assert found is not None and found[1] == {"round": 2} and found[0]["w"].shape == (3,)
    assert os.listdir(tmp_path) == ["state"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FederatedError, match="damaged"):
        read_sealed(path)


def test_only_numbers_are_sealed() -> None:
    with pytest.raises(FederatedError, match="numbers"):
        seal({"w": np.array(["a"])})
