"""Labelled examples for the networks that the accuracy table trains itself, from public data sets.

Each function reads one file of the data folder: ((inputs, labels) for training, (inputs, labels) to evaluate), float32
inputs [examples, channels, height, width]. Both parts come from different people, or different recordings.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np

from edge.demo.updates.scene import untangled
from lite_runtime.graph import Array

__all__ = ["Examples", "characters", "cluttered_digits", "digit_masks", "motion", "spoken_digits", "text",
           "untangled", "wrist"]  # fmt: skip

Examples: TypeAlias = tuple[tuple[Array, Array], tuple[Array, Array]]

_CANVAS = 48
_DIGITS, _TESTED = 12000, 3000


def motion(data: Path) -> Examples:
    """Six activities from a phone's nine inertial signals, 128 steps [9, 1, 128]; the test has the last quarter of
    each person's windows."""
    with np.load(data / "har_30_subjects.npz") as file:
        x, y, test = untangled(file["x"]), file["y"].astype(np.int32), file["test"]
    return (x[~test], y[~test]), (x[test], y[test])


_STEPS, _HOP = 96, 24


def wrist(data: Path) -> Examples:
    """Activities of daily life from a wrist's accelerometer, 3 s [3, 1, 96]; every third recording is for the test."""
    with np.load(data / "hmp_wrist_accelerometer.npz") as file:
        signal, offsets = file["acc"].astype(np.float32) / 32 - 1, file["offsets"]
        labels = np.unique(file["activity"], return_inverse=True)[1]
    x: list[list[Array]] = [[], []]
    y: list[list[int]] = [[], []]
    for number, (start, stop) in enumerate(pairwise(offsets)):
        part = number % 3 == 2
        for at in range(start, stop - _STEPS, _HOP * (4 if part else 1)):
            x[part].append(signal[at : at + _STEPS].T[:, None])
            y[part].append(labels[number])
    (a, b), (c, d) = (np.array(v, np.float32) for v in x), (np.array(v, np.int32) for v in y)
    return (a, c), (b, d)


_FRAME, _SHIFT, _FRAMES, _BANDS = 256, 128, 48, 32


def spoken_digits(data: Path) -> Examples:
    """Logarithms of the power in 32 mel bands over 48 frames of spoken digits [1, 32, 48]; of each speaker and digit
    the first fifth of the recordings is for the test."""
    with np.load(data / "fsdd_spoken_digits.npz") as file:
        audio, offsets, y, test = file["audio"], file["offsets"], file["digit"].astype(np.int32), file["index"] < 10
    bands = _mel()
    found = np.stack([_spectrum(audio[a:b], bands) for a, b in pairwise(offsets)])[:, None].astype(np.float32)
    x = (found - found[~test].mean()) / found[~test].std()
    return (x[~test], y[~test]), (x[test], y[test])


def _spectrum(clip: Array, bands: Array) -> Array:
    length = _FRAME + _SHIFT * (_FRAMES - 1)
    samples = np.zeros(length)
    samples[: min(len(clip), length)] = clip[:length] / 32768
    frames = np.lib.stride_tricks.sliding_window_view(samples, _FRAME)[::_SHIFT] * np.hanning(_FRAME)
    return np.asarray(np.log(np.abs(np.fft.rfft(frames)) ** 2 @ bands + 1e-5).T)


def _mel() -> Array:
    top = 2595 * np.log10(1 + 4000 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, _BANDS + 2) / 2595) - 1)
    at = np.fft.rfftfreq(_FRAME, 1 / 8000)[:, None]
    rise, fall = (at - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - at) / np.diff(edges)[1:]
    return np.asarray(np.maximum(0, np.minimum(rise, fall)))


def characters(data: Path) -> Examples:
    """136 handwritten characters of five alphabets, 52 x 52 pixels [1, 52, 52]; 5 of 20 drawers are for the test.

    Training rows are also shifted by up to 3 pixels, five times each.
    """
    with np.load(data / "omniglot_small1.npz") as file:
        size, bits, drawer = tuple(file["shape"]), file["bits"], file["drawer"]
        names = np.char.add(file["alphabet"], file["character"].astype(str))
    y = np.unique(names, return_inverse=True)[1].astype(np.int32)
    pixels = np.unpackbits(bits, axis=1)[:, : size[0] * size[1]].reshape(-1, *size).astype(np.float32)
    pixels = pixels[:, :104, :104].reshape(-1, 52, 2, 52, 2).mean((2, 4))[:, None]
    test, rng = drawer % 4 == 3, np.random.default_rng(0)
    x, again = pixels[~test], [pixels[~test]]
    for _ in range(5):
        moves = rng.integers(-3, 4, (len(x), 2))
        again.append(np.stack([np.roll(image, tuple(move), (1, 2)) for image, move in zip(x, moves, strict=True)]))
    return (np.concatenate(again), np.tile(y[~test], 6)), (pixels[test], y[test])


def cluttered_digits(data: Path) -> Examples:
    """A handwritten digit on 48 x 48 pixels with pieces of other digits, uneven light and noise [3, 48, 48]."""
    (x, _, y), (held, _, labels) = _scenes(data)
    return (x, y), (held, labels)


def digit_masks(data: Path) -> Examples:
    """The same pictures, and which pixels belong to the digit [1, 48, 48]."""
    (x, mask, _), (held, masks, _) = _scenes(data)
    return (x, mask), (held, masks)


def _scenes(data: Path) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
    with np.load(data / "mnist.npz") as file:
        train, test = ((file[f"x_{k}"], file[f"y_{k}"].astype(np.int32)) for k in ("train", "test"))
    return _scene(*train, _DIGITS, 1), _scene(*test, _TESTED, 2)


def _scene(digits: Array, labels: Array, count: int, seed: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(digits))[:count]
    canvas, mask = np.zeros((count, _CANVAS, _CANVAS), np.float32), np.zeros((count, 1, _CANVAS, _CANVAS), np.float32)
    for i in range(count):
        for _ in range(6):
            piece = digits[rng.integers(len(digits))][rng.integers(0, 18) :][:10]
            piece = piece[:, (left := rng.integers(0, 18)) : left + 10]
            top, side = rng.integers(0, _CANVAS - 10, 2)
            part = canvas[i, top : top + 10, side : side + 10]
            np.maximum(part, piece[: len(part)] / np.float32(255), out=part[: len(piece)])
        top, side = rng.integers(0, _CANVAS - 28, 2)
        part, digit = canvas[i, top : top + 28, side : side + 28], digits[chosen[i]] / np.float32(255)
        np.maximum(part, digit, out=part)
        mask[i, 0, top : top + 28, side : side + 28] = digit > 0.5
    one = (count, 3, 1, 1)
    light = rng.uniform(0.3, 1.0, one) + np.linspace(0, 1, _CANVAS) * rng.uniform(-0.3, 0.3, one)
    noise = rng.normal(0, 0.12, (count, 3, _CANVAS, _CANVAS))
    x = canvas[:, None] * light + rng.uniform(0, 0.3, one) + noise
    return np.clip(np.rint(x * 255), 0, 255).astype(np.float32) / np.float32(255), mask, labels[chosen]


_LENGTH = 64


def text(data: Path) -> Examples:
    """64 bytes of plays, and the byte after each; the last tenth is for the test. Inputs are int32."""
    whole = np.frombuffer((data / "tinyshakespeare.txt").read_bytes(), np.uint8).astype(np.int32)
    cut = len(whole) * 9 // 10

    def windows(part: Array, hop: int) -> tuple[Array, Array]:
        found = np.lib.stride_tricks.sliding_window_view(part, _LENGTH + 1)[::hop]
        return np.ascontiguousarray(found[:, :-1]), np.ascontiguousarray(found[:, 1:])

    return windows(whole[:cut], 16), windows(whole[cut:], 384)
