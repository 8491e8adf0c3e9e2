"""Policies and blends in pipelines: the same elements however they are read, files, labels, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cloud import data
from cloud.data import Apply, Policy
from cloud.data.augment import Blend
from cloud.errors import DataError

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.integers(0, 256, (24, 8, 8, 3)).astype(np.uint8), np.arange(24) % 5
SERIES = RNG.normal(size=(24, 6, 1, 16)).astype(np.float32)


def base() -> data.Pipeline:
    return data.arrays({"x": IMAGES, "s": SERIES, "labels": LABELS, "id": np.arange(24)})


def augmented(pipeline: data.Pipeline) -> data.Pipeline:
    return pipeline.augment("x", Policy("image"), Apply("image", "flip", chance=0.5)).augment(
        "s", Policy("series", ("jitter", "rotate", "time_warp"), choose=0, magnitude=20, axes="c1t")
    )


def read(pipeline: data.Pipeline, epoch: int = 0, **how: Any) -> dict[int, dict[str, Any]]:
    """Elements by their number."""
    found: dict[int, dict[str, Any]] = {}
    for batch in pipeline.batches(7, epoch, **how):
        for row, number in enumerate(batch["id"].tolist()):
            found[number] = {name: column[row] for name, column in batch.items() if name != "mask"}
    return found


def same(one: dict[int, dict[str, Any]], other: dict[int, dict[str, Any]]) -> None:
    assert one.keys() == other.keys()
    for number, element in one.items():
        for name in element:
            np.testing.assert_array_equal(element[name], other[number][name])


@pytest.mark.parametrize("blended", [False, True])
def test_elements_are_the_same_however_they_are_read(blended: bool) -> None:
    def made(pipeline: data.Pipeline) -> data.Pipeline:
        pipeline = augmented(pipeline)
        return pipeline.blend("x", 5, "either", kind="image", alpha=0.4) if blended else pipeline

    plain = made(base())
    expected = read(plain.batch(8).prefetch(threads=0))
    assert any((expected[k]["x"] != IMAGES[k]).any() for k in range(24))
    for other in (
        plain.batch(5), plain.shuffle().batch(8), plain.shuffle(3).batch(24).prefetch(threads=2),
        plain.map(dict).batch(4), plain.filter(lambda e: True).batch(8),
    ):  # fmt: skip
        same(read(other), expected)
    parts = [read(plain.shuffle().batch(8), process=(k, 2)) for k in range(2)]
    same(parts[0] | parts[1], expected)
    batches = plain.shuffle().batch(8)
    for one, rest in zip(batches.batches(7, position=2), list(batches.batches(7))[2:], strict=True):
        np.testing.assert_array_equal(one["x"], rest["x"])
    later = read(plain.batch(8), 1)
    assert sum((later[k]["x"] != expected[k]["x"]).any() for k in range(24)) > 12
    twice = list(plain.repeat(2).batch(24).batches(7))
    assert (twice[0]["x"] != twice[1]["x"]).any() and (twice[0]["s"] != twice[1]["s"]).any()


def test_labels_shapes_and_dtypes_are_kept_and_sources_are_not_changed() -> None:
    before = IMAGES.copy(), SERIES.copy()
    batch = next(augmented(base()).batch(24).batches())
    np.testing.assert_array_equal(batch["labels"], LABELS)
    assert batch["x"].shape == IMAGES.shape and batch["x"].dtype == np.uint8
    assert batch["s"].shape == SERIES.shape and batch["s"].dtype == np.float32
    np.testing.assert_array_equal(IMAGES, before[0])
    np.testing.assert_array_equal(SERIES, before[1])


def test_policies_are_saved_as_data_and_read_again(tmp_path: Any) -> None:
    np.savez(tmp_path / "d.npz", x=IMAGES, s=SERIES, labels=LABELS, id=np.arange(24))
    pipeline = augmented(data.npz(tmp_path / "d.npz").shuffle()).blend("x", 5).batch(6)
    plain = pipeline.to_dict()
    again = data.from_dict(json.loads(json.dumps(plain)))
    assert again.fingerprint == pipeline.fingerprint and again.to_dict() == plain
    same(read(again), read(pipeline))
    assert data.from_dict(plain).fingerprint == pipeline.fingerprint  # without JSON between
    assert (
        base().augment("x", Policy("image")).fingerprint
        != base().augment("x", Policy("image", magnitude=8)).fingerprint
    )
    text = json.dumps(plain)
    for change, message in (
        (
            text.replace('"kind": "image"', '"kind": "film"'),
            "kind: expected one of image, spectrum, series, got 'film'",
        ),
        (text.replace('"choose": 2', '"choose": true'), "expected int, got True"),
        (text.replace('"jitter"', '"jiter"'), "did you mean 'jitter'"),
        (text.replace('"magnitude": 20.0', '"magnitude": 1e999'), "magnitude: expected a number from 0 to 30, got inf"),
        (text.replace('"classes": 5', '"classes": 1'), "classes: expected a whole number of at least 2"),
        (text.replace('"transform": "blend"', '"transform": "os"'), "expected a transform of .*blend, policy"),
        (text.replace('"wide": false, ', ""), "expected .*'wide'"),
    ):
        assert change != text
        with pytest.raises(DataError, match=message):
            data.from_dict(json.loads(change))


def test_profiles_name_policies_and_blends() -> None:
    pipeline = augmented(base()).blend("x", 5, "cutmix", kind="image").batch(8)
    stages = {stage.name for stage in data.profile(pipeline, 0.02).stages}
    assert {
        "policy image (2 of 14, magnitude 9)", "flip of image", "policy series (all 3, magnitude 20)",
        "cutmix (alpha 1)", "read arrays",
    } <= stages  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Policy("film"), "kind: expected one of image, spectrum, series, got 'film'"),
        (lambda: Policy("image", ("rotat",)), "'image' has no operation 'rotat'; did you mean 'rotate'"),
        (lambda: Policy("image", "rotate"), "a tuple of names, got 'rotate'"),  # type: ignore[arg-type]
        (lambda: Policy("image", choose=-1), "choose: expected a whole number from 0"),
        (lambda: Policy("image", magnitude=31), "magnitude: expected a number from 0 to 30, got 31"),
        (lambda: Policy("image", magnitude=float("nan")), "magnitude: expected"),
        (lambda: Policy("image", chance=1.5), "chance: expected a number from 0 to 1, got 1.5"),
        (lambda: Policy("image", axes="hwx"), "axes: expected 'hw' in any order, .*'hwc'.* got 'hwx'"),
        (lambda: Policy("series", axes="c"), "axes: expected 't'"),
        (lambda: Policy("image", range=(1.0, 0.0)), "range: expected the lowest and the highest value"),
        (lambda: Policy("series", range=(0.0, 1.0)), "range: expected none for kind 'series'"),
        (lambda: Policy("image", fill=float("inf")), "fill: expected a number"),
        (lambda: Apply("image", "rotate"), r"amount of 'rotate': expected a number above 0 \(degrees\), got 0"),
        (lambda: Apply("image", "flip", 3.0), "amount of 'flip': expected 0, as this operation has no amount, got 3"),
        (lambda: Apply("spectrum", "time_mask", 1.5), r"expected at most 1 \(share of the time\), got 1.5"),
        (lambda: Apply("series", "flip"), "'series' has no operation 'flip'"),
        (lambda: base().augment("x"), "at least one Policy or Apply"),
        (lambda: base().augment("x", "rotate"), "expected a Policy or Apply to augment by, got str"),
        (lambda: base().blend("x", 1), "classes: expected a whole number of at least 2, got 1"),
        (lambda: base().blend("x", 5, "mix"), "how: expected one of mixup, cutmix, either, got 'mix'"),
        (lambda: base().blend("x", 5, "cutmix"), "kind: expected one of image, .* for cutmix, got ''"),
        (lambda: base().blend("x", 5, alpha=0), "alpha: expected a number above 0"),
        (lambda: base().blend("x", 5, axes="hwc"), "axes: expected none without a kind"),
        (lambda: base().blend("x", 5, labels="x"), "expected two values of an element, got 'x' for both"),
    ],
)
def test_bad_settings(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda p: p.augment("s", Policy("image")),
            r"policy image .*axes 'hwc', got the shape \[6, 1, 16\].*augment before",
        ),
        (lambda p: p.augment("s", Policy("spectrum", axes="1tf")), r"axes '1tf', got the shape \[6, 1, 16\]"),
        (lambda p: p.augment("y", Policy("image")), "works on 'y': expected elements with that name"),
        (lambda p: p.augment("id", Policy("image")), r"got the shape \[\]"),
        (lambda p: p.blend("x", 4), "expected 'labels' from 0 to 3, got 0 to 4"),
        (lambda p: p.blend("x", 5, labels="s"), "expected 's' to be whole numbers or probabilities of 5 classes"),
        (lambda p: p.blend("x", 5, labels="y"), "expected elements with 'y'"),
    ],
)
def test_data_that_do_not_fit(make: Callable[[data.Pipeline], data.Pipeline], message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(make(base()).batch(24).batches())


def test_elements_of_different_shapes() -> None:
    images = [IMAGES[k, : 4 + k % 3] for k in range(6)]
    pipeline = data.source([{"x": image, "labels": k} for k, image in enumerate(images)])
    turned = pipeline.augment("x", Apply("image", "invert")).augment("x", Apply("image", "rotate", 20.0))
    found = next(turned.crop("x", (4, 4)).batch(6).batches())["x"]
    assert found.shape == (6, 4, 4, 3)
    alone = next(turned.filter(lambda e: e["labels"] == 3).batch(1).batches())["x"]
    same = next(turned.filter(lambda e: e["labels"] % 3 == 0).batch(2).batches())["x"]
    np.testing.assert_array_equal(alone[0], same[1])
    with pytest.raises(DataError, match="flip of image failed at 1 rows: ValueError: expected an array of numbers"):
        next(data.source([{"x": "a"}]).augment("x", Apply("image", "flip")).map(dict).batch(1).batches())


def test_blends_need_a_length() -> None:
    with pytest.raises(DataError, match=r"can only be read in order: .* not .* blended; write them to a file"):
        next(data.iterable(lambda: iter([{"x": IMAGES[0], "labels": 1}])).blend("x", 5).batch(1).batches())


def squares(count: int = 400) -> data.Pipeline:
    """Images of one value, their number: a blend shows what it is made of."""
    x = np.broadcast_to(np.arange(count, dtype=np.float32)[:, None, None], (count, 10, 10)).copy()
    return data.arrays({"x": x, "labels": np.arange(count)})


def test_mixup() -> None:
    found = next(squares().blend("x", 400, alpha=0.5).batch(400).batches())
    x, labels = found["x"], found["labels"]
    assert labels.dtype == np.float32 and labels.shape == (400, 400)
    np.testing.assert_allclose(labels.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(x[:, 0, 0], labels @ np.arange(400), rtol=1e-4, atol=1e-2)  # in the same proportion
    assert (x == x[:, :1, :1]).all()
    own = labels[np.arange(400), np.arange(400)]
    others = np.argmax(np.where(np.eye(400) > 0, -1, labels), 1)[own < 0.999]
    assert len(set(others)) > 200  # of all elements
    assert own.mean() == pytest.approx(0.5, abs=0.06) and own.var() == pytest.approx(1 / 8, abs=0.02)  # Beta(½, ½)


def test_cutmix() -> None:
    found = next(squares().blend("x", 400, "cutmix", kind="image", axes="hw").batch(400).batches())
    x, labels = found["x"], found["labels"]
    np.testing.assert_allclose(x.mean((1, 2)), labels @ np.arange(400), rtol=1e-4, atol=1e-2)
    for k in range(400):
        other = x[k] != k
        assert len(np.unique(x[k])) <= 2
        rows, columns = np.flatnonzero(other.any(1)), np.flatnonzero(other.any(0))
        assert other.sum() == len(rows) * len(columns)  # a rectangle
        assert len(rows) == 0 or (np.ptp(rows) == len(rows) - 1 and np.ptp(columns) == len(columns) - 1)
        assert labels[k, k] == pytest.approx(1 - other.mean(), abs=1e-6) or (~other).all()
    lines = data.arrays({"x": np.arange(40.0)[:, None, None] + np.zeros((40, 2, 16)), "labels": np.arange(40)})
    batch = next(lines.blend("x", 40, "cutmix", kind="series").batch(40).batches())
    assert (batch["x"][:, 0] == batch["x"][:, 1]).all()  # all channels at the same times
    np.testing.assert_allclose(batch["x"].mean((1, 2)), batch["labels"] @ np.arange(40), rtol=1e-4, atol=1e-2)


def test_blends_by_chance_of_whole_numbers_and_of_blends() -> None:
    never = next(base().blend("x", 5, chance=0).batch(24).batches())
    np.testing.assert_array_equal(never["x"], IMAGES)
    np.testing.assert_array_equal(never["labels"], np.eye(5)[LABELS])
    always = next(base().blend("x", 5).blend("x", 5, "cutmix", kind="image").batch(24).batches())
    assert always["x"].dtype == np.uint8 and (always["x"] != IMAGES).any()
    np.testing.assert_allclose(always["labels"].sum(1), 1, rtol=1e-5)
    assert ((always["labels"] > 0).sum(1) > 2).any()
    assert Blend("mixup", "x", "labels", 5).shown == "mixup (alpha 1)"
