"""NonMaxSuppression becomes NonMaxSuppressionPadded, which has kernels, and a Slice to the rows that are meant.

A plan needs sizes that values do not change: only the Slice, which moves nothing, waits for the number of rows.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, dims

__all__ = ["run"]

_MOST = 1 << 18
"""The greatest number of rows that memory is set aside for: 6 MB."""


def run(model: ir.Model) -> int:
    """The number of rewrites."""
    return sum(_bound(node) for node in build.nodes(model) if build.is_op(node, "NonMaxSuppression"))


def _bound(node: ir.Node) -> bool:
    scores = dims(node.inputs[1]) if len(node.inputs) > 2 else None
    most = build.array(node.inputs[2]) if scores is not None else None
    if scores is None or len(scores) != 3 or most is None or most.size != 1:
        return False
    classes = scores[1] if isinstance(scores[1], int) else 1
    if classes * min(int(most.item()), scores[2] if isinstance(scores[2], int) else _MOST) > _MOST:
        return False
    edit, result = Edit(node), node.outputs[0]
    rows, count = edit.ops(
        "NonMaxSuppressionPadded",
        list(node.inputs),
        dict(node.attributes),
        domain=build.DOMAIN,
        outputs=2,
        like=result,
        shape=[None, 3],
    )
    count.type, count.shape = result.type, ir.Shape([1])
    edit.replace(edit.op("Slice", [rows, edit.ints([0]), count, edit.ints([0])], like=result))
    return True
