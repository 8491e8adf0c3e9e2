"""The default models: two networks with an open batch dimension, so that every server may batch requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx

__all__ = ["SUBJECTS", "Subject"]


class Subject(NamedTuple):
    """`write` writes the model to a path; `connections`: the numbers of connections to try."""

    write: Callable[[Path], None]
    connections: Sequence[int]


def _resnet8(path: Path) -> None:
    import onnx_ir as ir

    from cloud.zoo import resnet8

    ir.save(resnet8((3, 32, 32)), path)


def _mobilenet_v2(path: Path) -> None:
    from benchmarks.models import mobilenet_v2

    model = mobilenet_v2()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, path)


SUBJECTS: Mapping[str, Subject] = {
    "ResNet-8": Subject(_resnet8, (1, 16, 64)),
    "MobileNetV2": Subject(_mobilenet_v2, (1, 4, 16)),
}
