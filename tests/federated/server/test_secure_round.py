"""What a server cannot learn from secure rounds: each line of the table of threats in docs/federated-wire.md."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.client.demands import Demands
from federated.client.device import VERSION, Device
from federated.client.identity import identity, main, pins
from federated.client.nodes import device_from
from federated.client.state import StateStore
from federated.config import Config
from federated.errors import FederatedError
from federated.messages.packed import pack, unpack
from federated.privacy.secure import SecureServer, SecureSum
from federated.privacy.secure import messages as wire
from federated.run import run
from federated.server.federation import Federation
from federated.server.replies import Failure
from federated.server.secure_round import SecureRound
from tests.federated.fleets import BUNDLE, config, fleet

MODELS = ["malicious", "honest-but-curious"]
MADE = fleet(6)
NAMES = sorted(MADE.shards)


def words(model: str = "malicious", **sections: Any) -> Config:
    return config(privacy={"secure": True, "clip": 2.0, "model": model}, **sections)


def devices(store: StateStore | None = None) -> dict[int, Device]:
    """By node. One store holds the state of all of them."""
    store = store or StateStore()
    return {at: Device(name, MADE.learner, MADE.shards[name], store, BUNDLE) for at, name in enumerate(NAMES)}


def begin(those: Mapping[int, Device], of: Config) -> Federation:
    federation = Federation.begin(of, MADE.start)
    for node, device in those.items():
        federation.welcome(node, device.answer(federation.hello()), those)
    return federation


class Play:
    """A round in one process, stage by stage; `change(stage, messages)` is a server that sends others."""

    def __init__(self, federation: Federation, those: Mapping[int, Device], nodes: Collection[int] = ()) -> None:
        self.round = federation.open(nodes or those)
        self.secure = SecureRound(self.round)
        self.those = those

    def until(self, last: str, change: Callable[[str, dict[int, bytes]], None] = lambda *_: None) -> Play:
        for stage in self.secure.stages:
            if stage == last:
                break
            messages = self.secure.messages(stage)
            change(stage, messages)
            for node, message in messages.items():
                self.secure.take(node, self.those[node].answer(message), stage)
        return self

    def close(self) -> dict[str, Any]:
        """What the server does with the sum."""
        part, federation = self.secure.opened(), self.round.federation
        if part is not None:
            federation.learn(part)
        else:
            federation.fail()
        return self.round.row(part is not None, part.devices if part else 0, ())

    def ask(self, node: int, stage: str, body: bytes) -> dict[str, Any]:
        """A device's answer to such a request."""
        return unpack(self.those[node].answer(self.request(node, stage, body)))[0]

    def request(self, node: int, stage: str, body: bytes) -> bytes:
        """A request of this server's own making."""
        number, federation = self.secure.numbers[NAMES[node]], self.round.federation
        meta = {"version": VERSION, "kind": "secure", "run": federation.run, "round": self.round.number, "attempt": 0,
                "stage": stage, "number": number}  # fmt: skip
        kind = wire.Stage.SURVIVORS if stage == "agree" or not self.secure.server.terms.malicious else (
            wire.Stage.SIGNATURES)
        request = wire.pack(kind, self.secure.server.terms, number, body)
        return pack(meta, {"secure": np.frombuffer(request, np.uint8)})


class Wires:
    """An exchange in this process. `silent(kind, name)`: whether a device's answer does not arrive."""

    def __init__(self, those: Mapping[int, Device], silent: Callable[[str, str], bool]) -> None:
        self.those, self.silent = those, silent
        self.out: dict[str, bytes | Failure] = {}
        self.count = 0

    def nodes(self) -> Collection[int]:
        return list(self.those)

    def send(self, kind: str, messages: Mapping[int, bytes]) -> dict[str, int]:
        sent = {}
        for node, message in messages.items():
            self.count += 1
            lost = self.silent(kind, self.those[node].name)
            self.out[str(self.count)] = Failure("battery empty") if lost else self.those[node].answer(message)
            sent[str(self.count)] = node
        return sent

    def poll(self, tickets: Collection[str]) -> list[tuple[str, bytes | Failure]]:
        return [(name, self.out.pop(name)) for name in list(tickets) if name in self.out]

    def now(self) -> float:
        return 0.0

    def wait(self, seconds: float) -> None:
        pass


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, SecureSum]]:
    """The sums that a server sees, with their rounds: what a curious server may remember."""
    seen: list[tuple[int, SecureSum]] = []
    opened = SecureServer.sum

    def spy(self: SecureServer, answers: Mapping[int, bytes]) -> SecureSum:
        found = opened(self, answers)
        seen.append((self.terms.round, found))
        return found

    monkeypatch.setattr(SecureServer, "sum", spy)
    return seen


@pytest.mark.parametrize("model", MODELS)
def test_no_sum_below_the_quorum_is_opened_and_a_retry_sums_other_work(
    model: str, sums: list[tuple[int, SecureSum]]
) -> None:
    failed: list[str] = []

    def silent(kind: str, name: str) -> bool:
        if kind == "train" and name == NAMES[2] and not failed:
            failed.append(name)
            return True
        return False

    rounds = {"count": 1, "quorum": 1.0}
    ended = run(words(model, rounds=rounds), MADE.start, Wires(devices(), silent))
    assert [(row["round"], row["counted"]) for row in ended.rows] == [(1, False), (2, True)]
    assert "5 devices gave MASKED, 6 are needed" in ended.rows[0]["details"][-1]
    assert [(number, len(found.devices)) for number, found in sums] == [(2, 6)], "one sum, of all devices"
    assert (ended.learned, ended.round, ended.done) == (1, 2, True)


@pytest.mark.parametrize("model", MODELS)
def test_a_device_takes_part_in_one_sum_of_a_round(model: str) -> None:
    """The same round over all devices and over all but one, as another attempt, or after the server forgot it."""
    those = devices()
    federation = begin(those, words(model))
    first = Play(federation, those).until("")
    assert first.close()["answered"] == 6
    for attempt in (0, 1):
        federation.round, federation.attempt = 0, attempt
        again = Play(federation, those, NAMES_BUT_ONE)
        with pytest.raises(FederatedError, match="0 devices gave KEYS"):
            again.until("")
        assert all("a second sum with other devices" in why for why in again.round.details)


NAMES_BUT_ONE = range(5)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("model", MODELS)
def test_a_killed_server_goes_on_with_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sums: list[tuple[int, SecureSum]], model: str, when: str
) -> None:
    """Killed after it saw a sum, before or after it learned from it, and before its checkpoint."""
    those = devices(StateStore(tmp_path / "devices"))
    of = words(model, rounds={"count": 2}, state={"checkpoint": str(tmp_path / "run")})
    killed: list[str] = []
    learn = Federation.learn

    def dies(self: Federation, *more: Any) -> None:
        if when == "after":
            learn(self, *more)
        if not killed:
            killed.append("now")
            raise SystemExit
        if when == "before":
            learn(self, *more)

    monkeypatch.setattr(Federation, "learn", dies)
    with pytest.raises(SystemExit):
        run(of, MADE.start, Wires(those, lambda *_: False))
    assert [number for number, _ in sums] == [1]
    for device in those.values():  # they were restarted too
        device.store = StateStore(tmp_path / "devices")
    ended = run(of, MADE.start, Wires(those, lambda kind, name: kind == "train" and name == NAMES[2]), resume=True)
    assert [number for number, _ in sums] == [1, 2, 3], "round 1 is not summed again over others"
    assert ended.learned == 2 and ended.done


def reveal(device: Device, message: bytes, barrier: Any, answers: Any) -> None:
    barrier.wait()
    answers.put(unpack(device.answer(message))[0]["kind"])


@pytest.mark.parametrize("model", MODELS)
def test_of_two_requests_at_once_one_is_answered(tmp_path: Path, model: str) -> None:
    """Two instances of one device, each with its own connection to the state file, asked at once to reveal the sum of
    six and the sum of five."""
    those = devices()
    for name, device in zip(NAMES, those.values(), strict=True):
        device.store = StateStore(tmp_path / name)
    last = "agree" if model == "malicious" else "reveal"
    a_round = Play(begin(those, words(model)), those).until(last)
    a_round.secure.messages(last)
    for node in range(4):
        barrier, answers = threading.Barrier(2), queue.SimpleQueue[str]()
        threads = []
        for gone in ((), (6,)):
            rows = wire.pack_rows({one: b"" for one in range(1, 7) if one not in gone})
            store, name = StateStore(tmp_path / NAMES[node]), NAMES[node]
            twin = Device(name, MADE.learner, MADE.shards[name], store, BUNDLE)
            message = a_round.request(node, last, rows)
            threads.append(threading.Thread(target=reveal, args=(twin, message, barrier, answers)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers.get(timeout=60) for _ in threads) == ["refusal", "secure"]


def test_devices_that_were_told_different_lists_reveal_nothing() -> None:
    """Half of them are told that one of the devices dropped out."""
    those = devices()
    a_round = Play(begin(those, words()), those).until("agree")
    a_round.secure.messages("agree")
    signed: dict[int, bytes] = {}
    for node in range(5):
        told = range(1, 7) if node < 3 else range(1, 6)
        listed = a_round.request(node, "agree", wire.pack_rows(dict.fromkeys(told, b"")))
        meta, body = unpack(those[node].answer(listed))
        assert meta["kind"] == "secure"
        signed[node + 1] = body["data"].tobytes()[-64:]
    for node in range(5):
        answer = a_round.ask(node, "reveal", wire.pack_rows(signed))
        assert answer["kind"] == "refusal"
        assert "expected 5 signatures of the list" in answer["why"]


def test_signatures_of_too_few_or_repeated_devices_open_nothing() -> None:
    those = devices()
    a_round = Play(begin(those, words()), those).until("reveal")
    signed = {one: data[-64:] for one, data in a_round.secure.answers.items()}
    few = {one: signed[one] for one in (1, 2, 3, 4)}
    for rows in (few, {**few, 5: signed[1]}, {}):
        assert "expected 5 signatures" in a_round.ask(0, "reveal", wire.pack_rows(rows))["why"]
    assert a_round.ask(0, "reveal", wire.pack_rows(signed))["kind"] == "secure"


@pytest.mark.parametrize("model", MODELS)
def test_a_threshold_that_is_too_low_is_refused(model: str) -> None:
    those = devices()
    federation = begin(those, words(model))
    play = Play(federation, those)
    terms = play.secure.server.terms
    for low in range(1, terms.threshold):
        data = bytearray(terms.data)
        data[56:60] = low.to_bytes(4, "little")
        with pytest.raises(FederatedError, match=f"expected a threshold of {5 if model == 'malicious' else 4} to 6"):
            wire.Terms.of(bytes(data))


def test_other_keys_for_a_known_device_are_refused() -> None:
    """A server that distributes keys of its own, or lets a device of its own take part."""
    those = devices()
    federation = begin(those, words())
    assert Play(federation, those).until("").close()["answered"] == 6
    federation.round = 1
    those[5].store = StateStore()  # another device says that it is this one
    impostor = Play(federation, those)
    with pytest.raises(FederatedError, match="1 devices gave SHARES"):
        impostor.until("")
    assert "of a device known before" in impostor.round.details[0]


def test_only_pinned_devices_take_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, file = StateStore(tmp_path / "state"), tmp_path / "peers"
    lines = []
    for name in NAMES[:5]:
        assert main([str(tmp_path / "state"), name]) == 0
        lines.append(capsys.readouterr().out)
    assert lines[0].split() == [identity(store, NAMES[0]).public.hex(), NAMES[0]]
    file.write_text("# our fleet\n" + "".join(lines))
    those = devices(store)
    those[0].peers = pins(file)
    play = Play(begin(those, words()), those).until("")
    assert play.close()["answered"] == 5 and "pinned keys only" in play.round.details[0]
    fewer = {node: those[node] for node in range(5)}
    assert Play(begin(fewer, words(rounds={"seed": 1})), fewer).until("").close()["answered"] == 5
    for text, why in (("abc", "peers:1: expected a public key"), ("# none", "expected public keys, got none")):
        file.write_text(text)
        with pytest.raises(FederatedError, match=why):
            pins(file)
    paths = dict.fromkeys(("device", "bundle", "data", "state"), str(tmp_path / "none"))
    with pytest.raises(FederatedError):
        device_from({**paths, "peers": str(tmp_path / "nothing")})


def test_an_owner_can_demand_the_stronger_model() -> None:
    those = devices()
    those[3].demands = Demands(malicious_only=True)
    play = Play(begin(those, words("honest-but-curious")), those).until("")
    assert play.close()["answered"] == 5 and "demands malicious_only" in play.round.details[0]
    other = words(rounds={"seed": 1})  # other work: the same update is in one sum only
    assert Play(begin(those, other), those).until("").close()["answered"] == 6


def test_the_same_update_is_in_one_sum_only() -> None:
    """Another run of the same seed on the same model does the same work."""
    store = StateStore()
    those = devices(store)
    assert Play(begin(those, words()), those).until("").close()["answered"] == 6
    again = Play(begin(those, words()), those)
    with pytest.raises(FederatedError, match="0 devices gave MASKED"):
        again.until("")
    assert all("update that was in no other sum" in why for why in again.round.details)
    other = words(rounds={"seed": 1})
    assert Play(begin(those, other), those).until("").close()["answered"] == 6


def test_the_ledger_outlives_the_process_and_everything_that_is_forgotten(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "state")
    store.begin_sum("a", "run", 1, 1)
    store.advance_sum("a", "run", 1, 1, 3)
    store.forget("a")
    store.forget_others("a", ())
    store.close()
    store = StateStore(tmp_path / "state")
    with pytest.raises(FederatedError, match="got round 1 again"):
        store.begin_sum("a", "run", 1, 1)
    with pytest.raises(FederatedError, match="already answered"):
        store.advance_sum("a", "run", 1, 1, 3)
    store.advance_sum("a", "run", 1, 3, 5, b"digest")
    for device, number in (("b", 1), ("a", 2)):
        store.begin_sum(device, "run", number, 3)
    store.advance_sum("b", "run", 1, 3, 5, b"digest")
    with pytest.raises(FederatedError, match=r"another rounds\.seed"):
        store.advance_sum("a", "run", 2, 3, 5, b"digest")
