"""What a device offers, and when; the configuration of its learning."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.agent.config import read
from edge.agent.conversation import LaterError, RefusedError
from edge.agent.errors import AgentError
from edge.agent.learning.populations import Population, Settings, running
from edge.agent.learning.tasks import Learning, Now
from edge.agent.machine import Facts, Machine
from federated.errors import FederatedError
from lite_runtime.updates.joining import Answer, Member, Offer, read_answer, read_offer, written
from tests.edge.agent.test_config import HEAD, wrote

LEARNS = '[applications.a]\nlearning = { examples = "own.npz", demands = { secure_only = true } }\n'
NIGHT = Facts(charging=True, metered=False, idle=True)


class Hub:
    """A hub that answers offers as it is told, and whose task is over at once."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.offers, self.paths = list(answers), list[Offer](), list[str]()

    def join(self, offer: Offer) -> Answer:
        self.offers.append(offer)
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Answer)
        return found

    def task(self, method: str, path: str, body: bytes | None, wait: float = 0.0) -> tuple[int, dict[str, str], bytes]:
        self.paths.append(path.partition("?")[0])
        if path.endswith("/check-in"):
            return 200, {}, b'{"protocol": 1, "device": "d", "heartbeat": 10, "most": 9}'
        return 410, {}, b'{"error": "over"}'

    def another(self) -> Hub:
        return self

    def close(self) -> None: ...


class Never:
    """A device to which no message comes."""

    def answer(self, message: bytes) -> bytes:
        raise AssertionError("no message came")


READY = Now(True, True, False)


def learning(hub: Hub, now: Now = READY, **there: Population) -> Learning:
    found = there or {"a": Population(Member("b", 3, "d"), Never)}
    return Learning(hub, lambda: now, lambda: found, {"site": "lab"})  # type: ignore[arg-type]


def test_an_offer_says_what_holds() -> None:
    hub = Hub(Answer(7.0))
    assert learning(hub, Now(True, False, True)).once() == 7.0
    (offer,) = hub.offers
    assert (offer.idle, offer.charging, offer.metered) == (True, False, True)
    assert offer.populations == {"a": Member("b", 3, "d")} and offer.attributes == {"site": "lab"}
    assert read_offer(written(offer)) == offer


def test_a_task_is_worked_on_below_its_address() -> None:
    hub = Hub(Answer(300.0, "t", "a"))
    made = learning(hub)
    assert made.once() <= 5.0 and made.tasks == 1
    assert hub.paths == ["/v1/tasks/t/check-in", "/v1/tasks/t/work"]


@pytest.mark.parametrize("answer", [Answer(9.0, "t", "other"), LaterError("busy", 11.0), RefusedError(403, "blocked")])
def test_what_a_hub_does_raises_nothing(answer: Any) -> None:
    hub = Hub(answer)
    assert learning(hub).once() >= 0
    assert not hub.paths


def test_without_anything_to_learn_from_nothing_is_offered() -> None:
    hub = Hub()
    made = Learning(hub, lambda: Now(), dict, every=3.0)  # type: ignore[arg-type]
    assert made.once() == 3.0


def test_a_stop_ends_the_work() -> None:
    stop, hub = threading.Event(), Hub(Answer(9.0, "t", "a"))
    stop.set()
    made = learning(hub)
    made.once(stop)
    assert not made.tasks and not hub.paths


@pytest.mark.parametrize("raw", [b"{}", b'{"protocol": 1, "again": -1}', b'{"protocol": 1, "again": 1, "task": 5}'])
def test_answers_that_are_none(raw: bytes) -> None:
    from lite_runtime.updates.fields import ProtocolError

    with pytest.raises(ProtocolError):
        read_answer(raw)


@pytest.mark.parametrize(
    ("change", "learns"),
    [
        ({}, True),
        ({"idle": False}, False),
        ({"charging": False}, False),
        ({"metered": True}, False),
        ({"idle": None, "charging": None, "metered": None}, True),
    ],
)
def test_the_owner_says_when(change: dict[str, Any], learns: bool, tmp_path: Path) -> None:
    found = read(wrote(tmp_path, HEAD + LEARNS)).learning(NIGHT._replace(**change))
    assert bool(found) is learns
    if learns:
        assert found["a"].examples == str(tmp_path / "own.npz") and found["a"].demands.secure_only


def test_without_the_package_for_messages_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a zipapp on a device with Python, NumPy and cryptography alone; a file without learning is read there."""
    for name in [name for name in sys.modules if name.startswith(("federated", "msgspec"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(AgentError, match=r"learning: expected the package msgspec.*pip install msgspec"):
        read(wrote(tmp_path, HEAD + LEARNS))
    assert read(wrote(tmp_path, HEAD + "[applications.a]\n")).learns == {}


def test_a_wrong_key_is_named(tmp_path: Path) -> None:
    for words, match in (
        ('exampels = "own.npz"', "did you mean 'examples'"),
        ('examples = "own.npz", demands = { secure = true }', "learning.demands.secure: no such key"),
        ('examples = "own.npz", consent = "yes"', "learning.consent: expected one of none, backup, serve"),
        ("idle = true", "learning.examples: expected this key"),
    ):
        with pytest.raises(AgentError, match=match):
            read(wrote(tmp_path, f"{HEAD}[applications.a]\nlearning = {{ {words} }}\n"))


def test_this_machine_is_idle_or_not() -> None:
    assert Machine().facts("/").idle in (True, False)


def test_damaged_examples_are_said_and_left_out(tmp_path: Path) -> None:
    from lite_runtime.updates.release import Release
    from tests.edge.agent.shelf import APP, Shelf, model

    shelf = Shelf(tmp_path / "shelf")
    release: Release = shelf.add("1", {"model.mslite": model(2.0)})
    del release
    from edge.agent.agent import Agent
    from edge.agent.application import Settings as Application
    from edge.agent.checking.trying import Limits
    from edge.agent.conditions import Conditions
    from edge.agent.update import Rules

    quick = Application(rules=Rules(0, 1, 1), every=0.0, limits=Limits(reference=False), conditions=Conditions(free=0))
    with Agent(tmp_path / "device", {APP: quick}, shelf) as agent:  # type: ignore[arg-type]
        agent.start()
        agent.once()
        for _ in range(20):
            agent.advance()
        assert agent.current(APP) is not None
    said: list[str] = []
    path = tmp_path / "own.npz"
    assert running(tmp_path / "device", "d", {APP: Settings(str(path))}, said.append) == {} and not said
    np.savez(path, x=np.zeros((0, 4), np.float32), labels=np.zeros(0, np.int64))
    assert running(tmp_path / "device", "d", {APP: Settings(str(path))}, said.append) == {}
    path.write_bytes(b"PK not an archive")
    assert running(tmp_path / "device", "d", {APP: Settings(str(path))}, said.append) == {}
    assert len(said) == 2 and "own.npz" in said[0]


def test_a_device_that_the_hub_refuses_stops_the_task() -> None:
    from edge.agent.learning.tasks import _Place

    class Refusing(Hub):
        def task(self, *_: Any) -> Any:
            return 403, {}, b"{}"

    with pytest.raises(FederatedError, match="refuses"):
        _Place(Refusing(), "t", None).ask("POST", "/v1/check-in")  # type: ignore[arg-type]
