"""Sampling: distributions by their definition, seeds, ties, penalties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.graph import Array
from lite_runtime.language import sampling as of_sampling
from lite_runtime.language.estimates import estimated
from lite_runtime.language.sampling import (
    Candidates,
    Sampling,
    Seen,
    candidates,
    checked,
    choose,
    draw,
    likely,
    log_probabilities,
    prepared,
    total,
    uniform,
)

UNIFORM = [0.2802218095108271, 0.011546754286331562]
"""Numbers of seeds 5 and 0 at positions 9 and 0: a change would change every text."""


def random_logits(seed: int, size: int = 1000, scale: float = 3.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def by_definition(logits: Array, s: Sampling) -> dict[int, float]:
    """The distribution, by sorting everything, in plain Python."""
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    if s.top_k:
        order = order[: s.top_k]
    top = float(logits[order[0]])
    weights = {i: math.exp((float(logits[i]) - top) / s.temperature) for i in order}
    weights = {i: w for i, w in weights.items() if w >= s.min_p}
    total, reached, kept = sum(weights.values()), 0.0, {}
    for i, weight in weights.items():
        kept[i] = weight
        reached += weight
        if reached >= s.top_p * total:
            break
    total = sum(kept.values())
    return {i: w / total for i, w in kept.items()}


@pytest.mark.parametrize("size", [1, 2, 300, 5000])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 40},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_p": 0.0},
        {"min_p": 0.05},
        {"top_k": 50, "top_p": 0.8, "min_p": 0.01},
        {"temperature": 0.3, "top_p": 0.95},
        {"temperature": 4.0, "top_k": 7},
    ],
)
def test_distributions_are_their_definition(size: int, options: dict[str, Any]) -> None:
    sampling = Sampling(**{"temperature": 1.0, **options})
    for seed in range(5):
        logits = random_logits(seed, size)
        found, want = candidates(logits, sampling), by_definition(logits, sampling)
        got = dict(zip(found.ids.tolist(), (found.weights / found.total).tolist(), strict=True))
        assert set(got) == {i for i in want if i in got or want[i] > 1e-15}
        assert all(abs(got[i] - want[i]) < 1e-12 for i in got)


def test_draws_have_the_distribution() -> None:
    sampling = Sampling(temperature=1.0, top_k=12, seed=7)
    logits = random_logits(1, 400, 1.5)
    want = by_definition(logits, sampling)
    counts = dict.fromkeys(want, 0)
    for position in range(8_000):
        counts[choose(logits, sampling, position)] += 1
    chi = sum((counts[i] - 8_000 * p) ** 2 / (8_000 * p) for i, p in want.items())
    assert chi < 40  # 11 degrees of freedom: beyond this by chance once in 30,000 seeds


def test_any_number_of_candidates_is_drawn_by_its_weight() -> None:
    rng = np.random.default_rng(6)
    for size in (1, 2, 255, 256, 257, 600, 1000):
        weights = rng.integers(0, 3, size).astype(float)
        weights[rng.integers(size)] = 1
        found = Candidates(np.arange(size), weights, total(weights))
        assert found.total == weights.sum()
        counts = np.zeros(size)
        for number in (np.arange(found.total * 4) + 0.5) / (found.total * 4):
            counts[draw(found, float(number))] += 1
        np.testing.assert_array_equal(counts, weights * 4)
        assert weights[draw(found, 1.0)] > 0  # what rounding may lead to


def test_equal_seeds_and_positions_give_equal_numbers() -> None:
    assert [uniform(5, 9), uniform(0, 0)] == UNIFORM
    numbers = [uniform(seed, position, purpose) for seed in range(3) for position in range(50) for purpose in range(3)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)
    assert uniform((1 << 64) - 1, 1 << 24) == uniform((1 << 64) - 1, 1 << 24)


def test_ties_go_to_the_lower_index() -> None:
    logits = np.zeros(5000, np.float32)
    assert choose(logits, Sampling(), 0) == 0
    logits[[4000, 17, 900]] = 1
    assert likely(logits, 5).tolist() == [17, 900, 4000, 0, 1]
    assert candidates(logits, Sampling(1.0, top_k=2)).ids.tolist() == [17, 900]
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.integers(0, 9, 700).astype(np.float32)
        count = int(rng.integers(1, 800))
        want = sorted(range(700), key=lambda i: (-values[i], i))[:count]
        assert likely(values, count).tolist() == want


def test_bias_and_penalties() -> None:
    logits = np.array([2.0, -2.0, 1.0, 0.5, 0.0], np.float32)
    before = logits.copy()
    made = prepared(logits, Sampling(logit_bias={4: 3.0, 0: -math.inf}))
    assert made.tolist() == [-math.inf, -2.0, 1.0, 0.5, 3.0]
    seen = Seen([0, 1], [1, 2, 2])
    made = prepared(logits, Sampling(repetition_penalty=2.0), seen)
    assert made.tolist() == [1.0, -4.0, 0.5, 0.5, 0.0]
    made = prepared(logits, Sampling(presence_penalty=0.5, frequency_penalty=0.25), seen)
    assert made.tolist() == [2.0, -2.75, 0.0, 0.5, 0.0]
    assert prepared(logits, Sampling(), seen) is logits
    np.testing.assert_array_equal(logits, before)


def test_tokens_are_counted_as_they_come() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        prompt = rng.integers(0, 40, rng.integers(0, 30)).tolist()
        seen, answer = Seen(prompt), list[int]()
        for _ in range(200):
            if rng.random() < 0.1 and answer:
                del answer[rng.integers(len(answer)) :]
                seen.cut(len(answer))
            answer.append(int(rng.integers(0, 300)))
            seen.add(answer[-1])
        whole, (tokens, text, own) = [*prompt, *answer], seen.counts()
        assert seen.answer == answer and [seen.after(at) for at in (0, 7, 60)] == [whole[at:] for at in (0, 7, 60)]
        found = {token: (in_text, in_answer) for token, in_text, in_answer in zip(tokens, text, own, strict=True)}
        assert {token: pair for token, pair in found.items() if pair[0]} == {
            token: (whole.count(token), answer.count(token)) for token in whole
        }
        options = Sampling(repetition_penalty=1.7, presence_penalty=0.3, frequency_penalty=-0.2)
        logits = random_logits(1, 300)
        np.testing.assert_array_equal(prepared(logits, options, seen), prepared(logits, options, Seen(prompt, answer)))


def test_only_allowed_tokens() -> None:
    logits = random_logits(2, 50)
    allowed = np.arange(50) % 7 == 3
    for position in range(100):
        ready = prepared(logits, Sampling(1.5), Seen(), allowed)
        assert choose(ready, Sampling(1.5), position) % 7 == 3
    with pytest.raises(MsedgeError, match="no token is allowed"):
        prepared(logits, Sampling(), Seen(), np.zeros(50, bool))
    with pytest.raises(MsedgeError, match="nan"):
        prepared(np.full(5, np.nan, np.float32), Sampling())


def test_log_probabilities() -> None:
    logits = random_logits(3, 200)
    want = logits.astype(float) - math.log(sum(math.exp(v) for v in logits.tolist()))
    found = log_probabilities(logits, 9, 4)
    assert abs(found.value - want[9]) < 1e-9
    assert [token for token, _ in found.top] == np.argsort(-want)[:4].tolist()
    assert all(abs(value - want[token]) < 1e-9 for token, value in found.top)
    assert log_probabilities(logits, 9, 0).top == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1}, "temperature: expected a number from 0"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": 1.5}, "top_k: expected a whole number"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": "a"}, "min_p"),
        ({"seed": -1}, "seed"),
        ({"seed": True}, "seed"),
        ({"logit_bias": {300: 1.0}}, "token ids from 0 to 299"),
        ({"logit_bias": {3: math.inf}}, "finite number or -inf"),
        ({"logit_bias": [1]}, "numbers by token id"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        checked(Sampling(**options), 300)


def test_the_last_candidate_is_drawn_by_the_greatest_number() -> None:
    found = candidates(random_logits(4, 3000), Sampling(1.0))
    assert draw(found, 1 - 2.0**-53) in found.ids
    assert draw(found, 0.0) == found.ids[0]


SIZES = [2048, 2049, 12_345, 49_152]
KINDS = ["normal", "peaked", "flat", "ties", "steps", "heavy tails", "half excluded", "tiny", "large", "geometric"]


def unusual_logits(kind: str, rng: np.random.Generator, size: int) -> Array:
    normal = rng.standard_normal(size)
    made = {
        "normal": normal * rng.choice([0.1, 1, 3, 10, 100]),
        "peaked": np.where(rng.random(size) < 3 / size, normal + rng.uniform(5, 60), normal),
        "flat": np.full(size, rng.choice([-0.0, 5.0, 1e4])),
        "ties": rng.integers(0, 4, size) * rng.choice([-1.0, 1.0, 0.25], size),
        "steps": -np.arange(size) * rng.choice([1e-7, 1e-4, 1e-2, 1]),
        "heavy tails": rng.gumbel(size=size) * 3,
        "half excluded": np.where(rng.random(size) < 0.5, -np.inf, normal),
        "tiny": normal * 1e-30,
        "large": normal + rng.choice([1e3, 1e6, -1e6]),
        "geometric": np.log(rng.random(size) + 1e-30) * rng.uniform(0.1, 3),
    }[kind]
    found: Array = made.astype(np.float32)
    return found


def edges(weights: Array, rng: np.random.Generator, count: int) -> list[float]:
    """Numbers near those at which one token follows another."""
    columns = of_sampling._columns(weights)
    before = np.cumsum(columns.T.reshape(-1))
    at = before[rng.integers(0, len(before), count)] / before[-1]
    off = rng.choice([0, 1e-16, 1e-12, 1e-9, 1e-7, 1e-6, 3e-6, 1e-5], count) * rng.choice([-1, 1], count)
    return [float(number) for number in at * (1 + off) if 0 <= number < 1]


@pytest.mark.parametrize("kind", KINDS)
def test_estimates_never_decide_otherwise(kind: str) -> None:
    rng, drawn, worst, sure = np.random.default_rng(KINDS.index(kind)), 0, 0.0, 0
    for turn in range(60):
        logits = unusual_logits(kind, rng, SIZES[turn % len(SIZES)])
        sampling = Sampling(temperature=float(rng.choice([0.01, 0.1, 0.3, 0.7, 1, 1.3, 2, 5, 20, 100])))
        values, exact = of_sampling._values(logits, sampling), candidates(logits, sampling)
        made = estimated(values.values, values.greatest, values.scale)
        sums = of_sampling._columns(exact.weights).sum(axis=0).cumsum()
        worst = max(worst, float(np.abs(made.sums - sums).max()) / made.error)
        for number in [*rng.random(40).tolist(), *edges(exact.weights, rng, 40), 0.0, 1 - 2.0**-53]:
            place, want = made.drawn(number), draw(exact, number)
            drawn += 1
            sure += place is not None
            assert place is None or values.named(np.asarray([place])).tolist() == [want]
    assert worst < 0.5
    assert 0 < sure < drawn, "numbers near an edge are not certain, and others are"


def test_tokens_of_a_usual_distribution_are_certain() -> None:
    """Logits whose probabilities fall as those of words do (Zipf 1949)."""
    rng, uncertain = np.random.default_rng(3), 0
    logits = (-1.5 * np.log(np.arange(1, 49_153)) + rng.standard_normal(49_152)).astype(np.float32)
    rng.shuffle(logits)
    values = of_sampling._values(logits, Sampling(1.0))
    made = estimated(values.values, values.greatest, values.scale)
    for number in rng.random(2000).tolist():
        uncertain += made.drawn(number) is None
    assert uncertain < 200


OPTIONS: list[dict[str, Any]] = [
    {}, {"top_p": 0.0}, {"top_p": 0.5}, {"top_p": 0.9}, {"top_p": 0.999}, {"top_p": 1 - 1e-12}, {"top_k": 5},
    {"top_k": 40, "top_p": 0.9}, {"top_k": 3000, "top_p": 0.95}, {"min_p": 1e-9, "top_p": 0.9}, {"min_p": 0.05},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
def test_few_and_many_values_are_treated_alike(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without estimates: the same candidates, to the bit, and the same tokens."""
    rng = np.random.default_rng(OPTIONS.index(options))
    for turn in range(30):
        logits = unusual_logits(KINDS[turn % len(KINDS)], rng, SIZES[turn % len(SIZES)])
        temperature = float(rng.choice([0.01, 0.3, 0.7, 1, 2, 100]))
        sampling = Sampling(**options, temperature=temperature, seed=turn)
        found = candidates(logits, sampling)
        tokens = [choose(logits, sampling, position) for position in range(10)]
        with monkeypatch.context() as patch:
            patch.setattr(of_sampling, "_MANY", 1 << 30)
            want = candidates(logits, sampling)
            assert tokens == [draw(want, uniform(turn, position)) for position in range(10)]
        np.testing.assert_array_equal(found.ids, want.ids)
        assert found.weights.tobytes() == want.weights.tobytes() and found.total == want.total


def test_the_exponential_is_as_exact_as_estimates_need() -> None:
    """Every argument that has 12 bits, and others: estimates allow a share of 2^-20."""
    bits = np.arange(0, np.float32(80).view(np.uint32), 1 << 12, dtype=np.uint32)
    values = -np.concatenate([bits.view(np.float32), np.random.default_rng(0).random(400_000, np.float32) * 80])
    exact = np.exp(values.astype(np.float64))
    assert np.abs(np.exp(values) / exact - 1).max() < 2.0**-21


@pytest.mark.parametrize("size", [700, 3000, 49_152])
def test_the_likeliest_are_those_of_a_sort(size: int) -> None:
    rng = np.random.default_rng(size)
    for kind in KINDS:
        values = unusual_logits(kind, rng, size)
        order = np.argsort(-values, kind="stable")
        for count in (1, 2, 40, 512, size // 3, size - 1, size, size + 9):
            np.testing.assert_array_equal(likely(values, count), order[:count])
            np.testing.assert_array_equal(likely(values.astype(np.float64), count), order[:count])
