"""A convolution between SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND is a dilated one, which old exporters write this way.

The pixels are split into b x b images of every b-th pixel, each is convolved, and the results are interleaved again:
this equals a kernel whose taps are b pixels apart. Paddings minus crops are the convolution's own padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from converter.frontends.tflite.op import Op
from converter.ir import build

__all__ = ["dilated", "remember"]

_MARK = "tflite.space_to_batch"
_POINTWISE = ("Clip", "DequantizeLinear", "Identity", "QuantizeLinear", "Relu", "Transpose")


@dataclass(frozen=True)
class _Spread:
    """What SPACE_TO_BATCH_ND did: images it took, block and paddings (before, after for each axis)."""

    images: ir.Value
    block: tuple[int, ...]
    pads: tuple[int, ...]


def remember(result: ir.Value, images: ir.Value, block: Sequence[int], pads: Sequence[int]) -> ir.Value:
    """`result` is `images` after SPACE_TO_BATCH_ND."""
    node = result.producer()
    if node is not None:
        node.meta[_MARK] = _Spread(images, tuple(block), tuple(pads))
    return result


def dilated(op: Op, x: ir.Value, block: Sequence[int], crops: Sequence[int]) -> ir.Value | None:
    """BATCH_TO_SPACE_ND of `x` as a dilated convolution of the original images, or None if it is not one."""
    path = _path(x)
    if path is None:
        return None
    spread, nodes = path
    pads = [p - c for p, c in zip(spread.pads, crops, strict=False)]
    if spread.block != tuple(block) or len(block) != 2 or min(pads) < 0:
        return None
    y = spread.images
    for node in nodes:
        attrs: dict[str, object] = dict(node.attributes)
        if node.op_type == "Conv":
            attrs |= {"dilations": list(block), "pads": [*pads[::2], *pads[1::2]], "auto_pad": None}
        turned = node.op_type == "Transpose" and tuple(build.attr(node, "perm", ())) == (0, 3, 1, 2)
        y = op.nchw(y) if turned else op.emit(node.op_type, [y, *node.inputs[1:]], attrs)
    return y


def _path(x: ir.Value) -> tuple[_Spread, list[ir.Node]] | None:
    """The nodes from a SPACE_TO_BATCH_ND to `x`, in order: one plain convolution of images, else pointwise operators
    and the turns to and from channels first."""
    nodes: list[ir.Node] = []
    value: ir.Value | None = x
    while value is not None and (node := value.producer()) is not None:
        spread = node.meta.get(_MARK)
        if isinstance(spread, _Spread):
            nodes.reverse()
            return (spread, nodes) if [n.op_type for n in nodes].count("Conv") == 1 else None
        if not (build.is_op(node, *_POINTWISE) or _plain(node)):
            return None
        nodes.append(node)
        value = node.inputs[0]
    return None


def _plain(node: ir.Node) -> bool:
    """A convolution of stride 1, without padding or dilation."""
    if not build.is_op(node, "Conv") or build.attr(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return False
    ones = (*build.attr(node, "strides", ()), *build.attr(node, "dilations", ()))
    return all(n == 1 for n in ones) and not any(build.attr(node, "pads", ()))
