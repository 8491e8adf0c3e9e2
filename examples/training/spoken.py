"""Spoken words as the keyword spotter's input: 49 frames of 10 cepstral coefficients (MFCCs) each.

Made for the Free Spoken Digit Dataset as one .npz file: `audio` int16 [samples] at 8 kHz, all recordings one
after another; `offsets` [recordings + 1]; `digit` and `index` [recordings]. Recordings with `index` below 5 are for
testing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.fft import dct

RATE, FRAMES, FRAME, HOP, BANDS, KEPT = 8000, 49, 320, 160, 32, 10
"""Samples per second; frames of 40 ms, one every 20 ms; bands of the mel scale; coefficients per frame."""

Arrays = npt.NDArray[Any]


def digits(path: str) -> tuple[Any, Any]:
    """((inputs, labels) for training, (inputs, labels) for validation)."""
    with np.load(path) as file:
        audio, offsets, labels, test = file["audio"], file["offsets"], file["digit"].astype(np.int32), file["index"] < 5
    clips = [audio[start:end] for start, end in pairwise(offsets)]
    found = np.stack([coefficients(clip) for clip in clips])[:, None].astype(np.float32)
    known = found[~test]
    x = (found - known.mean((0, 2), keepdims=True)) / known.std((0, 2), keepdims=True)
    return ({"x": x[~test]}, labels[~test]), ({"x": x[test]}, labels[test])


def coefficients(clip: Arrays) -> Arrays:
    """One recording [samples] as [FRAMES, KEPT]: its first second, padded with silence."""
    length = FRAME + HOP * (FRAMES - 1)
    samples = np.zeros(length)
    samples[: min(len(clip), length)] = clip[:length] / 32768
    frames = np.lib.stride_tricks.sliding_window_view(samples, FRAME)[::HOP] * np.hanning(FRAME)
    energy = np.abs(np.fft.rfft(frames)) ** 2 @ _BANDS
    return np.asarray(dct(np.log(energy + 1e-6), norm="ortho")[:, :KEPT])


def _bands() -> Arrays:
    """Triangles evenly spaced on the mel scale, [frequencies, BANDS]."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    at = np.fft.rfftfreq(FRAME, 1 / RATE)[:, None]
    rise, fall = (at - edges[:-2]) / (edges[1:-1] - edges[:-2]), (edges[2:] - at) / (edges[2:] - edges[1:-1])
    return np.asarray(np.maximum(0, np.minimum(rise, fall)))


_BANDS = _bands()
