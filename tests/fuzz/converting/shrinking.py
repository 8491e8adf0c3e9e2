"""A smaller file with the same failure: fewer changes, and for ONNX fewer parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import onnx
from google.protobuf.message import DecodeError, Message

from tests.fuzz.converting.serving import Limits, serve
from tests.fuzz.converting.trying import Case, Outcome

__all__ = ["shrunk"]

TRIALS = 120
"""Files that are tried for one failure."""


class _Fixed(Case):
    """A case whose bytes are given."""

    data: bytes

    def file(self) -> bytes:
        return self.data


def _fixed(case: Case, data: bytes) -> Case:
    made = _Fixed(case.seeds, case.key, case.steps)
    object.__setattr__(made, "data", data)
    return made


def shrunk(case: Case, outcome: Outcome, limits: Limits) -> bytes:
    """The smallest file found that fails in the same way at the same place."""

    def same(other: Case) -> bool:
        found = next(iter(serve([other], 1, limits))).outcome
        return (found.kind, found.place) == (outcome.kind, outcome.place)

    for step in case.steps:
        fewer = replace(case, steps=tuple(s for s in case.steps if s != step))
        if same(fewer):
            case = fewer
    data, left = case.file(), TRIALS
    if case.seeds.form != "onnx":
        return data
    progress = True
    while progress and left > 0:
        progress = False
        for smaller in _smaller(data):
            left -= 1
            if same(_fixed(case, smaller)):
                data, progress = smaller, True
                break
            if left <= 0:
                break
    return data


def _smaller(data: bytes) -> Iterator[bytes]:
    """The model without some of its repeated parts: half of them, a quarter, …, a single one."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return
    graph = model.graph
    for field in ("node", "value_info", "initializer", "output", "input"):
        count = len(getattr(graph, field))
        size = max(count // 2, 1)
        while count:
            for first in range(0, count, size):
                yield _without(model, field, first, size)
            if size == 1:
                break
            size //= 2


def _without(model: onnx.ModelProto, field: str, first: int, size: int) -> bytes:
    fewer: Any = onnx.ModelProto()
    fewer.CopyFrom(model)
    values: Any = getattr(fewer.graph, field)
    del values[first : first + size]
    assert isinstance(fewer, Message)
    return bytes(fewer.SerializeToString())
