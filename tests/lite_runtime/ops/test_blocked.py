"""Products with weights in blocks natively equal the reference, and equal the matrix that the blocks represent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime import bundle, load, reference
from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from lite_runtime.reference.blocked import Blocks, from_panels, to_panels, weights
from tests.lite_runtime.ops.one_node import check, graph_of
from tests.lite_runtime.ops.targets import on_other_targets, run_on

SHAPES = [(1, 32, 1), (1, 64, 48), (2, 96, 200), (3, 32, 16), (4, 64, 31), (6, 288, 33), (7, 160, 64), (61, 256, 130)]
SHAPES_OF_16 = [*SHAPES, (1, 16, 1), (5, 48, 17), (19, 272, 40)]


def table(
    k: int, n: int, bits: int, *, block: int = 32, offsets: bool = False, dtype: str = "float16", seed: int = 0
) -> tuple[Blocks, dict[str, Any]]:
    """Random weights in blocks, in the plain layout, and the attributes of an operator that reads them."""
    rng = np.random.default_rng(seed)
    q = rng.integers(0, 256, (n, k // block, block * bits // 8)).astype(np.uint8)
    scales = rng.uniform(-0.1, 0.1, (n, k // block)).astype(dtype)
    added = rng.normal(size=scales.shape).astype(dtype) if offsets else None
    attrs = {"K": k, "N": n, "bits": bits, "block_size": block, "zero_point": 0 if offsets else 2 ** (bits - 1)}
    return Blocks(q, scales, added), attrs


def quantised(x: Array, unit: int = 32) -> list[Array]:
    node = Node("DynamicQuantizeBlocks", ("x",), ("q", "s", "t"), {"block_size": unit}, "it")
    return list(reference.evaluate(node, [x]))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("n", [1, 15, 16, 40])
def test_panels_hold_the_same_matrix(bits: int, n: int) -> None:
    blocks, attrs = table(96, n, bits, offsets=True)
    panels = to_panels(blocks, bits)
    for a, b in zip(from_panels(panels, n, bits), blocks, strict=True):
        assert a is not None and b is not None
        np.testing.assert_array_equal(a, b)
    point = attrs["zero_point"]
    np.testing.assert_array_equal(weights(panels, n, bits, point, "panels"), weights(blocks, n, bits, point, ""))


@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offsets", [False, True])
def test_products(bits: int, m: int, k: int, n: int, offsets: bool) -> None:
    products(bits, m, k, n, offsets, {32: (32, k)})


@pytest.mark.parametrize(("m", "k", "n"), SHAPES_OF_16)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offsets", [False, True])
def test_products_with_activations_in_blocks_of_16(bits: int, m: int, k: int, n: int, offsets: bool) -> None:
    products(bits, m, k, n, offsets, {16: (16, k)})


def products(bits: int, m: int, k: int, n: int, offsets: bool, sizes: dict[int, tuple[int, ...]]) -> None:
    """sizes: of blocks of weights, by those of activations."""
    rng = np.random.default_rng(m)
    for unit, block in [(unit, block) for unit, blocks in sizes.items() for block in blocks]:
        for dtype in ("float16", "float32"):
            blocks, attrs = table(k, n, bits, block=block, offsets=offsets, dtype=dtype)
            x = rng.normal(size=(m, k)).astype(np.float32)
            q, scales, sums = quantised(x, unit)
            bias, residual = rng.normal(size=n).astype(np.float32), rng.normal(size=(m, n)).astype(np.float32)
            panels, attrs = [*to_panels(blocks, bits)], {**attrs, "layout": "panels"}
            size = float(np.abs(weights(blocks, n, bits, attrs["zero_point"], "")).max()) * k
            check("MatMulNBits", [q, *panels, scales, sums], attrs, constants=(1, 2, 3), atol=2e-6 * size)
            both: list[Array | None] = [q, *panels, scales, sums, bias, residual]
            check("MatMulNBits", both, attrs, constants=(1, 2, 3), atol=2e-6 * size)
            plain: list[Array | None] = [x, *panels, None, None, bias, residual]
            check("MatMulNBits", plain, attrs, constants=(1, 2, 3), atol=2e-6 * size, rtol=1e-4)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 32, 1), (3, 48, 33), (7, 96, 64), (61, 160, 544), (130, 32, 1056)])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offsets", [False, True])
def test_transposed_products(bits: int, m: int, k: int, n: int, offsets: bool) -> None:
    rng = np.random.default_rng(m)
    for block in (16, k):
        for dtype in ("float16", "float32"):
            blocks, attrs = table(k, n, bits, block=block, offsets=offsets, dtype=dtype)
            x = rng.normal(size=(m, n)).astype(np.float32)
            panels, attrs = [*to_panels(blocks, bits)], {**attrs, "layout": "panels", "transposed": 1}
            matrix = weights(blocks, n, bits, attrs["zero_point"], "")
            size = float(np.abs(matrix).max()) * n
            residual = rng.normal(size=(m, k)).astype(np.float32)
            for last in (None, residual):
                plain = [x, *panels, None, None, None, last]
                (got,) = check("MatMulNBits", plain, attrs, constants=(1, 2, 3), atol=2e-6 * size, rtol=1e-4)
                added = 0 if last is None else last
                np.testing.assert_allclose(got, x @ matrix + added, atol=1e-5 * size)
                if n % 32 == 0:
                    q, scales, sums = quantised(x)
                    both: list[Array | None] = [q, *panels, scales, sums, None, last]
                    (got,) = check("MatMulNBits", both, attrs, constants=(1, 2, 3), atol=2e-4 * np.sqrt(n) * size / n)
                    error = np.abs(got - x @ matrix - added).max()
                    assert error < 0.02 * np.abs(matrix).max() * np.sqrt(n) * 4


def test_blocks_of_16_with_float32() -> None:
    blocks, attrs = table(96, 40, 8, block=16)
    x = np.random.default_rng(0).normal(size=(5, 96)).astype(np.float32)
    inputs = [x, *to_panels(blocks, 8)]
    check("MatMulNBits", inputs[:3], {**attrs, "layout": "panels"}, constants=(1, 2), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("unit", [32, 16])
@pytest.mark.parametrize("shape", [(32,), (1, 64), (3, 5, 96), (0, 32), (33, 576)])
def test_activations_in_blocks(shape: tuple[int, ...], unit: int) -> None:
    x = (np.random.default_rng(0).normal(size=shape) * 10 ** np.random.default_rng(1).uniform(-6, 6, shape)).astype(
        "f4"
    )
    check("DynamicQuantizeBlocks", [x], {"block_size": unit}, outputs=3)
    check("DynamicQuantizeBlocks", [np.zeros(shape, np.float32)], {"block_size": unit}, outputs=3)
    q, scales, _ = quantised(x, unit)
    back = (q.reshape(*scales.shape, unit) * scales[..., None]).reshape(shape)
    assert (np.abs(back - x).reshape(*scales.shape, unit) <= scales[..., None] * 0.5001).all()


def test_a_number_that_is_not_one_reaches_the_result() -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 40] = np.nan
    q, scales, sums = quantised(x)
    blocks, attrs = table(64, 16, 4)
    inputs = [q, *to_panels(blocks, 4)[:2], None, scales, sums]
    assert np.isnan(check("MatMulNBits", inputs, {**attrs, "layout": "panels"}, constants=(1, 2))[0]).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offsets", [False, True])
def test_rows_of_a_table(bits: int, offsets: bool) -> None:
    blocks, attrs = table(96, 50, bits, offsets=offsets)
    q, scales, added = to_panels(blocks, bits)
    for indices in (np.array([[0, 49], [17, 16]]), np.array([3], np.int32), np.zeros((0,), np.int32)):
        inputs = [q, indices, scales, added] if offsets else [q, indices, scales]
        got = check("GatherBlockQuantized", inputs, {**attrs, "layout": "panels"}, constants=(0, 2, 3))[0]
        np.testing.assert_allclose(
            got, weights(blocks, 50, bits, attrs["zero_point"], "")[indices], rtol=1e-5, atol=1e-6
        )


GATED = [(1, 32, 32), (2, 96, 96), (6, 64, 32), (7, 160, 64), (13, 288, 96), (61, 64, 544)]


@pytest.mark.parametrize(("m", "k", "n"), GATED)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("activation", ["Silu", "GeluTanh"])
def test_gated_products(bits: int, m: int, k: int, n: int, offsets: bool, activation: str) -> None:
    """The blocks' integers may differ by one where a number is between two of them."""
    for dtype in ("float16", "float32"):
        one, attrs = table(k, n, bits, offsets=offsets, dtype=dtype)
        other, _ = table(k, n, bits, offsets=offsets, dtype=dtype, seed=1)
        x = np.random.default_rng(m).normal(size=(m, k)).astype(np.float32)
        q, scales, sums = quantised(x)
        attrs |= {"layout": "panels", "activation": activation}
        (w, w_scales, w_offsets), (v, v_scales, v_offsets) = (to_panels(blocks, bits) for blocks in (one, other))
        inputs: list[Array | None] = [q, scales, sums, w, w_scales, v, v_scales, w_offsets, v_offsets]
        graph, fed, wanted = graph_of("GatedMatMulNBits", inputs, attrs, 3, range(3, 9))
        written = bundle.write(None, {"predict": graph})
        made = [load(written, **how) for how in ({"backend": "guard"}, {"threads": 3})]
        found, again = ([*model.run(fed).values()] for model in made)
        assert [x.tobytes() for x in found] == [x.tobytes() for x in again]
        assert not made[0].cost(fed).reference
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4)
        assert np.abs(wanted[0].astype(int) - found[0]).max() <= 1
        assert (wanted[0] != found[0]).mean() < 0.002
        blocks = found[0].reshape(*found[1].shape, 32).astype(np.int32).sum(-1)
        np.testing.assert_allclose(found[2], blocks * found[1], rtol=1e-6)


@pytest.mark.parametrize(("change", "words"), [({"N": 48}, "multiples of 32"), ({"block_size": 16}, "multiples of 32")])
def test_gated_products_that_do_not_fit(change: dict[str, Any], words: str) -> None:
    attrs = {"K": 64, "N": 64, "bits": 4, "block_size": 32, "zero_point": 8, "layout": "panels", **change}
    panels, blocks = -(-attrs["N"] // 16), 64 // attrs["block_size"]
    tables = [Spec("uint8", (panels, 8, 16, 4)), Spec("float16", (panels, blocks, 16))]
    specs = [Spec("int8", (1, 64)), *[Spec("float32", (1, 2))] * 2, *tables, *tables]
    node = Node("GatedMatMulNBits", tuple("abcdefg"), ("q", "s", "t"), attrs, "it")
    with pytest.raises(ShapeError, match=words):
        INFERS["GatedMatMulNBits"](Inference(node, specs, [None] * 7))
    node = node.replace(attrs={**attrs, "N": 64, "block_size": 32})
    with pytest.raises(ShapeError, match="expected"):
        INFERS["GatedMatMulNBits"](Inference(node, [*specs[:5], specs[5], Spec("float32", (4, 2, 16))], [None] * 7))


def all_products() -> None:
    for bits in (4, 8):
        for m, k, n in SHAPES:
            test_products(bits, m, k, n, offsets=True)
        test_transposed_products(bits, 7, 96, 64, offsets=True)
        test_transposed_products(bits, 3, 48, 33, offsets=True)
        test_rows_of_a_table(bits, offsets=True)
        for m, k, n in GATED:
            test_gated_products(bits, m, k, n, offsets=True, activation="Silu")
        for m, k, n in SHAPES_OF_16:
            test_products_with_activations_in_blocks_of_16(bits, m, k, n, offsets=True)
    for unit in (32, 16):
        test_activations_in_blocks((33, 576), unit)


@on_other_targets
def test_other_targets(target: str) -> None:
    run_on(target, all_products)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"K": 33}, "whole words"),
        ({"bits": 5}, "whole words"),
        ({"block_size": 48}, "whole words"),
        ({"zero_point": 16}, "zero_point of 0 to 15"),
        ({"N": 17}, "expected input 1 of shape"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    blocks, attrs = table(64, 16, 4)
    q, scales, _ = to_panels(blocks, 4)
    node = Node("MatMulNBits", ("a", "q", "s"), ("y",), {**attrs, "layout": "panels", **change}, "it")
    specs = [Spec("float32", (1, 64)), Spec("uint8", q.shape), Spec("float16", scales.shape)]
    with pytest.raises(ShapeError, match=words):
        INFERS["MatMulNBits"](Inference(node, specs, [None] * 3))


def test_activations_of_other_sizes_are_refused() -> None:
    for unit in (8, 64):
        node = Node("DynamicQuantizeBlocks", ("x",), ("q", "s", "t"), {"block_size": unit}, "it")
        with pytest.raises(ShapeError, match="blocks of 32 or 16"):
            INFERS["DynamicQuantizeBlocks"](Inference(node, [Spec("float32", (1, 64))], [None]))
    blocks, attrs = table(64, 16, 4)
    node = Node("MatMulNBits", ("a", "q", "s", "", "b", "c"), ("y",), {**attrs}, "it")
    for count in (1, 3, 8):
        specs = [Spec("int8", (1, 64)), Spec("uint8", blocks.q.shape), Spec("float16", blocks.scales.shape)]
        tables = [Spec("float32", (1, count))] * 2
        with pytest.raises(ShapeError, match="int8 in blocks of 32 or 16"):
            INFERS["MatMulNBits"](Inference(node, [*specs, None, *tables], [None] * 6))


@pytest.mark.parametrize("unit", [32, 16])
@pytest.mark.parametrize("bits", [4, 8])
def test_integers_are_exact(bits: int, unit: int) -> None:
    """Activations and weights that are whole numbers, scales of 1: every sum is a whole number that float32 holds."""
    rng = np.random.default_rng(unit)
    x = rng.integers(-127, 128, (9, 96)).astype(np.float32)
    x[:, ::unit] = 127
    blocks, attrs = table(96, 40, bits, block=unit)
    blocks = blocks._replace(scales=np.ones_like(blocks.scales))
    q, scales, sums = quantised(x, unit)
    assert (scales == 1).all()
    inputs: list[Array | None] = [q, *to_panels(blocks, bits)[:2], None, scales, sums]
    (got,) = check("MatMulNBits", inputs, {**attrs, "layout": "panels"}, constants=(1, 2), atol=0, rtol=0)
    np.testing.assert_array_equal(got, x @ weights(blocks, 40, bits, attrs["zero_point"], "").T)
