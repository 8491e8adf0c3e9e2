"""Choices: requested by key, stored for this machine, and without effect on results except rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lite_runtime
from lite_runtime import bundle
from lite_runtime.graph import Graph, Node, Value
from lite_runtime.native import tuning

RNG = np.random.default_rng(5)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tuning.json"
    monkeypatch.setattr(tuning, "path", lambda: str(path))
    return path


def _network() -> tuple[bytes, dict[str, np.ndarray]]:
    nodes = (
        Node("Conv", ("x", "w", "b"), ("c",), {"layout": "NHWC", "pads": (1, 1, 1, 1), "activation": "Relu"}, "conv"),
        Node("MatMul", ("c", "v"), ("y",), {}, "product"),
    )
    weights = {
        "w": RNG.standard_normal((70, 16, 3, 3)).astype(np.float32),
        "b": RNG.standard_normal(70).astype(np.float32),
        "v": RNG.standard_normal((70, 100)).astype(np.float32),
    }
    shape = (1, 24, 20, 16)
    graph = Graph((Value("x", "float32", shape),), (Value("y", "float32", (1, 24, 20, 100)),), nodes, weights, "g")
    return bundle.write(None, {"predict": graph}), {"x": RNG.standard_normal(shape).astype(np.float32)}


def test_every_choice_gives_the_same_result() -> None:
    data, inputs = _network()
    rule = lite_runtime.load(data, choices={})
    want = rule.run(inputs)["y"]
    asked = rule.choices.asked
    assert any(key.startswith("f32 winograd") for key in asked) and any(key.startswith("f32 panels") for key in asked)
    assert {node for nodes in rule.choices.nodes.values() for node in nodes} == {"Conv conv", "MatMul product"}
    for key, options in asked.items():
        assert len(set(options)) == len(options) > 1
        for option in options[1:]:
            other = lite_runtime.load(data, choices={key: option}, backend="guard", threads=2)
            got = other.run(inputs)["y"]
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


def test_for_an_unknown_option_the_rule_decides() -> None:
    data, inputs = _network()
    rule = lite_runtime.load(data, choices={})
    other = lite_runtime.load(data, choices=dict.fromkeys(rule.choices.asked or {"": ""}, "nonsense"))
    assert rule.run(inputs)["y"].tobytes() == other.run(inputs)["y"].tobytes()


def test_what_is_kept_is_used(own_cache: Path) -> None:
    data, inputs = _network()
    rule = lite_runtime.load(data, choices={})
    rule.run(inputs)
    key, options = next(iter(rule.choices.asked.items()))
    tuning.keep({key: options[-1]})
    assert tuning.kept() == {key: options[-1]} and not list(own_cache.parent.glob("*.tmp*"))
    assert lite_runtime.load(data).choices.chosen == {key: options[-1]}
    assert lite_runtime.load(data, choices={}).choices.chosen == {}


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', "{", "\x00"])
def test_a_damaged_file_is_no_choice(own_cache: Path, content: str) -> None:
    own_cache.write_text(content)
    assert tuning.kept() == {}


def test_no_file(own_cache: Path) -> None:
    assert tuning.kept() == {}
