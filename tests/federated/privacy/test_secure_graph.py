"""Sparse graphs of secure sums: their degree, that they connect whoever stays, and exact sums over them."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from federated.errors import FederatedError
from federated.privacy.secure import SecureDevice, SecureServer, graph, lowest_threshold
from federated.privacy.secure import messages as wire
from federated.privacy.secure.graph import Degree, Graph, degree
from tests.federated.privacy.test_secure_sum import Round, terms


def tail(total: int, marked: int, drawn: int, least: int) -> Fraction:
    """P[X >= least], exactly."""
    ways = sum(comb(marked, at) * comb(total - marked, drawn - at) for at in range(least, min(marked, drawn) + 1))
    return Fraction(ways, comb(total, drawn))


@pytest.mark.parametrize(("total", "marked", "drawn"), [(999, 100, 124), (1000, 500, 62), (300, 30, 150), (40, 39, 20)])
@pytest.mark.parametrize("security", [20, 50, 110])
def test_tails_are_those_of_the_hypergeometric_distribution(
    total: int, marked: int, drawn: int, security: int
) -> None:
    least = graph._above(total, marked, drawn, 1 << security)
    assert tail(total, marked, drawn, least) * 2**security <= 1
    assert least == 0 or tail(total, marked, drawn, least - 1) * 2**security > 1


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("devices", [300, 1000])
def test_the_degree_meets_its_bounds_and_the_next_smaller_one_does_not(devices: int, chosen: bool) -> None:
    corrupt, lost = devices // 10, 3 * devices // 10
    found = degree(devices, corrupt, lost, chosen=chosen, security=40)
    assert found.neighbours < devices // 2
    half, each, chance = found.neighbours // 2, Fraction(1, devices << 41), Fraction(1, devices << 21)
    # Of a device's holders, all but itself may be corrupt.
    assert tail(devices - 1, corrupt, 2 * half, found.threshold - 1) <= each
    assert tail(devices - 1, lost, 2 * half, 2 * half - found.threshold + 2) <= chance
    if chosen:
        assert tail(devices, corrupt, half, found.window) <= each
        assert tail(devices, lost, half, half - found.window + 1) <= chance
    else:
        assert tail(devices, corrupt + lost, half, half) <= each
    assert graph._trial(devices, corrupt, lost, half - 1, chosen, 40, 20) is None


def test_more_trust_needs_fewer_neighbours() -> None:
    found = [degree(1000, 100, 300, chosen=chosen, security=bits).neighbours for chosen, bits in
             ((False, 40), (True, 40), (True, 100))]  # fmt: skip
    assert found == sorted(found) and 60 < found[0] < 130
    assert degree(1000, 490, 400, chosen=True, security=100) == Degree(999, 501, 0), "no sparse graph is enough"
    assert degree(10_000, 1000, 3000, chosen=False, security=40).neighbours < 1.3 * found[0]


def test_a_graph_is_symmetric_and_depends_on_its_seed() -> None:
    numbers, of = tuple(range(5, 305)), Degree(40, 12, 3)
    one, other = Graph(bytes(32), numbers, of), Graph(b"\1" * 32, numbers, of)
    for device in numbers:
        near = one.neighbours(device)
        assert len(near) == 40 and device not in near and all(device in one.neighbours(peer) for peer in near)
    assert any(one.neighbours(device) != other.neighbours(device) for device in numbers)
    assert Graph(bytes(32), numbers, Degree(299, 200, 0)).neighbours(5) == numbers[1:]


def test_devices_notice_that_too_few_in_succession_stay() -> None:
    """A server that knows the graph lets all around one device drop out, but keeps many others."""
    numbers, of = tuple(range(1, 301)), Degree(40, 12, 3)
    made = Graph(bytes(32), numbers, of)
    assert made.connects(set(numbers))
    isolated = set(numbers) - set(made.neighbours(7))
    assert len(isolated) == 260 and not made.connects(isolated)
    order = made._order
    for gone in (17, 18):
        assert made.connects(set(order[gone:])) == (gone == 17), "of 20 in succession three must stay"
    assert made.connects({*order[:-9], *order[-1:]} - set(order[:9])), "round the end: 17 are gone"
    assert not made.connects({*order[:-9]} - set(order[:9]))


@pytest.mark.parametrize("malicious", [False, True])
def test_a_sum_over_a_sparse_graph_is_exact(malicious: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 60 devices 18 drop out, in three stages; bounds as loose as 60 devices need."""
    monkeypatch.setattr(graph, "ALL_PAIRS", 20)
    monkeypatch.setattr(graph, "_SECURITY", 5)
    monkeypatch.setattr(graph, "_GRINDING", 0)
    monkeypatch.setattr(graph, "_FAILURE", 3)
    monkeypatch.setattr(graph, "CORRUPT", 0.02)
    graph._degree.cache_clear()
    graph.graph_of.cache_clear()
    monkeypatch.setattr(graph, "degree", lambda *args, **words: degree(*args, **words | {"failure": 3}))
    of = terms(60, lowest_threshold(60, malicious=malicious), malicious=malicious)
    gone = np.random.default_rng(1).permutation(of.devices)[:18].tolist()
    a_round = Round(of, {"shares": set(gone[:4]), "masked": set(gone[4:14]), "revealed": set(gone[14:])})
    result = a_round.run()
    assert len(result.devices) == 46 and not a_round.server.refused
    np.testing.assert_array_equal(result.total, a_round.expected(set(result.devices)))
    assert 10 < a_round.server._graph().degree.neighbours < 58
    rows = wire.unpack_rows(a_round.seen["shares"][result.devices[0]][24:], 82)
    assert tuple(rows) == a_round.server._graph().neighbours(result.devices[0])


def test_a_survivor_with_whom_no_mask_is_shared_is_refused() -> None:
    """A server that keeps back the shares of one device from another: they would not mask each other."""
    a_round = Round(terms(5, 3))
    keys = a_round.server.all_keys(a_round.ask("keys", a_round.server.requests()))
    shares = a_round.server.all_shares(a_round.ask("shares", keys))
    rows = wire.unpack_rows(shares[10][24:], 82)
    del rows[12]
    device: SecureDevice = a_round.devices[10]
    device.masked(wire.pack(wire.Stage.ALL_SHARES, a_round.terms, 10, wire.pack_rows(rows)), a_round.inputs[10])
    everyone = wire.pack_rows(dict.fromkeys(a_round.terms.devices, b""))
    with pytest.raises(FederatedError, match="device 12 was not in the stage before"):
        device.revealed(wire.pack(wire.Stage.SURVIVORS, a_round.terms, 10, everyone))


@pytest.mark.slow
def test_a_thousand_devices_of_which_300_drop_out() -> None:
    of = terms(1000, 600, 200)
    server = SecureServer(of)
    rng = np.random.default_rng(0)
    inputs = {one: rng.integers(0, 2**32, of.size, np.uint64).astype("<u4") for one in of.devices}
    devices = {one: SecureDevice(request, one) for one, request in server.requests().items()}
    gone = set(rng.permutation(of.devices)[:300].tolist())
    keys = server.all_keys({one: device.keys() for one, device in devices.items()})
    shares = server.all_shares({one: devices[one].shares(request) for one, request in keys.items()})
    masked = {one: devices[one].masked(request, inputs[one]) for one, request in shares.items() if one not in gone}
    revealed = {one: devices[one].revealed(request) for one, request in server.survivors(masked).items()}
    found = server.sum(revealed)
    assert set(found.devices) == set(of.devices) - gone and not server.refused
    np.testing.assert_array_equal(found.total, np.sum([inputs[one] for one in found.devices], axis=0, dtype="<u4"))
