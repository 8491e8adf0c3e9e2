"""Files that end in TFLite_Detection_PostProcess: which of the detections in their outputs are meant.

LiteRT writes the detections that it counts. Behind them it leaves what the memory held, such as
those of the run before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Counted", "clear", "counted"]

_OPERATOR = "TFLite_Detection_PostProcess"


class Counted(NamedTuple):
    """The outputs of one such operator: the one that holds the count, and those that hold `each` rows per detection
    counted."""

    number: str
    each: int
    rows: tuple[str, ...]


def counted(data: bytes, names: Mapping[int, str]) -> list[Counted]:
    """The operators whose count is an output. names: of the outputs, by the number of their tensor."""
    if _OPERATOR.encode() not in data:
        return []
    from converter.frontends.tflite.reader import read

    found = []
    for operator in read(data).subgraphs[0].operators:
        if operator.custom is not None and operator.custom.name == _OPERATOR and operator.outputs[-1] in names:
            *rows, count = operator.outputs
            each = int(operator.custom.options.get("max_classes_per_detection", 1))
            found.append(Counted(names[count], each, tuple(names[i] for i in rows if i in names)))
    return found


def clear(outputs: Mapping[str, Any], ends: list[Counted]) -> None:
    """Set to zero, in place, what the counts say is not meant."""
    for end in ends:
        meant = int(outputs[end.number][0]) * end.each
        for name in end.rows:
            outputs[name][:, meant:] = 0
