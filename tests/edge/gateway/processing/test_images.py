from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from edge.gateway.errors import GatewayError
from edge.gateway.processing import Processing
from lite_runtime.graph import Array
from tests.edge.gateway.processing.files import declared, jpeg, png, port, ports, texts

RNG = np.random.default_rng(0)
PICTURE = RNG.integers(0, 256, (12, 20, 3), dtype=np.uint8)


def smooth(high: int, wide: int) -> Array:
    """A picture that JPEG keeps well and that no turn leaves as it is."""
    y, x = np.mgrid[:high, :wide]
    return np.stack([x * 255 // wide, y * 255 // high, (x + y) * 127 // (high + wide)], 2).astype(np.uint8)


def picture_processing(*steps: dict[str, Any], channels: int = 3, **image: Any) -> Processing:
    model = ports([port("x", "uint8", "n", None, None, channels)])
    return Processing(declared([{"step": "image", **image}, *steps]), model)


def through(processing: Processing, *files: Any) -> Array:
    return processing.before({"file": texts(*files)})["x"]


def test_png_comes_through_exactly() -> None:
    np.testing.assert_array_equal(through(picture_processing(), png(PICTURE), png(PICTURE + 1)), [PICTURE, PICTURE + 1])


def test_jpeg_is_what_pillow_decodes() -> None:
    data = jpeg(PICTURE)
    np.testing.assert_array_equal(through(picture_processing(), data)[0], np.asarray(Image.open(io.BytesIO(data))))


def test_modes() -> None:
    np.testing.assert_array_equal(through(picture_processing(mode="bgr"), png(PICTURE))[0], PICTURE[..., ::-1])
    grey = np.asarray(Image.fromarray(PICTURE).convert("L"))
    np.testing.assert_array_equal(through(picture_processing(mode="gray", channels=1), png(PICTURE))[0, ..., 0], grey)
    np.testing.assert_array_equal(through(picture_processing(), png(grey))[0], np.repeat(grey[..., None], 3, 2))


def test_transparency_palettes_and_sixteen_bits() -> None:
    alpha = np.dstack([PICTURE, np.full(PICTURE.shape[:2], 7, np.uint8)])
    np.testing.assert_array_equal(through(picture_processing(), png(alpha))[0], PICTURE)
    out = io.BytesIO()
    Image.fromarray(PICTURE).quantize(16).save(out, "PNG")
    want = np.asarray(Image.open(io.BytesIO(out.getvalue())).convert("RGB"))
    np.testing.assert_array_equal(through(picture_processing(), out.getvalue())[0], want)
    deep = RNG.integers(0, 1 << 16, (5, 4), dtype=np.uint16)
    np.testing.assert_array_equal(through(picture_processing(mode="gray", channels=1), png(deep))[0, ..., 0], deep >> 8)
    np.testing.assert_array_equal(through(picture_processing(), png(deep))[0, ..., 2], deep >> 8)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_rotated_upright(orientation: int) -> None:
    data = jpeg(smooth(16, 24), orientation)
    want = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(through(picture_processing(), data)[0], np.asarray(want))
    as_stored = np.asarray(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(through(picture_processing(orientation=False), data)[0], as_stored)


def test_base64_where_it_is_declared() -> None:
    text = base64.b64encode(png(PICTURE))
    np.testing.assert_array_equal(through(picture_processing(base64=True), text, text.decode())[1], PICTURE)
    for wrong in ("####", "Zm9v", 7, "é"):
        with pytest.raises(GatewayError) as caught:
            through(picture_processing(base64=True), wrong)
        assert caught.value.status == 400


@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic"])
def test_antialiased_resizing_is_pillows(method: str) -> None:
    made = through(picture_processing({"step": "resize", "size": [7, 9], "method": method}), png(PICTURE))[0]
    want = Image.fromarray(PICTURE).resize((9, 7), Image.Resampling[method.upper()])
    np.testing.assert_array_equal(made, np.asarray(want))


@pytest.mark.parametrize(("method", "word"), [("bilinear", "linear"), ("bicubic", "cubic")])
@pytest.mark.parametrize("size", [(5, 33), (31, 6), (12, 40)])
def test_plain_resizing_is_onnx_runtimes(method: str, word: str, size: tuple[int, int]) -> None:
    """Within one of 255: halves may be rounded either way."""
    shape, wanted = (1, 3, *PICTURE.shape[:2]), (1, 3, *size)
    node = onnx.helper.make_node(
        "Resize", ["x", "", "", "sizes"], ["y"], mode=word, coordinate_transformation_mode="half_pixel"
    )
    value = onnx.helper.make_tensor_value_info
    sizes = onnx.numpy_helper.from_array(np.array(wanted), "sizes")
    graph = onnx.helper.make_graph([node], "g", [value("x", 1, shape)], [value("y", 1, wanted)], [sizes])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": PICTURE.transpose(2, 0, 1)[None].astype(np.float32)})
    step = {"step": "resize", "size": list(size), "method": method, "antialias": False}
    made = through(picture_processing(step), png(PICTURE))[0].astype(np.float32)
    assert np.abs(made - np.rint(want[0].clip(0, 255)).transpose(1, 2, 0)).max() <= 1
    assert np.abs(made - want[0].clip(0, 255).transpose(1, 2, 0)).max() <= 0.502


def test_contain_frames_the_whole_picture() -> None:
    step = {"step": "resize", "size": [20, 20], "fit": "contain", "pad": 114}
    made = through(picture_processing(step), png(PICTURE))[0]
    np.testing.assert_array_equal(made[4:16], PICTURE)
    assert (made[:4] == 114).all() and (made[16:] == 114).all()


def test_cover_cuts_the_centre() -> None:
    made = through(picture_processing({"step": "resize", "size": [12, 12], "fit": "cover"}), png(PICTURE))[0]
    np.testing.assert_array_equal(made, PICTURE[:, 4:16])


def test_shorter_then_crop_is_what_torchvision_does() -> None:
    steps = {"step": "resize", "size": 8, "fit": "shorter"}, {"step": "crop", "size": [6, 7]}
    made = through(picture_processing(*steps), png(PICTURE))[0]
    whole = np.asarray(Image.fromarray(PICTURE).resize((13, 8), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(made, whole[1:7, 3:10])
    tall = through(picture_processing(steps[0]), png(PICTURE.transpose(1, 0, 2)))[0]
    assert tall.shape == (13, 8, 3)


@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from(["cover", "contain"]),
)
@settings(max_examples=60, deadline=None)
def test_any_proportions_make_the_size(high: int, wide: int, height: int, width: int, fit: str) -> None:
    step = {"step": "resize", "size": [height, width], "fit": fit, "pad": 9}
    made = through(picture_processing(step), png(np.full((high, wide, 3), 200, np.uint8)))[0]
    assert made.shape == (height, width, 3)
    if fit == "cover":
        assert (made == 200).all()
    else:
        inside = (made == 200).all(2)
        assert inside.any(1).all() or inside.any(0).all()


def test_the_usual_preparation_is_the_formula() -> None:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    normalize = {"step": "normalize", "scale": 1 / 255, "mean": mean, "std": std}
    steps = [{"step": "image"}, {"step": "resize", "size": 8}, normalize, {"step": "channels_first"}]
    processing = Processing(declared(steps), ports([port("x", "float32", "n", 3, 8, 8)]))
    made = through(processing, png(PICTURE), jpeg(PICTURE))
    small = np.asarray(Image.fromarray(PICTURE).resize((8, 8), Image.Resampling.BILINEAR))
    assert made.dtype == np.float32 and made.flags.c_contiguous and made.shape == (2, 3, 8, 8)
    np.testing.assert_allclose(made[0].transpose(1, 2, 0), (small / 255 - mean) / std, atol=2e-6)
    again = through(processing, png(PICTURE))
    np.testing.assert_array_equal(again[0], made[0])


# inputs that no client should send


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_of(width: int, height: int, data: bytes = b"", *more: bytes) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", head), *more, chunk(b"IDAT", zlib.compress(data)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


GIF = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
)
HOSTILE = {
    "nothing": (b"", 400),
    "noise": (RNG.bytes(500), 400),
    "gif": (GIF, 400),
    "text": ("a text", 400),
    "cut off in its head": (png(PICTURE)[:20], 400),
    "cut off in its pixels": (png(PICTURE)[:-60], 400),
    "jpeg cut off": (jpeg(PICTURE)[:-200], 400),
    "jpeg of a head only": (b"\xff\xd8\xff\xe0", 400),
    "no pixels": (png_of(8, 8), 400),
    "no width": (png_of(0, 8, b"\0" * 8), 400),
    "a bomb": (png_of(60_000, 60_000), 413),
    "a larger bomb": (png_of(2**31 - 1, 2**31 - 1), 413),
    "large": (png_of(6000, 6000), 413),
    "wrong checksum": (png(PICTURE)[:40] + b"\xff\xff" + png(PICTURE)[42:], 400),
    "text that unfolds": (png_of(8, 8, b"", chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 26)))), 400),
    "many scans": (jpeg(PICTURE)[:-2] + b"\xff\xda\x00\x0c" * 200 + b"\xff\xd9", 400),
    "not base64's fault": (base64.b64encode(png(PICTURE)), 400),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pictures_are_refused(name: str) -> None:
    data, status = HOSTILE[name]
    with pytest.raises(GatewayError) as caught:
        through(picture_processing({"step": "resize", "size": 8}), data)
    assert caught.value.status == status, str(caught.value)
    assert "input 'file'" in str(caught.value) and "object at" not in str(caught.value)


def test_pixels_are_counted_over_the_request_before_any_is_decoded() -> None:
    processing = picture_processing({"step": "resize", "size": 8}, max_pixels=500)
    assert through(processing, png(PICTURE), png(PICTURE)).shape == (2, 8, 8, 3)
    with pytest.raises(GatewayError, match="at most 500 pixels in a request, got 720") as caught:
        through(processing, png(PICTURE), png(PICTURE), png(PICTURE))
    assert caught.value.status == 413


@pytest.mark.parametrize("fit", ["cover", "shorter"])
def test_very_thin_images_do_not_grow_without_limit(fit: str) -> None:
    size = 400 if fit == "shorter" else [400, 400]
    with pytest.raises(GatewayError, match="would need") as caught:
        resize = {"step": "resize", "size": size, "fit": fit}
        through(picture_processing(resize), png(np.zeros((1, 50_000, 3), np.uint8)))
    assert caught.value.status == 400


@given(st.sampled_from(["png", "jpeg"]), st.integers(0, 10_000), st.binary(min_size=1, max_size=6), st.booleans())
@settings(max_examples=150, deadline=None)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")
def test_damaged_pictures_are_refused_or_read(kind: str, at: int, bytes_: bytes, cut: bool) -> None:
    whole = png(PICTURE) if kind == "png" else jpeg(PICTURE, 6, progressive=True)
    at %= len(whole)
    data = whole[:at] + bytes_ + (b"" if cut else whole[at + len(bytes_) :])
    try:
        assert through(picture_processing({"step": "resize", "size": 8}), data).shape == (1, 8, 8, 3)
    except GatewayError as error:
        assert error.status in (400, 413)
