"""Every step accesses only the memory it declares, and all needed barriers exist; the checks notice violations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime import bundle
from lite_runtime.graph import Graph, Node, Value
from lite_runtime.planning import plan as planning
from tests.fuzz import training_models
from tests.fuzz.agreement import Disagreement
from tests.fuzz.bundles import FAMILIES, Options, fuzz, try_file
from tests.fuzz.schedules import Fault, in_all_ways


@pytest.mark.parametrize("family", ["general", "integers", "training"])
def test_seeds_with_all_schedules(family: str) -> None:
    for data in FAMILIES[family]():
        assert try_file(data, "walked") == ["read", "ran"]


def test_files_with_all_schedules() -> None:
    summary = fuzz(Options(cases=60, seed=31, workers=1, backend="walked", family="all"))
    assert not summary.findings, "\n".join(f"case {f.case}: {f.text}" for f in summary.findings)
    assert summary.counts["ran"] > 8


@pytest.mark.parametrize("number", range(4))
def test_random_networks_train_alike(number: int) -> None:
    training_models.check(5, number)


def _convolutions() -> tuple[bytes, dict[str, Any]]:
    """Three by Winograd's transforms, of which each worker has a share of scratch that no operand names."""
    rng, window = np.random.default_rng(0), {"layout": "NHWC", "pads": (1, 1, 1, 1), "kernel_shape": (3, 3)}
    weights = {f"w{i}": rng.standard_normal((16, 16, 3, 3)).astype(np.float32) for i in range(3)}
    names = ("x", "a", "b", "y")
    nodes = tuple(Node("Conv", (names[i], f"w{i}"), (names[i + 1],), window) for i in range(3))
    image = (2, 24, 24, 16)
    graph = Graph((Value("x", "float32", image),), (Value("y", "float32", image),), nodes, weights)
    return bundle.write(None, {"predict": graph}), {"x": rng.standard_normal(image).astype(np.float32)}


def test_a_missing_barrier_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    data, inputs = _convolutions()
    in_all_ways(data)("predict", inputs)
    monkeypatch.setattr(planning._Touched, "clash", lambda self, span, shared: False)
    with pytest.raises(Disagreement, match="ascending"):
        in_all_ways(data)("predict", inputs)


def test_scratch_memory_that_is_not_fully_declared_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    data, inputs = _convolutions()

    def named(space: Any, operand: Any, unit: int) -> Any:
        slot = space.slots[operand.slot]
        start = operand.offset + slot.offset
        return planning._Span(slot.base, start, start + operand.spec.nbytes, slot.first == unit)

    monkeypatch.setattr(planning, "_span", named)
    with pytest.raises(Fault, match=r"winograd\.f32_winograd of Conv writes"):
        in_all_ways(data)("predict", inputs)
