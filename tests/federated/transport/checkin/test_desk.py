"""Messages wait for their devices, replies for the federation; a device that is silent is gone."""

from __future__ import annotations

from federated.server.replies import Failure
from federated.transport.checkin.desk import Desk, node_of


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def desk(absence: float = 30.0) -> tuple[Desk, Clock]:
    clock = Clock()
    return Desk(absence, clock), clock


def test_a_device_that_lost_its_message_gets_it_again() -> None:
    made, _ = desk()
    made.seen(1)
    (ticket,) = made.give({1: b"train"})
    assert made.work(1) == made.work(1) == (ticket, b"train")
    assert made.work(2) is None
    assert list(made.take([ticket])) == []
    assert made.reply(1, ticket, b"update")
    assert made.work(1) is None
    assert list(made.take([ticket])) == [(ticket, b"update")]


def test_a_reply_counts_once_and_only_from_its_device() -> None:
    made, _ = desk()
    (ticket,) = made.give({1: b"train"})
    assert not made.wants(2, ticket)
    assert not made.reply(2, ticket, b"of another")
    assert made.reply(1, ticket, b"first")
    assert not made.reply(1, ticket, b"second")
    assert list(made.take([ticket])) == [(ticket, b"first")]
    assert not made.wants(1, ticket)


def test_a_newer_message_replaces_the_older() -> None:
    made, _ = desk()
    made.seen(1)
    (old,) = made.give({1: b"round 1"})
    (new,) = made.give({1: b"round 2"})
    assert made.work(1) == (new, b"round 2")
    assert not made.reply(1, old, b"late")
    (found,) = made.take([old])
    assert isinstance(found[1], Failure)


def test_a_silent_device_is_gone_and_its_message_has_failed() -> None:
    made, clock = desk()
    made.seen(1)
    made.seen(2)
    tickets = made.give({1: b"train", 2: b"train"})
    clock.now = 29.0
    made.seen(2)
    assert made.present() == [1, 2]
    assert list(made.take(list(tickets))) == []
    clock.now = 31.0
    assert made.present() == [2]
    ((ticket, reply),) = made.take(list(tickets))
    assert tickets[ticket] == 1
    assert reply == Failure("the device is gone")


def test_node_ids_follow_from_names() -> None:
    assert node_of("device-00") == node_of("device-00") != node_of("device-01")
    assert 0 <= node_of("device-00") < 1 << 63
