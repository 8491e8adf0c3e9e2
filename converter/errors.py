"""Errors of the conversion. Messages say what was expected, what was found, where, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from lite_runtime import errors as runtime_errors

__all__ = ["ConvertError", "QuantizeError", "TrainingError", "UnsupportedNode", "UnsupportedOpError"]


class ConvertError(runtime_errors.MsedgeError):
    """The source is not a model that can be converted, or a conversion step would have made it invalid."""


class QuantizeError(ConvertError):
    """Invalid options, calibration data or accuracy budget for quantisation."""


class TrainingError(ConvertError):
    """Parameters, a loss or settings that a trainable bundle cannot be built with."""


@dataclass(frozen=True)
class UnsupportedNode:
    """One node without a kernel or reference. `source` is its location in the author's code, "" if the file does not
    say."""

    name: str
    op: str
    domain: str
    opset: int | None
    source: str = ""
    hint: str = ""

    def __str__(self) -> str:
        opset = "no opset imported" if self.opset is None else f"opset {self.opset}"
        origin = f", from {self.source}" if self.source else ""
        hint = f": {self.hint}" if self.hint else ""
        return f"  {self.domain or 'ai.onnx'}::{self.op} ({opset}) at node {self.name or '<unnamed>'!r}{origin}{hint}"


_SHOWN, _NAMED = 16, 3
"""Nodes that an error lists one a line; beyond that, nodes that it names for each operator."""


def _by_operator(nodes: Iterable[UnsupportedNode]) -> Iterator[str]:
    """A line for each operator and reason: one node in full, the names of a few others, and how many there are."""
    groups: dict[tuple[str, str, str], list[UnsupportedNode]] = {}
    for node in nodes:
        groups.setdefault((node.domain, node.op, node.hint), []).append(node)
    for first, *others in islice(groups.values(), _SHOWN):
        named = "".join(f", {node.name!r}" for node in others[: _NAMED - 1])
        rest = len(others) - _NAMED + 1
        more = f"; also at{named[1:]}" + (f" and {rest} more" if rest > 0 else "") if others else ""
        yield f"{first}{more}"
    if len(groups) > _SHOWN:
        yield f"  and {len(groups) - _SHOWN} more operators: {', '.join(sorted({op for _, op, _ in groups}))}"


class UnsupportedOpError(ConvertError, runtime_errors.UnsupportedOpError):
    """The model contains operators that msedge cannot run; `nodes` lists all of them."""

    def __init__(self, nodes: Iterable[UnsupportedNode]) -> None:
        self.nodes = tuple(nodes)
        kinds = sorted({f"{n.domain or 'ai.onnx'}::{n.op}" for n in self.nodes})
        lines = "\n".join(map(str, self.nodes) if len(self.nodes) <= _SHOWN else _by_operator(self.nodes))
        super().__init__(
            f"{len(self.nodes)} node(s) of {len(kinds)} operator(s) cannot run on a device:\n{lines}\n"
            "Replace them in the source model by standard ONNX operators (opset 26), export them as model-local "
            "functions, register them as operators of your own (msedge.CustomOperator, --custom MODULE), or cut the "
            "model before them and run that part on the host."
        )
