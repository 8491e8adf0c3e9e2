"""Several servers learn what one would, bit by bit: whichever aggregator has which devices, on however many levels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federated import tree
from federated.client.device import Device
from federated.client.state import StateStore
from federated.codec import Codec, Spec
from federated.config import Config
from federated.hierarchy.aggregator import Aggregator
from federated.messages.packed import pack, unpack
from federated.privacy.noise import SeededSource
from federated.run import Fleet, go_back, run, simulate
from federated.server.federation import Federation
from federated.transport.local import exchange_here, run_here
from tests.federated.fleets import BUNDLE, config, fleet
from tests.federated.test_runs import same

Alter = Callable[[bytes, bytes], bytes]
MADE = fleet(11)
NAMES = sorted(MADE.shards)
FREE = {"minimum": 1}


class Altered:
    """A node whose answers go through `alter(message, answer)`."""

    def __init__(self, node: Any, alter: Alter) -> None:
        self.node, self.alter = node, alter

    def answer(self, message: bytes) -> bytes:
        return self.alter(message, self.node.answer(message))


def grouped(
    words: Config, made: Fleet, groups: Sequence[Sequence[str]], alter: Mapping[str, Alter] | None = None
) -> Any:
    """The root's nodes: an aggregator for each group of devices."""
    store = StateStore()
    devices: dict[str, Any] = {
        name: Device(name, made.learner, made.shards[name], store, BUNDLE) for name in made.shards
    }
    for name, function in (alter or {}).items():
        devices[name] = Altered(devices[name], function)
    return {
        f"group-{at}": Aggregator(f"group-{at}", words, made.start, exchange_here({one: devices[one] for one in names}))
        for at, names in enumerate(groups)
    }


def play(words: Config, made: Fleet, nodes: Mapping[str, Any], **more: Any) -> Federation:
    ended: list[Federation] = []
    run_here(lambda exchange: ended.append(run(words, made.start, exchange, **more)), nodes)
    return ended[0]


def both(
    made: Fleet, groups: Sequence[Sequence[str]], alter: Mapping[str, Alter] | None = None, **sections: Any
) -> tuple[Federation, Federation]:
    """The run with one server, and with an aggregator for each group."""
    sections = {"rounds": {"count": 2, **FREE, **sections.pop("rounds", {})}, **sections}
    words = config(**sections, hierarchy={"aggregators": [len(groups)], "influence": 0.0})
    alone: dict[str, Any] = {
        name: Device(name, made.learner, data, StateStore(), BUNDLE) for name, data in made.shards.items()
    }
    for name, function in (alter or {}).items():
        alone[name] = Altered(alone[name], function)
    return play(config(**sections), made, alone), play(words, made, grouped(words, made, groups, alter))


@st.composite
def groupings(draw: st.DrawFn) -> list[list[str]]:
    count = draw(st.integers(1, 5))
    order = draw(st.permutations(NAMES))
    cuts = sorted(draw(st.sets(st.integers(1, len(NAMES) - 1), min_size=count - 1, max_size=count - 1)))
    return [list(order[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(NAMES)], strict=True)]


@settings(max_examples=8)
@given(groupings())
def test_whichever_aggregator_has_which_devices(groups: list[list[str]]) -> None:
    flat, several = both(MADE, groups)
    assert same(flat.state, several.state)
    for one, other in zip(flat.rows, several.rows, strict=True):
        assert (one["answered"], one["norm"]) == (other["answered"], other["norm"])
        assert other["loss"] == pytest.approx(one["loss"])


GROUPS = [NAMES[:2], NAMES[2:7], NAMES[7:]]


def scaled(factor: float) -> Alter:
    """A device that sends its update times a factor."""
    spec = Spec.of({"params": MADE.start.params})

    def alter(message: bytes, answer: bytes) -> bytes:
        words, body = unpack(answer)
        if words["kind"] != "update":
            return answer
        update = tree.scale(Codec().decode(body["data"].tobytes(), spec), np.float32(factor))
        data = Codec().encode(update, np.random.default_rng(0)).data
        return pack(words, {"data": np.frombuffer(data, np.uint8)})

    return alter


CASES: dict[str, dict[str, Any]] = {
    "fedadam": {"algorithm": {"name": "fedadam"}},
    "scaffold": {"algorithm": {"name": "scaffold"}},
    "qfedavg": {"algorithm": {"name": "qfedavg"}},
    "fedper": {"algorithm": {"name": "fedper", "own": ["b"]}},
    "apfl": {"algorithm": {"name": "apfl"}},
    "local_only": {"algorithm": {"name": "local_only"}},
    "meta_head": {"algorithm": {"name": "meta_head", "own": ["b"]}},
    "codecs": {"codec": {"up": ["feedback", "topk:0.3", "int8"], "down": ["float16"]}},
    "differences": {"codec": {"up": ["int8"], "down": ["difference", "topk:0.4", "int8"]}, "rounds": {"count": 4}},
    "schedule": {"schedule": {"local": "cosine", "warmup": 1}, "rounds": {"count": 3}},
    "norm_bound": {"robust": {"rule": "norm_bound", "bound": 0.3}},
    "adaptive": {"privacy": {"clip": 0.2, "adaptive": 0.5}, "rounds": {"count": 3}},
    "held out": {"evaluation": {"every": 1, "held_out": 0.2}},
    "gate": {"gate": {"against": "start", "margin": 1.0}, "evaluation": {"every": 2}},
}


@pytest.mark.parametrize("case", CASES)
def test_with_every_kind_of_work(case: str) -> None:
    flat, several = both(MADE, GROUPS, **CASES[case])
    assert same(flat.state, several.state) and flat.bound == several.bound
    assert [row["answered"] for row in flat.rows] == [row["answered"] for row in several.rows]


def test_limits_act_as_with_one_server() -> None:
    """Medians are those of all devices, not of a group: in the first one, both devices are far from the others."""
    wild = {NAMES[0]: scaled(200.0), NAMES[1]: scaled(7.0), NAMES[8]: scaled(-5.0)}
    flat, several = both(MADE, GROUPS, wild, rounds={"count": 3})
    assert same(flat.state, several.state)
    for one, other in zip(flat.rows, several.rows, strict=True):
        assert one["refused"] == other["refused"] == {"outlier": 1} and one["limited"] == other["limited"] != {}


def test_devices_that_fail_are_lost_alike() -> None:
    def crash(message: bytes, answer: bytes) -> bytes:
        if unpack(answer)[0]["kind"] == "update":
            raise RuntimeError("out of battery")
        return answer

    flat, several = both(MADE, GROUPS, {NAMES[3]: crash}, rounds={"compensate": True, "count": 3})
    assert same(flat.state, several.state)
    assert several.rows[0]["refused"] == {"failed": 1} == several.rows[0]["aggregators"]["group-1"]["refused"]
    assert "group-1/device-03: failed" in several.rows[0]["details"][0]


def test_noise_is_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Federation.begin

    def seeded(*parts: Any) -> Federation:
        made = begin(*parts)
        made.source, made.secret = SeededSource(1), "0" * 32
        return made

    monkeypatch.setattr(Federation, "begin", seeded)
    noise = {"clip": 0.5, "noise": "central", "multiplier": 0.7}
    poisson = {"privacy": {**noise, "sampling": "poisson"}, "rounds": {"fraction": 0.5, "count": 4}}
    for sections in ({"privacy": noise}, {"privacy": noise, "evaluation": {"every": 2}}, poisson):
        flat, several = both(MADE, GROUPS, **sections)
        assert same(flat.state, several.state) and flat.epsilon() == several.epsilon()
        assert [row["answered"] for row in flat.rows] == [row["answered"] for row in several.rows]


def flat_words(words: Mapping[str, Any]) -> dict[str, Any]:
    pairs = {f"{key}/{inner}": each for key, value in words.items() if isinstance(value, dict)
             for inner, each in value.items()}  # fmt: skip
    return {key: value for key, value in words.items() if not isinstance(value, dict)} | pairs


def test_evaluations_are_over_all_devices() -> None:
    flat, several = both(MADE, GROUPS, evaluation={"every": 1, "held_out": 0.2})
    for one, other in zip(flat.rows, several.rows, strict=True):
        for kind in ("training", "held_out"):
            alone, together = one["evaluation"][kind], other["evaluation"][kind]
            assert flat_words(together["summary"]) == pytest.approx(flat_words(alone["summary"]))
            assert together["asked"] == alone["asked"]
            assert {name.rpartition("/")[2] for name in together["by_device"]} == set(alone["by_device"])


def test_levels() -> None:
    made = fleet(13)
    flat = simulate(config(rounds={"count": 2, **FREE}), made)
    for levels in ([13], [3, 2], [2, 2, 2]):
        several = simulate(config(rounds={"count": 2, **FREE}, hierarchy={"aggregators": levels}), made)
        assert same(flat.state, several.state)
        assert several.rows[0]["asked"] == 13 and len(several.rows[0]["aggregators"]) == levels[0]


def test_a_return_to_an_earlier_round(tmp_path: Path) -> None:
    ended = []
    for levels in ([], [3]):
        kept = {"history": {"keep": 5}, "state": {"checkpoint": str(tmp_path / f"{len(levels)}")}}
        of = config(rounds={"count": 4, **FREE}, **kept, **({"hierarchy": {"aggregators": levels}} if levels else {}))
        simulate(of, MADE)
        go_back(of, MADE.start, 2)
        ended.append(simulate(of, MADE, resume=True))
    assert [row["round"] for row in ended[1].rows] == [1, 2, 5, 6]
    assert same(ended[0].state, ended[1].state)
