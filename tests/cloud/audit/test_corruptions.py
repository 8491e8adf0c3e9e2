"""Corruptions: in the range, the same for a seed, stronger with severity, and what single ones are."""

from __future__ import annotations

import numpy as np
import pytest

from cloud.audit.corruptions import corrupted, corruptions_of
from cloud.audit.corruptions.jpeg import jpeg
from cloud.audit.corruptions.runs import arranged
from cloud.audit.subject import Kind
from cloud.errors import AuditError

SHAPES: dict[str, tuple[Kind, tuple[int, ...], tuple[float, float]]] = {
    "grey": ("image", (1, 16, 12), (0.0, 1.0)),
    "colour, channels last": ("image", (16, 12, 3), (0.0, 255.0)),
    "waveform": ("sound", (400,), (-1.0, 1.0)),
    "spectrogram": ("spectrogram", (20, 8, 1), (-80.0, 0.0)),
    "series": ("series", (6, 1, 40), (-2.0, 2.0)),
    "series, time first": ("series", (40, 3), (-2.0, 2.0)),
    "table": ("table", (7,), (-3.0, 3.0)),
}
CASES = [(name, row.name) for name, (kind, shape, _) in SHAPES.items() for row in corruptions_of(shape, kind)]


def smooth(name: str, count: int = 6) -> np.ndarray:
    """Examples without the noise that would hide what a corruption does: waves over the longest axes."""
    _, shape, (low, high) = SHAPES[name]
    steps = np.arange(np.prod(shape)).reshape(shape) * 0.21
    waves = np.stack([np.sin(steps * (1 + 0.1 * i) / np.sqrt(steps.size) + i) for i in range(count)])
    return np.float32((waves * 0.4 + 0.5) * (high - low) + low)


@pytest.mark.parametrize(("name", "row"), CASES)
def test_values_stay_in_the_range_and_a_seed_decides(name: str, row: str) -> None:
    kind, shape, span = SHAPES[name]
    (one,) = (each for each in corruptions_of(shape, kind) if each.name == row)
    x = smooth(name)
    before = x.copy()
    changes = []
    for severity in range(1, 6):
        found = corrupted(one, severity, x, kind, span, seed=3)
        assert found.shape == x.shape and found.dtype == np.float32
        assert found.min() >= np.float32(span[0]) and found.max() <= np.float32(span[1])
        np.testing.assert_array_equal(found, corrupted(one, severity, x, kind, span, seed=3))
        changes.append(float(np.abs(found - x).mean()))
    np.testing.assert_array_equal(x, before)
    assert changes[0] > 0 and changes[4] > changes[0]


def test_severity_is_one_to_five_and_shapes_must_fit() -> None:
    (row, *_) = corruptions_of((4,), "table")
    with pytest.raises(AuditError, match="severity: expected 1 to 5, got 6"):
        corrupted(row, 6, np.zeros((2, 4), np.float32), "table", (0, 1))
    with pytest.raises(AuditError, match="1, 3 or 4 channels first or last"):
        corruptions_of((5, 6, 7), "image")
    assert arranged((9, 1, 128), "series") == ((0, 1, 2), (9, 128))
    assert arranged((49, 10, 1), "spectrogram") == ((0, 1, 2), (49, 10))
    assert "axis_rotation" not in {row.name for row in corruptions_of((4, 50), "series")}


def test_a_rotation_of_axes_keeps_lengths() -> None:
    x = np.random.default_rng(0).normal(size=(5, 6, 30)).astype(np.float32)
    (row,) = (each for each in corruptions_of((6, 30), "series") if each.name == "axis_rotation")
    found = corrupted(row, 5, x, "series", (-100, 100))
    lengths = [np.sqrt((one.reshape(5, 2, 3, 30) ** 2).sum(2)) for one in (x, found)]
    np.testing.assert_allclose(*lengths, rtol=1e-4)
    assert np.abs(found - x).mean() > 0.5


def test_noise_has_the_stated_ratio() -> None:
    x = np.float32(np.sin(np.arange(4000) * 0.1))[None].repeat(4, 0)
    (row,) = (each for each in corruptions_of((4000,), "sound") if each.name == "noise")
    noise = corrupted(row, 3, x, "sound", (-9, 9)) - x
    assert 10 * np.log10((x**2).mean() / (noise**2).mean()) == pytest.approx(row.levels[2], abs=0.2)


def test_missing_values_are_the_mean_of_all_examples() -> None:
    known = np.random.default_rng(0).normal(5, 1, (100, 6)).astype(np.float32)
    x = np.full((40, 6), 9, np.float32)
    (row,) = (each for each in corruptions_of((6,), "table") if each.name == "missing")
    found = corrupted(row, 5, x, "table", (0, 10), known=known)
    lost = found != 9
    assert 0.4 < lost.mean() < 0.6
    np.testing.assert_allclose(found[lost], np.broadcast_to(known.mean(0), x.shape)[lost], rtol=1e-5)


@pytest.mark.parametrize("quality", [80, 30])
def test_jpeg_is_that_of_a_codec(quality: int) -> None:
    image = pytest.importorskip("PIL.Image")
    import io

    steps = np.mgrid[:37, :45]
    planes = [np.sin(steps[0] * 0.31 + i) + np.cos(steps[1] * 0.17 * (i + 1)) for i in range(3)]
    pixels = np.uint8(np.stack(planes, 2) * 60 + 128)
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "JPEG", quality=quality)
    theirs = np.asarray(image.open(file), np.float64)
    ours = jpeg(pixels[None] / 255.0, quality)[0] * 255
    assert np.abs(ours - theirs).mean() < 0.25 * np.abs(pixels - theirs).mean()
