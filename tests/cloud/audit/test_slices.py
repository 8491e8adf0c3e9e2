"""The search for slices: it finds what was planted, and nothing where there is nothing."""

from __future__ import annotations

import numpy as np

from cloud.audit.slices import statistics_of, worst_slices


def columns(count: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.choice(list(letters), count) for name, letters in
            (("device", "abcdef"), ("place", "xyz"), ("light", "nd"), ("person", "0123456789"))}  # fmt: skip


def test_a_planted_slice_of_two_is_found() -> None:
    features = columns(3000, 0)
    wrong = np.random.default_rng(1).random(3000) < 0.05
    planted = (features["device"] == "c") & (features["light"] == "d")
    wrong[planted] = np.random.default_rng(2).random(planted.sum()) < 0.5
    found, tests = worst_slices(wrong, features)
    assert found[0].where in [(("device", "c"), ("light", "d")), (("light", "d"), ("device", "c"))]
    assert found[0].examples == planted.sum() and found[0].rate > 0.4 and found[0].elsewhere < 0.1
    assert tests > len(found) and found[0].chance < 1e-6
    assert {feature for one in found for feature, _ in one.where} <= {"device", "light"}


def test_nothing_is_found_by_chance() -> None:
    found = [
        worst_slices(np.random.default_rng(seed).random(800) < 0.2, columns(800, seed + 50))[0] for seed in range(40)
    ]
    assert sum(map(bool, found)) <= 2


def test_small_slices_are_not_judged() -> None:
    names = np.array(["rare"] * 10 + ["common"] * 990)
    wrong = names == "rare"
    assert worst_slices(wrong, {"device": names})[0] == []
    assert [one.name for one in worst_slices(wrong, {"device": names}, least=5)[0]] == ["device = rare"]


def test_statistics_of_inputs_find_dark_images() -> None:
    random = np.random.default_rng(0)
    light = random.random(1000).astype(np.float32)
    x = light[:, None, None, None] * random.random((1000, 1, 8, 8), np.float32)
    (worst, *_), _ = worst_slices(light < 0.2, statistics_of(x, "image"))
    assert worst.where[0][0] in ("brightness", "contrast", "sharpness") and worst.rate > 0.95
    assert set(statistics_of(x[:, 0], "series")) == {"mean", "spread", "change over time", "greatest value"}
    assert set(statistics_of(x[:, 0, 0], "table")) == {f"feature {i}" for i in range(8)}
