"""What an agent tells: only if its owner agrees, kept while offline, each batch once, private where asked."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.agent.conversation import LaterError
from edge.agent.errors import AgentError
from edge.agent.telemetry import Private, Telemetry
from federated.privacy import Accountant, SeededSource
from lite_runtime.updates.telemetry import Batch, read_batch, unpacked


class Hub:
    """Takes batches, or is away; an answer may be lost."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.away = self.mute = False

    def telemetry(self, batch: bytes) -> None:
        if self.away:
            raise LaterError("away")
        self.batches.append(read_batch(batch))
        if self.mute:
            raise LaterError("the answer was lost")


def work(telemetry: Telemetry, times: int = 10) -> None:
    for number in range(times):
        telemetry.count("keys", "1", "inferences")
        telemetry.value("keys", "1", "latency_ms", 2.0 + number)
        telemetry.seen("keys", "1", "answer", "yes" if number % 4 else "no")


def test_without_the_owners_word_nothing_is_kept_or_sent(tmp_path: Path) -> None:
    telemetry, hub = Telemetry(tmp_path / "t.json"), Hub()
    work(telemetry)
    telemetry.flush(5.0)
    assert telemetry.send(hub) == 0
    assert (hub.batches, list(tmp_path.iterdir())) == ([], [])


def test_what_is_counted_offline_is_sent_later(tmp_path: Path) -> None:
    path, hub = tmp_path / "t.json", Hub()
    hub.away = True
    telemetry = Telemetry(path, enabled=True)
    for now in (10.0, 20.0):
        work(telemetry)
        telemetry.flush(now)
    with pytest.raises(LaterError):
        telemetry.send(hub)
    hub.away = False
    again = Telemetry(path, enabled=True)  # the device was restarted
    assert again.send(hub) == 1
    (batch,) = hub.batches
    assert [(part.begun, part.ended, part.counters) for part in batch.parts] == [
        (10.0, 10.0, {"inferences": 10}), (10.0, 20.0, {"inferences": 10})
    ]  # fmt: skip
    assert batch.parts[0].classes == {"answer": {"yes": 7, "no": 3}}
    assert unpacked(batch.parts[0].sketches["latency_ms"]).quantile(0.5) == pytest.approx(6, rel=0.01)
    assert again.send(hub) == 0
    assert path.stat().st_mode & 0o077 == 0


def test_a_batch_whose_answer_was_lost_is_sent_again_as_it_was(tmp_path: Path) -> None:
    path, hub = tmp_path / "t.json", Hub()
    telemetry = Telemetry(path, enabled=True)
    work(telemetry)
    telemetry.flush(1.0)
    hub.mute = True
    with pytest.raises(LaterError):
        telemetry.send(hub)
    hub.mute = False
    again = Telemetry(path, enabled=True)
    work(again)
    again.flush(2.0)
    assert again.send(hub) == 2
    assert hub.batches[0] == hub.batches[1]
    assert [batch.serial for batch in hub.batches] == [1, 1, 2]


def test_the_file_is_bounded_and_the_oldest_go_first(tmp_path: Path) -> None:
    path, hub = tmp_path / "t.json", Hub()
    telemetry = Telemetry(path, enabled=True, most=20_000)
    for now in range(1, 101):
        work(telemetry)
        telemetry.flush(float(now))
        assert path.stat().st_size <= 20_000
    assert telemetry.dropped > 10
    telemetry.send(hub)
    ended = [part.ended for batch in hub.batches for part in batch.parts]
    assert ended == [float(now) for now in range(telemetry.dropped + 1, 101)]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"serial":1,"spent":0,"dropped":0,"pending":null,"queue":[1]}']
)
def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(AgentError, match="damaged file"):
        Telemetry(tmp_path / "t.json", enabled=True)


def test_names_that_no_message_can_have_are_refused(tmp_path: Path) -> None:
    telemetry = Telemetry(tmp_path / "t.json", enabled=True)
    with pytest.raises(AgentError, match="expected a name"):
        telemetry.count("keys", "1", "A b")
    with pytest.raises(AgentError, match="expected a label"):
        telemetry.seen("keys", "1", "x", "../y")


# -- private -----------------------------------------------------------------------------------------------------------

PRIVATE = Private(8.0, 1e-5, 4, {"answer": ("yes", "no", "other")})


def test_a_private_batch_has_noisy_shares_alone_and_states_its_epsilon(tmp_path: Path) -> None:
    telemetry, hub = Telemetry(tmp_path / "t.json", enabled=True, private=PRIVATE), Hub()
    work(telemetry)
    telemetry.flush(1.0)
    telemetry.send(hub)
    (batch,) = hub.batches
    (part,) = batch.parts
    assert (batch.epsilon, batch.delta) == (8.0, 1e-5)
    assert (dict(part.counters), dict(part.sketches)) == ({}, {})
    assert set(part.classes["answer"]) == {"yes", "no", "other"}
    assert part.classes["answer"]["yes"] not in (0.7, 7)


def test_the_account_is_kept_over_restarts_and_ends(tmp_path: Path) -> None:
    path, hub = tmp_path / "t.json", Hub()
    for now in range(1, 8):
        telemetry = Telemetry(path, enabled=True, private=PRIVATE)
        work(telemetry)
        telemetry.flush(float(now))
        telemetry.send(hub)
    assert len(hub.batches) == 4
    assert Telemetry(path, enabled=True, private=PRIVATE).left == 0


def test_the_noise_is_what_the_epsilon_needs(tmp_path: Path) -> None:
    """The deviation of what is sent, against the Gaussian mechanism's account of all batches."""
    telemetry, found = Telemetry(tmp_path / "t.json", enabled=True, private=PRIVATE, source=SeededSource(1)), []
    work(telemetry)
    telemetry.flush(1.0)
    batch = read_batch(json.dumps({"protocol": 1, "serial": 1, "parts": telemetry._queue}).encode())
    for _ in range(4000):
        noisy = telemetry._noisy(batch, PRIVATE).parts[0].classes["answer"]
        found.append([noisy["yes"] - 0.7, noisy["no"] - 0.3, noisy["other"]])
    errors: Any = np.array(found)
    multiplier = errors.std() / 2  # two devices' vectors of norm 1 differ by 2 at most
    assert Accountant().charge(multiplier * 1.05, rounds=4).epsilon(1e-5) <= 8.0
    assert Accountant().charge(multiplier * 0.9, rounds=4).epsilon(1e-5) > 8.0
    assert abs(errors.mean()) < 5 * errors.std() / math.sqrt(errors.size)


def test_a_device_that_has_much_says_no_more_than_one_that_has_little(tmp_path: Path) -> None:
    """Shares have norm 1 at most, whatever the counts."""
    for times in (1, 10_000):
        telemetry = Telemetry(tmp_path / f"{times}.json", enabled=True, private=PRIVATE, source=SeededSource(1))
        for _ in range(times):
            telemetry.seen("keys", "1", "answer", "yes")
        telemetry.flush(1.0)
        hub = Hub()
        telemetry.send(hub)
        assert abs(hub.batches[0].parts[0].classes["answer"]["yes"]) < 10


def test_what_no_message_can_have_is_never_kept(tmp_path: Path) -> None:
    """A part that the hub refuses would be in the way of all that follow."""
    telemetry, hub = Telemetry(tmp_path / "t.json", enabled=True), Hub()
    with pytest.raises(AgentError, match="from 0 on"):
        telemetry.count("keys", "1", "errors", -1)
    telemetry.count("keys", "1", "large", 1 << 60)
    for number in range(1000):
        telemetry.seen("keys", "1", "answer", f"class-{number}")
    for number in range(127):
        telemetry.count("keys", "1", f"c{number}")
    with pytest.raises(AgentError, match="at most 128 names"):
        telemetry.count("keys", "1", "more")
    for number in range(32):
        telemetry.value("keys", "1", f"v{number}", 1.0)
    with pytest.raises(AgentError, match="at most 32 names"):
        telemetry.value("keys", "1", "more", 1.0)
    telemetry.flush(10.0)
    assert Telemetry(tmp_path / "t.json", enabled=True).send(hub) == 1
    (part,) = hub.batches[0].parts
    assert len(part.classes["answer"]) == 256 and part.classes["answer"]["other"] == 745
    assert len(part.counters) == 128 and part.counters["large"] == 1 << 53 and len(part.sketches) == 32
