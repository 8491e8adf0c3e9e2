"""Contractions of int16 activations and weights of 8 bits."""

from __future__ import annotations

from lite_runtime.steps.declaration import step
from lite_runtime.steps.qdepthwise import DepthwiseBytes
from lite_runtime.steps.qgemm import GemmBytes, PadBytes

__all__ = ["X16Depthwise", "X16Gemm", "X16Pad"]


@step("qwide.x16_gemm")
class X16Gemm(GemmBytes):
    """A product of int16 activations; weights have two int16 per dword."""


@step("qwide.x16_depthwise")
class X16Depthwise(DepthwiseBytes):
    """Depthwise convolution of int16 activations; tables in the order of channels; weights: int16 [taps][channels in
    whole vectors]."""


@step("qwide.x16_pad")
class X16Pad(PadBytes):
    """An image of int16 with a border of its zero point."""
