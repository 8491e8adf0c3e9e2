"""Pools, resizing and blocks of images."""

from __future__ import annotations

import numpy as np

from tests.converter.frontends.tflite.integers.drafts import BYTES, STORED, Draft, case

__all__: list[str] = []


@case("AVERAGE_POOL_2D MAX_POOL_2D", *STORED)
def pool(d: Draft, op: str, dtype: str) -> None:
    n, height, width, channels = d.some(1, 3), d.some(2, 14), d.some(2, 14), d.some(1, 40)
    q = d.quant(dtype)
    options = {
        "filter_height": d.some(1, height + 1),
        "filter_width": d.some(1, width + 1),
        "stride_h": d.some(1, 4),
        "stride_w": d.some(1, 4),
        "padding": str(d.rng.choice(["SAME", "VALID"])),
    }
    d.result(op, [d.entry((n, height, width, channels), dtype, q)], dtype, q, **options, **d.activation())


@case("RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR", *STORED)
def resize(d: Draft, op: str, dtype: str) -> None:
    q, kind = d.quant(dtype), d.some(0, 3)
    image = d.entry((d.some(1, 3), d.some(1, 12), d.some(1, 12), d.some(1, 20)), dtype, q)
    options = {"align_corners": kind == 1, "half_pixel_centers": kind == 2}
    d.result(op, [image, d.ints(d.some(1, 25), d.some(1, 25))], dtype, q, **options)


@case("BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND", *STORED)
def batches(d: Draft, op: str, dtype: str) -> None:
    q, split = d.quant(dtype), op == "SPACE_TO_BATCH_ND"
    image = d.entry((2, 4, 5, d.some(1, 6)) if split else (8, 3, 4, d.some(1, 6)), dtype, q)
    edges = np.array([[1, 1], [0, 1]] if split else [[1, 0], [0, 2]], np.int32)
    d.result(op, [image, d.ints(2, 2), d.const(edges)], dtype, q)


@case("DEPTH_TO_SPACE SPACE_TO_DEPTH", *BYTES)
def depths(d: Draft, op: str, dtype: str) -> None:
    q = d.quant(dtype)
    image = d.entry((2, 3, 4, 12) if op == "DEPTH_TO_SPACE" else (2, 4, 6, 3), dtype, q)
    d.result(op, [image], dtype, q, block_size=2)
