"""`python -m benchmarks.federated.har FILE.npz OUT.json [--turned]`: activities of 30 people, 24 of whom train.

UCI HAR (Anguita et al. 2013): `x` float16 inertial windows of nine signals at 50 Hz, `y` labels of 6 activities,
`subject`. As in that paper, a model's inputs are features of a window, not the window: for each channel the mean,
deviation, extremes, roughness and the logarithms of the energies in bands of its spectrum.

`--turned` changes the protocol: every person wears the phone in another orientation, so x, y and z are rotated at
random.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy.examples import untangled
from benchmarks.federated.people import People, main
from cloud.zoo import mlp
from federated.learner import Batch

__all__ = ["features", "people", "turned"]

_BANDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Edges in bins of the 128-point spectrum; 1 is 0.39 Hz."""


def features(windows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Windows [n, channels, 128] -> [n, 15 * channels]."""
    energy = np.abs(np.fft.rfft(windows)) ** 2
    bands = [np.log(energy[..., a:b].mean(-1) + 1e-3) for a, b in itertools.pairwise(_BANDS)]
    rough = np.abs(np.diff(windows)).mean(-1)
    plain = [windows.mean(-1), windows.std(-1), windows.min(-1), windows.max(-1), rough]
    return np.concatenate(plain + bands, axis=1).astype(np.float32)


def turned(windows: npt.NDArray[np.float32], subject: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Rotate each person's three triples of axes (body and total acceleration, angular velocity) by a rotation drawn
    uniformly for that person (the orthogonal part of a Gaussian matrix, with its determinant made 1)."""
    result = np.empty_like(windows)
    rng = np.random.default_rng(0)
    for who in np.unique(subject):
        q, r = np.linalg.qr(rng.standard_normal((3, 3)))
        q *= np.sign(np.diag(r))
        q[:, 0] *= np.linalg.det(q)
        own = windows[subject == who]
        result[subject == who] = np.einsum("ij,nsjt->nsit", q, own.reshape(-1, 3, 3, own.shape[-1])).reshape(own.shape)
    return result


def people(file: Path, turn: bool = False) -> People:
    """The people in the file; features are standardised over all of them."""
    with np.load(file, allow_pickle=False) as data:
        windows, labels, subject = untangled(data["x"])[:, :, 0], data["y"].astype(np.int32), data["subject"]
    x = features(turned(windows, subject) if turn else windows)
    x = (x - x.mean(0)) / x.std(0)
    owner = np.array([f"{number:02}" for number in subject])
    return People(Batch({"x": x}, labels), owner, mlp(x.shape[1], 6, (64, 32)), unseen=6, rounds=100, batches=10)


if __name__ == "__main__":
    rest = [word for word in sys.argv[2:] if word != "--turned"]
    main(people(Path(sys.argv[1]), "--turned" in sys.argv), rest)
