"""Aggregators that die, are late, repeat themselves or lie; groups that are too small; roots that are resumed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated import tree
from federated.client.device import VERSION, Device
from federated.client.state import StateStore
from federated.errors import FederatedError
from federated.exact import ExactSum
from federated.hierarchy.aggregator import Aggregator
from federated.hierarchy.orders import order, read
from federated.hierarchy.partial import Partial
from federated.messages.packed import pack, unpack
from federated.run import report, run, simulate
from federated.server.federation import Federation
from federated.transport.local import exchange_here, run_here
from tests.federated.fleets import BUNDLE, config, fleet
from tests.federated.hierarchy.test_equal import FREE, GROUPS, MADE, NAMES, Alter, Altered, grouped, play
from tests.federated.test_runs import same

COUNTED = {"hierarchy": {"aggregators": [3], "quorum": 0.6}}


def words(**sections: Any) -> Any:
    sections = {**COUNTED, **sections}
    return config(**{**sections, "rounds": {"count": 2, **FREE, **sections.get("rounds", {})}})


def without(*names: str, rounds: int = 2) -> Federation:
    """The same run with one server and without these devices."""
    left = {name: data for name, data in MADE.shards.items() if name not in names}
    return simulate(config(rounds={"count": rounds, **FREE}), type(MADE)(MADE.learner, MADE.start, left))


def on(kind: str, change: Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]) -> Alter:
    """Change the answers of a kind."""

    def alter(message: bytes, answer: bytes) -> bytes:
        meta, body = unpack(answer)
        return pack(*change(meta, dict(body))) if meta["kind"] == kind else answer

    return alter


def dies(kind: str) -> Alter:
    def alter(message: bytes, answer: bytes) -> bytes:
        if unpack(message)[0]["kind"] == kind:
            raise RuntimeError("no power")
        return answer

    return alter


@pytest.mark.parametrize("kind", ["gather", "sum"])
def test_an_aggregator_that_dies_takes_its_devices_with_it(kind: str) -> None:
    of = words(limits={"outlier": 0.0, "influence": 0.0} if kind == "gather" else {})
    nodes = grouped(of, MADE, GROUPS)
    nodes["group-1"] = Altered(nodes["group-1"], dies(kind))
    ended = play(of, MADE, nodes)
    assert same(ended.state, without(*GROUPS[1]).state)
    for row in ended.rows:
        assert row["counted"] and row["answered"] == 6 and row["lost_aggregators"] == ["group-1"]
        assert row["refused"] == {"failed": 1} and row["lost_devices"] == (5 if kind == "sum" else 0)
        assert "group-1: failed: RuntimeError: no power" in row["details"]
    json.dumps(report(ended), allow_nan=False)


def test_a_late_aggregator_is_not_waited_for() -> None:
    of = words(hierarchy={"aggregators": [3], "quorum": 0.6, "deadline": 1000.0})
    nodes: Any = grouped(of, MADE, GROUPS)
    ended: list[Federation] = []

    def delay(name: str, nth: int) -> float:
        return 2000.0 if name == "group-2" and nth >= 1 else 1.0

    run_here(lambda exchange: ended.append(run(of, MADE.start, exchange)), nodes, delay)
    assert [row["lost_aggregators"] for row in ended[0].rows] == [["group-2"]] * 2
    assert same(ended[0].state, without(*GROUPS[2]).state)
    assert all(1000 <= row["seconds"] < 1500 for row in ended[0].rows)


def test_too_few_aggregators() -> None:
    of = words(rounds={"attempts": 2})
    nodes = grouped(of, MADE, GROUPS)
    for name in ("group-0", "group-1"):
        nodes[name] = Altered(nodes[name], dies("gather"))
    why = "round 1: 1 of 3 aggregators handed up a sum, expected 2; 4 of 4 devices answered, 2 times in a row"
    with pytest.raises(FederatedError, match=why):
        play(of, MADE, nodes)
    with pytest.raises(FederatedError, match=r"hierarchy\.quorum: expected at least 2 aggregators, got 1"):
        play(of, MADE, {"group-0": grouped(of, MADE, GROUPS)["group-0"]})


def test_a_group_below_its_quorum_hands_up_nothing() -> None:
    def silent(message: bytes, answer: bytes) -> bytes:
        if unpack(answer)[0]["kind"] == "update":
            raise RuntimeError("no signal")
        return answer

    of = words(rounds={"quorum": 0.8})
    nodes = grouped(of, MADE, GROUPS, {NAMES[2]: silent, NAMES[3]: silent})
    ended = play(of, MADE, nodes)
    assert same(ended.state, without(*GROUPS[1]).state)
    row = ended.rows[0]
    assert (row["asked"], row["answered"], row["lost_devices"]) == (11, 6, 3) and row["refused"] == {"failed": 2}
    assert row["aggregators"]["group-1"] == {"asked": 5, "answered": 3, "silent": 0, "refused": {"failed": 2}}
    assert row["lost_aggregators"] == ["group-1"]


def test_an_order_that_is_repeated_gets_the_same_bytes() -> None:
    of, asked = words(), []
    root = Federation.begin(of, MADE.start)
    nodes = grouped(of, MADE, GROUPS, {name: lambda message, answer: asked.append(1) or answer for name in NAMES})
    node = nodes["group-0"]
    root.welcome(1, node.answer(root.hello()), [1])
    message = order(root, "gather", 1)
    first, before = node.answer(message), len(asked)
    assert node.answer(message) == first and len(asked) == before
    bounds = order(root, "sum", 1, {"allowed": [None, None, None]})
    summed = node.answer(bounds)
    assert node.answer(message) == first and node.answer(bounds) == summed and len(asked) == before
    root.attempt = 1
    again = node.answer(order(root, "gather", 1))
    assert unpack(again)[0]["attempt"] == 1 and len(asked) == before + 2
    assert np.array_equal(unpack(again)[1]["measured"], unpack(first)[1]["measured"]), "the same work gives the same"


def test_an_aggregator_that_was_restarted_asks_again(tmp_path: Path) -> None:
    """Between the two orders of a round its devices are lost; in the next round they are there again."""
    of = words()
    nodes, began = grouped(of, MADE, GROUPS), []

    class Restarted:
        def __init__(self) -> None:
            self.inner = nodes["group-1"]
            self.inner.keep = tmp_path / "group-1"

        def answer(self, message: bytes) -> bytes:
            if unpack(message)[0]["kind"] == "sum" and not began:
                began.append(1)
                old = self.inner
                self.inner = Aggregator(old.name, old.config, old.start, old.exchange, old.keep)
            return self.inner.answer(message)

    ended = play(of, MADE, {**nodes, "group-1": Restarted()})
    assert [row["lost_aggregators"] for row in ended.rows] == [["group-1"], []]
    assert "sum: expected a round for which this aggregator has gathered" in ended.rows[0]["details"][0]
    assert [row["answered"] for row in ended.rows] == [6, 11]


def test_names_stay_with_their_nodes_when_an_aggregator_is_restarted(tmp_path: Path) -> None:
    of = words()
    root = Federation.begin(of, MADE.start)
    store = StateStore()
    devices = {name: Device(name, MADE.learner, MADE.shards[name], store, BUNDLE) for name in GROUPS[0]}
    first = Aggregator("a", of, MADE.start, exchange_here(devices), tmp_path / "a")
    first.answer(root.hello())
    # The same nodes in another order: each name is at the node of another one.
    liars = dict(reversed(list(devices.items())))
    second = Aggregator("a", of, MADE.start, exchange_here(liars), tmp_path / "a")
    swapped = {node: name for node, name in enumerate(liars, 2)}
    second.answer(root.hello())
    kept = second._of(root.run, 0).members
    assert [kept[name].node for name in GROUPS[0]] == [2, 3] and list(swapped.values()) == GROUPS[0][::-1]
    other = Federation.begin(of, MADE.start)
    second.answer(other.hello())
    assert [second._of(other.run, 0).members[name].node for name in GROUPS[0]] == [3, 2], "another run"


@pytest.mark.parametrize("kind", ["gather", "sum"])
def test_a_root_that_was_killed_goes_on(tmp_path: Path, kind: str) -> None:
    of = words(rounds={"count": 3}, state={"checkpoint": str(tmp_path / "run")})
    nodes = grouped(of, MADE, GROUPS)

    class Killed(BaseException):
        pass

    def kill(message: bytes, answer: bytes) -> bytes:
        meta = unpack(message)[0]
        if meta["kind"] == kind and meta["round"] == 2 and not killed:
            killed.append(1)
            raise Killed
        return answer

    killed: list[int] = []
    with pytest.raises(Killed):
        play(of, MADE, {**nodes, "group-2": Altered(nodes["group-2"], kill)})
    ended = play(of, MADE, nodes, resume=True)
    assert same(ended.state, without(rounds=3).state)
    assert [row["answered"] for row in ended.rows] == [11, 11, 11]


# -- aggregators that lie ---------------------------------------------------------------------------------------------


def weigh(factor: float) -> Alter:
    """The same mean with another weight."""

    def change(meta: dict[str, Any], body: dict[str, Any]) -> Any:
        size = body["negative"].shape[0]
        part = Partial.of(meta, body, size)
        grown, more = part.scaled(factor, factor).packed()
        return meta | grown, more

    return on("partial", change)


def test_an_aggregator_counts_at_most_as_much_as_allowed() -> None:
    of = words(hierarchy={"aggregators": [3], "influence": 1.5}, rounds={"count": 1})
    nodes = grouped(of, MADE, GROUPS)
    nodes["group-0"] = Altered(nodes["group-0"], weigh(1000.0))
    ended = play(of, MADE, nodes)
    assert ended.rows[0]["limited"]["aggregator weight"] == 1
    assert "group-0: weight cut to hierarchy.influence" in ended.rows[0]["details"]
    # Weights 60,000, 150 and 120 (the devices' training examples): the first counts as 1.5 times the median, and so
    # does its weight times the norm of its mean.
    means = [without(*(set(NAMES) - set(names)), rounds=1).model() for names in GROUPS]
    weights = np.array([1.5 * 150, 150, 120])
    pulls = weights * [float(tree.dot(mean, mean)) ** 0.5 for mean in means]
    shares = np.minimum(1, 1.5 * np.median(pulls) / pulls)
    for name, found in ended.model().items():
        wanted = sum(mean[name] * weight for mean, weight in zip(means, weights * shares, strict=True)) / weights.sum()
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_without_a_limit_an_aggregator_decides() -> None:
    of = words(hierarchy={"aggregators": [3], "influence": 0.0}, rounds={"count": 1})
    nodes = grouped(of, MADE, GROUPS)
    nodes["group-0"] = Altered(nodes["group-0"], weigh(1000.0))
    ended = play(of, MADE, nodes)
    alone = without(*(set(NAMES) - set(GROUPS[0])), rounds=1)
    for name, found in ended.model().items():
        np.testing.assert_allclose(found, alone.model()[name], rtol=0.02, atol=1e-3)


def row(**changes: Any) -> Callable[[dict[str, Any], dict[str, Any]], Any]:
    return lambda meta, body: (meta | {"row": meta["row"] | changes}, body)


LIES: dict[str, tuple[Alter, str, str]] = {
    "digits of another size": (
        on("partial", lambda meta, body: (meta, {**body, "digits": body["digits"][:, :-1]})),
        "payload",
        "digits",
    ),
    "digits of another type": (
        on("partial", lambda meta, body: (meta, {**body, "digits": body["digits"].astype(np.int64)})),
        "payload",
        "uint32",
    ),
    "a bin that does not exist": (on("partial", lambda m, b: (m | {"lowest": 4000}, b)), "payload", "bins from"),
    "a weight below 0": (
        on("partial", lambda m, b: (m, {**b, "negative": ~b["negative"]})),
        "payload",
        "a weight for 2 devices",
    ),
    "no arrays": (on("partial", lambda m, b: (m, {})), "payload", "arrays digits"),
    "more weight than its devices can have": (weigh(1e9), "examples", "a weight up to 2.00002e\\+06 of 2 devices"),
    "more devices than answered": (
        on("partial", lambda m, b: (m | {"devices": 9, "there": 9}, b)),
        "malformed",
        "sum of 2",
    ),
    "devices that were not there": (on("partial", lambda m, b: (m | {"there": 1}, b)), "payload", "among those there"),
    "more answers than questions": (on("measured", row(answered=10**6)), "malformed", "a row with counts"),
    "counts that are none": (on("measured", row(refused={"failed": "many"})), "malformed", "counts by reason"),
    "norms that are not numbers": (
        on("measured", lambda m, b: (m, {"measured": b["measured"] * np.nan})),
        "payload",
        "finite norms",
    ),
    "norms of nobody": (
        on("measured", lambda m, b: (m, {"measured": np.tile(b["measured"], (9, 1))})),
        "payload",
        "at most 2",
    ),
    "another round": (on("measured", lambda m, b: (m | {"round": 7}, b)), "replayed", "expected round 1, got 7"),
    "another run": (on("partial", lambda m, b: (m | {"run": "x"}, b)), "replayed", "expected run"),
    "another's name": (on("partial", lambda m, b: (m | {"device": "group-1"}, b)), "impostor", "expected 'group-0'"),
    "another version": (
        on("partial", lambda m, b: (m | {"version": VERSION + 1}, b)),
        "version",
        "messages of version",
    ),
    "an update": (on("partial", lambda m, b: (m | {"kind": "update"}, b)), "malformed", "expected 'partial'"),
    "garbage": (lambda message, answer: b"MSF1 and then nothing", "unreadable", "format"),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_an_aggregator_cannot_hand_up(lie: str) -> None:
    alter, reason, why = LIES[lie]
    of = words(rounds={"count": 1})
    nodes = grouped(of, MADE, GROUPS)
    honest = nodes["group-0"]

    def lying(message: bytes, answer: bytes) -> bytes:
        return answer if unpack(message)[0]["kind"] == "hello" else alter(message, answer)

    ended = play(of, MADE, {**nodes, "group-0": Altered(honest, lying)})
    row = ended.rows[0]
    assert row["refused"] == {reason: 1} and row["lost_aggregators"] == ["group-0"], row
    assert re.search(why, row["details"][0]), row["details"]
    assert same(ended.state, without(*GROUPS[0], rounds=1).state)


def test_a_sum_longer_than_its_devices_can_send() -> None:
    def longer(meta: dict[str, Any], body: dict[str, Any]) -> Any:
        part = Partial.of(meta, body, body["negative"].shape[0])
        grown, more = part.scaled(3.0, 1.0).packed()
        return meta | grown, more

    of = words(privacy={"clip": 0.1, "noise": "central", "multiplier": 0.1}, rounds={"count": 1})
    nodes = grouped(of, MADE, GROUPS)
    nodes["group-1"] = Altered(nodes["group-1"], on("partial", longer))
    ended = play(of, MADE, nodes)
    assert ended.rows[0]["refused"] == {"norm": 1} and ended.rows[0]["answered"] == 6


def test_devices_and_aggregators_are_told_apart() -> None:
    of = words()
    nodes = grouped(of, MADE, GROUPS)
    store = StateStore()
    stray = Device("stray", MADE.learner, MADE.shards[NAMES[0]], store, BUNDLE)
    ended = play(of, MADE, {**nodes, "stray": stray})
    assert ended.turned_away == {"malformed": 2}, "greeted again in every round"
    assert "expected an aggregator, got a device" in ended.turned_away_details[0]
    with pytest.raises(FederatedError, match=r"refused.*1.*start more, or lower it"):
        play(config(rounds={"deadline": 1.0}), MADE, {"group-0": nodes["group-0"]})


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (b"no message", "expected this msedge's format"),
        (pack({"version": VERSION, "kind": "train"}, {}), "expected one of hello, gather, sum, survey, end"),
        (pack({"version": 1, "kind": "hello"}, {}), "in version 1"),
        (pack({"version": VERSION, "kind": "hello", "run": "a", "levels": "0"}, {}), "a field 'levels' of int"),
    ],
)
def test_orders_that_are_none(told: bytes, why: str) -> None:
    with pytest.raises(FederatedError, match=why):
        read(told)


def test_both_need_the_same_configuration() -> None:
    of = words()
    root = Federation.begin(of, MADE.start)
    other = words(local={"steps": 3})
    node = grouped(other, MADE, GROUPS)["group-0"]
    node.answer(root.hello())
    meta, _ = unpack(node.answer(order(root, "gather", 1)))
    assert meta["kind"] == "refusal" and "expected the configuration of the server above it" in meta["why"]
    deep = words(hierarchy={"aggregators": [3, 2]})
    meta, _ = unpack(node.answer(Federation.begin(deep, MADE.start).hello()))
    assert "expected fewer than 1 levels below, got 1" in meta["why"]


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"robust": {"rule": "median"}}, "aggregators with a rule that compares updates"),
        ({"robust": {"rule": "norm_bound"}}, "aggregators with a rule that compares updates"),
        ({"rounds": {"mode": "async"}}, "aggregators with asynchronous rounds"),
        ({"sync": {"store": "personal.sqlite"}}, "sync.store with hierarchy.aggregators"),
        ({"rounds": {"deadline": 2000.0}}, "hierarchy.deadline: expected more than rounds.deadline, 2000"),
        ({"hierarchy": {"quorum": 0.9}}, "hierarchy.quorum: has no effect without hierarchy.aggregators"),
        ({"hierarchy": {"aggregators": [0]}}, "hierarchy.aggregators"),
    ],
)
def test_what_does_not_go_together(sections: dict[str, Any], why: str) -> None:
    with pytest.raises(FederatedError, match=why):
        config(**{"hierarchy": {"aggregators": [3]}, **sections})


def test_more_aggregators_than_devices() -> None:
    with pytest.raises(FederatedError, match="expected at least 12 devices, one for each, got 11"):
        simulate(config(rounds=FREE, hierarchy={"aggregators": [3, 4]}), MADE)


# -- secure sums ------------------------------------------------------------------------------------------------------


def test_secure_sums_of_groups() -> None:
    """Each aggregator opens the sum of its own devices; the root has no single update of them."""
    private = {"clip": 0.5, "secure": True, "threshold": 0.7}
    made = fleet(12)
    plain = simulate(config(privacy={"clip": 0.5}, rounds={"count": 2}, limits={"influence": 0.0}), made)
    flat = simulate(config(privacy=private, rounds={"count": 2}), made)
    one = simulate(config(privacy=private, rounds={"count": 2}, hierarchy={"aggregators": [1]}), made)
    three = simulate(config(privacy=private, rounds={"count": 2}, hierarchy={"aggregators": [3]}), made)
    assert same(flat.state, one.state), "one group is one server"
    assert [row["answered"] for row in three.rows] == [12, 12]
    for name, found in three.model().items():
        np.testing.assert_allclose(found, plain.model()[name], atol=1e-6)


def test_a_group_too_small_for_a_secure_sum() -> None:
    private = {"clip": 0.5, "secure": True}
    of = words(privacy=private, rounds={"count": 1})
    groups = [NAMES[:1], NAMES[1:6], NAMES[6:]]
    ended = play(of, MADE, grouped(of, MADE, groups))
    row = ended.rows[0]
    assert row["lost_aggregators"] == ["group-0"] and row["answered"] == 10
    assert "a secure sum needs at least two devices" in row["details"][0]


def test_sums_stay_exact_between_messages() -> None:
    rng = np.random.default_rng()
    total = ExactSum(5)
    for _ in range(20):
        total.add(rng.standard_normal(5), 10.0 ** rng.integers(-20, 20))
    part = Partial(total, 20, 25, 3.0)
    part.total.add(np.append(np.zeros(4), 1e22))  # type: ignore[union-attr]
    read_back = Partial.of(*unpack(pack(*part.packed())), 5)
    assert read_back.total is not None and np.array_equal(read_back.total.value(), total.value())
    assert (read_back.devices, read_back.there, read_back.within) == (20, 25, 3.0)
