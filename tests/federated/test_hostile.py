"""Ten hostile devices of fifty: the run ends with a model close to the honest one, and names what they sent.

Everything here uses the default limits and the plain mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from federated.client.device import Device
from federated.client.state import StateStore
from federated.codec import Codec, Spec
from federated.config import Config
from federated.errors import FederatedError
from federated.learner import Batch
from federated.messages.packed import pack, unpack
from federated.run import Fleet, report, run
from federated.server.federation import Federation, Start
from federated.server.gate import objection
from federated.transport.local import run_here
from federated.tree import Tree
from tests.federated.fleets import BUNDLE, Softmax, config, fleet

DEVICES, HOSTILE, ROUNDS = 50, 10, 10
NAMES = [f"device-{at:02d}" for at in range(DEVICES)]
LIARS = NAMES[::5]
LOSES, AIMED, ONE = 0.03, 0.35, 0.08
"""By how much the mean accuracy of the honest devices (0.98) may fall: by what a fifth of the devices send, by the
reversed updates of a fifth just within the limits, by those of one of sixteen. Without limits it falls below 0.5."""

Answer = Callable[[bytes, bytes], bytes]


class Altered:
    """A device whose answers go through `alter(message, answer)`."""

    def __init__(self, device: Device, alter: Answer) -> None:
        self.device, self.alter = device, alter

    def answer(self, message: bytes) -> bytes:
        return self.alter(message, self.device.answer(message))


def play(words: Config, made: Fleet, alter: Answer | None = None, liars: list[str] = LIARS) -> Federation:
    store = StateStore()
    devices: dict[str, Any] = {
        name: Device(name, made.learner, data, store, BUNDLE) for name, data in made.shards.items()
    }
    for name in liars if alter else ():
        devices[name] = Altered(devices[name], alter)  # type: ignore[arg-type]
    ended: list[Federation] = []
    run_here(lambda exchange: ended.append(run(words, made.start, exchange)), devices)
    return ended[0]


def settings(**more: Any) -> Config:
    return config(rounds={"count": ROUNDS}, **{"evaluation": {"every": ROUNDS}, **more})


def accuracy(federation: Federation, made: Fleet) -> float:
    """The mean over the honest devices' examples."""
    honest = [data for name, data in made.shards.items() if name not in LIARS]
    found = [made.learner.evaluate(federation.model(), data) for data in honest]
    return float(np.mean([each.correct / each.examples for each in found]))


@pytest.fixture(scope="module")
def made() -> Fleet:
    return fleet(DEVICES)


@pytest.fixture(scope="module")
def honest(made: Fleet) -> float:
    return accuracy(play(settings(), made), made)


def fields(kind: str, **changes: Any) -> Answer:
    def alter(message: bytes, answer: bytes) -> bytes:
        words, body = unpack(answer)
        return pack({**words, **changes}, body) if words["kind"] == kind else answer

    return alter


def update(change: Callable[[np.ndarray], np.ndarray], **changes: Any) -> Answer:
    """Change the values of an update, well encoded."""
    spec, codec = Spec.of({"params": fleet(1).learner.params}), Codec.parse([])

    def alter(message: bytes, answer: bytes) -> bytes:
        words, body = unpack(answer)
        if words["kind"] != "update":
            return answer
        vector = change(spec.flatten(codec.decode(body["data"].tobytes(), spec))).astype(np.float32)
        data = codec.encode(spec.unflatten(vector), np.random.default_rng(0)).data
        return pack({**words, **changes}, {"data": np.frombuffer(data, np.uint8)})

    return alter


def not_a_number(message: bytes, answer: bytes) -> bytes:
    """Bytes of an update that a codec would not write: its values are NaN."""
    words, body = unpack(answer)
    if words["kind"] != "update":
        return answer
    data = np.array(body["data"])
    data[-40:] = np.frombuffer(np.full(10, np.nan, "<f4").tobytes(), np.uint8)
    return pack(words, {"data": data})


def many_examples(message: bytes, answer: bytes) -> bytes:
    """A million examples, from the hello on, for the opposite of what was learned."""
    answer = fields("hello", examples=10**6)(message, answer)
    return update(lambda vector: -vector, examples=10**6)(message, answer)


def garbage(message: bytes, answer: bytes) -> bytes:
    return answer if unpack(answer)[0]["kind"] == "hello" else bytes(range(256)) * 9


def shifted(vector: np.ndarray) -> np.ndarray:
    """All of them towards the first class, within `limits.norm`."""
    return np.where(np.arange(len(vector)) % 3 == 0, 3e5, 0.0)


reverse = update(lambda vector: -9.0 * vector)

ATTACKS: dict[str, tuple[Answer, str, float]] = {
    "huge updates": (update(shifted), "outlier", LOSES),
    "reversed updates just below the limit": (reverse, "norm cut", AIMED),
    "updates that are not numbers": (not_a_number, "payload", LOSES),
    "examples that were not declared": (fields("update", examples=10**6), "examples", LOSES),
    "declared examples that do not exist": (many_examples, "weight cut", AIMED),
    "losses that are not finite": (fields("update", loss=None), "payload", LOSES),
    "another device's name": (fields("update", device="device-01"), "impostor", LOSES),
    "garbage": (garbage, "unreadable", LOSES),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_fifth_of_the_devices_cannot_destroy_the_model(attack: str, made: Fleet, honest: float) -> None:
    alter, reason, loses = ATTACKS[attack]
    if reason in ("outlier", "norm cut", "weight cut"):  # what limits are for
        assert accuracy(play(settings(limits={"outlier": 0, "influence": 0}), made, alter), made) < 0.5
    ended = play(settings(), made, alter)
    assert ended.done and accuracy(ended, made) > honest - loses
    for row in ended.rows[:1] if loses == AIMED else ended.rows:
        assert {line.partition(":")[0] for line in row["details"]} == set(LIARS), row["details"]
        assert any(f": {reason}" in line for line in row["details"])


def test_honest_devices_are_not_limited(made: Fleet) -> None:
    """The limits change no bit where they do not apply."""
    free, limited = play(settings(limits={"outlier": 0, "influence": 0}), made), play(settings(), made)
    assert not any(row["limited"] or row["refused"] for row in limited.rows)
    assert all(np.array_equal(free.model()[name], limited.model()[name]) for name in free.model())


@pytest.mark.parametrize("liar", [update(shifted, examples=10**6), reverse])
def test_one_of_sixteen_cannot_destroy_the_model(liar: Answer) -> None:
    made = fleet(16)
    one, words = ["device-05"], settings()

    def lie(message: bytes, answer: bytes) -> bytes:
        return liar(message, fields("hello", examples=10**6)(message, answer))

    assert accuracy(play(words, made, lie, one), made) > accuracy(play(words, made), made) - ONE
    free = settings(limits={"outlier": 0, "influence": 0})
    assert accuracy(play(free, made, lie, one), made) < 0.7


def test_a_device_with_more_examples_than_it_declared_is_greeted_again() -> None:
    made = fleet(3)
    grown = {"hello": 10, "update": 30}

    def grow(message: bytes, answer: bytes) -> bytes:
        words, body = unpack(answer)
        if words["kind"] == "update":
            grown["hello"] = 30
        return pack({**words, "examples": grown[words["kind"]]}, body) if words["kind"] in grown else answer

    ended = play(config(rounds={"count": 2}), made, grow, ["device-01"])
    assert [row["refused"] for row in ended.rows] == [{"examples": 1}, {}]
    assert ended.members["device-01"].examples == 30


# -- names ------------------------------------------------------------------------------------------------------------


def device(name: str, made: Fleet, store: StateStore | None = None) -> Device:
    return Device(name, made.learner, made.shards[name], store or StateStore(), BUNDLE)


def test_a_name_belongs_to_the_node_that_joined_with_it() -> None:
    """Another node that uses it is refused, also when the first one is away."""
    made = fleet(2)
    federation = Federation.begin(config(), made.start)
    store = StateStore()
    federation.welcome(1, device("device-00", made, store).answer(federation.hello()), {1})
    federation.welcome(9, device("device-00", made).answer(federation.hello()), {9})
    assert federation.members["device-00"].node == 1
    assert federation.turned_away == {"impostor": 1}
    assert "joined this run from another node" in federation.turned_away_details[0]
    federation.welcome(8, device("device-00", made, store).answer(federation.hello()), {8})
    assert federation.members["device-00"].node == 8, "the same device, restarted without a node key"


def test_a_proof_is_of_one_run_and_one_device() -> None:
    made, store = fleet(2), StateStore()
    runs = [Federation.begin(config(), made.start) for _ in range(2)]
    names = ["device-00", "device-01"]
    proofs = {unpack(device(name, made, store).answer(each.hello()))[0]["proof"] for each in runs for name in names}
    assert len(proofs) == 4


def test_ten_devices_that_use_names_of_others_join_nowhere(made: Fleet, honest: float) -> None:
    def steal(message: bytes, answer: bytes) -> bytes:
        return fields("hello", device="device-01")(message, answer)

    ended = play(settings(), made, steal)
    assert set(ended.members) == set(NAMES) - set(LIARS)
    assert set(ended.turned_away) == {"impostor"}
    assert accuracy(ended, made) > honest - LOSES
    assert len({line.partition(":")[0] for line in report(ended)["turned_away_details"]}) == HOSTILE


# -- evaluations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [None, float(1)])
def test_devices_that_diverge_have_the_worst_score(made: Fleet, after: float | None) -> None:
    ended = play(settings(), made, fields("evaluation", before=[None, 9, 10], after=[after, 9, 10]))
    plain = play(settings(), made)
    found, usual = (each.rows[-1]["evaluation"]["training"] for each in (ended, plain))
    assert found["diverged"] == LIARS and found["asked"] == found["answered"] == DEVICES and not found["lost"]
    assert all(found["by_device"][name][0] == 0.0 for name in LIARS)
    assert found["summary"]["devices"] == DEVICES and found["summary"]["diverged"] == HOSTILE
    assert found["summary"]["loss_before"]["mean"] is None
    assert found["summary"]["median_loss_before"] < 2 * usual["summary"]["median_loss_before"]
    assert found["summary"]["accuracy_before"]["mean"] < usual["summary"]["accuracy_before"]["mean"] - 0.15
    assert report(ended)["diverged_evaluations"] == HOSTILE


def test_lost_evaluations_are_counted_by_reason(made: Fleet) -> None:
    def alter(message: bytes, answer: bytes) -> bytes:
        words, _ = unpack(answer)
        if words["kind"] != "evaluation":
            return answer
        return b"garbage" if words["device"] < "device-25" else pack({**words, "kind": "refusal", "why": "no"}, {})

    ended = play(settings(), made, alter)
    found = ended.rows[-1]["evaluation"]["training"]
    assert found["lost"] == {"refused": 5, "unreadable": 5} == report(ended)["lost_evaluations"]
    assert (found["asked"], found["answered"]) == (DEVICES, DEVICES - HOSTILE)
    assert {line.partition(":")[0] for line in found["details"]} == set(LIARS)


@pytest.mark.parametrize("sums", [[-5.0, 1, 10], [1e31, 1, 10]])
def test_losses_that_cannot_be_are_refused(sums: list[float]) -> None:
    made = fleet(3)
    cross_entropy = Fleet(made.learner, Start(made.start.params, (), BUNDLE, signed=False), made.shards)
    words = config(rounds={"count": 1}, evaluation={"every": 1})
    ended = play(words, cross_entropy, fields("evaluation", before=sums), ["device-00"])
    assert ended.rows[0]["evaluation"]["training"]["lost"] == {"malformed": 1}
    ended = play(words, cross_entropy, fields("update", loss=sums[0]), ["device-00"])
    assert ended.rows[0]["refused"] == {"payload": 1}


class Overflowing(Softmax):
    """Without the subtraction that keeps exponentials finite, as in many exported models."""

    def _forward(self, params: Tree, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            powers = np.exp(batch.inputs["x"] @ params["w"] + params["b"])
            shares = powers / powers.sum(1, keepdims=True)
            return shares, -np.log(shares[np.arange(len(batch.labels)), batch.labels])


def test_a_poisoned_model_scores_below_the_honest_one() -> None:
    """One device of sixteen poisons the last round of a run without limits: most devices' losses are not numbers."""
    plain = fleet(16)
    learner = Overflowing()
    made = Fleet(learner, plain.start, plain.shards)
    words = settings(limits={"outlier": 0, "influence": 0})

    def poison(message: bytes, answer: bytes) -> bytes:
        words = unpack(answer)[0]
        return update(lambda vector: 1e4 * vector)(message, answer) if words.get("round") == ROUNDS else answer

    good, bad = (
        play(words, made, alter, ["device-05"]).rows[-1]["evaluation"]["training"] for alter in (None, poison)
    )
    assert good["diverged"] == [] and bad["summary"]["devices"] == bad["asked"] == 16 and bad["diverged"]
    assert bad["summary"]["accuracy_before"]["mean"] < good["summary"]["accuracy_before"]["mean"] - 0.2


# -- the gate ---------------------------------------------------------------------------------------------------------


def gated(made: Fleet, alter: Answer | None = None, limits: dict[str, Any] | None = None, **gate: Any) -> Federation:
    """Few rounds on some of the devices: what the gate compares does not depend on how many there are."""
    some = Fleet(made.learner, made.start, {name: made.shards[name] for name in NAMES[:20]})
    words = config(rounds={"count": 4}, evaluation={"every": 2}, gate=gate, limits=limits or {})
    return play(words, some, alter, LIARS[:4])


@pytest.mark.parametrize("against", ["start", "previous"])
@pytest.mark.parametrize("figure", ["accuracy_before", "accuracy_after", "loss_before", "loss_after"])
def test_a_model_that_became_better_passes(made: Fleet, against: str, figure: str) -> None:
    ended = gated(made, against=against, figure=figure)
    assert ended.done and report(ended)["gate"] == ""
    assert report(ended)["start"]["evaluation"]["training"]["answered"] == 20


def test_a_model_that_became_worse_does_not_pass(made: Fleet) -> None:
    free = {"outlier": 0, "influence": 0}
    with pytest.raises(FederatedError, match=r"gate: training devices: expected accuracy_before of at least 0") as why:
        gated(made, reverse, free, against="start", margin=0.01)
    assert "the model was not written" in str(why.value) and "--resume" in str(why.value)
    gated(made, reverse, free, against="start", margin=1.0)


def test_too_few_answers_do_not_pass(made: Fleet) -> None:
    def crash(message: bytes, answer: bytes) -> bytes:
        if unpack(answer)[0]["kind"] == "evaluation":
            raise RuntimeError("out of memory")
        return answer

    with pytest.raises(FederatedError, match=r"expected 90 % of 20 devices .* got 16 \(4 failed\)"):
        gated(made, crash, answered=0.9)
    gated(made, crash, answered=0.8)


def test_a_gate_needs_an_evaluation() -> None:
    with pytest.raises(FederatedError, match=r"evaluation\.every: expected at least 1 with \[gate\]"):
        config(gate={"answered": 0.5})
    words = config(evaluation={"every": 1}, gate={"answered": 0.5})
    assert objection(words.gate, None, []) == "no evaluation of this model"
