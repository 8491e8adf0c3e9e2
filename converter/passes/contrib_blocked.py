"""Images in blocks of channels (domain com.microsoft.nchwc), as onnxruntime stores models optimised for one processor.

Images between ReorderInput and ReorderOutput have their channels padded to whole blocks of 8 or 16; weights hold the
elements of a block next to each other. Here the images become ordinary ones with the padded channels, and weights get
ONNX's order. The file does not name the size of a block: channels that are no multiple of 16 prove 8, and channels
padded further than 8 requires prove 16. If nothing proves it, the operators stay and the lowering names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, operand
from converter.passes.channels_last import to_first, to_last
from converter.passes.contrib_attention import ACTIVATIONS, activated, summed

__all__ = ["BLOCKED", "run"]

BLOCKED = "com.microsoft.nchwc"
_PLAIN = ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")


def run(model: ir.Model) -> int:
    """The number of operators rewritten."""
    found = [node for node in build.nodes(model) if node.domain == BLOCKED]
    size = _block(found) if found else None
    if size is None or any(node.op_type not in _ENTRIES for node in found):
        return 0
    if not all(_ready(node) for node in found):
        return 0
    for node in found:
        _ENTRIES[node.op_type](node, size)
    return len(found)


def _ready(node: ir.Node) -> bool:
    """Whether a convolution has constant weights and a known activation."""
    known = attr(node, "activation", "") in ACTIVATIONS
    return node.op_type != "Conv" or (build.array(node.inputs[1]) is not None and known)


def _padded(count: int, block: int) -> int:
    return -(-count // block) * block


def _block(nodes: list[ir.Node]) -> int | None:
    """The channels of a block, if the weights prove it."""
    proven = {size for node in nodes for size in _proofs(node)}
    return proven.pop() if len(proven) == 1 else None


def _proofs(node: ir.Node) -> Iterator[int]:
    if node.op_type == "Conv":
        shape = build.static_dims(node.inputs[1]) or (0,)
        if shape[0] % 16:
            yield 8
    elif node.op_type == "ReorderOutput" and node.inputs[0] is not None:
        maker = node.inputs[0].producer()
        while maker is not None and maker.domain == BLOCKED and maker.op_type != "Conv" and maker.inputs[0] is not None:
            maker = maker.inputs[0].producer()
        made = build.static_dims(maker.inputs[1]) if maker is not None and maker.op_type == "Conv" else None
        channels = int(attr(node, "channels", 0))
        if made and made[0] == _padded(channels, 16) != _padded(channels, 8):
            yield 16


def _ordered(weights: np.ndarray, block: int) -> np.ndarray:
    """Weights in ONNX's order: of blocks of results, or of blocks of results and operands if those fill a block."""
    results, operands, *window = weights.shape
    if operands >= block:
        blocks = weights.reshape(results // block, operands // block, *window, block, block)  # O I H W i o
        return np.ascontiguousarray(blocks.transpose(0, 5, 1, 4, 2, 3)).reshape(weights.shape)
    blocks = weights.reshape(results // block, operands, *window, block)  # O I H W o
    return np.ascontiguousarray(blocks.transpose(0, 4, 1, 2, 3)).reshape(weights.shape)


def _conv(node: ir.Node, block: int) -> None:
    """act(Conv(X, W, B) + Sum)"""
    edit = Edit(node)
    window: dict[str, object] = {k: v for k, v in node.attributes.items() if not k.startswith("activation")}
    weights = build.array(node.inputs[1])
    assert weights is not None
    if attr(node, "group", 1) > 1 and weights.shape[1] == 1:
        window["group"] = weights.shape[0]
    made = edit.const(_ordered(weights, block), hint=node.inputs[1].name or "" if node.inputs[1] else "")
    y = edit.op("Conv", [node.inputs[0], made, operand(node, 2)], window)
    y.type = made.type
    numbers = list(attr(node, "activation_params", ()))
    total = summed(edit, y, operand(node, 3))
    total.type = made.type
    result = activated(edit, total, str(attr(node, "activation", "")), numbers)
    assert result is not None, f"activation of {node.name}"
    edit.replace(result)


def _reorder_input(node: ir.Node, block: int) -> None:
    """Missing channels are zeros."""
    edit = Edit(node)
    x = node.inputs[0]
    assert x is not None
    if attr(node, "channels_last", 0):
        x = edit.op("Transpose", [x], {"perm": to_first(4)})
    shape = build.dims(node.inputs[0])
    channels = None if shape is None else shape[3 if attr(node, "channels_last", 0) else 1]
    if isinstance(channels, int):
        missing = _padded(channels, block) - channels
        x = x if not missing else edit.op("Pad", [x, edit.ints([0, 0, 0, 0, 0, missing, 0, 0])])
    else:
        count = edit.op("Shape", [x], {"start": 1, "end": 2})
        short = edit.op("Mod", [edit.op("Neg", [count]), edit.ints([block])])
        pads = edit.op("Concat", [edit.ints([0] * 5), short, edit.ints([0, 0])], {"axis": 0})
        x = edit.op("Pad", [x, pads])
    edit.replace(x)


def _reorder_output(node: ir.Node, block: int) -> None:
    edit = Edit(node)
    ends = [edit.ints([n]) for n in (0, int(attr(node, "channels", 0)), 1)]
    y = edit.op("Slice", [node.inputs[0], *ends])
    edit.replace(edit.op("Transpose", [y], {"perm": to_last(4)}) if attr(node, "channels_last", 0) else y)


def _plain(node: ir.Node, block: int) -> None:
    edit = Edit(node)
    edit.replace(edit.op(node.op_type, list(node.inputs), dict(node.attributes)))


def _upsample(node: ir.Node, block: int) -> None:
    edit = Edit(node)
    mode = str(attr(node, "mode", "nearest"))
    attrs: dict[str, object] = {"mode": mode}
    if mode == "nearest":
        attrs.update(nearest_mode="floor", coordinate_transformation_mode="asymmetric")
    else:
        attrs.update(coordinate_transformation_mode=attr(node, "coordinate_transformation_mode", "asymmetric"))
    scales = edit.const(np.asarray(attr(node, "scales", ()), np.float32))
    edit.replace(edit.op("Resize", [node.inputs[0], None, scales], attrs))


_ENTRIES: Mapping[str, Callable[[ir.Node, int], None]] = {
    "Conv": _conv,
    "ReorderInput": _reorder_input,
    "ReorderOutput": _reorder_output,
    "Upsample": _upsample,
    **dict.fromkeys(_PLAIN, _plain),
}
