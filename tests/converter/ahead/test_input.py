"""Pictures as inputs: from the same pixels JavaScript makes the numbers that the gateway makes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter import convert
from converter.ahead import build
from edge.gateway.processing import Processing
from lite_runtime.bundle.processing import check
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array
from lite_runtime.native.target import host
from tests.converter.ahead import node
from tests.converter.support import Builder
from tests.edge.gateway.processing.files import declared, png, port, ports, texts

pytestmark = node.needs_node
RNG = np.random.default_rng(5)
FITS, METHODS = ("stretch", "cover", "contain", "shorter"), ("nearest", "bilinear", "bicubic")
IMAGENET = {"step": "normalize", "scale": 1 / 255, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def resize(size: list[int], **options: Any) -> dict[str, Any]:
    return {"step": "resize", "size": size, **options}


SIZES = [
    [resize([9] if fit == "shorter" else [9, 14], fit=fit, method=method, antialias=antialias, pad=7)]
    for fit in FITS
    for method in METHODS
    for antialias in (True, False)
]
STEPS: list[list[dict[str, Any]]] = [
    [],
    *SIZES,
    [resize([40, 50], method="bicubic")],
    [resize([40, 50], method="bilinear", antialias=False)],
    [{"step": "crop", "size": [6, 7]}],
    [resize([8, 8]), IMAGENET, {"step": "channels_first"}],
    [{"step": "normalize", "scale": 1 / 127.5, "mean": [1.0]}],
    [{"step": "normalize", "mean": [128.0], "std": [0.5]}, {"step": "cast", "dtype": "int8"}],
    [IMAGENET, {"step": "quantize", "scale": 0.0187, "zero_point": -14, "dtype": "int8"}],
    [{"step": "normalize"}, {"step": "quantize", "scale": 2.0, "zero_point": 3, "dtype": "uint8"}],
    [{"step": "transpose", "axes": [1, 2, 0]}, {"step": "expand", "axis": 1}],
]


def shown(picture: Array) -> dict[str, Any]:
    """A picture as a canvas gives it: RGBA."""
    high, wide = picture.shape[:2]
    data = np.concatenate([picture, np.full((high, wide, 1), 255, np.uint8)], 2)
    return {"width": wide, "height": high, "data": base64.b64encode(data.tobytes()).decode()}


@pytest.mark.parametrize("size", [(12, 20), (31, 17), (5, 5)])
def test_numbers_are_those_of_the_gateway(size: tuple[int, int]) -> None:
    picture = RNG.integers(0, 256, (*size, 3), dtype=np.uint8)
    steps = [each for each in STEPS if size != (5, 5) or not any(step["step"] == "crop" for step in each)]
    cases, wanted = [], []
    for mode in ("rgb", "bgr", "gray"):
        for each in steps:
            if mode == "gray" and any(len(step.get("mean", [0])) > 1 for step in each):
                continue
            document = declared([{"step": "image", "mode": mode}, *each])
            result = gateway(document, picture)
            input_ = {"name": "x", "dtype": result.dtype.name, "shape": list(result.shape)}
            cases.append({"declaration": check(document), "port": input_, "files": [shown(picture)]})
            wanted.append((each, mode, result))
    for text, (each, mode, result) in zip(node.prepared(cases), wanted, strict=True):
        assert "Error" not in text, (each, mode, text)
        found = np.frombuffer(base64.b64decode(text), result.dtype).reshape(result.shape)
        np.testing.assert_array_equal(found, result, f"{each} {mode}")


def test_pictures_whose_rows_pillow_resizes_first_are_the_same() -> None:
    picture = RNG.integers(0, 256, (12, 20, 3), dtype=np.uint8)
    documents = [declared([{"step": "image"}, resize([9, 14], method=method)]) for method in METHODS]
    port_ = {"name": "x", "dtype": "uint8", "shape": [1, 9, 14, 3]}
    cases = [{"declaration": check(each), "port": port_, "files": [shown(picture)]} for each in documents]
    for text, document in zip(node.prepared(cases), documents, strict=True):
        found = np.frombuffer(base64.b64decode(text), np.uint8).reshape(1, 9, 14, 3)
        np.testing.assert_array_equal(found, gateway(document, picture))


def gateway(document: dict[str, Any], picture: Array) -> Array:
    """What the gateway feeds a model that takes whatever type and sizes the steps make."""
    for dtype in ("uint8", "float32", "int8"):
        for rank in (3, 4):
            try:
                made = Processing(document, ports([port("x", dtype, "n", *[None] * rank)]))
            except MsedgeError:
                continue
            return made.before({"file": texts(png(picture))})["x"]
    raise AssertionError(document)


def test_what_is_not_for_pictures_is_told() -> None:
    picture = shown(RNG.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    whole = {"name": "x", "dtype": "uint8", "shape": [1, 4, 4, 3]}
    entry = {"name": "file", "feeds": "x", "steps": [{"step": "image", "mode": "rgb"}]}

    def case(port_: dict[str, Any] = whole, pictures: int = 1, **other: Any) -> dict[str, Any]:
        return {"declaration": {"inputs": [{**entry, **other}]}, "port": port_, "files": [picture] * pictures}

    cases = {
        "file begins with tensor, and what is read here is image and audio": case(steps=[{"step": "tensor"}]),
        "the step mel of file is not one of resize, crop": case(steps=[*entry["steps"], {"step": "mel"}]),
        "it feeds other, which is no input": case(feeds="other"),
        "x takes 1 rows, got 2": case(pictures=2),
        "its steps make uint8 [4,4,3] for x, which takes float32 [4,4,3]": case({**whole, "dtype": "float32"}),
        "expected a picture of at least 5 x 9, got 4 x 4": case(
            steps=[*entry["steps"], {"step": "crop", "size": [9, 5]}]
        ),
    }
    for part, text in zip(cases, node.prepared(list(cases.values())), strict=True):
        assert text.startswith("MsedgeError: processing: ") and part in text, text


@pytest.mark.skipif(host() is None, reason="no native kernels on this processor")
def test_a_built_model_prepares_its_pictures(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", (1, 3, 4, 4))
    steps = [{"step": "image"}, resize([4, 4]), IMAGENET, {"step": "channels_first"}]
    made = convert(b.model(b("Relu", x)), processing=check(declared(steps))).bundle
    assert made is not None
    build(made, tmp_path / "built")
    assert json.loads((tmp_path / "built/processing.json").read_text()) == check(declared(steps))
    picture = RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8)
    told = node.ask(tmp_path / "built", "prepare", given=shown(picture))
    wanted = np.maximum(gateway(declared(steps), picture), 0)
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(told), np.float32).reshape(wanted.shape), wanted)
