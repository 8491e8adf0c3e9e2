"""MediaPipe's custom operators against its kernels, written here as plain loops, and models that carry them."""

from __future__ import annotations

import struct
from pathlib import Path

import flatbuffers.flexbuffers as flexbuffers
import numpy as np
import pytest

import lite_runtime
from converter import convert
from converter.errors import ConvertError
from tests.converter.frontends.tflite.builder import Builder
from tests.converter.frontends.tflite.support import floats, run, translated

SAME, VALID = 1, 2
F = np.float32


def model(op: str, inputs: list[np.ndarray], results: list[tuple[int, ...]], options: bytes, version: int = 1) -> bytes:
    builder = Builder()
    operands = [builder.input(f"x{i}", x.shape, "float32") for i, x in enumerate(inputs)]
    made = [builder.tensor("", shape, "float32") for shape in results]
    builder.node(op, operands, made, version=version, custom=options)
    builder.output(*made)
    return builder.build()


def structure(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def options(**given: object) -> bytes:
    return bytes(flexbuffers.Dumps(given))


@pytest.mark.parametrize("padding", [SAME, VALID])
@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [((4, 5), (2, 2), (2, 2)), ((5, 3), (3, 4), (2, 1)), ((3, 3), (1, 2), (2, 3))]
)
def test_convolution(padding: int, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]) -> None:
    x, w, b = floats(2, *size, 3), floats(4, *kernel, 3), floats(4)
    total = [
        max(0, k - (n - 1) % s - 1) if padding == SAME else 0 for n, k, s in zip(size, kernel, stride, strict=True)
    ]
    out = [s * (n - 1) + k - t for n, k, s, t in zip(size, kernel, stride, total, strict=True)]
    want = np.zeros((2, *out, 4)) + b
    for y0, x0, ky, kx in np.ndindex(*size, *kernel):
        oy, ox = y0 * stride[0] - total[0] // 2 + ky, x0 * stride[1] - total[1] // 2 + kx
        if 0 <= oy < out[0] and 0 <= ox < out[1]:
            want[:, oy, ox] += x[:, y0, x0] @ w[:, ky, kx].T
    builder = Builder()
    operands = [builder.input("x", x.shape, "float32"), builder.const(w), builder.const(b)]
    settings = structure(padding, stride[1], stride[0])
    builder.output(builder.op("Convolution2DTransposeBias", operands, want.shape, "float32", custom=settings))
    (got,) = run(translated(builder.build()), [x])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", [SAME, VALID])
@pytest.mark.parametrize(("kernel", "stride"), [((2, 2), (2, 2)), ((3, 2), (2, 1)), ((2, 3), (3, 3))])
def test_pools_with_places(padding: int, kernel: tuple[int, int], stride: tuple[int, int]) -> None:
    x = floats(2, 7, 9, 3)
    x[0, :4] = 1.0  # equal elements: the first one is meant
    sizes = x.shape[1:3]
    out = [-(-n // s) if padding == SAME else (n - k + s) // s for n, k, s in zip(sizes, kernel, stride, strict=True)]
    pads = [max(0, (o - 1) * s + k - n) // 2 for o, s, k, n in zip(out, stride, kernel, sizes, strict=True)]
    best, place = np.full((2, *out, 3), -np.inf, F), np.zeros((2, *out, 3), F)
    for oy, ox, ky, kx in np.ndindex(*out, *kernel):
        iy, ix = oy * stride[0] - pads[0] + ky, ox * stride[1] - pads[1] + kx
        if 0 <= iy < sizes[0] and 0 <= ix < sizes[1]:
            better = x[:, iy, ix] > best[:, oy, ox]
            place[:, oy, ox][better] = F(ky * kernel[1] + kx + 0.1)
            best[:, oy, ox] = np.maximum(best[:, oy, ox], x[:, iy, ix])
    settings = structure(padding, stride[1], stride[0], kernel[1], kernel[0], 0)
    data = model("MaxPoolingWithArgmax2D", [x], [best.shape, best.shape], settings)
    got, where = run(translated(data), [x])
    np.testing.assert_array_equal(got, best)
    np.testing.assert_allclose(where, place, atol=1e-6)


def test_unpooling() -> None:
    """Places beyond a window are left out here; MediaPipe's pools make none."""
    x, places = floats(2, 3, 4, 5), np.random.default_rng(0).integers(0, 6, (2, 3, 4, 5)).astype(F) + F(0.1)
    want = np.zeros((2, 9, 8, 5), F)
    for n, y0, x0, c in np.ndindex(*x.shape):
        place = int(places[n, y0, x0, c])
        want[n, y0 * 3 + place // 2, x0 * 2 + place % 2, c] = x[n, y0, x0, c]
    data = model("MaxUnpooling2D", [x, places], [want.shape], structure(SAME, 2, 3, 2, 3, 0))
    np.testing.assert_array_equal(run(translated(data), [x, places])[0], want)
    data = model("MaxUnpooling2D", [x, places], [want.shape], structure(SAME, 1, 1, 2, 3, 0))
    with pytest.raises(ConvertError, match="touch without overlap"):
        translated(data)


MATRIX = np.array([[[0.6, -0.2, 0.4, 1.3], [0.3, 0.7, 0.2, -0.6], [0, 0, 1, 0], [0, 0, 0, 1]]], F)


@pytest.mark.parametrize(("op", "version"), [("TransformTensor", 1), ("TransformTensorBilinear", 2)])
@pytest.mark.parametrize("matrix", [MATRIX, np.eye(4, dtype=F)[None]])
def test_transform_tensor(op: str, version: int, matrix: np.ndarray) -> None:
    x = floats(1, 6, 7, 3)
    rows = matrix[0, :2].astype(np.float64)
    if version == 2:
        rows[:, 3] += rows[:, 0] * 0.5 + rows[:, 1] * 0.5 - 0.5
    want = np.zeros((1, 5, 8, 3))
    for oy, ox in np.ndindex(5, 8):
        tx, ty = rows @ [ox, oy, 0, 1]
        if 0 <= tx <= 6 and 0 <= ty <= 5:
            left, top = int(tx), int(ty)
            right, bottom = min(left + 1, 6), min(top + 1, 5)  # beyond the last pixel the share is 0
            upper = x[0, top, left] * (1 - tx + left) + x[0, top, right] * (tx - left)
            lower = x[0, bottom, left] * (1 - tx + left) + x[0, bottom, right] * (tx - left)
            want[0, oy, ox] = upper * (1 - ty + top) + lower * (ty - top)
    assert (want == 0).all(-1).any() and (want != 0).any()
    data = model(op, [x, matrix], [want.shape], options(output_height=5, output_width=8), version)
    np.testing.assert_allclose(run(translated(data), [x, matrix])[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("version", [1, 2])
def test_transform_landmarks(version: int, size: int) -> None:
    x = floats(1, 2, 1, 4 * size) if version == 1 else floats(1, 7, size)
    scale = 2.5 if version == 1 else 1.0
    want = x.reshape(-1, size).copy()
    want[:, :2] = want[:, :2] @ MATRIX[0, :2, :2].T + MATRIX[0, :2, 3] * F(scale)
    settings = options(dimensions=size, scale=scale) if version == 1 else b""
    data = model("TransformLandmarks", [x, MATRIX], [x.shape], settings, version)
    np.testing.assert_allclose(run(translated(data), [x, MATRIX])[0], want.reshape(x.shape), rtol=1e-5, atol=1e-6)


def turn(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def homogeneous(linear: np.ndarray, shift: object) -> np.ndarray:
    found = np.eye(3)
    found[:2, :2], found[:2, 2] = linear, shift
    return found


def as_matrix(found: np.ndarray) -> np.ndarray:
    made = np.eye(4)
    made[:2, :2], made[:2, 3] = found[:2, :2], found[:2, 2]
    return made[None]


SUBSET = [1, 5, 3, 2, 6]


@pytest.mark.parametrize("level", [False, True])
def test_matrix_of_box(level: bool) -> None:
    x = floats(1, 8, 3)
    if level:
        x[0, 4, :2] = x[0, 7, :2]  # no direction: as if it were level
    points = x[0, :, :2].astype(np.float64)
    way = points[7] - points[4]
    angle = 0.3 - np.arctan2(way[1], way[0])
    turned = points[SUBSET] @ turn(angle).T
    low, high = turned.min(0), turned.max(0)
    scale = np.array([1.5, 1.2]) * (high - low) / [24, 16]
    want = homogeneous(np.eye(2), turn(-angle) @ ((low + high) / 2)) @ homogeneous(turn(-angle), 0)
    want = want @ homogeneous(np.diag(scale), 0) @ homogeneous(np.eye(2), [-12, -8])
    settings = options(
        left_rotation_idx=4, right_rotation_idx=7, subset_idxs=SUBSET, target_rotation_radians=0.3,
        output_height=16, output_width=24, scale_x=1.5, scale_y=1.2,
    )  # fmt: skip
    data = model("Landmarks2TransformMatrix", [x], [(1, 4, 4)], settings, 2)
    np.testing.assert_allclose(run(translated(data), [x])[0], as_matrix(want), rtol=1e-4, atol=1e-4)


def test_matrix_of_first_version() -> None:
    x = floats(1, 1, 1, 24)
    points = x.reshape(8, 3)[:, :2].astype(np.float64)
    way = points[7] - points[4]
    angle = -np.arctan(way[1] / way[0])
    turned = points[SUBSET] @ turn(angle).T
    low, high = turned.min(0), turned.max(0)
    middle = turn(-angle) @ ((low + high) / 2) / 4 * 2 - 1
    absolute, relative = homogeneous(np.diag([9.5, 4.5]), [9.5, 4.5]), homogeneous(np.diag([2 / 23, 2 / 15]), [-1, -1])
    want = absolute @ homogeneous(turn(-angle), middle) @ homogeneous(np.diag((high - low) * 1.25 / 4), 0) @ relative
    settings = options(
        left_rotation_idx=4, right_rotation_idx=7, subset=SUBSET, dimensions=3, landmarks_range=4,
        bbox_size_multiplier=1.25, input_hw=[10, 20], output_hw=[16, 24],
    )  # fmt: skip
    data = model("Landmarks2TransformMatrix", [x], [(1, 4, 4)], settings, 1)
    np.testing.assert_allclose(run(translated(data), [x])[0], as_matrix(want), rtol=1e-4, atol=1e-4)


def test_bad_options_are_named() -> None:
    x = floats(1, 8, 3)
    cases = (
        (model("Landmarks2TransformMatrix", [x], [(1, 4, 4)], b"", 2), "left_rotation_idx"),
        (
            model("Landmarks2TransformMatrix", [x], [(1, 4, 4)], options(
                left_rotation_idx=4, right_rotation_idx=9, subset_idxs=[1], output_height=4, output_width=4), 2),
            "indices of 8 landmarks",
        ),
        (model("MaxPoolingWithArgmax2D", [floats(1, 4, 4, 1)], [(1, 2, 2, 1)] * 2, structure(SAME, 2)), "24 bytes"),
        (model("MaxUnpooling2D", [floats(1, 4, 4, 1)] * 2, [(1, 8, 8, 1)], structure(3, 2, 2, 2, 2, 0)), "padding"),
        (model("TransformLandmarks", [x, MATRIX], [x.shape], options(scale=1.0), 1), "dimensions"),
    )  # fmt: skip
    for data, words in cases:
        with pytest.raises(ConvertError, match=words):
            translated(data)


def _packaged() -> list[Path]:
    """The models of an installed mediapipe package that carry these operators."""
    from importlib.util import find_spec

    found = find_spec("mediapipe")
    if found is None or not found.submodule_search_locations:
        return []
    folder = Path(found.submodule_search_locations[0]) / "modules"
    wanted = ("face_landmark_with_attention", "selfie_segmentation", "selfie_segmentation_landscape")
    return [path for name in wanted for path in sorted(folder.glob(f"*/{name}.tflite"))]


@pytest.mark.parametrize("path", _packaged(), ids=lambda p: p.stem)
def test_packaged_models(path: Path) -> None:
    """They convert and give finite results, the same with kernels and with the reference."""
    bundle = convert(path).bundle
    found = lite_runtime.load(bundle)
    feeds = {value.name: floats(*value.shape, low=0.0) for value in found.inputs()}
    native, slow = found.run(feeds), lite_runtime.load(bundle, backend="reference").run(feeds)
    for name, want in slow.items():
        assert np.isfinite(want).all()
        np.testing.assert_allclose(native[name], want, rtol=2e-3, atol=2e-3 * max(1.0, float(np.abs(want).max())))
