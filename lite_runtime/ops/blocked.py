"""Products with weights in blocks: MatMulNBits, GatedMatMulNBits, GatherBlockQuantized, DynamicQuantizeBlocks."""

from __future__ import annotations

from typing import Any

from lite_runtime import steps
from lite_runtime.graph import itemsize
from lite_runtime.operators.language import ACTIVATIONS, PANEL, SMALLER
from lite_runtime.ops._checks import INDEX_TYPES, one_of
from lite_runtime.ops.activation import activation
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer

__all__: list[str] = []

_SCALES = ("float16", "float32")
_UNITS = (ACTIVATIONS, SMALLER)
_SUFFIXES = {ACTIVATIONS: "", SMALLER: "__16"}
"""Of kernels for activations in such blocks."""


# -- what comes out ---------------------------------------------------------------------------------------------------


@infer("DynamicQuantizeBlocks")
def _infer_quantize(n: Inference) -> list[Spec]:
    x = one_of(n, 0, ("float32",))
    unit = int(n.attr("block_size", ACTIVATIONS))
    if unit not in _UNITS or not x.shape or x.shape[-1] % unit:
        raise n.error(f"expected rows of blocks of 32 or 16, got shape {list(x.shape)} and block_size {unit}")
    table = Spec("float32", (*x.shape[:-1], x.shape[-1] // unit))
    return [Spec("int8", x.shape), table, table]


def _check_table(n: Inference, q: int, scales: int, offsets: int) -> tuple[int, int]:
    """Raise ShapeError unless these inputs represent a matrix as the attributes say; (N, K)."""
    depth, columns, bits, block = (int(n.attr(name, 0)) for name in ("K", "N", "bits", "block_size"))
    if bits not in (4, 8) or min(depth, columns, block) < 1 or depth % block or depth % (32 // bits):
        raise n.error(f"expected K in blocks of whole words, got K {depth}, block_size {block}, {bits} bits")
    if not 0 <= n.attr("zero_point", 0) < 2**bits:
        raise n.error(f"expected a zero_point of 0 to {2**bits - 1}, got {n.attr('zero_point')}")
    blocks, panels = depth // block, -(-columns // PANEL)
    if n.attr("layout", ""):
        shapes = (panels, depth * bits // 32, PANEL, 4), (panels, blocks, PANEL)
    else:
        shapes = (columns, blocks, block * bits // 8), (columns, blocks)  # type: ignore[assignment]
    _expect(n, q, ("uint8",), shapes[0])
    _expect(n, scales, _SCALES, shapes[1])
    if n.has(offsets):
        _expect(n, offsets, (n.spec(scales).dtype,), shapes[1])
    return columns, depth


def _expect(n: Inference, i: int, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> None:
    got = one_of(n, i, dtypes)
    if got.shape != shape:
        raise n.error(f"expected input {i} of shape {list(shape)}, got {list(got.shape)}")


@infer("GatherBlockQuantized")
def _infer_embed(n: Inference) -> list[Spec]:
    _, depth = _check_table(n, 0, 2, 3)
    return [Spec("float32", (*one_of(n, 1, INDEX_TYPES).shape, depth))]


@infer("MatMulNBits")
def _infer_product(n: Inference) -> list[Spec]:
    columns, depth = _check_table(n, 1, 2, 3)
    if n.attr("transposed", 0):
        columns, depth = depth, columns
    a = one_of(n, 0, ("float32", "int8"))
    if not a.shape or a.shape[-1] != depth:
        raise n.error(f"expected rows of {depth}, got shape {list(a.shape)}")
    if a.dtype == "int8":
        unit = _unit(depth, one_of(n, 4, ("float32",)).shape)
        if not unit:
            raise n.error(f"expected int8 in blocks of 32 or 16, got rows of {depth}, scales {n.spec(4).shape}")
        for i in (4, 5):
            _expect(n, i, ("float32",), (*a.shape[:-1], depth // unit))
    elif n.has(4) or n.has(5):
        raise n.error("expected scales and sums of A only with int8")
    result = Spec("float32", (*a.shape[:-1], columns))
    if n.has(6):
        _expect(n, 6, ("float32",), (columns,))
    if n.has(7):
        _expect(n, 7, ("float32",), result.shape)
    return [result]


@infer("GatedMatMulNBits")
def _infer_gated(n: Inference) -> list[Spec]:
    columns, depth = _check_table(n, 3, 4, 7)
    if _check_table(n, 5, 6, 8) != (columns, depth) or n.spec(4).dtype != n.spec(6).dtype or n.has(7) != n.has(8):
        raise n.error("expected two matrices of one format")
    if n.attr("block_size", 0) % ACTIVATIONS or columns % ACTIVATIONS:
        raise n.error(f"expected N and blocks in multiples of {ACTIVATIONS}, got N {columns}, {n.attr('block_size')}")
    a = one_of(n, 0, ("int8",))
    if not a.shape or a.shape[-1] != depth:
        raise n.error(f"expected rows of {depth}, got shape {list(a.shape)}")
    for i in (1, 2):
        _expect(n, i, ("float32",), (*a.shape[:-1], depth // ACTIVATIONS))
    table = Spec("float32", (*a.shape[:-1], columns // ACTIVATIONS))
    return [Spec("int8", (*a.shape[:-1], columns)), table, table]


def _unit(depth: int, scales: tuple[int, ...]) -> int:
    """Neighbours of activations that share a scale, by the shape of the scales; 0 if they are none of those allowed."""
    return next((unit for unit in _UNITS if scales and depth % unit == 0 and depth // unit == scales[-1]), 0)


# -- kernels ----------------------------------------------------------------------------------------------------------


@bind("DynamicQuantizeBlocks")
def _bind_quantize(b: Binder) -> None:
    x, (q, scales, sums) = b.inputs[0], b.outputs
    assert x is not None
    if q is None or scales is None or sums is None:
        raise NoKernel("unused results")
    unit = int(b.attr("block_size", ACTIVATIONS))
    b.emit(
        steps.QuantizeBlocks(x=x, q=q, scales=scales, sums=sums, blocks=x.size // unit),
        kernel=f"blocked.quantize{_SUFFIXES[unit]}",
    )


def _table(b: Binder, scales: Operand) -> dict[str, Any]:
    """The numbers that describe weights, for kernels, which read panels only."""
    if not b.attr("layout", ""):
        raise NoKernel("weights that are not in panels")
    return {
        "columns": int(b.attr("N")),
        "depth": int(b.attr("K")),
        "block": int(b.attr("block_size")),
        "wide": int(scales.dtype == "float32"),
        "zero": float(b.attr("zero_point", 0)),
    }


@bind("GatherBlockQuantized")
def _bind_embed(b: Binder) -> None:
    q, indices, scales, offsets = (*b.inputs, None)[:4]
    y = b.outputs[0]
    assert q is not None and indices is not None and scales is not None and y is not None
    b.emit(
        steps.EmbedBlocks(
            w=q,
            indices=indices,
            scales=scales,
            offsets=offsets,
            y=y,
            count=indices.size,
            width=itemsize(indices.dtype),
            **_table(b, scales),
        ),
        kernel=f"blocked.i{b.attr('bits')}_embed",
    )


@bind("MatMulNBits")
def _bind_product(b: Binder) -> None:
    a, q, scales, offsets, a_scales, a_sums, bias, residual = (*b.inputs, *[None] * 7)[:8]
    c = b.outputs[0]
    assert a is not None and q is not None and scales is not None and c is not None
    table = _table(b, scales)
    shared: dict[str, Any] = {
        "a": a,
        "w": q,
        "scales": scales,
        "offsets": offsets,
        "bias": bias,
        "residual": residual,
        "c": c,
    }
    transposed, bits = bool(b.attr("transposed", 0)), b.attr("bits")
    shared["rows"] = a.size // table["columns" if transposed else "depth"]
    unit = 1 if a_scales is None else _unit(table["columns" if transposed else "depth"], a_scales.shape)
    if table["block"] % (PANEL if transposed else unit) or (transposed and unit == SMALLER):
        raise NoKernel(f"blocks of {table['block']} in such products")
    family = "blockgrad" if transposed else "blocked"
    if transposed:
        if bias is not None:
            raise NoKernel("a bias in transposed products")
        del shared["bias"]
    if a.dtype == "int8":
        assert a_scales is not None and a_sums is not None
        made = steps.ByteBlockGrad if transposed else steps.BlockGemm
        kernel = f"{family}.i{bits}_gemm{_SUFFIXES[unit]}"
        b.emit(made(a_scales=a_scales, a_sums=a_sums, **shared, **table), kernel=kernel)
    else:
        wide = steps.FloatBlockGrad if transposed else steps.FloatBlockGemm
        b.emit(wide(**shared, **table), kernel=f"{family}.i{bits}_float")


@bind("GatedMatMulNBits")
def _bind_gated(b: Binder) -> None:
    a, a_scales, a_sums, w, scales, v, v_scales, offsets, v_offsets = (*b.inputs, None, None)[:9]
    q, q_scales, q_sums = b.outputs
    assert a is not None and a_scales is not None and a_sums is not None
    assert w is not None and scales is not None and v is not None and v_scales is not None
    if q is None or q_scales is None or q_sums is None:
        raise NoKernel("unused results")
    table = _table(b, scales)
    b.emit(
        steps.GatedBlocks(
            a=a,
            a_scales=a_scales,
            a_sums=a_sums,
            w=w,
            scales=scales,
            offsets=offsets,
            v=v,
            v_scales=v_scales,
            v_offsets=v_offsets,
            q=q,
            q_scales=q_scales,
            q_sums=q_sums,
            rows=a.size // table["depth"],
            activation=activation(b.attr).code,
            **table,
        ),
        kernel=f"blocked.i{b.attr('bits')}_gated",
    )
