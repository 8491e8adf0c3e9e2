"""Secure aggregation: exact sums, drop-outs at every stage, what the server sees, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.codec import Spec
from federated.errors import FederatedError
from federated.privacy.secure import FixedPoint, Identity, SecureDevice, SecureServer, SecureSum, Terms, crypto
from federated.privacy.secure import messages as wire
from federated.privacy.secure.identity import who
from federated.privacy.secure.shamir import Combiner, split
from federated.robust.aggregators import mean_of

Answers = dict[int, bytes]


def terms(devices: int, threshold: int, size: int = 7, bits: int = 32, *, malicious: bool = False) -> Terms:
    return Terms(bytes(range(16)), 3, tuple(range(10, 10 + devices)), threshold, size, bits, malicious=malicious)


def seed(number: int) -> bytes:
    return number.to_bytes(32, "little")


class Round:
    """A round in one process; `lost[stage]`: devices whose answer does not arrive; every device is stored and
    restored between messages."""

    def __init__(self, of: Terms, lost: dict[str, set[int]] | None = None) -> None:
        self.terms, self.lost = of, lost or {}
        self.server = SecureServer(of)
        kind = f"u{of.bits // 8}"
        self.inputs = {
            one: np.random.default_rng(one).integers(0, 2**of.bits, of.size, np.uint64).astype(kind)
            for one in of.devices
        }
        self.identities = {one: Identity(seed(one), who(str(one))) for one in of.devices}
        self.devices = {
            one: SecureDevice(data, one, seed(one), self.identities[one])
            for one, data in self.server.requests().items()
        }
        self.seen: dict[str, Answers] = {}
        self.tamper: dict[str, Callable[[Answers], None]] = {}

    def ask(self, stage: str, requests: Answers) -> Answers:
        answers = {}
        for one, request in requests.items():
            device = SecureDevice.restore(self.devices[one].save(), self.identities[one])
            extra = () if stage == "keys" else (request,)
            extra += (self.inputs[one],) if stage == "masked" else ()
            answers[one] = getattr(device, stage)(*extra)
            self.devices[one] = device
            if one in self.lost.get(stage, ()):
                del answers[one]
        self.seen[stage] = answers
        self.tamper.get(stage, lambda _: None)(answers)
        return answers

    def run(self) -> SecureSum:
        requests = self.server.all_keys(self.ask("keys", self.server.requests()))
        requests = self.server.all_shares(self.ask("shares", requests))
        requests = self.server.survivors(self.ask("masked", requests))
        if self.terms.malicious:
            requests = self.server.signatures(self.ask("consistent", requests))
        return self.server.sum(self.ask("revealed", requests))

    def expected(self, devices: set[int]) -> np.ndarray:
        return np.sum([self.inputs[one] for one in devices], axis=0, dtype=f"u{self.terms.bits // 8}")


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize(
    "lost",
    [
        {},
        {"keys": {10, 13}},
        {"shares": {11}},
        {"masked": {10, 12, 19}},
        {"revealed": {15, 16, 17}},
        {"keys": {10}, "shares": {12}, "consistent": {19}},
    ],
    ids=str,
)
def test_the_sum_is_exact_whoever_drops_out(bits: int, lost: dict[str, set[int]], malicious: bool) -> None:
    a_round = Round(terms(10, 7 if malicious else 6, bits=bits, malicious=malicious), lost)
    result = a_round.run()
    stayed = set(a_round.terms.devices) - lost.get("keys", set()) - lost.get("shares", set())
    stayed -= lost.get("masked", set())
    assert set(result.devices) == stayed
    np.testing.assert_array_equal(result.total, a_round.expected(stayed))
    assert not a_round.server.refused


@settings(max_examples=8)
@given(st.integers(2, 9), st.integers(1, 40), st.data())
def test_any_group_that_is_large_enough_is_summed(devices: int, size: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(devices // 2 + 1, devices))
    of = terms(devices, threshold, size)
    gone = data.draw(st.sets(st.sampled_from(of.devices), max_size=devices - threshold))
    a_round = Round(of, {data.draw(st.sampled_from(["keys", "shares", "masked", "revealed"])): gone})
    result = a_round.run()
    np.testing.assert_array_equal(result.total, a_round.expected(set(result.devices)))


@pytest.mark.parametrize("stage", ["keys", "shares", "masked", "revealed"])
def test_below_the_threshold_nothing_is_revealed(stage: str) -> None:
    with pytest.raises(FederatedError, match=r"5 devices gave .*, 6 are needed"):
        Round(terms(10, 6), {stage: {10, 11, 12, 13, 14}}).run()


def test_the_server_sees_nothing_but_noise_until_the_sum() -> None:
    """All devices send zeros: the server still receives uniform numbers, and no two devices' messages are equal."""
    a_round = Round(terms(6, 4, 4096), {"masked": {10}})
    for vector in a_round.inputs.values():
        vector[:] = 0
    assert not a_round.run().total.any()
    masked = [np.frombuffer(data[-4 * 4096 :], "u1") for data in a_round.seen["masked"].values()]
    for one, row in enumerate(masked):
        counts = np.bincount(row, minlength=256)
        # Chi squared with 255 degrees of freedom: mean 255, deviation 22.6.
        assert ((counts - 64) ** 2 / 64).sum() < 255 + 6 * 22.6
        assert all(abs(np.corrcoef(row, other)[0, 1]) < 6 / 128 for other in masked[:one])


def test_what_is_revealed_never_unmasks_one_device() -> None:
    """For every device the server gets shares of one of its two secrets, the same one from all devices."""
    a_round = Round(terms(7, 4), {"masked": {10, 11}})
    a_round.run()
    for data in a_round.seen["revealed"].values():
        rows = wire.unpack_rows(data[24:], 33)
        assert set(rows) == set(a_round.terms.devices)
    parts = {
        one: [wire.unpack_rows(data[24:], 33)[one] for data in a_round.seen["revealed"].values()]
        for one in a_round.terms.devices
    }
    holders = list(a_round.seen["revealed"])[:4]
    secrets = {one: Combiner(holders).combine(parts[one][:4]) for one in a_round.terms.devices}
    for one, device in a_round.devices.items():
        wanted = device._secret(b"mask" if one in (10, 11) else b"own")
        assert secrets[one] == wanted


@pytest.mark.parametrize("malicious", [False, True])
def test_fewer_colluding_devices_than_the_threshold_unmask_nobody(malicious: bool) -> None:
    """The server and all holders but as many as are needed put together the shares they hold of another device."""
    of = terms(9, 7 if malicious else 5, malicious=malicious)
    a_round = Round(of)
    a_round.server.all_shares(a_round.ask("shares", a_round.server.all_keys(
        a_round.ask("keys", a_round.server.requests()))))  # fmt: skip
    victim, colluding = 10, list(of.devices[1:][: of.threshold])
    sealed = wire.unpack_rows(a_round.seen["shares"][victim][24:], 82)
    opened = {
        one: crypto.unseal(a_round.devices[one]._channel(victim, one), sealed[one], of.digest) for one in colluding
    }
    for purpose, part in ((b"mask", slice(0, 33)), (b"own", slice(33, 66))):
        secret = a_round.devices[victim]._secret(purpose)

        def combined(holders: list[int], part: slice = part) -> bytes:
            try:
                return Combiner(holders).combine([opened[one][part] for one in holders])
            except FederatedError:
                return b""

        assert combined(colluding) == secret, "as many as the threshold can"
        assert all(combined(colluding[:at]) != secret for at in range(1, of.threshold))


def flip(at: int) -> Callable[[Answers], None]:
    def change(answers: Answers) -> None:
        data = bytearray(answers[12])
        data[at] ^= 1
        answers[12] = bytes(data)

    return change


@pytest.mark.parametrize(
    ("stage", "at", "why"),
    [
        ("keys", -1, "valid signature"),
        ("keys", 4, "another round"),
        ("keys", 0, "version"),
        ("shares", 3, "expected stage SHARES"),
        ("masked", 20, "of device 12"),
    ],
)
def test_a_wrong_answer_counts_as_none(stage: str, at: int, why: str) -> None:
    a_round = Round(terms(6, 5, malicious=True))
    a_round.tamper[stage] = flip(at)
    result = a_round.run()
    assert 12 not in result.devices and why in a_round.server.refused[12]
    np.testing.assert_array_equal(result.total, a_round.expected(set(result.devices)))


def test_truncated_answers_and_keys_that_give_the_secret_away_count_as_none() -> None:
    def spoil(answers: Answers) -> None:
        answers[11] = answers[11][:-1]
        answers[12] = answers[12][:24] + bytes(96)

    a_round = Round(terms(6, 4))
    a_round.tamper["keys"] = spoil
    assert set(a_round.run().devices) == {10, 13, 14, 15}
    assert "96 bytes" in a_round.server.refused[11] and "low order" in a_round.server.refused[12]


@pytest.mark.parametrize("stage", ["masked", "revealed"])
def test_a_tampered_share_is_noticed(stage: str) -> None:
    """In the server's hands (a device opens its box and finds it broken) or in a device's answer."""
    a_round = Round(terms(5, 5 if stage == "revealed" else 3))
    if stage == "masked":
        tampered: list[bytes] = []
        deliver = a_round.server.all_shares

        def spoil(answers: Answers) -> Answers:
            requests = deliver(answers)
            tampered.append(requests[12])
            return {**requests, 12: requests[12][:-1] + bytes([requests[12][-1] ^ 1])}

        a_round.server.all_shares = spoil  # type: ignore[method-assign]
        with pytest.raises(FederatedError, match="changed on its way"):
            a_round.run()
    else:
        a_round.tamper[stage] = flip(-5)
        with pytest.raises(FederatedError, match=r"tampered|do not belong together"):
            a_round.run()


def test_a_device_answers_each_request_once_and_in_order() -> None:
    a_round = Round(terms(4, 3))
    requests = a_round.server.all_keys(a_round.ask("keys", a_round.server.requests()))
    device = a_round.devices[10]
    with pytest.raises(FederatedError, match="expected to be asked for SHARES, got MASKED"):
        device.masked(b"", a_round.inputs[10])
    first = SecureDevice.restore(device.save()).shares(requests[10])
    assert first == device.shares(requests[10]), "worked out again, the answer is the same"
    with pytest.raises(FederatedError, match="expected to be asked for MASKED"):
        device.shares(requests[10])


def test_a_device_refuses_requests_that_would_give_inputs_away() -> None:
    a_round = Round(terms(5, 3))
    keys = a_round.server.all_keys(a_round.ask("keys", a_round.server.requests()))
    table = wire.unpack_rows(keys[10][24:], 96)

    def all_keys(rows: dict[int, bytes]) -> bytes:
        return wire.pack(wire.Stage.ALL_KEYS, a_round.terms, 10, wire.pack_rows(rows))

    wrong = [
        ({**table, 10: table[11]}, "keys for this device that are not its own"),
        ({**table, 11: table[12]}, "the same key"),
        ({**table, 99: bytes(96)}, "device 99 was not in the stage before"),
        ({10: table[10], 11: table[11]}, "expected 3 devices or more, got 2"),
    ]
    for rows, why in wrong:
        with pytest.raises(FederatedError, match=why):
            SecureDevice.restore(a_round.devices[10].save()).shares(all_keys(rows))
    shares = a_round.server.all_shares(a_round.ask("shares", keys))
    a_round.server.survivors(a_round.ask("masked", shares))
    for numbers, why in [
        ((10, 11), "expected 3 devices or more, got 2"),
        ((11, 12, 13), "excluded this device"),
        ((10, 11, 12, 77), "device 77 was not in the stage before"),
    ]:
        body = wire.pack_rows(dict.fromkeys(numbers, b""))
        request = wire.pack(wire.Stage.SURVIVORS, a_round.terms, 10, body)
        with pytest.raises(FederatedError, match=why):
            SecureDevice.restore(a_round.devices[10].save()).revealed(request)


def test_messages_of_other_rounds_are_refused() -> None:
    of = terms(4, 3)
    again = dataclasses.replace(of, nonce=bytes(16))
    a_round, other = Round(of), Round(again)
    keys = other.server.all_keys(other.ask("keys", other.server.requests()))
    a_round.devices[10].keys()
    with pytest.raises(FederatedError, match="of another round"):
        a_round.devices[10].shares(keys[10])
    with pytest.raises(FederatedError, match="of device 11, got one of device 10"):
        SecureDevice(a_round.server.requests()[10], 11)
    with pytest.raises(FederatedError, match="device 77 is not among"):
        SecureDevice(wire.pack(wire.Stage.TERMS, of, 77, of.data), 77)


@settings(max_examples=40)
@given(st.sampled_from(["keys", "shares", "masked", "revealed"]), st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_never_gives_a_wrong_sum(stage: str, at: int, bits: int) -> None:
    """Of any message up: the sum of those it names, or FederatedError. (A masked input is the sender's own affair:
    the checksum of the transport keeps it whole.)"""
    a_round = Round(terms(5, 3))

    def flip_one(answers: Answers) -> None:
        data = bytearray(answers[12])
        place = at % (24 if stage == "masked" else len(data))
        data[place] ^= bits
        answers[12] = bytes(data)

    a_round.tamper[stage] = flip_one
    try:
        result = a_round.run()
    except FederatedError:
        return
    np.testing.assert_array_equal(result.total, a_round.expected(set(result.devices)))


@pytest.mark.parametrize("vector", [np.zeros(3, np.uint32), np.zeros(7, np.uint16), np.zeros(7, np.float32)])
def test_only_integers_of_the_terms_are_masked(vector: np.ndarray) -> None:
    a_round = Round(terms(4, 3))
    keys = a_round.server.all_keys(a_round.ask("keys", a_round.server.requests()))
    shares = a_round.server.all_shares(a_round.ask("shares", keys))
    with pytest.raises(FederatedError, match=r"expected uint32\[7\]"):
        a_round.devices[10].masked(shares[10], vector)


@given(st.binary(max_size=120))
def test_hostile_bytes_are_refused(data: bytes) -> None:
    for use in (
        lambda: SecureDevice(data, 10),
        lambda: SecureDevice.restore(data),
        lambda: wire.unpack(data, wire.Stage.KEYS, terms(3, 2), 10),
        lambda: Terms.of(data),
    ):
        with pytest.raises(FederatedError):
            use()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"threshold": 5}, "threshold of 6 to 10"),
        ({"threshold": 6, "malicious": True}, "threshold of 7 to 10"),
        ({"quorum": 11}, "quorum of 0 to 10"),
        ({"threshold": 11}, "threshold of 6 to 10"),
        ({"size": 0}, "0 elements"),
        ({"bits": 8}, "of 8"),
        ({"nonce": b""}, "got 0 bytes"),
        ({"devices": (2, 1), "threshold": 2}, "sorted numbers"),
        ({"devices": (0, 1), "threshold": 2}, "from 1"),
    ],
)
def test_terms_that_make_no_sense(changes: dict[str, object], why: str) -> None:
    with pytest.raises(FederatedError, match=why):
        dataclasses.replace(terms(10, 6), **changes)  # type: ignore[arg-type]
    for of in (terms(10, 6), dataclasses.replace(terms(10, 7, malicious=True), quorum=9)):
        assert Terms.of(of.data) == of


def test_a_quorum_is_kept_by_server_and_devices() -> None:
    of = dataclasses.replace(terms(6, 4), quorum=6)
    with pytest.raises(FederatedError, match="5 devices gave MASKED, 6 are needed"):
        Round(of, {"masked": {12}}).run()
    assert len(Round(of, {"revealed": {12, 13}}).run().devices) == 6, "four are enough to open the sum of six"
    a_round = Round(of)
    requests = a_round.server.all_shares(a_round.ask("shares", a_round.server.all_keys(
        a_round.ask("keys", a_round.server.requests()))))  # fmt: skip
    a_round.ask("masked", requests)
    five = wire.pack(wire.Stage.SURVIVORS, of, 10, wire.pack_rows(dict.fromkeys(range(10, 15), b"")))
    with pytest.raises(FederatedError, match="expected 6 devices or more, got 5"):
        a_round.devices[10].revealed(five)


def test_a_device_without_a_key_to_sign_with_takes_no_part() -> None:
    of = terms(6, 5, malicious=True)
    with pytest.raises(FederatedError, match="a key to sign with"):
        SecureDevice(SecureServer(of).requests()[10], 10)
    a_round = Round(of)
    a_round.server = SecureServer(of, {12: who("another")})
    assert 12 not in a_round.run().devices and "signed with this device's name" in a_round.server.refused[12]


@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.data())
def test_shamir(secret: bytes, threshold: int, data: st.DataObject) -> None:
    holders = data.draw(st.lists(st.integers(1, 2**32 - 1), min_size=threshold, max_size=9, unique=True))
    shares = split(secret, threshold, holders, data.draw(st.binary(min_size=64 * threshold, max_size=64 * threshold)))
    chosen = data.draw(st.permutations(holders))[:threshold]
    assert Combiner(chosen).combine([shares[one] for one in chosen]) == secret


@given(st.integers(1, 40), st.sampled_from([16, 32]), st.integers(0, 2**32))
def test_fixed_point_means(devices: int, bits: int, number: int) -> None:
    rng = np.random.default_rng(number)
    trees = [{"a": rng.uniform(-2, 2, (3, 5)).astype("f4"), "b": {"c": rng.uniform(-2, 2, 4).astype("f4")}}] * devices
    weights = rng.uniform(0.5, 7, devices)
    spec = Spec.of(trees[0])
    fixed = FixedPoint(2.0, devices, bits, heaviest=7.0)
    rows = [fixed.quantise(tree, weight, spec, rng) for tree, weight in zip(trees, weights, strict=True)]
    assert all(len(row.vector) == fixed.size(spec) and not row.cut for row in rows)
    total = np.sum([row.vector for row in rows], axis=0, dtype=f"u{bits // 8}")
    found = fixed.summed(total)
    wanted = sum(w * spec.flatten(t).astype(float) for w, t in zip(weights, trees, strict=True)) / weights.sum()
    step = devices * 7.0 / fixed.levels
    np.testing.assert_allclose(found.value()[-1], weights.sum(), atol=step)
    np.testing.assert_allclose(mean_of(found), wanted, atol=5 * step / weights.sum() + 1e-6)


def test_fixed_point_clips_or_refuses_and_reports_it() -> None:
    tree = {"a": np.array([3.0, -9.0, 0.5], "f4")}
    spec, rng = Spec.of(tree), np.random.default_rng(0)
    fixed = FixedPoint(1.0, 4)
    vector, cut = fixed.quantise(tree, 1.0, spec, rng)
    assert cut == 2
    np.testing.assert_allclose(mean_of(fixed.summed(vector)), [1, -1, 0.5], atol=1e-7)
    with pytest.raises(FederatedError, match="weight from 0 to 1"):
        fixed.quantise(tree, 2.0, spec, rng)
    with pytest.raises(FederatedError, match="all weights are 0"):
        fixed.summed(np.zeros(4, np.uint32))
    with pytest.raises(FederatedError, match="at most"):
        FixedPoint(1.0, 40_000, bits=16)


@given(st.integers(1, 400), st.integers(1, 3000), st.integers(0, 2**32))
def test_fixed_point_stretches_no_norm_by_more_than_it_says(devices: int, size: int, number: int) -> None:
    rng = np.random.default_rng(number)
    direction = rng.normal(size=size) * (rng.random(size) < rng.random()) + 1e-6
    tree = {"a": (direction / np.linalg.norm(direction)).astype("f4")}
    spec, fixed = Spec.of(tree), FixedPoint(1.0, devices, 16)
    vector, _ = fixed.quantise(tree, 1.0, spec, rng)
    rounded = vector.view("<i2")[:-1] / fixed.levels
    assert np.linalg.norm(rounded) <= fixed.stretch(spec) * (1 + 1e-6)
    assert FixedPoint(1.0, 100, 16).stretch(Spec.of({"a": np.zeros(100_000, "f4")})) > 1.9


def test_fixed_point_rounds_without_bias() -> None:
    """Three steps from 0 to the bound: 0.4 is 1.2 of them, now 1, now 2."""
    spec = Spec.of({"a": np.zeros(4000, "f4")})
    fixed = FixedPoint(1.0, 10_000, 16)
    assert fixed.levels == 3
    vector, _ = fixed.quantise({"a": np.full(4000, 0.4, "f4")}, 1.0, spec, np.random.default_rng(1))
    assert set(vector[:-1].tolist()) == {1, 2}
    assert abs(vector[:-1].mean() - 1.2) < 6 * (0.16 / 4000) ** 0.5
