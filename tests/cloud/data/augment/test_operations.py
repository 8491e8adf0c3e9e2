"""Every operation of the table: what it leaves alone, and its values beside a slow reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage

from cloud.data import Apply, Policy
from cloud.data.augment.table import KINDS
from cloud.data.draws import Draws, folded, state_of

RNG = np.random.default_rng(0)
SHAPES = {"image": (3, 24, 20), "spectrum": (12, 20, 1), "series": (24, 6)}
OPERATIONS = [(kind, name) for kind, row in KINDS.items() for name in row.operations]
VALUES = (0.0, 1.0, 0.25)


def draws(count: int = 8) -> Draws:
    return Draws(folded(state_of((3,)), np.arange(count)))


def floats(kind: str, count: int = 8) -> Any:
    return RNG.random((count, *SHAPES[kind])).astype(np.float32)


@pytest.mark.parametrize(("kind", "name"), OPERATIONS)
def test_invariants(kind: str, name: str) -> None:
    operation, x = KINDS[kind].operations[name], floats(kind)
    before = x.copy()
    if operation.most:
        still = operation.change(x, np.zeros(8), draws(), VALUES)
        np.testing.assert_allclose(still, x, rtol=1e-6, atol=1e-6)
    changed = operation.change(x, np.full(8, operation.widest), draws(), VALUES)
    assert changed.shape == x.shape and changed.dtype == x.dtype
    np.testing.assert_array_equal(x, before)  # its argument stays
    assert name == "identity" or sum((a != b).any() for a, b in zip(changed, x, strict=True)) >= 6
    alone = [operation.change(x[k : k + 1], np.full(1, operation.widest), draws().rows(np.array([k])), VALUES)
             for k in range(8)]  # fmt: skip
    np.testing.assert_allclose(changed, np.concatenate(alone), rtol=1e-6, atol=1e-6)  # rows are independent


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "float32", "float64", "bfloat16"])
def test_shapes_and_dtypes_stay(dtype: str) -> None:
    known: Any = {"bfloat16": ml_dtypes.bfloat16}
    for kind, axes, shape in (
        ("image", "", (9, 8, 3)), ("image", "chw", (1, 9, 8)), ("image", "hw", (9, 8)), ("image", "whc", (9, 8, 2)),
        ("spectrum", "", (9, 8)), ("spectrum", "1tf", (1, 9, 8)), ("spectrum", "tcf", (9, 2, 8)),
        ("series", "", (6, 16)), ("series", "tc", (16, 3)), ("series", "c1t", (6, 1, 16)), ("series", "t", (16,)),
    ):  # fmt: skip
        x = (RNG.random((16, *shape)) * 200).astype(known.get(dtype, dtype))
        names = tuple(n for n in KINDS[kind].operations if n != "rotate" or kind != "series" or "c" in axes)
        policy = Policy(kind, names, choose=3, magnitude=30, axes=axes, range=(0, 255) if kind == "image" else ())
        found = policy(x, draws(16))
        assert found.shape == x.shape and found.dtype == x.dtype and (found != x).any()
        for still in (Policy(kind, magnitude=0, operations=("jitter",) if kind == "series" else ("noise",), axes=axes),
                      Policy(kind, chance=0, axes=axes)):  # fmt: skip
            assert (still(x, draws(16)) == x).all()


def test_moves_are_scipys() -> None:
    x, amount = floats("image"), np.linspace(-0.4, 0.4, 8)
    operations = KINDS["image"].operations
    turn = np.deg2rad(amount * 100)
    matrices = {
        "shear_x": [[[1, 0], [a, 1]] for a in amount],
        "shear_y": [[[1, a], [0, 1]] for a in amount],
        "rotate": [[[np.cos(t), np.sin(t)], [-np.sin(t), np.cos(t)]] for t in turn],
        "zoom": [np.eye(2) * 2**-a for a in amount],
        "translate_x": [np.eye(2)] * 8,
        "translate_y": [np.eye(2)] * 8,
    }
    middle = np.array([11.5, 9.5])
    for name, each in matrices.items():
        scale = 100 if name == "rotate" else 1
        found = operations[name].change(x, amount * scale, draws(), VALUES)
        for image, matrix, a, got in zip(x, each, amount, found, strict=True):
            move = {"translate_x": (0, -a * 20), "translate_y": (-a * 24, 0)}.get(name, (0, 0))
            offset = middle - matrix @ middle + move
            for c in range(3):
                expected = ndimage.affine_transform(image[c], matrix, offset, order=1, mode="grid-constant", cval=0.25)
                np.testing.assert_allclose(got[c], expected, atol=2e-5, err_msg=name)


def test_rotation_is_against_the_clock() -> None:
    x = np.zeros((1, 1, 5, 5), np.float32)
    x[0, 0, 2, 4] = 1  # on the right
    found = KINDS["image"].operations["rotate"].change(x, np.array([90.0]), draws(1), VALUES)
    assert found[0, 0, 0, 2] == pytest.approx(1, abs=1e-5)  # at the top


def test_colours_are_pils() -> None:
    images = RNG.integers(30, 200, (8, 16, 15, 3)).astype(np.uint8)
    planes = images.transpose(0, 3, 1, 2).astype(np.float32)
    values, factor = (0.0, 255.0, 0.0), 0.4
    reference: dict[str, tuple[float, Any]] = {
        "brightness": (factor, lambda i: ImageEnhance.Brightness(i).enhance(1 + factor)),
        "contrast": (factor, lambda i: ImageEnhance.Contrast(i).enhance(1 + factor)),
        "color": (-factor, lambda i: ImageEnhance.Color(i).enhance(1 - factor)),
        "sharpness": (factor, lambda i: ImageEnhance.Sharpness(i).enhance(1 + factor)),
        "posterize": (3.0, lambda i: ImageOps.posterize(i, 5)),
        "solarize": (0.5, lambda i: ImageOps.solarize(i, 128)),
        "autocontrast": (0.0, ImageOps.autocontrast),
        "equalize": (0.0, ImageOps.equalize),
        "invert": (0.0, ImageOps.invert),
        "flip": (0.0, ImageOps.mirror),
    }
    for name, (amount, make) in reference.items():
        found = KINDS["image"].operations[name].change(planes, np.full(8, amount), draws(), values)
        for image, got in zip(images, found.transpose(0, 2, 3, 1), strict=True):
            expected = np.asarray(make(Image.fromarray(image))).astype(float)
            # PIL rounds the grey, the mean and the smoothed image to whole numbers before it mixes
            assert np.abs(got - expected).max() <= (2 if name in ("contrast", "color", "sharpness") else 1) + 1e-3, name


def test_what_is_filled() -> None:
    ones = np.ones((8, 10, 20, 1), np.float32)
    for kind, name, amount, share in (
        ("spectrum", "frequency_mask", 0.3, 0.3), ("spectrum", "time_mask", 0.2, 0.2), ("image", "erase", 0.5, 0.25),
    ):  # fmt: skip
        given = ones.transpose(0, 3, 1, 2) if kind == "image" else ones
        found = KINDS[kind].operations[name].change(given, np.full(8, amount), draws(), VALUES)
        filled = (found == 0.25).reshape(8, -1)
        np.testing.assert_allclose(filled.mean(1), share)
        assert len(np.unique(filled, axis=0)) > 3  # at different places
    ramp = np.arange(20, dtype=np.float32)[None, None, :, None].repeat(8, 0)
    late = KINDS["spectrum"].operations["time_shift"].change(ramp, np.full(8, 0.25), draws(), VALUES)
    np.testing.assert_array_equal(late[3, 0, :, 0], [0.25] * 5 + list(range(15)))
    high = (
        KINDS["spectrum"]
        .operations["frequency_shift"]
        .change(ramp.transpose(0, 2, 1, 3), np.full(8, -0.5), draws(), VALUES)
    )
    np.testing.assert_array_equal(high[0, :, 0, 0], [*range(10, 20), *[0.25] * 10])
    x = np.ones((200, 8, 6), np.float32)
    dropped = KINDS["series"].operations["drop"].change(x, np.full(200, 0.3), draws(200), VALUES) == 0.25
    assert (dropped.all(1) == dropped.any(1)).all() and 0.26 < dropped.mean() < 0.34


def test_series() -> None:
    operations, count = KINDS["series"].operations, 400
    x, some = RNG.normal(size=(count, 24, 6)).astype(np.float32), np.full(count, 0.2)
    turned = operations["rotate"].change(x, np.full(count, 50.0), draws(count), VALUES)
    before, after = (a.reshape(count, 24, 2, 3) for a in (x, turned))
    np.testing.assert_allclose(np.linalg.norm(after, axis=-1), np.linalg.norm(before, axis=-1), rtol=1e-4)
    np.testing.assert_allclose(
        (after[:, :, 0] * after[:, :, 1]).sum(-1), (before[:, :, 0] * before[:, :, 1]).sum(-1), atol=1e-4
    )  # the sensors of a device turn together
    for k in range(5):  # the trace of a rotation is 1 + 2 cos(angle)
        matrix = np.linalg.lstsq(x[k, :, :3], turned[k, :, :3], rcond=None)[0]
        assert np.trace(matrix) == pytest.approx(1 + 2 * np.cos(np.deg2rad(50)), abs=1e-4)
        assert np.linalg.det(matrix) == pytest.approx(1, abs=1e-4)
    noise = operations["jitter"].change(x * 5, some, draws(count), VALUES) - x * 5
    assert (noise / (x * 5).std(1, keepdims=True)).std() == pytest.approx(0.2, rel=0.02)
    factors = operations["scale"].change(x, some, draws(count), VALUES) / x
    np.testing.assert_allclose(factors, factors[:, :1].repeat(24, 1), rtol=1e-4)
    assert factors[:, 0].std() == pytest.approx(0.2, rel=0.05) and factors.mean() == pytest.approx(1, abs=0.02)
    curve = operations["magnitude_warp"].change(x, some, draws(count), VALUES) / x
    assert curve[:, 0].std() == pytest.approx(0.2, rel=0.05)
    assert np.abs(np.diff(curve, axis=1)).mean() < 0.1  # smooth
    shifted = operations["time_shift"].change(x, np.full(count, -0.25), draws(count), VALUES)
    np.testing.assert_array_equal(shifted, np.roll(x, -6, 1))
    parts = operations["permute"].change(x, np.full(count, 3.0), draws(count), VALUES)
    quarters = {tuple(row[6 * k : 6 * k + 6, 0]) for row in x for k in range(4)}
    assert all(tuple(row[6 * k : 6 * k + 6, 0]) in quarters for row in parts for k in range(4))
    with pytest.raises(ValueError, match=r"three channels \(x, y, z\) for each sensor to rotate, got 4"):
        operations["rotate"].change(x[:, :, :4], some, draws(count), VALUES)


@pytest.mark.parametrize(
    ("kind", "name"), [("series", "time_warp"), ("series", "time_slice"), ("spectrum", "time_warp")]
)
def test_time_goes_on(kind: str, name: str) -> None:
    """Of a ramp these give the times that they read."""
    ramp = np.arange(32, dtype=np.float32)[None, :, None].repeat(64, 0)
    given = ramp[:, None].repeat(2, 1) if kind == "spectrum" else ramp
    amount = np.full(64, 0.25)
    found = KINDS[kind].operations[name].change(given, amount, draws(64), VALUES)
    at = found[:, 0, :, 0] if kind == "spectrum" else found[:, :, 0]
    steps = np.diff(at, axis=1)
    assert (steps > 0).all() and at.std(0).max() > 1
    if name == "time_warp":
        np.testing.assert_allclose(at[:, [0, -1]], [[0, 31]] * 64, atol=1e-4)
    else:
        np.testing.assert_allclose(steps, 0.75, rtol=1e-4)
    if kind == "spectrum":  # a point moved by a quarter: two speeds, three where a step covers both
        assert all(len(np.unique(np.round(row, 3))) <= 3 for row in steps)
        linear = [np.interp(at[k], np.arange(32), np.arange(32) ** 2) for k in range(64)]
        square = KINDS[kind].operations[name].change(given**2, amount, draws(64), VALUES)
        np.testing.assert_allclose(square[:, 0, :, 0], linear, rtol=1e-3, atol=1e-2)


def test_amounts_are_drawn_as_stated() -> None:
    x = np.zeros((4000, 1, 1, 1), np.float32) + 0.5

    def amounts(change: Any) -> Any:
        return change(x, draws(4000)).ravel() / 0.5 - 1

    once = amounts(Apply("image", "brightness", 0.8, chance=0.5))
    assert 0.46 < (once != 0).mean() < 0.54
    used = once[once != 0]
    assert (
        abs(used.mean()) < 0.05 and np.abs(used).max() <= 0.8001 and np.abs(used).mean() == pytest.approx(0.4, abs=0.02)
    )
    fixed = amounts(Policy("image", ("brightness",), choose=1, magnitude=10))
    np.testing.assert_allclose(np.abs(fixed), 0.3, rtol=1e-5)
    assert 0.46 < (fixed > 0).mean() < 0.54
    wide = amounts(Policy("image", ("brightness",), choose=1, magnitude=30, wide=True, uniform=True))
    assert 0.97 < np.abs(wide).max() <= 0.9901 and np.abs(wide).mean() == pytest.approx(0.495, abs=0.02)
    twice = amounts(Policy("image", ("brightness", "identity"), choose=2, magnitude=10))
    shares = [float((np.abs(twice - value) < 1e-4).mean()) for value in (0.0, 0.69, -0.09, 0.3, -0.3, -0.51)]
    np.testing.assert_allclose(shares, [1 / 4, 1 / 16, 1 / 8, 1 / 4, 1 / 4, 1 / 16], atol=0.03)
