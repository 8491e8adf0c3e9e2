"""Rates by round: the same simulated, deployed and resumed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.algorithms import algorithm_from
from federated.client.device import Device
from federated.errors import FederatedError
from federated.messages.packed import unpack
from federated.run import simulate
from federated.schedule import Schedule
from tests.federated.fleets import config, fleet


def factors(schedule: Schedule, count: int, side: str = "local") -> list[float]:
    return [schedule.scale(getattr(schedule, side), number, count) for number in range(1, count + 1)]


def test_factors_by_round() -> None:
    assert factors(Schedule(), 3) == [1.0, 1.0, 1.0]
    assert factors(Schedule(local="step", every=2, factor=0.1), 5) == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert factors(Schedule(warmup=4), 6) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert factors(Schedule(local="step", warmup=2, every=1), 4) == [0.5, 1, 0.5, 0.25]
    assert 0 < factors(Schedule(local="step", every=1), 90)[-1] == pytest.approx(0.5**89, rel=1e-9)
    half = [(1 + math.cos(math.pi * at / 5)) / 2 for at in range(5)]
    assert factors(Schedule(local="cosine"), 5) == pytest.approx(half)
    raised = [*(0.5 + x / 2 for x in half), 0.5, 0.5]
    assert factors(Schedule(local="cosine", rounds=5, least=0.5), 7) == pytest.approx(raised)
    assert factors(Schedule(local="cosine", warmup=2), 6) == pytest.approx([0.5, *half])
    assert factors(Schedule(local="cosine"), 1) == [1.0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"local": "linear"}, "local: expected 'constant' or 'step' or 'cosine'"),
        ({"every": 3}, "schedule.every: has no effect without a schedule 'step'; omit it"),
        ({"local": "step", "least": 0.1}, "schedule.least: has no effect without a schedule 'cosine'"),
        ({"local": "cosine", "rounds": 3, "warmup": 3}, "schedule.warmup: expected less than schedule.rounds = 3"),
        ({"local": "step", "factor": 1.5}, "factor"),
    ],
)
def test_schedules_without_effect_are_refused(words: dict[str, Any], says: str) -> None:
    with pytest.raises(FederatedError, match=says):
        config(schedule=words)


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("fomaml", {"local": "cosine"}, "schedule.local: fomaml has no local rate that a schedule could change"),
        ("local_only", {"server": "cosine"}, "schedule.server: local_only has no server rate"),
    ],
)
def test_algorithms_without_such_a_rate_are_refused(name: str, words: dict[str, Any], says: str) -> None:
    with pytest.raises(FederatedError, match=says):
        config(schedule=words, algorithm={"name": name})


def test_a_warm_up_changes_the_rates_that_there_are() -> None:
    fomaml = config(schedule={"warmup": 4}, algorithm={"name": "fomaml", "server_rate": 0.4})
    first = fomaml.schedule.at(fomaml.algorithm, 1, 9)
    assert (first.server_rate, first.rate) == (0.1, 0.05)  # type: ignore[attr-defined]


def test_messages_say_each_rounds_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """And evaluations are of the algorithm as it is configured."""
    seen: list[tuple[str, int, float]] = []
    answer = Device.answer

    def listening(self: Device, message: bytes) -> bytes:
        meta, _ = unpack(message)
        if meta["kind"] in ("train", "evaluate") and self.name == "device-00":
            seen.append((meta["kind"], meta["round"], meta["algorithm"].get("rate", 0.05)))
        return answer(self, message)

    monkeypatch.setattr(Device, "answer", listening)
    words = {"local": "step", "every": 1, "factor": 0.5}
    simulate(config(schedule=words, algorithm={"name": "fedavg"}, evaluation={"every": 4}), fleet(2))
    assert seen == [("train", 1, 0.05), ("train", 2, 0.025), ("train", 3, 0.0125), ("train", 4, 0.00625),
                    ("evaluate", 4, 0.05)]  # fmt: skip


def test_a_servers_schedule_scales_its_steps() -> None:
    made = fleet(3)
    plain = simulate(config(rounds={"count": 1}, algorithm={"name": "fedavg", "server_rate": 0.5}), made)
    warmed = simulate(config(rounds={"count": 1}, schedule={"server": "cosine", "rounds": 9, "warmup": 2},
                             algorithm={"name": "fedavg", "rate": 0.1}), made)  # fmt: skip
    fast = simulate(config(rounds={"count": 1}, algorithm={"name": "fedavg", "rate": 0.05, "server_rate": 0.5}), made)
    assert plain.state["params"]["w"].any()
    np.testing.assert_array_equal(warmed.state["params"]["w"], fast.state["params"]["w"])


@pytest.mark.parametrize("algorithm", [
    {"name": "fedavg", "momentum": 0.9, "clip_norm": 0.5, "weight_decay": 0.01}, {"name": "scaffold", "momentum": 0.5},
    {"name": "fedmomentum", "weight_decay": 0.1}, {"name": "fedper", "own": ["b"], "momentum": 0.9},
])  # fmt: skip
def test_a_resumed_run_is_bit_identical(tmp_path: Path, algorithm: dict[str, Any]) -> None:
    words: dict[str, Any] = {"algorithm": algorithm, "schedule": {"local": "cosine", "rounds": 6, "warmup": 2}}
    whole = simulate(config(**words, rounds={"count": 5}), fleet(3))
    files = {"state": {"checkpoint": str(tmp_path / "run"), "devices": str(tmp_path / "devices")}}
    simulate(config(**words, **files, rounds={"count": 2}), fleet(3))
    resumed = simulate(config(**words, **files, rounds={"count": 5}), fleet(3), resume=True)
    for name, leaf in whole.model().items():
        assert leaf.tobytes() == resumed.model()[name].tobytes(), name


def test_a_cosine_to_the_last_round_does_not_change_in_between(tmp_path: Path) -> None:
    words: dict[str, Any] = {"schedule": {"local": "cosine"}, "state": {"checkpoint": str(tmp_path / "run")}}
    simulate(config(**words, rounds={"count": 2}), fleet(2))
    with pytest.raises(FederatedError, match="its config is not this run's"):
        simulate(config(**words, rounds={"count": 3}), fleet(2), resume=True)


def test_messages_of_constant_rates_are_as_before() -> None:
    plain = config()
    assert plain.schedule.constant and plain.schedule.at(plain.algorithm, 3, 4) is plain.algorithm
    assert algorithm_from({"name": "fedavg"}).momentum == 0.0
