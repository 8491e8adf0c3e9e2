"""Unpack4: evaluated before the run if its operand is a constant, so it needs no kernel."""

from __future__ import annotations

from math import prod

from lite_runtime.ops.registry import Inference, Spec, infer

__all__: list[str] = []


@infer("Unpack4")
def _infer_unpack4(n: Inference) -> tuple[Spec]:
    shape = n.attr("shape")
    if not isinstance(shape, tuple) or any(isinstance(d, bool) or not isinstance(d, int) or d < 0 for d in shape):
        raise n.error(f"expected shape of sizes of 0 or more, got {shape!r}")
    packed, expected = n.spec(0), Spec("uint8", (-(-prod(shape) // 2),))
    if packed != expected:
        raise n.error(
            f"expected uint8{list(expected.shape)} for shape {list(shape)}, got {packed.dtype}{list(packed.shape)}"
        )
    return (Spec("int8" if n.attr("signed") else "uint8", shape),)
