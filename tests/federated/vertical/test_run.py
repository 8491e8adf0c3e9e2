"""Vertical runs: the model of both parties is that of one party with all data; restarts, processes, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.client.lite import LiteLearner
from federated.errors import FederatedError
from federated.learner import Batch, sgd
from federated.messages.packed import pack, unpack
from federated.privacy.noise import SeededSource
from federated.tree import Tree
from federated.vertical.active import Active
from federated.vertical.config import Party, parse
from federated.vertical.party import Schedule
from federated.vertical.passive import Passive
from federated.vertical.run import conduct, connect, simulate
from tests.federated.vertical.parts import bundles, parties, people
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    bundles(folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Bundles, and rows of 120 common people."""
    for file in made.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    people(tmp_path)
    return tmp_path


def centrally(folder: Path, common: dict[str, np.ndarray], words: Party) -> Tree:
    """The joint model, trained in one place on the same rows in the same order."""
    learner, learning = LiteLearner(folder / "joint.mslite"), words.learning
    schedule = Schedule(len(common["id"]), words.data.test, learning.batch, learning.epochs, learning.seed)
    params: Tree = learner.params
    for step in range(1, schedule.steps + 1):
        rows = schedule.batch_of(step)
        batch = Batch({"x_a": common["x_a"][rows], "x_b": common["x_b"][rows]}, common["labels"][rows])
        params = sgd(params, learner.gradient(params, batch), learning.rate)
    return params


def ran(one: Party, other: Party, **more: Any) -> tuple[dict[str, Any], Tree]:
    """The report, and the parameters of both parts."""
    passive = Passive(other)
    report = conduct(one, passive.answer, **more)
    assert passive.ended
    found = Active(one, passive.answer)
    found.part.params = LiteLearner(one.path(one.report.bundle)).params
    return report, {**found.part.params, **passive.part.params}


def equal(one: Tree, other: Tree) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_both_parts_are_the_central_model_bit_by_bit(folder: Path) -> None:
    common = people(folder)
    one, other = parties(folder, report={"bundle": "new.mslite", "json": "run.json"})
    rows: list[dict[str, Any]] = []
    report, params = ran(one, other, watch=rows.append)
    assert equal(params, centrally(folder, common, one))
    assert report["common"] == 120 and report["trained_on"] == 90 and report["steps"] == 18
    assert report == json.loads((folder / "run.json").read_text())
    assert [row["epoch"] for row in rows] == [1, 2, 3] and rows[-1]["loss"] < 0.8 * rows[0]["loss"]
    assert rows[-1]["test_accuracy"] > 0.75
    assert report["labels"]["epsilon"] is None and report["results"]["epsilon"] is None


def test_more_classes_and_epochs_that_do_not_divide(tmp_path: Path) -> None:
    bundles(tmp_path, 3)
    common = people(tmp_path, 61, 3)
    one, other = parties(tmp_path, learning={"epochs": 2, "batch": 7}, data={"test": 0.0}, report={"bundle": "new"})
    report, params = ran(one, other)
    assert equal(params, centrally(tmp_path, common, one)) and report["steps"] == 2 * 9
    assert report["rows"][-1]["test_accuracy"] is None


def test_momentum_is_each_party_s_own(folder: Path) -> None:
    one, other = parties(folder, report={"bundle": "new.mslite"}, learning={"momentum": 0.5})
    plain = ran(*parties(folder, report={"bundle": "plain.mslite"}))[1]
    heavy = ran(one, other)[1]
    assert not equal(plain, heavy)
    with_both, other = parties(folder, report={"bundle": "new.mslite"}, learning={"momentum": 0.5},
                               passive={"learning": {"momentum": 0.5}})  # fmt: skip
    report, _ = ran(with_both, other)
    assert report["rows"][-1]["loss"] < report["rows"][0]["loss"]


# -- restarts ---------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


KEEP: dict[str, dict[str, Any]] = {"state": {"checkpoint": "active.state", "every": 4}}
OTHER = {"passive": {"state": {"checkpoint": "passive.state"}, "report": {"bundle": "part.mslite"}}}


@pytest.mark.parametrize(
    ("at", "who"), [(3, "both"), (8, "active"), (9, "both"), (19, "both"), (24, "active"), (27, "both")]
)
def test_a_run_that_was_killed_goes_on(folder: Path, at: int, who: str) -> None:
    """Before or after any message; the passive party is killed too, or serves on."""
    settings = {"learning": {"momentum": 0.3}, "report": {"bundle": "new.mslite"}}
    whole = ran(*parties(folder, **settings, **OTHER))[1]
    one, other = parties(folder, **KEEP, **settings, **OTHER)
    passive, sent = Passive(other), []

    def send(message: bytes) -> bytes:
        sent.append(message)
        if len(sent) == at:
            raise Killed
        reply = passive.answer(message)
        if len(sent) == at + 1:
            raise Killed
        return reply

    with pytest.raises(Killed):
        conduct(one, send)
    passive = Passive(other) if who == "both" else passive
    sent[:] = [b""] * 1000
    if at == 3:
        with pytest.raises(FederatedError, match="there is none; begin a new run"):
            conduct(one, passive.answer, resume=True)
        return
    conduct(one, passive.answer, resume=True)
    found = {**LiteLearner(folder / "new.mslite").params, **LiteLearner(folder / "part.mslite").params}
    assert equal(found, whole)


def test_a_message_that_was_answered_is_answered_again(folder: Path) -> None:
    """The connection may break after the passive party has worked."""
    one, other = parties(folder, report={"bundle": "new.mslite"})
    whole = ran(one, other)[1]
    passive, calls = Passive(other), []

    def send(message: bytes) -> bytes:
        reply = passive.answer(message)
        calls.append(message)
        if len(calls) % 3 == 1:
            raise FederatedError("connection lost")
        return reply

    conduct(one, send)
    assert equal({**LiteLearner(folder / "new.mslite").params, **passive.part.params}, whole)
    assert len(calls) > len(set(calls))


def test_a_run_does_not_overwrite_another_s_checkpoint(folder: Path) -> None:
    one, other = parties(folder, **KEEP, **OTHER)
    simulate(one, other)
    with pytest.raises(FederatedError, match=r"expected .*active.state' not to exist when a run begins"):
        simulate(one, other)
    changed, _ = parties(folder, **KEEP, learning={"rate": 0.1})
    with pytest.raises(FederatedError, match="it belongs to a run with other settings"):
        simulate(changed, other, resume=True)
    people(folder, seed=1)
    with pytest.raises(FederatedError, match="expected the rows that the run began with"):
        simulate(one, other, resume=True)


# -- two processes ----------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
from federated.vertical.run import listen
from tests.federated.vertical.parts import parties
folder = Path(sys.argv[1])
listen(parties(folder, passive={"report": {"bundle": "part.mslite"}})[1], sys.argv[2],
       listening=lambda at: (folder / "address").write_text(at))
"""


@pytest.mark.parametrize("kind", ["socket", "tcp"])
def test_two_processes(folder: Path, kind: str) -> None:
    one, other = parties(folder, report={"bundle": "new.mslite"})
    whole = ran(one, other)[1]
    address = str(folder / "passive.sock") if kind == "socket" else "127.0.0.1:0"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    told = folder / "address"
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, folder, address], env=environment)
    try:
        until(lambda: (told.exists() and told.read_text()) or process.poll() is not None)
        report = connect(one, told.read_text())
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    assert report["steps"] == 18 and report["bytes_up"] > 1000
    assert equal({**LiteLearner(folder / "new.mslite").params, **LiteLearner(folder / "part.mslite").params}, whole)


# -- protection -------------------------------------------------------------------------------------------------------


def test_clipping_and_noise_are_charged_by_row(folder: Path) -> None:
    noise = {"clip": 1.0, "multiplier": 2.0}
    one, other = parties(folder, protect=noise, passive={"protect": noise}, report={"bundle": "new.mslite"})
    report, _ = ran(one, other)
    # Each row that is trained on leaves once an epoch, and so does each row that is tested.
    assert report["results"]["times"] == 3 and report["labels"]["times"] == 3
    from federated.privacy.accountant import Accountant

    assert report["labels"]["epsilon"] == pytest.approx(Accountant().charge(2.0, rounds=3).epsilon(1e-6))


def test_what_leaves_is_clipped_and_noisy(folder: Path) -> None:
    noise = {"clip": 0.01, "multiplier": 1.0}
    one, other = parties(folder, protect={"clip": 0.25}, passive={"protect": noise}, learning={"epochs": 1})
    passive = Passive(other, SeededSource(0))
    values, slopes = [], []

    def send(message: bytes) -> bytes:
        words, body = unpack(message)
        if "slopes" in body:
            slopes.append(body["slopes"])
        reply = passive.answer(message)
        if words["kind"] == "step":
            values.append(unpack(reply)[1]["values"])
        return reply

    conduct(one, send)
    seen = np.concatenate(values)
    assert 0.017 < seen.std() < 0.023, "noise of 2 * 0.01 on values of norms up to 0.01"
    assert len(slopes) == 6
    for each in slopes:
        norms = np.linalg.norm(each, axis=1) * len(each)
        assert norms.max() <= 0.25 * (1 + 1e-5) and norms.max() > 0.24


def test_a_budget_ends_a_run(folder: Path) -> None:
    limited = {"protect": {"clip": 1.0, "multiplier": 3.0, "most_epsilon": 2.6}}
    one, other = parties(folder, passive=limited)
    why = r"the passive party refuses: protect.most_epsilon: expected what is sent of a row to cost at most 2.6"
    with pytest.raises(FederatedError, match=why):
        simulate(one, other)


def test_what_was_lost_with_a_checkpoint_is_charged(folder: Path) -> None:
    noise = {"clip": 1.0, "multiplier": 2.0}
    other_words = {"passive": {**OTHER["passive"], "protect": noise}}
    one, other = parties(folder, **KEEP, protect=noise, **other_words)
    passive, sent = Passive(other), []

    def send(message: bytes) -> bytes:
        sent.append(message)
        if len(sent) == 12:
            raise Killed
        return passive.answer(message)

    with pytest.raises(Killed):
        conduct(one, send)
    report = conduct(one, Passive(other).answer, resume=True)
    assert report["results"]["times"] == report["labels"]["times"] == 4


def test_randomised_labels(folder: Path) -> None:
    private = {"labels_epsilon": 1.0}
    one, other = parties(folder, protect=private, **KEEP, **OTHER)
    passive = Passive(other)
    active = Active(one, passive.answer)
    active.begin()
    changed = (active.labels != active._true(np.arange(120))).mean()
    assert 0.1 < changed < 0.45, "1 / (1 + e) is 0.27"
    active.train()
    report = active.end()
    assert report["labels"]["epsilon"] == 1.0 and report["labels"]["randomised"] == 1.0
    again = Active(one, Passive(other).answer)
    again.resume()
    assert np.array_equal(again.labels, active.labels), "drawn once"


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "section", "key", "why"),
    [
        ("passive", "learning", {"epochs": 3}, r"learning.epochs: has no effect for the passive party"),
        ("passive", "protect", {"labels_epsilon": 1.0}, r"protect.labels_epsilon: has no effect"),
        ("active", "learning", {"most_epochs": 3}, r"learning.most_epochs: has no effect for the active party"),
        ("active", "protect", {"multiplier": 1.0}, r"protect.clip: expected a norm with protect.multiplier"),
        ("active", "protect", {"most_epsilon": 1.0}, r"protect.multiplier: expected noise with most_epsilon"),
        ("active", "learning", {"rate": 0.0}, r"learning.rate: expected a number above 0"),
        ("active", "sides", {}, r"\[sides\]: no such section"),
        ("neither", "learning", {}, r"vertical.role: expected 'active' or 'passive'"),
    ],
)
def test_files(role: str, section: str, key: dict[str, Any], why: str) -> None:
    words = {"vertical": {"role": role, "bundle": "b"}, "data": {"file": "f"}, section: key}
    with pytest.raises(FederatedError, match=why):
        parse(words)


def test_bundles_that_are_no_part(folder: Path) -> None:
    one, other = parties(folder, vertical={"bundle": "joint.mslite"})
    with pytest.raises(FederatedError, match="expected one input with slopes, got none; convert the model"):
        simulate(one, other)
    one, other = parties(folder, passive={"vertical": {"bundle": "joint.mslite"}, "data": {"file": "both.npz"}})
    rows = people(folder)
    np.savez(folder / "both.npz", **{key: rows[key] for key in ("id", "x_a", "x_b")})
    with pytest.raises(FederatedError, match="expected a model converted with --loss inner_product"):
        Passive(other)
    np.savez(folder / "active.npz", **{key: rows[key] for key in ("id", "x_a", "labels")}, result=np.zeros(120, "f4"))
    with pytest.raises(FederatedError, match="expected no array 'result', which the passive party computes"):
        simulate(*parties(folder))


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"x_b": np.zeros((3, 7), "f4")}, "expected an array 'id' of texts or whole numbers.*got none"),
        ({"id": np.zeros(3), "x_b": np.zeros((3, 7), "f4")}, "got float64"),
        ({"id": np.arange(3), "x_b": np.zeros((4, 7), "f4")}, "expected 3 rows of 'x_b'"),
        ({"id": np.arange(0), "x_b": np.zeros((0, 7), "f4")}, "expected rows, got none"),
    ],
)
def test_tables(folder: Path, arrays: dict[str, np.ndarray], why: str) -> None:
    np.savez(folder / "passive.npz", **arrays)
    with pytest.raises(FederatedError, match=why):
        Passive(parties(folder)[1])


def test_numbers_are_compared_by_their_digits(folder: Path) -> None:
    rows = people(folder)
    np.savez(folder / "active.npz", id=np.arange(120), x_a=rows["x_a"], labels=rows["labels"])
    np.savez(folder / "passive.npz", id=np.array([str(at) for at in range(100, 220)]), x_b=rows["x_b"])
    assert simulate(*parties(folder))["common"] == 20


def test_nobody_in_common(folder: Path) -> None:
    np.savez(folder / "passive.npz", id=np.arange(9), x_b=np.zeros((9, 7), "f4"))
    with pytest.raises(FederatedError, match="expected common identifiers, got none"):
        simulate(*parties(folder))


def test_the_sizes_that_a_party_accepts(folder: Path) -> None:
    with pytest.raises(FederatedError, match="expected 1 to 100 identifiers, got 240"):
        simulate(*parties(folder, match={"most": 100}))
    with pytest.raises(FederatedError, match="refuses: match: expected 1000 to 10000000 identifiers, got 240"):
        simulate(*parties(folder, passive={"match": {"least": 1000}}))
    with pytest.raises(FederatedError, match=r"refuses: learning.most_epochs: expected 1 to 2, got 3"):
        simulate(*parties(folder, passive={"learning": {"most_epochs": 2}}))


Change = Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]


def on(kind: str, change: Change) -> Callable[[Passive], Callable[[bytes], bytes]]:
    """Change the passive party's answers to a kind of message."""

    def make(passive: Passive) -> Callable[[bytes], bytes]:
        def send(message: bytes) -> bytes:
            reply = passive.answer(message)
            return pack(*change(*unpack(reply))) if unpack(message)[0]["kind"] == kind else reply

        return send

    return make


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("step", lambda w, b: (w, {"values": b["values"] * np.float32(np.nan)}), "values: expected finite numbers"),
        ("step", lambda w, b: (w, {"values": b["values"][:, :3]}), r"values: expected float32 \[16, 4\]"),
        ("step", lambda w, b: (w, {"values": b["values"].astype("f8")}), "got float64"),
        ("step", lambda w, b: (w | {"run": "x"}, b), "expected .*'run'"),
        ("step", lambda w, b: (w | {"number": 99}, b), "got {'number': 99}"),
        ("match", lambda w, b: (w, {**b, "points": b["points"][:, :8]}), "expected points uint8"),
        ("match", lambda w, b: (w, {**b, "again": b["again"][:5]}), "expected 240 points and others"),
        ("match", lambda w, b: (w, {"points": b["points"]}), "expected points named 'again'"),
        ("match", lambda w, b: (w, {**b, "points": b["points"][:30]}), r"refuses: matching: expected 240 points"),
    ],
)
def test_answers_that_no_passive_party_gives(folder: Path, kind: str, change: Change, why: str) -> None:
    one, other = parties(folder)
    with pytest.raises(FederatedError, match=why):
        conduct(one, on(kind, change)(Passive(other)))


def sent(change: Change, kind: str) -> Callable[[Passive], Callable[[bytes], bytes]]:
    """Change what the active party sends."""

    def make(passive: Passive) -> Callable[[bytes], bytes]:
        def send(message: bytes) -> bytes:
            words, body = unpack(message)
            return passive.answer(pack(*change(words, dict(body))) if words["kind"] == kind else message)

        return send

    return make


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("step", lambda w, b: (w, {**b, "rows": b["rows"][:3]}), "expected the rows that follow from the seed"),
        ("step", lambda w, b: (w, {**b, "rows": b["rows"] + 1000}), "rows: expected each number from 0 to 119"),
        ("step", lambda w, b: (w, {**b, "rows": b["rows"] * 0}), "at most once"),
        ("step", lambda w, b: (w, {**b, "slopes": np.zeros((16, 4), "f4")}), "slopes: expected none"),
        ("values", lambda w, b: (w, {**b, "rows": np.arange(120)}), "expected rows to test with, got others"),
        ("values", lambda w, b: (w, {"rows": b["rows"]}), r"slopes: expected float32 \[10, 4\], got none"),
        ("step", lambda w, b: (w | {"number": 7}, b), "expected message 4 of run .*, got 7"),
        ("match", lambda w, b: (w | {"kind": "train"}, b), "expected one of hello, match, matched"),
        ("match", lambda w, b: (w | {"version": 9}, b), "both parties need the same msedge"),
        ("step", lambda w, b: (w | {"step": "1"}, b), "step: expected a field 'step' of int"),
        ("hello", lambda w, b: (w | {"test": 2.0}, b), "hello: expected a batch, a share and a seed"),
    ],
)
def test_messages_that_no_active_party_sends(folder: Path, kind: str, change: Change, why: str) -> None:
    one, other = parties(folder)
    with pytest.raises(FederatedError, match=why):
        conduct(one, sent(change, kind)(Passive(other)))


def test_a_passive_party_that_was_restarted_says_so(folder: Path) -> None:
    one, other = parties(folder)
    first, calls = Passive(other), []

    def send(message: bytes) -> bytes:
        calls.append(message)
        return (first if len(calls) < 8 else Passive(other)).answer(message)

    with pytest.raises(FederatedError, match="this party was restarted, or serves another run; continue with --resume"):
        conduct(one, send)
