"""Resize and related operators: per axis, a table of source positions computed with NumPy while tracing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from cloud.engine.lowering.registry import Tensor, lowering, normalise_axes, static_array, static_ints
from cloud.errors import EngineError

__all__: list[str] = []

Floats = npt.NDArray[np.float64]


class _Axis(NamedTuple):
    """One axis to resize: its sizes, the scale, and the region of interest as fractions."""

    size: int
    out: int
    scale: float
    start: float
    end: float


def _half_pixel(a: _Axis, x: Floats) -> Floats:
    return (x + 0.5) / a.scale - 0.5


def _half_pixel_symmetric(a: _Axis, x: Floats) -> Floats:
    adjustment = a.out / (a.scale * a.size)
    return a.size / 2 * (1 - adjustment) + _half_pixel(a, x)


def _pytorch_half_pixel(a: _Axis, x: Floats) -> Floats:
    return _half_pixel(a, x) if a.out > 1 else np.zeros_like(x)


def _align_corners(a: _Axis, x: Floats) -> Floats:
    return x * (a.size - 1) / (a.scale * a.size - 1) if a.out > 1 else np.zeros_like(x)


def _crop(a: _Axis, x: Floats) -> Floats:
    if a.out == 1:
        return np.full_like(x, 0.5 * (a.start + a.end) * (a.size - 1))
    return a.start * (a.size - 1) + x * (a.end - a.start) * (a.size - 1) / (a.out - 1)


# coordinate_transformation_mode -> source coordinate of output positions
_COORDINATES: dict[str, Callable[[_Axis, Floats], Floats]] = {
    "align_corners": _align_corners,
    "asymmetric": lambda a, x: x / a.scale,
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "tf_crop_and_resize": _crop,
}
_NEAREST: dict[str, Callable[[Floats], Floats]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
}


def _triangle(distance: Floats, _: float) -> Floats:
    result: Floats = np.maximum(0, 1 - np.abs(distance))
    return result


def _cubic(distance: Floats, a: float) -> Floats:
    """Keys' cubic convolution kernel."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    result: Floats = np.where(d <= 1, near, np.where(d < 2, far, 0))
    return result


_KERNELS = {"linear": (_triangle, 1), "cubic": (_cubic, 2)}


def _weights(axis: _Axis, source: Floats, mode: str, cubic_a: float, antialias: bool, exclude_outside: bool) -> Floats:
    """Interpolation matrix [out, size]; taps outside use the edge, or nothing with `exclude_outside`."""
    kernel, reach = _KERNELS[mode]
    shrink = min(axis.scale, 1.0) if antialias else 1.0
    support = int(np.ceil(reach / shrink))
    taps = np.floor(source)[:, None] + np.arange(-support + 1 - int(antialias), support + 1 + int(antialias))
    weight = kernel((taps - source[:, None]) * shrink, cubic_a)
    if exclude_outside:
        weight = np.where((taps >= 0) & (taps < axis.size), weight, 0)
    weight = weight / weight.sum(axis=1, keepdims=True)
    matrix = np.zeros((axis.out, axis.size))
    columns = np.clip(taps, 0, axis.size - 1).astype(int)
    np.add.at(matrix, (np.arange(axis.out)[:, None], columns), weight)
    return matrix


def _output_size(
    shape: Sequence[int], over: Sequence[int], scales: Sequence[float] | None, sizes: Sequence[int] | None, policy: str
) -> tuple[list[int], list[float]]:
    """Output size and scale of each axis in `over`."""
    own = [shape[axis] for axis in over]
    if sizes is None:
        assert scales is not None
        return [int(np.floor(n * s)) for n, s in zip(own, scales, strict=True)], list(scales)
    if policy == "stretch":
        return list(sizes), [o / n for o, n in zip(sizes, own, strict=True)]
    pick = min if policy == "not_larger" else max
    scale = pick(o / n for o, n in zip(sizes, own, strict=True))
    return [int(np.floor(scale * n + 0.5)) for n in own], [scale] * len(own)


@lowering("Resize")
def resize(
    x: Tensor, roi: Tensor | None = None, scales: Tensor | None = None, sizes: Tensor | None = None,
    *, antialias: int = 0, axes: Sequence[int] | None = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest", nearest_mode: str = "round_prefer_floor",
) -> Tensor:  # fmt: skip
    over = tuple(range(x.ndim)) if axes is None else normalise_axes(axes, x.ndim)
    factors = None if scales is None else [float(s) for s in static_array(scales, "scales").reshape(-1)]
    wanted = None if sizes is None else static_ints(sizes, "sizes")
    if not factors and not wanted:
        raise EngineError("expected scales or sizes, got neither")
    outs, used = _output_size(x.shape, over, factors or None, wanted or None, keep_aspect_ratio_policy)
    crops = coordinate_transformation_mode == "tf_crop_and_resize"
    region = static_array(roi, "roi").reshape(-1) if crops else np.array([0.0] * len(over) + [1.0] * len(over))
    y = jnp.asarray(x)
    outside: Any = False
    for i, axis in enumerate(over):
        spec = _Axis(x.shape[axis], outs[i], used[i], float(region[i]), float(region[i + len(over)]))
        if spec.size == spec.out and used[i] == 1.0 and not crops:
            continue
        source = _COORDINATES[coordinate_transformation_mode](spec, np.arange(spec.out, dtype=np.float64))
        if mode == "nearest":
            index = np.clip(_NEAREST[nearest_mode](source), 0, spec.size - 1).astype(np.int32)
            y = jnp.take(y, index, axis=axis)
        else:
            matrix = _weights(spec, source, mode, cubic_coeff_a, bool(antialias), bool(exclude_outside))
            y = jnp.moveaxis(jnp.tensordot(y, matrix.astype(y.dtype), axes=(axis, 1)), -1, axis)
        if crops:
            beyond = (source < 0) | (source > spec.size - 1)
            outside = outside | beyond.reshape((-1,) + (1,) * (x.ndim - 1 - axis))
    return jnp.where(outside, extrapolation_value, y).astype(x.dtype) if crops else y


@lowering("AffineGrid")
def affine_grid(theta: Tensor, size: Tensor, *, align_corners: int = 0) -> Tensor:
    """theta [N, d, d+1], size (N, C, *spatial) -> [N, *spatial, d] coordinates in [-1, 1], last axis first."""
    spatial = static_ints(size, "size")[2:]

    def line(n: int) -> Floats:
        return np.linspace(-1, 1, n) if align_corners else (2 * np.arange(n) + 1) / n - 1

    grids = np.meshgrid(*(line(n) for n in spatial), indexing="ij")
    points = np.stack([*reversed(grids), np.ones(spatial)], axis=-1).astype(theta.dtype)
    return jnp.einsum("...j,nij->n...i", points, theta)


@lowering("GridSample")
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    """x [N, C, *spatial], grid [N, *out, d] in [-1, 1], last axis first; nearest and linear."""
    if mode not in ("linear", "bilinear", "nearest") or padding_mode == "reflection":
        raise EngineError(f"expected mode linear or nearest, padding zeros or border, got {mode!r}, {padding_mode!r}")
    sizes = x.shape[2:]
    rank = len(sizes)
    at = [
        (grid[..., rank - 1 - i] + 1) / 2 * (n - 1) if align_corners else ((grid[..., rank - 1 - i] + 1) * n - 1) / 2
        for i, n in enumerate(sizes)
    ]
    if padding_mode == "border":
        at = [jnp.clip(p, 0, n - 1) for p, n in zip(at, sizes, strict=True)]
    channels_last = jnp.moveaxis(x, 1, -1)
    batch = np.arange(x.shape[0]).reshape((-1,) + (1,) * rank)

    def pick(corner: list[Tensor]) -> Tensor:
        inside = True
        for p, n in zip(corner, sizes, strict=True):
            inside = inside & (p >= 0) & (p <= n - 1)
        index = tuple(jnp.clip(p, 0, n - 1).astype(jnp.int32) for p, n in zip(corner, sizes, strict=True))
        return jnp.where(jnp.expand_dims(inside, -1), channels_last[(batch, *index)], 0)

    if mode == "nearest":
        return jnp.moveaxis(pick([jnp.round(p) for p in at]), -1, 1)
    total: Tensor = 0
    for bits in np.ndindex((2,) * rank):
        corner = [jnp.floor(p) + b for p, b in zip(at, bits, strict=True)]
        weight: Tensor = 1
        for p, c in zip(at, corner, strict=True):
            weight = weight * (1 - jnp.abs(p - c))
        total = total + pick(corner) * jnp.expand_dims(weight, -1)
    return jnp.moveaxis(total, -1, 1)
