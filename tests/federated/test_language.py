"""Language models that learn from a fleet: texts as examples, perplexity, privacy, a killed server, the adapter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter import convert
from converter.training import Lora, Training
from edge.cli.fleet_live import figures
from edge.pages.fleet_page import fleet_page
from federated import texts
from federated.client import lite
from federated.client.lite import LiteLearner
from federated.config import Config, parse
from federated.data import join, pick, shards, size
from federated.errors import FederatedError
from federated.evaluation import Score, perplexity
from federated.learner import Batch
from federated.messages.packed import unpack
from federated.readiness import check
from federated.run import fleet_of, report, simulate, start_of
from federated.server.rounds import held_out
from lite_runtime import bundle, load
from lite_runtime.language import Adapter
from lite_runtime.language.engine import Engine, Part
from tests.converter.frontends.decoders import gguf_bytes
from tests.converter.frontends.decoders.test_conversion import MIXES, metadata, stored

ROOT = Path(__file__).parents[2]
LENGTH = 12
WORDS: dict[str, Any] = {
    "model": {"bundle": "model.mslite"},
    "data": {"shards": "speakers.npz", "test": 0.0},
    "algorithm": {"name": "fedavg", "rate": 1.0},
    "local": {"steps": 2, "batch": 2},
    "rounds": {"count": 4},
    "evaluation": {"every": 4, "held_out": 0.4, "training": False, "steps": 0},
    "gate": {"against": "start", "figure": "loss_before"},
    "codec": {"up": ["topk:0.2", "int8"]},
    "state": {"checkpoint": "run.state"},
    "report": {"json": "run.json", "adapter": "fleet.msstate"},
}


@cache
def converted(only_b: bool) -> bytes:
    training = Training(adapters=Lora(2, targets=("query", "value"), only_b=only_b), optimizer="sgd")
    data = gguf_bytes.file(metadata(), stored(MIXES["dense"]))
    return bytes(convert(data, trainable=training, activations="float32").bundle)


def model(folder: Path, *, only_b: bool = False) -> Path:
    path = folder / "model.mslite"
    path.write_bytes(converted(only_b))
    return path


def fleet(folder: Path, devices: int = 10) -> dict[str, Batch]:
    """Devices that use few tokens, which follow each other by one rule."""
    rng, found = np.random.default_rng(3), {}
    for at in range(devices):
        tokens = [int(rng.integers(6))]
        for _ in range(20 + 9 * at):
            tokens.append((tokens[-1] * 3 + 1) % 7 if rng.random() < 0.9 else int(rng.integers(7)))
        found[f"speaker-{at}"] = texts.windows(tokens, LENGTH)
    texts.write_shards(folder / "speakers.npz", found)
    return found


def words(**sections: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {**WORDS.get(name, {}), **sections.get(name, {})} for name in {**WORDS, **sections}}


def config(folder: Path, **sections: Mapping[str, Any]) -> Config:
    return parse(words(**sections), folder)


def test_windows_hold_every_token_and_what_follows() -> None:
    found = texts.windows(range(100, 110), 4)
    np.testing.assert_array_equal(found.inputs["input_ids"][:2], [[100, 101, 102, 103], [104, 105, 106, 107]])
    np.testing.assert_array_equal(found.labels, [[101, 102, 103, 104], [105, 106, 107, 108], [109, -1, -1, -1]])
    assert found.inputs["input_ids"].dtype == np.int32 and found.labels.dtype == np.int64
    assert size(texts.windows([1, 2, 3, 4, 5], 4)) == 1
    for tokens, length in (([1], 4), ([1, 2], 0)):
        with pytest.raises(FederatedError, match="at least 2 tokens"):
            texts.windows(tokens, length)


class Letters:
    """A tokenizer of letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - 97 for letter in text]


def test_texts_become_the_examples_of_devices(tmp_path: Path) -> None:
    spoken = {"ophelia": "abcdefgh", "echo": "ab", "guard": "abc"}
    found = texts.of_texts(Letters(), spoken, 4, least=3)  # type: ignore[arg-type]
    assert list(found) == ["guard", "ophelia"]
    texts.write_shards(tmp_path / "devices.npz", found)
    again = shards(tmp_path / "devices.npz")
    assert list(again) == list(found)
    for name, data in found.items():
        np.testing.assert_array_equal(again[name].labels, data.labels)
        np.testing.assert_array_equal(again[name].inputs["input_ids"], data.inputs["input_ids"])
    with pytest.raises(FederatedError, match="at least one device"):
        texts.write_shards(tmp_path / "none.npz", texts.of_texts(Letters(), spoken, 4, least=99))  # type: ignore[arg-type]


def test_evaluation_counts_tokens_in_small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = LiteLearner(model(tmp_path))
    data = join(list(fleet(tmp_path).values()))
    whole = learner.evaluate(learner.params, data)
    assert whole.examples == (data.labels >= 0).sum() > 300
    monkeypatch.setattr(lite, "CHUNK", 2 * LENGTH + 1)
    asked, ask = list[int](), learner._ask

    def counted(signature: str, params: Any, batch: Batch) -> dict[str, Any]:
        asked.append(len(batch.labels))
        return ask(signature, params, batch)

    monkeypatch.setattr(learner, "_ask", counted)
    parts = learner.evaluate(learner.params, data)
    assert max(asked) == 2 and sum(asked) == size(data)
    assert (parts.examples, parts.correct) == (whole.examples, whole.correct)
    np.testing.assert_allclose(parts.loss, whole.loss, rtol=1e-5)
    empty = pick(data, np.arange(2))._replace(labels=np.full((2, LENGTH), texts.IGNORED))
    assert learner.evaluate(learner.params, empty)[0] == 0


def test_perplexity_is_over_all_tokens() -> None:
    scores = [Score("a", 30, 0, 0, 1.0, 0.5), Score("b", 10, 0, 0, 3.0, np.inf)]
    found = perplexity(scores, {})
    assert found["before"] == pytest.approx(np.exp(1.5)) and found["after"] is None
    summary = {"loss_before": {"mean": 2.0}, "loss_after": {"mean": 1.0}}
    assert perplexity([], summary) == pytest.approx({"before": np.exp(2.0), "after": np.exp(1.0)})


def test_speakers_never_seen_are_predicted_better(tmp_path: Path) -> None:
    path, data = model(tmp_path), fleet(tmp_path)
    made = config(tmp_path)
    federation = simulate(made, fleet_of(made))
    found = report(federation)
    unseen = held_out(sorted(data), 0.4, 0)
    assert 0 < len(unseen) < len(data)
    first, last = found["start"]["evaluation"], found["rows"][-1]["evaluation"]
    assert list(first) == list(last) == ["held_out"] and last["held_out"]["asked"] == len(unseen)
    learner, _ = start_of(path)
    for params, survey in ((learner.params, first), (federation.model(), last)):
        sums = learner.evaluate(params, join([data[name] for name in sorted(unseen)]))
        assert survey["held_out"]["perplexity"]["before"] == pytest.approx(np.exp(sums.loss / sums.examples), rel=1e-4)
        assert survey["held_out"]["perplexity"]["after"] == survey["held_out"]["perplexity"]["before"]
    assert last["held_out"]["perplexity"]["before"] < 0.7 * first["held_out"]["perplexity"]["before"]
    page, figure = fleet_page(found), last["held_out"]["perplexity"]["after"]
    assert f"{figure:.2f}" in page and "perplexity on" in page
    what, _, told = figures(found["rows"][-1])
    assert what == "perplexity" and told == {"held_out": (figure, figure)}
    numbers = sum(array.size for array in learner.params.values())
    trained = len(data) - len(unseen)
    assert max(row["bytes_up"] for row in found["rows"]) < trained * (0.45 * numbers + 600)


@pytest.mark.parametrize("only_b", [False, True])
def test_what_the_fleet_learned_is_an_adapter(tmp_path: Path, only_b: bool) -> None:
    path, data = model(tmp_path, only_b=only_b), fleet(tmp_path)
    made = config(tmp_path, codec={"up": []})
    federation = simulate(made, fleet_of(made))
    state, learned = bundle.read(path).state, federation.model()
    adapter = Adapter.load(tmp_path / "fleet.msstate")
    assert adapter.model == bundle.read(path).digest
    for name, values in adapter.arrays.items():
        fixed = only_b and name.endswith("lora_a")
        assert (name in learned) is not fixed
        np.testing.assert_array_equal(values, state[name] if fixed else learned[name])
    window = pick(data["speaker-9"], np.arange(1))
    serving = load(path)
    engine = Engine(serving, 64, adapters=1)
    (logits,) = engine.run([Part(engine.start(engine.attach(adapter)), window.inputs["input_ids"][0].tolist(), LENGTH)])
    logits = logits - logits.max(-1, keepdims=True)
    chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    wanted = -chances[np.arange(LENGTH), window.labels[0]].mean()
    sums = start_of(path)[0].evaluate(learned, window)
    assert abs(sums.loss / sums.examples - wanted) < 2e-3 * wanted


def test_privacy_is_stated(tmp_path: Path) -> None:
    model(tmp_path, only_b=True)
    fleet(tmp_path)
    privacy = {"clip": 0.5, "noise": "central", "epsilon": 8.0, "delta": 1e-5, "evaluation": "open"}
    made = config(tmp_path, privacy=privacy, codec={"up": ["int8"]}, rounds={"count": 2}, gate={"margin": 100.0})
    found = report(simulate(made, fleet_of(made)))
    assert 7.5 < found["epsilon"] <= 8.0 and found["privacy"]["delta"] == 1e-5
    assert found["privacy"]["covered"] == ["updates"]
    assert "evaluations of held-out devices" in found["privacy"]["not_covered"]
    assert found["rows"][-1]["evaluation"]["held_out"]["perplexity"]["before"] > 1


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"evaluation": {"held_out": 0.0}}, "evaluation.held_out: expected a share above 0 with training = false"),
        ({"evaluation": {"support": 3}}, "evaluation.support: has no effect without evaluation.steps"),
        ({"sync": {"store": "versions.sqlite"}}, "evaluation.steps: expected at least 1 with sync.store"),
    ],
)
def test_settings_of_evaluations_that_exclude_each_other(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(FederatedError, match=says):
        parse(words(**sections))


def test_an_adapter_is_only_of_a_bundle_with_adapters(tmp_path: Path) -> None:
    from cloud.zoo import mlp

    held = bundle.read(bytes(convert(mlp(4, 3), trainable="*").bundle))
    with pytest.raises(FederatedError, match=r"report\.adapter: expected a language model converted with --lora"):
        check(config(tmp_path), held)


def toml(folder: Path, name: str) -> Path:
    """A run that keeps its files under this name."""
    kept = {"checkpoint": f"{name}.state", "devices": f"{name}.sqlite"}
    files = {"state": kept, "report": {"json": f"{name}.json", "adapter": f"{name}.msstate"}}
    sections = words(rounds={"count": 12}, codec={"up": ["feedback", "topk:0.2", "int8"]}, **files)
    lines = []
    for section, keys in sections.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    path = folder / f"{name}.toml"
    path.write_text("\n".join(lines))
    return path


def federate(path: Path, *more: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "edge.cli", "federate", str(path), "--simulate", "0", *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def test_a_server_killed_in_a_round_learns_the_same(tmp_path: Path) -> None:
    model(tmp_path)
    fleet(tmp_path)
    assert federate(toml(tmp_path, "whole")).wait() == 0
    path, keep = toml(tmp_path, "killed"), tmp_path / "killed.state"
    running = federate(path)
    while not keep.exists() or int(unpack(keep.read_bytes())[0]["round"]) < 3:
        assert running.poll() is None
        time.sleep(0.001)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    learned = int(unpack(keep.read_bytes())[0]["round"])
    assert 3 <= learned < 12
    assert federate(path, "--resume").wait() == 0
    assert (tmp_path / "killed.msstate").read_bytes() == (tmp_path / "whole.msstate").read_bytes()
    whole, killed = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "killed"))
    assert [row["round"] for row in killed["rows"]] == [row["round"] for row in whole["rows"]] == [*range(1, 13)]
    assert killed["start"]["evaluation"] == whole["start"]["evaluation"]
    assert killed["rows"][-1]["evaluation"] == whole["rows"][-1]["evaluation"]
