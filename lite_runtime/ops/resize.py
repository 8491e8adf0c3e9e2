"""Resize, and the result shapes of other sampling operators. Tables are computed while planning, in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import ceil, floor, isfinite, prod

import numpy as np

from lite_runtime import steps
from lite_runtime.graph import Array
from lite_runtime.ops._checks import axes_of, choice, dense_strides, one_of
from lite_runtime.ops._copy import element_size, view_or_copy
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer

__all__ = ["COORDINATES", "MAX_TABLE", "known_targets", "targets_of"]

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
POLICIES: dict[str, Callable[..., float]] = {"stretch": max, "not_larger": min, "not_smaller": max}
ROUNDING: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
MAX_TABLE = 1 << 22
"""Greatest number of entries in the tables of one axis."""


# -- what comes out ---------------------------------------------------------------------------------------------------


def targets_of(n: Inference) -> dict[int, tuple[int, float]]:
    """By resized axis: its new size, and the ratio output / input that the coordinates use."""
    data = n.spec(0)
    axes = axes_of(n, n.attr("axes"), len(data.shape))
    given = [i for i in (2, 3) if n.has(i) and n.spec(i).size]
    if len(given) != 1:
        raise n.error(f"expected one of scales and sizes, got {len(given)}")
    if n.spec(given[0]).shape != (len(axes),):
        raise n.error(f"expected {len(axes)} scales or sizes, got shape {n.spec(given[0]).shape}")
    old = [data.shape[a] for a in axes]
    if given[0] == 2:
        scales = [float(s) for s in np.ravel(n.value(2))]
        if not all(isfinite(s) and s > 0 for s in scales):
            raise n.error(f"expected scales above 0, got {scales}")
        new = [floor(size * s) for size, s in zip(old, scales, strict=True)]
    else:
        new = list(n.ints(3))
        if any(m < 0 or (m and not size) for m, size in zip(new, old, strict=True)):
            raise n.error(f"expected sizes of 0 or more, and 0 for empty axes, got {new} for {old}")
        scales = [m / size if size else 1.0 for m, size in zip(new, old, strict=True)]
        policy = choice(n, "keep_aspect_ratio_policy", "stretch", tuple(POLICIES))
        if policy != "stretch" and scales:
            scales = [POLICIES[policy](scales)] * len(scales)
            new = [floor(size * s + 0.5) for size, s in zip(old, scales, strict=True)]
    return dict(zip(axes, zip(new, scales, strict=True), strict=True))


@infer("Resize")
def _resize(n: Inference) -> list[Spec]:
    data = n.spec(0)
    choice(n, "mode", "nearest", MODES)
    choice(n, "nearest_mode", "round_prefer_floor", tuple(ROUNDING))
    coordinates = choice(n, "coordinate_transformation_mode", "half_pixel", COORDINATES)
    targets = targets_of(n)
    if n.has(1) and n.spec(1).size not in (0, 2 * len(targets)):
        raise n.error(f"expected a roi of {2 * len(targets)} elements, got shape {n.spec(1).shape}")
    if coordinates == "tf_crop_and_resize" and not (n.has(1) and n.spec(1).size):
        raise n.error("coordinate_transformation_mode tf_crop_and_resize needs a roi")
    return [Spec(data.dtype, tuple(targets[i][0] if i in targets else size for i, size in enumerate(data.shape)))]


@infer("GridSample")
def _grid_sample(n: Inference) -> list[Spec]:
    data, grid = n.spec(0), n.spec(1)
    rank = len(data.shape)
    if rank < 3 or len(grid.shape) != rank or grid.shape[-1] != rank - 2 or grid.shape[0] != data.shape[0]:
        raise n.error(f"expected a grid (batch, space…, {rank - 2}) for {data.shape}, got {grid.shape}")
    return [Spec(data.dtype, (*data.shape[:2], *grid.shape[1:-1]))]


@infer("AffineGrid")
def _affine_grid(n: Inference) -> list[Spec]:
    theta, size = n.spec(0), n.ints(1)
    space = len(size) - 2
    if space not in (2, 3) or any(s < 0 for s in size) or theta.shape != (size[0], space, space + 1):
        raise n.error(f"expected theta (batch, d, d + 1) and a size of d + 2, got {theta.shape} and {size}")
    return [Spec(theta.dtype, (size[0], *size[2:], space))]


@infer("RoiAlign")
def _roi_align(n: Inference) -> list[Spec]:
    data, rois = n.spec(0), n.spec(1)
    one_of(n, 2, ("int64",))
    if len(data.shape) != 4 or len(rois.shape) != 2 or rois.shape[1] != 4 or n.spec(2).shape != rois.shape[:1]:
        raise n.error(f"expected images, (rois, 4), (rois), got {data.shape}, {rois.shape}, {n.spec(2).shape}")
    height, width = n.attr("output_height", 1), n.attr("output_width", 1)
    return [Spec(data.dtype, (rois.shape[0], data.shape[1], height, width))]


# -- source positions -------------------------------------------------------------------------------------------------


def _places(old: int, new: int, scale: float, mode: str) -> Array:
    """The coordinate along the input axis for each output index."""
    x = np.arange(new, dtype=np.float64)
    if mode == "asymmetric":
        return x / scale
    if new == 1 and mode in ("align_corners", "pytorch_half_pixel"):
        return np.zeros(1)
    if mode == "align_corners":
        return x * (old - 1) / (scale * old - 1)
    shift = old / 2 * (1 - new / (scale * old)) if mode == "half_pixel_symmetric" else 0.0
    return shift + (x + 0.5) / scale - 0.5


def _kernel(mode: str, a: float) -> tuple[int, Callable[[Array], Array]]:
    """Radius and weights by distance: a tent, or Keys' cubic convolution (IEEE Trans. ASSP 29, 1981, eq. 4)."""
    if mode == "linear":
        return 1, lambda d: np.maximum(1 - d, 0)

    def cubic(d: Array) -> Array:
        near = (a + 2) * d**3 - (a + 3) * d**2 + 1
        far = a * (d**3 - 5 * d**2 + 8 * d - 4)
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return 2, cubic


def _taps(b: Binder, old: int, places: Array, scale: float) -> tuple[Array, Array]:
    """(outputs, taps): the inputs that each output blends, and their weights. Indices outside are clamped to the
    edge."""
    radius, weigh = _kernel(b.attr("mode"), b.attr("cubic_coeff_a", -0.75))
    antialias = bool(b.attr("antialias", 0))
    shrink = min(scale, 1.0) if antialias else 1.0
    if shrink == 1.0:
        count, start = 2 * radius, np.floor(places) - (radius - 1)
    else:
        count, start = ceil(2 * radius / shrink) + 1, np.ceil(places - radius / shrink)
    if count * len(places) > MAX_TABLE:
        raise NoKernel(f"{count} taps for each of {len(places)} places")
    at = start[:, None] + np.arange(count)
    weights = weigh(np.abs(at - places[:, None]) * shrink)
    if b.attr("exclude_outside", 0):
        weights = np.where((at < 0) | (at > old - 1), 0, weights)
    if b.attr("exclude_outside", 0) or antialias:
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(at, 0, old - 1).astype(np.int64), weights.astype(np.float32)


# -- steps ------------------------------------------------------------------------------------------------------------


def known_targets(b: Binder) -> dict[int, tuple[int, float]]:
    """`targets_of` a node being bound; NoKernel if they are known only at run time, or if tables would be too long."""
    if any(o is not None and o.value is None for o in b.inputs[1:]):
        raise NoKernel("scales or sizes that only a run knows")
    known = [None if o is None else o.value for o in b.inputs]
    targets = targets_of(Inference(b.node, [None if o is None else o.spec for o in b.inputs], known))
    if any(new > MAX_TABLE for new, _ in targets.values()):
        raise NoKernel("an axis this long")
    return targets


@bind("Resize")
def _bind_resize(b: Binder) -> None:
    source, target = b.inputs[0], b.outputs[0]
    assert source is not None and target is not None
    coordinates = b.attr("coordinate_transformation_mode", "half_pixel")
    if coordinates == "tf_crop_and_resize":
        raise NoKernel("resizing a crop")
    targets = known_targets(b)
    places = {
        axis: at
        for axis, (new, scale) in targets.items()
        if not _same(at := _places(source.shape[axis], new, scale, coordinates), source.shape[axis])
    }
    if not places:
        view_or_copy(b, 0, source)
    elif b.attr("mode", "nearest") == "nearest":
        _bind_nearest(b, source, target, places)
    else:
        _bind_taps(b, source, target, places, {axis: targets[axis][1] for axis in places})


def _same(places: Array, size: int) -> bool:
    return len(places) == size and bool(np.array_equal(places, np.arange(size)))


def _bind_nearest(b: Binder, source: Operand, target: Operand, places: dict[int, Array]) -> None:
    """A table of byte offsets for each axis; those of all but the last two axes are added into one."""
    size = element_size(source.dtype)
    rounding = ROUNDING[b.attr("nearest_mode", "round_prefer_floor")]
    strides = dense_strides(source.shape)
    last = max(places)
    run = prod(source.shape[last + 1 :]) * size
    tables = []
    for axis in range(last + 1):
        old = source.shape[axis]
        index = np.clip(rounding(places[axis]), 0, old - 1).astype(np.int64) if axis in places else np.arange(old)
        tables.append(index * (strides[axis] * size))
    tables = [np.zeros(1, np.int64)] * (3 - len(tables)) + tables
    if prod(len(t) for t in tables[:-2]) > MAX_TABLE:
        raise NoKernel("a table of too many rows")
    rows = reduce(lambda outer, inner: np.add.outer(outer, inner).ravel(), tables[:-2])
    table = np.concatenate([rows, *tables[-2:]]).astype(np.int64)
    sizes = {"a": len(rows), "b": len(tables[-2]), "c": len(tables[-1])}
    b.emit(steps.Nearest(source=source, tables=b.constant(table), target=target, **sizes, run=run))


def _bind_taps(b: Binder, source: Operand, target: Operand, places: dict[int, Array], scales: dict[int, float]) -> None:
    """Axis by axis, those that shrink most first; if the sizes leave a choice, most work runs along vectors."""
    if source.dtype != "float32":
        raise NoKernel(f"blending {source.dtype}")
    ratios = {axis: len(at) / source.shape[axis] for axis, at in places.items()}
    order = sorted(places, key=lambda axis: (ratios[axis], axis if ratios[axis] < 1 else -axis))
    shape = list(source.shape)
    for axis in order:
        old, new = shape[axis], len(places[axis])
        indices, weights = _taps(b, old, places[axis], scales[axis])
        outer, inner = prod(shape[:axis]), prod(shape[axis + 1 :])
        shape[axis] = new
        result = target if axis == order[-1] else b.scratch("float32", tuple(shape))
        b.emit(
            steps.Taps(
                source=source,
                indices=b.constant(indices * inner),
                weights=b.constant(weights),
                target=result,
                outer=outer,
                count=new,
                extent=old,
                inner=inner,
                taps=indices.shape[1],
            ),
            kernel="resize.taps_along" if inner == 1 else "resize.taps_inside",
        )
        source = result
