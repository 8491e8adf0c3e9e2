"""Real data, divided among devices, and what changes on a third of them: one axis of a sensor is flipped.

Two scenes. `activities`: inertial windows of 30 people (UCI HAR: Anguita et al. 2013), whose file the user has; six
people are the cloud's volunteers, the others have the devices; gravity's axis of the accelerometer is flipped.
`digits`: scikit-learn's images, with cameras that are shifted differently; they are mirrored. A device has some labels
more often than others, as people have habits: by a Dirichlet distribution.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lite_runtime.errors import MsedgeError

__all__ = ["APP", "CHANGED", "FILE", "SOURCE", "Examples", "Mine", "Scene", "mine_in", "name_of", "scene"]
__all__ += ["untangled", "write_devices"]

APP, FILE, SOURCE = "sensing", "sensing.mslite", "model.onnx"
"""The application, its bundle, and the model that the bundle is made of."""
Floats = npt.NDArray[np.float32]
CHANGED = 3
"""Every third device changes."""
VOLUNTEERS = 6
HABITS = 1.0
"""Of the Dirichlet distribution of labels."""
LEAST = 16
"""Examples that a device has."""
_BANDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Edges in bins of the 128-point spectrum of windows at 50 Hz; 1 is 0.39 Hz."""
_SHIFTS = tuple(itertools.product((-1, 0, 1), repeat=2))


class Examples(NamedTuple):
    """x [n, features] float32, labels [n] int64."""

    x: Floats
    y: npt.NDArray[np.int64]


class Mine(NamedTuple):
    """What one device sees, before and after the change (the same on most): to learn from, and aside."""

    learn: Examples
    aside: Examples
    learn_later: Examples
    aside_later: Examples
    changes: bool


_PARTS = Mine._fields[:4]


class Scene(NamedTuple):
    """cloud: the first version is trained on it. streams: what telemetry tells of inputs, by name: columns of x."""

    name: str
    classes: int
    cloud: Examples
    devices: Mapping[str, Mine]
    streams: Mapping[str, int]

    @property
    def features(self) -> int:
        """The width of x."""
        return int(self.cloud.x.shape[1])


def scene(devices: int, data: Path | None, seed: int = 0) -> Scene:
    """The scene for so many devices: `activities` with a file, else `digits`. Raises MsedgeError for another file."""
    rng = np.random.default_rng(seed)
    return _digits(devices, rng) if data is None else _activities(devices, data, rng)


def name_of(number: int) -> str:
    """Of a device."""
    return f"device-{number:03}"


def write_devices(there: Scene, folder: Path) -> None:
    """What each device sees, as NAME.npz, for processes that need not make the scene again."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, mine in there.devices.items():
        parts = {part: getattr(mine, part) for part in _PARTS}
        arrays = {f"{part}.{kind}": getattr(one, kind) for part, one in parts.items() for kind in Examples._fields}
        np.savez(folder / f"{name}.npz", changes=mine.changes, **arrays)


def mine_in(path: Path) -> Mine:
    """What the device of a file sees."""
    with np.load(path, allow_pickle=False) as file:
        parts = {part: Examples(file[f"{part}.x"], file[f"{part}.y"]) for part in _PARTS}
        return Mine(**parts, changes=bool(file["changes"]))


# -- activities --------------------------------------------------------------------------------------------------------


def _activities(devices: int, data: Path, rng: np.random.Generator) -> Scene:
    try:
        with np.load(data, allow_pickle=False) as file:
            windows, labels, people = untangled(file["x"])[:, :, 0], file["y"].astype(np.int64), file["subject"]
    except (OSError, ValueError, KeyError) as problem:
        raise MsedgeError(f"{str(data)!r}: expected windows of UCI HAR as x, y, subject: {problem}") from None
    flipped = windows.copy()
    flipped[:, _axis(windows)] *= -1
    seen = _features(windows)
    cloud = people < VOLUNTEERS
    mean, scale = seen[cloud].mean(0), seen[cloud].std(0) + 1e-6
    seen, turned = ((one - mean) / scale for one in (seen, _features(flipped)))
    owners = [np.flatnonzero(people == one) for one in np.unique(people[~cloud])]
    rows: list[npt.NDArray[np.int64]] = []
    for number, own in enumerate(owners):
        share = devices // len(owners) + (number < devices % len(owners))
        rows += _shared(own, labels, share, rng) if share else []
    made = _given(rows, lambda at, _: Examples(seen[at], labels[at]),
                  lambda at, _: Examples(turned[at], labels[at]), rng)  # fmt: skip
    streams = {f"mean.{channel}": channel for channel in range(9)}
    return Scene("activities", 6, Examples(seen[cloud], labels[cloud]), made, streams)


def untangled(x: npt.NDArray[np.floating]) -> Floats:
    """Windows [n, 9, 1, 128] float32 of nine signals over time, of such a file's x. It has steps by signals under the
    shape of signals by steps: its neighbouring values are of different signals."""
    return np.ascontiguousarray(x.astype(np.float32).reshape(-1, 128, 9).transpose(0, 2, 1)[:, :, None])


def _axis(windows: Floats) -> list[int]:
    """The channels of gravity's axis: the one with the largest mean, and that of the acceleration without gravity."""
    gravity = int(np.abs(windows.mean((0, 2))).argmax())
    moved = windows - windows.mean(2, keepdims=True)
    alike = [float((moved[:, gravity] * moved[:, other]).mean() / moved[:, other].std()) for other in range(9)]
    alike[gravity] = -np.inf
    return [gravity, int(np.argmax(alike))]


def _features(windows: Floats) -> Floats:
    """[n, 9, 128] -> [n, 135]: of each channel mean, deviation, extremes, roughness, and energies by frequency; the
    first nine are the means."""
    energy = np.abs(np.fft.rfft(windows)) ** 2
    bands = [np.log(energy[..., a:b].mean(-1) + 1e-3) for a, b in itertools.pairwise(_BANDS)]
    rough = np.abs(np.diff(windows)).mean(-1)
    plain = [windows.mean(-1), windows.std(-1), windows.min(-1), windows.max(-1), rough]
    return np.concatenate(plain + bands, axis=1).astype(np.float32)


# -- digits ------------------------------------------------------------------------------------------------------------


def _digits(devices: int, rng: np.random.Generator) -> Scene:
    from cloud.train.inputs.digits import load_digits_split

    split = load_digits_split(held_out=0.7, size=8)
    images, labels = split.held_out_x[:, 0], split.held_out_y.astype(np.int64)
    rows = _shared(np.arange(len(images)), labels, devices, rng)

    def taken(at: npt.NDArray[np.int64], number: int) -> Examples:
        return Examples(_flat(np.roll(images[at], _SHIFTS[number % len(_SHIFTS)], (1, 2))), labels[at])

    def mirrored(at: npt.NDArray[np.int64], number: int) -> Examples:
        return Examples(_flat(np.roll(images[at], _SHIFTS[number % len(_SHIFTS)], (1, 2))[:, :, ::-1]), labels[at])

    cloud = Examples(_flat(split.x[:, 0]), split.y.astype(np.int64))
    return Scene("digits", 10, cloud, _given(rows, taken, mirrored, rng), {f"ink.{at}": 64 + at for at in range(8)})


def _flat(images: Floats) -> Floats:
    """[n, 8, 8] -> [n, 72]: the pixels, and the mean of each column."""
    return np.concatenate([images.reshape(len(images), -1), images.mean(1)], 1).astype(np.float32)


# -- dividing ----------------------------------------------------------------------------------------------------------


def _shared(
    own: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], count: int, rng: np.random.Generator
) -> list[npt.NDArray[np.int64]]:
    """Rows divided among devices with habits: each label by its own shares. Raises MsedgeError for too many devices."""
    if len(own) < 2 * LEAST * count:
        raise MsedgeError(
            f"expected {2 * LEAST} examples for each of {count} devices, got {len(own)}; use fewer devices"
        )
    while True:
        parts: list[list[int]] = [[] for _ in range(count)]
        for label in np.unique(labels[own]):
            rows = rng.permutation(own[labels[own] == label])
            ends = (np.cumsum(rng.dirichlet([HABITS] * count))[:-1] * len(rows)).astype(int)
            for part, more in zip(parts, np.split(rows, ends), strict=True):
                part += more.tolist()
        if min(map(len, parts)) >= LEAST:
            return [np.array(sorted(part)) for part in parts]


def _given(
    rows: list[npt.NDArray[np.int64]], now: Callable[[npt.NDArray[np.int64], int], Examples],
    later: Callable[[npt.NDArray[np.int64], int], Examples], rng: np.random.Generator,
) -> dict[str, Mine]:  # fmt: skip
    """By name, what devices with these rows see: half to learn from, half aside."""
    found = {}
    for number, own in enumerate(rows):
        mixed = rng.permutation(own)
        learn, aside = mixed[::2], mixed[1::2]
        changes = number % CHANGED == 0
        after = later if changes else now
        found[name_of(number)] = Mine(
            now(learn, number), now(aside, number), after(learn, number), after(aside, number), changes
        )
    return found
