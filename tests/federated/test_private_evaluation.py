"""What leaves a device besides updates: evaluations, numbers of examples, and what the account says about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.client.demands import Demands
from federated.client.device import Device
from federated.client.state import StateStore
from federated.codec import Codec
from federated.errors import FederatedError
from federated.evaluation import WIDEST, noisy_summary, shares
from federated.learner import Evaluation
from federated.messages.downlink import Downlink
from federated.messages.packed import pack, unpack
from federated.privacy import Accountant, SeededSource
from federated.run import report, run, simulate
from federated.server.federation import Federation
from tests.federated.fleets import BUNDLE, config, fleet

MADE = fleet(1)
CENTRAL = {"clip": 0.5, "noise": "central", "multiplier": 1.0}
LOCAL = {**CENTRAL, "noise": "local"}
WORDS = {"held_out": False, "support": 2, "steps": 2, "batch": 4, "lowest": 0.0}


def device(**changes: Any) -> Device:
    data = MADE.shards["device-00"]
    return Device(**{"name": "device-00", "learner": MADE.learner, "data": data, "store": StateStore(),
                     "bundle": BUNDLE, **changes})  # fmt: skip


def federation(privacy: Mapping[str, Any]) -> Federation:
    made = Federation.begin(config(privacy=privacy), MADE.start)
    made.round = 1
    return made


def evaluated(privacy: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return unpack(device(**changes).answer(federation(privacy).task("evaluate", 1, WORDS)))[0]


# -- demands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "demands",
    [{"least_noise": 0.5}, {"least_own_noise": 0.5}, {"secure_only": True}, {"least_devices": 5},
     {"malicious_only": True}, {"most_epsilon": 8.0}],
)  # fmt: skip
def test_evaluations_give_no_histogram_of_labels(demands: dict[str, Any]) -> None:
    """A model that always answers one class told, by its evaluation, how many examples have that label."""
    asked = federation({"clip": 1.0, "secure": True})
    target = device(demands=Demands.of(demands))
    for label in range(3):
        params = {name: np.zeros_like(value) for name, value in MADE.start.params.items()}
        params["b"][label] = 50
        asked.link = Downlink.begin(Codec(), 0, {"params": params})
        answer = unpack(target.answer(asked.task("evaluate", 1, WORDS)))[0]
        assert answer["kind"] == "refusal" and f"demands {next(iter(demands))}: evaluation" in answer["why"]
        assert "before" not in answer


@pytest.mark.parametrize(
    ("demands", "less", "enough"),
    [
        ({"least_noise": 1.0}, {**CENTRAL, "evaluation": "open"}, CENTRAL),
        ({"least_noise": 1.0}, {**CENTRAL, "multiplier": 0.9}, LOCAL),
        ({"least_own_noise": 1.0}, CENTRAL, LOCAL),
        ({"most_epsilon": 20.0}, {}, LOCAL),
    ],
)
def test_noise_that_is_demanded_is_on_evaluations_too(
    demands: dict[str, Any], less: dict[str, Any], enough: dict[str, Any]
) -> None:
    assert evaluated(less, demands=Demands.of(demands))["kind"] == "refusal"
    answer = evaluated(enough, demands=Demands.of(demands))
    assert answer["kind"] == "evaluation" and len(answer["shares"]) == 4 and "before" not in answer


def test_a_device_keeps_an_account_of_its_own() -> None:
    """By which it stops, whatever the server counts: repeated requests draw noise anew."""
    each = Accountant().charge(1.0).epsilon(1e-5)
    target = device(demands=Demands.of({"most_epsilon": Accountant().charge(1.0, 1.0, 3).epsilon(1e-5)}))
    asked = federation(LOCAL)
    messages = (asked.work(1), asked.task("evaluate", 1, WORDS), asked.work(1), asked.work(2))
    kinds = [unpack(target.answer(message))[0]["kind"] for message in messages]
    assert kinds == ["update", "evaluation", "update", "refusal"]
    assert target.store.spent("device-00", asked.run) == {1.0: 3}
    other = federation(LOCAL)
    assert unpack(target.answer(other.work(1)))[0]["kind"] == "update"  # an account of each run
    strict = device(demands=Demands.of({"most_epsilon": 0.9 * each}))
    answer = unpack(strict.answer(asked.work(1)))[0]
    assert "demands most_epsilon" in answer["why"] and not strict.store.spent("device-00", asked.run)


def test_numbers_of_examples_do_not_leave_where_noise_hides_them() -> None:
    for privacy, demands, told in (({}, {}, 40), (CENTRAL, {}, 1), (LOCAL, {}, 1), ({}, {"least_noise": 1.0}, 1)):
        target, asked = device(demands=Demands.of(demands)), federation(privacy)
        assert unpack(target.answer(asked.hello()))[0]["examples"] == told
        if not demands:
            assert unpack(target.answer(asked.work(1)))[0]["examples"] == (told if told == 1 else 30)


# -- noise on evaluations ---------------------------------------------------------------------------------------------


def test_no_device_matters_more_than_stated() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        loss, count = rng.choice([0.0, 1e3, np.inf, -np.inf, np.nan, -5.0]), int(rng.integers(0, 5))
        sums = [Evaluation(np.float64(loss), np.int64(rng.integers(0, count + 1)), np.int64(count)) for _ in "ab"]
        found.append(shares(*sums, *((-10.0, 10.0) if rng.random() < 0.5 else (0.0, 10.0))))
        assert found[-1].min() >= 0 and found[-1].max() <= 1
    assert max(np.linalg.norm(a - b) for a in found[:60] for b in found) <= WIDEST
    assert max(map(np.linalg.norm, found)) <= WIDEST


@pytest.mark.parametrize("noise", ["central", "local"])
def test_the_published_means_are_noisy_and_near_the_truth(noise: str) -> None:
    made = fleet(30)
    words = {"rounds": {"count": 1, "fraction": 1.0}, "evaluation": {"every": 1, "devices": 100, "held_out": 0.0}}
    none = {**CENTRAL, "noise": noise, "multiplier": 1e-9, "evaluation": "open"}
    open_ = simulate(config(**words, privacy=none), made)
    truth = open_.rows[-1]["evaluation"]["training"]["summary"]
    got = []
    for _ in range(20):
        ended = simulate(config(**words, privacy={**CENTRAL, "noise": noise, "multiplier": 0.05}), made)
        survey = ended.rows[-1]["evaluation"]["training"]
        assert survey["by_device"] == {} and survey["diverged"] == [] and survey["summary"]["diverged"] is None
        got.append(survey["summary"]["accuracy_before"]["mean"])
        assert survey["summary"]["accuracy_before"]["worst_decile"] is None
    deviation = WIDEST * 0.05 / (30 if noise == "central" else 30**0.5)
    # The model itself differs by noise of a fiftieth of the bound; accuracies move in steps of 1/8 per device.
    assert abs(np.mean(got) - truth["accuracy_before"]["mean"]) < 5 * deviation / 20**0.5 + 0.05
    assert 0.4 * deviation < np.std(got) < 3 * deviation + 0.05


def test_evaluations_are_in_the_account() -> None:
    words = {"rounds": {"count": 4}, "evaluation": {"every": 2}}
    for privacy, rounds, whole in ((CENTRAL, 4, 2), ({**CENTRAL, "evaluation": "open"}, 4, 0), (LOCAL, 4, 2)):
        ended = simulate(config(**words, privacy=privacy), fleet(4))
        want = Accountant().charge(1.0, 1.0, rounds + whole)
        assert ended.account == want and ended.rows[-1]["epsilon"] == want.epsilon(1e-5)
        said = report(ended)["privacy"]
        assert ("evaluations" in said["covered"]) == bool(whole) and said["epsilon"] == want.epsilon(1e-5)
    poisson = {**CENTRAL, "sampling": "poisson"}
    ended = simulate(config(rounds={"count": 4, "fraction": 0.5}, evaluation={"every": 2}, privacy=poisson), fleet(6))
    assert ended.account == Accountant().charge(1.0, 0.5, 4).charge(1.0, 1.0, 2)


def test_a_budget_pays_for_evaluations_too() -> None:
    privacy = {"clip": 0.5, "noise": "central", "epsilon": 5.0}
    ended = simulate(config(rounds={"count": 4}, evaluation={"every": 2}, privacy=privacy), fleet(4))
    assert 4.9 < (ended.epsilon() or 0) <= 5.0
    assert ended.multiplier > simulate(config(privacy=privacy), fleet(4)).multiplier


def test_shares_out_of_range_are_held_to_it() -> None:
    """A hostile device matters no more than another."""
    ended = []
    for value in (1.0, 1e9):
        asked = federation({**LOCAL, "multiplier": 0.1})
        asked.members.clear()
        node = 7
        hello = {"version": 2, "kind": "hello", "run": asked.run, "bundle": BUNDLE, "examples": 1, "device": "d"}
        asked.welcome(node, pack(hello, {}), {node})
        (survey,) = asked.survey({node})
        reply = {"version": 2, "kind": "evaluation", "run": asked.run, "round": 1, "attempt": 0, "device": "d"}
        survey.take(node, pack({**reply, "shares": [value] * 4}, {}))
        ended.append(survey.close()["summary"]["accuracy_after"]["mean"])
    assert ended == [1.0, pytest.approx(1 + 6 * WIDEST * 0.1)]
    summary = noisy_summary(3, np.array([0.5, 0.75, 0.5, 0.25]), -10.0, 10.0)
    assert summary["loss_before"]["mean"] == 0.0 and summary["loss_after"]["mean"] == -5.0


@pytest.mark.parametrize("shown", [[0.5] * 3, [0.5] * 5, [0.5, 0.5, 0.5, float("nan")], [1, 1, 1, 1], "aaaa", None])
def test_malformed_shares_are_refused(shown: object) -> None:
    asked = federation(LOCAL)
    hello = {"version": 2, "kind": "hello", "run": asked.run, "bundle": BUNDLE, "examples": 1, "device": "d"}
    asked.welcome(7, pack(hello, {}), {7})
    (survey,) = asked.survey({7})
    reply = {"version": 2, "kind": "evaluation", "run": asked.run, "round": 1, "attempt": 0, "device": "d"}
    try:
        message = pack({**reply, "shares": shown}, {})
    except (FederatedError, ValueError):
        return  # cannot even be written
    survey.take(7, message)
    assert survey.close()["refused"] and survey.close()["summary"] is None


# -- a server that is killed ------------------------------------------------------------------------------------------


class Dying:
    """An exchange whose server dies when devices have answered so many rounds."""

    def __init__(self, devices: Mapping[str, Device], at: int) -> None:
        self._devices, self._at = dict(enumerate(devices.values(), start=2)), at
        self._replies: dict[str, bytes] = {}
        self.sent = 0

    def nodes(self) -> list[int]:
        return list(self._devices)

    def send(self, kind: str, messages: Mapping[int, bytes]) -> dict[str, int]:
        made = {}
        for node, message in messages.items():
            ticket = f"{kind} {node} {len(self._replies)}"
            self._replies[ticket] = self._devices[node].answer(message)
            made[ticket] = node
        if kind in ("train", "evaluate"):
            self.sent += 1
            if self.sent == self._at:
                raise KeyboardInterrupt
        return made

    def poll(self, tickets: Any) -> list[tuple[str, bytes]]:
        return [(ticket, self._replies.pop(ticket)) for ticket in list(tickets) if ticket in self._replies]

    def now(self) -> float:
        return 0.0

    def wait(self, seconds: float) -> None: ...


@pytest.mark.parametrize("every", [0, 1])
def test_noise_that_was_sent_is_charged_whenever_the_server_dies(tmp_path: Path, every: int) -> None:
    """The report said 4.01 where devices had sent noise for 6.54."""
    made = fleet(3)
    store = StateStore()
    devices = {name: Device(name, made.learner, data, store, BUNDLE, SeededSource(1))
               for name, data in made.shards.items()}  # fmt: skip
    words = config(privacy={**LOCAL, "multiplier": 2.0}, rounds={"count": 3}, evaluation={"every": every},
                   state={"checkpoint": str(tmp_path / "run")})  # fmt: skip
    for at in (1, 2, 1, 2, 1):
        with pytest.raises(KeyboardInterrupt):
            run(words, made.start, Dying(devices, at), resume=(tmp_path / "run").exists())
    ended = run(words, made.start, Dying(devices, 0), resume=True)
    sent = max(sum(store.spent(name, ended.run).values()) for name in devices)
    charged = sum(each.rounds for each in ended.account.spent)
    assert sent <= charged <= sent + 2 * every  # an evaluation that was lost before it was sent counts too
    assert (ended.epsilon() or 0) >= Accountant().charge(2.0, 1.0, sent).epsilon(1e-5)


