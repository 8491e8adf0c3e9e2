"""The grid in this process is a grid of Flower's: Flower's own strategies run over it with our devices."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from federated.errors import FederatedError
from federated.server.replies import Failure
from federated.transport.app_client import client_app
from federated.transport.exchange import GridExchange
from federated.transport.grid import LocalGrid
from federated.transport.messages import content, read


class Echo:
    def answer(self, message: bytes) -> bytes:
        if message == b"crash":
            raise RuntimeError("out of battery")
        return message[::-1]


def echoes() -> ClientApp:
    return client_app(lambda context: Echo())  # type: ignore[arg-type, return-value]


def test_bytes_travel_as_they_are() -> None:
    exchange = GridExchange(LocalGrid(echoes(), ["a", "b"]))
    nodes = sorted(exchange.nodes())
    sent = exchange.send("train", {nodes[0]: b"one", nodes[1]: b""})
    answers = {nodes[0]: b"eno", nodes[1]: b""}
    assert dict(exchange.poll(sent)) == {ticket: answers[node] for ticket, node in sent.items()}
    assert not list(exchange.poll(sent))


def test_a_device_that_raises_is_a_failure() -> None:
    exchange = GridExchange(LocalGrid(echoes(), ["a"]))
    ((_, reply),) = exchange.poll(exchange.send("train", {2: b"crash"}))
    assert isinstance(reply, Failure) and "out of battery" in reply


def test_answers_come_when_the_clock_says_so() -> None:
    exchange = GridExchange(LocalGrid(echoes(), ["a", "b"], lambda name, nth: 5.0 if name == "a" else float("inf")))
    sent = exchange.send("query", {2: b"x", 3: b"y"})
    assert not list(exchange.poll(sent))
    exchange.wait(4.9)
    assert not list(exchange.poll(sent))
    exchange.wait(0.2)
    assert [reply for _, reply in exchange.poll(sent)] == [b"x"]
    exchange.wait(1e9)
    assert not list(exchange.poll(sent))


def test_a_device_works_when_its_answer_is_taken() -> None:
    worked: list[str] = []
    exchange = GridExchange(LocalGrid(noting(worked), ["a", "b", "c"]))
    sent = exchange.send("train", dict.fromkeys(sorted(exchange.nodes()), b"x"))
    assert not worked
    replies = exchange.poll(sent)
    next(replies)
    assert worked == ["a"]
    replies.close()  # what was not taken stays there
    assert len(list(exchange.poll(sent))) == 2 and worked == ["a", "b", "c"]
    assert not list(exchange.poll(sent)) and worked == ["a", "b", "c"]


def test_a_straggler_works_although_its_answer_is_never_taken() -> None:
    worked: list[str] = []
    exchange = GridExchange(LocalGrid(noting(worked), ["a", "b"], lambda name, nth: 5.0 if name == "a" else 0.0))
    sent = exchange.send("train", dict.fromkeys(sorted(exchange.nodes()), b"x"))
    assert worked == ["a", "b"] and len(list(exchange.poll(sent))) == 1


def noting(worked: list[str]) -> ClientApp:
    """An app whose devices note that they worked."""

    class Noting(Echo):
        def __init__(self, name: object) -> None:
            self.name = str(name)

        def answer(self, message: bytes) -> bytes:
            worked.append(self.name)
            return super().answer(message)

    return client_app(lambda context: Noting(context.node_config["device"]))  # type: ignore[arg-type, return-value]


def test_other_messages_are_refused() -> None:
    LocalGrid(echoes(), [])
    for record in (RecordDict(), RecordDict({"msedge": MetricRecord({"a": 1})}),
                   RecordDict({"msedge": ArrayRecord([np.zeros(3)])})):  # fmt: skip
        with pytest.raises(FederatedError, match="expected a message with a record"):
            read(Message(record, 2, "train"))
    assert read(Message(content(b"data"), 2, "train")) == b"data"


def test_strategies_of_flowers_own_run_over_it() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = [array + 1 for array in message.content["arrays"].to_numpy_ndarrays()]
        records = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(records), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "accuracy": 0.5})}), reply_to=message)

    grid = LocalGrid(app, ["a", "b", "c"])
    done = FedAvg().start(grid=grid, initial_arrays=ArrayRecord([np.zeros(4, np.float32)]), num_rounds=3)
    np.testing.assert_array_equal(done.arrays.to_numpy_ndarrays()[0], np.full(4, 3, np.float32))
