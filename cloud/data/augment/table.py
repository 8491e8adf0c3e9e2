"""The kinds of data and their operations: one row an operation, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cloud.data.augment import images, series, spectra
from cloud.data.augment.sampling import Array, Values
from cloud.data.draws import Draws

__all__ = ["KINDS", "LEVELS", "Kind", "Operation"]

LEVELS = 30
"""The highest magnitude, as in torchvision: `most` of an operation is its amount there."""


class Operation(NamedTuple):
    """`change(x, amount, draws, values)`: x (n, …) of floats in the kind's order of axes, amounts (n), and
    (lowest, highest, fill) of values; it returns an array of the same shape and changes none. `most`: the amount at the
    highest magnitude, 0 for an operation that has none; `widest`: likewise in wide policies. `signed`: the sign of
    amounts is drawn."""

    change: Callable[[Array, Array, Draws, Values], Array]
    most: float
    widest: float
    signed: bool
    unit: str


class Kind(NamedTuple):
    """A kind of data: the letters of its axes in the order that operations take them, the axes that elements have
    unless told otherwise, its operations, and those of a policy that names none. `ranged`: values have a lowest and a
    highest one."""

    letters: str
    axes: str
    operations: Mapping[str, Operation]
    usual: tuple[str, ...]
    ranged: bool


def _identity(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    return x


_NOTHING = Operation(_identity, 0.0, 0.0, False, "")

_IMAGE: Mapping[str, Operation] = {
    "identity": _NOTHING,
    "shear_x": Operation(images.shear_x, 0.3, 0.99, True, "pixels a row"),
    "shear_y": Operation(images.shear_y, 0.3, 0.99, True, "pixels a column"),
    "translate_x": Operation(images.translate_x, 150 / 331, 1.0, True, "share of the width"),
    "translate_y": Operation(images.translate_y, 150 / 331, 1.0, True, "share of the height"),
    "rotate": Operation(images.rotate, 30.0, 135.0, True, "degrees"),
    "brightness": Operation(images.brightness, 0.9, 0.99, True, "share"),
    "color": Operation(images.color, 0.9, 0.99, True, "share"),
    "contrast": Operation(images.contrast, 0.9, 0.99, True, "share"),
    "sharpness": Operation(images.sharpness, 0.9, 0.99, True, "share"),
    "posterize": Operation(images.posterize, 4.0, 6.0, False, "bits of 8"),
    "solarize": Operation(images.solarize, 1.0, 1.0, False, "share of the range"),
    "autocontrast": Operation(images.autocontrast, 0.0, 0.0, False, ""),
    "equalize": Operation(images.equalize, 0.0, 0.0, False, ""),
    "invert": Operation(images.invert, 0.0, 0.0, False, ""),
    "flip": Operation(images.flip, 0.0, 0.0, False, ""),
    "zoom": Operation(images.zoom, 0.5, 1.0, True, "powers of 2"),
    "erase": Operation(images.erase, 0.5, 0.8, False, "share of each side"),
    "noise": Operation(images.noise, 0.2, 0.5, False, "share of the range"),
}

_SPECTRUM: Mapping[str, Operation] = {
    "identity": _NOTHING,
    "frequency_mask": Operation(spectra.frequency_mask, 0.35, 0.6, False, "share of the frequencies"),
    "time_mask": Operation(spectra.time_mask, 0.25, 0.5, False, "share of the time"),
    "time_warp": Operation(spectra.time_warp, 0.1, 0.25, True, "share of the time"),
    "time_shift": Operation(spectra.time_shift, 0.2, 0.4, True, "share of the time"),
    "frequency_shift": Operation(spectra.frequency_shift, 0.1, 0.2, True, "share of the frequencies"),
    "gain": Operation(spectra.gain, 1.0, 2.0, True, "units of the values"),
    "noise": Operation(spectra.noise, 0.5, 1.0, False, "units of the values"),
}

_SERIES: Mapping[str, Operation] = {
    "identity": _NOTHING,
    "jitter": Operation(series.jitter, 0.5, 1.0, False, "standard deviations"),
    "scale": Operation(series.scale, 0.3, 0.6, False, "share"),
    "magnitude_warp": Operation(series.magnitude_warp, 0.4, 0.8, False, "share"),
    "time_warp": Operation(series.time_warp, 0.4, 0.8, False, "share of the speed"),
    "time_shift": Operation(series.time_shift, 0.5, 0.5, True, "share of the window"),
    "time_slice": Operation(series.time_slice, 0.3, 0.6, False, "share of the window"),
    "time_mask": Operation(series.time_mask, 0.3, 0.6, False, "share of the window"),
    "rotate": Operation(series.rotate, 45.0, 180.0, True, "degrees"),
    "permute": Operation(series.permute, 4.0, 9.0, False, "parts beyond the first"),
    "drop": Operation(series.drop, 0.3, 0.6, False, "probability"),
}

_RAND_AUGMENT = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
"""Of Cubuk et al., "RandAugment", 2020, with the ranges of torchvision; `widest` for TrivialAugment's."""

KINDS: Mapping[str, Kind] = {
    "image": Kind("chw", "hwc", _IMAGE, _RAND_AUGMENT, True),
    "spectrum": Kind("ftc", "ft", _SPECTRUM, tuple(_SPECTRUM), False),
    "series": Kind(
        "tc", "ct", _SERIES,
        ("identity", "jitter", "scale", "magnitude_warp", "time_warp", "time_shift", "time_slice", "time_mask"), False,
    ),
}  # fmt: skip
