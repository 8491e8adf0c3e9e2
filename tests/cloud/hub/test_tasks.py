"""Devices behind a hub take part in a federated run, by its HTTP alone; the hub is restarted in the middle."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.hub.client import Client, GoneError, LostError, token_in
from cloud.hub.errors import HubError
from cloud.hub.tasks.exchange import HubExchange
from cloud.hub.tasks.task import Task
from edge.agent.conversation import Conversation, RefusedError
from edge.agent.identity import Identity
from edge.agent.learning.populations import Population, Settings, population_of
from edge.agent.learning.tasks import Learning, Now
from federated.client.device import VERSION, Device
from federated.client.state import StateStore
from federated.learner import Batch
from federated.run import Fleet, run
from federated.server.replies import Failure
from federated.transport.checkin.desk import node_of
from lite_runtime.updates.joining import Member, Offer
from tests.cloud.hub.serving import Running, running
from tests.federated.fleets import BUNDLE, config, fleet
from tests.waiting import until

READY = Now(idle=True, charging=True, metered=False)
TASK = Task(population="keys", plan=VERSION, bundle=BUNDLE, conditions=("idle",), heartbeat=0.2)
OFFER = Offer((VERSION,), idle=True, populations={"keys": Member(BUNDLE, 5, "data")})


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), interval=0.5) as made:
        yield made


@contextmanager
def learners(hub: Running, devices: Fleet, ready: Callable[[], Now] = lambda: READY) -> Iterator[list[Conversation]]:
    """Devices of a fleet that offer themselves until the end of the block."""
    stop, threads, hubs = threading.Event(), [], []
    for name, data in devices.shards.items():
        talk = hub.device(name)
        hubs.append(talk)
        assert talk.identity.enrolled is not None
        identity = talk.identity.enrolled.device

        def node(identity: str = identity, data: Any = data) -> Device:
            return Device(identity, devices.learner, data, StateStore(), BUNDLE)

        there = {"keys": Population(Member(BUNDLE, len(data.labels), "data"), node)}
        learning = Learning(talk, ready, lambda there=there: there)
        threads.append(threading.Thread(target=learning.run, args=(stop,)))
        threads[-1].start()
    try:
        yield hubs
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_run_through_the_hub_is_that_of_the_simulator(hub: Running) -> None:
    """The same devices, rounds and draws: only the way is another one."""
    devices = fleet(4)
    words = config(rounds={"count": 3, "minimum": 4, "deadline": 120.0})
    with learners(hub, devices):
        exchange = HubExchange(hub.client("run"), "one", TASK)
        federation = run(words, devices.start, exchange)
        exchange.close()
    assert federation.learned == 3
    assert len(federation.members) == 4
    assert all(member.answered == 3 for member in federation.members.values())
    assert {one["examples"] for one in exchange.seen.values()} == {40}
    before = devices.learner.evaluate(devices.start.params, _all(devices)).loss
    assert devices.learner.evaluate({**devices.start.params, **federation.model()}, _all(devices)).loss < before


def _all(devices: Fleet) -> Batch:
    parts = list(devices.shards.values())
    x = np.concatenate([one.inputs["x"] for one in parts])
    return Batch({"x": x}, np.concatenate([one.labels for one in parts]))


def test_a_hub_that_is_restarted_loses_no_round(tmp_path: Path) -> None:
    devices, database, rows, found = fleet(3), str(tmp_path / "hub.sqlite"), list[Any](), list[Any]()
    words = config(rounds={"count": 40, "minimum": 3, "deadline": 120.0})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    before = running(tmp_path / "hub", database, interval=0.5, address=address)
    first = before.__enter__()
    client = first.client("run")
    with learners(first, devices):
        stays = list(first.conversations)
        first.conversations.clear()  # the devices and the run outlive it
        thread = threading.Thread(
            target=lambda: found.append(run(words, devices.start, HubExchange(client, "one", TASK), watch=rows.append))
        )
        thread.start()
        until(lambda: len(rows) >= 3)
        before.__exit__(None, None, None)
        assert len(rows) < 40
        with running(tmp_path / "hub", database, interval=0.5, address=address):
            thread.join()
    for each in stays:
        each.close()
    assert found[0].learned == 40
    assert sum(row["counted"] for row in rows) == 40


def test_who_is_told_to_come_back(hub: Running) -> None:
    talk = hub.device("one")
    answer = talk.join(OFFER)
    assert (answer.task, answer.why) == ("", "there is no task")
    assert 0.1 < answer.again < 2
    client = hub.client("run")
    HubExchange(client, "one", TASK)
    assert talk.join(OFFER._replace(idle=False)).why == "the device is in use"
    assert talk.join(OFFER).task == "one"


def test_a_task_is_for_its_members_alone(hub: Running) -> None:
    one, two = hub.device("one"), hub.device("two")
    exchange = HubExchange(hub.client("run"), "t", TASK)
    assert one.join(OFFER).task == "t"
    assert one.identity.enrolled is not None
    node = node_of(one.identity.enrolled.device)
    assert exchange.nodes() == {node}
    (ticket,) = exchange.send("train", {node: b"secret"})
    assert two.task("GET", "/v1/tasks/t/work?wait=0", None)[0] == 410
    assert two.task("POST", f"/v1/tasks/t/work/{ticket}", b"mine")[0] == 410
    status, headers, message = one.task("GET", "/v1/tasks/t/work?wait=0", None)
    assert (status, headers["Msedge-Ticket"], message) == (200, ticket, b"secret")
    assert one.task("POST", f"/v1/tasks/t/work/{ticket}", b"reply")[0] == 204
    assert one.task("POST", f"/v1/tasks/t/work/{ticket}", b"again")[0] == 409
    assert list(exchange.poll([ticket])) == [(ticket, b"reply")]
    assert list(exchange.poll([ticket])) == []
    for path in ("/v1/tasks/t", "/v1/tasks/t/replies"):
        assert hub.ask("GET", path).status == 401
    assert hub.ask("POST", "/v1/tasks/t/messages?nodes=1", b"x", hub.viewer).status == 403
    exchange.close()
    assert one.task("GET", "/v1/tasks/t/work?wait=0", None)[0] == 410


def test_a_failure_and_a_device_that_is_gone(hub: Running) -> None:
    one, two = hub.device("one"), hub.device("two")
    exchange = HubExchange(hub.client("run"), "t", TASK)
    nodes = {}
    for talk in (one, two):
        assert talk.join(OFFER).task == "t"
        assert talk.identity.enrolled is not None
        nodes[talk] = node_of(talk.identity.enrolled.device)
    given = exchange.send("train", dict.fromkeys(nodes.values(), b"work"))
    mine = next(ticket for ticket, node in given.items() if node == nodes[one])
    body = json.dumps({"why": "no memory"}).encode()
    assert one.task("POST", f"/v1/tasks/t/work/{mine}/failure", body)[0] == 204
    replies: dict[str, Any] = {}

    def more() -> bool:
        replies.update(exchange.poll(list(given)))
        return len(replies) == 2

    until(more)
    assert replies[mine] == Failure("no memory")
    assert replies.keys() == given.keys()
    assert all(isinstance(one, Failure) for one in replies.values())


def test_a_task_whose_server_is_silent_ends(hub: Running) -> None:
    client = hub.client("run")
    HubExchange(client, "t", Task(population="keys", plan=VERSION, lease=0.5))
    watching = hub.client("ann", "viewer")

    def gone() -> bool:
        return not watching.json("GET", "/v1/tasks")["tasks"]

    until(gone, 0.1)
    with pytest.raises(GoneError):
        client.json("GET", "/v1/tasks/t")


def test_one_task_is_not_put_twice_with_other_words(hub: Running) -> None:
    client = hub.client("run")
    HubExchange(client, "t", TASK)
    HubExchange(client, "t", TASK)
    with pytest.raises(HubError, match="other settings"):
        HubExchange(client, "t", Task(population="other", plan=VERSION))
    for name in ("T", "..", "a" * 65):
        with pytest.raises(HubError):
            HubExchange(client, name, TASK)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"protocol": 1}', b'{"protocol": 1, "plans": [-1]}', b"{" * 9999])
def test_offers_that_are_none(raw: bytes, hub: Running) -> None:
    talk = hub.device("one")
    with pytest.raises(RefusedError):
        talk._in_session("POST", "/v1/tasks", raw)


def test_files_of_examples(tmp_path: Path) -> None:
    from tests.federated.fleets import written

    shards = written(tmp_path, 1)
    (data,) = shards.values()
    np.savez(tmp_path / "own.npz", x=data.inputs["x"], labels=data.labels)
    found = population_of("me", tmp_path / "model.mslite", tmp_path / "state", Settings(str(tmp_path / "own.npz")))
    assert found.member.examples == len(data.labels)
    assert len(found.member.data) == len(found.member.bundle) == 64
    assert found.node().answer


@pytest.mark.parametrize("url", ["hub", "ftp://hub", "http://hub.example.org", "http://127.0.0.1:x"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(HubError):
        Client(url, "token")


def test_a_hub_that_is_away(tmp_path: Path) -> None:
    with pytest.raises(LostError, match="msedge hub serve"):
        Client("http://127.0.0.1:1", "token").json("GET", "/v1/fleet")
    with pytest.raises(HubError, match="token add"):
        token_in(tmp_path / "none")


def test_identities_are_kept_apart(tmp_path: Path) -> None:
    assert Identity(tmp_path / "a").public != Identity(tmp_path / "b").public
