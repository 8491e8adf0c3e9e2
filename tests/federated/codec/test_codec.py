"""Codecs: decoded values, numbers of bytes, learning over rounds, and refusals."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from math import comb, exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federated import tree
from federated.codec import Codec, Spec
from federated.codec.base import Reader
from federated.codec.indices import pack_indices, unpack_indices
from federated.codec.signds import SignDS
from federated.errors import FederatedError

HEADER = 20
EVERY = [
    [],
    ["float32"],
    ["float16"],
    ["int8"],
    ["int8:7"],
    ["int4"],
    ["int4:5"],
    ["mask:0.4"],
    ["mask:1"],
    ["mask:0.01", "int8"],
    ["mask:0.4", "int4:3"],
    ["topk:0.2"],
    ["topk:1", "int8"],
    ["feedback", "topk:0.05", "int4"],
    ["feedback", "int4"],
    ["feedback", "mask:0.3"],
    ["signds:0.1,epsilon=5"],
    ["difference"],
    ["difference", "feedback", "topk:0.1", "float16"],
]
SHAPES = st.lists(st.sampled_from([(), (1,), (3,), (2, 3), (4, 1, 5), (0,), (0, 3), (17,)]), min_size=1, max_size=5)


def a_tree(shapes: list[tuple[int, ...]], seed: int = 0, size: float = 1.0) -> dict[str, object]:
    """Arrays of these shapes and one more, some of them in a nested dict."""
    rng = np.random.default_rng(seed)
    arrays = {f"w{at}": (size * rng.normal(size=shape)).astype("f4") for at, shape in enumerate([*shapes, (2,)])}
    return {"z": arrays.pop("w0"), "inner": {"deep/er": arrays}}


def flat(of: tree.Tree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for _, leaf in sorted(tree.leaves(of))])


def fresh(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("names", EVERY, ids="+".join)
@settings(max_examples=15)
@given(shapes=SHAPES, seed=st.integers(0, 99), size=st.sampled_from([0.0, 1e-30, 1.0, 1e4]))
def test_what_arrives_has_the_same_form_and_lies_close(
    names: list[str], shapes: list[tuple[int, ...]], seed: int, size: float
) -> None:
    sent, codec = a_tree(shapes, seed, size), Codec.parse(names)
    known = a_tree(shapes, seed + 1, size)
    spec = Spec.of(sent)
    payload = codec.encode(sent, fresh(seed), reference=known)
    got = codec.decode(payload.data, spec, reference=known)
    assert Spec.of(got) == spec
    x, y = spec.flatten(sent), spec.flatten(got)
    base = spec.flatten(known) if "difference" in names else np.zeros_like(x)
    assert np.isfinite(y).all()
    if codec.selection is None:
        largest = np.abs(x - base).max()
        step = {"int8": largest / 127, "int4": largest / 7, "float16": 1e-3 * largest + 6e-8}.get(codec.values.name, 0)
        assert (np.abs(x - y) <= step * 1.001 + 1e-6 * (np.abs(base) + np.abs(x)) + 1e-37).all()
    else:
        np.testing.assert_array_equal(y[y == base], base[y == base])
    if codec.feedback:
        np.testing.assert_allclose(spec.flatten(payload.residual), x - y, rtol=1e-4, atol=1e-6 * max(size, 1e-37))
    else:
        assert payload.residual == {}


@pytest.mark.parametrize("names", [["int8"], ["int4"], ["int4:6"], ["mask:0.4"], ["mask:0.7", "int4"]], ids="+".join)
def test_what_arrives_is_right_in_expectation(names: list[str]) -> None:
    """The mean of many payloads, within six standard errors of the worst; few elements are always the same."""
    codec, sent = Codec.parse(names), a_tree([(13,), (4, 5)], 3)
    assert codec.unbiased
    spec, rng = Spec.of(sent), fresh(1)
    runs = np.stack([spec.flatten(codec.decode(codec.encode(sent, rng).data, spec)) for _ in range(1500)])
    error = runs.mean(axis=0) - spec.flatten(sent)
    assert (np.abs(error) < 6 * runs.std(axis=0).max() / 1500**0.5).all()
    assert (runs.std(axis=0) > 0).mean() > 0.75


@pytest.mark.parametrize(
    "names",
    [["feedback", "topk:0.1"], ["feedback", "topk:0.1", "int4"], ["feedback", "mask:0.2"], ["feedback", "int4"]],
    ids="+".join,
)
def test_with_feedback_nothing_is_lost_for_good(names: list[str]) -> None:
    """What arrived over all rounds, and what is still kept back, is what was sent."""
    codec, rng = Codec.parse(names), fresh(2)
    assert not codec.unbiased
    spec = Spec.of(a_tree([(40,)]))
    residual: tree.Tree = {}
    sums = np.zeros((2, spec.size))
    for turn in range(60):
        sent = a_tree([(40,)], turn)
        payload = codec.encode(sent, rng, residual=residual)
        residual = payload.residual
        sums += np.stack([spec.flatten(sent), spec.flatten(codec.decode(payload.data, spec))])
    np.testing.assert_allclose(sums[0] - sums[1], spec.flatten(residual), atol=1e-4)
    assert np.abs(spec.flatten(residual)).max() < 60, "what is kept back does not grow with the rounds"


@pytest.mark.parametrize(
    ("names", "size"),
    [
        ([], 4 * 3372),
        (["float16"], 2 * 3372),
        (["int8"], 3372 + 2 * 4),
        (["int4"], 3372 // 2 + 2 * 4),
        (["int8:64"], 3372 + 53 * 4),
        # 169 positions: 4 low bits each, and 169 + 3372 / 16 + 1 bits of high parts.
        (["topk:0.05", "int8"], 169 + 2 * 4 + (169 * 4 + 7) // 8 + (169 + 210 + 1 + 7) // 8),
    ],
    ids=str,
)
def test_bytes_are_as_few_as_they_can_be(names: list[str], size: int) -> None:
    sent = {"w": fresh().normal(size=(561, 6)).astype("f4"), "b": np.full(6, 9, "f4")}
    assert len(Codec.parse(names).encode(sent, fresh()).data) == HEADER + size


def test_a_difference_needs_what_it_was_taken_to() -> None:
    codec, old, new = Codec.parse(["difference", "int8"]), a_tree([(9,)], 1), a_tree([(9,)], 2)
    spec = Spec.of(new)
    data = codec.encode(new, fresh(), reference=old).data
    with pytest.raises(FederatedError, match="no tree here to add it to"):
        codec.decode(data, spec)
    with pytest.raises(FederatedError, match="to a tree that is not the one here"):
        codec.decode(data, spec, reference=new)


@pytest.mark.parametrize("names", [["difference", "topk", "int8"], ["feedback", "mask", "int8"], ["signds"]], ids=str)
def test_a_receiver_that_holds_nothing_is_sent_the_whole(names: list[str]) -> None:
    codec, sent = Codec.parse(names), a_tree([(9, 9)], 2)
    payload = codec.encode(sent, fresh(), reference=a_tree([(9, 9)]), residual=a_tree([(9, 9)]), whole=True)
    assert payload.residual == {}
    np.testing.assert_allclose(flat(codec.decode(payload.data, Spec.of(sent))), flat(sent), atol=0.03)


def test_differences_do_not_drift() -> None:
    """The sender computes differences from the model as the receiver decoded it, so errors do not accumulate."""
    codec, rng = Codec.parse(["difference", "int8"]), fresh()
    spec = Spec.of(a_tree([(30,)]))
    held = codec.decode(codec.encode(a_tree([(30,)]), rng).data, spec)
    now = a_tree([(30,)])
    for turn in range(50):
        now = tree.add(now, a_tree([(30,)], turn), 0.01)
        held = codec.decode(codec.encode(now, rng, reference=held).data, spec, reference=held)
    assert np.abs(flat(held) - flat(now)).max() < 0.01


def test_the_order_of_dicts_does_not_matter_and_dtypes_stay() -> None:
    one = {"b": np.float64(2), "a": {"y": np.ones(3, "f2"), "x": np.zeros((2, 2), "f4")}}
    two = {"a": {"x": one["a"]["x"], "y": one["a"]["y"]}, "b": np.asarray(2.0)}
    assert Spec.of(one) == Spec.of(two)
    got = Codec().decode(Codec().encode(one, fresh()).data, Spec.of(two))
    assert got["a"]["y"].dtype == np.float16 and got["b"].dtype == np.float64 and got["b"] == 2


def test_signds_sends_one_sign_and_mostly_large_elements() -> None:
    codec = Codec.parse(["signds:0.05,epsilon=100,step=0.5,seeded=1"])
    sent = {"w": fresh().normal(size=2000).astype("f4")}
    order = np.argsort(sent["w"])
    rng, hits = fresh(1), []
    for _ in range(40):
        got = codec.decode(codec.encode(sent, rng).data, Spec.of(sent))["w"]
        chosen = np.flatnonzero(got)
        assert len(set(got[chosen].tolist())) == 1 and abs(got[chosen[0]]) == 0.5
        top = order[-100:] if got[chosen[0]] > 0 else order[:100]
        hits.append(np.isin(chosen, top).mean())
    assert np.mean(hits) > 0.9


def test_signds_draws_its_random_numbers_as_configured() -> None:
    """A server that knows a device's generator must not be able to run it backwards."""
    sent = {"w": fresh().normal(size=2000).astype("f4")}
    for seeded in (0, 1):
        codec = Codec.parse([f"signds:0.05,epsilon=30,seeded={seeded}"])
        assert (codec.encode(sent, fresh(1)).data == codec.encode(sent, fresh(1)).data) == bool(seeded)


def test_signds_chooses_all_sets_as_often_as_it_promises() -> None:
    """Six elements, two of them the top for either sign: how many of the chosen are in it, over 4,000 payloads."""
    part = SignDS(share=0.34, epsilon=1.0, seeded=1)
    count, _, chances = part._plan(6)
    vector, rng, seen = np.array([5, 4, 0.1, -0.1, -4, -5], "f4"), fresh(0), np.zeros(count + 1)
    for _ in range(4000):
        choice = part.choose(vector, rng, False)
        seen[np.isin(choice.positions, [0, 1] if choice.values[0] > 0 else [4, 5]).sum()] += 1
    assert (np.abs(seen / 4000 - chances) < 5 * np.sqrt(chances * (1 - chances) / 4000) + 1e-9).all()


@pytest.mark.parametrize(("size", "share", "epsilon"), [(8, 0.4, 1.0), (9, 0.2, 3.0), (12, 0.25, 0.3)])
def test_signds_is_differentially_private(size: int, share: float, epsilon: float) -> None:
    """Sets are equally likely within and without the threshold, and e^epsilon apart: by counting all of them."""
    part = SignDS(share=share, epsilon=epsilon)
    count, threshold, chances = part._plan(size)
    top = part._top(size)
    sets = np.array([comb(top, hits) * comb(size - top, count - hits) for hits in range(count + 1)])
    a_set = np.divide(chances, sets, where=sets > 0, out=np.full(count + 1, np.nan))
    high = np.arange(count + 1) >= threshold
    np.testing.assert_allclose(a_set[high & (sets > 0)], a_set[high & (sets > 0)][0], rtol=1e-9)
    if (sets[~high] > 0).any():
        low = a_set[~high & (sets > 0)]
        np.testing.assert_allclose(a_set[high & (sets > 0)][0] / low, exp(epsilon), rtol=1e-9)


@given(st.integers(1, 3000), st.floats(0, 1), st.integers(0, 99))
def test_positions_round_trip_in_few_bits(size: int, share: float, seed: int) -> None:
    rng = fresh(seed)
    positions = np.sort(rng.choice(size, int(share * size), replace=False))
    data = pack_indices(positions, size)
    reader = Reader(data)
    np.testing.assert_array_equal(unpack_indices(reader, len(positions), size), positions)
    reader.done()
    if len(positions):
        assert 8 * len(data) <= len(positions) * (2 + np.log2(size / len(positions))) + 1 + 16 + len(positions)


def resigned(data: bytes, change: Callable[[bytearray], None]) -> bytes:
    """The payload with its body changed and the checksum made to fit: what a hostile device sends."""
    body = bytearray(data[HEADER:])
    change(body)
    return data[: HEADER - 8] + struct.pack("<II", len(body), zlib.crc32(bytes(body))) + bytes(body)


@pytest.mark.parametrize("names", EVERY, ids="+".join)
@settings(max_examples=40)
@given(data=st.data())
def test_hostile_bytes_never_do_more_than_raise(names: list[str], data: st.DataObject) -> None:
    """Flipped, cut and lengthened bodies with a fitting checksum: a FederatedError, or a finite tree of the spec."""
    codec, sent = Codec.parse(names), a_tree([(3, 4), (7,)], 5)
    spec = Spec.of(sent)
    good = codec.encode(sent, fresh(), reference=sent).data
    at = data.draw(st.integers(0, len(good) - HEADER - 1))
    bad = data.draw(
        st.sampled_from(
            [
                resigned(good, lambda body: body.__setitem__(at, data.draw(st.integers(0, 255)))),
                resigned(good, lambda body: body.__delitem__(slice(at, None))),
                resigned(good, lambda body: body.extend(b"\0")),
                good[:at],
                good + b"\0",
                data.draw(st.binary(max_size=60)),
                good[:HEADER] + data.draw(st.binary(max_size=60)),
            ]
        )
    )
    try:
        got = codec.decode(bad, spec, reference=sent)
    except FederatedError:
        return
    assert Spec.of(got) == spec and len(bad) == len(good)
    spec.flatten(got)


@pytest.mark.parametrize(
    ("names", "body", "why"),
    [
        ([], struct.pack("<3f", 1, np.nan, 2), "finite"),
        ([], struct.pack("<3f", 1, 2e38, 2), "finite values up to"),
        ([], bytes(11), "cut short"),
        ([], bytes(13), "1 bytes follow"),
        (["float16"], struct.pack("<3e", 1, np.inf, 2), "finite"),
        (["int8"], struct.pack("<f3b", -1, 1, 2, 3), "scales"),
        (["int8"], struct.pack("<f3b", np.nan, 1, 2, 3), "scales"),
        (["int8"], struct.pack("<f3b", 3e38, 1, 2, 3), "scales"),
        (["int8"], struct.pack("<f3b", 1, 1, -128, 3), "integers from -127"),
        (["int4"], struct.pack("<f2B", 1, 0x11, 0x08), "integers from -7"),
        (["int4"], struct.pack("<f2B", 1, 0x11, 0x11), "bits are set after"),
        (["topk:0.5"], b"\x30" + struct.pack("<2f", 1, 2), "each once"),
        (["topk:0.5"], b"\x90" + struct.pack("<2f", 1, 2), None),
        (["topk:0.5"], b"\x80" + struct.pack("<2f", 1, 2), "expected 2 positions, got 1"),
        (["topk:0.5"], b"\x0c" + struct.pack("<2f", 1, 2), "below 3"),
        (["topk:0.5"], b"\x91" + struct.pack("<2f", 1, 2), "bits are set after"),
        (["signds:0.4"], b"\x00\x80\x02", "a sign of 0 or 1"),
        (["mask"], bytes(7), "a mask's seed"),
    ],
)
def test_wrong_bodies_are_named(names: list[str], body: bytes, why: str | None) -> None:
    sent = {"w": np.arange(3, dtype="f4")}
    codec = Codec.parse(names)
    good = codec.encode(sent, fresh()).data
    bad = resigned(good, lambda old: old.__setitem__(slice(None), body))
    if why is None:
        codec.decode(bad, Spec.of(sent))
    else:
        with pytest.raises(FederatedError, match=why):
            codec.decode(bad, Spec.of(sent))


def test_headers_are_checked() -> None:
    sent, codec = {"w": np.ones(3, "f4")}, Codec()
    data, spec = codec.encode(sent, fresh()).data, Spec.of(sent)
    for at, why in [(0, "beginning with"), (2, "version 2"), (3, "flags"), (4, "another model"), (17, "checksum")]:
        with pytest.raises(FederatedError, match=why):
            codec.decode(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :], spec)
    for other in ({"v": np.ones(3, "f4")}, {"w": np.ones((3, 1), "f4")}, {"w": np.ones(3, "f8")}):
        with pytest.raises(FederatedError, match="another model or codec"):
            codec.decode(data, Spec.of(other))
    with pytest.raises(FederatedError, match="another model or codec"):
        Codec.parse(["topk:0.5"]).decode(Codec.parse(["topk:0.6"]).encode(sent, fresh()).data, spec)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ({}, "at least one element"),
        ({"w": np.zeros((0, 3), "f4")}, "at least one element"),
        ({"w": np.ones(2, "i4")}, "int32 for 'w'"),
        ({"v": np.ones(2, "f4"), "w": np.array([1, np.nan], "f4")}, "nan in 'w'"),
        ({"w": {"x": np.array([np.inf], "f4")}}, "inf in 'w/x'"),
        ({"w": np.array([1e300])}, "inf in 'w'"),
        ({"w": np.array([1.1e38], "f4")}, "in 'w'"),
    ],
)
def test_trees_that_cannot_travel(sent: tree.Tree, why: str) -> None:
    with pytest.raises(FederatedError, match=why):
        Codec().encode(sent, fresh())


@pytest.mark.parametrize(
    ("got", "why"),
    [
        ({"v": np.ones(3, "f4")}, "expected an array 'w', got none"),
        ({"w": np.ones(3, "f4"), "x": np.ones(1, "f4")}, "an array 'x' that was not expected"),
        ({"w": np.ones(4, "f4")}, r"expected 'w' as float32\[3\], got float32\[4\]"),
        ({"w": np.ones(3, "f2")}, r"expected 'w' as float32\[3\], got float16\[3\]"),
    ],
)
def test_unexpected_trees_are_named(got: tree.Tree, why: str) -> None:
    with pytest.raises(FederatedError, match=why):
        Spec.of({"w": np.ones(3, "f4")}).flatten(got)


def test_values_too_large_for_their_form() -> None:
    with pytest.raises(FederatedError, match="values up to 65504"):
        Codec.parse(["float16"]).encode({"w": np.array([1e5], "f4")}, fresh())
    with pytest.raises(FederatedError, match="too large"):
        Codec.parse(["mask:0.5"]).encode({"w": np.full(50, 9e37, "f4")}, fresh())


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["zip"], "unknown part 'zip'; expected one of difference, feedback, mask"),
        (["int8", "topk"], "in this order"),
        (["int8", "int4"], "at most one part of each kind"),
        (["signds", "int8"], "none after signds"),
        (["topk:0"], r"a share in \(0, 1\]"),
        (["mask:2"], r"a share in \(0, 1\]"),
        (["mask:nan"], r"a share in \(0, 1\]"),
        (["int8:-1"], "0 or more"),
        (["int8:1.5"], "expected a number for 'block'"),
        (["signds:epsilon=0"], "epsilon in"),
        (["topk:0.1,0.2"], "unknown parameter '0.2'"),
        (["topk:0.1,share=0.2"], "unknown parameter 'share=0.2'"),
        (["difference:1"], "expected none"),
    ],
)
def test_configurations_that_make_no_sense(names: list[str], why: str) -> None:
    with pytest.raises(FederatedError, match=why):
        Codec.parse(names)
