"""Resize, and sampling at arbitrary positions: GridSample, AffineGrid."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lite_runtime.errors import UnsupportedOpError
from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import axes_of, in_float32, integers, require

__all__ = ["sizes_of", "source_places"]

_ROUND: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _cubic_weights(distance: Array, a: float) -> Array:
    """Keys' cubic kernel, zero from distance 2 on."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _linear_weights(distance: Array) -> Array:
    return np.asarray(np.maximum(0.0, 1 - np.abs(distance)))


def source_places(n_in: int, n_out: int, scale: float, mode: str, roi: tuple[float, float] = (0.0, 1.0)) -> Array:
    """The position along an input axis of `n_in` read by each of `n_out` outputs; `scale` is roughly output / input."""
    x = np.arange(n_out, dtype=np.float64)
    if mode == "half_pixel":
        return (x + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        adjustment = n_out / (scale * n_in)
        centre = n_in / 2
        return centre * (1 - adjustment) + (x + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return (x + 0.5) / scale - 0.5 if n_out > 1 else np.zeros_like(x) - 0.0
    if mode == "align_corners":
        return x * (n_in - 1) / (scale * n_in - 1) if n_out > 1 else np.zeros_like(x)
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        start, end = roi
        if n_out > 1:
            return start * (n_in - 1) + x * (end - start) * (n_in - 1) / (n_out - 1)
        return np.full_like(x, 0.5 * (start + end) * (n_in - 1))
    raise UnsupportedOpError(f"expected a coordinate_transformation_mode of ONNX's Resize, got {mode!r}")


def _matrix(
    n_in: int,
    at: Array,
    scale: float,
    mode: str,
    cubic_coeff_a: float,
    exclude_outside: bool,
    antialias: bool,
    nearest_mode: str,
) -> Array:
    """(outputs, n_in): the weight of each input in each output along one axis. Indices outside are clamped to the
    edge."""
    if mode == "nearest":
        if nearest_mode not in _ROUND:
            raise UnsupportedOpError(f"expected nearest_mode of {', '.join(_ROUND)}, got {nearest_mode!r}")
        return np.asarray(np.eye(n_in)[np.clip(_ROUND[nearest_mode](at), 0, n_in - 1).astype(np.int64)])
    shrink = min(scale, 1.0) if antialias else 1.0
    radius = {"linear": 1, "cubic": 2}[mode] / shrink
    low = int(np.floor(at.min(initial=0) - radius))
    places = np.arange(low, int(np.ceil(at.max(initial=0) + radius)) + 1)
    distance = (places - at[:, None]) * shrink
    weights = _linear_weights(distance) if mode == "linear" else _cubic_weights(distance, cubic_coeff_a)
    outside = (places < 0) | (places >= n_in)
    if exclude_outside:
        weights = np.where(outside, 0.0, weights)
    if exclude_outside or antialias:
        weights = weights / weights.sum(1, keepdims=True)
    out = np.zeros((len(at), n_in))
    np.add.at(out.T, np.clip(places, 0, n_in - 1), weights.T)
    return out


@define("Resize")
def _resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    /,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    """Multiplies each axis by a matrix of weights, in float64; integer types are rounded half to even and clipped at
    the end."""
    if mode not in ("nearest", "linear", "cubic"):
        raise UnsupportedOpError(f"expected mode nearest, linear or cubic, got {mode!r}")
    where = axes_of(axes, x.ndim)
    factors, lengths = sizes_of(x, where, scales, sizes, keep_aspect_ratio_policy)
    crop = np.array([0.0] * len(where) + [1.0] * len(where)) if roi is None or roi.size == 0 else roi.astype(np.float64)
    y = x if mode == "nearest" else x.astype(np.float64)
    outside: list[tuple[int, Array]] = []
    for i, axis in enumerate(where):
        n, scale, length = x.shape[axis], factors[i], lengths[i]
        at = source_places(
            n, length, scale, coordinate_transformation_mode, (float(crop[i]), float(crop[i + len(where)]))
        )
        outside.append((axis, (at < 0) | (at > n - 1)))
        if length == n and coordinate_transformation_mode != "tf_crop_and_resize" and np.array_equal(at, np.arange(n)):
            continue
        weights = _matrix(n, at, scale, mode, cubic_coeff_a, bool(exclude_outside), bool(antialias), nearest_mode)
        if mode == "nearest":
            y = np.take(y, np.argmax(weights, 1), axis)
        else:
            y = np.moveaxis(np.tensordot(weights, y, (1, axis)), 0, axis)
    if coordinate_transformation_mode == "tf_crop_and_resize":
        for axis, beyond in outside:
            shape = [-1 if a == axis else 1 for a in range(x.ndim)]
            y = np.where(beyond.reshape(shape), np.asarray(extrapolation_value).astype(y.dtype), y)
    if mode != "nearest" and x.dtype.kind in "iu":
        y = np.clip(np.rint(y), np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    return y.astype(x.dtype)


def sizes_of(
    x: Array, axes: tuple[int, ...], scales: Array | None, sizes: Array | None, policy: str
) -> tuple[list[float], list[int]]:
    """(output / input, output size) for each axis, from one of the two inputs."""
    given = [s for s in (scales, sizes) if s is not None and s.size]
    require(len(given) == 1, f"expected one of scales and sizes, got {len(given)}")
    require(given[0].size == len(axes), f"expected {len(axes)} scales or sizes, got {given[0].size}")
    old = [x.shape[a] for a in axes]
    if scales is not None and scales.size:
        factors = [float(s) for s in scales]
        require(min(factors, default=1) > 0, f"expected scales above 0, got {factors}")
        return factors, [int(np.floor(n * s)) for n, s in zip(old, factors, strict=True)]
    new = list(integers(given[0]))
    if policy == "stretch":
        return [m / n if n else 1.0 for m, n in zip(new, old, strict=True)], new
    choose = {"not_larger": min, "not_smaller": max}.get(policy)
    if choose is None:
        raise UnsupportedOpError(
            f"expected keep_aspect_ratio_policy stretch, not_larger or not_smaller, got {policy!r}"
        )
    factor = choose(m / n for m, n in zip(new, old, strict=True))
    return [factor] * len(old), [int(np.floor(n * factor + 0.5)) for n in old]


@define("AffineGrid")
@in_float32
def _affine_grid(theta: Array, size: Array, /, align_corners: int = 0) -> Array:
    """theta (n, d, d + 1), size (n, c, space…) -> (n, space…, d): normalised positions, the fastest axis first."""
    space = integers(size)[2:]
    require(theta.shape[1:] == (len(space), len(space) + 1), f"expected theta for {len(space)} axes, got {theta.shape}")

    def line(n: int) -> Array:
        if align_corners:
            return np.linspace(-1, 1, n) if n > 1 else np.zeros(n)
        return (2 * np.arange(n) + 1) / n - 1

    mesh = np.meshgrid(*(line(n) for n in space), indexing="ij")
    places = np.stack([*mesh[::-1], np.ones(space)], -1).astype(theta.dtype)  # (space…, d + 1)
    return np.moveaxis(np.tensordot(theta, places, (2, len(space))), 1, -1)


@define("GridSample")
@in_float32
def _grid_sample(
    x: Array, grid: Array, /, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Array:
    """x (n, c, space…) read at grid (n, out…, d) of normalised positions, the fastest axis first -> (n, c, out…)."""
    space, rank = x.shape[2:], x.ndim - 2
    require(grid.shape[-1] == rank, f"expected a grid of {rank} coordinates, got shape {grid.shape}")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise UnsupportedOpError(f"expected padding_mode zeros, border or reflection, got {padding_mode!r}")
    at = []
    for i, n in enumerate(space):
        place = grid[..., rank - 1 - i].astype(np.float64)
        place = (place + 1) / 2 * (n - 1) if align_corners else ((place + 1) * n - 1) / 2
        at.append(place)
    if mode == "nearest":
        return _read(x, [np.rint(p) for p in at], padding_mode, bool(align_corners))
    reach, weigh = {
        "linear": ((0, 1), _linear_weights),
        "cubic": ((-1, 0, 1, 2), lambda d: _cubic_weights(d, -0.75)),
    }.get(mode, ((), _linear_weights))
    if not reach:
        raise UnsupportedOpError(f"expected mode linear, nearest or cubic, got {mode!r}")
    if padding_mode == "border" and mode == "linear":
        at = [np.clip(p, 0, n - 1) for p, n in zip(at, space, strict=True)]
    elif padding_mode == "reflection" and mode == "linear":
        at = [_reflect(p, n, bool(align_corners)) for p, n in zip(at, space, strict=True)]
    base = [np.floor(p) for p in at]
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]), np.float64)
    for steps in np.ndindex(*(len(reach),) * rank):
        corner = [b + reach[s] for b, s in zip(base, steps, strict=True)]
        share = np.prod([weigh(p - c) for p, c in zip(at, corner, strict=True)], axis=0)
        y += share[:, None] * _read(x, corner, padding_mode, bool(align_corners))
    return y.astype(x.dtype)


def _reflect(place: Array, n: int, align_corners: bool) -> Array:
    """Positions reflected back into the image, at the centres of its edge pixels or at its outer borders."""
    low, high = (0.0, n - 1.0) if align_corners else (-0.5, n - 0.5)
    span = high - low
    if span == 0:
        return np.zeros_like(place)
    folded = np.mod(place - low, 2 * span)
    return np.clip(np.where(folded > span, 2 * span - folded, folded) + low, 0, n - 1)


def _read(x: Array, places: Sequence[Array], padding_mode: str, align_corners: bool) -> Array:
    """x (n, c, space…) at integer positions (n, out…) per axis -> (n, c, out…), padded by the mode."""
    inside = np.ones(places[0].shape, bool)
    index = []
    for place, n in zip(places, x.shape[2:], strict=True):
        if padding_mode == "zeros":
            inside &= (place >= 0) & (place < n)
        elif padding_mode == "reflection":
            place = _reflect(place, n, align_corners)
        index.append(np.clip(np.nan_to_num(place), 0, n - 1).astype(np.int64))
    batch = np.arange(len(x)).reshape(-1, *(1,) * (places[0].ndim - 1))
    values = np.moveaxis(np.moveaxis(x, 1, -1)[(batch, *index)], -1, 1)
    return np.where(inside[:, None], values, 0).astype(x.dtype)
