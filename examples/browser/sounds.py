"""Sounds of five kinds, made of formulas, and the steps that a network hears them by."""

from __future__ import annotations

import io
import wave
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["KINDS", "SHAPE", "STEPS", "examples", "samples"]

RATE, BANDS, FRAME = 16000, 20, 512
"""Samples a second, and of a sound; bands; samples of a frame."""
STEPS: list[dict[str, Any]] = [
    {"step": "audio", "rate": RATE},
    {"step": "length", "samples": RATE},
    {"step": "spectrogram", "fft": FRAME, "hop": FRAME, "pad": "none"},
    {"step": "mel", "rate": RATE, "bands": BANDS, "low": 80.0, "high": 7600.0},
    {"step": "log", "offset": 1e-3},
    {"step": "normalize", "std": 4.0},
    {"step": "transpose", "axes": [1, 0]},
    {"step": "expand", "axis": 1},
]
SHAPE = (BANDS, 1, RATE // FRAME)
EACH = 150
"""Examples of a kind."""
TIME = np.arange(RATE) / RATE


def _hum(rng: np.random.Generator) -> np.ndarray:
    pitch = rng.uniform(90, 260)
    return np.asarray(sum(np.sin(2 * np.pi * pitch * k * TIME + rng.uniform(0, 6)) / k for k in range(1, 7)))


def _rising(rng: np.random.Generator) -> np.ndarray:
    low, high = rng.uniform(500, 1000), rng.uniform(1800, 3200)
    return np.asarray(np.sin(2 * np.pi * (low + (high - low) * TIME / 2) * TIME))


def _falling(rng: np.random.Generator) -> np.ndarray:
    return _rising(rng)[::-1]


def _knocks(rng: np.random.Generator) -> np.ndarray:
    made = np.zeros(RATE)
    for begin in rng.integers(0, RATE - 2000, rng.integers(2, 6)):
        made[begin : begin + 2000] += rng.standard_normal(2000) * np.exp(-np.arange(2000) / rng.uniform(100, 300))
    return made


def _hiss(rng: np.random.Generator) -> np.ndarray:
    return np.diff(rng.standard_normal(RATE + 1))


KINDS: Mapping[str, Callable[[np.random.Generator], np.ndarray]] = {
    "hum": _hum, "rising": _rising, "falling": _falling, "knocks": _knocks, "hiss": _hiss
}  # fmt: skip
"""The labels in their order, and how a sound of each is made: one second."""


def _drawn(name: str, rng: np.random.Generator) -> bytes:
    """A sound as a microphone may record it, as a WAV file: from any moment on, loud or low, in some noise."""
    sound = KINDS[name](rng)
    sound = np.roll(sound, rng.integers(-3000, 3000)) / np.abs(sound).max()
    sound = 10 ** rng.uniform(-1.5, 0) * sound + 10 ** rng.uniform(-3.5, -2) * rng.standard_normal(RATE)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.rint(np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())
    return out.getvalue()


def examples() -> tuple[list[bytes], np.ndarray]:
    """Recordings as WAV files, and the numbers of their kinds."""
    rng = np.random.default_rng(0)
    labels = np.tile(np.arange(len(KINDS), dtype=np.int32), EACH)
    return [_drawn(list(KINDS)[label], rng) for label in labels], labels


def samples() -> dict[str, bytes]:
    """A WAV file of each kind, by file name."""
    rng = np.random.default_rng(1)
    return {f"{name}.wav": _drawn(name, rng) for name in KINDS}
