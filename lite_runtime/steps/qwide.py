"""Contractions of int16 activations and weights of 8 or 16 bits."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step
from lite_runtime.steps.qdepthwise import DepthwiseBytes
from lite_runtime.steps.qgemm import GemmBytes, PadBytes

__all__ = ["X16Depthwise", "X16Gemm", "X16GemmDeep", "X16Pack", "X16Pad"]


@step("qwide.x16_gemm")
class X16Gemm(GemmBytes):
    """A product of int16 activations; weights have two int16 per dword."""


@step("qwide.x16_gemm_deep")
class X16GemmDeep(GemmBytes):
    """Like X16Gemm, for weights of 16 bits."""


@step("qwide.x16_pack")
class X16Pack(Step):
    """B -> panels, for products of two computed matrices of int16."""

    b: In
    packed: Out
    depth: int  # rows of B
    columns: int
    vectors: int  # of a full panel
    row_step: int  # stride in elements over rows of B, columns
    column_step: int
    batches: int
    batch_b: int  # stride in bytes over batches: B, panels
    batch_packed: int


@step("qwide.x16_depthwise")
class X16Depthwise(DepthwiseBytes):
    """Depthwise convolution of int16 activations; tables in the order of channels; weights: int16 [taps][channels in
    whole vectors]."""


@step("qwide.x16_pad")
class X16Pad(PadBytes):
    """An image of int16 with a border of its zero point."""
