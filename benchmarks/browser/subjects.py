"""A model in the forms that the contenders read, and inputs for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lite_runtime
from converter import convert
from converter.ahead import build
from edge.measuring.samples import draw, sized
from lite_runtime.errors import MsedgeError

__all__ = ["Subject", "prepared"]


class Subject(NamedTuple):
    """forms: by contender, the path of its file or folder below the folder of subjects; absent: why it has none.
    ports: of the inputs, whose arrays are in the file `inputs` one after the other, each at a multiple of 8 bytes."""

    name: str
    forms: Mapping[str, str]
    absent: Mapping[str, str]
    ports: list[dict[str, Any]]
    inputs: str
    exported: bool
    """Whether ONNX Runtime's file was made from the .tflite by `msedge convert --to onnx`."""


def prepared(path: Path, twin: Path | None, folder: Path) -> Subject:
    """Everything for one model, in a folder of its name below `folder`.

    path: the model that msedge runs. twin: the same network, published in the other format, where there is one.
    """
    name, own = path.name.rpartition(".")[0], folder / path.name.rpartition(".")[0]
    own.mkdir(parents=True, exist_ok=True)
    bundle = own / "model.mslite"
    convert(path, output=bundle)
    model = lite_runtime.load(bundle)
    shapes = sized(model.inputs(), {})
    build(bundle, own / "web", shapes=shapes)
    inputs = draw(model.inputs(), np.random.default_rng(7))
    files = {file.suffix: file for file in (path, twin) if file is not None}
    absent, exported = {}, ".onnx" not in files
    if exported:
        try:
            convert(path, output=own / "model.onnx", to="onnx")
        except MsedgeError as error:
            absent["onnxruntime"] = str(error).splitlines()[0]
    else:
        (own / "model.onnx").write_bytes(files[".onnx"].read_bytes())
    if ".tflite" in files:
        (own / "model.tflite").write_bytes(files[".tflite"].read_bytes())
    else:
        absent["litert"] = "the model is published as ONNX only"
    with open(own / "inputs.bin", "wb") as file:
        for array in inputs.values():
            data = np.ascontiguousarray(array).tobytes()
            file.write(data + bytes(-len(data) % 8))
    forms = {"msedge": "web/", "onnxruntime": "model.onnx", "litert": "model.tflite"}
    ports = [{"name": k, "dtype": a.dtype.name, "shape": list(a.shape)} for k, a in inputs.items()]
    kept = {who: f"{name}/{form}" for who, form in forms.items() if who not in absent}
    return Subject(name, kept, absent, ports, f"{name}/inputs.bin", exported)
