"""`python -m benchmarks.federated.digits FILE.npz OUT.json`: spoken digits of 6 speakers, 4 of whom train.

Free Spoken Digit Dataset (Jackson et al. 2016): `audio` int16 at 8 kHz, utterance i from `offsets[i]` to
`offsets[i + 1]`, `digit`, `speaker`.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.federated.people import People, main
from cloud.zoo import window_cnn
from federated.learner import Batch

__all__ = ["log_mel", "people"]

_RATE, _WINDOW, _HOP, _BANDS, _FRAMES = 8000, 256, 128, 24, 32


def log_mel(audio: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
    """The logarithms of the energies in 24 mel bands [24, 32] of the first 0.53 s: 32 ms windows every 16 ms, padded
    with silence; the utterance is scaled so that its largest sample is 1."""
    wave = np.zeros(_WINDOW + _HOP * (_FRAMES - 1))
    wave[: len(audio)] = audio[: len(wave)] / max(1, int(np.abs(audio.astype(np.int32)).max()))
    frames = np.lib.stride_tricks.sliding_window_view(wave, _WINDOW)[::_HOP] * np.hanning(_WINDOW)
    energies: npt.NDArray[np.float64] = _mel() @ (np.abs(np.fft.rfft(frames)) ** 2).T
    return np.log(energies + 1e-4).astype(np.float32)


def _mel() -> npt.NDArray[np.float64]:
    """Triangles [bands, bins], evenly spaced on the mel scale from 0 Hz to half the sampling rate (O'Shaughnessy
    1987)."""
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + _RATE / 2 / 700), _BANDS + 2) / 2595) - 1)
    bins = np.arange(_WINDOW // 2 + 1) * _RATE / _WINDOW
    low, middle, high = (edges[i : i + _BANDS, None] for i in range(3))
    return np.maximum(0, np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle)))


def people(file: Path) -> People:
    """The people in the file; bands are standardised over all of them."""
    with np.load(file, allow_pickle=False) as data:
        audio, offsets, labels, speaker = data["audio"], data["offsets"], data["digit"], data["speaker"]
    x = np.stack([log_mel(audio[a:b]) for a, b in itertools.pairwise(offsets)])
    x = ((x - x.mean((0, 2), keepdims=True)) / x.std((0, 2), keepdims=True))[:, :, None]
    model = window_cnn(x.shape[1:], 10, filters=(32, 32), kernel=5)
    examples = Batch({"x": x}, labels.astype(np.int32))
    return People(examples, speaker, model, unseen=2, rounds=60, batches=10, adapt_steps=(25,), pace=0.4)


if __name__ == "__main__":
    main(people(Path(sys.argv[1])), sys.argv[2:])
