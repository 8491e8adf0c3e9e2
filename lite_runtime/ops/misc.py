"""Result types of signal operators and a few image operators; their references compute them."""

from __future__ import annotations

from math import prod

from lite_runtime.graph import itemsize
from lite_runtime.ops._checks import axis_of, element_type, scalar_int, sizes_of
from lite_runtime.ops.registry import INFERS, Inference, Spec, infer

__all__ = ["as_conv"]


def as_conv(n: Inference, x: int, w: int, dtype: str) -> list[Spec]:
    """The result types of Conv on operands `x` and `w`, with element type `dtype`."""
    operands = [Spec("float32", n.spec(i).shape) for i in (x, w)]
    (result,) = INFERS["Conv"](Inference(n.node, operands, (None, None)))
    return [Spec(dtype, result.shape)]


@infer("DeformConv")
def _deform_conv(n: Inference) -> list[Spec]:
    return as_conv(n, 0, 1, n.spec(0).dtype)


@infer("Col2Im")
def _col2im(n: Inference) -> list[Spec]:
    columns, image, block = n.spec(0), sizes_of(n, 1), sizes_of(n, 2)
    taps = prod(block)
    if len(columns.shape) != 3 or len(image) != len(block) or not taps or columns.shape[1] % taps:
        raise n.error(f"expected columns (batch, channels x {taps}, places) for blocks {block}, got {columns.shape}")
    return [Spec(columns.dtype, (columns.shape[0], columns.shape[1] // taps, *image))]


@infer("MaxRoiPool")
def _max_roi_pool(n: Inference) -> list[Spec]:
    data, rois, pooled = n.spec(0), n.spec(1), tuple(n.attr("pooled_shape", ()))
    if len(data.shape) != 4 or len(rois.shape) != 2 or rois.shape[1] != 5 or len(pooled) != 2:
        raise n.error(f"expected images, (rois, 5) and two sizes, got {data.shape}, {rois.shape}, {pooled}")
    return [Spec(data.dtype, (rois.shape[0], data.shape[1], *pooled))]


# -- signals ----------------------------------------------------------------------------------------------------------


def _length(n: Inference, i: int, default: int) -> int:
    """The transform's length: input `i`, or `default` if it is left out."""
    length = scalar_int(n, i) if n.has(i) else default
    if length < 1:
        raise n.error(f"expected a length of 1 or more, got {length}")
    return length


@infer("DFT")
def _dft(n: Inference) -> list[Spec]:
    data = n.spec(0)
    rank = len(data.shape)
    axis = axis_of(n, scalar_int(n, 2) if n.has(2) else -2, rank)
    if rank < 2 or axis == rank - 1 or data.shape[-1] not in (1, 2):
        raise n.error(f"expected an axis before a last one of size 1 or 2, got axis {axis} of {data.shape}")
    one_sided = bool(n.attr("onesided", 0))
    back = one_sided and bool(n.attr("inverse", 0))
    length = _length(n, 1, 2 * (data.shape[axis] - 1) if back else data.shape[axis])
    bins = length // 2 + 1 if one_sided and not back else length
    return [Spec(data.dtype, (*data.shape[:axis], bins, *data.shape[axis + 1 : -1], 1 if back else 2))]


@infer("STFT")
def _stft(n: Inference) -> list[Spec]:
    signal = n.spec(0)
    pairs = len(signal.shape) == 3 and signal.shape[2] in (1, 2)
    if not (pairs or len(signal.shape) == 2) or not (n.has(2) or n.has(3)):
        wanted = "a signal (batch, length) or (batch, length, 1 or 2), and a window or its length"
        raise n.error(f"expected {wanted}, got {signal.shape}")
    step = _length(n, 1, 1)
    size = _length(n, 3, n.spec(2).size if n.has(2) else 0)
    if size > signal.shape[1]:
        raise n.error(f"expected frames of at most {signal.shape[1]}, got {size}")
    bins = size // 2 + 1 if n.attr("onesided", 1) else size
    return [Spec(signal.dtype, (signal.shape[0], (signal.shape[1] - size) // step + 1, bins, 2))]


@infer("MelWeightMatrix")
def _mel_weight_matrix(n: Inference) -> list[Spec]:
    bands, length = (_length(n, i, 0) for i in (0, 1))
    return [Spec(element_type(n, n.attr("output_datatype", 1)), (length // 2 + 1, bands))]


@infer("HannWindow", "HammingWindow", "BlackmanWindow")
def _window(n: Inference) -> list[Spec]:
    size = scalar_int(n, 0)
    if size < 0:
        raise n.error(f"expected a size of 0 or more, got {size}")
    return [Spec(element_type(n, n.attr("output_datatype", 1)), (size,))]


@infer("Det")
def _det(n: Inference) -> list[Spec]:
    shape = n.spec(0).shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise n.error(f"expected square matrices, got shape {shape}")
    return [Spec(n.spec(0).dtype, shape[:-2])]


@infer("Inverse")
def _inverse(n: Inference) -> list[Spec]:
    (det,) = _det(n)
    return [Spec(det.dtype, n.spec(0).shape)]


@infer("BitCast")
def _bit_cast(n: Inference) -> list[Spec]:
    dtype = element_type(n, n.attr("to"))
    if itemsize(dtype) != itemsize(n.spec(0).dtype):
        raise n.error(f"expected a type as wide as {n.spec(0).dtype}, got {dtype}")
    return [Spec(dtype, n.spec(0).shape)]
