"""Types of what quantised and signal operators give; their references compute them."""

from __future__ import annotations

from math import prod

from lite_runtime.graph import itemsize
from lite_runtime.ops._checks import axis_of, broadcast, element_type, one_of, scalar_int, sizes_of
from lite_runtime.ops.registry import INFERS, Inference, Spec, infer

__all__: list[str] = []


def _check_scale(n: Inference) -> None:
    """The scale (and zero point) is one value, one per index of the axis, or one per block along it."""
    data, scale = n.spec(0), n.spec(1)
    if n.has(2) and n.spec(2).shape != scale.shape and not n.spec(2).size == scale.size == 1:
        raise n.error(f"expected a zero point of shape {scale.shape}, got {n.spec(2).shape}")
    if scale.size == 1 and len(scale.shape) <= 1:
        return
    axis, block = axis_of(n, n.attr("axis", 1), len(data.shape)), n.attr("block_size", 0)
    if block:
        expected = tuple(-(-size // block) if i == axis else size for i, size in enumerate(data.shape))
    else:
        expected = (data.shape[axis],)
    if scale.shape != expected:
        raise n.error(f"expected a scale of shape {expected} along axis {axis} of {data.shape}, got {scale.shape}")


@infer("QuantizeLinear")
def _quantize(n: Inference) -> list[Spec]:
    _check_scale(n)
    if n.has(2):
        return [Spec(n.spec(2).dtype, n.spec(0).shape)]
    code = n.attr("output_dtype", 0)
    return [Spec(element_type(n, code) if code else "uint8", n.spec(0).shape)]


@infer("DequantizeLinear")
def _dequantize(n: Inference) -> list[Spec]:
    _check_scale(n)
    code = n.attr("output_dtype", 0)
    return [Spec(element_type(n, code) if code else n.spec(1).dtype, n.spec(0).shape)]


@infer("DynamicQuantizeLinear")
def _dynamic_quantize(n: Inference) -> list[Spec]:
    data = one_of(n, 0, ("float32",))
    return [Spec("uint8", data.shape), Spec("float32", ()), Spec("uint8", ())]


def _product(n: Inference, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a matrix product, vectors as NumPy's matmul takes them."""
    left, right = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        raise n.error(f"expected operands with one common size, got {a} and {b}")
    rows = left[-2:-1] if len(a) > 1 else ()
    columns = right[-1:] if len(b) > 1 else ()
    return (*broadcast(n, left[:-2], right[:-2]), *rows, *columns)


@infer("MatMulInteger")
def _matmul_integer(n: Inference) -> list[Spec]:
    a, b = (one_of(n, i, ("int8", "uint8")) for i in (0, 1))
    return [Spec("int32", _product(n, a.shape, b.shape))]


@infer("QLinearMatMul")
def _qlinear_matmul(n: Inference) -> list[Spec]:
    return [Spec(n.spec(7).dtype, _product(n, n.spec(0).shape, n.spec(3).shape))]


def _as_conv(n: Inference, x: int, w: int, dtype: str) -> list[Spec]:
    """What Conv makes of the operands `x` and `w`, as `dtype`."""
    operands = [Spec("float32", n.spec(i).shape) for i in (x, w)]
    (result,) = INFERS["Conv"](Inference(n.node, operands, (None, None)))
    return [Spec(dtype, result.shape)]


@infer("ConvInteger")
def _conv_integer(n: Inference) -> list[Spec]:
    for i in (0, 1):
        one_of(n, i, ("int8", "uint8"))
    return _as_conv(n, 0, 1, "int32")


@infer("QLinearConv")
def _qlinear_conv(n: Inference) -> list[Spec]:
    return _as_conv(n, 0, 3, n.spec(7).dtype)


@infer("DeformConv")
def _deform_conv(n: Inference) -> list[Spec]:
    return _as_conv(n, 0, 1, n.spec(0).dtype)


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
    """The transform's length: input `i`, or `default` where it is left out."""
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
    if len(signal.shape) != 3 or signal.shape[2] not in (1, 2) or not (n.has(2) or n.has(3)):
        raise n.error(f"expected a signal (batch, length, 1 or 2) and a window or its length, got {signal.shape}")
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


@infer("BitCast")
def _bit_cast(n: Inference) -> list[Spec]:
    dtype = element_type(n, n.attr("to"))
    if itemsize(dtype) != itemsize(n.spec(0).dtype):
        raise n.error(f"expected a type as wide as {n.spec(0).dtype}, got {dtype}")
    return [Spec(dtype, n.spec(0).shape)]
