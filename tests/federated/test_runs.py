"""Complete runs in this process: every kind of misbehaving device, and all transforms of updates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from federated.algorithms import ALGORITHMS
from federated.client.device import VERSION, Device
from federated.client.state import StateStore
from federated.config import Config
from federated.errors import FederatedError
from federated.learner import Batch
from federated.messages.packed import pack, unpack
from federated.messages.transforms import Transforms
from federated.privacy.noise import SeededSource
from federated.run import Fleet, fleet_of, report, run, simulate
from federated.server import checkpoint
from federated.server.conduct import meet
from federated.server.federation import Federation
from federated.server.replies import REASONS
from federated.server.store import PersonalStore
from federated.server.sync import sync
from federated.transport.local import run_here
from tests.federated.fleets import BUNDLE, config, fleet

Alter = Callable[[bytes, bytes], bytes]


class Altered:
    """A device whose answers go through `alter(message, answer)`."""

    def __init__(self, device: Device, alter: Alter) -> None:
        self.device, self.alter = device, alter

    def answer(self, message: bytes) -> bytes:
        return self.alter(message, self.device.answer(message))


def play(
    words: Config,
    made: Fleet,
    alter: Mapping[str, Alter] | None = None,
    delay: Callable[[str, int], float] | None = None,
) -> Federation:
    """As `simulate`, with devices that misbehave."""
    store = StateStore()
    devices: dict[str, Any] = {
        name: Device(name, made.learner, data, store, BUNDLE) for name, data in made.shards.items()
    }
    for name, function in (alter or {}).items():
        devices[name] = Altered(devices[name], function)
    ended: list[Federation] = []
    run_here(lambda exchange: ended.append(run(words, made.start, exchange)), devices, delay)
    return ended[0]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return np.array_equal(a, b)


def accuracy(federation: Federation, made: Fleet) -> float:
    found = [made.learner.evaluate(federation.model(), data) for data in made.shards.values()]
    return float(sum(each.correct for each in found) / sum(each.examples for each in found))


def test_devices_learn_together() -> None:
    made = fleet()
    ended = simulate(config(rounds={"count": 10}, evaluation={"every": 5, "held_out": 0.3}), made)
    losses = [row["loss"] for row in ended.rows]
    assert losses[-1] < 0.6 * losses[0]
    assert accuracy(ended, made) > 0.8
    assert [row["round"] for row in ended.rows if "evaluation" in row] == [5, 10]
    last = ended.rows[-1]["evaluation"]
    assert set(last) == {"training", "held_out"}
    assert not set(last["training"]["by_device"]) & set(last["held_out"]["by_device"])
    text = json.dumps(report(ended), allow_nan=False)
    assert json.loads(text)["devices"] == 6


def test_equal_settings_give_equal_bits() -> None:
    one, other = (simulate(config(codec={"up": ["topk:0.5", "int8"], "down": ["float16"]}), fleet()) for _ in range(2))
    assert same(one.state, other.state) and one.run != other.run


@pytest.mark.parametrize("name", [n for n, kind in ALGORITHMS.items() if not kind.second_order])
def test_every_algorithm_runs(name: str) -> None:
    own = {"own": ["b"]} if name in ("fedper", "fedrep", "fedbn", "meta_head") else {}
    try:
        words = config(algorithm={"name": name, **own}, rounds={"count": 2}, evaluation={"every": 2})
    except FederatedError:
        words = config(algorithm={"name": name, "head": ["b"]}, rounds={"count": 2}, evaluation={"every": 2})
    ended = simulate(words, fleet(3))
    assert [row["answered"] for row in ended.rows] == [3, 3] and not ended.turned_away
    assert ended.rows[-1]["evaluation"]["training"]["summary"]["devices"] == 3


def test_second_derivatives_are_refused_before_a_device_is_asked() -> None:
    with pytest.raises(FederatedError, match=r"maml needs exact second-order gradients.*or choose fomaml"):
        simulate(config(algorithm={"name": "maml"}), fleet(3), watch=lambda row: pytest.fail("a round was begun"))


# -- devices that misbehave -------------------------------------------------------------------------------------------


def meta(**changes: Any) -> Alter:
    """Change fields of the answers to `train`."""

    def alter(message: bytes, answer: bytes) -> bytes:
        words, body = unpack(answer)
        return pack({**words, **changes}, body) if words["kind"] == "update" else answer

    return alter


def payload(change: Callable[[np.ndarray], Any]) -> Alter:
    """Change the encoded update."""

    def alter(message: bytes, answer: bytes) -> bytes:
        words, body = unpack(answer)
        return pack(words, {"data": change(body["data"])}) if words["kind"] == "update" else answer

    return alter


def crash(message: bytes, answer: bytes) -> bytes:
    if unpack(answer)[0]["kind"] == "update":
        raise RuntimeError("out of battery")
    return answer


def replayer() -> Alter:
    """Answers with what was right in the first round."""
    first: list[bytes] = []

    def alter(message: bytes, answer: bytes) -> bytes:
        if unpack(answer)[0]["kind"] == "update":
            first.append(answer)
            return first[0]
        return answer

    return alter


def scaled(factor: float) -> Callable[[bytes, bytes], bytes]:
    """The update times a factor, well encoded."""
    from federated.codec import Codec, Spec

    def alter(message: bytes, answer: bytes) -> bytes:
        words, body = unpack(answer)
        if words["kind"] != "update":
            return answer
        learner = fleet().learner
        spec = Spec.of({"params": learner.params})
        vector = spec.flatten(Codec.parse([]).decode(body["data"].tobytes(), spec)) * np.float32(factor)
        data = Codec.parse([]).encode(spec.unflatten(vector), np.random.default_rng(0)).data
        return pack(words, {"data": np.frombuffer(data, np.uint8)})

    return alter


HOSTILE: list[tuple[str, Alter]] = [
    ("failed", crash),
    ("unreadable", lambda message, answer: answer if b"hello" in answer else b"nonsense"),
    ("unreadable", lambda message, answer: answer if b"hello" in answer else answer[:-7]),
    ("version", meta(version=VERSION + 1)),
    ("replayed", meta(run="another")),
    ("replayed", meta(round=7)),
    ("replayed", meta(round=None)),
    ("replayed", meta(attempt=1)),
    ("impostor", meta(device="device-01")),
    ("malformed", meta(kind="evaluation")),
    ("malformed", meta(kind=None)),
    ("malformed", meta(within=7)),
    ("refused", meta(kind="refusal", why="the user said no")),
    ("examples", meta(examples=10**9)),
    ("examples", meta(examples=0)),
    ("examples", meta(examples=True)),
    ("examples", meta(examples="many")),
    ("payload", meta(loss=None)),
    ("payload", meta(loss="low")),
    ("payload", meta(loss=10**400)),
    ("payload", meta(loss=1e308)),
    ("payload", payload(lambda data: data[:-1])),
    ("payload", payload(lambda data: data.astype(np.float32))),
    ("payload", payload(lambda data: {"more": data})),
    ("payload", payload(lambda data: np.zeros(0, np.uint8))),
    ("payload", payload(lambda data: np.concatenate([data, data]))),
    ("norm", scaled(1e8)),
]


@pytest.mark.parametrize(("reason", "alter"), HOSTILE, ids=[f"{at}-{each[0]}" for at, each in enumerate(HOSTILE)])
def test_invalid_answers_are_counted_and_change_nothing(reason: str, alter: Alter) -> None:
    """The run ends as if the device had been silent."""
    words, made = config(rounds={"count": 2}, evaluation={"every": 2}), fleet(3)
    ended = play(words, made, {"device-00": alter})
    assert reason in REASONS
    assert [row["refused"] for row in ended.rows] == [{reason: 1}] * 2
    assert all("device-00" in row["details"][0] for row in ended.rows)
    assert [row["silent"] for row in ended.rows] == [0, 0]
    never = play(words, made, delay=lambda name, nth: float("inf") if name == "device-00" and nth else 0.0)
    assert [row["silent"] for row in never.rows] == [1, 1]
    assert same(ended.state, never.state)


def test_not_a_number_in_an_update_is_refused() -> None:
    made = fleet(3)
    poisoned = Batch({"x": np.full_like(made.shards["device-00"].inputs["x"], np.nan)}, made.shards["device-00"].labels)
    words = config(rounds={"count": 1})
    with np.errstate(all="ignore"):
        ended = simulate(words, Fleet(made.learner, made.start, {**made.shards, "device-00": poisoned}))
    assert ended.rows[0]["refused"] == {"refused": 1}, "the device's own codec finds out"
    assert ended.rows[0]["answered"] == 2


def test_an_old_answer_is_not_taken_for_a_new_one() -> None:
    ended = play(config(rounds={"count": 3}), fleet(3), {"device-02": replayer()})
    assert [row["refused"] for row in ended.rows] == [{}, {"replayed": 1}, {"replayed": 1}]


def test_two_answers_count_once() -> None:
    words, made = config(rounds={"count": 1}), fleet(2)
    federation = Federation.begin(words, made.start)
    store = StateStore()
    devices = {at: Device(name, made.learner, made.shards[name], store, BUNDLE) for at, name in enumerate(made.shards)}
    for node, device in devices.items():
        federation.welcome(node, device.answer(federation.hello()), devices)
    attempt = federation.open(devices)
    message = federation.work(1)
    for node, device in [*devices.items(), *devices.items()]:
        attempt.take(node, device.answer(message))
    attempt.take(99, devices[0].answer(message))
    row = attempt.close()
    assert row["answered"] == 2 and row["refused"] == {"duplicate": 2, "unasked": 1} and row["silent"] == 0


def test_a_name_is_not_reused_while_its_node_is_connected() -> None:
    words, made = config(), fleet(2)
    federation = Federation.begin(words, made.start)
    device = Device("device-00", made.learner, made.shards["device-00"], StateStore(), BUNDLE)
    hello = device.answer(federation.hello())
    federation.welcome(1, hello, {1, 2})
    federation.welcome(2, hello, {1, 2})
    assert federation.members["device-00"].node == 1 and federation.turned_away == {"impostor": 1}
    federation.welcome(2, hello, {2})
    assert federation.members["device-00"].node == 2, "it came back as another node"


@pytest.mark.parametrize("name", ["\ud800", "a\x1b[2J", "two\nlines", "", "n" * 201, 7])
def test_a_name_is_printable(name: Any) -> None:
    """Seeds are drawn from names, and terminals show them."""
    federation = Federation.begin(config(), fleet(2).start)
    hello = {"version": VERSION, "kind": "hello", "run": federation.run, "bundle": BUNDLE, "examples": 5}
    federation.welcome(1, pack({**hello, "device": name}, {}), {1})
    assert not federation.members and federation.turned_away == {"malformed": 1}


def test_texts_of_a_device_are_made_printable() -> None:
    ended = play(config(rounds={"count": 1}), fleet(3), {"device-00": meta(kind="refusal", why="\x1b[2J\ud800")})
    assert ended.rows[0]["details"] == ["device-00: refused: ?[2J?"]


@pytest.mark.parametrize("sums", [[10**400, 1, 2], [1e308, 1, 2], [1.0, 3, 2], [float("1"), 1], "all"])
def test_sums_of_an_evaluation_make_sense(sums: Any) -> None:
    def alter(message: bytes, answer: bytes) -> bytes:
        words, body = unpack(answer)
        return pack({**words, "before": sums}, body) if words["kind"] == "evaluation" else answer

    ended = play(config(rounds={"count": 1}, evaluation={"every": 1}), fleet(3), {"device-00": alter})
    assert ended.rows[0]["evaluation"]["training"]["refused"] == {"malformed": 1}


def test_another_bundle_is_turned_away() -> None:
    made = fleet(3)
    words, store = config(rounds={"count": 1}), StateStore()
    devices = {name: Device(name, made.learner, data, store, BUNDLE) for name, data in made.shards.items()}
    devices["device-01"].bundle = "another"
    ended: list[Federation] = []
    run_here(lambda exchange: ended.append(run(words, made.start, exchange)), devices)
    assert ended[0].turned_away == {"version": 1} and set(ended[0].members) == {"device-00", "device-02"}


def test_devices_with_one_label_or_one_example() -> None:
    made = fleet(4)
    shards = dict(made.shards)
    few = {"device-00": np.flatnonzero(shards["device-00"].labels == 0), "device-01": np.array([3]),
           "device-02": np.array([3, 4])}  # fmt: skip
    for name, rows in few.items():
        shards[name] = Batch({"x": shards[name].inputs["x"][rows]}, shards[name].labels[rows])
    small = Fleet(made.learner, made.start, shards)
    ended = simulate(config(data={"test": 0.0}, evaluation={"every": 1}), small)
    assert ended.rows[-1]["answered"] == 4
    assert ended.rows[-1]["evaluation"]["training"]["summary"] is None, "nobody keeps anything to test on"
    ended = simulate(config(evaluation={"every": 1}), small)
    found = ended.rows[-1]["evaluation"]["training"]
    assert ended.rows[-1]["answered"] == 4 and not found["refused"]
    assert (found["summary"]["devices"], found["summary"]["silent"]) == (3, 1)
    ended = simulate(config(evaluation={"every": 1, "held_out": 0.5, "support": 50}), small)
    assert not ended.rows[-1]["evaluation"]["held_out"]["refused"]


@pytest.mark.parametrize("labels", ["[n, 1]", "[n, 2]"])
def test_regression(tmp_path: Path, labels: str) -> None:
    """Labels that are measurements: there is no accuracy, and the loss falls, by adapting too."""
    pytest.importorskip("onnx_ir")
    from cloud.zoo import mlp
    from converter import convert
    from converter.training import Training

    outputs = int(labels[4])
    convert(mlp(4, outputs), output=tmp_path / "model.mslite", trainable=Training(trainable=["*"], loss="mse"))
    rng = np.random.default_rng(0)
    rule = rng.normal(size=(4, outputs))
    x = rng.normal(size=(240, 4)).astype(np.float32)
    device = np.array([f"d{at % 8}" for at in range(240)])
    y = x @ rule + (device == "d3")[:, None]
    np.savez(tmp_path / "devices.npz", x=x, labels=y.astype(np.float32), device=device)
    words = config(
        model={"bundle": str(tmp_path / "model.mslite")},
        data={"shards": str(tmp_path / "devices.npz")},
        algorithm={"name": "fedavg", "rate": 0.1},
        rounds={"count": 12},
        evaluation={"every": 12, "held_out": 0.3},
    )
    ended = simulate(words, fleet_of(words))
    assert ended.rows[-1]["loss"] < 0.2 * ended.rows[0]["loss"]
    for kind in ("training", "held_out"):
        summary = ended.rows[-1]["evaluation"][kind]["summary"]
        assert summary["accuracy_after"]["mean"] == 0.0 < summary["loss_before"]["mean"]
        assert summary["loss_after"]["mean"] < summary["loss_before"]["mean"]


# -- quorum, deadline, stragglers -------------------------------------------------------------------------------------


def test_stragglers_are_left_behind_at_the_deadline() -> None:
    words = config(rounds={"count": 2, "deadline": 30.0, "quorum": 0.5})
    ended = play(words, fleet(4), delay=lambda name, nth: 100.0 if name == "device-03" and nth else 5.0)
    assert [(row["answered"], row["silent"]) for row in ended.rows] == [(3, 1), (3, 1)]
    assert all(30.0 <= row["seconds"] < 45.0 for row in ended.rows)
    assert ended.members["device-03"].asked == 2 and ended.members["device-03"].answered == 0


def test_a_round_without_quorum_is_tried_again_and_changes_nothing() -> None:
    def delay(name: str, nth: int) -> float:
        return float("inf") if nth == 1 else 0.0  # all answers to the first round are lost

    ended = play(config(rounds={"count": 2, "deadline": 10.0}), fleet(3), delay=delay)
    assert [(row["round"], row["counted"]) for row in ended.rows] == [(1, False), (1, True), (2, True)]
    assert same(ended.state, simulate(config(rounds={"count": 2}), fleet(3)).state)


def test_a_run_that_cannot_go_on_says_so() -> None:
    with pytest.raises(FederatedError, match=r"round 1: 0 of 3 devices answered, expected 2, 3 times in a row"):
        play(config(rounds={"deadline": 5.0}), fleet(3), delay=lambda name, nth: float("inf") if nth else 0.0)
    with pytest.raises(FederatedError, match=r"rounds\.minimum: expected at least 5 devices"):
        play(config(rounds={"minimum": 5, "deadline": 5.0}), fleet(3))


def test_over_selection_asks_more_than_are_wanted() -> None:
    ended = simulate(config(rounds={"count": 3, "fraction": 0.5, "over_selection": 0.5}), fleet(8))
    assert [row["asked"] for row in ended.rows] == [6, 6, 6]


# -- what an update goes through --------------------------------------------------------------------------------------


def test_bytes_are_counted_as_they_travel() -> None:
    plain, small = (
        simulate(config(codec={"up": up, "down": down}), fleet(4, inputs=200))
        for up, down in (([], []), (["feedback", "topk:0.05", "int8"], ["float16"]))
    )
    assert plain.rows[0]["bytes_up"] > 4 * 4 * 603
    assert small.rows[0]["bytes_up"] < 0.35 * plain.rows[0]["bytes_up"]
    assert small.rows[0]["bytes_down"] < 0.75 * plain.rows[0]["bytes_down"]


def test_error_feedback_is_kept_on_the_device() -> None:
    made = fleet(3)
    plain = config(rounds={"count": 8}, codec={"up": ["topk:0.2"]})
    with_memory = config(rounds={"count": 8}, codec={"up": ["feedback", "topk:0.2"]})
    assert simulate(with_memory, made).rows[-1]["loss"] < simulate(plain, made).rows[-1]["loss"]


def test_a_robust_rule_tolerates_attackers() -> None:
    made = fleet(8)
    liars = {f"device-{at:02d}": scaled(-10) for at in (2, 5)}
    words = {"rounds": {"count": 10}}
    clean = accuracy(play(config(**words), made), made)
    fooled = accuracy(play(config(limits={"outlier": 0, "influence": 0}, **words), made, liars), made)
    for robust_words in ({"rule": "median"}, {"rule": "multi_krum", "share": 0.25}):
        robust = play(config(robust=robust_words, **words), made, liars)
        assert accuracy(robust, made) > clean - 0.2 > fooled
        if "share" in robust_words:
            assert robust.rows[0]["left_out"] == sorted(liars)


@pytest.mark.parametrize("rule", ["geometric_median", "norm_bound", "median"])
def test_a_robust_rule_tolerates_an_attacker_that_claims_many_examples(rule: str) -> None:
    made, words = fleet(8), config(robust={"rule": rule}, rounds={"count": 6})
    flip = scaled(-10.0)

    def lie(message: bytes, answer: bytes) -> bytes:
        return meta(examples=10**6)(message, flip(message, answer))

    assert accuracy(play(words, made, {"device-03": lie}), made) > accuracy(play(words, made), made) - 0.05


def test_too_few_devices_for_a_robust_rule_do_not_crash_the_run() -> None:
    with pytest.raises(FederatedError, match="3 times in a row"):
        simulate(config(robust={"rule": "bulyan", "share": 0.4}), fleet(3))


def test_noise_is_added_and_accounted_for() -> None:
    words = config(privacy={"clip": 0.5, "noise": "central", "epsilon": 8.0, "delta": 1e-3})
    ended = simulate(words, fleet(6))
    spent = [row["epsilon"] for row in ended.rows]
    assert spent == sorted(spent) and 7.0 < spent[-1] <= 8.0
    assert all(row["loss"] is None and row["norm"] is None for row in ended.rows), "noise would not cover them"
    again = Federation.begin(words, fleet(6).start)
    assert again.epsilon() == 0.0


def test_poisson_sampling_asks_each_device_at_random() -> None:
    privacy = {"clip": 0.5, "noise": "central", "multiplier": 0.5, "sampling": "poisson"}
    ended = simulate(config(privacy=privacy, rounds={"count": 6, "fraction": 0.4, "minimum": 1}), fleet(20, examples=8))
    counted = [row["asked"] for row in ended.rows if row["counted"]]
    assert len(set(counted)) > 1 and ended.rows[-1]["epsilon"] is not None


def test_a_round_that_draws_nobody_is_a_round() -> None:
    """Its step is noise alone, so that nobody can tell, and it costs as much as any other."""
    privacy = {"clip": 0.5, "noise": "central", "multiplier": 0.5, "sampling": "poisson"}
    made = fleet(4)
    few, many = (
        simulate(config(privacy=privacy, rounds={"count": 5, "fraction": fraction, "minimum": 1}), made)
        for fraction in (1e-6, 0.9)
    )
    assert [(row["round"], row["counted"], row["asked"]) for row in few.rows] == [(at, True, 0) for at in range(1, 6)]
    assert all(row["loss"] is None and not row["refused"] for row in few.rows)
    assert np.abs(few.model()["w"]).max() > 0, "noise of the usual size over the expected number of devices"
    assert few.account.spent == ((0.5, 1e-6, 5),) and many.account.spent == ((0.5, 0.9, 5),)


def test_adaptive_bounds_survive_a_round_that_draws_nobody() -> None:
    privacy = {"clip": 0.5, "adaptive": 0.5, "count_noise": 2.0, "noise": "central", "multiplier": 0.5,
               "sampling": "poisson"}  # fmt: skip
    ended = simulate(config(privacy=privacy, rounds={"count": 3, "fraction": 1e-6, "minimum": 1}), fleet(2))
    assert ended.done and 0 < ended.bound < np.inf


def test_poisson_sampling_is_secret(tmp_path: Path) -> None:
    """No device can infer from its messages which devices are asked; a resumed run makes the same random choices."""
    privacy = {"clip": 0.5, "noise": "central", "multiplier": 0.5, "sampling": "poisson"}
    words = config(privacy=privacy, rounds={"count": 9, "fraction": 0.5, "minimum": 1})
    one, other = (Federation.begin(words, fleet(2).start) for _ in range(2))
    hello = {"version": VERSION, "kind": "hello", "bundle": BUNDLE, "examples": 5}
    nodes = range(40)
    for federation in (one, other):
        for node in nodes:
            federation.welcome(node, pack({**hello, "run": federation.run, "device": f"d{node}"}, {}), nodes)
    assert one.secret.encode() not in one.work(1)
    assert one.open(nodes).asked != other.open(nodes).asked
    checkpoint.save(tmp_path / "run", one)
    assert checkpoint.load(tmp_path / "run", words, one.start).open(nodes).asked == one.open(nodes).asked


def test_local_noise_leaves_the_device_with_the_update() -> None:
    made = fleet(3)
    words = config(privacy={"clip": 0.1, "noise": "local", "multiplier": 1.0})
    store = StateStore()
    federation = Federation.begin(words, made.start)
    device = Device("device-00", made.learner, made.shards["device-00"], store, BUNDLE, SeededSource(0))
    other = Device("device-00", made.learner, made.shards["device-00"], store, BUNDLE, SeededSource(1))
    message = federation.work(1)
    assert device.answer(message) != other.answer(message)
    assert "loss" not in unpack(device.answer(message))[0]


def test_local_noise_is_charged_even_if_the_round_fails() -> None:
    """Devices send their updates whether or not enough of them do."""
    federation = Federation.begin(config(privacy={"clip": 0.1, "noise": "local", "multiplier": 1.0}), fleet(2).start)
    hello = {"version": VERSION, "kind": "hello", "run": federation.run, "bundle": BUNDLE, "examples": 5}
    for node in (1, 2):
        federation.welcome(node, pack({**hello, "device": f"device-{node}"}, {}), {1, 2})
    spent = [federation.epsilon()]
    for _ in range(2):
        assert not federation.open({1, 2}).close()["counted"]
        spent.append(federation.epsilon())
    assert spent[0] == 0.0 and 0 < (spent[1] or 0) < (spent[2] or 0)


def test_too_little_noise_on_the_count_is_refused_before_the_first_round() -> None:
    privacy = {"clip": 1.0, "adaptive": 0.5, "count_noise": 0.1, "noise": "central", "multiplier": 1.0}
    with pytest.raises(FederatedError, match="count_noise"):
        Federation.begin(config(privacy=privacy), fleet(2).start)


def test_an_adaptive_bound_moves() -> None:
    ended = simulate(config(privacy={"clip": 100.0, "adaptive": 0.5}, rounds={"count": 5}), fleet(4))
    assert ended.bound == pytest.approx(100.0 * np.exp(-0.2 * 0.5 * 5))


# -- secure sums ------------------------------------------------------------------------------------------------------

SECURE = {"secure": True, "clip": 2.0}


def test_a_secure_sum_learns_the_same() -> None:
    made = fleet(5)
    plain = simulate(config(privacy={"clip": 2.0}), made)
    secure = simulate(config(privacy=SECURE), made)
    for name in plain.model():
        np.testing.assert_allclose(secure.model()[name], plain.model()[name], atol=1e-5)
    assert [row["answered"] for row in secure.rows] == [5] * 4


def test_the_server_sees_masked_integers_only() -> None:
    seen: list[np.ndarray] = []

    def look(message: bytes, answer: bytes) -> bytes:
        words, body = unpack(answer)
        if words["kind"] == "update":
            assert "loss" not in words
            seen.append(np.frombuffer(body["data"].tobytes()[-4 * 1204 :], "<u4"))
        return answer

    made = fleet(4, inputs=400)
    play(config(privacy=SECURE, rounds={"count": 1}), made, dict.fromkeys(made.shards, look))
    assert len(seen) == 4
    for vector in seen:
        # Uniform on 32 bits: the mean's deviation is 0.289 / sqrt(1204) = 0.0083 of the range.
        assert abs(np.mean(vector / 2**32) - 0.5) < 0.05
        assert abs(np.std(vector / 2**32) - 12**-0.5) < 0.03


def test_devices_that_drop_out_of_a_secure_sum() -> None:
    """Of ten, one is silent before each of the three later exchanges: 30 %."""
    lost = {"device-01": 2, "device-04": 3, "device-07": 4}
    made = fleet(10)
    words = config(privacy=SECURE, rounds={"count": 1, "deadline": 10.0})
    ended = play(words, made, delay=lambda name, nth: float("inf") if lost.get(name) == nth else 0.0)
    row = ended.rows[0]
    assert row["counted"] and row["answered"] == 8 and row["asked"] == 10, "two had not sent their update"
    others = {name: data for name, data in made.shards.items() if name not in ("device-01", "device-04")}
    plain = simulate(config(privacy={"clip": 2.0}, rounds={"count": 1}), Fleet(made.learner, made.start, others))
    for name in plain.model():
        np.testing.assert_allclose(ended.model()[name], plain.model()[name], atol=1e-5)


def test_a_secure_sum_with_too_few_is_tried_again() -> None:
    def delay(name: str, nth: int) -> float:
        return float("inf") if nth == 2 and name != "device-00" else 0.0

    ended = play(config(privacy=SECURE, rounds={"count": 1, "deadline": 10.0}), fleet(4), delay=delay)
    assert [row["counted"] for row in ended.rows] == [False, True]
    assert "needed" in ended.rows[0]["details"][-1]


def test_noise_on_a_secure_sum_covers_its_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a grid of 16 bits a clipped update can be rounded to one that is longer than the clip."""
    seen: list[float] = []
    added = Transforms.add_noise

    def add_noise(self: Transforms, mean: Any, devices: int, source: Any, multiplier: float, *more: Any) -> Any:
        seen.append(multiplier)
        return added(self, mean, devices, source, multiplier, *more)

    monkeypatch.setattr(Transforms, "add_noise", add_noise)
    made = fleet(4, inputs=400)
    simulate(config(privacy={**SECURE, "bits": 16, "noise": "central", "multiplier": 1.0}, rounds={"count": 1}), made)
    assert seen == [pytest.approx(1 + 1203**0.5 / ((2**15 - 1) // 4))]


def test_a_secure_sum_of_one_or_none_is_no_crash() -> None:
    privacy = {**SECURE, "noise": "central", "multiplier": 1.0, "sampling": "poisson"}
    with pytest.raises(FederatedError, match="3 times in a row"):
        simulate(config(privacy=privacy, rounds={"minimum": 1}), fleet(1))
    ended = simulate(config(privacy=privacy, rounds={"fraction": 1e-9, "minimum": 1}), fleet(1))
    assert [(row["counted"], row["asked"]) for row in ended.rows] == [(True, 0)] * 4


def test_tampering_with_a_secure_sum_is_found() -> None:
    def tamper(message: bytes, answer: bytes) -> bytes:
        words, body = unpack(answer)
        if words["kind"] != "update":
            return answer
        return pack(words, {"data": body["data"][:-4]})

    ended = play(config(privacy=SECURE, rounds={"count": 1}), fleet(5), {"device-03": tamper})
    assert ended.rows[0]["answered"] == 4 and ended.rows[0]["refused"] == {"malformed": 1}


# -- personal versions -----------------------------------------------------------------------------------------------


def test_personal_versions_are_uploaded_with_consent(tmp_path: Path) -> None:
    made = fleet(4)
    words = config(sync={"store": str(tmp_path / "personal")}, evaluation={"every": 4})
    store = StateStore()
    devices = {name: Device(name, made.learner, data, store, BUNDLE) for name, data in made.shards.items()}
    devices["device-00"].consent, devices["device-01"].consent = "serve", "backup"
    devices["device-02"].consent = "everything"
    ended: list[Federation] = []
    run_here(lambda exchange: ended.append(run(words, made.start, exchange)), devices)
    told = ended[0].rows[-1]["sync"]
    assert min(told.pop("bytes_down"), told.pop("bytes_up")) > 1000
    assert told == {"kept": 2, "declined": 1, "refused": {"malformed": 1}}
    kept = PersonalStore(tmp_path / "personal")
    assert set(kept.devices()) == {"device-00", "device-01"}
    served = kept.get("device-00", serving=True)
    assert served is not None and kept.get("device-01", serving=True) is None
    own = served.params(made.start.params)
    data = made.shards["device-00"]
    assert made.learner.evaluate(own, data).loss < made.learner.evaluate(made.start.params, data).loss


def test_simulated_devices_have_a_consent(tmp_path: Path) -> None:
    words = config(sync={"store": str(tmp_path / "personal")}, evaluation={"every": 4})
    some = replace(fleet(3), consent={"device-00": "serve", "device-02": "backup"})
    told = simulate(words, some).rows[-1]["sync"]
    assert (told["kept"], told["declined"], told["refused"]) == (2, 1, {})
    assert set(PersonalStore(tmp_path / "personal").devices()) == {"device-00", "device-02"}
    with pytest.raises(FederatedError, match="device-00: expected consent to be one of none, backup, serve"):
        simulate(words, replace(fleet(3), consent="yes"))


def test_parameters_that_were_not_asked_for_are_refused(tmp_path: Path) -> None:
    """From a device that sends more than it was asked for."""
    made = fleet(2)
    words = config(sync={"store": str(tmp_path / "personal"), "only": ["b"]}, evaluation={"every": 4})
    federation = Federation.begin(words, made.start)
    store = PersonalStore(tmp_path / "personal")
    body = {name: leaf + 1 for name, leaf in made.start.params.items()}

    def more(message: bytes, answer: bytes) -> bytes:
        meta, _ = unpack(answer)
        return pack(meta, body) if meta["kind"] == "personal" else answer

    devices: dict[str, Any] = {
        name: Device(name, made.learner, data, StateStore(), BUNDLE, consent="serve")
        for name, data in made.shards.items()
    }
    devices["device-00"] = Altered(devices["device-00"], more)
    told: list[dict[str, Any]] = []

    def main(exchange: Any) -> None:
        nodes = meet(federation, exchange)
        told.append(sync(federation, exchange, nodes, store, BUNDLE, made.start.params))

    run_here(main, devices)
    assert (told[0]["kept"], told[0]["refused"]) == (1, {"payload": 1})
    assert set(store.devices()) == {"device-01"}


def test_versions_of_a_head_alone(tmp_path: Path) -> None:
    """With `only`, exactly those parameters are uploaded, relative to the model that is published with them."""
    pytest.importorskip("onnx_ir")
    from cloud.zoo import mlp
    from converter import convert
    from lite_runtime import bundle

    convert(mlp(4, 3), output=tmp_path / "model.mslite", trainable="*")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    device = np.array([f"d{at % 4}" for at in range(120)])
    np.savez(tmp_path / "devices.npz", x=x, labels=rng.integers(0, 3, 120), device=device)
    head = next(name for name in bundle.read(tmp_path / "model.mslite").state if name.endswith("bias"))
    words = config(
        model={"bundle": str(tmp_path / "model.mslite")},
        data={"shards": str(tmp_path / "devices.npz")},
        sync={"store": str(tmp_path / "personal"), "only": [head], "consent": "serve"},
        report={"bundle": str(tmp_path / "global.mslite")},
        rounds={"count": 3},
        evaluation={"every": 2},
    )
    ended = simulate(words, fleet_of(words))
    assert ended.rows[-1]["sync"]["kept"] == 4
    assert ended.rows[-1]["sync"]["bytes_up"] < 4 * 400, "a bias of three numbers each"
    kept, served = PersonalStore(tmp_path / "personal"), bundle.read(tmp_path / "global.mslite")
    assert served.digest != bundle.read(tmp_path / "model.mslite").digest
    for name in kept.devices():
        version = kept.get(name, serving=True)
        assert version is not None and set(version.delta) == {head} and version.base == served.digest
    wrong = structs.replace(words, sync=structs.replace(words.sync, only=("nothing*",)))
    with pytest.raises(FederatedError, match=r"sync\.only: expected \['nothing\*'\]"):
        simulate(wrong, fleet_of(wrong))
    alone = structs.replace(words, report=structs.replace(words.report, bundle=""))
    with pytest.raises(FederatedError, match=r"report\.bundle"):
        simulate(alone, fleet_of(alone))


# -- reports ----------------------------------------------------------------------------------------------------------


def test_the_report_is_written(tmp_path: Path) -> None:
    words = config(report={"json": str(tmp_path / "run.json")}, evaluation={"every": 4})
    ended = simulate(words, fleet(3))
    written = json.loads((tmp_path / "run.json").read_text())
    assert written == json.loads(json.dumps(report(ended)))
    assert written["rounds"] == 4 and len(written["rows"]) == 4
