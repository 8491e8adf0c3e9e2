"""Which update transforms can be combined, which cannot, and what they do to updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from federated.codec import Codec, Spec
from federated.errors import FederatedError
from federated.messages.transforms import EXCLUDES, NEEDS, Privacy, Transforms
from federated.privacy import Accountant, SeededSource

CLIP = {"clip": 1.0}
CENTRAL = {**CLIP, "noise": "central", "multiplier": 1.0}
LOCAL = {**CLIP, "noise": "local", "multiplier": 1.0}
SECURE = {**CLIP, "secure": True}

# What brings a feature of the tables about, by itself.
BY_ITSELF: dict[str, dict[str, Any]] = {
    "a difference": {"up": ["difference"]},
    "error feedback": {"up": ["feedback"]},
    "a sparse codec": {"up": ["topk:0.1"]},
    "signds": {"up": ["signds"]},
    "a lossy number format": {"up": ["int8"]},
    "clipping": {"privacy": CLIP},
    "an adaptive bound": {"privacy": {**CLIP, "adaptive": 0.5}},
    "clipping by layer": {"privacy": {**CLIP, "by_layer": True}},
    "central noise": {"privacy": CENTRAL},
    "local noise": {"privacy": LOCAL},
    "noise": {"privacy": CENTRAL},
    "secure sums": {"privacy": SECURE},
    "a robust rule": {"robust": {"rule": "median"}},
    "asynchronous rounds": {"asynchronous": True},
    "compensate": {"compensate": True},
    "aggregators": {"aggregators": True},
    "a rule that compares updates": {"robust": {"rule": "norm_bound"}},
}


def both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two settings in one."""
    privacy = {**one.get("privacy", {}), **other.get("privacy", {})}
    return {**one, **other, **({"privacy": privacy} if privacy else {})}


def update(number: int, size: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    return {"w": (size * rng.normal(size=(4, 5))).astype("f4"), "b": (size * rng.normal(size=5)).astype("f4")}


@pytest.mark.parametrize("feature", BY_ITSELF)
def test_each_is_fine_by_itself(feature: str) -> None:
    assert feature in Transforms.of(**BY_ITSELF[feature]).features


@pytest.mark.parametrize(("one", "other", "why"), EXCLUDES, ids=[f"{a}-{b}" for a, b, _ in EXCLUDES])
def test_what_excludes_another_is_refused_with_the_reason(one: str, other: str, why: str) -> None:
    with pytest.raises(FederatedError, match=f"{one} with {other}: {why.split(';')[0]}"):
        Transforms.of(**both(BY_ITSELF[one], BY_ITSELF[other]))


@pytest.mark.parametrize(
    ("privacy", "at"),
    [
        ({"noise": "central", "multiplier": 1.0}, 0),
        ({"secure": True}, 1),
        ({"adaptive": 0.5}, 2),
        ({"by_layer": True}, 3),
        ({**CENTRAL, "adaptive": 0.5}, 4),
    ],
)
def test_what_needs_another_is_refused_with_the_reason(privacy: dict[str, Any], at: int) -> None:
    one, other, why = NEEDS[at]
    with pytest.raises(FederatedError, match=f"{one} without {other}: {why.split(';')[0]}"):
        Transforms.of(privacy=privacy)


@pytest.mark.parametrize(
    "settings",
    [
        {"up": ["difference", "feedback", "topk:0.1", "int8"], "privacy": CENTRAL},
        {"up": ["mask:0.4", "int8"], "privacy": LOCAL, "robust": {"rule": "krum"}},
        {"privacy": {**CENTRAL, "secure": True}},
        {"privacy": {**LOCAL, "secure": True}},
        {"privacy": {**CENTRAL, "adaptive": 0.5, "count_noise": 5.0}},
        {"up": ["signds"], "robust": {"rule": "trimmed_mean", "share": 0.1}},
        {"up": ["int4:64"], "asynchronous": True, "compensate": True},
    ],
    ids=str,
)
def test_what_goes_together(settings: dict[str, Any]) -> None:
    Transforms.of(**settings)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"clip": -1.0}, "privacy.clip"),
        ({"klip": 1.0}, "privacy.klip: no such key; did you mean .clip"),
        ({"clip": "1"}, "privacy.clip: expected a number of at least 0"),
        ({"clip": True}, "privacy.clip: expected a number of at least 0"),
        ({"secure": 1}, "privacy.secure: expected true or false"),
        ({"noise": "loud"}, "privacy.noise"),
        ({"noise": "central"}, "one of multiplier and epsilon"),
        ({"noise": "central", "multiplier": 1.0, "epsilon": 1.0}, "one of multiplier and epsilon"),
        ({"delta": 0.0}, "privacy.delta"),
        ({"threshold": 0.5}, "privacy.threshold"),
        ({"bits": 8}, "privacy.bits"),
    ],
)
def test_sections_that_make_no_sense(words: dict[str, Any], why: str) -> None:
    with pytest.raises(FederatedError, match=why):
        Privacy.of(words)


def test_updates_are_clipped_on_the_device_and_again_on_the_server() -> None:
    transforms, source = Transforms.of(privacy=CENTRAL), SeededSource(0)
    sent = [transforms.outgoing(update(at, 10), source, 1.0) for at in range(3)]
    assert all(each.within == 0.0 for each in sent)
    spec = Spec.of(sent[0].tree)
    assert np.linalg.norm(spec.flatten(sent[0].tree)) == pytest.approx(1, rel=1e-5)
    lying = [update(at, 1e6) for at in range(3)]
    honest = transforms.combine([each.tree for each in sent], [1, 1, 1], SeededSource(1), 0.0).tree
    np.testing.assert_allclose(
        spec.flatten(transforms.combine(lying, [1, 9, 1], SeededSource(1), 0.0).tree), spec.flatten(honest), atol=1e-6
    )
    assert transforms.uniform and not Transforms.of().uniform


def test_central_noise_is_that_of_the_account() -> None:
    """Noise of deviation multiplier * clip / devices on the mean; under Poisson sampling over those expected."""
    transforms = Transforms.of(privacy={**CENTRAL, "clip": 3.0, "sampling": "poisson"})
    zeros = [{"w": np.zeros(20_000, "f4")}] * 5
    for expected, deviation in [(None, 2 * 3 / 5), (10.0, 2 * 3 / 10)]:
        got = transforms.combine(zeros, [1] * 5, SeededSource(3), 2.0, expected).tree["w"]
        assert got.std() == pytest.approx(deviation, rel=0.03)
    ones = [{"w": np.full(4, 0.5, "f4")}] * 5
    np.testing.assert_allclose(transforms.combine(ones, [1] * 5, SeededSource(3), 0.0, 10.0).tree["w"], 0.25, rtol=1e-6)


def test_epsilon_is_spent_over_the_rounds() -> None:
    for sampling, rate in [("fixed", 1.0), ("poisson", 0.1)]:
        words = {**CLIP, "noise": "central", "epsilon": 4.0, "sampling": sampling}
        transforms = Transforms.of(privacy=words)
        multiplier = transforms.multiplier(50, 0.1)
        account = Accountant()
        for _ in range(50):
            account = transforms.charge(account, multiplier, 0.1)
        assert account.spent == ((multiplier, rate, 50),)
        assert 3.9 < account.epsilon(1e-5) <= 4.0
    local = Transforms.of(privacy={**LOCAL, "sampling": "poisson"})
    assert local.charge(Accountant(), 1.0, 0.1).spent == ((1.0, 1.0, 1),), "the server sees who sent what"
    assert Transforms.of().charge(Accountant(), 0.0, 0.1) == Accountant() and Transforms.of().multiplier(5, 1.0) == 0


def test_the_bound_adapts_and_the_noise_with_it() -> None:
    transforms = Transforms.of(privacy={**CENTRAL, "adaptive": 0.5, "count_noise": 5.0})
    assert transforms.update_multiplier(1.0) > 1
    assert transforms.next(100, 100, 0.0).privacy.clip < 1 < transforms.next(0, 100, 0.0).privacy.clip
    assert Transforms.of(privacy=CENTRAL).next(0, 100, 0.0).privacy.clip == 1
    assert Transforms.of(privacy=CENTRAL).update_multiplier(1.0) == 1


def test_secure_sums_have_room_for_local_noise() -> None:
    transforms = Transforms.of(privacy={**LOCAL, "secure": True})
    sent = transforms.outgoing(update(0, 9), SeededSource(0), 1.0).tree
    spec = Spec.of(sent)
    fixed = transforms.fixed_point(20, 500.0, 1.0)
    assert fixed.heaviest == 1 and not fixed.quantise(sent, 1.0, spec, np.random.default_rng(0)).cut
    assert [Transforms.of().threshold(devices) for devices in (2, 3, 10, 100)] == [2, 3, 7, 67]
    curious = Transforms.of(privacy={"model": "honest-but-curious"})
    assert [curious.threshold(devices) for devices in (2, 3, 10, 100)] == [2, 2, 6, 60]


def test_without_settings_an_update_passes_unchanged() -> None:
    transforms, sent = Transforms(), update(0)
    assert transforms.outgoing(sent, SeededSource(0)).tree is sent and transforms.codec == Codec()
    np.testing.assert_allclose(transforms.combine([sent, update(1)], [1, 3], SeededSource(0)).tree["b"],
                               (sent["b"] + 3 * update(1)["b"]) / 4, rtol=1e-5)  # fmt: skip
